"""The examples of examples/rl run, and are as short as a reader expects. tests/learn runs them to their scores."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from programs import run_command, run_program

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "rl"


@pytest.mark.parametrize(("name", "lines_max"), [("own_algorithm", 80), ("population", 120), ("train_and_serve", 150)])
def test_an_example_is_short(name: str, lines_max: int) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < lines_max


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("own_algorithm", {"ITERATIONS_MAX": 2}, "iteration 2: "),
        ("population", {"MEMBERS": 2, "TURNS_MAX": 4, "BEHIND": 1.0}, "it goes on from the weights of member "),
    ],
)
def test_an_example_runs(name: str, settings: dict[str, Any], said: str) -> None:
    program = f"import sys; sys.path.insert(0, {str(EXAMPLES)!r}); import {name} as example\n"
    printed, _ = run_program(f"{program}vars(example).update({settings!r}); example.main(1)", timeout_s=50)
    assert said in printed


@pytest.mark.timeout(120)  # several processes import torch, which takes long on a busy machine
def test_a_policy_learns_from_those_whom_it_serves(tmp_path: Path) -> None:
    command = [sys.executable, EXAMPLES / "train_and_serve.py", "0", "1"]  # to the first point of the curve
    printed, errors = run_command(command, timeout_s=110, directory=tmp_path)
    lines = [line for line in printed.splitlines() if " requests " in line]
    assert lines, (printed, errors)
    assert int(lines[-1].split()[-1]) > 1  # versions of the policy that were served
    assert "requests/s" in printed
    assert (tmp_path / "train_and_serve.png").stat().st_size > 5_000
    assert "Traceback" not in errors
