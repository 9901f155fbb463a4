"""The metrics of all ranks as one row per step. Pure.

A step is complete when every rank that has not finished has reported it or a later one; rows leave in the order of
their steps. So a rank that reports fewer steps than the others holds nothing up for longer than until its next report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]

OPERATIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: sum(values) / len(values),
    "sum": sum,
    "min": min,
    "max": max,
}


def checked_reduce(reduce: object) -> Mapping[str, str] | str | None:
    """Raises ValueError for what cannot be meant."""
    named = list(reduce.values()) if isinstance(reduce, Mapping) else [reduce]
    if reduce is not None and not all(each in OPERATIONS for each in named if isinstance(each, str)):
        raise _wrong(reduce)
    if reduce is not None and not all(isinstance(each, str) for each in named):
        raise _wrong(reduce)
    return reduce  # type: ignore[return-value]


def _wrong(reduce: object) -> ValueError:
    return ValueError(
        f"train.run(reduce={reduce!r}): it may be one of {', '.join(OPERATIONS)}, or a dict of them by the name of the "
        'metric, like {"loss": "mean", "samples": "sum"}.'
    )


class Reducer:
    """What the ranks of an attempt have reported, until it is complete."""

    def __init__(self, how: Mapping[str, str] | str, workers: int) -> None:
        self._how, self._workers = how, workers
        self._pending: dict[int, dict[int, Mapping[str, Any]]] = {}
        #: The last step that each rank has reported; only ranks that have not finished.
        self._last = dict.fromkeys(range(workers), -1)

    def reported(self, rank: int, step: int, metrics: Mapping[str, Any]) -> list[Row]:
        of_step = self._pending.setdefault(step, {})
        of_step[rank] = {**of_step.get(rank, {}), **metrics}
        self._last[rank] = max(step, self._last[rank])
        return self._complete()

    def finished(self, rank: int) -> list[Row]:
        self._last.pop(rank, None)
        return self._complete()

    def rest(self) -> list[Row]:
        """What some ranks have reported when the attempt is over."""
        self._last.clear()
        return self._complete()

    def _complete(self) -> list[Row]:
        until = min(self._last.values(), default=None)
        steps = sorted(step for step in self._pending if until is None or step <= until)
        return [self._row(step, self._pending.pop(step)) for step in steps]

    def _row(self, step: int, by_rank: dict[int, Mapping[str, Any]]) -> Row:
        row: Row = {"step": step, "workers": self._workers}
        ranks = sorted(by_rank)
        for name in dict.fromkeys(name for rank in ranks for name in by_rank[rank]):
            values = [by_rank[rank][name] for rank in ranks if name in by_rank[rank]]
            how = self._how if isinstance(self._how, str) else self._how.get(name)
            are_numbers = all(isinstance(value, (int, float)) for value in values)
            row[name] = OPERATIONS[how](values) if how and are_numbers else values[0]
        return row
