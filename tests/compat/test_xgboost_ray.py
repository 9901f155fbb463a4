"""xgboost_ray trains with two actors what xgboost trains alone."""

from __future__ import annotations

import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_a_model_trained_by_two_actors_agrees_with_one_trained_alone() -> None:
    printed = printed_by("xgboost_training.py")
    for what in ("guesses", "losses"):
        assert printed["found"][what] == pytest.approx(printed["expected"][what], abs=1e-4)
    # One actor that trained with its own half of the rows would not have come to that.
    assert printed["half"] != pytest.approx(printed["expected"]["guesses"], abs=0.1)
    assert printed["rows"] == len(printed["half"])
    first, second = printed["pids"]
    assert len(first) == len(second) == 10  # rounds
    assert len({*first, *second, printed["pid"]}) == 3
