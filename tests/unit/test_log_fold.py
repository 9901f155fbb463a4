"""The first of its kind is shown at once, repetitions are counted, and no line is lost without a count."""

from __future__ import annotations

import math
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from skate._core.log_fold import REMEMBERED_MAX, WINDOW_S, Folder


def test_a_line_seen_for_the_first_time_is_shown_at_once() -> None:
    folder = Folder()
    assert folder.add("(f pid=1) ", "hello", now=100.0) == "(f pid=1) hello"
    assert folder.next_deadline() is None
    assert folder.flush(math.inf) == []


def test_repetitions_are_counted_and_the_count_is_shown_when_the_window_ends() -> None:
    folder = Folder()
    folder.add("(f pid=1) ", "warning", now=100.0)
    for pid in range(2, 1001):
        assert folder.add(f"(f pid={pid}) ", "warning", now=100.0 + pid / 1000) is None
    assert folder.next_deadline() == 100.0 + WINDOW_S
    assert folder.flush(100.0 + WINDOW_S - 0.001) == []
    assert folder.flush(100.0 + WINDOW_S) == ["(f pid=1000) warning [repeated 999x]"]
    assert folder.flush(math.inf) == []
    assert folder.next_deadline() is None


def test_after_its_window_a_line_is_new_again() -> None:
    folder = Folder()
    folder.add("", "again", now=0.0)
    assert folder.add("", "again", now=WINDOW_S - 0.001) is None
    # Nobody flushed in between: the count comes before the line, in the order of events.
    assert folder.add("> ", "again", now=WINDOW_S) == "again [repeated 1x]\n> again"
    assert folder.flush(math.inf) == []


def test_a_count_names_who_said_it_last() -> None:
    folder = Folder()
    folder.add("(f pid=1) ", "x", now=0.0)
    folder.add("(f pid=2) ", "x", now=1.0)
    folder.add("(g pid=3) ", "x", now=2.0)
    assert folder.flush(math.inf) == ["(g pid=3) x [repeated 2x]"]


def test_different_lines_do_not_hold_each_other_back() -> None:
    folder = Folder()
    assert folder.add("", "one", now=0.0) == "one"
    assert folder.add("", "other", now=0.0) == "other"
    assert folder.add("", "other", now=3.0) is None
    assert folder.add("", "one", now=4.0) is None
    assert folder.next_deadline() == WINDOW_S
    assert folder.flush(WINDOW_S) == ["one [repeated 1x]", "other [repeated 1x]"]


def test_empty_lines_are_layout_and_are_never_folded() -> None:
    folder = Folder()
    for text in ("", "   ", "\t"):
        assert [folder.add("> ", text, now=0.0) for _ in range(3)] == [f"> {text}"] * 3
    assert folder.flush(math.inf) == []


def test_the_deadline_is_that_of_the_oldest_count() -> None:
    folder = Folder()
    folder.add("", "early", now=0.0)
    folder.add("", "late", now=2.0)
    folder.add("", "late", now=2.5)
    assert folder.next_deadline() == 2.0 + WINDOW_S
    folder.add("", "early", now=3.0)
    assert folder.next_deadline() == WINDOW_S


def test_the_count_of_a_line_that_is_forgotten_is_shown() -> None:
    folder = Folder()
    for _ in range(3):
        folder.add("", "often", now=0.0)
    shown = [folder.add("", f"line {number}", now=0.0) for number in range(REMEMBERED_MAX)]
    assert shown[-1] == f"often [repeated 2x]\nline {REMEMBERED_MAX - 1}"


def test_memory_is_bounded_and_the_oldest_line_is_forgotten_first() -> None:
    folder = Folder()
    for number in range(REMEMBERED_MAX + 1):
        assert folder.add("", f"line {number}", now=0.0) == f"line {number}"
    assert folder.add("", "line 1", now=0.0) is None
    assert folder.add("", f"line {REMEMBERED_MAX}", now=0.0) is None
    assert folder.add("", "line 0", now=0.0) == "line 1 [repeated 1x]\nline 0", "forgotten, so shown again"


def test_a_line_that_keeps_coming_is_not_the_oldest() -> None:
    folder = Folder()
    folder.add("", "steady", now=0.0)
    for number in range(REMEMBERED_MAX - 1):
        folder.add("", f"line {number}", now=1.0)
    assert folder.add("", "steady", now=WINDOW_S) == "steady"
    folder.add("", "one more", now=WINDOW_S)
    assert folder.add("", "steady", now=WINDOW_S + 1) is None


ADDED = st.tuples(st.sampled_from(["a", "b", "", " "]), st.floats(0, 2 * WINDOW_S))
FLUSHED = st.tuples(st.none(), st.floats(0, 2 * WINDOW_S))


@given(st.lists(st.one_of(ADDED, FLUSHED), max_size=60))
@settings(deadline=None)
def test_every_line_is_shown_or_counted_exactly_once(steps: list[tuple[str | None, float]]) -> None:
    """What is shown, counts included, adds up to what was added; and nothing new is ever held back."""
    folder = Folder()
    now = 0.0
    said: dict[str, int] = {}
    shown: list[str] = []
    for text, after in steps:
        now += after
        if text is None:
            shown += folder.flush(now)
            continue
        line = folder.add("", text, now)
        assert text in said or line == text, "the first of its kind is shown at once"
        said[text] = said.get(text, 0) + 1
        if line is not None:
            shown += line.split("\n")
        deadline = folder.next_deadline()
        if deadline is not None:
            assert deadline <= now + WINDOW_S
    shown += folder.flush(math.inf)
    counted: dict[str, int] = {}
    for line in shown:
        match = re.fullmatch(r"(.*) \[repeated (\d+)x\]", line)
        text, count = (match[1], int(match[2])) if match else (line, 1)
        counted[text] = counted.get(text, 0) + count
    assert counted == said
