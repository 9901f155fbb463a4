"""What the programs of every peer share: standard library and numpy, since each peer has an environment of its own.

A program is called as `python <peer>.py ROW KEY=VALUE …` and prints one line of JSON at the end: its figures.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

STARTED = time.perf_counter()
EVALUATE_EVERY = 5_000
EPISODES = 20


def main(rows: dict[str, Callable[..., dict[str, Any]]]) -> None:
    """Run the row that the command line names, and print what it measured."""
    arguments = dict(argument.split("=", 1) for argument in sys.argv[2:])
    figures = rows[sys.argv[1]](**{name: _value(text) for name, text in arguments.items()})
    print(json.dumps(figures), flush=True)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


#: Environments of this folder, and the module and the name of what makes each.
OWN = {"humanoid": ("humanoid", "make"), "instant": ("instant", "Instant"), "catch": ("rl_probes", "Catch")}


def own(env: str) -> Any:
    """What makes an environment of ours."""
    import importlib
    from pathlib import Path

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
