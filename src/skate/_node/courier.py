"""Chunks of objects on their way between the arenas of two nodes: one thread for each end of a connection.

Moving bytes takes as long as the network takes, and the daemon's loop must not wait for it. So the loop decides what
goes where, and couriers carry: an Outlet sends chunks of its arena in the order in which it was told to, an Inlet puts
what comes to the places that it was told of. A connection carries chunks one way.

    OFFSET  SIZE   on the connection, after the handshake, again and again
    0       8      tag: the number of the chunk, chosen by the receiving node, used once on a connection
    8       8      size of what follows
    16      size   the bytes

    loop ── send(tag, offset, size) ──▶ Outlet ═══ connection ═══▶ Inlet ◀── expect(tag, offset, size) ── loop
      ▲                                    │                         │                                     ▲
      └─────────── done([tag]) ────────────┘                         └───────────── done([tag]) ───────────┘

Owns:      the socket, from the moment it is given to a courier: its thread closes it, as the last thing it does.
Knows not: objects, pins, nodes; why a chunk is wanted; how long to wait for a peer. The loop closes a courier whose
           peer it has given up.
Invariant: once an Outlet has reported a chunk, its bytes may change and the peer still gets what they were; once an
           Inlet has, it does not write there again. One that has reported its end, or was closed, does not touch the
           arena any more.

An Outlet sends from a mapping, not with `sendfile`. That puts the arena's pages themselves into the socket's queue, and
over loopback into the peer's: when they were overwritten after `sendfile` had returned and all was acknowledged, 64 KiB
of 64 KiB arrived changed, without an error anywhere. Only an answer from the peer could tell when an object may be
given up. Nor is it faster: 1 GiB over loopback in chunks of 4 MiB, median of 5 on a busy machine with two cores, came
with 1.1 GB/s from a bare loop of `sendfile`, with 1.7 from one of `send`, and with 1.8 through these couriers. Chunks
of 1 or 8 MiB (1.4, 1.7), socket buffers of 512 KiB to 4 MiB (1.9 to 1.4) or a second connection (2.0) changed little:
the buffers are left to the kernel, which fits them to the network.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import socket
import struct
import threading
from collections import OrderedDict, deque
from collections.abc import Callable

HEADER = struct.Struct("<QQ")
#: Chunks that nobody wants any more are read into so much memory, again and again.
SCRATCH_BYTES = 64 << 10
#: Forgotten chunks that are remembered, since they may still come. One that comes after it was dropped from here ends
#: the connection, as an unknown one does: that costs the chunks on their way, and nothing is written to a wrong place.
FORGOTTEN_MAX = 10_000

log = logging.getLogger("skate")

#: Called from a courier's thread, so it must be quick and must not wait for the loop: the tags of chunks that were
#: carried in full, or None, once and as the last call, when the connection has ended and not because we closed it.
Done = Callable[[list[int] | None], None]


class _Ended(Exception):
    """The peer ended the connection."""


class _Misspoken(Exception):
    """The peer sent what it must not; the text says what."""


class _Courier:
    """The life of the thread and of the socket, which is the same for both ends."""

    def __init__(self, sock: socket.socket, done: Done, carry: Callable[[], None], name: str) -> None:
        # So that one call moves a whole chunk: each return to Python waits for the GIL, up to 5 ms if the loop is busy.
        sock.setblocking(True)
        self._sock = sock
        self._done = done
        self._closing = False
        #: Set with the lock held, under which descriptors are closed: nobody uses a number that may be another's then.
        self._ended = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, args=(carry,), name=name, daemon=True)

    def close(self) -> None:
        """End the thread and the connection. When this returns, the arena is not touched and nothing is reported."""
        with self._lock:
            self._closing = True
            if not self._ended:
                # Wakes the thread in whatever it waits for. The connection may have ended on its own: then it is awake.
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _run(self, carry: Callable[[], None]) -> None:
        try:
            carry()
        except (_Ended, OSError):
            pass  # what to do about it the loop decides
        except _Misspoken as error:
            log.warning("a connection for objects was closed: %s", error)
        finally:
            # Also after an error of ours, which the thread then dies of: somebody waits for what was on its way.
            with self._lock:
                self._ended = True
                self._let_go()
            if not self._closing:
                self._done(None)

    def _let_go(self) -> None:
        self._sock.close()


class Outlet(_Courier):
    """Sends chunks of the arena. Its methods are called from the loop's thread and do not block."""

    def __init__(self, sock: socket.socket, arena_fd: int, done: Done) -> None:
        self._arena_bytes = os.fstat(arena_fd).st_size
        arena = mmap.mmap(arena_fd, self._arena_bytes, prot=mmap.PROT_READ)
        super().__init__(sock, done, lambda: self._carry(arena), "skate-outlet")
        #: (tag, offset, size). Bounded by what the peers of a node may ask for ahead of what they have got.
        self._chunks: deque[tuple[int, int, int]] = deque()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread.start()

    def send(self, tag: int, offset: int, size: int) -> None:
        """Send these bytes after those before. Without a connection it does nothing: the loop hears of its end."""
        _check_place(offset, size, self._arena_bytes)
        with self._lock:
            if not self._ended:
                self._chunks.append((tag, offset, size))
                os.eventfd_write(self._wake, 1)

    def _let_go(self) -> None:
        super()._let_go()
        os.close(self._wake)

    def _carry(self, arena: mmap.mmap) -> None:
        # Views are released on the way out, whatever happens: the mapping cannot be closed before.
        with arena, memoryview(arena) as view:
            wakes = select.poll()
            wakes.register(self._wake, select.POLLIN)
            # A peer says nothing here. If there is something to read, it is the end, or not a peer of ours.
            wakes.register(self._sock, select.POLLIN | select.POLLRDHUP)
            while True:
                if any(fd != self._wake for fd, _ in wakes.poll()):
                    raise _Ended
                os.eventfd_read(self._wake)
                while self._chunks and not self._closing:
                    tag, offset, size = self._chunks.popleft()
                    with view[offset : offset + size] as chunk:
                        self._send_chunk(HEADER.pack(tag, size), chunk)
                    self._done([tag])

    def _send_chunk(self, header: bytes, chunk: memoryview) -> None:
        """One system call, unless a signal cuts it short."""
        sent = self._sock.sendmsg([header, chunk])
        if sent < len(header) + len(chunk):
            self._sock.sendall(header[sent:])
            with chunk[max(sent - len(header), 0) :] as rest:
                self._sock.sendall(rest)


class Inlet(_Courier):
    """Receives chunks into the arena. Its methods are called from the loop's thread and do not block."""

    def __init__(self, sock: socket.socket, view: memoryview, done: Done, asked_before: int = 0) -> None:
        """Chunks with tags below `asked_before` may have been asked for over a connection that broke, and come over
        this one if the peer heard of that too late. They were asked for again, so they are thrown away."""
        self._arena_bytes = len(view)
        self._asked_before = asked_before
        # Only the thread has the view, and it is gone with it: the arena can be unmapped then.
        super().__init__(sock, done, lambda: self._carry(view), "skate-inlet")
        #: tag → (offset, size) of chunks that have not begun; they go to their place.
        self._expected: dict[int, tuple[int, int]] = {}
        #: tag → size of chunks that nobody wants any more, oldest first. A tag is in one of the two at most, and in
        #: neither once its chunk has begun.
        self._forgotten: OrderedDict[int, int] = OrderedDict()
        self._thread.start()

    def expect(self, tag: int, offset: int, size: int) -> None:
        """The chunk with that tag goes there. Say so before the peer is asked for it."""
        _check_place(offset, size, self._arena_bytes)
        with self._lock:
            if tag in self._expected or tag in self._forgotten:
                raise ValueError(f"chunk {tag} was expected before: a tag is used once on a connection")
            self._expected[tag] = (offset, size)

    def forget(self, tag: int) -> bool:
        """Nobody wants the chunk any more. Return whether its place is free: nothing will be written there from now on.

        If not, it is being received or was, and is reported as any other; its place may be used after that.
        """
        with self._lock:
            place = self._expected.pop(tag, None)
            if place is None:
                return self._ended
            self._forgotten[tag] = place[1]
            if len(self._forgotten) > FORGOTTEN_MAX:
                self._forgotten.popitem(last=False)
            return True

    def _carry(self, view: memoryview) -> None:
        header = memoryview(bytearray(HEADER.size))
        scratch = memoryview(bytearray(SCRATCH_BYTES))
        while True:
            self._fill(header)
            tag, size = HEADER.unpack(header)
            offset = self._begin(tag, size)
            if offset is not None:
                with view[offset : offset + size] as place:
                    self._fill(place)
                self._done([tag])
                continue
            while size:
                piece = min(size, SCRATCH_BYTES)
                self._fill(scratch[:piece])
                size -= piece

    def _begin(self, tag: int, size: int) -> int | None:
        """Where the chunk goes; None if it is thrown away. From here on it can no longer be forgotten."""
        with self._lock:
            offset, wanted = self._expected.pop(tag, (None, None))
            if wanted is None:
                wanted = self._forgotten.pop(tag, None)
        if wanted is None and tag < self._asked_before:
            return None
        if wanted is None:
            raise _Misspoken(f"chunk {tag} came ({size} bytes), and nobody had asked for it.")
        if wanted != size:
            raise _Misspoken(f"chunk {tag} should have {wanted} bytes, and came with {size}.")
        return offset

    def _fill(self, place: memoryview) -> None:
        done = 0
        while done < len(place):
            # After a shutdown, what has come already can still be read; it is not wanted any more.
            if self._closing:
                raise _Ended
            with place[done:] as rest:
                count = self._sock.recv_into(rest, 0, socket.MSG_WAITALL)
            if count == 0:
                raise _Ended
            done += count


def _check_place(offset: int, size: int, arena_bytes: int) -> None:
    # A slice that reaches too far is only shorter, and the connection would then be out of step.
    if not 0 <= offset <= offset + size <= arena_bytes:
        raise ValueError(f"{size} bytes at {offset} do not lie in an arena of {arena_bytes} bytes")
