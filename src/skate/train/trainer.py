"""The names of Ray Train, on top of `train.run`: `TorchTrainer` and its configurations.

    >>> from skate.train import ScalingConfig
    >>> from skate.train.torch import TorchTrainer
    >>> result = TorchTrainer(fit, train_loop_config={"lr": 1e-3}, scaling_config=ScalingConfig(num_workers=2)).fit()

Programs that were written for Ray find them as `ray.train` and `ray.train.torch`.
"""

from __future__ import annotations

import functools
import inspect
import uuid
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any

from skate.exceptions import SkateError
from skate.train import session
from skate.train.arguments import can_bind
from skate.train.checkpoint import Checkpoint
from skate.train.driver import run
from skate.train.record import Result


class _Config:
    """Options; one of Ray that is not here is an error that names it."""

    def __new__(cls, *_: Any, **options: Any) -> Any:
        for name in options.keys() - {field.name for field in fields(cls)}:  # type: ignore[arg-type]
            raise ValueError(
                f"{cls.__name__}({name}={options[name]!r}): skate.train does not have this option.\n"
                "  why:  it belongs to a part of Ray that is not here, or Ray has given it up.\n"
                "  next: leave it out; docs/coming-from-ray.md says what there is instead."
            )
        return super().__new__(cls)


@dataclass
class ScalingConfig(_Config):
    """How many workers there are, and the resources of each."""

    num_workers: Any = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"

    def __post_init__(self) -> None:
        if self.placement_strategy != "PACK":
            raise ValueError(f"ScalingConfig(placement_strategy={self.placement_strategy!r}): it may be 'PACK'.")

    def resources(self) -> dict[str, float]:
        """The resources of a worker; 1 CPU, and 1 GPU with `use_gpu`, unless they are given."""
        return {"CPU": 1, **({"GPU": 1} if self.use_gpu else {}), **(self.resources_per_worker or {})}


@dataclass
class FailureConfig(_Config):
    """How often the workers are started again after a failure; -1: without end."""

    max_failures: int = 0


@dataclass
class CheckpointConfig(_Config):
    """Which checkpoints stay: the last `num_to_keep`, or the best by a metric of rank 0 and the last."""

    num_to_keep: int | None = None
    checkpoint_score_attribute: str | None = None
    checkpoint_score_order: str = "max"

    def __post_init__(self) -> None:
        metric, order = self.checkpoint_score_attribute, self.checkpoint_score_order
        self.best = None if metric is None else (metric, order)
        if (self.num_to_keep is not None and self.num_to_keep < 1) or order not in ("max", "min"):
            raise ValueError(f"{self}: num_to_keep may be 1 or more, or None for all; the order 'max' or 'min'.")


@dataclass
class RunConfig(_Config):
    """Where a run is written: the folder `name` below `storage_path`. A run of the same name there goes on."""

    name: str | None = None
    storage_path: str | None = None
    failure_config: FailureConfig | None = None
    checkpoint_config: CheckpointConfig | None = None

    def folder(self) -> Path | None:
        """The folder of the run; None: a new one below `runs`."""
        if "://" in str(self.storage_path):
            raise ValueError(
                f"RunConfig(storage_path={self.storage_path!r}): it may be a folder, not an address.\n"
                "  next: mount the storage, and give the folder that all machines see."
            )
        name = self.name or (self.storage_path and f"TorchTrainer-{uuid.uuid4().hex[:8]}")
        return Path(self.storage_path or "runs", name).expanduser() if name else None


@dataclass
class TorchConfig(_Config):
    """How the process group of torch is made."""

    backend: str | None = None
    timeout_s: int = 1800


class TrainingFailedError(SkateError):
    """What `TorchTrainer.fit` raises when the workers failed more often than they may."""


class WorkerGroupError(TrainingFailedError):
    """`worker_failures` has the first cause, by rank; so has `__cause__`."""

    def __init__(self, error_message: str, worker_failures: Mapping[int, BaseException]) -> None:
        super().__init__(error_message)
        self.worker_failures = dict(worker_failures)


@dataclass
class TorchTrainer(_Config):
    """`fit()` runs a function on several workers, which have joined the process group of torch."""

    train_loop_per_worker: Callable[..., Any]
    _: KW_ONLY
    train_loop_config: Mapping[str, Any] | None = None
    torch_config: TorchConfig | None = None
    scaling_config: ScalingConfig | None = None
    run_config: RunConfig | None = None

    def __post_init__(self) -> None:
        signature = inspect.signature(self.train_loop_per_worker)
        self._takes_config = can_bind(signature, {})
        if not (self._takes_config or can_bind(signature)):
            raise ValueError(f"TorchTrainer(function{signature}): it may take one argument, its config, or none.")

    def fit(self) -> Result:
        """Train. Raises TrainingFailedError when no failure is left."""
        where, scaling = self.run_config or RunConfig(), self.scaling_config or ScalingConfig()
        keep = where.checkpoint_config or CheckpointConfig()
        most = (where.failure_config or FailureConfig()).max_failures
        try:
            return run(
                _joined(self.train_loop_per_worker, self.torch_config or TorchConfig()),
                dict(self.train_loop_config or {}) if self._takes_config else None,
                workers=scaling.num_workers,
                failures=None if most == -1 else most,
                path=where.folder(),
                resources_per_worker=scaling.resources(),
                keep=keep.num_to_keep,
                best=keep.best,
            )
        except SkateError as error:
            raise WorkerGroupError(f"the training failed: {error}", {getattr(error, "rank", 0) or 0: error}) from error


def _joined(function: Callable[..., Any], config: TorchConfig) -> Callable[..., Any]:
    """What every worker runs: it joins the process group before the function is called."""

    @functools.wraps(function)
    def loop(*arguments: Any) -> None:
        from skate.train import torch

        session.context().metrics_have_any_name = True
        torch.join(config.backend, config.timeout_s)
        function(*arguments)

    return loop


def get_checkpoint() -> Checkpoint | None:
    """The checkpoint that this attempt goes on from, if there is one."""
    return session.context().checkpoint


class TrainContext:
    """Where this worker stands in its group, in Ray's words; `skate.train.context()` has the same in ours."""

    def get_world_rank(self) -> int:
        return session.context().rank

    def get_world_size(self) -> int:
        return session.context().world_size

    def get_local_rank(self) -> int:
        return session.context().local_rank

    def get_local_world_size(self) -> int:
        return session.context().local_world_size

    def get_node_rank(self) -> int:
        return session.context().node_rank

    def get_experiment_name(self) -> str:
        return session.context().path.name


def get_context() -> TrainContext:
    """Where this worker stands. Raises RuntimeError outside of a training."""
    session.context()
    return TrainContext()
