"""scikit-learn on joblib's backend "ray" finds what it finds in one process."""

from __future__ import annotations

import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_a_search_over_parameters_finds_the_same() -> None:
    printed = printed_by("sklearn_search.py")
    assert printed["found"] == printed["expected"]
    # Each of three folds of six settings was trained in a worker, and those to compare with were not.
    assert len(printed["pids"]) == 18
    assert not set(printed["pids"]) & set(printed["own"])
    assert len(set(printed["own"])) == 1
    assert printed["ran"]["processes"] >= 2
