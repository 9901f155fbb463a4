"""Cancel: what waits is gone at once, what runs is interrupted, `force` kills, and children go with their parents."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skate
from programs import append, lines
from skate._worker import current
from skate.exceptions import TaskCancelledError
from waiting import wait_for

WITHIN_S = 20.0


pytestmark = pytest.mark.usefixtures("runtime")


def assert_cancelled(ref: Any) -> TaskCancelledError:
    with pytest.raises(TaskCancelledError) as caught:
        skate.get(ref, timeout=WITHIN_S)
    return caught.value


def assert_all_cpus_free() -> None:
    wait_for(lambda: skate.available_resources().get("CPU") == 2, WITHIN_S, "both CPUs to be free")


def assert_works() -> None:
    @skate.remote
    def add_one(x: int) -> int:
        return x + 1

    assert skate.get([add_one.remote(number) for number in range(50)], timeout=WITHIN_S) == list(range(1, 51))


# --- Queued -----------------------------------------------------------------------------------------------------------


def test_a_queued_task_is_gone_at_once_and_never_runs(tmp_path: Path) -> None:
    ran, go, started = tmp_path / "ran", tmp_path / "go", tmp_path / "started"

    @skate.remote(num_cpus=2)
    def blocker() -> str:
        started.touch()
        while not go.exists():
            time.sleep(0.005)
        return "done"

    @skate.remote
    def queued() -> None:
        ran.touch()

    first = blocker.remote()
    wait_for(started.exists, WITHIN_S, "the blocker to run")
    refs = [queued.remote() for _ in range(100)]
    for ref in refs:
        skate.cancel(ref)
    for ref in refs:
        error = assert_cancelled(ref)
        assert "queued" in str(error)
    assert not go.exists(), "none of them had to wait for the blocker"
    go.touch()
    assert skate.get(first) == "done"
    assert_works()
    assert not ran.exists()


def test_a_task_that_waits_behind_another_in_the_same_worker(tmp_path: Path) -> None:
    """Quick tasks are sent ahead of time; those that were sent but not started are gone at once too."""
    ran, go, started = tmp_path / "ran", tmp_path / "go", tmp_path / "started"

    @skate.remote(num_cpus=2)
    def task(blocks: bool, mark: bool) -> None:
        if mark:
            ran.touch()
        if blocks:
            started.touch()
            while not go.exists():
                time.sleep(0.005)

    skate.get([task.remote(False, False) for _ in range(500)])
    blocking = task.remote(True, False)
    refs = [task.remote(False, True) for _ in range(50)]
    wait_for(started.exists, WITHIN_S, "the blocker to run")
    for ref in refs:
        skate.cancel(ref)
    for ref in refs:
        assert_cancelled(ref)
    go.touch()
    skate.get(blocking)
    assert_works()
    assert not ran.exists()


def test_a_task_that_waits_for_its_arguments(tmp_path: Path) -> None:
    go = tmp_path / "go"

    @skate.remote
    def argument() -> int:
        while not go.exists():
            time.sleep(0.005)
        return 1

    @skate.remote
    def consumer(x: int) -> int:
        return x + 1

    first = argument.remote()
    second, third = consumer.remote(first), consumer.remote(first)
    skate.cancel(second)
    assert_cancelled(second)
    go.touch()
    assert skate.get([first, third]) == [1, 2], "neither its argument nor its sibling was cancelled"


def test_a_task_whose_argument_was_cancelled_is_cancelled(tmp_path: Path) -> None:
    @skate.remote
    def argument() -> int:
        while True:
            time.sleep(0.005)

    @skate.remote
    def consumer(x: int) -> int:
        return x + 1

    first = argument.remote()
    second = consumer.remote(consumer.remote(first))
    skate.cancel(first)
    assert_cancelled(first)
    assert_cancelled(second)


def test_ten_thousand_queued_tasks() -> None:
    @skate.remote
    def forever() -> None:
        while True:
            time.sleep(0.005)

    @skate.remote
    def quick(x: int) -> int:
        return x

    blockers = [forever.remote() for _ in range(2)]
    refs = [quick.remote(number) for number in range(10_000)]
    for ref in refs:
        skate.cancel(ref)
    for ref in refs:
        with pytest.raises(TaskCancelledError):
            skate.get(ref)
    for ref in blockers:
        skate.cancel(ref)
        assert_cancelled(ref)
    assert_all_cpus_free()
    assert_works()


# --- Running ----------------------------------------------------------------------------------------------------------


def in_sleep() -> None:
    time.sleep(1000)


def in_short_sleeps() -> None:
    while True:
        time.sleep(0.001)


def in_a_loop() -> None:
    while True:
        pass


def in_get() -> None:
    @skate.remote
    def forever() -> None:
        while True:
            time.sleep(0.01)

    skate.get(forever.remote())


def in_wait() -> None:
    @skate.remote
    def forever() -> None:
        while True:
            time.sleep(0.01)

    skate.wait([forever.remote()])


def in_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def in_an_event() -> None:
    threading.Event().wait()


def in_a_subprocess() -> None:
    subprocess.run(["sleep", "1000"], check=True)


def in_a_pipe() -> None:
    reading, _ = os.pipe()
    os.read(reading, 1)


def in_a_try() -> None:
    """`except Exception` is everywhere in users' programs, and must not swallow it."""
    while True:
        try:
            time.sleep(1000)
        except Exception:
            pass


def submitting() -> None:
    @skate.remote
    def nothing() -> None:
        pass

    while True:
        skate.get([nothing.remote() for _ in range(10)])


def putting() -> None:
    while True:
        skate.get(skate.put(np.zeros(100_000)))


RUNNING = [
    in_sleep, in_short_sleeps, in_a_loop, in_get, in_wait, in_a_lock, in_an_event, in_a_subprocess, in_a_pipe, in_a_try,
    submitting, putting,
]  # fmt: skip


@pytest.mark.parametrize("body", RUNNING)
def test_a_running_task_is_interrupted(body: Callable[[], None], tmp_path: Path) -> None:
    started, tidied = tmp_path / "started", tmp_path / "tidied"

    @skate.remote(retry_exceptions=True)
    def run() -> None:
        try:
            append(started, os.getpid())
            body()
        finally:
            tidied.touch()

    ref = run.remote()
    wait_for(lambda: lines(started), WITHIN_S, "the task to run")
    skate.cancel(ref)
    error = assert_cancelled(ref)
    assert "run" in str(error)
    wait_for(tidied.exists, WITHIN_S, "the task to leave its try block")
    assert_all_cpus_free()
    assert_works()
    assert len(lines(started)) == 1, "what was cancelled is not retried"


def test_a_task_is_interrupted_before_the_children_that_it_waits_for(tmp_path: Path) -> None:
    started, seen = tmp_path / "started", tmp_path / "seen"

    @skate.remote
    def run() -> None:
        child = forever.remote()
        # A moment in which signals do not reach the task, as in a long call of a C library.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
        append(started, os.getpid())
        finished, _ = skate.wait([child], timeout=0.2)
        append(seen, len(finished))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
        time.sleep(1000)

    @skate.remote
    def forever() -> None:
        while True:
            time.sleep(0.01)

    ref = run.remote()
    wait_for(started.exists, WITHIN_S, "the task to run")
    skate.cancel(ref)
    assert_cancelled(ref)
    assert seen.read_text().split() == ["0"]
    assert_all_cpus_free()


def test_the_worker_is_used_again_and_no_late_interrupt_hits_the_next_task(tmp_path: Path) -> None:
    skate.shutdown()
    skate.init(num_cpus=1)

    @skate.remote(max_retries=0)
    def sleep(mark: str) -> int:
        Path(mark).touch()
        time.sleep(1000)
        return 0

    @skate.remote(max_retries=0)
    def pid() -> int:
        total = 0
        for number in range(10_000):
            total += number
        return os.getpid() if total == 49_995_000 else 0

    before = skate.get(pid.remote())
    for number in range(20):
        mark = tmp_path / str(number)
        ref = sleep.remote(str(mark))
        followers = [pid.remote() for _ in range(5)]
        wait_for(mark.exists, WITHIN_S, "the task to run")
        skate.cancel(ref)
        assert_cancelled(ref)
        assert set(skate.get(followers, timeout=WITHIN_S)) == {before}


def test_the_task_can_see_that_it_is_cancelled_and_tidy_up(tmp_path: Path) -> None:
    started, seen = tmp_path / "started", tmp_path / "seen"

    @skate.remote
    def careful() -> None:
        started.touch()
        try:
            time.sleep(1000)
        except KeyboardInterrupt as error:
            append(seen, type(error).__name__)
            raise

    ref = careful.remote()
    wait_for(started.exists, WITHIN_S, "the task to run")
    skate.cancel(ref)
    assert_cancelled(ref)
    assert lines(seen) == ["TaskInterrupt"]


def test_cancel_from_a_thread_while_get_waits(tmp_path: Path) -> None:
    started = tmp_path / "started"

    @skate.remote
    def forever() -> None:
        started.touch()
        while True:
            time.sleep(0.01)

    ref = forever.remote()

    def cancel_when_it_runs() -> None:
        wait_for(started.exists, WITHIN_S, "the task to run")
        skate.cancel(ref)

    thread = threading.Thread(target=cancel_when_it_runs)
    thread.start()
    assert_cancelled(ref)
    thread.join()


def test_a_stream_is_stopped(tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"

    @skate.remote(num_returns="streaming")
    def produce() -> Iterator[int]:
        try:
            number = 0
            while True:
                yield number
                number += 1
        finally:
            stopped.touch()

    stream = produce.remote()
    assert skate.get(next(stream)) == 0
    skate.cancel(stream)
    with pytest.raises(TaskCancelledError):
        for ref in stream:
            skate.get(ref)
    wait_for(stopped.exists, WITHIN_S, "the producer to stop")
    assert_all_cpus_free()


# --- force ------------------------------------------------------------------------------------------------------------


def test_force_ends_a_task_that_does_not_listen(tmp_path: Path) -> None:
    started = tmp_path / "started"

    @skate.remote
    def stubborn() -> None:
        append(started, os.getpid())
        while True:
            try:
                while True:
                    time.sleep(0.001)
            except BaseException:
                pass

    ref = stubborn.remote()
    (pid,) = wait_for(lambda: lines(started), WITHIN_S, "the task to run")
    skate.cancel(ref)
    skate.cancel(ref, force=True)
    assert_cancelled(ref)
    wait_for(lambda: not Path("/proc", pid).exists(), WITHIN_S, "the worker to be gone")
    assert_all_cpus_free()
    assert_works()
    assert len(lines(started)) == 1, "what was cancelled is not retried"


def test_force_ends_native_code(tmp_path: Path) -> None:
    """A call that holds the interpreter's lock and never returns: no exception can be raised in it."""
    started = tmp_path / "started"

    @skate.remote
    def native() -> None:
        import ctypes

        started.touch()
        ctypes.PyDLL(None).pause()

    ref = native.remote()
    wait_for(started.exists, WITHIN_S, "the task to run")
    skate.cancel(ref, force=True)
    assert_cancelled(ref)
    assert_all_cpus_free()
    assert_works()


def test_force_on_a_queued_task_kills_nobody(tmp_path: Path) -> None:
    go, started = tmp_path / "go", tmp_path / "started"

    @skate.remote(num_cpus=2, max_retries=0)
    def task(number: int) -> int:
        if number == 0:
            started.touch()
            while not go.exists():
                time.sleep(0.005)
        return number

    refs = [task.remote(number) for number in range(20)]
    wait_for(started.exists, WITHIN_S, "the first task to run")
    skate.cancel(refs[10], force=True)
    assert_cancelled(refs[10])
    go.touch()
    del refs[10]
    assert skate.get(refs, timeout=WITHIN_S) == [number for number in range(20) if number != 10]


def test_force_does_not_charge_the_tasks_behind(tmp_path: Path) -> None:
    skate.shutdown()
    skate.init(num_cpus=1)
    runs, started = tmp_path / "runs", tmp_path / "started"

    @skate.remote(max_retries=0)
    def task(number: int) -> int:
        append(runs, number)
        if number == 0:
            started.touch()
            while True:
                time.sleep(0.005)
        return number

    refs = [task.remote(number) for number in range(50)]
    wait_for(started.exists, WITHIN_S, "the first task to run")
    skate.cancel(refs[0], force=True)
    assert_cancelled(refs[0])
    assert skate.get(refs[1:], timeout=WITHIN_S) == list(range(1, 50))
    assert sorted(map(int, lines(runs))) == list(range(50))


# --- Children ---------------------------------------------------------------------------------------------------------


def family(folder: Path) -> Any:
    """A running parent, its running child and its running grandchild; each says when it runs and how it ended."""

    @skate.remote(num_cpus=0)
    def member(generation: int) -> None:
        try:
            child = member.remote(generation + 1) if generation < 2 else None
            append(folder / "running", generation)
            while not (folder / "go").exists():
                time.sleep(0.005)
            if child is not None:
                skate.get(child)
            append(folder / "finished", generation)
        except KeyboardInterrupt:
            append(folder / "cancelled", generation)
            raise

    ref = member.remote(0)
    wait_for(lambda: len(lines(folder / "running")) == 3, WITHIN_S, "three generations to run")
    return ref


def test_children_are_cancelled_with_their_parent(tmp_path: Path) -> None:
    ref = family(tmp_path)
    skate.cancel(ref)
    assert_cancelled(ref)
    wait_for(lambda: sorted(lines(tmp_path / "cancelled")) == ["0", "1", "2"], WITHIN_S, "all three to be cancelled")


def test_children_are_spared_when_asked(tmp_path: Path) -> None:
    ref = family(tmp_path)
    skate.cancel(ref, recursive=False)
    assert_cancelled(ref)
    assert lines(tmp_path / "cancelled") == ["0"]
    (tmp_path / "go").touch()
    wait_for(lambda: sorted(lines(tmp_path / "finished")) == ["1", "2"], WITHIN_S, "child and grandchild to finish")
    assert lines(tmp_path / "cancelled") == ["0"]


def test_children_of_a_parent_that_waits_for_them(tmp_path: Path) -> None:
    running, cancelled = tmp_path / "running", tmp_path / "cancelled"

    @skate.remote
    def child() -> None:
        append(running, "child")
        try:
            while True:
                time.sleep(0.005)
        finally:
            append(cancelled, "child")

    @skate.remote
    def parent() -> None:
        skate.get([child.remote() for _ in range(3)])

    ref = parent.remote()
    wait_for(lambda: len(lines(running)) >= 2, WITHIN_S, "children to run")
    skate.cancel(ref)
    assert_cancelled(ref)
    assert_all_cpus_free()
    wait_for(lambda: len(lines(cancelled)) == len(lines(running)), WITHIN_S, "the running children to be cancelled")
    assert_works()


def test_force_takes_the_children_too(tmp_path: Path) -> None:
    running = tmp_path / "running"

    @skate.remote
    def child() -> None:
        append(running, os.getpid())
        while True:
            try:
                time.sleep(0.005)
            except BaseException:
                pass

    @skate.remote
    def parent() -> None:
        append(running, os.getpid())
        skate.get(child.remote())

    ref = parent.remote()
    wait_for(lambda: len(lines(running)) == 2, WITHIN_S, "parent and child to run")
    skate.cancel(ref, force=True)
    assert_cancelled(ref)
    for pid in lines(running):
        wait_for(lambda pid=pid: not Path("/proc", pid).exists(), WITHIN_S, "their workers to be gone")
    assert_all_cpus_free()
    assert_works()


# --- Harmless ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
def test_cancel_of_a_finished_task_is_harmless(force: bool) -> None:
    @skate.remote(max_retries=0)
    def pid() -> int:
        return os.getpid()

    ref = pid.remote()
    before = skate.get(ref)
    for _ in range(3):
        skate.cancel(ref, force=force)
    assert skate.get(ref) == before
    assert_works()


def test_cancel_of_a_failed_task_leaves_its_error() -> None:
    @skate.remote
    def fail() -> None:
        raise ValueError("mine")

    ref = fail.remote()
    skate.wait([ref])
    skate.cancel(ref)
    with pytest.raises(ValueError, match="mine"):
        skate.get(ref)


def test_cancel_of_a_put_object_leaves_it() -> None:
    ref = skate.put(5)
    with contextlib.suppress(TypeError, ValueError):
        skate.cancel(ref)
    assert skate.get(ref) == 5


def test_cancel_twice_is_harmless(tmp_path: Path) -> None:
    started = tmp_path / "started"

    @skate.remote
    def forever() -> None:
        started.touch()
        time.sleep(1000)

    ref = forever.remote()
    wait_for(started.exists, WITHIN_S, "the task to run")
    for _ in range(5):
        skate.cancel(ref)
    assert_cancelled(ref)
    skate.cancel(ref)
    assert_cancelled(ref)
    assert_works()


# --- By others than the one who submitted it --------------------------------------------------------------------------


@pytest.mark.parametrize("running", [True, False])
def test_a_borrower_may_cancel(tmp_path: Path, running: bool) -> None:
    started = tmp_path / "started"

    @skate.remote(resources={} if running else {"gate": 1})
    def forever() -> None:
        started.touch()
        while True:
            time.sleep(0.005)

    @skate.remote
    def cancel(refs: list[Any]) -> None:
        skate.cancel(refs[0])

    skate.shutdown()
    skate.init(num_cpus=2, resources={"gate": 1})
    gatekeeper = forever.options(resources={"gate": 1}, num_cpus=0).remote()
    wait_for(started.exists, WITHIN_S, "the first task to run")
    started.unlink()
    ref = forever.remote()
    if running:
        wait_for(started.exists, WITHIN_S, "the task to run")
    skate.get(cancel.remote([ref]), timeout=WITHIN_S)
    assert_cancelled(ref)
    assert skate.wait([gatekeeper], timeout=0) == ([], [gatekeeper]), "the other one still runs"


# --- At any moment ----------------------------------------------------------------------------------------------------


def test_cancel_at_any_moment_leaves_a_value_or_a_cancelled_error() -> None:
    rng = random.Random(3)

    @skate.remote(max_retries=0)
    def work(number: int) -> int:
        total = 0
        for step in range(2_000):
            total += step
        return number if total == 1_999_000 else -1

    for round_number in range(30):
        refs = [work.remote(number) for number in range(20)]
        chosen = rng.sample(range(20), 7)
        for index in chosen:
            # A moment that differs each time, so that all of a task's life is hit.
            deadline = time.monotonic() + rng.random() / 2000
            while time.monotonic() < deadline:
                pass
            skate.cancel(refs[index])
        for number, ref in enumerate(refs):
            try:
                assert skate.get(ref, timeout=WITHIN_S) == number
            except TaskCancelledError:
                assert number in chosen, f"round {round_number}: task {number} was not cancelled"
    assert_all_cpus_free()


def test_arguments_of_cancelled_tasks_are_freed() -> None:
    @skate.remote
    def forever(array: Any) -> None:
        while True:
            time.sleep(0.005)

    def held() -> float:
        name = "object_store_memory"
        return skate.cluster_resources()[name] - skate.available_resources()[name]

    before = held()
    refs = [forever.remote(np.zeros(2_000_000)) for _ in range(5)]
    for ref in refs:
        skate.cancel(ref)
    for ref in refs:
        assert_cancelled(ref)
    gc.collect()
    wait_for(lambda: held() - before < 16_000_000, WITHIN_S, "the arguments to be freed")


def test_a_task_cancelled_in_the_moment_of_its_start_does_not_run_on() -> None:
    @skate.remote
    def forever() -> None:
        while True:
            time.sleep(0.01)

    # The worker is awake each time, so many of these hit the moment in which it takes the task up.
    for _ in range(300):
        ref = forever.remote()
        skate.cancel(ref)
        assert_cancelled(ref)
    assert_all_cpus_free()


def test_a_cancelled_task_can_tell(tmp_path: Path) -> None:
    started, seen = tmp_path / "started", tmp_path / "seen"

    @skate.remote
    def run() -> None:
        try:
            append(started, skate.get_runtime_context().is_canceled())
            time.sleep(1000)
        finally:
            append(seen, skate.get_runtime_context().is_canceled())

    ref = run.remote()
    wait_for(lambda: lines(started), WITHIN_S, "the task to run")
    skate.cancel(ref)
    assert_cancelled(ref)
    wait_for(lambda: lines(seen), WITHIN_S, "the task to end")
    assert (lines(started), lines(seen)) == (["False"], ["True"])


@pytest.mark.parametrize("options", [{"recursive": 1}, {"recursive": None}, {"force": 0}], ids=str)
def test_cancel_says_what_it_may_be_given(options: dict[str, Any], tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @skate.remote
    def wait_at_gate() -> str:
        wait_for(gate.exists, WITHIN_S, "the gate")
        return "passed"

    ref = wait_at_gate.remote()
    with pytest.raises(TypeError, match=f"cancel\\({next(iter(options))}="):
        skate.cancel(ref, **options)
    gate.touch()
    assert skate.get(ref, timeout=WITHIN_S) == "passed"


def test_a_task_that_comes_back_while_it_is_cancelled_does_not_run(tmp_path: Path) -> None:
    """Its worker gives it back unbegun, because the one before it waits; the two messages cross."""

    @skate.remote
    def child() -> bool:
        return wait_for((tmp_path / "open").exists, WITHIN_S, "the end")

    @skate.remote(num_cpus=2)  # so that there is one worker for it
    def step(what: str) -> Any:
        if what == "wait":
            (tmp_path / "waits").touch()
            return skate.get(child.remote())
        if what == "mark":
            (tmp_path / "marked").touch()
        return True

    runtime = current.get_runtime()
    skate.get([step.remote("nothing") for _ in range(100)])  # so short that several are sent to a worker at a time
    with runtime.lock:  # nothing that comes is looked at
        first, second = step.remote("wait"), step.remote("mark")
        runtime.submitter.push(step._call.cls)  # as the next result would do
        lease = next(lease for lease in runtime.submitter._leases.values() if second._id in lease.inflight)
        assert first._id in lease.inflight
        wait_for((tmp_path / "waits").exists, WITHIN_S, "the first task to wait")
        assert lease.peer.channel is not None
        assert select.select([lease.peer.channel.sock], [], [], WITHIN_S)[0], "the second task comes back"
        skate.cancel(second)
    (tmp_path / "open").touch()
    with pytest.raises(TaskCancelledError):
        skate.get(second, timeout=WITHIN_S)
    assert skate.get(first, timeout=WITHIN_S)
    assert not (tmp_path / "marked").exists()


def test_a_task_that_submits_all_the_time_can_be_cancelled() -> None:
    """Whenever the signal comes, it is most likely inside of a submit, where no interrupt may be raised."""
    nothing = skate.remote(lambda: None)

    @skate.remote
    def endless() -> None:
        refs = []
        while True:
            refs.append(nothing.remote())
            if len(refs) > 1000:
                skate.get(refs)
                refs.clear()

    for _ in range(5):
        tasks = [endless.remote() for _ in range(2)]
        skate.wait([nothing.remote()], timeout=0.1)
        for task in tasks:
            skate.cancel(task)
        for task in tasks:
            with pytest.raises(TaskCancelledError):
                skate.get(task, timeout=WITHIN_S)


def test_a_signal_that_comes_to_nothing_is_sent_again(tmp_path: Path) -> None:
    """As one does that comes in the moment before the main thread blocks in the kernel; here the task takes it away."""

    @skate.remote
    def deaf_at_first() -> None:
        from skate._worker import interrupt

        interrupt.pending = True  # as a cancellation leaves it that was put off until its task had ended
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
        (tmp_path / "runs").touch()
        signal.sigwait({signal.SIGUSR2})
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        time.sleep(600)

    ref = deaf_at_first.remote()
    wait_for((tmp_path / "runs").exists, WITHIN_S, "the task to run")
    skate.cancel(ref)
    assert_cancelled(ref)


def test_a_worker_is_not_used_again_after_an_import_was_interrupted(tmp_path: Path) -> None:
    """Python forgets the package and not its modules: whoever imports it next finds it without their names."""
    package = tmp_path / "halfway"
    package.mkdir()
    (package / "__init__.py").write_text("from .first import *\nfrom .second import *\n__all__ = first.__all__\n")
    (package / "first.py").write_text("__all__ = ['number']\nnumber = 1\n")
    (package / "second.py").write_text(
        f"import pathlib, time\n__all__ = []\nhere = pathlib.Path({str(tmp_path)!r})\n(here / 'imports').touch()\n"
        "while not (here / 'done').exists():\n    time.sleep(0.01)\n"
    )

    @skate.remote
    def use() -> int:
        sys.path.insert(0, str(tmp_path))
        import halfway  # type: ignore[import-not-found]

        return int(halfway.number)

    ref = use.remote()
    wait_for((tmp_path / "imports").exists, WITHIN_S, "the import to begin")
    skate.cancel(ref)
    assert_cancelled(ref)
    (tmp_path / "done").touch()
    assert skate.get([use.remote() for _ in range(10)], timeout=WITHIN_S) == [1] * 10


class SlowToSend:
    """Holds a megabyte, and says when it is being pickled."""

    def __init__(self, begun: Path, go_on: Path) -> None:
        self.paths = begun, go_on

    def __reduce__(self) -> Any:
        begun, go_on = self.paths
        begun.touch()
        while not go_on.exists():
            time.sleep(0.01)
        return bytes, (b"x" * 1_000_000,)


def store_bytes_used() -> float:
    return skate.cluster_resources()["object_store_memory"] - skate.available_resources()["object_store_memory"]


@pytest.mark.parametrize("when", ["while it is stored", "between two of them", "in a generator"])
def test_values_that_a_cancelled_task_had_stored_are_freed(tmp_path: Path, when: str) -> None:
    before = store_bytes_used()
    begun, go_on = tmp_path / "begun", tmp_path / "go on"

    @skate.remote
    def one() -> Any:
        return SlowToSend(begun, go_on)

    @skate.remote(num_returns=2)
    def two() -> Any:
        return np.zeros(1_000_000), SlowToSend(begun, go_on)

    @skate.remote(num_returns="dynamic")
    def several() -> Iterator[Any]:
        for _ in range(3):
            yield np.zeros(1_000_000)
        yield SlowToSend(begun, go_on)

    kinds: dict[str, Any] = {"while it is stored": one, "between two of them": two, "in a generator": several}
    result = kinds[when].remote()
    ref = result[0] if isinstance(result, list) else result
    wait_for(begun.exists, WITHIN_S, "the value to be pickled")
    skate.cancel(ref)
    go_on.touch()
    assert_cancelled(ref)
    del result, ref
    wait_for(lambda: store_bytes_used() <= before, WITHIN_S, "the memory to be free again")


@pytest.mark.parametrize("how", ["ends", "fails", "is cancelled"])
def test_a_task_may_keep_what_it_was_given_however_it_ends(tmp_path: Path, how: str) -> None:
    @skate.remote
    def keep(box: list[Any]) -> None:
        vars(sys)["kept by a task"] = box
        (tmp_path / "kept").touch()
        if how == "fails":
            raise ValueError
        if how == "is cancelled":
            time.sleep(600)

    @skate.remote
    def read() -> int | None:
        (tmp_path / f"{os.getpid()} reads").touch()
        wait_for(lambda: len(list(tmp_path.glob("* reads"))) == 2, WITHIN_S, "both workers to run this")
        kept = vars(sys).pop("kept by a task", None)
        return int(skate.get(kept[0])) if kept else None

    ref = skate.put(7)
    task = keep.remote([ref])
    wait_for((tmp_path / "kept").exists, WITHIN_S, "the task to run")
    if how == "is cancelled":
        skate.cancel(task)
    with contextlib.suppress(ValueError, TaskCancelledError):
        skate.get(task, timeout=WITHIN_S)
    del ref, task
    gc.collect()
    assert_works()
    assert 7 in skate.get([read.remote() for _ in range(2)], timeout=WITHIN_S)


def test_many_children_that_have_not_begun_share_one_error(tmp_path: Path) -> None:
    """To make and pickle one takes a while, and the runtime's lock is held."""

    @skate.remote(num_cpus=2)
    def child() -> None:
        wait_for((tmp_path / "open").exists, WITHIN_S, "the gate")

    refs = [child.remote() for _ in range(500)]
    runtime = current.get_runtime()
    with runtime.lock:
        runtime.submitter.cancel_children(b"")
        failures = {id(runtime.table.entries[ref._id].value) for ref in refs[300:]}
    (tmp_path / "open").touch()
    assert len(failures) == 1
    assert_cancelled(refs[-1])
    assert_works()
