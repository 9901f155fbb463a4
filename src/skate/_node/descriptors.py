"""File descriptors that processes of this node share: the daemon keeps a copy of each, and gives copies away.

Owns:      the copies, by key and by the process that gave them.
Invariant: a copy is open for as long as the process that gave it lives and has not said DropDescriptor.
           The number of copies is bounded, for one process and for all, so that the daemon can still open files.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections import deque
from collections.abc import Callable

from skate._wire.channel import LOST
from skate._wire.guard import ProtocolError
from skate._wire.messages import (
    Answer,
    DescriptorGiven,
    DropDescriptor,
    KeepDescriptor,
    Message,
    TakeDescriptor,
)

#: Copies that are kept for one process.
PER_PROCESS_MAX = 256
#: The part of the files that the daemon may open that copies may take.
SHARE_OF_FILES = 8
#: Closed copies whose fate is remembered, for processes that ask late.
CLOSED_MAX = 1_000

#: Sends a message, with descriptors, to a process.
Send = Callable[[bytes, Message, tuple[int, ...]], None]


MESSAGES = (KeepDescriptor, TakeDescriptor, DropDescriptor)


class Descriptors:
    def __init__(self, send: Send, files_max: int) -> None:
        self._send = send
        self._copies_max = files_max // SHARE_OF_FILES
        #: Process and descriptor by key.
        self._copies: dict[bytes, tuple[bytes, int]] = {}
        self._keys: dict[bytes, set[bytes]] = {}
        #: Keys of those that take connections.
        self._listeners: set[bytes] = set()
        self._closed: dict[bytes, str] = {}

    def on_message(
        self, process: bytes, message: KeepDescriptor | TakeDescriptor | DropDescriptor, fds: deque[int]
    ) -> None:
        """Act on a message of a process; `fds` are the descriptors that have come from it."""
        if isinstance(message, KeepDescriptor):
            if not fds:
                raise ProtocolError("KeepDescriptor came without a descriptor")
            self._send(process, Answer(message.request, self._keep(process, message, fds.popleft())), ())
        elif isinstance(message, TakeDescriptor):
            self._give(process, message)
        elif self._copies.get(message.key, (b"",))[0] == process:
            self._close(message.key, "the process that shared it has closed it")

    def refusal(self, key: bytes) -> str:
        """Why no connection can be given to a listener with this key, or nothing."""
        return "" if key in self._listeners else self._closed.get(key, "no process listens there")

    def hand_to_listener(self, key: bytes, connection: socket.socket) -> None:
        """Send a connection to the process that listens under this key, over what it left here. If that is full, or the
        process has closed its end, nothing is sent: the other end of the connection hears of its end."""
        with socket.socket(fileno=os.dup(self._copies[key][1])) as door, contextlib.suppress(OSError):
            socket.send_fds(door, [b"\0"], [connection.fileno()], socket.MSG_DONTWAIT)

    def _keep(self, process: bytes, message: KeepDescriptor, fd: int) -> str:
        """Keep it; why that cannot be done, or nothing."""
        key, reason = message.key, ""
        if fd == LOST:
            return "the node daemon may open no more files (ulimit -n)"
        if key in self._copies:
            reason = "there is one with this key"
        elif len(self._keys.get(process, ())) >= PER_PROCESS_MAX:
            reason = f"this process shares {PER_PROCESS_MAX}, which is the most"
        elif len(self._copies) >= self._copies_max:
            reason = f"the processes of this node share {self._copies_max}, which is the most (an eighth of ulimit -n)"
        if reason:
            os.close(fd)
            return reason
        self._copies[key] = process, fd
        if message.accepts:
            self._listeners.add(key)
        self._keys.setdefault(process, set()).add(key)
        return ""

    def _give(self, process: bytes, message: TakeDescriptor) -> None:
        copy = self._copies.get(message.key)
        if copy is None:
            reason = self._closed.get(message.key, "the node daemon does not know it")
            self._send(process, DescriptorGiven(message.request, reason), ())
        else:
            self._send(process, DescriptorGiven(message.request), (copy[1],))

    def process_died(self, process: bytes) -> None:
        """Close what was kept for it."""
        for key in list(self._keys.get(process, ())):
            self._close(key, "the process that shared it has ended")

    def _close(self, key: bytes, reason: str) -> None:
        process, fd = self._copies.pop(key)
        os.close(fd)
        self._keys[process].discard(key)
        if not self._keys[process]:
            del self._keys[process]
        self._listeners.discard(key)
        self._closed[key] = reason
        if len(self._closed) > CLOSED_MAX:
            del self._closed[next(iter(self._closed))]
