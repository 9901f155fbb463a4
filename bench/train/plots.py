"""Draw the pictures of docs/train-benchmarks.md from results of `run.py`.

    python bench/train/plots.py bench/results/train-….json …    later files win where they have the same row

What is drawn is what was measured: every run as a dot, their medians as a line or a bar.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).resolve().parents[1]))

from drawing import BLUE, GREEN, GREY, ORANGE, Cells, axes_of, read, save

COLOURS = {
    "skate": BLUE, "skate ddp": GREEN, "openmpi tcp": ORANGE, "gloo": GREY, "torchrun": GREY,
    "100 MB": BLUE, "10 MB": GREEN,
}  # fmt: skip
NAMES = {
    "skate": "skate.collective",
    "openmpi tcp": "OpenMPI, TCP",
    "skate ddp": "Skate, DistributedDataParallel",
    "torchrun": "torchrun, DistributedDataParallel",
}


TITLES = {"resnet": "a small ResNet", "mlp": "an MLP of 25 million parameters"}


def main() -> None:
    rows = read(sys.argv[1:])
    for name, draw in (("figure_12a", figure_12a), ("figure_12b", figure_12b), ("figure_13", figure_13)):
        if name in rows:
            save(draw(rows[name]), f"train-{name.replace('_', '-')}")


def runs_of(cells: Cells, name: str, figure: str) -> dict[str, list[float]]:
    """All runs of a cell, by the names of its series."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        if cell["cell"] == name:
            for label, value in cell[figure].items():
                found.setdefault(label, []).append(value)
    return found


def lines(axes: Any, cells: Cells) -> None:
    """A line through the medians of each cell over the number that its names begin with, every run as a dot."""
    for name in dict.fromkeys(cell["cell"] for cell in cells):
        runs = {float(label.split()[0]): values for label, values in runs_of(cells, name, "ms").items()}
        colour = COLOURS[name]
        axes.plot(list(runs), [np.median(v) for v in runs.values()], color=colour, label=NAMES.get(name, name))
        for x, values in runs.items():
            axes.plot([x] * len(values), values, ".", color=colour, markersize=5)
    axes.set(ylim=(0, None), ylabel="milliseconds")
    axes.legend(frameon=False, fontsize="small")


def figure_12a(cells: Cells) -> Figure:
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = axes_of(figure)
    lines(axes, cells)
    counts = [int(label.split()[0]) for label in cells[0]["ms"]]
    axes.set(xticks=counts, xlabel="nodes, all on one machine of two cores", title="Allreduce of 100 MB")
    return figure


def figure_12b(cells: Cells) -> Figure:
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = axes_of(figure)
    lines(axes, cells)
    axes.set(xlabel="milliseconds added to the scheduling of each task")
    axes.set(title=f"Ring allreduce written as tasks, {cells[0]['rounds']} rounds")
    return figure


def figure_13(cells: Cells) -> Figure:
    """A group of bars for each network; their speeds differ too much for one axis."""
    networks = list(cells[0]["samples_per_s"])
    figure = Figure(figsize=(3.6 * len(networks), 3.6), layout="constrained")
    names = list(dict.fromkeys(cell["cell"] for cell in cells))
    for place, network in enumerate(networks, start=1):
        axes = axes_of(figure, 1, len(networks), place)
        for x, name in enumerate(names):
            runs = runs_of(cells, name, "samples_per_s")[network]
            label = "Skate, parameter server" if name == "skate" else NAMES.get(name, name)
            axes.bar(x, np.median(runs), 0.7, color=COLOURS[name], alpha=0.75, label=label)
            axes.plot([x] * len(runs), runs, ".", color="black", markersize=4)
        axes.set(xticks=[], ylabel="samples a second", title=TITLES.get(network, network))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=1, frameon=False)
    return figure


if __name__ == "__main__":
    main()
