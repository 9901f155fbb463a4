"""The simulations find bugs: each one of `mutants.py` and `control_mutants.py`, near the seed that found it first."""

from __future__ import annotations

import json

import pytest
from hunt import PARTS, finding, near, part_of

NEARBY = 100


@pytest.mark.parametrize("part", PARTS)
def test_every_bug_has_a_seed(part: str) -> None:
    seeds = json.loads(PARTS[part].found.read_text())
    assert seeds.keys() == PARTS[part].mutants.keys(), "python tests/sim/hunt.py all --save"


@pytest.mark.parametrize("name", sorted(name for part in PARTS.values() for name in part.mutants))
def test_the_bug_is_found_and_the_code_without_it_is_right(name: str) -> None:
    part = part_of(name)
    found = near(part, name, NEARBY)
    assert found is not None, f"{part.mutants[name][0]} Not found; python tests/sim/hunt.py {name} looks further."
    assert not finding(part, "none", found)
