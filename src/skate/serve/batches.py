"""`serve.batch`: calls that come one at a time run together, as one call of a function of lists.

    await self.act(x) ──► Item ──► Queue ──► Collector decides ──► one task: act(self, [x, y, z]) ──► results
                                   one for each instance and event loop

Cheap:     a call costs one future, and a batch one task. Nothing polls: a batch begins when an item comes, when a batch
           ends, or when the timer of `batch_wait_timeout_s` rings.
Late:      a batch takes its items in the first step of its task. Callers that were woken by the last batch, and call
           again at once, are in the next one. If that is full already, it begins before they are woken: waking 64
           callers takes 2 ms, in which the function would do nothing.
Context:   a batch runs with the context variables of its first caller.
Bounded:   not here. The limit on the requests of a replica bounds how many items wait and how many streams there are.
Pickled:   a class with such methods arrives with its settings. Queues belong to a process and stay there.
"""

from __future__ import annotations

import asyncio
import functools
import time
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import aclosing
from dataclasses import replace
from types import MethodType
from typing import Any, Protocol, cast, overload

from skate.serve.batch_calls import Item, Running, StreamItem
from skate.serve.batch_function import NEXT, BatchFunction
from skate.serve.batching import BatchOptions, Collector, checked_count, checked_options, checked_wait

__all__ = ["BatchedCallable", "batch", "on_batch", "run_blocking", "set_hooks"]

#: Called after each batch with the name of its function, its size, and how many seconds it took.
on_batch: Callable[[str, int, float], None] | None = None


async def _run_in_thread(function: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.to_thread(function, *args)


#: Runs a plain function off the event loop, with the context variables of the caller.
run_blocking: Callable[..., Awaitable[Any]] = _run_in_thread


def set_hooks(
    *, on_batch: Callable[[str, int, float], None] | None, run_blocking: Callable[..., Awaitable[Any]] | None
) -> None:
    """Set both hooks of this module; None sets the default.

    The package has a function of the name of this module, so `import skate.serve.batch as module` finds the function.
    """
    globals().update(on_batch=on_batch, run_blocking=run_blocking or _run_in_thread)


#: What a plain generator gives at its end, since a StopIteration cannot leave a thread.
END = object()


class BatchedCallable(Protocol):
    """What `serve.batch` makes: called with one item, answered with its result.

    The other methods act on all instances of a class (`Brain.act.set_max_batch_size`), or on one
    (`self.act.set_max_batch_size`).
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def set_max_batch_size(self, new_max_batch_size: int) -> None: ...
    def set_batch_wait_timeout_s(self, new_batch_wait_timeout_s: float) -> None: ...
    def get_max_batch_size(self) -> int: ...
    def get_batch_wait_timeout_s(self) -> float: ...


@overload
def batch(fn: Callable[..., Any], /) -> BatchedCallable: ...
@overload
def batch(
    *,
    latency_ms: float | None = None,
    max_batch_size: int | None = None,
    batch_wait_timeout_s: float = 0.0,
    max_concurrent_batches: int = 1,
) -> Callable[[Callable[..., Any]], BatchedCallable]: ...
def batch(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    latency_ms: float | None = None,
    max_batch_size: int | None = None,
    batch_wait_timeout_s: float = 0.0,
    max_concurrent_batches: int = 1,
) -> Any:
    """Run calls that come one at a time together.

        @serve.batch(latency_ms=10)
        def act(self, observations: list[np.ndarray]) -> list[np.ndarray]: ...

        action = await self.act(observation)

    A call gives one item. The function gets a list of them for each of its parameters, and returns a list, tuple or
    array with one result for each item. An `async def` function runs on the event loop, a plain one in a thread.
    A generator function yields such a list at each step, and the call is an asynchronous generator; an entry that is
    StopIteration or StopAsyncIteration ends the results of its item.

    An idle function runs at once with the items that are there. While it runs, items are collected for the next batch.
    An exception reaches the callers of its batch and no others.

    latency_ms:              the objective for the 99th percentile of the time from a call to its result. The size of
                             batches follows it.
    max_batch_size:          the largest batch: 10, or 1024 with an objective.
    batch_wait_timeout_s:    how long an idle function waits for a batch to become full.
    max_concurrent_batches:  how many batches of one instance may run at the same time.
    """
    options = checked_options(latency_ms, max_batch_size, batch_wait_timeout_s, max_concurrent_batches)

    def decorate(function: Callable[..., Any]) -> Any:
        batched = Batched(function, options)
        # A plain function becomes a plain function, so that `inspect` says what it is.
        return batched if batched.function.is_method else batched.for_all

    return decorate if fn is None else decorate(fn)


class Queue:
    """The calls of one instance in one event loop: collects them, and runs them in batches."""

    def __init__(self, function: BatchFunction, options: BatchOptions) -> None:
        self.collector: Collector[Item] = Collector(options)
        self._function = function
        self._make = StreamItem if function.is_stream else Item
        #: Whether there is a task that has not taken its items yet.
        self._is_starting = False
        self._timer: asyncio.TimerHandle | None = None

    def add(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Item:
        args, kwargs, kind = self._function.bind(args, kwargs)
        item = self._make(args, kwargs, self.collector)
        self.collector.add(item, time.monotonic(), kind)
        if not self._is_starting and self.collector.has_room:
            self._schedule()
        return item

    def _schedule(self) -> None:
        """Start a task for the next batch if one is due, or a timer for when it will be."""
        due_at, oldest = self.collector.due_at(), self.collector.oldest
        if self._is_starting or due_at is None or oldest is None:
            return
        delay = due_at - time.monotonic()
        if delay <= 0:
            self._is_starting = True
            running = Running(self._function.is_async)
            task = oldest.context.run(asyncio.get_running_loop().create_task, self._run(running))
            # A task that is cancelled before its first step never runs. Its end is told all the same.
            task.add_done_callback(functools.partial(self._ended, running))
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._schedule()

    async def _run(self, running: Running) -> None:
        running.begin(self.collector.take())
        if not running.items:
            return
        self._is_starting = False
        self._schedule()
        running.began = time.perf_counter()
        try:
            args, kwargs = self._function.lists([(item.args, item.kwargs) for item in running.items])
            if self._function.is_stream:
                await self._stream(running, args, kwargs)
            else:
                await self._answer(running, args, kwargs)
        except BaseException as error:  # noqa: BLE001 - its callers raise it
            # Raised here, it would leave the event loop if it is of sys.exit(), and end the replica.
            running.fail(error)
        finally:
            running.stop_clock()

    async def _answer(self, running: Running, args: list[Any], kwargs: dict[str, Any]) -> None:
        function = self._function.function
        if self._function.is_async:
            results = await function(*args, **kwargs)
        else:
            results = await run_blocking(_call, function, args, kwargs)
        self._function.check(results, len(running.items))
        if self.collector.is_full:  # else the callers that are woken may add to the next batch
            running.stop_clock()
            self._finished(running)
            self._schedule()
        running.give(results)

    async def _stream(self, running: Running, args: list[Any], kwargs: dict[str, Any]) -> None:
        generator = self._function.function(*args, **kwargs)
        steps: AsyncGenerator[Any, None] = generator if self._function.is_async else _steps(generator)
        async with aclosing(steps):
            async for results in steps:
                self._function.check(results, len(running.items))
                running.give(results)
                if running.callers == 0:
                    break
        running.give_no_more()

    def _finished(self, running: Running) -> None:
        """Make room for the next batch; once, however often it is said."""
        if running.items and not running.is_finished:
            running.is_finished = True
            self.collector.finished(len(running.items), None if running.has_failed else running.seconds)

    def _ended(self, running: Running, task: asyncio.Task[None]) -> None:
        self._finished(running)
        size = running.let_go()
        if not size:
            self._is_starting = False
        self._schedule()
        if size and on_batch is not None:
            on_batch(self._function.name, size, running.seconds)


def _call(function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        # A future refuses a StopIteration, and would leave its caller waiting for ever.
        raise RuntimeError("a batched function raised StopIteration") from error


async def _steps(generator: Generator[Any, None, None]) -> AsyncGenerator[Any, None]:
    """The steps of a plain generator, each of them made in a thread."""
    try:
        while (step := await run_blocking(next, generator, END)) is not END:
            yield step
    finally:
        await run_blocking(generator.close)


class Queues:
    """The queues of one instance, one for each event loop, and their options."""

    def __init__(self, function: BatchFunction, options: BatchOptions) -> None:
        self.options = options
        self._function = function
        self._by_loop: dict[asyncio.AbstractEventLoop, Queue] = {}

    def __reduce__(self) -> Any:
        return Queues, (self._function, self.options)

    def add(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Item:
        loop = asyncio.get_running_loop()
        queue = self._by_loop.get(loop)
        if queue is None:
            for closed in [each for each in list(self._by_loop) if each.is_closed()]:
                self._by_loop.pop(closed, None)
            queue = self._by_loop[loop] = Queue(self._function, self.options)
        return queue.add(args, kwargs)


class Batched:
    """A batched function or method. As an attribute of a class it gives each instance queues of its own."""

    def __init__(self, function: Callable[..., Any], options: BatchOptions) -> None:
        self.function = BatchFunction(function)
        self._options = options
        #: By the address of an instance, which is its own until the reference says that the instance is gone.
        self._instances: dict[int, tuple[weakref.ref[Any], Queues, Callable[..., Any]]] = {}
        #: The callable that is not bound to an instance.
        self.for_all = self._make_callable(None if self.function.is_method else Queues(self.function, options))
        functools.update_wrapper(cast("Callable[..., Any]", self), function)

    def __reduce__(self) -> Any:
        return Batched, (self.function.function, self._options)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self.for_all
        known = self._instances.get(id(instance))
        return MethodType((known or self._add(instance))[2], instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(f"{self.function.name} is a batched method, and was called without an instance.\n{NEXT}")

    def _add(self, instance: Any) -> tuple[weakref.ref[Any], Queues, Callable[..., Any]]:
        key = id(instance)
        try:
            gone = weakref.ref(instance, lambda _: self._instances.pop(key, None))
        except TypeError:
            raise TypeError(
                f"{self.function.name} is a batched method of a class without weak references.\n"
                f"  next: add '__weakref__' to the __slots__ of {type(instance).__name__}."
            ) from None
        queues = Queues(self.function, replace(self._options))
        return self._instances.setdefault(key, (gone, queues, self._make_callable(queues)))

    def _queues_of(self, args: tuple[Any, ...]) -> Queues:
        """The queues of the instance that a method is called with, as in `Brain.act(brain, x)`."""
        if not args:
            raise TypeError(f"{self.function.name}() was called without an instance.")
        return (self._instances.get(id(args[0])) or self._add(args[0]))[1]

    def _every_options(self) -> list[BatchOptions]:
        return [self._options, *(queues.options for _, queues, _ in list(self._instances.values()))]

    def _make_callable(self, queues: Queues | None) -> Callable[..., Any]:
        """The function that callers call. queues: those of one instance, or None to look for them at each call."""

        async def call(*args: Any, **kwargs: Any) -> Any:
            item = (queues or self._queues_of(args)).add(args, kwargs)
            try:
                return await item.future
            except (asyncio.CancelledError, GeneratorExit):
                item.leave()
                raise
            finally:
                # An error knows this frame, and the item knows the error.
                del item

        async def stream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            item = (queues or self._queues_of(args)).add(args, kwargs)
            assert isinstance(item, StreamItem)
            try:
                while (result := await item.results.get()) is not None:
                    yield result[0]
                await item.future
            except (asyncio.CancelledError, GeneratorExit):
                item.leave()
                raise
            finally:
                del item

        def every_options() -> list[BatchOptions]:
            return self._every_options() if queues is None else [queues.options]

        def set_max_batch_size(new_max_batch_size: int) -> None:
            size = checked_count("max_batch_size", new_max_batch_size)
            for options in every_options():
                options.max_batch_size = size

        def set_batch_wait_timeout_s(new_batch_wait_timeout_s: float) -> None:
            wait_s = checked_wait(new_batch_wait_timeout_s)
            for options in every_options():
                options.wait_s = wait_s

        made: Any = functools.wraps(self.function.function)(stream if self.function.is_stream else call)
        made.set_max_batch_size = set_max_batch_size
        made.set_batch_wait_timeout_s = set_batch_wait_timeout_s
        made.get_max_batch_size = lambda: every_options()[0].max_batch_size
        made.get_batch_wait_timeout_s = lambda: every_options()[0].wait_s
        return cast("Callable[..., Any]", made)
