"""Direct channels between processes: the daemon makes a socket pair and hands one end to each.

Owns:      who has a channel to whom, and how processes died that somebody may still ask for.
Knows not: what the two say to each other.
Invariant: there is at most one channel between two processes; `a in peers[b]` exactly if `b in peers[a]`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping

from skate._wire.messages import Message, PeerConnected, PeerGone

#: Deaths that are remembered, to say to late askers what happened; older ones are answered with "unknown".
DEATHS_MAX = 10_000

#: Sends a message, with descriptors, to a process.
Send = Callable[[bytes, Message, tuple[int, ...]], None]


class Switchboard:
    def __init__(self, send: Send, pids: Mapping[bytes, int]) -> None:
        self._send = send
        #: Pids of the processes that are alive; a view of the daemon's.
        self._pids = pids
        self._peers: dict[bytes, set[bytes]] = {}
        self._deaths: dict[bytes, PeerGone] = {}

    def connect(self, asker: bytes, target: bytes) -> None:
        """Make a channel between the two, unless there is one."""
        if target in self._peers.get(asker, ()):
            return
        if target not in self._pids or asker == target:
            self._send(asker, self.death_of(target), ())
            return
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._send(asker, PeerConnected(target, self._pids[target]), (ours.fileno(),))
            self._send(target, PeerConnected(asker, self._pids[asker]), (theirs.fileno(),))
        self._peers.setdefault(asker, set()).add(target)
        self._peers.setdefault(target, set()).add(asker)

    def death_of(self, process: bytes) -> PeerGone:
        """How it died, if that is known."""
        unknown = PeerGone(process, 0, 0, b"", [], "the node daemon does not know this process")
        return self._deaths.get(process, unknown)

    def on_process_died(self, gone: PeerGone) -> None:
        """Tell everybody who had a channel to it."""
        for peer in self._peers.pop(gone.process_id, ()):
            self._peers[peer].discard(gone.process_id)
            self._send(peer, gone, ())
        self._deaths[gone.process_id] = gone
        if len(self._deaths) > DEATHS_MAX:
            del self._deaths[next(iter(self._deaths))]

    def validate(self) -> None:
        for process, peers in self._peers.items():
            assert process in self._pids or not peers, f"{process.hex()} is dead and has peers"
            for peer in peers:
                assert process in self._peers[peer], f"only one of {process.hex()} and {peer.hex()} knows their channel"
