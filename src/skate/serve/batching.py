"""When the items that wait become a batch, and how large it may be: decisions over events and a clock.

    idle: run at once what is there          busy: collect          next batch: all that waits, up to the limit

`BatchLimit` moves the limit, so that the 99th percentile of the time from arrival to result stays below an objective.
It looks at how long the batches themselves take, and not at that time. An item that arrives just after a batch began
waits for the rest of that batch and then for its own, so both together stay below the objective if each of them stays
below half of it. A rule that looked at the time from arrival to result would make overload worse: items wait longer
because there are too many, the rule would answer with smaller batches, and smaller batches do less work per second.

The limit moves like the window of TCP (additive increase, multiplicative decrease), and only by what a batch shows:

    full, in half of its time     twice as large: twice the items take at most twice as long
    full, in time                 a little larger
    not full, in time             as it was: the batch says nothing about larger ones
    too long                      a little smaller, because a pause of the garbage collector looks the same
    too long again                much smaller, and smaller than this batch: the function has become slower

If a single item takes too long, no limit meets the objective, and a limit of one would only add overload to that. Such
a function gets batches of up to twice the time of its shortest one, which is at least half of its best throughput.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from math import isfinite
from typing import Any, Generic, TypeVar

#: How much of the objective a batch may take. Half would be exact; the rest is for wakes of threads and event loops.
SHARE = 0.475

#: What is left of the limit after a batch that took too long, and after a second one in a row.
AFTER_ONE = 0.9
AFTER_MORE = 0.7

#: A step upwards is this part of the limit, and at least one item: a limit of hundreds must not need hundreds of steps.
STEP = 1 / 32

#: The largest batch if nothing is said: Ray's, or as many as the objective allows.
MAX_BATCH_SIZE = 10
MAX_BATCH_SIZE_WITH_OBJECTIVE = 1024

T = TypeVar("T", bound=Hashable)


@dataclass
class BatchOptions:
    """What was said about the batches of a function. The sizes and waits may change while it runs."""

    #: The objective for the time from an item's arrival to its result.
    latency_s: float | None
    #: The largest batch there may be.
    max_batch_size: int
    #: How long an item may wait for a batch to become full although one may run.
    wait_s: float = 0.0
    #: How many batches may run at the same time.
    max_running: int = 1


def checked_options(latency_ms: Any, max_batch_size: Any, wait_s: Any, max_concurrent_batches: Any) -> BatchOptions:
    """The options of `serve.batch`. Raises TypeError or ValueError for what cannot be meant."""
    if latency_ms is not None:
        _check_number("latency_ms", latency_ms, "a number of milliseconds above 0, or None for no objective")
        if latency_ms <= 0:
            raise _refusal(ValueError, "latency_ms", latency_ms, "a number of milliseconds above 0, or None")
    if max_batch_size is None:
        max_batch_size = MAX_BATCH_SIZE if latency_ms is None else MAX_BATCH_SIZE_WITH_OBJECTIVE
    return BatchOptions(
        latency_s=None if latency_ms is None else latency_ms / 1000,
        max_batch_size=checked_count("max_batch_size", max_batch_size),
        wait_s=checked_wait(wait_s),
        max_running=checked_count("max_concurrent_batches", max_concurrent_batches),
    )


def checked_count(name: str, value: Any) -> int:
    """A whole number from 1 on; 8.0 is one too, because numbers of JSON come like that."""
    wanted = "a whole number from 1 on"
    _check_number(name, value, wanted)
    if value != int(value) or value < 1:
        raise _refusal(ValueError, name, value, wanted)
    return int(value)


def checked_wait(value: Any) -> float:
    wanted = "a number of seconds from 0 on"
    _check_number("batch_wait_timeout_s", value, wanted)
    if value < 0:
        raise _refusal(ValueError, "batch_wait_timeout_s", value, wanted)
    return float(value)


def _check_number(name: str, value: Any, wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _refusal(TypeError, name, value, wanted)
    if not isfinite(value):
        raise _refusal(ValueError, name, value, wanted)


def _refusal(kind: type[Exception], name: str, value: Any, wanted: str) -> Exception:
    return kind(f"serve.batch({name}={value!r}) has no meaning.\n  next: give {wanted}.")


class BatchLimit:
    """The largest size that the next batch may have."""

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self._adapts = options.latency_s is not None
        #: How long a batch may take, and how long it may take while even a single item takes longer than that.
        self._allowed_s = self._aim_s = SHARE * (options.latency_s or 0.0)
        self._limit = 1
        self._was_too_long = False

    @property
    def size(self) -> int:
        most = self._options.max_batch_size
        return min(self._limit, most) if self._adapts else most

    def finished(self, size: int, seconds: float) -> None:
        """A batch of that size took that long."""
        if not self._adapts:
            return
        limit = self.size
        self._move_aim(size, seconds)
        if seconds > self._aim_s:
            left = AFTER_MORE * min(limit, size) if self._was_too_long else AFTER_ONE * limit
            self._limit = max(1, int(left))
            self._was_too_long = True
            return
        self._was_too_long = False
        if size >= limit:
            step = limit if 2 * seconds <= self._aim_s else max(1, int(STEP * limit))
            self._limit = min(limit + step, self._options.max_batch_size)

    def _move_aim(self, size: int, seconds: float) -> None:
        if seconds <= self._allowed_s:
            self._aim_s = self._allowed_s
        elif size == 1 and self._was_too_long:
            self._aim_s = 2 * seconds
        else:
            # Without effect while the objective can be met: twice a batch that is too long is more than allowed.
            self._aim_s = min(self._aim_s, 2 * seconds)


class Collector(Generic[T]):
    """Items that wait for a batch, in the order of their arrival."""

    def __init__(self, options: BatchOptions) -> None:
        self.limit = BatchLimit(options)
        self._options = options
        self._running = 0
        #: When each item came, and its kind.
        self._waiting: OrderedDict[T, tuple[float, Hashable]] = OrderedDict()

    def __len__(self) -> int:
        """How many items wait."""
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Whether one more batch may run."""
        return self._running < self._options.max_running

    @property
    def is_full(self) -> bool:
        """Whether as many items wait as the next batch may have."""
        return len(self._waiting) >= self.limit.size

    @property
    def oldest(self) -> T | None:
        return next(iter(self._waiting), None)

    def add(self, item: T, now: float, kind: Hashable = None) -> None:
        """An item has come. A batch has items of one kind only."""
        self._waiting[item] = now, kind

    def discard(self, item: T) -> None:
        """Take out an item that nobody waits for any more. Items that do not wait here are left alone."""
        self._waiting.pop(item, None)

    def due_at(self) -> float | None:
        """When the next batch is to begin if nothing happens until then, or None: none waits, or none may run."""
        if not self._waiting or not self.has_room:
            return None
        arrived, _ = next(iter(self._waiting.values()))
        return arrived if self.is_full else arrived + self._options.wait_s

    def take(self) -> list[T]:
        """Begin a batch with the items that wait, up to the limit; an empty list if there is nothing to begin."""
        if not self._waiting or not self.has_room:
            return []
        _, kind = next(iter(self._waiting.values()))
        items: list[T] = []
        size = self.limit.size
        for item, (_, other) in self._waiting.items():
            if other != kind or len(items) == size:
                break
            items.append(item)
        for item in items:
            del self._waiting[item]
        self._running += 1
        return items

    def finished(self, size: int, seconds: float | None) -> None:
        """A batch has ended. seconds: None if it failed, because that says nothing about how long a batch takes."""
        self._running -= 1
        if seconds is not None:
            self.limit.finished(size, seconds)
