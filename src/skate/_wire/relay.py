"""An encrypted connection that looks like a plain one: a thread carries bytes between it and a socket pair.

    daemon or process ══ plain ══ socket pair ══ this thread: TlsStream ══ TCP, encrypted ══ another machine

Keys live in the memory of one process, so an encrypted connection cannot be handed to another; its plain end can. That
end never leaves the machine.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skate._wire.tls import TlsStream

READ_BYTES = 256 << 10
#: Once the plain end is closed, what is left goes out within this time, or never: the path may be cut.
LAST_BYTES_MS = 10_000
#: One side is not read while so much waits for the other.
WAITING_BYTES_MAX = 1 << 20


def relay(sock: socket.socket, stream: TlsStream) -> socket.socket:
    """The plain end of an encrypted connection that is established. Closing it ends the connection."""
    plain, inside = socket.socketpair()
    threading.Thread(target=_carry, args=(sock, stream, inside), name="skate-relay", daemon=True).start()
    return plain


class _Side:
    """A socket, and what waits to be written to it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.waiting = bytearray()
        #: Nothing more will come from it.
        self.ended = False

    def read(self) -> bytes:
        try:
            data = self.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return b""
        if not data:
            self.ended = True
        return data

    def write(self) -> None:
        try:
            sent = self.sock.send(memoryview(self.waiting)[:READ_BYTES])
        except (BlockingIOError, InterruptedError):
            return
        del self.waiting[:sent]


def _carry(sock: socket.socket, stream: TlsStream, inside: socket.socket) -> None:
    outer, inner = _Side(sock), _Side(inside)
    with sock, inside, contextlib.suppress(OSError):  # the end of one side is the end of the other
        poll = select.poll()
        while not (outer.ended and not inner.waiting) and not (inner.ended and not outer.waiting):
            for side, other in ((outer, inner), (inner, outer)):
                wanted = select.POLLIN if not side.ended and len(other.waiting) < WAITING_BYTES_MAX else 0
                poll.register(side.sock, wanted | (select.POLLOUT if side.waiting else 0))
            ready = dict(poll.poll())
            if ready.get(outer.sock.fileno(), 0) & ~select.POLLOUT and not outer.ended:
                plain, answer = stream.receive(outer.read())
                inner.waiting += plain
                outer.waiting += answer
                outer.ended = outer.ended or stream.ended
            if ready.get(inner.sock.fileno(), 0) & ~select.POLLOUT and not inner.ended:
                data = inner.read()
                if data:
                    outer.waiting += stream.send(data)
                elif inner.ended:
                    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LAST_BYTES_MS)
            for side in (outer, inner):
                if side.waiting:
                    side.write()
