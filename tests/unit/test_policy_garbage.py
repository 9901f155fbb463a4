"""When processes are asked to collect garbage: before objects go to disk, and not too often."""

from __future__ import annotations

from itertools import pairwise

from skate._core.policy_garbage import (
    FIRST_PAUSE_S,
    PAUSE_S_MAX,
    SETTLE_S,
    USEFUL_PAUSE_S,
    WAIT_S,
    GarbageRounds,
    Verdict,
)

CAPACITY = 1000


def test_a_round_is_begun_waited_for_and_over() -> None:
    rounds = GarbageRounds(CAPACITY)
    assert rounds.before_spill(10.0, 0) is Verdict.ASK
    assert rounds.before_spill(10.0 + WAIT_S / 2, 0) is Verdict.WAIT
    assert rounds.before_spill(10.0 + WAIT_S, 0) is Verdict.GO


def test_answers_end_it_early() -> None:
    rounds = GarbageRounds(CAPACITY)
    assert rounds.before_spill(10.0, 0) is Verdict.ASK
    rounds.answered(10.01)
    assert rounds.before_spill(10.02, 0) is Verdict.WAIT, "what one process drops, another one frees"
    assert rounds.before_spill(10.02 + SETTLE_S, 0) is Verdict.GO


def begin_rounds(useful: bool) -> list[float]:
    """The times at which rounds begin, while something wants to be written all the time."""
    rounds = GarbageRounds(CAPACITY)
    begun = []
    freed = 0
    for step in range(4000):
        now = step * 0.1
        if rounds.before_spill(now, freed) is Verdict.ASK:
            begun.append(now)
            freed += CAPACITY // 2 if useful else CAPACITY // 1000
    return begun


def test_rounds_that_free_something_follow_each_other_sooner() -> None:
    useful, useless = begin_rounds(useful=True), begin_rounds(useful=False)
    pauses = [after - before for before, after in pairwise(useful)]
    assert all(pause < WAIT_S + USEFUL_PAUSE_S + 0.2 for pause in pauses)
    pauses = [after - before for before, after in pairwise(useless)]
    assert pauses == sorted(pauses)
    assert FIRST_PAUSE_S < pauses[0] < FIRST_PAUSE_S + WAIT_S + 0.2
    assert PAUSE_S_MAX < pauses[-1] < PAUSE_S_MAX + WAIT_S + 0.2


def test_a_round_that_was_enough_may_be_followed_by_the_next_at_once() -> None:
    rounds = GarbageRounds(CAPACITY)
    assert rounds.before_spill(10.0, 0) is Verdict.ASK
    rounds.satisfied()
    assert rounds.before_spill(10.01, CAPACITY) is Verdict.ASK


def test_a_round_that_ended_long_ago_does_not_count_for_the_next() -> None:
    """Nothing was written at its end, because enough was freed."""
    rounds = GarbageRounds(CAPACITY)
    assert rounds.before_spill(10.0, 0) is Verdict.ASK
    assert rounds.before_spill(20.0, CAPACITY) is Verdict.ASK
