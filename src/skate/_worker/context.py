"""What a thread of user code works on: the current task, and the ids of what it creates."""

from __future__ import annotations

from contextvars import ContextVar

from skate._core.ids import child_prefix
from skate._core.task import Task


class TaskContext:
    """The task that a process is in; a driver is in its root task all its life. Changed from task to task."""

    __slots__ = ("attempt", "cancelled", "counter", "depth", "fn", "id", "name", "prefix")

    def __init__(self, id: bytes, depth: int = 0, name: str = "") -> None:
        self.id = id
        self.depth = depth
        self.name = name
        self.fn = b""
        self.attempt = 0
        self.cancelled = False
        #: Children and puts so far; guarded by the runtime's lock.
        self.counter = 0
        #: Of the ids of children; made when the first one is.
        self.prefix = b""

    def enter(self, id: bytes, fn: bytes, depth: int, attempt: int) -> None:
        self.id = id
        self.fn = fn
        self.depth = depth
        self.attempt = attempt
        self.cancelled = False
        self.counter = 0
        self.prefix = b""

    def make_prefix(self) -> bytes:
        self.prefix = child_prefix(self.id, self.attempt)
        return self.prefix


class CurrentCall:
    """One of several calls that an actor is in at the same time."""

    __slots__ = ("cancelled", "task")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.cancelled = False


#: The call that a thread or a coroutine is in, in actors that run several at a time.
CURRENT_CALL: ContextVar[CurrentCall | None] = ContextVar("current_call", default=None)
