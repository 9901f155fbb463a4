"""Simulators with environments that are not part of the test environment's core, and with lanes that sleep."""

from __future__ import annotations

import contextlib
import os
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import envpool  # here and not in a test: it keeps the frames that import it
import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from skate.rl import Policy, Simulators
from skate.rl.block import Block

pytestmark = pytest.mark.usefixtures("runtime")


# --- EnvPool and ALE --------------------------------------------------------------------------------------------------


def moved(observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """Where the pole is one step later, by the equations of gymnasium's environment."""
    env: Any = gymnasium.make("CartPole-v1").unwrapped
    following = []
    for observation, action in zip(observations, actions, strict=True):
        env.reset()
        env.state = tuple(observation.astype(np.float64))
        env.steps_beyond_terminated = None
        following.append(env.step(int(action))[0])
    return np.array(following)


def check_pole(block: Block) -> None:
    """Check that every transition follows the equations, so that none leads from one episode into another."""
    block.validate()
    real = block.mask & ~block.terminated
    expected = moved(block.observations[real], block.actions[real])
    np.testing.assert_allclose(block.next_observations()[real], expected, atol=1e-4)
    assert (block.rewards[block.mask] == 1).all()


def pool(num_envs: int, seed: int) -> Any:
    return envpool.make_gymnasium("CartPole-v1", num_envs=num_envs, seed=seed, max_episode_steps=30)


def old_pool(num_envs: int, seed: int) -> Any:
    return envpool.make("CartPole-v1", env_type="gymnasium", num_envs=num_envs, seed=seed)


def vectors(num_envs: int, mode: Any) -> Any:
    makers = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=30)] * num_envs
    return gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)


@pytest.mark.parametrize(
    "env", ["CartPole-v1", pool, old_pool, *(partial(vectors, mode=m) for m in gymnasium.vector.AutoresetMode)]
)
def test_poles_fall_by_their_equations_in_every_kind_of_vector(env: Any) -> None:
    with Simulators(env, lanes=2, envs=4, seed=3) as sims:
        policy = Policy.create(sims.observation_space, sims.action_space)
        for _ in range(3):
            batch = sims.sample(policy, steps=400)
            check_pole(batch)
        assert len(batch.episode_returns) > 3
        assert len({batch.observations[:, n].tobytes() for n in range(8)}) == 8
        assert len(sims.sample(policy, episodes=20).episode_returns) == 24
        score = sims.evaluate(policy, episodes=30)
        assert (score.returns == score.lengths).all()
        del batch


def atari(num_envs: int, mode: str) -> Any:
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv("breakout", num_envs=num_envs, autoreset_mode=mode, max_num_frames_per_episode=400)


@pytest.mark.parametrize("env", [partial(atari, mode="NextStep"), partial(atari, mode="SameStep"), "ALE/Breakout-v5"])
def test_images_of_atari_stay_bytes(env: Any) -> None:
    with Simulators(env, lanes=1, envs=2) as sims:
        policy = Policy.create(sims.observation_space, sims.action_space)
        assert policy.network.convolutions
        batch = sims.sample(policy, steps=400)
        batch.validate()
        assert batch.observations.shape == (200, 2, 4, 84, 84)
        assert batch.observations.dtype == np.uint8
        if not isinstance(env, str):
            assert len(batch.episode_returns) > 1
            assert len(sims.evaluate(policy, episodes=3, greedy=False).returns) == 3
        del batch


# --- A lane that sleeps -----------------------------------------------------------------------------------------------


class Works(gymnasium.Env[np.ndarray, int]):
    """Keeps a core busy in every step. With a folder, the first process that comes there sleeps nine tenths of it."""

    def __init__(self, folder: Path | None = None) -> None:
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._sleepy = False
        self._worked_s, self._steps = 0.0, 0
        if folder is not None:
            with contextlib.suppress(FileExistsError):
                (folder / "sleeper").symlink_to(str(os.getpid()))
            self._sleepy = os.readlink(folder / "sleeper") == str(os.getpid())

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        began = time.perf_counter()
        total = 0
        for i in range(1_000):
            total += i
        if self._sleepy:
            self._worked_s += time.perf_counter() - began
            if self._worked_s > 0.01:
                time.sleep(9 * self._worked_s)
                self._worked_s = 0.0
        return np.zeros(1, np.float32), 1.0, False, False, {}


def test_a_lane_that_sleeps_nine_tenths_of_its_time_costs_a_tenth_at_most(tmp_path: Path) -> None:
    times: dict[bool, list[float]] = {True: [], False: []}
    with (
        Simulators(Works, lanes=8, envs=1) as awake,
        Simulators(partial(Works, tmp_path), lanes=8, envs=1) as one_sleeps,
    ):
        for sims in (awake, one_sleeps):
            sims.sample(None, steps=8)
            sims.sample(None, steps=100, ordered=False)
        for _ in range(7):
            for sims in (awake, one_sleeps):
                began = time.perf_counter()
                blocks = sims.sample(None, steps=40_000, ordered=False).blocks
                times[sims is one_sleeps].append(time.perf_counter() - began)
                del blocks
    ratio = statistics.median(times[True]) / statistics.median(times[False])
    assert ratio <= 1.1, f"{ratio:.2f} times as long"
