"""References as futures of the standard library: `concurrent.futures` and `await`.

A value is unpickled, which may run user code, so a handler must not do it: a thread of its own settles futures.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from skate._object_ref import ObjectRef
from skate._worker.current import mark_joined_thread

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime


class _FutureInTask(Future[Any]):
    """Of a worker: a task that waits for it gives its CPU back, as with `get`."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    def result(self, timeout: float | None = None) -> Any:
        with self._runtime.blocking() if not self.done() else nullcontext():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        with self._runtime.blocking() if not self.done() else nullcontext():
            return super().exception(timeout)


class Futures:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._pool: Any = None

    def future(self, ref: ObjectRef[Any]) -> Future[Any]:
        future: Future[Any] = Future() if self._runtime.executor is None else _FutureInTask(self._runtime)

        def settle() -> None:
            try:
                self._threads().submit(self._settle, ref, future)
            except RuntimeError:  # the interpreter exits, and starts no more threads
                self._settle(ref, future)

        self._runtime.when_ready(ref, settle)
        return future

    def _threads(self) -> Any:
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(1, "skate-futures", initializer=mark_joined_thread)
        return self._pool

    def _settle(self, ref: ObjectRef[Any], future: Future[Any]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._runtime.get([ref], None)[0])
        except BaseException as error:  # noqa: BLE001 - it is the future's now
            future.set_exception(error)

    async def awaitable(self, ref: ObjectRef[Any]) -> Any:
        import asyncio

        runtime = self._runtime
        entry = runtime.table.entries.get(ref._id)
        if entry is None or entry.value is None:
            loop = asyncio.get_running_loop()
            arrived = asyncio.Event()

            def tell() -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(arrived.set)

            runtime.when_ready(ref, tell)
            with runtime.blocking():
                await arrived.wait()
        return runtime.get([ref], None)[0]

    def close(self) -> None:
        """Settle what can be settled, and end the thread."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
