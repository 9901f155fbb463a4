"""Every cell of `bench/rl` is called with arguments that its program has, at full size and at a tiny one."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "bench" / "rl"
#: Rows of seconds that are tiny as they are: they end with the first gradient step.
TINY = {"first_gradient"}


@pytest.fixture(scope="module")
def rows() -> ModuleType:
    """The module `rows` of this suite: other suites have one of the same name."""
    sys.path.append(str(FOLDER.parent))
    made = ModuleType("bench_rl_rows")
    exec(compile((FOLDER / "rows.py").read_text(), FOLDER / "rows.py", "exec"), made.__dict__)
    return made


def parameters(program: str) -> dict[str, tuple[set[str], bool]]:
    """The parameters of every function of a program, and whether it takes any others."""
    functions = [
        node for node in ast.parse((FOLDER / f"{program}.py").read_text()).body if isinstance(node, ast.FunctionDef)
    ]
    return {f.name: ({arg.arg for arg in f.args.args}, f.args.kwarg is not None) for f in functions}


def test_arguments_of_cells_are_those_of_their_programs(rows: ModuleType) -> None:
    for row in rows.ROWS.values():
        for name, cell in row.cells.items():
            named, others = parameters(cell.program)[cell.row]
            odd = ({*cell.arguments, *cell.smoke} | ({"seed"} if row.seeds else set())) - named
            assert others or not odd, f"{row.name}, {name}: {cell.program}.{cell.row} has no {odd}"


def test_every_cell_has_a_tiny_size(rows: ModuleType) -> None:
    cells = [(row.name, name, cell.smoke) for row in rows.ROWS.values() for name, cell in row.cells.items()]
    assert [cell for cell in cells if not cell[2] and cell[0] not in TINY] == []


def test_the_page_has_the_settings_with_which_scores_are_reached(rows: ModuleType) -> None:
    page = (FOLDER.parents[1] / "docs" / "rl-benchmarks.md").read_text()
    known = {"algorithm", "env", "steps", "at", "within_s"}  # of the row itself
    for row in rows.ROWS.values():
        if row.name.startswith(("score_", "catch_")):
            for name in {"skate", "sb3"} & row.cells.keys():
                for setting, value in row.cells[name].arguments.items():
                    assert setting in known or f"`{setting}={value}`" in page, f"{row.name}, {name}: {setting}={value}"
