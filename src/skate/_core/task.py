"""The one description of work, from driver to dashboard: a task, its result, and the values inside them.

These records travel inside messages and live in the tables of owners and executors. They are msgpack arrays on the
wire; new fields have defaults and come last, so that yesterday's peer still parses.

A value is `bytes` (inline, serialised), `int` (a place, see `ids.py`: it lies in the arena of that node under its
object id) or a `Failure` (a serialised error).
"""

from __future__ import annotations

import msgspec

from skate._core.placement import Where


class Failure(msgspec.Struct, array_like=True, gc=False):
    """A value that is an error: `payload` is what `_serialize.errors` packed."""

    payload: bytes


Value = bytes | int | Failure


class RefInfo(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A reference inside a value: the object and the process that owns it."""

    id: bytes
    owner: bytes


#: In the place of a position: many small arguments are one large object.
ALL_ARGUMENTS = -1


class Arg(msgspec.Struct, array_like=True, gc=False):
    """A top-level argument that was a reference, resolved by the task's owner before the task was sent."""

    #: Position in the arguments, or the keyword; ALL_ARGUMENTS: the value is what `Task.args` would be.
    at: int | str
    id: bytes
    owner: bytes
    value: bytes | int
    #: The value is not here, because the task would be too large with it: the executor asks the owner for it.
    late: bool = False


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
    #: At most once, or again after a crash: its result must be on the way before the next task starts.
    once: bool = False
    #: Replace the worker after that many runs of the function; 0: never.
    max_calls: int = 0
    #: References inside the arguments; the receiver reports those that it still holds when the task has ended.
    refs: list[RefInfo] = []
    #: Index of items a generator must not send again (an earlier attempt delivered them).
    skip: int = 0
    #: Concurrency group of an actor's call.
    group: str = ""

    @property
    def reads(self) -> list[tuple[bytes, int]]:
        """The arguments that lie in shared memory, and where: id and place of each."""
        return [(arg.id, arg.value) for arg in self.args if isinstance(arg.value, int)]


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
    #: One that was stopped had begun. One that failed had not, if a node that has an argument could not be reached.
    began: bool = True
    #: Of a task that failed or was stopped: so many of its returns may have been stored by then, and are nobody's.
    left: int = 0


class Job(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a driver has started, and all that came of it."""

    id: bytes = b""
    #: The process of the driver; empty if that is gone, and a detached actor goes on.
    driver: bytes = b""
    namespace: str = ""
    #: Whether it wants to see what its tasks print.
    wants_output: bool = False
    #: Where its modules are, and its files.
    sys_path: tuple[str, ...] = ()
    cwd: str = ""
    #: The driver again, also when that is gone: a submitted job may be several programs.
    program: bytes = b""
    #: What `ray.__version__` says in the driver, if Skate has Ray's name there.
    ray_version: str = ""
    #: How the driver wants log records to look, as JSON (`_worker/logging_config.py`); empty: as Python does.
    logging: str = ""

    def without_driver(self) -> Job:
        """For what goes on when the driver is gone."""
        return msgspec.structs.replace(self, driver=b"", wants_output=False)


class ActorInfo(msgspec.Struct, array_like=True, gc=False):
    """What a node knows of an actor besides how to make it."""

    class_name: str
    #: "" if it has none.
    name: str = ""
    namespace: str = ""
    #: It outlives the process that created it.
    detached: bool = False
    #: Starts after the first; -1: no end.
    max_restarts: int = 0
    #: What it holds while it lives, and what a node must have for it.
    resources: dict[str, float] = {}
    to_place: dict[str, float] = {}
    env: dict[str, str] = {}
    #: What a handle needs to know of the class: for those who find the actor by its name.
    about: bytes = b""
    #: Where it wants to live.
    where: Where | None = None


class ActorSettings(msgspec.Struct, array_like=True, gc=False):
    """How an actor runs its calls."""

    #: Calls at a time, of those in no group.
    max_concurrency: int = 1
    #: The same by group.
    groups: dict[str, int] = {}
    #: It has methods that are coroutines: calls run on an event loop.
    is_async: bool = False
    #: Whether a call waits for earlier ones whose arguments are late; None: if calls run one by one.
    ordered: bool | None = None


class Death(msgspec.Struct, array_like=True, gc=False):
    """Why an actor, or one of its lives, is over."""

    #: "arguments", "init", "exit", "kill", "scope", "owner", "crash", "restarts", "memory", "infeasible" (for its
    #: node), "nowhere" (no node can run it), "workers" (no worker can be had) or "group" (its placement group was
    #: removed).
    kind: str
    #: For people: a sentence.
    reason: str
    #: Last lines that its process wrote to stderr.
    stderr: list[str] = []
    #: What __init__ raised, or what one of its arguments is.
    failure: Failure | None = None
    #: If it can never be placed: what it asks for, and what there is.
    asked: dict[str, float] = {}
    total: dict[str, float] = {}
    #: If it was a restart that failed: which one, and how the life before it had ended.
    before: str = ""
    #: What its process printed last, to stdout and stderr.
    output: str = ""


class Result(msgspec.Struct, array_like=True, gc=False):
    id: bytes
    value: Value
    extra: ResultExtra | None = None

    def as_cancelled(self) -> Result:
        """The task was cancelled, and ended all the same: its owner lets go of what it has made."""
        self.extra = self.extra or ResultExtra()
        self.extra.cancelled = True
        return self


class Timing(msgspec.Struct, array_like=True, gc=False):
    """`count` runs of a function took `seconds` in all."""

    fn: bytes
    count: int
    seconds: float


class Line(msgspec.Struct, array_like=True, gc=False):
    """A line that a worker printed."""

    pid: int
    name: str
    is_error: bool
    text: str
