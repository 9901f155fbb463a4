"""What the suites of `bench/` print follows from the figures alone, and a cell that fails says why."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))

from suite import Cell, Most, Row, Suite, Want, aims_of, call, centre, relations, summary

ROW = Row(
    "speed",
    "how fast it is",
    {name: Cell("program", "row") for name in ("skate", "skate, new", "peer")},
    figure="ms",
    more_is_better=False,
    aims={"peer": 1.0},
    wants=(Want("skate, new", "peer", 0.5, ("1 MB",)),),
)


def cells(**figures: list[dict[str, float]]) -> list[dict[str, Any]]:
    return [
        {"row": "speed", "cell": name, "run": run, "ms": value}
        for name, values in figures.items()
        for run, value in enumerate(values, start=1)
    ]


MEASURED = cells(
    skate=[{"4 B": 1.0, "1 MB": 6.0}, {"4 B": 3.0, "1 MB": 8.0}],
    peer=[{"4 B": 4.0, "1 MB": 4.0}],
    **{"skate, new": [{"4 B": 9.0, "1 MB": 2.0}]},
)


def test_aims_of_a_series_are_looked_at_by_name() -> None:
    assert [(aim.text, aim.found, aim.good) for aim in aims_of(ROW, MEASURED)] == [
        ("4 B: at most 1 of peer", 0.5, True),
        ("1 MB: at most 1 of peer", 1.75, False),
        ("1 MB: skate, new at most 0.5 of peer", 0.5, True),
    ]


def test_an_aim_may_be_a_figure_whatever_peers_have() -> None:
    row = Row("speed", "", ROW.cells, figure="ms", mosts=(Most("peer", "4 B", 4.0), Most("skate", "1 MB", 6.5)))
    assert [(str(aim.text), aim.good) for aim in aims_of(row, MEASURED)] == [
        ("peer: 4 B at most 4", True),
        ("skate: 1 MB at most 6.5", False),
    ]


def test_a_summary_has_the_median_and_the_spread_of_each_figure() -> None:
    assert summary(ROW, MEASURED)["skate"] == {
        "4 B": {"median": 2.0, "least": 1.0, "most": 3.0, "runs": 2},
        "1 MB": {"median": 7.0, "least": 6.0, "most": 8.0, "runs": 2},
    }


def test_a_row_may_be_shown_against_one_of_its_cells() -> None:
    row = Row("speed", "", ROW.cells, figure="ms", against="peer")
    assert relations(ROW, MEASURED) == {}
    assert relations(row, MEASURED) == {"skate": {"4 B": 0.5, "1 MB": 1.75}, "skate, new": {"4 B": 2.25, "1 MB": 0.5}}
    lines = list(Suite("test", Path(), {"speed": row}).table({"cells": MEASURED}))
    assert lines[7:12] == ["Of peer:", "", "| | skate | skate, new |", "|---|---|---|", "| 4 B | 0.5 | 2.25 |"]


def test_a_table_has_the_median_the_spread_and_what_failed() -> None:
    failed = {"row": "speed", "cell": "skate, new", "run": 2, "failed": "it was tired"}
    lines = list(Suite("test", Path(), {"speed": ROW}).table({"cells": [*MEASURED, failed]}))
    assert lines[2:6] == [
        "| | skate | skate, new | peer |",
        "|---|---|---|---|",
        "| 4 B | 2 (1–3) | 9 | 4 |",
        "| 1 MB | 7 (6–8) | 2 | 4 |",
    ]
    assert "- 1 MB: at most 1 of peer: 1.75, **not reached**" in lines
    assert "- skate, new: it was tired" in lines


def test_a_row_without_figures_has_no_table() -> None:
    assert list(Suite("test", Path(), {"speed": ROW}).table({"cells": []})) == []


@pytest.mark.parametrize(
    ("program", "figures"),
    [
        ("print('{\"ms\": 2}')", {"ms": 2}),
        ("print('hello'); print('{\"failed\": \"skipped\"}')", {"failed": "skipped"}),
        ("raise ValueError('no luck')", {"failed": "ValueError: no luck"}),
        ("raise SystemExit(3)", {"failed": "exit code 3"}),
    ],
)
def test_a_cell_gives_its_figures_or_why_there_are_none(program: str, figures: dict[str, Any]) -> None:
    found = call("skate", [sys.executable, "-c", program])
    found.pop("took_s", None)
    assert found == figures


def test_the_centre_is_the_median_of_runs_and_the_interquartile_mean_of_seeds() -> None:
    assert centre([3.0, 1.0, 2.0, 100.0], seeds=False) == 2.5
    assert centre([3.0, 1.0, 2.0, 100.0], seeds=True) == 2.5
    assert centre([1.0, 2.0, 9.0, 9.0, 9.0, 9.0, 20.0, 99.0], seeds=True) == 9.0
