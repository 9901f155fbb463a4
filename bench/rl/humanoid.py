"""Humanoid in episodes of 10 to 1,000 steps: how long one lasts is drawn from its seed, whatever the policy does."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

SHORTEST, LONGEST = 10, 1_000


class Drawn(gymnasium.Wrapper):
    """Cuts each episode after a number of steps that follows from the seed it was reset with."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._left = int(np.random.default_rng(seed).integers(SHORTEST, LONGEST + 1))
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self._left -= 1
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, self._left <= 0, info


def make() -> Drawn:
    return Drawn(gymnasium.make("Humanoid-v5", terminate_when_unhealthy=False, max_episode_steps=LONGEST + 1))
