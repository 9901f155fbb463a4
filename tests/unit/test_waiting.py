"""`wait_for` returns what it waited for, and says what it waited for when it gives up."""

from __future__ import annotations

import pytest

from waiting import wait_for


def test_the_first_true_value_is_returned() -> None:
    looks = iter([None, 0, "ready", "never reached"])
    assert wait_for(lambda: next(looks), 5, "a value") == "ready"


def test_giving_up_names_the_condition_and_the_last_value() -> None:
    with pytest.raises(AssertionError, match=r"waited 0\.01 s for the moon to rise; the last look gave \[\]"):
        wait_for(list, 0.01, "the moon to rise")
