"""What the processes of an environment know of it."""

from __future__ import annotations

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


def notice_s(environment: Mapping[str, str]) -> float:
    """How long a `get` waits before it says what for; 0: it never does."""
    if environment.get(NOTICE_VARIABLE) == "0":
        return 0.0
    try:
        seconds = float(environment.get(NOTICE_SECONDS_VARIABLE, ""))
    except ValueError:
        return NOTICE_S
    return seconds if 0 < seconds < float("inf") else NOTICE_S
