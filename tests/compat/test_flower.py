"""Flower's simulation averages what its clients return."""

from __future__ import annotations

import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_federated_averaging_gives_what_the_same_rounds_give_by_hand() -> None:
    printed = printed_by("flower_rounds.py")
    assert printed["found"] == pytest.approx(printed["expected"])
