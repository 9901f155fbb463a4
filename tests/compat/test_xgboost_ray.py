"""xgboost_ray trains with two actors what xgboost trains alone."""

from __future__ import annotations

import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_a_model_trained_by_two_actors_agrees_with_one_trained_alone() -> None:
    printed = printed_by("xgboost_training.py")
    found, expected = printed["accuracy"]
    assert printed["agreement"] > 0.97
    assert found > expected - 0.02
    assert printed["error"] < 0.05
