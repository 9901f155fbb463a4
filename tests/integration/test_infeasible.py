"""What can never run is an error after a grace period; what waits can say what for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skate
from skate.exceptions import GetTimeoutError, TaskCancelledError, TaskUnschedulableError
from waiting import wait_for

WITHIN_S = 20.0


@pytest.fixture(autouse=True)
def short_grace() -> Iterator[None]:
    skate.init(num_cpus=2, resources={"lamp": 1}, infeasible_grace_s=0.3)
    yield
    skate.shutdown()


@skate.remote
def nothing() -> str:
    return "done"


@pytest.mark.parametrize(
    ("options", "asked", "there"),
    [
        ({"num_cpus": 3}, ("CPU", 3), ("CPU", 2)),
        ({"num_cpus": 2.5}, ("CPU", 2.5), ("CPU", 2)),
        ({"num_gpus": 1}, ("GPU", 1), None),
        ({"resources": {"lamp": 2}}, ("lamp", 2), ("lamp", 1)),
        ({"resources": {"unicorn": 1}}, ("unicorn", 1), None),
    ],
)
def test_the_error_says_what_was_asked_and_what_there_is(
    options: dict[str, Any], asked: tuple[str, float], there: tuple[str, float] | None
) -> None:
    with pytest.raises(TaskUnschedulableError) as caught:
        skate.get(nothing.options(**options).remote(), timeout=WITHIN_S)
    error, text = caught.value, str(caught.value)
    assert "nothing" in text
    assert error.asked[asked[0]] == asked[1]
    assert f"{asked[0]} {asked[1]:g}" in text
    assert "CPU" in error.available
    if there is not None:
        assert error.available[there[0]] == there[1]
        assert f"{there[0]} {there[1]:g}" in text
    else:
        assert asked[0] not in error.available or error.available[asked[0]] == 0


def test_memory_that_the_machine_does_not_have() -> None:
    with pytest.raises(TaskUnschedulableError, match="memory"):
        skate.get(nothing.options(memory=8 * 10**11).remote(), timeout=WITHIN_S)


def test_what_is_busy_is_not_infeasible(tmp_path: Path) -> None:
    """A task that waits for busy CPUs waits as long as it takes, however short the grace period."""
    started, go = tmp_path / "started", tmp_path / "go"

    @skate.remote(num_cpus=2)
    def blocker() -> None:
        started.touch()
        while not go.exists():
            time.sleep(0.005)

    first = blocker.remote()
    wait_for(started.exists, WITHIN_S, "the blocker to run")
    second = nothing.options(num_cpus=2).remote()
    impossible = nothing.options(num_cpus=3).remote()
    with pytest.raises(TaskUnschedulableError):
        skate.get(impossible, timeout=WITHIN_S)
    assert skate.wait([second], timeout=0) == ([], [second]), "the grace period is over, and it still waits"
    go.touch()
    assert skate.get([first, second], timeout=WITHIN_S) == [None, "done"]


def test_others_run_meanwhile_and_afterwards() -> None:
    impossible = [nothing.options(num_cpus=3).remote() for _ in range(10)]
    assert skate.get([nothing.remote() for _ in range(200)], timeout=WITHIN_S) == ["done"] * 200
    for ref in impossible:
        with pytest.raises(TaskUnschedulableError):
            skate.get(ref, timeout=WITHIN_S)
    assert skate.get([nothing.remote() for _ in range(200)], timeout=WITHIN_S) == ["done"] * 200


def test_wait_sees_it_as_ready() -> None:
    ref = nothing.options(num_cpus=3).remote()
    assert skate.wait([ref], timeout=WITHIN_S) == ([ref], [])


def test_a_task_that_needs_its_result_gets_the_error() -> None:
    @skate.remote
    def after(value: str) -> str:
        return value

    with pytest.raises(TaskUnschedulableError):
        skate.get(after.remote(nothing.options(num_cpus=3).remote()), timeout=WITHIN_S)


def test_the_error_reaches_a_task_that_asked_for_too_much() -> None:
    @skate.remote
    def parent() -> str:
        @skate.remote(num_gpus=4)
        def child() -> None:
            pass

        try:
            skate.get(child.remote())
        except TaskUnschedulableError as error:
            return str(error)
        return "no error"

    text = skate.get(parent.remote(), timeout=WITHIN_S)
    assert "GPU 4" in text


def test_every_result_and_every_stream_is_the_error() -> None:
    @skate.remote(num_returns=2, num_cpus=3)
    def two() -> Any:
        return 1, 2

    for ref in two.remote():
        with pytest.raises(TaskUnschedulableError):
            skate.get(ref, timeout=WITHIN_S)

    @skate.remote(num_returns="streaming", num_cpus=3)
    def stream() -> Iterator[int]:
        yield 1

    with pytest.raises(TaskUnschedulableError):
        for ref in stream.remote():
            skate.get(ref, timeout=WITHIN_S)


def test_it_can_be_cancelled_before() -> None:
    skate.shutdown()
    skate.init(num_cpus=2, infeasible_grace_s=1000)
    ref = nothing.options(num_cpus=3).remote()
    with pytest.raises(skate.exceptions.GetTimeoutError, match="3"):
        skate.get(ref, timeout=0.2)
    skate.cancel(ref)
    with pytest.raises(TaskCancelledError):
        skate.get(ref, timeout=WITHIN_S)


def test_a_node_without_cpus_says_so() -> None:
    skate.shutdown()
    skate.init(num_cpus=0, infeasible_grace_s=0.3)
    with pytest.raises(TaskUnschedulableError, match="CPU 1"):
        skate.get(nothing.remote(), timeout=WITHIN_S)
    assert skate.get(nothing.options(num_cpus=0).remote(), timeout=WITHIN_S) == "done"


# --- why --------------------------------------------------------------------------------------------------------------


def test_why_of_what_can_never_run() -> None:
    skate.shutdown()
    skate.init(num_cpus=2, infeasible_grace_s=1000)
    ref = nothing.options(num_cpus=3, resources={"unicorn": 1}).remote()
    text = skate.why(ref)
    assert "nothing" in text
    assert "3 CPU" in text
    assert "2 CPU" in text
    assert "unicorn" in text
    assert "never" in text


def test_why_tells_memory_in_units() -> None:
    skate.shutdown()
    skate.init(num_cpus=2, _memory=3 * 2**30, infeasible_grace_s=1000)
    ref = nothing.options(memory=5 * 2**40).remote()
    assert "needs 1 CPU, 5.0 TiB memory, and this machine has 3.0 GiB memory" in skate.why(ref)
    with pytest.raises(GetTimeoutError, match=r"3\.0 GiB memory"):
        skate.get(ref, timeout=0)


def test_why_of_what_waits_for_a_worker(tmp_path: Path) -> None:
    started, go = tmp_path / "started", tmp_path / "go"

    @skate.remote(num_cpus=2)
    def blocker() -> None:
        started.touch()
        while not go.exists():
            time.sleep(0.005)

    first = blocker.remote()
    wait_for(started.exists, WITHIN_S, "the blocker to run")
    assert "blocker" in skate.why(first)
    assert "running" in skate.why(first)
    queued = nothing.options(resources={"lamp": 1}).remote()
    text = skate.why(queued)
    assert "nothing" in text
    assert "1 CPU" in text
    assert "0 of 2 CPU" in text, "what is free, and of how much"
    go.touch()
    assert skate.get(queued, timeout=WITHIN_S) == "done"


def test_why_of_what_waits_for_arguments(tmp_path: Path) -> None:
    go = tmp_path / "go"

    @skate.remote
    def slow_argument() -> None:
        while not go.exists():
            time.sleep(0.005)

    @skate.remote
    def consumer(*values: Any) -> str:
        return "consumed"

    argument, other = slow_argument.remote(), skate.put(1)
    ref = consumer.remote(argument, other)
    text = skate.why(ref)
    assert "consumer" in text
    assert "slow_argument" in text
    assert "argument" in text
    go.touch()
    assert skate.get(ref, timeout=WITHIN_S) == "consumed"


def test_why_of_a_task_that_waits_for_another(tmp_path: Path) -> None:
    go, started = tmp_path / "go", tmp_path / "started"

    @skate.remote
    def child() -> None:
        started.touch()
        while not go.exists():
            time.sleep(0.005)

    @skate.remote
    def parent() -> None:
        skate.get(child.remote())

    ref = parent.remote()
    wait_for(started.exists, WITHIN_S, "the child to run")
    text = wait_for(lambda: "wait" in skate.why(ref) and skate.why(ref), WITHIN_S, "it to say that it waits")
    assert "parent" in text
    go.touch()
    skate.get(ref, timeout=WITHIN_S)


def test_why_of_what_is_ready() -> None:
    ref = nothing.remote()
    skate.wait([ref])
    assert "ready" in skate.why(ref)
    assert "ready" in skate.why(skate.put(1))
    failed = nothing.options(num_cpus=3).remote()
    skate.wait([failed], timeout=WITHIN_S)
    assert "error" in skate.why(failed)


def test_why_of_a_borrowed_reference(tmp_path: Path) -> None:
    go, started = tmp_path / "go", tmp_path / "started"

    @skate.remote
    def slow() -> None:
        started.touch()
        while not go.exists():
            time.sleep(0.005)

    @skate.remote
    def ask(refs: list[Any]) -> str:
        return skate.why(refs[0])

    ref = slow.remote()
    wait_for(started.exists, WITHIN_S, "the task to run")
    text = skate.get(ask.remote([ref]), timeout=WITHIN_S)
    assert "slow" in text
    go.touch()
    skate.get(ref)


def test_a_timeout_says_why() -> None:
    skate.shutdown()
    skate.init(num_cpus=2, infeasible_grace_s=1000)
    ref = nothing.options(resources={"unicorn": 1}).remote()
    with pytest.raises(skate.exceptions.GetTimeoutError, match="unicorn"):
        skate.get(ref, timeout=0.1)
