"""Messages on the direct channels between two processes that run user code.

Owner ↔ executor: tasks or calls out, results back. Borrower ↔ owner: values and references.
"""

from __future__ import annotations

from skate._core.task import RefInfo, Result, Task, Timing, Value
from skate._wire.messages.message import Message

# -- owner ↔ executor -----------------------------------------------------------------------------------------


class Define(Message, tag=60):
    """Owner → executor, before its first task, or daemon, before its first actor or soon: a function or class."""

    fn: bytes
    name: str
    definition: bytes
    #: References that the function captured.
    refs: list[RefInfo] = []
    #: Where else to look for modules: what the owner added to its path since it started.
    sys_path: list[str] = []
    #: What `ray.__version__` says there, if Skate got Ray's name since its owner started.
    ray_version: str = ""


class Undefine(Message, tag=61):
    """Owner → executor, daemon: forget these functions (and the references that they captured)."""

    fns: list[bytes]


class Tasks(Message, tag=62):
    """Owner → executor: run these in order. Reply: Results, in order, in whatever batches."""

    lease: int
    tasks: list[Task]


class Results(Message, tag=63):
    """Executor → owner."""

    results: list[Result]
    timings: list[Timing] = []


class Recall(Message, tag=64):
    """Owner → executor: give back up to `count` tasks that have not started, the last ones first. Reply: Returned."""

    count: int


class Returned(Message, tag=65):
    """Executor → owner: these did not start and will not. `blocked`: send no more until Ready (my task waits)."""

    ids: list[bytes]
    blocked: bool = False
    #: The executor ends: return its lease.
    leaving: bool = False


class Ready(Message, tag=66):
    """Executor → owner: I take tasks again. Worker → daemon, after Retire: I stay, others need what I own."""


class Cancel(Message, tag=67):
    """Owner → executor: stop this task and, if `recursive`, its children. A running one has TaskInterrupt raised in it.

    Reply: a Result with `cancelled` for a task that was stopped; otherwise its ordinary Result.
    """

    id: bytes
    recursive: bool
    #: Only if it has not started: the daemon is asked to kill a running one.
    queued_only: bool = False


class Yielded(Message, tag=68):
    """Executor → owner: the next item of a streaming generator."""

    id: bytes  # of the item
    value: Value
    contained: list[RefInfo] = []


class Consumed(Message, tag=69):
    """Owner → executor: the consumer has taken `count` items in all, so that many more may follow."""

    id: bytes  # of the generator's task
    count: int


class CloseStream(Message, tag=70):
    """Owner → executor: nobody listens; close the generator."""

    id: bytes


class AskTask(Message, tag=71):
    """Owner → executor: what about this task? Reply: Answer with {"state": …}.

    If the task waits for values, and this is a cluster, the answer also has "waits" (reasons in words), "are_arguments"
    (the task has not begun) and "is_cut" (the node of the executor cannot reach a node that the task waits for).
    """

    request: int
    id: bytes


# -- borrower ↔ owner -------------------------------------------------------------------------------------------


class Fetch(Message, tag=80):
    """Borrower → owner: send me these values when they are there. Reply: a Fetched each."""

    ids: list[bytes]


class Fetched(Message, tag=81):
    """Owner → borrower. `value` is None if the object is freed or unknown."""

    id: bytes
    value: Value | None
    contained: list[RefInfo] = []


class Borrow(Message, tag=82):
    """A holder of a reference → its owner: `borrower` holds one too.

    Reply: Borrowed, after which the sender may let go.
    """

    request: int
    id: bytes
    borrower: bytes


class Borrowed(Message, tag=83):
    """Owner → sender of Borrow."""

    request: int
    #: The owner does not know the object: it is freed already, or an actor that is not made yet.
    refused: bool = False


class Release(Message, tag=84):
    """Borrower → owner: I hold no reference to these any more; take back that many registrations of each. No reply."""

    registrations: list[tuple[bytes, int]]


class AskRef(Message, tag=85):
    """Borrower → owner: what does this object wait for (`skate.why`)? Reply: Answer, with words, or if `looks` is set
    with a Sight (`_core/patience.py`)."""

    request: int
    id: bytes
    looks: bool = False


class CancelRef(Message, tag=86):
    """Borrower → owner: cancel the task that makes this object. No reply."""

    id: bytes
    force: bool
    recursive: bool


class Refused(Message, tag=72):
    """Executor → owner: I did not take a Tasks that was too large; it had that many tasks, of which this is the first.
    They fail. No reply."""

    id: bytes
    count: int
    size: int
    limit: int


class Taken(Message, tag=112):
    """Actor that runs several calls at a time → caller: I have read your last Tasks."""


class Resume(Message, tag=126):
    """End → other end, first on a connection that may go on with what an earlier one was for: so much has come."""

    session: bytes
    count: int
    #: How many messages this end has said so far: those that have not come are to be heard together.
    said: int = 0


class Confirm(Message, tag=127):
    """End → other end: so much has come from you, and need not be kept."""

    count: int
