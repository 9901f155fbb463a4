"""`multiprocessing.Pool` on Skate: the same methods, arguments, results and errors.

What is different, and better: a process that dies fails its own call with ActorDiedError instead of leaving it waiting
for ever; an initializer that raises fails the calls with its error; calls that a `terminate` cuts off fail with
TaskCancelledError; functions and results may be anything that cloudpickle takes, lambdas and closures among them.
"""

from __future__ import annotations

import itertools
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from multiprocessing import TimeoutError
from typing import Any, Generic, TypeVar

import skate
from skate.util._crew import Answer, Crew, Job, cluster_cpus, log

T = TypeVar("T")

#: Chunks of one imap that are ahead of the workers, for each of them: enough that none waits for the iterable.
AHEAD_PER_WORKER = 2


class AsyncResult(Generic[T]):
    """What the `_async` methods return: the result of a call, now or later.

    >>> result = pool.apply_async(pow, (2, 10))
    >>> result.get(timeout=5)
    1024
    """

    def __init__(
        self,
        pool: Pool,
        callback: Callable[[T], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> None:
        # A pool that is not held by its user lives until its results are there.
        self._pool: Pool | None = pool
        self._callback = callback
        self._error_callback = error_callback
        self._event = threading.Event()
        self._value: T | None = None
        self._error: BaseException | None = None

    def ready(self) -> bool:
        """Whether the call has completed."""
        return self._event.is_set()

    def successful(self) -> bool:
        """Whether it completed without an error; a ValueError if it has not completed."""
        if not self.ready():
            raise ValueError(f"{self!r} is not ready: wait() for it first.")
        return self._error is None

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it has completed, or so many seconds."""
        self._wait(timeout)

    def _wait(self, timeout: float | None) -> bool:
        return self._event.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))

    def get(self, timeout: float | None = None) -> T:
        """The value, or the error of the call; `multiprocessing.TimeoutError` after so many seconds."""
        if not self._wait(timeout):
            raise TimeoutError(f"no result came within {timeout:g} s; the call goes on.")
        if self._error is not None:
            raise self._error
        value: T = self._value  # type: ignore[assignment]
        return value

    def _settle(self, value: Any, error: BaseException | None) -> None:
        self._value, self._error = value, error
        callback: Callable[[Any], object] | None = self._callback if error is None else self._error_callback
        try:
            if callback is not None:
                callback(value if error is None else error)
        except Exception:  # noqa: BLE001 - a mistake in a callback must not stop the pool
            log.exception("the callback %r of a pool raised", callback)
        finally:
            self._event.set()
            self._pool = self._callback = self._error_callback = None


class _ApplyJob(Job):
    def __init__(self, result: AsyncResult[Any], function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        super().__init__(function, [args], kwargs)
        self.result = result

    def succeed(self, answer: Answer) -> None:
        self.result._settle(None if answer.error else answer.values[0], answer.error)

    def fail(self, error: BaseException) -> None:
        self.result._settle(None, error)


class _MapResult(AsyncResult[list[Any]]):
    """The result of `map_async`: complete when every chunk is, with the first error if there was one."""

    def __init__(self, pool: Pool, callback: Any, error_callback: Any, chunks: int) -> None:
        super().__init__(pool, callback, error_callback)
        self._chunks: list[list[Any]] = [[]] * chunks
        self._left = chunks
        self._first_error: BaseException | None = None

    def _settle_chunk(self, index: int, values: list[Any], error: BaseException | None) -> None:
        """Called in the crew's thread only."""
        self._chunks[index] = values
        self._first_error = self._first_error or error
        self._left -= 1
        if self._left <= 0:
            values = [] if self._first_error else list(itertools.chain.from_iterable(self._chunks))
            self._chunks = []
            self._settle(values, self._first_error)


class _MapJob(Job):
    def __init__(self, result: _MapResult, index: int, function: Callable[..., Any], calls: Any) -> None:
        super().__init__(function, calls)
        self.result = result
        self.index = index

    def succeed(self, answer: Answer) -> None:
        self.result._settle_chunk(self.index, answer.values, answer.error)

    def fail(self, error: BaseException) -> None:
        self.result._settle_chunk(self.index, [], error)


class IMapIterator(Iterator[T]):
    """What `imap` and `imap_unordered` return: the results as they come.

    An error of a call is raised in its place, and the iterator goes on after it. The other calls of its chunk that come
    after it are not made, as in the standard library.
    """

    def __init__(self, pool: Pool, *, ordered: bool) -> None:
        self._pool: Pool | None = pool
        self._ordered = ordered
        self._changed = threading.Condition()
        self._ready: deque[tuple[Any, BaseException | None]] = deque()
        #: Chunks that came before their turn.
        self._early: dict[int, tuple[list[Any], BaseException | None]] = {}
        self._turn = 0
        self._arrived = 0
        #: How many chunks there are; None until the iterable has ended.
        self._total: int | None = None
        #: Of the iterable: it comes after the results of what was read.
        self._last_error: BaseException | None = None

    def __iter__(self) -> IMapIterator[T]:
        return self

    def __next__(self) -> T:
        return self.next()

    def next(self, timeout: float | None = None) -> T:
        """The next result; `multiprocessing.TimeoutError` if there is none within so many seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._ready:
                if self._total is not None and self._arrived == self._total:
                    self._pool = None
                    error, self._last_error = self._last_error, None
                    raise error or StopIteration
                left_s = None if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
                if (left_s is not None and left_s <= 0) or not self._changed.wait(left_s):
                    if self._ready:
                        break
                    raise TimeoutError(f"no result came within {timeout:g} s; the calls go on.")
            value, error = self._ready.popleft()
        if error is not None:
            raise error
        taken: T = value
        return taken

    def _settle_chunk(self, index: int, values: list[Any], error: BaseException | None) -> None:
        with self._changed:
            self._arrived += 1
            if self._ordered:
                self._early[index] = values, error
                while self._turn in self._early:
                    self._add(*self._early.pop(self._turn))
                    self._turn += 1
            else:
                self._add(values, error)
            self._changed.notify_all()

    def _add(self, values: list[Any], error: BaseException | None) -> None:
        self._ready.extend((value, None) for value in values)
        if error is not None:
            self._ready.append((None, error))

    def _end(self, total: int, error: BaseException | None) -> None:
        with self._changed:
            self._total, self._last_error = total, error
            self._changed.notify_all()


class _IMapJob(Job):
    def __init__(self, feed: _Feed, index: int, calls: Any) -> None:
        super().__init__(feed.function, calls)
        self.feed = feed
        self.index = index

    def succeed(self, answer: Answer) -> None:
        self._settle(answer.values, answer.error)

    def fail(self, error: BaseException) -> None:
        self._settle([], error)

    def _settle(self, values: list[Any], error: BaseException | None) -> None:
        self.feed.results._settle_chunk(self.index, values, error)
        self.feed.on_settled()


class _Feed:
    """Reads the iterable of an imap, no further ahead than the workers can use.

    The reading must not depend on who takes the results: they may be taken after close() and join(). So a chunk that is
    done draws the next one. That is for sequences, which are there; any other iterable may wait for something, even
    for earlier results, and is read in a thread of its own.
    """

    def __init__(
        self, crew: Crew, results: IMapIterator[Any], function: Callable[..., Any], items: Iterable[Any], chunksize: int
    ) -> None:
        self.function = function
        self.results = results
        self._crew = crew
        self._chunksize = chunksize
        self._items = iter(items)
        self._count = 0
        self._lock = threading.Lock()
        self._is_over = False
        ahead = max(2, AHEAD_PER_WORKER * crew.size)
        crew.hold()
        if isinstance(items, (list, tuple, range)):
            self._room = None
            for _ in range(ahead):
                self._submit_next()
        else:
            self._room = threading.Semaphore(ahead)
            threading.Thread(target=self._read_all, name="skate-imap", daemon=True).start()

    def on_settled(self) -> None:
        """In the crew's thread: a chunk is done."""
        if self._room is not None:
            self._room.release()
        else:
            self._submit_next()

    def _read_all(self) -> None:
        assert self._room is not None
        while self._submit_next():
            self._room.acquire()

    def _submit_next(self) -> bool:
        """Submit one chunk more; False if there is none."""
        with self._lock:
            if self._is_over:
                return False
            error = self._crew.final_error
            calls: list[tuple[Any]] = []
            if error is None:
                try:
                    calls = [(item,) for item in itertools.islice(self._items, self._chunksize)]
                except Exception as raised:  # noqa: BLE001 - whoever takes the results gets it
                    # It takes the chunk with it that it came in, as in the standard library.
                    error = raised
            if calls:
                self._count += 1
                self._crew.submit(_IMapJob(self, self._count - 1, calls))
                return True
            self._is_over = True
        self.results._end(self._count, error)
        self._crew.release()
        return False


class Pool:
    """A pool of processes, as `multiprocessing.Pool`.

        >>> with Pool(processes=4) as pool:
        ...     pool.map(abs, range(-2, 2))
        [2, 1, 0, 1]

    processes: how many; by default as many as the cluster has CPUs.
    initializer, initargs: each process calls `initializer(*initargs)` when it starts.
    maxtasksperchild: a process is replaced after so many chunks of calls.
    ray_remote_args: options of the workers, which are actors: `{"num_cpus": 1}`. By default they hold no CPUs.
    ray_address: what `skate.init` is called with, unless it was called before.
    context: accepted, and has no effect.

    References among the arguments stay references; `skate.get` them in the function.
    """

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] | None = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
        ray_address: str | None = None,
        ray_remote_args: dict[str, Any] | None = None,
    ) -> None:
        self._crew: Crew | None = None
        if processes is not None and (isinstance(processes, bool) or not isinstance(processes, int)):
            raise TypeError(f"Pool(processes={processes!r}): it may be None or a whole number, 1 or more.")
        if processes is not None and processes < 1:
            raise ValueError(f"Pool(processes={processes!r}): it may be None or a whole number, 1 or more.")
        if initializer is not None and not callable(initializer):
            raise TypeError(f"Pool(initializer={initializer!r}): it may be None or a function.")
        if maxtasksperchild is not None and (
            isinstance(maxtasksperchild, bool) or not isinstance(maxtasksperchild, int) or maxtasksperchild < 1
        ):
            raise ValueError(
                f"Pool(maxtasksperchild={maxtasksperchild!r}): it may be None or a whole number, 1 or more."
            )
        if not skate.is_initialized() and ray_address is not None:
            skate.init(ray_address)
        self._crew = Crew(
            cluster_cpus() if processes is None else processes,
            initializer=initializer,
            initargs=tuple(initargs or ()),
            jobs_per_worker=maxtasksperchild,
            options=ray_remote_args,
            starts_all=True,
        )

    def __repr__(self) -> str:
        crew = self._crew
        state = "not made" if crew is None else "closed" if crew.is_closed else "running"
        return f"<skate.util.multiprocessing.Pool {state} processes={crew.size if crew else 0}>"

    def __reduce__(self) -> Any:
        raise TypeError(
            "a pool cannot be pickled or passed to other processes.\n"
            "  next: make a pool in the process that needs it, or pass an actor handle."
        )

    # -- one call ------------------------------------------------------------------------------------------------------

    def apply(
        self,
        func: Callable[..., T],
        args: Iterable[Any] | None = (),
        kwds: dict[str, Any] | None = None,
        *,
        kwargs: dict[str, Any] | None = None,
    ) -> T:
        """Call `func(*args, **kwds)` in a process of the pool and wait for the result.

        >>> pool.apply(pow, (2, 10))

        `kwargs` is Ray's name for `kwds`.
        """
        return self.apply_async(func, args, kwds, kwargs=kwargs).get()

    def apply_async(
        self,
        func: Callable[..., T],
        args: Iterable[Any] | None = (),
        kwds: dict[str, Any] | None = None,
        callback: Callable[[T], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
        *,
        kwargs: dict[str, Any] | None = None,
    ) -> AsyncResult[T]:
        """Like `apply`, but returns a result to wait for. The callbacks run in a thread of this process.

        >>> pool.apply_async(pow, (2, 10), callback=print).get()
        """
        crew = self._running_crew()
        result: AsyncResult[T] = AsyncResult(self, callback, error_callback)
        crew.submit(_ApplyJob(result, func, tuple(args or ()), kwds or kwargs))
        return result

    # -- many calls ----------------------------------------------------------------------------------------------------

    def map(self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int | None = None) -> list[T]:
        """Call `func(item)` for each item; the results in order. The first error is raised when all are done.

        >>> pool.map(abs, range(-2, 2), chunksize=2)
        """
        return self.map_async(func, iterable, chunksize).get()

    def map_async(
        self,
        func: Callable[[Any], T],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[list[T]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[list[T]]:
        """Like `map`, but returns a result to wait for."""
        calls = ((item,) for item in iterable)
        return self._map_async(func, calls, chunksize, callback, error_callback)

    def starmap(
        self, func: Callable[..., T], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[T]:
        """Call `func(*item)` for each item; the results in order.

        >>> pool.starmap(pow, [(2, 3), (3, 2)])
        """
        return self.starmap_async(func, iterable, chunksize).get()

    def starmap_async(
        self,
        func: Callable[..., T],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[T]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> AsyncResult[list[T]]:
        """Like `starmap`, but returns a result to wait for."""
        calls = (tuple(item) for item in iterable)
        return self._map_async(func, calls, chunksize, callback, error_callback)

    def _map_async(
        self,
        func: Callable[..., Any],
        iterable: Iterable[tuple[Any, ...]],
        chunksize: int | None,
        callback: Any,
        error_callback: Any,
    ) -> AsyncResult[list[Any]]:
        crew = self._running_crew()
        if chunksize is not None:
            _check_chunksize(chunksize)
        calls = list(iterable)
        size = chunksize or _chunksize_for(len(calls), crew)
        chunks = [calls[begin : begin + size] for begin in range(0, len(calls), size)]
        result = _MapResult(self, callback, error_callback, len(chunks))
        if not chunks:
            result._settle([], None)
        for index, chunk in enumerate(chunks):
            crew.submit(_MapJob(result, index, func, chunk))
        return result

    def imap(self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int | None = 1) -> IMapIterator[T]:
        """Like `map`, but results are taken while others are computed; the iterable is read as it is needed.

            >>> for value in pool.imap(abs, range(-1000, 1000), chunksize=50):
            ...     print(value)

        `chunksize=None` chooses a size as `map` does, and 1 for an iterable whose length is not known.
        """
        return self._imap(func, iterable, chunksize, ordered=True)

    def imap_unordered(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int | None = 1
    ) -> IMapIterator[T]:
        """Like `imap`, but the results come as they are ready."""
        return self._imap(func, iterable, chunksize, ordered=False)

    def _imap(
        self, func: Callable[[Any], T], iterable: Iterable[Any], chunksize: int | None, *, ordered: bool
    ) -> IMapIterator[T]:
        crew = self._running_crew()
        if chunksize is None:
            chunksize = _chunksize_for(len(iterable), crew) if isinstance(iterable, Sized) else 1
        _check_chunksize(chunksize)
        results: IMapIterator[T] = IMapIterator(self, ordered=ordered)
        _Feed(crew, results, func, iterable, chunksize)
        return results

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Take no more calls. The processes end when those that were made are done."""
        if self._crew is not None:
            self._crew.close()

    def terminate(self) -> None:
        """End the processes at once, whatever they do. Calls that are not done fail with TaskCancelledError."""
        if self._crew is not None:
            self._crew.terminate()

    def join(self) -> None:
        """Wait until the processes have ended; after `close` or `terminate` only."""
        crew = self._crew
        if crew is None:
            return
        if not crew.is_closed:
            raise ValueError("the pool is still running: call close() or terminate() before join().")
        crew.wait_ended()

    def __enter__(self) -> Pool:
        self._running_crew()
        return self

    def __exit__(self, *_: object) -> None:
        self.terminate()

    def __del__(self) -> None:
        # Its workers end with the handles to them: nothing else is to be done, and a finalizer should not do it.
        crew = getattr(self, "_crew", None)
        if crew is not None and not crew.is_closed and crew.is_current:
            warnings.warn(f"unclosed running multiprocessing pool {self!r}", ResourceWarning, source=self, stacklevel=2)

    def _running_crew(self) -> Crew:
        if self._crew is None or self._crew.is_closed:
            raise ValueError("the pool is not running: close() or terminate() was called on it. Make another one.")
        return self._crew


def _chunksize_for(calls: int, crew: Crew) -> int:
    """Four chunks for each process: few enough to be cheap, enough that one slow chunk does not hold up the end."""
    return max(1, -(-calls // (4 * crew.size)))


def _check_chunksize(chunksize: Any) -> None:
    if isinstance(chunksize, bool) or not isinstance(chunksize, int) or chunksize < 1:
        raise ValueError(f"chunksize={chunksize!r}: it may be a whole number, 1 or more.")


__all__ = ["AsyncResult", "IMapIterator", "Pool", "TimeoutError"]
