"""Where the bundles of a placement group go: PACK, SPREAD, STRICT_PACK, STRICT_SPREAD.

Problem:   a group asks for several bundles of resources at once, all or none. Packing amounts of several kinds into
           nodes is hard in general, so there are bounds: an order that works nearly always is tried first, then a
           search with a limit on its steps.
Owns:      nothing: nodes and bundles in, a node for each bundle out.
Knows not: reservations. Which bundles were granted, and what becomes of them when a node dies, is another matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from skate._core.placement import Condition, NodeView
from skate._core.resources import Amounts

Strategy = Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]
Required = Sequence[Sequence[Condition]]

#: Steps of the search after which a group that might still fit is held to be too difficult, and waits.
STEPS_MAX = 20_000


def assign(
    bundles: Sequence[Amounts],
    nodes: Sequence[NodeView],
    strategy: Strategy,
    *,
    beside: Sequence[bytes] = (),
    required: Required = (),
) -> list[bytes] | None:
    """The node of each bundle, in their order; None if they do not fit at present.

    `beside`: nodes that other bundles of the group have already, after some of its nodes died. `required`: for each
    bundle the labels that its node must have; empty: none for any.
    """
    if strategy == "PACK":
        together = _Search(bundles, nodes, "STRICT_PACK", free=True, beside=beside, required=required).run()
        if together is not None:
            return together
    return _Search(bundles, nodes, strategy, free=True, beside=beside, required=required).run()


def can_ever_be(
    bundles: Sequence[Amounts], nodes: Sequence[NodeView], strategy: Strategy, *, required: Required = ()
) -> bool:
    """Whether they would fit into the same nodes if these were empty."""
    return _Search(bundles, nodes, strategy, free=False, required=required).run() is not None


class _Search:
    """Depth first, the most demanding bundle first; which nodes are tried in which order is the strategy."""

    def __init__(
        self,
        bundles: Sequence[Amounts],
        nodes: Sequence[NodeView],
        strategy: Strategy,
        *,
        free: bool,
        beside: Sequence[bytes] = (),
        required: Required = (),
    ) -> None:
        self._bundles = bundles
        self._strategy = strategy
        #: For each bundle the nodes that have its labels.
        self._labelled = [{node.id for node in nodes if node.has_labels(labels)} for labels in required]
        self._labelled = self._labelled or [{node.id for node in nodes}] * len(bundles)
        self._left = {node.id: dict(node.available if free else node.total) for node in nodes}
        self._ids = sorted(self._left)
        capacity: Amounts = {}
        for node in nodes:
            for name, amount in node.total.items():
                capacity[name] = max(capacity.get(name, 0), amount)

        def part(index: int) -> float:
            shares = (amount / capacity[name] if capacity.get(name) else 2.0 for name, amount in bundles[index].items())
            return max(shares, default=0.0)

        # The one with the fewest places to go to comes first: by its labels, then by the part of a node that it takes.
        self._order = sorted(range(len(bundles)), key=lambda index: (len(self._labelled[index]), -part(index)))
        self._chosen: dict[int, bytes] = {}
        #: How many bundles of the group are on each node.
        self._used: dict[bytes, int] = {}
        for neighbour in beside:
            self._used[neighbour] = self._used.get(neighbour, 0) + 1
        self._steps = 0

    def run(self) -> list[bytes] | None:
        if self._place(0):
            return [self._chosen[index] for index in range(len(self._bundles))]
        return None

    def _place(self, depth: int) -> bool:
        if depth == len(self._order):
            return True
        index = self._order[depth]
        bundle = self._bundles[index]
        for node in self._candidates():
            self._steps += 1
            if self._steps > STEPS_MAX:
                return False
            left = self._left[node]
            if node not in self._labelled[index]:
                continue
            if any(amount > left.get(name, 0) for name, amount in bundle.items()):
                continue
            self._put(index, node, bundle)
            if self._place(depth + 1):
                return True
            self._take_back(index, node, bundle)
        return False

    def _candidates(self) -> Iterator[bytes]:
        used = self._used
        match self._strategy:
            case "STRICT_PACK":
                yield from [node for node in used if node in self._left] if used else self._ids
            case "PACK":  # those in use first, then those that have room for most
                yield from sorted(self._ids, key=lambda node: (-used.get(node, 0), -self._room_in(node), node))
            case "SPREAD":  # those not in use first
                yield from sorted(self._ids, key=lambda node: (used.get(node, 0), node))
            case "STRICT_SPREAD":
                yield from [node for node in self._ids if node not in used]

    def _room_in(self, node: bytes) -> int:
        """How many of the bundles would fit there by themselves, one after the other."""
        left = dict(self._left[node])
        count = 0
        for bundle, labelled in zip(self._bundles, self._labelled, strict=True):
            if node in labelled and all(amount <= left.get(name, 0) for name, amount in bundle.items()):
                count += 1
                for name, amount in bundle.items():
                    left[name] -= amount
        return count

    def _put(self, index: int, node: bytes, bundle: Amounts) -> None:
        left = self._left[node]
        for name, amount in bundle.items():
            left[name] = left.get(name, 0) - amount
        self._used[node] = self._used.get(node, 0) + 1
        self._chosen[index] = node

    def _take_back(self, index: int, node: bytes, bundle: Amounts) -> None:
        left = self._left[node]
        for name, amount in bundle.items():
            left[name] += amount
        self._used[node] -= 1
        if not self._used[node]:
            del self._used[node]
        del self._chosen[index]
