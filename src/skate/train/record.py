"""What is known of a training: its result, and how reports become the rows of its history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skate.train.arguments import Options
from skate.train.checkpoint import Checkpoint
from skate.train.folder import History, Row, metrics_of
from skate.train.progress import Line
from skate.train.reduce import Reducer

__all__ = ["Attempt", "Recorder", "Result", "Row"]


@dataclass
class Attempt:
    """The workers from one start of the group to its end."""

    #: How many there were.
    workers: int
    #: The first step that they had to do.
    first_step: int
    #: What ended them; None if they finished, or made place for a larger group.
    error: BaseException | None = None


@dataclass
class Result:
    """What a training has come to; callbacks see it while it trains."""

    #: The folder of the run.
    path: Path
    #: What rank 0 has reported last, or what the ranks have together.
    metrics: dict[str, Any] = field(default_factory=dict)
    #: Every report, as {"step": 3, "rank": 0, "workers": 2, "loss": 0.5}; without "rank" if metrics are reduced. Those
    #: after the checkpoint of a restart are dropped.
    history: list[Row] = field(default_factory=list)
    #: The last committed checkpoint.
    checkpoint: Checkpoint | None = None
    #: The last failure that the run survived.
    error: BaseException | None = None
    #: Each start of the group, and how many workers it had.
    attempts: list[Attempt] = field(default_factory=list)
    #: What the run was started with.
    about: dict[str, Any] = field(default_factory=dict)


class Recorder:
    """Notes what the ranks of one attempt report."""

    def __init__(self, result: Result, workers: int, last_step: int, options: Options, line: Line) -> None:
        self._result, self._workers, self._line = result, workers, line
        self._callbacks = options.callbacks
        self._reducer = None if options.reduce is None else Reducer(options.reduce, workers)
        self._history = History(result.path, result.history, last_step)
        result.history = self._history.rows
        result.metrics = next((metrics_of(row) for row in reversed(result.history) if _is_summary(row)), {})

    def reported(self, rank: int, step: int, metrics: Mapping[str, Any]) -> list[Row]:
        """Note a report, and give the rows that it has made. They are on disk before their checkpoint is committed."""
        if self._reducer is None:
            return self._noted([{"step": step, "rank": rank, "workers": self._workers, **metrics}])
        return self._noted(self._reducer.reported(rank, step, metrics))

    def finished(self, rank: int) -> list[Row]:
        """A rank reports nothing more."""
        return [] if self._reducer is None else self._noted(self._reducer.finished(rank))

    def tell(self, rows: list[Row]) -> None:
        """Call the callbacks, which find the checkpoint in the result that belongs to these rows."""
        for row in rows:
            if _is_summary(row):
                self._line.show(row, self._workers)
            for callback in self._callbacks:
                callback(self._result, row)

    def close(self) -> None:
        if self._reducer is not None:
            self._noted(self._reducer.rest())
        self._history.close()

    def _noted(self, rows: list[Row]) -> list[Row]:
        for row in rows:
            self._history.append(row)
            if _is_summary(row):
                self._result.metrics = metrics_of(row)
        return rows


def _is_summary(row: Row) -> bool:
    """Whether a row stands for the training as a whole, and not for another rank than 0."""
    return bool(row.get("rank", 0) == 0)
