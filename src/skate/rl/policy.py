"""Policies: what chooses actions. numpy only, so that simulating and serving need neither torch nor a cluster.

A policy is a value: a `Network` (its description), weights, and a normaliser of observations. `with_weights` makes the
next version. Weights have the names that `torch_policy.module` gives them, so they go from one to the other unchanged.

Acting has two halves. `outputs` runs the network. A *head* turns its outputs into actions: `categorical` for
Discrete and MultiDiscrete, `gaussian` for Box with one deviation for all observations, `squashed` for Box with tanh
and deviations that depend on the observation, `q` for Discrete by the largest value, with a share of random actions.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from skate.rl import files, spaces

#: A convolution: filters, size of the kernel, stride.
Conv = tuple[int, int, int]

SMALL_IMAGES: tuple[Conv, ...] = ((16, 3, 1), (32, 3, 2))
LARGE_IMAGES: tuple[Conv, ...] = ((16, 8, 4), (32, 4, 2))
LOG_STD_RANGE = (-20.0, 2.0)
FILE = "policy.safetensors"
#: Version of the format in which policies are saved.
FORMAT = 1


@dataclass(frozen=True)
class Network:
    """Description of a policy's network: all that must be known to run it with given weights."""

    observation: spaces.Description
    action: spaces.Description
    head: str
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    convolutions: tuple[Conv, ...] = ()

    @property
    def outputs(self) -> int:
        """How many numbers the head gets."""
        if self.head in ("categorical", "q"):
            return int(sum(self.action["sizes"]))
        size = math.prod(self.action["shape"])
        return 2 * size if self.head == "squashed" else size

    def channels_last(self) -> bool:
        """Whether the last axis of an image counts its channels, as in most environments; else the first does."""
        shape = self.observation["shape"]
        return len(shape) == 3 and shape[-1] <= shape[0]

    def image(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        shape = self.observation["shape"]
        if len(shape) == 2:
            return 1, shape[0], shape[1]
        return (shape[2], shape[0], shape[1]) if self.channels_last() else (shape[0], shape[1], shape[2])

    def layers(self) -> list[tuple[str, tuple[int, ...]]]:
        """Name and shape of the weights of every layer but the head, in order."""
        layers: list[tuple[str, tuple[int, ...]]] = []
        shape, _ = spaces.shape_and_dtype(self.observation)
        size = math.prod(shape)
        if self.convolutions:
            channels, height, width = self.image()
            for i, (filters, kernel, stride) in enumerate(self.convolutions):
                layers.append((f"conv.{i}", (filters, channels, kernel, kernel)))
                sides = (side + overhang(side, kernel, stride) for side in (height, width))
                height, width = (max(0, (side - kernel) // stride + 1) for side in sides)
                channels = filters
            size = channels * height * width
        for i, hidden in enumerate(self.hidden):
            layers.append((f"layers.{i}", (hidden, size)))
            size = hidden
        return layers

    @property
    def features(self) -> int:
        """How many numbers the last layer gives to the head."""
        layers = self.layers()
        return layers[-1][1][0] if layers else math.prod(spaces.shape_and_dtype(self.observation)[0])

    def check_env(self, observation_space: Any, action_space: Any, name: str) -> None:
        """Raise ValueError unless this network is for environments with the spaces of the one that is called `name`."""
        for what, own, other in (
            ("observations", self.observation, spaces.describe(observation_space)),
            ("actions", self.action, spaces.describe_action(action_space)),
        ):
            if (wanted := spaces.form(own)) != (found := spaces.form(other)):
                raise ValueError(
                    f"this policy is for other environments: its {what} are {wanted}, those of {name} are {found}."
                )


@dataclass(frozen=True)
class Normaliser:
    """Mean and variance of observations, updated from batches; policies see observations scaled with them."""

    mean: np.ndarray
    variance: np.ndarray
    count: float = 0.0
    clip: float = 10.0

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        scaled = (observations - self.mean) / np.sqrt(self.variance + 1e-8)
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32, copy=False)

    def updated(self, observations: np.ndarray) -> Normaliser:
        """Add a batch of observations (any leading axes) to the statistics."""
        rows = observations.reshape(-1, *self.mean.shape).astype(np.float64)
        if not len(rows):
            return self
        mean, variance, count = rows.mean(0), rows.var(0), len(rows)
        total = self.count + count
        delta = mean - self.mean
        squares = self.variance * self.count + variance * count + delta**2 * self.count * count / total
        new = (self.mean + delta * count / total).astype(np.float32), (squares / total).astype(np.float32)
        return replace(self, mean=new[0], variance=new[1], count=total)


@dataclass(frozen=True, eq=False, repr=False)
class Policy:
    """A network with its weights: acts on observations, can be saved, loaded and sent to other machines.

    >>> policy = Policy.load("runs/ppo-CartPole-v1-1")
    >>> action = policy.act(observation)               # the best action; with rng=, one drawn as in training
    """

    network: Network
    weights: dict[str, np.ndarray]
    normaliser: Normaliser | None = None
    version: int = 0
    #: Share of random actions of a `q` policy: one number, or one for each environment index.
    epsilon: np.ndarray | None = None

    def __repr__(self) -> str:
        """In a line, without the weights."""
        network = self.network
        what = f"{spaces.form(network.observation)} -> {spaces.form(network.action)}"
        return f"Policy({what}, hidden={network.hidden}, version={self.version})"

    @classmethod
    def create(
        cls,
        observation_space: Any,
        action_space: Any,
        *,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
        head: str | None = None,
        normalise: bool = False,
        convolutions: Sequence[Conv] | None = None,
        log_std: float = 0.0,
        seed: int = 0,
    ) -> Policy:
        """Make a policy for an environment, with orthogonal random weights that follow from the seed.

        Images (uint8 with two or three axes, at least 5 x 5) get convolutions, small ones for small images; everything
        else is a multi-layer perceptron.
        """
        observation = _described(observation_space, spaces.describe)
        action = _described(action_space, spaces.describe_action)
        shape, dtype = spaces.shape_and_dtype(observation)
        is_image = dtype == np.uint8 and len(shape) in (2, 3)
        if convolutions is None:
            side = min(sorted(shape)[-2:]) if is_image else 0
            convolutions = LARGE_IMAGES if side >= 36 else SMALL_IMAGES if side >= 5 else ()
        network = Network(
            observation,
            action,
            head or ("gaussian" if action["kind"] == "box" else "categorical"),
            tuple(hidden),
            activation,
            tuple((int(f), int(k), int(s)) for f, k, s in convolutions),
        )
        _check(network)
        scaled = normalise and not network.convolutions  # of an image all pixels are divided by 255
        normaliser = Normaliser(np.zeros(shape, np.float32), np.ones(shape, np.float32)) if scaled else None
        gain = 0.01 if network.head in ("categorical", "gaussian", "squashed") else 1.0
        weights = initial_weights(network, network.outputs, gain, np.random.default_rng(seed))
        if network.head == "gaussian":
            weights["log_std"] = np.full(network.outputs, log_std, np.float32)
        return cls(network, weights, normaliser)

    def act(self, observation: Any, rng: np.random.Generator | None = None) -> Any:
        """Choose the action for one observation, or the actions for a batch, in the environment's own form.

        Without `rng` it is the most likely action (or the mean); with it, one drawn from the policy's distribution.
        """
        batch, rows = self._rows(observation)
        outputs = self.outputs(rows)
        noise = None if rng is None else self.noise([rng] * len(rows), 1)[0]
        actions = self.to_env(self.choose(outputs, noise))
        if batch:
            return actions
        return actions[0].item() if self.network.action["kind"] == "discrete" else actions[0]

    def _rows(self, observation: Any) -> tuple[bool, np.ndarray]:
        """Whether this is a batch, and its rows as lanes have them: of the space's shape and, if integer, its type."""
        description = self.network.observation
        shape, dtype = spaces.shape_and_dtype(description)
        try:
            batch = spaces.is_batch(description, observation)
            flat = (spaces.flatten if batch else spaces.flatten_one)(description, observation)
            rows = flat if batch else flat[None]
            if rows.shape[1:] != shape:
                problem = f"an observation has the shape {rows.shape[1:]}"
            elif rows.dtype.kind not in "biuf":
                problem = f"an observation of {rows.dtype} has no numbers"
            elif rows.dtype == dtype or dtype.kind == "f":
                return batch, rows
            elif spaces.fits(rows, dtype):
                return batch, rows.astype(dtype)
            else:
                problem = f"an observation of {rows.dtype} has values that {dtype} has not"
        except (TypeError, ValueError, LookupError) as error:
            problem = f"this is no observation ({error})"
        given = spaces.given(observation)
        raise ValueError(
            f"{problem}: this policy acts on {spaces.form(description)} of {dtype}, and was given {given}."
        )

    def outputs(self, observations: np.ndarray) -> np.ndarray:
        """Run the network on a batch of flattened observations: [N, …] → [N, outputs]."""
        weights, network = self.weights, self.network
        x = self.inputs(observations)
        rectify = network.activation == "relu"
        for i, (_, _, stride) in enumerate(network.convolutions):
            x = _convolve(x, weights[f"conv.{i}.weight"], weights[f"conv.{i}.bias"], stride)
            np.maximum(x, 0.0, out=x)
        if x.ndim > 2:
            x = _flat(x)
        for i in range(len(network.hidden)):
            x = x @ weights[f"layers.{i}.weight"].T
            x += weights[f"layers.{i}.bias"]
            if rectify:
                np.maximum(x, 0.0, out=x)
            else:
                np.tanh(x, out=x)
        x = x @ weights["head.weight"].T
        x += weights["head.bias"]
        return x

    def inputs(self, observations: np.ndarray) -> np.ndarray:
        """Observations as the first layer gets them: normalised, as float32, images as channels, height, width."""
        if self.network.convolutions:
            x = observations.astype(np.float32)
            if observations.dtype == np.uint8:
                x /= 255.0
            if self.network.channels_last():
                x = x.transpose(0, 3, 1, 2)
            return x.reshape(len(x), *self.network.image())
        if self.normaliser is not None:
            observations = self.normaliser(observations)
        elif observations.dtype == np.uint8 and observations.ndim > 2:  # images, for a network without convolutions
            observations = observations / np.float32(255)
        return _flat(observations).astype(np.float32, copy=False)

    def noise(self, rngs: Sequence[np.random.Generator], steps: int) -> np.ndarray:
        """Draw the randomness of `steps` actions, one generator for each environment: [steps, N, …]."""
        size = self.network.outputs
        if self.network.head == "categorical":
            columns = [rng.gumbel(size=(steps, size)) for rng in rngs]
        elif self.network.head == "q":
            columns = [rng.random((steps, 2)) for rng in rngs]
        else:
            columns = [rng.standard_normal((steps, math.prod(self.network.action["shape"]))) for rng in rngs]
        return np.stack(columns, axis=1).astype(np.float32)

    def choose(self, outputs: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
        """Turn the network's outputs into actions: with noise drawn, without it the most likely ones."""
        network = self.network
        if network.head == "categorical":
            scores = outputs if noise is None else outputs + noise
            if network.action["kind"] == "discrete":
                chosen: np.ndarray = scores.argmax(-1)
                return chosen
            return np.stack([part.argmax(-1) for part in _split(scores, network.action["sizes"])], axis=-1)
        if network.head == "q":
            best = outputs.argmax(-1)
            if noise is None or self.epsilon is None:
                return np.asarray(best)
            count = outputs.shape[-1]
            anything = np.minimum((noise[..., 1] * count).astype(np.int64), count - 1)  # float32 rounds up to 1
            return np.where(noise[..., 0] < self.epsilon, anything, best)
        if network.head == "gaussian":
            mean = outputs if noise is None else outputs + np.exp(self.weights["log_std"]) * noise
            return mean.reshape(len(mean), *network.action["shape"])
        mean, log_std = np.split(outputs, 2, axis=-1)
        if noise is not None:
            mean = mean + np.exp(np.clip(log_std, *LOG_STD_RANGE)) * noise
        return np.tanh(mean).reshape(len(mean), *network.action["shape"])

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Log-probability of actions, given the network's outputs for their observations; any leading axes."""
        network = self.network
        if network.head == "q":
            return np.zeros(outputs.shape[:-1], np.float32)
        if network.head == "categorical":
            parts = _split(outputs, network.action["sizes"])
            chosen = actions[..., None] if network.action["kind"] == "discrete" else actions
            total = np.zeros(outputs.shape[:-1], np.float32)
            for i, logits in enumerate(parts):
                picked = np.take_along_axis(logits, chosen[..., i : i + 1], axis=-1)[..., 0]
                highest = logits.max(-1)
                total += picked - highest - np.log(np.exp(logits - highest[..., None]).sum(-1))
            return total
        actions = actions.reshape(*outputs.shape[:-1], -1)
        correction = np.zeros(outputs.shape[:-1], np.float32)
        if network.head == "squashed":
            mean, log_std = np.split(outputs, 2, axis=-1)
            log_std = np.clip(log_std, *LOG_STD_RANGE)
            squashed = np.clip(actions, -1 + 1e-6, 1 - 1e-6)
            actions = np.arctanh(squashed)
            # log(1 - tanh²) in a form that does not lose everything where tanh is close to ±1.
            correction = 2 * (math.log(2) - actions - np.logaddexp(0, -2 * actions)).sum(-1)
        else:
            mean, log_std = outputs, self.weights["log_std"]
        z = (actions - mean) / np.exp(log_std)
        density = -0.5 * z**2 - log_std - 0.5 * math.log(2 * math.pi)
        total = density.sum(-1) - correction
        return np.asarray(total, np.float32)

    def to_env(self, actions: np.ndarray) -> np.ndarray:
        """Actions in the form that the environment takes: within the bounds of a box, counted from its start."""
        action = self.network.action
        if action["kind"] != "box":
            start = action["start"]
            shifted = any(start) if isinstance(start, list) else start
            return actions + np.asarray(start) if shifted else actions
        low = np.array(action["low"], action["dtype"]).reshape(action["shape"])
        high = np.array(action["high"], action["dtype"]).reshape(action["shape"])
        if self.network.head == "squashed":
            actions = low + (actions + 1.0) * 0.5 * (high - low)
        return np.clip(actions, low, high).astype(action["dtype"], copy=False)

    def with_weights(self, weights: dict[str, np.ndarray], normaliser: Normaliser | None = None) -> Policy:
        """Make the next version of this policy, with other weights: float32 arrays of the same names and shapes."""
        _check_arrays("the new weights", {name: array.shape for name, array in self.weights.items()}, weights)
        return replace(self, weights=weights, normaliser=normaliser or self.normaliser, version=self.version + 1)

    def for_envs(self, indices: slice) -> Policy:
        """Make the policy that acts for some of the environments, which may explore at rates of their own."""
        if self.epsilon is None or self.epsilon.size == 1:
            return self
        return replace(self, epsilon=self.epsilon[indices])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the policy to a file, or to `policy.safetensors` in a folder. A reader never finds half of one."""
        file = _file(path)
        tensors = {f"weights.{name}": array for name, array in self.weights.items()}
        about: dict[str, Any] = {"network": asdict(self.network), "version": self.version, "format": FORMAT}
        if self.normaliser is not None:
            tensors |= {"normaliser.mean": self.normaliser.mean, "normaliser.variance": self.normaliser.variance}
            about["normaliser"] = {"count": self.normaliser.count, "clip": self.normaliser.clip}
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write_tensors(file, tensors, {"policy": about})
        return file

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy from its file, or from the folder of a run."""
        file = _file(path)
        if not file.is_file():
            raise FileNotFoundError(
                f"no policy at {file}. A run writes its policy with its first checkpoint; Policy.save writes one too."
            )
        tensors, texts = files.read_tensors(file)
        about = texts.get("policy")
        if not isinstance(about, dict) or "network" not in about:
            raise ValueError(f"{file} has tensors but no description of a policy: it was not written by Policy.save.")
        if about["format"] != FORMAT:
            raise ValueError(
                f"{file} has the format {about['format']}, and this version of Skate reads {FORMAT}.\n"
                "  next: use the version of Skate that wrote it."
            )
        described = about["network"]
        described["hidden"] = tuple(described["hidden"])
        described["convolutions"] = tuple(tuple(conv) for conv in described["convolutions"])
        network = Network(**described)
        parts = {kind: files.part(tensors, kind) for kind in ("weights", "normaliser")}
        weights, normaliser = parts["weights"], None
        if "normaliser" in about:
            shape, _ = spaces.shape_and_dtype(network.observation)
            statistics = {"mean": shape, "variance": shape}
            _check_arrays(f"the statistics of observations in {file}", statistics, parts["normaliser"])
            mean, variance = (parts["normaliser"][name] for name in statistics)
            normaliser = Normaliser(mean, variance, **about["normaliser"])
        return cls(network, _in_order(network, weights, file), normaliser, about["version"])


def initial_weights(network: Network, outputs: int, gain: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Draw orthogonal weights for a network's layers and a head of `outputs` numbers; biases are zero."""
    weights: dict[str, np.ndarray] = {}
    layers = [*network.layers(), ("head", (outputs, network.features))]
    for name, shape in layers:
        rectified = network.activation == "relu" or name.startswith("conv")
        scale = gain if name == "head" else math.sqrt(2.0) if rectified or network.activation == "tanh" else 1.0
        weights[f"{name}.weight"] = _orthogonal(shape, scale, rng)
        weights[f"{name}.bias"] = np.zeros(shape[0], np.float32)
    return weights


def _orthogonal(shape: tuple[int, ...], gain: float, rng: np.random.Generator) -> np.ndarray:
    rows, columns = shape[0], math.prod(shape[1:])
    drawn = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(drawn)
    q *= np.sign(np.diag(r))
    return np.ascontiguousarray(gain * (q if rows >= columns else q.T), np.float32).reshape(shape)


def overhang(side: int, kernel: int, stride: int) -> int:
    """How many rows of zeros follow an image, so that the windows of a convolution reach its last row.

    Without them up to `stride - 1` rows and columns at the edges would not be seen: all of the bottom row of a 10 x 10
    image, after two of the convolutions here.
    """
    return (kernel - side) % stride if side >= kernel else 0


def _convolve(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray, stride: int) -> np.ndarray:
    size = kernel.shape[2]
    down, right = (overhang(side, size, stride) for side in x.shape[2:])
    if down or right:
        x = np.pad(x, ((0, 0), (0, 0), (0, down), (0, right)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))[:, :, ::stride, ::stride]
    n, _, height, width = windows.shape[:4]
    columns = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n * height * width, kernel[0].size)
    out = columns @ kernel.reshape(len(kernel), -1).T
    out += bias
    return out.reshape(n, height, width, len(kernel)).transpose(0, 3, 1, 2)


def _flat(array: np.ndarray) -> np.ndarray:
    """One vector for each row, also where there are no rows."""
    return array.reshape(len(array), math.prod(array.shape[1:]))


def _split(values: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    return [values] if len(sizes) == 1 else np.split(values, np.cumsum(sizes)[:-1], axis=-1)


def _in_order(network: Network, weights: dict[str, np.ndarray], file: Path) -> dict[str, np.ndarray]:
    """The weights in the order of the layers, which a file does not keep, after a look at their shapes and dtypes."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in [*network.layers(), ("head", (network.outputs, network.features))]:
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    if network.head == "gaussian":
        shapes["log_std"] = (network.outputs,)
    _check_arrays(f"the weights in {file}", shapes, weights)
    return {name: weights[name] for name in shapes}


def _check_arrays(what: str, shapes: dict[str, tuple[int, ...]], arrays: dict[str, np.ndarray]) -> None:
    """Raise ValueError unless these are float32 arrays of these names and shapes."""
    if arrays.keys() != shapes.keys():
        odd = ", ".join(sorted(arrays.keys() ^ shapes.keys()))
        raise ValueError(f"{what} are not those that the policy's description asks for: {odd}.")
    for name, shape in shapes.items():
        array = arrays[name]
        if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != np.float32:
            raise ValueError(
                f"{what} are not those that the policy's description asks for: {name} is {spaces.given(array)}, and it "
                f"must be an array of shape {shape} of float32."
            )


def _described(space: Any, describe: Any) -> spaces.Description:
    described: spaces.Description = space if isinstance(space, dict) and "kind" in space else describe(space)
    return described


def _check(network: Network) -> None:
    kind = network.action["kind"]
    heads = {"categorical": ("discrete", "multi"), "q": ("discrete",), "gaussian": ("box",), "squashed": ("box",)}
    if network.head not in heads:
        raise ValueError(f"head={network.head!r} is not one of {', '.join(heads)}.")
    if kind not in heads[network.head]:
        wanted = {"q": "a Discrete action space", "categorical": "a Discrete or MultiDiscrete action space"}
        learners = {"discrete": "ppo, impala, dqn", "multi": "ppo, impala", "box": "ppo, impala, sac"}
        raise ValueError(
            f"a policy with the head {network.head!r} needs {wanted.get(network.head, 'a Box action space')}, "
            f"and the actions of this environment are of the kind {kind!r}.\n"
            f"  next: {learners[kind]} and es learn such actions."
        )
    if network.convolutions and min(min(shape) for _, shape in network.layers()) < 1:
        shape = network.observation["shape"]
        raise ValueError(f"images of shape {shape} are too small for the convolutions {network.convolutions}.")
    if network.activation not in ("tanh", "relu"):
        raise ValueError(f"activation={network.activation!r} is neither 'tanh' nor 'relu'.")
    if network.head == "squashed" and not np.isfinite([network.action["low"], network.action["high"]]).all():
        raise ValueError("a policy with the head 'squashed' needs an action space with finite bounds.")


def _file(path: str | os.PathLike[str]) -> Path:
    place = Path(path)
    return place if place.suffix == ".safetensors" else place / FILE
