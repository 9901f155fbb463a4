"""SAC: what it learns is right, and a run goes on where it stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rl_probes import TARGET, NumberedVector, Probe, check_numbered, probe
from skate.rl import sac
from skate.rl.env import EnvError
from skate.rl.files import read_tensors

pytestmark = pytest.mark.usefixtures("runtime")

#: Settings with which a probe takes a second or two: one small lane and large steps.
QUICK: dict[str, Any] = {
    "lanes": 1,
    "envs": 8,
    "fragment": 4,
    "ratio": 0.25,
    "minibatch": 64,
    "warm_up": 128,
    "hidden": (32, 32),
    "learning_rate": 1e-2,
    "tau": 0.05,
    "gamma": 0.9,
    "progress": False,
}


def test_the_action_that_an_observation_asks_for_is_found(tmp_path: Path) -> None:
    run = sac.train(probe("both", continuous=True), 3_000, path=str(tmp_path / "run"), entropy=-2.0, **QUICK)
    found = run.policy.act(np.array([[-1.0], [1.0]], np.float32))
    assert found == pytest.approx(np.array([[-TARGET], [TARGET]]), abs=0.15)
    assert run.score is not None
    assert run.score.mean > 0.7
    assert run.repeatable


def test_a_delayed_reward_is_worth_gamma_one_step_before(tmp_path: Path) -> None:
    # With a temperature that goes to 0, the soft value of an action is its value.
    run = sac.train(probe("delayed", continuous=True), 2_000, path=str(tmp_path / "run"), entropy=-20.0, **QUICK)
    tensors, meta = read_tensors(run.path / "checkpoint.safetensors")
    learner = sac.Learner(run.policy, sac.SACOptions(hidden=(32, 32)), seed=0)
    learner.restore({name: a for name, a in tensors.items() if not name.startswith("replay.")}, meta["meta"])
    with torch.no_grad():
        values = learner.critics(torch.tensor([[0.0, 0.0], [1.0, 0.0]])).numpy()
    assert values == pytest.approx(np.array([[0.9, 1.0]] * 2), abs=0.1)


def test_no_transition_in_the_replay_crosses_a_reset_also_when_a_run_goes_on(tmp_path: Path) -> None:
    env = NumberedVector("SAME_STEP", continuous=True)
    first = sac.train(env, 500, path=str(tmp_path / "run"), **{**QUICK, "fragment": 20, "report": 256})
    run = sac.train(env, 1_200, resume=str(first.path), progress=False)
    tensors, _ = read_tensors(run.path / "checkpoint.safetensors")
    kept = {name.removeprefix("replay."): array for name, array in tensors.items() if name.startswith("replay.")}
    check_numbered(kept, run.steps, n=1, gamma=0.9)
    before, after = first.history[-1], run.history[len(first.history)]
    assert after["replay"] == before["replay"] + after["steps"] - before["steps"]
    assert after["updates"] >= before["updates"] + 64
    assert run.policy.version > first.policy.version
    assert run.reasons == [f"it was resumed at {first.steps} steps"]


def test_one_action_without_axes(tmp_path: Path) -> None:
    class Plain(Probe):
        def __init__(self) -> None:
            super().__init__("both", True)
            self.action_space = spaces.Box(-1, 1, (), np.float32)

    run = sac.train(Plain, 400, path=str(tmp_path / "run"), **QUICK)
    assert run.history[-1]["updates"] > 0


def test_discrete_actions_are_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises((ValueError, EnvError), match="needs a Box action space"):
        sac.train(probe("both"), 1_000, path=str(tmp_path / "run"), **QUICK)
