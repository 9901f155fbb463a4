"""Draw the pictures of docs/rl and docs/rl-benchmarks.md from results of `run.py`.

    python bench/rl/plots.py bench/results/rl-2026-11-18-1030.json …    later files win where they have the same row

What is drawn is what was measured: every seed or run as a thin line or a dot. The thick line of a learning curve is
the interquartile mean over the seeds, and the band reaches from the lower to the upper quartile. The grey lines of
figure 14a are a model, and its legend says so.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).resolve().parents[1]))

from drawing import BLUE, GREEN, GREY, ORANGE, Cells, axes_of, read, save


def main() -> None:
    rows = read(sys.argv[1:])
    algorithms = dict.fromkeys(name.split("_")[1] for name in rows if name.startswith("curve_"))
    for algorithm in algorithms:
        save(curves({name: rows[name] for name in rows if name.startswith(f"curve_{algorithm}_")}), f"rl-{algorithm}")
    for name, draw in (("table_4_cores", table_4), ("figure_14a", figure_14a), ("figure_14b", figure_14b)):
        if name in rows:
            save(draw(rows[name]), f"rl-{name.replace('_', '-')}")


def curves(rows: dict[str, Cells]) -> Figure:
    """One picture for each environment: all seeds, their interquartile mean and the quartiles."""
    columns = min(len(rows), 3)
    lines = -(-len(rows) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.4 * lines), layout="constrained")
    for place, cells in enumerate(rows.values(), start=1):
        axes = axes_of(figure, lines, columns, place)
        every = cells[0]["arguments"]["every"]
        # An evaluation comes after the iteration that passes a mark, so seeds are put together by the mark.
        by_mark: dict[int, list[float]] = {}
        for cell in cells:
            steps, scores = np.array(cell["curve"]).T
            axes.plot(steps, scores, color=BLUE, alpha=0.3, linewidth=0.8)
            for step, score in zip(steps, scores, strict=True):
                by_mark.setdefault(int(step // every), []).append(float(score))
        complete = {mark: scores for mark, scores in sorted(by_mark.items()) if len(scores) == len(cells)}
        marks = np.array(list(complete)) * every
        low, high = np.quantile(list(complete.values()), [0.25, 0.75], axis=1)
        axes.fill_between(marks, low, high, color=BLUE, alpha=0.15, linewidth=0, label="quartiles")
        middle = [interquartile_mean(scores) for scores in complete.values()]
        axes.plot(marks, middle, color=BLUE, linewidth=2, label="interquartile mean")
        axes.set(
            xlabel="steps", ylabel="score of 20 episodes", title=f"{cells[0]['arguments']['env']}, {len(cells)} seeds"
        )
        axes.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k")
        axes.legend(frameon=False, fontsize="small", loc="lower right")
    return figure


def interquartile_mean(values: list[float]) -> float:
    ordered, quarter = sorted(values), len(values) // 4
    inner = ordered[quarter : len(ordered) - quarter]
    return sum(inner) / len(inner)


def by_cores(cells: Cells, who: str, figure: str) -> dict[int, list[float]]:
    return {cores: [c[figure] for c in cells if c["cell"] == f"{who}, {cores}"] for cores in (1, 2)}


def pair(axes: Any, cells: Cells, figure: str) -> None:
    """Skate beside MPI on one core and on two: medians as bars, every run as a dot."""
    late = any(cell["cell"].startswith("as they finish") for cell in cells)
    shown = [("skate", "Skate, ordered" if late else "Skate", BLUE)]
    shown += [("as they finish", "Skate, as they finish", GREEN)] * late
    shown += [("mpi", "bulk-synchronous, MPI", ORANGE)]
    width = 0.72 / len(shown)
    for offset, (who, label, colour) in enumerate(shown):
        measured = by_cores(cells, who, figure)
        places = [cores + width * (offset - (len(shown) - 1) / 2) for cores in measured]
        middle = [np.median(runs) for runs in measured.values()]
        axes.bar(places, middle, 0.95 * width, color=colour, alpha=0.75, label=label)
        for place, runs in zip(places, measured.values(), strict=True):
            axes.plot([place] * len(runs), runs, ".", color="black", markersize=4)
    axes.set(xticks=[1, 2], xticklabels=["1 core", "2 cores"], ylabel="steps a second", ylim=(0, None))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value / 1000:,.0f}k")
    axes.legend(frameon=False, fontsize="small", loc="upper left")


def table_4(cells: Cells) -> Figure:
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = axes_of(figure)
    pair(axes, cells, "steps_per_s")
    axes.set(title="Pendulum, 1,000 to 100,000 steps each")
    return figure


def figure_14b(cells: Cells) -> Figure:
    figure = Figure(figsize=(5, 3.6), layout="constrained")
    axes = axes_of(figure)
    pair(axes, cells, "steps_per_s")
    axes.set(title="PPO on LunarLander, same networks and settings")
    return figure


def figure_14a(cells: Cells) -> Figure:
    """Time of an iteration, and what it would be on more cores if only the driver's own work did not shrink."""
    measured = by_cores(cells, "skate", "seconds")
    cost = float(np.median([cell["driver_s_per_episode"] for cell in cells if cell["cell"] == "skate, 2"]))
    measured_episodes, work = 200, float(np.median(measured[2])) * 2
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axes = axes_of(figure)
    cores = 2 ** np.arange(14)
    for episodes, style in ((10_000, ":"), (measured_episodes, "--")):
        model = work * episodes / measured_episodes / np.minimum(cores, episodes) + cost * episodes
        axes.plot(cores, model, style, color=GREY, label=f"model, {episodes:,} episodes")
    for count, runs in measured.items():
        label = f"measured, {measured_episodes} episodes" if count == 1 else None
        axes.plot([count] * len(runs), runs, "o", color=BLUE, label=label)
    axes.set(xscale="log", yscale="log", xlabel="cores", ylabel="seconds of an iteration")
    axes.set(title="Evolution strategies on Humanoid")
    axes.set_xticks([1, 2, 8, 64, 512, 8192], ["1", "2", "8", "64", "512", "8,192"])
    axes.legend(frameon=False, fontsize="small")
    return figure


if __name__ == "__main__":
    main()
