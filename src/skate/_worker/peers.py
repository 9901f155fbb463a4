"""Direct channels to other processes, made on demand by the node daemon.

A message to a peer whose channel is still being made waits in its `outbox`. A peer is dead when the daemon has said so
(PeerGone) *and* its channel has been read to the end: results that it sent before it died are never lost.

A channel to another machine may lose its connection while both live. Then the daemon is asked for another one.

What is too large for a message is not sent. `on_unsent` hears of it, so that no process waits for it (`oversize.py`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Container
from typing import Any

from skate._wire.channel import Channel, TooLarge
from skate._wire.lasting import LastingChannel
from skate._wire.messages import Connect, Message, PeerConnected, PeerGone, Tasks


class Peer:
    """Another process, as this one sees it."""

    __slots__ = (
        "before_send",
        "channel",
        "ended",
        "functions",
        "gone",
        "lease",
        "life",
        "link",
        "on_unsent",
        "outbox",
        "pid",
        "process_id",
    )

    def __init__(
        self,
        process_id: bytes,
        before_send: Callable[[], None],
        on_unsent: Callable[[Peer, TooLarge], None] = lambda peer, error: None,
    ) -> None:
        self.process_id = process_id
        self.on_unsent = on_unsent
        #: The daemon must know of an object before a peer can ask it for that.
        self.before_send = before_send
        self.pid = 0
        self.channel: Channel | None = None
        #: Messages that wait for the channel.
        self.outbox: list[Message] = []
        #: The channel has been read to its end.
        self.ended = False
        self.gone: PeerGone | None = None
        #: The lease that this process holds on the peer, if any (submit.py).
        self.lease: Any = None
        #: The actor that lives there and the number of its life, if this process calls it (actors.py).
        self.link: Any = None
        self.life = 0
        #: Ids of functions that the peer has got from us.
        self.functions: set[bytes] = set()

    def send(self, message: Message) -> None:
        self.before_send()
        if self.channel is not None:
            self.send_over(self.channel, message)
        elif self.gone is None:
            self.outbox.append(message)

    def send_over(self, channel: Channel, message: Message) -> None:
        try:
            channel.send(message)
        except TooLarge as error:
            self.on_unsent(self, error)

    def withdraw(self, ids: Container[bytes]) -> None:
        """Tasks that wait for the channel are not sent after all."""
        for message in self.outbox:
            if type(message) is Tasks:
                message.tasks = [task for task in message.tasks if task.id not in ids]


class Myself(Peer):
    """This process as its own peer. What it sends to itself is handled a moment later, as if it had come from afar."""

    __slots__ = ("_deliver",)

    def __init__(self, process_id: bytes, deliver: Callable[[Message], None]) -> None:
        super().__init__(process_id, lambda: None)
        self._deliver = deliver

    def send(self, message: Message) -> None:
        self._deliver(message)


class Peers:
    """All peers of a process. Every method is called with the runtime's lock held."""

    def __init__(
        self,
        send_to_daemon: Callable[[Message], None],
        on_dead: Callable[[Peer], None],
        before_send: Callable[[], None],
        cut: Callable[[Channel], None],
        open_channel: Callable[[bytes, socket.socket], Channel],
        on_unsent: Callable[[Peer, TooLarge], None] = lambda peer, error: None,
    ) -> None:
        self._on_unsent = on_unsent
        self._cut = cut
        self._open_channel = open_channel
        self._send_to_daemon = send_to_daemon
        self._before_send = before_send
        self._on_dead = on_dead
        self._peers: dict[bytes, Peer] = {}
        self._by_channel: dict[Channel, Peer] = {}
        #: This process, for an actor that calls itself.
        self.myself: Peer | None = None

    def get(self, process_id: bytes) -> Peer:
        """The peer; asks the daemon for a channel if there is none."""
        if self.myself is not None and process_id == self.myself.process_id:
            return self.myself
        peer = self._peers.get(process_id)
        if peer is None:
            peer = self._peers[process_id] = Peer(process_id, self._before_send, self._on_unsent)
            self._send_to_daemon(Connect(process_id))
        return peer

    def known(self, process_id: bytes) -> Peer | None:
        return self._peers.get(process_id)

    def of(self, channel: Channel) -> Peer:
        return self._by_channel[channel]

    def all(self) -> list[Peer]:
        return list(self._peers.values())

    def on_connected(self, message: PeerConnected, sock: socket.socket) -> Channel:
        """The channel to be read from now on: a new one, or the one that there was, with another connection."""
        peer = self._peers.get(message.process_id)
        if peer is None:
            peer = self._peers[message.process_id] = Peer(message.process_id, self._before_send, self._on_unsent)
        peer.pid = message.pid
        if isinstance(peer.channel, LastingChannel):
            self._cut(peer.channel)
            peer.channel.attach(sock)
            peer.ended = False
            return peer.channel
        channel = peer.channel = self._open_channel(peer.process_id, sock)
        self._by_channel[channel] = peer
        for waiting in peer.outbox:
            peer.send_over(channel, waiting)
        peer.outbox.clear()
        return channel

    def on_gone(self, message: PeerGone) -> None:
        peer = self._peers.get(message.process_id)
        if peer is None:
            return
        peer.gone = message
        if message.node_lost and peer.channel is not None and not peer.ended:
            self._cut(peer.channel)
            peer.ended = True
        if peer.channel is None or peer.ended:
            self._bury(peer)

    def on_closed(self, channel: Channel) -> None:
        peer = self._by_channel[channel]
        peer.ended = True
        if peer.gone is not None:
            self._bury(peer)
        elif isinstance(channel, LastingChannel):
            self._send_to_daemon(Connect(peer.process_id, again=True))

    def _bury(self, peer: Peer) -> None:
        del self._peers[peer.process_id]
        if peer.channel is not None:
            del self._by_channel[peer.channel]
        if isinstance(peer.channel, LastingChannel):
            peer.channel.end()
        self._on_dead(peer)
