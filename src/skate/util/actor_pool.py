"""Work shared out among actors: each takes the next piece when it is free."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import skate
from skate.exceptions import ActorDiedError, TaskError

V = TypeVar("V")
R = TypeVar("R")

#: How long an actor that may be dead has to say that it is not. A dead one is known at once.
PROBE_S = 1.0


class _Call(Generic[V, R]):
    """One submission, from the line to its result."""

    __slots__ = ("error", "function", "is_done", "refs", "value", "wanted")

    def __init__(self, function: Callable[[Any, V], Any], value: V) -> None:
        self.function = function
        self.value: V | None = value
        #: What `function` returned: a reference, or a list of them.
        self.refs: Any = None
        self.is_done = False
        #: The result, once it is done.
        self.wanted: R | None = None
        self.error: Exception | None = None


class ActorPool:
    """A fixed set of actors and a line of work for them.

        >>> pool = ActorPool([Worker.remote(), Worker.remote()])
        >>> list(pool.map(lambda actor, value: actor.double.remote(value), [1, 2, 3, 4]))
        [2, 4, 6, 8]

    Each actor has one call at a time; further submissions wait in line, and are started inside `get_next` and
    `get_next_unordered` as actors become free. An error of a call is raised when its result is fetched, and its actor
    goes on; an actor that died leaves the pool. Not for use from several threads at once.
    """

    def __init__(self, actors: Iterable[Any]) -> None:
        self._idle: deque[Any] = deque(actors)
        self._waiting: deque[_Call[Any, Any]] = deque()
        #: Calls that run, each with its actor.
        self._running: dict[_Call[Any, Any], Any] = {}
        #: All that were submitted and whose results were not yet fetched, in that order.
        self._submitted: dict[_Call[Any, Any], None] = {}
        #: Those of them that are done, in the order in which that was noticed.
        self._done: dict[_Call[Any, Any], None] = {}
        self._last_death: ActorDiedError | None = None

    # -- many at once --------------------------------------------------------------------------------------------------

    def map(self, fn: Callable[[Any, V], Any], values: Iterable[V]) -> Iterator[Any]:
        """Apply `fn(actor, value)`, which returns a reference, to every value: the results in the order of the values.

            >>> list(pool.map(lambda actor, value: actor.double.remote(value), range(4)))

        Results of earlier submissions that were not fetched are dropped. Work starts at once, before the first result
        is asked for.
        """
        return self._map(fn, values, self.get_next)

    def map_unordered(self, fn: Callable[[Any, V], Any], values: Iterable[V]) -> Iterator[Any]:
        """Like `map`, but results come as they are ready.

        >>> sorted(pool.map_unordered(lambda actor, value: actor.double.remote(value), range(4)))
        """
        return self._map(fn, values, self.get_next_unordered)

    def _map(self, fn: Callable[[Any, V], Any], values: Iterable[V], fetch: Callable[[], Any]) -> Iterator[Any]:
        self._waiting.clear()
        # What still runs keeps its actor until it ends, and its result goes nowhere.
        self._submitted.clear()
        self._done.clear()
        for value in values:
            self.submit(fn, value)

        def results() -> Iterator[Any]:
            while self.has_next():
                yield fetch()

        return results()

    # -- one at a time -------------------------------------------------------------------------------------------------

    def submit(self, fn: Callable[[Any, V], Any], value: V) -> None:
        """Run `fn(actor, value)` on a free actor, or put it in line.

        >>> pool.submit(lambda actor, value: actor.double.remote(value), 1)
        """
        call: _Call[V, Any] = _Call(fn, value)
        if self._idle:
            self._start(call, self._idle.popleft())
        else:
            self._waiting.append(call)
        self._submitted[call] = None

    def has_next(self) -> bool:
        """Whether there is a result to fetch, now or later."""
        return bool(self._submitted)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """The result of the oldest submission that was not fetched.

            >>> pool.get_next(timeout=5)

        After `timeout` seconds it is a TimeoutError, and the next call waits for the same result; with
        `ignore_if_timedout` that submission is dropped. StopIteration if there is nothing to fetch.
        """
        self._check_next()
        call = next(iter(self._submitted))
        return self._fetch(lambda: call if call.is_done else None, timeout, ignore_if_timedout)

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """The next result that is ready, of whichever submission.

            >>> pool.get_next_unordered(timeout=5)

        `timeout` and `ignore_if_timedout` as in `get_next`: the oldest submission that runs is the one dropped.
        """
        self._check_next()
        return self._fetch(lambda: next(iter(self._done), None), timeout, ignore_if_timedout)

    # -- the actors ----------------------------------------------------------------------------------------------------

    def has_free(self) -> bool:
        """Whether an actor is free and no work waits for one."""
        return bool(self._idle) and not self._waiting

    def pop_idle(self) -> Any:
        """Take a free actor out of the pool; None if none is free.

        >>> actor = pool.pop_idle()
        """
        return self._idle.popleft() if self.has_free() else None

    def push(self, actor: Any) -> None:
        """Add an actor to the pool. A ValueError if it is in there.

        >>> pool.push(Worker.remote())
        """
        if actor in self._idle or actor in self._running.values():
            raise ValueError(f"{actor!r} is in this pool already, and an actor can be in it once only.")
        self._return(actor)

    # -- within --------------------------------------------------------------------------------------------------------

    def _start(self, call: _Call[Any, Any], actor: Any) -> None:
        """Raises what `fn` raises; the actor stays in the pool then."""
        try:
            call.refs = call.function(actor, call.value)
            if not isinstance(call.refs, skate.ObjectRef) and not (
                isinstance(call.refs, list) and call.refs and all(isinstance(ref, skate.ObjectRef) for ref in call.refs)
            ):
                raise TypeError(
                    f"the function given to ActorPool returned {call.refs!r}, and it must return a reference.\n"
                    "  next: lambda actor, value: actor.method.remote(value)."
                )
        except BaseException:
            self._idle.append(actor)
            raise
        call.value = None
        self._running[call] = actor

    def _return(self, actor: Any) -> None:
        """An actor has become free."""
        while self._waiting:
            call = self._waiting.popleft()
            try:
                self._start(call, actor)
            except Exception as error:  # noqa: BLE001 - it is raised where the result is fetched
                self._idle.remove(actor)
                self._finish(call, error=error)
            else:
                return
        self._idle.append(actor)

    def _finish(self, call: _Call[Any, Any], *, value: Any = None, error: Exception | None = None) -> None:
        call.is_done, call.wanted, call.error, call.refs = True, value, error, None
        if call in self._submitted:
            self._done[call] = None

    def _check_next(self) -> None:
        if not self.has_next():
            raise StopIteration("there are no more results: everything that was submitted has been fetched.")

    def _fetch(
        self, look: Callable[[], _Call[Any, Any] | None], timeout: float | None, ignore_if_timedout: bool
    ) -> Any:
        deadline = None if timeout is None else time.monotonic() + timeout
        call = look()
        while call is None:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._collect(left_s):
                text = f"no result came within {timeout:g} s."
                if not ignore_if_timedout:
                    raise TimeoutError(text + "\n  next: call again; the work goes on.")
                self._drop(next(iter(self._submitted)))
                raise TimeoutError(text + " The submission was dropped: its result will not be fetched.")
            call = look()
        self._drop(call)
        if call.error is not None:
            raise call.error
        return call.wanted

    def _drop(self, call: _Call[Any, Any]) -> None:
        self._submitted.pop(call, None)
        self._done.pop(call, None)
        if call in self._waiting:
            self._waiting.remove(call)

    def _collect(self, timeout: float | None) -> bool:
        """Wait until some call is done, and give its actor the next one; False if none is in time."""
        if not self._running:
            raise ValueError(
                f"{len(self._waiting)} submissions wait, and the pool has no actor to run them.\n"
                f"  why:  {self._last_death or 'its actors were taken out with pop_idle().'}\n"
                "  next: push(actor) adds one."
            ) from self._last_death
        by_ref = {_last(call): call for call in self._running}
        ready, _ = skate.wait(list(by_ref), timeout=timeout)
        for ref in ready:
            call = by_ref[ref]
            actor = self._running[call]
            value: Any = None
            failure: Exception | None = None
            try:
                value = skate.get(call.refs)
            except Exception as error:  # noqa: BLE001 - it is raised where the result is fetched
                failure = error
            del self._running[call]
            self._finish(call, value=value, error=failure)
            if isinstance(failure, ActorDiedError) and not isinstance(failure, TaskError) and _is_dead(actor):
                self._last_death = failure
            else:
                self._return(actor)
        return bool(ready)


def _last(call: _Call[Any, Any]) -> Any:
    """The reference that stands for the call: the values of one call come together."""
    return call.refs[-1] if isinstance(call.refs, list) else call.refs


def _is_dead(actor: Any) -> bool:
    """A call can fail with ActorDiedError because another actor died, which made one of its arguments."""
    probe = actor.__ray_ready__.remote()
    ready, _ = skate.wait([probe], timeout=PROBE_S)
    try:
        skate.get(ready)
    except ActorDiedError:
        return True
    return False
