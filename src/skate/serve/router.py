"""Which replica takes a request: decisions of one process about one deployment. Pure.

    pick        the better of two replicas that have a place for one more
    queue       requests that found no place, in order; one is sent whenever a place becomes free
    load        what this process has sent and has no answer for, and what others had there, by the latest answer

Owns:      requests that wait, and the number of those in each replica.
Knows not: what a request is, how it is sent, when it is answered.
Invariant: a replica never has more than `max_ongoing` requests of this process; a request is sent only once, except by
           `again`.
Idea:      a request is bound as late as possible. What waits here goes to the first replica that has a place, a new one
           included, and is not lost with a replica that dies.
           What was heard of others' requests grows old, and only an answer of the same replica renews it. So it counts
           one less each time that another replica is preferred; otherwise a replica that was once busy would be avoided
           for ever.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

#: Models that are remembered of a replica.
MODELS_MAX = 256


class Full(Exception):
    """No further request may wait."""


class Seat:
    """A replica, as this process sees it."""

    __slots__ = ("id", "in_flight", "models", "node", "others", "target")

    def __init__(self, id: str, node: str, target: Any = None) -> None:
        self.id = id
        self.node = node
        #: Requests of this process without an answer; those of others when the latest answer left.
        self.in_flight = 0
        self.others = 0
        #: Models that this process has used there, the latest last.
        self.models: dict[str, None] = {}
        #: What is called.
        self.target = target

    def __repr__(self) -> str:
        return f"Seat({self.id}, {self.in_flight} + {self.others})"


class Router:
    """The replicas of one deployment, and the requests of this process that wait for one."""

    def __init__(self, node: str, choose: random.Random | None = None) -> None:
        self._node = node
        self._random = choose or random.Random()
        self._seats: dict[str, Seat] = {}
        self._order: list[Seat] = []
        #: Replicas that are dead, as long as updates still list them.
        self._dead: set[str] = set()
        self.waiting: deque[tuple[Any, str]] = deque()
        self.max_ongoing = 1
        self.max_queued = -1

    @property
    def seats(self) -> dict[str, Seat]:
        """The replicas that requests go to."""
        return self._seats

    def update(
        self, members: Iterable[tuple[str, str]], max_ongoing: int, max_queued: int, reach: Callable[[str], Any]
    ) -> None:
        """The replicas are these now; `reach` gives what is called for a new one."""
        before, self._seats = self._seats, {}
        listed = dict(members)
        self._dead &= listed.keys()
        for id, node in listed.items():
            if id not in self._dead:
                self._seats[id] = before.get(id) or Seat(id, node, reach(id))
        self._order = list(self._seats.values())
        self.max_ongoing, self.max_queued = max_ongoing, max_queued

    def died(self, seat: Seat) -> None:
        """A replica is dead: nothing more goes there, even if an update lists it that was sent before."""
        if self._seats.get(seat.id) is seat:
            self._dead.add(seat.id)
            del self._seats[seat.id]
            self._order = list(self._seats.values())

    def submit(self, request: Any, model: str = "") -> Seat | None:
        """The replica that takes a request, which is counted there; None if the request waits. Raises Full."""
        if not self.waiting:
            seat = self.pick(model)
            if seat is not None:
                return self._taken(seat, model)
        if 0 <= self.max_queued <= len(self.waiting):
            raise Full
        self.waiting.append((request, model))
        return None

    def again(self, request: Any, model: str = "") -> Seat | None:
        """The same for a request that was sent in vain: it goes in front, and is never refused."""
        seat = self.pick(model)
        if seat is None:
            self.waiting.appendleft((request, model))
            return None
        return self._taken(seat, model)

    def answered(self, seat: Seat) -> None:
        """A request has its answer, or has failed."""
        seat.in_flight -= 1

    def heard(self, seat: Seat, load: int) -> None:
        """An answer said how many requests the replica had, this one not counted."""
        seat.others = max(0, load - seat.in_flight)

    def next(self) -> tuple[Any, Seat] | None:
        """The request that waits longest and the replica that takes it now; None if there is no such pair."""
        if not self.waiting:
            return None
        request, model = self.waiting[0]
        seat = self.pick(model)
        if seat is None:
            return None
        self.waiting.popleft()
        return request, self._taken(seat, model)

    def cancel(self, request: Any) -> bool:
        """Take a request out of the queue; False if it is not there."""
        for index, (each, _) in enumerate(self.waiting):
            if each is request:
                del self.waiting[index]
                return True
        return False

    def pick(self, model: str = "") -> Seat | None:
        """The better of two replicas with a place; on the node of this process if it is as good."""
        order, most = self._order, self.max_ongoing
        if model:
            have = [seat for seat in order if model in seat.models and seat.in_flight < most]
            if have:
                return min(have, key=self._load)
        count = len(order)
        if count == 1:
            seat = order[0]
            return seat if seat.in_flight < most else None
        if count == 2:
            first, second = order
        elif count:
            place = int(self._random.random() * count)
            first = order[place]
            second = order[(place + 1 + int(self._random.random() * (count - 1))) % count]
        else:
            return None
        one, two = self._load(first), self._load(second)
        if one == two:
            best = first if self._random.random() < 0.5 else second
        else:
            best, other = (first, second) if one < two else (second, first)
            if other.others:
                other.others -= 1
        if best.in_flight < most:
            return best
        free = [seat for seat in order if seat.in_flight < most]
        return min(free, key=self._load) if free else None

    def _taken(self, seat: Seat, model: str) -> Seat:
        seat.in_flight += 1
        if model:
            seat.models.pop(model, None)
            seat.models[model] = None
            if len(seat.models) > MODELS_MAX:
                del seat.models[next(iter(seat.models))]
        return seat

    def _load(self, seat: Seat) -> tuple[int, bool]:
        return seat.in_flight + seat.others, seat.node != self._node
