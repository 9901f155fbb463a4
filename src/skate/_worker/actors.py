"""The caller's side of actors: make them, find them, call them, and hear what becomes of them.

    handle.method.remote(x) ── queue of the actor ── push ──▶ the actor's process
                                                               │
              get(ref) ◀── object table ◀── results / its end ─┘

An actor is the value of a task, its creation, that runs in a process of its own: what keeps the actor alive are
references to that value. A handle holds one, and so do calls that have no result yet. When the owner of the value, the
process that created the actor, sees that nobody refers to it any more, it tells the node.

What becomes of calls when the process of the actor ends is decided in `_core/actor_link.py`.

Every method is called with the runtime's lock held unless it says otherwise.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import skate.ids  # noqa: F401 - handles need it, and are made by `.remote()`, which must import nothing
from skate._core import actors as core
from skate._core.actor_link import ActorLink
from skate._core.ids import FIRST_RETURN, node_of, pack_id
from skate._core.ownership import Entry, Pending
from skate._core.task import ActorInfo, ActorSettings, Death, Extra, Failure, Task
from skate._error_text import MORE_WORKERS
from skate._message_limits import limits
from skate._object_ref import ObjectRef
from skate._serialize.failures import error_of, failure_of
from skate._serialize.values import NONE, serialize_inline
from skate._wire import messages as m
from skate._worker.calls import GENERATOR_AHEAD
from skate._worker.functions import Function
from skate._worker.peers import Peer
from skate._worker.submit import COLLECT_MAX
from skate.exceptions import (
    ActorDiedError,
    ActorError,
    ActorPlacementGroupRemoved,
    ActorUnavailableError,
    ActorUnschedulableError,
    MessageTooLargeError,
    ObjectLostError,
    PendingCallsLimitExceeded,
    TaskCancelledError,
)

if TYPE_CHECKING:
    from skate._options import MethodOptions
    from skate._worker.runtime import Runtime


#: Items that a generator may be ahead of its reader if nothing bounds it.
NO_LIMIT = 1 << 60
#: An actor that runs so many calls at a time is not soon full of generators that wait for their readers.
MANY_PLACES = 100


class ActorGone(Exception):
    """The last handle to an actor went while it was being looked for."""


class Link(ActorLink):
    """An actor that this process has a handle to."""

    __slots__ = ("creation_id", "death", "holding", "name", "owner", "pending_max", "places", "sent_process")

    def __init__(self, id: bytes, owner: bytes, settings: ActorSettings, *, name: str, pending_max: int) -> None:
        eager = settings.is_async or settings.max_concurrency > 1 or bool(settings.groups)
        super().__init__(id, eager=eager, ordered=settings.ordered)
        self.owner = owner
        self.name = name
        self.creation_id = id + FIRST_RETURN
        self.pending_max = pending_max
        #: How many calls run at a time, by concurrency group.
        self.places = {"": settings.max_concurrency, **settings.groups}
        self.death: Death | None = None
        #: Who has the calls that were sent: for some seconds it may run on, although `process` names nobody any more.
        self.sent_process = b""
        #: Calls are pending, and for them the actor is kept alive.
        self.holding = False


class MethodCall:
    """A method of an actor with its options, prepared so that a call costs nothing per option."""

    holds_entry = True

    __slots__ = (
        "ahead", "extra", "fn", "generator", "link", "max_retries", "name", "num_returns", "parameters", "plain",
        "retry_exceptions", "runtime",
    )  # fmt: skip

    def __init__(
        self,
        runtime: Runtime,
        link: Link,
        method: str,
        options: MethodOptions,
        *,
        generator: str,
        max_retries: int,
        parameters: tuple[str, ...],
    ) -> None:
        self.runtime = runtime
        self.parameters = parameters
        self.link = link
        self.fn = method.encode()
        self.name = options.name or f"{link.name}.{method}"
        self.max_retries = max_retries
        self.retry_exceptions = options.retry_exceptions
        self.generator = generator
        self.num_returns = options.num_returns if isinstance(options.num_returns, int) else 1
        # A generator that waits for its reader keeps its place. Where there are few of them, others may find none, and
        # perhaps the reader waits for one of those.
        places = link.places.get(options.concurrency_group or "", 1)
        ahead = GENERATOR_AHEAD if places >= MANY_PLACES else NO_LIMIT
        self.ahead = options._generator_backpressure_num_objects or ahead
        self.extra = Extra(
            num_returns=self.num_returns,
            generator=generator,
            ahead=self.ahead if generator == "streaming" else 0,
            name=options.name or "",
            group=options.concurrency_group or "",
        )
        self.plain = self.extra == Extra()

    def new_extra(self) -> Extra:
        e = self.extra
        return Extra([], e.num_returns, e.generator, e.ahead, e.name, group=e.group)

    # How a task of this call is sent off, and sent again.

    def accept(self, task: Task) -> None:
        """Its place among the calls is that of its submission, even if its arguments are not there yet."""
        self.runtime.actors.accept(self.link, task)

    def ready(self, task: Task) -> None:
        self.link.unready.discard(task.id)
        self.runtime.actors.push(self.link)

    def again(self, task: Task) -> None:
        self.link.queue.appendleft(task)
        self.runtime.actors.push(self.link)

    def gave_up(self, task: Task, failure: Failure) -> None:
        self.link.withdraw(task)
        self.runtime.actors.push(self.link)
        self.runtime.actors.settle(self.link)


class Creation:
    """The call of an actor's class."""

    __slots__ = (
        "extra", "fn", "function", "generator", "holds", "link", "max_retries", "name", "num_returns", "parameters",
        "restartable", "retry_exceptions", "runtime", "settings", "to_place", "where",
    )  # fmt: skip
    #: An actor that nobody can call need not be made.
    holds_entry = False

    def __init__(
        self, runtime: Runtime, link: Link, function: Function, settings: ActorSettings, info: ActorInfo
    ) -> None:
        self.runtime = runtime
        self.link = link
        self.function = function
        self.fn = bytes(function.id)
        self.name = f"{function.name}.__init__"
        self.parameters = function.parameters
        self.settings = settings
        self.restartable = info.max_restarts != 0
        self.to_place = info.to_place
        self.where = info.where
        self.num_returns = 1
        self.generator = ""
        self.max_retries = 0
        self.retry_exceptions = False
        self.extra = Extra()
        #: Its arguments, kept for the next time that it is made.
        self.holds: list[bytes] = []

    def new_extra(self) -> Extra:
        return Extra([])

    def accept(self, task: Task) -> None:
        pass

    def ready(self, task: Task) -> None:
        create = m.CreateActor(self.link.id, task, self.settings)
        size = len(m.encoder.encode(create))
        if size > limits.creation:  # it travels together with the definition of the class
            what = f"what it takes to make an actor, the arguments of {self.name},"
            error = MessageTooLargeError(what=what, size_bytes=size, limit_bytes=limits.creation)
            self.gave_up(task, failure_of(error))
            return
        self.runtime.functions.tell(self.function)
        self.runtime.send(create)

    def again(self, task: Task) -> None:
        raise AssertionError("an actor is restarted by its node")

    def gave_up(self, task: Task, failure: Failure) -> None:
        """Nobody will ever make it."""
        self.runtime.send(m.KillActor(self.link.id, True, "its creator", failure))


class Actors:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._table = runtime.table
        self._links: dict[bytes, Link] = {}
        #: Actors that this process created and that are not dead.
        self._creations: dict[bytes, Creation] = {}

    # -- making and finding: called without the lock ------------------------------------------------------------------

    def create(
        self,
        function: Function,
        info: ActorInfo,
        settings: ActorSettings,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        pending_max: int,
    ) -> ObjectRef[Any] | dict[str, Any]:
        """A reference that keeps the new actor alive; or, if its name is taken, how to reach the one who has it."""
        runtime = self._runtime
        with runtime.lock:
            if runtime.broken:
                raise runtime.broken
            id = runtime.new_id(FIRST_RETURN)
        actor = id[:16]
        if info.name:
            answer = runtime.request(lambda number: m.RegisterActor(number, actor, info), undo=self._unregister(actor))
            if answer.body["taken"]:
                return dict(answer.body)
        else:
            runtime.send(m.RegisterActor(0, actor, info))
        with runtime.lock:
            link = self._link(actor, runtime.process_id, info.class_name, settings, pending_max)
            creation = Creation(runtime, link, function, settings, info)
            self._creations[actor] = creation
        try:
            ref: ObjectRef[Any] = runtime.arguments.submit(creation, args, kwargs, id=id)
        except BaseException:
            runtime.send(m.KillActor(actor, True, "its creator, because its arguments cannot be sent"))
            raise
        return ref

    def _unregister(self, actor: bytes) -> Callable[[Any], None]:
        """Whoever would have made it was interrupted, and is gone: its name is free again."""

        def undo(late: Any) -> None:
            if not late.body["taken"]:
                self._runtime.send(m.KillActor(actor, True, "its creator, who was interrupted"))

        return undo

    def find(self, name: str, namespace: str) -> dict[str, Any] | None:
        answer = self._runtime.request(lambda number: m.FindActor(number, name, namespace))
        return None if answer is None else answer.body

    def borrow(self, actor: bytes, owner: bytes) -> ObjectRef[Any] | None:
        """A reference to an actor that was found by name; None if nobody owns it. Raises ActorGone."""
        if not owner:
            return None
        runtime = self._runtime
        with runtime.lock:
            runtime._housekeeping()  # what was dropped here is dropped
            if owner == runtime.process_id and actor + FIRST_RETURN not in self._table.entries:
                raise ActorGone
            ref = runtime.adopt(actor + FIRST_RETURN, owner)
        if owner != runtime.process_id:
            with runtime.lock:
                request = runtime.borrowing.register(ref._id, owner)
            runtime.block_until(lambda: runtime.borrowing.answered(request), None)
            if runtime.borrowing.was_refused(request):
                raise ActorGone
        return ref

    def link(self, actor: bytes, owner: bytes, name: str, settings: ActorSettings, pending_max: int) -> Link:
        with self._runtime.lock:
            return self._link(actor, owner, name, settings, pending_max)

    def _link(self, actor: bytes, owner: bytes, name: str, settings: ActorSettings, pending_max: int) -> Link:
        link = self._links.get(actor)
        if link is None:
            link = self._links[actor] = Link(actor, owner, settings, name=name, pending_max=pending_max)
            self._runtime.send(m.WatchActor(actor, owner))
        return link

    def watch_again(self) -> None:
        """A control service that was started again does not know who watches."""
        for link in self._links.values():
            if link.state is not core.DEAD:
                self._runtime.send(m.WatchActor(link.id, link.owner))

    def kill(self, actor: bytes, *, no_restart: bool) -> None:
        by = f"{'the driver' if self._runtime.is_driver else 'a worker'}, pid {os.getpid()}"
        with self._runtime.lock:
            link = self._links.get(actor)
            if link is not None and not no_restart:
                link.dying()  # before its node hears of it: the next life may begin at once
            life = link.life if link is not None and not no_restart else 0
            self._runtime.send(m.KillActor(actor, no_restart, by, life=life))
            if link is not None and no_restart and link.state is not core.DEAD:
                # For this process it is dead from now on; no later call of ours gets there before the signal.
                death = Death("kill", f"skate.kill() was called by {by}.")
                self.on_state(m.ActorState(actor, core.DEAD, link.life, b"", death))

    # -- calling ------------------------------------------------------------------------------------------------------

    def call(self, call: MethodCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method; a reference to its result. Without the lock."""
        runtime = self._runtime
        if kwargs or not call.plain:
            return runtime.arguments.submit(call, args, kwargs)
        payload = serialize_inline(args) if args else b""
        if payload is None:
            return runtime.arguments.submit(call, args, kwargs)
        context = runtime.context
        link = call.link
        with runtime.lock:
            if runtime.broken:
                raise runtime.broken
            if link.pending_max > 0:
                self.check_limit(link)
            context.counter += 1
            id = pack_id(context.prefix or context.make_prefix(), context.counter, FIRST_RETURN)
            task = Task(id, call.fn, payload, context.depth)
            self._table.entries[id] = Entry(1, 1, None, b"", task, call)
            queue = link.queue
            queue.append(task)
            if not link.holding:
                self._hold(link)
            if not link.inflight or len(queue) >= link.push_at or (link.eager and link.acknowledged):
                self.push(link)
        if runtime.loop.dormant:
            runtime.loop.stir()
        return ObjectRef(id, runtime.process_id)

    def check_limit(self, link: Link) -> None:
        if 0 < link.pending_max <= link.pending:
            raise PendingCallsLimitExceeded(actor_name=link.name, limit=link.pending_max)

    def accept(self, link: Link, task: Task) -> None:
        """A call whose arguments may not be there yet."""
        link.queue.append(task)
        link.unready.add(task.id)
        if not link.holding:
            self._hold(link)

    def _hold(self, link: Link) -> None:
        link.holding = True
        self._links[link.id] = link
        if link.creation_id in self._table.entries:
            self._table.hold(link.creation_id)

    def settle(self, link: Link) -> None:
        """If nothing is pending any more, the actor need not be kept for it."""
        if link.holding and not link.pending:
            link.holding = False
            self._table.unhold((link.creation_id,))

    def push(self, link: Link) -> None:
        """Send what the actor should have now."""
        if link.state is core.DEAD:
            self._judge(link)
            return
        while taken := link.take():
            peer = self._runtime.peers.get(link.process)
            peer.link = link
            peer.life = link.life
            link.sent_process = link.process
            peer.send(m.Tasks(0, taken))
            if link.eager:
                link.acknowledged = False
                break
        link.push_at = len(link.queue) + COLLECT_MAX

    # -- answers ------------------------------------------------------------------------------------------------------

    def on_results(self, peer: Peer, message: m.Results) -> None:
        link = peer.link
        self._runtime.outcomes.take_results(peer, link.inflight, message.results)
        if link.queue:
            self.push(link)
        elif link.holding and not link.inflight:
            self.settle(link)

    def on_taken(self, peer: Peer) -> None:
        if peer.link is not None and peer.life == peer.link.sent_life:
            peer.link.acknowledged = True
            if peer.link.queue:
                self.push(peer.link)

    def on_gone(self, peer: Peer) -> None:
        """Nothing more will come from that process: it is dead, or has said so."""
        if peer.link is not None:
            peer.link.gone(peer.life)
            self._judge(peer.link)

    def on_unreachable(self, node: int, reason: str, *, again: bool) -> None:
        """That node could not be reached for too long. A call with retries left uses one up, and waits on: it is still
        on its way, and is answered when the path has healed. The others fail, and are not begun after that.

        again: that was said before. No retry is used up, and a call that has used one up waits for its grace.
        """
        for link in list(self._links.values()):
            if link.inflight and node_of(link.sent_process) == node and link.sent_life != link.life:
                link.gone(link.sent_life)  # the actor lives elsewhere by now
                self._judge(link)
            if not link.pending or node_of(link.sent_process if link.inflight else link.process) != node:
                continue
            for task, was_sent in link.cut_off(functools.partial(self._may_wait_on, again=again)):
                entry = self._table.entries[task.id]
                if was_sent:
                    peer = self._runtime.peers.get(link.sent_process)
                    peer.withdraw((task.id,))
                    peer.send(m.Cancel(task.id, False, queued_only=True))
                    self._runtime.outcomes.note_left(entry, node)
                error: BaseException = ActorUnavailableError(
                    actor_id=link.id.hex(), actor_name=link.name, reason=reason
                )
                if entry.pending is not None and entry.pending.cancelled:
                    error = TaskCancelledError(task_name=entry.call.name, was_running=was_sent)
                self._runtime.outcomes.fail(task.id, entry, error)
            self.settle(link)

    def _may_wait_on(self, task: Task, *, again: bool) -> bool:
        entry = self._table.entries[task.id]
        if again and entry.pending is not None and entry.pending.retries and not entry.pending.cancelled:
            return True
        if (entry.pending is not None and entry.pending.cancelled) or not self._runtime.outcomes.retries_left(entry):
            return False
        entry.pending = entry.pending or Pending()
        entry.pending.retries += not again
        return True

    def on_state(self, message: m.ActorState) -> None:
        link = self._links.get(message.actor)
        if link is None:
            return
        if link.state is not core.DEAD or message.state == core.DEAD:
            link.death = message.death  # otherwise it was on its way when the actor was killed here
        link.told(message.state, message.life, message.process_id)
        creation = self._creations.get(message.actor)
        if creation is not None and link.state in (core.ALIVE, core.DEAD):
            self._on_created(creation, link)
        self._judge(link)

    def _on_created(self, creation: Creation, link: Link) -> None:
        """The creation is over, one way or the other."""
        id = link.creation_id
        entry = self._table.entries.get(id)
        if entry is not None and entry.task is not None:
            pending = entry.pending
            entry.task = entry.call = entry.pending = None
            if pending is not None:
                creation.holds = pending.holds
            failed = link.state is core.DEAD
            # An entry that contains something, if only nothing, is told of when it is freed.
            self._table.resolve(id, entry, failure_of(self._error(link)) if failed else NONE)
            entry.contained = []
        if link.state is core.DEAD or not creation.restartable:
            self._table.unhold(creation.holds)
            creation.holds = []
        if link.state is core.DEAD:
            del self._creations[link.id]

    def _judge(self, link: Link) -> None:
        sent = {task.id for task in link.lost}
        failed = link.judge(self._may_run_again)
        for task in failed:
            entry = self._table.entries.get(task.id)
            if entry is None or entry.task is None:
                continue  # it took the result of a call before it, and failed with that
            if task.id in sent:
                self._runtime.outcomes.note_left(entry, node_of(link.sent_process))
            if entry.pending is not None and entry.pending.cancelled:
                # What was cancelled before it began was answered by the actor; for these it had no time.
                began = task.id in sent
                error: BaseException = TaskCancelledError(task_name=entry.call.name, was_running=began)
            else:
                error = self._error(link, runs=entry.pending.retries + 1 if entry.pending is not None else 1)
            self._runtime.outcomes.fail(task.id, entry, error)
        if link.state is not core.DEAD and link.queue:
            self.push(link)
        self.settle(link)

    def _may_run_again(self, task: Task) -> bool:
        entry = self._table.entries[task.id]
        if entry.pending is not None and entry.pending.cancelled:
            return False
        if not self._runtime.outcomes.retries_left(entry):
            return False
        if entry.pending is None:
            entry.pending = Pending()
        entry.pending.retries += 1
        self._runtime.outcomes.note_left(entry, node_of(entry.call.link.sent_process))
        if entry.pending.stream is not None and task.extra is not None:
            task.extra.skip = entry.pending.stream.received
        return True

    def _error(self, link: Link, runs: int = 1) -> ActorError | ActorUnschedulableError | ActorPlacementGroupRemoved:
        """Why a call to it fails now that it was sent so often."""
        death = link.death or Death("crash", "it is not known why.")
        if death.kind == "group":
            return ActorPlacementGroupRemoved(f"the placement group of the actor {link.name} was removed.")
        if death.kind == "workers":
            return ActorUnschedulableError(name=link.name, reason=death.reason, next=MORE_WORKERS)
        if death.kind == "nowhere" or (death.kind == "infeasible" and death.asked):
            reason = death.reason if death.kind == "nowhere" else ""
            return ActorUnschedulableError(name=link.name, asked=death.asked, available=death.total, reason=reason)
        kind = ActorDiedError if link.state is core.DEAD else ActorUnavailableError
        cause = error_of(death.failure) if death.failure is not None else None
        reason = death.reason
        if cause is not None:
            what = "its __init__ raised"
            if death.kind == "arguments":
                what = f"an argument of its creation is {'lost' if isinstance(cause, ObjectLostError) else 'an error'}"
            if death.before:
                what = f"{death.before} In the restart {what}"
            reason = f"{what}:\n{cause}"
        # More restarts help only against the end of a process.
        advice = "" if death.kind in ("crash", "memory") else "create it again."
        if death.kind in ("init", "arguments", "restarts"):
            advice = "mend that, and create it again."
        if kind is ActorUnavailableError and runs > 1:
            advice = (
                f"it was sent {runs} times, which is all that max_task_retries={runs - 1} allows: call again if the "
                "method may run once more, or raise that."
            )
        error = kind(
            actor_id=link.id.hex(),
            actor_name=link.name,
            reason=reason,
            stderr_tail=death.stderr,
            next=advice,
            last_output=death.output,
        )
        error.__cause__ = cause
        error.actor_init_failed = death.kind == "init"
        return error

    # -- cancelling and looking ---------------------------------------------------------------------------------------

    def cancel(self, id: bytes, entry: Entry, *, recursive: bool) -> None:
        link: Link = entry.call.link
        task = entry.task
        assert task is not None
        if link.withdraw(task):
            self._runtime.outcomes.fail(id, entry, TaskCancelledError(task_name=entry.call.name))
            self.settle(link)
            self.push(link)
        elif id in link.inflight:
            self._runtime.peers.get(link.sent_process).send(m.Cancel(id, recursive))

    def creation(self, link: Link) -> Creation | None:
        """If it is ours."""
        return self._creations.get(link.id)

    def peer_of(self, link: Link) -> Peer | None:
        return self._runtime.peers.known(link.process) if link.process else None

    # -- letting go ---------------------------------------------------------------------------------------------------

    def let_go(self, id: bytes, entry: Entry) -> None:
        """Nothing in this process refers to the actor any more, and if it is ours, nothing anywhere."""
        link = self._links.get(id[:16])
        if link is None or link.creation_id != id or link.holding:
            return
        del self._links[link.id]
        if link.id in self._creations:
            self._runtime.send(m.DropActor(link.id))
            self._table.unhold(self._creations.pop(link.id).holds)
            if entry.pending is not None:  # it waited for its arguments, or to be made
                self._table.unhold(entry.pending.holds)
                entry.task = entry.pending = None
        self._runtime.send(m.UnwatchActor(link.id))

    def statistics(self) -> dict[str, int]:
        return {
            "actors_known": len(self._links),
            "actors_owned": len(self._creations),
            "calls_pending": sum(link.pending for link in self._links.values()),
        }
