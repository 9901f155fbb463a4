"""Stream sockets between any two processes of a cluster, made by the node daemons.

A process that can be called makes a `Listener` and gives its address away, as an argument, a result or part of any
other value. A process that has the address can connect:

>>> listener = Listener()
>>> talked = actor.talk.remote(listener.address)     # there: sock = address.connect()
>>> sock = listener.accept()
>>> sock.sendall(b"...")

Between two machines the connection goes through the one port that each node has: both daemons have proved that they
know the token of the cluster, and with TLS it is encrypted. Within a machine it is a pair of sockets. No daemon takes
part in what is said: this is for data that is too much, or too frequent, for objects and calls. A connection that
breaks is not made again, and a process that dies is the end of its connections.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from skate._core.ids import node_of
from skate._wire.channel import LOST
from skate._wire.messages import CallListener, DropDescriptor, KeepDescriptor, TakeDescriptor
from skate._worker.current import get_runtime, runtime_or_none

__all__ = ["Address", "Listener"]

#: Making a connection takes at most this long, unless the caller says otherwise.
CONNECT_S = 10.0


class Address:
    """Where a `Listener` can be called, from every process of its cluster."""

    def __init__(self, node: bytes, key: bytes) -> None:
        self._node, self._key = node, key

    def connect(self, timeout: float = CONNECT_S) -> socket.socket:
        """Connect to the listener; a socket that blocks.

        Raises ConnectionRefusedError if it is closed, or its process has ended, and TimeoutError if its node does not
        answer in time. Whether the other process accepts the connection, the first word from it tells.
        """
        runtime = get_runtime()
        deadline = time.monotonic() + timeout
        if runtime.welcome.node_id == self._node:
            with self._given(
                runtime.request(lambda number: TakeDescriptor(number, self._key), deadline, _close)
            ) as door:
                ours, theirs = socket.socketpair()
                with theirs:
                    # While its queue is full, this waits for the listener to accept.
                    door.settimeout(max(0.001, deadline - time.monotonic()))
                    try:
                        socket.send_fds(door, [b"\0"], [theirs.fileno()])
                    except BaseException as error:
                        ours.close()
                        if isinstance(error, (BrokenPipeError, ConnectionError)):
                            raise _refused("it has stopped accepting connections") from None
                        raise
                return ours
        node = node_of(self._node)
        given = runtime.request(lambda number: CallListener(number, node, self._key), deadline, _close)
        return self._given(given)

    def _given(self, given: Any) -> socket.socket:
        """The socket that the daemon gave, which says otherwise why there is none."""
        if given is None:
            raise TimeoutError(
                "the node of the listener did not answer in time.\n  next: look at skate.nodes(); try again."
            )
        if isinstance(given, str):
            raise _refused(given)
        if given == LOST:
            raise OSError("this process may open no more files.\n  next: raise the limit (ulimit -n).")
        return _ready(given)

    def __repr__(self) -> str:
        return f"Address({self._key.hex()[:8]} on node {node_of(self._node)})"


class Listener:
    """Takes connections from other processes of the cluster.

    >>> with Listener() as listener:
    ...     ref = actor.talk.remote(listener.address)
    ...     sock = listener.accept(timeout=10)

    A process can have as many as it can share descriptors (256). Its node must take connections: that of a driver that
    joined with skate:// does not.
    """

    def __init__(self) -> None:
        runtime = get_runtime()
        self._door, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._key = os.urandom(16)
        with theirs:
            fds = (theirs.fileno(),)
            answer = runtime.ask(
                lambda message: runtime.send(message, fds),
                lambda number: KeepDescriptor(number, self._key, accepts=True),
            )
        if answer.body:
            self._door.close()
            raise OSError(
                f"this process cannot listen.\n  why:  {answer.body}.\n  next: close listeners that are done."
            )
        self._owner = runtime.process_id
        #: Give it to those who are to connect.
        self.address = Address(runtime.welcome.node_id, self._key)

    def accept(self, timeout: float | None = None) -> socket.socket:
        """Wait for the next connection; a socket that blocks. Raises TimeoutError if none came in time."""
        self._door.settimeout(timeout)
        word, fds, _flags, _from = socket.recv_fds(self._door, 1, 1, socket.MSG_CMSG_CLOEXEC)
        if not fds:
            raise OSError(
                "this process may open no more files.\n  next: raise the limit (ulimit -n)."
                if word
                else "the node daemon has ended, and with it the listener."
            )
        return _ready(fds[0])

    def fileno(self) -> int:
        """For `select`: it can be read when a connection waits."""
        return self._door.fileno()

    def close(self) -> None:
        """Take no more connections. Those that were accepted stay."""
        runtime = runtime_or_none()
        if self._door.fileno() >= 0:
            self._door.close()
            if runtime is not None and runtime.process_id == self._owner:
                runtime.send(DropDescriptor(self._key))

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Listener({self.address})" if self._door.fileno() >= 0 else "Listener(closed)"


def _ready(fd: int) -> socket.socket:
    """A socket as its user expects it: it blocks, and sends what is short at once."""
    sock = socket.socket(fileno=fd)
    sock.setblocking(True)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def _refused(reason: str) -> ConnectionRefusedError:
    return ConnectionRefusedError(
        f"this process cannot connect to the listener.\n  why:  {reason}.\n"
        "  next: keep the Listener open, and its process alive, until the others have connected."
    )


def _close(given: str | int) -> None:
    if isinstance(given, int) and given != LOST:
        os.close(given)
