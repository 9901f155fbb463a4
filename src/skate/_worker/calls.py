"""What an owner keeps for its tasks: calls of remote functions, the scheduling classes of their tasks, and leases."""

from __future__ import annotations

import copy
from collections import deque
from typing import TYPE_CHECKING

from skate._core.copies import nearest
from skate._core.ids import node_of
from skate._core.placement import Where
from skate._core.task import Extra, Failure, Task
from skate._worker.functions import Function
from skate._worker.peers import Peer

if TYPE_CHECKING:
    from skate._options import TaskOptions
    from skate._worker.runtime import Runtime

#: Items that a streaming generator may be ahead of its consumer.
GENERATOR_AHEAD = 64


class SchedulingClass:
    """Tasks that can run on the same workers."""

    __slots__ = (
        "asked_at", "cap", "demand", "depth", "env", "idle", "inputs", "key", "leases", "push_at", "queue",
        "resources", "retriable", "short", "spread_timer", "turns", "where",
    )  # fmt: skip

    def __init__(
        self, key: int, resources: dict[str, float], env: dict[str, str], cap: int, *, retriable: bool
    ) -> None:
        self.key = key
        self.resources = resources
        self.env = env
        #: Its tasks may be run again; when memory is short, such are ended first.
        self.retriable = retriable
        #: Where its tasks want to run.
        self.where: Where | None = None
        #: What the newest of them reads that lies on other nodes: size of each object, and the numbers of its nodes.
        self.inputs: list[tuple[int, list[int]]] = []
        #: Most leases that all nodes can give at a time; 0: no bound.
        self.cap = cap
        self.queue: deque[Task] = deque()
        self.leases: list[Lease] = []
        #: Leases with nothing in flight that take tasks.
        self.idle: list[Lease] = []
        #: Leases asked for and not granted yet, as the daemon knows it.
        self.demand = 0
        #: When it last began to ask, for those that are to be spread.
        self.asked_at = 0.0
        #: How many of the leases that they want are not free, and will not come soon.
        self.short = 0
        #: Somebody will look whether they have waited long enough.
        self.spread_timer = False
        #: When nodes were last sent some of them, by the number of the node.
        self.turns: dict[int, float] = {}
        #: Nesting of the task that last asked.
        self.depth = 0
        #: Length of the queue at which the next push is tried.
        self.push_at = 1


class Lease:
    """The right to use one worker."""

    __slots__ = (
        "blocked", "closing", "cls", "id", "idle_since", "inflight", "last_result", "load_s", "peer", "recalled_at",
        "served",
    )  # fmt: skip

    def __init__(self, id: int, cls: SchedulingClass, peer: Peer) -> None:
        self.id = id
        self.cls = cls
        self.peer = peer
        #: Tasks sent and not answered, in order.
        self.inflight: dict[bytes, Task] = {}
        #: Estimated time of those.
        self.load_s = 0.0
        #: Its task waits for others: it takes no tasks until it says Ready.
        self.blocked = False
        #: To be returned as soon as nothing is in flight.
        self.closing = False
        #: It has had its share of tasks that are to be spread over leases that are still to come.
        self.served = False
        self.idle_since = 0.0
        self.last_result = 0.0
        #: When it was asked for tasks that it has not begun; 0: it has answered.
        self.recalled_at = 0.0


class Call:
    """A remote function with its options, prepared so that submitting costs nothing per option."""

    __slots__ = (
        "_variants", "ahead", "cls", "extra", "fn", "function", "generator", "max_retries", "name", "num_returns",
        "parameters", "plain", "retry_exceptions", "runtime",
    )  # fmt: skip
    #: Of an actor's call: the actor.
    link = None
    #: A pending task keeps the entry of its value, even if nobody refers to it.
    holds_entry = True

    def __init__(
        self, runtime: Runtime, function: Function, cls: SchedulingClass, options: TaskOptions, *, generator: str
    ) -> None:
        self.runtime = runtime
        self.function = function
        self.fn = bytes(function.id)
        self.cls = cls
        self.name = options.name or function.name
        self.parameters = function.parameters
        self.max_retries = options.max_retries
        self.retry_exceptions = options.retry_exceptions
        self.generator = generator
        self.num_returns = options.num_returns if isinstance(options.num_returns, int) else 1
        self.ahead = options._generator_backpressure_num_objects or GENERATOR_AHEAD
        self.extra = Extra(
            num_returns=self.num_returns,
            generator=generator,
            ahead=self.ahead if generator == "streaming" else 0,
            name=options.name or "",
            once=self.max_retries == 0,
            max_calls=options.max_calls,
        )
        #: The same for tasks that read much on some node, by its number.
        self._variants: dict[int, Call] = {}
        #: A task of this call needs nothing but its four fields.
        self.plain = self.extra == Extra()

    def new_extra(self) -> Extra:
        e = self.extra
        return Extra([], e.num_returns, e.generator, e.ahead, e.name, 0, e.once, e.max_calls, [], 0)

    # How a task of this call is sent off, and sent again. Calls of actors have these too, and mean something else.

    def accept(self, task: Task) -> None:
        """It exists; its arguments may not be there yet."""

    def ready(self, task: Task) -> None:
        runtime = self.runtime
        call = self
        if runtime.in_cluster and task.extra is not None and task.extra.args:
            call = self._near(task, task.extra)
        runtime.submitter.enqueue(call.cls, task)

    def _near(self, task: Task, extra: Extra) -> Call:
        """The call that it belongs to from now on: tasks that read much on some node form a class of their own."""
        reads = extra.reads
        if not reads:
            return self
        inputs = self.runtime.copies.inputs(reads)
        node = nearest(inputs, node_of(self.runtime.process_id))
        call = self._variants.get(node)
        if call is None:
            call = self._variants[node] = copy.copy(self)
            call.cls = self.runtime.submitter.near(self.cls, node)
        call.cls.inputs = inputs
        self.runtime.table.entries[task.id].call = call
        return call

    def again(self, task: Task) -> None:
        self.cls.queue.appendleft(task)
        self.runtime.submitter.push(self.cls)

    def gave_up(self, task: Task, failure: Failure) -> None:
        """It failed before it was ready: an argument of it is an error."""
