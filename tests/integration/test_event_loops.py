"""A class may say which event loop its calls run on."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import skate
from programs import append, lines, run_program
from skate.exceptions import ActorDiedError, TaskCancelledError
from waiting import WITHIN_S, value_of, wait_for

uvloop = pytest.importorskip("uvloop")

pytestmark = pytest.mark.usefixtures("runtime")


class OnUvloop:
    """What other actors of these tests inherit."""

    __new_event_loop__ = staticmethod(uvloop.new_event_loop)

    async def kind_of_loop(self) -> str:
        return type(asyncio.get_running_loop()).__module__


@skate.remote(concurrency_groups={"io": 2})
class Service(OnUvloop):
    async def __init__(self) -> None:  # type: ignore[misc]
        self.loop_of_init = asyncio.get_running_loop()
        self.open = asyncio.Event()
        self.sleeping: list[asyncio.Task[None]] = []

    def is_loop_of_init(self) -> bool:
        return asyncio.get_running_loop() is self.loop_of_init

    async def wait_open(self, log: Path) -> None:
        append(log, "waits")
        await self.open.wait()

    async def sleep(self, log: Path) -> None:
        append(log, "sleeps")
        try:
            await asyncio.sleep(1000)
        finally:
            append(log, "tidied up")

    async def set_open(self) -> None:
        self.open.set()

    async def sleep_in_background(self, log: Path) -> None:
        self.sleeping = [*self.sleeping, asyncio.create_task(self.sleep(log))]

    async def double(self, value: int) -> int:
        return 2 * await skate.remote(lambda: value).remote()

    async def count(self, numbers: int) -> AsyncIterator[int]:
        for number in range(numbers):
            await asyncio.sleep(0)
            yield number

    async def exit(self) -> None:
        skate.exit_actor()


def test_every_group_runs_on_a_loop_of_the_kind_that_the_class_inherits() -> None:
    service = Service.remote()
    assert value_of(service.kind_of_loop.remote()) == "uvloop"
    assert value_of(service.kind_of_loop.options(concurrency_group="io").remote()) == "uvloop"
    assert value_of(service.is_loop_of_init.remote())
    assert not value_of(service.is_loop_of_init.options(concurrency_group="io").remote())


def test_without_a_word_of_the_class_it_is_the_loop_of_asyncio() -> None:
    @skate.remote
    class Plain:
        async def kind_of_loop(self) -> str:
            return type(asyncio.get_running_loop()).__module__

    assert value_of(Plain.remote().kind_of_loop.remote()).startswith("asyncio.")


def _by_a_class_method(cls: type) -> Any:
    assert issubclass(cls, OnUvloop)
    return uvloop.new_event_loop()


@pytest.mark.parametrize(
    "make",
    [uvloop.new_event_loop, uvloop.Loop, classmethod(_by_a_class_method), functools.partial(uvloop.new_event_loop)],
    ids=["a function", "a class", "a class method", "another callable"],
)
def test_whatever_can_be_called_without_arguments_makes_loops(make: Any) -> None:
    actor = skate.remote(type("Actor", (OnUvloop,), {"__new_event_loop__": make}))
    assert value_of(actor.remote().kind_of_loop.remote()) == "uvloop"


def test_calls_wait_beside_one_another_and_await_tasks(tmp_path: Path) -> None:
    service = Service.remote()
    log = tmp_path / "log"
    waiting = [service.wait_open.remote(log) for _ in range(50)]
    wait_for(lambda: lines(log) == ["waits"] * 50, WITHIN_S, "all calls to wait")
    assert value_of([service.double.remote(number) for number in range(50)]) == [2 * number for number in range(50)]
    service.set_open.remote()
    assert value_of(waiting) == [None] * 50


def test_an_idle_loop_wakes_for_each_call() -> None:
    service = Service.remote()
    for _ in range(200):
        assert value_of(service.kind_of_loop.remote()) == "uvloop"


@pytest.mark.parametrize("group", ["", "io"])
def test_a_call_that_is_cancelled_tidies_up(tmp_path: Path, group: str) -> None:
    service = Service.remote()
    log = tmp_path / "log"
    sleep = service.sleep.options(concurrency_group=group) if group else service.sleep
    ref = sleep.remote(log)
    wait_for(lambda: lines(log) == ["sleeps"], WITHIN_S, "the call to sleep")
    skate.cancel(ref)
    with pytest.raises(TaskCancelledError):
        value_of(ref)
    assert lines(log) == ["sleeps", "tidied up"]
    assert value_of(service.kind_of_loop.remote()) == "uvloop"


def test_an_async_generator_streams() -> None:
    service = Service.remote()
    assert [value_of(ref) for ref in service.count.remote(500)] == list(range(500))
    stream = service.count.remote(10**9)
    assert value_of(next(stream)) == 0
    del stream  # the generator ends
    assert value_of(service.kind_of_loop.remote()) == "uvloop"


def test_tasks_of_all_groups_tidy_up_when_the_actor_ends(tmp_path: Path) -> None:
    service = Service.remote()
    logs = [tmp_path / "main", tmp_path / "io"]
    value_of(service.sleep_in_background.remote(logs[0]))
    value_of(service.sleep_in_background.options(concurrency_group="io").remote(logs[1]))
    wait_for(lambda: all(lines(log) == ["sleeps"] for log in logs), WITHIN_S, "both to sleep")
    with pytest.raises(ActorDiedError, match="exit_actor"):
        value_of(service.exit.remote())
    wait_for(lambda: all(lines(log) == ["sleeps", "tidied up"] for log in logs), WITHIN_S, "both to tidy up")


EXITS_IN_BACKGROUND = """
import asyncio, os, sys, time, psutil, skate, uvloop

@skate.remote
class Leaves:
    __new_event_loop__ = staticmethod(uvloop.new_event_loop)

    async def begin(self):
        async def leave():
            skate.exit_actor()

        self.leaving = asyncio.create_task(leave())
        return os.getpid()

    async def wait(self):
        await asyncio.sleep(1000)

    async def __ray_shutdown__(self):
        await asyncio.sleep(0)
        print("shut down")

skate.init(num_cpus=1)
actor = Leaves.remote()
pid = skate.get(actor.begin.remote())
try:
    skate.get(actor.wait.remote(), timeout=20)
except skate.exceptions.ActorDiedError as error:
    # One write: a line of the actor may come between those of print().
    sys.stdout.write(f"{'exit_actor' in str(error)}\\n")
while psutil.pid_exists(pid):  # it shuts down after it was declared dead
    time.sleep(0.01)
skate.shutdown()
"""


def test_an_exit_in_a_background_task_prints_no_error() -> None:
    output, errors = run_program(EXITS_IN_BACKGROUND)
    assert sorted(line.rpartition(") ")[2] for line in output.splitlines()) == ["True", "shut down"]
    assert errors == ""


def _asks_for_an_argument(self: object) -> Any:
    return uvloop.new_event_loop()


async def _is_a_coroutine() -> Any:
    return uvloop.new_event_loop()


_made_once = functools.lru_cache(asyncio.new_event_loop)


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize(
    ("make", "says"),
    [
        ("uvloop", "has to make event loops, and is a str"),
        (None, "has to make event loops, and is a NoneType"),
        (uvloop.install, "has to return an event loop, and returned a NoneType"),
        (_is_a_coroutine, "has to return an event loop, and returned a coroutine"),
        (_asks_for_an_argument, "missing 1 required positional argument"),
        (_made_once, "has to return a new event loop each time"),
    ],
    ids=["a string", "None", "no loop", "a coroutine", "an argument", "the same again"],
)
def test_what_makes_no_loop_is_an_error_at_the_start_that_names_it(make: Any, says: str) -> None:
    wrong = type("Wrong", (OnUvloop,), {"__new_event_loop__": staticmethod(make) if callable(make) else make})
    actor = skate.remote(concurrency_groups={"io": 1})(wrong).remote()
    with pytest.raises(ActorDiedError) as caught:
        value_of(actor.kind_of_loop.remote())
    assert "__new_event_loop__" in str(caught.value) or "_asks_for_an_argument" in str(caught.value)
    assert says in str(caught.value.__cause__)
