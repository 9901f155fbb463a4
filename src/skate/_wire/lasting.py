"""A channel that outlasts its connection: what a broken one has lost is said again over the next.

A connection between two machines may end while both live: something in between forgets or resets it. The two then make
another (who does, and how, is not this module's), and each first says how much it has got (Resume).

Owns:      the journal, and whether the other end has said where to go on.
Invariant: the messages that `receive` returns over all connections are those that were sent, each once, in order.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

from skate._core.journal import Journal, MemoryLost
from skate._wire.channel import HEADER, HEADER_BYTES, Channel, ChannelClosed
from skate._wire.messages import Confirm, Message, Resume, decode, encoder


class LastingChannel(Channel):
    """`close` ends the connection and keeps the rest for the next one; `end` is for good."""

    __slots__ = ("_awaits", "_held", "_journal", "_live", "_whole_at", "memory_lost", "session")

    def __init__(
        self, sock: socket.socket, *, name: str = "", decode: Callable[[memoryview], Any] = decode, session: bytes = b""
    ) -> None:
        super().__init__(sock, name=name, decode=decode)
        #: By which the other end knows what a new connection goes on with, if it cannot know that otherwise.
        self.session = session
        #: The other end does not remember us: there is no going on.
        self.memory_lost = False
        self._journal = Journal()
        #: Whether there is a connection that takes what we say.
        self._live = True
        #: Whether the first thing that comes is where to go on.
        self._awaits = False
        #: What was said while there was no connection is heard at once, when this number of messages has come in all:
        #: a call must not begin before it is read that it was given up meanwhile.
        self._whole_at = 0
        self._held: list[Any] = []

    @property
    def is_live(self) -> bool:
        return self._live

    @property
    def unconfirmed(self) -> int:
        """Messages that the other end is not known to have."""
        return self._journal.said - self._journal.confirmed

    def _send(self, message: Message, fds: tuple[int, ...]) -> None:
        assert not fds, "descriptors stay on their machine"
        if not self.closed:
            frame = _frame(message)
            if len(frame) > self.limit:
                self._send_parts(message, len(frame))
                return
            self._journal.sent(frame)
            if self._live:
                self._write(frame)

    def _write(self, frame: bytes) -> None:
        sent = 0
        if not self._backlog:
            try:
                sent = self.sock.send(frame)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:  # its end is reported by the reading side
                return
        if sent < len(frame):
            self._keep(memoryview(frame)[sent:], ())

    def take(self, buffer: bytearray | bytes, size: int) -> list[Any]:
        messages = super().take(buffer, size)
        heard = []
        with self._lock:
            for message in messages:
                kind = type(message)
                if kind is Confirm:
                    self._confirm(message.count)
                elif kind is not Resume:
                    if self._awaits:  # the other end knows nothing of this channel: what it said before will not come
                        self._whole_at = 0
                    heard.append(message)
                elif self._awaits:
                    self._whole_at = message.said
                    self.go_on_behind(message.count)
                else:  # on a connection that is just made: whoever reads knows what to do with it
                    return [message]
            if self._journal.came(len(heard), size):
                self._write(_frame(Confirm(self._journal.tell())))
            if self._journal.received < self._whole_at:
                self._held += heard
                return []
            if self._held:
                heard, self._held = [*self._held, *heard], []
        return heard

    def receive(self, buffer: bytearray) -> list[Any]:
        try:
            return super().receive(buffer)
        except ChannelClosed:
            # The other end may be dead: what it has said before is heard, and its end after that.
            if not self._held or self.memory_lost:
                raise
            held, self._held = self._held, []
            return held

    def attach(self, sock: socket.socket) -> None:
        """There is a new connection."""
        sock.setblocking(False)
        with self._lock:
            self.close()
            self.sock = sock
            self.greet()

    def greet(self) -> None:
        """Say how much has come. What was said before waits until the other end has said the same."""
        with self._lock:
            self._awaits = True
            self._live = self._journal.is_fresh
            self._write(_frame(Resume(self.session, self._journal.tell(), self._journal.said)))

    def go_on_behind(self, count: int) -> None:
        """The other end has got so many messages."""
        with self._lock:
            self._awaits = False
            self._confirm(count)
            if not self._live:
                self._live = True
                for frame in self._journal.unconfirmed():
                    self._write(frame)

    def _confirm(self, count: int) -> None:
        try:
            self._journal.confirm(count)
        except MemoryLost as error:
            self.memory_lost = True
            raise ChannelClosed(str(error)) from error

    def close(self) -> None:
        with self._lock:
            self._live = False
            self._drop_backlog()
            self._partial.clear()
            self._skip = 0  # what is left of a refused frame stays with this connection: it counts as heard
            self.sock.close()

    def end(self) -> None:
        """Nobody will ever read it."""
        with self._lock:
            self.closed = True
            self._journal.forget()
            self.close()


def _frame(message: Message) -> bytes:
    payload = bytearray()
    encoder.encode_into(message, payload, HEADER_BYTES)
    HEADER.pack_into(payload, 0, len(payload) - HEADER_BYTES)
    return bytes(payload)
