"""DQN reaches its scores, and solves every probe."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_probes import KINDS, Catch, NumberedVector, check_numbered, probe
from skate.rl import dqn
from skate.rl.files import read_tensors
from skate.rl.replay import Prioritised
from skate.rl.run import Run
from waiting import wait_for

#: Values of the two actions at the observations -1, 0 and 1; None where an observation does not occur.
ANSWERS: dict[str, list[list[float] | None]] = {
    "constant": [None, [1.0, 1.0], None],
    "observation": [[-1.0, -1.0], None, [1.0, 1.0]],
    "delayed": [None, [0.9, 0.9], [1.0, 1.0]],
    "action": [None, [-1.0, 1.0], None],
    "both": [[1.0, -1.0], None, [-1.0, 1.0]],
}

QUICK: dict[str, Any] = {"envs": 8, "lanes": 1, "warm_up": 128, "learning_rate": 1e-2, "gamma": 0.9, "progress": False}


@pytest.mark.parametrize("duelling", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_values_of_a_probe(kind: str, duelling: bool, tmp_path: Path) -> None:
    everything = {"epsilon": 1.0, "epsilon_power": 0.0}  # tried, so that values of bad actions are known too
    run = dqn.train(probe(kind), 5_000, path=str(tmp_path / "run"), duelling=duelling, **QUICK, **everything)
    found = run.policy.outputs(np.array([[-1.0], [0.0], [1.0]], np.float32))
    for values, expected in zip(found, ANSWERS[kind], strict=True):
        if expected is not None:
            assert values == pytest.approx(np.array(expected), abs=0.1)


@pytest.mark.parametrize("seed", range(1, 6))
def test_cartpole_is_solved_within_100_000_steps(seed: int, tmp_path: Path) -> None:
    run = dqn.train("CartPole-v1", 100_000, seed=seed, path=str(tmp_path / "run"), stop_at=475, progress=False)
    assert max(row["score"] for row in run.history if "score" in row) >= 475


@pytest.mark.parametrize("settings", [{}, {"ordered": False, "ahead": 2, "lanes": 4, "envs": 4, "replay": "actor"}])
def test_images_are_learnt_with_convolutions(settings: dict[str, Any], tmp_path: Path) -> None:
    run = dqn.train(Catch, 100_000, seed=1, path=str(tmp_path / "run"), stop_at=0.95, progress=False, **settings)
    assert run.policy.network.convolutions
    assert max(row["score"] for row in run.history if "score" in row) >= 0.95
    assert run.reasons == (["blocks were taken as they finished"] if settings else [])


@pytest.mark.parametrize("mode", NumberedVector.MODES)
def test_no_transition_in_the_replay_crosses_a_reset(mode: str, tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    run = dqn.train(NumberedVector(mode), 20_000, path=path, n_step=5, ratio=0.01, fragment=40, progress=False)
    tensors, _ = read_tensors(run.path / "checkpoint.safetensors")
    kept = {name.removeprefix("replay."): array for name, array in tensors.items() if name.startswith("replay.")}
    check_numbered(kept, run.steps, n=5, gamma=0.99)


def test_an_empty_replay_is_filled_before_learning_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Traced(Prioritised):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            (tmp_path / "pid").write_text(str(os.getpid()))

    def kill(run: Run, row: dict[str, Any]) -> None:
        if row["iteration"] == 3:
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    monkeypatch.setattr(dqn, "Prioritised", Traced)
    settings = {**QUICK, "replay": "actor", "save_replay_mb": 0, "report": 256, "warm_up": 500, "fragment": 8}
    run = dqn.train(probe("both"), 4_000, path=str(tmp_path / "run"), callbacks=[kill], **settings)
    assert run.reasons == ["the replay died at 768 steps and was made again empty"]
    sizes = [row["replay"] for row in run.history[:5]]
    assert sizes[:3] == [256, 512, 768]
    assert sizes[3] < 256, "the blocks up to the one with which the death was noticed are lost"
    assert sizes[4] < 500
    updates = [row["updates"] for row in run.history]
    assert updates[-1] > updates[4] == updates[3] > 0, "with fewer transitions than warm_up there is no learning"
    assert run.score is not None
    assert run.score.mean == 1.0


TRAIN = """
from skate.rl import dqn, run
run.CHECKPOINT_EVERY_S, run.CHECKPOINT_PARTS = 0.0, 0
dqn.train("CartPole-v1", 1e9, seed=3, path="run", replay="actor", warm_up=500, report=500, progress=False)
"""


def test_a_run_whose_process_is_killed_goes_on_with_its_replay(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", TRAIN], cwd=tmp_path, env=dict(os.environ)) as process:
        wait_for(lambda: (path / "progress.jsonl").exists() and len(Run.load(path).history) >= 6, 60.0, "six rows")
        process.send_signal(signal.SIGKILL)
    run = dqn.train("CartPole-v1", 10_000, resume=str(path), progress=False)
    assert run.steps >= 10_000
    (reason,) = run.reasons
    assert reason.startswith("it was resumed at ")
    assert [row["iteration"] for row in run.history] == list(range(1, len(run.history) + 1))
    sizes = [row["replay"] for row in run.history]
    assert all(after > before for before, after in itertools.pairwise(sizes))
    updates = [row["updates"] for row in run.history]
    assert all(after > before for before, after in itertools.pairwise(updates[2:]))
