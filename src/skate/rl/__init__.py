"""Simulation and learning on Skate.

>>> from skate.rl import ppo
>>> run = ppo.train("CartPole-v1", steps=100_000, seed=1)
>>> print(run)
PPO on CartPole-v1: 500 ± 0 over 100 episodes; 100,352 steps in 6.1 s (16,500/s)

Every name is imported when it is used: `from skate.rl import Policy` needs no torch and starts no cluster.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skate.rl import callbacks, dqn, es, impala, ppo, sac
    from skate.rl.block import Batch, Block
    from skate.rl.env import EnvError
    from skate.rl.policy import Policy
    from skate.rl.replay import Prioritised, Ring
    from skate.rl.returns import discounted, gae, n_step, vtrace
    from skate.rl.run import Run
    from skate.rl.simulate import Simulators, evaluate

#: The algorithms, each a module with `train`, and what carries their rows elsewhere.
_MODULES = ("callbacks", "dqn", "es", "impala", "ppo", "sac")

#: The other names, and the module that has each.
_HOMES = {
    "Batch": "block",
    "Block": "block",
    "EnvError": "env",
    "Policy": "policy",
    "Prioritised": "replay",
    "Ring": "replay",
    "Run": "run",
    "Simulators": "simulate",
    "discounted": "returns",
    "evaluate": "simulate",
    "gae": "returns",
    "n_step": "returns",
    "vtrace": "returns",
}

#: Packages of the extra `rl` that modules of this library import.
EXTRA = {"gymnasium", "matplotlib", "numpy", "rich", "safetensors", "threadpoolctl", "torch"}

__all__ = [
    "Batch",
    "Block",
    "EnvError",
    "Policy",
    "Prioritised",
    "Ring",
    "Run",
    "Simulators",
    "callbacks",
    "discounted",
    "dqn",
    "es",
    "evaluate",
    "gae",
    "impala",
    "n_step",
    "ppo",
    "sac",
    "vtrace",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}.")
    try:
        module = importlib.import_module(f"skate.rl.{_HOMES.get(name, name)}")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in EXTRA:
            raise
        raise ImportError(
            f"skate.rl.{name} needs the package {error.name}, which is not installed.\n  next: pip install 'skate[rl]'",
            name=error.name,
        ) from error
    found = getattr(module, name) if name in _HOMES else module
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
