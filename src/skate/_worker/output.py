"""What a worker prints carries the name of the task that printed it.

The daemon reads a worker's output from pipes and cannot know which task wrote a line. So before output of another task
the stream gets a mark, `\\0skate:task:<name>` and an end of line, which the daemon takes out. A mark also ends the line
that a task has left unfinished. It costs nothing while nothing is printed.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from skate._worker.context import CURRENT_CALL

if TYPE_CHECKING:
    from skate._core.task import Task

MARK = b"\0skate:task:"


class TaggedBuffer(io.BufferedWriter):
    """The binary stream below stdout or stderr, where text and bytes pass: it marks whose output follows."""

    def __init__(self, descriptor: int, current_task: Callable[[], Task | None], task_name: Callable[[], str]) -> None:
        super().__init__(io.FileIO(descriptor, "w", closefd=False))
        self._current_task = current_task
        self._task_name = task_name
        #: Which task has written last, and the name that was marked last.
        self._writer = b""
        self._marked = ""
        #: It was one of several calls that an actor is in.
        self._is_one_of_many = False
        self._at_line_start = True
        #: The task whose line was ended because another one wrote.
        self._cut_off = b""
        #: Something may be here that has not been sent on.
        self._unsent = False

    def write(self, data: Any, /) -> int:
        if type(data) is not bytes:
            data = memoryview(data).tobytes()
        if not data:
            return 0
        mark = b""
        writer = self._writer_now()
        if writer != self._writer:
            if data == b"\n" and writer == self._cut_off:
                self._cut_off = b""
                return 1  # print() writes this for itself, and another thread came between
            name = self._task_name()
            if name != self._marked or not self._at_line_start:
                self._marked = name
                mark = self._mark()
            self._cut_off = b"" if self._at_line_start else self._writer
            self._writer = writer
            self._is_one_of_many = CURRENT_CALL.get() is not None
        self._at_line_start = data.endswith(b"\n")
        # In one go: another thread may write at any moment.
        size = super().write(mark + data if mark else data) - len(mark)
        self._unsent = True  # not before: a thread that sends it on would wait for this one, should the pipe be full
        return size

    def flush(self) -> None:
        self._unsent = False
        super().flush()

    def _mark(self) -> bytes:
        return b"%b%b\n" % (MARK, self._marked.encode("utf-8", "backslashreplace"))

    def _writer_now(self) -> bytes:
        task = self._current_task()
        return b"" if task is None else task.id

    def send_on(self) -> None:
        """What has not been; a line that its task has left unfinished is ended."""
        if self._at_line_start and not self._unsent:
            return
        try:
            if not self._at_line_start and not self._is_one_of_many and self._writer_now() != self._writer:
                self._at_line_start = True
                super().write(self._mark())  # an end of line would be an empty one, if the rest is shown already
                self._unsent = True
            if self._unsent:
                self.flush()
        except (OSError, ValueError):
            pass  # the task has closed it


#: Those of this process.
_buffers: list[TaggedBuffer] = []


def flush_output() -> None:
    """Show partial lines of this process: nobody should wait for the end of a line that may never come."""
    for buffer in _buffers:
        buffer.send_on()


def end_as_a_program(error: BaseException | None) -> NoReturn:
    """End this process as Python would end a program with that exception, but for exit handlers."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def tag_output(current_task: Callable[[], Task | None], task_name: Callable[[], str]) -> None:
    """Replace this process's stdout and stderr."""
    _buffers[:] = [TaggedBuffer(descriptor, current_task, task_name) for descriptor in (1, 2)]
    sys.stdout, sys.stderr = [
        # Text is handed down at once: the buffer has to see it while the task runs that has written it.
        io.TextIOWrapper(buffer, encoding="utf-8", errors="backslashreplace", line_buffering=True, write_through=True)
        for buffer in _buffers
    ]
