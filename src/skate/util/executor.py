"""`concurrent.futures` on Skate: what takes an executor of the standard library takes this one."""

from __future__ import annotations

import atexit
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any, ParamSpec, TypeVar

from skate.util._crew import Answer, Crew, Job, cluster_cpus

P = ParamSpec("P")
T = TypeVar("T")

#: Those whose work is waited for when the program ends.
_open: weakref.WeakSet[Crew] = weakref.WeakSet()


class _FutureJob(Job):
    """A call whose outcome goes to a future of the standard library."""

    def __init__(
        self,
        future: futures.Future[Any],
        function: Callable[..., Any],
        calls: list[tuple[Any, ...]],
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(function, calls, kwargs)
        self.future = future

    def begin(self) -> bool:
        return self.future.set_running_or_notify_cancel()

    def succeed(self, answer: Answer) -> None:
        if answer.error is not None:
            self.future.set_exception(answer.error)
        else:
            self.future.set_result(self.result(answer.values))

    def result(self, values: list[Any]) -> Any:
        return values[0]

    def fail(self, error: BaseException) -> None:
        if self.future.running() or self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def cancel(self) -> None:
        if self.future.cancel():
            self.future.set_running_or_notify_cancel()


class _ChunkJob(_FutureJob):
    """Several calls, whose values are one result."""

    def result(self, values: list[Any]) -> Any:
        return values


class Executor(futures.Executor):
    """A `concurrent.futures.Executor` whose workers are processes of Skate.

        >>> with Executor() as executor:
        ...     future = executor.submit(pow, 2, 10)
        ...     print(future.result(), list(executor.map(abs, [-1, -2])))
        1024 [1, 2]

    It works with `concurrent.futures.wait` and `as_completed`, and with `loop.run_in_executor` of asyncio. At most
    `max_workers` calls run at a time, by default one for each CPU of the cluster; workers start as they are needed, and
    each calls `initializer(*initargs)` first. A call whose worker dies fails with ActorDiedError, and another worker
    takes its place; an initializer that raises makes the executor unusable (`concurrent.futures.BrokenExecutor`).

    References among the arguments stay references; `skate.get` them in the function.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        if max_workers is not None and (isinstance(max_workers, bool) or not isinstance(max_workers, int)):
            raise TypeError(f"Executor(max_workers={max_workers!r}): it may be None or a whole number, 1 or more.")
        if max_workers is not None and max_workers < 1:
            raise ValueError(f"Executor(max_workers={max_workers!r}): it may be None or a whole number, 1 or more.")
        if initializer is not None and not callable(initializer):
            raise TypeError(f"Executor(initializer={initializer!r}): it may be None or a function.")
        self._crew = Crew(
            cluster_cpus() if max_workers is None else max_workers,
            initializer=initializer,
            initargs=tuple(initargs),
            when_broken=_broken,
            survives_exit=True,
        )
        _open.add(self._crew)

    @property
    def max_workers(self) -> int:
        """How many calls run at a time."""
        return self._crew.size

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> futures.Future[T]:
        """Call `fn(*args, **kwargs)` in a worker; its future, at once.

        >>> executor.submit(pow, 2, 10).result()
        """
        return self._submit(_FutureJob(futures.Future(), fn, [args], kwargs))

    def _submit(self, job: _FutureJob) -> futures.Future[Any]:
        if self._crew.broken is not None:
            raise self._crew.broken
        if self._crew.is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown(): make another Executor.")
        self._crew.submit(job)
        return job.future

    def map(
        self,
        fn: Callable[..., T],
        /,
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[T]:
        """Like the built-in `map`: the results in order. TimeoutError if one is not there `timeout` seconds from now.

            >>> list(executor.map(pow, [2, 3], [10, 10], chunksize=100))

        A worker gets `chunksize` calls at a time. The iterables are read at once; with `buffersize` at most so many
        calls are submitted and not yet taken.
        """
        for name, value in (("chunksize", chunksize), ("buffersize", buffersize)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"map({name}={value!r}): it may be a whole number, 1 or more.")
        deadline = None if timeout is None else time.monotonic() + timeout
        chunks = _chunks(zip(*iterables), chunksize)
        ahead = None if buffersize is None else max(1, buffersize // chunksize)

        def submit(chunk: list[tuple[Any, ...]]) -> futures.Future[list[T]]:
            return self._submit(_ChunkJob(futures.Future(), fn, chunk))

        submitted = deque(submit(chunk) for chunk in itertools.islice(chunks, ahead))

        def results() -> Iterator[T]:
            try:
                while submitted:
                    left_s = None if deadline is None else min(deadline - time.monotonic(), threading.TIMEOUT_MAX)
                    values = submitted[0].result(left_s)
                    submitted.popleft()
                    submitted.extend(submit(chunk) for chunk in itertools.islice(chunks, 1))
                    yield from values
            finally:
                for future in submitted:
                    future.cancel()

        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; wait until those submitted are done and the workers gone, unless `wait=False`.

            >>> executor.shutdown(cancel_futures=True)

        `cancel_futures` cancels those that have not started.
        """
        self._crew.close()
        if cancel_futures:
            self._crew.cancel_waiting(lambda job: job.cancel() if isinstance(job, _FutureJob) else None)
        if wait:
            self._crew.wait_ended()

    def terminate_workers(self) -> None:
        """End the workers at once. Futures that are not done fail with TaskCancelledError.

        >>> executor.terminate_workers()
        """
        self._crew.terminate()


def _broken(error: BaseException) -> BaseException:
    broken = futures.BrokenExecutor(
        f"a worker of the executor could not start, so it takes no more calls.\n  why:  {error}\n"
        "  next: correct the initializer if it raised, and make another Executor."
    )
    broken.__cause__ = error
    return broken


def _chunks(items: Iterator[tuple[Any, ...]], size: int) -> Iterator[list[tuple[Any, ...]]]:
    while chunk := list(itertools.islice(items, size)):
        yield chunk


def _finish_all() -> None:
    """As with the executors of the standard library, the program ends when what was submitted is done."""
    for crew in list(_open):
        if crew.is_busy and crew.is_current:
            crew.close()
            crew.wait_ended()


# Exit handlers run last in, first out: this one before that of `skate`, which ends the workers.
atexit.register(_finish_all)
