"""Remote generators: references while the producer runs, back-pressure, and an end when nobody listens."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import skate
from skate._worker import current
from waiting import wait_for

pytestmark = pytest.mark.usefixtures("runtime")


@skate.remote
def count(n: int) -> Iterator[int]:
    yield from range(n)


@skate.remote
def count_forever(log: Path, ended: Path, size: int = 1) -> Iterator[bytes]:
    """Endless values of `size` bytes; one byte in the log for each, and a mark when it is stopped."""
    try:
        while True:
            with log.open("a") as file:
                file.write("x")
            yield b"v" * size
    finally:
        ended.touch()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def ended(tmp_path: Path) -> Path:
    return tmp_path / "ended"


# --- consuming --------------------------------------------------------------------------------------------------------


def test_values_come_in_order() -> None:
    assert [skate.get(ref) for ref in count.remote(100)] == list(range(100))


def test_the_generator_is_of_its_own_type() -> None:
    generator = count.remote(1)
    assert isinstance(generator, skate.ObjectRefGenerator)
    assert iter(generator) is generator
    ref = next(generator)
    assert isinstance(ref, skate.ObjectRef)
    assert skate.get(ref) == 0
    with pytest.raises(StopIteration):
        next(generator)
    with pytest.raises(StopIteration):
        next(generator)


@pytest.mark.parametrize("options", [{}, {"num_returns": "streaming"}], ids=str)
def test_generator_functions_stream_by_themselves(options: dict[str, Any]) -> None:
    stream = skate.remote(lambda: (yield 1)).options(**options)
    assert [skate.get(ref) for ref in stream.remote()] == [1]


def test_a_function_that_returns_an_iterator_streams_when_told() -> None:
    stream = skate.remote(num_returns="streaming")(lambda: iter([1, 2]))
    assert [skate.get(ref) for ref in stream.remote()] == [1, 2]


class Returns:
    def five(self) -> int:
        return 5

    def items(self) -> list[int]:
        return [1, 2]


class ReturnsLater(Returns):
    async def five(self) -> int:  # type: ignore[override]
        return 5

    async def items(self) -> list[int]:  # type: ignore[override]
        return [1, 2]


@pytest.mark.parametrize("num_returns", ["streaming", "dynamic"])
def test_items_of_what_is_not_iterable_are_a_clear_error(num_returns: str) -> None:
    def five() -> int:
        return 5

    methods = [
        skate.remote(cls).options(max_concurrency=calls).remote().five  # type: ignore[attr-defined]
        for cls, calls in ((Returns, 1), (Returns, 2), (ReturnsLater, 2))
    ]
    for call in (skate.remote(five), *methods):
        with pytest.raises(skate.exceptions.TaskError) as caught:
            list(skate.get(call.options(num_returns=num_returns).remote()))
        text = str(caught.value)
        assert f'five has num_returns="{num_returns}", so it must yield its values' in text
        assert "it returned an object of type int. For one value leave num_returns out." in text
        assert "Traceback" not in text, "it would be ours"


@pytest.mark.parametrize("cls", [Returns, ReturnsLater])
def test_methods_that_return_a_list_stream_when_told(cls: type[Returns]) -> None:
    stream = skate.remote(cls).remote().items.options(num_returns="streaming").remote()  # type: ignore[attr-defined]
    assert [skate.get(ref) for ref in stream] == [1, 2]


def test_nothing_yielded() -> None:
    assert list(count.remote(0)) == []


def test_a_value_arrives_while_the_producer_still_runs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @skate.remote
    def two() -> Iterator[str]:
        yield "early"
        wait_for(gate.exists, 40, "the consumer to have the first value")
        yield "late"

    values = []
    for ref in two.remote():
        values.append(skate.get(ref))
        gate.touch()
    assert values == ["early", "late"]


def test_large_values_stream_through_a_store_that_could_not_hold_them_all() -> None:
    numpy = pytest.importorskip("numpy")
    skate.shutdown()
    skate.init(num_cpus=1, object_store_memory=32 << 20)

    @skate.remote
    def blocks(n: int) -> Iterator[Any]:
        for i in range(n):
            yield numpy.full(250_000, i)

    totals = [int(skate.get(ref)[0]) for ref in blocks.remote(60)]
    assert totals == list(range(60))


def test_references_outlive_their_generator() -> None:
    refs = list(count.remote(5))
    gc.collect()
    assert skate.get(refs) == [0, 1, 2, 3, 4]


def test_streamed_references_go_into_other_tasks_while_the_producer_runs() -> None:
    square = skate.remote(lambda x: x * x)
    assert skate.get([square.remote(ref) for ref in count.remote(20)]) == [i * i for i in range(20)]


def test_two_generators_at_once_do_not_mix() -> None:
    pairs = [skate.get([a, b]) for a, b in zip(count.remote(50), count.remote(50))]
    assert pairs == [[i, i] for i in range(50)]


def test_references_may_be_yielded() -> None:
    stream = skate.remote(lambda: (yield skate.put(b"x" * 300_000)))
    (outer,) = list(stream.remote())
    assert len(skate.get(skate.get(outer))) == 300_000


def test_a_task_may_consume_a_stream() -> None:
    @skate.remote
    def total(n: int) -> int:
        return sum(skate.get(ref) for ref in count.remote(n))

    assert skate.get(total.remote(30)) == sum(range(30))


def test_a_task_may_pass_a_stream_on() -> None:
    @skate.remote
    def doubled(n: int) -> Iterator[int]:
        for ref in count.remote(n):
            yield 2 * skate.get(ref)

    assert [skate.get(ref) for ref in doubled.remote(10)] == [2 * i for i in range(10)]


def test_a_generator_cannot_be_sent_and_says_why() -> None:
    generator = count.remote(1)
    with pytest.raises((TypeError, skate.exceptions.SerializationError), match="references that it yields"):
        skate.put(generator)
    list(generator)


def test_readiness_and_completion(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @skate.remote
    def two() -> Iterator[int]:
        yield 1
        wait_for(gate.exists, 40, "the gate to open")
        yield 2

    generator = two.remote()
    done = generator.completed()
    assert generator.next_ready(timeout=30)
    assert skate.get(next(generator)) == 1
    assert not generator.next_ready(timeout=0)
    assert not generator.is_finished()
    assert skate.wait([done], timeout=0) == ([], [done])
    gate.touch()
    assert skate.get(next(generator)) == 2
    skate.get(done)
    assert list(generator) == []
    assert generator.is_finished()


def test_arguments_of_a_generator_may_be_references() -> None:
    assert len(list(count.remote(skate.put(3)))) == 3


# --- errors -----------------------------------------------------------------------------------------------------------


def test_an_error_in_the_middle_comes_after_the_values_before_it() -> None:
    @skate.remote
    def three_then_fail() -> Iterator[int]:
        yield from range(3)
        raise ValueError("no fourth")

    values = []
    generator = three_then_fail.remote()
    with pytest.raises(ValueError, match="no fourth"):
        for ref in generator:
            values.append(skate.get(ref))  # noqa: PERF401
    assert values == [0, 1, 2]
    assert list(generator) == [], "after the error it has ended"


def test_an_error_before_the_first_value() -> None:
    def fail_at_once() -> Iterator[int]:
        raise ValueError("at once")
        yield 1

    with pytest.raises(ValueError, match="at once"):
        skate.get(list(skate.remote(fail_at_once).remote()))


def test_a_value_that_cannot_be_pickled_is_an_error_in_its_place() -> None:
    import threading

    @skate.remote
    def unpicklable() -> Iterator[Any]:
        yield 1
        yield threading.Lock()

    values = []
    with pytest.raises(skate.exceptions.SkateError, match="lock"):
        for ref in unpicklable.remote():
            values.append(skate.get(ref))  # noqa: PERF401
    assert values == [1]


# --- back-pressure and dropping ---------------------------------------------------------------------------------------


def test_the_producer_is_never_further_ahead_than_allowed(log: Path, ended: Path) -> None:
    generator = count_forever.options(_generator_backpressure_num_objects=3).remote(log, ended)
    for taken in range(1, 20):
        next(generator)
        assert len(log.read_text()) <= taken + 3 + 1, "one more is made and held back"
    del generator
    wait_for(ended.exists, 30, "the producer to stop")


def test_an_endless_generator_waits_for_its_reader_by_default(log: Path, ended: Path) -> None:
    """Values of 1 MB in a store of 64 MB: without back-pressure this would fill memory and disk."""
    skate.shutdown()
    skate.init(num_cpus=1, object_store_memory=64 << 20)
    generator = count_forever.remote(log, ended, 1_000_000)
    for _ in range(100):
        assert len(skate.get(next(generator))) == 1_000_000
    assert len(log.read_text()) <= 100 + 64
    del generator
    wait_for(ended.exists, 30, "the producer to stop")


def test_dropping_the_generator_stops_the_producer(log: Path, ended: Path) -> None:
    generator = count_forever.remote(log, ended)
    assert skate.get(next(generator)) == b"v"
    del generator
    wait_for(ended.exists, 30, "the producer to stop")


def test_leaving_a_loop_stops_the_producer(log: Path, ended: Path) -> None:
    for i, _ in enumerate(count_forever.remote(log, ended)):
        if i == 5:
            break
    wait_for(ended.exists, 30, "the producer to stop")


def test_a_generator_never_read_stops_when_dropped(log: Path, ended: Path) -> None:
    generator = count_forever.remote(log, ended)
    wait_for(log.exists, 30, "the producer to start")
    del generator
    wait_for(ended.exists, 30, "the producer to stop")


def test_a_dropped_generator_gives_its_cpu_back(log: Path, ended: Path) -> None:
    generator = count_forever.options(num_cpus=2).remote(log, ended)
    next(generator)
    del generator
    assert skate.get(skate.remote(num_cpus=2)(lambda: "ran").remote()) == "ran"


def test_a_dropped_stream_leaves_nothing(log: Path, ended: Path) -> None:
    def left() -> int:
        gc.collect()
        statistics = current.get_runtime().statistics()
        return statistics["objects_owned"] + statistics["streams"]

    generator = count_forever.remote(log, ended, 300_000)
    kept = [next(generator) for _ in range(5)]
    del generator
    assert len(skate.get(kept[4])) == 300_000
    del kept
    wait_for(lambda: left() == 0, 20, "all of the stream to be freed")


def test_an_error_after_the_generator_was_dropped_leaves_nothing(tmp_path: Path) -> None:
    running, gate = tmp_path / "running", tmp_path / "gate"

    @skate.remote
    def fail_late() -> Iterator[int]:
        yield 1
        running.touch()
        wait_for(gate.exists, 20, "the gate")
        raise ValueError("nobody listens")

    generator = fail_late.remote()
    assert skate.get(next(generator)) == 1
    wait_for(running.exists, 20, "the producer to go on")
    del generator
    wait_for(lambda: skate.nodes() and not current.get_runtime().statistics()["streams"], 20, "the stream to be closed")
    gate.touch()
    wait_for(lambda: not current.get_runtime().statistics()["tasks_in_flight"], 20, "the error to arrive")
    assert not current.get_runtime().statistics()["objects_owned"]


def test_a_stream_read_to_its_end_leaves_nothing() -> None:
    for _ in range(20):
        for ref in count.remote(10):
            skate.get(ref)
    del ref

    def left() -> int:
        gc.collect()
        statistics = current.get_runtime().statistics()
        return statistics["objects_owned"] + statistics["streams"]

    wait_for(lambda: left() == 0, 20, "the streams to be forgotten")


def test_a_producer_can_be_cancelled(log: Path, ended: Path) -> None:
    generator = count_forever.remote(log, ended)
    next(generator)
    skate.cancel(generator)
    with pytest.raises(skate.exceptions.TaskCancelledError):
        for ref in generator:
            skate.get(ref)
    wait_for(ended.exists, 30, "the producer to stop")


# --- asyncio ----------------------------------------------------------------------------------------------------------


def test_async_for() -> None:
    async def main() -> list[int]:
        return [await ref async for ref in count.remote(20)]

    assert asyncio.run(main()) == list(range(20))


def test_async_for_lets_the_loop_run(tmp_path: Path) -> None:
    """While one coroutine waits for the next value, another opens the gate that the producer waits for."""
    gate = tmp_path / "gate"

    @skate.remote
    def two() -> Iterator[int]:
        yield 1
        wait_for(gate.exists, 40, "the other coroutine")
        yield 2

    async def consume(first: asyncio.Event) -> list[int]:
        values = []
        async for ref in two.remote():
            values.append(await ref)
            first.set()
        return values

    async def open_gate(first: asyncio.Event) -> None:
        await first.wait()
        gate.touch()

    async def main() -> list[int]:
        first = asyncio.Event()
        values, _ = await asyncio.gather(consume(first), open_gate(first))
        return values

    assert asyncio.run(main()) == [1, 2]


def test_async_for_raises_the_error_in_its_place() -> None:
    @skate.remote
    def one_then_fail() -> Iterator[int]:
        yield 1
        raise ValueError("no second")

    async def main() -> list[int]:
        values = []
        with pytest.raises(ValueError, match="no second"):
            async for ref in one_then_fail.remote():
                values.append(await ref)  # noqa: PERF401
        return values

    assert asyncio.run(main()) == [1]


def test_two_streams_in_one_loop() -> None:
    async def read(stream: AsyncIterator[Any]) -> list[int]:
        return [await ref async for ref in stream]

    async def main() -> list[list[int]]:
        return await asyncio.gather(*[read(count.remote(n)) for n in (5, 10, 0)])

    assert asyncio.run(main()) == [list(range(5)), list(range(10)), []]


def test_a_cancelled_reader_stops_the_producer(log: Path, ended: Path) -> None:
    async def read(first: asyncio.Event) -> None:
        async for _ in count_forever.remote(log, ended):
            first.set()

    async def main() -> None:
        first = asyncio.Event()
        reader = asyncio.create_task(read(first))
        await first.wait()
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader

    asyncio.run(main())
    gc.collect()
    wait_for(ended.exists, 30, "the producer to stop")


def test_wait_takes_generators(tmp_path: Path) -> None:
    go = tmp_path / "go"

    @skate.remote
    def produce(at_once: bool) -> Iterator[int]:
        while not at_once and not go.exists():
            time.sleep(0.005)
        yield 1

    early, late = produce.remote(True), produce.remote(False)
    assert skate.wait([late, early], num_returns=1, timeout=30) == ([early], [late])
    assert skate.get(next(early)) == 1
    go.touch()
    assert skate.wait([late], timeout=30) == ([late], [])
    assert skate.get(next(late)) == 1
    # Both have ended, and a generator at its end is ready.
    assert skate.wait([early, late], num_returns=2, timeout=30) == ([early, late], [])


def test_a_stream_of_an_earlier_runtime_is_an_error_and_not_at_its_end() -> None:
    def take_rest() -> list[Any]:
        return list(stream)

    async def take_rest_async() -> list[Any]:
        return [ref async for ref in stream]

    skate.shutdown()
    with skate.init(num_cpus=1):
        stream = count.options(num_returns="streaming").remote(10)
        assert skate.get(next(stream)) == 0
    with skate.init(num_cpus=1):
        for use in (take_rest, lambda: asyncio.run(take_rest_async()), stream.next_ready, stream.completed):
            with pytest.raises(skate.exceptions.ObjectLostError):
                use()
