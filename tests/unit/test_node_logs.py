"""From the bytes that a worker prints to lines that a driver shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skate._core.task import Line
from skate._node.logs import LINE_BYTES_MAX, QUEUE_LINES_MAX, LogQueue, Stream


def texts(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def test_lines_are_put_together_from_pieces() -> None:
    stream = Stream(is_error=False)
    assert stream.feed(b"hel") == []
    assert texts(stream.feed(b"lo\nwor")) == ["hello"]
    assert texts(stream.feed(b"ld\n\n")) == ["world", ""]


@given(st.lists(st.sampled_from(["", "a", "hello", "ü", "x" * 50, "\r 10%"])), st.integers(1, 7))
def test_however_the_bytes_are_cut_the_lines_are_the_same(printed: list[str], size: int) -> None:
    data = "".join(text + "\n" for text in printed).encode()
    stream = Stream(is_error=False)
    lines = [line for at in range(0, len(data), size) for line in stream.feed(data[at : at + size])]
    assert texts(lines) == printed


def test_lines_carry_the_name_of_their_task() -> None:
    stream = Stream(is_error=True)
    stream.pid = 7
    assert stream.feed(b"before\n\0skate:task:resize\nin it\n") == [
        Line(7, "", True, "before"),
        Line(7, "resize", True, "in it"),
    ]


def test_a_task_that_ended_without_a_newline_keeps_its_words() -> None:
    stream = Stream(is_error=False)
    lines = stream.feed(b"\0skate:task:first\nhalf a line\0skate:task:second\nmore\n")
    assert [(line.name, line.text) for line in lines] == [("first", "half a line"), ("second", "more")]


def test_what_no_marker_is_in_force_for_is_by_the_task_that_runs() -> None:
    stream = Stream(is_error=False)
    stream.native_name = "first"
    lines = stream.feed(b"native\n\0skate:task:first\nprinted\nnative\n")
    assert [line.name for line in lines] == ["first"] * 3
    stream.native_name = "second"
    assert stream.feed(b"native\n")[0].name == "first", "the marker is in force until another one"
    (line,) = stream.feed(b"\0skate:task:\0first\0second\nnative\n")
    assert line.name == "second"
    stream.native_name = ""
    assert stream.feed(b"of nobody\n")[0].name == ""


def test_what_was_in_the_pipe_when_the_next_task_began_is_by_the_one_before() -> None:
    """The daemon reads all at once, when the third task runs."""
    stream = Stream(is_error=False)
    stream.native_name = "third"
    lines = stream.feed(b"a\nb\n\0skate:task:\0first\0second\nc\n\0skate:task:\0second\0third\nd\n")
    assert [(line.name, line.text) for line in lines] == [
        ("first", "a"),
        ("first", "b"),
        ("second", "c"),
        ("third", "d"),
    ]


def test_an_unfinished_line_of_native_code_has_a_name_too() -> None:
    stream = Stream(is_error=False)
    stream.native_name = "first"
    assert stream.feed(b"50 %") == []
    assert [(line.name, line.text) for line in stream.flush()] == [("first", "50 %")]
    stream.feed(b"60 %")
    stream.native_name = "second"
    assert [(line.name, line.text) for line in stream.feed(b"\0skate:task:\0first\0second\n")] == [("first", "60 %")]


def test_half_a_marker_is_not_shown() -> None:
    stream = Stream(is_error=False)
    stream.feed(b"\0skate:ta")
    assert not stream.has_partial
    assert stream.feed(b"sk:f\n") == []
    assert stream.name == "f"


def test_an_unfinished_line_can_be_had() -> None:
    stream = Stream(is_error=False)
    stream.feed(b"50 %")
    assert stream.has_partial
    assert texts(stream.flush()) == ["50 %"]
    assert stream.flush() == []


def test_a_long_line_is_cut_once_and_the_next_is_whole() -> None:
    stream = Stream(is_error=False)
    lines = [line for _ in range(100) for line in stream.feed(b"x" * 10_000)]
    lines += stream.feed(b"rest\nnext\n")
    assert len(lines) == 2
    assert lines[0].text.startswith("x" * LINE_BYTES_MAX + " … (cut here")
    assert lines[1].text == "next"


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    assert texts(Stream(is_error=False).feed(b"\xff\xfe!\n")) == ["��!"]


def test_what_does_not_fit_is_dropped_and_counted() -> None:
    queue = LogQueue()
    queue.add([Line(1, "", False, "x")] * (QUEUE_LINES_MAX + 5))
    sent: list[Line] = []
    while (message := queue.take()) is not None:
        sent += message.lines
    assert len(sent) == QUEUE_LINES_MAX + 1
    assert "5 lines were dropped" in sent[-1].text


def test_a_task_that_began_while_the_daemon_read_does_not_get_the_lines_of_the_one_before() -> None:
    """The pipe was empty again when it began, so it wrote no marker of its own. Its name is in the slot by now."""
    stream = Stream(is_error=False)
    stream.native_name = "third"  # it was, when the daemon looked
    lines = stream.feed(b"\0skate:task:third\nprinted\n\0skate:task:\0third\0named\nnative\n")
    assert [(line.name, line.text) for line in lines] == [("third", "printed"), ("named", "native")]
