"""The style that can be checked, checked: each test is one sentence of it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "skate"
FOLDERS = ("src", "tests", "bench", "examples")

LINE_LENGTH_MAX = 120
SOURCE_LINES_MAX = 700
#: What `make run` shows is to be read in one go.
EXAMPLE_LINES_MAX = 119

#: Words that promise something later, or excuse something now. (This file has to name them, and is not searched.)
BANNED = re.compile(
    r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b"
    r"|(?i:\b(for now|simplified|hopefully|placeholder|work in progress)\b)"
    r"|/(?:root|home/\w+)/"
)

#: Names that say nothing: things live with their subject.
VAGUE_NAMES = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py", "constants.py"}

#: Modules whose work is to write to the terminal.
MAY_PRINT = {"cli", "rl/command.py", "serve/command.py"}


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        for parent, children, names in os.walk(ROOT / folder):
            # Hidden folders hold caches and whole environments of other people's code: they are not even entered.
            children[:] = sorted(child for child in children if not child.startswith((".", "__pycache__")))
            yield from (Path(parent, name) for name in sorted(names) if name.endswith(".py"))


def text_files() -> Iterator[Path]:
    """Everything that a person wrote, except the licence and this file."""
    yield from (path for path in python_files(*FOLDERS) if path != Path(__file__).resolve())
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted((ROOT / "docs").rglob("*.md"))
    yield from (ROOT / name for name in ("Makefile", "pyproject.toml", ".ci/run"))


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def lines() -> Iterator[tuple[str, str]]:
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            yield where(path, number), line


def none_of(places: list[str]) -> None:
    """Fail with the whole list: each entry is a place to go to."""
    assert not places, "\n" + "\n".join(places)


def test_lines_fit_on_a_screen() -> None:
    python = (item for item in lines() if item[0].rpartition(":")[0].endswith(".py"))
    none_of([place for place, line in python if len(line) > LINE_LENGTH_MAX])


def test_there_is_no_trailing_space_and_no_tab_but_in_the_makefile() -> None:
    untidy = [place for place, line in lines() if line != line.rstrip() or ("\t" in line and "Makefile" not in place)]
    none_of(untidy)


def test_files_end_with_one_newline() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in text_files()}
    wrong = [str(path) for path, text in texts.items() if text and (not text.endswith("\n") or text.endswith("\n\n"))]
    none_of(wrong)


def test_nothing_is_left_for_later() -> None:
    found = [f"{place}: {match[0]}" for place, line in lines() if (match := BANNED.search(line))]
    none_of(found)


def test_source_files_hold_one_idea() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files("src")}
    none_of([f"{path.relative_to(ROOT)}: {n} lines" for path, n in lengths.items() if n > SOURCE_LINES_MAX])


def test_the_first_example_is_short() -> None:
    assert len((ROOT / "examples" / "evolution.py").read_text().splitlines()) <= EXAMPLE_LINES_MAX


def test_every_module_says_what_it_is() -> None:
    silent = []
    for path in python_files("src", "tests", "examples", "bench"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if tree.body and not ast.get_docstring(tree):
            silent.append(str(path.relative_to(ROOT)))
    none_of(silent)


def test_files_are_named_after_what_they_hold() -> None:
    none_of([str(path) for path in python_files(*FOLDERS) if path.name in VAGUE_NAMES])


def test_only_the_command_line_prints() -> None:
    """A library that prints cannot be silenced; logging can. The last words of a daemon on its stderr are exempt."""

    def prints(node: ast.AST) -> bool:
        return (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "print"
            and not any(keyword.arg == "file" for keyword in node.keywords)
        )

    printing = [
        where(path, node.lineno)
        for path in python_files("src")
        if not {path.relative_to(SOURCE).parts[0], path.relative_to(SOURCE).as_posix()} & MAY_PRINT
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if prints(node)
    ]
    none_of(printing)


def test_no_two_test_files_share_a_name() -> None:
    """pytest imports test files by their bare names, and so do the workers that run their functions."""
    names = [path.name for path in python_files("tests") if path.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    "line",
    ["# TODO: later", "raise NotImplementedError", "this is simplified", "good enough For now", "/home/someone/x"],
)
def test_the_banned_words_are_found(line: str) -> None:
    assert BANNED.search(line)
