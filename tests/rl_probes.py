"""Environments whose answers are known: a learner that has a defect in one place fails one of them.

`Probe(kind)`, from the simplest to one that needs all parts of a learner. The best return is 1
(0 on average where the observation alone is paid).

    constant      one step that pays 1, whatever is done
    observation   one step that pays the observation, 1 or -1: the value depends on what is seen
    delayed       two steps, the second pays 1: the value of the first is gamma
    action        one step that pays 1 for the right action, -1 for the other
    both          one step, and the right action depends on the observation

The others: `Salary` has no end of its own, `Numbered` gives every observation a number of its own, `Catch` has images.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

KINDS = ("constant", "observation", "delayed", "action", "both")

#: The right action of a continuous probe. A policy that has learnt nothing chooses 0.
TARGET = 0.5


class Probe(gymnasium.Env[np.ndarray, Any]):
    """One of the five probes. With `continuous` the payment falls with the distance to the right action."""

    def __init__(self, kind: str, continuous: bool = False) -> None:
        assert kind in KINDS
        self.kind = kind
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space: Any = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)
        self._seen = 0.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        shown = self.kind in ("observation", "both")
        self._seen = float(self.np_random.choice([-1.0, 1.0])) if shown else 0.0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if self.kind == "delayed" and self._seen == 0:
            self._seen = 1.0
            return self._observe(), 0.0, False, False, {}
        reward = {"constant": 1.0, "delayed": 1.0, "observation": self._seen}.get(self.kind)
        if reward is None:
            reward = self._pay(action, self._seen if self.kind == "both" else 1.0)
        return self._observe(), reward, True, False, {}

    def _pay(self, action: Any, side: float) -> float:
        if isinstance(self.action_space, spaces.Discrete):
            return 1.0 if action == (side > 0) else -1.0
        return 1.0 - 2 * abs(float(np.asarray(action).ravel()[0]) - TARGET * side)

    def _observe(self) -> np.ndarray:
        return np.array([self._seen], np.float32)


def probe(kind: str, continuous: bool = False) -> Callable[[], Probe]:
    """A factory of a probe."""
    return partial(Probe, kind, continuous)


class Salary(gymnasium.Env[np.ndarray, Any]):
    """Pays 1 a step for ever, and is stopped from outside after `limit` steps: its value is 1 / (1 - gamma)."""

    def __init__(self, limit: int = 20, continuous: bool = False) -> None:
        self.observation_space = spaces.Box(-1, 1, (1,), np.float32)
        self.action_space: Any = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(2)
        self._limit, self._age = limit, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._age = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._age += 1
        return np.zeros(1, np.float32), 1.0, False, self._age >= self._limit, {}


class Numbered(gymnasium.Env[np.ndarray, Any]):
    """Episodes of random lengths in which an observation says all about its place.

    An observation is (environment, episode, step, length of the episode, whether it ends by itself). So what a
    transition must look like can be read from its observation alone; `Numbered.reward(observation)` is the payment of
    the step that begins there.
    """

    LENGTH_MEAN = 5

    def __init__(self, continuous: bool = False) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (5,), np.float32)
        self.action_space: Any = spaces.Box(-1, 1, (1,), np.float32) if continuous else spaces.Discrete(3)
        self._name, self._episode = -1, -1

    @staticmethod
    def reward(observation: Any) -> Any:
        """The payment of a step, from the observation before it; of several, from an array of them."""
        return np.sin(np.asarray(observation, np.float64)[..., :3] @ np.array([0.7, 7.1, 1.3]))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if self._name < 0:
            self._name = int(self.np_random.integers(1_000_000))
        self._episode += 1
        self._step = 0
        self._length = int(self.np_random.geometric(1 / self.LENGTH_MEAN))
        self._terminates = bool(self.np_random.integers(2))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = float(self.reward(self._observe()))
        self._step += 1
        over = self._step >= self._length
        return self._observe(), reward, over and self._terminates, over and not self._terminates, {}

    def _observe(self) -> np.ndarray:
        return np.array([self._name, self._episode, self._step, self._length, self._terminates], np.float32)


class NumberedVector:
    """A factory of `Numbered` environments side by side, in one of gymnasium's three modes of autoreset."""

    MODES = ("NEXT_STEP", "SAME_STEP", "DISABLED")

    def __init__(self, mode: str, continuous: bool = False) -> None:
        self._mode, self._continuous = mode, continuous

    def __call__(self, num_envs: int) -> Any:
        makers = [partial(Numbered, self._continuous)] * num_envs
        return gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=gymnasium.vector.AutoresetMode[self._mode])


def check_numbered(transitions: dict[str, np.ndarray], steps: int, n: int, gamma: float) -> None:
    """Check transitions of `Numbered` over `n` steps against a naive loop: each is within one episode and says what
    happened there; there is exactly one for every step of the environments."""
    seen: dict[tuple[int, int], list[int]] = {}
    full = 0
    for i in range(len(transitions["rewards"])):
        here, there = transitions["observations"][i], transitions["next_observations"][i]
        name, episode, step, length, terminates = map(int, here)
        discount = float(transitions["discounts"][i])
        seen.setdefault((name, episode), []).append(step)
        if discount == 0:
            last = length
            assert terminates, f"{here} is followed by nothing, and its episode is only cut"
            assert length - step <= n
        else:
            assert there.tolist()[:2] == here.tolist()[:2], f"{here} is followed by another episode's {there}"
            last = int(there[2])
            assert step < last <= min(step + n, length)
            assert not (terminates and last == length), f"{here} leads to the end of its episode, and beyond it"
            assert np.isclose(discount, gamma ** (last - step))
        full += last - step == n
        paid = sum(gamma**k * Numbered.reward([name, episode, step + k]) for k in range(last - step))
        assert np.isclose(float(transitions["rewards"][i]), paid, atol=1e-5)
    assert full > steps // 4  # a part is shorter, at the ends of episodes and of blocks
    assert sum(map(len, seen.values())) == steps
    for found in seen.values():
        assert sorted(found) == list(range(len(found)))
    assert len(seen) > steps // (4 * Numbered.LENGTH_MEAN)


class Catch(gymnasium.Env[np.ndarray, int]):
    """A ball falls through a 10 x 10 image, and a paddle at the bottom pays 1 for catching it, -1 for missing it."""

    SIZE: ClassVar[int] = 10

    def __init__(self) -> None:
        self.observation_space = spaces.Box(0, 255, (self.SIZE, self.SIZE, 1), np.uint8)
        self.action_space = spaces.Discrete(3)  # left, stay, right

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._row, self._column = 0, int(self.np_random.integers(self.SIZE))
        self._paddle = int(self.np_random.integers(self.SIZE))
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), self.SIZE - 1)
        self._row += 1
        over = self._row == self.SIZE - 1
        reward = (1.0 if self._column == self._paddle else -1.0) if over else 0.0
        return self._observe(), reward, over, False, {}

    def _observe(self) -> np.ndarray:
        image = np.zeros((self.SIZE, self.SIZE, 1), np.uint8)
        image[self._row, self._column] = 255
        image[self.SIZE - 1, self._paddle] = 255
        return image
