"""The one description of work, from driver to dashboard: a task, its result, and the values inside them.

These records travel inside messages and live in the tables of owners and executors. They are msgpack arrays on the
wire; new fields have defaults and come last, so that yesterday's peer still parses.

A value is `bytes` (inline, serialised), `int` (its size: it lies in the arena under its object id) or a `Failure`
(a serialised error).
"""

from __future__ import annotations

import msgspec


class Failure(msgspec.Struct, array_like=True, gc=False):
    """A value that is an error: `payload` is what `_serialize.errors` packed."""

    payload: bytes


Value = bytes | int | Failure


class RefInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A reference inside a value: the object and the process that owns it."""

    id: bytes
    owner: bytes


class Arg(msgspec.Struct, array_like=True, gc=False):
    """A top-level argument that was a reference, resolved by the task's owner before the task was sent."""

    #: Position in the arguments, or the keyword.
    at: int | str
    id: bytes
    owner: bytes
    value: bytes | int


class Extra(msgspec.Struct, array_like=True, gc=False):
    """What only some tasks carry, so that a plain task stays four fields."""

    args: list[Arg] = []
    num_returns: int = 1
    #: "" for a plain task, else "streaming" or "dynamic".
    generator: str = ""
    #: How many items a generator may be ahead of its consumer.
    ahead: int = 0
    name: str = ""
    attempt: int = 0
    #: At most once: its result must be on the way before the next task starts.
    once: bool = False
    #: Replace the worker after that many runs of the function; 0: never.
    max_calls: int = 0
    #: References inside the arguments; the receiver reports those that it still holds when the task has ended.
    refs: list[RefInfo] = []
    #: Index of items a generator must not send again (an earlier attempt delivered them).
    skip: int = 0


class Task(msgspec.Struct, array_like=True, gc=False):
    """One run of a function. `id` is the id of its first return."""

    id: bytes
    fn: bytes
    args: bytes
    depth: int = 0
    extra: Extra | None = None


class ResultExtra(msgspec.Struct, array_like=True, gc=False):
    #: Values of returns 1, 2, … (or of the items of a "dynamic" generator); the first is in the Result.
    more: list[Value] = []
    #: References inside each of the values (first, then `more`).
    contained: list[list[RefInfo]] = []
    #: References from the arguments that the executor still holds: it is a borrower of them from now on.
    kept: list[bytes] = []
    #: The task was stopped by a Cancel.
    cancelled: bool = False
    #: Number of items that a streaming generator made.
    items: int = 0


class Result(msgspec.Struct, array_like=True, gc=False):
    id: bytes
    value: Value
    extra: ResultExtra | None = None


class Timing(msgspec.Struct, array_like=True, gc=False):
    """`count` runs of a function took `seconds` in all."""

    fn: bytes
    count: int
    seconds: float
