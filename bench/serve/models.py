"""The models that every peer serves, and the states that they are given: numpy alone, and torch for one of them.

A model takes an array [states, numbers] and returns one number for each state. It stands for one accelerator: it
computes one batch at a time, whichever thread asks.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

Model = Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]

#: The variable that tells a server in another process which model it serves.
VARIABLE = "BENCH_SERVE_MODEL"
_PR_SET_TIMERSLACK = 29
_libc = ctypes.CDLL(None)


def make(kind: dict[str, Any]) -> Model:
    """A model: {"batch_ms": 10, "item_ms": 0} sleeps for so long, {"mlp": [1024, 2048, 1]} has these layers."""
    return Network(kind["mlp"]) if "mlp" in kind else Sleep(kind["batch_ms"], kind.get("item_ms", 0.0))


def made_from_environment() -> Model:
    return make(json.loads(os.environ.get(VARIABLE, '{"batch_ms": 0}')))


class Sleep:
    """Takes a time that is known, and no CPU: an accelerator as seen from the machine that it is in."""

    def __init__(self, batch_ms: float, item_ms: float) -> None:
        self._batch_s, self._item_s = batch_ms / 1e3, item_ms / 1e3
        self._device = threading.Lock()

    def __call__(self, states: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        with self._device:
            precise_sleep(self._batch_s + self._item_s * len(states))
        first: np.ndarray[Any, Any] = states[:, 0].copy()
        return first


class Network:
    """A multilayer perceptron of torch on one thread, with the same weights in every process."""

    def __init__(self, sizes: list[int]) -> None:
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(1)
        layers = [layer for pair in pairwise(sizes) for layer in (torch.nn.Linear(*pair), torch.nn.Tanh())]
        self._net = torch.nn.Sequential(*layers[:-1])
        self._device = threading.Lock()
        self._torch = torch

    def __call__(self, states: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        with self._device, self._torch.inference_mode():
            found: np.ndarray[Any, Any] = self._net(self._torch.tensor(states)).numpy()[:, 0].copy()
        return found


def precise_sleep(seconds: float) -> None:
    """Sleep without the 50 µs by which the kernel may be late for threads that do not ask for less."""
    _libc.prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    time.sleep(seconds)


def states(count: int, size_bytes: int) -> np.ndarray[Any, Any]:
    """That many states of 32-bit floats, the same ones each time."""
    return np.random.default_rng(1).standard_normal((count, size_bytes // 4), dtype=np.float32)


def decode(body: bytes, size_bytes: int) -> np.ndarray[Any, Any]:
    """The states in the body of a request."""
    return np.frombuffer(body, np.float32).reshape(-1, size_bytes // 4)


#: How a state is weighed by the policy below: position, speed, angle, angular speed of CartPole.
CARTPOLE_WEIGHTS = (0.05, 0.15, 1.0, 0.5)


class CartPolePolicy:
    """A policy of 64 x 64 that keeps the pole up, so that clients can tell whether actions are right."""

    def __init__(self) -> None:
        random = np.random.default_rng(1)
        self._first = random.standard_normal((4, 64), dtype=np.float32) / 8
        self._second = random.standard_normal((64, 64), dtype=np.float32) / 64
        self._last = np.zeros((64, 2), np.float32)
        # One path through the layers decides; the other numbers are computed and weigh nothing.
        self._first[:, 0], self._second[:, 0] = CARTPOLE_WEIGHTS, 0
        self._second[0, 0], self._last[0] = 1, (-1, 1)

    def act(self, observation: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The action for one observation, 0 or 1, as an array of one 32-bit float."""
        hidden = np.tanh(np.tanh(observation @ self._first) @ self._second)
        return np.array([(hidden @ self._last).argmax()], np.float32)
