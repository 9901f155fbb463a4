"""Flower's simulation averages what its clients return."""

from __future__ import annotations

import numpy as np
import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_federated_averaging_gives_what_the_same_rounds_give_by_hand() -> None:
    printed = printed_by("flower_rounds.py")
    for what in ("weights", "losses"):
        assert np.asarray(printed["found"][what]) == pytest.approx(np.asarray(printed["expected"][what]))
    # Each of four clients in each of three rounds, in actors.
    assert sorted(fit["client"] for fit in printed["fits"]) == sorted([0, 1, 2, 3] * 3)
    assert all(fit["actor"] and fit["pid"] != printed["pid"] for fit in printed["fits"])
