"""SKATE_TEST_SCHEDULING_DELAY_MS: each task waits before it is scheduled, in order, and all wait together."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest

import skate
from waiting import WITHIN_S, value_of

DELAY_S = 0.2


@pytest.fixture(autouse=True)
def slow_scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SKATE_TEST_SCHEDULING_DELAY_MS", str(DELAY_S * 1000))
    with skate.init(num_cpus=1):
        yield


@skate.remote
def began(number: int, after: object = None) -> tuple[int, float]:
    """The number, and when the task began, by the clock that all processes of a machine share."""
    return number, time.monotonic()


def test_each_task_waits_and_all_wait_together_in_order() -> None:
    count = int(2 * WITHIN_S / DELAY_S)  # one after the other, they would take longer than they may
    submitted, refs = [], []
    for number in range(count):
        submitted.append(time.monotonic())
        refs.append(began.remote(number))
    found = value_of(refs)
    assert all(start - at >= DELAY_S for (_, start), at in zip(found, submitted))
    assert [number for number, _ in sorted(found, key=lambda each: each[1])] == list(range(count))


def test_a_task_waits_from_the_moment_when_its_arguments_are_there() -> None:
    first = began.remote(0)
    second = began.remote(1, first)
    third = began.remote(2, after=second)
    times = [start for _, start in value_of([first, second, third])]
    assert all(later - sooner >= DELAY_S for sooner, later in itertools.pairwise(times))


def test_tasks_that_tasks_start_wait_too() -> None:
    @skate.remote(num_cpus=0)
    def outer() -> tuple[float, float]:
        at = time.monotonic()
        return at, skate.get(began.remote(0))[1]

    at, inner = value_of(outer.remote())
    assert inner - at >= DELAY_S


def test_a_task_that_is_cancelled_while_it_waits_never_runs() -> None:
    refs = [began.remote(number) for number in range(3)]
    skate.cancel(refs[1])
    with pytest.raises(skate.exceptions.TaskCancelledError):
        value_of(refs[1])
    assert [value_of(ref)[0] for ref in (refs[0], refs[2])] == [0, 2]
