"""How long the supervisor of a submitted job stays after its command has ended."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skate.cli.job import LINGER_S, Vigil


def test_the_time_counts_from_the_end_of_the_command_however_long_it_ran_unwatched() -> None:
    vigil = Vigil(LINGER_S)
    assert not vigil.is_over(10 * LINGER_S), "it runs"
    vigil.on_end(10 * LINGER_S)
    assert not vigil.is_over(10.9 * LINGER_S)
    assert vigil.is_over(11 * LINGER_S)


def test_a_question_is_answered_first_and_the_time_counts_from_the_answer() -> None:
    vigil = Vigil(LINGER_S)
    vigil.on_question()  # to cancel the command, which ends by it
    vigil.on_end(LINGER_S)
    assert not vigil.is_over(9 * LINGER_S)
    vigil.on_answer(9 * LINGER_S)
    assert not vigil.is_over(9.9 * LINGER_S)
    assert vigil.is_over(10 * LINGER_S)


@given(st.lists(st.sampled_from(["question", "answer", "end", "wait"]), max_size=30))
def test_it_never_leaves_before_its_time(events: list[str]) -> None:
    vigil, now, answering, ended, last = Vigil(3.0), 0.0, 0, False, 0.0
    for event in events:
        now += 1.0
        if event == "question":
            vigil.on_question()
            answering += 1
        elif event == "answer" and answering:
            vigil.on_answer(now)
            answering, last = answering - 1, now
        elif event == "end" and not ended:
            vigil.on_end(now)
            ended, last = True, now
        assert vigil.is_over(now) == (ended and not answering and now - last >= 3.0)
