"""A suite of rows that are measured cell by cell: what the folders beside this file share.

A row is one question; its cells are the programs that answer it, one of each peer, in the peer's own environment under
`bench/.envs`. A cell is one process. Run 1 of every peer comes before run 2 of any, so that a machine that grows slower
does so for all. What is printed is the median and the spread of all runs; rows of scores have one run a seed, and print
the interquartile mean over all seeds, never the best. Results are stored after every cell, so a suite that was
interrupted goes on with what is missing. Each cell has the load of the machine at its start, and `summary` has the
median and the spread of every row.

A figure is a number, or several by name (`{"4": 0.1, "1048576": 2.0}`): a row that measures a series in one process
prints a line for each.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import environments
import machine
import processes

HERE = Path(__file__).resolve().parent
TIME_LIMIT_S = 600
#: What is drawn, and too long for a line.
NOT_PRINTED = ("curve", "curves")
#: How long the processes of a cell that was interrupted may take to end.
ENDS_S = 10.0
#: Others that use more of the cores than this make the figures of a row doubtful, and the report says so.
OTHERS_CORES_MAX = 0.1

Data = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """A program of one peer with its arguments."""

    program: str
    row: str
    arguments: dict[str, Any] = field(default_factory=dict)
    environment: str = "rl"
    runs: int = 100
    #: How many cores of the machine it may use, and how many processes MPI starts.
    cores: int = 2
    #: What is different in a run that only shows that the program works.
    smoke: dict[str, Any] = field(default_factory=dict)
    #: How long it may take before it is ended.
    limit_s: float = TIME_LIMIT_S

    def command(self, python: Path, folder: Path, arguments: dict[str, Any]) -> list[str]:
        words = [f"{name}={json.dumps(value)}" for name, value in arguments.items()]
        pinned = [] if self.cores == 2 else ["taskset", "-c", "0"]
        mpi = ["mpiexec", "--allow-run-as-root", "-n", str(self.cores)] if self.program == "mpi_side" else []
        return [*pinned, *mpi, str(python), str(folder / f"{self.program}.py"), self.row, *words]


@dataclass(frozen=True)
class Want:
    """The ratio of a cell's figure to a peer's that we aim at: the least, or the most if less is better."""

    cell: str
    peer: str
    ratio: float
    #: Names of the series at which it counts; none: all of them.
    at: tuple[str, ...] = ()


@dataclass(frozen=True)
class Most:
    """A figure of a cell that should be no larger than this, whatever peers have."""

    cell: str
    #: Its name in the series.
    at: str
    most: float


@dataclass(frozen=True)
class Row:
    """What is measured, and what Skate's figure should be of each peer's."""

    name: str
    text: str
    cells: dict[str, Cell]
    figure: str = "steps_per_s"
    #: By peer, the ratio of Skate's figure to the peer's: the least, or the most if less is better.
    aims: dict[str, float] = field(default_factory=dict)
    runs: int = 3
    seeds: bool = False
    more_is_better: bool = True
    limit: float | None = None
    #: Other figures of Skate's cell: the least, or with a minus sign the most, that each should be.
    own: dict[str, float] = field(default_factory=dict)
    #: Aims at parts of a series, or of cells that are not called "skate".
    wants: tuple[Want, ...] = ()
    mosts: tuple[Most, ...] = ()
    #: The cell that all others are shown in relation to; empty: none.
    against: str = ""


@dataclass(frozen=True)
class Aim:
    """Something that a row aims at, and what was found."""

    text: str
    found: float
    good: bool

    def __str__(self) -> str:
        return f"aim: {self.text}: {number(self.found)}  {'yes' if self.good else 'NO'}"


class Suite:
    """The command line of a suite: `rows` are measured with the programs in `folder`."""

    def __init__(self, name: str, folder: Path, rows: dict[str, Row]) -> None:
        self.name, self.folder, self.rows = name, folder, rows

    def main(self) -> None:
        options = self._parse()
        if options.list:
            for row in self.rows.values():
                print(f"- **{row.name}** ({', '.join(row.cells)}): {row.text}")
        elif options.show:
            self.show(json.loads(options.show.read_text()))
        elif options.table:
            print("\n".join(self.table(json.loads(options.table.read_text()))))
        else:
            self._run(options)

    def _parse(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser(description=f"Measure skate.{self.name} beside its peers.")
        parser.add_argument("--rows", default="", help="names of rows, separated by commas (default: all)")
        parser.add_argument("--peers", default="", help="only these cells (default: all)")
        parser.add_argument("--runs", type=int, default=0, help="at most so many of each cell (default: the row's)")
        parser.add_argument("--resume", type=Path, help="a result to go on with: cells that it has are not run again")
        parser.add_argument("--again", action="store_true", help="with --resume, run the cells that failed again")
        parser.add_argument("--smoke", action="store_true", help="one run of tiny sizes: shows that all works, no more")
        parser.add_argument("--show", type=Path, help="print a result")
        parser.add_argument("--table", type=Path, help="print a result as tables in Markdown")
        parser.add_argument("--list", action="store_true", help="say what each row measures")
        options = parser.parse_args()
        options.rows = [name for name in options.rows.split(",") if name] or list(self.rows)
        if unknown := [name for name in options.rows if name not in self.rows]:
            parser.error(f"there is no row {', '.join(unknown)}; choose from {', '.join(self.rows)}")
        options.peers = [name for name in options.peers.split(",") if name]
        return options

    def _run(self, options: argparse.Namespace) -> None:
        name = f"{self.name}-{datetime.now():%Y-%m-%d-%H%M}.json"
        path = options.resume or (Path(tempfile.gettempdir(), f"smoke-{name}") if options.smoke else None)
        path = path or HERE / "results" / name
        data = json.loads(path.read_text()) if options.resume else {"machine": machine.describe(), "cells": []}
        data.setdefault("versions", {})
        if options.resume and data.get("smoke", False) != options.smoke:
            sys.exit(f"{_shown(path)} was measured {'without' if options.smoke else 'with'} --smoke.")
        data["smoke"] = options.smoke
        if options.resume:
            data.setdefault("resumed", []).append(machine.describe())
        if options.again:
            data["cells"] = [cell for cell in data["cells"] if "failed" not in cell]
        processes.adopt_orphans()
        for request in (signal.SIGINT, signal.SIGTERM):  # a shell has background programs ignore the first
            signal.signal(request, signal.default_int_handler)
        prepared: set[str] = set()
        try:
            for row in options.rows:
                self._measure(self.rows[row], data, path, options, prepared)
        except KeyboardInterrupt:
            processes.reap_all(0)
            print(f"\ninterrupted; what there is follows. To go on: --resume {_shown(path)}")
        self.show(data)
        print(f"\nstored in {_shown(path)}")

    def _measure(self, row: Row, data: Data, path: Path, options: argparse.Namespace, prepared: set[str]) -> None:
        """Measure the cells of a row that are not in the result yet; store each as soon as it is there."""
        have = {(cell["row"], cell["cell"], cell["run"]) for cell in data["cells"]}
        runs = 1 if options.smoke else min(row.runs, options.runs or row.runs)
        is_new = False
        for run in range(1, 1 + runs):
            for name, cell in row.cells.items():
                if (row.name, name, run) in have or run > cell.runs or (options.peers and name not in options.peers):
                    continue
                arguments = {**cell.arguments, **({"seed": run} if row.seeds else {})}
                if options.smoke:
                    arguments |= cell.smoke
                figures = self._run_cell(cell, arguments, data, prepared)
                shown = {key: value for key, value in figures.items() if key not in NOT_PRINTED}
                print(f"{row.name:20} {name:16} run {run}: {shown}", flush=True)
                data["cells"].append({"row": row.name, "cell": name, "run": run, "arguments": arguments, **figures})
                data.setdefault("summary", {})[row.name] = summary(row, data["cells"])
                _store(data, path)
                is_new = True
        if is_new:
            print("\n".join(self._lines(row, [cell for cell in data["cells"] if cell["row"] == row.name])), flush=True)

    def _run_cell(self, cell: Cell, arguments: dict[str, Any], data: Data, prepared: set[str]) -> dict[str, Any]:
        """The figures of a cell, and how many cores processes that are not ours used meanwhile."""
        home = cell.environment
        if home not in prepared:  # a result that is resumed may come from a machine that had the environment
            try:
                data["versions"][home] = environments.prepare(home, fresh=False)
            except environments.EnvironmentFailed as error:
                return {"failed": f"no environment: {error}"}
            prepared.add(home)
        strangers, load = processes.Strangers(), round(os.getloadavg()[0], 2)
        figures = call(home, cell.command(environments.python_of(home), self.folder, arguments), cell.limit_s)
        if left := processes.reap_all(ENDS_S):
            figures["killed_afterwards"] = left
        return {**figures, "load_at_start": load, "others_cores": round(strangers.cores(), 2)}

    def show(self, data: Data) -> None:
        """Print the medians and the ratios that each row aims at."""
        if data.get("smoke"):
            print("\nTiny sizes: these figures show that the programs work, and nothing else.")
        for row in self.rows.values():
            cells = [cell for cell in data["cells"] if cell["row"] == row.name]
            if not cells:
                continue
            print(f"\n{row.name}: {row.text}")
            for line in self._lines(row, cells):
                print(line)
            others = max(cell.get("others_cores", 0.0) for cell in cells)
            if others > OTHERS_CORES_MAX:
                print(f"  the machine was not quiet: other processes used up to {others:.2f} cores during a run")
            for aim in aims_of(row, cells):
                print(f"  {aim}")

    def _lines(self, row: Row, cells: list[Data]) -> Iterator[str]:
        """A line for each figure of each cell of a row."""
        width = max([10, *map(len, values_of(cells, row.figure))])
        for name in row.cells:
            own = [cell for cell in cells if cell["cell"] == name]
            failed = [cell["failed"] for cell in own if "failed" in cell]
            missed = sum(cell.get("reached") is False for cell in own)
            found = values_of(own, row.figure)
            related = relations(row, cells).get(name, {})
            for label, values in found.items():
                # A seed that did not get there counts with the seconds after which it gave up: it needs more.
                spread = f"{number(min(values))} to {number(max(values))}, {len(values)} runs"
                late = f", at least: {missed} of them did not get there" if missed else ""
                times = f", {number(related[label])} of {row.against}" if label in related else ""
                yield f"  {name:16} {label:>{width}} {number(centre(values, row.seeds)):>12}  ({spread}){late}{times}"
            if failed and not found:
                yield f"  {name:16} {'':>{width}} {'—':>12}  {failed[0]}"

    def table(self, data: Data) -> Iterator[str]:
        """The lines of one table in Markdown a row: medians, smallest and largest run, and the aims."""
        if data.get("smoke"):
            yield from ("Tiny sizes: these figures show that the programs work, and nothing else.", "")
        for row in self.rows.values():
            cells = [cell for cell in data["cells"] if cell["row"] == row.name]
            if not cells:
                continue
            by_cell = {name: values_of([c for c in cells if c["cell"] == name], row.figure) for name in row.cells}
            labels = list(dict.fromkeys(label for found in by_cell.values() for label in found))
            yield from (f"**{row.name}**: {row.text}.", "")
            yield f"| | {' | '.join(row.cells)} |"
            yield "|---" * (1 + len(row.cells)) + "|"
            for label in labels:
                found = (by_cell[name].get(label) for name in row.cells)
                yield f"| {label} | {' | '.join(text_of(values, row.seeds) for values in found)} |"
            yield ""
            if related := relations(row, cells):
                yield from (f"Of {row.against}:", "")
                yield f"| | {' | '.join(related)} |"
                yield "|---" * (1 + len(related)) + "|"
                for label in labels:
                    ratios = (found.get(label) for found in related.values())
                    yield f"| {label} | {' | '.join('–' if it is None else number(it) for it in ratios)} |"
                yield ""
            for aim in aims_of(row, cells):
                yield f"- {aim.text}: {number(aim.found)}, {'reached' if aim.good else '**not reached**'}"
            for name in row.cells:
                why = [cell["failed"] for cell in cells if cell["cell"] == name and "failed" in cell]
                if why:
                    yield f"- {name}: {why[0]}"
            yield ""


def call(home: str, command: list[str], limit_s: float = TIME_LIMIT_S) -> dict[str, Any]:
    """Run the program of a cell; its figures, or why there are none."""
    variables = {**os.environ, "PATH": f"{environments.python_of(home).parent}:{os.environ['PATH']}"}
    began = time.perf_counter()
    # A program may start others: those are ended with it.
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, start_new_session=True
    )
    try:
        out, err = started.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _end(started)
        return {"failed": f"it took more than {limit_s:g} s"}
    except BaseException:  # Ctrl-C: the program is in a session of its own, and has not heard of it
        _end(started)
        raise
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if started.returncode or not lines:
        said = [line for line in (out + err).splitlines() if line.strip()]
        return {"failed": said[-1] if said else f"exit code {started.returncode}"}
    return {**next(f for f in map(json.loads, lines[::-1]) if f), "took_s": round(time.perf_counter() - began, 1)}


def _end(started: subprocess.Popen[str]) -> None:
    """End a program and all that is in its session: ask first, so that it can clear up."""
    for request, within_s in ((signal.SIGINT, ENDS_S), (signal.SIGKILL, None)):
        try:
            os.killpg(started.pid, request)
            started.communicate(timeout=within_s)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


def values_of(cells: list[Data], figure: str) -> dict[str, list[float]]:
    """A figure of all runs: by name if it is a series, otherwise under the name ""."""
    found: dict[str, list[float]] = {}
    for cell in cells:
        value = cell.get(figure)
        if value is not None:
            for name, one in value.items() if isinstance(value, dict) else (("", value),):
                found.setdefault(name, []).append(one)
    return found


def summary(row: Row, cells: list[Data]) -> Data:
    """The median and the spread of each figure of a row, by cell."""
    own = {name: [cell for cell in cells if (cell["row"], cell["cell"]) == (row.name, name)] for name in row.cells}
    return {
        name: {
            label: {"median": centre(values, row.seeds), "least": min(values), "most": max(values), "runs": len(values)}
            for label, values in values_of(found, row.figure).items()
        }
        for name, found in own.items()
    }


def relations(row: Row, cells: list[Data]) -> dict[str, dict[str, float]]:
    """By cell and name, the ratio of its median to that of the cell that the row is shown against."""
    if not row.against:
        return {}
    middle = {name: {label: each["median"] for label, each in of.items()} for name, of in summary(row, cells).items()}
    base = middle.pop(row.against)
    return {
        name: ratios
        for name, found in middle.items()
        if (ratios := {label: value / base[label] for label, value in found.items() if base.get(label)})
    }


def aims_of(row: Row, cells: list[Data]) -> Iterator[Aim]:
    """What a row aims at, as far as there are figures for it."""
    middle = {
        name: {
            label: centre(values, row.seeds)
            for label, values in values_of([cell for cell in cells if cell["cell"] == name], row.figure).items()
        }
        for name in row.cells
    }
    relation = "at least" if row.more_is_better else "at most"
    for want in (*(Want("skate", peer, ratio) for peer, ratio in row.aims.items()), *row.wants):
        ours, theirs = middle.get(want.cell, {}), middle.get(want.peer, {})
        for label in want.at or ours:
            if label in ours and label in theirs:
                ratio = ours[label] / theirs[label]
                good = ratio >= want.ratio if row.more_is_better else ratio <= want.ratio
                who = f"{want.cell} " if want.cell != "skate" else ""
                yield Aim(
                    f"{label + ': ' if label else ''}{who}{relation} {want.ratio:.3g} of {want.peer}", ratio, good
                )
    for figure, aim in row.own.items():
        values = [cell[figure] for cell in cells if cell["cell"] == "skate" and figure in cell]
        if values:
            found, relation = centre(values, row.seeds), "at most" if aim < 0 else "at least"
            yield Aim(f"{figure} {relation} {abs(aim):g}", found, found <= -aim if aim < 0 else found >= aim)
    for most in row.mosts:
        value = middle.get(most.cell, {}).get(most.at)
        if value is not None:
            yield Aim(f"{most.cell}: {most.at} at most {most.most:g}", value, value <= most.most)
    if row.limit is not None and (ours := middle.get("skate")):
        yield Aim(f"at most {row.limit:g}", ours[""], ours[""] <= row.limit)


def _store(data: Data, path: Path) -> None:
    """Write a result in one step: one that is interrupted leaves the result before it."""
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(data, indent=1) + "\n")
    new.replace(path)


def _shown(path: Path) -> str:
    return os.path.relpath(path) if Path.cwd() in path.resolve().parents else str(path)


def text_of(values: list[float] | None, seeds: bool) -> str:
    if not values:
        return "–"
    spread = f" ({number(min(values))}–{number(max(values))})" if len(values) > 1 else ""
    return number(centre(values, seeds)) + spread


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
    sys.exit("This is what the suites share; run bench/SUITE/run.py.")
