"""The names of Ray Train, on top of `train.run`: `TorchTrainer` and its configurations.

    >>> from skate.train import ScalingConfig
    >>> from skate.train.torch import TorchTrainer
    >>> result = TorchTrainer(fit, train_loop_config={"lr": 1e-3}, scaling_config=ScalingConfig(num_workers=2)).fit()

Programs that were written for Ray find them as `ray.train` and `ray.train.torch`.
"""

from __future__ import annotations

import inspect
import math
import uuid
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any

from skate.exceptions import SkateError
from skate.train import checkpoint as checkpoints
from skate.train import session
from skate.train.driver import run
from skate.train.record import Result, Row


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
        if self.num_to_keep is not None and self.num_to_keep < 1:
            raise ValueError(f"CheckpointConfig(num_to_keep={self.num_to_keep}): it may be 1 or more, or None for all.")
        if (order := self.checkpoint_score_order) not in ("max", "min"):
            raise ValueError(f"CheckpointConfig(checkpoint_score_order={order!r}): it may be 'max' or 'min'.")


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
        if self.name is None and self.storage_path is None:
            return None
        return Path(self.storage_path or "runs", self.name or f"TorchTrainer-{uuid.uuid4().hex[:8]}").expanduser()


@dataclass
class TorchConfig(_Config):
    """How the process group of torch is made."""

    backend: str | None = None
    init_method: str = "env"
    timeout_s: int = 1800


class TrainingFailedError(SkateError):
    """What `TorchTrainer.fit` raises when the workers failed more often than they may."""


class WorkerGroupError(TrainingFailedError):
    """`worker_failures` has the first cause, by rank; so has `__cause__`."""

    def __init__(self, error_message: str, worker_failures: Mapping[int, BaseException]) -> None:
        super().__init__(error_message)
        self.worker_failures = dict(worker_failures)


class TrainerResult(Result):
    """What a training has come to, with the attributes that Ray's Result has."""

    @property
    def best_checkpoints(self) -> list[tuple[checkpoints.Checkpoint, dict[str, Any]]]:
        """The checkpoints that were kept, with what rank 0 reported beside each."""
        kept = [checkpoints.Checkpoint(path) for path in checkpoints.committed_in(Path(self.path))]
        return [(each, _metrics_at(self, each.step)) for each in kept]

    def get_best_checkpoint(self, metric: str, mode: str) -> checkpoints.Checkpoint | None:
        """The checkpoint with the largest ("max") or smallest ("min") value of a metric."""
        scored = [(metrics[metric], each) for each, metrics in self.best_checkpoints if metric in metrics]
        return {"max": max, "min": min}[mode](scored, key=lambda pair: pair[0], default=(None, None))[1]

    @property
    def metrics_dataframe(self) -> Any:
        """What rank 0 reported beside each checkpoint that was kept, a row each."""
        import pandas as pd

        return pd.DataFrame([metrics for _, metrics in self.best_checkpoints])


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
        function = self.train_loop_per_worker
        parameters = inspect.signature(function).parameters.values()
        takes = [each for each in parameters if each.default is each.empty and not str(each).startswith("*")]
        if len(takes) > 1:
            raise ValueError(
                f"TorchTrainer({function!r}): it may be a function of one argument, its config, or of none."
            )
        arguments = (dict(self.train_loop_config or {}),) if _takes_one(function) else ()
        self._loop = _Loop(function, arguments, self.torch_config or TorchConfig())

    def fit(self) -> TrainerResult:
        """Train. Raises TrainingFailedError when no failure is left."""
        where, scaling = self.run_config or RunConfig(), self.scaling_config or ScalingConfig()
        keep = where.checkpoint_config or CheckpointConfig()
        failures = (where.failure_config or FailureConfig()).max_failures
        has_score = keep.checkpoint_score_attribute is not None
        try:
            result = run(
                self._loop,
                workers=scaling.num_workers,
                failures=None if failures == -1 else failures,
                path=where.folder(),
                resources_per_worker=scaling.resources(),
                keep=None if has_score else keep.num_to_keep,
                callbacks=[_KeepBest(keep)] if has_score else [],
            )
        except SkateError as error:
            raise WorkerGroupError(
                f"the training failed: {error}", {getattr(error, "rank", None) or 0: error}
            ) from error
        metrics = result.metrics.get("metrics", {})
        return TrainerResult(result.path, metrics, result.history, result.checkpoint, result.error, result.attempts)


def _takes_one(function: Callable[..., Any]) -> bool:
    """Whether it can be called with one argument, which may have a default."""
    try:
        inspect.signature(function).bind({})
    except TypeError:
        return False
    return True


@dataclass
class _Loop:
    """What every worker runs: it joins the process group before the function is called."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    config: TorchConfig

    def __post_init__(self) -> None:
        self.__name__ = getattr(self.function, "__name__", "fit")

    def __call__(self) -> None:
        here = session.context()
        here.metrics_have_any_name = True
        from skate.train import torch

        torch.join(self.config.backend, self.config.timeout_s)
        self.function(*self.arguments)


@dataclass
class _KeepBest:
    """Removes the checkpoints with the lowest scores, as they come."""

    config: CheckpointConfig

    def __call__(self, result: Result, row: Row) -> None:
        config, found = self.config, checkpoints.committed_in(Path(result.path))
        if config.num_to_keep is None or len(found) <= config.num_to_keep:
            return
        sign = -1.0 if config.checkpoint_score_order == "min" else 1.0

        def score(path: Path) -> float:
            value = _metrics_at(result, checkpoints.Checkpoint(path).step).get(str(config.checkpoint_score_attribute))
            return -math.inf if value is None else sign * float(value)

        for path in sorted(found, key=score)[: -config.num_to_keep]:
            if path != found[-1]:  # a restart goes on from the last one
                checkpoints.remove(path)


def _metrics_at(result: Result, step: int) -> dict[str, Any]:
    """What rank 0 reported at a step."""
    rows = (row["metrics"] for row in reversed(result.history) if (row["step"], row["rank"]) == (step, 0))
    return next(rows, {})


def get_checkpoint() -> checkpoints.Checkpoint | None:
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
