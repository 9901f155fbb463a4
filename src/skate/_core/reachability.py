"""Which other nodes a node can reach: two nodes may be cut off from each other while both reach the control service.

    REACHABLE ──silent for SUSPECT_S──▶ SUSPECTED ──silent for CUT_S──▶ CUT ──after each grace──▶ GraceOver, still CUT
        ▲                                   │                            │
        └────────── heard of again ◀────────┴────────────────────────────┘

A connection that is silent may be broken while its path is good, so a suspected node is first called over another
connection. A node that is still silent then is cut off. Within the grace nothing is lost and nothing is repeated: all
that was said waits in journals (`journal.py`) until the path heals. After the grace those who wait are told, and again
after each further grace for as long as the cut lasts. What begins to wait after the first grace has none of its own: it
is told within STILL_OVER_S, unless it has retries, each of which is worth a grace.

The owner of a task decides alone what becomes of it (`after_grace`), and needs no agreement with the other side: what
it gives up it never accepts a result of, and its order to end a worker that is still in one of these tasks reaches the
other node after healing.

A node that looks may have been frozen itself: if its own looks are further apart than they should be, the time in
between counts for no silence.

Owns:      for each node with a link, when it was last heard of, and what was said about it.
Knows not: sockets and clocks: `now` comes in. Whether a node is dead is decided in `membership.py`.
"""

from __future__ import annotations

import msgspec

#: A linked node is sent a Ping this often, and answers each.
PING_S = 0.5
#: After this silence the connection is replaced by another one; and again after the same time.
SUSPECT_S = 2.0
#: After this silence the two nodes cannot reach each other.
CUT_S = 4.0
#: What a path that has healed takes to be heard of, at most: another connection, and a Ping over it. A cut is given
#: this much more than the grace, so that one which heals at its very end loses nothing.
HEAL_S = 3.0
#: Once the first grace is over, what has begun to wait since is decided on this often.
STILL_OVER_S = 1.0
#: The caller looks at least this often; a gap of more than twice this time means that the caller itself stood still.
LOOK_PERIOD_S = 0.5

REACHABLE = "reachable"
SUSPECTED = "suspected"
CUT = "cut"

# -- what to do --------------------------------------------------------------------------------------------------------


class Reconnect(msgspec.Struct, frozen=True):
    """Give up the connections to that node, and make others."""

    node: int


class DeclareCut(msgspec.Struct, frozen=True):
    """Tell the control service, and stop to wait for what may come over old connections."""

    node: int


class DeclareHealed(msgspec.Struct, frozen=True):
    """Tell the control service, and make new connections at once."""

    node: int
    cut_s: float


class GraceOver(msgspec.Struct, frozen=True):
    """Decide on all that waits for that node."""

    node: int
    cut_s: float


class StillOver(msgspec.Struct, frozen=True):
    """The grace was over before: decide on what waits for that node and has no retries left."""

    node: int
    cut_s: float


Command = Reconnect | DeclareCut | DeclareHealed | GraceOver | StillOver


class _Watched(msgspec.Struct):
    heard_at: float
    #: When its connections were last replaced, or it was last heard of.
    tried_at: float
    #: When the present grace is over.
    over_at: float
    is_cut: bool = False
    #: The first grace of this cut is over, and when that is said next.
    is_over: bool = False
    still_over_at: float = 0.0


class Reachability:
    def __init__(self, now: float, grace_s: float) -> None:
        self.grace_s = grace_s
        self._nodes: dict[int, _Watched] = {}
        self._looked_at = now

    def watch(self, node: int, now: float) -> None:
        """There is a link to that node: it is expected to be heard of from now on."""
        if node not in self._nodes:
            self._nodes[node] = _Watched(now, now, now + self.grace_s + HEAL_S)

    def forget(self, node: int) -> None:
        """The node is dead, or has left."""
        self._nodes.pop(node, None)

    def heard(self, node: int, now: float) -> list[Command]:
        """A message of that node came which answers one of ours, or a Ping."""
        watched = self._nodes.get(node)
        if watched is None:
            return []
        was_cut, cut_s = watched.is_cut, now - watched.heard_at
        watched.heard_at = watched.tried_at = now
        watched.over_at = now + self.grace_s + HEAL_S
        watched.is_cut = watched.is_over = False
        return [DeclareHealed(node, cut_s)] if was_cut else []

    def look(self, now: float) -> list[Command]:
        """At least once every LOOK_PERIOD_S."""
        gap, self._looked_at = now - self._looked_at, now
        frozen_s = gap - LOOK_PERIOD_S if gap > 2 * LOOK_PERIOD_S else 0.0
        commands: list[Command] = []
        for node, watched in self._nodes.items():
            if frozen_s:  # what came meanwhile has not been read yet
                watched.heard_at += frozen_s
                watched.tried_at += frozen_s
                watched.over_at += frozen_s
                watched.still_over_at += frozen_s
            if now - watched.tried_at >= SUSPECT_S:
                watched.tried_at = now
                commands.append(Reconnect(node))
            if now - watched.heard_at >= CUT_S and not watched.is_cut:
                watched.is_cut = True
                commands.append(DeclareCut(node))
            if watched.is_cut and now >= watched.over_at:
                watched.is_over = True
                watched.over_at = now + self.grace_s
                watched.still_over_at = now + STILL_OVER_S
                commands.append(GraceOver(node, now - watched.heard_at))
            elif watched.is_over and now >= watched.still_over_at:
                watched.still_over_at = now + STILL_OVER_S
                commands.append(StillOver(node, now - watched.heard_at))
        return commands

    def state(self, node: int, now: float) -> str:
        watched = self._nodes.get(node)
        if watched is None or now - watched.heard_at < SUSPECT_S:
            return REACHABLE
        return CUT if watched.is_cut else SUSPECTED

    def is_cut(self, node: int) -> bool:
        watched = self._nodes.get(node)
        return watched is not None and watched.is_cut

    def is_over(self, node: int) -> bool:
        """Whether the node was not reached for longer than the grace."""
        watched = self._nodes.get(node)
        return watched is not None and watched.is_over

    def cuts(self, now: float) -> dict[int, float]:
        """The nodes that cannot be reached, and for how long they were not."""
        return {node: now - watched.heard_at for node, watched in self._nodes.items() if watched.is_cut}

    def validate(self) -> None:
        for watched in self._nodes.values():
            assert watched.heard_at <= watched.tried_at
            assert watched.over_at <= watched.heard_at + self.grace_s + HEAL_S + 1e-6 or watched.is_cut
            assert watched.is_cut or not watched.is_over


class CutPairs:
    """The pairs of nodes that cannot reach each other, as the control service is told by either end."""

    def __init__(self) -> None:
        #: (who says so, of whom)
        self._said: set[tuple[bytes, bytes]] = set()

    def said(self, by: bytes, of: bytes, *, is_cut: bool) -> bool:
        """One end reports; whether the state of the pair has changed by that."""
        before = self.between(by, of)
        if is_cut:
            self._said.add((by, of))
        else:
            self._said.discard((by, of))
        return self.between(by, of) != before

    def between(self, one: bytes, other: bytes) -> bool:
        return (one, other) in self._said or (other, one) in self._said

    def of(self, node: bytes) -> set[bytes]:
        """The nodes that this one cannot reach."""
        return {a if b == node else b for a, b in self._said if node in (a, b)}

    def node_died(self, node: bytes) -> None:
        self._said = {pair for pair in self._said if node not in pair}


# -- tasks -------------------------------------------------------------------------------------------------------------

#: Run again, which counts as a retry; run again, uncharged; fail.
CHARGED = "charged"
AGAIN = "again"
FAILED = "failed"


def after_grace(*, is_first: bool, retries_left: bool) -> str:
    """What becomes of a task that was sent to a worker out of reach, once the grace is over.

    The worker may have run it or not, and may still do so. Only the first of those that were sent is likely to have
    begun, so only that one is charged. What has no retries left must not run a second time, begun or not.
    """
    if not retries_left:
        return FAILED
    return CHARGED if is_first else AGAIN
