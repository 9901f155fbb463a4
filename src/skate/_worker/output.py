"""What a worker prints carries the name of the task that printed it.

The daemon reads a worker's output from pipes and cannot know which task wrote a line. So before output under a new
name the stream gets a line of its own, `\\0skate:task:<name>`, which the daemon takes out. It costs nothing while
nothing is printed.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

MARK = "\0skate:task:"


class TaggedStream(io.TextIOWrapper):
    """A line-buffered text stream that marks whose output follows."""

    def __init__(self, descriptor: int, task_name: Callable[[], str]) -> None:
        raw = io.FileIO(descriptor, "w", closefd=False)
        super().__init__(io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True)
        self._task_name = task_name
        self._last = ""
        self._at_line_start = True

    def write(self, text: str, /) -> int:
        name = self._task_name()
        if name != self._last and self._at_line_start:
            self._last = name
            super().write(f"{MARK}{name}\n")
        if text:
            self._at_line_start = text.endswith("\n")
        return super().write(text)

    def flush_partial(self) -> None:
        """Send on what has no end of line yet."""
        if not self._at_line_start:
            self.flush()


def flush_output() -> None:
    """Show partial lines of this process: nobody should wait for the end of a line that may never come."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TaggedStream):
            stream.flush_partial()


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


def tag_output(task_name: Callable[[], str]) -> None:
    """Replace this process's stdout and stderr."""
    sys.stdout = TaggedStream(1, task_name)
    sys.stderr = TaggedStream(2, task_name)
