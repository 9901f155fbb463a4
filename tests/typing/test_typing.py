"""What a type checker tells a user of Skate.

Each file in `snippets/` is a small program; those of `with_plugin/` are for mypy with `skate.mypy_plugin`, those of
`without_plugin/` for mypy without it, and all others for both. A comment at the end of a line says what mypy has to say
about it:

    reveal_type(f.remote(1))  # reveals: ObjectRef[str]
    f.remote("a")             # error: incompatible type

Names are compared without their modules, and an error by a part of its text. A line without such a comment must pass
without one: a false alarm is as much of a failure as a missed mistake.

Pyright, where it is installed, finds fewer mistakes. It is held only to this: no false alarms, but for lines marked
`# pyright errs`, which are known, and said to users in docs/typing.md.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SNIPPETS = sorted((HERE / "snippets").rglob("*.py"))
MODES = ["with_plugin", "without_plugin"]

#: The first run after a change of the plugin reads the whole of Skate, twenty seconds on a busy machine.
pytestmark = pytest.mark.timeout(180)

_EXPECTED = re.compile(r"#\s*(reveals|error):\s*(.+?)\s*$")
_REPORTED = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): (?P<kind>error|note): (?P<text>.*)$")
_REVEALED = re.compile(r'Revealed type is "(?P<type>.*)"')
_MODULE = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")

#: What a checker said: {file: {line: [(kind, text)]}}
Reports = dict[Path, dict[int, list[tuple[str, str]]]]


def snippets_for(mode: str) -> list[Path]:
    return [path for path in SNIPPETS if path.parent.name in ("snippets", mode)]


def mypy(mode: str, *files: Path) -> Reports:
    """Everything that mypy says about the files, from one run over all of them."""
    # Caches of their own, since switching the plugin makes a cache worthless.
    options = ["--config-file", str(HERE / f"{mode}.ini"), "--cache-dir", str(ROOT / ".mypy_cache" / mode)]
    command = [sys.executable, "-m", "mypy", *options, "--no-pretty", "--no-error-summary", *map(str, files)]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join([str(ROOT / "src"), str(files[0].parent)])}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), f"mypy itself failed:\n{done.stdout}{done.stderr}"
    found: Reports = defaultdict(lambda: defaultdict(list))
    for line in done.stdout.splitlines():
        if match := _REPORTED.match(line):
            found[(ROOT / match["file"]).resolve()][int(match["line"])].append((match["kind"], match["text"]))
    return found


@functools.cache
def reports(mode: str) -> Reports:
    return mypy(mode, *snippets_for(mode))


def differences(snippet: Path, report: dict[int, list[tuple[str, str]]]) -> list[str]:
    """Where mypy did not say what the comments of a snippet expect."""
    found = []
    for number, source in enumerate(snippet.read_text().splitlines(), start=1):
        said = report[number]
        revealed = [_MODULE.sub("", match["type"]) for _, text in said if (match := _REVEALED.search(text))]
        errors = [text for kind, text in said if kind == "error"]
        expected = _EXPECTED.search(source)
        kind, text = expected.groups() if expected else ("nothing", "")
        if (
            (kind == "reveals" and (revealed != [text] or errors))
            or (kind == "error" and not any(text in error for error in errors))
            or (kind == "nothing" and errors)
        ):
            found.append(f"{snippet.name}:{number}: {source.strip()}\n    mypy: {revealed + errors}")
    return found


@pytest.mark.parametrize(
    ("mode", "snippet"),
    [(mode, snippet) for mode in MODES for snippet in snippets_for(mode)],
    ids=lambda value: value.stem if isinstance(value, Path) else value,
)
def test_mypy_says_what_the_snippet_expects(mode: str, snippet: Path) -> None:
    found = differences(snippet, reports(mode)[snippet])
    assert not found, "\n" + "\n".join(found)


def test_the_plugin_knows_classes_that_mypy_has_in_its_cache(tmp_path: Path) -> None:
    """Of a module that did not change mypy reads a summary, without decorators and bodies."""
    (tmp_path / "cached_actors.py").write_text(
        f"# {tmp_path}: never the same, or mypy takes what it has in its cache from earlier tests\n"
        "import skate\n"
        "from collections.abc import Iterator\n"
        "@skate.remote\n"
        "class Splitter:\n"
        "    def __init__(self, size: int) -> None: ...\n"
        "    @skate.method(num_returns=2)\n"
        "    def split(self) -> tuple[int, int]: return 1, 2\n"
        "    def items(self) -> Iterator[int]: yield 1\n"
        "    def listed(self) -> Iterator[int]: return iter([1])\n"
    )
    program = tmp_path / "cached_actors_user.py"
    program.write_text("import cached_actors\n")
    assert not mypy("with_plugin", program)[program]
    program.write_text(
        "from cached_actors import Splitter\n"
        "splitter = Splitter.remote(1)\n"
        "reveal_type(splitter.split.remote())  # reveals: list[ObjectRef[Any]]\n"
        "reveal_type(splitter.items.remote())  # reveals: ObjectRefGenerator[int]\n"
        "reveal_type(splitter.listed.remote())  # reveals: ObjectRef[Iterator[int]]\n"
        'Splitter.remote("a")  # error: incompatible type "str"\n'
        "Splitter(1)  # error: cannot be called directly\n"
    )
    found = differences(program, mypy("with_plugin", program)[program])
    assert not found, "\n" + "\n".join(found)


@pytest.mark.skipif(not importlib.util.find_spec("pyright"), reason="pyright is not installed")
def test_pyright_raises_no_false_alarm(tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": [str(ROOT / "src")], "include": [str(HERE / "snippets")], "pythonVersion": "3.10"})
    )
    command = [sys.executable, "-m", "pyright", "--outputjson", "--project", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    alarms = []
    for report in json.loads(done.stdout)["generalDiagnostics"]:
        path, number = Path(report["file"]), report["range"]["start"]["line"]
        source = path.read_text().splitlines()[number]
        if report["severity"] == "error" and "# error:" not in source and "# pyright errs" not in source:
            alarms.append(f"{path.name}:{number + 1}: {source.strip()}\n    pyright: {report['message']}")
    assert not alarms, "\n" + "\n".join(alarms)


def test_the_snippets_expect_something() -> None:
    assert SNIPPETS
    for snippet in SNIPPETS:
        assert any(_EXPECTED.search(line) for line in snippet.read_text().splitlines()), snippet.name


def test_skate_does_not_need_mypy() -> None:
    code = "import sys, skate; assert not {'mypy', 'skate.mypy_plugin', 'skate._remote_class'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
