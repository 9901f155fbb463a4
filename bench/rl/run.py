"""Measure `skate.rl` beside its peers: the rows of docs/rl-benchmarks.md, resumable.

    make bench SUITE=rl                          every row, at most 90 minutes
    python bench/rl/run.py --rows ppo_cartpole   only these rows
    python bench/rl/run.py --resume FILE         go on with a result: cells that are there are not measured again
    python bench/rl/run.py --show FILE           print a result
    python bench/rl/run.py --list                what each row measures

A cell is one process of one peer, in the peer's own environment under `bench/.envs`. Run 1 of every peer comes before
run 2 of any, so that a machine that grows slower does so for all. What is printed is the median and the spread of all
runs; rows of scores have one run a seed, and print the interquartile mean over all seeds, never the best.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from rows import ROWS, Row  # noqa: E402

import environments  # noqa: E402
import machine  # noqa: E402

TIME_LIMIT_S = 600


def main() -> None:
    options = parse()
    if options.list:
        for row in ROWS.values():
            print(f"- **{row.name}** ({', '.join(row.cells)}): {row.text}")
        return
    if options.show:
        show(json.loads(options.show.read_text()))
        return
    path = options.resume or HERE.parent / "results" / f"rl-{datetime.now():%Y-%m-%d-%H%M}.json"
    data = json.loads(path.read_text()) if options.resume else {"machine": machine.describe(), "cells": []}
    data.setdefault("versions", {})
    names = [name for name in options.rows.split(",") if name] or list(ROWS)
    wanted = [ROWS[name] for name in names]
    peers = [name for name in options.peers.split(",") if name]
    prepared: set[str] = set()
    for row in wanted:
        measure(row, data, path, peers, prepared)
    show(data)
    print(f"\nstored in {os.path.relpath(path)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure skate.rl beside its peers.")
    parser.add_argument("--rows", default="", help="names of rows, separated by commas (default: all)")
    parser.add_argument("--peers", default="", help="only these cells (default: all)")
    parser.add_argument("--resume", type=Path, help="a result to go on with")
    parser.add_argument("--show", type=Path, help="print a result")
    parser.add_argument("--list", action="store_true", help="say what each row measures")
    return parser.parse_args()


def measure(row: Row, data: dict[str, Any], path: Path, peers: list[str], prepared: set[str]) -> None:
    """Measure the cells of a row that are not in the result yet; store each as soon as it is there."""
    have = {(cell["row"], cell["cell"], cell["run"]) for cell in data["cells"]}
    for run in range(1, row.runs + 1):
        for name, cell in row.cells.items():
            if (row.name, name, run) in have or run > cell.runs or (peers and name not in peers):
                continue
            home = cell.environment
            if home not in prepared:  # a result that is resumed may come from a machine that had the environment
                data["versions"][home] = environments.prepare(home, fresh=False)
                prepared.add(home)
            arguments = {**cell.arguments, **({"seed": run} if row.seeds else {})}
            figures = call(home, cell.command(environments.python_of(home), HERE, arguments))
            shown = {key: value for key, value in figures.items() if key != "curve"}
            print(f"{row.name:20} {name:16} run {run}: {shown}", flush=True)
            data["cells"].append({"row": row.name, "cell": name, "run": run, "arguments": arguments, **figures})
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps(data, indent=1) + "\n")


def call(home: str, command: list[str]) -> dict[str, Any]:
    """Run the program of a cell; its figures, or why there are none."""
    variables = {**os.environ, "PATH": f"{environments.python_of(home).parent}:{os.environ['PATH']}"}
    began = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S, env=variables)
    except subprocess.TimeoutExpired:
        return {"failed": f"it took more than {TIME_LIMIT_S} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        return {"failed": said[-1] if said else f"exit code {done.returncode}"}
    return {**next(f for f in map(json.loads, lines[::-1]) if f), "took_s": round(time.perf_counter() - began, 1)}


def show(data: dict[str, Any]) -> None:
    """Print the medians and the ratios that each row aims at."""
    for row in ROWS.values():
        cells = [cell for cell in data["cells"] if cell["row"] == row.name]
        if not cells:
            continue
        print(f"\n{row.name}: {row.text}")
        middle: dict[str, float] = {}
        for name in row.cells:
            own = [cell for cell in cells if cell["cell"] == name]
            # A seed that did not get there counts with the seconds after which it gave up: it needs more.
            values = [cell[row.figure] for cell in own if row.figure in cell]
            failed = [cell for cell in own if "failed" in cell]
            missed = [cell for cell in own if cell.get("reached") is False]
            if values:
                middle[name] = centre(values, row.seeds)
                spread = f"{number(min(values))} to {number(max(values))}"
                print(f"  {name:16} {number(middle[name]):>12}  ({spread}, {len(values)} runs)", end="")
                print(f", at least: {len(missed)} of them did not get there" if missed else "")
            elif own:
                print(f"  {name:16} {'—':>12}  {failed[0]['failed']}")
        for peer, aim in row.aims.items():
            if "skate" in middle and peer in middle:
                ratio = middle["skate"] / middle[peer]
                good = ratio >= aim if row.more_is_better else ratio <= aim
                relation = "at least" if row.more_is_better else "at most"
                print(f"  aim: {relation} {aim} of {peer}: {ratio:.2f}  {'yes' if good else 'NO'}")
        for figure, aim in row.own.items():
            values = [cell[figure] for cell in cells if cell["cell"] == "skate" and figure in cell]
            if values:
                found, relation = centre(values, row.seeds), "at most" if aim < 0 else "at least"
                good = found <= -aim if aim < 0 else found >= aim
                print(f"  aim: {figure} {relation} {abs(aim)}: {found:.3f}  {'yes' if good else 'NO'}")
        if row.limit is not None and "skate" in middle:
            print(
                f"  aim: at most {row.limit}: {middle['skate']:.2f}  {'yes' if middle['skate'] <= row.limit else 'NO'}"
            )


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def centre(values: list[float], seeds: bool) -> float:
    """Median of runs; interquartile mean of seeds."""
    ordered = sorted(values)
    if not seeds or len(ordered) < 4:
        return ordered[len(ordered) // 2] if len(ordered) % 2 else sum(ordered[len(ordered) // 2 - 1 :][:2]) / 2
    quarter = len(ordered) // 4
    inner = ordered[quarter : len(ordered) - quarter]
    return sum(inner) / len(inner)


if __name__ == "__main__":
    main()
