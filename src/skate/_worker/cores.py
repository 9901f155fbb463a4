"""How long the thread that runs tasks has waited for a core, which is no part of what its tasks take.

On a machine with more workers than cores a task of 10 µs may take 5 ms by the clock, because others run meanwhile.
Owners that believe it send one such task at a time, and all cores are busy with messages.
"""

from __future__ import annotations

import os
import threading

from skate._core.task import Timing

#: Less is not looked at: a batch that took so little was not interrupted, or not for long.
LOOK_S = 0.001
#: At least this part of the time is taken to be the tasks' own.
OWN_PART_MIN = 0.05


class Cores:
    """Of the thread that makes it."""

    def __init__(self) -> None:
        try:
            self._fd = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        except OSError:  # a kernel without it: then all time is the tasks' own
            self._fd = -1
        self._waited_s = self._read_s()

    def _read_s(self) -> float:
        """In all, by the kernel's count."""
        if self._fd < 0:
            return 0.0
        return int(os.pread(self._fd, 100, 0).split()[1]) * 1e-9

    def correct(self, timings: list[Timing]) -> list[Timing]:
        """What tasks took since the last look, by the clock, without what they waited for a core. From any thread."""
        for timing in timings:
            if timing.seconds > LOOK_S:
                before, self._waited_s = self._waited_s, self._read_s()
                by_the_clock = sum(timing.seconds for timing in timings)
                part = max(OWN_PART_MIN, 1.0 - (self._waited_s - before) / by_the_clock)
                return [Timing(timing.fn, timing.count, timing.seconds * part) for timing in timings]
        return timings
