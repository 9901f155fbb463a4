"""Plain functions run in threads: nothing is lost, and who guards a function that runs learns when it has ended."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import threading
import time
from collections.abc import Iterator

import pytest

from skate.serve.threads import Threads
from waiting import WITHIN_S, wait_for


def test_a_cancelled_caller_waits_until_its_function_has_returned() -> None:
    async def run() -> None:
        threads, begun, may_end = Threads(1), threading.Event(), threading.Event()
        ended: list[bool] = []

        def work() -> None:
            begun.set()
            assert may_end.wait(WITHIN_S)
            ended.append(True)

        task = asyncio.ensure_future(threads.run(work))
        await asyncio.to_thread(begun.wait, WITHIN_S)
        for _ in range(3):  # also if it is cancelled again
            task.cancel()
            await asyncio.wait([task], timeout=0.01)
            assert not task.done()
        may_end.set()
        await asyncio.wait([task])
        assert task.cancelled()
        assert ended

    asyncio.run(run())


def test_a_function_that_fails_after_its_caller_was_cancelled_is_only_a_cancellation() -> None:
    async def run() -> None:
        threads, begun, may_end = Threads(1), threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            assert may_end.wait(WITHIN_S)
            raise SystemExit

        task = asyncio.ensure_future(threads.run(work))
        await asyncio.to_thread(begun.wait, WITHIN_S)
        task.cancel()
        may_end.set()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(run())


def test_a_function_whose_caller_was_cancelled_before_it_began_is_not_called() -> None:
    async def run() -> None:
        threads, may_end, called = Threads(1), threading.Event(), threading.Event()
        first = asyncio.ensure_future(threads.run(may_end.wait, WITHIN_S))
        second = asyncio.ensure_future(threads.run(called.set))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])  # at once, although no thread is free
        assert second.cancelled()
        may_end.set()
        assert await first
        assert await threads.run(int, "7") == 7
        assert not called.is_set()

    asyncio.run(run())


def test_many_calls_have_their_own_results_and_the_limit_is_kept() -> None:
    async def run() -> None:
        threads, lock = Threads(4), threading.Lock()
        working, most = 0, 0

        def work(number: int, *, add: int) -> int:
            nonlocal working, most
            with lock:
                working += 1
                most = max(most, working)
            pause.wait(0.0001)
            with lock:
                working -= 1
            if number % 10 == 0:
                raise ValueError(number)
            return number + add

        pause = threading.Event()
        results = await asyncio.gather(*(threads.run(work, n, add=1) for n in range(500)), return_exceptions=True)
        for number, result in enumerate(results):
            assert str(result) == str(number if number % 10 == 0 else number + 1)
        assert 1 <= most <= 4

    asyncio.run(run())


def test_nothing_is_lost_under_random_cancels() -> None:
    async def run() -> None:
        threads, chance = Threads(3), random.Random(1)
        begun: list[int] = []
        ended: list[int] = []
        pause = threading.Event()

        def work(number: int) -> int:
            begun.append(number)
            pause.wait(0.0001)
            ended.append(number)
            return number

        tasks: list[asyncio.Task[int]] = []
        for number in range(400):
            tasks.append(asyncio.ensure_future(threads.run(work, number)))
            if chance.random() < 0.5:
                await asyncio.sleep(0)
            if chance.random() < 0.4:
                chance.choice(tasks).cancel()
        await asyncio.wait(tasks)
        assert begun
        assert sorted(begun) == sorted(ended)
        for number, task in enumerate(tasks):
            assert task.cancelled() or task.result() == number
        assert await asyncio.gather(*(threads.run(abs, -n) for n in range(20))) == list(range(20))

    asyncio.run(run())


def test_an_idle_thread_is_used_again() -> None:
    async def run() -> None:
        threads = Threads(100)
        names = {await threads.run(lambda: threading.current_thread().name) for _ in range(20)}
        assert len(names) <= 2  # the thread may tell of its result just before it counts as idle

    asyncio.run(run())


def test_a_raised_limit_lets_more_functions_run() -> None:
    async def run() -> None:
        threads, meeting = Threads(1), threading.Barrier(2)
        threads.limit = 2
        await asyncio.gather(*(threads.run(meeting.wait, WITHIN_S) for _ in range(2)))

    asyncio.run(run())


def test_a_function_sees_the_context_of_its_caller_and_does_not_change_it() -> None:
    word = contextvars.ContextVar("word", default="")

    async def run() -> None:
        def change() -> str:
            seen = word.get()
            word.set("other")
            return seen

        word.set("mine")
        threads = Threads(1)
        assert [await threads.run(change), await threads.run(change)] == ["mine", "mine"]
        assert word.get() == "mine"

    asyncio.run(run())


def test_stop_iteration_arrives_as_an_error_that_says_so() -> None:
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        asyncio.run(Threads(1).run(next, iter(())))
    assert isinstance(caught.value.__cause__, StopIteration)


def test_threads_survive_the_end_of_an_event_loop() -> None:
    threads, may_end, ended = Threads(1), threading.Event(), threading.Event()

    def work() -> None:
        may_end.wait(WITHIN_S)
        ended.set()

    loop = asyncio.new_event_loop()
    coroutine = threads.run(work)
    task = loop.create_task(coroutine)
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.close()
    may_end.set()
    wait_for(ended.is_set, WITHIN_S, "the function to end")
    assert asyncio.run(threads.run(str, 5)) == "5"
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine.close()


def test_an_iterator_is_closed_in_a_thread_when_its_reader_leaves() -> None:
    async def run() -> None:
        here, closed_in = threading.get_ident(), list[int]()

        def items() -> Iterator[int]:
            try:
                yield from range(10)
            finally:
                closed_in.append(threading.get_ident())

        threads = Threads(2)
        assert [item async for item in threads.iterate(items())] == list(range(10))
        reader = threads.iterate(items())
        assert [await anext(reader), await anext(reader)] == [0, 1]
        await reader.aclose()  # type: ignore[attr-defined]
        assert len(closed_in) == 2
        assert here not in closed_in

    asyncio.run(run())


def test_threads_end_when_they_are_dropped() -> None:
    async def use() -> None:
        threads = Threads(2, "dropped")
        await asyncio.gather(threads.run(time.sleep, 0.01), threads.run(time.sleep, 0.01))
        assert any(each.name.startswith("dropped") for each in threading.enumerate())

    asyncio.run(use())
    gc.collect()
    wait_for(lambda: not any(each.name.startswith("dropped") for each in threading.enumerate()), 10, "their end")
