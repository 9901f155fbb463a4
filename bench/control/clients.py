"""Clients that keep so many writes in flight and take the time of each: of a storage, and of Redis without one.

Both sit on one loop in one thread, and both speak to servers over the same `Poller` and `Wire`, so what differs is the
protocol: a chain numbers, fences and logs each batch on every member, and plain Redis sets a field of a hash.
"""

from __future__ import annotations

import os
import select
import time
from collections import deque
from typing import Any

from tools import TABLE, VALUE_BYTES, key_of, latencies_ms

from skate._control.storage.interface import Put
from skate._control.storage.redis.connection.address import Server, parse

WARM_UP_S = 0.3
#: A store that acknowledges nothing for this time is broken, and the cell fails.
STUCK_S = 30.0


class StorageClient:
    """A batch of one row a write."""

    def __init__(self, storage: Any) -> None:
        self._storage = storage

    def fileno(self) -> int:
        found: int = self._storage.fileno()
        return found

    def write(self, key: bytes, value: bytes) -> None:
        self._storage.write([Put(TABLE, key, value)])

    def completed(self) -> int:
        """How many writes were acknowledged since the last call."""
        done = self._storage.completed()
        for end in done:
            if end.error is not None:
                raise end.error
        return len(done)


class PlainClient:
    """HSET on one server, over a connection of the product's own kind."""

    def __init__(self, url: str) -> None:
        from skate._control.storage.redis.connection.handshake import dial
        from skate._control.storage.redis.connection.poller import Poller
        from skate._control.storage.redis.connection.wire import Wire

        server: Server = parse(url).servers[0]
        self._poller = Poller()
        self._done = 0
        opened: list[Any] = []
        self._broken: list[str] = []
        self._wire = Wire(
            self._poller,
            lambda: dial(server, STUCK_S),
            lambda why, error: self._broken.append(why),
            on_open=opened.append,
        )
        while not opened and not self._broken:
            self._poller.run(STUCK_S)
        self._check()

    def _check(self) -> None:
        if self._broken:
            raise ConnectionError(self._broken[0])

    def fileno(self) -> int:
        return self._poller.fileno()

    def write(self, key: bytes, value: bytes) -> None:
        from skate._control.storage.redis.connection.requests import packed

        self._wire.send(packed("HSET", TABLE, key, value), self._answered)
        self._wire.flush()

    def _answered(self, answer: Any) -> None:
        if isinstance(answer, Exception):
            raise answer
        self._done += 1

    def completed(self) -> int:
        self._poller.run(0.0)
        self._check()
        done, self._done = self._done, 0
        return done

    def close(self) -> None:
        self._wire.close()
        self._poller.close()


def closed_loop(client: Any, in_flight: int, seconds: float, keys: int) -> dict[str, float]:
    """Writes a second, and the latencies, with so many writes under way at any time."""
    _writes(client, in_flight, min(WARM_UP_S, seconds), keys)
    latencies, took_s = _writes(client, in_flight, seconds, keys)
    return {"writes/s": len(latencies) / took_s, **latencies_ms(latencies)}


def _writes(client: Any, in_flight: int, seconds: float, keys: int) -> tuple[list[float], float]:
    value = os.urandom(VALUE_BYTES)
    names = [key_of(number) for number in range(keys)]
    poll = select.poll()
    poll.register(client.fileno(), select.POLLIN)
    sent: deque[float] = deque()
    latencies: list[float] = []
    began = time.perf_counter()
    until = began + seconds
    number = 0
    while True:
        now = time.perf_counter()
        while now < until and len(sent) < in_flight:
            sent.append(time.perf_counter())
            client.write(names[number % keys], value)
            number += 1
        if not sent:
            return latencies, time.perf_counter() - began
        if not poll.poll(STUCK_S * 1e3):
            raise TimeoutError(f"no write was acknowledged for {STUCK_S:g} s")
        done = client.completed()
        now = time.perf_counter()
        latencies += [now - sent.popleft() for _ in range(done)]
