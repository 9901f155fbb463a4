"""The head of a response and the first piece of its body, in one write.

uvicorn writes them one after the other, and each write is a call of the kernel. The second one took a quarter of the
time of a small request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["HeadWriter"]

#: A larger piece is not copied behind the head.
JOINED_BYTES = 64 << 10
CONTINUE = b"HTTP/1.1 100 "


class HeadWriter:
    """A transport for the responses of a connection: a head waits for the next write, or for the end of this turn."""

    __slots__ = ("_head", "_loop", "_pause", "_transport", "is_head_next")

    def __init__(
        self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, pause: Callable[[], object]
    ) -> None:
        self._transport, self._loop = transport, loop
        #: Lets the app wait with its next write until the connection is lost.
        self._pause = pause
        self._head = b""
        #: Whether a response has not begun.
        self.is_head_next = False

    def write(self, data: bytes) -> None:
        """Write, or keep the head of a response until more comes."""
        if self._head:
            head, self._head = self._head, b""
            if len(data) > JOINED_BYTES:
                self._transport.writelines([head, data])
            else:
                self._transport.write(head + data)
        elif self.is_head_next and not data.startswith(CONTINUE):
            self.is_head_next = False
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)
            if self._transport.is_closing():
                # What is written now is dropped at once, so an app that only sends would not let the loop turn.
                self._pause()

    def close(self) -> None:
        """Close the connection when all is sent."""
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """Whether the connection is closed, or about to be."""
        return self._transport.is_closing()

    def _flush(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)
