"""What a process printed last: kept while the process lives, to say in an error what it died of.

    lines of stdout ──▶ Tail ──┐
                               ├──▶ text(): the last lines of both, in the order in which they were read
    lines of stderr ──▶ Tail ──┘

stderr has a tail of its own, because a program that prints much to stdout would push the reason of its death out.

When the interpreter itself crashed, the text is what was printed before, the headline of the crash, and what follows
that on stderr: the innermost frames, which are the user's, stand at the top there. Those at the bottom are Skate's.

The two streams are two pipes, so the order between them is only as good as the moments at which they were read: of what
is read at the same time, stdout comes first. Within a stream the order is exact.

Bounds: LINES_MAX lines and BYTES_MAX bytes for a tail and for the text; older lines are dropped. Of a crash LINES_MAX
lines are kept. Of a line longer than LINE_CHARACTERS_MAX the beginning is kept. A progress bar that is drawn over and
over is one line, its last state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from skate._core.task import Line

LINES_MAX = 20
BYTES_MAX = 4096
#: Less than a quarter of BYTES_MAX: a character has at most four bytes, and at least one line must fit.
LINE_CHARACTERS_MAX = 1000
#: Lines that may come before the headline of a crash.
LINES_BEFORE_CRASH_MAX = 8
#: How `faulthandler` begins, and every other crash of the interpreter.
HEADLINE = "Fatal Python error:"

#: When the line was read (a count), its text, and the bytes of that with an end of line.
Entry = tuple[int, str, int]


class Tail:
    """The last lines of one stream."""

    __slots__ = ("_is_redrawn", "_size", "lines")

    def __init__(self) -> None:
        self.lines: deque[Entry] = deque()
        self._size = 0
        #: The last line is one that begins at the left again, as progress bars do: the next such line replaces it.
        self._is_redrawn = False

    def add(self, order: int, text: str) -> None:
        is_redrawn = text.startswith("\r")
        if is_redrawn and self._is_redrawn and self.lines:
            self._size -= self.lines.pop()[2]
        self._is_redrawn = is_redrawn
        entry = _entry(order, text)
        self.lines.append(entry)
        self._size += entry[2]
        while len(self.lines) > LINES_MAX or self._size > BYTES_MAX:
            self._size -= self.lines.popleft()[2]


class LastOutput:
    """The last lines of one process."""

    __slots__ = ("_count", "_crash", "_stderr", "_stdout")

    def __init__(self) -> None:
        self._count = 0
        self._stdout = Tail()
        self._stderr = Tail()
        #: The headline of a crash and what followed it on stderr; empty: the interpreter has not crashed.
        self._crash: list[Entry] = []

    def add(self, lines: list[Line], *, is_error: bool) -> None:
        """The process has printed these lines to stderr, or to stdout."""
        if is_error:
            for line in lines:
                self._add_error(line.text)
        else:
            for line in lines[-LINES_MAX:]:
                self._count += 1
                self._stdout.add(self._count, line.text)

    def _add_error(self, text: str) -> None:
        self._count += 1
        if not self._crash and not _is_headline(text):
            self._stderr.add(self._count, text)
        elif len(self._crash) < LINES_MAX:
            self._crash.append(_entry(self._count, text))

    def stderr(self) -> list[str]:
        """The last lines of stderr alone."""
        return _bounded(self._stderr.lines, self._crash)

    def text(self) -> str:
        """The last lines of both streams; empty if the process has printed nothing."""
        return "\n".join(_bounded(sorted([*self._stdout.lines, *self._stderr.lines]), self._crash)).strip("\n")


def _is_headline(text: str) -> bool:
    """Whether the interpreter crashes here. Native code may have ended without a newline before the headline; in the
    error of another process, which this one prints, the headline is indented."""
    return HEADLINE in text and not text.startswith(" ")


def _entry(order: int, text: str) -> Entry:
    if "\r" in text:  # what a terminal would show
        text = text.rstrip("\r").rpartition("\r")[2]
    if len(text) > LINE_CHARACTERS_MAX:
        text = f"{text[:LINE_CHARACTERS_MAX]} …"
    return order, text, len(text.encode()) + 1


def _bounded(before: Iterable[Entry], crash: list[Entry]) -> list[str]:
    """The first lines of a crash and the last lines before it; without a crash, the last lines."""
    before = list(before)[-(LINES_BEFORE_CRASH_MAX if crash else LINES_MAX) :]
    room = BYTES_MAX
    first: list[str] = []
    for _, text, size in crash[: LINES_MAX - len(before)]:
        room -= size
        if room < 0:
            break
        first.append(text)
    last: list[str] = []
    for _, text, size in reversed(before):
        room -= size
        if room < 0:
            break
        last.append(text)
    return [*reversed(last), *first]
