"""Callbacks that carry the rows of a run to TensorBoard, Weights & Biases and MLflow.

>>> from skate.rl import callbacks
>>> ppo.train("CartPole-v1", callbacks=[callbacks.tensorboard("logs")])

Any function of a run and a row is a callback; one that has `close` is closed at the end of the run.
They are those of `skate.util.callbacks`, which `skate.train` takes too.
"""

from skate.util.callbacks import mlflow, tensorboard, wandb

__all__ = ["mlflow", "tensorboard", "wandb"]
