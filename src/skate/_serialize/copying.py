"""Copying large buffers: with all cores, and without holding the interpreter lock.

One core does not saturate the memory of most machines, and a slice assignment of a gigabyte would keep every other
Python thread of the process waiting. `memmove` called through ctypes lets go of the interpreter lock, so several
threads can copy parts at once.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading

#: Below this a thread costs more than it saves.
PARALLEL_BYTES_MIN = 8 << 20
THREADS_MAX = 4


def copy_into(target: memoryview, offset: int, source: bytes | memoryview) -> None:
    """target[offset : offset + len(source)] = source, fast."""
    size = len(source)
    numpy = sys.modules.get("numpy")
    if size < PARALLEL_BYTES_MIN or numpy is None:  # without numpy there is no way to a read-only buffer's address
        target[offset : offset + size] = source
        return
    to = ctypes.addressof(ctypes.c_char.from_buffer(target, offset))
    frm = int(numpy.frombuffer(source, dtype="u1").ctypes.data)
    count = min(THREADS_MAX, len(os.sched_getaffinity(0)))
    part = -(-size // count) + 63 & -64
    threads = [
        threading.Thread(target=ctypes.memmove, args=(to + at, frm + at, min(part, size - at)), daemon=True)
        for at in range(part, size, part)
    ]
    for thread in threads:
        thread.start()
    ctypes.memmove(to, frm, min(part, size))
    for thread in threads:
        thread.join()
