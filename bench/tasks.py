"""The functions that every peer runs as tasks, and the classes that it makes actors of.

They live in a module of their own, which the workers import, so that no peer pays for pickling code by value.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_arrays: dict[int, NDArray[np.uint8]] = {}


def noop() -> None:
    return None


def increment(x: int) -> int:
    return x + 1


def add(a: int, b: int) -> int:
    return a + b


def spin(seconds: float) -> int:
    """Use `seconds` of CPU time (not of wall time, which would hide that another process had the core)."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
    return os.getpid()


def sleep(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def look_at(array: NDArray[np.uint8]) -> int:
    """Read both ends of an array: enough to need it here, too little to be the cost of the row."""
    return int(array[0]) + int(array[-1])


def array_of(size_bytes: int) -> Any:
    """Return an array that this worker made when it was first asked, so that only the way back is measured."""
    import numpy as np

    if size_bytes not in _arrays:
        _arrays[size_bytes] = np.ones(size_bytes, np.uint8)
    return _arrays[size_bytes]


class Actor:
    def noop(self) -> None:
        return None

    def increment(self, x: int) -> int:
        return x + 1

    def pid(self) -> int:
        return os.getpid()


class AsyncActor:
    async def noop(self) -> None:
        return None
