"""Writes without a pause, each of which is accounted for: what a store on Redis servers must not lose, or do twice."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from redis_servers import WITHIN_S, Server
from skate._control.storage.interface import AppendAt, CompareAndSet, Operation, Put, Storage
from waiting import wait_for

TABLE = "load"
KEYS = 20
COUNTER = b"counter"
#: Batches whose words make one row. A row that grew for ever would be sent whole to a server that joins, ever again.
LOG_BATCHES = 50


def log_of(number: int) -> bytes:
    return b"log %d" % (number // LOG_BATCHES)


class Load:
    """Every batch puts a row, counts by compare-and-set, and appends to a log: done twice or not at all, it shows."""

    def __init__(self, storage: Storage, written: int = 0, in_flight: int = 8) -> None:
        """written: how many batches the store has from a load before this one."""
        self.storage = storage
        self.in_flight = in_flight
        self.written = self.acknowledged = written
        #: The longest time between two acknowledgements.
        self.gap_s = 0.0

    def batch(self, number: int) -> list[Operation]:
        before = b"%d" % (number - 1) if number > 1 else None
        return [
            Put(TABLE, b"key %d" % (number % KEYS), b"%d" % number),
            CompareAndSet(TABLE, COUNTER, before, b"%d" % number),
            AppendAt(TABLE, log_of(number), 7 * (number % LOG_BATCHES - (number < LOG_BATCHES)), b"%6d." % number),
        ]

    def rows(self, number: int) -> dict[bytes, bytes]:
        """What the table holds after this many batches."""
        rows = {b"key %d" % (n % KEYS): b"%d" % n for n in range(max(1, number - KEYS + 1), number + 1)}
        if number:
            rows[COUNTER] = b"%d" % number
        for n in range(1, number + 1):
            rows[log_of(n)] = rows.get(log_of(n), b"") + b"%6d." % n
        return rows

    def run(self, is_over: Callable[[], object], what: str, within_s: float = WITHIN_S) -> None:
        """Write until something is so."""
        give_up_at = time.monotonic() + within_s
        last = time.monotonic()
        while not is_over():
            assert time.monotonic() < give_up_at, f"waited {within_s:g} s for {what}"
            while self.written - self.acknowledged < self.in_flight:
                self.write_one()
            select.select([self.storage.fileno()], [], [], 0.02)
            if self.collect():
                now = time.monotonic()
                self.gap_s, last = max(self.gap_s, now - last), now

    def write_one(self) -> None:
        self.written += 1
        self.storage.write(self.batch(self.written))

    def wait_for_trouble(self) -> None:
        def is_there() -> bool:
            self.collect()
            return self.storage.trouble is not None

        wait_for(is_there, WITHIN_S, "the trouble to be seen")

    def collect(self) -> int:
        done = self.storage.completed()
        for end in done:
            assert end.error is None, end.error
            assert end.results == (True, True, True), f"batch {end.number} was done twice, or one before it was lost"
            self.acknowledged += 1
        return len(done)

    def run_more(self, count: int) -> None:
        target = self.acknowledged + count
        self.run(lambda: self.acknowledged >= target, f"{count} more acknowledgements")

    def end(self) -> None:
        assert self.storage.flush(WITHIN_S), self.storage.trouble
        self.collect()
        assert self.acknowledged == self.written

    def check(self, *servers: Server) -> None:
        """The store has what it should, and so has each of these servers."""
        self.end()
        expected = self.rows(self.written)
        assert dict(self.storage.scan(TABLE)) == expected
        for server in servers:
            assert server.rows(TABLE) == expected, server.name

    def check_after_crash(self, rows: dict[bytes, bytes]) -> None:
        """Of what was not acknowledged each row may have more or less: they lie on several shards."""
        least, most = self.rows(self.acknowledged), self.rows(self.written)
        assert least.keys() <= rows.keys() <= most.keys()
        for key, value in rows.items():
            if key.startswith(b"log"):
                assert value.startswith(least.get(key, b"")), key
                assert most[key].startswith(value), key
            else:
                assert int(least.get(key, b"0")) <= int(value) <= int(most[key]), key
