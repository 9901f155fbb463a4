"""Which block of a stream goes to which worker, and when the next one may be made.

    rank 0 gets blocks 0, n, 2n, …    rank 1 gets blocks 1, n + 1, …    block i belongs to round i // n

Invariant: all workers get the same number of blocks, so that no collective waits for a worker whose data has ended. A
           worker gets its block of a round when the whole round is made; a last round that is not whole is dropped.
           At most `ahead` rounds are held: no block is made that the slowest worker would not get that soon.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


class Shares(Generic[T]):
    """The blocks of one pass over the data, as they are made and taken."""

    def __init__(self, workers: int, ahead: int) -> None:
        self._workers, self._ahead = workers, ahead
        self._held: dict[int, T] = {}
        self._made = 0
        self._has_ended = False
        self._taken = [0] * workers

    def wants_block(self) -> bool:
        """Whether the next block may be made, or taken from its producer."""
        return not self._has_ended and self._made < (min(self._taken) + self._ahead) * self._workers

    def made(self, block: T) -> None:
        """The next block is there."""
        self._held[self._made] = block
        self._made += 1

    def ended(self) -> None:
        """There are no more blocks."""
        self._has_ended = True
        whole = self._made - self._made % self._workers
        self._held = {index: block for index, block in self._held.items() if index < whole}

    def is_ready(self, rank: int) -> bool:
        """Whether `take` may be called: the next round is whole, or there is none."""
        return self._has_ended or (self._taken[rank] + 1) * self._workers <= self._made

    def take(self, rank: int) -> tuple[T] | None:
        """The next block of a worker; None at the end."""
        index = self._taken[rank] * self._workers + rank
        if index not in self._held:
            return None
        self._taken[rank] += 1
        return (self._held.pop(index),)

    def validate(self) -> None:
        assert len(self._held) <= self._ahead * self._workers
        assert max(self._taken) - min(self._taken) <= self._ahead
        assert all(self._taken[index % self._workers] <= index // self._workers for index in self._held)
