"""EvoTorch with actors searches as it does in one process."""

from __future__ import annotations

import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_a_search_with_two_actors_goes_the_same_way() -> None:
    printed = printed_by("evotorch_search.py")
    assert printed["found"] == pytest.approx(printed["expected"])
