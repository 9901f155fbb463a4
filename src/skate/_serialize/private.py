"""Arrays that can be written to without anybody else seeing it, though nothing is copied that is only read.

Some libraries know no read-only arrays: a torch tensor over shared memory would let a task change the object for every
reader. So it gets pages of the arena that are mapped privately: the kernel copies a page when it is written to.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)
# Not Python's mmap: that keeps a descriptor open for each mapping.
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


class Arena:
    """The shared memory of this process's node, as far as private mappings of it need to know it."""

    def __init__(self, fd: int, mapping: mmap.mmap) -> None:
        self.fd = fd
        self.size = len(mapping)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))

    def close(self) -> None:
        global arena
        os.close(self.fd)
        if arena is self:
            arena = None


#: Set by the runtime.
arena: Arena | None = None


def private(array: Any) -> Any:
    """The same contiguous numpy array, to be written to by whoever has it."""
    import numpy as np

    offset = array.ctypes.data - arena.address if arena is not None else -1
    if arena is None or not 0 <= offset < arena.size:  # a small value: it is not in shared memory
        return array.copy()
    first_page = offset & -mmap.PAGESIZE
    length = offset - first_page + array.nbytes
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = _libc.mmap(None, length, protection, mmap.MAP_PRIVATE, arena.fd, first_page)
    if address == _FAILED:
        return array.copy()
    # A ctypes array type is kept for each length: powers of two are few. Nothing looks beyond the array's own bytes.
    view_bytes = 1 << max(array.nbytes - 1, 0).bit_length()
    buffer = (ctypes.c_char * view_bytes).from_address(address + offset - first_page)
    # As long as anything looks at it the object is pinned, because `array` is held here.
    weakref.finalize(buffer, _unmap, address, length, array).atexit = False
    return np.frombuffer(buffer, dtype=array.dtype, count=array.size).reshape(array.shape)


def _unmap(address: int, length: int, array: Any) -> None:
    _libc.munmap(address, length)
