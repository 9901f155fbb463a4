"""Callbacks that carry the rows of a training to TensorBoard, Weights & Biases and MLflow.

>>> from skate.util import callbacks
>>> train.run(fit, callbacks=[callbacks.tensorboard("logs")])
>>> ppo.train("CartPole-v1", callbacks=[callbacks.wandb()])

A callback of `skate.train` and `skate.rl` is a function of the training and the newest row of its history; one that has
`close` is closed at the end. These adapters log the numbers of a row at its "step" or "steps". Where each rank reports
rows of its own, they log those of rank 0.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

Log = Callable[[dict[str, float], int], Any]


class Training(Protocol):
    """What the adapters ask a training for: a Run of `skate.rl`, or a Result of `skate.train`."""

    #: Its folder.
    path: Path

    @property
    def about(self) -> Mapping[str, Any]:
        """What it was started with."""
        ...


class _Adapter:
    """Opens its log with the first row, when the training is known."""

    def __init__(self, opened: Callable[[Training, ExitStack], Log]) -> None:
        self._opened, self._stack = opened, ExitStack()
        self._log: Log | None = None

    def __call__(self, training: Training, row: dict[str, Any]) -> None:
        if row.get("rank", 0) != 0:
            return
        self._log = self._log or self._opened(training, self._stack)
        numbers = {name: float(value) for name, value in row.items() if isinstance(value, (int, float))}
        self._log(numbers, row["steps"] if "steps" in row else row["step"])

    def close(self) -> None:
        self._log = None
        self._stack.close()


def tensorboard(folder: str | None = None) -> _Adapter:
    """Write scalars that `tensorboard --logdir` shows, to `folder` or to the folder of the training."""
    package = _needed("torch.utils.tensorboard", "tensorboard")

    def opened(training: Training, stack: ExitStack) -> Log:
        writer = package.SummaryWriter(folder or str(training.path))
        stack.callback(writer.close)
        return lambda numbers, step: [writer.add_scalar(name, value, step) for name, value in numbers.items()]

    return _Adapter(opened)


def wandb(project: str = "skate", **arguments: Any) -> _Adapter:
    """Log to Weights & Biases; `arguments` go to `wandb.init`."""
    package = _needed("wandb", "wandb")

    def opened(training: Training, stack: ExitStack) -> Log:
        about = dict(training.about)
        theirs = package.init(**{"project": project, "name": training.path.name, "config": about, **arguments})
        stack.callback(theirs.finish)
        return lambda numbers, step: theirs.log(numbers, step=step)

    return _Adapter(opened)


def mlflow(experiment: str = "skate", **arguments: Any) -> _Adapter:
    """Log to MLflow, where `mlflow.set_tracking_uri` says; `arguments` go to `mlflow.start_run`."""
    package = _needed("mlflow", "mlflow")

    def opened(training: Training, stack: ExitStack) -> Log:
        package.set_experiment(experiment)
        package.start_run(**{"run_name": training.path.name, **arguments})
        stack.callback(package.end_run)
        package.log_params(_flat(training.about))
        return lambda numbers, step: package.log_metrics(numbers, step=step)

    return _Adapter(opened)


def _flat(about: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters in one level: those of dicts inside stand beside the others."""
    inner = {name: value for group in about.values() if isinstance(group, Mapping) for name, value in group.items()}
    return {**inner, **{name: value for name, value in about.items() if not isinstance(value, Mapping)}}


def _needed(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this callback needs {package}, and it could not be imported.\n"
            f"  why:  {error}\n  next: pip install {package}"
        ) from error
