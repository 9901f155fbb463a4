"""Concurrency groups of async actors: each has an event loop of its own, in a thread of its own."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import skate
from actor_ends import wait_only_a_moment
from programs import append, lines
from skate._worker import current
from skate.exceptions import ActorDiedError, TaskCancelledError
from waiting import WITHIN_S, value_of, wait_for

pytestmark = pytest.mark.usefixtures("runtime")


@skate.remote(concurrency_groups={"io": 3, "health": 2})
class Service:
    def __init__(self) -> None:
        self.init_loop = id(asyncio.get_running_loop())
        self.lock = asyncio.Lock()
        self.open = asyncio.Event()
        self.inside = 0
        self.mark: ContextVar[str] = ContextVar("mark")

    # -- calls of whichever group the caller names

    async def where(self) -> tuple[int, int]:
        return id(asyncio.get_running_loop()), threading.get_ident()

    def where_plain(self) -> tuple[int, int]:
        return id(asyncio.get_running_loop()), threading.get_ident()

    async def is_loop_of_init(self) -> bool:
        return id(asyncio.get_running_loop()) == self.init_loop

    async def block(self, started: Path, go: Path) -> str:
        started.touch()
        while not go.exists():
            time.sleep(0.002)
        return "unblocked"

    async def ping(self) -> str:
        return "pong"

    async def count_inside(self) -> int:
        """How many are in the section that the lock guards: 1, if it does."""
        async with self.lock:
            self.inside += 1
            await asyncio.sleep(0.001)
            inside, self.inside = self.inside, self.inside - 1
            return inside

    async def wait_open(self) -> str:
        await self.open.wait()
        return "opened"

    async def set_open(self) -> None:
        self.open.set()

    async def context(self, mark: str, ref: list[Any]) -> tuple[str, str | None, Any]:
        self.mark.set(mark)
        value = await ref[0]
        return self.mark.get(), skate.get_runtime_context().get_task_name(), value

    async def children(self) -> list[int]:
        double = skate.remote(lambda x: 2 * x)
        return [await double.remote(1), skate.get(double.remote(2))]

    async def sleep(self, log: Path, name: str) -> None:
        append(log, f"{name} sleeps")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            append(log, f"{name} cancelled")
            raise

    async def stream(self, n: int) -> AsyncIterator[int]:
        for number in range(n):
            await asyncio.sleep(0)
            yield number

    def stream_plain(self, n: int) -> Iterator[int]:
        yield from range(n)

    async def leave(self) -> None:
        skate.exit_actor()

    async def pid(self) -> int:
        return os.getpid()

    @skate.method(concurrency_group="health")
    async def health(self) -> str:
        return "well"


def inside(method: Any, group: str) -> Any:
    return method.options(concurrency_group=group) if group else method


@pytest.mark.parametrize("blocked", ["io", "health", ""])
def test_a_coroutine_that_blocks_stops_its_own_group_only(tmp_path: Path, blocked: str) -> None:
    service = Service.remote()
    started, go = tmp_path / "started", tmp_path / "go"
    held = inside(service.block, blocked).remote(started, go)
    behind = inside(service.ping, blocked).remote()
    wait_for(started.exists, WITHIN_S, "the coroutine to block")
    for group in {"io", "health", ""} - {blocked}:
        assert skate.get([inside(service.ping, group).remote() for _ in range(5)], timeout=WITHIN_S) == ["pong"] * 5
    if blocked != "health":
        assert value_of(service.health.remote()) == "well"
    assert skate.wait([behind], timeout=0)[0] == []
    go.touch()
    assert value_of(held) == "unblocked"
    assert value_of(behind) == "pong"


def test_each_group_has_one_loop_and_one_thread_for_all_its_calls() -> None:
    service = Service.remote()
    found = {}
    for group in ("", "io", "health"):
        places = [inside(service.where, group).remote() for _ in range(5)]
        places += [inside(service.where_plain, group).remote() for _ in range(5)]
        (found[group],) = set(skate.get(places, timeout=WITHIN_S))
    assert len({loop for loop, _ in found.values()}) == 3
    assert len({thread for _, thread in found.values()}) == 3
    assert value_of(service.is_loop_of_init.remote())
    assert not value_of(inside(service.is_loop_of_init, "io").remote())


def test_without_declared_groups_everything_runs_in_the_main_thread() -> None:
    class Alone:
        async def thread(self) -> bool:
            return threading.current_thread() is threading.main_thread()

    assert value_of(skate.remote(Alone).remote().thread.remote())
    grouped = skate.remote(concurrency_groups={"io": 1})(Alone).remote()
    assert value_of(grouped.thread.remote())
    assert not value_of(grouped.thread.options(concurrency_group="io").remote())


@pytest.mark.parametrize("group", ["io", ""])
def test_asyncio_primitives_work_within_a_group(group: str) -> None:
    service = Service.remote()
    assert skate.get([inside(service.count_inside, group).remote() for _ in range(20)], timeout=WITHIN_S) == [1] * 20
    waiting = [inside(service.wait_open, group).remote() for _ in range(2)]
    inside(service.set_open, group).remote()
    assert skate.get(waiting, timeout=WITHIN_S) == ["opened"] * 2


def test_the_limit_of_a_group_holds(tmp_path: Path) -> None:
    service = Service.remote()
    log = tmp_path / "log"
    refs = [inside(service.sleep, "io").remote(log, str(number)) for number in range(5)]
    wait_for(lambda: len(lines(log)) == 3, WITHIN_S, "three calls to run")
    assert value_of(inside(service.ping, "health").remote()) == "pong"
    assert lines(log) == ["0 sleeps", "1 sleeps", "2 sleeps"]
    skate.cancel(refs[1])
    wait_for(lambda: "3 sleeps" in lines(log), WITHIN_S, "the next call to run")
    with pytest.raises(TaskCancelledError):
        value_of(refs[1])
    for ref in reversed(refs):
        skate.cancel(ref)
    for ref in refs:
        with pytest.raises(TaskCancelledError):
            value_of(ref)
    assert "4 sleeps" not in lines(log)
    assert value_of(inside(service.ping, "io").remote()) == "pong"


def test_a_call_that_waits_behind_a_blocked_loop_can_be_cancelled(tmp_path: Path) -> None:
    service = Service.remote()
    started, go = tmp_path / "started", tmp_path / "go"
    held = inside(service.block, "io").remote(started, go)
    wait_for(started.exists, WITHIN_S, "the coroutine to block")
    behind = inside(service.ping, "io").remote()
    skate.cancel(behind)
    with pytest.raises(TaskCancelledError):
        value_of(behind)
    go.touch()
    assert value_of(held) == "unblocked"


@pytest.mark.parametrize("slow", ["CurrentCall", "create_task"])
def test_a_cancel_that_meets_a_call_of_a_group_at_its_start_comes_once(tmp_path: Path, slow: str) -> None:
    """The call is taken from those that wait, then counts as running, then its task is made: it comes in between."""
    meets, log = tmp_path / "meets", tmp_path / "log"

    def slow_down(_: Any) -> None:
        from skate._worker import actor_async

        calls: Any = current.get_runtime().executor.actor.concurrency  # type: ignore[union-attr]
        place: Any = actor_async if slow == "CurrentCall" else calls._groups["io"].loop
        begin = getattr(place, slow)

        def begin_slowly(*args: Any) -> Any:
            if not meets.exists():
                meets.touch()
                time.sleep(0.5)
            return begin(*args)

        setattr(place, slow, begin_slowly)

    service = Service.remote()
    skate.get([inside(service.ping, group).remote() for group in ("io", "health", "")], timeout=WITHIN_S)
    value_of(inside(service.__ray_call__, "health").remote(slow_down))
    ref = inside(service.sleep, "io").remote(log, "first")
    wait_for(meets.exists, WITHIN_S, "the call to be started")
    skate.cancel(ref)
    with pytest.raises(TaskCancelledError):
        value_of(ref)
    assert lines(log) in ([], ["first sleeps", "first cancelled"])
    assert skate.get([inside(service.ping, "io").remote() for _ in range(6)], timeout=WITHIN_S) == ["pong"] * 6


def test_context_variables_and_the_runtime_context_belong_to_the_call() -> None:
    service = Service.remote()
    late = skate.remote(lambda x: x)
    calls = [
        (group, str(number), inside(service.context, group).options(name=f"{group}-{number}"))
        for group in ("io", "health", "")
        for number in range(4)
    ]
    refs = [method.remote(f"{group}-{number}", [late.remote(number)]) for group, number, method in calls]
    expected = [(f"{group}-{number}", f"{group}-{number}", number) for group, number, _ in calls]
    assert skate.get(refs, timeout=WITHIN_S) == expected


@pytest.mark.parametrize("group", ["io", ""])
def test_calls_of_a_group_use_tasks(group: str) -> None:
    assert value_of(inside(Service.remote().children, group).remote()) == [2, 4]


@pytest.mark.parametrize("method", ["stream", "stream_plain"])
def test_generators_in_a_group_wait_for_their_reader_and_can_be_dropped(method: str) -> None:
    service = Service.remote()
    generator = inside(getattr(service, method), "io").options(_generator_backpressure_num_objects=2)
    assert [value_of(ref) for ref in generator.remote(50)] == list(range(50))
    endless = generator.remote(10**9)
    assert [value_of(next(endless)) for _ in range(5)] == list(range(5))
    del endless
    three = [generator.remote(3) for _ in range(6)]  # more than the group has places: the dropped one gave its own back
    assert [[value_of(ref) for ref in each] for each in three] == [[0, 1, 2]] * 6


@pytest.mark.parametrize("group", ["io", ""])
def test_leaving_from_a_group_lets_the_others_finish(tmp_path: Path, group: str) -> None:
    service = Service.remote()
    started, go = tmp_path / "started", tmp_path / "go"
    held = inside(service.block, "health").remote(started, go)
    wait_for(started.exists, WITHIN_S, "the coroutine to run")
    left = inside(service.leave, group).remote()
    wait_for(lambda: current.get_runtime().query("actors")[-1]["state"] == "dead", WITHIN_S, "the actor to be dead")
    go.touch()
    assert value_of(held) == "unblocked"
    with pytest.raises(ActorDiedError, match="exit_actor"):
        value_of(left)


def leave(service: Any) -> None:
    service.leave.remote()


def terminate(service: Any) -> None:
    service.__ray_terminate__.remote()


@pytest.mark.parametrize("how", [leave, terminate])
def test_coroutines_of_all_groups_tidy_up_when_the_actor_ends(tmp_path: Path, how: Callable[[Any], None]) -> None:
    service = Service.remote()
    log = tmp_path / "log"
    pid = value_of(service.pid.remote())
    wait_only_a_moment(service)
    for group in ("io", "health", ""):
        inside(service.sleep, group).remote(log, group)
    wait_for(lambda: len(lines(log)) == 3, WITHIN_S, "the calls to sleep")
    how(service)
    wait_for(lambda: not Path("/proc", str(pid)).exists(), WITHIN_S, "the process to be gone")
    assert sorted(lines(log)[3:]) == [" cancelled", "health cancelled", "io cancelled"]


def test_calls_of_one_group_start_in_the_order_sent(tmp_path: Path) -> None:
    @skate.remote(concurrency_groups={"one": 1})
    class Log:
        def __init__(self) -> None:
            self.seen: list[int] = []

        @skate.method(concurrency_group="one")
        async def write(self, number: int) -> None:
            await asyncio.sleep(0)
            self.seen.append(number)

        async def read(self) -> list[int]:
            return self.seen

    log = Log.remote()
    skate.get([log.write.remote(number) for number in range(200)], timeout=WITHIN_S)
    assert value_of(log.read.remote()) == list(range(200))
