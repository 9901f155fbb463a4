"""Run one row on one peer, in the peer's own environment, and write what came out to a file as JSON.

Started by `run.py`, once for each cell and run: a fresh process, so that no row inherits another's memory or warm-up.
"""

from __future__ import annotations

import argparse
import json
import os
import traceback
from pathlib import Path
from typing import Any

import cluster_rows  # noqa: F401 - it adds its rows to the others
import processes
import workloads
from adapters import load


def measure(peer: str, row: workloads.Row, cpus: int, quick: bool, result: Path) -> None:
    processes.adopt_orphans()
    baseline = processes.pss_bytes([os.getpid()])
    adapter = load(peer)
    if reason := adapter.cannot.get(row.name):
        report(result, {"status": "n/a", "note": reason})
        return
    bench = workloads.Bench(peer, adapter, cpus, quick, baseline)
    if not row.managed:
        metrics = row.run(bench)
        # A row that starts a cluster itself counts strangers itself, while its processes are alive.
        strangers_cores = metrics.pop(workloads.STRANGERS_CORES, None)
        report(result, {"status": "ok", "metrics": metrics, "strangers_cores": strangers_cores})
        return
    adapter.start(cpus)
    try:
        workloads.warm_up(bench)
        strangers = processes.Strangers()
        metrics = row.run(bench)
        report(result, {"status": "ok", "metrics": metrics, "strangers_cores": round(strangers.cores(), 3)})
    finally:
        adapter.stop()


def report(path: Path, outcome: dict[str, Any]) -> None:
    """Write the outcome whole or not at all: `run.py` may kill this process at any time."""
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(outcome))
    unfinished.rename(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer")
    parser.add_argument("row", choices=workloads.ROWS)
    parser.add_argument("result", type=Path)
    parser.add_argument("--cpus", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    try:
        measure(options.peer, workloads.ROWS[options.row], options.cpus, options.quick, options.result)
    except Exception as error:
        traceback.print_exc()
        if not options.result.exists():
            first_line = str(error).strip().partition("\n")[0]
            report(options.result, {"status": "failed", "note": f"{type(error).__name__}: {first_line}"})
        raise SystemExit(1) from None


if __name__ == "__main__":
    main()
