"""What a training shows on stderr while it runs: a line that changes on a terminal, a line now and then elsewhere.

mnist: step 120 · 34.2 steps/s · 2 workers · loss 0.1234 · accuracy 0.97
"""

from __future__ import annotations

import shutil
import sys
import time
from typing import Any

from skate.train.folder import metrics_of

#: How often a training shows numbers where there is no terminal, and says that it waits for resources.
LINE_EVERY_S = 10.0
#: How often the line on a terminal changes.
REDRAW_EVERY_S = 0.1
#: The rate is that of the last steps within this time.
RATE_OVER_S = 5.0


class Line:
    """The line of one training."""

    def __init__(self, name: str, shown: bool | None) -> None:
        self._name = name
        self._is_terminal = sys.stderr.isatty()
        self._shown = self._is_terminal if shown is None else shown
        self._next = 0.0
        #: Whether something stands on the line of the terminal where the cursor is.
        self._is_drawn = False
        self._marks: list[tuple[float, int]] = []
        self._text = ""

    def show(self, row: dict[str, Any], workers: int) -> None:
        """Show the numbers of a row, if it is time to. The last ones are shown in any case by `close`."""
        if not self._shown:
            return
        now = time.monotonic()
        step = row["step"]
        if self._marks and step <= self._marks[-1][1]:
            self._marks.clear()  # begun again, from an earlier step
        self._marks.append((now, step))
        while len(self._marks) > 2 and now - self._marks[0][0] > RATE_OVER_S:
            del self._marks[0]
        (begin, first), (end, last) = self._marks[0], self._marks[-1]
        parts = [f"{self._name}: step {step}"]
        if end > begin:
            parts.append(f"{(last - first) / (end - begin):.3g} steps/s")
        parts.append("1 worker" if workers == 1 else f"{workers} workers")
        parts += [f"{name} {value:.4g}" for name, value in metrics_of(row).items() if isinstance(value, (int, float))]
        self._text = " · ".join(parts)
        if now >= self._next:
            self._next = now + (REDRAW_EVERY_S if self._is_terminal else LINE_EVERY_S)
            self._draw()

    def say(self, text: str) -> None:
        """Print lines of text above the line."""
        sys.stderr.write(("\r\033[K" if self._is_drawn else "") + text.rstrip("\n") + "\n")
        sys.stderr.flush()
        self._is_drawn = False

    def close(self) -> None:
        """Show the last numbers, and leave the line."""
        if self._shown and self._text:
            self._draw()
            if self._is_terminal:
                sys.stderr.write("\n")
                sys.stderr.flush()
        self._is_drawn, self._text = False, ""

    def _draw(self) -> None:
        if not self._is_terminal:
            sys.stderr.write(self._text + "\n")
            self._text = ""
        else:
            width = shutil.get_terminal_size().columns - 1
            text = self._text if len(self._text) <= width else self._text[: max(0, width - 1)] + "…"
            sys.stderr.write(f"\r\033[K{text}")
            self._is_drawn = True
        sys.stderr.flush()
