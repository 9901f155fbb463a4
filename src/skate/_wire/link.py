"""A connection of a daemon to another one, or to the control service: messages of `cluster.py` on an event loop.

    connect ──▶ the first messages wait ──▶ handshake done ──▶ they leave, and all that follow
                        │
                        └── cannot connect, refused, or lost later ──▶ on_closed(link, why), once

A *lasting* link does not end there: who made it connects again until it is let in, who did not waits for that, and
what was said meanwhile or got lost is said then. It ends when its owner closes it, or the other end has forgotten it.

Owns:      the channel, and what was said before it was there.
Knows not: what the messages mean, and when the other end is gone for good.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from skate._wire import cluster
from skate._wire.channel import RECEIVE_BYTES, BadFrame, ChannelClosed, TooLarge
from skate._wire.complaints import Complaints, harmless
from skate._wire.entrance import Tls
from skate._wire.gate import Dial
from skate._wire.guard import ProtocolError, survive
from skate._wire.lasting import LastingChannel
from skate._wire.loop import EventLoop
from skate._wire.messages import Message, Refusal, Resume

#: A lasting link connects again after this time.
AGAIN_S = 0.2
_buffer = bytearray(RECEIVE_BYTES)
_complaints = Complaints()

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
        #: A lasting link is known by this to the other end; empty: it is not lasting.
        self.session = b""
        #: Called when a lasting link has lost its connection.
        self.on_broken: OnClosed = lambda link, why: None
        #: Called with the Refusal of a message that was too large, so that its sender gets an answer.
        self.on_refused: Callable[[Link, Any], None] = lambda link, refusal: None
        #: Called when a connection that we make is there, the first one included.
        self.on_connected: Callable[[Link], None] = lambda link: None
        self._loop = loop
        self._on_message = on_message
        self._on_closed = on_closed
        self._channel: LastingChannel | None = None
        #: Makes another connection, if that is for us to do.
        self._redial: Callable[[], Dial] | None = None
        self._dial: Dial | None = None
        self._waiting: list[Message] = []

    def connect(self, host: str, port: int, token: bytes, tls: Tls | None = None) -> None:
        """What is sent from now on waits until the other end has let us in."""
        self._redial = lambda: Dial(self._loop, host, port, token, self._on_dialled, tls)
        if self._channel is None:
            self._dial = self._redial()

    def last(self, session: bytes = b"") -> None:
        """From now on, until it is closed. The session is that of the end which has made it."""
        self.session = session or os.urandom(8)
        if self._channel is not None:
            self._channel.session = self.session

    def _on_dialled(self, sock: socket.socket | None, why: str) -> None:
        self._dial = None
        if sock is not None:
            if self._channel is not None:
                self._replace(sock)
            else:
                self.adopt(sock)
            self.on_connected(self)
        elif self.session:
            self._dial_later()
        else:
            self._end(why)

    def adopt(self, sock: socket.socket, rest: bytes = b"") -> None:
        """The connection is there; `rest` was read from it already."""
        channel = self._channel = LastingChannel(sock, name=self.name, decode=cluster.decode, session=self.session)
        self._loop.watch_channel(channel, self._on_readable)
        for message in self._waiting:
            self.send(message)
        self._waiting.clear()
        if rest:
            self._take(lambda: channel.take(rest, len(rest)))

    def send(self, message: Message) -> None:
        """A closed link swallows it: `on_closed` has told. What is too large is dropped, with a complaint: processes
        check what they send, and what daemons say by themselves is small or can be split."""
        if self._channel is not None:
            try:
                self._channel.send(message)
            except TooLarge as error:
                _complaints.make(self.name, "too large", f"nothing was sent to the {self.name}: {error}")
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
                if isinstance(message, Refusal):
                    what = f"a message of the {self.name} was not taken: it has {message.size} bytes"
                    _complaints.make(self.name, "too large", what)
                    self.on_refused(self, message)
                else:
                    self._act_on(message)
        except (ChannelClosed, ProtocolError) as error:
            if isinstance(error, BadFrame | ProtocolError):
                self._complain(error)
            if not self.session or self._channel is None or self._channel.memory_lost:
                self._end(str(error))
            else:
                self._break(str(error))

    def _act_on(self, message: Any) -> None:
        try:
            self._on_message(self, message)
        except Exception as error:  # noqa: BLE001 - whatever it is, one message ends neither the link nor the service
            survive(error, f"handling {type(message).__name__} of the {self.name}")

    def _complain(self, error: Exception) -> None:
        """It knows the token, and yet says what nobody understands: another program, or a defect of ours."""
        who = self.name
        with contextlib.suppress(OSError):
            assert self._channel is not None
            name = self._channel.sock.getpeername()
            if name and isinstance(name, tuple):  # and not the end of a pair of sockets, as with TLS
                who += f" at {name[0]}"
        _complaints.make(who, type(error).__name__, f"the connection of the {who} was cut: {harmless(str(error))}")

    # -- lasting ------------------------------------------------------------------------------------------------------

    def _break(self, why: str) -> None:
        assert self._channel is not None
        self._loop.unwatch(self._channel.fileno())
        self._channel.close()
        if self._redial is not None:
            self._dial_later()
        self.on_broken(self, why)

    def renew(self) -> None:
        """Give up the present connection of a lasting link: nothing comes over it. The end that made it makes another.
        One that is being made is left alone."""
        if self.session and self.is_connected:
            self._break("nothing came over it for too long.")

    def _dial_later(self) -> None:
        def dial() -> None:
            if self._redial is not None and not self.closed and self._dial is None and not self.is_connected:
                self._dial = self._redial()

        self._loop.call_at(time.monotonic() + AGAIN_S, dial)

    def _replace(self, sock: socket.socket) -> LastingChannel:
        channel = self._channel
        assert channel is not None
        if channel.fileno() >= 0:
            self._loop.unwatch(channel.fileno())
        channel.attach(sock)
        self._loop.watch_channel(channel, self._on_readable)
        return channel

    def go_on_with(self, visitor: Link, resume: Resume) -> None:
        """The end that has made this link has made another connection for it."""
        try:
            self._replace(visitor.hand_over()).go_on_behind(resume.count)
        except ChannelClosed as error:
            self._end(str(error))

    def begin_anew(self) -> None:
        """The other end wants to go on with a link that we do not know: it may, if we have heard nothing of it yet."""
        assert self._channel is not None
        self._channel.greet()
        self._channel.go_on_behind(0)

    # -- the connection -----------------------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        return self._channel is not None and self._channel.fileno() >= 0

    @property
    def unconfirmed(self) -> int:
        """Messages that the other end is not known to have."""
        return len(self._waiting) + (self._channel.unconfirmed if self._channel is not None else 0)

    @property
    def dials(self) -> bool:
        """This end makes its connections."""
        return self._redial is not None

    @property
    def is_connecting(self) -> bool:
        """It is there, or will be, by our own doing."""
        return self._redial is not None or self._channel is not None

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
        return self._channel is not None and (self._channel.has_backlog or not self._channel.is_live)

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
            self._channel.end()
            self._channel = None

    def _end(self, why: str) -> None:
        if not self.closed:
            self.close()
            self._on_closed(self, why)
