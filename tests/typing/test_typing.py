"""What a type checker tells a user of Skate.

Each file in `snippets/` is a small program. A comment at the end of a line says what mypy has to say about it:

    reveal_type(f.remote(1))  # reveals: ObjectRef[str]
    f.remote("a")             # error: incompatible type

Names are compared without their modules, and an error by a part of its text. A line without such a comment must pass
without one: a false alarm is as much of a failure as a missed mistake.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SNIPPETS = sorted((HERE / "snippets").glob("*.py"))

_EXPECTED = re.compile(r"#\s*(reveals|error):\s*(.+?)\s*$")
_REPORTED = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): (?P<kind>error|note): (?P<text>.*)$")
_REVEALED = re.compile(r'Revealed type is "(?P<type>.*)"')
_MODULE = re.compile(r"\b(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")

#: What mypy said: {file: {line: [(kind, text)]}}
Reports = dict[Path, dict[int, list[tuple[str, str]]]]


@pytest.fixture(scope="module")
def reports() -> Reports:
    """Everything that mypy says about the snippets, from one run over all of them."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-pretty", "--no-error-summary", *map(str, SNIPPETS)]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), f"mypy itself failed:\n{done.stdout}{done.stderr}"
    found: Reports = defaultdict(lambda: defaultdict(list))
    for line in done.stdout.splitlines():
        if match := _REPORTED.match(line):
            found[(ROOT / match["file"]).resolve()][int(match["line"])].append((match["kind"], match["text"]))
    return found


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda path: path.stem)
def test_mypy_says_what_the_snippet_expects(snippet: Path, reports: Reports) -> None:
    differences = []
    for number, source in enumerate(snippet.read_text().splitlines(), start=1):
        said = reports[snippet][number]
        revealed = [_MODULE.sub("", match["type"]) for _, text in said if (match := _REVEALED.search(text))]
        errors = [text for kind, text in said if kind == "error"]
        expected = _EXPECTED.search(source)
        kind, text = expected.groups() if expected else ("nothing", "")
        if (
            (kind == "reveals" and (revealed != [text] or errors))
            or (kind == "error" and not any(text in error for error in errors))
            or (kind == "nothing" and errors)
        ):
            differences.append(f"{snippet.name}:{number}: {source.strip()}\n    mypy: {revealed + errors}")
    assert not differences, "\n" + "\n".join(differences)


def test_the_snippets_expect_something() -> None:
    assert SNIPPETS
    for snippet in SNIPPETS:
        assert any(_EXPECTED.search(line) for line in snippet.read_text().splitlines()), snippet.name
