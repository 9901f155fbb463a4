"""Measure Skate beside its peers: the same workloads, in alternating runs, one process at a time.

    python bench/run.py                        everything: Ray, Dask and a process pool, three runs
    python bench/run.py --peers ray --quick    a first impression in a few minutes
    python bench/run.py --rows sync_task,idle  only these rows
    python bench/run.py --list                 what each row measures, and what it does not
    python bench/run.py --show FILE            print an earlier result again

Needs only the standard library: each peer gets a virtual environment of its own under `bench/.envs`. Skate and the
floor are always part of a run, because a ratio means something only if both sides were measured on the same machine
at the same time. Run 1 of every peer comes before run 2 of any, so that a machine that grows slower does so for all.
A peer that fails in a row, or exceeds the row's time limit, gets a cell that says so, and the rest goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import environments
import machine
import processes
from report import Results, number, show, summarise
from workloads import ASYNC_TASKS, ROWS, Row

HERE = Path(__file__).resolve().parent
PEERS = ("ray", "dask", "pool")
GRACE_S = 5.0  # for a runtime's processes to go by themselves once its driver has ended


def main() -> None:
    options = parse(sys.argv[1:])
    if options.list:
        for row in ROWS.values():
            print(f"- **{row.name}** ({', '.join(m.name for m in row.metrics)}): {row.text}")
        return
    if options.show:
        print(*show(Results(json.loads(options.show.read_text()))), sep="\n")
        return
    processes.adopt_orphans()
    started = datetime.now()
    data: dict[str, Any] = {
        "date": started.isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "cpus": options.cpus,
        "runs": options.runs,
        "quick": options.quick,
        "peers": ["skate", "floor", *options.peers],
        "rows": options.rows,
        "versions": {},
        "samples": [],
    }
    results = Results(data)
    broken = prepare(results, fresh=options.fresh)
    try:
        measure(results, broken)
    except KeyboardInterrupt:
        print("\ninterrupted: what follows is what there is")
        processes.reap_all(0)
    data["summary"] = summarise(results)
    path = HERE / "results" / f"{started:%Y-%m-%d-%H%M}{'-quick' if options.quick else ''}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    print()
    print(*show(results), sep="\n")
    print(f"\nstored in {path.relative_to(HERE.parent)}")


def parse(arguments: list[str]) -> argparse.Namespace:
    def names(text: str, known: list[str]) -> list[str]:
        wanted = [name.strip() for name in text.split(",") if name.strip()] or known
        if unknown := [name for name in wanted if name not in known]:
            parser.error(f"there is no {', '.join(unknown)}; choose from {', '.join(known)}")
        return wanted

    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--peers", nargs="?", default="", const="", help="comma-separated: ray,dask,pool (default: all)"
    )
    parser.add_argument("--rows", nargs="?", default="", const="", help="comma-separated row names (default: all)")
    parser.add_argument("--runs", type=int, help="runs of every cell (default: 3; with --quick 1)")
    parser.add_argument(
        "--cpus", type=int, default=min(os.cpu_count() or 1, 2), help="workers of every peer (default: 2)"
    )
    parser.add_argument("--quick", action="store_true", help="one run with few repetitions; large rows on Skate only")
    parser.add_argument("--fresh", action="store_true", help="make the environments anew, with the newest versions")
    parser.add_argument("--list", action="store_true", help="describe the rows and stop")
    parser.add_argument("--show", type=Path, metavar="FILE", help="print the report of stored results and stop")
    options = parser.parse_args(arguments)
    options.peers = names(options.peers, list(PEERS))
    options.rows = names(options.rows, list(ROWS))
    options.runs = options.runs or (1 if options.quick else 3)
    return options


def prepare(results: Results, *, fresh: bool) -> dict[str, str]:
    """Set up every environment; return the peers that have none, with the reason."""
    broken: dict[str, str] = {}
    for peer in results.peers:
        if peer != "floor":
            try:
                results.data["versions"][peer] = environments.prepare(peer, fresh=fresh)
            except environments.EnvironmentFailed as error:
                broken[peer] = f"no environment: {error}"
                print(f"{peer}: {broken[peer]}", flush=True)
    if "skate" in broken:
        broken["floor"] = "no environment: it shares Skate's"
    return broken


def measure(results: Results, broken: dict[str, str]) -> None:
    """Fill in the samples. The innermost loop goes over peers: what is compared is measured close together in time."""
    data = results.data
    for run in range(1, data["runs"] + 1):
        for row in (ROWS[name] for name in data["rows"]):
            for peer in results.peers:
                if peer == "floor" and not row.floor:
                    continue
                begin = time.monotonic()
                if reason := broken.get(peer) or hopeless(results, peer, row):
                    outcome = {"status": "skipped", "note": reason}
                else:
                    outcome = run_cell(peer, row, data["cpus"], data["quick"])
                sample: dict[str, Any] = {
                    "peer": peer,
                    "row": row.name,
                    "run": run,
                    "metrics": {},
                    "note": "",
                    "strangers_cores": None,
                }
                sample |= outcome | {"took_s": round(time.monotonic() - begin, 1)}
                data["samples"].append(sample)
                figures = ", ".join(f"{name} {number(value)}" for name, value in sample["metrics"].items())
                said = figures or f"{sample['status']}: {sample['note']}"
                print(f"run {run}/{data['runs']}  {row.name:<14} {peer:<6} {said}", flush=True)


def hopeless(results: Results, peer: str, row: Row) -> str:
    """Why this cell need not be tried, judging by the row with a tenth of the tasks."""
    if not row.after or row.after not in results.data["rows"]:
        return ""
    if results.data["quick"] and peer not in ("skate", "floor"):
        return "left out of a quick run"
    rate = results.median(peer, row.after, "tasks/s")
    if rate is None:
        return f"it did not finish {row.after}"
    expected_s = ASYNC_TASKS[row.name] / rate
    if expected_s > row.limit_s:
        return f"at its rate in {row.after} this would take {expected_s:,.0f} s; the limit is {row.limit_s:g} s"
    return ""


def run_cell(peer: str, row: Row, cpus: int, quick: bool) -> dict[str, Any]:
    """One row on one peer in a fresh process, with a temporary directory that goes away with it."""
    # A short path: some peers put sockets there, and the name of a socket has at most 107 bytes.
    scratch = Path(tempfile.mkdtemp(prefix="sb-"))
    result, log = scratch / "result.json", scratch / "log.txt"
    command = [str(environments.python_of(peer)), str(HERE / "child.py"), peer, row.name, str(result)]
    command += ["--cpus", str(cpus), *(["--quick"] if quick else [])]
    environment = os.environ | {"TMPDIR": str(scratch), "PYTHONPATH": str(HERE)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a start is measured with byte code compiled, as users have it
    try:
        with log.open("wb") as out:
            child = subprocess.Popen(
                command,
                cwd=scratch,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
            try:
                child.wait(row.limit_s)
                late = False
            except subprocess.TimeoutExpired:
                late = True
                child.kill()
                child.wait()
        left = processes.reap_all(GRACE_S)
        if result.exists():
            outcome: dict[str, Any] = json.loads(result.read_text())
        elif late:
            outcome = {"status": "timeout", "note": f"not done after {row.limit_s:g} s"}
        else:
            last = [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-1:]
            outcome = {"status": "failed", "note": f"exit code {child.returncode}; {' '.join(last)[:200]}"}
        if late and outcome["status"] == "ok":
            outcome["note"] = f"measured, but then it did not stop within the limit of {row.limit_s:g} s"
        elif left and outcome["status"] == "ok":
            outcome["note"] = f"measured, but {left} of its processes were still there {GRACE_S:g} s after its end"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    outcome["note"] = outcome.get("note", "").replace(str(HERE.parent), ".").replace(str(scratch), "")
    outcome["left_behind"] = left
    return outcome


if __name__ == "__main__":
    main()
