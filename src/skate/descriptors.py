"""File descriptors that travel: writable memory, listening sockets and pipes for actors of the same machine.

A descriptor is a number that means something in one process only. `Descriptor` carries it to another one, as an
argument, a result or part of any other value:

>>> shared = Descriptor.memory(1 << 20)
>>> skate.get(actor.fill.remote(shared))          # the actor maps the same memory, and writes to it
>>> memory = mmap.mmap(shared.fileno(), 1 << 20)  # what it wrote is here

Every process that receives one has an open file of its own, which it closes when it likes. The kernel frees the memory
when the last of them is closed. No name is left in the file system, whatever is killed.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from skate._wire.channel import LOST
from skate._wire.messages import DropDescriptor, KeepDescriptor, TakeDescriptor
from skate._worker.current import get_runtime, runtime_or_none
from skate.exceptions import DescriptorError

__all__ = ["Descriptor", "DescriptorError"]


KEEP_OPEN = "keep the Descriptor open, and its process alive, until the others have received it."


class HasFileno(Protocol):
    """An open file, a socket, a pipe."""

    def fileno(self) -> int: ...


class Descriptor:
    """A file descriptor that can be given to tasks and actors of the same machine.

    >>> listener = socket.create_server(("127.0.0.1", 0))
    >>> shared = Descriptor(listener)
    >>> actor.serve.remote(shared)     # there: socket.socket(fileno=shared.detach())

    It duplicates the descriptor that it is made from and leaves the original open. Other processes can receive it from
    the first time that it is sent until `close()`, or until the process that sent it ends.
    """

    def __init__(self, file: int | HasFileno) -> None:
        self._fd = os.dup(file if isinstance(file, int) else file.fileno())
        #: How receivers ask for it, and the process, by its id in the session, that shares it under that key.
        self._key, self._shared_by = b"", b""

    @classmethod
    def memory(cls, size: int) -> Descriptor:
        """Make memory of `size` bytes, all zero, that every process that maps it can read and write."""
        if size < 1:
            raise ValueError(f"Descriptor.memory({size!r}): memory has at least one byte.")
        fd = os.memfd_create("skate", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            return cls(fd)
        finally:
            os.close(fd)

    def fileno(self) -> int:
        """The number of the descriptor in this process."""
        if self._fd < 0:
            raise ValueError("This Descriptor is closed, or its file was taken out of it with detach().")
        return self._fd

    def detach(self) -> int:
        """Take the descriptor out of this object: from now on the caller closes it."""
        fd = self.fileno()
        self._stop_sharing()
        self._fd = -1
        return fd

    def close(self) -> None:
        """Close the descriptor of this process, and share it no longer. Processes that have received it keep theirs."""
        if self._fd >= 0:
            os.close(self.detach())

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def __enter__(self) -> Descriptor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # What was sent stays shared: the value that it is part of may be on its way.
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)

    def __repr__(self) -> str:
        return f"Descriptor({self._fd})" if self._fd >= 0 else "Descriptor(closed)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (get_runtime().welcome.node_id, self._share())

    def _share(self) -> bytes:
        """Leave a copy with the node daemon, before anyone can ask for it; the key to ask with."""
        runtime = get_runtime()
        if self.closed:
            raise DescriptorError(what="this Descriptor cannot be sent.", why="it is closed", next=KEEP_OPEN)
        if self._shared_by != runtime.process_id:
            key, fds = os.urandom(16), (self.fileno(),)
            answer = runtime.ask(lambda message: runtime.send(message, fds), lambda number: KeepDescriptor(number, key))
            if answer.body:
                raise DescriptorError(
                    what="this Descriptor cannot be sent.",
                    why=answer.body,
                    next="close() each when the others have received it; one that is only dropped stays shared.",
                )
            self._key, self._shared_by = key, runtime.process_id
        return self._key

    def _stop_sharing(self) -> None:
        runtime = runtime_or_none()
        if self._key and runtime is not None and runtime.process_id == self._shared_by:
            runtime.send(DropDescriptor(self._key))
        self._key = self._shared_by = b""


def _receive(node: bytes, key: bytes) -> Descriptor:
    runtime = get_runtime()
    if runtime.welcome.node_id != node:
        raise DescriptorError(
            why="it was sent from another machine, and a descriptor means something on its own machine only",
            next="place the two on one node, with a placement group (STRICT_PACK) or NodeAffinitySchedulingStrategy.",
        )
    given = runtime.request(lambda number: TakeDescriptor(number, key), undo=_close)
    if isinstance(given, str):
        raise DescriptorError(why=given, next=KEEP_OPEN)
    if given == LOST:
        raise DescriptorError(why="this process may open no more files (ulimit -n)")
    descriptor = Descriptor.__new__(Descriptor)
    descriptor._fd, descriptor._key, descriptor._shared_by = given, b"", b""
    return descriptor


def _close(given: str | int) -> None:
    if isinstance(given, int) and given != LOST:
        os.close(given)
