"""When a `get` that waits is worth a line on stderr.

A program that waits for resources that another holds looks like a program that computes. After NOTICE_S
(`environment.py`) a `get` that waits for resources, for a node that cannot be reached, or for the control service says
so, once. A `get` whose task runs, however long, says nothing, and neither does one whose task waits in a queue that
moves.

A wait is looked at twice: a sixth of the time before the line is due, and when it is due. If both looks find the same
cause, and no task ahead has started in between, the wait is stuck. If not, it is looked at again after twice the time.

Owns:      when to look, and whether to tell.
Knows not: clocks, tasks, what is printed. `_worker/notice.py` looks and prints.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from skate._core.environment import FIRST_LOOK

#: Lines of one process are at least this far apart.
PAUSE_S = 60.0
#: What a wait is for. NOTHING: its task runs, or is about to; nothing is amiss.
NOTHING = ""
RESOURCES = "resources"
NODE = "node"
CONTROL = "control"


class Sight(NamedTuple):
    """What one look at a wait has found."""

    cause: str
    #: The object that is not there: the one asked for, or an argument of its task.
    object: bytes = b""
    #: Tasks of the same kind that wait in front of its task.
    ahead: int = 0


class Patience:
    """One wait that has lasted until its first look."""

    def __init__(self, begin: float, after_s: float) -> None:
        self._begin = begin
        self._between_s = after_s * (1 - FIRST_LOOK)
        #: When a line is due, counted from the begin; doubled each time that there is no reason for one.
        self._due_s = after_s
        self._before: Sight | None = None
        self.next_look = begin + after_s * FIRST_LOOK

    def looked(self, sight: Sight) -> bool:
        """Note what a look has found, and set the time of the next one. True: the wait is stuck, and a line is due."""
        before, self._before = self._before, sight
        if before is None:
            self.next_look = self._begin + self._due_s
            return False
        self._before = None
        self._due_s *= 2
        self.next_look = self._begin + self._due_s - self._between_s
        return sight.cause != NOTHING and sight == before


class Notices:
    """The lines of one process."""

    def __init__(self) -> None:
        self._last = -math.inf

    def may_tell(self, now: float) -> bool:
        """Whether a line may be printed now; if so, it is taken to be."""
        if now - self._last < PAUSE_S:
            return False
        self._last = now
        return True
