"""Which of the lines that a process has printed are there when it is dead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skate._core.last_output import (
    BYTES_MAX,
    LINE_CHARACTERS_MAX,
    LINES_BEFORE_CRASH_MAX,
    LINES_MAX,
    LastOutput,
)
from skate._core.task import Line


def printed(*prints: tuple[bool, list[str]]) -> LastOutput:
    """A process that has printed these lines, each time to stderr or to stdout."""
    last = LastOutput()
    for is_error, texts in prints:
        last.add([Line(1, "task", is_error, text) for text in texts], is_error=is_error)
    return last


def to_stdout(*texts: str) -> tuple[bool, list[str]]:
    return False, list(texts)


def to_stderr(*texts: str) -> tuple[bool, list[str]]:
    return True, list(texts)


def test_a_process_that_printed_nothing_has_no_last_output() -> None:
    assert (LastOutput().text(), LastOutput().stderr()) == ("", [])


def test_empty_lines_alone_are_nothing() -> None:
    assert printed(to_stdout("", ""), to_stderr("")).text() == ""


def test_lines_of_both_streams_are_there_in_the_order_in_which_they_came() -> None:
    last = printed(to_stdout("loading", "loaded"), to_stderr("a warning"), to_stdout("step 1"), to_stderr("the end"))
    assert last.text() == "loading\nloaded\na warning\nstep 1\nthe end"
    assert last.stderr() == ["a warning", "the end"]


def test_the_last_lines_are_kept() -> None:
    numbers = [str(number) for number in range(50)]
    for one_by_one in (True, False):
        batches = [[number] for number in numbers] if one_by_one else [numbers]
        for is_error in (True, False):
            last = printed(*((is_error, batch) for batch in batches))
            assert last.text().split("\n") == numbers[-LINES_MAX:]
            assert last.stderr() == (numbers[-LINES_MAX:] if is_error else [])


def test_what_was_said_on_stderr_is_not_pushed_out_of_it_by_stdout() -> None:
    last = printed(to_stderr("the disk is on fire"), to_stdout(*(f"step {number}" for number in range(1000))))
    assert last.stderr() == ["the disk is on fire"]
    assert "fire" not in last.text()


def test_of_a_crash_the_headline_and_what_is_around_it_are_kept() -> None:
    before = [f"message {number}" for number in range(30)]
    crash = ["no newline hereFatal Python error: Aborted", *(f"frame {number}" for number in range(50))]
    last = printed(to_stderr(*before, *crash))
    assert last.stderr() == [*before[-LINES_BEFORE_CRASH_MAX:], *crash][:LINES_MAX]
    assert last.text() == "\n".join(last.stderr())


def test_what_was_printed_before_a_crash_comes_before_it_even_if_it_is_read_later() -> None:
    last = printed(to_stderr("Fatal Python error: Aborted", "frame 1"), to_stdout("step 1"), to_stderr("frame 2"))
    assert last.text() == "step 1\nFatal Python error: Aborted\nframe 1\nframe 2"


def test_the_crash_of_another_process_that_is_quoted_is_no_crash() -> None:
    quoted = ["ActorDiedError: actor Lane is dead.", "        Fatal Python error: Segmentation fault"]
    last = printed(to_stderr(*quoted, *(f"message {number}" for number in range(LINES_MAX))))
    assert last.stderr()[-1] == f"message {LINES_MAX - 1}"


def test_of_a_long_line_the_beginning_is_kept() -> None:
    (line,) = printed(to_stdout("x" * 5 * LINE_CHARACTERS_MAX)).text().split("\n")
    assert line == "x" * LINE_CHARACTERS_MAX + " …"


def test_a_progress_bar_is_one_line() -> None:
    bar = [f"\r{percent:3} %" for percent in range(100)]
    last = printed(to_stdout("loading"), *((True, [state]) for state in bar), to_stdout("done"))
    assert last.text() == "loading\n 99 %\ndone"
    assert printed(to_stderr("".join(bar))).text() == " 99 %"
    assert printed(to_stdout("a line of Windows\r")).text() == "a line of Windows"


lines = st.lists(st.text(max_size=3) | st.sampled_from(["Fatal Python error: x", "\r 5 %", "𝄞" * 1500, "y" * 400]))


@given(st.lists(st.tuples(st.booleans(), lines)))
def test_it_is_bounded_and_has_the_last_line(prints: list[tuple[bool, list[str]]]) -> None:
    prints = [(is_error, [text.replace("\n", "") for text in texts]) for is_error, texts in prints]
    last = printed(*prints)
    for texts in (last.text().split("\n"), last.stderr()):
        assert len(texts) <= LINES_MAX
        assert len("\n".join(texts).encode()) <= BYTES_MAX
    everything = [text for _, texts in prints for text in texts]
    if everything and everything[-1].strip("\r") and not any("Fatal" in text for text in everything):
        end = everything[-1].strip("\r").rpartition("\r")[2]
        assert last.text().endswith(end[:LINE_CHARACTERS_MAX] + (" …" if len(end) > LINE_CHARACTERS_MAX else ""))
