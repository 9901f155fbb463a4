"""Threads for the plain functions of handlers, so that the event loop of a replica goes on meanwhile.

An executor of the standard library costs two locks and a condition for each call. Here a call is one entry of a queue
and one callback of the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

__all__ = ["Threads"]

_END = object()


def exit_refused(error: SystemExit) -> RuntimeError:
    """The error of a request whose code has called `sys.exit`, which would end the requests of others, too."""
    told = RuntimeError(
        f"the code of a request raised SystemExit({error.code!r}), and a request cannot end its replica."
    )
    told.__cause__ = error
    return told


class _Job:
    __slots__ = ("args", "claim", "context", "dropped", "ended", "function", "future", "kwargs", "loop")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.context = contextvars.copy_context()
        #: Taken by the first of two: the thread that begins the job, or the caller that was cancelled before.
        self.claim = threading.Lock()
        #: Whether the caller was cancelled, so that the result is of no interest; whether the function has returned.
        self.dropped = self.ended = False


class Threads:
    """As many threads as are needed, up to a limit. They end when this is dropped, and with the process."""

    def __init__(self, limit: int, name: str = "skate-serve") -> None:
        #: It may be raised at any time.
        self.limit = limit
        self._name = name
        #: None: the thread that gets it ends.
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._started = 0
        #: Threads that wait for a job, less jobs that wait for a thread.
        self._idle = 0

    async def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function in a thread, with the context of the caller.

        A function that runs cannot be interrupted. When the caller is cancelled, this waits until the function has
        returned, so that what guards it, for example its place in a replica, stays taken while it works. A function
        that has not begun is not called any more.
        """
        job = _Job(function, args, kwargs)
        with self._lock:
            self._idle -= 1
            if self._idle < 0 and self._started < self.limit:
                self._start_thread()
        self._jobs.put(job)
        try:
            return await job.future
        except asyncio.CancelledError:
            if job.future.cancelled() and not job.claim.acquire(blocking=False):
                job.dropped = True
                while not job.ended:
                    job.future = job.loop.create_future()
                    with contextlib.suppress(asyncio.CancelledError):
                        await job.future
            raise

    async def iterate(self, items: Iterator[Any]) -> AsyncIterator[Any]:
        """What a plain iterator yields, each item fetched in a thread; it is closed at the end."""
        try:
            while (item := await self.run(next, items, _END)) is not _END:
                yield item
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                await self.run(close)

    def _start_thread(self) -> None:
        try:
            name = f"{self._name}-{self._started + 1}"
            threading.Thread(target=_work, args=(self._jobs, weakref.ref(self)), name=name, daemon=True).start()
        except RuntimeError:  # the system allows no further thread
            if not self._started:
                self._idle += 1
                raise
        else:
            self._started += 1
            self._idle += 1

    def _waits(self) -> None:
        """A thread has done its job, and waits for another."""
        with self._lock:
            self._idle += 1

    def __del__(self) -> None:
        for _ in range(self._started):
            self._jobs.put(None)


def _work(jobs: queue.SimpleQueue[_Job | None], owner: weakref.ref[Threads]) -> None:
    """What a thread does. It does not keep its owner."""
    while (job := jobs.get()) is not None:
        value: Any = None
        error: BaseException | None = None
        begins = job.claim.acquire(blocking=False)
        if begins:
            try:
                value = job.context.run(job.function, *job.args, **job.kwargs)
            except BaseException as raised:  # noqa: BLE001 - it is the caller's
                error = raised
        threads = owner()
        if threads is not None:
            threads._waits()
        if begins:
            with contextlib.suppress(RuntimeError):  # its loop is closed, so its caller is gone
                job.loop.call_soon_threadsafe(_settle, job, value, error)
        del job, value, error, threads


def _settle(job: _Job, value: Any, error: BaseException | None) -> None:
    job.ended = True
    future = job.future
    if future.done():
        return
    if job.dropped:
        future.set_result(None)
    elif error is None:
        future.set_result(value)
    elif isinstance(error, StopIteration):
        told = RuntimeError("the function raised StopIteration, which a coroutine cannot pass on.")
        told.__cause__ = error
        future.set_exception(told)
    elif isinstance(error, SystemExit):
        future.set_exception(exit_refused(error))
    else:
        future.set_exception(error)
