"""Tianshou's RayVectorEnv steps its environments as the one in one process does."""

from __future__ import annotations

from typing import Any

import pytest

from compat.running import printed_by

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def printed() -> Any:
    return printed_by("tianshou_envs.py")


def test_environments_in_actors_give_the_same_observations(printed: Any) -> None:
    assert printed["found"]["in_step"] == printed["expected"]["in_step"]


def test_environments_that_are_waited_for_as_they_come_give_the_same_observations(printed: Any) -> None:
    assert printed["found"]["as_they_come"] == printed["expected"]["as_they_come"]


def test_every_environment_was_an_actor(printed: Any) -> None:
    assert printed["ran"]["processes"] == 2 * 3
    assert printed["ran"]["calls"]["_SetAttrWrapper.step"] >= 2 * 3 * 20
