"""Replay buffers: `Ring` draws uniformly, `Prioritised` by priority (Schaul et al. 2016).

Both are plain classes of numpy arrays: local to a learner, or in an actor with `skate.remote(Prioritised)`. What they
draw follows from the seed and the order of the calls. `state` and `restore` continue a buffer from a checkpoint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

import numpy as np

from skate.rl.block import Array
from skate.rl.returns import Transitions

#: Nodes at the top of the tree of sums, at most.
TOP = 2048
#: Added to each priority, so that what once had no error can be drawn again.
EPSILON = 1e-6
NAMES = tuple(field.name for field in fields(Transitions))


@dataclass(eq=False)
class Sample:
    """Transitions that were drawn, their places in the buffer, and the weights of their losses."""

    transitions: Transitions
    indices: Array  #: [size] int64, for `update`
    weights: Array  #: [size] float32, at most 1


class Ring:
    """The last `capacity` transitions, drawn uniformly with replacement.

    Memory is taken at the first `add`, in the shapes and dtypes of what is added.

    >>> ring = Ring(capacity=3, seed=0)
    >>> rewards = np.arange(5, dtype=np.float32)
    >>> ring.add(Transitions(np.zeros((5, 2)), np.zeros(5, np.int64), rewards, np.zeros((5, 2)), rewards))
    >>> len(ring), sorted(set(ring.sample(100).transitions.rewards.tolist()))
    (3, [2.0, 3.0, 4.0])
    """

    def __init__(self, capacity: int, seed: int = 0) -> None:
        if capacity < 1:
            raise ValueError(f"a replay buffer of capacity {capacity} can keep nothing: give it at least 1")
        self.capacity = int(capacity)
        self._rng = np.random.default_rng(seed)
        self._storage: dict[str, Array] = {}
        self._length = 0
        self._next = 0  # where the next transition goes

    def __len__(self) -> int:
        return self._length

    def add(self, transitions: Transitions) -> None:
        """Keep transitions, in place of the oldest ones if there is no room."""
        self._store(transitions)

    def sample(self, size: int, beta: float = 0.4) -> Sample:
        """Draw `size` transitions, with replacement. All weights are 1, whatever `beta` is."""
        self._check_filled()
        indices = self._rng.integers(0, self._length, size)
        return Sample(self._fetch(indices), indices, np.ones(size, np.float32))

    def update(self, indices: Array, priorities: Array) -> None:
        """Do nothing: a ring has no priorities. A learner may call it for any buffer."""

    def state(self) -> dict[str, Array]:
        """Everything that `restore` needs. The arrays are views: write them out before the next `add`."""
        rng = json.dumps(self._rng.bit_generator.state).encode()
        return {
            **{name: array[: self._length] for name, array in self._storage.items()},
            "rng": np.frombuffer(rng, np.uint8),
            "place": np.array([self.capacity, self._length, self._next]),
        }

    def restore(self, state: dict[str, Array]) -> None:
        """Become the buffer that `state` was taken of; the arrays are copied."""
        capacity, length, place = map(int, state["place"])
        if capacity != self.capacity:
            raise ValueError(
                f"the state is that of a buffer of capacity {capacity}, but this one has {self.capacity}:"
                f" make it with capacity={capacity}"
            )
        self._length, self._next, self._storage = length, place, {}
        if length:
            self._allocate({name: state[name] for name in NAMES})
            for name, array in self._storage.items():
                array[:length] = state[name]
        self._rng.bit_generator.state = json.loads(state["rng"].tobytes())

    def _allocate(self, arrays: dict[str, Array]) -> None:
        self._storage = {k: np.empty((self.capacity, *array.shape[1:]), array.dtype) for k, array in arrays.items()}

    def _store(self, transitions: Transitions) -> Array:
        """Store transitions and return the places of those that remain."""
        arrays = {name: np.asarray(getattr(transitions, name))[-self.capacity :] for name in NAMES}
        if not self._storage:
            self._allocate(arrays)
        count = len(arrays["rewards"])
        for name, stored in self._storage.items():
            new = arrays[name]
            if (len(new), new.dtype, new.shape[1:]) != (count, stored.dtype, stored.shape[1:]):
                raise ValueError(
                    f"{name} are {new.dtype} {new.shape}, but the buffer needs"
                    f" {stored.dtype} {(count, *stored.shape[1:])}: one environment fills one buffer"
                )
        room = self.capacity - self._next
        for name, stored in self._storage.items():
            stored[self._next : self._next + count] = arrays[name][:room]
            stored[: max(0, count - room)] = arrays[name][room:]
        places = (self._next + np.arange(count)) % self.capacity
        self._next = (self._next + count) % self.capacity
        self._length = min(self._length + count, self.capacity)
        return places

    def _fetch(self, indices: Array) -> Transitions:
        return Transitions(**{name: array.take(indices, axis=0) for name, array in self._storage.items()})

    def _check_filled(self) -> None:
        if not self._length:
            raise ValueError("the replay buffer is empty: add transitions before the first sample")


class Prioritised(Ring):
    """The last `capacity` transitions, drawn in proportion to `(priority + EPSILON) ** alpha`.

    New transitions have the largest priority so far, so that each is soon seen.
    """

    def __init__(self, capacity: int, seed: int = 0, alpha: float = 0.6) -> None:
        super().__init__(capacity, seed)
        self.alpha = alpha
        self._tree = SumTree(self.capacity)
        self._largest = 1.0  # of the numbers that are in the tree, ever

    def add(self, transitions: Transitions) -> None:
        """Keep transitions, in place of the oldest ones if there is no room, with the largest priority so far."""
        places = self._store(transitions)
        self._tree.set(places, self._largest)

    def sample(self, size: int, beta: float = 0.4) -> Sample:
        """Draw one transition of each of `size` equal shares of the priorities, in the order of the buffer.

        The weights correct for the priorities, wholly if `beta` is 1; they are divided by the largest of the sample.
        """
        self._check_filled()
        indices, shares = self._tree.find((np.arange(size) + self._rng.random(size)) / size)
        weights = (shares / shares.min()) ** -beta if size else shares
        return Sample(self._fetch(indices), indices, weights.astype(np.float32))

    def update(self, indices: Array, priorities: Array) -> None:
        """Give transitions new priorities, such as the sizes of their errors; the sign does not matter."""
        indices, priorities = np.asarray(indices, np.int64), np.asarray(priorities, np.float64)
        if not np.isfinite(priorities).all():
            raise ValueError("a priority is not a finite number: the learner has diverged, or divides by zero")
        if indices.size and not 0 <= indices.min() <= indices.max() < self._length:
            raise IndexError(f"the buffer has {self._length} transitions: take indices from a sample of it")
        shares = (np.abs(priorities) + EPSILON) ** self.alpha
        self._tree.set(indices, shares)
        self._largest = max(self._largest, float(shares.max(initial=0.0)))

    def state(self) -> dict[str, Array]:
        """Everything that `restore` needs. The arrays are views: write them out before the next call."""
        shares = self._tree.levels[0][: self._length]
        return {**super().state(), "shares": shares, "largest": np.array([self._largest])}

    def restore(self, state: dict[str, Array]) -> None:
        """Become the buffer that `state` was taken of; the arrays are copied."""
        super().restore(state)
        self._largest = float(state["largest"][0])
        self._tree = SumTree(self.capacity)
        self._tree.set(np.arange(self._length), state["shares"])


class SumTree:
    """Numbers >= 0 that are drawn in proportion to their size; `set` and `find` work on many at once.

    `levels[0]` holds the numbers, and each level above it the sums of pairs below, up to a level of at most TOP nodes:
    that one is searched by its running sums, because ten more rounds over small arrays would cost more. A sum is always
    made of its two children, never corrected by a difference; so errors of rounding do not pile up, and equal leaves
    make equal trees. With 16 children a node, `find` took 62 us instead of 39 for 256 of a million (measured).
    """

    def __init__(self, capacity: int) -> None:
        depth = 0
        while capacity > TOP << depth:
            depth += 1
        width = -(-capacity >> depth)  # rounded up
        self.levels = [np.zeros(width << k) for k in range(depth, -1, -1)]

    def set(self, indices: Array, numbers: Array | float) -> None:
        """Set leaves; of a leaf that is named twice, the last number stays."""
        self.levels[0][indices] = numbers
        for below, above in zip(self.levels, self.levels[1:]):
            sums = below.take(indices) + below.take(indices ^ 1)
            indices = indices >> 1
            above[indices] = sums

    def find(self, fractions: Array) -> tuple[Array, Array]:
        """The leaves at `fractions` in [0, 1] of the sum of all, and their numbers, none of which is 0."""
        before = np.zeros(len(self.levels[-1]) + 1)
        self.levels[-1].cumsum(out=before[1:])
        rest = np.minimum(fractions * before[-1], np.nextafter(before[-1], 0))
        nodes = before.searchsorted(rest, side="right") - 1
        rest -= before[nodes]
        for level in self.levels[-2::-1]:
            nodes <<= 1
            left = level.take(nodes)
            right = rest >= left
            rest -= left * right
            nodes += right
        numbers = self.levels[0].take(nodes)
        while not numbers.all():  # a rest that was rounded up can lead behind the last leaf of a node that is not 0
            nodes -= numbers == 0
            numbers = self.levels[0].take(nodes)
        return nodes, numbers
