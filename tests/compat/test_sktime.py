"""sktime's backend "ray" evaluates and chooses forecasters as sktime does in one process."""

from __future__ import annotations

import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_forecasters_are_evaluated_and_chosen_as_in_one_process() -> None:
    printed = printed_by("sktime_forecasts.py")
    assert printed["found"] == printed["expected"]
    assert printed["own"] == printed["expected"]
    assert not printed["runs"]
    # Eight windows, and four settings.
    assert printed["ran"]["calls"] == {"_ray_execute_function": 12}
