"""Actors whose process dies: what the callers hear, what is started and sent again, and that nothing is lost.

How often a call ran, and in which life of the actor, is told by lines that it appends to a file. A process that is
killed while it writes may leave a part of a line, at the end of a page of memory. So a record begins a line of its own,
and its last word shows that it is whole.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skate
from programs import append, lines
from skate.exceptions import ActorDiedError, ActorError, ActorUnavailableError
from waiting import WITHIN_S, value_of, wait_for

pytestmark = pytest.mark.usefixtures("runtime")


def assert_died(ref: Any) -> ActorDiedError:
    with pytest.raises(ActorDiedError) as caught:
        value_of(ref)
    return caught.value


def assert_gone(pid: int | str) -> None:
    wait_for(lambda: not Path("/proc", str(pid)).exists(), WITHIN_S, "the process to be gone")


def after_restart(method: Any, *args: Any) -> Any:
    """What a call gives that may be sent again, since the actor may restart at this moment."""
    return value_of(method.options(max_task_retries=-1).remote(*args))


def exit_with_3() -> None:
    os._exit(3)


def kill_9() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    import ctypes

    ctypes.string_at(0)


def abort() -> None:
    os.abort()


CRASHES = [(exit_with_3, 3, None), (kill_9, None, 9), (segfault, None, 11), (abort, None, 6)]
crash_kinds = pytest.mark.parametrize(("crash", "exit_code", "signal_number"), CRASHES)


#: The last word of a record in a log.
WHOLE = "whole"


@skate.remote
class Fragile:
    """Can be made to crash. Keeps a count, which is lost with the process."""

    def __init__(self, start: int = 0) -> None:
        self.value = start
        self.life = uuid.uuid4().hex

    def add(self, amount: int = 1) -> int:
        self.value += amount
        return self.value

    def crash(self, how: Callable[[], None] = exit_with_3) -> None:
        print("the last words", file=sys.stderr, flush=True)
        how()

    def crash_once(self, mark: Path) -> str:
        if not mark.exists():
            mark.touch()
            os._exit(3)
        return "survived"

    def crash_always(self, log: Path) -> None:
        append(log, "run")
        os._exit(3)

    def hold(self, started: Path, go: Path) -> str:
        append(started, os.getpid())
        while not go.exists():
            time.sleep(0.002)
        return "held"

    def note(self, log: Path, caller: object, number: int) -> int:
        append(log, f"\n{self.life} {caller} {number} {WHOLE}")
        return number

    def pid(self) -> int:
        return os.getpid()

    def restarted(self) -> bool:
        return skate.get_runtime_context().was_current_actor_reconstructed


def runs(log: Path) -> list[tuple[str, str, int]]:
    """(life, caller, number) of each call that ran, in the order in which they ran."""
    found = []
    for line in lines(log):
        if line.endswith(f" {WHOLE}"):
            life, caller, number, _ = line.split()
            found.append((life, caller, int(number)))
    return found


def assert_in_order_within_each_life(log: Path) -> None:
    by_life = collections.defaultdict(list)
    for life, caller, number in runs(log):
        by_life[life, caller].append(number)
    for (life, caller), numbers in by_life.items():
        assert numbers == sorted(set(numbers)), f"caller {caller} in life {life}: {numbers}"


def times_run(log: Path) -> collections.Counter[tuple[str, int]]:
    return collections.Counter((caller, number) for _, caller, number in runs(log))


# --- What the error says ----------------------------------------------------------------------------------------------


@crash_kinds
def test_the_error_says_how_the_process_ended(
    crash: Callable[[], None], exit_code: int | None, signal_number: int | None
) -> None:
    fragile = Fragile.remote()
    text = str(assert_died(fragile.crash.remote(crash)))
    assert "Fragile" in text
    assert "the last words" in text
    if signal_number is None:
        assert f"code {exit_code}" in text
    else:
        assert f"signal {signal_number}" in text
        assert signal.Signals(signal_number).name in text


@crash_kinds
def test_later_calls_hear_the_same_reason(
    crash: Callable[[], None], exit_code: int | None, signal_number: int | None
) -> None:
    fragile = Fragile.remote()
    assert_died(fragile.crash.remote(crash))
    text = str(assert_died(fragile.add.remote()))
    assert (f"code {exit_code}" if signal_number is None else f"signal {signal_number}") in text
    assert "the last words" in text


def test_calls_behind_the_one_that_crashed_fail_and_those_before_do_not() -> None:
    fragile = Fragile.remote()
    before = [fragile.add.remote() for _ in range(50)]
    assert skate.get(before, timeout=WITHIN_S) == list(range(1, 51)), "what was answered stays answered"
    crash = fragile.crash.remote()
    behind = [fragile.add.remote() for _ in range(50)]
    for ref in [crash, *behind]:
        assert_died(ref)


def test_every_return_and_every_stream_of_a_dead_actor_is_the_error() -> None:
    @skate.remote
    class Source:
        def crash_in_stream(self) -> Iterator[int]:
            yield 1
            yield 2
            os._exit(4)

        def pair(self) -> tuple[int, int]:
            return 1, 2

    source = Source.remote()
    stream = source.crash_in_stream.remote()
    refs = source.pair.options(num_returns=2).remote()
    assert value_of(next(stream)) == 1
    assert value_of(next(stream)) == 2
    with pytest.raises(ActorDiedError, match="code 4"):
        value_of(next(stream))
    for ref in refs:
        assert_died(ref)
    with pytest.raises(ActorDiedError, match="code 4"):
        for ref in source.crash_in_stream.remote():
            value_of(ref)


def test_killed_from_outside_while_it_has_nothing_to_do() -> None:
    fragile = Fragile.remote()
    pid = value_of(fragile.pid.remote())
    os.kill(pid, signal.SIGKILL)
    assert_gone(pid)
    assert "signal 9" in str(assert_died(fragile.add.remote()))


def test_killed_from_outside_while_it_runs(tmp_path: Path) -> None:
    started = tmp_path / "started"
    fragile = Fragile.remote()
    refs = [fragile.hold.remote(started, tmp_path / "never"), fragile.add.remote()]
    (pid,) = wait_for(lambda: lines(started), WITHIN_S, "the call to run")
    os.kill(int(pid), signal.SIGKILL)
    for ref in refs:
        assert "signal 9" in str(assert_died(ref))


def test_the_death_of_an_actor_is_heard_by_all_who_wait(tmp_path: Path) -> None:
    started = tmp_path / "started"

    @skate.remote(num_cpus=0)
    def wait_for_it(handle: Any) -> str:
        try:
            skate.get(handle.hold.remote(started, tmp_path / "never"))
        except ActorDiedError as error:
            return str(error)
        return "no error"

    fragile = Fragile.remote()
    pid = value_of(fragile.pid.remote())
    refs = [wait_for_it.remote(fragile) for _ in range(3)]
    wait_for(lambda: lines(started), WITHIN_S, "a call to run")
    os.kill(pid, signal.SIGKILL)
    for text in skate.get(refs, timeout=WITHIN_S):
        assert "signal 9" in text


def test_a_task_that_needs_the_result_gets_the_error() -> None:
    ref = skate.remote(lambda x: x).remote(Fragile.remote().crash.remote())
    assert "code 3" in str(assert_died(ref))


def test_neighbours_are_not_disturbed() -> None:
    neighbour = Fragile.remote()
    for number in range(1, 4):
        assert_died(Fragile.remote().crash.remote())
        assert value_of(neighbour.add.remote()) == number


def test_resources_are_back_after_a_crash() -> None:
    for _ in range(3):
        assert_died(Fragile.options(num_cpus=2).remote().crash.remote())
    wait_for(lambda: skate.available_resources().get("CPU") == 2, WITHIN_S, "both CPUs to be free")


def test_results_from_before_a_crash_stay() -> None:
    @skate.remote
    class Source:
        def small(self) -> str:
            return "small"

        def large(self) -> Any:
            return np.arange(300_000)

        def crash(self) -> None:
            os._exit(3)

    source = Source.remote()
    small, large = source.small.remote(), source.large.remote()
    assert_died(source.crash.remote())
    assert value_of(small) == "small"
    assert value_of(large)[-1] == 299_999


# --- max_restarts -----------------------------------------------------------------------------------------------------


def test_a_crashed_actor_is_not_restarted_by_default(tmp_path: Path) -> None:
    made = tmp_path / "made"

    @skate.remote
    class Marked:
        def __init__(self) -> None:
            append(made, os.getpid())

        def crash(self) -> None:
            os._exit(3)

        def ping(self) -> None: ...

    marked = Marked.remote()
    assert_died(marked.crash.remote())
    assert_died(marked.ping.remote())
    assert len(lines(made)) == 1


@crash_kinds
def test_a_restarted_actor_begins_anew_from_the_same_arguments(
    crash: Callable[[], None], exit_code: int | None, signal_number: int | None
) -> None:
    fragile = Fragile.options(max_restarts=1).remote(100)
    assert value_of(fragile.add.remote()) == 101
    pid = value_of(fragile.pid.remote())
    with pytest.raises(ActorError):
        value_of(fragile.crash.remote(crash))
    assert after_restart(fragile.add) == 101
    assert after_restart(fragile.pid) != pid


def test_the_call_that_was_running_fails_and_says_why() -> None:
    fragile = Fragile.options(max_restarts=1).remote()
    with pytest.raises(ActorError) as caught:
        value_of(fragile.crash.remote())
    assert "Fragile" in str(caught.value)
    assert "code 3" in str(caught.value)


def test_a_call_sent_during_the_restart_waits_for_it_or_is_told_that_the_actor_is_away() -> None:
    fragile = Fragile.options(max_restarts=5).remote()
    for _ in range(5):
        with pytest.raises(ActorError):
            value_of(fragile.crash.remote())
        try:
            assert value_of(fragile.add.remote()) == 1
        except ActorUnavailableError:
            assert after_restart(fragile.add) == 1


def test_restarts_are_counted() -> None:
    fragile = Fragile.options(max_restarts=2).remote()
    for _ in range(2):
        with pytest.raises(ActorError):
            value_of(fragile.crash.remote())
        assert after_restart(fragile.add) == 1
    assert_died(fragile.crash.remote())
    text = str(assert_died(fragile.add.remote()))
    assert "restart" in text
    assert "2" in text


def test_restarts_without_end() -> None:
    fragile = Fragile.options(max_restarts=-1).remote()
    for _ in range(8):
        with pytest.raises(ActorError):
            value_of(fragile.crash.remote())
        assert after_restart(fragile.add) == 1


def test_an_idle_actor_is_restarted_too() -> None:
    fragile = Fragile.options(max_restarts=1).remote(5)
    pid = value_of(fragile.pid.remote())
    os.kill(pid, signal.SIGKILL)
    assert_gone(pid)
    assert after_restart(fragile.add) == 6


def test_arguments_of_the_constructor_are_kept_for_a_restart() -> None:
    @skate.remote(max_restarts=1)
    class WithData:
        def __init__(self, array: Any, box: list[Any]) -> None:
            self.array = array
            self.box = box

        def total(self) -> int:
            return int(self.array.sum()) + skate.get(self.box[0])

        def crash(self) -> None:
            os._exit(3)

    data, inner = skate.put(np.ones(300_000, dtype=np.int64)), skate.put(7)
    actor = WithData.remote(data, [inner])
    assert value_of(actor.total.remote()) == 300_007
    del data, inner
    gc.collect()
    with pytest.raises(ActorError):
        value_of(actor.crash.remote())
    assert after_restart(actor.total) == 300_007


def test_a_restarted_actor_has_the_same_id_and_holds_its_resources_again() -> None:
    @skate.remote(max_restarts=1, num_cpus=1, runtime_env={"env_vars": {"COLOUR": "green"}})
    class Facts:
        def facts(self) -> Any:
            context = skate.get_runtime_context()
            return context.get_actor_id(), context.get_assigned_resources(), os.environ.get("COLOUR")

        def crash(self) -> None:
            os._exit(3)

    facts = Facts.remote()
    before = value_of(facts.facts.remote())
    with pytest.raises(ActorError):
        value_of(facts.crash.remote())
    assert after_restart(facts.facts) == before
    assert before == (facts._actor_id.hex(), {"CPU": 1}, "green")
    assert skate.available_resources()["CPU"] == 1


def test_the_actor_can_tell_that_it_was_restarted() -> None:
    fragile = Fragile.options(max_restarts=1).remote()
    assert value_of(fragile.restarted.remote()) is False
    with pytest.raises(ActorError):
        value_of(fragile.crash.remote())
    assert after_restart(fragile.restarted) is True


def test_the_constructor_can_tell_that_it_is_a_restart(tmp_path: Path) -> None:
    made = tmp_path / "made"

    @skate.remote(max_restarts=1)
    class Marked:
        def __init__(self) -> None:
            append(made, skate.get_runtime_context().was_current_actor_reconstructed)

        def crash(self) -> None:
            os._exit(3)

        def ping(self) -> None: ...

    marked = Marked.remote()
    with pytest.raises(ActorError):
        value_of(marked.crash.remote())
    after_restart(marked.ping)
    assert lines(made) == ["False", "True"]


def test_handles_held_elsewhere_lead_to_the_restarted_actor() -> None:
    @skate.remote
    class Holder:
        def __init__(self, box: list[Any]) -> None:
            self.held = box[0]

        def add(self) -> int:
            return skate.get(self.held.add.options(max_task_retries=-1).remote())

    fragile = Fragile.options(max_restarts=1).remote()
    holder = Holder.remote([fragile])
    assert value_of(holder.add.remote()) == 1
    with pytest.raises(ActorError):
        value_of(fragile.crash.remote())
    assert after_restart(fragile.add) == 1
    assert value_of(holder.add.remote()) == 2


def test_actors_that_the_dead_one_had_made_are_gone() -> None:
    @skate.remote(max_restarts=1)
    class Parent:
        def __init__(self) -> None:
            self.child = Fragile.remote()

        def child_pid(self) -> int:
            return skate.get(self.child.pid.remote())

        def crash(self) -> None:
            os._exit(3)

    parent = Parent.remote()
    first = value_of(parent.child_pid.remote())
    with pytest.raises(ActorError):
        value_of(parent.crash.remote())
    assert_gone(first)
    assert after_restart(parent.child_pid) != first


def test_a_restarted_actor_can_be_killed_while_its_constructor_runs(tmp_path: Path) -> None:
    made = tmp_path / "made"

    @skate.remote(max_restarts=-1, max_task_retries=-1)
    class Slow:
        def __init__(self) -> None:
            append(made, os.getpid())
            if len(lines(made)) > 1:
                wait_for((tmp_path / "never").exists, 40, "a gate that never opens")

        def crash(self) -> None:
            os._exit(3)

        def ping(self) -> None: ...

    slow = Slow.remote()
    value_of(slow.ping.remote())
    refs = [slow.crash.remote(), slow.ping.remote()]
    pids = wait_for(lambda: len(lines(made)) == 2 and lines(made), WITHIN_S, "the second constructor to run")
    skate.kill(slow)
    for ref in [*refs, slow.ping.remote()]:
        assert_died(ref)
    assert_gone(pids[1])
    assert len(lines(made)) == 2


def test_an_actor_that_restarts_still_ends_with_its_last_handle() -> None:
    fragile = Fragile.options(max_restarts=-1).remote()
    with pytest.raises(ActorError):
        value_of(fragile.crash.remote())
    pid = after_restart(fragile.pid)
    del fragile
    gc.collect()
    assert_gone(pid)


# --- max_task_retries -------------------------------------------------------------------------------------------------


def test_a_call_is_sent_again(tmp_path: Path) -> None:
    fragile = Fragile.options(max_restarts=1, max_task_retries=1).remote()
    assert value_of(fragile.crash_once.remote(tmp_path / "mark")) == "survived"


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_a_call_is_sent_again_only_as_often_as_allowed(tmp_path: Path, retries: int) -> None:
    log = tmp_path / "log"
    fragile = Fragile.options(max_restarts=-1, max_task_retries=retries).remote()
    with pytest.raises(ActorError):
        value_of(fragile.crash_always.remote(log))
    assert len(lines(log)) == 1 + retries
    assert after_restart(fragile.add) == 1, "the actor itself lives on"


def test_retries_end_with_the_restarts(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fragile = Fragile.options(max_restarts=2, max_task_retries=-1).remote()
    assert_died(fragile.crash_always.remote(log))
    assert len(lines(log)) == 3


def test_retries_without_restarts_are_in_vain(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fragile = Fragile.options(max_task_retries=5).remote()
    assert_died(fragile.crash_always.remote(log))
    assert len(lines(log)) == 1


def test_retries_of_one_method(tmp_path: Path) -> None:
    @skate.remote(max_restarts=-1)
    class Mixed:
        @skate.method(max_task_retries=2)
        def retried(self, log: Path) -> None:
            append(log, "run")
            os._exit(3)

        def not_retried(self, log: Path) -> None:
            append(log, "run")
            os._exit(3)

    mixed = Mixed.remote()
    for method, expected in ((mixed.retried, 3), (mixed.not_retried, 1)):
        log = tmp_path / str(expected)
        with pytest.raises(ActorError):
            value_of(method.remote(log))
        assert len(lines(log)) == expected


def test_retries_of_one_call(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fragile = Fragile.options(max_restarts=-1).remote()
    with pytest.raises(ActorError):
        value_of(fragile.crash_always.options(max_task_retries=2).remote(log))
    assert len(lines(log)) == 3


def test_calls_behind_a_crash_are_sent_again_in_order(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fragile = Fragile.options(max_restarts=1, max_task_retries=1).remote()
    refs: list[Any] = [fragile.note.remote(log, "driver", number) for number in range(50)]
    crash = fragile.crash_once.remote(tmp_path / "mark")
    refs += [fragile.note.remote(log, "driver", number) for number in range(50, 100)]
    assert skate.get(refs, timeout=WITHIN_S) == list(range(100))
    assert value_of(crash) == "survived"
    assert_in_order_within_each_life(log)
    counts = times_run(log)
    assert all(1 <= counts["driver", number] <= 2 for number in range(100))
    assert all(counts["driver", number] == 1 for number in range(50, 100)), "these had not run before the crash"


def test_calls_that_are_not_retried_are_answered_once_each(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fragile = Fragile.options(max_restarts=1).remote()
    refs: list[Any] = [fragile.note.remote(log, "driver", number) for number in range(50)]
    crash = fragile.crash.remote()
    refs += [fragile.note.remote(log, "driver", number) for number in range(50, 100)]
    with pytest.raises(ActorError):
        value_of(crash)
    for number, ref in enumerate(refs):
        with contextlib.suppress(ActorError):
            assert value_of(ref) == number
            assert times_run(log)["driver", number] == 1
    assert max(times_run(log).values()) == 1
    assert_in_order_within_each_life(log)
    assert after_restart(fragile.note, log, "driver", 100) == 100


def test_arguments_of_a_retried_call_are_kept(tmp_path: Path) -> None:
    @skate.remote(max_restarts=1, max_task_retries=1)
    class Summer:
        def total(self, array: Any, box: list[Any], mark: Path) -> int:
            if not mark.exists():
                mark.touch()
                os._exit(3)
            return int(array.sum()) + skate.get(box[0])

    summer = Summer.remote()
    large, inner = skate.put(np.ones(200_000, dtype=np.int64)), skate.put(7)
    ref = summer.total.remote(large, [inner], tmp_path / "mark")
    del large, inner
    gc.collect()
    assert value_of(ref) == 200_007


def test_a_stream_is_retried_and_yields_each_item_once(tmp_path: Path) -> None:
    log = tmp_path / "log"

    @skate.remote(max_restarts=1, max_task_retries=1)
    class Source:
        def produce(self) -> Iterator[int]:
            append(log, "run")
            for number in range(6):
                if number == 3 and len(lines(log)) == 1:
                    os._exit(4)
                yield number

    source = Source.remote()
    assert [value_of(ref) for ref in source.produce.remote()] == [0, 1, 2, 3, 4, 5]
    assert len(lines(log)) == 2


@pytest.mark.parametrize("retry", [True, [OSError]], ids=["all", "listed"])
def test_exceptions_are_a_reason_to_call_again_when_told(tmp_path: Path, retry: Any) -> None:
    @skate.remote
    class Flaky:
        @skate.method(max_task_retries=3, retry_exceptions=retry)
        def flaky(self, log: Path) -> int:
            append(log, os.getpid())
            if len(lines(log)) < 3:
                raise OSError("not yet")
            return len(lines(log))

        @skate.method(max_task_retries=3)
        def plain(self, log: Path) -> None:
            append(log, os.getpid())
            raise OSError("never")

    flaky = Flaky.remote()
    assert value_of(flaky.flaky.remote(tmp_path / "flaky")) == 3
    assert len(set(lines(tmp_path / "flaky"))) == 1, "an exception does not end the actor"
    with pytest.raises(OSError, match="never"):
        value_of(flaky.plain.remote(tmp_path / "plain"))
    assert len(lines(tmp_path / "plain")) == 1


# --- Several callers --------------------------------------------------------------------------------------------------


@skate.remote(num_cpus=0)
def call_many(handle: Any, log: Path, caller: str, count: int, retries: int) -> list[Any]:
    """The number that each call gave back, or the name of its error."""
    note = handle.note.options(max_task_retries=retries)
    refs = [note.remote(log, caller, number) for number in range(count)]
    answers: list[Any] = []
    for ref in refs:
        try:
            answers.append(skate.get(ref, timeout=WITHIN_S))
        except ActorError as error:
            answers.append(type(error).__name__)
    return answers


def test_several_callers_lose_nothing_in_a_restart(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fragile = Fragile.options(max_restarts=-1, max_task_retries=-1).remote()
    callers = [call_many.remote(fragile, log, f"caller-{n}", 200, -1) for n in range(4)]
    for crash in range(3):
        wait_for(lambda crash=crash: len(runs(log)) > 100 * crash, WITHIN_S, "calls to run")
        value_of(fragile.crash_once.remote(tmp_path / f"crash-{crash}"))
    assert skate.get(callers, timeout=WITHIN_S) == [list(range(200))] * 4
    assert_in_order_within_each_life(log)


def test_several_callers_without_retries_get_one_answer_each(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fragile = Fragile.options(max_restarts=-1).remote()
    callers = [call_many.remote(fragile, log, f"caller-{n}", 200, 0) for n in range(4)]
    for crash in range(3):
        wait_for(lambda crash=crash: len(runs(log)) > 100 * crash or done(callers), WITHIN_S, "calls to run")
        with contextlib.suppress(ActorError):
            value_of(fragile.crash.remote())
    for caller, answers in enumerate(skate.get(callers, timeout=WITHIN_S)):
        assert len(answers) == 200
        for number, answer in enumerate(answers):
            ran = times_run(log)[f"caller-{caller}", number]
            assert ran <= 1
            if answer == number:
                assert ran == 1
            else:
                assert answer in ("ActorDiedError", "ActorUnavailableError")
    assert_in_order_within_each_life(log)
    assert after_restart(fragile.add) == 1


def done(refs: list[Any]) -> bool:
    return len(skate.wait(refs, num_returns=len(refs), timeout=0)[0]) == len(refs)


def test_a_burst_survives_kills_from_outside(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fragile = Fragile.options(max_restarts=-1, max_task_retries=-1).remote()
    value_of(fragile.pid.remote())
    refs = []
    for part in range(5):
        pid = value_of(fragile.pid.remote())
        refs += [fragile.note.remote(log, "driver", 100 * part + number) for number in range(100)]
        wait_for(lambda part=part: len(runs(log)) > 100 * part, WITHIN_S, "the burst to begin")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert skate.get(refs, timeout=WITHIN_S) == list(range(500))
    assert_in_order_within_each_life(log)


def test_kills_at_random_moments_leave_one_answer_for_each_call(tmp_path: Path) -> None:
    """Every call is answered once, by a value or an error; each life runs calls in the order sent; retries are kept."""
    log, rng = tmp_path / "log", random.Random(5)
    fragile = Fragile.options(max_restarts=-1).remote()
    over = threading.Event()

    def kill_now_and_then() -> None:
        while not over.wait(rng.random() / 4):
            with contextlib.suppress(ActorError, ProcessLookupError):
                os.kill(skate.get(fragile.pid.remote(), timeout=WITHIN_S), signal.SIGKILL)

    killer = threading.Thread(target=kill_now_and_then)
    killer.start()
    sent = answered = 0
    deadline = time.monotonic() + 3
    try:
        while time.monotonic() < deadline:
            retries = rng.choice([0, 1, -1])
            batch = [f"{sent}-{n}" for n in range(2)]
            callers = [call_many.remote(fragile, log, name, 50, retries) for name in batch]
            here = [fragile.note.options(max_task_retries=retries).remote(log, sent, n) for n in range(50)]
            sent += 1
            for name, answers in zip(batch, skate.get(callers, timeout=WITHIN_S)):
                assert len(answers) == 50
                answered += check_answers(log, name, answers, retries)
            own: list[Any] = []
            for ref in here:
                try:
                    own.append(value_of(ref))
                except ActorError as error:
                    own.append(type(error).__name__)
            answered += check_answers(log, str(sent - 1), own, retries)
    finally:
        over.set()
        killer.join()
    assert answered == sent * 150
    assert_in_order_within_each_life(log)
    lives = {life for life, _, _ in runs(log)}
    assert len(lives) > 1, "it was killed at least once"


def check_answers(log: Path, caller: str, answers: list[Any], retries: int) -> int:
    ran = times_run(log)
    for number, answer in enumerate(answers):
        if answer == number:
            assert ran[caller, number] >= 1
        else:
            assert answer in ("ActorDiedError", "ActorUnavailableError")
            assert retries != -1, "what may always be sent again never fails"
        if retries >= 0:
            assert ran[caller, number] <= 1 + retries
    return len(answers)


# --- Restarts that fail -----------------------------------------------------------------------------------------------


@skate.remote
class Doomed:
    """Lives once; every later life ends in its constructor."""

    def __init__(self, log: Path, how: Callable[[], None]) -> None:
        append(log, os.getpid())
        if len(lines(log)) > 1:
            how()

    def crash(self) -> None:
        print("the end of the first life", file=sys.stderr, flush=True)
        os._exit(3)

    def ping(self) -> str:
        return "pong"


def raise_value_error() -> None:
    raise ValueError("no second life")


def test_a_restart_that_keeps_crashing_uses_up_its_restarts_and_says_so(tmp_path: Path) -> None:
    log = tmp_path / "log"
    doomed = Doomed.options(max_restarts=3).remote(log, exit_with_3)
    assert value_of(doomed.ping.remote()) == "pong"
    with pytest.raises(ActorError):
        value_of(doomed.crash.remote())
    text = str(assert_died(doomed.ping.options(max_task_retries=-1).remote()))
    assert "restart" in text
    assert "code 3" in text
    assert 2 <= len(lines(log)) <= 4


def test_a_restart_that_keeps_crashing_stops_even_if_there_is_no_limit(tmp_path: Path) -> None:
    log = tmp_path / "log"
    doomed = Doomed.options(max_restarts=-1).remote(log, exit_with_3)
    assert value_of(doomed.ping.remote()) == "pong"
    with pytest.raises(ActorError):
        value_of(doomed.crash.remote())
    with pytest.raises(ActorDiedError) as caught:
        skate.get(doomed.ping.options(max_task_retries=-1).remote(), timeout=2 * WITHIN_S)
    assert "restart" in str(caught.value)
    tries = len(lines(log))
    assert tries >= 3, "it was tried more than once"
    assert_died(doomed.ping.remote())
    assert len(lines(log)) == tries, "and is not tried again"


def test_a_constructor_that_raises_in_a_restart_says_so(tmp_path: Path) -> None:
    doomed = Doomed.options(max_restarts=2).remote(tmp_path / "log", raise_value_error)
    assert value_of(doomed.ping.remote()) == "pong"
    with pytest.raises(ActorError):
        value_of(doomed.crash.remote())
    text = str(assert_died(doomed.ping.options(max_task_retries=-1).remote()))
    assert "no second life" in text
    assert "restart 1 of it has failed. Before that, its process, pid" in text
    assert "exited with code 3. In the restart its __init__ raised:" in text
    assert "the end of the first life" in text, "the last lines of its stderr"


def test_a_restart_that_succeeds_at_last_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "log"

    @skate.remote(max_restarts=5, max_task_retries=5)
    class Hesitant:
        def __init__(self) -> None:
            append(log, os.getpid())
            if len(lines(log)) in (2, 3):
                os._exit(3)

        def crash_once(self, mark: Path) -> str:
            if not mark.exists():
                mark.touch()
                os._exit(3)
            return "survived"

    hesitant = Hesitant.remote()
    assert value_of(hesitant.crash_once.remote(tmp_path / "mark")) == "survived"
    assert len(lines(log)) == 4


# --- A caller that dies -----------------------------------------------------------------------------------------------


@skate.remote(num_cpus=0)
class Caller:
    """Calls another actor, and can die while the calls wait there."""

    def __init__(self, box: list[Any]) -> None:
        self.target = box[0]
        self.refs: list[Any] = []

    def send(self, log: Path, count: int) -> None:
        self.refs += [self.target.note.remote(log, "caller", number) for number in range(count)]

    def add(self) -> int:
        return skate.get(self.target.add.remote())

    def pid(self) -> int:
        return os.getpid()

    def crash(self) -> None:
        os._exit(3)


def outlive(self: Any, pid: int, started: Path, met: Path) -> str:
    """Runs in an actor until a caller that it has met is dead, as far as its own process knows."""
    from skate._worker.current import get_runtime

    def is_known() -> bool:
        return any(peer.pid == pid for peer in get_runtime().peers.all())

    started.touch()
    wait_for(is_known, WITHIN_S, "the caller to come")
    met.touch()
    wait_for(lambda: not is_known(), WITHIN_S, "the caller to be gone")
    return "outlived"


def test_pending_calls_of_a_dead_caller_are_dropped(tmp_path: Path) -> None:
    started, met, log = tmp_path / "started", tmp_path / "met", tmp_path / "log"
    target = Fragile.remote()
    caller = Caller.remote([target])
    pid = value_of(caller.pid.remote())
    busy = target.__ray_call__.remote(outlive, pid, started, met)
    wait_for(started.exists, WITHIN_S, "the target to be busy")
    value_of(caller.send.remote(log, 20))
    wait_for(met.exists, WITHIN_S, "the calls to be on their way to a busy actor")
    assert_died(caller.crash.remote())
    assert value_of(busy) == "outlived"
    assert value_of(target.note.remote(log, "driver", 0)) == 0
    assert times_run(log) == {("driver", 0): 1}


def test_other_callers_go_on_when_one_dies(tmp_path: Path) -> None:
    target = Fragile.remote()
    dying, living = Caller.remote([target]), Caller.remote([target])
    assert value_of(dying.add.remote()) == 1
    assert value_of(living.add.remote()) == 2
    assert_died(dying.crash.remote())
    assert value_of(living.add.remote()) == 3
    assert value_of(target.add.remote()) == 4


def test_the_running_call_of_a_dead_caller_does_no_harm(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"

    @skate.remote(max_retries=0)
    def call(box: list[Any]) -> None:
        append(tmp_path / "caller", os.getpid())
        skate.get(box[0].hold.remote(started, go))

    target = Fragile.remote()
    ref = call.remote([target])
    wait_for(started.exists, WITHIN_S, "the call to run")
    (pid,) = lines(tmp_path / "caller")
    os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(skate.exceptions.WorkerCrashedError):
        value_of(ref)
    go.touch()
    assert value_of(target.add.remote()) == 1


def test_handles_of_a_dead_caller_are_released() -> None:
    target = Fragile.remote()
    target_pid = value_of(target.pid.remote())
    caller = Caller.remote([target])
    assert value_of(caller.add.remote()) == 1
    del target
    gc.collect()
    assert value_of(caller.add.remote()) == 2, "the caller's handle keeps it"
    assert_died(caller.crash.remote())
    assert_gone(target_pid)


def test_handles_of_a_dead_task_are_released(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"

    @skate.remote(max_retries=0)
    def keep(box: list[Any]) -> None:
        append(started, os.getpid())
        wait_for(go.exists, 40, "a gate that never opens")

    target = Fragile.remote()
    target_pid = value_of(target.pid.remote())
    ref = keep.remote([target])
    (pid,) = wait_for(lambda: lines(started), WITHIN_S, "the task to run")
    del target
    gc.collect()
    os.kill(int(pid), signal.SIGKILL)
    with pytest.raises(skate.exceptions.WorkerCrashedError):
        value_of(ref)
    del ref
    assert_gone(target_pid)


def test_the_actors_of_a_driver_that_is_killed_are_gone(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = f"""
import os, signal
import skate

@skate.remote
class Actor:
    def pid(self):
        return os.getpid()

skate.init(num_cpus=2)
actors = [Actor.remote(), Actor.options(max_restarts=-1).remote(), Actor.options(name="named").remote()]
found = skate.get([actor.pid.remote() for actor in actors])
open({str(pids)!r}, "w").write("\\n".join(map(str, found)))
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=40, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert len(lines(pids)) == 3
    for pid in lines(pids):
        assert_gone(pid)


def test_the_error_says_that_the_retries_of_a_call_are_used_up() -> None:
    @skate.remote(max_restarts=-1, max_task_retries=1)
    class Actor:
        def die(self) -> None:
            os._exit(1)

    with pytest.raises(ActorUnavailableError, match=r"sent 2 times, which is all that max_task_retries=1 allows"):
        skate.get(Actor.remote().die.remote(), timeout=30)
