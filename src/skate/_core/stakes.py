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

import msgspec

from skate._core.placement import NodeView
from skate._core.resources import Amounts

#: A lease that was got so long ago and is in no report has ended without our doing.
REPORTED_WITHIN_S = 1.0


class Stake(msgspec.Struct):
    node: bytes
    needs: Amounts
    got_at: float
    #: We have given it back.
    is_over: bool = False


class Stakes:
    def __init__(self, number: int) -> None:
        #: Of this node, by which reports know it.
        self._number = number
        self._stakes: dict[int, Stake] = {}

    def granted(self, lease: int, node: bytes, needs: Amounts, now: float) -> None:
        self._stakes[lease] = Stake(node, needs, now)

    def returned(self, lease: int) -> None:
        stake = self._stakes.get(lease)
        if stake is not None:
            stake.is_over = True

    def reported(self, view: NodeView, now: float) -> None:
        """A node has said how it is."""
        _, counted = view.stakes.get(self._number, (0, ()))
        for lease, stake in list(self._stakes.items()):
            has_ended = stake.is_over or now - stake.got_at > REPORTED_WITHIN_S
            if stake.node == view.id and lease not in counted and has_ended:
                del self._stakes[lease]

    def node_died(self, node: bytes) -> None:
        self._stakes = {lease: stake for lease, stake in self._stakes.items() if stake.node != node}

    def correct(self, view: NodeView, asked: int) -> NodeView:
        """How the node is, by its report and by what we know; `asked`: how many leases we want of it."""
        queued, counted = view.stakes.get(self._number, (0, ()))
        ours = [(lease, stake) for lease, stake in self._stakes.items() if stake.node == view.id]
        if not ours and asked == queued:
            return view
        available = dict(view.available)
        for lease, stake in ours:
            is_counted = lease in counted
            sign = (is_counted and stake.is_over) - (not is_counted and not stake.is_over)
            for name, amount in stake.needs.items() if sign else ():
                available[name] = available.get(name, 0) + sign * amount
        others = max(0, view.queued - queued)
        return msgspec.structs.replace(view, available=available, queued=others + asked)
