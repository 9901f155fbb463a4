"""Several calls at a time: async actors, threaded actors, concurrency groups; cancel, back-pressure, and order."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import skate
from actor_ends import wait_only_a_moment
from programs import append, lines
from skate.exceptions import ActorDiedError, PendingCallsLimitExceeded, SkateError, TaskCancelledError, TaskError
from waiting import WITHIN_S, value_of, wait_for

pytestmark = pytest.mark.usefixtures("runtime")


def assert_cancelled(ref: Any) -> TaskCancelledError:
    with pytest.raises(TaskCancelledError) as caught:
        value_of(ref)
    return caught.value


@skate.remote
class Signal:
    """Calls that wait until another call lets them go: the plainest use of an async actor."""

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.waiting = 0
        self.most = 0

    async def wait(self, value: Any = None) -> Any:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        try:
            await self.event.wait()
        finally:
            self.waiting -= 1
        return value

    async def send(self) -> None:
        self.event.set()

    async def clear(self) -> None:
        self.event.clear()

    async def count(self) -> int:
        return self.waiting

    async def most_at_once(self) -> int:
        return self.most

    async def same(self, value: Any) -> Any:
        return value


@skate.remote
class Gate:
    """A plain actor: one call at a time."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def hold(self, started: Path, go: Path) -> str:
        started.touch()
        while not go.exists():
            time.sleep(0.002)
        return "held"

    def see(self, value: Any) -> Any:
        self.seen.append(value)
        return value

    def all_seen(self) -> list[Any]:
        return self.seen


@skate.remote(num_cpus=0)
def when(gate: Path, value: Any = None) -> Any:
    wait_for(gate.exists, 40, f"{gate.name} to open")
    return value


def wait_until_waiting(signal: Any, count: int) -> None:
    wait_for(lambda: value_of(signal.count.remote()) == count, WITHIN_S, f"{count} calls to wait")


# --- Async actors -----------------------------------------------------------------------------------------------------


def test_an_async_method_gives_its_value() -> None:
    signal = Signal.remote()
    assert value_of(signal.same.remote("x")) == "x"
    assert skate.get([signal.same.remote(number) for number in range(500)], timeout=WITHIN_S) == list(range(500))


def test_a_call_that_waits_does_not_hold_up_others() -> None:
    signal = Signal.remote()
    waiting = signal.wait.remote("let go")
    wait_until_waiting(signal, 1)
    assert skate.wait([waiting], timeout=0) == ([], [waiting])
    value_of(signal.send.remote())
    assert value_of(waiting) == "let go"


def test_by_default_hundreds_of_calls_wait_at_once() -> None:
    signal = Signal.remote()
    refs = [signal.wait.remote(number) for number in range(900)]
    wait_until_waiting(signal, 900)
    value_of(signal.send.remote())
    assert skate.get(refs, timeout=WITHIN_S) == list(range(900))


def test_thousands_of_calls_wait_at_once() -> None:
    signal = Signal.options(max_concurrency=5000).remote()
    refs = [signal.wait.remote(number) for number in range(4000)]
    wait_until_waiting(signal, 4000)
    value_of(signal.send.remote())
    assert skate.get(refs, timeout=WITHIN_S) == list(range(4000))


def test_not_more_coroutines_than_max_concurrency(tmp_path: Path) -> None:
    @skate.remote(max_concurrency=3)
    class Limited:
        def __init__(self) -> None:
            self.running = 0
            self.most = 0

        async def work(self) -> int:
            self.running += 1
            self.most = max(self.most, self.running)
            for _ in range(5):
                await asyncio.sleep(0)
            self.running -= 1
            return self.most

    limited = Limited.remote()
    assert max(skate.get([limited.work.remote() for _ in range(100)], timeout=WITHIN_S)) == 3


def test_an_async_actor_with_one_call_at_a_time_keeps_the_order() -> None:
    @skate.remote(max_concurrency=1)
    class Serial:
        def __init__(self) -> None:
            self.seen: list[int] = []

        async def see(self, number: int) -> None:
            for _ in range(number % 3):
                await asyncio.sleep(0)
            self.seen.append(number)

        async def all_seen(self) -> list[int]:
            return self.seen

    serial = Serial.remote()
    for number in range(100):
        serial.see.remote(number)
    assert value_of(serial.all_seen.remote()) == list(range(100))


def test_async_calls_start_in_the_order_sent() -> None:
    @skate.remote
    class Starts:
        def __init__(self) -> None:
            self.started: list[int] = []

        async def start(self, number: int) -> None:
            self.started.append(number)
            await asyncio.sleep(0)

        async def all_started(self) -> list[int]:
            return self.started

    starts = Starts.remote()
    skate.get([starts.start.remote(number) for number in range(200)], timeout=WITHIN_S)
    assert value_of(starts.all_started.remote()) == list(range(200))


def test_one_event_loop_and_one_thread_for_all_async_calls() -> None:
    @skate.remote
    class Where:
        async def here(self) -> Any:
            await asyncio.sleep(0)
            return id(asyncio.get_running_loop()), threading.get_ident()

    where = Where.remote()
    assert len(set(skate.get([where.here.remote() for _ in range(20)], timeout=WITHIN_S))) == 1


def test_plain_methods_of_an_async_actor_see_the_same_state() -> None:
    @skate.remote
    class Mixed:
        def __init__(self) -> None:
            self.value = 0

        async def add(self) -> int:
            self.value += 1
            await asyncio.sleep(0)
            return self.value

        def read(self) -> int:
            return self.value

    mixed = Mixed.remote()
    skate.get([mixed.add.remote() for _ in range(10)], timeout=WITHIN_S)
    assert value_of(mixed.read.remote()) == 10


def test_an_inherited_async_method_makes_the_actor_async() -> None:
    class Base:
        def __init__(self) -> None:
            self.event = asyncio.Event()

        async def wait(self) -> str:
            await self.event.wait()
            return "let go"

    @skate.remote
    class Child(Base):
        def send(self) -> None:
            self.event.set()

    child = Child.remote()
    ref = child.wait.remote()
    child.send.remote()
    assert value_of(ref) == "let go"


def test_background_work_goes_on_between_calls() -> None:
    @skate.remote
    class Ticker:
        def __init__(self) -> None:
            self.ticks = 0
            self.task: Any = None

        async def start(self) -> None:
            async def tick() -> None:
                while True:
                    self.ticks += 1
                    await asyncio.sleep(0.001)

            self.task = asyncio.get_running_loop().create_task(tick())

        async def read(self) -> int:
            return self.ticks

    ticker = Ticker.remote()
    value_of(ticker.start.remote())
    wait_for(lambda: value_of(ticker.read.remote()) > 3, WITHIN_S, "the clock to tick")


def test_references_are_awaited_inside(tmp_path: Path) -> None:
    @skate.remote
    class Waiter:
        async def after(self, gate: Path) -> str:
            return await when.remote(gate, "task") + await self.other.same.remote(" and actor")

        async def know(self, other: Any) -> None:
            self.other = other

        async def ping(self) -> str:
            return "pong"

    gate = tmp_path / "gate"
    waiter = Waiter.remote()
    value_of(waiter.know.remote(Signal.remote()))
    ref = waiter.after.remote(gate)
    assert value_of(waiter.ping.remote()) == "pong"
    assert skate.wait([ref], timeout=0) == ([], [ref])
    gate.touch()
    assert value_of(ref) == "task and actor"


def test_gather_and_wait_inside() -> None:
    @skate.remote
    class Waiter:
        async def gather(self) -> list[int]:
            square = skate.remote(lambda x: x * x)
            return list(await asyncio.gather(*[square.remote(x) for x in range(50)]))

        async def first(self, box: list[Any]) -> Any:
            done, pending = await asyncio.wait(
                [asyncio.wrap_future(ref.future()) for ref in box], return_when=asyncio.FIRST_COMPLETED
            )
            return [future.result() for future in done], len(pending)

    signal = Signal.remote()
    waiter = Waiter.remote()
    assert value_of(waiter.gather.remote()) == [x * x for x in range(50)]
    assert value_of(waiter.first.remote([signal.wait.remote(), skate.put("there")])) == (["there"], 1)
    value_of(signal.send.remote())


def test_a_reference_as_an_argument_is_a_value_there(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    signal = Signal.remote()
    late = signal.same.remote(when.remote(gate, "late"))
    gate.touch()
    assert value_of(late) == "late"
    array = np.arange(200_000)
    assert np.array_equal(value_of(signal.same.remote(skate.put(array))), array)


def test_an_awaited_error_can_be_caught_inside() -> None:
    @skate.remote
    class Catcher:
        async def attempt(self) -> str:
            try:
                await skate.remote(lambda: 1 / 0).remote()
            except ZeroDivisionError:
                return "caught"
            return "no error"

    assert value_of(Catcher.remote().attempt.remote()) == "caught"


def test_an_exception_of_an_async_method() -> None:
    @skate.remote
    class Careless:
        async def fail(self, after: int) -> None:
            for _ in range(after):
                await asyncio.sleep(0)
            raise ValueError(f"after {after}")

        async def ping(self) -> str:
            return "pong"

    careless = Careless.remote()
    for after in (0, 3):
        with pytest.raises(ValueError, match=f"after {after}") as caught:
            value_of(careless.fail.remote(after))
        assert isinstance(caught.value, TaskError)
        assert "in fail" in str(caught.value)
    assert value_of(careless.ping.remote()) == "pong"


def test_the_driver_awaits_calls() -> None:
    signal = Signal.remote()

    async def main() -> list[Any]:
        waiting = [asyncio.ensure_future(asyncio.wrap_future(signal.wait.remote(n).future())) for n in range(10)]
        await signal.send.remote()
        return [*await asyncio.gather(*waiting), await signal.same.remote("own")]

    assert asyncio.run(main()) == [*range(10), "own"]


def test_each_async_call_knows_which_call_it_is() -> None:
    @skate.remote
    class Who:
        def __init__(self) -> None:
            self.event = asyncio.Event()

        async def am_i(self) -> list[Any]:
            before = skate.get_runtime_context().get_task_id()
            await self.event.wait()
            return [before, skate.get_runtime_context().get_task_id(), skate.get_runtime_context().get_actor_id()]

        async def send(self) -> None:
            self.event.set()

    who = Who.remote()
    refs = [who.am_i.remote() for _ in range(5)]
    value_of(who.send.remote())
    expected = [[ref.task_id().hex(), ref.task_id().hex(), who._actor_id.hex()] for ref in refs]
    assert skate.get(refs, timeout=WITHIN_S) == expected


def test_calls_of_an_async_actor_that_dies_all_fail() -> None:
    @skate.remote
    class Mortal:
        def __init__(self) -> None:
            self.waiting = 0

        async def forever(self) -> None:
            self.waiting += 1
            await asyncio.Event().wait()

        async def count(self) -> int:
            return self.waiting

        async def crash(self) -> None:
            os._exit(3)

    mortal = Mortal.remote()
    refs = [mortal.forever.remote() for _ in range(50)]
    wait_until_waiting(mortal, 50)
    for ref in [mortal.crash.remote(), *refs]:
        with pytest.raises(ActorDiedError, match="code 3"):
            value_of(ref)


def test_several_returns_of_an_async_method() -> None:
    @skate.remote
    class Pair:
        @skate.method(num_returns=2)
        async def pair(self) -> tuple[int, int]:
            await asyncio.sleep(0)
            return 1, 2

    assert skate.get(Pair.remote().pair.remote(), timeout=WITHIN_S) == [1, 2]


# --- Async generators -------------------------------------------------------------------------------------------------


@skate.remote
class Source:
    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def count(self, n: int) -> AsyncIterator[int]:
        for number in range(n):
            await asyncio.sleep(0)
            yield number

    async def gated(self) -> AsyncIterator[str]:
        yield "early"
        await self.event.wait()
        yield "late"

    async def broken(self) -> AsyncIterator[int]:
        yield 1
        raise ValueError("out of values")

    async def endless(self, ended: Path) -> AsyncIterator[int]:
        try:
            while True:
                await asyncio.sleep(0)
                yield 1
        finally:
            ended.touch()

    async def stuck(self, log: Path) -> AsyncIterator[int]:
        yield 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            append(log, "CancelledError")
            raise

    async def send(self) -> None:
        self.event.set()

    async def ping(self) -> str:
        return "pong"


@pytest.mark.parametrize("options", [{}, {"num_returns": "streaming"}], ids=str)
def test_an_async_generator_streams(options: dict[str, Any]) -> None:
    stream = Source.remote().count.options(**options).remote(50)
    assert isinstance(stream, skate.ObjectRefGenerator)
    assert [value_of(ref) for ref in stream] == list(range(50))


def test_an_async_generator_is_read_by_async_for() -> None:
    source = Source.remote()

    async def main() -> list[int]:
        return [await ref async for ref in source.count.remote(20)]

    assert asyncio.run(main()) == list(range(20))


def test_a_stream_that_waits_does_not_hold_up_others() -> None:
    source = Source.remote()
    streams = [source.gated.remote() for _ in range(3)]
    assert [value_of(next(stream)) for stream in streams] == ["early"] * 3
    assert [value_of(ref) for ref in source.count.remote(3)] == [0, 1, 2]
    value_of(source.send.remote())
    assert [[value_of(ref) for ref in stream] for stream in streams] == [["late"]] * 3


def test_an_exception_in_an_async_stream_comes_after_the_values() -> None:
    source = Source.remote()
    stream = source.broken.remote()
    assert value_of(next(stream)) == 1
    with pytest.raises(ValueError, match="out of values"):
        for ref in stream:
            value_of(ref)
    assert value_of(source.ping.remote()) == "pong"


def test_an_async_stream_that_nobody_reads_ends(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    source = Source.remote()
    stream = source.endless.remote(ended)
    assert value_of(next(stream)) == 1
    del stream
    wait_for(ended.exists, WITHIN_S, "the generator to be closed")
    assert value_of(source.ping.remote()) == "pong"


def test_an_async_stream_can_be_cancelled(tmp_path: Path) -> None:
    log = tmp_path / "log"
    source = Source.remote()
    stream = source.stuck.remote(log)
    assert value_of(next(stream)) == 1
    skate.cancel(stream)
    with pytest.raises(TaskCancelledError):
        for ref in stream:
            value_of(ref)
    wait_for(lambda: lines(log) == ["CancelledError"], WITHIN_S, "the generator to hear of it")
    assert value_of(source.ping.remote()) == "pong"


def test_a_method_that_stops_the_loop_does_not_stop_the_actor() -> None:
    @skate.remote
    class Careless:
        async def stop(self) -> None:
            asyncio.get_running_loop().stop()

        async def ping(self) -> str:
            return "pong"

    careless = Careless.remote()
    refs = [careless.stop.remote(), careless.ping.remote()]
    assert skate.get(refs, timeout=WITHIN_S) == [None, "pong"]
    assert value_of(careless.ping.remote()) == "pong"


# --- Cancel -----------------------------------------------------------------------------------------------------------


@skate.remote
class Patient:
    """Async calls that say how they end."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    async def wait(self, log: Path, name: str) -> str:
        append(log, f"{name} started")
        try:
            await self.event.wait()
        except asyncio.CancelledError:
            append(log, f"{name} cancelled {skate.get_runtime_context().is_canceled()}")
            raise
        append(log, f"{name} done")
        return name

    async def wait_for_task(self, log: Path, gate: Path) -> Any:
        append(log, "waits")
        return await when.remote(gate)

    async def send(self) -> None:
        self.event.set()

    async def ping(self) -> str:
        return "pong"


def test_a_running_async_call_is_cancelled_and_the_others_go_on(tmp_path: Path) -> None:
    log = tmp_path / "log"
    patient = Patient.remote()
    refs = {name: patient.wait.remote(log, name) for name in ("a", "b", "c")}
    wait_for(lambda: len(lines(log)) == 3, WITHIN_S, "three calls to wait")
    skate.cancel(refs["b"])
    error = assert_cancelled(refs["b"])
    assert "wait" in str(error)
    wait_for(lambda: "b cancelled True" in lines(log), WITHIN_S, "the call to hear of it")
    value_of(patient.send.remote())
    assert [value_of(refs["a"]), value_of(refs["c"])] == ["a", "c"]
    assert sorted(lines(log)[3:]) == ["a done", "b cancelled True", "c done"]


def test_an_async_call_that_awaits_a_task_is_cancelled(tmp_path: Path) -> None:
    log = tmp_path / "log"
    patient = Patient.remote()
    ref = patient.wait_for_task.remote(log, tmp_path / "never")
    wait_for(lambda: lines(log), WITHIN_S, "the call to wait")
    skate.cancel(ref)
    assert_cancelled(ref)
    assert value_of(patient.ping.remote()) == "pong"


@pytest.mark.parametrize("recursive", [True, False])
def test_tasks_of_a_cancelled_async_call_are_cancelled_when_told(tmp_path: Path, recursive: bool) -> None:
    log, go = tmp_path / "log", tmp_path / "go"

    @skate.remote
    def child() -> None:
        try:
            append(log, "started")
            while not go.exists():
                time.sleep(0.002)
            append(log, "finished")
        except KeyboardInterrupt:
            append(log, "cancelled")
            raise

    @skate.remote
    class Parent:
        async def run(self) -> None:
            await child.remote()

    parent = Parent.remote()
    ref = parent.run.remote()
    wait_for(lambda: lines(log) == ["started"], WITHIN_S, "the child to run")
    skate.cancel(ref, recursive=recursive)
    assert_cancelled(ref)
    if recursive:
        wait_for(lambda: lines(log) == ["started", "cancelled"], WITHIN_S, "the child to be cancelled")
    else:
        assert lines(log) == ["started"]
        go.touch()
        wait_for(lambda: lines(log) == ["started", "finished"], WITHIN_S, "the child to finish")


def test_many_async_calls_are_cancelled() -> None:
    signal = Signal.remote()
    refs = [signal.wait.remote(number) for number in range(200)]
    wait_until_waiting(signal, 200)
    for ref in refs[::2]:
        skate.cancel(ref)
    for ref in refs[::2]:
        assert_cancelled(ref)
    wait_until_waiting(signal, 100)
    value_of(signal.send.remote())
    assert skate.get(refs[1::2], timeout=WITHIN_S) == list(range(1, 200, 2))


def test_an_async_call_that_waits_for_its_turn_is_cancelled_and_never_runs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    patient = Patient.options(max_concurrency=1).remote()
    first = patient.wait.remote(log, "first")
    wait_for(lambda: lines(log), WITHIN_S, "the first call to run")
    second = patient.wait.remote(log, "second")
    skate.cancel(second)
    assert not assert_cancelled(second).was_running
    skate.cancel(first)
    assert assert_cancelled(first).was_running
    assert value_of(patient.ping.remote()) == "pong"
    assert not any("second" in line for line in lines(log))


@pytest.mark.parametrize("slow", ["CurrentCall", "create_task"])
def test_a_cancel_that_meets_an_async_call_at_its_start_is_not_lost(tmp_path: Path, slow: str) -> None:
    """The call is taken from those that wait, then counts as running, then its task is made: it comes in between."""
    meets = tmp_path / "meets"

    def slow_down(_: Any) -> None:
        from skate._worker import actor_async
        from skate._worker.current import get_runtime

        calls = get_runtime().executor.actor.concurrency  # type: ignore[union-attr]
        place: Any = actor_async if slow == "CurrentCall" else calls._loop  # type: ignore[union-attr]
        begin = getattr(place, slow)

        def begin_slowly(*args: Any) -> Any:
            if not meets.exists():
                meets.touch()
                time.sleep(0.5)
            return begin(*args)

        setattr(place, slow, begin_slowly)

    patient = Patient.options(max_concurrency=2).remote()
    value_of(patient.__ray_call__.remote(slow_down))
    ref = patient.wait.remote(tmp_path / "log", "first")
    wait_for(meets.exists, WITHIN_S, "the call to be started")
    skate.cancel(ref)
    assert_cancelled(ref)
    assert skate.get([patient.ping.remote() for _ in range(4)], timeout=WITHIN_S) == ["pong"] * 4


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}], ids=["plain", "threads"])
def test_a_cancel_that_meets_a_call_at_its_start_is_heard(tmp_path: Path, options: dict[str, int]) -> None:
    """The call is taken from those that wait, and then counts as running: the cancel comes in between."""
    meets = tmp_path / "meets"

    @skate.remote
    class Polite:
        def slow_down(self) -> None:
            from skate._worker import actor_concurrency
            from skate._worker.current import get_runtime

            executor: Any = get_runtime().executor
            # What is called next: a plain actor enters the context, a thread notes the call.
            place: Any = actor_concurrency if options else executor._runtime.context.__class__
            begin = place.CurrentCall if options else place.enter

            def begin_slowly(*args: Any) -> Any:
                if not meets.exists():
                    meets.touch()
                    time.sleep(0.5)
                return begin(*args)

            setattr(place, "CurrentCall" if options else "enter", begin_slowly)

        def work(self) -> str:
            end = time.monotonic() + WITHIN_S / 2
            while not skate.get_runtime_context().is_canceled():
                assert time.monotonic() < end, "the cancel was lost"
                time.sleep(0.001)
            return "heard"

    polite = Polite.options(**options).remote()
    value_of(polite.slow_down.remote())
    ref = polite.work.remote()
    wait_for(meets.exists, WITHIN_S, "the call to be started")
    skate.cancel(ref)
    with contextlib.suppress(TaskCancelledError):
        assert value_of(ref) == "heard"


def test_a_cancel_that_an_async_call_swallows_does_no_harm(tmp_path: Path) -> None:
    started = tmp_path / "started"

    @skate.remote
    class Stubborn:
        async def wait(self) -> str:
            started.touch()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return "went on"

        async def ping(self) -> str:
            return "pong"

    stubborn = Stubborn.remote()
    ref = stubborn.wait.remote()
    wait_for(started.exists, WITHIN_S, "the call to wait")
    skate.cancel(ref)
    with contextlib.suppress(TaskCancelledError):
        assert value_of(ref) == "went on"
    assert value_of(stubborn.ping.remote()) == "pong"


def test_a_cancelled_call_gives_its_place_to_the_next() -> None:
    signal = Signal.options(max_concurrency=2).remote()
    first = signal.wait.remote(1)
    wait_until_waiting(signal, 1)
    second = signal.wait.remote(2)
    third = signal.same.remote("third")
    skate.cancel(first)
    skate.cancel(second)
    assert value_of(third) == "third"
    assert_cancelled(first)
    assert_cancelled(second)


def test_a_pending_call_is_gone_at_once_and_never_runs(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    gate = Gate.remote()
    held = gate.hold.remote(started, go)
    wait_for(started.exists, WITHIN_S, "the first call to run")
    refs = [gate.see.remote(number) for number in range(20)]
    for ref in refs[5:15]:
        skate.cancel(ref)
    for ref in refs[5:15]:
        error = assert_cancelled(ref)
        assert "see" in str(error)
        assert not error.was_running
    assert not go.exists(), "none of them had to wait for the first call"
    go.touch()
    assert value_of(held) == "held"
    assert value_of(gate.all_seen.remote()) == [*range(5), *range(15, 20)]


@pytest.mark.parametrize("made", [False, True], ids=["not yet made", "made"])
def test_a_call_that_waits_for_its_arguments_is_cancelled(tmp_path: Path, made: bool) -> None:
    go = tmp_path / "go"
    gate = Gate.remote()
    if made:
        value_of(gate.all_seen.remote())
    late = when.remote(go, "late")
    refs = [gate.see.remote(1), gate.see.remote(late), gate.see.remote(2)]
    skate.cancel(refs[1])
    assert_cancelled(refs[1])
    assert value_of(gate.all_seen.remote()) == [1, 2]
    go.touch()
    assert value_of(late) == "late", "the argument itself was not cancelled"


def test_a_call_to_an_actor_that_is_not_yet_made_is_cancelled(tmp_path: Path) -> None:
    go = tmp_path / "go"

    @skate.remote
    class Late:
        def __init__(self, argument: Any) -> None:
            self.seen: list[int] = []

        def see(self, value: int) -> list[int]:
            self.seen.append(value)
            return self.seen

    late = Late.remote(when.remote(go))
    first, second = late.see.remote(1), late.see.remote(2)
    skate.cancel(first)
    assert_cancelled(first)
    go.touch()
    assert value_of(second) == [2]


def test_a_running_plain_call_is_not_interrupted(tmp_path: Path) -> None:
    started, go, log = tmp_path / "started", tmp_path / "go", tmp_path / "log"

    @skate.remote
    class Steady:
        def work(self) -> str:
            started.touch()
            try:
                while not go.exists():
                    time.sleep(0.002)
            except BaseException as error:
                append(log, type(error).__name__)
                raise
            append(log, "to the end")
            return "done"

        def ping(self) -> str:
            return "pong"

    steady = Steady.remote()
    ref = steady.work.remote()
    wait_for(started.exists, WITHIN_S, "the call to run")
    skate.cancel(ref)
    behind = steady.ping.remote()
    assert skate.wait([behind], timeout=0.2) == ([], [behind]), "it still runs"
    go.touch()
    assert value_of(behind) == "pong"
    assert lines(log) == ["to the end"]
    with contextlib.suppress(TaskCancelledError):
        assert value_of(ref) == "done"


def test_force_is_refused_for_a_call_and_nothing_is_cancelled(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    gate = Gate.remote()
    held, waiting = gate.hold.remote(started, go), gate.see.remote(1)
    wait_for(started.exists, WITHIN_S, "the first call to run")
    for ref in (held, waiting):
        with pytest.raises(ValueError, match="force"):
            skate.cancel(ref, force=True)
    go.touch()
    assert skate.get([held, waiting], timeout=WITHIN_S) == ["held", 1]


def test_cancel_of_a_finished_call_is_harmless() -> None:
    gate = Gate.remote()
    ref = gate.see.remote(1)
    assert value_of(ref) == 1
    skate.cancel(ref)
    assert value_of(ref) == 1
    assert value_of(gate.see.remote(2)) == 2


def test_a_borrower_may_cancel_a_pending_call(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    gate = Gate.remote()
    held = gate.hold.remote(started, go)
    wait_for(started.exists, WITHIN_S, "the first call to run")
    ref = gate.see.remote(1)
    value_of(skate.remote(lambda box: skate.cancel(box[0])).remote([ref]))
    assert_cancelled(ref)
    go.touch()
    assert value_of(held) == "held"
    assert value_of(gate.all_seen.remote()) == []


def test_cancel_at_any_moment_leaves_a_value_or_a_cancelled_error() -> None:
    signal, gate = Signal.remote(), Gate.remote()
    for number in range(100):
        for ref in (signal.same.remote(number), gate.see.remote(number)):
            skate.cancel(ref)
            with contextlib.suppress(TaskCancelledError):
                assert value_of(ref) == number
    seen = value_of(gate.all_seen.remote())
    assert seen == sorted(set(seen))


# --- Threaded actors --------------------------------------------------------------------------------------------------


@skate.remote
class Threaded:
    def __init__(self, parties: int = 1) -> None:
        self.barrier = threading.Barrier(parties)
        self.lock = threading.Lock()
        self.running = 0
        self.most = 0

    def meet(self) -> int:
        self.barrier.wait(timeout=WITHIN_S)
        return threading.get_ident()

    def work(self, hold_s: float = 0.002) -> int:
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(hold_s)  # the work itself; the assertions hold however long it takes
        with self.lock:
            self.running -= 1
        return self.most

    def hold(self, started: Path, go: Path) -> str:
        append(started, threading.get_ident())
        while not go.exists():
            time.sleep(0.002)
        return "held"

    def square(self, x: int) -> int:
        return skate.get(skate.remote(lambda y: y * y).remote(x))

    def fail(self) -> None:
        raise ValueError("in a thread")

    def ids(self) -> tuple[str | None, str | None]:
        self.barrier.wait(timeout=WITHIN_S)
        context = skate.get_runtime_context()
        return context.get_task_id(), context.get_actor_id()

    def count(self, n: int) -> Iterator[int]:
        yield from range(n)

    def same(self, value: Any) -> Any:
        return value


def test_calls_run_in_as_many_threads_as_allowed() -> None:
    threaded = Threaded.options(max_concurrency=4).remote(4)
    idents = skate.get([threaded.meet.remote() for _ in range(4)], timeout=2 * WITHIN_S)
    assert len(set(idents)) == 4


def test_not_more_calls_at_once_than_max_concurrency() -> None:
    threaded = Threaded.options(max_concurrency=3).remote()
    most = max(skate.get([threaded.work.remote() for _ in range(60)], timeout=WITHIN_S))
    assert 1 < most <= 3


def test_a_plain_actor_runs_one_call_at_a_time() -> None:
    threaded = Threaded.remote()
    assert set(skate.get([threaded.work.remote() for _ in range(20)], timeout=WITHIN_S)) == {1}


def test_a_held_thread_leaves_the_others_free(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    threaded = Threaded.options(max_concurrency=2).remote()
    held = threaded.hold.remote(started, go)
    wait_for(started.exists, WITHIN_S, "the first call to run")
    assert skate.get([threaded.same.remote(number) for number in range(50)], timeout=WITHIN_S) == list(range(50))
    go.touch()
    assert value_of(held) == "held"


def test_threads_use_skate_at_the_same_time() -> None:
    threaded = Threaded.options(max_concurrency=4).remote()
    assert skate.get([threaded.square.remote(x) for x in range(40)], timeout=WITHIN_S) == [x * x for x in range(40)]


def test_an_exception_in_a_thread() -> None:
    threaded = Threaded.options(max_concurrency=2).remote()
    for _ in range(5):
        with pytest.raises(ValueError, match="in a thread"):
            value_of(threaded.fail.remote())
    assert value_of(threaded.same.remote(1)) == 1


def test_each_thread_knows_which_call_it_runs() -> None:
    threaded = Threaded.options(max_concurrency=3).remote(3)
    refs = [threaded.ids.remote() for _ in range(3)]
    expected = [(ref.task_id().hex(), threaded._actor_id.hex()) for ref in refs]
    assert skate.get(refs, timeout=2 * WITHIN_S) == expected


def test_a_threaded_actor_streams() -> None:
    threaded = Threaded.options(max_concurrency=3).remote()
    streams = [threaded.count.remote(20) for _ in range(3)]
    assert [[value_of(ref) for ref in stream] for stream in streams] == [list(range(20))] * 3


def test_a_call_that_waits_for_a_thread_is_cancelled(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    threaded = Threaded.options(max_concurrency=2).remote()
    held = [threaded.hold.remote(started, go) for _ in range(2)]
    wait_for(lambda: len(lines(started)) == 2, WITHIN_S, "both threads to be busy")
    waiting = threaded.same.remote(1)
    skate.cancel(waiting)
    assert_cancelled(waiting)
    go.touch()
    assert skate.get(held, timeout=WITHIN_S) == ["held"] * 2


def test_a_threaded_actor_that_dies_fails_all_its_calls(tmp_path: Path) -> None:
    started = tmp_path / "started"
    threaded = Threaded.options(max_concurrency=3).remote()
    refs = [threaded.hold.remote(started, tmp_path / "never") for _ in range(6)]
    wait_for(lambda: len(lines(started)) == 3, WITHIN_S, "all threads to be busy")
    skate.kill(threaded)
    for ref in refs:
        with pytest.raises(ActorDiedError):
            value_of(ref)


# --- Concurrency groups -----------------------------------------------------------------------------------------------


@skate.remote(concurrency_groups={"io": 2, "compute": 1})
class Grouped:
    def __init__(self) -> None:
        self.barrier = threading.Barrier(2)
        self.lock = threading.Lock()
        self.running: collections.Counter[str] = collections.Counter()
        self.most: collections.Counter[str] = collections.Counter()
        self.order: list[int] = []

    def _work(self, group: str) -> None:
        with self.lock:
            self.running[group] += 1
            self.most[group] = max(self.most[group], self.running[group])
        time.sleep(0.002)  # the work itself; the assertions hold however long it takes
        with self.lock:
            self.running[group] -= 1

    @skate.method(concurrency_group="io")
    def io(self) -> None:
        self._work("io")

    @skate.method(concurrency_group="io")
    def meet(self) -> str:
        self.barrier.wait(timeout=WITHIN_S)
        return "met"

    @skate.method(concurrency_group="compute")
    def compute(self) -> None:
        self._work("compute")

    @skate.method(concurrency_group="compute")
    def see(self, number: int) -> None:
        self.order.append(number)

    @skate.method(concurrency_group="compute")
    def hold_compute(self, started: Path, go: Path) -> str:
        return self.hold(started, go)

    def hold(self, started: Path, go: Path) -> str:
        started.touch()
        while not go.exists():
            time.sleep(0.002)
        return "held"

    def plain(self) -> None:
        self._work("default")

    def most_at_once(self) -> dict[str, int]:
        return dict(self.most)

    def all_seen(self) -> list[int]:
        return self.order


def test_each_group_has_a_limit_of_its_own() -> None:
    grouped = Grouped.remote()
    refs = [method.remote() for _ in range(30) for method in (grouped.io, grouped.compute, grouped.plain)]
    skate.get(refs, timeout=WITHIN_S)
    most = value_of(grouped.most_at_once.remote())
    assert most["io"] <= 2
    assert most["compute"] == 1
    assert most["default"] == 1


def test_calls_of_one_group_run_at_the_same_time() -> None:
    grouped = Grouped.remote()
    assert skate.get([grouped.meet.remote(), grouped.meet.remote()], timeout=2 * WITHIN_S) == ["met", "met"]


def test_a_busy_group_leaves_the_others_free(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    grouped = Grouped.remote()
    held = grouped.hold_compute.remote(started, go)
    behind = grouped.compute.remote()
    wait_for(started.exists, WITHIN_S, "the group to be busy")
    assert skate.get([grouped.io.remote(), grouped.plain.remote()], timeout=WITHIN_S) == [None, None]
    assert skate.wait([behind], timeout=0) == ([], [behind])
    go.touch()
    assert skate.get([held, behind], timeout=WITHIN_S) == ["held", None]


def test_calls_without_a_group_do_not_hold_up_the_groups(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    grouped = Grouped.remote()
    held = grouped.hold.remote(started, go)
    wait_for(started.exists, WITHIN_S, "the default group to be busy")
    assert skate.get([grouped.io.remote(), grouped.compute.remote()], timeout=WITHIN_S) == [None, None]
    go.touch()
    assert value_of(held) == "held"


def test_a_call_may_choose_its_group(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    grouped = Grouped.remote()
    held = grouped.hold.remote(started, go)
    wait_for(started.exists, WITHIN_S, "the default group to be busy")
    assert value_of(grouped.plain.options(concurrency_group="io").remote()) is None
    waiting = grouped.plain.remote()
    assert skate.wait([waiting], timeout=0.1) == ([], [waiting]), "the choice was for one call"
    go.touch()
    assert skate.get([held, waiting], timeout=WITHIN_S) == ["held", None]


def test_a_group_of_one_keeps_the_order() -> None:
    grouped = Grouped.remote()
    refs = []
    for number in range(200):
        refs.append(grouped.see.remote(number))
        if number % 3 == 0:
            grouped.io.remote()
    skate.get(refs, timeout=WITHIN_S)
    assert value_of(grouped.all_seen.remote()) == list(range(200))


def test_max_concurrency_is_the_limit_of_calls_without_a_group() -> None:
    @skate.remote(concurrency_groups={"io": 1}, max_concurrency=2)
    class Both:
        def __init__(self) -> None:
            self.barrier = threading.Barrier(2)

        def meet(self) -> str:
            self.barrier.wait(timeout=WITHIN_S)
            return "met"

    both = Both.remote()
    assert skate.get([both.meet.remote(), both.meet.remote()], timeout=2 * WITHIN_S) == ["met", "met"]


def test_groups_by_options_at_creation() -> None:
    @skate.remote
    class Plain:
        def __init__(self) -> None:
            self.barrier = threading.Barrier(2)

        def meet(self) -> str:
            self.barrier.wait(timeout=WITHIN_S)
            return "met"

    plain = Plain.options(concurrency_groups={"pair": 2}).remote()
    meet = plain.meet.options(concurrency_group="pair")
    assert skate.get([meet.remote(), meet.remote()], timeout=2 * WITHIN_S) == ["met", "met"]


def test_groups_of_an_async_actor() -> None:
    @skate.remote(concurrency_groups={"pair": 2})
    class Grouped:
        def __init__(self) -> None:
            self.running = 0
            self.most = 0
            self.event = asyncio.Event()
            self.two_run = asyncio.Event()

        @skate.method(concurrency_group="pair")
        async def work(self) -> int:
            self.pair = asyncio.get_running_loop()
            self.running += 1
            self.most = max(self.most, self.running)
            if self.most < 2:  # the first call stays until there are two: calls may come one by one
                await self.two_run.wait()
            self.two_run.set()
            await asyncio.sleep(0)
            self.running -= 1
            return self.most

        @skate.method(concurrency_group="pair")
        async def wait(self) -> None:
            await self.event.wait()

        async def send(self) -> None:
            """From another group, which has another loop."""
            self.pair.call_soon_threadsafe(self.event.set)

    grouped = Grouped.remote()
    assert max(skate.get([grouped.work.remote() for _ in range(50)], timeout=WITHIN_S)) == 2
    waiting = [grouped.wait.remote() for _ in range(4)]
    value_of(grouped.send.remote())
    assert skate.get(waiting, timeout=WITHIN_S) == [None] * 4


def test_an_unknown_group_is_an_error_that_names_it() -> None:
    grouped = Grouped.remote()
    with pytest.raises((ValueError, SkateError), match="nowhere") as caught:
        value_of(grouped.plain.options(concurrency_group="nowhere").remote())
    assert "io" in str(caught.value), "it says which there are"
    assert value_of(grouped.plain.remote()) is None


def test_a_method_of_an_unknown_group_is_an_error_at_creation_at_the_latest() -> None:
    with pytest.raises((ValueError, SkateError), match="nowhere"):

        @skate.remote(concurrency_groups={"io": 1})
        class Wrong:
            @skate.method(concurrency_group="nowhere")
            def go(self) -> None: ...

        wrong = Wrong.remote()
        value_of(wrong.go.remote())


# --- Back-pressure ----------------------------------------------------------------------------------------------------


def test_more_calls_than_max_pending_calls_are_refused_until_some_are_done(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    gate = Gate.options(max_pending_calls=5).remote()
    held = gate.hold.remote(started, go)
    wait_for(started.exists, WITHIN_S, "the first call to run")
    refs = [gate.see.remote(number) for number in range(4)]
    for _ in range(3):
        with pytest.raises(PendingCallsLimitExceeded) as caught:
            gate.see.remote("too many")
        assert "5" in str(caught.value)
        assert "max_pending_calls" in str(caught.value)
    go.touch()
    assert skate.get([held, *refs], timeout=WITHIN_S) == ["held", 0, 1, 2, 3]
    assert value_of(gate.see.remote("again")) == "again"
    assert value_of(gate.all_seen.remote()) == [0, 1, 2, 3, "again"]


def test_calls_that_are_answered_do_not_count() -> None:
    gate = Gate.options(max_pending_calls=1).remote()
    for number in range(50):
        assert value_of(gate.see.remote(number)) == number


def test_a_cancelled_call_does_not_count(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    gate = Gate.options(max_pending_calls=2).remote()
    held = gate.hold.remote(started, go)
    wait_for(started.exists, WITHIN_S, "the first call to run")
    waiting = gate.see.remote(1)
    with pytest.raises(PendingCallsLimitExceeded):
        gate.see.remote(2)
    skate.cancel(waiting)
    assert_cancelled(waiting)
    other = gate.see.remote(3)
    go.touch()
    assert skate.get([held, other], timeout=WITHIN_S) == ["held", 3]


def test_the_limit_holds_for_async_calls_that_run() -> None:
    signal = Signal.options(max_pending_calls=10).remote()
    refs = [signal.wait.remote(number) for number in range(10)]
    with pytest.raises(PendingCallsLimitExceeded):
        signal.send.remote()
    skate.cancel(refs[0])
    assert_cancelled(refs[0])
    signal.send.remote()
    assert skate.get(refs[1:], timeout=WITHIN_S) == list(range(1, 10))


def test_the_limit_holds_for_a_handle_in_a_task_too(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"

    @skate.remote
    def fill(box: list[Any]) -> int:
        accepted = []
        try:
            for number in range(100):
                accepted.append(box[0].see.remote(number))  # noqa: PERF401
        except PendingCallsLimitExceeded:
            go.touch()
            skate.get(accepted)
        return len(accepted)

    gate = Gate.options(max_pending_calls=10).remote()
    held = gate.hold.remote(started, go)
    wait_for(started.exists, WITHIN_S, "the first call to run")
    assert value_of(fill.remote([gate])) <= 10
    assert value_of(held) == "held"


def test_without_a_limit_there_is_none(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    gate = Gate.remote()
    gate.hold.remote(started, go)
    refs = [gate.see.remote(number) for number in range(5000)]
    go.touch()
    assert skate.get(refs, timeout=WITHIN_S) == list(range(5000))


# --- Order with many callers ------------------------------------------------------------------------------------------


@skate.remote
class Recorder:
    """Writes down who called, in the order in which the calls ran."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def record(self, caller: int, number: int, payload: Any = None) -> int:
        self.calls.append((caller, number))
        return number

    def recorded(self) -> dict[int, list[int]]:
        by_caller: dict[int, list[int]] = collections.defaultdict(list)
        for caller, number in self.calls:
            by_caller[caller].append(number)
        return dict(by_caller)


@skate.remote(num_cpus=0)
class Caller:
    def __init__(self, me: int) -> None:
        self.me = me
        self.refs: list[Any] = []

    def burst(self, recorder: Any, first: int, count: int, payload: Any = None) -> None:
        self.refs += [recorder.record.remote(self.me, first + number, payload) for number in range(count)]

    def late(self, recorder: Any, number: int, box: list[Any]) -> None:
        self.refs.append(recorder.record.remote(self.me, number, box[0]))

    def finish(self) -> int:
        refs, self.refs = self.refs, []
        return len([skate.get(ref, timeout=WITHIN_S) for ref in refs])


def test_each_of_many_callers_sees_its_calls_run_in_order() -> None:
    recorder = Recorder.remote()
    callers = [Caller.remote(number) for number in range(6)]
    for first in range(0, 300, 50):
        for caller in callers:
            caller.burst.remote(recorder, first, 50)
    assert skate.get([caller.finish.remote() for caller in callers], timeout=2 * WITHIN_S) == [300] * 6
    assert value_of(recorder.recorded.remote()) == {number: list(range(300)) for number in range(6)}


def test_threads_of_one_process_each_keep_their_order() -> None:
    recorder = Recorder.remote()

    def call(me: int) -> None:
        for number in range(200):
            recorder.record.remote(me, number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert value_of(recorder.recorded.remote()) == {number: list(range(200)) for number in range(4)}


def test_tasks_as_callers_keep_their_order() -> None:
    @skate.remote
    def call(recorder: Any, me: int) -> int:
        return len(skate.get([recorder.record.remote(me, number) for number in range(100)]))

    recorder = Recorder.remote()
    assert skate.get([call.remote(recorder, number) for number in range(8)], timeout=WITHIN_S) == [100] * 8
    assert value_of(recorder.recorded.remote()) == {number: list(range(100)) for number in range(8)}


@skate.remote(num_cpus=0)
def soon(turns: int) -> int:
    """A value that is there a little later than the call that needs it."""
    for _ in range(turns):
        os.sched_yield()
    return turns


@skate.remote(num_cpus=0)
def never() -> None:
    raise ValueError("an argument that fails")


#: What one caller does next: (kind, how much). Caller 0 is the driver.
STEP = st.tuples(
    st.integers(0, 2),
    st.one_of(
        st.tuples(st.just("burst"), st.integers(1, 30)),
        st.tuples(st.just("large"), st.integers(1, 3)),
        st.tuples(st.just("late"), st.integers(1, 500)),
        st.tuples(st.just("failing"), st.just(1)),
        st.tuples(st.just("finish"), st.just(0)),
    ),
)


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(schedule=st.lists(STEP, min_size=1, max_size=25))
def test_any_schedule_of_callers_keeps_the_order_of_each(schedule: list[tuple[int, tuple[str, int]]]) -> None:
    """Bursts, large arguments, arguments that come late or fail, pauses: whatever the mixture, each caller's calls run
    in the order in which they were sent, each once, and those whose argument failed do not run."""
    recorder = Recorder.remote()
    callers = {1: Caller.remote(1), 2: Caller.remote(2)}
    mine: list[Any] = []
    sent: collections.Counter[int] = collections.Counter()
    expected: dict[int, list[int]] = collections.defaultdict(list)
    failing: list[Any] = []
    acknowledged: list[Any] = []
    for caller, (kind, amount) in schedule:
        first = sent[caller]
        count = amount if kind in ("burst", "large") else int(kind != "finish")
        sent[caller] += count
        if kind == "failing" and caller:
            continue  # the driver alone tries these: it has to catch their errors
        if kind != "failing":
            expected[caller] += range(first, first + count)
        payload = np.zeros(150_000, dtype=np.uint8) if kind == "large" else None
        if kind == "finish":
            if caller:
                acknowledged.append(callers[caller].finish.remote())
            else:
                skate.get(mine, timeout=WITHIN_S)
        elif caller and kind == "late":
            acknowledged.append(callers[caller].late.remote(recorder, first, [soon.remote(amount)]))
        elif caller:
            acknowledged.append(callers[caller].burst.remote(recorder, first, count, payload))
        elif kind == "late":
            mine.append(recorder.record.remote(0, first, soon.remote(amount)))
        elif kind == "failing":
            failing.append(recorder.record.remote(0, first, never.remote()))
        else:
            mine += [recorder.record.remote(0, first + number, payload) for number in range(count)]
    skate.get(mine + acknowledged + [callers[n].finish.remote() for n in (1, 2)], timeout=WITHIN_S)
    for ref in failing:
        with pytest.raises(ValueError, match="an argument that fails"):
            value_of(ref)
    assert value_of(recorder.recorded.remote()) == {caller: numbers for caller, numbers in expected.items() if numbers}


# --- The beginning and the end of async actors ------------------------------------------------------------------------


@skate.remote
class StartsOnItsLoop:
    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.started = asyncio.Event()
        self.task = asyncio.create_task(self.begin())

    async def begin(self) -> None:
        self.started.set()

    async def has_begun(self) -> bool:
        await self.started.wait()
        return asyncio.get_running_loop() is self.loop


def test_the_constructor_of_an_async_actor_runs_on_its_loop() -> None:
    assert value_of(StartsOnItsLoop.remote().has_begun.remote())


@skate.remote
class StartsSlowly:
    async def __init__(self, value: int) -> None:  # type: ignore[misc]
        await asyncio.sleep(0)
        self.value = value

    async def get(self) -> int:
        return self.value


def test_a_constructor_may_be_a_coroutine() -> None:
    assert value_of(StartsSlowly.remote(5).get.remote()) == 5


@skate.remote
class Leaver:
    def __init__(self, mark: str) -> None:
        self.mark = mark

    async def wait(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            append(Path(self.mark), "tidied up")

    async def leave(self) -> None:
        skate.exit_actor()


def test_calls_that_wait_tidy_up_when_an_async_actor_leaves(tmp_path: Path) -> None:
    leaver = Leaver.remote(str(tmp_path / "mark"))
    wait_only_a_moment(leaver)
    waiting = leaver.wait.remote()
    with pytest.raises(skate.exceptions.ActorDiedError):
        value_of(leaver.leave.remote())
    with pytest.raises(skate.exceptions.ActorDiedError):
        value_of(waiting)
    wait_for(lambda: lines(tmp_path / "mark") == ["tidied up"], WITHIN_S, "the call to tidy up")


@skate.remote
class Room:
    def __init__(self) -> None:
        self.inside: list[int] = []

    async def stay(self, pid: int) -> None:
        self.inside.append(pid)
        try:
            await asyncio.Event().wait()
        finally:
            self.inside.remove(pid)

    async def look(self) -> list[int]:
        return list(self.inside)


def test_what_a_dead_caller_awaits_is_cancelled() -> None:
    room = Room.remote()

    @skate.remote(max_retries=0)
    def visit(room: Any) -> None:
        skate.get(room.stay.remote(os.getpid()))

    visitor = visit.remote(room)
    (pid,) = wait_for(lambda: value_of(room.look.remote()), WITHIN_S, "the visitor")
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(skate.exceptions.WorkerCrashedError):
        value_of(visitor)
    wait_for(lambda: value_of(room.look.remote()) == [], WITHIN_S, "its call to be cancelled")


# --- Generators -------------------------------------------------------------------------------------------------------


class Yields:
    def plain(self, n: int) -> Iterator[int]:
        yield from range(n)

    def endless(self) -> Iterator[int]:
        yield from itertools.count()

    def say(self) -> str:
        return "hello"


class YieldsAsync(Yields):
    async def later(self, n: int) -> AsyncIterator[int]:
        for number in range(n):
            yield number


@pytest.mark.parametrize("method", ["plain", "later"])
@pytest.mark.parametrize("num_returns", ["dynamic", 3])
def test_an_async_actor_may_yield_all_its_returns(method: str, num_returns: Any) -> None:
    actor = skate.remote(YieldsAsync).remote()
    made = getattr(actor, method).options(num_returns=num_returns).remote(3)
    refs = list(value_of(made)) if num_returns == "dynamic" else made
    assert [value_of(ref) for ref in refs] == [0, 1, 2]


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}])
def test_a_cancelled_generator_stops_where_it_yields(options: dict[str, int]) -> None:
    actor = skate.remote(Yields).options(**options).remote()
    stream = actor.endless.remote()
    assert value_of(next(stream)) == 0
    skate.cancel(stream)
    with pytest.raises(skate.exceptions.TaskCancelledError):
        for ref in stream:
            value_of(ref)
    assert value_of(actor.say.remote()) == "hello"


def test_a_plain_actor_does_not_wait_for_the_reader_of_a_stream() -> None:
    actor = skate.remote(Yields).remote()
    stream = actor.plain.remote(1000)
    assert value_of(actor.say.remote()) == "hello"
    assert [value_of(ref) for ref in stream] == list(range(1000))


# --- Order and CPUs ---------------------------------------------------------------------------------------------------


class Notes:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def note(self, value: Any) -> None:
        self.seen.append(value)

    def all(self) -> list[Any]:
        return self.seen


class AsyncNotes(Notes):
    async def wait(self) -> None: ...


@pytest.mark.parametrize("kind", [Notes, AsyncNotes])
@pytest.mark.parametrize("overtake", [True, False])
def test_whether_a_call_waits_for_late_arguments_of_others_can_be_chosen(
    kind: type, overtake: bool, tmp_path: Path
) -> None:
    def late(mark: str) -> str:
        wait_for(Path(mark).exists, WITHIN_S, "the mark")
        return "late"

    actor = skate.remote(kind).options(allow_out_of_order_execution=overtake).remote()
    first = actor.note.remote(skate.remote(late).remote(str(tmp_path / "mark")))
    second = actor.note.remote("early")
    if overtake:
        value_of(second)
    (tmp_path / "mark").touch()
    skate.get([first, second], timeout=WITHIN_S)
    assert value_of(actor.all.remote()) == (["early", "late"] if overtake else ["late", "early"])


def test_a_threaded_actor_that_waits_gives_its_cpus_back() -> None:
    class Greedy:
        def ask(self) -> int:
            return value_of(skate.remote(lambda: 7).remote())

    assert value_of(skate.remote(Greedy).options(num_cpus=2, max_concurrency=2).remote().ask.remote()) == 7


@pytest.mark.parametrize(
    ("is_async", "options"),
    [(False, {"concurrency_groups": {"io": 2}}), (False, {"max_concurrency": 2}), (True, {"max_concurrency": 1})],
)
def test_calls_run_beside_generators_that_are_read_halfway(is_async: bool, options: dict[str, Any]) -> None:
    """One that waited for its reader would keep its place, and the reader may wait for a call that finds none."""

    class Plain:
        def count(self, end: int) -> Any:
            yield from range(end)

        def answer(self) -> int:
            return 42

    class Async:
        async def count(self, end: int) -> Any:
            for number in range(end):
                yield number

        async def answer(self) -> int:
            return 42

    actor: Any = skate.remote(Async if is_async else Plain).options(**options).remote()
    streams = [actor.count.remote(300) for _ in range(2)]
    assert [skate.get(next(stream)) for stream in streams] == [0, 0]
    assert skate.get(actor.answer.remote(), timeout=20) == 42
    assert [[skate.get(ref) for ref in stream] for stream in streams] == [list(range(1, 300))] * 2


@skate.remote(concurrency_groups={"side": 1})
class WithMainThread:
    def __init__(self) -> None:
        self._may_go_on = threading.Event()

    def where(self) -> bool:
        return threading.current_thread() is threading.main_thread()

    def stay(self) -> None:
        self._may_go_on.wait()

    def leave(self) -> None:
        skate.exit_actor()

    @skate.method(concurrency_group="side")
    def go_on(self) -> bool:
        self._may_go_on.set()
        return threading.current_thread() is threading.main_thread()


def test_calls_that_name_no_group_run_one_by_one_in_the_main_thread_and_groups_answer_meanwhile() -> None:
    actor = WithMainThread.remote()
    staying, waiting, kept = actor.stay.remote(), actor.where.remote(), actor.where.remote()
    skate.cancel(waiting)
    assert_cancelled(waiting)
    assert value_of(actor.go_on.remote()) is False
    assert value_of(staying) is None
    assert value_of(kept) is True
    assert value_of([actor.where.remote() for _ in range(50)]) == [True] * 50
    with pytest.raises(ActorDiedError):
        value_of(actor.leave.remote())
