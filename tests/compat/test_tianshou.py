"""Tianshou's RayVectorEnv steps its environments as the one in one process does."""

from __future__ import annotations

import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_environments_in_actors_give_the_same_observations() -> None:
    printed = printed_by("tianshou_envs.py")
    assert printed["found"] == printed["expected"]
