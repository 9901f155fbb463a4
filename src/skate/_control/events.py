"""What has happened in a cluster, for people: who joined, who is gone and why, which jobs ran. The newest are kept."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

EVENTS_MAX = 10_000


class EventLog:
    def __init__(self) -> None:
        self._events: deque[dict[str, Any]] = deque(maxlen=EVENTS_MAX)

    def add(self, kind: str, text: str, **facts: Any) -> None:
        self._events.append({"at": time.time(), "kind": kind, "text": text, **facts})

    def all(self) -> list[dict[str, Any]]:
        return list(self._events)
