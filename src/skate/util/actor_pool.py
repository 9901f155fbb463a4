"""Work shared out among actors: each takes the next piece when it is free."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import skate
from skate.exceptions import ActorDiedError, TaskError

V = TypeVar("V")

#: How long an actor that may be dead has to say that it is not. A dead one is known at once.
PROBE_S = 1.0
#: Methods that say or decide what is waited for.
_WAITING_METHODS = ("has_next", "get_next", "get_next_unordered")


class _Outcome(NamedTuple):
    """What became of a call whose actor has been given other work."""

    value: Any = None
    error: Exception | None = None


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
        # These six have the names and the meanings that they have in Ray. Subclasses read and change them, so they are
        # the state of the pool; all below them follows from them.
        self._idle_actors: list[Any] = list(actors)
        #: Calls whose results were not yet fetched: the reference (a tuple of them, if `fn` returned a list) to the
        #: number of the call and its actor.
        self._future_to_actor: dict[Any, tuple[int, Any]] = {}
        #: The same by number: what `fn` returned.
        self._index_to_future: dict[int, Any] = {}
        self._next_task_index = 0
        self._next_return_index = 0
        #: Submissions that wait for an actor: `fn` and the value.
        self._pending_submits: list[tuple[Callable[[Any, Any], Any], Any]] = []
        #: Calls that run, with their actors: those of `_future_to_actor` that are not done, as far as `_all_running`
        #: has looked, which is up to `_looked_at`. To look at all of them would be slow while thousands are done.
        self._running: dict[Any, Any] = {}
        self._looked_at = 0
        #: Calls that are done and not yet fetched, in the order in which that was noticed. Their actors are free again.
        self._done: dict[Any, _Outcome] = {}
        #: Calls that run and whose results are no longer wanted, with their actors.
        self._dropped: dict[Any, Any] = {}
        #: Submissions whose `fn` raised when their turn came, by number.
        self._failed: dict[int, Exception] = {}
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
        self._pending_submits.clear()
        self._failed.clear()
        for index in list(self._index_to_future):
            self._drop(index)
        self._done.clear()
        self._next_return_index = self._next_task_index
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
        if self._idle_actors:
            self._start(fn, value, self._idle_actors.pop(0))
        else:
            self._pending_submits.append((fn, value))

    def has_next(self) -> bool:
        """Whether there is a result to fetch, now or later."""
        return bool(self._future_to_actor or self._failed or self._pending_submits)

    def get_next(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """The result of the oldest submission that was not fetched.

            >>> pool.get_next(timeout=5)

        After `timeout` seconds it is a TimeoutError, and the next call waits for the same result; with
        `ignore_if_timedout` that submission is dropped. StopIteration if there is nothing to fetch.
        """
        return self._fetch(self._oldest_if_done, timeout, ignore_if_timedout)

    def get_next_unordered(self, timeout: float | None = None, ignore_if_timedout: bool = False) -> Any:
        """The next result that is ready, of whichever submission.

            >>> pool.get_next_unordered(timeout=5)

        `timeout` and `ignore_if_timedout` as in `get_next`: the oldest submission that runs is the one dropped.
        """
        return self._fetch(self._any_that_is_done, timeout, ignore_if_timedout)

    # -- the actors ----------------------------------------------------------------------------------------------------

    def has_free(self) -> bool:
        """Whether an actor is free and no work waits for one."""
        return bool(self._idle_actors) and not self._pending_submits

    def pop_idle(self) -> Any:
        """Take a free actor out of the pool; None if none is free.

        >>> actor = pool.pop_idle()
        """
        return self._idle_actors.pop(0) if self.has_free() else None

    def push(self, actor: Any) -> None:
        """Add an actor to the pool. A ValueError if it is in there.

        >>> pool.push(Worker.remote())
        """
        if actor in self._idle_actors or actor in self._all_running().values():
            raise ValueError(f"{actor!r} is in this pool already, and an actor can be in it once only.")
        self._return_actor(actor)

    # -- within --------------------------------------------------------------------------------------------------------

    def _start(self, fn: Callable[[Any, V], Any], value: V, actor: Any) -> None:
        """Raises what `fn` raises; the actor stays in the pool then."""
        try:
            future = fn(actor, value)
            if not isinstance(future, skate.ObjectRef) and not (
                isinstance(future, list) and future and all(isinstance(ref, skate.ObjectRef) for ref in future)
            ):
                raise TypeError(
                    f"the function given to ActorPool returned {future!r}, and it must return a reference.\n"
                    "  next: lambda actor, value: actor.method.remote(value)."
                )
            key = _key(future)
            if key in self._future_to_actor:
                raise ValueError(
                    f"the function given to ActorPool returned {future!r} for two submissions.\n"
                    "  why:  a result is found by its reference.\n"
                    "  next: lambda actor, value: actor.method.remote(value) makes a reference for each."
                )
        except BaseException:
            self._idle_actors.append(actor)
            raise
        self._future_to_actor[key] = (self._next_task_index, actor)
        self._index_to_future[self._next_task_index] = future
        self._next_task_index += 1

    def _return_actor(self, actor: Any, is_alive: bool = True) -> None:
        """An actor has become free, or has died.

        One that is free already, or has other work, stays as it is. A subclass that fetches by the attributes also
        returns actors whose results were collected before, and those were returned then.
        """
        if is_alive:
            if actor in self._idle_actors or actor in self._all_running().values():
                return
            self._idle_actors.append(actor)
        while self._pending_submits and self._idle_actors:
            fn, value = self._pending_submits.pop(0)
            try:
                self.submit(fn, value)
            except Exception as error:  # noqa: BLE001 - it is raised where the result is fetched
                self._failed[self._next_task_index] = error
                self._next_task_index += 1
            else:
                return

    def _oldest(self) -> int | None:
        """The number of the oldest call that was not fetched; None if none of the submissions was started."""
        return min([next(iter(numbers)) for numbers in (self._index_to_future, self._failed) if numbers], default=None)

    def _oldest_if_done(self) -> int | None:
        index = self._oldest()
        is_done = index in self._failed or (index is not None and _key(self._index_to_future[index]) in self._done)
        return index if is_done else None

    def _any_that_is_done(self) -> int | None:
        if self._failed:
            return next(iter(self._failed))
        while self._done:
            key = next(iter(self._done))
            if key in self._future_to_actor:
                return self._future_to_actor[key][0]
            del self._done[key]  # a subclass has fetched it
        return None

    def _fetch(self, look: Callable[[], int | None], timeout: float | None, ignore_if_timedout: bool) -> Any:
        if not self.has_next():
            raise StopIteration("there are no more results: everything that was submitted has been fetched.")
        deadline = None if timeout is None else time.monotonic() + timeout
        index = look()
        while index is None:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._collect(left_s):
                text = f"no result came within {timeout:g} s."
                if not ignore_if_timedout:
                    raise TimeoutError(text + "\n  next: call again; the work goes on.")
                oldest = self._oldest()
                if oldest is not None:
                    self._drop(oldest)
                else:
                    self._pending_submits.pop(0)
                raise TimeoutError(text + " The submission was dropped: its result will not be fetched.")
            index = look()
        self._next_return_index = max(self._next_return_index, index + 1)
        outcome = self._take(index)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def _take(self, index: int) -> _Outcome:
        """A call that is done is fetched."""
        if index in self._failed:
            return _Outcome(error=self._failed.pop(index))
        key = _key(self._index_to_future.pop(index))
        del self._future_to_actor[key]
        return self._done.pop(key)

    def _drop(self, index: int) -> None:
        """Nothing of this call is wanted. If it runs, it keeps its actor until it ends.

        A subclass with a method of its own from Ray expects what Ray does: the actor is free at once, so something runs
        whenever something waits.
        """
        self._next_return_index = max(self._next_return_index, index + 1)
        if index in self._failed:
            del self._failed[index]
            return
        key = _key(self._index_to_future.pop(index))
        _, actor = self._future_to_actor.pop(key)
        self._running.pop(key, None)
        if self._done.pop(key, None) is not None:
            return
        if any(getattr(type(self), name) is not getattr(ActorPool, name) for name in _WAITING_METHODS):
            self._return_actor(actor)
        else:
            self._dropped[key] = actor

    def _all_running(self) -> dict[Any, Any]:
        for index in range(self._looked_at, self._next_task_index):
            key = _key(self._index_to_future.get(index))
            if key in self._future_to_actor:
                self._running[key] = self._future_to_actor[key][1]
        self._looked_at = self._next_task_index
        # One that a subclass took out is the subclass's own affair.
        self._running = {key: actor for key, actor in self._running.items() if key in self._future_to_actor}
        return self._running | self._dropped

    def _collect(self, timeout: float | None) -> bool:
        """Wait until some call is done, and give its actor the next one; False if none is in time."""
        running = self._all_running()
        if not running:
            raise ValueError(
                f"{len(self._pending_submits)} submissions wait, and the pool has no actor to run them.\n"
                f"  why:  {self._last_death or 'its actors were taken out with pop_idle().'}\n"
                "  next: push(actor) adds one."
            ) from self._last_death
        # The last reference stands for the call: the values of one call come together.
        by_ref = {key[-1] if isinstance(key, tuple) else key: key for key in running}
        ready, _ = skate.wait(list(by_ref), timeout=timeout)
        for ref in ready:
            key = by_ref[ref]
            try:
                outcome = _Outcome(skate.get(list(key) if isinstance(key, tuple) else key))
            except Exception as error:  # noqa: BLE001 - it is raised where the result is fetched
                outcome = _Outcome(error=error)
            if self._dropped.pop(key, None) is None:
                del self._running[key]
                self._done[key] = outcome
            actor, failure = running[key], outcome.error
            if isinstance(failure, ActorDiedError) and not isinstance(failure, TaskError) and _is_dead(actor):
                self._last_death = failure
            else:
                self._return_actor(actor)
        return bool(ready)


def _key(future: Any) -> Any:
    """What stands for a call in `_future_to_actor`."""
    return tuple(future) if isinstance(future, list) else future


def _is_dead(actor: Any) -> bool:
    """A call can fail with ActorDiedError because another actor died, which made one of its arguments."""
    probe = actor.__ray_ready__.remote()
    ready, _ = skate.wait([probe], timeout=PROBE_S)
    try:
        skate.get(ready)
    except ActorDiedError:
        return True
    return False
