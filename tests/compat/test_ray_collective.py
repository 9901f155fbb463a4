"""A program for `ray.util.collective` runs unchanged: what it prints is what it prints with Ray 2.60."""

from __future__ import annotations

from compat.running import printed_by

REDUCTIONS = [
    {"total": [3.0] * 4, "most": [[2.0, 2.0]] * 2, "product": None, "part": [1.0, 1.0]},
    {"total": [3.0] * 4, "most": [[2.0, 2.0]] * 2, "product": [6.0] * 3, "part": [21.0, 21.0]},
]
MOVEMENTS = {"same": [1.0, 1.0], "found": [[0.0, 0.0], [1.0, 1.0]], "passed": [7.0] * 3}


def test_groups_that_ranks_join_and_groups_that_the_driver_declares() -> None:
    assert printed_by("collective_ranks.py") == {
        "joined": [True, True],
        "about": [[0, 2], [1, 2]],
        "reductions": REDUCTIONS,
        "movements": [MOVEMENTS, MOVEMENTS],
        "left": [[False, -1], [False, -1]],
        "declared": REDUCTIONS,
    }
