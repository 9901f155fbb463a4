"""Connections between a process of this node and a listener on another one (`skate.connections`).

    ours ──CallListener──▶ its daemon ──TCP, handshake, OpenStream──▶ the other daemon: does a process listen there?
         ◀─DescriptorGiven── with the connection ◀── StreamOpened ──┤
                                                                    └── the connection, over the socket of the listener

From then on the connection belongs to the two processes, and no daemon sees what they say. Unlike a channel
(`bridges.py`) it is not made again when it breaks: the two hear of it.

Owns:      the connections that are being made.
Knows not: what they are for, and how long a process waits for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skate._wire import cluster
from skate._wire.guard import ProtocolError
from skate._wire.link import Link
from skate._wire.messages import CallListener, DescriptorGiven

if TYPE_CHECKING:
    from skate._node.daemon import Daemon
    from skate._node.neighbours import Neighbours


class Callers:
    def __init__(self, daemon: Daemon, neighbours: Neighbours) -> None:
        self._daemon = daemon
        self._neighbours = neighbours

    def call(self, process: bytes, message: CallListener) -> None:
        """Connect one of our processes to a listener on another node."""

        def refuse(reason: str) -> None:
            self._daemon.send(process, DescriptorGiven(message.request, reason))

        def on_message(link: Link, answer: Any) -> None:
            if not isinstance(answer, cluster.StreamOpened):
                raise ProtocolError(f"{type(answer).__name__} came instead of StreamOpened")
            if answer.reason:
                link.close()
                refuse(answer.reason)
                return
            with link.hand_over() as sock:
                self._daemon.send(process, DescriptorGiven(message.request), (sock.fileno(),))

        member = self._neighbours.members.get(message.node)
        if member is None:
            refuse("its node is not part of the cluster")
        elif not member.port:
            refuse("its node takes no connections, because it joined with skate://")
        else:
            link = Link(
                self._daemon.loop, on_message, lambda link, why: refuse(why.rstrip(".")), name="stream", one_by_one=True
            )
            link.send(cluster.OpenStream(self._daemon.node_id, message.key))
            link.connect(member.host, member.port, self._neighbours.token, self._neighbours.tls)

    def on_called(self, message: cluster.OpenStream, link: Link) -> None:
        """Another node has made a connection for one of our listeners."""
        reason = self._daemon.descriptors.refusal(message.key)
        link.send(cluster.StreamOpened(reason))
        if reason:
            link.close()
            return
        # The answer went first: as soon as the listener has the connection, what it says follows.
        with link.hand_over() as sock:
            self._daemon.descriptors.hand_to_listener(message.key, sock)
