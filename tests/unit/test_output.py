"""From what tasks write to the lines that the node daemon makes of it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from skate._node.logs import Stream
from skate._store.layout import NAME_BYTES, parse_name
from skate._worker import output
from skate._worker.context import CURRENT_CALL
from skate._worker.output import TaggedBuffer, flush_output, show_name, tag_output


class Worker:
    """One stream of a worker; `task` is the one that it is in, as its id and its name."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = reader
        self.task: tuple[bytes, str] | None = None
        self.buffer = TaggedBuffer(writer, self._current, lambda: self.task[1] if self.task else "")
        self.text = io.TextIOWrapper(self.buffer, encoding="utf-8", line_buffering=True, write_through=True)
        self.stream = Stream(is_error=False)

    def _current(self) -> Any:
        return SimpleNamespace(id=self.task[0]) if self.task else None

    def enter(self, id: bytes, name: str) -> None:
        self.task = (id, name)

    def leave(self) -> None:
        self.task = None
        self.buffer.send_on()

    def lines(self) -> list[tuple[str, str]]:
        """Name and text of what the daemon has got since it was asked last."""
        try:
            data = os.read(self._reader, 1 << 20)
        except BlockingIOError:
            return []
        return [(line.name, line.text) for line in self.stream.feed(data)]


@pytest.fixture
def worker() -> Iterator[Worker]:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    yield Worker(reader, writer)
    os.close(reader)
    os.close(writer)


def test_an_unfinished_line_ends_with_its_task(worker: Worker) -> None:
    worker.enter(b"1", "first")
    worker.text.write("partial")
    worker.leave()
    assert worker.lines() == [("first", "partial")]
    worker.enter(b"2", "second")
    worker.text.write("a\n")
    assert worker.lines() == [("second", "a")]


def test_it_ends_also_when_the_next_task_comes_at_once(worker: Worker) -> None:
    for id in (b"1", b"2"):  # two calls of one function
        worker.enter(id, "same")
        worker.text.write("partial")
    worker.leave()
    assert worker.lines() == [("same", "partial"), ("same", "partial")]


def test_what_was_shown_before_its_task_ended_is_followed_by_no_empty_line(worker: Worker) -> None:
    worker.enter(b"1", "first")
    worker.text.write("50 %")
    worker.buffer.send_on()
    assert worker.lines() == []
    assert [line.text for line in worker.stream.flush()] == ["50 %"]
    worker.leave()
    assert worker.lines() == []


def test_a_line_that_its_task_goes_on_with_is_whole(worker: Worker) -> None:
    worker.enter(b"1", "first")
    worker.text.write("one ")
    worker.buffer.send_on()
    worker.text.write("line\n")
    assert worker.lines() == [("first", "one line")]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes_carry_the_name_of_their_task(worker: Worker, kind: Callable[[bytes], Any]) -> None:
    worker.enter(b"1", "first")
    worker.text.write("text\n")
    worker.enter(b"2", "second")
    assert worker.text.buffer.write(kind(b"bin\n")) == 4
    worker.leave()
    worker.enter(b"3", "third")
    worker.text.write("text\n")
    assert worker.lines() == [("first", "text"), ("second", "bin"), ("third", "text")]


def test_what_is_no_bytes_is_refused_as_by_any_binary_stream(worker: Worker) -> None:
    for wrong in ("text", 3, [1, 2]):
        with pytest.raises(TypeError):
            worker.text.buffer.write(wrong)  # type: ignore[arg-type]


def test_calls_that_print_at_the_same_time_have_lines_of_their_own(worker: Worker) -> None:
    """print() writes the end of a line by itself, and another thread may come between."""
    for text in ("a", "\n"):
        for id, name in ((b"1", "left"), (b"2", "right")):
            worker.enter(id, name)
            worker.text.write(text)
    assert worker.lines() == [("left", "a"), ("right", "a")]


def test_a_line_of_one_of_many_calls_is_not_ended_by_who_cannot_know(worker: Worker) -> None:
    worker.enter(b"1", "call")
    token = CURRENT_CALL.set(SimpleNamespace())  # type: ignore[arg-type]
    worker.text.write("one ")
    CURRENT_CALL.reset(token)
    worker.leave()  # as the I/O thread sees it: that is in no call
    worker.enter(b"1", "call")
    worker.text.write("line\n")
    assert worker.lines() == [("call", "one line")]


def test_output_that_a_task_has_closed_does_no_harm(worker: Worker) -> None:
    worker.enter(b"1", "first")
    worker.text.write("partial")
    worker.text.close()
    worker.leave()


@pytest.fixture
def field(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> memoryview:
    """Where the worker's name stands for the daemon; its one stream is that of the process."""
    monkeypatch.setattr(output, "_buffers", [worker.buffer])
    monkeypatch.setattr(output, "_shown_name", "")
    return memoryview(bytearray(NAME_BYTES))


def test_what_native_code_writes_is_by_the_task_whose_name_is_shown(worker: Worker, field: memoryview) -> None:
    descriptor = worker.buffer.fileno()

    def run(id: bytes, name: str) -> None:
        worker.enter(id, name)
        show_name(field, name)

    run(b"1", "first")
    os.write(descriptor, b"native first\n")
    run(b"2", "second")
    worker.text.write("printed second\n")
    os.write(descriptor, b"native second\n")
    run(b"3", "third")
    os.write(descriptor, b"native third\n")
    run(b"4", "third")
    os.write(descriptor, b"native third\n")
    worker.stream.native_name = parse_name(bytes(field))
    texts = ["native first", "printed second", "native second", "native third", "native third"]
    assert worker.lines() == [(text.split()[1], text) for text in texts]


def test_nothing_is_written_for_the_name_of_a_task_that_prints_nothing(worker: Worker, field: memoryview) -> None:
    for name in ("first", "second"):
        show_name(field, name)
    with pytest.raises(BlockingIOError):
        os.read(worker._reader, 1)
    assert parse_name(bytes(field)) == "second"


def test_a_print_outside_of_tasks_has_no_name_after_the_name_has_changed(worker: Worker, field: memoryview) -> None:
    worker.enter(b"1", "first")
    show_name(field, "first")
    worker.text.write("a\n")
    show_name(field, "second")
    worker.leave()
    worker.text.write("b\n")
    worker.stream.native_name = "second"
    assert worker.lines() == [("first", "a"), ("", "b")]


def test_a_closed_stream_does_no_harm_when_the_name_changes(worker: Worker, field: memoryview) -> None:
    worker.enter(b"1", "first")
    worker.text.write("partial")
    worker.text.close()
    show_name(field, "second")
    assert parse_name(bytes(field)) == "second"


def test_both_streams_of_a_process_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_buffers", [])
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    tag_output(lambda: None, lambda: "")
    assert [buffer.fileno() for buffer in output._buffers] == [1, 2]
    flush_output()
