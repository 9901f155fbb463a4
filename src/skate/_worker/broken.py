"""What ends the work of a process: its daemon is gone, a limit of the system is reached, or Skate has a bug.

Whatever waits in a driver is told; a worker ends, so that its tasks can run elsewhere. This module is imported from the
start: a process that may open no more files cannot import another.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from typing import TYPE_CHECKING

from skate._core.policy_memory import format_bytes
from skate._store.layout import arena_file_bytes
from skate._wire.channel import LOST
from skate.exceptions import InternalError, NodeDiedError, SystemLimitError

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime

#: Why a runtime works no longer.
Broken = NodeDiedError | SystemLimitError | InternalError


def map_arena(runtime: Runtime, fd: int, arena_bytes: int) -> mmap.mmap | None:
    """The shared memory of the node; None if a limit of the system is in the way."""
    size = arena_file_bytes(arena_bytes)
    if fd == LOST:
        no_descriptor_left(runtime, "the object store of the node could not be opened.")
        return None
    try:
        return mmap.mmap(fd, size)
    except OSError as error:
        takes = f"takes {format_bytes(size)} of the address space of every process."
        _on_limit(runtime, error, f"the object store of {format_bytes(arena_bytes)} {takes}")
        return None


def no_descriptor_left(runtime: Runtime, what: str) -> None:
    """For one that the daemon has sent."""
    _on_limit(runtime, OSError(errno.EMFILE, ""), what)


def _on_limit(runtime: Runtime, error: OSError, what: str) -> None:
    from skate._system_limits import limit_of  # which was imported when the node was started

    limit = limit_of(error) or f"{os.strerror(error.errno or 0)}."
    if not runtime.is_driver:
        sys.stderr.write(f"skate: a worker ends: {what} {limit}\n")
        sys.stderr.flush()
        os._exit(1)
    next = "close files, or raise that limit; then call skate.shutdown() and skate.init() to begin again."
    if error.errno == errno.ENOMEM:
        next = "raise that limit, or give init() a smaller object_store_memory."
    runtime.end_all(SystemLimitError(what=what, limit=limit, next=next))


def on_failure(runtime: Runtime, error: Exception) -> None:
    """The I/O thread has met a limit, or a bug."""
    if runtime.closed:
        return
    from skate._system_limits import limit_of

    if isinstance(error, OSError) and limit_of(error):
        _on_limit(runtime, error, "this process cannot go on.")
        return
    import traceback

    detail = "".join(traceback.format_exception(error))
    if not runtime.is_driver:
        sys.stderr.write(f"skate: a worker ends because of a bug in Skate.\n{detail}")
        sys.stderr.flush()
        os._exit(1)
    runtime.end_all(InternalError(detail=detail))
