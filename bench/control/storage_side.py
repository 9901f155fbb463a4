"""Rows about engines of the storage alone: no service and no node is between the client and the engine."""

from __future__ import annotations

import os
import select
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tools
from clients import STUCK_S, PlainClient, StorageClient, closed_loop
from tools import TABLE, VALUE_BYTES, key_of

from skate._control.storage.interface import Put
from skate._control.storage.redis.connection.address import parse
from skate._core.cluster.chain import SILENCE_S

#: The highest latency of each of these intervals is kept for the picture.
BUCKET_S = 0.01
#: How often it is looked which members the chain has. The look is between two writes, and in no latency.
LOOK_S = 0.005
#: The member is struck from another thread, this long after the phase has begun.
STRIKE_AFTER_S = 0.05


# -- figure 10a --------------------------------------------------------------------------------------------------------


class OneClient:
    """A closed loop of one write at a time: what is not acknowledged, the next one waits for."""

    def __init__(self, storage: Any, keys: int) -> None:
        self.storage = storage
        self._names = [key_of(number) for number in range(keys)]
        self._value = os.urandom(VALUE_BYTES)
        self._poll = select.poll()
        self._poll.register(storage.fileno(), select.POLLIN)
        self._number = 0
        self._began = time.perf_counter()
        #: The highest latency in ms, by the interval in which the write ended.
        self._highest: dict[int, float] = {}
        self._looked_at = 0.0
        self.members: list[str] = []

    @property
    def now_s(self) -> float:
        return time.perf_counter() - self._began

    def fill(self) -> None:
        """All keys, once, so that a server that joins has something to copy."""
        for first in range(0, len(self._names), 100):
            self.storage.write([Put(TABLE, key, self._value) for key in self._names[first : first + 100]])
            assert self.storage.flush(STUCK_S), self.storage.trouble
            self.storage.completed()
        self._began = time.perf_counter()

    def write(self) -> float:
        """One; its latency in ms."""
        began = time.perf_counter()
        self.storage.write([Put(TABLE, self._names[self._number % len(self._names)], self._value)])
        self._number += 1
        while not (done := self.storage.completed()):
            if not self._poll.poll(STUCK_S * 1e3):
                raise TimeoutError(f"no write was acknowledged for {STUCK_S:g} s: {self.storage.trouble}")
        ended = time.perf_counter()
        if done[0].error is not None:
            raise done[0].error
        latency_ms = 1e3 * (ended - began)
        bucket = int((ended - self._began) / BUCKET_S)
        self._highest[bucket] = max(self._highest.get(bucket, 0.0), latency_ms)
        if ended - self._looked_at > LOOK_S:
            self._looked_at = ended
            self.members = [member.name for member in self.storage.status().shards[0].members]
        return latency_ms

    def phase(self, seconds: float, members: int | None = None) -> list[float]:
        """Latencies of so many seconds, or until the chain has so many members."""
        found: list[float] = []
        until = self.now_s + (seconds if members is None else STUCK_S)
        while self.now_s < until and (members is None or len(self.members) != members):
            found.append(self.write())
        if members is not None and len(self.members) != members:
            raise TimeoutError(f"the chain did not have {members} members within {STUCK_S:g} s")
        return found

    def curve(self) -> list[tuple[float, float]]:
        return [(round(bucket * BUCKET_S, 3), round(ms, 4)) for bucket, ms in sorted(self._highest.items())]


@contextmanager
def _meanwhile(act: Callable[[], object]) -> Iterator[None]:
    """In another thread. What it raises is raised at the end of the block."""
    with ThreadPoolExecutor(1) as thread:
        acting = thread.submit(act)
        yield
        acting.result()


def failover(kind: str, how: str, which: str, seconds: float, keys: int) -> dict[str, Any]:
    """A chain of two, of which the head or the tail is killed or frozen; then an empty server joins in its place."""
    from skate._control.storage.redis.store import RedisStorage

    with tools.chains(kind, 1, 2) as ((chain,), address), tools.folder() as folder:
        storage = RedisStorage(parse(address), folder)
        try:
            client = OneClient(storage, keys)
            client.fill()
            phases = {"two members": client.phase(seconds)}
            victim = chain[0 if which == "head" else 1]
            events: dict[str, float] = {}

            def strike() -> None:
                """While writes go on, and most likely while one is under way."""
                time.sleep(STRIKE_AFTER_S)
                events[how] = client.now_s
                if how == "killed":
                    victim.kill()
                else:
                    victim.freeze()

            with _meanwhile(strike):
                phases[f"one {how}"] = [*client.phase(0.0, members=1), *client.phase(min(1.0, seconds))]
            phases["one member"] = client.phase(seconds)
            events["a new one starts"] = client.now_s
            with _meanwhile(victim.restart_empty):
                phases["one joins"] = client.phase(0.0, members=2)
                events["it has joined"] = client.now_s
                phases["one joins"] += client.phase(min(1.0, seconds))
            phases["two again"] = client.phase(seconds)
            curve = client.curve()
        finally:
            storage.close()
    return {
        "largest_ms": {name: max(values) for name, values in phases.items()},
        "median_ms": {name: statistics.median(values) for name, values in phases.items()},
        "writes": {name: len(values) for name, values in phases.items()},
        "silence_s": SILENCE_S,
        "events_s": {name: round(at, 3) for name, at in events.items()},
        "curve": curve,
    }


# -- writes a second ---------------------------------------------------------------------------------------------------


def _series(client: Any, in_flight: list[int], seconds: float, keys: int) -> dict[str, float]:
    """Throughput and latencies by the number of writes under way."""
    found: dict[str, float] = {}
    for count in in_flight:
        measured = closed_loop(client, count, seconds, keys)
        found |= {f"{count} in flight, {name}": value for name, value in measured.items()}
    return found


def chain_writes(
    kind: str, members: int, shards: int, in_flight: list[int], seconds: float, keys: int
) -> dict[str, Any]:
    from skate._control.storage.redis.store import RedisStorage

    with tools.chains(kind, shards, members) as (_, address), tools.folder() as folder:
        storage = RedisStorage(parse(address), folder)
        try:
            return {"found": _series(StorageClient(storage), in_flight, seconds, keys)}
        finally:
            storage.close()


def plain_writes(kind: str, in_flight: list[int], seconds: float, keys: int) -> dict[str, Any]:
    with tools.chains(kind, 1, 1) as (_, address):
        client = PlainClient(address)
        try:
            return {"found": _series(client, in_flight, seconds, keys)}
        finally:
            client.close()


def memory_writes(in_flight: list[int], seconds: float, keys: int) -> dict[str, Any]:
    from skate._control.storage.memory import MemoryStorage

    storage = MemoryStorage()
    try:
        return {"found": _series(StorageClient(storage), in_flight, seconds, keys)}
    finally:
        storage.close()


def sqlite_writes(durability: Any, in_flight: list[int], seconds: float, keys: int) -> dict[str, Any]:
    from skate._control.storage.sqlite import SqliteStorage

    with tools.folder() as folder:
        storage = SqliteStorage(folder, durability=durability)
        try:
            found = _series(StorageClient(storage), in_flight, seconds, keys)
        finally:
            storage.close()
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        return {"found": found, "file_system": tools.file_system(folder), "file_bytes": size}


def bare_syncs(seconds: float) -> dict[str, Any]:
    """The floor of a durable write: as many bytes appended to a file, and fdatasync."""
    data = os.urandom(tools.KEY_BYTES + VALUE_BYTES)
    latencies: list[float] = []
    with tools.folder() as folder, open(folder / "log", "ab", buffering=0) as file:
        until = time.perf_counter() + seconds
        while (began := time.perf_counter()) < until:
            file.write(data)
            os.fdatasync(file.fileno())
            latencies.append(time.perf_counter() - began)
        kind = tools.file_system(folder)
    found = {"writes/s": len(latencies) / sum(latencies), **tools.latencies_ms(latencies)}
    return {"found": {f"1 in flight, {name}": value for name, value in found.items()}, "file_system": kind}


if __name__ == "__main__":
    tools.main(
        {
            "failover": failover,
            "chain": chain_writes,
            "plain": plain_writes,
            "memory": memory_writes,
            "sqlite": sqlite_writes,
            "bare": bare_syncs,
        }
    )
