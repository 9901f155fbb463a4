"""What the processes of an environment know of it."""

from __future__ import annotations

import math
from collections.abc import Mapping

#: Holds the variables of a worker's environment as JSON, for its children to inherit.
ENVIRONMENT_VARIABLE = "SKATE_RUNTIME_ENV"
#: Holds the variables that `init(runtime_env=…)` gave the node that it started, as JSON, for tasks that ask.
JOB_VARIABLE = "SKATE_JOB_RUNTIME_ENV"

#: How long a `get` waits before it says what for (`patience.py`), and the part of that before it is looked at.
NOTICE_S = 30.0
FIRST_LOOK = 5 / 6
#: "0" switches these lines off; the second variable is instead of NOTICE_S.
NOTICE_VARIABLE = "SKATE_WAIT_NOTICE"
NOTICE_SECONDS_VARIABLE = "SKATE_WAIT_NOTICE_S"
#: How long two nodes may be unable to reach each other (`reachability.py`).
PARTITION_GRACE_VARIABLE = "SKATE_PARTITION_GRACE_S"
#: For tests: milliseconds that each task waits between being ready and being scheduled.
SCHEDULING_DELAY_VARIABLE = "SKATE_TEST_SCHEDULING_DELAY_MS"


def check(environment: Mapping[str, str]) -> None:
    """Raise ValueError, which names the variable, if a setting of a user is none.

    Called where a user is there to read it. Daemons and workers go by the defaults then.
    """
    if (said := environment.get(NOTICE_VARIABLE, "")) not in ("", "0", "1"):
        raise ValueError(f"{NOTICE_VARIABLE}={said}: it may be 0, which switches the lines of waiting off, or 1.")
    if (said := environment.get(NOTICE_SECONDS_VARIABLE, "")) and not 0 < seconds_of(said) < math.inf:
        raise ValueError(
            f"{NOTICE_SECONDS_VARIABLE}={said}: it may be a number of seconds above 0. {NOTICE_VARIABLE}=0 switches "
            "the lines of waiting off."
        )
    if (said := environment.get(PARTITION_GRACE_VARIABLE, "")) and not 0 <= seconds_of(said) < math.inf:
        raise ValueError(f"{PARTITION_GRACE_VARIABLE}={said}: it may be a number of seconds, 0 or more.")
    if (said := environment.get(SCHEDULING_DELAY_VARIABLE, "")) and not 0 <= seconds_of(said) < math.inf:
        raise ValueError(f"{SCHEDULING_DELAY_VARIABLE}={said}: it may be a number of milliseconds, 0 or more.")


def seconds_of(text: str) -> float:
    """The number that the text is; NaN, which compares as false, if it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def notice_s(environment: Mapping[str, str]) -> float:
    """How long a `get` waits before it says what for; 0: it never does."""
    if environment.get(NOTICE_VARIABLE) == "0":
        return 0.0
    seconds = seconds_of(environment.get(NOTICE_SECONDS_VARIABLE, ""))
    return seconds if 0 < seconds < math.inf else NOTICE_S
