"""examples/parameter_server.py in small: it learns both ways, in step as one process does, and ends cleanly."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from programs import run_program

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "parameter_server.py"
CHANCE = 10.0  # per cent right by guessing one of ten classes


def test_it_learns_both_ways_and_in_step_as_one_process_does() -> None:
    pytest.importorskip("numpy")
    arguments = [EXAMPLE.name, "--cpus", "2", "--rounds", "12"]
    printed, _ = run_program(
        f"import runpy, sys; sys.argv = {arguments}; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    )
    line = re.compile(r"^(.+?) +loss ([\d.]+), accuracy ([\d.]+)%, \d+ updates/s, [\d.]+ s, [\d.]+ × as fast", re.M)
    found = {label: (float(loss), float(accuracy)) for label, loss, accuracy in line.findall(printed)}
    assert list(found) == ["one process", "in step", "out of step"], printed
    assert all(accuracy > 4 * CHANCE for _, accuracy in found.values()), printed
    assert found["in step"][0] == pytest.approx(found["one process"][0], abs=0.002)
    assert found["out of step"][0] == pytest.approx(found["one process"][0], rel=0.5)
