"""When processes are asked to collect garbage for the object store, and how long objects wait for that.

A reference in a cycle of Python objects is dropped only when the garbage collector of its process runs, and that knows
nothing of the megabytes behind the reference. So before objects are written to disk, all processes of the node are
asked to collect, and what they free may make the disk unnecessary.

A round begins when a request for room cannot be met from free memory. It is over when what was freed is enough. Else it
ends SETTLE_S after the last process has answered (what one process drops may be owned by another, which hears of it a
moment later), and after WAIT_S at the latest: a process may be stopped, or hold the interpreter lock. Only then is
anything written to disk.

A collection takes milliseconds to seconds, so rounds that free next to nothing are rare: the second follows after
FIRST_PAUSE_S, and each further one after twice as long, up to a minute. A round that was enough may be followed by the
next at once: to write garbage to disk would take longer.
"""

from __future__ import annotations

import enum

#: How long a round waits for answers, and for what follows from the last of them.
WAIT_S = 1.0
SETTLE_S = 0.05
#: Between two rounds, after one that was of no use, and after one that was of some use but not enough.
FIRST_PAUSE_S = 1.0
USEFUL_PAUSE_S = 0.1
PAUSE_S_MAX = 60.0
#: A round that freed less than this part of the store was of no use.
USEFUL_PART = 0.01


class Verdict(enum.Enum):
    """What to do before an object is written to disk."""

    ASK = "ask the processes to collect garbage, and wait"
    WAIT = "they have been asked"
    GO = "write it"


class GarbageRounds:
    """Time, and the bytes of the store that were freed since its start, are arguments."""

    def __init__(self, capacity: int) -> None:
        self._useful_bytes = int(capacity * USEFUL_PART)
        #: When the present round ends at the latest; 0 if there is none.
        self.waits_until = 0.0
        #: When the next one may begin; 0: at any time.
        self.next_at = 0.0
        self._freed_before = 0
        self._pause_s = FIRST_PAUSE_S / 2

    def before_spill(self, now: float, freed_bytes: int) -> Verdict:
        self.pass_time(now, freed_bytes)
        if self.waits_until:
            return Verdict.WAIT
        if self.next_at:
            return Verdict.GO
        self.waits_until = now + WAIT_S
        self._freed_before = freed_bytes
        return Verdict.ASK

    def answered(self, now: float) -> None:
        """All processes have."""
        if self.waits_until:
            self.waits_until = min(self.waits_until, now + SETTLE_S)

    def satisfied(self) -> None:
        """What was freed is enough."""
        self.waits_until = 0.0
        self._pause_s = FIRST_PAUSE_S / 2

    def pass_time(self, now: float, freed_bytes: int) -> bool:
        """Whether a round, or the pause after it, is over by now."""
        if self.waits_until and now >= self.waits_until:
            was_useful = freed_bytes - self._freed_before > self._useful_bytes
            self._pause_s = FIRST_PAUSE_S / 2 if was_useful else min(2 * self._pause_s, PAUSE_S_MAX)
            self.next_at = self.waits_until + (USEFUL_PAUSE_S if was_useful else self._pause_s)
            self.waits_until = 0.0
            # Much later no request waits for what that round was for: it is over, and so may be the pause.
            if now >= self.next_at:
                self.next_at = 0.0
            return True
        if self.next_at and now >= self.next_at:
            self.next_at = 0.0
            return True
        return False
