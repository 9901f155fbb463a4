"""What a worker prints carries the name of the task that printed it.

The daemon reads a worker's output from pipes and cannot know which task wrote a line. So before output of another task
the stream gets a mark, `\\0skate:task:<name>` and an end of line, which the daemon takes out. A mark also ends the line
that a task has left unfinished. It costs nothing while nothing is printed.

Native code and child processes write to the descriptors themselves, without a mark. For them the name stands in this
process's slot of the arena, and is written there before a task that has another name than the last one: that is a copy
of a few bytes, while a mark before each task would wake the daemon. If the daemon has not read yet what the task before
has written, or a mark of that task is in force, a mark says so first (see `_node/logs.py`).
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from skate._store.layout import format_name
from skate._worker.context import CURRENT_CALL

if TYPE_CHECKING:
    from skate._core.task import Task

MARK = b"\0skate:task:"
#: No id of a task: the next writer is another one.
NO_WRITER = b"\0"
#: Asks how many bytes in a pipe have not been read.
FIONREAD = 0x541B
_NONE = bytes(4)


class TaggedBuffer(io.BufferedWriter):
    """The binary stream below stdout or stderr, where text and bytes pass: it marks whose output follows."""

    def __init__(self, descriptor: int, current_task: Callable[[], Task | None], task_name: Callable[[], str]) -> None:
        super().__init__(io.FileIO(descriptor, "w", closefd=False))
        self._descriptor = descriptor
        self._current_task = current_task
        self._task_name = task_name
        #: Which task has written last, and the name that is marked; None: no mark is in force.
        self._writer = b""
        self._marked: str | None = None
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
                mark = _mark(name)
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

    def _writer_now(self) -> bytes:
        task = self._current_task()
        return b"" if task is None else task.id

    def end_mark(self, name: str, following: str) -> None:
        """What is there and not marked is by that task, and what follows by the other, unless it is marked again."""
        try:
            in_force = self._marked is not None or not self._at_line_start
            if in_force or fcntl.ioctl(self._descriptor, FIONREAD, _NONE) != _NONE:
                self._writer, self._marked, self._at_line_start = NO_WRITER, None, True
                super().write(_mark(f"\0{name}\0{following}"))
                self.flush()
        except (OSError, ValueError):
            pass  # the task has closed it

    def send_on(self) -> None:
        """What has not been; a line that its task has left unfinished is ended."""
        if self._at_line_start and not self._unsent:
            return
        try:
            if not self._at_line_start and not self._is_one_of_many and self._writer_now() != self._writer:
                self._at_line_start = True
                # An end of line would be an empty one, if the rest is shown already.
                super().write(_mark(f"\0{_shown_name}\0{_shown_name}" if self._marked is None else self._marked))
                self._unsent = True
            if self._unsent:
                self.flush()
        except (OSError, ValueError):
            pass  # the task has closed it


def _mark(name: str) -> bytes:
    return b"%b%b\n" % (MARK, name.encode("utf-8", "backslashreplace"))


#: Those of this process, and the name that stands in its slot.
_buffers: list[TaggedBuffer] = []
_shown_name = ""


def show_name(field: memoryview, name: str) -> None:
    """What native code and child processes print from now on is by that task or actor."""
    global _shown_name
    if name != _shown_name:
        for buffer in _buffers:
            buffer.end_mark(_shown_name, name)
        field[:] = format_name(name)
        _shown_name = name


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
