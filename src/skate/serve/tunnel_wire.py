"""One end of a connection between replicas: messages in and out of an asyncio transport, with back-pressure.

Back-pressure is that of the socket. A receiver stops reading while INBOX_BYTES wait for its application, and a sender
waits until the socket has taken what was written before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from skate.serve.tunnel_frames import BadFrame, Buffers, FrameDecoder, Message, encode, size_of

__all__ = ["App", "Inbox", "Receive", "RemoteAppError", "Scope", "Send", "TunnelBroken", "Wire", "log"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: A side stops reading while messages of this size wait for its application.
INBOX_BYTES = 512 << 10
#: A side waits with writing while more than this waits for the socket.
WRITE_BYTES = 128 << 10

log = logging.getLogger("skate.serve")


class TunnelBroken(ConnectionError):
    """The process with the application cannot be reached, or its connection ended in the middle of an exchange.

    `started` tells whether the response has started: if it has not, something else can still be answered. `was_sent`
    tells whether the request may have arrived: if it has not, another process can be asked.
    """

    __module__ = "skate.serve.tunnel"

    def __init__(self, message: str = "", *, started: bool = False, was_sent: bool = True) -> None:
        self.started, self.was_sent = started, was_sent
        super().__init__(message)


class RemoteAppError(RuntimeError):
    """The application at the other end raised an exception. The text is its traceback."""

    __module__ = "skate.serve.tunnel"


class Inbox:
    """The messages of one exchange that have come and wait to be taken. While they are many, the socket is not read."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._messages: deque[Message] = deque()
        self._bytes = 0
        self._paused = False
        self._ended = False
        self._news = asyncio.Event()

    def put(self, message: Message) -> None:
        """Add a message. After the end it is dropped."""
        if self._ended:
            return
        self._messages.append(message)
        self._bytes += size_of(message)
        self._news.set()
        if self._bytes > INBOX_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()

    async def get(self) -> Message | None:
        """Wait for the next message and return it, or None if all were taken and no more will come."""
        while not self._messages:
            if self._ended:
                return None
            self._news.clear()
            await self._news.wait()
        message = self._messages.popleft()
        self._bytes -= size_of(message)
        if self._paused and self._bytes <= INBOX_BYTES // 2:
            self._resume()
        return message

    def end(self) -> None:
        """Take no more messages. Those that have come can still be taken."""
        self._ended = True
        self._news.set()
        if self._paused:
            self._resume()

    def __len__(self) -> int:
        return len(self._messages)

    def _resume(self) -> None:
        self._paused = False
        if not self._transport.is_closing():
            self._transport.resume_reading()


class Wire(asyncio.Protocol):
    """One end of a connection. Each side derives from it what it does with messages."""

    transport: asyncio.Transport

    def __init__(self, accepted: frozenset[str]) -> None:
        self._decoder = FrameDecoder(accepted)
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = False
        #: Why the connection has ended, if that is known.
        self.error: Exception | None = None

    def on_message(self, message: Message) -> None:
        """Take a message from the other side. May raise BadFrame, which ends the connection."""
        raise AssertionError("each side takes messages in its own way")

    def on_lost(self) -> None:
        """Take notice that the connection has ended. It is called once."""
        raise AssertionError("each side ends in its own way")

    def is_open(self) -> bool:
        return not self._lost and not self.transport.is_closing()

    def write(self, buffers: Buffers) -> None:
        """Send at once, or raise TunnelBroken."""
        if not self.is_open():
            raise TunnelBroken("the connection to the other process has ended.")
        if len(buffers) == 1:
            self.transport.write(buffers[0])
        else:
            self.transport.writelines(buffers)

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message that needs no body and no answer, if the connection is still there."""
        if self.is_open():
            self.write(encode(message)[0])

    async def flushed(self) -> None:
        """Wait until the socket has taken most of what was written."""
        if not self._writable.is_set():
            await self._writable.wait()

    def abort(self) -> None:
        """End the connection at once, without what was written and not sent."""
        self.transport.abort()

    # --- called by the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport. That of uvloop does not derive from asyncio's, and has the same methods."""
        self.transport = transport  # type: ignore[assignment]
        self.transport.set_write_buffer_limits(high=WRITE_BYTES)

    def data_received(self, data: bytes) -> None:
        """Make messages of what came."""
        try:
            for message in self._decoder.feed(data):
                self.on_message(message)
        except BadFrame as error:
            self.error = error
            log.warning("a connection between replicas was closed: %s", error)
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Wake those that wait to write, and end what goes on."""
        self._lost = True
        self.error = self.error or error
        self._writable.set()
        self.on_lost()

    def pause_writing(self) -> None:
        """Let `flushed` wait."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Let `flushed` return."""
        self._writable.set()
