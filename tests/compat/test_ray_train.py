"""Programs for Ray Train run unchanged: what they print is what they print with Ray 2.60."""

from __future__ import annotations

import pytest

from compat.running import printed_by

pytestmark = pytest.mark.timeout(180)


def test_a_classifier_trains_on_two_workers() -> None:
    printed = printed_by("train_classifier.py")
    metrics = printed["metrics"]
    assert metrics["accuracy"] > 0.9
    # Each worker tests with its half of the samples; metrics may have any name, and those of rank 0 are told.
    assert (metrics["seen"], metrics["step"], metrics["rank"]) == (128, 3, 0)
    assert printed["weights"] == {"0.weight": [16, 8], "0.bias": [16], "2.weight": [2, 16], "2.bias": [2]}
    assert (printed["path"], printed["error"], printed["best"]) == ("classifier", None, True)
    assert printed["kept"] in (2, 3)  # the two best, and the last
    assert printed["frame"] == ["loss", "accuracy", "seen", "step", "rank"]


def test_a_training_goes_on_after_a_death_and_ends_with_the_first_cause() -> None:
    printed = printed_by("train_restarts.py")
    assert printed["metrics"] == {"epoch": 4, "weight": 15.0}  # three in each of five epochs, none of them twice
    assert printed["files"] == ["state-0.json", "state-1.json"]
    assert (printed["told"], printed["ranks"]) == (True, [1])
