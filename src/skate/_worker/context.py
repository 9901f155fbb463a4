"""What a thread of user code works on: the current task, and the ids of what it creates."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from skate._core.ids import child_prefix
from skate._core.task import Task
from skate._worker.peers import Peer


class TaskContext:
    """The task that a process is in; a driver is in its root task all its life. Changed from task to task."""

    __slots__ = ("attempt", "cancelled", "counter", "depth", "fn", "id", "name", "prefix")

    def __init__(self, id: bytes, depth: int = 0, name: str = "") -> None:
        self.id = id
        self.depth = depth
        self.name = name
        self.fn = b""
        self.attempt = 0
        #: The task that was cancelled last. Not a flag: the I/O thread may set it before the main thread is in here.
        self.cancelled = b""
        #: Children and puts so far; guarded by the runtime's lock.
        self.counter = 0
        #: Of the ids of children; made when the first one is.
        self.prefix = b""

    def enter(self, task: Task, attempt: int) -> None:
        self.id = task.id
        self.fn = task.fn
        self.depth = task.depth + 1
        self.attempt = attempt
        self.counter = 0
        self.prefix = b""

    def make_prefix(self) -> bytes:
        self.prefix = child_prefix(self.id, self.attempt)
        return self.prefix


class CurrentCall(TaskContext):
    """One of several calls that an actor is in at the same time."""

    __slots__ = ("caller", "task")

    def __init__(self, task: Task, caller: Peer) -> None:
        super().__init__(task.id, task.depth + 1)
        self.fn = task.fn
        self.attempt = task.extra.attempt if task.extra is not None else 0
        self.task = task
        self.caller = caller


#: The call that a thread or a coroutine is in, in actors that run several at a time.
CURRENT_CALL: ContextVar[CurrentCall | None] = ContextVar("current_call", default=None)


def _of_current_call(name: str) -> Any:
    def get(self: ManyCalls) -> Any:
        return getattr(CURRENT_CALL.get() or self.otherwise, name)

    def set(self: ManyCalls, value: Any) -> None:
        setattr(CURRENT_CALL.get() or self.otherwise, name, value)

    return property(get, set)


class ManyCalls(TaskContext):
    """The context of an actor that is in several calls: whoever asks is told about his own.

    Code that is in no call, such as a thread that a method has left behind, belongs to the creation of the actor.
    """

    __slots__ = ("otherwise",)

    def __init__(self, otherwise: TaskContext) -> None:
        self.otherwise = otherwise

    id = _of_current_call("id")
    fn = _of_current_call("fn")
    depth = _of_current_call("depth")
    attempt = _of_current_call("attempt")
    cancelled = _of_current_call("cancelled")
    counter = _of_current_call("counter")
    prefix = _of_current_call("prefix")
