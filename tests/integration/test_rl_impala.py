"""IMPALA: it learns what it should although simulation never stops, and it goes on when a lane dies."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from programs import append, lines
from rl_learners import learnt_values, taught_twice
from rl_probes import Probe, Salary, probe
from skate.rl import impala
from skate.rl.run import Run

pytestmark = pytest.mark.usefixtures("runtime")

#: Settings with which a probe takes a second or two: a small lane and large steps.
QUICK: dict[str, Any] = {
    "lanes": 1,
    "envs": 8,
    "unroll": 8,
    "learning_rate": 1e-2,
    "anneal": False,
    "hidden": (16,),
    "gamma": 0.9,
    "report": 5,
    "normalise": False,
    "scale_rewards": False,
    "progress": False,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Run, "plot", lambda *_: None)  # half a second each
    return tmp_path


def test_a_delayed_reward_is_worth_gamma_one_step_before() -> None:
    run = impala.train(probe("delayed"), 20_000, **QUICK)
    assert learnt_values(run, [0.0], [1.0]) == pytest.approx([0.9, 1.0], abs=0.07)
    assert run.reasons == ["blocks were taken as they finished"]


def test_time_without_a_wait_is_never_below_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0.0, 1.0, 2.0])
    monkeypatch.setattr(impala.time, "perf_counter", lambda: next(ticks))
    worked = iter([0.0, 1.5])
    monkeypatch.setattr(impala.time, "thread_time", lambda: next(worked))
    part = impala.Part()
    part.take(iter(["a block"]))
    assert part._waiting_s == 0.0


def test_the_action_that_an_observation_asks_for_is_found_and_rows_say_who_waits() -> None:
    run = impala.train(probe("both"), 12_000, **{**QUICK, "lanes": 2})
    assert run.policy.act(np.array([[-1.0], [1.0]], np.float32)).tolist() == [0, 1]
    assert run.score is not None
    assert run.score.mean == 1.0
    for row in run.history:
        assert 0 <= row["waiting"] <= 1
        assert row["busy"] >= 0
        assert row["lag"] >= 0
    assert any(row["lag"] > 0 for row in run.history), "lanes do not wait for the learner"


def test_what_a_time_limit_cuts_is_worth_what_would_have_followed() -> None:
    run = impala.train(Salary, 20_000, **{**QUICK, "gamma": 0.8})
    assert learnt_values(run, [0.0]) == pytest.approx([5.0], abs=0.15)  # 4.2 if the limit were an end


def test_continuous_actions_are_learnt() -> None:
    settings = {**QUICK, "log_std": -0.5, "entropy": 0.0, "learning_rate": 2e-3, "unroll": 16}
    run = impala.train(probe("action", continuous=True), 50_000, **settings)
    assert run.policy.act(np.zeros(1, np.float32)) == pytest.approx([0.5], abs=0.2)


def test_a_learner_goes_on_from_its_state_bit_for_bit() -> None:
    assert taught_twice(impala.Learner, impala.IMPALAOptions(hidden=(16,), normalise=True))


def test_the_learner_has_its_number_of_threads_and_gives_it_back() -> None:
    seen: list[int] = []
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        impala.train(probe("both"), 100, callbacks=[lambda *_: seen.append(torch.get_num_threads())], **QUICK)
        assert seen == [1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


class Mortal(Probe):
    """A probe that writes down its process."""

    def __init__(self, file: Path) -> None:
        super().__init__("both")
        append(file, os.getpid())


def test_a_lane_that_is_killed_while_it_trains_is_replaced_and_noted(tmp_path: Path) -> None:
    def kill(run: Run, row: dict[str, Any]) -> None:
        if row["iteration"] == 3:
            os.kill(int(lines(tmp_path / "pids")[0]), signal.SIGKILL)

    run = impala.train(functools.partial(Mortal, tmp_path / "pids"), 12_000, callbacks=[kill], **QUICK)
    assert run.score is not None
    assert run.score.mean == 1.0
    assert run.reasons == ["blocks were taken as they finished", "a lane died and was started again"]
    more = impala.train(functools.partial(Mortal, tmp_path / "pids"), 13_000, resume=str(run.path), progress=False)
    assert more.policy.version > run.policy.version
    assert more.history[: len(run.history)] == run.history
