"""The calls of a batched function: how each gets its result, and what happens when its caller is cancelled.

    waits ──► runs ──► has its result
      │         └──► cancelled: its result is dropped; the last caller of an asynchronous batch cancels the batch
      └──► cancelled: the item is taken out

A call has one item, and each stream of results is a call too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextvars import copy_context
from typing import Any

from skate.serve.batching import Collector

_STOPS = (StopIteration, StopAsyncIteration)


class Item:
    """One call that waits for its result."""

    __slots__ = ("args", "context", "future", "kwargs", "running", "waiting")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], waiting: Collector[Any]) -> None:
        self.args, self.kwargs, self.waiting = args, kwargs, waiting
        self.context = copy_context()
        #: Its batch, or None while it waits for one.
        self.running: Running | None = None
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def give(self, result: Any) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        if self.future.done():
            return
        if isinstance(error, asyncio.CancelledError):
            self.future.cancel()
        else:
            # All callers share the error. asyncio raises it in each with the traceback that it has now.
            self.future.set_exception(error)

    def end(self) -> None:
        """The batch gives no more results."""

    def leave(self) -> None:
        """The caller was cancelled."""
        if self.future.done() and not self.future.cancelled():
            # An error that has come meanwhile counts as seen; asyncio would log it otherwise.
            self.future.exception()
            return
        self.future.cancel()
        if self.running is None:
            self.waiting.discard(self)
        else:
            self.running.caller_left()


class StreamItem(Item):
    """One call of a generator. `future` is done when no more results come."""

    __slots__ = ("results",)

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], waiting: Collector[Any]) -> None:
        super().__init__(args, kwargs, waiting)
        #: Each result in a tuple, and None at the end.
        self.results: asyncio.Queue[tuple[Any] | None] = asyncio.Queue()

    def give(self, result: Any) -> None:
        if result is StopIteration or result is StopAsyncIteration or isinstance(result, _STOPS):
            self.end()
        elif not self.future.done():
            self.results.put_nowait((result,))

    def fail(self, error: BaseException) -> None:
        super().fail(error)
        self.results.put_nowait(None)

    def end(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
            self.results.put_nowait(None)
            if self.running is not None:
                self.running.callers -= 1


class Running:
    """A batch from the start of its task to its end.

    Its loops over items are here, and not in functions that an error passes through: the frames that an error knows
    would keep the last item, which knows the error, and only the garbage collector could free them.
    """

    def __init__(self, is_async: bool) -> None:
        self.items: list[Item] = []
        #: How many of its callers still wait for results.
        self.callers = 0
        #: When its function was called, and how long that took.
        self.began = self.seconds = 0.0
        self.has_failed = False
        #: Whether the collector has heard of its end.
        self.is_finished = False
        self._is_async = is_async
        self._task: asyncio.Task[None] | None = None

    def begin(self, items: list[Item]) -> None:
        self.items, self.callers, self._task = items, len(items), asyncio.current_task()
        for item in items:
            item.running = self

    def stop_clock(self) -> None:
        """The function has returned; said again, it changes nothing."""
        self.seconds = self.seconds or time.perf_counter() - self.began

    def caller_left(self) -> None:
        """A caller was cancelled. Without callers, the function need not go on."""
        self.callers -= 1
        # A thread cannot be cancelled: a batch in a thread counts as running until it returns.
        if self.callers == 0 and self._is_async and self._task:
            self._task.cancel()

    def give(self, results: Iterable[Any]) -> None:
        for item, result in zip(self.items, results):
            item.give(result)

    def give_no_more(self) -> None:
        for item in self.items:
            item.end()

    def fail(self, error: BaseException) -> None:
        self.has_failed = True
        for item in self.items:
            item.fail(error)

    def let_go(self) -> int:
        """Forget the items, which refer to this batch; how many there were."""
        size = len(self.items)
        self.items = []
        return size
