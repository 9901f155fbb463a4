"""Requests of this process on their way to replicas.

    handle.remote() ──► Dispatcher.send ──► Router (pure) ──► replica.call.remote(...)
                             ▲                                      │
                             └────────── an answer is there ◄───────┘

Idea: decisions are made under the lock of the dispatcher, and what they say is done after it is released: a callback of
the runtime may come at any time, in any thread.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import deque
from functools import partial
from typing import Any

import skate
from skate.exceptions import (
    ActorDiedError,
    ActorError,
    ActorUnavailableError,
    NotInitializedError,
    SerializationError,
    TaskError,
)
from skate.serve.directory import directory
from skate.serve.exceptions import BackPressureError, DeploymentUnavailableError, RequestCancelledError
from skate.serve.records import NAMESPACE, Table, replica_name
from skate.serve.reporter import Reporter
from skate.serve.request import Request as Request
from skate.serve.router import Full, Router, Seat

#: A request that may be run twice is sent so often.
ATTEMPTS = 3
#: What the error of a replica says that has ended in order: it had answered all that it had begun.
LEFT = "exit_actor"


class Dispatcher:
    """The requests of this process to one deployment."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._lock = threading.Lock()
        #: Requests in flight whose answers the runtime does not tell of: who waits for them does.
        self._unwatched: set[Request] = set()
        context = skate.get_runtime_context()
        self.router = Router(context.get_node_id())
        self._number = 0
        self.deleted = False
        #: Where the HTTP side of each replica is reached, pickled.
        self.tunnels: dict[str, bytes] = {}
        #: Responses that were dropped without a look, since the latest request.
        self._dropped: deque[Request] = deque()
        self._directory = directory()
        if not self._directory.watch(key, self._on_table):
            app, _, name = key.partition("#")
            raise DeploymentUnavailableError(
                f"there is no deployment {name} in the application {app}.\n  next: serve.status() shows what there is."
            )

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self.router.waiting)

    @property
    def ended(self) -> bool:
        """Whether Skate was shut down since this was made."""
        return self._directory.ended

    def send(self, request: Request) -> None:
        """Send a request, or let it wait. Raises nothing: what is wrong becomes the request's error."""
        error: BaseException | None = None
        seat: Seat | None = None
        crowded: list[Request] = []
        if self._dropped:
            self._watch_dropped()
        with self._lock:
            if self.deleted:
                error = self._was_deleted()
            else:
                try:
                    seat = self.router.submit(request, request.model)
                except Full:
                    error = BackPressureError(deployment=self.key.partition("#")[2], waiting=self.waiting)
                if seat is None:  # places that are free already may count as taken
                    crowded, self._unwatched = list(self._unwatched), set()
        if seat is not None:
            self._call(request, seat)
            return
        for each in crowded:
            self._watch(each)
        if error is not None:
            request.bound(None, None, error)
            if isinstance(error, BackPressureError):
                self.refused()
        else:
            _reporter.wake()

    def refused(self) -> None:
        """A request was refused in this process, because too many wait: the controller counts it."""
        _reporter.refused(self.key)

    def send_later(self, request: Request) -> None:
        """Hold a request back, because it lacks arguments, until `send_now`."""
        request.lacks = True

    def send_now(self, request: Request, error: BaseException | None) -> None:
        """A request that was held back lacks nothing any more, or has an error; it may be cancelled by now."""
        with self._lock:
            held, request.lacks = request.lacks, False
        if held and error is not None:
            request.bound(None, None, error)
        elif held:
            self.send(request)

    def _call(self, request: Request, seat: Seat) -> None:
        """Send a request to a replica; and if that fails, those that wait for the place."""
        chosen: tuple[Request, Seat] | None = (request, seat)
        while chosen is not None:
            request, seat = chosen
            request.attempts += 1
            request.counted = seat
            try:
                ref = request.send_to(seat)
            except Exception as error:  # noqa: BLE001 - arguments that cannot be sent are the caller's to hear of
                name = f"{request.method} of {self.key}"
                request.bound(None, None, said_of(name, error) if isinstance(error, SerializationError) else error)
                chosen = self._free(request)
                continue
            request.bound(seat, ref)
            if request.is_cancelled and ref is not None:
                skate.cancel(ref)
            with self._lock:
                watched = request.stream or bool(self.router.waiting)
                if not watched and request.counted is seat:  # else its answer has come already
                    self._unwatched.add(request)
            if watched:
                self._watch(request)
            return

    def _watch(self, request: Request) -> None:
        """Have the runtime tell when the answer is there."""
        ref = request.ref
        if ref is not None:
            # A stream is not kept: the replica goes on with it until the caller has dropped it.
            ended = ref.completed() if request.stream else ref
            ended.when_ready(partial(self._arrived, request, request.attempts, ended))

    def dropped(self, request: Request) -> None:
        """No caller will look at the response. May be said by the garbage collector, so it takes no lock."""
        self._dropped.append(request)

    def _watch_dropped(self) -> None:
        with contextlib.suppress(IndexError):  # another thread was faster
            while True:
                self._watch(self._dropped.popleft())

    def _arrived(self, request: Request, attempt: int, ended: Any) -> None:
        """An answer is there. Called by the runtime, in a thread of its own."""
        if request.attempts != attempt or not request.is_bound:
            return  # another attempt holds a place by now
        if ended.has_failed():
            # Reading an error may run code of the user.
            ref = request.ref
            ended.future().add_done_callback(lambda future: self._failed(request, ref, future.exception()))
        else:
            self.answered(request)

    def answered(self, request: Request) -> None:
        """The place of a request is free; said once or more, by the runtime and by those who wait for the answer."""
        chosen = self._free(request)
        if chosen is not None:
            self._call(*chosen)

    def _free(self, request: Request) -> tuple[Request, Seat] | None:
        """Free the place of a request; the request that waits longest, and its place."""
        with self._lock:
            seat, request.counted = request.counted, None
            if seat is None:
                return None
            self._unwatched.discard(request)
            self.router.answered(seat)
            return self.router.next() if self.router.waiting else None

    def lost(self, request: Request) -> None:
        """The replica of a request cannot be reached, so it is as good as dead: no others go there."""
        with self._lock:
            if request.seat is not None:
                self.router.died(request.seat)

    def _failed(self, request: Request, ref: Any, error: BaseException | None) -> None:
        if not self.repeats(request, ref, error):
            self.answered(request)

    def repeats(self, request: Request, ref: Any, error: BaseException | None) -> bool:
        """Whether a request goes on with another replica after an error; it is sent there once, by the first who asks.

        A replica that has left in order had answered all that it had begun, so it has not run the request. What was
        lost in another way may have run, and is run again only if the caller said that this does no harm.
        """
        if not isinstance(error, (ActorDiedError, ActorUnavailableError)) or isinstance(error, TaskError):
            return False
        again: tuple[Request, Seat] | None = None
        with self._lock:
            if request.ref is not ref or not request.is_bound:
                return True
            seat = request.seat
            if seat is None or not _is_of(error, seat):  # it is the error of an argument
                return False
            left = isinstance(error, ActorDiedError) and LEFT in error.reason
            if isinstance(error, ActorDiedError):
                self.router.died(seat)
            may = left or (request.idempotent and request.attempts < ATTEMPTS)
            if not may or request.is_cancelled or request.has_begun:
                return False
            self._unwatched.discard(request)
            if request.counted is not None:
                self.router.answered(request.counted)
                request.counted = None
            refused = self.deleted
            if not refused:
                request.unbound()
                found = self.router.again(request, request.model)
                again = None if found is None else (request, found)
        if refused:
            request.bound(None, None, self._was_deleted())
        elif again is not None:
            self._call(*again)
        else:
            _reporter.wake()
            self._watch_all()
        return True

    def _watch_all(self) -> None:
        """A request waits: places that are free already may count as taken."""
        with self._lock:
            crowded, self._unwatched = list(self._unwatched), set()
        for each in crowded:
            self._watch(each)

    def cancel(self, request: Request) -> None:
        """Take a request out of the queue, or out of its replica."""
        request.is_cancelled = True
        with self._lock:
            waited = request.lacks or self.router.cancel(request)
            request.lacks = False
        if waited:
            request.bound(None, None, RequestCancelledError(request.id))
        elif request.ref is not None:
            skate.cancel(request.ref)

    def _send_waiting(self) -> None:
        while True:
            with self._lock:
                chosen = self.router.next()
            if chosen is None:
                return
            self._call(*chosen)

    def _on_table(self, table: Table | None) -> None:
        """Take note that the replicas have changed. None: Skate was shut down. Runs in any thread."""
        if table is None:
            return self._refuse(NotInitializedError(call="a request that waited for a replica"))
        reached: dict[str, Any] = {}
        for member in table.members:
            if member.id not in self.router.seats and skate.is_initialized():
                with contextlib.suppress(ValueError):  # it is dead already; the next table will say so
                    reached[member.id] = skate.get_actor(replica_name(self.key, member.id), NAMESPACE)
        with self._lock:
            if table.number < self._number:
                return None
            self._number = table.number
            self.tunnels = {each.id: each.tunnel for each in table.members}
            there = self.router.seats.keys() | reached.keys()
            members = [(each.id, each.node) for each in table.members if each.id in there]
            self.router.update(members, table.max_ongoing, table.max_queued, reached.__getitem__)
            self.deleted = table.deleted
        if table.deleted:
            _forget(self)
            self._refuse(self._was_deleted())
        self._send_waiting()
        return None

    def _refuse(self, error: BaseException) -> None:
        """Fail all requests that wait."""
        with self._lock:
            refused = [request for request, _ in self.router.waiting]
            self.router.waiting.clear()
        for request in refused:
            request.bound(None, None, error)

    def _was_deleted(self) -> DeploymentUnavailableError:
        app, _, name = self.key.partition("#")
        return DeploymentUnavailableError(f"deployment {name} of the application {app} was deleted.")


def said_of(name: str, error: SerializationError) -> SerializationError:
    """The same error, in words of what the caller has called. Callers know nothing of `Replica.call`."""
    text = _ARGUMENT.sub(lambda found: f"the argument at position {int(found[1]) - 1} of {name}", str(error))
    text = _VALUE.sub(lambda found: f"{found[1]} {name}", text).replace("the element 0 of type", "an object of type", 1)
    return SerializationError(text, what=error.what, variable=error.variable, reason=error.reason)


#: How the core speaks of what `Replica.call` and `stream` are given, behind the name of the method, and give.
_ARGUMENT = re.compile(r"\Athe argument at position (\d+) of Replica\.\w+")
_VALUE = re.compile(r"\A(the argument '\w+' of|the value returned by) Replica\.\w+")


def _is_of(error: ActorError, seat: Seat) -> bool:
    """Whether a replica is what an error speaks of. Errors of arguments speak of other actors."""
    return bool(error.actor_id == seat.target._actor_id.hex())


_dispatchers: dict[str, Dispatcher] = {}
_making = threading.Lock()


def dispatcher(key: str) -> Dispatcher:
    """What sends the requests of this process to a deployment."""
    if not skate.is_initialized():
        app, _, name = key.partition("#")
        raise NotInitializedError(call=f"a request to deployment {name} of the application {app}")
    with _making:
        found = _dispatchers.get(key)
        if found is None or found.ended:
            found = _dispatchers[key] = Dispatcher(key)
        return found


def _forget(each: Dispatcher) -> None:
    with _making:
        if _dispatchers.get(each.key) is each:
            del _dispatchers[each.key]
            each._directory.forget(each.key)


_reporter = Reporter(lambda: {key: each.waiting for key, each in list(_dispatchers.items()) if each.waiting})
