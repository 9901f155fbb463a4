"""Which nodes a cluster has: who joined, who was heard of lately, who is held to be dead.

    join ──▶ ALIVE ──not heard of for DEAD_AFTER_S, or it left──▶ DEAD, for ever

A node is known by an id that it makes when it starts. One that was declared dead has lost its leases, actors, objects
and bundles in the eyes of all others; if it was only cut off and speaks again, it is told to end, and joins anew under
another id. So nobody ever has to reconcile two stories of the same node.

Whoever looks may have been frozen itself: if its own looks are further apart than they should be, nobody is declared
dead for silence during that time.

Owns:      the nodes, when each was heard of, and their last reports.
Knows not: sockets and clocks: `now` comes in.
"""

from __future__ import annotations

import msgspec

from skate._core.placement import NodeView

#: A node that was not heard of for so long is dead. It reports several times in that time, also when nothing changed.
DEAD_AFTER_S = 4.0
REPORT_PERIOD_S = 0.5
#: One whose connection ended has so long to come back.
COME_BACK_S = 1.5
#: How often somebody looks; a gap of more than twice that is our own fault, and not a node's.
LOOK_PERIOD_S = 0.5
#: Dead nodes that are remembered, to tell them so; one that is forgotten is treated like a stranger, and told the same.
DEAD_MAX = 10_000
#: Of those as many are described to whoever asks which nodes there were; the oldest make room for the newest.
DEPARTED_MAX = 100


class Member(msgspec.Struct):
    view: NodeView
    #: Where its daemon can be reached: host and port.
    address: tuple[str, int]
    heard_at: float
    #: Its connection ended, and it was not heard of since.
    is_cut_off: bool = False


# -- what to do --------------------------------------------------------------------------------------------------------


class Announce(msgspec.Struct, frozen=True):
    """Tell all others that it joined."""

    node: bytes


class DeclareDead(msgspec.Struct, frozen=True):
    """Tell all others, and settle what it had."""

    node: bytes
    reason: str
    #: As it was last.
    member: Member


class TellToEnd(msgspec.Struct, frozen=True):
    """It is held to be dead: it ends what it runs, and joins anew."""

    node: bytes


Command = Announce | DeclareDead | TellToEnd


class Membership:
    def __init__(self, now: float) -> None:
        self.members: dict[bytes, Member] = {}
        self._dead: dict[bytes, None] = {}
        #: How those were that died last, but for those that were there for a driver only.
        self.departed: dict[bytes, Member] = {}
        self._looked_at = now

    def __contains__(self, node: bytes) -> bool:
        """Whether it is, or is remembered to have been, part of the cluster."""
        return node in self.members or node in self._dead

    def was_dead(self, view: NodeView, address: tuple[str, int], now: float) -> None:
        """Before this service was started: the oldest first."""
        self._dead[view.id] = None
        self._departed(Member(view, address, now))

    def _departed(self, member: Member) -> None:
        if member.view.serves:
            self.departed[member.view.id] = member
            if len(self.departed) > DEPARTED_MAX:
                del self.departed[next(iter(self.departed))]

    def join(self, view: NodeView, address: tuple[str, int], now: float) -> list[Command]:
        if view.id in self._dead:
            return [TellToEnd(view.id)]
        is_new = view.id not in self.members
        self.members[view.id] = Member(view, address, now)
        return [Announce(view.id)] if is_new else []

    def heard(self, node: bytes, now: float, view: NodeView | None = None) -> list[Command]:
        """A report, or any other sign of life."""
        member = self.members.get(node)
        if member is None:
            return [TellToEnd(node)]
        member.heard_at = max(member.heard_at, now)
        member.is_cut_off = False
        if view is not None:
            member.view = view
        return []

    def suspect(self, node: bytes, now: float) -> None:
        """Its connection ended: it has less time than usual to be heard of again."""
        member = self.members.get(node)
        if member is not None:
            member.heard_at = min(member.heard_at, now - DEAD_AFTER_S + COME_BACK_S)
            member.is_cut_off = True

    def leave(self, node: bytes, reason: str) -> list[Command]:
        """It said goodbye, or its end is known otherwise."""
        member = self.members.pop(node, None)
        if member is None:
            return []
        self._departed(member)
        self._dead[node] = None
        if len(self._dead) > DEAD_MAX:
            del self._dead[next(iter(self._dead))]
        return [DeclareDead(node, reason, member)]

    def look(self, now: float) -> list[Command]:
        """Once every LOOK_PERIOD_S."""
        gap, self._looked_at = now - self._looked_at, now
        frozen_s = gap - LOOK_PERIOD_S if gap > 2 * LOOK_PERIOD_S else 0.0
        commands: list[Command] = []
        for id, member in list(self.members.items()):
            member.heard_at += frozen_s  # what it sent meanwhile has not been read yet
            silent_s = now - member.heard_at
            if silent_s > DEAD_AFTER_S:
                silence = f"it was not heard of for {silent_s:.1f} s."
                ended = f"its connection ended, and it did not come back within {COME_BACK_S:g} s."
                commands += self.leave(id, ended if member.is_cut_off else silence)
        return commands

    @property
    def views(self) -> list[NodeView]:
        return [member.view for member in self.members.values()]
