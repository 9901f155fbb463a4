"""The memory monitor: the newest task that may be retried goes before the kernel's OOM killer acts, and says why.

Where a control group can be made the node is in one, so that it does not count what other programs on the machine,
tests beside this one among them, take and give back. Otherwise the threshold is set above what the machine uses at
the moment.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import skate
from control_group import control_group
from programs import append, lines
from skate._node.memory_monitor import MemoryMonitor
from skate._worker import current
from skate.exceptions import GetTimeoutError, OutOfMemoryError, TaskCancelledError
from waiting import wait_for

MB = 1 << 20
#: What the group may use, and the part of it above which the monitor acts: a machine is seldom that full.
GROUP_BYTES = 1800 * MB
THRESHOLD = 0.8
#: What a greedy task takes at most. With all else there is, that is less than what the group may use: the kernel has no
#: reason to act, however late the monitor is.
GREED_BYTES = 1500 * MB
#: Without a group: what may be taken before the monitor acts, and what a greedy task takes at most. Others on the
#: machine come and go by less than that.
ROOM_BYTES = 1500 * MB
GREED_ON_MACHINE_BYTES = 5000 * MB
STEP_BYTES = 20 * MB
#: What an actor holds beside the greedy task.
BYSTANDER_BYTES = 150 * MB
WITHIN_S = 40.0

Start = Callable[..., None]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a node whose memory is short when a greedy task runs."""
    with contextlib.ExitStack() as stack:
        group = None
        with contextlib.suppress(pytest.skip.Exception):
            group = stack.enter_context(control_group(GROUP_BYTES))
        use = MemoryMonitor().read()
        threshold = THRESHOLD if group is not None else (use.used_bytes + ROOM_BYTES) / use.total_bytes
        greed = GROUP_BYTES if group is not None else ROOM_BYTES + GREED_ON_MACHINE_BYTES
        if use.used_bytes + greed > min(0.9, max(threshold, THRESHOLD)) * use.total_bytes:
            pytest.skip("the machine has too little free memory to play with")

        def begin(**settings: Any) -> None:
            with group.entered() if group is not None else contextlib.nullcontext():
                skate.init(**{"num_cpus": 2, "object_store_memory": 64 * MB, "memory_threshold": threshold, **settings})

        yield begin
        skate.shutdown()


def take_memory() -> None:
    """Take more and more, in steps that the monitor can see, and keep it until killed."""
    in_group = "/skate-test-" in Path("/proc/self/cgroup").read_text()
    taken = []
    for _ in range((GREED_BYTES if in_group else GREED_ON_MACHINE_BYTES) // STEP_BYTES):
        taken.append(b"\1" * STEP_BYTES)
        time.sleep(0.01)
    # The monitor looks a few times a second.
    deadline = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline:
        time.sleep(0.05)


def has_ended(pids: Path) -> bool:
    """Whether the process that was the first to write its number there is gone."""
    return bool(lines(pids)) and not psutil.pid_exists(int(lines(pids)[0]))


def test_a_task_that_is_killed_for_memory_is_retried(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start()
    runs = tmp_path / "runs"
    lock = current.get_runtime().lock
    held_by_logger: list[bool] = []

    def look(_: object) -> bool:
        held_by_logger.append(lock._is_owned())  # type: ignore[attr-defined]
        return True

    caplog.handler.addFilter(look)

    @skate.remote
    def greedy_once() -> str:
        append(runs, os.getpid())
        if len(lines(runs)) == 1:
            take_memory()
        return "done"

    assert skate.get(greedy_once.remote(), timeout=WITHIN_S) == "done"
    assert len(lines(runs)) == 2
    (told,) = [record.getMessage() for record in caplog.records]
    assert "greedy_once was ended because memory was short" in told
    assert "run again in 2 s" in told
    assert held_by_logger == [False], "a handler may do what it likes"


def test_one_that_waits_for_its_next_attempt_can_be_cancelled_and_says_what_it_waits_for(
    start: Start, tmp_path: Path
) -> None:
    start()
    pids = tmp_path / "pids"

    @skate.remote
    def greedy() -> None:
        append(pids, os.getpid())
        take_memory()

    ref = greedy.remote()
    wait_for(lambda: has_ended(pids), WITHIN_S, "the monitor to end it")
    wait_for(lambda: current.get_runtime().submitter._resting, WITHIN_S, "the driver to hear of it")
    with pytest.raises(GetTimeoutError, match="greedy was ended because memory was short, and is run again in"):
        skate.get(ref, timeout=0)
    skate.cancel(ref)
    with pytest.raises(TaskCancelledError):
        skate.get(ref, timeout=WITHIN_S)


def test_a_small_task_does_not_pay_for_a_large_one(start: Start, tmp_path: Path) -> None:
    """It is ended first, as the only one that may be retried, and again if it is back before the large one is gone."""
    start()
    small_runs, large_pid = tmp_path / "small", tmp_path / "large"

    @skate.remote(max_retries=0)
    def large() -> None:
        append(large_pid, os.getpid())
        wait_for(lambda: lines(small_runs), WITHIN_S, "the small task to run")
        take_memory()

    @skate.remote(max_retries=1)
    def small() -> str:
        append(small_runs, "run")
        wait_for(lambda: has_ended(large_pid), WITHIN_S, "the large task to be ended")
        return "done"

    first = large.remote()
    wait_for(lambda: lines(large_pid), WITHIN_S, "the large task to run")
    assert skate.get(small.remote(), timeout=WITHIN_S) == "done"
    assert len(lines(small_runs)) > 1
    with pytest.raises(OutOfMemoryError):
        skate.get(first, timeout=WITHIN_S)


def test_the_newest_is_killed_and_older_ones_go_on(start: Start, tmp_path: Path) -> None:
    start()
    old_runs, new_runs, go = tmp_path / "old", tmp_path / "new", tmp_path / "go"

    @skate.remote
    def old() -> str:
        append(old_runs, "run")
        while not go.exists():
            time.sleep(0.005)
        return "old"

    @skate.remote
    def new() -> str:
        append(new_runs, os.getpid())
        if len(lines(new_runs)) == 1:
            take_memory()
        return "new"

    first = old.remote()
    wait_for(lambda: lines(old_runs), WITHIN_S, "the older task to run")
    second = new.remote()
    wait_for(lambda: has_ended(new_runs), WITHIN_S, "the monitor to end the newer one")
    go.touch()
    assert skate.get([first, second], timeout=WITHIN_S) == ["old", "new"]
    assert (len(lines(old_runs)), len(lines(new_runs))) == (1, 2)


def test_one_that_may_not_be_retried_is_spared_while_another_may(start: Start, tmp_path: Path) -> None:
    """The newest task may not be retried, an older one may: the older one is the one to go."""
    start()
    retriable_runs, other_runs = tmp_path / "retriable", tmp_path / "other"

    @skate.remote(max_retries=2)
    def retriable() -> str:
        append(retriable_runs, os.getpid())
        if len(lines(retriable_runs)) == 1:
            while not other_runs.exists():
                time.sleep(0.005)
            take_memory()
        return "retried"

    @skate.remote(max_retries=0)
    def not_retriable() -> str:
        append(other_runs, "run")
        wait_for(lambda: has_ended(retriable_runs), WITHIN_S, "the older task to be ended")
        return "spared"

    first = retriable.remote()
    wait_for(lambda: lines(retriable_runs), WITHIN_S, "the older task to run")
    assert skate.get([first, not_retriable.remote()], timeout=WITHIN_S) == ["retried", "spared"]
    assert (len(lines(retriable_runs)), len(lines(other_runs))) == (2, 1)


def test_the_error_says_who_used_how_much(start: Start, tmp_path: Path) -> None:
    start()
    pids = tmp_path / "pids"

    @skate.remote(max_retries=0)
    def greedy() -> None:
        append(pids, os.getpid())
        take_memory()

    @skate.remote
    class Bystander:
        def __init__(self) -> None:
            self.held = b"\1" * BYSTANDER_BYTES

        def is_there(self) -> bool:
            return True

    bystander = Bystander.remote()
    assert skate.get(bystander.is_there.remote(), timeout=WITHIN_S)
    with pytest.raises(OutOfMemoryError) as caught:
        skate.get(greedy.remote(), timeout=WITHIN_S)
    error, text = caught.value, str(caught.value)
    (pid,) = lines(pids)
    assert error.task_name == "greedy" or "greedy" in error.task_name
    assert error.pid == int(pid)
    assert 0 < error.used_bytes < error.total_bytes
    assert any(used > 100 * MB for _, process, used in error.processes if process == int(pid)), error.processes
    assert pid in text
    assert "greedy" in text
    assert "MiB" in text or "GiB" in text
    assert "max_retries" in text, "it says what to do"
    assert ("task greedy", int(pid)) in [(name, process) for name, process, _ in error.processes]
    assert "actor Bystander" in [name for name, _, _ in error.processes]
    assert "; the limit is " in text


def test_one_that_is_always_too_large_fails_in_the_end(start: Start, tmp_path: Path) -> None:
    start()
    runs = tmp_path / "runs"

    @skate.remote(max_retries=1)
    def greedy() -> None:
        append(runs, "run")
        take_memory()

    @skate.remote
    def add_one(x: int) -> int:
        return x + 1

    with pytest.raises(OutOfMemoryError):
        skate.get(greedy.remote(), timeout=WITHIN_S)
    assert len(lines(runs)) == 2
    assert skate.get(add_one.remote(1), timeout=WITHIN_S) == 2, "the runtime goes on"


def test_a_threshold_of_one_switches_it_off(start: Start, tmp_path: Path) -> None:
    start(memory_threshold=1)

    @skate.remote(max_retries=0)
    def large() -> int:
        return len(b"\1" * GREED_BYTES)

    assert skate.get(large.remote(), timeout=WITHIN_S) == GREED_BYTES
