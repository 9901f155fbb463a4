"""What the programs of every peer share: standard library alone, since each peer has an environment of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from program import main  # noqa: F401

#: When this program began, by the clock of the wall: other processes tell when they got somewhere.
STARTED = time.time()

#: Sizes of an allreduce in bytes, by the names in results, and how often each is measured.
SIZES = {
    "4 B": (4, 300),
    "4 KB": (4_096, 300),
    "64 KB": (65_536, 300),
    "1 MB": (1_000_000, 100),
    "4 MB": (4_000_000, 50),
    "100 MB": (100_000_000, 10),
    "1 GB": (1_000_000_000, 3),
}
WARM_UP = 3


def sizes(names: list[str] | None, repeats: int | None) -> dict[str, tuple[int, int]]:
    """The sizes with these names, and how often each is measured."""
    chosen = {name: SIZES[name] for name in names or SIZES}
    return {name: (size, min(count, repeats or count)) for name, (size, count) in chosen.items()}


def median_ms(repeats: int, act: Callable[[], Any]) -> float:
    """The median time of an action that all ranks do together."""
    for _ in range(min(WARM_UP, repeats)):
        act()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        act()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e3


def launch(command: list[str], **environment: str) -> dict[str, Any]:
    """Run a launcher of ranks, of which one prints a line of JSON; its figures.

    Raises RuntimeError with the last lines that the ranks wrote if none did.
    """
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise RuntimeError(" / ".join(said[-3:]) or f"exit code {done.returncode}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def killed_and_unharmed(
    folder: Path, run: Callable[[dict[str, Any], Path, int], Any], steps: int, at: int
) -> dict[str, Any]:
    """Run the same training with and without the death of a worker.

    run: takes the config of the training function, a folder and the number of failures that it may survive. The
    training function writes files into config["notes"]: when it died, when it made the next step, and what its weights
    are.
    """
    digests = []
    for dies in (True, False):
        notes = folder / f"notes-{dies}"
        notes.mkdir()
        config = {"notes": str(notes), "dies": dies, "steps": steps, "at": at}
        run(config, folder / f"run-{dies}", int(dies))
        digests.append(json.loads((notes / "digest").read_text()))
    killed, again = (json.loads((folder / "notes-True" / name).read_text()) for name in ("killed", "again"))
    seconds = again["at"] - killed
    return {
        "seconds": seconds,
        "beyond_import_s": seconds - again["import_s"],
        "import_s": again["import_s"],
        "went_on_at": again["start"],
        "equal": int(digests[0] == digests[1]),
    }


def report_often(report: Callable[[dict[str, Any]], Any], count: int, pause_s: float) -> None:
    """Report now and then; each report has the time of its call, and how long the one before it took."""
    took_s = 0.0
    for _ in range(count):
        time.sleep(pause_s)
        began = time.perf_counter()
        report({"sent": time.time(), "took_s": took_s})
        took_s = time.perf_counter() - began


def report_figures(seen: list[tuple[float, dict[str, Any]]]) -> dict[str, Any]:
    """What it cost, from the times at which the driver saw each report, and the reports."""
    call_us = statistics.median(metrics["took_s"] for _, metrics in seen[1:]) * 1e6
    seen_ms = statistics.median(at - metrics["sent"] for at, metrics in seen) * 1e3
    figures = {"call, µs": call_us, "until the driver sees it, ms": seen_ms}
    return {"report": figures, "call_us": call_us, "seen_ms": seen_ms, "reports": len(seen)}
