"""Distributed training: `run` trains a function on several workers; the other names are for inside that function.

Every name is imported when it is used: `import skate.train` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skate.train import torch
    from skate.train.checkpoint import Checkpoint
    from skate.train.driver import Result, run
    from skate.train.session import context, report, restore

#: The names, and the module that has each.
_HOMES = {
    "Checkpoint": "checkpoint",
    "Result": "driver",
    "context": "session",
    "report": "session",
    "restore": "session",
    "run": "driver",
}

__all__ = ["Checkpoint", "Result", "context", "report", "restore", "run", "torch"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES and name != "torch":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}.")
    try:
        module = importlib.import_module(f"skate.train.{_HOMES.get(name, name)}")
    except ModuleNotFoundError as error:
        if error.name not in ("numpy", "torch"):
            raise
        raise ImportError(
            f"skate.train.{name} needs the package {error.name}, which is not installed.\n"
            "  next: pip install 'skate[train]'",
            name=error.name,
        ) from error
    found = getattr(module, name) if name in _HOMES else module
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
