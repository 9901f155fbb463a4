"""Rewards divided by how far discounted returns spread: one step size suits environments that pay 1 and 1,000."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from skate.rl.block import Batch, Block

#: Scaled rewards beyond this are cut.
LARGEST = 10.0

B = TypeVar("B", bound=Block)


class RewardScale:
    """Divides rewards by the deviation of the discounted return so far.

    The return of an environment goes on from block to block, so it is kept for each lane, whichever lanes a batch has.
    """

    def __init__(self, gamma: float) -> None:
        self._gamma = gamma
        self._count, self._mean, self._squares = 0.0, 0.0, 0.0
        #: Lane → the discounted return so far in each of its environments.
        self._carried: dict[int, np.ndarray] = {}

    def __call__(self, batch: B) -> B:
        """The batch with scaled rewards."""
        blocks = batch.blocks if isinstance(batch, Batch) else (batch,)
        seen = np.concatenate([self._sums(block) for block in blocks], axis=1)[batch.mask]
        if not len(seen):
            return batch  # vector environments that reset in a step of its own: nothing happened in this one
        total = self._count + len(seen)
        delta = seen.mean() - self._mean
        self._squares += seen.var() * len(seen) + delta**2 * self._count * len(seen) / total
        self._mean, self._count = self._mean + delta * len(seen) / total, total
        deviation = np.sqrt(self._squares / total) + 1e-8
        return replace(batch, rewards=np.clip(batch.rewards / deviation, -LARGEST, LARGEST).astype(np.float32))

    def _sums(self, block: Block) -> np.ndarray:
        """The discounted sum of the rewards of its episode up to each step."""
        carried = self._carried.get(block.lane)
        if carried is None or len(carried) != block.shape[1]:  # a run that goes on with another number of environments
            carried = np.zeros(block.shape[1])
        over, sums = block.terminated | block.truncated, np.empty(block.shape)
        for t in range(block.shape[0]):
            sums[t] = carried * self._gamma + block.rewards[t]
            carried = np.where(over[t], 0.0, sums[t])
        self._carried[block.lane] = carried
        return sums

    def state(self) -> dict[str, np.ndarray]:
        """The statistics, for a checkpoint."""
        carried = {f"carried.{lane}": array for lane, array in self._carried.items()}
        return {"rewards": np.array([self._count, self._mean, self._squares]), **carried}

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        """Go on with the statistics of a checkpoint."""
        self._count, self._mean, self._squares = tensors["rewards"].tolist()
        lanes = {name: int(name.removeprefix("carried.")) for name in tensors if name.startswith("carried.")}
        self._carried = {lane: np.array(tensors[name]) for name, lane in lanes.items()}
