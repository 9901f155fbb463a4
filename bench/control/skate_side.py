"""The control store of Skate: on chains of Redis servers, and in SQLite."""

from __future__ import annotations

import select
import tempfile
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import tools
from servers import address, servers

from skate._control.storage.interface import Put, Storage
from skate._control.storage.opening import open_storage

WITHIN_S = 60.0
#: The client goes on for this time after a member was killed or frozen.
AFTERWARDS_S = 0.3
FROZEN_S = 1.5


def writes(shards: int, members: int, seconds: float) -> dict[str, Any]:
    with servers(shards * members) as started, tempfile.TemporaryDirectory() as folder:
        storage = open_storage(address(started, members), directory=folder)
        found = tools.series(lambda in_flight: _measure(storage, in_flight, seconds))
        storage.close()
        return found


def sqlite_writes(seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        storage = open_storage(folder, directory=folder)
        found = tools.series(lambda in_flight: _measure(storage, in_flight, seconds))
        storage.close()
        return found


def _measure(storage: Storage, in_flight: int, seconds: float) -> tuple[float, float, float]:
    poll = select.poll()
    poll.register(storage.fileno(), select.POLLIN)
    began = time.perf_counter()
    latencies: list[float] = []
    under_way: deque[float] = deque()
    written = 0
    while time.perf_counter() < began + seconds:
        while len(under_way) < in_flight:
            written += 1
            under_way.append(time.perf_counter())
            storage.write([Put("rows", tools.key(written), tools.VALUE)])
        poll.poll()
        done = storage.completed()
        now = time.perf_counter()
        latencies += [now - under_way.popleft() for _ in done]
    took_s = time.perf_counter() - began
    storage.flush(WITHIN_S)
    storage.completed()
    return tools.figures_of(latencies, took_s)


# -- failures ---------------------------------------------------------------------------------------------------------


def delay(rounds: int) -> dict[str, Any]:
    largest = {"quiet": 0.0, "killed": 0.0, "joining": 0.0, "frozen": 0.0}
    with servers(2) as started, tempfile.TemporaryDirectory() as folder:
        storage: Any = open_storage(address(started, 2), directory=folder)

        def members() -> int:
            return len(storage.status().shards[0].members)

        def note(name: str, act: Callable[[], None], is_over: Callable[[], bool], after_s: float = 0.0) -> None:
            largest[name] = max(largest[name], 1000 * _closed_loop(storage, act, is_over, after_s))

        for number in range(rounds):
            victim = started[number % 2]
            note("quiet", lambda: None, lambda: True, 1.0)
            note("killed", victim.process.kill, lambda: members() == 1, AFTERWARDS_S)
            victim.end()
            victim.start()
            note("joining", lambda: None, lambda: members() == 2)
            note("frozen", victim.freeze, lambda: members() == 1, FROZEN_S)
            victim.thaw()
            note("joining", lambda: None, lambda: members() == 2)
        storage.close()
    rounded = {name: round(value, 1) for name, value in largest.items()}
    return {"largest_ms": rounded, "killed_ms": rounded["killed"], "frozen_ms": rounded["frozen"]}


def _closed_loop(storage: Storage, act: Callable[[], None], is_over: Callable[[], bool], least_s: float) -> float:
    """The longest wait for one write, until something is so; `act` comes after some of them."""
    poll = select.poll()
    poll.register(storage.fileno(), select.POLLIN)
    longest = 0.0
    end = time.perf_counter() + least_s
    for number in range(1 << 60):
        if number == 100:
            act()
        if number > 100 and number % 10 == 0 and time.perf_counter() > end and is_over():
            break
        began = time.perf_counter()
        storage.write([Put("rows", tools.key(number), tools.VALUE)])
        while not storage.completed():
            poll.poll()
        longest = max(longest, time.perf_counter() - began)
    return longest


# -- recovery ---------------------------------------------------------------------------------------------------------


def recovery(rows: int) -> dict[str, Any]:
    with servers(2) as started, tempfile.TemporaryDirectory() as folder:
        return _recovery(address(started, 2), folder, rows)


def sqlite_recovery(rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return _recovery(folder, folder, rows)


def _recovery(store: str, folder: str, rows: int) -> dict[str, Any]:
    storage = open_storage(store, directory=folder)
    for at in range(0, rows, 100):
        storage.write([Put("rows", b"row %d" % number, tools.VALUE) for number in range(at, at + 100)])
        storage.completed()
    storage.flush(WITHIN_S)
    storage.completed()
    storage.close()
    began = time.perf_counter()
    storage = open_storage(store, directory=folder)
    found = sum(1 for table in storage.tables() for _ in storage.scan(table))
    took_s = time.perf_counter() - began
    storage.close()
    assert found == rows, f"{found} of {rows} rows"
    return {"seconds": round(took_s, 3)}


if __name__ == "__main__":
    tools.main(
        {
            "writes": writes,
            "sqlite_writes": sqlite_writes,
            "delay": delay,
            "recovery": recovery,
            "sqlite_recovery": sqlite_recovery,
        }
    )
