"""`skate rl` as people run it: a training that is interrupted, killed and resumed, and the policy that comes of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skate.rl.run import Run
from waiting import wait_for

COMMAND_S = 50.0


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "skate.cli", "rl", *words],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(folder: Path, *words: str) -> str:
    with started(folder, *words) as process:
        out, err = process.communicate(timeout=COMMAND_S)
    assert process.returncode == 0, err
    return out


def rows(path: Path) -> int:
    return len(Run.load(path).history) if (path / "progress.jsonl").exists() else 0


@pytest.mark.timeout(240)  # it starts four trainings, each of which imports torch
def test_a_training_that_is_interrupted_and_killed_goes_on_and_ends(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train = ("train", "ppo", "CartPole-v1", "--lanes", "1", "--epochs", "1")
    with started(tmp_path, *train, "--path", "run", "--steps", "1e9", "--seed", "3") as process:
        wait_for(lambda: rows(path) >= 2, COMMAND_S, "two iterations")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=COMMAND_S)
    assert process.returncode == 130, err
    assert "To go on: resume='run', or --resume." in err
    assert "Traceback" not in err
    before = rows(path)
    with started(tmp_path, "train", "ppo", "--resume", "run", "--steps", "1e9") as process:
        wait_for(lambda: rows(path) >= before + 2, COMMAND_S, "two iterations more")
        process.kill()
    steps = Run.load(path).history[before - 1]["steps"] + 100
    out = done(tmp_path, "train", "ppo", "--resume", "run", "--steps", str(steps))
    run = Run.load(path)
    assert out == f"{run}\nrun\n"
    assert [row["iteration"] for row in run.history] == list(
        range(1, before + 2)
    )  # the rows of the killed one are gone
    assert run.seed == 3
    assert (run.options["epochs"], run.options["lanes"]) == (1, 1)
    assert len(run.reasons) == 1
    assert done(tmp_path, "eval", "run", "--episodes", "4").endswith(" over 4 episodes\n")
