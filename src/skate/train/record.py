"""What is known of a training: its result, and how reports become the rows of its history."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skate.train.arguments import Options
from skate.train.checkpoint import Checkpoint, committed_in
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

    @property
    def best_checkpoints(self) -> list[tuple[Checkpoint, dict[str, Any]]]:
        """The checkpoints that were kept, oldest first, with what rank 0 reported beside each."""
        kept = [Checkpoint(path) for path in committed_in(self.path)]
        return [(each, self.metrics_at(each.step)) for each in kept]

    @property
    def metrics_dataframe(self) -> Any:
        """What rank 0 reported beside each checkpoint that was kept: a row each, in a DataFrame of pandas."""
        import pandas as pd

        return pd.DataFrame([metrics for _, metrics in self.best_checkpoints])

    def get_best_checkpoint(self, metric: str, mode: str = "max") -> Checkpoint | None:
        """The checkpoint with the largest ("max") or smallest ("min") value of a metric; None if none has it."""
        scored = [(metrics[metric], each) for each, metrics in self.best_checkpoints if metric in metrics]
        return {"max": max, "min": min}[mode](scored, key=lambda pair: pair[0], default=(None, None))[1]

    def metrics_at(self, step: int) -> dict[str, Any]:
        """What rank 0 reported at a step, or what the ranks reported together."""
        rows = (row for row in reversed(self.history) if row["step"] == step and _is_summary(row))
        return next(map(metrics_of, rows), {})

    def score(self, checkpoint: Checkpoint, best: tuple[str, str]) -> float:
        """How good a checkpoint is: larger is better. Without a value of the metric it is the worst."""
        metric, mode = best
        value = self.metrics_at(checkpoint.step).get(metric)
        return -math.inf if value is None or value != value else float(value) * (-1.0 if mode == "min" else 1.0)


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
