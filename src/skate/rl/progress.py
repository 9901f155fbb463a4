"""What a run shows while it trains, and its numbers in words."""

from __future__ import annotations

import math
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skate.rl.run import Run

#: Without a terminal, progress is a line every so often.
LINE_EVERY_S = 30.0


class Bar:
    """A live bar on a terminal; elsewhere, in notebooks too, a line now and then; nothing if `shown` is False."""

    def __init__(self, run: Run, shown: bool | None) -> None:
        self._display: Any = None
        self._text = ""
        self._label = f"{run.algorithm} {run.env_name}"
        self._next_line = math.inf if shown is False else time.monotonic() + LINE_EVERY_S
        if shown is False:
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        console = Console(stderr=True)
        if console.is_terminal and not console.is_dumb_terminal and not console.is_jupyter:
            columns = "{task.completed:,.0f}/{task.total:,.0f} steps", "{task.fields[text]}"
            texts = [TextColumn(column, markup=False) for column in ("{task.description}", *columns)]
            bar = BarColumn(bar_width=None)
            self._display = Progress(texts[0], bar, *texts[1:], console=console, refresh_per_second=4, expand=True)
            self._task = self._display.add_task(self._label, total=run.target, completed=run.steps, text="")
            self._display.start()

    def show(self, run: Run, row: dict[str, Any]) -> None:
        self._text = _numbers(run, row)
        if self._display is not None:
            self._display.update(self._task, completed=min(run.steps, run.target), text=self._text)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + LINE_EVERY_S
            sys.stderr.write(f"{self._label}: {run.steps:,} of {run.target:,} steps, {self._text}\n")

    def say(self, text: str) -> None:
        if self._display is not None:
            self._display.update(self._task, text=text or self._text)

    def close(self) -> None:
        if self._display is not None:
            self._display.stop()


def _numbers(run: Run, row: dict[str, Any]) -> str:
    numbers = [f"{significant(run.rate)}/s"]
    if row["mean_return"] is not None:
        numbers.append(f"return {row['mean_return']:.4g}")
    if run.more():
        numbers.append(f"{duration((run.target - run.steps) / max(run.rate, 1e-9))} left")
    return ", ".join(numbers)


def duration(seconds: float) -> str:
    """A time in words: 6.1 s, 21 s, 3 min, 2 h 5 min."""
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def significant(value: float) -> str:
    """A rate with three figures: 23,800."""
    if value < 1:
        return f"{value:.2g}"
    return f"{round(value, 2 - int(math.log10(value))):,.0f}" if value >= 100 else f"{value:.3g}"
