"""SAC reaches its score, and solves every probe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_probes import KINDS, TARGET, Probe, probe
from skate.rl import sac

QUICK: dict[str, Any] = {"lanes": 1, "envs": 8, "warm_up": 128, "learning_rate": 1e-2, "tau": 0.05, "gamma": 0.9}

#: The mean of the returns, and the actions at the observations -1, 0 and 1 where they matter.
ANSWERS: dict[str, tuple[float, list[float | None]]] = {
    "constant": (1.0, [None, None, None]),
    "observation": (0.0, [None, None, None]),
    "delayed": (1.0, [None, None, None]),
    "action": (1.0, [None, TARGET, None]),
    "both": (1.0, [-TARGET, None, TARGET]),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_actions_of_a_probe(kind: str, tmp_path: Path) -> None:
    path = str(tmp_path / "run")
    run = sac.train(probe(kind, continuous=True), 6_000, path=path, entropy=-2.0, progress=False, **QUICK)
    mean, actions = ANSWERS[kind]
    assert run.score is not None
    assert run.score.mean == pytest.approx(mean, abs=0.2)
    for observation, action in zip((-1.0, 0.0, 1.0), actions, strict=True):
        if action is not None:
            assert run.policy.act(np.array([observation], np.float32)) == pytest.approx(action, abs=0.1)


@pytest.mark.parametrize("seed", range(1, 6))
def test_pendulum_is_solved_within_20_000_steps(seed: int, tmp_path: Path) -> None:
    run = sac.train("Pendulum-v1", 20_000, seed=seed, path=str(tmp_path / "run"), stop_at=-170, progress=False)
    assert max(row["score"] for row in run.history if "score" in row) >= -170


class Wide(Probe):
    """The probe of actions, with bounds of its own on them: the right one is at -30."""

    def __init__(self) -> None:
        super().__init__("action", continuous=True)
        self.action_space.low[:], self.action_space.high[:] = -50, -10

    def _pay(self, action: Any, side: float) -> float:
        assert self.action_space.contains(np.asarray(action, np.float32)), action
        return super()._pay(action / 20 + 2, side)


def test_actions_are_scaled_to_the_bounds_and_a_run_follows_from_its_seed(tmp_path: Path) -> None:
    settings = {**QUICK, "lanes": 2, "envs": 4, "progress": False}
    run = sac.train(Wide, 6_000, seed=3, path=str(tmp_path / "first"), **settings)
    assert run.policy.act(np.zeros(1, np.float32)) == pytest.approx(20 * TARGET - 40, abs=3)
    again = sac.train(Wide, 6_000, seed=3, path=str(tmp_path / "again"), **settings)
    for name, weights in run.policy.weights.items():
        assert np.array_equal(weights, again.policy.weights[name])
