"""Break TCP connections of other processes, as something between two machines does that forgets or resets them.

A duplicate of a descriptor of another process (pidfd_getfd) is the same socket: shutting it down ends the connection
for both of its ends, and neither has asked for that.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterable

import psutil
import pytest

SYS_PIDFD_GETFD = 438  # the same number on all architectures
_libc = ctypes.CDLL(None, use_errno=True)


def _duplicate(pid: int, fd: int) -> int:
    """Raises OSError if the process or its descriptor is gone, or we may not."""
    process = os.pidfd_open(pid)
    try:
        copy = _libc.syscall(SYS_PIDFD_GETFD, process, fd, 0)
    finally:
        os.close(process)
    if copy < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(copy)


def require() -> None:
    """Skip the test where we may not."""
    try:
        os.close(_duplicate(os.getpid(), 0))
    except OSError as error:
        pytest.skip(f"descriptors of other processes cannot be duplicated here: {error.strerror}")


def break_connections(pids: Iterable[int]) -> int:
    """End every established TCP connection that these processes have; how many there were."""
    broken = 0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            for it in psutil.Process(pid).net_connections("tcp"):
                if it.status != psutil.CONN_ESTABLISHED:
                    continue
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    sock = socket.socket(fileno=_duplicate(pid, it.fd))
                    with sock:
                        sock.shutdown(socket.SHUT_RDWR)
                    broken += 1
    return broken
