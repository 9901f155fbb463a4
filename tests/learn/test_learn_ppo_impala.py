"""PPO and IMPALA solve every probe, value a wage for what it is worth, and reach the scores of small problems."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rl_learners import learnt_values
from rl_probes import KINDS, TARGET, Catch, Salary, probe
from skate.rl import impala, ppo
from skate.rl.run import Run

pytestmark = pytest.mark.usefixtures("runtime")

Train = Callable[..., Run]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def with_ppo(env: Any, steps: float, **settings: Any) -> Run:
    own = {"lanes": 1, "envs": 8, "horizon": 16, "epochs": 4, "minibatch": 64, "entropy": 0.0}
    own |= {"normalise": False, "scale_rewards": False}  # the values that it learns are looked at, here and below
    return ppo.train(env, steps, **{**own, "learning_rate": 1e-2, "hidden": (16,), "progress": False, **settings})


def with_impala(env: Any, steps: float, **settings: Any) -> Run:
    own = {"lanes": 2, "envs": 8, "unroll": 8, "anneal": False, "report": 10}
    own |= {"normalise": False, "scale_rewards": False}
    return impala.train(
        env, 5 * steps, **{**own, "learning_rate": 5e-3, "hidden": (16,), "progress": False, **settings}
    )


both = pytest.mark.parametrize("train", [with_ppo, with_impala])


@both
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_every_probe_is_solved(train: Train, kind: str, seed: int) -> None:
    run = train(probe(kind), 6_000, seed=seed, gamma=0.9)
    expected: dict[str, dict[float, float]] = {
        "constant": {0.0: 1.0},
        "observation": {-1.0: -1.0, 1.0: 1.0},
        "delayed": {0.0: 0.9, 1.0: 1.0},
    }
    if kind in expected:
        values = learnt_values(run, *([place] for place in expected[kind]))
        assert values == pytest.approx(list(expected[kind].values()), abs=0.1)
    else:
        assert run.score is not None
        assert run.score.mean == 1.0


@both
@pytest.mark.parametrize("kind", ["action", "both"])
def test_continuous_actions_go_to_their_target(train: Train, kind: str) -> None:
    run = train(probe(kind, continuous=True), 15_000, learning_rate=3e-3, log_std=-0.5, entropy=0.0)
    sides = np.array([[-1.0], [1.0]], np.float32) if kind == "both" else np.zeros((1, 1), np.float32)
    assert run.policy.act(sides) == pytest.approx(TARGET * (sides if kind == "both" else sides + 1), abs=0.2)


class SalaryVector:
    """A factory of wages side by side, in one of gymnasium's modes of autoreset."""

    def __init__(self, mode: gymnasium.vector.AutoresetMode) -> None:
        self._mode = mode

    def __call__(self, num_envs: int) -> Any:
        return gymnasium.vector.SyncVectorEnv([Salary] * num_envs, autoreset_mode=self._mode)


@both
@pytest.mark.parametrize("env", [Salary, *map(SalaryVector, gymnasium.vector.AutoresetMode)])
def test_what_a_time_limit_cuts_is_worth_what_would_have_followed(train: Train, env: Any) -> None:
    run = train(env, 20_000, gamma=0.9)
    assert learnt_values(run, [0.0]) == pytest.approx([10.0], abs=0.3)  # 8.8 at the beginning if the limit were an end


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ppo_balances_the_pole(seed: int) -> None:
    run = ppo.train("CartPole-v1", 150_000, seed=seed, evaluate_every=5_000, stop_at=475, progress=False)
    assert run.score is not None
    assert run.score.mean >= 475


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    ("env", "steps", "score"),
    [("Acrobot-v1", 300_000, -85), ("Pendulum-v1", 300_000, -200), ("LunarLander-v3", 500_000, 200)],
)
def test_ppo_reaches_scores_without_a_single_setting(env: str, steps: int, score: float, seed: int) -> None:
    run = ppo.train(env, steps, seed=seed, evaluate_every=5_000, stop_at=score, progress=False)
    assert max(row.get("score", -1e9) for row in run.history) >= score


def test_unordered_ppo_balances_the_pole() -> None:
    run = ppo.train("CartPole-v1", 150_000, seed=1, ordered=False, evaluate_every=5_000, stop_at=475, progress=False)
    assert max(row.get("score", 0) for row in run.history) >= 475


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_impala_balances_the_pole(seed: int) -> None:
    run = impala.train("CartPole-v1", 1_000_000, seed=seed, evaluate_every=10_000, stop_at=475, progress=False)
    assert max(row.get("score", 0) for row in run.history) >= 475


def test_ppo_learns_from_images() -> None:
    run = ppo.train(Catch, 150_000, seed=1, activation="relu", horizon=32, progress=False)
    assert run.policy.network.convolutions
    assert run.score is not None
    assert run.score.mean >= 0.95
