"""Where the leases that an owner wants are looked for: on its own node, or on which others.

    LeaseDemand ──▶ Dispersal ──▶ here: the local scheduler     ◀── granted, wherever it was
                              └─▶ there: other nodes' schedulers

Only the node of the owner decides, and it may decide again whenever it hears how the others are; a node that is asked
for leases grants them or lets them wait, and never sends them on. So nothing bounces.

Bottom-up: what this node has free it is asked for first. The rest goes elsewhere when the owner has waited for
SPILL_S, or says that it has work for longer than that; at once, if this node can never serve it, or its data or its
strategy want it elsewhere. What others have free comes next, the lowest estimated wait first (`placement.py`). What
nobody has free waits where it is asked for already, or else where the estimated wait is lowest.

Owns:      for each class of each process of this node, how many leases are asked of which node; and which node has
           last had its turn with what is to be spread.
Knows not: messages, time, workers.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

import msgspec

from skate._core.placement import NodeView, Nowhere, Request, choose, order, wait_s
from skate._core.policy_turns import Class

#: How long a demand waits for this node alone.
SPILL_S = 0.02
#: Leases of a class that needs nothing, and so would fit anywhere any number of times.
SLOTS_MAX = 1 << 20


class Wanted(msgspec.Struct):
    """Leases that a class wants and does not have."""

    request: Request
    count: int
    #: How many are asked of which node.
    asked: dict[bytes, int]
    #: It may go elsewhere.
    may_leave: bool = False
    #: How long none has been granted, at the last look.
    waited_s: float = 0.0
    #: Of what is to be spread: how many are not free where they are asked for, and so will not come soon.
    short: int = 0
    #: Set if no node of the cluster can ever serve it: why.
    nowhere: str = ""


#: How many leases are to be asked of a node from now on.
Changes = dict[bytes, int]


class Dispersal:
    def __init__(self, here: bytes) -> None:
        self.here = here
        self.wanted: dict[Class, Wanted] = {}
        #: The node that was last granted a lease of a class that is to be spread.
        self._last = b""

    def demand(
        self, cls: Class, request: Request, count: int, nodes: Mapping[bytes, NodeView], *, may_leave: bool = False
    ) -> Changes:
        """What a class wants from now on."""
        wanted = self.wanted.get(cls)
        if count <= 0:
            self.wanted.pop(cls, None)
            return dict.fromkeys(wanted.asked, 0) if wanted is not None else {}
        if wanted is None:
            wanted = self.wanted[cls] = Wanted(request, count, {})
        wanted.request, wanted.count = request, count
        wanted.may_leave = wanted.may_leave or may_leave
        return self.decide(cls, nodes)

    def decide(self, cls: Class, nodes: Mapping[bytes, NodeView]) -> Changes:
        """Again, now that time has passed or nodes have changed."""
        wanted = self.wanted[cls]
        shares = share_out(self.here, wanted, nodes, self._last)
        wanted.nowhere = ""
        if isinstance(shares, Nowhere):
            wanted.nowhere, shares = shares.reason, {}
        before, wanted.asked = wanted.asked, shares
        if wanted.request.spread:
            needs = wanted.request.needs
            free = sum(min(count, slots(nodes[node].available, needs)) for node, count in shares.items())
            wanted.short = wanted.count - free
        changed = {node: count for node, count in shares.items() if before.get(node) != count}
        return {**{node: 0 for node in before if node not in shares}, **changed}

    def granted(self, cls: Class, node: bytes) -> Changes:
        """One lease fewer is wanted. If it came from a node that is asked no more, another is asked for one fewer."""
        wanted = self.wanted.get(cls)
        if wanted is None:
            return {}
        if wanted.request.spread:
            self._last = node
        asked = wanted.asked
        wanted.count -= 1
        changes: Changes = {}
        if node not in asked and sum(asked.values()) > wanted.count:  # it was on its way when the demand moved
            node = max(asked, key=asked.__getitem__)
            changes[node] = asked[node] - 1
        if asked.get(node, 0) > 1:
            asked[node] -= 1
        else:
            asked.pop(node, None)
        if wanted.count <= 0:
            del self.wanted[cls]
        return changes

    def asked_by_others(self, cls: Class) -> dict[bytes, int]:
        """How many leases the other classes ask of which node."""
        asked: dict[bytes, int] = {}
        for other, wanted in self.wanted.items():
            if other != cls:
                for node, count in wanted.asked.items():
                    asked[node] = asked.get(node, 0) + count
        return asked

    def process_died(self, process: bytes) -> None:
        for cls in [cls for cls in self.wanted if cls[0] == process]:
            del self.wanted[cls]

    def node_died(self, node: bytes) -> list[Class]:
        """Classes that have to look elsewhere."""
        return [cls for cls, wanted in self.wanted.items() if wanted.asked.pop(node, None)]

    def validate(self) -> None:
        for wanted in self.wanted.values():
            assert wanted.count > 0
            assert all(count > 0 for count in wanted.asked.values()), wanted
            assert sum(wanted.asked.values()) <= wanted.count, wanted


def share_out(
    here: bytes, wanted: Wanted, nodes: Mapping[bytes, NodeView], last: bytes = b""
) -> dict[bytes, int] | Nowhere:
    """How many of the leases are to be asked of which node. `last`: that had its turn; among equals others come first,
    or tasks that come one by one would all run on the same node."""
    request, count = wanted.request, wanted.count
    home = nodes[here]
    affinity = request.affinity
    if affinity is not None:
        there = nodes.get(affinity.node)
        if not affinity.soft or (there is not None and there.can_ever_run(request)):
            chosen = choose(request, nodes.values())
            return chosen if isinstance(chosen, Nowhere) else {chosen.id: count}
    can_stay = home.can_ever_run(request)
    if can_stay and (request.preferred or home.full_of_actors):  # unless another has the labels, or workers
        can_stay = any(node.id == here for node in order(request, nodes.values()))
    away = any(item.nodes and here not in item.nodes for item in request.inputs)
    if can_stay and not (wanted.may_leave or request.spread or away):
        return {here: count}
    ordered = order(request, nodes.values(), after=last if request.spread else b"")
    if not ordered:
        return choose(request, nodes.values())  # type: ignore[return-value]  # it says why
    if request.spread:
        return _one_by_one(request, count, ordered, wanted.asked)
    if request.inputs:
        return _by_wait(request, count, ordered, wanted.asked, wanted.waited_s)
    if can_stay:
        ordered = [home, *(node for node in ordered if node.id != here)]
    return _fill(request, count, ordered, wanted.asked)


def _fill(request: Request, count: int, ordered: Sequence[NodeView], asked: Mapping[bytes, int]) -> dict[bytes, int]:
    shares: dict[bytes, int] = {}

    def give(node: NodeView, most: int) -> None:
        nonlocal count
        more = min(count, most - shares.get(node.id, 0))
        if more > 0:
            shares[node.id] = shares.get(node.id, 0) + more
            count -= more

    for node in ordered:  # what is asked for already and will be granted soon stays where it is
        give(node, min(asked.get(node.id, 0), slots(node.available, request.needs)))
    for node in ordered:
        give(node, slots(node.available, request.needs))
    for node in ordered:  # nobody has anything free: no reason to move
        give(node, asked.get(node.id, 0))
    for node in ordered:
        give(node, slots(node.total, request.needs))
    give(ordered[0], SLOTS_MAX)
    return shares


def _by_wait(
    request: Request, count: int, nodes: Sequence[NodeView], asked: Mapping[bytes, int], waited_s: float
) -> dict[bytes, int]:
    """Where the estimated wait is shortest, each in turn: bringing the data may take longer than waiting in line.

    Nobody knows how long a function takes that has not run yet, or how many tasks there are for each lease. But who has
    waited in vain for so long will wait as long again: the data is brought when that would have taken no longer.
    """
    shares: dict[bytes, int] = {}
    room = {node.id: slots(node.available, request.needs) for node in nodes}
    for node in nodes:  # what will be granted soon stays where it is
        kept = min(count, asked.get(node.id, 0), room[node.id])
        if kept:
            shares[node.id] = kept
            count -= kept

    def next_wait(node: NodeView) -> float:
        """Of one more, if it asks there."""
        behind = max(0, shares.get(node.id, 0) + 1 - room[node.id])
        return wait_s(node, request) + behind * max(request.task_s or node.task_s, waited_s)

    places = [(next_wait(node), rank) for rank, node in enumerate(nodes)]
    heapq.heapify(places)
    for _ in range(count):
        _, rank = places[0]
        node = nodes[rank]
        shares[node.id] = shares.get(node.id, 0) + 1
        heapq.heapreplace(places, (next_wait(node), rank))
    return shares


def _one_by_one(
    request: Request, count: int, nodes: Sequence[NodeView], asked: Mapping[bytes, int]
) -> dict[bytes, int]:
    """To the node that is used least, again and again; what will be granted where it is asked for stays there."""
    shares: dict[bytes, int] = {}
    room = {node.id: slots(node.available, request.needs) for node in nodes}
    for node in nodes:
        kept = min(count, asked.get(node.id, 0), room[node.id])
        if kept:
            shares[node.id] = kept
            room[node.id] -= kept
            count -= kept
    places = [(room[node.id] <= 0, shares.get(node.id, 0), rank) for rank, node in enumerate(nodes)]
    heapq.heapify(places)
    for _ in range(count):
        _, share, rank = places[0]
        id = nodes[rank].id
        shares[id] = share + 1
        room[id] -= 1
        heapq.heapreplace(places, (room[id] <= 0, share + 1, rank))
    return shares


def slots(amounts: Mapping[str, int], needs: Mapping[str, int]) -> int:
    """How often the needs fit into the amounts."""
    return max(0, min((amounts.get(name, 0) // amount for name, amount in needs.items() if amount), default=SLOTS_MAX))
