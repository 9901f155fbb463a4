"""Repeated lines are shown once, with a count.

The first of its kind is shown at once. Further ones within WINDOW_S are only counted, and the count is shown when the
window ends; so a thousand workers that warn about the same thing take two lines, and nothing is ever held back that
has not been seen before.
"""

from __future__ import annotations

WINDOW_S = 5.0
#: Distinct lines remembered at a time; beyond this the oldest is forgotten, its count shown, and would be shown again.
REMEMBERED_MAX = 1000


class Folder:
    """Decides what is shown. Time is an argument."""

    def __init__(self, fold: bool = True) -> None:
        self._fold = fold
        #: Line → (end of its window, repetitions not shown yet, how it was prefixed last).
        self._seen: dict[str, tuple[float, int, str]] = {}

    def add(self, prefix: str, text: str, now: float) -> str | None:
        """The line as it is to be shown now, if at all."""
        if not self._fold:
            return f"{prefix}{text}"
        seen = self._seen.get(text)
        if seen is not None and now < seen[0] and text.strip():
            self._seen[text] = (seen[0], seen[1] + 1, prefix)
            return None
        shown = f"{prefix}{text}"
        forgotten = text if seen is not None else None
        if seen is None and len(self._seen) >= REMEMBERED_MAX:
            forgotten = next(iter(self._seen))
        if forgotten is not None:
            _, count, last_prefix = self._seen.pop(forgotten)
            if count:
                shown = f"{_repeated(last_prefix, forgotten, count)}\n{shown}"
        self._seen[text] = (now + WINDOW_S, 0, prefix)
        return shown

    def next_deadline(self) -> float | None:
        return min((end for end, count, _ in self._seen.values() if count), default=None)

    def flush(self, now: float) -> list[str]:
        """Counts whose windows have ended. With `now` infinite, all of them."""
        shown = []
        for text, (end, count, prefix) in list(self._seen.items()):
            if end <= now:
                if count:
                    shown.append(_repeated(prefix, text, count))
                del self._seen[text]
        return shown


def _repeated(prefix: str, text: str, count: int) -> str:
    return f"{prefix}{text} [repeated {count}x]"
