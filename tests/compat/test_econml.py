"""EconML fits the folds of its estimators in tasks."""

from __future__ import annotations

import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_effects_are_those_of_one_process() -> None:
    printed = printed_by("econml_effects.py")
    assert printed["found"] == printed["expected"]
    # Two estimators with three folds each.
    assert printed["ran"]["calls"]["_fit_fold"] == 6
