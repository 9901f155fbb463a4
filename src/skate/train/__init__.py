"""Distributed training: `run` trains a function on several workers; the other names are for inside that function.

Every name is imported when it is used: `import skate.train` needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skate.train import torch
    from skate.train.checkpoint import Checkpoint
    from skate.train.data import shard, stream
    from skate.train.driver import run
    from skate.train.memory import keep_memory
    from skate.train.record import Attempt, Result
    from skate.train.session import context, report, restore
    from skate.train.stalls import StalledError
    from skate.train.trainer import (
        CheckpointConfig,
        FailureConfig,
        RunConfig,
        ScalingConfig,
        TrainContext,
        TrainingFailedError,
        WorkerGroupError,
        get_checkpoint,
        get_context,
    )

#: Names that programs for Ray Train use.
_OF_RAY = [
    "CheckpointConfig",
    "FailureConfig",
    "RunConfig",
    "ScalingConfig",
    "TrainContext",
    "TrainingFailedError",
    "WorkerGroupError",
    "get_checkpoint",
    "get_context",
]
#: The names, and the module that has each.
_HOMES = {
    "Attempt": "record",
    "Checkpoint": "checkpoint",
    "Result": "record",
    "StalledError": "stalls",
    "context": "session",
    "keep_memory": "memory",
    "report": "session",
    "restore": "session",
    "run": "driver",
    "shard": "data",
    "stream": "data",
    **dict.fromkeys(_OF_RAY, "trainer"),
}

__all__ = [
    "Attempt",
    "Checkpoint",
    "Result",
    "StalledError",
    "context",
    "keep_memory",
    "report",
    "restore",
    "run",
    "shard",
    "stream",
    "torch",
    "CheckpointConfig",
    "FailureConfig",
    "RunConfig",
    "ScalingConfig",
    "TrainContext",
    "TrainingFailedError",
    "WorkerGroupError",
    "get_checkpoint",
    "get_context",
]


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
