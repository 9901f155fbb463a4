"""Whose turn it is: the order in which demands are served, and which leases may be asked back for them.

The order:

1. An *overdue* demand first: it holds no lease at all and has waited for `PATIENCE_S`. So everything comes round.
2. Then deeper demands: a task waits for the tasks that it started, so finishing those first frees the most, and keeps
   the number of half-done tasks small.
3. Then whoever runs least: the process with the fewest running leases, in it the class (the process's `key`) with
   the fewest, and of equals the one that waited longest for its turn.

A lease is asked back for a demand at once if the demand is deeper than the one the lease was granted to; otherwise
once it was held for `QUANTUM_S` and its holder has more than its share, or the demand is overdue. This agrees with the
order above, so that what comes back goes to the one it was asked back for.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from skate._core.lease_events import Env
from skate._core.resources import Allocation, Amounts, ResourcePool

#: A lease may be asked back by a demand of the same depth when it was held this long: long enough that handing over
#: a worker (some 0.2 ms) does not count, short enough that nobody notices.
QUANTUM_S = 0.05
#: A demand without any lease goes before all others after this time.
PATIENCE_S = 1.0
#: A lease that was asked back and is not back after this time runs a long task; another is asked back in its place.
LATE_S = 0.2

#: A scheduling class: the process and its number for the class.
Class = tuple[bytes, int]


class Demand(msgspec.Struct):
    """Leases that a class wants and does not have."""

    process: bytes
    key: int
    request: Amounts
    env: Env
    #: Leases still wanted; a demand with none is forgotten.
    count: int
    depth: int
    #: Its place in the queue: counts up with every arrival and every grant, unique.
    turn: int
    #: When it arrived, or its class last got a lease or gave one back.
    waiting_since: float
    #: The node has what it takes, though perhaps not now.
    feasible: bool
    retriable: bool = True
    #: Its leases are for good.
    dedicated: bool = False
    #: What the node must have, if that is more than the request.
    to_place: Amounts = {}
    program: bytes = b""

    @property
    def cls(self) -> Class:
        return (self.process, self.key)

    @property
    def needs(self) -> Amounts:
        """What the node must have in all, free or not. What must be free, and is held then, is `request`: an actor that
        holds no CPU starts beside tasks that hold them all."""
        return self.to_place or self.request


class Lease(msgspec.Struct):
    """A worker, lent to a class."""

    number: int
    owner: bytes
    key: int
    worker: bytes
    allocation: Allocation
    #: Depth of the demand that it was granted to.
    depth: int
    granted_at: float
    #: What runs on it may be run again.
    retriable: bool = True
    #: It is never asked back: an actor lives in its worker.
    dedicated: bool = False
    #: It was granted out of turn, and is not asked back at once by those whose turn it was.
    was_overdue: bool = False
    #: Its CPUs are given back while its task waits.
    blocked: bool = False
    #: When its owner was told to return it, or died (its worker is being killed then).
    asked_back_at: float | None = None

    @property
    def cls(self) -> Class:
        return (self.owner, self.key)

    def is_expected(self, now: float) -> bool:
        """It was asked back, and should be here soon."""
        return self.asked_back_at is not None and now < self.asked_back_at + LATE_S


class Shares:
    """Who holds how many leases."""

    def __init__(self) -> None:
        #: Leases of each class; a class without any is not in it.
        self.held: dict[Class, int] = {}
        #: Those of them that run (are not blocked), by class and by process.
        self.running: dict[Class | bytes, int] = {}

    def count_held(self, lease: Lease, change: int) -> None:
        count(self.held, lease.cls, change)

    def count_running(self, lease: Lease, change: int) -> None:
        count(self.running, lease.cls, change)
        count(self.running, lease.owner, change)

    def is_overdue(self, demand: Demand, now: float) -> bool:
        return now >= demand.waiting_since + PATIENCE_S and demand.cls not in self.held


class Turns:
    """Demands in the order in which they are to be served, which changes as they are.

    A demand is yielded again after it was `served` or `promised` something, until it has all it wants.
    """

    def __init__(self, shares: Shares, demands: Iterable[Demand], now: float) -> None:
        self._shares = shares
        self._now = now
        #: What would be running on top of what is, were all promises kept and all expected leases returned.
        self._change: dict[Class | bytes, int] = {}
        self._promised: dict[Class, int] = {}
        self._heap = [(self._rank(demand), demand) for demand in demands]
        heapq.heapify(self._heap)

    def __iter__(self) -> Iterator[Demand]:
        heap = self._heap
        while heap:
            rank, demand = heapq.heappop(heap)
            # Its process may have been served through another class since.
            current = self._rank(demand)
            if current == rank:
                yield demand
            else:
                heapq.heappush(heap, (current, demand))

    def _rank(self, demand: Demand) -> tuple[float, float, int, int, int]:
        if self._shares.is_overdue(demand, self._now) and demand.cls not in self._promised:
            return (0, demand.waiting_since, 0, 0, demand.turn)
        return (1, -demand.depth, self.running(demand.process), self.running(demand.cls), demand.turn)

    def running(self, of: Class | bytes) -> int:
        return self._shares.running.get(of, 0) + self._change.get(of, 0)

    def served(self, demand: Demand) -> None:
        """It got a lease."""
        if demand.count > self._promised.get(demand.cls, 0):
            heapq.heappush(self._heap, (self._rank(demand), demand))

    def promised(self, demand: Demand) -> None:
        """It will get a lease, as soon as there is a worker or somebody's lease has come back."""
        count(self._promised, demand.cls, 1)
        count(self._change, demand.cls, 1)
        count(self._change, demand.process, 1)
        self.served(demand)

    def expected(self, lease: Lease) -> None:
        """That lease will come back."""
        if not lease.blocked:
            count(self._change, lease.cls, -1)
            count(self._change, lease.owner, -1)

    # -- asking back --------------------------------------------------------------------------------------------------

    def choose_victims(self, demand: Demand, leases: Iterable[Lease], free: ResourcePool) -> list[Lease]:
        """Leases whose return lets `demand` be served, no more than it takes; [] if it has no right to as many."""
        lacking = {name for name, amount in demand.request.items() if free.available.get(name, 0) < amount}
        if "GPU" in demand.request:
            lacking.add("GPU")  # there may be enough in sum, but no GPU with enough on it
        candidates = [
            lease
            for lease in leases
            # Nobody is helped by its own lease, nor by that of the task that asks.
            if lease.asked_back_at is None and not lease.dedicated
            if lease.cls != demand.cls and lease.worker != demand.process
            if any(name in lacking for name in lease.allocation.amounts if not (lease.blocked and name == "CPU"))
        ]
        candidates.sort(key=lambda lease: (lease.depth, -self.running(lease.owner), lease.granted_at, lease.number))
        after = free.copy()
        victims: list[Lease] = []
        taken: dict[Class | bytes, int] = {}
        for lease in candidates:
            if not self._may_ask_back(demand, lease, taken):
                continue
            victims.append(lease)
            count(taken, lease.owner, 1)
            count(taken, lease.cls, 1)
            after.give_back(lease.allocation, but_cpus=lease.blocked)
            if after.fits(demand.request):
                return victims
        return []

    def _may_ask_back(self, demand: Demand, lease: Lease, taken: dict[Class | bytes, int]) -> bool:
        if lease.depth < demand.depth and not lease.was_overdue:
            return True
        if self._now < lease.granted_at + QUANTUM_S:
            return False
        if lease.depth < demand.depth or self._shares.is_overdue(demand, self._now):
            return True
        if lease.depth > demand.depth:
            return False
        # Between processes their sums count, within one those of its classes.
        if lease.owner == demand.process:
            mine = self.running(demand.cls)
            theirs = self.running(lease.cls) - taken.get(lease.cls, 0)
        else:
            mine = self.running(demand.process)
            theirs = self.running(lease.owner) - taken.get(lease.owner, 0)
        # With nothing running of its own it takes turns with the other, however little that one has.
        return mine == 0 or mine < theirs - 1


def count(counts: dict[Any, int], key: Class | bytes, change: int) -> None:
    """Add to a counter; one that is zero is not kept."""
    value = counts.get(key, 0) + change
    if value:
        counts[key] = value
    else:
        counts.pop(key, None)
