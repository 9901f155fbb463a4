"""When a wait is worth a line: by a clock of its own."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from skate._core.environment import FIRST_LOOK, NOTICE_S, check, notice_s
from skate._core.patience import (
    CONTROL,
    NODE,
    NOTHING,
    PAUSE_S,
    RESOURCES,
    Notices,
    Patience,
    Sight,
)

HOUR = 3600.0


def lines(look: Callable[[float], Sight], *, lasts_s: float = HOUR, after_s: float = 30.0) -> list[float]:
    """When a wait of that length would say something; it is looked at when it wants to be."""
    patience, told = Patience(0.0, after_s), []
    while (now := patience.next_look) <= lasts_s:
        if patience.looked(look(now)):
            told.append(now)
        assert patience.next_look > now
    return told


@pytest.mark.parametrize("cause", [RESOURCES, NODE, CONTROL])
def test_a_stuck_wait_tells_when_its_time_has_come(cause: str) -> None:
    assert lines(lambda now: Sight(cause, b"x"))[0] == 30.0
    assert lines(lambda now: Sight(cause, b"x"), lasts_s=29.9) == []


def test_a_task_that_runs_long_is_no_reason() -> None:
    assert lines(lambda now: Sight(NOTHING, b"x")) == []


def test_a_queue_that_moves_is_no_reason() -> None:
    assert lines(lambda now: Sight(RESOURCES, b"x", ahead=10_000 - int(now))) == []
    assert lines(lambda now: Sight(RESOURCES, str(now).encode())) == [], "each of the arguments comes in its turn"


def test_a_wait_that_gets_stuck_later_tells_later() -> None:
    found = lines(lambda now: Sight(RESOURCES if now > 100 else NOTHING, b"x"))
    assert found[0] == 120.0


def test_a_wait_is_looked_at_less_and_less_often() -> None:
    looks: list[float] = []
    lines(lambda now: looks.append(now) or Sight(NOTHING))
    assert looks[0] == pytest.approx(30.0 * FIRST_LOOK) == 25.0
    assert len(looks) <= 2 * math.log2(HOUR / 30.0) + 2


def test_a_process_tells_once_a_minute() -> None:
    notices = Notices()
    told = [second for second in range(0, 600, 5) if notices.may_tell(float(second))]
    assert told == list(range(0, 600, int(PAUSE_S)))


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, NOTICE_S),
        ({"SKATE_WAIT_NOTICE": "0"}, 0.0),
        ({"SKATE_WAIT_NOTICE": "0", "SKATE_WAIT_NOTICE_S": "5"}, 0.0),
        ({"SKATE_WAIT_NOTICE": "1"}, NOTICE_S),
        ({"SKATE_WAIT_NOTICE_S": "0.5"}, 0.5),
        ({"SKATE_WAIT_NOTICE_S": "soon"}, NOTICE_S),
        ({"SKATE_WAIT_NOTICE_S": "-1"}, NOTICE_S),
        ({"SKATE_WAIT_NOTICE_S": "inf"}, NOTICE_S),
        ({"SKATE_WAIT_NOTICE_S": "nan"}, NOTICE_S),
    ],
)
def test_the_time_is_a_setting(environment: dict[str, str], seconds: float) -> None:
    assert notice_s(environment) == seconds


@pytest.mark.parametrize(
    ("variable", "good", "bad"),
    [
        ("SKATE_WAIT_NOTICE", ["", "0", "1"], ["off", "30", "no"]),
        ("SKATE_WAIT_NOTICE_S", ["", "0.5", "30"], ["banana", "0", "-1", "inf", "nan"]),
        ("SKATE_PARTITION_GRACE_S", ["", "0", "2.5"], ["banana", "-1", "inf", "nan"]),
        ("SKATE_TEST_SCHEDULING_DELAY_MS", ["", "0", "2.5"], ["banana", "-1", "inf", "nan"]),
    ],
)
def test_a_variable_that_is_no_setting_is_named(variable: str, good: list[str], bad: list[str]) -> None:
    for value in good:
        check({variable: value})
    for value in bad:
        with pytest.raises(ValueError, match=f"^{variable}={value}: it may be "):
            check({variable: value})
