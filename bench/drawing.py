"""What the pictures of all suites have in common. Needs matplotlib, which the tests' environment has."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs" / "figures"
BLUE, GREEN, ORANGE, GREY = "#1f6fb4", "#3a9a5b", "#e07b2a", "#888888"

Cells = list[dict[str, Any]]


def read(paths: Iterable[str]) -> dict[str, Cells]:
    """The cells of every row that did not fail; later files win where they have the same row."""
    rows: dict[str, Cells] = {}
    for path in map(Path, paths):
        cells = [cell for cell in json.loads(path.read_text())["cells"] if "failed" not in cell]
        for name in dict.fromkeys(cell["row"] for cell in cells):
            rows[name] = [cell for cell in cells if cell["row"] == name]
    FIGURES.mkdir(parents=True, exist_ok=True)
    return rows


def save(figure: Figure, name: str) -> None:
    path = FIGURES / f"{name}.png"
    figure.savefig(path, dpi=110)
    print(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def axes_of(figure: Figure, *place: int) -> Any:
    axes = figure.add_subplot(*place)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return axes
