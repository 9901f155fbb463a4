"""Named moments at which a test lets this process die, as by `kill -9`.

    SKATE_TEST_CRASH=storage.before_commit         the first time that the moment comes
    SKATE_TEST_CRASH=storage.before_commit:17      the seventeenth time

A kill at a random moment rarely hits the few instructions between a commit and its acknowledgement. These points do.
Without the variable, `reached` compares two strings and does nothing.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "SKATE_TEST_CRASH"

_point, _, _times = os.environ.get(VARIABLE, "").partition(":")
_left = int(_times or 1)


def reached(point: str) -> None:
    """Die here if a test asked for it. Each point is reached by one thread alone."""
    global _left
    if point == _point:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
