"""The one object inside every process that runs user code: driver and worker alike.

It builds the parts, connects them, and offers what the public API needs: submit, get, put, wait, cancel.

    public API ──▶ Runtime ──┬── Submitter   tasks that we own: queues, leases
                             ├── Outcomes    what becomes of them: values, retries, errors
                             ├── Actors      actors that we have handles to, and calls to them
                             ├── Borrowing   references that travel
                             ├── Streams     generators that we consume
                             ├── Values      get, wait
                             ├── StoreClient shared memory
                             ├── Peers       direct channels
                             ├── Executor    tasks that we run (workers only)
                             └── Loop        sockets, timers, one lock for all state

Locking: `loop.lock` guards all tables. Message handlers run with it held, and neither block nor run user code.
Serialising and deserialising user values happens outside it.
"""

from __future__ import annotations

import functools
import os
import socket
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from skate._core.copies import Copies
from skate._core.environment import FIRST_LOOK, notice_s
from skate._core.ids import FIRST_RETURN, PUT_INDEX, node_of, pack_id
from skate._core.ownership import Entry, ObjectTable
from skate._core.resources import group_of
from skate._core.task import Job, Line, Task
from skate._message_limits import limits
from skate._object_ref import ObjectRef, dropped
from skate._options import Options, TaskOptions, captured
from skate._serialize import private
from skate._serialize.diagnose import explain_unpicklable
from skate._serialize.failures import failure_of
from skate._serialize.values import (
    INLINE_BYTES_MAX,
    Serialized,
    is_plain,
    serialize,
    serialize_inline,
    serialize_plain,
)
from skate._store.client import StoreClient
from skate._store.seals import Seals
from skate._wire import messages as m
from skate._wire.channel import LOST, Channel, TooLarge
from skate._wire.lasting import LastingChannel
from skate._worker.actors import Actors
from skate._worker.arguments import Arguments
from skate._worker.borrow import Borrowing
from skate._worker.broken import Broken, map_arena, no_descriptor_left, on_failure
from skate._worker.calls import Call
from skate._worker.context import TaskContext
from skate._worker.delayed import new_call
from skate._worker.execute import Executor
from skate._worker.functions import ExportedFunctions, Function, export_function
from skate._worker.futures import Futures
from skate._worker.loop import Loop
from skate._worker.outcomes import Outcomes
from skate._worker.peers import Myself, Peer, Peers
from skate._worker.requests import Requests
from skate._worker.streams import Streams
from skate._worker.submit import COLLECT_MAX, Submitter
from skate._worker.subscriptions import Subscriptions
from skate._worker.surroundings import inherited_env, take_up
from skate._worker.values import Values
from skate._worker.waits import Wait
from skate.exceptions import NodeDiedError, SystemLimitError

if TYPE_CHECKING:
    from skate._worker.garbage import Garbage

#: How long the daemon may say nothing when it is told to end, and how long its last lines are waited for in all.
GOODBYE_S = 2.0
LAST_LINES_S = 10.0
#: Dropped references that a put finds before it sees to them itself; fewer if values are not scalars. One that needs
#: shared memory always does, to have that of the dropped ones.
DROPPED_MAX = 256
LARGE_DROPPED_MAX = 8
_NOT_IN_A_TASK = nullcontext()


class Runtime:
    """See the module's docstring."""

    def __init__(self, control: socket.socket, *, slot: int | None = None, arena_fd: int | None = None) -> None:
        """A worker is born with a slot and the arena; a driver receives the arena with the daemon's welcome."""
        self.pid = os.getpid()
        self.is_driver = slot is None
        self.table = ObjectTable()
        self.loop = Loop(self._handle, self._on_closed, self._tick)
        self.loop.on_failure = functools.partial(on_failure, self)
        self.lock = self.loop.lock
        self._control = Channel(control, carries_fds=True, name="daemon")
        self._seals = Seals(self._control.send)
        self._control.limit -= limits.envelope
        self.peers = Peers(
            self.send, self._on_peer_dead, self._seals.say, self.loop.remove, self._open_channel, self._on_oversize
        )
        self.outcomes = Outcomes(self)
        self.submitter = Submitter(self)
        self.borrowing = Borrowing(self)
        self.streams = Streams(self)
        self.executor: Executor | None = None
        self.store: StoreClient
        self.context = TaskContext(os.urandom(16))
        self.welcome: m.Welcome
        self.process_id = b""
        #: The process of the driver of the current job.
        self.driver_id = b""
        #: The placement group that what is started here is in, unless it says otherwise; empty: none.
        self.captures = b""
        #: Remote functions that are prepared for calls: what they know is out of date when that changes.
        self.prepared: weakref.WeakSet[Any] = weakref.WeakSet()
        #: There may be other nodes.
        self.in_cluster = False
        #: Where objects are that lie on other nodes.
        self.copies = Copies()
        #: What the tasks that run here wait for, by their ids.
        self.waits: dict[bytes, Wait] = {}
        self._slot = slot
        self._arena_fd = arena_fd
        self._welcomed = False
        self.functions = ExportedFunctions(self.send)
        self.arguments = Arguments(self)
        self.actors = Actors(self)
        self.subscriptions = Subscriptions(self)
        self.requests = Requests(self)
        self.request = self.requests.request
        self.ask = self.requests.ask
        #: Set when the node daemon is gone, or a bug has ended the I/O thread: nothing works any more, and that is why.
        self.broken: Broken | None = None
        self.closed = False
        #: Nothing is left to be closed.
        self._torn_down = False
        #: How the daemon ended, if that is known: the driver that started it can tell.
        self.daemon_exit_code: Callable[[], int | None] = lambda: None
        self.on_logs: Callable[[list[Line]], None] = lambda lines: None
        self._garbage: Garbage | None = None
        self._said_goodbye = False
        self._keeping_house = False
        #: The node goes on without this driver.
        self.node_stays = False
        #: What users call the detached actors that ended with the node of this driver.
        self.ended_with_node: list[str] = []
        #: Messages with lines that workers printed.
        self._logs_heard = 0
        self.values = Values(self)
        self.get, self.wait, self.when_ready = self.values.get, self.values.wait, self.values.when_ready
        self.futures = Futures(self)
        #: How long a `get` waits before it says what for, or 0, and how long before that is looked into.
        self.notice_s = notice_s(os.environ)
        self.first_look_s = self.notice_s * FIRST_LOOK
        #: What `init` was told that concerns the whole job.
        self.settings: dict[str, Any] = {}
        #: Variables that the tasks and actors of this process are given, because it was started with them, or because
        #: `init` was told so on joining a cluster. Their own tasks inherit them in turn.
        self._inherited_env = inherited_env()
        self._handlers: dict[type, Callable[[Peer, Any], None]] = {
            m.Results: self._on_results,
            m.Returned: self._on_returned,
            m.Taken: lambda peer, _: self.actors.on_taken(peer),
            m.Ready: lambda peer, _: self.submitter.on_ready(peer),
            m.Fetch: self.borrowing.on_fetch,
            m.Fetched: self.borrowing.on_fetched,
            m.Borrow: self.borrowing.on_borrow,
            m.Borrowed: lambda _, message: self.borrowing.on_borrowed(message),
            m.Release: self.borrowing.on_release,
            m.Yielded: self.streams.on_yielded,
            m.Answer: lambda _, message: self.requests.on_reply(message),
            m.AskRef: self._on_ask_ref,
            m.CancelRef: lambda _, message: self._cancel_locked(message.id, message.force, message.recursive),
            m.Refusal: self._on_oversize,
            m.Refused: self._on_oversize,
        }
        self.loop.add(self._control)

    # -- start and end ----------------------------------------------------------------------------------

    def start(self, hello: m.Hello, timeout: float) -> None:
        """Say hello to the daemon and wait for its welcome."""
        self.loop.start()  # first: a worker that has no thread for its connections is not ready, and must not say so
        self._control.send(hello)
        if not self.loop.wait(lambda: self._welcomed or self.broken, time.monotonic() + timeout):
            raise NodeDiedError(f"the node daemon did not answer within {timeout:.0f} s of its start.")
        if self.broken:
            raise self.broken

    def _on_welcome(self, message: m.Welcome) -> None:
        """Build what depends on it, before the next message is looked at: that may be the first task."""
        self.welcome = message
        self.process_id = message.process_id
        self.driver_id = message.process_id if self.is_driver else b""
        self.in_cluster = node_of(message.process_id) > 0
        fd = self._control.fds.popleft() if self._arena_fd is None else self._arena_fd
        arena = map_arena(self, fd, message.arena_bytes)
        if arena is None:
            return
        self.arena = arena
        private.arena = private.Arena(fd, self.arena)
        self.store = StoreClient(self.arena, message.arena_bytes, self._seals, self.request, self.process_id)
        if self._slot is not None:
            self.executor = Executor(self, self._slot)
            self._handlers.update(self.executor.handlers)
            self.peers.myself = Myself(self.process_id, self._send_to_myself)
        self._welcomed = True

    def close(self) -> None:
        """End the runtime of a driver: the daemon kills the workers, brings the last log lines and exits.

        May be called again if Ctrl-C has ended the wait for those lines, and does the rest then. Called from `_api`,
        everything but that wait is done before an interrupt is raised.
        """
        if self._torn_down:
            return
        if not self.closed:
            self.closed = True
            if not self.broken:
                self.send(m.Shutdown())
                self._wait_for_goodbye()
        self.arguments.forget_all()
        with self.lock:
            self._fail_pending(NodeDiedError("skate.shutdown() was called before the task had ended."))
            for entry in self.table.entries.values():  # so that no cycle keeps this runtime in memory
                entry.call = entry.task = entry.pending = entry.waiters = None
        self.futures.close()
        self.loop.stop()
        self._torn_down = True
        if self._welcomed:
            self.store.close()
            if private.arena is not None:
                private.arena.close()
            del self.arena

    def _wait_for_goodbye(self) -> None:
        """The last lines come before it: as long as some do, they are waited for."""
        give_up_at = time.monotonic() + LAST_LINES_S
        heard = -1
        while heard != self._logs_heard and time.monotonic() < give_up_at:
            heard = self._logs_heard
            if self.loop.wait(lambda: self._said_goodbye or self.broken, time.monotonic() + GOODBYE_S):
                return

    def abandon(self) -> None:
        """In a forked child: this runtime is the parent's."""
        self.closed = self._torn_down = True
        self.loop.abandon()
        if private.arena is not None:
            private.arena.close()

    # -- messages -----------------------------------------------------------------------------------------

    def send(self, message: m.Message, fds: tuple[int, ...] = ()) -> None:
        """To the node daemon."""
        self._seals.send(message, fds)

    def _handle(self, channel: Channel, messages: list[m.AnyMessage]) -> None:
        if channel is self._control:
            for message in messages:
                self._handle_control(message)
        else:
            peer = self.peers.of(channel)
            handlers = self._handlers
            for message in messages:
                handlers[type(message)](peer, message)
        self._housekeeping()

    def _handle_control(self, message: m.AnyMessage) -> None:
        match message:
            case m.LeaseGranted():
                self.submitter.on_granted(message, self.peers.get(message.process_id))
            case m.LeasesShort():
                self.submitter.on_short(message)
            case m.LeaseReclaim():
                self.submitter.on_reclaim(message)
            case m.Allocated() | m.Pinned() | m.StoreFull() | m.FetchFailed() | m.Answer():
                self.requests.on_reply(message)
            case m.DescriptorGiven():
                self.requests.on_descriptor(message, self._control.fds)
            case m.PeerConnected():
                fd = self._control.fds.popleft()
                if fd == LOST:
                    no_descriptor_left(self, "a connection to another process could not be made.")
                    return
                self.loop.add(self.peers.on_connected(message, socket.socket(fileno=fd)))
            case m.PeerGone():
                self.peers.on_gone(message)
            case m.ActorState():
                self.actors.on_state(message)
            case m.Published():
                self.subscriptions.on_published(message)
            case m.Renewed():
                from skate._worker.renewal import say_again  # most programs never need it

                say_again(self)
            case m.LeaseInfeasible():
                self.submitter.on_infeasible(message)
            case m.Logs():
                self._logs_heard += 1
                self.on_logs(message.lines)
            case m.Welcome():
                self._on_welcome(message)
            case m.Capacity():
                self.welcome.resources = message.resources
                self.submitter.on_capacity()
            case m.CollectGarbage():
                self._collect_garbage(message.round)
            case m.Unreachable():
                from skate._worker.unreachable import on_unreachable

                on_unreachable(self, message)
            case m.Goodbye():
                if message.limit:
                    self.broken = SystemLimitError(what="the node of this driver did not start.", limit=message.limit)
                self._said_goodbye = True
                self.node_stays = message.stays
                self.ended_with_node = message.detached
            case _:
                if self.executor is not None:
                    self.executor.on_control(message)

    def _collect_garbage(self, round: int) -> None:
        if self._garbage is None:
            from skate._worker.garbage import Garbage  # most programs never need it

            self._garbage = Garbage(self)
        self._garbage.on_asked(round)

    def _open_channel(self, process_id: bytes, sock: socket.socket) -> Channel:
        if node_of(process_id) == node_of(self.process_id):
            return Channel(sock)
        channel = LastingChannel(sock)
        channel.greet()
        return channel

    def _send_to_myself(self, message: m.Message) -> None:
        def handle() -> None:
            assert self.peers.myself is not None
            self._handlers[type(message)](self.peers.myself, message)
            self._housekeeping()
            self.loop.notify()

        self.loop.call_at(time.monotonic(), handle)

    def _on_oversize(self, peer: Peer, what: TooLarge | m.Refusal | m.Refused) -> None:
        """Something is too large for a message; the module is rarely needed."""
        from skate._worker.oversize import handle

        handle(self, peer, what)

    def _on_results(self, peer: Peer, message: m.Results) -> None:
        if peer.link is not None:
            self.actors.on_results(peer, message)
        elif peer.lease is not None:
            self.submitter.on_results(peer, message)
        else:
            self.outcomes.decline_given_up(peer, message.results)

    def _on_returned(self, peer: Peer, message: m.Returned) -> None:
        if peer.link is None:
            self.submitter.on_returned(peer, message)
        elif message.leaving:
            self.actors.on_gone(peer)

    def _on_closed(self, channel: Channel) -> None:
        if channel is not self._control:
            self.peers.on_closed(channel)
            self._housekeeping()
            return
        if self.closed:
            self.broken = self.broken or NodeDiedError("skate.shutdown() was called.")
            return
        if self.broken is not None:
            return
        if self._said_goodbye and self.is_driver:
            self.broken = NodeDiedError(
                "the node of this driver was ended: by `skate stop`, or its cluster ended or took it for dead.\n"
                "  next: call skate.shutdown(), and skate.init() again when there is a node."
            )
            self._fail_pending(self.broken)
            return
        code = self.daemon_exit_code()
        self.broken = NodeDiedError(
            pid=self.welcome.daemon_pid if self._welcomed else 0,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
        )
        if self.executor is not None:
            os._exit(1)  # a worker without its daemon has nobody to work for
        self._fail_pending(self.broken)

    def end_all(self, error: Broken) -> None:
        """Nothing works any longer: who waits is told."""
        with self.lock:
            self.broken = error
            self._fail_pending(error)
        self.loop.notify()

    def _fail_pending(self, error: BaseException) -> None:
        self.subscriptions.on_end()
        pending = [(id, entry) for id, entry in self.table.entries.items() if entry.value is None]
        if not pending:
            return
        failure = failure_of(error)
        for id, entry in pending:
            if entry.value is None:
                if entry.pending is not None and entry.pending.stream is not None:
                    entry.pending.stream.on_failure(failure)
                self.table.resolve(id, entry, failure)

    def _on_peer_dead(self, peer: Peer) -> None:
        if peer.lease is not None:
            assert peer.gone is not None
            self.submitter.on_worker_dead(peer.lease, peer.gone)
        self.actors.on_gone(peer)
        self.borrowing.on_peer_dead(peer)
        if self.executor is not None:
            self.executor.on_owner_dead(peer)

    # -- housekeeping -------------------------------------------------------------------------------------------

    def _housekeeping(self) -> None:
        """Act on references that were dropped and objects that became free. With the lock held."""
        if self._keeping_house:  # this is a finalizer, which has interrupted just that
            return
        self._keeping_house = True
        try:
            table = self.table
            if dropped:
                count = len(dropped)
                popleft = dropped.popleft
                table.drop([popleft() for _ in range(count)])
            self.streams.drain()
            freed = table.take_freed()
            if freed:
                self._let_go(freed)
            if self._welcomed and not self.closed:
                self.store.drain()
            if self.functions.retired:
                self._undefine(self.functions.take_retired())
        finally:
            self._keeping_house = False

    def _let_go(self, freed: list[tuple[bytes, Entry]]) -> None:
        stored = []
        borrowed = []
        for id, entry in freed:
            self.copies.forget(id)
            if entry.contained == [] or entry.owner or entry.value is None:
                self.actors.let_go(id, entry)
            if entry.owner:
                borrowed.append((id, entry))
            elif type(entry.value) is int:
                stored.append((id, entry.value))
        if stored:
            self.store.free(stored)
        if borrowed:
            self.borrowing.release(borrowed)

    def _undefine(self, fns: list[bytes]) -> None:
        for peer in self.peers.all():
            known = [fn for fn in fns if fn in peer.functions]
            if known:
                peer.functions.difference_update(known)
                peer.send(m.Undefine(known))
        self.submitter.forget_functions(fns)

    def _tick(self) -> bool:
        if not self._welcomed or self.closed:
            return False
        self.arguments.forget_old()
        self.functions.tell_all()
        self._housekeeping()
        self._seals.say()
        busy = bool(self.table.entries) or self.store.pinned > 0
        if self.executor is not None:
            busy = self.executor.tick() or busy
        if not busy:
            self.store.return_chunk()
        return busy

    # -- references ---------------------------------------------------------------------------------------------

    def adopt(self, id: bytes, owner: bytes) -> ObjectRef[Any]:
        """A reference arrived inside a value."""
        with self.lock:
            self.table.adopt(id, b"" if owner == self.process_id else owner)
        if self.loop.dormant:
            self.loop.stir()
        return ObjectRef(id, owner)

    def find(self, id: bytes) -> ObjectRef[Any] | None:
        """One more reference to an object that this process knows already."""
        with self.lock:
            entry = self.table.entries.get(id)
            if entry is None or not entry.refs:  # what is only held goes by itself
                return None
            entry.refs += 1
        return ObjectRef(id, entry.owner or self.process_id)

    def keep_for_good(self, ref: ObjectRef[Any]) -> None:
        """A reference was pickled by hand: nobody can know who will load it, so its object stays until shutdown."""
        with self.lock:
            self.table.hold(ref._id, b"" if ref._owner == self.process_id else ref._owner)

    def new_id(self, index: bytes) -> bytes:
        """The id of the next thing that the current task creates. With the lock held."""
        context = self.context
        context.counter += 1
        return pack_id(context.prefix or context.make_prefix(), context.counter, index)

    # -- put ------------------------------------------------------------------------------------------------------

    def put(self, value: object) -> ObjectRef[Any]:
        data: bytes = b""
        if is_plain(value) and not (type(value) is bytes and len(value) > INLINE_BYTES_MAX):
            data = serialize_plain(value)
        if data and len(data) <= INLINE_BYTES_MAX:
            with self.lock:
                if self.broken:
                    raise self.broken
                id = self.new_id(PUT_INDEX)
                self.table.entries[id] = Entry(1, 0, data)
                if len(dropped) >= DROPPED_MAX:  # no message may come that would be the occasion
                    self._housekeeping()
        else:
            id = self.put_serialized(self.serialize(value, what="the value given to put"))
        if self.loop.dormant:
            self.loop.stir()
        return ObjectRef(id, self.process_id)

    def put_serialized(self, value: Serialized) -> bytes:
        """Store a value of ours under a new id that has one reference."""
        with self.lock:
            if self.broken:
                raise self.broken
            id = self.new_id(PUT_INDEX)
            if dropped and value.size > INLINE_BYTES_MAX:
                self._housekeeping()  # what the last put wrote to may be free again, and is still in the caches
        stored = self.store.write(id, self.process_id, value) if value.size > INLINE_BYTES_MAX else value.to_bytes()
        with self.lock:
            for ref in value.refs:
                self.table.hold(ref._id, b"" if ref._owner == self.process_id else ref._owner)
            inside = [ref._id for ref in value.refs] or None
            self.table.entries[id] = Entry(1, 0, stored, contained=inside)
            if len(dropped) >= LARGE_DROPPED_MAX:
                self._housekeeping()
        return id

    def serialize(self, value: object, *, what: str) -> Serialized:
        try:
            return serialize(value)
        except Exception as error:
            raise explain_unpicklable(value, error, what=what) from error

    def begin_job(self, job: Job) -> None:
        """In a worker; again when its driver is gone, and a detached actor goes on."""
        self.welcome.job_id, self.welcome.namespace, self.driver_id = job.id, job.namespace, job.driver
        take_up(job)

    def capture(self, group: bytes) -> None:
        self.captures = group
        self.forget_prepared()

    def forget_prepared(self) -> None:
        for function in list(self.prepared):
            function._call = None

    def in_group(self, options: Options) -> Options:
        """The options with the placement group that they have from what runs here, if they have one from there."""
        return captured(options, self.captures, group_of(self.executor.resources) if self.executor is not None else b"")

    def new_call(self, function: Function, options: TaskOptions, *, generator: str) -> Call:
        options = self.in_group(options)
        env = self.environment(options.runtime_env)
        needed, retriable = options.resources_needed(), options.max_retries != 0
        with self.lock:
            cls = self.submitter.scheduling_class(needed, env, options.where(), retriable=retriable)
        return new_call(self, function, cls, options, generator)

    def environment(self, runtime_env: dict[str, dict[str, str]]) -> dict[str, str]:
        """The variables of a process: those of this one's environment, and those given."""
        given = {name: os.path.expandvars(value) for name, value in runtime_env.get("env_vars", {}).items()}
        return {**self._inherited_env, **given}

    def inherit(self, env_vars: dict[str, str]) -> None:
        """Give these variables to all tasks and actors that this process starts from now on."""
        self._inherited_env = {**self._inherited_env, **env_vars}

    def export(self, function: Callable[..., Any], name: str) -> Function:
        exported = export_function(function, name)
        with self.lock:
            return self.functions.add(exported)

    def submit(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Start a task; a reference to its result (or what its number of returns makes of that)."""
        if kwargs or not call.plain:
            return self.arguments.submit(call, args, kwargs)
        payload = serialize_inline(args) if args else b""
        if payload is None:
            return self.arguments.submit(call, args, kwargs)
        context = self.context
        submitter = self.submitter
        with self.lock:
            if self.broken:
                raise self.broken
            context.counter += 1
            id = pack_id(context.prefix or context.make_prefix(), context.counter, FIRST_RETURN)
            task = Task(id, call.fn, payload, context.depth)
            self.table.entries[id] = Entry(1, 1, None, b"", task, call)
            cls = call.cls
            queue = cls.queue
            queue.append(task)
            submitter.submitted += 1
            if cls.idle or len(queue) >= cls.push_at:
                if len(queue) >= COLLECT_MAX:
                    self.loop.linger()
                submitter.push(cls)
        if self.loop.dormant:
            self.loop.stir()
        return ObjectRef(id, self.process_id)

    # -- waiting --------------------------------------------------------------------------------------------------

    def block_until(
        self,
        ready: Callable[[], object],
        timeout: float | None,
        missing: Callable[[], ObjectRef[Any] | None] | None = None,
    ) -> bool:
        """Wait until `ready()`; False if the time was over first.

        missing: the reference that is waited for; a wait that lasts long for want of something says so.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if timeout is not None and timeout <= 0:
            return self.loop.wait(ready, deadline)
        with self.blocking():
            if missing is not None:
                return self.values.wait_visibly(ready, deadline, missing)
            return self.loop.wait(ready, deadline)

    def blocking(self) -> AbstractContextManager[None]:
        """Around a wait of user code: a task that waits gives its CPU back meanwhile."""
        return self.executor.blocking() if self.executor is not None else _NOT_IN_A_TASK

    # -- cancel ---------------------------------------------------------------------------------------------------

    def cancel(self, id: bytes, *, force: bool, recursive: bool) -> None:
        with self.lock:
            if force and self.submitter.is_actor_call(id[:16] + FIRST_RETURN):
                raise ValueError(
                    "cancel(force=True) would kill the process of an actor, with all that it holds. Cancel without "
                    "force, or end the actor with skate.kill(handle)."
                )
            self._cancel_locked(id, force, recursive)
            self._housekeeping()
        self.loop.notify()

    def _cancel_locked(self, id: bytes, force: bool, recursive: bool) -> None:
        entry = self.table.entries.get(id)
        if entry is not None and entry.owner:
            self.peers.get(entry.owner).send(m.CancelRef(id, force, recursive))
        else:
            self.submitter.cancel(id[:16] + FIRST_RETURN, force=force, recursive=recursive)

    # -- seeing inside --------------------------------------------------------------------------------------------

    def query(self, what: str, deadline: float | None = None) -> Any:
        """None if no answer came in time."""
        answer = self.request(lambda number: m.Query(number, what), deadline)
        return answer.body if answer is not None else None

    def _on_ask_ref(self, peer: Peer, message: m.AskRef) -> None:
        if message.looks:
            from skate._worker.notice import look_locally

            peer.send(m.Answer(message.request, look_locally(self, message.id)))
            return
        from skate._worker.why import explain_locally

        peer.send(m.Answer(message.request, explain_locally(self, message.id)))

    def statistics(self) -> dict[str, Any]:
        with self.lock:
            return {
                **self.submitter.statistics(),
                **self.actors.statistics(),
                **self.table.statistics(),
                **self.borrowing.statistics(),
                **self.streams.statistics(),
            }
