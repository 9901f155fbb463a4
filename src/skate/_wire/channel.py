"""One end of a stream socket: frames in, frames out, file descriptors with them.

    OFFSET SIZE  frame
    0      4     length of the payload, little endian
    4      n     payload: one message of `messages/`, msgpack

Owns:      the bytes that the socket has not taken yet, and the frame that has not fully arrived yet.
Knows not: threads and loops. Whoever reads calls `receive`; whoever sends calls `send`, from any thread.
Invariant: `send` never blocks. What the kernel does not take stays in `_backlog`, in order, and `on_backlog` is told,
           so that the loop calls `flush` when the socket can take more.
           No frame is larger than `limit`: `send` splits the message, or raises TooLarge and sends nothing of it. A
           larger one that arrives is skipped, and a Refusal takes its place; the channel goes on behind it.
"""

from __future__ import annotations

import array
import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from skate._message_limits import limits
from skate._wire.complaints import harmless
from skate._wire.messages import Message, decode, encoder

HEADER = struct.Struct("<I")
HEADER_BYTES = 4
RECEIVE_BYTES = 256 << 10
FDS_PER_READ_MAX = 16
#: What may wait for an end that does not read. Beyond it the connection is given up.
BACKLOG_BYTES_MAX = 2 << 30
FD_SPACE = socket.CMSG_SPACE(FDS_PER_READ_MAX * array.array("i").itemsize)


#: In place of a descriptor that was sent to this process, which had no room for it.
LOST = -1


class ChannelClosed(ConnectionError):
    """The peer is gone, or sent what is no message of ours."""


class BadFrame(ChannelClosed):
    """It sent what is no message of ours."""


class TooLarge(ValueError):
    """Messages, and their sizes, that were not sent because each is larger than a frame may be."""

    def __init__(self, unsent: list[tuple[Any, int]], limit: int) -> None:
        super().__init__(
            ", ".join(f"a {type(message).__name__} of {size} bytes" for message, size in unsent)
            + f" cannot be sent: {limit} bytes is the most"
        )
        self.unsent = unsent
        self.limit = limit


class Channel:
    """Messages over one connected stream socket."""

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_buffer",
        "_carries_fds",
        "_decode",
        "_deferred",
        "_lock",
        "_partial",
        "_sending",
        "_skip",
        "closed",
        "fds",
        "limit",
        "name",
        "on_backlog",
        "sock",
    )

    def __init__(
        self,
        sock: socket.socket,
        *,
        carries_fds: bool = False,
        name: str = "",
        decode: Callable[[memoryview], Any] = decode,
    ) -> None:
        sock.setblocking(False)
        self._decode = decode
        self.sock = sock
        self.name = name
        self.closed = False
        #: The largest frame, in bytes of its payload.
        self.limit = limits.frame
        #: Received descriptors, in the order of the messages that they came with.
        self.fds: deque[int] = deque()
        #: Called (with the send lock held) when something had to be kept back.
        self.on_backlog: Callable[[Channel], None] | None = None
        self._carries_fds = carries_fds
        self._lock = threading.RLock()
        self._sending = False
        self._deferred: deque[tuple[Message, tuple[int, ...]]] = deque()
        self._backlog: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._backlog_bytes = 0
        self._buffer = bytearray()
        #: What has come of a frame that is not all there; while a frame is skipped, something or other.
        self._partial = bytearray()
        #: Bytes still to come of a frame that was refused.
        self._skip = 0

    def fileno(self) -> int:
        return self.sock.fileno()

    # -- sending ------------------------------------------------------------------------------------

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send now what the socket takes, keep the rest. Descriptors are sent as they are: the caller closes its own.

        A closed channel swallows the message: its end is reported by the reading side, once. Raises TooLarge.
        """
        with self._lock:
            if self._sending:  # a finalizer that interrupted this thread in the middle of another send
                self._deferred.append((message, fds))
                return
            self._sending = True
            try:
                self._send(message, fds)
            finally:
                try:
                    while self._deferred:
                        self._send(*self._deferred.popleft())
                finally:
                    self._sending = False

    def _send(self, message: Message, fds: tuple[int, ...]) -> None:
        if not self.closed:
            buffer = self._buffer
            encoder.encode_into(message, buffer, HEADER_BYTES)
            size = len(buffer)
            if size > self.limit:
                self._buffer = bytearray()  # otherwise it would stay that large
                self._send_parts(message, size)
                return
            HEADER.pack_into(buffer, 0, size - HEADER_BYTES)
            if not self._backlog and not fds:
                try:
                    sent = self.sock.send(buffer)
                except (BlockingIOError, InterruptedError):
                    sent = 0
                except OSError:
                    return
                if sent == size:
                    return
                self._keep(memoryview(bytes(memoryview(buffer)[sent:])), ())
                return
            # A descriptor belongs to this process only until the caller closes it, so a kept one is duplicated.
            self._keep(memoryview(bytes(buffer)), tuple(socket.dup(fd) for fd in fds))
            self._flush()

    def _send_parts(self, message: Message, size: int) -> None:
        """Several messages that say the same; raises TooLarge for those that are too large by themselves."""
        from skate._wire.splitting import parts_of  # rarely needed

        parts = parts_of(message, size, self.limit)
        if not parts:
            raise TooLarge([(message, size)], self.limit)
        unsent: list[tuple[Any, int]] = []
        for part in parts:
            try:
                self._send(part, ())
            except TooLarge as error:
                unsent += error.unsent
        if unsent:
            raise TooLarge(unsent, self.limit)

    def _keep(self, rest: memoryview, fds: tuple[int, ...]) -> None:
        self._backlog.append((rest, fds))
        self._backlog_bytes += len(rest)
        if self._backlog_bytes > BACKLOG_BYTES_MAX:
            self._give_up()
            return
        if self.on_backlog is not None:
            self.on_backlog(self)

    def _give_up(self) -> None:
        """The other end does not read, and what waits for it would take all memory: as good as dead. The reading side
        sees the end of the connection, as if the other end had made it."""
        self._drop_backlog()
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def flush(self) -> bool:
        """Send more of what was kept back; True when nothing is left."""
        with self._lock:
            return self._flush()

    def _flush(self) -> bool:
        backlog = self._backlog
        while backlog:
            data, fds = backlog[0]
            try:
                if fds:
                    sent = socket.send_fds(self.sock, [data], list(fds))
                else:
                    sent = self.sock.send(data)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                self._drop_backlog()
                return True
            for fd in fds:
                socket.close(fd)
            self._backlog_bytes -= sent
            if sent == len(data):
                backlog.popleft()
            else:
                backlog[0] = (data[sent:], ())
        return True

    def _drop_backlog(self) -> None:
        for _, fds in self._backlog:
            for fd in fds:
                socket.close(fd)
        self._backlog.clear()
        self._backlog_bytes = 0

    @property
    def has_backlog(self) -> bool:
        return bool(self._backlog)

    # -- receiving ------------------------------------------------------------------------------------

    def receive(self, buffer: bytearray) -> list[Any]:
        """Every whole message in what one read returns; [] if there was nothing to read.

        `buffer` is scratch space of the calling loop, RECEIVE_BYTES long.
        """
        try:
            if self._carries_fds:
                size = self._receive_with_fds(buffer)
            else:
                size = self.sock.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if size == 0:
            raise ChannelClosed("end of stream")
        return self.take(buffer, size)

    def take(self, buffer: bytearray | bytes, size: int) -> list[Any]:
        """Every whole message, now that these bytes have come: just read, or read by another reader before."""
        partial = self._partial
        decode = self._decode
        if partial:
            if self._skip:
                return self._skip_over(buffer, size)
            partial += memoryview(buffer)[:size]
            data = memoryview(partial)
            size = len(partial)
        else:
            data = memoryview(buffer)
        messages: list[Any] = []
        at = 0
        try:
            while size - at >= HEADER_BYTES:
                (length,) = HEADER.unpack_from(data, at)
                end = at + HEADER_BYTES + length
                if end > size:
                    if length > self.limit and (refusal := self._refuse(data[at + HEADER_BYTES : size], length)):
                        messages.append(refusal)
                        self._skip = end - size
                        at = size - 1  # so that something is partial
                    break
                messages.append(decode(data[at + HEADER_BYTES : end]))
                at = end
            rest = b"" if at == 0 and partial else bytes(data[at:size])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"not a message: {harmless(str(error))}") from error
        finally:
            data.release()
        if at or not partial:  # otherwise `partial` already holds exactly what is left, however long it grows
            partial.clear()
            partial += rest
        return messages

    def _refuse(self, begin: memoryview, length: int) -> Any:
        """What is told of a frame that is too large, by what has come of it; None if that is too little yet."""
        from skate._wire.refusal import NotOurs, read_refusal  # rarely needed

        try:
            return read_refusal(begin, length, self.limit)
        except NotOurs:
            raise BadFrame(f"a frame of {length} bytes was announced; {self.limit} is the most") from None
        finally:
            begin.release()

    def _skip_over(self, buffer: bytearray | bytes, size: int) -> list[Any]:
        if size < self._skip:
            self._skip -= size
            return []
        behind = bytes(memoryview(buffer)[self._skip : size])
        self._skip = 0
        self._partial.clear()
        return Channel.take(self, behind, len(behind))

    def receive_one(self) -> list[Any]:
        """The next message, and not a byte behind it: those are for somebody else. [] if it is not all there yet."""
        partial = self._partial
        while True:
            need = HEADER_BYTES
            if len(partial) >= HEADER_BYTES:
                need += HEADER.unpack_from(partial)[0]
                if need > RECEIVE_BYTES:
                    raise BadFrame(f"a frame of {need} bytes was announced where a small one is expected")
                if len(partial) == need:
                    return self.take(b"", 0)
            try:
                data = self.sock.recv(need - len(partial))
            except (BlockingIOError, InterruptedError):
                return []
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if not data:
                raise ChannelClosed("end of stream")
            partial += data

    def _receive_with_fds(self, buffer: bytearray) -> int:
        size, ancillary, flags, _address = self.sock.recvmsg_into([buffer], FD_SPACE, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(data[: len(data) - len(data) % received.itemsize])
                self.fds.extend(received)
        if flags & socket.MSG_CTRUNC:
            # This process may open no more files, and the kernel has dropped the descriptor. A message has one at most,
            # and a read ends with it, so that its place is known.
            self.fds.append(LOST)
        return size

    def close(self) -> None:
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._drop_backlog()
            while self.fds:
                if (fd := self.fds.popleft()) != LOST:
                    socket.close(fd)
            self.sock.close()
