"""What workers print, shown at the driver with a prefix that says who printed it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

from skate._core.log_fold import Folder
from skate._core.task import Line
from skate._worker.loop import Loop

#: Half of the buffer of a text stream.
PIECE_CHARACTERS_MAX = 4096


class LogPrinter:
    """Writes lines of workers to the driver's own stdout and stderr. Called by the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        fold = os.environ.get("SKATE_DEDUP_LOGS", "1") != "0"
        self._folders = {False: Folder(fold), True: Folder(fold)}
        self._timer = False

    def print_lines(self, lines: list[Line]) -> None:
        now = time.monotonic()
        for is_error in (False, True):
            folder = self._folders[is_error]
            shown = []
            for line in lines:
                if line.is_error == is_error:
                    # What the node daemon says about the lines is no line of a worker, and is never folded.
                    text = folder.add(_prefix(line), line.text, now) if line.pid else f"(skate) {line.text}"
                    if text is not None:
                        shown.append(text)
            self._write(is_error, shown)
        self._schedule()

    def _schedule(self) -> None:
        if self._timer:
            return
        deadlines = [when for folder in self._folders.values() if (when := folder.next_deadline()) is not None]
        if deadlines:
            self._timer = True
            self._loop.call_at(min(deadlines), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = False
        self.flush(time.monotonic())
        self._schedule()

    def flush(self, now: float = float("inf")) -> None:
        """Show the counts of repeated lines that are due; all of them by default."""
        for is_error, folder in self._folders.items():
            self._write(is_error, folder.flush(now))

    def _write(self, is_error: bool, lines: list[str]) -> None:
        if not lines:
            return
        # Looked up each time: notebooks and test runners replace the streams.
        stream = sys.stderr if is_error else sys.stdout
        try:
            for piece in _pieces(lines):
                stream.write(piece)
                stream.flush()
        except (OSError, ValueError, AttributeError):
            pass  # the driver's own output is closed: there is nobody to show it to


def _pieces(lines: list[str]) -> Iterator[str]:
    """Whole lines, not more at a time than the stream's buffer takes at once.

    The program prints to the same stream from another thread: its text may come between pieces, not within a line.
    """
    piece: list[str] = []
    size = 0
    for line in lines:
        if size + len(line) >= PIECE_CHARACTERS_MAX and piece:
            yield "".join(piece)
            piece, size = [], 0
        piece.append(f"{line}\n")
        size += len(line) + 1
    yield "".join(piece)


def _prefix(line: Line) -> str:
    return f"({line.name} pid={line.pid}) " if line.name else f"(pid={line.pid}) "
