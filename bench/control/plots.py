"""Draw the pictures of docs/control-benchmarks.md from results of `run.py`.

    python bench/control/plots.py bench/results/control-….json …    later files win where they have the same row
    python bench/control/plots.py FILE --into FOLDER                somewhere else than docs/figures

What is drawn is what was measured: every run as a dot, their medians as a line or a bar. A curve is that of run 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).resolve().parents[1]))

import drawing
from drawing import BLUE, GREEN, GREY, ORANGE, Cells, axes_of, read, save

COLOURS = {"control": BLUE, "daemon": GREEN, "driver": ORANGE, "file": GREY}
SHARDS = {1: BLUE, 2: GREEN, 4: ORANGE}
IN_FLIGHT = (1, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the pictures of docs/control-benchmarks.md.")
    parser.add_argument("files", nargs="+", help="results; later ones win where they have the same row")
    parser.add_argument("--into", type=Path, help="the folder for the pictures (default: docs/figures)")
    options = parser.parse_args()
    if options.into is not None:
        drawing.FIGURES = options.into
    elif any(json.loads(Path(file).read_text()).get("smoke") for file in options.files):
        sys.exit("A result of tiny sizes is not for docs/figures; name a folder with --into.")
    rows = read(options.files)
    for how in ("killed", "frozen"):
        if cells := rows.get(f"figure_10a_{how}"):
            save(figure_10a(cells, how), f"control-figure-10a-{how}")
    written = {kind: rows[f"writes_{kind}"] for kind in ("redis", "valkey") if f"writes_{kind}" in rows}
    if written:
        save(writes(written), "control-writes")
    grown = {name: cells for name, cells in rows.items() if name.startswith("figure_10b_")}
    if grown:
        save(figure_10b(grown), "control-figure-10b")
    if "recovery" in rows:
        save(recovery(rows["recovery"]), "control-recovery")


def _first(cells: Cells) -> dict[str, dict[str, Any]]:
    """Run 1 of each cell."""
    found: dict[str, dict[str, Any]] = {}
    for cell in cells:
        found.setdefault(cell["cell"], cell)
    return found


def figure_10a(cells: Cells, how: str) -> Figure:
    first = _first(cells)
    figure = Figure(figsize=(10, 2.6 * ((len(first) + 1) // 2)), layout="constrained")
    for place, (name, cell) in enumerate(first.items(), start=1):
        axes = axes_of(figure, (len(first) + 1) // 2, 2, place)
        at, ms = zip(*cell["curve"], strict=True)
        axes.plot(at, ms, ".", color=BLUE, markersize=2)  # no line: while a write waits, there is nothing
        for event, moment in cell["events_s"].items():
            axes.axvline(moment, color=ORANGE, linewidth=0.8)
            axes.annotate(f" {event}", (moment, 1), xycoords=("data", "axes fraction"), fontsize="x-small", va="top")
        axes.set(yscale="log", xlabel="seconds", ylabel="latency, ms", title=f"{name} {how}")
    figure.suptitle("The largest latency of each 10 ms, one client in a closed loop, a chain of two")
    return figure


def writes(by_kind: dict[str, Cells]) -> Figure:
    """Throughput over the number of members, a line for each number of shards; plain Redis is the dashed line."""
    figure = Figure(figsize=(4.6 * len(IN_FLIGHT), 3.2 * len(by_kind)), layout="constrained")
    place = 0
    for kind, cells in by_kind.items():
        for count in IN_FLIGHT:
            place += 1
            axes = axes_of(figure, len(by_kind), len(IN_FLIGHT), place)
            label = f"{count} in flight, writes/s"
            for shards, colour in SHARDS.items():
                members = (1, 2, 3)
                runs = [[c["found"][label] for c in cells if c["cell"] == f"{m} × {shards}"] for m in members]
                known = [(m, values) for m, values in zip(members, runs, strict=True) if values]
                medians = [np.median(values) for _, values in known]
                text = f"{shards} shard{'s' if shards > 1 else ''}"
                axes.plot([m for m, _ in known], medians, color=colour, label=text)
                for m, values in known:
                    axes.plot([m] * len(values), values, ".", color=colour, markersize=5)
            if plain := [c["found"][label] for c in cells if c["cell"] == "plain"]:
                axes.axhline(np.median(plain), color=GREY, linestyle="--", label="plain, one server")
            axes.set(xticks=[1, 2, 3], ylim=(0, None), xlabel="members of a chain", ylabel="writes a second")
            axes.set(title=f"{kind}-server, {count} in flight")
            axes.legend(frameon=False, fontsize="small")
    return figure


def figure_10b(rows: dict[str, Cells]) -> Figure:
    """Memory over time: a row of pictures for each kind of work, a column for each store."""
    engines = ("memory", "sqlite")
    figure = Figure(figsize=(10, 2.8 * len(rows)), layout="constrained")
    for line, (name, cells) in enumerate(rows.items()):
        for column, engine in enumerate(engines):
            cell = _first(cells).get(engine)
            if cell is None:
                continue
            axes = axes_of(figure, len(rows), len(engines), line * len(engines) + column + 1)
            for part in cell["curve"][-1][2]:
                at = [point[0] for point in cell["curve"]]
                axes.plot(at, [point[2][part] for point in cell["curve"]], color=COLOURS[part], label=part)
            work = f"{cell['done']:,} {name.removeprefix('figure_10b_')}"
            axes.set(ylim=(0, 1.1 * axes.get_ylim()[1]), ylabel="MB", xlabel="seconds", title=f"{work}, {engine}")
            axes.legend(frameon=False, fontsize="small")
    return figure


def recovery(cells: Cells) -> Figure:
    """A bar for each moment, from the kill to the median; every run as a dot."""
    names = sorted(cells[0]["found"], key=lambda name: float(np.median([cell["found"][name] for cell in cells])))
    figure = Figure(figsize=(7, 0.35 * len(names) + 1), layout="constrained")
    axes = axes_of(figure)
    for place, name in enumerate(names):
        runs = [cell["found"][name] for cell in cells]
        axes.barh(place, np.median(runs), 0.7, color=BLUE, alpha=0.75)
        axes.plot(runs, [place] * len(runs), ".", color="black", markersize=4)
    axes.set(yticks=range(len(names)), yticklabels=[name.removesuffix(", s") for name in names])
    axes.set(xlabel="seconds since kill -9 of the control service")
    axes.invert_yaxis()
    return figure


if __name__ == "__main__":
    main()
