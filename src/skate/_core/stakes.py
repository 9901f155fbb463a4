"""What the processes of this node hold on other nodes, to correct what those last said of themselves.

Problem:   a report is a fraction of a second old. In that time the leases that we have given back or got, and what we
           ask for no more, change the other node most of all, if it works for us. Who goes by the report alone sends a
           task away from its data, because of a queue that was its own and is gone.
Idea:      a report says which leases it counts as ours, and how much of its queue is ours. The rest is another's; our
           own part we know better.
Owns:      the leases of our processes on other nodes, and those given back that a report may still count.
Knows not: messages, and time: `now` comes in.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from skate._core.placement import NodeView
from skate._core.resources import Amounts

#: A lease that was got so long ago and is in no report has ended without our doing.
REPORTED_WITHIN_S = 1.0


class Stake(msgspec.Struct):
    owner: bytes
    needs: Amounts
    got_at: float
    #: We have given it back.
    is_over: bool = False


class Stakes:
    def __init__(self, number: int) -> None:
        #: Of this node, by which reports know it.
        self._number = number
        #: By node and lease.
        self._stakes: dict[bytes, dict[int, Stake]] = {}
        #: Nodes whose last report counts something as ours.
        self._counting: set[bytes] = set()

    def granted(self, lease: int, node: bytes, owner: bytes, needs: Amounts, now: float) -> None:
        self._stakes.setdefault(node, {})[lease] = Stake(owner, needs, now)

    def returned(self, lease: int, node: bytes) -> None:
        stake = self._stakes.get(node, {}).get(lease)
        if stake is not None:
            stake.is_over = True

    def process_died(self, owner: bytes) -> None:
        """The other nodes hear of that, too, and take its leases back."""
        for ours in self._stakes.values():
            for stake in ours.values():
                stake.is_over = stake.is_over or stake.owner == owner

    def reported(self, view: NodeView, now: float) -> None:
        """A node has said how it is."""
        if self._number in view.stakes:
            self._counting.add(view.id)
        else:
            self._counting.discard(view.id)
        self._tidy(view, now)

    def _tidy(self, view: NodeView, now: float) -> None:
        """Forget what has ended. Reports come when something has changed: so there may be none for a long time."""
        ours = self._stakes.get(view.id)
        if ours is None:
            return
        _, counted = view.stakes.get(self._number, (0, ()))
        for lease, stake in list(ours.items()):
            if lease not in counted and (stake.is_over or now - stake.got_at > REPORTED_WITHIN_S):
                del ours[lease]
        if not ours:
            del self._stakes[view.id]

    def node_died(self, node: bytes) -> None:
        self._stakes.pop(node, None)
        self._counting.discard(node)

    def correct(self, views: dict[bytes, NodeView], asked: Mapping[bytes, int], now: float) -> None:
        """Put in how nodes are, by their reports and by what we know; `asked`: how many leases we want of which."""
        for node in {*self._stakes, *self._counting, *asked}:
            view = views.get(node)
            if view is not None:
                self._tidy(view, now)
                views[node] = self._corrected(view, asked.get(node, 0))

    def _corrected(self, view: NodeView, asked: int) -> NodeView:
        queued, counted = view.stakes.get(self._number, (0, ()))
        available = dict(view.available)
        for lease, stake in self._stakes.get(view.id, {}).items():
            is_counted = lease in counted
            sign = (is_counted and stake.is_over) - (not is_counted and not stake.is_over)
            for name, amount in stake.needs.items() if sign else ():
                available[name] = available.get(name, 0) + sign * amount
        others = max(0, view.queued - queued)
        return msgspec.structs.replace(view, available=available, queued=others + asked)
