"""Memory that a training frees and needs again in the next step."""

from __future__ import annotations

import ctypes
import gc
import os

__all__ = ["keep_memory"]

#: Parameters of `mallopt`, from malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
#: So much free memory stays with the process.
KEPT_BYTES = 1 << 30
#: After so many collections of young objects Python may look at all objects; its own default is 10.
YOUNG_COLLECTIONS = 100


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


def collect_old_objects_seldom() -> None:
    """Have Python look through all objects ten times less often; young ones are collected as before.

    Importing torch and what an optimiser needs of it makes 280,000 objects, none of which is ever garbage. Python went
    through all of them five times meanwhile, which took a sixth of the import: 2.3 s of CPU time, and 1.95 without.
    """
    young, middle, old = gc.get_threshold()
    if old and old < YOUNG_COLLECTIONS:
        gc.set_threshold(young, middle, YOUNG_COLLECTIONS)
