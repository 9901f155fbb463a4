"""A queue that gives each item out a fixed time after it was added.

It is a delay and not a rate: however many items are added at a moment, all of them are due together one delay later.

Owns:      the items that are held back, in the order in which they were added.
Knows not: clocks, tasks. The time is an argument, and never goes back.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class DelayedQueue(Generic[T]):
    """Items in order, each due `delay_s` after it was added."""

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._items: deque[tuple[float, T]] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def add(self, item: T, now: float) -> None:
        self._items.append((now + self._delay_s, item))

    @property
    def next_due(self) -> float | None:
        """When the first item is due; None if there is none."""
        return self._items[0][0] if self._items else None

    def take_due(self, now: float) -> list[T]:
        """Remove and return what is due, in order."""
        due: list[T] = []
        while self._items and self._items[0][0] <= now:
            due.append(self._items.popleft()[1])
        return due
