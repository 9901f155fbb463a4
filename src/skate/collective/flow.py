"""Bytes that leave and arrive over several sockets at once, in one thread, straight from and into arrays.

    flow([Outgoing(...), …], [Incoming(...), …], wait)

Owns:      how far each stream is.
Knows not: who is at the other end, and what to do when nothing moves: `wait` looks at that, and may raise.
Bounded:   nothing is kept here but one chunk per Incoming that combines. What is on its way is in the buffers of the
           sockets; a receiver that is slow stops its sender.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skate.collective.ring import Chunk

__all__ = ["Array", "Ended", "Incoming", "Outgoing", "flow"]

Array = NDArray[Any]
#: Combine two arrays into the third, element by element.
Combine = Callable[[Array, Array, Array], object]

#: A wait for data ends when this much of a chunk has come, or the rest of the chunk: each wake of this thread costs as
#: much as copying some ten kilobytes. It must not reach beyond a chunk, because the sender may wait for this one.
MANY_BYTES = 512 << 10


class Ended(Exception):
    """The other end of a stream has ended it; `fd` says of which."""

    def __init__(self, fd: int) -> None:
        self.fd = fd


class Outgoing:
    """Chunks of an array that leave over a socket in order; `allowed` of them may leave already."""

    def __init__(self, sock: socket.socket, data: Array, chunks: Sequence[Chunk]) -> None:
        self.sock = sock
        self.allowed = len(chunks)
        self._bytes = _bytes_of(data)
        self._chunks, self._width = chunks, data.itemsize
        self._sent = 0
        self._at = chunks[0].start * self._width if chunks else 0

    @property
    def done(self) -> bool:
        return self._sent == len(self._chunks)

    @property
    def can_move(self) -> bool:
        return self._sent < self.allowed

    def step(self) -> bool:
        """Send what the socket takes now; whether that was anything."""
        moved = False
        while self._sent < self.allowed:
            end = self._chunks[self._sent].stop * self._width
            try:
                self._at += self.sock.send(self._bytes[self._at : end])
            except (BlockingIOError, InterruptedError):
                return moved
            except OSError:
                raise Ended(self.sock.fileno()) from None
            moved = True
            if self._at == end:
                self._sent += 1
                if self._sent < len(self._chunks):
                    self._at = self._chunks[self._sent].start * self._width
        return moved


class Incoming:
    """Chunks that arrive over a socket in order. The first `combined` of them are combined with what the array has."""

    def __init__(
        self,
        sock: socket.socket,
        data: Array,
        chunks: Sequence[Chunk],
        combined: int = 0,
        combine: Combine | None = None,
    ) -> None:
        self.sock = sock
        self.received = 0
        self._data, self._bytes = data, _bytes_of(data)
        self._chunks, self._combined, self._combine = chunks, combined, combine
        self._width = data.itemsize
        self._filled = 0
        largest = max((stop - start for start, stop in chunks[:combined]), default=0)
        self._aside = np.empty(largest, data.dtype)
        self._aside_bytes = _bytes_of(self._aside)
        self._least = 1

    @property
    def done(self) -> bool:
        return self.received == len(self._chunks)

    def step(self) -> bool:
        """Take what has come, up to the end of a chunk; whether that was anything."""
        if self.done:
            return False
        start, stop = self._chunks[self.received]
        size = (stop - start) * self._width
        aside = self.received < self._combined
        first = 0 if aside else start * self._width
        into = self._aside_bytes if aside else self._bytes
        try:
            count = self.sock.recv_into(into[first + self._filled : first + size])
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            count = 0
        if count == 0:
            raise Ended(self.sock.fileno())
        self._filled += count
        if self._filled == size:
            if aside:
                assert self._combine is not None
                mine = self._data[start:stop]
                self._combine(mine, self._aside[: stop - start], mine)
            self._filled = 0
            self.received += 1
        return True

    def before_wait(self) -> None:
        """Have the socket count as readable when there is enough to do."""
        start, stop = self._chunks[self.received]
        self._set_least(min(MANY_BYTES, (stop - start) * self._width - self._filled))

    def end(self) -> None:
        """Leave the socket as it was, also after an error."""
        if self.sock.fileno() >= 0:
            self._set_least(1)

    def _set_least(self, least: int) -> None:
        if least != self._least:
            self._least = least
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)


def flow(
    outs: Sequence[Outgoing],
    ins: Sequence[Incoming],
    wait: Callable[[list[socket.socket], list[socket.socket]], object],
    pace: Callable[[], object] = lambda: None,
) -> None:
    """Move everything. `pace` is called after something has moved, and may allow more to leave.

    `wait(readable, writable)` returns when one of these sockets may be read or written again.
    """
    try:
        while True:
            moved = False
            for incoming in ins:
                moved |= incoming.step()
            pace()
            for outgoing in outs:
                moved |= outgoing.step()
            if not moved:
                unfinished = [each for each in ins if not each.done]
                for incoming in unfinished:
                    incoming.before_wait()
                readable = [each.sock for each in unfinished]
                writable = [each.sock for each in outs if each.can_move]
                if not readable and not writable and all(each.done for each in outs):
                    return
                wait(readable, writable)
    finally:
        for incoming in ins:
            incoming.end()


def _bytes_of(data: Any) -> memoryview:
    return memoryview(data.view(np.uint8)) if data.size else memoryview(b"")
