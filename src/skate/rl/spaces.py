"""Descriptions of observation and action spaces: plain dictionaries that go into JSON, and how they are flattened.

A policy is saved with the description of what it sees, so it can flatten a Dict observation in a process that has
neither gymnasium nor the environment. A box keeps its shape and dtype, so images stay uint8. Every other space becomes
a float32 vector: discrete values as one-hot vectors, Dict and Tuple as their parts in order.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Description = dict[str, Any]


def describe(space: Any) -> Description:
    """Describe an observation space of gymnasium; TypeError if it is not supported."""
    kind = type(space).__name__
    if kind == "Box":
        return {"kind": "box", "shape": list(space.shape), "dtype": str(space.dtype)}
    if kind == "Discrete":
        return {"kind": "discrete", "sizes": [int(space.n)], "start": int(space.start)}
    if kind == "MultiDiscrete" and len(space.shape) == 1:
        return {"kind": "discrete", "sizes": [int(n) for n in space.nvec], "start": [int(s) for s in space.start]}
    if kind == "MultiBinary":
        return {"kind": "box", "shape": list(space.shape), "dtype": "float32"}
    if kind == "Dict":
        return {"kind": "dict", "parts": {key: describe(part) for key, part in space.spaces.items()}}
    if kind == "Tuple":
        return {"kind": "tuple", "parts": {str(i): describe(part) for i, part in enumerate(space.spaces)}}
    raise TypeError(
        f"observations of the space {space} are not supported: they can be Box, Discrete, MultiDiscrete, MultiBinary, "
        "and Dict or Tuple of these. Wrap the environment in gymnasium.wrappers.TransformObservation."
    )


def describe_action(space: Any) -> Description:
    """Describe an action space of gymnasium; TypeError if it is not supported."""
    kind = type(space).__name__
    if kind == "Discrete":
        return {"kind": "discrete", "sizes": [int(space.n)], "start": int(space.start)}
    if kind == "MultiDiscrete" and len(space.shape) == 1:
        return {"kind": "multi", "sizes": [int(n) for n in space.nvec], "start": [int(s) for s in space.start]}
    if kind == "MultiBinary" and len(space.shape) == 1:
        return {"kind": "multi", "sizes": [2] * space.shape[0], "start": [0] * space.shape[0]}
    if kind == "Box" and np.issubdtype(space.dtype, np.floating):
        bounds = {"low": space.low.ravel().tolist(), "high": space.high.ravel().tolist()}
        return {"kind": "box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
    raise TypeError(
        f"actions of the space {space} are not supported: they can be Discrete, MultiDiscrete or MultiBinary of one "
        "dimension, and Box of floats. Wrap the environment in gymnasium.wrappers.TransformAction."
    )


def shape_and_dtype(description: Description) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and dtype of one observation after `flatten`."""
    if description["kind"] == "box":
        return tuple(description["shape"]), np.dtype(description["dtype"])
    return (_width(description),), np.dtype(np.float32)


def fits(array: np.ndarray, dtype: np.dtype[Any]) -> bool:
    """Whether values can be stored as that type without becoming others. Rounding of floats is allowed."""
    if array.dtype == dtype or np.can_cast(array.dtype, dtype, "same_kind"):
        return True
    with np.errstate(invalid="ignore"):
        return bool((array.astype(dtype) == array).all())


def is_flat(description: Description) -> bool:
    """Whether `flatten` gives back what it gets."""
    return bool(description["kind"] == "box")


def flatten(description: Description, observations: Any) -> np.ndarray:
    """Flatten a batch of observations, as vector environments give them: the first axis counts the environments."""
    kind = description["kind"]
    if kind == "box":
        return np.asarray(observations)
    if kind == "discrete":
        values = np.asarray(observations) - np.asarray(description["start"])
        columns = values.reshape(len(values), len(description["sizes"]))
        if columns.min() < 0:
            raise ValueError(f"a discrete value is below the first of its space: {np.asarray(observations).tolist()}")
        parts = [np.eye(size, dtype=np.float32)[columns[:, i]] for i, size in enumerate(description["sizes"])]
        return np.concatenate(parts, axis=1)
    parts = []
    for key, part in description["parts"].items():
        flat = flatten(part, observations[key if kind == "dict" else int(key)])
        parts.append(flat.reshape(len(flat), -1).astype(np.float32, copy=False))
    return np.concatenate(parts, axis=1)


def flatten_one(description: Description, observation: Any) -> np.ndarray:
    """Flatten one observation."""
    return flatten(description, _batch_of_one(description, observation))[0]


def is_batch(description: Description, observation: Any) -> bool:
    """Whether a value is a batch of observations and not a single one."""
    while "parts" in description:
        key, part = next(iter(description["parts"].items()))
        observation = observation[key if description["kind"] == "dict" else int(key)]
        description = part
    if description["kind"] == "discrete":
        scalar = not isinstance(description["start"], list)
        return np.ndim(observation) == (1 if scalar else 2)
    return np.ndim(observation) == len(description["shape"]) + 1


def form(description: Description) -> str:
    """What observations or actions of a space look like, in words.

    Two spaces fit each other if their forms are the same: a policy for one can act in the other. Bounds and the size of
    floats are no part of it.
    """
    if description["kind"] == "dict":
        return "{" + ", ".join(f"{key!r}: {form(part)}" for key, part in description["parts"].items()) + "}"
    if description["kind"] == "tuple":
        return "(" + ", ".join(form(part) for part in description["parts"].values()) + ")"
    if "sizes" in description:
        return f"choices of {description['sizes']} from {description['start']}"
    shape, dtype = shape_and_dtype(description)
    return f"{'images' if dtype == np.uint8 else 'arrays'} of shape {shape}"


def given(value: Any) -> str:
    """What a value is, in words, for an error."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {value.shape} of {value.dtype}"
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _width(description: Description) -> int:
    if description["kind"] == "box":
        return math.prod(description["shape"])
    if description["kind"] == "discrete":
        return int(sum(description["sizes"]))
    return sum(_width(part) for part in description["parts"].values())


def _batch_of_one(description: Description, observation: Any) -> Any:
    if description["kind"] == "dict":
        return {key: _batch_of_one(part, observation[key]) for key, part in description["parts"].items()}
    if description["kind"] == "tuple":
        return [_batch_of_one(part, observation[int(key)]) for key, part in description["parts"].items()]
    return np.asarray(observation)[None]
