"""What workers print: bytes from their pipes to lines for the driver.

    worker stdout/stderr ── pipe ──▶ Stream.feed ──▶ Line ──▶ LogQueue ──▶ Logs to each driver that wants them

A worker marks the task that it is in by a line of its own, `\\0skate:task:<name>`, before the first output of that task
on each stream. The marker is not shown; the lines after it carry the name. It may follow text that another task has
left unfinished: that is a line of its own, and the other's.

Native code and child processes write to the same pipes, without a marker. What they write carries the name that the
worker has put into its slot of the arena, when the daemon reads it. The worker may be in a task of another name by
then. So before such a task it looks whether something is in the pipe, or a marker in force, and if so writes
`\\0skate:task:\\0<name>\\0<next>`: what came before it without a marker was by the task of that name, what follows
without one is by the next, and no marker is in force. Data that were in the pipe when the daemon looked into the slot,
and have no such marker before them, are therefore by the task whose name it found there.

Everything is bounded. A longer line than LINE_BYTES_MAX is cut and says so. When the driver does not keep up, lines
beyond QUEUE_LINES_MAX are dropped and their number is said instead. A program that prints is never stopped by this.
"""

from __future__ import annotations

from collections import deque

from skate._core.task import Line
from skate._wire.messages import Logs

TASK_MARK = b"\0skate:task:"
END_OF_MARK = b"\0"
#: A line longer than this is cut.
LINE_BYTES_MAX = 16 << 10
#: Lines that wait for a driver that does not read; more are dropped.
QUEUE_LINES_MAX = 20_000
#: Lines in one message.
MESSAGE_LINES_MAX = 1_000
#: Text without a newline (a prompt, a progress bar) is shown when nothing has followed it for this time.
PARTIAL_LINE_S = 0.15


class Stream:
    """One output stream of one worker."""

    def __init__(self, *, is_error: bool) -> None:
        self.pid = 0
        #: The task that prints, as the last marker says; None: there is none, or it has ended.
        self.name: str | None = None
        #: Who prints what no marker is in force for: as the slot said when these data were in the pipe already.
        self.native_name = ""
        #: Where in the lines of this data those are that have no name yet.
        self._unnamed: list[int] = []
        self.is_error = is_error
        self._partial = bytearray()
        #: Something came since the daemon last looked for text that stays without a newline.
        self.fed = False
        #: The rest of the line is skipped: it was too long.
        self._skipping = False

    @property
    def has_partial(self) -> bool:
        return bool(self._partial) and not TASK_MARK.startswith(self._partial[: len(TASK_MARK)])

    def feed(self, data: bytes) -> list[Line]:
        """The lines that are complete with this data."""
        lines: list[Line] = []
        self.fed = True
        self._unnamed.clear()
        *whole, rest = data.split(b"\n")
        for piece in whole:
            if self._skipping:
                self._skipping = False
                continue
            if self._partial:
                piece = bytes(self._partial) + piece
                self._partial.clear()
            self._add(piece, lines)
        if rest and not self._skipping:
            self._partial += rest
            if len(self._partial) > LINE_BYTES_MAX:
                self._add(bytes(self._partial), lines)
                self._partial.clear()
                self._skipping = True
        self._name_all(lines, self.native_name)
        return lines

    def flush(self) -> list[Line]:
        """What was printed without a newline, as a line."""
        lines: list[Line] = []
        if self._partial:
            self._add(bytes(self._partial), lines)
            self._partial.clear()
        self._name_all(lines, self.native_name)
        return lines

    def _name_all(self, lines: list[Line], name: str) -> None:
        for index in self._unnamed:
            lines[index].name = name
        self._unnamed.clear()

    def _add(self, piece: bytes, lines: list[Line]) -> None:
        mark = piece.find(TASK_MARK)
        # A marker not at the beginning: the task before ended its output without a newline.
        text = piece if mark < 0 else piece[:mark]
        if text or mark < 0:
            if self.name is None:
                self._unnamed.append(len(lines))
            lines.append(Line(self.pid, self.name or "", self.is_error, _decode(text)))
        if mark >= 0:
            said = piece[mark + len(TASK_MARK) :]
            self.name = _decode(said)
            if said.startswith(END_OF_MARK):
                before, _, self.native_name = self.name[1:].partition("\0")
                self._name_all(lines, before)
                self.name = None


def _decode(text: bytes) -> str:
    decoded = text[:LINE_BYTES_MAX].decode("utf-8", "replace")
    if len(text) > LINE_BYTES_MAX:
        decoded += f" … (cut here: the line is longer than {LINE_BYTES_MAX} bytes)"
    return decoded


class LogQueue:
    """Lines on their way to one driver."""

    def __init__(self) -> None:
        self._lines: deque[Line] = deque()
        self._dropped = 0

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, lines: list[Line]) -> None:
        room = QUEUE_LINES_MAX - len(self._lines)
        self._lines.extend(lines[:room])
        self._dropped += max(0, len(lines) - room)

    def take(self) -> Logs | None:
        """The next message, None if there is nothing to say."""
        if not self._lines and not self._dropped:
            return None
        count = min(len(self._lines), MESSAGE_LINES_MAX)
        lines = [self._lines.popleft() for _ in range(count)]
        if self._dropped and not self._lines:
            text = f"({self._dropped} lines were dropped here: they came faster than the driver took them)"
            lines.append(Line(0, "", True, text))
            self._dropped = 0
        return Logs(lines)
