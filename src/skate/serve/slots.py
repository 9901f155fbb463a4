"""Places for requests in a replica: a limited number work at a time, others wait, up to a bound. Pure asyncio.

Invariant: a place that was taken is given back once, however the request ends: by its result, an exception,
           cancellation while it works, or cancellation at the very moment at which it gets its place.
           While a place is free, no request waits.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from types import TracebackType


class NoRoom(Exception):
    """As many requests wait as may."""


class Slots:
    """The places of a replica.

    >>> async with slots:            # waits for a place; raises NoRoom if too many wait already
    ...     await handler(request)
    """

    def __init__(self, limit: int, most_waiting: int = -1) -> None:
        self.limit = limit
        #: -1: any number may wait.
        self.most_waiting = most_waiting
        self.taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return len(self._waiting)

    @property
    def load(self) -> int:
        """Requests that work or wait."""
        return self.taken + len(self._waiting)

    def take_at_once(self) -> bool:
        """Take a place if one is free."""
        if self.taken < self.limit and not self._waiting:
            self.taken += 1
            return True
        return False

    async def take(self) -> None:
        """Take a place; wait for one if necessary. Raises NoRoom."""
        if self.taken < self.limit and not self._waiting:
            self.taken += 1
            return
        if 0 <= self.most_waiting <= len(self._waiting):
            raise NoRoom
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except BaseException:  # cancelled, or the loop ends and closes the coroutine
            if turn.done() and not turn.cancelled():  # it got its place just before
                self.give_back()
            else:
                turn.cancel()
                with contextlib.suppress(ValueError):  # the queue has dropped it already
                    self._waiting.remove(turn)
            raise

    def give_back(self) -> None:
        """A request has ended: its place goes to the one that waits longest."""
        assert self.taken > 0, "a place was given back twice"
        self.taken -= 1
        self._hand_out()

    def resize(self, limit: int, most_waiting: int) -> None:
        """There are more places now, or fewer; requests that work are not disturbed."""
        self.limit, self.most_waiting = limit, most_waiting
        self._hand_out()

    def _hand_out(self) -> None:
        waiting = self._waiting
        while waiting and self.taken < self.limit:
            turn = waiting.popleft()
            if not turn.done():
                self.taken += 1
                turn.set_result(None)

    async def __aenter__(self) -> Slots:
        await self.take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.give_back()
