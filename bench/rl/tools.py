"""What the programs of every peer share: standard library and numpy, since each peer has an environment of its own.

A program is called as `python <peer>.py ROW KEY=VALUE …` and prints one line of JSON at the end: its figures.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # behind this folder, which has a `bare` and a `run` too

from program import main  # noqa: F401

STARTED = time.perf_counter()
EVALUATE_EVERY = 5_000
EPISODES = 20


#: Environments of this folder, and the module and the name of what makes each.
OWN = {"humanoid": ("humanoid", "make"), "instant": ("instant", "Instant"), "catch": ("rl_probes", "Catch")}


def own(env: str) -> Any:
    """What makes an environment of ours."""
    import importlib

    sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))  # Catch is one of the tests' environments
    module, name = OWN[env]
    return getattr(importlib.import_module(module), name)


class Clock:
    """Wall time since the program began, with imports and without evaluations."""

    def __init__(self, started: float = STARTED) -> None:
        self._started, self._evaluating_s = started, 0.0

    def evaluated(self, seconds: float) -> None:
        self._evaluating_s += seconds

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._started - self._evaluating_s


def lengths(count: int = 60, low: int = 10, high: int = 1_000, seed: int = 0) -> list[int]:
    """Lengths of simulations, the same for every peer."""
    import numpy as np

    return np.random.default_rng(seed).integers(low, high + 1, count).tolist()
