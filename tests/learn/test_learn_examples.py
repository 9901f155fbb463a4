"""The examples of examples/rl reach what they promise, as a user runs them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from programs import run_command

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "rl"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", ["own_algorithm", "population"])
def test_an_example_solves_its_environment(name: str, seed: int) -> None:
    printed, _ = run_command([sys.executable, EXAMPLES / f"{name}.py", str(seed)], timeout_s=300)
    assert "solved" in printed
    assert float(re.findall(r"([\d.]+) ± [\d.]+ over 100 episodes", printed)[-1]) > 450
