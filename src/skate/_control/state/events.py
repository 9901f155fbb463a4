"""What has happened in a cluster, for people: who joined, who is gone and why, which jobs ran. The newest are kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from skate._control.state.tables import pack

#: The oldest make room for the newest.
EVENTS_MAX = 10_000
NUMBER_BYTES = 8


class EventLog:
    def __init__(self) -> None:
        #: By number, the oldest first.
        self._events: dict[int, dict[str, Any]] = {}
        self._last = 0

    def load(self, rows: Iterable[tuple[bytes, dict[str, Any]]]) -> None:
        for key, event in rows:
            self._last = int.from_bytes(key, "big")
            self._events[self._last] = event

    def add(self, event: dict[str, Any]) -> list[bytes]:
        """Keep one more; the keys of the rows that have changed."""
        self._last += 1
        self._events[self._last] = event
        changed = [self._last]
        if len(self._events) > EVENTS_MAX:
            oldest = next(iter(self._events))
            del self._events[oldest]
            changed.append(oldest)
        return [number.to_bytes(NUMBER_BYTES, "big") for number in changed]

    def row(self, key: bytes) -> bytes | None:
        event = self._events.get(int.from_bytes(key, "big"))
        return None if event is None else pack(event)

    def all(self) -> list[dict[str, Any]]:
        return list(self._events.values())
