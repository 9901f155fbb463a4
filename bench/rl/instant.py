"""Environments that end after one step and compute nothing: what is left is the cost of everything around them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv


class Instant(VectorEnv):
    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, num_envs: int = 1) -> None:
        self.num_envs = num_envs
        self.single_observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self._seen = np.zeros((num_envs, 1), np.float32)
        self._over, self._cut = np.ones(num_envs, bool), np.zeros(num_envs, bool)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self._seen, {}

    def step(self, actions: np.ndarray) -> Any:
        return self._seen, actions.astype(np.float32), self._over, self._cut, {"final_obs": self._seen}
