"""Dask, with Ray's scheduler for it: arrays, frames and graphs give what Dask's own scheduler gives."""

from __future__ import annotations

from typing import Any

import pytest

from compat.running import printed_by

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def printed() -> Any:
    return printed_by("dask_graphs.py")


@pytest.mark.parametrize("name", ["matrix", "means", "groups", "shuffled", "squares"])
def test_collections_have_the_values_of_the_sequential_scheduler(printed: Any, name: str) -> None:
    assert printed["found"][name] == pytest.approx(printed["expected"][name])
    assert printed["enabled"][name] == pytest.approx(printed["expected"][name])


def test_a_persisted_collection_can_be_used_further(printed: Any) -> None:
    found, expected = printed["persisted"]
    assert found == pytest.approx(expected)


def test_a_graph_of_tuples_is_run_and_its_tasks_are_told_to_callbacks(printed: Any) -> None:
    assert printed["by_hand"] == [34, [3, 1]]
    assert printed["submitted"] == ["y", "z"]


def test_every_task_of_the_graphs_ran_in_a_worker(printed: Any) -> None:
    assert printed["ran"]["calls"]["dask:square"] == 2 * 20
    assert printed["ran"]["calls"]["dask:random"] >= 2 * 16
    assert printed["ran"]["processes"] >= 2


def test_an_error_of_a_task_arrives_as_its_own_class(printed: Any) -> None:
    assert "ZeroDivisionError" in printed["error"]
