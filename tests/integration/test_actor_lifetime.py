"""How actors end: with their last handle, by kill and by themselves; names, and actors that never come to life."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skate
from actor_ends import wait_only_a_moment
from programs import append, lines
from skate._core.actor_link import DYING
from skate._core.actors import ALIVE
from skate._wire.messages import ActorState, KillActor
from skate._worker import current
from skate.exceptions import (
    ActorDiedError,
    ActorError,
    ActorUnavailableError,
    ActorUnschedulableError,
    GetTimeoutError,
    TaskCancelledError,
)
from waiting import WITHIN_S, value_of, wait_for

pytestmark = pytest.mark.usefixtures("runtime")


def restart(**settings: Any) -> None:
    skate.shutdown()
    skate.init(**settings)


def assert_gone(pid: int) -> None:
    gc.collect()
    wait_for(lambda: not Path("/proc", str(pid)).exists(), WITHIN_S, "the actor's process to be gone")


def states_of_actors() -> list[str]:
    """Of those that this session had so far, but for the ones before this test: only the newest counts."""
    return [actor["state"] for actor in current.get_runtime().query("actors")[-1:]]


def alive(pid: int) -> bool:
    return Path("/proc", str(pid)).exists()


def assert_died(ref: Any) -> ActorDiedError:
    with pytest.raises(ActorDiedError) as caught:
        value_of(ref)
    return caught.value


@skate.remote
class Counter:
    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    def pid(self) -> int:
        return os.getpid()

    def facts(self) -> tuple[str | None, bool]:
        context = skate.get_runtime_context()
        return context.get_actor_name(), context.was_current_actor_reconstructed


@skate.remote
class Gate:
    def hold(self, started: Path, go: Path) -> str:
        started.touch()
        while not go.exists():
            time.sleep(0.002)
        return "held"

    def note(self, log: Path, what: object) -> object:
        append(log, what)
        return what

    def pid(self) -> int:
        return os.getpid()


@skate.remote
class Holder:
    """Holds what it is given, until it is told to let go."""

    def __init__(self, held: Any = None) -> None:
        self.held = held

    def hold(self, held: Any) -> None:
        self.held = held

    def let_go(self) -> None:
        self.held = None

    def add(self) -> int:
        return skate.get(self.held[0].add.remote())

    def pid(self) -> int:
        return os.getpid()


# --- The last handle --------------------------------------------------------------------------------------------------


def test_an_actor_ends_with_its_last_handle() -> None:
    counter = Counter.options(num_cpus=1).remote()
    pid = value_of(counter.pid.remote())
    del counter
    assert_gone(pid)
    wait_for(lambda: skate.available_resources()["CPU"] == 2, WITHIN_S, "its CPU to be free")


def test_an_actor_lives_while_one_of_several_handles_is_left() -> None:
    counter = Counter.remote()
    pid = value_of(counter.pid.remote())
    other = value_of(skate.put([counter]))[0]
    del counter
    gc.collect()
    assert value_of(other.add.remote()) == 1
    assert value_of(other.pid.remote()) == pid
    del other
    assert_gone(pid)


def test_a_method_kept_in_a_variable_keeps_the_actor() -> None:
    add = Counter.remote().add
    gc.collect()
    assert value_of(add.remote()) == 1
    assert value_of(add.remote()) == 2


def test_a_call_on_a_handle_that_nobody_keeps_is_answered() -> None:
    for number in range(10):
        assert value_of(Counter.remote(number).add.remote()) == number + 1


def test_pending_calls_are_run_before_the_end(tmp_path: Path) -> None:
    started, go, log = tmp_path / "started", tmp_path / "go", tmp_path / "log"
    gate = Gate.remote()
    pid = gate.pid.remote()
    held = gate.hold.remote(started, go)
    refs = [gate.note.remote(log, number) for number in range(20)]
    wait_for(started.exists, WITHIN_S, "the first call to run")
    del gate
    gc.collect()
    go.touch()
    assert value_of(held) == "held"
    assert skate.get(refs, timeout=WITHIN_S) == list(range(20))
    assert lines(log) == [str(number) for number in range(20)]
    assert_gone(value_of(pid))


def test_pending_calls_are_run_even_if_nobody_wants_their_results(tmp_path: Path) -> None:
    log = tmp_path / "log"
    gate = Gate.remote()
    pid = value_of(gate.pid.remote())
    for number in range(50):
        gate.note.remote(log, number)
    del gate
    assert_gone(pid)
    assert lines(log) == [str(number) for number in range(50)]


def test_calls_that_wait_for_arguments_are_run_before_the_end(tmp_path: Path) -> None:
    go = tmp_path / "go"

    @skate.remote
    def late() -> int:
        wait_for(go.exists, 40, "the gate to open")
        return 5

    counter = Counter.remote()
    pid = value_of(counter.pid.remote())
    ref = counter.add.remote(late.remote())
    del counter
    gc.collect()
    go.touch()
    assert value_of(ref) == 5
    assert_gone(pid)


def test_an_actor_whose_handle_goes_before_it_is_made_still_answers(tmp_path: Path) -> None:
    go = tmp_path / "go"

    @skate.remote
    def late() -> int:
        wait_for(go.exists, 40, "the gate to open")
        return 5

    ref = Counter.remote(late.remote()).add.remote()
    gc.collect()
    go.touch()
    assert value_of(ref) == 6


def test_an_actor_that_nobody_called_ends_too(tmp_path: Path) -> None:
    made = tmp_path / "made"

    @skate.remote
    class Marked:
        def __init__(self) -> None:
            append(made, os.getpid())

    marked = Marked.remote()
    (pid,) = wait_for(lambda: lines(made), WITHIN_S, "the constructor to run")
    del marked
    assert_gone(int(pid))


def test_a_task_that_has_a_handle_keeps_the_actor(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"

    @skate.remote
    def later(handle: Any) -> list[int]:
        started.touch()
        wait_for(go.exists, 40, "the gate to open")
        return [skate.get(handle.add.remote()), skate.get(handle.add.remote())]

    counter = Counter.remote()
    pid = value_of(counter.pid.remote())
    ref = later.remote(counter)
    del counter
    gc.collect()
    wait_for(started.exists, WITHIN_S, "the task to run")
    go.touch()
    assert value_of(ref) == [1, 2]
    assert_gone(pid)


def test_a_task_that_has_not_started_keeps_the_actor(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"

    @skate.remote(num_cpus=2)
    def blocker() -> None:
        started.touch()
        wait_for(go.exists, 40, "the gate to open")

    @skate.remote
    def use(box: list[Any]) -> int:
        return skate.get(box[0].add.remote())

    counter = Counter.options(num_cpus=0).remote()
    pid = value_of(counter.pid.remote())
    blocked = blocker.remote()
    wait_for(started.exists, WITHIN_S, "the blocker to run")
    ref = use.remote([counter])
    del counter
    gc.collect()
    assert alive(pid)
    go.touch()
    assert value_of(ref) == 1
    value_of(blocked)
    assert_gone(pid)


def test_a_stored_handle_keeps_the_actor() -> None:
    counter = Counter.remote()
    pid = value_of(counter.pid.remote())
    ref = skate.put({"handle": counter, "padding": np.zeros(100_000)})
    del counter
    gc.collect()
    counter = value_of(ref)["handle"]
    assert value_of(counter.add.remote()) == 1
    del ref, counter
    assert_gone(pid)


def test_an_object_that_nobody_can_read_any_more_does_not_keep_the_actor() -> None:
    counter = Counter.remote()
    pid = value_of(counter.pid.remote())
    ref = skate.put([counter])
    del counter
    gc.collect()
    assert alive(pid)
    del ref
    assert_gone(pid)


def test_a_result_that_was_not_fetched_keeps_the_actor() -> None:
    make = skate.remote(lambda: [Counter.remote(7)])
    ref = make.remote()
    skate.wait([ref], timeout=WITHIN_S)
    gc.collect()
    counter = value_of(ref)[0]
    pid = value_of(counter.pid.remote())
    assert value_of(counter.add.remote()) == 8
    del ref, counter
    assert_gone(pid)


def test_the_state_of_another_actor_keeps_the_actor() -> None:
    counter = Counter.remote()
    pid = value_of(counter.pid.remote())
    holder = Holder.remote([counter])
    del counter
    gc.collect()
    assert value_of(holder.add.remote()) == 1
    assert value_of(holder.add.remote()) == 2
    value_of(holder.let_go.remote())
    assert_gone(pid)


def test_an_actor_that_ends_takes_along_those_that_only_it_knew() -> None:
    counter = Counter.remote()
    pid = value_of(counter.pid.remote())
    holder = Holder.remote([counter])
    holder_pid = value_of(holder.pid.remote())
    del counter
    gc.collect()
    assert alive(pid)
    del holder
    assert_gone(holder_pid)
    assert_gone(pid)


def test_a_killed_actor_takes_along_those_that_only_it_knew() -> None:
    counter = Counter.remote()
    pid = value_of(counter.pid.remote())
    holder = Holder.remote([counter])
    assert value_of(holder.add.remote()) == 1
    del counter
    gc.collect()
    skate.kill(holder)
    assert_gone(pid)


def test_two_actors_that_know_each_other_can_be_killed() -> None:
    first, second = Holder.remote(), Holder.remote()
    value_of(first.hold.remote([second]))
    value_of(second.hold.remote([first]))
    pids = skate.get([first.pid.remote(), second.pid.remote()], timeout=WITHIN_S)
    skate.kill(first)
    skate.kill(second)
    for pid in pids:
        assert_gone(pid)


def test_results_outlive_their_actor() -> None:
    @skate.remote
    class Source:
        def small(self) -> str:
            return "small"

        def large(self) -> Any:
            return np.arange(300_000)

        def stored(self) -> Any:
            return [skate.put(np.arange(200_000))]

        def pid(self) -> int:
            return os.getpid()

    source = Source.remote()
    pid = value_of(source.pid.remote())
    small, large = source.small.remote(), source.large.remote()
    del source
    assert_gone(pid)
    assert value_of(small) == "small"
    assert value_of(large)[-1] == 299_999


def test_the_end_runs_what_was_registered_for_it(tmp_path: Path) -> None:
    tidied = tmp_path / "tidied"

    @skate.remote
    class Tidy:
        def __init__(self) -> None:
            atexit.register(tidied.touch)

        def pid(self) -> int:
            return os.getpid()

    tidy = Tidy.remote()
    pid = value_of(tidy.pid.remote())
    del tidy
    assert_gone(pid)
    assert tidied.exists()


def test_shutdown_ends_actors_that_still_have_handles() -> None:
    counters = [Counter.remote() for _ in range(3)]
    pids = skate.get([counter.pid.remote() for counter in counters], timeout=WITHIN_S)
    skate.shutdown()
    for pid in pids:
        assert_gone(pid)


# --- kill -------------------------------------------------------------------------------------------------------------


def test_kill_ends_the_process_and_every_later_call_says_so() -> None:
    counter = Counter.remote()
    pid = value_of(counter.pid.remote())
    skate.kill(counter)
    for _ in range(3):
        error = assert_died(counter.add.remote())
        assert "kill" in str(error)
        assert "Counter" in str(error)
        assert error.actor_id == counter._actor_id.hex()
    assert_gone(pid)


def test_kill_fails_the_running_and_the_waiting_calls(tmp_path: Path) -> None:
    started, log = tmp_path / "started", tmp_path / "log"
    gate = Gate.remote()
    refs = [gate.hold.remote(started, tmp_path / "never")]
    refs += [gate.note.remote(log, number) for number in range(5)]
    wait_for(started.exists, WITHIN_S, "the first call to run")
    skate.kill(gate)
    for ref in refs:
        assert "kill" in str(assert_died(ref))
    assert lines(log) == []


def test_kill_ends_what_does_not_listen(tmp_path: Path) -> None:
    started = tmp_path / "started"

    @skate.remote
    class Stubborn:
        def run(self) -> None:
            append(started, os.getpid())
            while True:
                try:
                    while True:
                        time.sleep(0.001)
                except BaseException:
                    pass

    stubborn = Stubborn.remote()
    ref = stubborn.run.remote()
    (pid,) = wait_for(lambda: lines(started), WITHIN_S, "the call to run")
    skate.kill(stubborn)
    assert_died(ref)
    assert_gone(int(pid))


def test_kill_gives_its_resources_back() -> None:
    counter = Counter.options(num_cpus=2).remote()
    value_of(counter.pid.remote())
    skate.kill(counter)
    assert value_of(skate.remote(num_cpus=2)(lambda: "ran").remote()) == "ran"


def test_kill_of_an_actor_that_is_not_yet_made(tmp_path: Path) -> None:
    go, made = tmp_path / "go", tmp_path / "made"

    @skate.remote
    def late() -> None:
        wait_for(go.exists, 40, "the gate to open")

    @skate.remote
    class Late:
        def __init__(self, argument: Any) -> None:
            made.touch()

        def ping(self) -> None: ...

    argument = late.remote()
    actor = Late.remote(argument)
    ref = actor.ping.remote()
    skate.kill(actor)
    assert_died(ref)
    go.touch()
    value_of(argument)
    assert_died(actor.ping.remote())
    assert not made.exists()


def test_kill_while_the_constructor_runs(tmp_path: Path) -> None:
    started = tmp_path / "started"

    @skate.remote
    class Slow:
        def __init__(self) -> None:
            append(started, os.getpid())
            wait_for((tmp_path / "never").exists, 40, "a gate that never opens")

        def ping(self) -> None: ...

    slow = Slow.remote()
    ref = slow.ping.remote()
    (pid,) = wait_for(lambda: lines(started), WITHIN_S, "the constructor to run")
    skate.kill(slow)
    assert "kill" in str(assert_died(ref))
    assert_gone(int(pid))


def test_kill_ends_a_stream() -> None:
    @skate.remote
    class Source:
        def forever(self) -> Iterator[int]:
            while True:
                yield 1

    source = Source.remote()
    stream = source.forever.remote()
    assert value_of(next(stream)) == 1
    skate.kill(source)
    with pytest.raises(ActorDiedError):
        for ref in stream:
            value_of(ref)


def test_kill_twice_is_harmless() -> None:
    counter, other = Counter.remote(), Counter.remote()
    value_of(counter.pid.remote())
    skate.kill(counter)
    skate.kill(counter)
    assert_died(counter.add.remote())
    skate.kill(counter)
    assert value_of(other.add.remote()) == 1


def test_kill_through_a_handle_in_a_task() -> None:
    counter = Counter.remote()
    pid = value_of(counter.pid.remote())
    kill = skate.remote(lambda box: skate.kill(box[0]))
    value_of(kill.remote([counter]))
    assert_gone(pid)
    assert_died(counter.add.remote())


def test_results_from_before_the_kill_stay() -> None:
    counter = Counter.remote()
    refs = [counter.add.remote() for _ in range(10)]
    skate.wait(refs, num_returns=10, timeout=WITHIN_S)
    skate.kill(counter)
    assert skate.get(refs) == list(range(1, 11))


def test_a_task_that_needs_the_result_of_a_killed_actor_gets_the_error(tmp_path: Path) -> None:
    started = tmp_path / "started"
    gate = Gate.remote()
    ref = skate.remote(lambda x: x).remote(gate.hold.remote(started, tmp_path / "never"))
    wait_for(started.exists, WITHIN_S, "the call to run")
    skate.kill(gate)
    assert_died(ref)


def test_kill_wins_over_max_restarts() -> None:
    counter = Counter.options(max_restarts=-1, max_task_retries=-1).remote()
    pid = value_of(counter.pid.remote())
    skate.kill(counter)
    assert_died(counter.add.remote())
    assert_gone(pid)


def test_killing_the_dead_does_not_change_why_they_died() -> None:
    quitter = skate.remote(Quitter).remote()
    assert "it called sys.exit()" in str(assert_died(quitter.quit.remote()))
    skate.kill(quitter)
    assert "it called sys.exit()" in str(assert_died(quitter.number.remote()))


def test_the_next_life_may_begin_before_kill_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this process notes of the end of a life it notes before the node hears of it, not after the next began."""
    counter = Counter.options(max_restarts=1).remote(100)
    assert value_of(counter.add.remote()) == 101
    runtime = current.get_runtime()
    send, noted = runtime.send, []

    def send_and_look(message: Any) -> None:
        if isinstance(message, KillActor):
            noted.append(runtime.actors._links[message.actor].state)
        send(message)

    monkeypatch.setattr(runtime, "send", send_and_look)
    skate.kill(counter, no_restart=False)
    assert noted == [DYING]
    assert value_of(counter.add.options(max_task_retries=-1).remote()) == 101


def test_kill_may_leave_the_restarts() -> None:
    counter = Counter.options(max_restarts=1).remote(100)
    assert value_of(counter.add.remote()) == 101
    pid = value_of(counter.pid.remote())
    skate.kill(counter, no_restart=False)
    assert_gone(pid)
    assert value_of(counter.add.options(max_task_retries=-1).remote()) == 101, "a fresh state from the same arguments"
    assert value_of(counter.facts.remote())[1] is True
    assert value_of(counter.pid.remote()) != pid


def test_kill_without_restarts_left_is_the_end() -> None:
    counter = Counter.remote()
    value_of(counter.pid.remote())
    skate.kill(counter, no_restart=False)
    assert_died(counter.add.remote())


@pytest.mark.parametrize("what", [5, None, "name", Counter], ids=str)
def test_kill_takes_a_handle(what: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"kill\(\)"):
        skate.kill(what)


def test_kill_of_a_reference_points_to_cancel() -> None:
    counter = Counter.remote()
    ref = counter.add.remote()
    with pytest.raises((TypeError, ValueError), match=r"cancel"):
        skate.kill(ref)
    assert value_of(ref) == 1


# --- exit_actor -------------------------------------------------------------------------------------------------------


@skate.remote
class Leaver:
    def __init__(self, log: Path) -> None:
        self.log = log
        append(log, "made")

    def leave(self) -> None:
        skate.exit_actor()
        append(self.log, "went on")

    def leave_by_ray_name(self) -> None:
        skate.actor.exit_actor()

    def note(self, what: str) -> str:
        append(self.log, what)
        return what

    def pid(self) -> int:
        return os.getpid()


@pytest.mark.parametrize("method", ["leave", "leave_by_ray_name"])
def test_an_actor_may_end_itself(tmp_path: Path, method: str) -> None:
    leaver = Leaver.remote(tmp_path / "log")
    pid = value_of(leaver.pid.remote())
    error = assert_died(getattr(leaver, method).remote())
    assert "exit_actor" in str(error)
    assert "Leaver" in str(error)
    assert_gone(pid)
    assert "exit_actor" in str(assert_died(leaver.note.remote("later")))
    assert lines(tmp_path / "log") == ["made"]


class Quitter:
    def quit(self, code: Any = None) -> None:
        sys.exit(code)

    def number(self) -> int:
        return 1


class AsyncQuitter:
    async def quit(self, code: Any = None) -> None:
        sys.exit(code)

    async def number(self) -> int:
        return 1


QUITTERS = [(Quitter, {}), (Quitter, {"max_concurrency": 2}), (AsyncQuitter, {})]


@pytest.mark.parametrize(("cls", "options"), QUITTERS, ids=["plain", "threaded", "async"])
@pytest.mark.parametrize("code", [None, 0])
def test_sys_exit_ends_the_actor_for_good(cls: Any, options: dict[str, Any], code: Any) -> None:
    quitter = skate.remote(cls).options(max_restarts=-1, **options).remote()
    assert value_of(quitter.number.remote()) == 1
    assert "it called sys.exit()" in str(assert_died(quitter.quit.remote(code)))
    assert "it called sys.exit()" in str(assert_died(quitter.number.remote()))


@pytest.mark.parametrize(("cls", "options"), QUITTERS, ids=["plain", "threaded", "async"])
@pytest.mark.parametrize(("code", "exit_code"), [(3, 3), ("no more paper", 1)])
def test_sys_exit_with_a_code_is_a_crash(cls: Any, options: dict[str, Any], code: Any, exit_code: int) -> None:
    quitter = skate.remote(cls).options(max_restarts=1, **options).remote()
    before = [quitter.number.remote() for _ in range(10)]
    skate.wait(before, num_returns=10, timeout=WITHIN_S)
    with pytest.raises(ActorUnavailableError, match=f"exited with code {exit_code}"):
        value_of(quitter.quit.remote(code))
    assert [value_of(ref) for ref in before] == [1] * 10
    assert value_of(quitter.number.remote()) == 1, "it was started again"
    error = assert_died(quitter.quit.remote(code))
    assert f"exited with code {exit_code}" in str(error)
    if isinstance(code, str):
        assert code in str(error)


class Crowd:
    """Several calls at a time, in threads."""

    def __init__(self, running: Path, gate: Path) -> None:
        self.running, self.gate = running, gate

    def slow(self) -> str:
        self.running.touch()
        wait_for(self.gate.exists, WITHIN_S, "the gate")
        return "done"

    def leave(self) -> None:
        skate.exit_actor()

    def leave_in_the_background(self) -> None:
        def leave() -> None:
            with contextlib.suppress(BaseException):
                skate.exit_actor()

        threading.Thread(target=leave).start()


class AsyncCrowd(Crowd):
    async def slow(self) -> str:  # type: ignore[override]
        self.running.touch()
        while not self.gate.exists():
            await asyncio.sleep(0.001)
        return "done"

    async def leave(self) -> None:  # type: ignore[override]
        skate.exit_actor()

    async def leave_in_the_background(self) -> None:  # type: ignore[override]
        self.task = asyncio.ensure_future(asyncio.gather(self.leave(), return_exceptions=True))


crowds = pytest.mark.parametrize(("cls", "options"), [(Crowd, {"max_concurrency": 3}), (AsyncCrowd, {})])


@crowds
def test_calls_that_run_beside_the_exit_have_their_results(tmp_path: Path, cls: Any, options: dict[str, Any]) -> None:
    crowd = skate.remote(cls).options(**options).remote(tmp_path / "running", tmp_path / "gate")
    slow = crowd.slow.remote()
    wait_for((tmp_path / "running").exists, WITHIN_S, "the call to run")
    leave = crowd.leave.remote()
    wait_for(lambda: "dead" in states_of_actors(), WITHIN_S, "the exit")
    late = crowd.slow.remote()
    (tmp_path / "gate").touch()
    assert value_of(slow) == "done"
    assert "exit_actor" in str(assert_died(leave))
    assert_died(late)


@crowds
def test_an_actor_may_end_itself_in_the_background(tmp_path: Path, cls: Any, options: dict[str, Any]) -> None:
    crowd = skate.remote(cls).options(**options).remote(tmp_path / "running", tmp_path / "gate")
    crowd.leave_in_the_background.remote()
    wait_for(lambda: "dead" in states_of_actors(), WITHIN_S, "the exit")
    assert "exit_actor" in str(assert_died(crowd.slow.remote()))


def test_a_thread_of_a_plain_actor_may_end_it(tmp_path: Path) -> None:
    crowd = skate.remote(Crowd).remote(tmp_path / "running", tmp_path / "gate")
    crowd.leave_in_the_background.remote()
    wait_for(lambda: "dead" in states_of_actors(), WITHIN_S, "the exit")
    assert "exit_actor" in str(assert_died(crowd.slow.remote()))


@pytest.mark.parametrize("where", ["thread", "task"])
def test_an_exit_in_the_background_prints_nothing(where: str, capfd: pytest.CaptureFixture[str]) -> None:
    @skate.remote
    class Background:
        async def pid(self) -> int:
            return os.getpid()

        async def leave(self) -> None:
            if where == "thread":
                threading.Thread(target=skate.exit_actor).start()
            else:
                asyncio.get_running_loop().create_task(self._leave())

        async def _leave(self) -> None:
            skate.exit_actor()

    background = Background.remote()
    pid = value_of(background.pid.remote())
    background.leave.remote()
    assert_gone(pid)
    assert_died(background.pid.remote())
    assert capfd.readouterr().err == ""


def test_an_init_that_hangs_ends_with_the_last_handle(tmp_path: Path) -> None:
    class Hanging:
        def __init__(self) -> None:
            append(tmp_path / "pid", os.getpid())
            while True:
                time.sleep(0.01)

    hanging = skate.remote(num_cpus=2)(Hanging).remote()
    (pid,) = wait_for(lambda: lines(tmp_path / "pid"), WITHIN_S, "its __init__ to run")
    del hanging
    assert_gone(int(pid))


def test_calls_before_the_exit_are_answered_and_those_behind_fail(tmp_path: Path) -> None:
    leaver = Leaver.remote(tmp_path / "log")
    before = [leaver.note.remote(f"before {number}") for number in range(10)]
    leave = leaver.leave.remote()
    behind = [leaver.note.remote(f"behind {number}") for number in range(10)]
    assert skate.get(before, timeout=WITHIN_S) == [f"before {number}" for number in range(10)]
    for ref in [leave, *behind]:
        assert_died(ref)
    assert lines(tmp_path / "log") == ["made", *[f"before {number}" for number in range(10)]]


def test_who_exits_is_not_restarted(tmp_path: Path) -> None:
    leaver = Leaver.options(max_restarts=-1, max_task_retries=-1).remote(tmp_path / "log")
    assert_died(leaver.leave.remote())
    assert_died(leaver.note.remote("later"))
    assert lines(tmp_path / "log") == ["made"]


def test_exit_runs_what_was_registered_for_the_end(tmp_path: Path) -> None:
    tidied = tmp_path / "tidied"

    @skate.remote
    class Tidy:
        def __init__(self) -> None:
            atexit.register(tidied.touch)

        def leave(self) -> None:
            skate.exit_actor()

        def pid(self) -> int:
            return os.getpid()

    tidy = Tidy.remote()
    pid = value_of(tidy.pid.remote())
    assert_died(tidy.leave.remote())
    assert_gone(pid)
    assert tidied.exists()


def test_exit_in_the_midst_of_a_method_runs_its_finally(tmp_path: Path) -> None:
    tidied = tmp_path / "tidied"

    @skate.remote
    class Careful:
        def leave(self) -> None:
            try:
                try:
                    skate.exit_actor()
                except Exception:  # what ends the actor is not an error that a method would handle
                    append(tidied, "swallowed")
            finally:
                append(tidied, "finally")

    assert_died(Careful.remote().leave.remote())
    assert lines(tidied) == ["finally"]


def test_an_async_actor_may_end_itself() -> None:
    @skate.remote
    class AsyncLeaver:
        async def leave(self) -> None:
            await asyncio.sleep(0)
            skate.exit_actor()

        async def forever(self) -> None:
            await asyncio.Event().wait()

        async def pid(self) -> int:
            return os.getpid()

    leaver = AsyncLeaver.remote()
    pid = value_of(leaver.pid.remote())
    wait_only_a_moment(leaver)
    waiting = leaver.forever.remote()
    assert "exit_actor" in str(assert_died(leaver.leave.remote()))
    assert_died(waiting)
    assert_gone(pid)


def test_an_async_actor_that_ends_beside_a_call_that_waits_tidies_up_silently(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log"

    class Tidy:
        def __init__(self) -> None:
            append(log, os.getpid())
            atexit.register(append, log, "atexit")

        def __del__(self) -> None:
            append(log, "del")

        async def forever(self) -> None:
            append(log, "waits")
            await asyncio.Event().wait()

        async def leave(self) -> None:
            skate.exit_actor()

    tidy = skate.remote(Tidy).remote()
    wait_only_a_moment(tidy)
    waiting = tidy.forever.remote()
    wait_for(lambda: "waits" in lines(log), WITHIN_S, "the call to wait")
    assert_died(tidy.leave.remote())
    assert_died(waiting)
    assert_gone(int(lines(log)[0]))
    assert lines(log)[2:] == ["del", "atexit"]
    assert capfd.readouterr().err == ""


def test_a_call_that_is_cancelled_while_its_actor_leaves_was_running(tmp_path: Path) -> None:
    crowd = skate.remote(AsyncCrowd).remote(tmp_path / "running", tmp_path / "gate")
    slow = crowd.slow.remote()
    wait_for((tmp_path / "running").exists, WITHIN_S, "the call to run")
    crowd.leave.remote()
    wait_for(lambda: "dead" in states_of_actors(), WITHIN_S, "the exit")
    skate.cancel(slow)
    with pytest.raises(TaskCancelledError, match="interrupted while it ran") as caught:
        value_of(slow)
    assert caught.value.was_running


def test_a_threaded_actor_may_end_itself(tmp_path: Path) -> None:
    leaver = Leaver.options(max_concurrency=3).remote(tmp_path / "log")
    pid = value_of(leaver.pid.remote())
    assert "exit_actor" in str(assert_died(leaver.leave.remote()))
    assert_gone(pid)
    assert_died(leaver.note.remote("later"))


def test_an_actor_may_end_itself_in_its_constructor() -> None:
    @skate.remote
    class Shy:
        def __init__(self) -> None:
            skate.exit_actor()

        def ping(self) -> None: ...

    shy = Shy.options(max_restarts=-1).remote()
    for _ in range(2):
        assert "exit_actor" in str(assert_died(shy.ping.remote()))


def test_exit_outside_an_actor_is_an_error() -> None:
    with pytest.raises((TypeError, RuntimeError), match=r"exit_actor"):
        skate.exit_actor()

    @skate.remote
    def leave() -> None:
        skate.exit_actor()

    with pytest.raises((TypeError, RuntimeError), match=r"exit_actor"):
        value_of(leave.remote())


def test_terminate_runs_the_calls_before_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    leaver = Leaver.remote(log)
    pid = value_of(leaver.pid.remote())
    refs = [leaver.note.remote(str(number)) for number in range(5)]
    leaver.__ray_terminate__.remote()
    assert skate.get(refs, timeout=WITHIN_S) == [str(number) for number in range(5)]
    assert_gone(pid)


# --- Names ------------------------------------------------------------------------------------------------------------


def test_a_named_actor_is_found() -> None:
    counter = Counter.options(name="here").remote(5)
    found = skate.get_actor("here")
    assert found == counter
    assert value_of(found.add.remote()) == 6
    assert value_of(found.facts.remote())[0] == "here"


def test_a_named_actor_is_found_at_once_although_it_is_not_yet_made(tmp_path: Path) -> None:
    go = tmp_path / "go"

    @skate.remote
    def late() -> int:
        wait_for(go.exists, 40, "the gate to open")
        return 5

    counter = Counter.options(name="early").remote(late.remote())
    found = skate.get_actor("early")
    assert found == counter
    ref = found.add.remote()
    go.touch()
    assert value_of(ref) == 6


def test_a_named_actor_is_found_by_tasks_and_actors() -> None:
    @skate.remote
    def use() -> int:
        return skate.get(skate.get_actor("shared").add.remote())

    @skate.remote
    class User:
        def use(self) -> int:
            return skate.get(skate.get_actor("shared").add.remote())

    counter = Counter.options(name="shared").remote()
    assert value_of(use.remote()) == 1
    assert value_of(User.remote().use.remote()) == 2
    assert value_of(counter.add.remote()) == 3


def test_a_named_actor_made_by_a_task_is_found_by_the_driver() -> None:
    make = skate.remote(lambda: [Counter.options(name="made by a task").remote(1)])
    kept = value_of(make.remote())
    assert value_of(skate.get_actor("made by a task").add.remote()) == 2
    assert skate.get_actor("made by a task") == kept[0]


def test_a_handle_found_by_name_knows_the_methods() -> None:
    counter = Counter.options(name="typed").remote()
    found = skate.get_actor("typed")
    assert "Counter" in repr(found)
    with pytest.raises(AttributeError, match="missing"):
        found.missing.remote()
    with pytest.raises(TypeError, match="add"):
        found.add.remote(1, 2, 3)
    assert value_of(counter.add.remote()) == 1


@pytest.mark.parametrize("namespace", [None, "elsewhere"])
def test_a_missing_name_is_a_clear_error(namespace: str | None) -> None:
    with pytest.raises(ValueError, match="nobody") as caught:
        skate.get_actor("nobody", namespace=namespace)
    advice = "name='nobody', namespace='elsewhere'" if namespace else "name='nobody', get_if_exists"
    assert advice in str(caught.value)


@pytest.mark.parametrize("name", ["", 5, None], ids=repr)
def test_a_name_is_a_string(name: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"(?i)name"):
        skate.get_actor(name)


def test_a_taken_name_is_a_clear_error_and_the_first_one_stays() -> None:
    first = Counter.options(name="taken").remote()
    with pytest.raises(skate.exceptions.ActorAlreadyExistsError, match="taken"):
        Counter.options(name="taken").remote()
    assert value_of(first.add.remote()) == 1
    assert skate.get_actor("taken") == first


def test_a_name_taken_by_another_process_is_a_clear_error_there() -> None:
    first = Counter.options(name="taken").remote()

    @skate.remote
    def make() -> str:
        try:
            Counter.options(name="taken").remote()
        except ValueError as error:
            return str(error)
        return "no error"

    assert "taken" in value_of(make.remote())
    assert value_of(first.add.remote()) == 1


def test_a_name_is_free_again_after_a_kill() -> None:
    first = Counter.options(name="reused").remote(1)
    value_of(first.add.remote())
    skate.kill(first)
    assert_died(first.add.remote())
    with pytest.raises(ValueError, match="reused"):
        skate.get_actor("reused")
    second = Counter.options(name="reused").remote(100)
    assert value_of(skate.get_actor("reused").add.remote()) == 101
    assert first != second


def test_a_name_is_free_again_after_the_last_handle() -> None:
    first = Counter.options(name="reused").remote()
    pid = value_of(first.pid.remote())
    del first
    assert_gone(pid)
    second = Counter.options(name="reused").remote(100)
    assert value_of(second.add.remote()) == 101


def test_a_name_is_free_again_after_a_crash() -> None:
    @skate.remote
    class Mortal:
        def crash(self) -> None:
            os._exit(3)

    first = Mortal.options(name="reused").remote()
    assert_died(first.crash.remote())
    with pytest.raises(ValueError, match="reused"):
        skate.get_actor("reused")
    second = Counter.options(name="reused").remote(100)
    assert value_of(second.add.remote()) == 101


def test_a_name_is_free_again_when_the_constructor_raised() -> None:
    @skate.remote
    class Broken:
        def __init__(self) -> None:
            raise ValueError("no")

        def ping(self) -> None: ...

    broken = Broken.options(name="unlucky").remote()
    assert_died(broken.ping.remote())
    counter = Counter.options(name="unlucky").remote(1)
    assert value_of(counter.add.remote()) == 2


def test_a_restarted_actor_keeps_its_name() -> None:
    counter = Counter.options(name="survivor", max_restarts=1).remote(10)
    pid = value_of(counter.pid.remote())
    skate.kill(counter, no_restart=False)
    assert_gone(pid)
    found = skate.get_actor("survivor")
    assert found == counter
    assert value_of(found.facts.options(max_task_retries=-1).remote()) == ("survivor", True)


def test_get_if_exists_makes_it_once(tmp_path: Path) -> None:
    made = tmp_path / "made"

    @skate.remote
    class Single:
        def __init__(self, number: int) -> None:
            append(made, number)
            self.number = number

        def read(self) -> int:
            return self.number

    single = Single.options(name="single", get_if_exists=True)
    first, second = single.remote(1), single.remote(2)
    assert first == second
    assert skate.get([first.read.remote(), second.read.remote()], timeout=WITHIN_S) == [1, 1]
    assert lines(made) == ["1"]


def test_get_if_exists_from_many_tasks_at_once_makes_one() -> None:
    @skate.remote
    def use() -> Any:
        counter = Counter.options(name="race", get_if_exists=True).remote()
        return counter, skate.get(counter.add.remote())

    found = skate.get([use.remote() for _ in range(20)], timeout=WITHIN_S)
    assert len({handle for handle, _ in found}) == 1
    assert sorted(number for _, number in found) == list(range(1, 21))


def test_get_if_exists_waits_for_one_that_is_being_made(tmp_path: Path) -> None:
    """Its name is taken before its arguments are stored; whoever looks for it meanwhile gets it in the end."""
    storing, looked, gate = tmp_path / "storing", tmp_path / "looked", tmp_path / "gate"

    class SlowToStore:
        def __reduce__(self) -> Any:
            storing.touch()
            wait_for(gate.exists, WITHIN_S, "the gate")
            return int, (5,)

    @skate.remote
    def make() -> int:
        first = Counter.options(name="slow", get_if_exists=True).remote(SlowToStore())
        wait_for(looked.exists, WITHIN_S, "the other one to have it")
        return skate.get(first.add.remote(), timeout=WITHIN_S)

    made = make.remote()
    wait_for(storing.exists, WITHIN_S, "the arguments to be stored")
    with ThreadPoolExecutor() as threads:
        other = threads.submit(Counter.options(name="slow", get_if_exists=True).remote, 100)
        for _ in range(20):
            with pytest.raises(ValueError, match="there is no actor named"):
                skate.get_actor("slow")
        gate.touch()
        counter = other.result(WITHIN_S)
    looked.touch()
    assert sorted([value_of(counter.add.remote()), value_of(made)]) == [6, 7]


def test_get_if_exists_makes_a_new_one_after_a_kill() -> None:
    shared = Counter.options(name="shared", get_if_exists=True)
    first = shared.remote()
    value_of(first.add.remote())
    skate.kill(first)
    assert_died(first.add.remote())
    second = shared.remote(100)
    assert second != first
    assert value_of(second.add.remote()) == 101


def test_many_make_the_same_name_and_one_wins() -> None:
    @skate.remote
    def make(number: int) -> Any:
        try:
            return [Counter.options(name="contested").remote(number)]
        except ValueError:
            return []

    made = skate.get([make.remote(number) for number in range(10)], timeout=WITHIN_S)
    assert sum(len(handles) for handles in made) == 1


# --- Namespaces -------------------------------------------------------------------------------------------------------


def test_a_name_is_unique_per_namespace() -> None:
    restart(num_cpus=2, namespace="here")
    mine = Counter.options(name="twin").remote(1)
    other = Counter.options(name="twin", namespace="there").remote(100)
    assert skate.get_actor("twin") == mine
    assert skate.get_actor("twin", namespace="here") == mine
    assert skate.get_actor("twin", namespace="there") == other
    assert value_of(other.add.remote()) == 101
    with pytest.raises(ValueError, match=r"get_actor\('twin', 'there'\)"):
        Counter.options(name="twin", namespace="there").remote()
    with pytest.raises(ValueError, match=r"get_actor\('twin'\)"):
        Counter.options(name="twin").remote()


def test_an_actor_of_another_namespace_is_found_only_there_and_the_error_says_where() -> None:
    counter = Counter.options(name="far", namespace="there").remote()
    with pytest.raises(ValueError, match="far") as caught:
        skate.get_actor("far")
    text = str(caught.value)
    assert text.startswith("there is no actor named 'far' in the namespace '' (that of this program).")
    assert "actors of that name are in other namespaces: 'there'." in text
    assert "next: skate.get_actor('far', namespace='there')." in text
    assert skate.get_actor("far", "there") == counter
    with pytest.raises(ValueError, match="in the namespace 'nowhere'; that of this program is ''"):
        skate.get_actor("far", "nowhere")
    value_of(counter.add.remote())
    skate.kill(counter)
    assert_died(counter.add.remote())
    with pytest.raises(ValueError) as caught:
        skate.get_actor("far")
    assert "other namespaces" not in str(caught.value), "one that is dead is nowhere"


def test_a_name_that_is_unknown_on_a_node_of_ones_own_hints_at_those_of_others() -> None:
    with pytest.raises(ValueError, match=r'this program has started a node of its own.*skate\.init\("auto"\)'):
        skate.get_actor("elsewhere")
    find = skate.remote(lambda: skate.get_actor("elsewhere"))
    with pytest.raises(ValueError, match="there is no actor named") as caught:
        value_of(find.remote())
    assert "node of its own" not in str(caught.value), "a task has started none"


def test_tasks_and_actors_are_in_the_namespace_of_their_driver() -> None:
    restart(num_cpus=2, namespace="mine")
    counter = Counter.options(name="known").remote()
    find = skate.remote(lambda: [skate.get_actor("known"), skate.get_runtime_context().namespace])
    assert value_of(find.remote()) == [counter, "mine"]


def test_named_actors_are_listed() -> None:
    restart(num_cpus=2, namespace="here")
    assert skate.util.list_named_actors() == []
    kept = [Counter.options(name=name).remote() for name in ("a", "b")]
    kept.append(Counter.options(name="c", namespace="there").remote())
    kept.append(Counter.remote())
    assert sorted(skate.util.list_named_actors()) == ["a", "b"]
    listed = skate.util.list_named_actors(all_namespaces=True)
    assert sorted((entry["namespace"], entry["name"]) for entry in listed) == [
        ("here", "a"),
        ("here", "b"),
        ("there", "c"),
    ]
    value_of(kept[0].add.remote())
    skate.kill(kept[0])
    wait_for(lambda: skate.util.list_named_actors() == ["b"], WITHIN_S, "the killed one to leave the list")


def test_tasks_may_list_named_actors() -> None:
    counter = Counter.options(name="listed").remote()
    names = skate.remote(lambda: skate.util.list_named_actors())
    assert value_of(names.remote()) == ["listed"]
    assert value_of(counter.add.remote()) == 1


# --- Detached ---------------------------------------------------------------------------------------------------------


def test_a_detached_actor_lives_without_handles() -> None:
    handle = Counter.options(name="detached", lifetime="detached").remote()
    pid = value_of(handle.pid.remote())
    other = Counter.remote()
    other_pid = value_of(other.pid.remote())
    del handle, other
    assert_gone(other_pid)
    found = skate.get_actor("detached")
    assert value_of(found.pid.remote()) == pid
    skate.kill(found)
    assert_gone(pid)


def test_a_detached_actor_outlives_the_actor_that_made_it() -> None:
    @skate.remote
    class Maker:
        def make(self) -> int:
            self.made = Counter.options(name="orphan", lifetime="detached").remote(5)
            return skate.get(self.made.pid.remote())

        def pid(self) -> int:
            return os.getpid()

    maker = Maker.remote()
    maker_pid = value_of(maker.pid.remote())
    pid = value_of(maker.make.remote())
    skate.kill(maker)
    assert_gone(maker_pid)
    found = skate.get_actor("orphan")
    assert value_of(found.pid.remote()) == pid
    assert value_of(found.add.remote()) == 6
    skate.kill(found)
    assert_gone(pid)


# --- A constructor that fails -----------------------------------------------------------------------------------------


@skate.remote
class Unlucky:
    def __init__(self, log: Path) -> None:
        append(log, os.getpid())
        self.fail()

    def fail(self) -> None:
        raise ValueError("no luck today")

    def ping(self) -> str:
        return "pong"


def test_a_constructor_that_raises_fails_every_call_with_its_traceback(tmp_path: Path) -> None:
    unlucky = Unlucky.remote(tmp_path / "log")
    for _ in range(3):
        text = str(assert_died(unlucky.ping.remote()))
        assert "no luck today" in text
        assert "ValueError" in text
        assert "__init__" in text
        assert "in fail" in text
        assert "test_actor_lifetime.py" in text
        assert "Unlucky" in text
    (pid,) = lines(tmp_path / "log")
    assert_gone(int(pid))


def test_calls_sent_before_the_constructor_raised_fail_in_the_same_way(tmp_path: Path) -> None:
    unlucky = Unlucky.remote(tmp_path / "log")
    refs = [unlucky.ping.remote() for _ in range(20)]
    for ref in refs:
        assert "no luck today" in str(assert_died(ref))
    for ref in unlucky.ping.options(num_returns=2).remote():
        assert_died(ref)


def test_a_constructor_that_raises_gives_its_resources_back(tmp_path: Path) -> None:
    unlucky = Unlucky.options(num_cpus=2).remote(tmp_path / "log")
    assert_died(unlucky.ping.remote())
    assert value_of(skate.remote(num_cpus=2)(lambda: "ran").remote()) == "ran"


def test_the_error_of_a_constructor_reaches_other_holders_of_the_handle(tmp_path: Path) -> None:
    @skate.remote
    def use(handle: Any) -> str:
        try:
            skate.get(handle.ping.remote())
        except ActorDiedError as error:
            return str(error)
        return "no error"

    assert "no luck today" in value_of(use.remote(Unlucky.remote(tmp_path / "log")))


def test_a_constructor_whose_argument_failed() -> None:
    @skate.remote
    def fail() -> None:
        raise KeyError("lost argument")

    counter = Counter.remote(fail.remote())
    for _ in range(2):
        with pytest.raises((ActorError, KeyError), match="lost argument"):
            value_of(counter.add.remote())


def test_a_constructor_that_ends_the_process() -> None:
    @skate.remote
    class Sudden:
        def __init__(self) -> None:
            os.write(2, b"the last words\n")
            os._exit(7)

        def ping(self) -> None: ...

    sudden = Sudden.remote()
    for _ in range(2):
        text = str(assert_died(sudden.ping.remote()))
        assert "code 7" in text
        assert "the last words" in text


def test_a_class_that_cannot_be_sent_is_an_error_at_creation() -> None:
    import threading

    lock = threading.Lock()

    @skate.remote
    class Locked:
        def use(self) -> bool:
            return lock.locked()

    with pytest.raises(TypeError, match="lock"):
        Locked.remote()


def test_a_constructor_that_raises_something_that_cannot_be_sent() -> None:
    import threading

    class HoldsALock(Exception):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.lock = threading.Lock()

    @skate.remote
    class Odd:
        def __init__(self) -> None:
            raise HoldsALock("odd one")

        def ping(self) -> None: ...

    assert "odd one" in str(assert_died(Odd.remote().ping.remote()))


@pytest.mark.parametrize("how", [lambda: os._exit(3), lambda: os.kill(os.getpid(), 9)], ids=["exit", "kill"])
@pytest.mark.parametrize("max_restarts", [0, 1])
def test_an_actor_whose_process_ends_inside_init_is_said_to_have_been_being_created(
    how: Any, max_restarts: int
) -> None:
    @skate.remote(max_restarts=max_restarts)
    class Unborn:
        def __init__(self) -> None:
            how()

        def ping(self) -> None: ...

    error = assert_died(Unborn.remote().ping.remote())
    assert re.search(
        r"(exited with code 3|signal 9).*It was being created: its __init__ had not returned\.", str(error)
    )

    @skate.remote
    class Born:
        def end(self) -> None:
            how()

    assert "being created" not in str(assert_died(Born.remote().end.remote()))


# --- Actors that can never be placed ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"num_cpus": 3}, ("CPU", 3)),
        ({"num_gpus": 1}, ("GPU", 1)),
        ({"resources": {"unicorn": 1}}, ("unicorn", 1)),
    ],
    ids=str,
)
def test_an_actor_that_asks_for_too_much_is_an_error_after_the_grace_period(
    options: dict[str, Any], asked: tuple[str, float]
) -> None:
    restart(num_cpus=2, infeasible_grace_s=0.3)
    counter = Counter.options(**options).remote()
    for _ in range(2):
        with pytest.raises(ActorUnschedulableError) as caught:
            value_of(counter.add.remote())
        assert "Counter" in str(caught.value)
        assert f"{asked[0]} {asked[1]:g}" in str(caught.value)
        assert caught.value.asked[asked[0]] == asked[1]
        assert caught.value.available["CPU"] == 2


def test_a_node_without_cpus_cannot_place_an_actor_by_default() -> None:
    restart(num_cpus=0, infeasible_grace_s=0.3)
    with pytest.raises(ActorUnschedulableError, match="CPU 1"):
        value_of(Counter.remote().add.remote())
    assert value_of(Counter.options(num_cpus=0).remote().add.remote()) == 1


def test_what_is_busy_is_not_infeasible() -> None:
    restart(num_cpus=2, infeasible_grace_s=0.2)
    first = Counter.options(num_cpus=2).remote()
    value_of(first.add.remote())
    second = Counter.options(num_cpus=2).remote(10)
    ref = second.add.remote()
    impossible = Counter.options(num_cpus=3).remote()
    with pytest.raises(ActorUnschedulableError):
        value_of(impossible.add.remote())
    assert skate.wait([ref], timeout=0) == ([], [ref]), "the grace period is over, and it still waits"
    skate.kill(first)
    assert value_of(ref) == 11


def test_every_holder_of_the_handle_gets_the_error() -> None:
    restart(num_cpus=2, infeasible_grace_s=0.3)
    counter = Counter.options(num_cpus=3).remote()

    @skate.remote
    def use(handle: Any) -> str:
        try:
            skate.get(handle.add.remote())
        except ActorUnschedulableError as error:
            return str(error)
        return "no error"

    assert "CPU 3" in value_of(use.remote(counter))


def test_others_are_placed_meanwhile() -> None:
    restart(num_cpus=2, infeasible_grace_s=1000)
    impossible = Counter.options(num_cpus=3).remote()
    pending = impossible.add.remote()
    counters = [Counter.remote() for _ in range(3)]
    assert skate.get([counter.add.remote() for counter in counters], timeout=WITHIN_S) == [1, 1, 1]
    assert skate.wait([pending], timeout=0) == ([], [pending])


def test_kill_of_an_actor_that_can_never_be_placed() -> None:
    restart(num_cpus=2, infeasible_grace_s=1000)
    impossible = Counter.options(num_cpus=3).remote()
    ref = impossible.add.remote()
    skate.kill(impossible)
    assert_died(ref)


def test_the_last_handle_of_an_actor_that_can_never_be_placed() -> None:
    restart(num_cpus=2, infeasible_grace_s=1000)
    handle = Counter.options(num_cpus=3, name="never").remote()
    assert skate.util.list_named_actors() in (["never"], []), "whether it is listed before it lives is left open"
    del handle
    gc.collect()
    wait_for(lambda: skate.util.list_named_actors() == [], WITHIN_S, "its name to be free")
    assert value_of(Counter.options(name="never").remote().add.remote()) == 1


# --- why --------------------------------------------------------------------------------------------------------------


def test_why_of_a_call_to_an_actor_that_can_never_be_placed() -> None:
    restart(num_cpus=2, infeasible_grace_s=1000)
    handle = Counter.options(num_cpus=3, resources={"unicorn": 1}).remote()
    ref = handle.add.remote()
    text = wait_for(lambda: "never" in skate.why(ref) and skate.why(ref), WITHIN_S, "it to say that it never will")
    assert "Counter" in text
    assert "3 CPU" in text
    assert "2 CPU" in text
    assert "unicorn" in text
    with pytest.raises(skate.exceptions.GetTimeoutError, match="unicorn"):
        skate.get(ref, timeout=0.1)


def test_why_of_a_call_to_an_actor_that_waits_for_room() -> None:
    first = Counter.options(num_cpus=2).remote()
    value_of(first.add.remote())
    second = Counter.options(num_cpus=1).remote()
    text = skate.why(second.add.remote())
    assert "Counter" in text
    assert "1 CPU" in text


def test_why_of_a_call_that_runs_and_of_one_behind_it(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"
    gate = Gate.remote()
    held = gate.hold.remote(started, go)
    behind = gate.pid.remote()
    wait_for(started.exists, WITHIN_S, "the first call to run")
    assert "hold" in skate.why(held)
    assert "pid" in skate.why(behind)
    assert "Gate" in skate.why(behind)
    go.touch()
    value_of(behind)
    assert "ready" in skate.why(behind)


def test_why_of_a_call_whose_argument_is_late(tmp_path: Path) -> None:
    go = tmp_path / "go"

    @skate.remote
    def slow_argument() -> int:
        wait_for(go.exists, 40, "the gate to open")
        return 1

    counter = Counter.remote()
    ref = counter.add.remote(slow_argument.remote())
    text = skate.why(ref)
    assert "add" in text
    assert "slow_argument" in text
    go.touch()
    assert value_of(ref) == 1


def test_what_a_call_waits_for_while_its_actor_waits_for_arguments(tmp_path: Path) -> None:
    go = tmp_path / "go"

    @skate.remote
    def slow_argument() -> int:
        wait_for(go.exists, 40, "the gate to open")
        return 1

    ref = Counter.remote(slow_argument.remote()).add.remote()
    with pytest.raises(GetTimeoutError, match="the actor Counter, whose arguments are not there yet"):
        skate.get(ref, timeout=0.01)
    assert "the actor Counter, whose arguments are not there yet" in skate.why(ref)
    go.touch()
    assert value_of(ref) == 2


def test_why_of_a_call_to_a_dead_actor() -> None:
    counter = Counter.remote()
    value_of(counter.add.remote())
    skate.kill(counter)
    ref = counter.add.remote()
    assert_died(ref)
    assert "error" in skate.why(ref)


# --- wrong arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [1, 0, None, "no"])
def test_kill_says_what_it_may_be_given(value: Any) -> None:
    counter = Counter.remote()
    with pytest.raises(TypeError, match="no_restart="):
        skate.kill(counter, no_restart=value)
    assert value_of(counter.add.remote()) == 1, "nothing else came of it"


@pytest.mark.parametrize("namespace", [3, b"here", "\ud800"])
def test_get_actor_says_what_a_namespace_may_be(namespace: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="get_actor\\(namespace="):
        skate.get_actor("somebody", namespace)
    assert value_of(Counter.remote().add.remote()) == 1


def test_news_that_were_on_their_way_when_it_was_killed_do_not_take_away_the_reason() -> None:
    @skate.remote
    class Killed:
        def call(self) -> None: ...

    actor = Killed.remote()
    runtime = current.get_runtime()
    with runtime.lock:  # nothing of the daemon is heard meanwhile
        skate.kill(actor)
        runtime.actors.on_state(ActorState(bytes(actor._actor_id), ALIVE, 1, b"", None))
        call = actor.call.remote()
        with pytest.raises(ActorDiedError, match=r"skate\.kill\(\) was called by the driver"):
            skate.get(call)
