"""The parts of the simulation that everything else rests on: replay, and the checker of histories."""

from __future__ import annotations

import pytest
from linearizable import Operation, is_linearizable
from world import World


def test_a_seed_replays_exactly() -> None:
    first, second = World(3), World(3)
    first.run()
    second.run()
    assert first.ledger == second.ledger
    assert first.operations == second.operations
    assert first.clock.now == second.clock.now


def read(value: str | None, begin: float, end: float) -> Operation:
    return Operation("read", "k", (), begin, end, value)


def put(value: str, begin: float, end: float = float("inf")) -> Operation:
    return Operation("put", "k", (value,), begin, end)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([put("a", 0, 1), read("a", 2, 3)], True),
        ([put("a", 0, 1), read(None, 2, 3)], False),  # stale
        ([put("a", 0, 3), read("a", 1, 2), read(None, 2.5, 2.7)], False),  # goes back
        ([put("a", 0, 3), read(None, 1, 2), read("a", 2.5, 2.7)], True),
        ([put("a", 0), read(None, 1, 2), read("a", 3, 4)], True),  # not returned: took effect late
        ([put("a", 0), read("a", 1, 2), read(None, 3, 4)], False),
        ([put("a", 0, 1), Operation("cas", "k", ("a", "b"), 2, 3, 0)], False),
        ([put("a", 0, 1), Operation("cas", "k", ("a", "b"), 2, 3, 1), read("b", 4, 5)], True),
        ([Operation("append", "k", (0, "x"), 0, 1, 1), Operation("append", "k", (0, "y"), 0, 1, 1)], False),
    ],
)
def test_the_checker_knows_which_histories_are_possible(operations: list[Operation], expected: bool) -> None:
    assert is_linearizable(operations) is expected
