"""Waiting for a named condition: the only way a test waits for another process.

A fixed sleep is too short on a busy machine and too long on a quiet one. `wait_for` looks again and again, and when it
gives up it says what it was waiting for.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

#: The pause between two looks grows from the first to the second: prompt when the wait is short, cheap when it is long.
PAUSE_S_FIRST = 0.001
PAUSE_S_MAX = 0.05


def wait_for(condition: Callable[[], T], timeout_s: float, what: str) -> T:
    """Call `condition` until it returns something true, and return that.

    `what` completes the sentence "waited 5 s for …" in the error: name the state, not the code that checks it.
    """
    deadline = time.monotonic() + timeout_s
    pause_s = PAUSE_S_FIRST
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {timeout_s:g} s for {what}; the last look gave {value!r}")
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)


#: Far more than anything takes that is asked for, even on a busy machine.
WITHIN_S = 20.0


def value_of(ref: Any) -> Any:
    """The value, or an error instead of a test that hangs."""
    import skate

    return skate.get(ref, timeout=WITHIN_S)


def meet(folder: Path, me: int, total: int) -> int:
    """Return when `total` callers are in here at the same time."""
    (folder / f"guest-{me}").touch()
    wait_for(lambda: len(list(folder.glob("guest-*"))) >= total, 30, f"{total} tasks to run at once")
    return me
