"""EvoTorch with actors searches as it does in one process."""

from __future__ import annotations

from typing import Any

import pytest

from compat.running import printed_by

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def printed() -> Any:
    return printed_by("evotorch_search.py")


def test_a_search_with_two_actors_goes_the_same_way(printed: Any) -> None:
    assert printed["found"] == pytest.approx(printed["expected"])


def test_both_actors_evaluated_half_of_every_generation(printed: Any) -> None:
    # Five generations, and the batch before them.
    assert printed["ran"] == {"calls": {"EvaluationActor.evaluate_batch_piece": 2 * 6}, "processes": 2}


def test_a_search_whose_actors_draw_the_samples_finds_better_ones(printed: Any) -> None:
    first, last = printed["distributed"]
    assert last < first / 2
