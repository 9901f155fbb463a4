"""Runs the programs of `written_for_ray/`, unchanged, as users do: with `python -m skate.as_ray`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from programs import run_program

PROGRAMS = Path(__file__).parent / "written_for_ray"

#: A program that takes longer hangs. It ends before the test's own limit, so that what it printed is seen.
PROGRAM_S = 170


def printed_by(name: str) -> Any:
    """What the program printed in its last line, decoded."""
    out, _ = run_program(PROGRAMS / name, options=("-m", "skate.as_ray"), timeout_s=PROGRAM_S)
    return json.loads(out.strip().splitlines()[-1])
