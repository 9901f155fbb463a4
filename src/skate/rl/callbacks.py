"""Callbacks that carry the rows of a run to TensorBoard, Weights & Biases and MLflow.

>>> from skate.rl import callbacks
>>> ppo.train("CartPole-v1", callbacks=[callbacks.tensorboard("logs")])

Any function of a run and a row is a callback; one that has `close` is closed at the end of the run.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from skate.rl.run import Row, Run

Log = Callable[[dict[str, float], int], Any]


class _Adapter:
    """Opens its log with the first row, when the run is known."""

    def __init__(self, opened: Callable[[Run, ExitStack], Log]) -> None:
        self._opened, self._stack = opened, ExitStack()
        self._log: Log | None = None

    def __call__(self, run: Run, row: Row) -> None:
        self._log = self._log or self._opened(run, self._stack)
        self._log({name: float(value) for name, value in row.items() if isinstance(value, (int, float))}, row["steps"])

    def close(self) -> None:
        self._log = None
        self._stack.close()


def tensorboard(folder: str | None = None) -> _Adapter:
    """Write scalars that `tensorboard --logdir` shows, to `folder` or to the folder of the run."""
    package = _needed("torch.utils.tensorboard", "tensorboard")

    def opened(run: Run, stack: ExitStack) -> Log:
        writer = package.SummaryWriter(folder or str(run.path))
        stack.callback(writer.close)
        return lambda numbers, step: [writer.add_scalar(name, value, step) for name, value in numbers.items()]

    return _Adapter(opened)


def wandb(project: str = "skate", **arguments: Any) -> _Adapter:
    """Log to Weights & Biases; `arguments` go to `wandb.init`."""
    package = _needed("wandb", "wandb")

    def opened(run: Run, stack: ExitStack) -> Log:
        theirs = package.init(**{"project": project, "name": run.path.name, "config": run.about, **arguments})
        stack.callback(theirs.finish)
        return lambda numbers, step: theirs.log(numbers, step=step)

    return _Adapter(opened)


def mlflow(experiment: str = "skate", **arguments: Any) -> _Adapter:
    """Log to MLflow, where `mlflow.set_tracking_uri` says; `arguments` go to `mlflow.start_run`."""
    package = _needed("mlflow", "mlflow")

    def opened(run: Run, stack: ExitStack) -> Log:
        package.set_experiment(experiment)
        package.start_run(**{"run_name": run.path.name, **arguments})
        stack.callback(package.end_run)
        package.log_params({**run.options, "algorithm": run.algorithm, "env": run.env_name, "seed": run.seed})
        return lambda numbers, step: package.log_metrics(numbers, step=step)

    return _Adapter(opened)


def _needed(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this callback needs {package}, and it could not be imported.\n"
            f"  why:  {error}\n  next: pip install {package}"
        ) from error
