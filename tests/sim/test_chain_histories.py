"""Whatever fails: no acknowledged write is lost, no read goes back, and everything is well in the end."""

from __future__ import annotations

import os

import pytest
from world import Violation, World

#: `make sim` has more.
SEEDS = int(os.environ.get("SKATE_SIM_SEEDS", "300"))
PART = 50


@pytest.mark.parametrize("begin", range(0, SEEDS, PART))
def test_the_promise_is_kept_whatever_fails(begin: int) -> None:
    for seed in range(begin, min(begin + PART, SEEDS)):
        try:
            World(seed).run()
        except (Violation, AssertionError) as error:
            pytest.fail(f"{error!r}\nreplay: python tests/sim/hunt.py none --from {seed} --seeds 1")
