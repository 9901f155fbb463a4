"""What the programs of this suite share: the row that is written, and figures of latencies."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

VALUE = bytes(512)
KEYS = 10_000
IN_FLIGHT = (1, 32)


def key(number: int) -> bytes:
    return b"key %021d" % (number % KEYS)


def figures_of(latencies_s: list[float], took_s: float) -> tuple[float, float, float]:
    """Writes a second; the median and the 99th of 100 in microseconds."""
    ordered = sorted(latencies_s)
    count = len(ordered)
    return count / took_s, ordered[count // 2] * 1e6, ordered[count * 99 // 100] * 1e6


def series(measure: Callable[[int], tuple[float, float, float]]) -> dict[str, Any]:
    writes, latency = {}, {}
    for in_flight in IN_FLIGHT:
        a_second, median, late = measure(in_flight)
        writes[f"{in_flight}"] = round(a_second)
        latency |= {f"{in_flight}, median": round(median, 1), f"{in_flight}, 99th": round(late, 1)}
    return {"writes_per_s": writes, "latency_us": latency}


def main(rows: dict[str, Callable[..., dict[str, Any]]]) -> None:
    arguments = {name: json.loads(value) for name, _, value in (word.partition("=") for word in sys.argv[2:])}
    print(json.dumps(rows[sys.argv[1]](**arguments)), flush=True)
