"""A connection of a daemon to another one, or to the control service: messages of `cluster.py` on an event loop.

    connect ──▶ the first messages wait ──▶ handshake done ──▶ they leave, and all that follow
                        │
                        └── cannot connect, refused, or lost later ──▶ on_closed(link, why), once

Owns:      the channel, and what was said before it was there.
Knows not: what the messages mean, and whether a lost connection is made again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from skate._wire import cluster
from skate._wire.channel import RECEIVE_BYTES, Channel, ChannelClosed
from skate._wire.entrance import Tls
from skate._wire.gate import Dial
from skate._wire.loop import EventLoop
from skate._wire.messages import Message

_buffer = bytearray(RECEIVE_BYTES)

OnMessage = Callable[["Link", Any], None]
OnClosed = Callable[["Link", str], None]


class Link:
    def __init__(
        self, loop: EventLoop, on_message: OnMessage, on_closed: OnClosed, *, name: str = "", one_by_one: bool = False
    ) -> None:
        """One by one: nothing is read behind a message before that was acted on, as it may be for somebody else."""
        self.name = name
        self._one_by_one = one_by_one
        #: The node at the other end, once that is known.
        self.node_id = b""
        self.closed = False
        self._loop = loop
        self._on_message = on_message
        self._on_closed = on_closed
        self._channel: Channel | None = None
        self._dial: Dial | None = None
        self._waiting: list[Message] = []
        #: What could not be said, if the connection was never there.
        self.unsent: list[Message] = []

    def connect(self, host: str, port: int, token: bytes, tls: Tls | None = None) -> None:
        """What is sent from now on waits until the other end has let us in."""
        self._dial = Dial(self._loop, host, port, token, self._on_dialled, tls)

    def _on_dialled(self, sock: socket.socket | None, why: str) -> None:
        self._dial = None
        if sock is None:
            self._end(why)
        else:
            self.adopt(sock)

    def adopt(self, sock: socket.socket, rest: bytes = b"") -> None:
        """The connection is there; `rest` was read from it already."""
        channel = self._channel = Channel(sock, name=self.name, decode=cluster.decode)
        self._loop.watch_channel(channel, self._on_readable)
        for message in self._waiting:
            channel.send(message)
        self._waiting.clear()
        if rest:
            self._take(lambda: channel.take(rest, len(rest)))

    def send(self, message: Message) -> None:
        """A closed link swallows it: `on_closed` has told."""
        if self._channel is not None:
            self._channel.send(message)
        elif not self.closed:
            self._waiting.append(message)

    def _on_readable(self) -> None:
        channel = self._channel
        assert channel is not None
        self._take(channel.receive_one if self._one_by_one else lambda: channel.receive(_buffer))

    def _take(self, read: Callable[[], list[Any]]) -> None:
        try:
            for message in read():
                if self.closed or self._channel is None:  # an earlier message led to that
                    return
                self._on_message(self, message)
        except (ChannelClosed, ValueError) as error:
            self._end(str(error))

    @property
    def is_connecting(self) -> bool:
        """It is there, or will be, by our own doing."""
        return self._dial is not None or self._channel is not None

    def hand_waiting_to(self, other: Link) -> None:
        """The other end has made a connection instead."""
        for message in self._waiting:
            other.send(message)
        self.close()

    def rebind(self, on_message: OnMessage, on_closed: OnClosed) -> None:
        """It is known now what the link is for."""
        self._on_message, self._on_closed = on_message, on_closed

    def hand_over(self) -> socket.socket:
        """The connection is somebody else's from now on. Not in the middle of several messages."""
        channel, self._channel = self._channel, None
        assert channel is not None
        self._loop.unwatch(channel.fileno())
        self.closed = True
        return channel.sock

    @property
    def has_backlog(self) -> bool:
        return self._channel is not None and self._channel.has_backlog

    def flush(self) -> bool:
        """Whether all that was sent is on its way."""
        return self._channel is None or self._channel.flush()

    def close(self) -> None:
        """From our side: nobody is told."""
        self.closed = True
        self._waiting.clear()
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
        if self._channel is not None:
            self._loop.unwatch(self._channel.fileno())
            self._channel.close()
            self._channel = None

    def _end(self, why: str) -> None:
        if not self.closed:
            self.unsent = list(self._waiting)
            self.close()
            self._on_closed(self, why)
