"""`skate.progress(refs)`: a bar while references become ready, in terminals and notebooks."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from skate._error_text import kind_of
from skate._object_ref import ObjectRef
from skate._worker.current import get_runtime

T = TypeVar("T")

#: A bar is drawn at most this often.
PERIOD_S = 0.1
WIDTH = 30


class _Bar(Protocol):
    def update(self, done: int) -> None: ...


def progress(refs: Iterable[ObjectRef[T]], *, description: str = "tasks") -> list[ObjectRef[T]]:
    """Show a bar until all references are ready (with a value or an error); returns them as a list.

        >>> values = skate.get(skate.progress([f.remote(i) for i in range(1000)]))

    Uses rich when it is installed, and plain text otherwise; when the output is not a terminal, one line at the end.
    """
    refs = list(refs)
    runtime = get_runtime()
    done = 0

    def count() -> None:
        nonlocal done
        done += 1

    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"progress() takes references, and an element is {kind_of(ref)}.")
        runtime.when_ready(ref, count)
    with _new_bar(len(refs), description) as bar:
        while done < len(refs):
            seen = done
            bar.update(seen)
            begin = time.monotonic()
            runtime.block_until(lambda seen=seen: done > seen, None)  # type: ignore[misc]
            # Let results collect, so that drawing costs nothing against the work.
            runtime.block_until(lambda: done == len(refs), max(0.0, PERIOD_S - (time.monotonic() - begin)))
        bar.update(done)
    return refs


@contextmanager
def _new_bar(total: int, description: str) -> Iterator[_Bar]:
    rich = _import_rich()
    if rich is None:
        bar = _PlainBar(total, description)
        yield bar
        bar.close()
        return
    columns: list[Any] = [
        rich.TextColumn("{task.description}"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    ]
    from rich.console import Console

    with rich.Progress(*columns, console=Console(stderr=True)) as display:
        task = display.add_task(description, total=total)
        yield _RichBar(display, task)
        if display.console.is_jupyter:
            display.refresh()  # in a notebook rich ends with what its timer drew last


def _import_rich() -> Any:
    """The module, if it is there and can draw here: in a notebook it needs ipywidgets."""
    try:
        import rich.console
        import rich.progress
    except ImportError:
        return None
    if rich.console.Console(stderr=True).is_jupyter and importlib.util.find_spec("ipywidgets") is None:
        return None
    return rich.progress


class _RichBar:
    def __init__(self, display: Any, task: Any) -> None:
        self._display = display
        self._task = task

    def update(self, done: int) -> None:
        self._display.update(self._task, completed=done)


class _PlainBar:
    """A bar of characters in a terminal; elsewhere one line at the end."""

    def __init__(self, total: int, description: str) -> None:
        self._total = total
        self._description = description
        self._begin = time.monotonic()
        self._stream = sys.stderr
        self._live = self._stream.isatty()
        self._done = 0

    def update(self, done: int) -> None:
        self._done = done
        if self._live:
            self._stream.write("\r" + self._text())
            self._stream.flush()

    def _text(self) -> str:
        full = WIDTH if not self._total else WIDTH * self._done // self._total
        seconds = time.monotonic() - self._begin
        bar = "#" * full + "-" * (WIDTH - full)
        return f"{self._description} [{bar}] {self._done}/{self._total} {seconds:.1f} s"

    def close(self) -> None:
        self._stream.write(("\r" if self._live else "") + self._text() + "\n")
        self._stream.flush()
