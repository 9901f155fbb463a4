"""PPO: it learns what it should, its weights follow from the seed, and it goes on when a lane dies."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import skate
from programs import append, lines
from rl_learners import learnt_values, same_weights, taught_twice
from rl_probes import Probe, Salary, probe
from skate.rl import impala, ppo
from skate.rl.run import Run

#: Settings with which a probe takes a second: one small lane and large steps.
QUICK: dict[str, Any] = {
    "lanes": 1,
    "envs": 8,
    "horizon": 16,
    "epochs": 4,
    "minibatch": 64,
    "learning_rate": 1e-2,
    "hidden": (16,),
    "gamma": 0.9,
    "entropy": 0.0,
    "normalise": False,
    "scale_rewards": False,
    "progress": False,
}

runtime = pytest.mark.usefixtures("runtime")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Run, "plot", lambda *_: None)  # half a second each
    return tmp_path


# --- It learns --------------------------------------------------------------------------------------------------------


@runtime
def test_a_delayed_reward_is_worth_gamma_one_step_before() -> None:
    run = ppo.train(probe("delayed"), 4_000, **QUICK)
    assert learnt_values(run, [0.0], [1.0]) == pytest.approx([0.9, 1.0], abs=0.05)


@runtime
def test_the_action_that_an_observation_asks_for_is_found() -> None:
    run = ppo.train(probe("both"), 3_000, **QUICK)
    assert run.policy.act(np.array([[-1.0], [1.0]], np.float32)).tolist() == [0, 1]
    assert run.score is not None
    assert run.score.mean == 1.0
    assert run.repeatable
    assert Run.load(run.path).policy.act(np.array([1.0], np.float32)) == 1


@runtime
def test_continuous_actions_and_unordered_sampling_learn_too() -> None:
    settings = {**QUICK, "lanes": 2, "log_std": -0.5}
    run = ppo.train(probe("both", continuous=True), 8_000, ordered=False, **settings)
    assert run.policy.act(np.array([[-1.0], [1.0]], np.float32)) == pytest.approx(np.array([[-0.5], [0.5]]), abs=0.15)
    assert run.reasons == ["blocks were taken as they finished (ordered=False)"]


@runtime
def test_what_a_time_limit_cuts_is_worth_what_would_have_followed() -> None:
    run = ppo.train(Salary, 8_000, **{**QUICK, "gamma": 0.8, "lam": 0.5})
    assert learnt_values(run, [0.0]) == pytest.approx([5.0], abs=0.1)  # 4.2 if the limit were an end


# --- It can be repeated -----------------------------------------------------------------------------------------------


def test_weights_are_bit_equal_after_ten_iterations_on_1_2_and_4_cpus() -> None:
    settings = {**QUICK, "lanes": 2, "envs": 4, "normalise": True, "scale_rewards": True, "entropy": 0.01}
    settings["callbacks"] = [lambda run, row: run.stop() if row["iteration"] == 10 else None]
    runs = []
    for cpus in (1, 2, 4):
        with skate.init(num_cpus=cpus):
            runs.append(ppo.train("CartPole-v1", 10_000, seed=4, **settings))
    assert [row["iteration"] for row in runs[0].history] == list(range(1, 11))
    assert all(run.repeatable for run in runs)
    assert same_weights(runs[0].policy, runs[1].policy)
    assert same_weights(runs[0].policy, runs[2].policy)
    for name in ("policy_loss", "value_loss", "mean_return"):
        assert [row[name] for row in runs[0].history] == [row[name] for row in runs[2].history]
    with skate.init(num_cpus=2):
        other = ppo.train("CartPole-v1", 10_000, seed=5, **settings)
    assert not same_weights(runs[0].policy, other.policy)


def test_a_learner_goes_on_from_its_state_bit_for_bit() -> None:
    options = ppo.PPOOptions(hidden=(16,), minibatch=32, epochs=2, normalise=True)
    assert taught_twice(ppo.Learner, options)


@runtime
def test_a_run_that_is_resumed_goes_on_with_its_options_and_its_policy() -> None:
    first = ppo.train(probe("both"), 256, seed=3, **QUICK)
    more = ppo.train(probe("both"), 512, resume=str(first.path), progress=False)
    assert [row["steps"] for row in more.history] == [128, 256, 384, 512]
    assert more.policy.version == 4
    assert more.options["hidden"] == (16,)
    assert more.reasons == ["it was resumed at 256 steps"]
    assert not same_weights(first.policy, more.policy)


@runtime
def test_a_run_stays_as_it_was_if_it_is_resumed_with_options_that_cannot_be() -> None:
    first = ppo.train(probe("both"), 256, seed=3, **QUICK)
    kept = {file.name: file.read_bytes() for file in Path(first.path).iterdir()}
    with pytest.raises(ValueError, match=r"of another network(.|\n)*next: resume with the settings of its network"):
        ppo.train(probe("both"), 512, resume=str(first.path), progress=False, hidden=(8,))
    for other in ({"activation": "relu"}, {"normalise": True}):
        with pytest.raises(ValueError, match="of another network"):
            ppo.train(probe("both"), 512, resume=str(first.path), progress=False, **other)
    with pytest.raises(ValueError, match="lanes is 0, and it must be at least 1"):
        ppo.train(probe("both"), 512, resume=str(first.path), progress=False, lanes=0)
    assert {file.name: file.read_bytes() for file in Path(first.path).iterdir()} == kept
    assert ppo.train(probe("both"), 512, resume=str(first.path), progress=False, lanes=2).options["lanes"] == 2
    assert Run.load(first.path).options["lanes"] == 2


@runtime
def test_a_batch_in_which_nothing_happened_teaches_nothing() -> None:
    """CartPole's vector version spends a step on resetting: with one environment that is a whole batch."""
    one = {"lanes": 1, "envs": 1, "progress": False}
    for run in (
        ppo.train("CartPole-v1", 40, seed=1, horizon=1, **one),
        impala.train("CartPole-v1", 40, unroll=1, **one),
    ):
        assert all(np.isfinite(array).all() for array in run.policy.weights.values())


# --- Threads, lanes and spaces ----------------------------------------------------------------------------------------


@runtime
@pytest.mark.parametrize("threads", [None, 2])
def test_the_learner_has_its_number_of_threads_and_gives_it_back(threads: int | None) -> None:
    seen: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        given = {} if threads is None else {"threads": threads}
        ppo.train(probe("both"), 256, callbacks=[lambda *_: seen.append(torch.get_num_threads())], **QUICK, **given)
        assert seen == [threads or 1] * 2
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


class Mortal(Probe):
    """A probe that writes down its process."""

    def __init__(self, file: Path) -> None:
        super().__init__("both")
        append(file, os.getpid())


@runtime
def test_a_lane_that_is_killed_while_it_trains_is_replaced_and_noted(tmp_path: Path) -> None:
    def kill(run: Run, row: dict[str, Any]) -> None:
        if row["iteration"] == 3:
            os.kill(int(lines(tmp_path / "pids")[0]), signal.SIGKILL)

    run = ppo.train(partial(Mortal, tmp_path / "pids"), 3_000, callbacks=[kill], **QUICK)
    assert run.steps >= 3_000
    assert run.score is not None
    assert run.score.mean == 1.0
    assert run.reasons == ["a lane died and was started again"]
    assert Run.load(run.path).reasons == run.reasons


class Mixed(gymnasium.Env[Any, Any]):
    """Observations and actions of several parts; the action that copies what is seen pays most."""

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(a=spaces.Discrete(3, start=1), b=spaces.MultiBinary(1))
        self.action_space = spaces.MultiDiscrete([3, 2])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._seen = {"a": int(self.np_random.integers(1, 4)), "b": self.np_random.integers(0, 2, 1).astype(np.int8)}
        return self._seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = int(action[0] == self._seen["a"] - 1) + int(action[1] == self._seen["b"][0])
        return self._seen, float(right), True, False, {}


@runtime
def test_observations_and_actions_of_several_parts_are_learnt() -> None:
    run = ppo.train(Mixed, 8_000, **{**QUICK, "horizon": 32})
    assert run.score is not None
    assert run.score.mean > 1.9
    assert run.policy.act({"a": 3, "b": np.array([1], np.int8)}).tolist() == [2, 1]
