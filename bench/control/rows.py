"""The rows of the suite: stores of several sizes beside plain Redis, spoken to by the same client."""

from __future__ import annotations

from typing import Any

from suite import Cell, Row

SECONDS = {"seconds": 5.0}
TINY = {"seconds": 0.2}
SKATE: dict[str, Any] = {"program": "skate_side", "environment": "control"}
PLAIN: dict[str, Any] = {"program": "plain_side", "environment": "control"}


def _stores(row: str) -> dict[str, Cell]:
    """skate: the chain of two that the paper measured."""
    sizes = {"skate": (1, 2), "1 member": (1, 1), "3 members": (1, 3), "2 shards": (2, 1), "4 shards": (4, 1)}
    cells = {"plain redis": Cell(row=row, **PLAIN, arguments=SECONDS, smoke=TINY)}
    for name, (shards, members) in sizes.items():
        arguments = {"shards": shards, "members": members, **SECONDS}
        cells[name] = Cell(row=row, **SKATE, arguments=arguments, smoke=TINY)
    return cells


ROWS = {
    row.name: row
    for row in [
        Row(
            "writes",
            "writes a second of one client with 1 and with 32 writes under way, each of a row with a key of 25 bytes "
            "and a value of 512; plain redis is HSET with the same parser, pipelined",
            {**_stores("writes"), "sqlite": Cell(row="sqlite_writes", **SKATE, arguments=SECONDS, smoke=TINY)},
            figure="writes_per_s",
        ),
        Row(
            "latency",
            "microseconds from a write to its acknowledgement, the median and the 99th of 100, with 1 and with 32 "
            "under way",
            {**_stores("writes"), "sqlite": Cell(row="sqlite_writes", **SKATE, arguments=SECONDS, smoke=TINY)},
            figure="latency_us",
            more_is_better=False,
        ),
        Row(
            "delay",
            "the longest that a closed-loop client waits for one write (25 bytes, 512 bytes, a chain of two), in "
            "milliseconds: in a second without failures, when a member is killed (head and tail by turns), while a new "
            "one joins, and when one is frozen with a time-out of 1 s; the largest of 6",
            {"skate": Cell(row="delay", **SKATE, arguments={"rounds": 6}, smoke={"rounds": 1}, runs=3)},
            figure="largest_ms",
            more_is_better=False,
            own={"killed_ms": -30.0, "frozen_ms": -1010.0},
        ),
        Row(
            "recovery",
            "seconds from the start of another service to the last of 100,000 rows with values of 512 bytes, in a "
            "chain of two and in SQLite",
            {
                "skate": Cell(row="recovery", **SKATE, arguments={"rows": 100_000}, smoke={"rows": 1000}),
                "sqlite": Cell(row="sqlite_recovery", **SKATE, arguments={"rows": 100_000}, smoke={"rows": 1000}),
            },
            figure="seconds",
            more_is_better=False,
            limit=5.0,
        ),
    ]
}
