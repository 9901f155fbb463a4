"""Direct channels between a process of this node and one of another.

    ours ──Connect──▶ its daemon ──TCP, handshake, OpenChannel──▶ the other daemon: is the process alive?
                          │  ◀────────────────── ChannelOpened ──────┤
         ◀─PeerConnected──┘ with the connection                      └─PeerConnected──▶ theirs, with the connection

From then on the connection belongs to the two, and no daemon sees what they say. When both ask at the same time, the
one that the node with the lower number makes is used. A connection that ends is made again, until the other process is
known to be dead: its daemon says so, or its node is gone. If it ends after it was opened, the two say so (Connect with
`again`), and go on where they were.

Owns:      the connections that are being made; who of ours has a channel to whom.
Invariant: there is at most one channel between two processes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from skate._core.ids import node_of
from skate._wire import cluster
from skate._wire.guard import ProtocolError
from skate._wire.link import Link
from skate._wire.messages import PeerConnected, PeerGone

if TYPE_CHECKING:
    from skate._node.daemon import Daemon
    from skate._node.neighbours import Neighbours

#: A lost connection is made again after this time. It may be that the other process is dead, and that this is not
#: known yet. The node with the higher number waits longer, so that the two do not cross.
AGAIN_S = 0.1
AGAIN_HIGHER_S = 0.2


def lost_with_node(process_id: bytes, reason: str, pid: int = 0) -> PeerGone:
    """A process whose node is gone."""
    return PeerGone(process_id, pid, 0, b"", [], f"its node is gone: {reason}", node_lost=True)


class Bridges:
    def __init__(self, daemon: Daemon, neighbours: Neighbours) -> None:
        self._daemon = daemon
        self._neighbours = neighbours
        #: Connections that are being made, by our process and theirs; None: another attempt is due.
        self._opening: dict[tuple[bytes, bytes], Link | None] = {}
        self._open: dict[bytes, set[bytes]] = {}

    def connect(self, ours: bytes, theirs: bytes, again: bool = False) -> None:
        """Make a channel between the two, unless there is one; again: that is lost."""
        if (ours, theirs) in self._opening:
            return
        if theirs not in self._open.get(ours, ()):
            self._opening[ours, theirs] = None
            self._try(ours, theirs)
        elif again:
            self._opening[ours, theirs] = None
            self._try_later(ours, theirs)

    def _try_later(self, ours: bytes, theirs: bytes) -> None:
        delay_s = AGAIN_S if self._neighbours.number < node_of(theirs) else AGAIN_HIGHER_S
        self._daemon.loop.call_at(time.monotonic() + delay_s, lambda: self._try(ours, theirs))

    def _try(self, ours: bytes, theirs: bytes) -> None:
        if self._opening.get((ours, theirs), self) is not None:  # not wanted any more, or on its way
            return
        node = node_of(theirs)
        member = self._neighbours.members.get(node)
        if member is None:
            del self._opening[ours, theirs]
            self._daemon.send(ours, lost_with_node(theirs, "it is not part of the cluster."))
            return
        if self._neighbours.reach.is_cut(node):  # `renew` tries again
            return
        self._neighbours.acquaint(ours, node)
        asks = (ours, self._daemon.pids[ours], theirs, theirs in self._open.get(ours, ()))
        if not member.port:
            self._neighbours.send(node, cluster.PleaseOpen(*asks))
            return

        def on_message(link: Link, message: Any) -> None:
            if not isinstance(message, cluster.ChannelOpened):
                raise ProtocolError(f"{type(message).__name__} came instead of ChannelOpened")
            del self._opening[ours, theirs]
            self._hand_over(link, ours, theirs, message.pid)

        def on_lost(link: Link, why: str) -> None:
            if self._opening.get((ours, theirs)) is link:
                self._opening[ours, theirs] = None
                self._try_later(ours, theirs)

        link = Link(self._daemon.loop, on_message, on_lost, name="channel", one_by_one=True)
        self._opening[ours, theirs] = link
        link.send(cluster.OpenChannel(*asks))
        link.connect(member.host, member.port, self._neighbours.token, self._neighbours.tls)

    def renew(self, node: int) -> None:
        """That node can be reached again: old connections may be silent for as long as the cut was, so all channels to
        it get new ones."""
        for pair in [pair for pair, link in self._opening.items() if link is None and node_of(pair[1]) == node]:
            self._try(*pair)
        for ours, peers in list(self._open.items()):
            for theirs in [id for id in peers if node_of(id) == node]:
                self.connect(ours, theirs, again=True)

    def on_asked(self, message: cluster.OpenChannel, link: Link) -> None:
        """Another node has made a connection for one of our processes."""
        ours, theirs = message.target, message.asker
        if ours not in self._daemon.pids:
            self._daemon.send(theirs, self._daemon.switchboard.death_of(ours))
            link.close()
            return
        if theirs in self._open.get(ours, ()) and not message.again:
            link.close()
            return
        if (ours, theirs) in self._opening:
            if self._opening[ours, theirs] is not None and self._neighbours.number < node_of(theirs):
                link.close()  # ours is on its way
                return
            self._stop_opening(ours, theirs)
        self._neighbours.acquaint(ours, node_of(theirs))
        link.send(cluster.ChannelOpened(self._daemon.pids[ours]))
        self._hand_over(link, ours, theirs, message.pid)

    def on_please_open(self, ours: bytes, theirs: bytes, again: bool) -> None:
        """A node that cannot reach us wants a channel."""
        if ours in self._daemon.pids:
            self.connect(ours, theirs, again)
        else:
            self._daemon.send(theirs, self._daemon.switchboard.death_of(ours))

    def _stop_opening(self, ours: bytes, theirs: bytes) -> None:
        link = self._opening.pop((ours, theirs), None)
        if link is not None:
            link.close()

    def _hand_over(self, link: Link, ours: bytes, theirs: bytes, pid: int) -> None:
        self._open.setdefault(ours, set()).add(theirs)
        with link.hand_over() as sock:
            self._daemon.send(ours, PeerConnected(theirs, pid), (sock.fileno(),))

    # -- ends ---------------------------------------------------------------------------------------------------------

    def on_process_died(self, process_id: bytes) -> None:
        """One of ours; its daemon tells the other nodes."""
        self._open.pop(process_id, None)
        for ours, theirs in [pair for pair in self._opening if pair[0] == process_id]:
            self._stop_opening(ours, theirs)

    def on_guest_gone(self, gone: PeerGone) -> None:
        """One of another node: those of ours who have a channel to it, or wait for one, are told."""
        theirs = gone.process_id
        for ours in self._forget(theirs):
            self._daemon.send(ours, gone)

    def on_told_of_death(self, ours: bytes, theirs: bytes) -> None:
        """Its daemon has answered that it is dead."""
        self._stop_opening(ours, theirs)
        self._open.get(ours, set()).discard(theirs)

    def on_node_gone(self, node: int, reason: str) -> None:
        peers = {theirs for _, theirs in self._opening} | {id for ids in self._open.values() for id in ids}
        for theirs in peers:
            if node_of(theirs) == node:
                for ours in self._forget(theirs):
                    self._daemon.send(ours, lost_with_node(theirs, reason))

    def _forget(self, theirs: bytes) -> set[bytes]:
        """Our processes that have, or wait for, a channel to it; they do so no longer."""
        ours = {ours for ours, ids in self._open.items() if theirs in ids}
        for id in ours:
            self._open[id].discard(theirs)
        waiting = [pair for pair in self._opening if pair[1] == theirs]
        for pair in waiting:
            self._stop_opening(*pair)
            ours.add(pair[0])
        return ours
