"""The simulation finds bugs: each one of `mutants.py`, near the seed that found it first."""

from __future__ import annotations

import json

import pytest
from hunt import FOUND, finding
from mutants import MUTANTS

#: A change of the simulation makes another history of every seed. Then some seed nearby finds the bug, or the change
#: made the simulation blind to it.
NEARBY = 100
SEEDS: dict[str, int] = json.loads(FOUND.read_text())


def test_every_bug_has_a_seed() -> None:
    assert SEEDS.keys() == MUTANTS.keys(), "python tests/sim/hunt.py all --save"


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_the_bug_is_found_and_the_code_without_it_is_right(name: str) -> None:
    stored = SEEDS[name]
    begin = max(0, stored - NEARBY // 2)
    found = next((seed for seed in (stored, *range(begin, begin + NEARBY)) if finding(name, seed)), None)
    assert found is not None, f"{MUTANTS[name][0]} Not found; python tests/sim/hunt.py {name} looks further."
    assert not finding("none", found)
