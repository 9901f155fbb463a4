"""train.run in drivers that end: killed, interrupted. Programs of their own, without torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from leaks import SHARED_MEMORY
from waiting import WITHIN_S, wait_for

PROGRAM = """
import json, os, pathlib, sys, threading

from skate import train


def fit(config):
    here = train.context()
    for step in range(train.restore(), 4):
        train.report({"pid": os.getpid(), "restarts": here.restarts}, checkpoint={"step": step})
        if step == 1 and config["stays"]:
            threading.Event().wait()


if __name__ == "__main__":
    result = train.run(fit, {"stays": sys.argv[2] == "stays"}, path=sys.argv[1])
    print(json.dumps(sorted(row["step"] for row in result.history)))
"""


def start(folder: Path, what: str) -> subprocess.Popen[str]:
    script = folder / "program.py"
    script.write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, str(script), str(folder / "run"), what],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
    )


def pids_of_workers(folder: Path) -> set[int]:
    """The processes of both ranks, when both have reported the step at which they stay."""
    history = folder / "run" / "history.jsonl"

    def both() -> set[int]:
        rows = [json.loads(line) for line in history.read_text().splitlines()] if history.exists() else []
        pids = {row["pid"] for row in rows if row["step"] == 1}
        return pids if len(pids) == 2 and (folder / "run" / "checkpoint-1").exists() else set()

    return wait_for(both, WITHIN_S, "a checkpoint of both ranks")


@pytest.mark.parametrize(
    ("how", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, -signal.SIGINT)], ids=["kill -9", "Ctrl-C"]
)
def test_the_end_of_the_driver_ends_everything_and_the_same_path_goes_on(
    tmp_path: Path, how: signal.Signals, code: int
) -> None:
    before = set(SHARED_MEMORY.iterdir())
    driver = start(tmp_path, "stays")
    workers = pids_of_workers(tmp_path)
    everything = {driver.pid, *(child.pid for child in psutil.Process(driver.pid).children(recursive=True))}
    assert workers <= everything
    os.kill(driver.pid, how)
    driver.communicate(timeout=WITHIN_S)
    assert driver.returncode == code
    wait_for(lambda: not any(map(psutil.pid_exists, everything)), WITHIN_S, "all processes to be gone")
    assert set(SHARED_MEMORY.iterdir()) <= before

    driver = start(tmp_path, "goes on")
    out, err = driver.communicate(timeout=2 * WITHIN_S)
    assert driver.returncode == 0, err
    assert json.loads(out) == [0, 0, 1, 1, 2, 2, 3, 3]
