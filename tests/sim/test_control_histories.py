"""Whatever dies, and whenever: the control state loses, repeats and kills nothing, and all is well in the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from control_world import Violation, World

#: `make sim` has more.
SEEDS = int(os.environ.get("SKATE_SIM_SEEDS", "300"))
PART = 50


@pytest.mark.parametrize("begin", range(0, SEEDS, PART))
def test_nothing_is_lost_with_the_control_service(begin: int) -> None:
    for seed in range(begin, min(begin + PART, SEEDS)):
        try:
            World(seed).run()
        except (Violation, AssertionError) as error:
            pytest.fail(f"{error!r}\nreplay: python tests/sim/hunt.py none --part control --from {seed} --seeds 1")


HISTORY = """
import sys
sys.path.insert(0, sys.argv[1])
from control_world import World
world = World(7)
world.run()
print(world.clock.now, world.clock.random.random(), len(world.everyone))
"""


def test_a_seed_replays_exactly() -> None:
    """In another process, too, where the elements of sets have another order."""
    told = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", HISTORY, str(Path(__file__).parent)]
        told.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert len(told) == 1
