"""Progress bars that also work in tasks and actors, with the interface of `tqdm`.

    @skate.remote
    def work(items):
        for item in tqdm_ray.tqdm(items, desc="items"):
            ...

In a terminal of the driver a bar is drawn. Elsewhere it is a line from time to time and one at the end; what tasks
write appears in the driver with the name and the pid of the task before it, as all that they print does.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sized
from typing import Any

__all__ = ["instance", "safe_print", "tqdm"]

#: A bar in a terminal is drawn, and a line is written elsewhere, at most this often.
DRAWN_S = 0.1
WRITTEN_S = 5.0
WIDTH = 30

_lock = threading.RLock()


class tqdm:  # noqa: N801 - the name that it has everywhere
    """A bar: iterate over it, or call `update()` and at the end `close()`."""

    def __init__(
        self,
        iterable: Iterable[Any] | None = None,
        desc: str | None = None,
        total: int | None = None,
        unit: str | None = None,
        position: int | None = None,
        flush_interval_s: float | None = None,
    ) -> None:
        self._iterable = iterable
        self._description = desc or ""
        self._unit = unit or "it"
        self.total = len(iterable) if total is None and isinstance(iterable, Sized) else total
        self.n = 0
        #: Without effect: several bars write one below the other.
        self.pos = position or 0
        self._stream = sys.stderr
        self._is_live = self._stream.isatty()
        self._period_s = flush_interval_s if flush_interval_s is not None else DRAWN_S if self._is_live else WRITTEN_S
        self._begun_at = self._shown_at = time.monotonic()
        self._is_closed = False
        with _lock:
            _instance.bars.add(self)

    def set_description(self, desc: str) -> None:
        self._description = desc
        self._show_if_due()

    def update(self, n: int = 1) -> None:
        """Advance the bar by `n` steps."""
        self.n += n
        self._show_if_due()

    def refresh(self) -> None:
        """Show it now."""
        with _lock:
            if not self._is_closed and not _instance.hidden:
                self._show()

    def close(self) -> None:
        """Show how it ended, and no more."""
        with _lock:
            if self._is_closed:
                return
            if not _instance.hidden:
                self._show(last=True)
            self._is_closed = True
            _instance.bars.discard(self)

    def _show_if_due(self) -> None:
        if time.monotonic() - self._shown_at >= self._period_s:
            self.refresh()

    def _show(self, *, last: bool = False) -> None:
        self._shown_at = time.monotonic()
        if self._is_live:
            self._stream.write(f"\r\x1b[K{self._text()}" + ("\n" if last else ""))
        else:
            self._stream.write(self._text() + "\n")
        self._stream.flush()

    def _text(self) -> str:
        seconds = time.monotonic() - self._begun_at
        head = f"{self._description} " if self._description else ""
        rate = f"{self.n / seconds:.1f} {self._unit}/s" if seconds > 0 else ""
        if not self.total:
            return f"{head}{self.n} {self._unit} {seconds:.1f} s {rate}".rstrip()
        full = min(WIDTH, WIDTH * self.n // self.total)
        bar = "#" * full + "-" * (WIDTH - full)
        return f"{head}[{bar}] {self.n}/{self.total} {seconds:.1f} s {rate}".rstrip()

    def __iter__(self) -> Iterator[Any]:
        if self._iterable is None:
            raise TypeError("this bar was made without an iterable; call update() and close().")
        try:
            for item in self._iterable:
                yield item
                self.update()
        finally:
            self.close()

    def __enter__(self) -> tqdm:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _BarManager:
    """The bars of this process."""

    def __init__(self) -> None:
        #: Those that are not closed; one that was dropped is of no interest either.
        self.bars: weakref.WeakSet[tqdm] = weakref.WeakSet()
        self.hidden = False

    def hide_bars(self) -> None:
        """Let nothing of the bars be seen for a while: something else writes."""
        with _lock:
            self.hidden = True
            for bar in self.bars:
                if bar._is_live:
                    bar._stream.write("\r\x1b[K")
                    bar._stream.flush()

    def unhide_bars(self) -> None:
        with _lock:
            self.hidden = False
            for bar in self.bars:
                if bar._is_live:
                    bar._show()


_instance = _BarManager()


def instance() -> _BarManager:
    """The bars of this process, all together: to hide them and show them again."""
    return _instance


def safe_print(*args: Any, **kwargs: Any) -> None:
    """Print without tearing the bars."""
    file = kwargs.pop("file", None) or sys.stdout
    with _lock:
        was_hidden = _instance.hidden
        _instance.hide_bars()
        try:
            print(*args, **kwargs, file=file)
        finally:
            if not was_hidden:
                _instance.unhide_bars()
