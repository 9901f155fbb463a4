"""Memory that a training frees and needs again in the next step."""

from __future__ import annotations

import ctypes
import os

__all__ = ["keep_memory"]

#: Parameters of `mallopt`, from malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
#: So much free memory stays with the process.
KEPT_BYTES = 1 << 30


def keep_memory() -> None:
    """Have this process keep up to 1 GiB of what it frees, for its next step.

    >>> keep_memory()  # in an actor that trains; `train.run` does it in its workers

    A step on CPUs allocates large arrays and frees them all. The C library (glibc) gives them back to the kernel, and
    the kernel clears every page when it is asked for the same amount again. That can take a quarter of a step. Nothing
    changes if the user has set a variable for it (MALLOC_…, GLIBC_TUNABLES), or with another C library.
    """
    if "GLIBC_TUNABLES" in os.environ or any(name.startswith("MALLOC_") for name in os.environ):
        return
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_TRIM_THRESHOLD, KEPT_BYTES)
        set_option(_MMAP_MAX, 0)
