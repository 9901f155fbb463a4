"""Results of an actor that runs several calls at a time, and how its callers hear that their calls were read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from skate._core.task import Result, ResultExtra
from skate._wire import messages as m
from skate._worker.actor_concurrency import SMALL_BYTES_MAX, SMALL_COUNT_MAX, Outbox

ID = bytes(20)
SMALL = Result(ID, b"x")


class Caller:
    """A caller that keeps what it is sent."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def send(self, message: Any) -> None:
        self.heard.append(message)


@pytest.fixture
def outbox() -> Outbox:
    executor: Any = SimpleNamespace(release_result_refs=lambda id: None)
    return Outbox(executor)


@pytest.fixture
def caller() -> Any:
    return Caller()


def test_small_results_say_that_calls_were_read(outbox: Outbox, caller: Any) -> None:
    outbox.read(caller)
    outbox.add(caller, SMALL)
    outbox.acknowledge(also_with_results=False)
    outbox.flush()
    assert caller.heard == [m.Results([SMALL], taken=True)]
    outbox.acknowledge(also_with_results=True)
    outbox.add(caller, SMALL)
    outbox.flush()
    assert caller.heard[1:] == [m.Results([SMALL])], "it is said once"


@pytest.mark.parametrize(
    "results",
    [
        [Result(ID, bytes(SMALL_BYTES_MAX + 1))],
        [Result(ID, b"x", ResultExtra(more=[b"y"]))],
        [SMALL] * (SMALL_COUNT_MAX + 1),
    ],
    ids=["large", "several values", "many"],
)
def test_other_results_could_be_refused_so_it_is_said_before_them(
    outbox: Outbox, caller: Any, results: list[Result]
) -> None:
    outbox.read(caller)
    for result in results:
        outbox.add(caller, result)
    outbox.flush()
    assert caller.heard == [m.Taken(), m.Results(results)]


def test_callers_without_results_are_told_at_once_and_those_with_results_in_time(outbox: Outbox, caller: Any) -> None:
    waiting: Any = Caller()
    outbox.read(caller)
    outbox.read(waiting)
    outbox.add(caller, SMALL)
    outbox.acknowledge(also_with_results=False)
    assert (caller.heard, waiting.heard) == ([], [m.Taken()])
    outbox.acknowledge(also_with_results=True)
    outbox.acknowledge(also_with_results=True)
    assert (caller.heard, waiting.heard) == ([m.Taken()], [m.Taken()])


def test_a_caller_that_is_dead_is_told_nothing(outbox: Outbox, caller: Any) -> None:
    outbox.read(caller)
    outbox.add(caller, SMALL)
    outbox.forget(caller)
    outbox.acknowledge(also_with_results=True)
    outbox.flush()
    assert caller.heard == []
