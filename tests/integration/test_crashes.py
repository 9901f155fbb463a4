"""Workers that die under their tasks: what is run again, what is an error, and that nobody else pays for it.

How often a task ran is counted by lines that it appends to a file: a write of one short line is whole or not there.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import skate
from programs import append, lines
from skate.exceptions import NodeDiedError, WorkerCrashedError
from waiting import wait_for


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


pytestmark = pytest.mark.usefixtures("runtime")


def restart(**settings: Any) -> None:
    skate.shutdown()
    skate.init(**settings)


# --- What the error says ----------------------------------------------------------------------------------------------


@crash_kinds
def test_the_error_says_how_the_worker_ended(
    crash: Callable[[], None], exit_code: int | None, signal_number: int | None
) -> None:
    @skate.remote(max_retries=0)
    def doomed() -> None:
        print("the last words", file=sys.stderr, flush=True)
        crash()

    with pytest.raises(WorkerCrashedError) as caught:
        skate.get(doomed.remote())
    error = caught.value
    assert (error.exit_code, error.signal) == (exit_code, signal_number)
    assert "doomed" in str(error)
    assert "the last words" in str(error)
    if signal_number is not None:
        assert f"signal {signal_number}" in str(error)
        assert signal.Signals(signal_number).name in str(error)
    else:
        assert "code 3" in str(error)


def test_the_error_has_the_last_lines_and_not_all(tmp_path: Path) -> None:
    @skate.remote(max_retries=0)
    def talkative() -> None:
        for number in range(1000):
            print(f"message {number} of many", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)

    with pytest.raises(WorkerCrashedError) as caught:
        skate.get(talkative.remote())
    text = str(caught.value)
    assert "message 999 of many" in text
    assert "message 998 of many" in text
    assert "message 0 of many" not in text


def test_the_last_lines_are_those_of_native_code_too() -> None:
    @skate.remote(max_retries=0)
    def native() -> None:
        os.write(2, b"terminate called after throwing\nwithout a newline at the end")
        os.abort()

    with pytest.raises(WorkerCrashedError) as caught:
        skate.get(native.remote())
    assert "terminate called after throwing" in str(caught.value)
    assert "without a newline at the end" in str(caught.value)


def test_every_result_of_the_task_is_the_error() -> None:
    @skate.remote(num_returns=2, max_retries=0)
    def doomed() -> Any:
        os._exit(1)

    for ref in doomed.remote():
        with pytest.raises(WorkerCrashedError):
            skate.get(ref)


def test_a_task_that_needs_the_result_gets_the_error() -> None:
    @skate.remote(max_retries=0)
    def doomed() -> int:
        os._exit(5)

    @skate.remote
    def add_one(x: int) -> int:
        return x + 1

    with pytest.raises(WorkerCrashedError, match="code 5"):
        skate.get(add_one.remote(add_one.remote(doomed.remote())))


def test_the_error_reaches_a_task_that_waits_for_it() -> None:
    @skate.remote(max_retries=0)
    def doomed() -> None:
        os._exit(1)

    @skate.remote
    def parent() -> str:
        try:
            skate.get(doomed.remote())
        except WorkerCrashedError as error:
            return str(error)
        return "no error"

    assert "doomed" in skate.get(parent.remote())


# --- Retries ----------------------------------------------------------------------------------------------------------


@crash_kinds
def test_retried_three_times_by_default(
    tmp_path: Path, crash: Callable[[], None], exit_code: int | None, signal_number: int | None
) -> None:
    runs = tmp_path / "runs"

    @skate.remote
    def doomed() -> None:
        append(runs, os.getpid())
        crash()

    with pytest.raises(WorkerCrashedError) as caught:
        skate.get(doomed.remote())
    assert len(lines(runs)) == 4
    assert len(set(lines(runs))) == 4, "each in a process of its own"
    assert "retried 3 times" in str(caught.value)


def test_a_task_whose_result_its_worker_cannot_send_is_charged(tmp_path: Path) -> None:
    """The task is over when its worker dies, each time: without a charge it would be run again for ever."""
    runs = tmp_path / "runs"

    @skate.remote
    def closes_all() -> None:
        append(runs, os.getpid())
        os.closerange(3, 1000)

    with pytest.raises(WorkerCrashedError, match="retried 3 times"):
        skate.get(closes_all.remote(), timeout=20)
    assert len(lines(runs)) == 4


@pytest.mark.parametrize("max_retries", [0, 1, 5])
def test_max_retries_is_kept(tmp_path: Path, max_retries: int) -> None:
    runs = tmp_path / "runs"

    @skate.remote(max_retries=max_retries)
    def doomed() -> None:
        append(runs, "run")
        os._exit(1)

    with pytest.raises(WorkerCrashedError):
        skate.get(doomed.remote())
    assert len(lines(runs)) == 1 + max_retries


@pytest.mark.parametrize(("max_retries", "crashes"), [(3, 3), (-1, 8)])
def test_a_later_run_may_succeed(tmp_path: Path, max_retries: int, crashes: int) -> None:
    runs = tmp_path / "runs"

    @skate.remote(max_retries=max_retries)
    def fragile(x: int) -> int:
        append(runs, "run")
        if len(lines(runs)) <= crashes:
            os._exit(1)
        return x + 1

    assert skate.get(fragile.remote(1)) == 2
    assert len(lines(runs)) == crashes + 1


def test_killed_from_outside_while_it_runs(tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    @skate.remote
    def victim() -> str:
        append(runs, os.getpid())
        while len(lines(runs)) < 2:
            time.sleep(0.005)
        return "survived"

    ref = victim.remote()
    (pid,) = wait_for(lambda: lines(runs), 20, "the task to run")
    os.kill(int(pid), signal.SIGKILL)
    assert skate.get(ref) == "survived"


def test_killed_while_it_waits_for_a_child(tmp_path: Path) -> None:
    runs, go = tmp_path / "runs", tmp_path / "go"

    @skate.remote
    def child() -> int:
        while not go.exists():
            time.sleep(0.005)
        return 1

    @skate.remote
    def parent() -> int:
        append(runs, os.getpid())
        return skate.get(child.remote()) + 1

    ref = parent.remote()
    (pid,) = wait_for(lambda: lines(runs), 20, "the parent to run")
    os.kill(int(pid), signal.SIGKILL)
    wait_for(lambda: len(lines(runs)) == 2, 20, "the parent to run again")
    go.touch()
    assert skate.get(ref) == 2


def test_many_tasks_that_crash_once_all_succeed(tmp_path: Path) -> None:
    @skate.remote
    def fragile(number: int) -> int:
        mark = tmp_path / str(number)
        if not mark.exists():
            mark.touch()
            os._exit(number)
        return number

    assert skate.get([fragile.remote(number) for number in range(20)]) == list(range(20))


def test_a_stream_keeps_what_was_yielded_and_then_fails() -> None:
    @skate.remote(num_returns="streaming", max_retries=0)
    def produce() -> Iterator[int]:
        yield 1
        yield 2
        os._exit(4)

    stream = iter(produce.remote())
    assert skate.get(next(stream)) == 1
    assert skate.get(next(stream)) == 2
    with pytest.raises(WorkerCrashedError, match="code 4"):
        skate.get(next(stream))


def test_a_stream_is_retried_and_yields_each_item_once(tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    @skate.remote(num_returns="streaming")
    def produce() -> Iterator[int]:
        append(runs, "run")
        for number in range(6):
            if number == 3 and len(lines(runs)) == 1:
                os._exit(4)
            yield number

    assert [skate.get(ref) for ref in produce.remote()] == [0, 1, 2, 3, 4, 5]
    assert len(lines(runs)) == 2


def test_wait_sees_a_crash_as_ready() -> None:
    @skate.remote(max_retries=0)
    def doomed() -> None:
        os._exit(1)

    ref = doomed.remote()
    ready, rest = skate.wait([ref], timeout=20)
    assert (ready, rest) == ([ref], [])


def test_resources_are_back_after_a_crash() -> None:
    @skate.remote(max_retries=0, num_cpus=2)
    def doomed() -> None:
        os._exit(1)

    for _ in range(3):
        with pytest.raises(WorkerCrashedError):
            skate.get(doomed.remote())
    wait_for(lambda: skate.available_resources().get("CPU") == 2, 10, "both CPUs to be free")


# --- Neighbours -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cpus", [1, 2])
@pytest.mark.parametrize("crash", [exit_with_3, kill_9])
def test_tasks_around_a_crash_run_exactly_once(tmp_path: Path, cpus: int, crash: Callable[[], None]) -> None:
    """Before and behind the one that crashes are tasks that may not be retried: none is lost, none is run twice."""
    restart(num_cpus=cpus)
    runs = tmp_path / "runs"

    @skate.remote(max_retries=0)
    def task(number: int, crashes: bool) -> int:
        append(runs, number)
        if crashes:
            crash()
        return number

    doomed = {50, 150, 151, 250}
    refs = [task.remote(number, number in doomed) for number in range(300)]
    for number, ref in enumerate(refs):
        if number in doomed:
            with pytest.raises(WorkerCrashedError):
                skate.get(ref)
        else:
            assert skate.get(ref) == number
    counts = collections.Counter(lines(runs))
    assert counts == {str(number): 1 for number in range(300)}


def test_tasks_behind_a_long_task_that_crashes_are_not_charged(tmp_path: Path) -> None:
    """The one in front crashes only when the others have been submitted, so they do wait behind it."""
    restart(num_cpus=1)
    runs, go = tmp_path / "runs", tmp_path / "go"

    @skate.remote(max_retries=0)
    def task(number: int) -> int:
        append(runs, number)
        if number == 0:
            while not go.exists():
                time.sleep(0.005)
            os._exit(1)
        return number

    # Short tasks first: the runtime learns that many may be sent ahead.
    assert skate.get([task.remote(number) for number in range(1000, 1200)]) == list(range(1000, 1200))
    refs = [task.remote(number) for number in range(200)]
    wait_for(lambda: "0" in lines(runs), 20, "the first task to run")
    go.touch()
    with pytest.raises(WorkerCrashedError):
        skate.get(refs[0])
    assert skate.get(refs[1:]) == list(range(1, 200))
    counts = collections.Counter(lines(runs))
    assert set(counts.values()) == {1}
    assert len(counts) == 400


def test_a_crash_does_not_charge_those_behind_it_however_often_it_happens(tmp_path: Path) -> None:
    """One task crashes four times; others with a single retry wait behind it all the while and still succeed."""
    restart(num_cpus=1)

    @skate.remote
    def doomed() -> None:
        os._exit(1)

    @skate.remote(max_retries=1)
    def neighbour(number: int) -> int:
        return number

    crashing = [doomed.remote() for _ in range(2)]
    refs = [neighbour.remote(number) for number in range(100)]
    assert skate.get(refs) == list(range(100))
    for ref in crashing:
        with pytest.raises(WorkerCrashedError):
            skate.get(ref)


def test_an_idle_worker_that_is_killed_costs_nobody_anything() -> None:
    @skate.remote(max_retries=0)
    def pid(_: int) -> int:
        return os.getpid()

    for _ in range(5):
        for worker in set(skate.get([pid.remote(number) for number in range(20)])):
            os.kill(worker, signal.SIGKILL)
            wait_for(lambda worker=worker: not alive(worker), 10, "the worker to be gone")


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_results_of_quick_tasks_before_a_crash_are_not_lost(tmp_path: Path) -> None:
    """A result that the worker had when it died has left it: a task that ended is not run again, and not an error."""
    restart(num_cpus=1)
    runs = tmp_path / "runs"

    @skate.remote(max_retries=0)
    def quick(number: int) -> int:
        append(runs, number)
        return number

    @skate.remote(max_retries=0)
    def doomed() -> None:
        os._exit(1)

    for start in range(0, 500, 50):
        refs = [quick.remote(number) for number in range(start, start + 50)]
        last = doomed.remote()
        assert skate.get(refs) == list(range(start, start + 50))
        with pytest.raises(WorkerCrashedError):
            skate.get(last)
    assert collections.Counter(lines(runs)) == {str(number): 1 for number in range(500)}


def test_children_of_a_crashed_task_do_not_keep_cpus(tmp_path: Path) -> None:
    started = tmp_path / "started"

    @skate.remote
    def forever() -> None:
        append(started, os.getpid())
        while True:
            time.sleep(0.01)

    @skate.remote(max_retries=0)
    def parent() -> None:
        refs = [forever.remote()]
        while not started.exists():
            time.sleep(0.005)
        assert refs
        os._exit(1)

    with pytest.raises(WorkerCrashedError):
        skate.get(parent.remote())
    wait_for(lambda: skate.available_resources().get("CPU") == 2, 20, "the orphan to be ended and its CPU to be free")


# --- The other processes ----------------------------------------------------------------------------------------------


def daemon_process() -> psutil.Process:
    (daemon,) = psutil.Process().children()
    return daemon


def worker_pids() -> set[int]:
    @skate.remote
    def pid(_: int) -> int:
        return os.getpid()

    return set(skate.get([pid.remote(number) for number in range(20)]))


@pytest.mark.usefixtures("fresh_runtime")
def test_kill_9_of_what_starts_workers(tmp_path: Path) -> None:
    """Between the node daemon and its workers is the process that forks them. Work goes on without the first one."""
    workers = worker_pids()
    between = [process for process in daemon_process().children(recursive=True) if process.pid not in workers]
    assert between, "some process started the workers"
    for process in between:
        process.kill()

    @skate.remote
    def add_one(x: int) -> int:
        return x + 1

    assert skate.get([add_one.remote(number) for number in range(100)], timeout=40) == list(range(1, 101))
    for pid in worker_pids():
        with contextlib.suppress(ProcessLookupError):  # one of the first workers, on its way out
            os.kill(pid, signal.SIGKILL)
    assert skate.get([add_one.remote(number) for number in range(100)], timeout=40) == list(range(1, 101))


@pytest.mark.usefixtures("fresh_runtime")
def test_kill_9_of_the_daemon_ends_a_get_with_a_clear_error(tmp_path: Path) -> None:
    running = tmp_path / "running"

    @skate.remote
    def forever() -> None:
        running.touch()
        while True:
            time.sleep(0.01)

    daemon = daemon_process()
    ref = forever.remote()

    def kill_when_it_runs() -> None:
        wait_for(running.exists, 20, "the task to run")
        daemon.kill()

    thread = threading.Thread(target=kill_when_it_runs)
    thread.start()
    with pytest.raises(NodeDiedError) as caught:
        skate.get(ref)
    thread.join()
    text = str(caught.value)
    assert "node daemon" in text
    assert "skate.init()" in text, "it says what to do"
    assert "SIGKILL" in text, "it says how the daemon ended"


@pytest.mark.usefixtures("fresh_runtime")
def test_every_later_call_says_that_the_daemon_is_dead() -> None:
    import numpy as np

    @skate.remote
    def add_one(x: int) -> int:
        return x + 1

    small, large = skate.put(1), skate.put(np.zeros(1_000_000))
    finished = add_one.remote(1)
    assert skate.get(finished) == 2
    daemon = daemon_process()
    daemon.kill()
    with pytest.raises(NodeDiedError):
        while True:
            skate.get(add_one.remote(2), timeout=20)
    calls: dict[str, Callable[[], Any]] = {
        "get of a new task": lambda: skate.get(add_one.remote(2), timeout=20),
        "put": lambda: skate.put(1),
        "put of an object": lambda: skate.put([1, "two"]),
        "put of a large object": lambda: skate.put(np.zeros(1_000_000)),
        "wait": lambda: skate.wait([finished], timeout=20),
        "wait without waiting": lambda: skate.wait([small, large], timeout=0),
        "get of a large object": lambda: skate.get(large, timeout=20),
        "cluster_resources": skate.cluster_resources,
        "nodes": skate.nodes,
        "wait and get": lambda: skate.get(skate.wait([add_one.remote(3)], timeout=20)[0][0], timeout=20),
    }
    for name, call in calls.items():
        try:
            call()
        except NodeDiedError:
            continue
        except BaseException as error:
            pytest.fail(f"{name}: {error!r}")
        pytest.fail(f"{name}: no error")
    assert skate.get(small) == 1, "what this process holds itself is still there"


@pytest.mark.usefixtures("fresh_runtime")
def test_a_wait_during_which_the_daemon_dies_raises(tmp_path: Path) -> None:
    running = tmp_path / "running"

    @skate.remote
    def forever() -> None:
        running.touch()
        while True:
            time.sleep(0.01)

    daemon = daemon_process()
    refs = [forever.remote(), skate.put(1)]

    def kill_when_it_runs() -> None:
        wait_for(running.exists, 20, "the task to run")
        daemon.kill()

    thread = threading.Thread(target=kill_when_it_runs)
    thread.start()
    with pytest.raises(NodeDiedError, match="SIGKILL"):
        skate.wait(refs, num_returns=2)
    thread.join()


def test_shutdown_and_init_work_after_the_daemon_died() -> None:
    @skate.remote
    def add_one(x: int) -> int:
        return x + 1

    for _ in range(3):
        assert skate.get(add_one.remote(1)) == 2
        daemon_process().kill()
        # A worker that is leased already may answer before it dies, too.
        with pytest.raises(NodeDiedError):
            while True:
                skate.get(add_one.remote(1), timeout=20)
        restart(num_cpus=2)
    assert skate.get(add_one.remote(1)) == 2


@pytest.mark.usefixtures("fresh_runtime")
def test_workers_die_with_the_daemon() -> None:
    pids = worker_pids()
    daemon_process().kill()
    wait_for(lambda: not any(alive(pid) for pid in pids), 10, "the workers to be gone")


def test_values_that_a_crashed_task_had_stored_are_freed() -> None:
    def used() -> float:
        return skate.cluster_resources()["object_store_memory"] - skate.available_resources()["object_store_memory"]

    class Deadly:
        def __reduce__(self) -> Any:
            os._exit(1)

    @skate.remote(max_retries=1, num_returns=2)
    def two() -> Any:
        return b"x" * 10_000_000, Deadly()

    @skate.remote(max_retries=0, num_returns="dynamic")
    def several() -> Iterator[Any]:
        for _ in range(3):
            yield b"x" * 10_000_000
        os._exit(1)

    before = used()
    for ref in (two.remote()[0], several.remote()):
        with pytest.raises(WorkerCrashedError):
            skate.get(ref, timeout=20)
    del ref
    wait_for(lambda: used() <= before, 20, "the memory to be free again")


def test_a_task_that_has_ended_is_run_again_once_however_often_its_neighbours_crash(tmp_path: Path) -> None:
    """Results of quick tasks wait for a moment to be sent together, and are lost with the worker."""

    @skate.remote(max_retries=-1)
    def step(number: int) -> int:
        append(tmp_path / "runs", str(number))
        if number % 10 == 5 and lines(tmp_path / "runs").count(str(number)) < 5:
            os._exit(1)
        return number

    assert skate.get([step.remote(number) for number in range(50)], timeout=60) == list(range(50))
    runs = collections.Counter(lines(tmp_path / "runs"))
    assert max(runs[str(number)] for number in range(50) if number % 10 != 5) <= 2
