"""One end of a stream socket: frames in, frames out, file descriptors with them.

    OFFSET SIZE  frame
    0      4     length of the payload, little endian
    4      n     payload: one message of `messages/`, msgpack

Owns:      the bytes that the socket has not taken yet, and the frame that has not fully arrived yet.
Knows not: threads and loops. Whoever reads calls `receive`; whoever sends calls `send`, from any thread.
Invariant: `send` never blocks. What the kernel does not take stays in `_backlog`, in order, and `on_backlog` is told,
           so that the loop calls `flush` when the socket can take more.
"""

from __future__ import annotations

import array
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from skate._wire.complaints import harmless
from skate._wire.messages import Message, decode, encoder

HEADER = struct.Struct("<I")
HEADER_BYTES = 4
#: A peer that announces a larger frame is cut off. Values above 100 KB travel through the arena, not in frames.
FRAME_BYTES_MAX = 256 << 20
RECEIVE_BYTES = 256 << 10
FDS_PER_READ_MAX = 16
FD_SPACE = socket.CMSG_SPACE(FDS_PER_READ_MAX * array.array("i").itemsize)


class ChannelClosed(ConnectionError):
    """The peer is gone, or sent what is no message of ours."""


class BadFrame(ChannelClosed):
    """It sent what is no message of ours."""


class Channel:
    """Messages over one connected stream socket."""

    __slots__ = (
        "_backlog",
        "_buffer",
        "_carries_fds",
        "_decode",
        "_deferred",
        "_lock",
        "_partial",
        "_sending",
        "closed",
        "fds",
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
        #: Received descriptors, in the order of the messages that they came with.
        self.fds: deque[int] = deque()
        #: Called (with the send lock held) when something had to be kept back.
        self.on_backlog: Callable[[Channel], None] | None = None
        self._carries_fds = carries_fds
        self._lock = threading.RLock()
        self._sending = False
        self._deferred: deque[tuple[Message, tuple[int, ...]]] = deque()
        self._backlog: deque[tuple[memoryview, tuple[int, ...]]] = deque()
        self._buffer = bytearray()
        self._partial = bytearray()

    def fileno(self) -> int:
        return self.sock.fileno()

    # -- sending ------------------------------------------------------------------------------------

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send now what the socket takes, keep the rest. Descriptors are sent as they are: the caller closes its own.

        A closed channel swallows the message: its end is reported by the reading side, once.
        """
        with self._lock:
            if self._sending:  # a finalizer that interrupted this thread in the middle of another send
                self._deferred.append((message, fds))
                return
            self._sending = True
            try:
                self._send(message, fds)
                while self._deferred:
                    self._send(*self._deferred.popleft())
            finally:
                self._sending = False

    def _send(self, message: Message, fds: tuple[int, ...]) -> None:
        if not self.closed:
            buffer = self._buffer
            encoder.encode_into(message, buffer, HEADER_BYTES)
            size = len(buffer)
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

    def _keep(self, rest: memoryview, fds: tuple[int, ...]) -> None:
        self._backlog.append((rest, fds))
        if self.on_backlog is not None:
            self.on_backlog(self)

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
        """Every whole message, now that these bytes have come: just read, or read by somebody else before."""
        partial = self._partial
        decode = self._decode
        if partial:
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
                    if length > FRAME_BYTES_MAX:
                        raise BadFrame(f"a frame of {length} bytes was announced; {FRAME_BYTES_MAX} is the most")
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
        size, ancillary, _flags, _address = self.sock.recvmsg_into([buffer], FD_SPACE, socket.MSG_CMSG_CLOEXEC)
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                received = array.array("i")
                received.frombytes(data[: len(data) - len(data) % received.itemsize])
                self.fds.extend(received)
        return size

    def close(self) -> None:
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._drop_backlog()
            while self.fds:
                socket.close(self.fds.popleft())
            self.sock.close()
