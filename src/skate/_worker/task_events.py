"""Which tasks ran in this process, and when: kept here until the node daemon gets them, for the timeline."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from skate._wire.messages import Events, encode_events

#: Kept until they are sent; beyond this the oldest are dropped.
UNSENT_MAX = 20_000
PERIOD_S = 0.2


class TaskEvents:
    """Name, id, start and end (by the performance counter) of each. From any thread."""

    def __init__(self, send: Callable[[Events], None]) -> None:
        self._send = send
        self.unsent: deque[tuple[str, bytes, float, float]] = deque(maxlen=UNSENT_MAX)
        #: For every task: no method of ours in between.
        self.note = self.unsent.append
        self._sent_at = 0.0
        #: Wall clock minus performance counter, so that a task costs one clock read at each end.
        self._epoch = time.time() - time.perf_counter()

    @property
    def are_many(self) -> bool:
        return len(self.unsent) >= UNSENT_MAX // 2

    def send(self, request: int = 0) -> None:
        """All of them; the daemon may have asked for that."""
        self._sent_at = time.monotonic()
        popleft = self.unsent.popleft
        events = []
        with suppress(IndexError):  # another thread sends them too
            while True:
                events.append(popleft())
        self._send(Events(request, len(events), encode_events(events), self._epoch))

    def send_old(self) -> None:
        if self.unsent and time.monotonic() > self._sent_at + PERIOD_S:
            self.send()
