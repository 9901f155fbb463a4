"""What simulators return: time steps of environments side by side, without a trace of autoreset.

A `Block` has arrays `[time, environment, ...]`; a *column* is one environment. Three things are said once, here, and
nowhere in an algorithm: which slots are transitions (`mask`), where a column is cut although the episode would have
gone on (`cuts`), and what was observed there (`bootstrap`), so that its value can be estimated.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(eq=False, repr=False)
class Block:
    """`T` time steps of `N` environments under one version of a policy, as one lane returns them.

    A step that is both terminated and truncated counts as terminated. Where `mask` is False, the environment only
    reset itself, or a column had no more steps: there is no transition, and the step before it was an end or a cut.

    The arrays may be read-only views of shared memory; nothing here writes to them. Pickled with protocol 5, they
    travel out of band.

    Example: two steps of one environment, cut after the second.

    >>> block = Block(
    ...     observations=np.zeros((2, 1, 4), np.float32),
    ...     actions=np.zeros((2, 1), np.int64),
    ...     rewards=np.ones((2, 1), np.float32),
    ...     terminated=np.zeros((2, 1), bool),
    ...     truncated=np.zeros((2, 1), bool),
    ...     mask=np.ones((2, 1), bool),
    ...     log_probs=np.zeros((2, 1), np.float32),
    ...     cuts=np.array([[1, 0]]),
    ...     bootstrap=np.zeros((1, 4), np.float32),
    ...     episode_returns=np.zeros(0),
    ...     episode_lengths=np.zeros(0, np.int64),
    ... )
    >>> block
    Block(2 steps x 1 environments: 2 transitions, 0 episodes, version 0)
    >>> block.next_values(np.array([[10.0], [20.0]]), np.array([30.0])).ravel()
    array([20., 30.])
    """

    observations: Array  #: [T, N, *shape], in the environment's dtype
    actions: Array  #: [T, N] or [T, N, k] int64, or [T, N, d] float32 as the policy meant them, before clipping
    rewards: Array  #: [T, N] float32
    terminated: Array  #: [T, N] bool: the episode ended, and no reward can follow
    truncated: Array  #: [T, N] bool: the episode was stopped from outside, for example by a time limit
    mask: Array  #: [T, N] bool: False where there is no transition
    log_probs: Array  #: [T, N] float32: log-probability of the action under the policy that acted
    cuts: Array  #: [K, 2] int64: (t, n) of each step that is truncated, or the last of its column inside an episode
    bootstrap: Array  #: [K, *shape]: the observation that followed each cut
    episode_returns: Array  #: [E] float64: undiscounted returns of the episodes that ended in this block
    episode_lengths: Array  #: [E] int64
    version: int = 0  #: version of the policy that acted
    lane: int = 0
    seconds: float = 0.0  #: CPU seconds that simulating took

    def __repr__(self) -> str:
        time, environments = self.shape
        counts = f"{self.steps} transitions, {len(self.episode_returns)} episodes, version {self.version}"
        return f"{type(self).__name__}({time} steps x {environments} environments: {counts})"

    @property
    def shape(self) -> tuple[int, int]:
        """Time steps and environments, `(T, N)`."""
        time, environments = self.mask.shape
        return time, environments

    @property
    def steps(self) -> int:
        """Number of real transitions."""
        return int(np.count_nonzero(self.mask))

    @property
    def ends(self) -> Array:
        """[T, N] bool: steps over which no return may be carried back to earlier steps of the column."""
        ends: Array = self.terminated | self.truncated | ~self.mask
        ends[-1:] = True
        ends[self.cuts[:, 0], self.cuts[:, 1]] = True
        return ends

    def next_values(self, values: Array, bootstrap_values: Array) -> Array:
        """[T, N]: the value of what follows each step, from `values` [T, N] and those of the `bootstrap` [K].

        After a terminated step, and where there is no transition, it is 0.
        """
        following = np.zeros(self.shape, np.result_type(values, bootstrap_values))
        following[:-1] = values[1:]
        following[self.cuts[:, 0], self.cuts[:, 1]] = bootstrap_values
        following[self.terminated | ~self.mask] = 0
        return following

    def next_observations(self) -> Array:
        """[T, N, *shape]: the observation that followed each step; meaningless where terminated or masked."""
        following = np.empty_like(self.observations)
        following[:-1] = self.observations[1:]
        following[-1:] = self.observations[-1:]
        following[self.cuts[:, 0], self.cuts[:, 1]] = self.bootstrap
        return following

    def padded(self, steps: int) -> Block:
        """Make the block `steps` time steps long, with slots at the end that have no transition."""
        missing = steps - self.shape[0]
        if not missing:
            return self
        longer: dict[str, Any] = {name: _padded(getattr(self, name), missing) for name in COLUMNS}
        return replace(self, **longer)

    def validate(self) -> None:
        """Raise ValueError if the arrays contradict each other: for tests, and for blocks that were made by hand."""
        for name in ("observations", "actions", "rewards", "terminated", "truncated", "log_probs"):
            if getattr(self, name).shape[:2] != self.shape:
                raise ValueError(f"{name} has the shape {getattr(self, name).shape}, but mask has {self.shape}")
        if self.cuts.shape != (len(self.bootstrap), 2) or self.bootstrap.shape[1:] != self.observations.shape[2:]:
            raise ValueError(f"{len(self.cuts)} cuts do not go with a bootstrap of shape {self.bootstrap.shape}")
        over = self.terminated | self.truncated
        if (over & ~self.mask).any():
            raise ValueError("a slot without a transition is marked as the end of an episode")
        expected = self.truncated & ~self.terminated
        for n in range(self.shape[1]):
            real = np.flatnonzero(self.mask[:, n])
            if len(real) and not over[real[-1], n]:
                expected[real[-1], n] = True
            if (~over[real[:-1], n] & (np.diff(real) > 1)).any():
                raise ValueError(f"column {n} has a slot without a transition inside an episode")
        if sorted(map(tuple, self.cuts.tolist())) != list(map(tuple, np.argwhere(expected).tolist())):
            raise ValueError(f"cuts are {self.cuts.tolist()}, but must be {np.argwhere(expected).tolist()}")


#: Fields of a block that are joined side by side, and those that are joined one after the other.
COLUMNS = ("observations", "actions", "rewards", "terminated", "truncated", "mask", "log_probs")
LISTS = ("bootstrap", "episode_returns", "episode_lengths")


@dataclass(eq=False, repr=False)
class Batch(Block):
    """Blocks of one length, joined: their columns side by side, in the order of the blocks.

    `version` is the oldest of the blocks', `lane` that of the first, `seconds` their sum.
    """

    blocks: tuple[Block, ...] = field(default=(), kw_only=True)  #: the blocks themselves: views of shared memory

    @classmethod
    def join(cls, blocks: Iterable[Block]) -> Batch:
        """Join blocks that have the same number of time steps. One block alone is not copied."""
        blocks = tuple(blocks)
        lengths = {block.shape[0] for block in blocks}
        if len(lengths) != 1:
            raise ValueError(
                f"blocks of {sorted(lengths)} time steps cannot stand side by side: join blocks of one length"
                if blocks
                else "there are no blocks to join"
            )
        if len(blocks) == 1:
            return cls(**{f.name: getattr(blocks[0], f.name) for f in fields(Block)}, blocks=blocks)
        widths = [block.shape[1] for block in blocks]
        offsets = np.cumsum([0, *widths[:-1]])
        return cls(
            **{name: np.concatenate([getattr(block, name) for block in blocks], axis=1) for name in COLUMNS},
            **{name: np.concatenate([getattr(block, name) for block in blocks]) for name in LISTS},
            cuts=np.concatenate([block.cuts + np.array([0, offset]) for block, offset in zip(blocks, offsets)]),
            version=min(block.version for block in blocks),
            lane=blocks[0].lane,
            seconds=sum(block.seconds for block in blocks),
            blocks=blocks,
        )


def _padded(array: Array, missing: int) -> Array:
    return np.concatenate([array, np.zeros((missing, *array.shape[1:]), array.dtype)])
