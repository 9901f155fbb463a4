"""pymoo's RayParallelization evaluates as pymoo does in one process."""

from __future__ import annotations

import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_a_search_with_evaluations_in_tasks_finds_the_same_front() -> None:
    printed = printed_by("pymoo_search.py")
    assert printed["found"] == printed["expected"]
    # Five generations of twenty.
    assert printed["ran"]["calls"] == {"ElementwiseEvaluationFunction.__call__": 100}
