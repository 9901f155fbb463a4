"""A floor for moving bytes between nodes: one process sends a block of shared memory over loopback TCP, another one
receives it into a block of its own, and nobody does anything else.

It sends in two ways. `sendfile` names the memory by its file and leaves the rest to the kernel; `send` gives the kernel
an address to copy from. Which one is faster depends on the machine. The pages of both blocks are present before the
first transfer is timed, and a transfer ends when the receiver has said that it has every byte.
"""

from __future__ import annotations

import mmap
import os
import socket
import subprocess
import sys
import time
from types import TracebackType

now = time.perf_counter
_ACKNOWLEDGED = b"."


class BareTransfer:
    """A block of `size_bytes` here, and a process that it can be sent to, again and again."""

    def __init__(self, size_bytes: int) -> None:
        self._size = size_bytes
        self._fd = _block(size_bytes)
        self._mapping = mmap.mmap(self._fd, size_bytes)
        _touch(self._mapping)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            self._receiver = subprocess.Popen([sys.executable, "-S", __file__, str(port), str(size_bytes)])
            self._sock, _ = server.accept()
        self._await_acknowledgement()  # its pages are there

    def sendfile(self) -> float:
        """Seconds to send all of it, in calls as large as the kernel takes."""
        begin, done, fd = now(), 0, self._sock.fileno()
        while done < self._size:
            done += os.sendfile(fd, self._fd, done, self._size - done)
        self._await_acknowledgement()
        return now() - begin

    def send(self) -> float:
        """Seconds to send all of it from memory."""
        begin = now()
        self._sock.sendall(self._mapping)
        self._await_acknowledgement()
        return now() - begin

    def _await_acknowledgement(self) -> None:
        if self._sock.recv(1) != _ACKNOWLEDGED:
            raise RuntimeError("the receiver of bare transfers is gone")

    def __enter__(self) -> BareTransfer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()
        self._receiver.wait()
        self._mapping.close()
        os.close(self._fd)


def _block(size_bytes: int) -> int:
    fd = os.memfd_create("bare-transfer")
    os.ftruncate(fd, size_bytes)
    return fd


def _touch(mapping: mmap.mmap) -> None:
    """Write to every page."""
    ones = b"\1" * (1 << 20)
    for start in range(0, len(mapping), len(ones)):
        mapping[start : start + len(ones)] = ones[: len(mapping) - start]


def _receive(port: int, size_bytes: int) -> None:
    mapping = mmap.mmap(_block(size_bytes), size_bytes)
    _touch(mapping)
    view = memoryview(mapping)
    with socket.create_connection(("127.0.0.1", port)) as sock:
        while True:
            sock.sendall(_ACKNOWLEDGED)
            done = 0
            while done < size_bytes:
                count = sock.recv_into(view[done:], 0, socket.MSG_WAITALL)
                if not count:
                    return
                done += count


if __name__ == "__main__":
    _receive(int(sys.argv[1]), int(sys.argv[2]))
