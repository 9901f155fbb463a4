"""Hamilton runs its graphs in tasks."""

from __future__ import annotations

import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_nodes_and_branches_of_a_graph_give_what_they_give_in_one_process() -> None:
    printed = printed_by("hamilton_graph.py")
    assert printed["found"]["joined"] == printed["expected"]["joined"]
    assert printed["found"]["process"] != printed["expected"]["process"] == printed["pid"]
    # Five nodes, and one task that puts the results together.
    assert printed["ran"]["calls"] == {"new_fn": 5, "DictResult.build_result": 1}
    values, pids = zip(*printed["branches"])
    assert values == tuple(number * number for number in range(6))
    assert values == tuple(value for value, _ in printed["expected_branches"])
    assert printed["pid"] not in pids
