"""`serve.batch` on a real event loop: who is in which batch, and what each caller gets."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import importlib
import inspect
import threading
import traceback
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import skate
from skate.serve.batches import batch, set_hooks


class Gate:
    """An asynchronous batched method that ends a batch when a test says so."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.cancelled = 0
        self.open = asyncio.Event()

    @batch(max_batch_size=4)
    async def act(self, items: list[Any]) -> list[Any]:
        self.batches.append(items)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return [("result", item) for item in items]

    async def running(self, count: int) -> None:
        while len(self.batches) < count:
            await asyncio.sleep(0)


async def settle() -> None:
    """Let everything happen that needs no more than the event loop."""
    for _ in range(20):
        await asyncio.sleep(0)


def on_loop(test: Callable[[], Any]) -> Callable[[], None]:
    """Run an asynchronous test on an event loop of its own."""

    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 20))

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


@on_loop
async def test_an_idle_function_runs_at_once_and_a_busy_one_collects() -> None:
    gate = Gate()
    first = asyncio.create_task(gate.act(0))
    await gate.running(1)
    others = [asyncio.create_task(gate.act(item)) for item in range(1, 8)]
    await settle()
    assert gate.batches == [[0]]
    gate.open.set()
    assert await first == ("result", 0)
    assert await asyncio.gather(*others) == [("result", item) for item in range(1, 8)]
    assert gate.batches == [[0], [1, 2, 3, 4], [5, 6, 7]]


@on_loop
async def test_calls_of_one_moment_are_one_batch() -> None:
    gate = Gate()
    gate.open.set()
    await asyncio.gather(*(gate.act(item) for item in range(3)))
    assert gate.batches == [[0, 1, 2]]


@on_loop
async def test_a_batch_that_is_full_begins_before_the_callers_of_the_last_one_are_woken() -> None:
    events: list[str] = []

    @batch(max_batch_size=2)
    async def act(items: list[int]) -> list[int]:
        events.append(f"begin {items}")
        return items

    async def call(item: int) -> None:
        events.append(f"{await act(item)} is back")

    await asyncio.gather(*map(call, range(5)))
    assert events == [
        *("begin [0, 1]", "begin [2, 3]", "0 is back", "1 is back"),  # what they call next could not be in it
        *("2 is back", "3 is back", "begin [4]", "4 is back"),  # this one could grow
    ]


@on_loop
async def test_plain_functions_run_off_the_event_loop_with_the_context_of_the_first_caller() -> None:
    request = contextvars.ContextVar("request", default="none")
    threads = []

    @batch
    def add(xs: list[int], ys: list[int]) -> list[int]:
        threads.append((threading.current_thread(), request.get()))
        return [x + y for x, y in zip(xs, ys)]

    request.set("mine")
    assert await asyncio.gather(add(1, 2), add(3, ys=4), add(ys=6, xs=5)) == [3, 7, 11]
    assert len(threads) == 1
    assert threads[0][0] is not threading.current_thread()
    assert threads[0][1] == "mine"


@on_loop
async def test_a_batch_that_had_to_wait_has_the_context_of_its_own_first_caller() -> None:
    request = contextvars.ContextVar("request", default="none")
    seen = []

    @batch(max_batch_size=2)
    async def act(items: list[str]) -> list[str]:
        seen.append((request.get(), items))
        return items

    async def call(name: str) -> str:
        request.set(name)
        return await act(name)

    await asyncio.gather(*map(call, "abcde"))
    assert seen == [("a", ["a", "b"]), ("c", ["c", "d"]), ("e", ["e"])]


@on_loop
async def test_calls_with_other_arguments_are_in_another_batch() -> None:
    seen = []

    @batch
    async def scale(xs: list[int], factors: Any = 1, *, offset: Any = 0) -> list[int]:
        seen.append((xs, factors, offset))
        return xs

    await asyncio.gather(scale(1), scale(2), scale(3, 10), scale(4, offset=5), scale(5, offset=6))
    assert seen == [([1, 2], 1, 0), ([3], [10], 0), ([4, 5], 1, [5, 6])]


@on_loop
async def test_a_call_that_the_function_does_not_take_fails_alone() -> None:
    gate = Gate()
    gate.open.set()
    calls = (gate.act(1), gate.act(1, 2), gate.act(), gate.act(other=1))
    good, *wrong = await asyncio.gather(*calls, return_exceptions=True)
    assert good == ("result", 1)
    assert all(isinstance(error, TypeError) and "Gate.act()" in str(error) for error in wrong)


@on_loop
async def test_arrays_reach_the_function_as_they_are_and_an_array_is_a_result() -> None:
    seen = []

    @batch
    async def double(arrays: list[np.ndarray]) -> np.ndarray:
        seen.extend(arrays)
        return 2 * np.stack(arrays)

    arrays = [np.arange(3), np.ones(3)]
    results = await asyncio.gather(*map(double, arrays))
    assert [given is got for given, got in zip(arrays, seen)] == [True, True]
    assert [list(result) for result in results] == [[0, 2, 4], [2, 2, 2]]


@pytest.mark.parametrize(
    ("returned", "kind", "says"),
    [
        ([1], ValueError, "returned 1 results for a batch of 2"),
        ([1, 2, 3], ValueError, "returned 3 results for a batch of 2"),
        (None, TypeError, "returned NoneType for a batch of 2 items"),
        ("ab", TypeError, "returned str"),
        ({1: 2, 3: 4}, TypeError, "returned dict"),
        (np.array(1), TypeError, "returned ndarray"),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
def test_a_wrong_number_of_results_is_said_to_all_callers(
    returned: Any, kind: type[Exception], says: str, is_async: bool
) -> None:
    async def main() -> list[Any]:
        async def slow(items: list[int]) -> Any:
            return returned

        def plain(items: list[int]) -> Any:
            return returned

        function = batch(slow if is_async else plain)
        return await asyncio.gather(function(1), function(2), return_exceptions=True)

    errors = asyncio.run(main())
    assert [type(error) for error in errors] == [kind, kind]
    assert says in str(errors[0])
    assert ("slow" if is_async else "plain") in str(errors[0])


@pytest.mark.parametrize("error", [ValueError("bad"), StopIteration("bad"), asyncio.CancelledError("bad")])
@pytest.mark.parametrize("is_async", [True, False])
def test_an_error_fails_its_batch_only(error: BaseException, is_async: bool) -> None:
    async def main() -> None:
        def plain(items: list[int]) -> list[int]:
            if 1 in items:
                raise error
            return items

        async def coroutine(items: list[int]) -> list[int]:
            return plain(items)

        function = batch(max_batch_size=2)(coroutine if is_async else plain)
        results = await asyncio.gather(*map(function, range(4)), return_exceptions=True)
        assert all(isinstance(result, (type(error), RuntimeError)) for result in results[:2])
        assert results[2:] == [2, 3]

    asyncio.run(main())


@on_loop
async def test_an_error_that_many_callers_get_shows_each_the_same_short_traceback() -> None:
    @batch(max_batch_size=50)
    async def fail(items: list[int]) -> list[int]:
        raise ValueError("bad")

    async def depth() -> int:
        try:
            await fail(1)
        except ValueError as error:
            return len(traceback.extract_tb(error.__traceback__))
        return 0

    depths = await asyncio.gather(*(depth() for _ in range(50)))
    assert len(set(depths)) == 1


@on_loop
async def test_an_item_whose_caller_is_cancelled_while_it_waits_is_taken_out() -> None:
    gate = Gate()
    tasks = [asyncio.create_task(gate.act(0))]
    await gate.running(1)
    tasks += [asyncio.create_task(gate.act(item)) for item in (1, 2, 3)]
    await settle()
    tasks[2].cancel()
    await settle()
    gate.open.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert gate.batches == [[0], [1, 3]]
    assert isinstance(results[2], asyncio.CancelledError)
    assert results[3] == ("result", 3)


@on_loop
async def test_a_batch_goes_on_until_its_last_caller_is_cancelled() -> None:
    gate = Gate()
    tasks = [asyncio.create_task(gate.act(item)) for item in range(3)]
    await gate.running(1)
    tasks[0].cancel()
    tasks[1].cancel()
    await settle()
    assert gate.cancelled == 0
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await settle()
    assert gate.cancelled == 1
    gate.open.set()
    assert await gate.act(3) == ("result", 3), "its place is free again"


@on_loop
async def test_an_error_that_comes_after_the_last_result_that_was_wanted_is_not_logged() -> None:
    logged = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))

    @batch
    async def stream(items: list[int]) -> AsyncIterator[list[int]]:
        yield items
        raise ValueError("bad")

    results = stream(1)
    assert await anext(results) == 1
    await settle()
    await results.aclose()
    del results
    gc.collect()
    assert logged == []


@on_loop
async def test_a_batch_in_a_thread_keeps_its_place_when_its_callers_are_gone() -> None:
    """Two calls of a plain function never run at the same time, because nothing can end the first one early."""
    loop = asyncio.get_running_loop()
    has_begun, may_end, seen = asyncio.Event(), threading.Event(), []

    @batch
    def work(items: list[int]) -> list[int]:
        seen.append(items)
        loop.call_soon_threadsafe(has_begun.set)
        assert may_end.wait(20)
        return items

    first = asyncio.create_task(work(1))
    await has_begun.wait()
    first.cancel()
    second = asyncio.create_task(work(2))
    await settle()
    assert seen == [[1]]
    may_end.set()
    assert await second == 2


@on_loop
async def test_a_batch_task_that_is_cancelled_before_it_begins_gives_its_place_back() -> None:
    gate = Gate()
    gate.open.set()
    before = asyncio.all_tasks()
    call = gate.act(1)
    waiting = asyncio.create_task(call)
    while not (new := asyncio.all_tasks() - before - {waiting}):
        await asyncio.sleep(0)
    new.pop().cancel()
    assert await waiting == ("result", 1)


@on_loop
async def test_no_more_batches_run_at_the_same_time_than_may() -> None:
    running, most, open_ = 0, 0, asyncio.Event()

    @batch(max_batch_size=1, max_concurrent_batches=3)
    async def work(items: list[int]) -> list[int]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await open_.wait()
        running -= 1
        return items

    calls = asyncio.gather(*map(work, range(10)))
    while running < 3:
        await asyncio.sleep(0)
    await settle()
    open_.set()
    assert await calls == list(range(10))
    assert most == 3


@on_loop
async def test_with_a_wait_an_idle_function_runs_when_its_batch_is_full_or_the_time_is_over() -> None:
    class Model:
        def __init__(self) -> None:
            self.sizes: list[int] = []

        @batch(max_batch_size=3, batch_wait_timeout_s=60)
        async def act(self, items: list[int]) -> list[int]:
            self.sizes.append(len(items))
            return items

    full = Model()
    calls = [asyncio.create_task(full.act(0))]
    await settle()
    assert full.sizes == []
    calls += [asyncio.create_task(full.act(item)) for item in (1, 2)]
    assert await asyncio.gather(*calls) == [0, 1, 2]
    assert full.sizes == [3]

    hurried = Model()
    hurried.act.set_batch_wait_timeout_s(0.001)
    assert await asyncio.gather(hurried.act(1), hurried.act(2)) == [1, 2]
    assert hurried.sizes == [2]


@on_loop
async def test_options_are_set_for_one_instance_or_for_all() -> None:
    one, other = Gate(), Gate()
    one.act.set_max_batch_size(2)
    assert (one.act.get_max_batch_size(), other.act.get_max_batch_size()) == (2, 4)
    one.open.set()
    await asyncio.gather(*map(one.act, range(4)))
    assert one.batches == [[0, 1], [2, 3]]
    try:
        Gate.act.set_max_batch_size(3)
        Gate.act.set_batch_wait_timeout_s(0.5)
        sizes = [each.act.get_max_batch_size() for each in (one, other, Gate(), Gate)]
        assert sizes == [3, 3, 3, 3]
        assert {each.act.get_batch_wait_timeout_s() for each in (one, Gate)} == {0.5}
    finally:
        Gate.act.set_max_batch_size(4)
        Gate.act.set_batch_wait_timeout_s(0)
    with pytest.raises(ValueError, match="whole number"):
        one.act.set_max_batch_size(0)


def test_an_instance_works_on_one_loop_after_another() -> None:
    class Model:
        @batch
        async def act(self, items: list[int]) -> list[int]:
            return items

    model = Model()

    async def main() -> list[int]:
        return await asyncio.gather(model.act(1), model.act(2))

    assert [asyncio.run(main()) for _ in range(3)] == [[1, 2]] * 3


@pytest.mark.parametrize("fails", [False, True])
def test_instances_share_nothing_and_end_when_their_last_reference_does(fails: bool) -> None:
    async def main() -> None:
        one, other = Gate(), Gate()
        one.open.set()
        assert await one.act(1) == ("result", 1)
        assert other.batches == []
        if fails:
            await asyncio.gather(one.act(2, 3), return_exceptions=True)
        gone = weakref.ref(one)
        del one
        await settle()
        assert gone() is None

    gc.disable()  # to see that no cycle of references keeps it
    try:
        asyncio.run(main())
    finally:
        gc.enable()


@on_loop
async def test_items_and_results_of_a_batch_are_let_go_without_the_garbage_collector() -> None:
    class Payload:
        pass

    @batch
    async def work(items: list[Payload]) -> list[Payload]:
        if len(items) == 2:
            raise ValueError("bad")
        return [Payload() for _ in items]

    async def use(count: int) -> list[weakref.ref[Payload]]:
        items = [Payload() for _ in range(count)]
        results = await asyncio.gather(*map(work, items), return_exceptions=True)
        return [weakref.ref(each) for each in (*items, *results) if isinstance(each, Payload)]

    gc.disable()
    try:
        refs = await use(1) + await use(2)
        await settle()
        assert [ref() for ref in refs] == [None] * 4
    finally:
        gc.enable()


def test_a_class_is_pickled_with_its_options_and_without_its_queues() -> None:
    class Model:
        @batch(max_batch_size=3)
        async def act(self, items: list[int]) -> list[int]:
            return [len(items) for _ in items]

    @batch(max_batch_size=2)
    async def function(items: list[int]) -> list[int]:
        return [len(items) for _ in items]

    async def use(model: Any, function: Any) -> list[int]:
        return await asyncio.gather(*map(model.act, range(3)), *map(function, range(2)))

    model = Model()
    assert asyncio.run(use(model, function)) == [3, 3, 3, 2, 2]
    data = skate.cloudpickle.dumps((Model, model, function))
    other_class, other_model, other_function = skate.cloudpickle.loads(data)
    assert asyncio.run(use(other_model, other_function)) == [3, 3, 3, 2, 2]
    assert other_class.act.get_max_batch_size() == 3
    other_function.set_max_batch_size(1)
    assert asyncio.run(use(other_class(), other_function)) == [3, 3, 3, 1, 1]


def test_what_it_makes_says_of_itself_what_it_is() -> None:
    @batch
    async def stream(items: list[int]) -> AsyncIterator[list[int]]:
        """Docs."""
        yield items

    @batch
    def plain(items: list[int]) -> list[int]:
        return items

    assert inspect.isasyncgenfunction(stream)
    assert inspect.iscoroutinefunction(plain)
    assert inspect.iscoroutinefunction(Gate.act)
    gate = Gate.__new__(Gate)
    assert inspect.iscoroutinefunction(gate.act)
    assert (stream.__name__, stream.__doc__, gate.act.__name__) == ("stream", "Docs.", "act")


@on_loop
async def test_a_method_calls_the_one_that_it_overrides() -> None:
    class Child(Gate):
        @batch(max_batch_size=10)
        async def act(self, items: list[Any]) -> list[Any]:
            return await asyncio.gather(*(super(Child, self).act(item) for item in items))

    child = Child()
    child.open.set()
    assert await asyncio.gather(child.act(1), Child.act(child, 2)) == [("result", 1), ("result", 2)]
    assert child.batches == [[1, 2]]


def test_what_cannot_be_decorated_is_refused() -> None:
    for wrong in (3, Gate, staticmethod(len)):
        with pytest.raises(TypeError, match="decorates functions and methods"):
            batch(wrong)  # type: ignore[arg-type]

    class Slots:
        __slots__ = ()

        @batch
        async def act(self, items: list[int]) -> list[int]:
            return items

        @staticmethod
        @batch
        async def lone(items: list[int]) -> list[int]:
            return items

    with pytest.raises(TypeError, match="__weakref__"):
        _ = Slots().act
    with pytest.raises(TypeError, match="without an instance"):
        Slots.lone(1)


class Streams:
    """Counts up to each of its items: an item ends early if the others go on."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.ended = 0

    def steps(self, items: list[int]) -> Iterator[Sequence[Any]]:
        self.batches.append(items)
        try:
            for number in range(max(items)):
                yield [number if number < item else StopIteration for item in items]
        finally:
            self.ended += 1

    @batch
    async def count(self, items: list[int]) -> AsyncIterator[Sequence[Any]]:
        for step in self.steps(items):
            await asyncio.sleep(0)
            yield step

    @batch
    def count_in_thread(self, items: list[int]) -> Iterator[Sequence[Any]]:
        yield from self.steps(items)


async def collect(stream: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in stream]


@pytest.mark.parametrize("method", ["count", "count_in_thread"])
def test_a_generator_streams_to_each_item_until_that_ends(method: str) -> None:
    async def main() -> None:
        streams = Streams()
        count = getattr(streams, method)
        assert await asyncio.gather(*(collect(count(item)) for item in (2, 0, 3))) == [[0, 1], [], [0, 1, 2]]
        assert streams.batches == [[2, 0, 3]]
        assert await collect(count(1)) == [0]

    asyncio.run(main())


@pytest.mark.parametrize("method", ["count", "count_in_thread"])
def test_a_generator_is_closed_when_its_last_caller_has_gone(method: str) -> None:
    async def main() -> None:
        streams = Streams()
        stream = getattr(streams, method)(10**9)
        assert await anext(stream) == 0
        await stream.aclose()
        while not streams.ended:
            await asyncio.sleep(0.001)
        assert await collect(getattr(streams, method)(2)) == [0, 1]

    asyncio.run(asyncio.wait_for(main(), 20))


@on_loop
async def test_an_error_in_a_generator_comes_after_the_results_that_were_there() -> None:
    @batch
    async def stream(items: list[int]) -> AsyncIterator[list[int]]:
        yield items
        yield [*items, 0]

    streams = [stream(1), stream(2)]
    assert await asyncio.gather(*map(anext, streams)) == [1, 2]
    for each in streams:
        with pytest.raises(ValueError, match="stream yielded 3 results for a batch of 2 items"):
            await anext(each)


def test_hooks_hear_of_batches_and_run_plain_functions() -> None:
    heard: list[tuple[str, int]] = []

    async def here(function: Callable[..., Any], *args: Any) -> Any:
        heard.append(("here", 0))
        return function(*args)

    @batch
    def double(items: list[int]) -> list[int]:
        return [2 * item for item in items]

    def note(name: str, size: int, seconds: float) -> None:
        assert seconds >= 0
        heard.append((name, size))

    async def main() -> None:
        assert await asyncio.gather(double(1), double(2)) == [2, 4]
        gate = Gate()
        gate.open.set()
        await gate.act(1)
        await settle()

    module = importlib.import_module("skate.serve.batches")
    before = module.run_blocking
    set_hooks(on_batch=note, run_blocking=here)
    try:
        asyncio.run(main())
    finally:
        set_hooks(on_batch=None, run_blocking=None)
    assert heard == [("here", 0), ("double", 2), ("Gate.act", 1)]
    assert module.run_blocking is before


@on_loop
async def test_an_objective_lets_batches_grow_to_what_waits() -> None:
    sizes = []

    @batch(latency_ms=10_000)
    async def work(items: list[int]) -> list[int]:
        sizes.append(len(items))
        return items

    assert await asyncio.gather(*map(work, range(500))) == list(range(500))
    assert sizes[:4] == [1, 2, 4, 8]
    assert len(sizes) == 9
