"""DQN: what it learns is right, and it goes on when a process dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_probes import NumberedVector, Salary, check_numbered, probe
from skate.rl import dqn
from skate.rl.files import read_tensors
from skate.rl.policy import Policy
from skate.rl.replay import Prioritised
from skate.rl.run import Run

pytestmark = pytest.mark.usefixtures("runtime")

#: Settings with which a probe takes a second: one small lane and large steps.
QUICK: dict[str, Any] = {
    "lanes": 1,
    "envs": 8,
    "fragment": 8,
    "ratio": 0.25,
    "minibatch": 64,
    "warm_up": 128,
    "hidden": (32,),
    "learning_rate": 1e-2,
    "target_every": 16,
    "gamma": 0.9,
    "progress": False,
}


def values(policy: Policy, *observations: float) -> np.ndarray:
    """The values of the actions at some observations."""
    return policy.outputs(np.array(observations, np.float32)[:, None])


def test_a_delayed_reward_is_worth_gamma_one_step_before(tmp_path: Path) -> None:
    run = dqn.train(probe("delayed"), 1_500, path=str(tmp_path / "run"), n_step=1, **QUICK)
    assert values(run.policy, 0.0, 1.0) == pytest.approx(np.array([[0.9, 0.9], [1.0, 1.0]]), abs=0.05)


def test_the_action_that_an_observation_asks_for_is_found(tmp_path: Path) -> None:
    run = dqn.train(probe("both"), 2_000, path=str(tmp_path / "run"), **QUICK)
    assert values(run.policy, -1.0, 1.0) == pytest.approx(np.array([[1.0, -1.0], [-1.0, 1.0]]), abs=0.2)
    assert run.score is not None
    assert run.score.mean == 1.0
    assert run.repeatable


def test_what_a_time_limit_cuts_is_worth_what_would_have_followed(tmp_path: Path) -> None:
    settings = {**QUICK, "gamma": 0.8, "epsilon": 1.0, "epsilon_power": 0.0}
    run = dqn.train(Salary, 4_000, path=str(tmp_path / "run"), **settings)
    assert values(run.policy, 0.0) == pytest.approx(np.full((1, 2), 5.0), abs=0.2)  # 4.2 if the limit were an end


def test_no_transition_in_the_replay_crosses_a_reset(tmp_path: Path) -> None:
    settings = {**QUICK, "lanes": 2, "warm_up": 10_000, "fragment": 20}
    run = dqn.train(NumberedVector("NEXT_STEP"), 900, path=str(tmp_path / "run"), n_step=3, **settings)
    tensors, _ = read_tensors(run.path / "checkpoint.safetensors")
    kept = {name.removeprefix("replay."): array for name, array in tensors.items() if name.startswith("replay.")}
    check_numbered(kept, run.steps, n=3, gamma=0.9)


def test_a_replay_that_is_killed_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Traced(Prioritised):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            (tmp_path / "pid").write_text(str(os.getpid()))

    def kill(run: Run, row: dict[str, Any]) -> None:
        if row["iteration"] == 3:
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)

    monkeypatch.setattr(dqn, "Prioritised", Traced)
    monkeypatch.setattr("skate.rl.run.CHECKPOINT_EVERY_S", 0.0)
    monkeypatch.setattr("skate.rl.run.CHECKPOINT_PARTS", 0.0)
    settings = {**QUICK, "replay": "actor", "report": 256, "warm_up": 500}
    run = dqn.train(probe("both"), 2_000, path=str(tmp_path / "run"), callbacks=[kill], **settings)
    has = "with the 512 transitions of the last checkpoint"
    assert run.reasons == [f"the replay died at 768 steps and was made again {has}"]
    assert [row["replay"] for row in run.history[:4]] == [256, 512, 768, 768]
    assert run.history[-1]["updates"] > run.history[3]["updates"] > run.history[2]["updates"]


def test_a_run_follows_from_its_seed_wherever_the_replay_is_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    settings = {**QUICK, "lanes": 2, "report": 256}
    local = dqn.train(probe("both"), 1_000, seed=3, path=str(tmp_path / "local"), **settings)
    actor = dqn.train(probe("both"), 1_000, seed=3, path=str(tmp_path / "actor"), replay="actor", **settings)
    for name, weights in local.policy.weights.items():
        assert np.array_equal(weights, actor.policy.weights[name])

    # Each lane explored at a rate of its own; what was trained does not, neither here nor after load.
    assert local.policy.epsilon is None
    seen, rng = np.zeros((5, 1), np.float32), np.random.default_rng(0)
    assert np.array_equal(local.policy.act(seen, rng=rng), Policy.load(local.path).act(seen, rng=rng))
    with pytest.raises(ValueError, match="capacity"):
        dqn.train(probe("both"), 2_000, resume=str(actor.path), capacity=100, progress=False)

    gone_on = dqn.train(probe("both"), 2_000, resume=str(actor.path), progress=False)
    assert gone_on.options["replay"] == "actor"
    before, after = actor.history[-1], gone_on.history[len(actor.history)]
    assert (after["replay"], after["updates"]) == (before["replay"] + 256, before["updates"] + 64)
    assert gone_on.policy.version > actor.policy.version
    assert gone_on.reasons == ["it was resumed at 1,024 steps"]
