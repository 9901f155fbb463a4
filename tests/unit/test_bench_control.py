"""The suite `control` of bench/: its rows name programs that are there, and its page has figures from results alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "bench" / "control"
PAGE = ROOT / "docs" / "control-benchmarks.md"

ROWS = [
    "figure_10a_killed", "figure_10a_frozen", "writes_redis", "writes_valkey", "sqlite", "recovery", "take_over",
    "durability", "figure_10b_copies", "figure_10b_tasks", "figure_10b_actors", "figure_10b_kv",
]  # fmt: skip


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """bench/control/page.py. Every suite has modules with its names, so they are forgotten again."""
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("rows", "page")
    before = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    import page

    yield page
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(before)


def functions(program: Path) -> dict[str, ast.FunctionDef]:
    """By the row that it measures: what the program hands to `tools.main`."""
    tree = ast.parse(program.read_text())
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    table = next(
        call.args[0]
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "main"
    )
    assert isinstance(table, ast.Dict)
    named = zip(table.keys, table.values, strict=True)
    return {str(key.value): defined[value.id] for key, value in named}  # type: ignore[union-attr]


def test_the_rows_are_those_of_the_page(page: ModuleType) -> None:
    assert list(page.ROWS) == ROWS
    text = PAGE.read_text()
    assert [name for name in ROWS if f"`{name}`" not in text] == []


def test_every_cell_calls_a_function_that_takes_its_arguments(page: ModuleType) -> None:
    for row in page.ROWS.values():
        for name, cell in row.cells.items():
            function = functions(FOLDER / f"{cell.program}.py")[cell.row]
            expected = {argument.arg for argument in function.args.args}
            assert {*cell.arguments} == expected, f"{row.name}, {name}"
            assert {*cell.smoke} <= expected, f"{row.name}, {name}"


def test_all_programs_can_be_imported() -> None:
    """In a process of its own: other suites have modules with the same names."""
    names = sorted(path.stem for path in FOLDER.glob("*.py"))
    assert {"storage_side", "takeover_side", "recovery_side", "durability_side", "flush_side", "plots"} <= {*names}
    code = f"import sys; sys.path.insert(0, {str(FOLDER)!r}); import {', '.join(names)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_a_row_aims_at_is_of_its_own_cells(page: ModuleType) -> None:
    for row in page.ROWS.values():
        assert {most.cell for most in row.mosts} <= row.cells.keys()
        assert {cell for want in row.wants for cell in (want.cell, want.peer)} <= row.cells.keys()
        assert row.against in {"", *row.cells}


def result(**more: Any) -> dict[str, Any]:
    machine = {"commit": "c" * 40, "uncommitted_changes": False, "cores": 2, "cpu": "a CPU", "memory_gib": 1.0}
    cells = [
        {"row": "sqlite", "cell": name, "run": 1, "found": {"1 in flight, p50 ms": ms}, "load_at_start": 0.1}
        for name, ms in (("memory", 0.5), ("sqlite full", 2.0))
    ]
    return {"machine": {**machine, "kernel": "k", "python": "3"}, "cells": cells, **more}


def test_figures_are_written_between_the_markers_and_nothing_else_changes(page: ModuleType) -> None:
    text = f"before\n{page.BEGIN}\nold\n{page.END}after\n"
    once = page.with_figures(text, result(), "a file")
    assert "| 1 in flight, p50 ms | 0.5 | 2 | – | – |" in once
    assert "Of memory:\n\n| | sqlite full |\n|---|---|\n| 1 in flight, p50 ms | 4 |" in once
    assert "old" not in once
    assert (once.startswith(f"before\n{page.BEGIN}"), once.endswith(f"{page.END}after\n")) == (True, True)
    assert page.with_figures(once, result(), "a file") == once


def test_a_result_of_tiny_sizes_and_a_page_without_markers_are_refused(page: ModuleType) -> None:
    with pytest.raises(ValueError, match="tiny sizes"):
        page.with_figures(PAGE.read_text(), result(smoke=True), "a file")
    with pytest.raises(ValueError, match="markers"):
        page.with_figures("no markers", result(), "a file")
    assert page.with_figures(PAGE.read_text(), result(), "a file")
