"""Policies: numpy and torch compute the same, and what was saved acts the same in a process without torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from skate.rl import torch_policy
from skate.rl.policy import FILE, Normaliser, Policy
from skate.rl.simulate import Score

VECTOR = spaces.Box(-5, 5, (4,), np.float32)
IMAGES = {
    "channels last": spaces.Box(0, 255, (10, 12, 3), np.uint8),
    "channels first": spaces.Box(0, 255, (4, 40, 36), np.uint8),
    "without channels": spaces.Box(0, 255, (9, 9), np.uint8),
}
HEADS: dict[str, tuple[Any, str | None]] = {
    "discrete": (spaces.Discrete(3, start=5), None),
    "multi": (spaces.MultiDiscrete([3, 2, 4]), None),
    "binary": (spaces.MultiBinary(3), None),
    "gaussian": (spaces.Box(-1, 2, (2,), np.float32), None),
    "gaussian of two axes": (spaces.Box(-1, 2, (2, 2), np.float32), None),
    "squashed": (spaces.Box(-1, 2, (2,), np.float32), "squashed"),
    "q": (spaces.Discrete(4), "q"),
}


def made(head: str, observation: Any = VECTOR, **arguments: Any) -> Policy:
    """A policy whose outputs are far from zero, so that errors in them are seen."""
    space, name = HEADS[head]
    policy = Policy.create(observation, space, head=name, hidden=(16, 8), seed=3, log_std=-0.3, **arguments)
    rng = np.random.default_rng(1)
    louder = {
        name: (3 * array + 0.3 * rng.standard_normal(array.shape)).astype(np.float32)
        for name, array in policy.weights.items()
    }
    return policy.with_weights(louder)


def seen(space: Any = VECTOR, count: int = 7) -> np.ndarray:
    space.seed(2)
    return np.stack([space.sample() for _ in range(count)])


def torch_outputs(policy: Policy, observations: np.ndarray) -> np.ndarray:
    return np.asarray(torch_policy.module(policy)(torch_policy.tensor(policy.inputs(observations))).detach())


# --- The network ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("normalise", [False, True])
def test_numpy_and_torch_give_the_same_outputs(head: str, activation: str, normalise: bool) -> None:
    policy = made(head, activation=activation, normalise=normalise)
    observations = seen()
    if normalise:
        assert policy.normaliser is not None
        policy = policy.with_weights(policy.weights, policy.normaliser.updated(observations * 3 + 1))
    outputs = policy.outputs(observations)
    assert outputs.shape == (7, policy.network.outputs)
    assert outputs.dtype == np.float32
    assert np.abs(outputs).max() > 0.5
    np.testing.assert_allclose(outputs, torch_outputs(policy, observations), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", IMAGES)
def test_convolutions_are_the_same_in_both(kind: str) -> None:
    policy = made("discrete", IMAGES[kind], activation="relu")
    assert policy.network.convolutions
    images = seen(IMAGES[kind])
    outputs = policy.outputs(images)
    np.testing.assert_allclose(outputs, torch_outputs(policy, images), rtol=1e-3, atol=1e-3)
    assert np.ptp(outputs, axis=0).min() > 1e-3, "outputs must depend on the images"
    with torch.no_grad():
        critic = torch_policy.critic(policy.network, 5)
        assert critic(torch_policy.tensor(policy.inputs(images))).shape == (7, 1)


@pytest.mark.parametrize("side", [7, 8, 9, 10, 11, 37, 64])
def test_every_pixel_of_an_image_is_seen(side: int) -> None:
    space = spaces.Box(0, 255, (side, side, 1), np.uint8)
    policy = made("discrete", space, activation="relu")
    images = np.repeat(np.full((1, side, side, 1), 100, np.uint8), 2 * side + 1, axis=0)
    for i in range(side):
        images[i, i, -1], images[side + i, -1, i] = 255, 255  # in the last column, in the last row
    outputs = policy.outputs(images)
    np.testing.assert_allclose(outputs, torch_outputs(policy, images), rtol=1e-3, atol=1e-4)
    assert np.abs(outputs[:-1] - outputs[-1]).max(axis=1).min() > 0


@pytest.mark.parametrize("space", [VECTOR, *IMAGES.values()])
def test_no_observations_give_no_outputs(space: Any) -> None:
    policy = made("discrete", space, normalise=True)
    nothing = seen(space)[:0]
    assert policy.outputs(nothing).shape == torch_outputs(policy, nothing).shape == (0, 3)


def test_a_policy_without_hidden_layers_is_linear() -> None:
    policy = Policy.create(VECTOR, spaces.Discrete(2), hidden=(), seed=1)
    observations = seen()
    expected = observations @ policy.weights["head.weight"].T
    np.testing.assert_allclose(policy.outputs(observations), expected, rtol=1e-5)
    np.testing.assert_allclose(torch_outputs(policy, observations), expected, rtol=1e-5)


def test_weights_go_to_torch_and_back_bit_for_bit() -> None:
    policy = made("gaussian")
    back = torch_policy.weights(torch_policy.module(policy))
    assert back.keys() == policy.weights.keys()
    for name, array in back.items():
        np.testing.assert_array_equal(array, policy.weights[name])
        assert not np.shares_memory(array, policy.weights[name])


def test_weights_follow_from_the_seed_and_layers_are_orthogonal() -> None:
    one, same, other = (Policy.create(VECTOR, spaces.Discrete(2), seed=seed) for seed in (1, 1, 2))
    for name, array in one.weights.items():
        np.testing.assert_array_equal(array, same.weights[name])
    assert not np.array_equal(one.weights["layers.0.weight"], other.weights["layers.0.weight"])
    square = one.weights["layers.1.weight"]
    np.testing.assert_allclose(square @ square.T, 2 * np.eye(64), atol=1e-5)
    assert np.abs(one.weights["head.weight"]).max() < 0.01


# --- Distributions ----------------------------------------------------------------------------------------------------


def of_torch(policy: Policy, outputs: np.ndarray) -> Any:
    """The distribution of torch that a head stands for."""
    tensor = torch.from_numpy(outputs)
    if policy.network.head == "categorical":
        return [
            torch.distributions.Categorical(logits=part) for part in tensor.split(policy.network.action["sizes"], -1)
        ]
    if policy.network.head == "gaussian":
        deviation = torch.from_numpy(policy.weights["log_std"]).exp()
        return torch.distributions.Independent(torch.distributions.Normal(tensor, deviation), 1)
    mean, log_std = tensor.chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.exp())
    squash = torch.distributions.transforms.TanhTransform(cache_size=1)
    return torch.distributions.Independent(torch.distributions.TransformedDistribution(normal, squash), 1)


@pytest.mark.parametrize("head", [head for head in HEADS if head != "q"])
def test_log_probabilities_and_entropy_are_those_of_torch(head: str) -> None:
    policy = made(head)
    outputs = policy.outputs(seen(count=50))
    if head == "squashed":
        outputs[:, 2:] = np.clip(outputs[:, 2:], -2, 0)
        outputs[:, :2] = np.clip(outputs[:, :2], -1, 1)
    noise = policy.noise([np.random.default_rng(n) for n in range(50)], 1)[0]
    actions = policy.choose(outputs, noise)
    found = policy.log_probs(outputs, actions)
    theirs = of_torch(policy, outputs)
    drawn = torch.from_numpy(actions)
    if isinstance(theirs, list):
        columns = drawn.reshape(50, -1).unbind(-1)
        expected = torch.stack([part.log_prob(column) for part, column in zip(theirs, columns, strict=True)]).sum(0)
        entropy = torch.stack([part.entropy() for part in theirs]).sum(0)
    else:
        expected = theirs.log_prob(drawn.reshape(50, -1))
        entropy = None if head == "squashed" else theirs.entropy()
    assert found.shape == (50,)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-3 if head == "squashed" else 1e-4)
    # Blocks have a leading axis of time.
    twice = policy.log_probs(np.stack([outputs, outputs]), np.stack([actions, actions]))
    np.testing.assert_allclose(twice, [found, found], rtol=1e-5, atol=1e-6)
    if head == "squashed":
        return
    log_std = torch.from_numpy(policy.weights["log_std"]) if "log_std" in policy.weights else None
    ours = torch_policy.Distribution(policy.network, torch.from_numpy(outputs), log_std)
    np.testing.assert_allclose(ours.log_prob(drawn), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(ours.entropy(), entropy, rtol=1e-4, atol=1e-5)


def test_squashed_samples_of_torch_have_the_log_probabilities_of_numpy() -> None:
    policy = made("squashed")
    outputs = np.random.default_rng(0).uniform(-1, 1, (50, 4)).astype(np.float32)
    noise = np.random.default_rng(1).uniform(-1, 1, (50, 2)).astype(np.float32)
    actions, log_probs = torch_policy.squashed_sample(torch.from_numpy(outputs), torch.from_numpy(noise))
    np.testing.assert_allclose(actions, policy.choose(outputs, noise), atol=1e-6)
    np.testing.assert_allclose(log_probs, of_torch(policy, outputs).log_prob(actions), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(log_probs, policy.log_probs(outputs, actions.numpy()), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("head", ["discrete", "multi", "gaussian"])
def test_actions_are_drawn_as_often_as_their_probability_says(head: str) -> None:
    policy = made(head)
    outputs = np.repeat(policy.outputs(seen(count=1)), 20_000, axis=0)
    actions = policy.choose(outputs, policy.noise([np.random.default_rng(0)], 20_000)[:, 0])
    theirs = of_torch(policy, outputs[:1])
    if isinstance(theirs, list):
        for part, column in zip(theirs, actions.reshape(20_000, -1).T, strict=True):
            shares = np.bincount(column, minlength=part.probs.shape[-1]) / 20_000
            np.testing.assert_allclose(shares, part.probs[0], atol=0.02)
    else:
        np.testing.assert_allclose(actions.mean(0), theirs.mean[0], atol=0.03)
        np.testing.assert_allclose(actions.std(0), theirs.stddev[0], atol=0.03)


def test_a_q_policy_explores_at_the_rate_of_each_environment() -> None:
    policy = replace(made("q"), epsilon=np.array([0.0, 0.5, 1.0, 0.2], np.float32))
    outputs = policy.outputs(np.repeat(seen(count=1), 2, axis=0))
    best = int(outputs[0].argmax())
    noise = policy.noise([np.random.default_rng(n) for n in range(2)], 10_000)
    for indices, shares in ((slice(0, 2), (0.0, 0.5)), (slice(2, 4), (1.0, 0.2))):
        mine = policy.for_envs(indices)
        drawn = np.stack([mine.choose(outputs, row) for row in noise])
        others = (drawn != best).mean(0)
        np.testing.assert_allclose(others, np.array(shares) * 3 / 4, atol=0.02)
        assert set(np.unique(drawn[:, 1])) == {0, 1, 2, 3}


# --- Acting -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", HEADS)
def test_one_observation_and_a_batch_get_the_same_actions_in_the_form_of_the_space(head: str) -> None:
    policy, space = made(head), HEADS[head][0]
    observations = seen()
    together = policy.act(observations)
    for one, action in zip(observations, together, strict=True):
        alone = policy.act(one)
        assert space.contains(alone), alone
        np.testing.assert_allclose(alone, action, rtol=1e-4, atol=1e-5)
        assert space.contains(policy.act(one, np.random.default_rng(0)))
    if isinstance(space, spaces.Discrete):
        assert type(policy.act(observations[0])) is int
        most_likely = policy.outputs(observations).argmax(-1) + space.start
        np.testing.assert_array_equal(together, most_likely)


def test_drawn_actions_follow_from_the_generator() -> None:
    policy, one = made("gaussian"), seen()[0]
    first, same, other = (policy.act(one, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([2, 3]),
        spaces.MultiBinary(4),
        spaces.Dict(where=spaces.Discrete(3), how=spaces.Box(-1, 1, (2,), np.float32)),
        spaces.Tuple([spaces.MultiDiscrete([2, 2]), spaces.Box(0, 1, (1,), np.float64)]),
    ],
    ids=lambda space: type(space).__name__,
)
def test_a_policy_takes_observations_as_the_environment_gives_them(space: Any) -> None:
    from gymnasium.vector.utils import batch_space

    policy = Policy.create(space, spaces.Discrete(3), seed=1)
    assert policy.act(space.sample()) in range(3)
    assert policy.act(batch_space(space, 4).sample()).shape == (4,)


def test_actions_outside_of_a_box_are_brought_to_its_bounds() -> None:
    policy = made("gaussian")
    assert policy.to_env(np.array([[-9.0, 9.0]], np.float32)).tolist() == [[-1, 2]]
    squashed = made("squashed")
    assert squashed.to_env(np.array([[-1.0, 0.0]], np.float32)).tolist() == [[-1, 0.5]]


# --- The normaliser ---------------------------------------------------------------------------------------------------


def test_the_normaliser_has_the_mean_and_variance_of_all_data() -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal([100, 0, -3], [1, 1e-3, 50], (size, 5, 3)) for size in (1, 40, 3, 2000, 7)]
    normaliser = Normaliser(np.zeros(3, np.float32), np.ones(3, np.float32))
    for batch in batches:
        normaliser = normaliser.updated(batch)
    data = np.concatenate(batches).reshape(-1, 3)
    np.testing.assert_allclose(normaliser.mean, data.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(normaliser.variance, data.var(0), rtol=1e-4)
    assert normaliser.count == len(data)
    scaled = normaliser(data[:1000])
    assert scaled.dtype == np.float32
    np.testing.assert_allclose(scaled, (data[:1000] - data.mean(0)) / data.std(0), rtol=1e-2, atol=1e-2)


def test_normalised_observations_are_clipped_and_those_before_are_unchanged() -> None:
    normaliser = Normaliser(np.zeros(1, np.float32), np.ones(1, np.float32))
    later = normaliser.updated(np.full((10, 1), 3.0))
    assert (normaliser.mean, normaliser.count) == (0, 0)
    assert later(np.array([[1e9], [-1e9]])).tolist() == [[10], [-10]]


# --- Files ------------------------------------------------------------------------------------------------------------

CASES = [*((head, VECTOR) for head in HEADS), ("discrete", IMAGES["channels last"])]

LOADS = """
import json, sys
import numpy as np
from skate.rl import Policy

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "gymnasium", "pickle5"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
for folder in sys.argv[1:]:
    policy = Policy.load(folder)
    seen = np.load(folder + "/seen.npy")
    np.save(folder + "/outputs.npy", policy.outputs(seen))
    np.save(folder + "/actions.npy", np.asarray(policy.act(seen)))
    np.save(folder + "/one.npy", np.asarray(policy.act(seen[0])))
import skate
assert not skate.is_initialized()
print(json.dumps([name for name in ("torch", "gymnasium") if name in sys.modules]))
"""


def test_a_saved_policy_acts_the_same_in_a_process_with_neither_torch_nor_gymnasium(tmp_path: Path) -> None:
    policies = []
    for number, (head, space) in enumerate(CASES):
        policy = made(head, space, normalise=True)
        observations = seen(space, 16)
        if policy.normaliser is not None:
            policy = policy.with_weights(policy.weights, policy.normaliser.updated(observations * 0.7))
        folder = tmp_path / str(number)
        assert policy.save(folder) == folder / FILE
        np.save(folder / "seen.npy", observations)
        policies.append((folder, policy, observations))
    folders = [str(folder) for folder, _, _ in policies]
    done = subprocess.run([sys.executable, "-c", LOADS, *folders], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
    for folder, policy, observations in policies:
        np.testing.assert_array_equal(np.load(folder / "outputs.npy"), policy.outputs(observations))
        np.testing.assert_array_equal(np.load(folder / "actions.npy"), policy.act(observations))
        np.testing.assert_array_equal(np.load(folder / "one.npy"), policy.act(observations[0]))


def test_images_of_another_type_mean_the_same_and_other_observations_are_refused() -> None:
    space = IMAGES["channels last"]
    policy = made("discrete", space)
    images = seen(space, 3)
    expected = policy.act(images).tolist()
    assert policy.act(images.astype(np.float64)).tolist() == policy.act(images.tolist()).tolist() == expected
    assert policy.act(images[0].tolist()) == expected[0]
    with pytest.raises(ValueError, match=r"of float64 has values that uint8 has not: this policy acts on images of"):
        policy.act(images / 255)
    for wrong in (images[:, 1:], np.moveaxis(images, -1, 1)):
        with pytest.raises(ValueError, match=r"an observation has the shape .*: this policy acts on images of shape"):
            policy.act(wrong)


def test_a_file_without_all_weights_is_refused(tmp_path: Path) -> None:
    policy = made(*CASES[0])
    for weights in (
        {name: array for name, array in policy.weights.items() if name != "head.bias"},
        {**policy.weights, "head.bias": np.zeros(17, np.float32)},
        {**policy.weights, "head.bias": policy.weights["head.bias"].astype(np.float64)},
        {**policy.weights, "head.bias": policy.weights["head.bias"].astype(np.int32)},
    ):
        with pytest.raises(ValueError, match=r"^the new weights are not those .*: head.bias(\.| is .*float32\.)$"):
            policy.with_weights(weights)
        file = replace(policy, weights=weights).save(tmp_path / "odd.safetensors")
        with pytest.raises(ValueError, match=r"odd.safetensors are not those .*: head.bias(\.| is .*float32\.)$"):
            Policy.load(file)


def test_a_weight_that_is_no_array_is_named() -> None:
    policy = made(*CASES[0])
    with pytest.raises(ValueError, match=r"head.bias is a list, and it must be an array of shape \(.*\) of float32\.$"):
        policy.with_weights({**policy.weights, "head.bias": [0.0]})  # type: ignore[dict-item]


def test_statistics_of_another_type_are_refused(tmp_path: Path) -> None:
    policy = Policy.create(VECTOR, spaces.Discrete(2), normalise=True)
    assert policy.normaliser is not None
    odd = replace(policy.normaliser, variance=policy.normaliser.variance.astype(np.float64))
    file = replace(policy, normaliser=odd).save(tmp_path / "odd.safetensors")
    with pytest.raises(ValueError, match=r"variance is an array of shape \(4,\) of float64, and it must be .* float32"):
        Policy.load(file)


PARTS = spaces.Dict({"place": spaces.Discrete(3), "speed": spaces.Box(-1, 1, (2,), np.float32)})


def test_a_policy_fits_environments_whose_spaces_have_the_same_form() -> None:
    """Bounds and the size of floats may differ: `Simulators` and `skate rl play` ask this one question."""
    network = Policy.create(PARTS, spaces.Box(-1, 1, (2,), np.float32)).network
    wider = spaces.Dict({"place": spaces.Discrete(3), "speed": spaces.Box(-9, 9, (2,), np.float64)})
    network.check_env(wider, spaces.Box(-2, 2, (2,), np.float32), "Wider-v0")
    renamed = spaces.Dict({"place": spaces.Discrete(3), "velocity": spaces.Box(-1, 1, (2,), np.float32)})
    with pytest.raises(ValueError, match=r"its observations are \{.*'speed'.*\}, those of Other-v0 are \{.*'velocity'"):
        network.check_env(renamed, spaces.Box(-1, 1, (2,), np.float32), "Other-v0")
    with pytest.raises(
        ValueError, match=r"its actions are arrays of shape \(2,\), those of Other-v0 are choices of \[2\]"
    ):
        network.check_env(PARTS, spaces.Discrete(2), "Other-v0")


@pytest.mark.parametrize(
    ("space", "observation", "text"),
    [
        (VECTOR, "x", r"arrays of shape \(4,\) of float32, and was given a str\."),
        (VECTOR, None, r"arrays of shape \(4,\) of float32, and was given None\."),
        (VECTOR, ["a", "b", "c", "d"], r"arrays of shape \(4,\) of float32, and was given a list\."),
        (VECTOR, [1, [2], 3, 4], r"arrays of shape \(4,\) of float32, and was given a list\."),
        (VECTOR, {"a": 1}, r"arrays of shape \(4,\) of float32, and was given a dict\."),
        (VECTOR, np.zeros(4, complex), r"and was given an array of shape \(4,\) of complex128\."),
        (spaces.Discrete(3), "x", r"choices of \[3\] from 0 of float32, and was given a str\."),
        (spaces.Discrete(3), 7, r"choices of \[3\] from 0 of float32, and was given an int\."),
        (
            PARTS,
            np.zeros(5),
            r"\{'place': choices .*, 'speed': arrays .*\} of float32, and was given an array of shape",
        ),
        (PARTS, {"place": 1}, r"\{'place': choices .*, 'speed': arrays .*\} of float32, and was given a dict\."),
    ],
)
def test_what_is_no_observation_is_named(space: Any, observation: Any, text: str) -> None:
    policy = Policy.create(space, spaces.Discrete(2))
    with pytest.raises(ValueError, match=f"this policy acts on .*{text}"):
        policy.act(observation)


def test_a_file_of_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skate.rl.policy.FORMAT", 2)
    file = made(*CASES[0]).save(tmp_path / "later.safetensors")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="has the format 2, and this version of Skate reads 1"):
        Policy.load(file)


def test_images_that_are_too_small_for_convolutions_have_none() -> None:
    for side in (1, 3, 4, 5, 8):
        policy = Policy.create(spaces.Box(0, 255, (side, side, 3), np.uint8), spaces.Discrete(2))
        assert bool(policy.network.convolutions) == (side >= 5)
        assert policy.act(np.zeros((side, side, 3), np.uint8)) in (0, 1)


def test_a_policy_and_a_score_are_a_line_each_and_can_be_compared() -> None:
    policy, other = (Policy.create(spaces.Box(-1, 1, (3,)), spaces.Discrete(2)) for _ in range(2))
    assert repr(policy) == "Policy(arrays of shape (3,) -> choices of [2] from 0, hidden=(64, 64), version=0)"
    assert policy in [other, policy], "arrays have no truth value, so policies are compared as objects"
    assert len({policy, other}) == 2
    score = Score(0.5, 0.5, np.arange(2.0), np.ones(2, np.int64))
    assert repr(score) == "<Score 0.5 ± 0.5 over 2 episodes>"
    assert score != Score(0.5, 0.5, np.arange(2.0), np.ones(2, np.int64))


@pytest.mark.parametrize(("head", "space"), CASES)
def test_what_is_loaded_is_what_was_saved(head: str, space: Any, tmp_path: Path) -> None:
    policy = made(head, space, normalise=True)
    assert (policy.normaliser is None) == bool(policy.network.convolutions), "all but images are scaled"
    policy = policy.with_weights(policy.weights, policy.normaliser and policy.normaliser.updated(seen(space)))
    loaded = Policy.load(policy.save(tmp_path / "mine.safetensors"))
    assert loaded.network == policy.network
    assert loaded.version == policy.version == 2
    assert list(loaded.weights) == list(policy.weights), "in the same order, too"
    for name, array in policy.weights.items():
        np.testing.assert_array_equal(loaded.weights[name], array)
    if policy.normaliser is None:
        assert loaded.normaliser is None
        return
    assert loaded.normaliser is not None
    np.testing.assert_array_equal(loaded.normaliser.mean, policy.normaliser.mean)
    np.testing.assert_array_equal(loaded.normaliser.variance, policy.normaliser.variance)
    assert (loaded.normaliser.count, loaded.normaliser.clip) == (policy.normaliser.count, policy.normaliser.clip)


def test_a_policy_for_a_box_without_bounds_can_be_saved(tmp_path: Path) -> None:
    policy = Policy.create(VECTOR, spaces.Box(-np.inf, np.inf, (2,), np.float32))
    loaded = Policy.load(policy.save(tmp_path))
    assert loaded.network == policy.network
    np.testing.assert_array_equal(loaded.act(seen()), policy.act(seen()))


def test_the_file_is_tensors_and_json_and_is_written_in_one_step(tmp_path: Path) -> None:
    policy = made("discrete")
    policy.save(tmp_path)
    policy.save(tmp_path)
    assert os.listdir(tmp_path) == [FILE]
    from safetensors import safe_open

    with safe_open(tmp_path / FILE, framework="numpy") as opened:
        assert json.loads(opened.metadata()["policy"])["network"]["head"] == "categorical"
        assert "weights.head.weight" in opened.keys()  # noqa: SIM118 - it is no dictionary


def test_what_is_no_policy_says_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no policy at .*policy\.safetensors"):
        Policy.load(tmp_path)
    from safetensors.numpy import save_file

    save_file({"x": np.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"not written by Policy\.save"):
        Policy.load(tmp_path / "other.safetensors")
    for data in (b"", b"PK\x03\x04 is a zip file, as those of torch are", b"\xff" * 100):
        (tmp_path / FILE).write_bytes(data)
        with pytest.raises(ValueError, match=r"policy\.safetensors is not a file of safetensors, or not all of one"):
            Policy.load(tmp_path)
    whole = made("discrete").save(tmp_path).read_bytes()
    (tmp_path / FILE).write_bytes(whole[:-10])
    with pytest.raises(ValueError, match=r"policy\.safetensors is not a file of safetensors, or not all of one"):
        Policy.load(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"action_space": spaces.Box(-1, 1, (1,)), "head": "q"}, "needs a Discrete action space"),
        ({"action_space": spaces.Discrete(2), "head": "gaussian"}, "needs a Box action space"),
        ({"action_space": spaces.MultiDiscrete([2, 3]), "head": "q"}, "next: ppo, impala and es learn such actions"),
        ({"action_space": spaces.Discrete(2), "head": "squashed"}, "next: ppo, impala, dqn and es learn such actions"),
        ({"action_space": spaces.Discrete(2), "head": "softmax"}, "is not one of categorical"),
        ({"action_space": spaces.Discrete(2), "activation": "gelu"}, "neither 'tanh' nor 'relu'"),
        ({"action_space": spaces.Box(-np.inf, 1, (1,)), "head": "squashed"}, "finite bounds"),
    ],
)
def test_a_network_that_cannot_be_says_why(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Policy.create(VECTOR, **arguments)


@pytest.mark.parametrize("side", [1, 2, 3])
def test_images_too_small_for_the_convolutions_say_so(side: int) -> None:
    space = spaces.Box(0, 255, (side, side, 1), np.uint8)
    with pytest.raises(ValueError, match="too small"):
        Policy.create(space, spaces.Discrete(2), convolutions=((16, 3, 1), (32, 3, 2)))


@pytest.mark.parametrize("entropy", [0.0, 0.3])
@pytest.mark.parametrize(
    "space", [spaces.Discrete(4), spaces.MultiDiscrete([3, 2, 4]), spaces.Box(-1, 1, (3,), np.float32)]
)
def test_slopes_are_what_torch_derives(space: Any, entropy: float) -> None:
    rng = np.random.default_rng(3)
    policy = Policy.create(VECTOR, space, log_std=-0.5)
    outputs = torch.from_numpy(rng.standard_normal((50, policy.network.outputs))).requires_grad_()
    log_std = torch.tensor(policy.weights["log_std"], dtype=torch.float64) if "log_std" in policy.weights else None
    if log_std is not None:
        log_std.requires_grad_()
    actions = torch.from_numpy(np.array([space.sample() for _ in range(50)]))
    weights = torch.from_numpy(rng.standard_normal(50))
    chances = torch_policy.Distribution(policy.network, outputs, log_std)
    objective = (weights * chances.log_prob(actions)).sum() + entropy * chances.entropy().sum()
    leaves = [outputs] if log_std is None else [outputs, log_std]
    derived = torch.autograd.grad(objective, leaves)
    with torch.no_grad():
        written = chances.slopes(actions, weights, entropy)
    for one, other in zip(derived, written, strict=True):
        torch.testing.assert_close(one, other)


def test_tanh_has_the_bits_of_numpy_and_the_slope_of_torch() -> None:
    x = torch.linspace(-12, 12, 4_001, requires_grad=True)
    y = torch_policy.Tanh.apply(x)
    assert y.detach().numpy().tobytes() == np.tanh(x.detach().numpy()).tobytes()
    y.square().sum().backward()
    other = x.detach().clone().requires_grad_()
    torch.tanh(other).square().sum().backward()
    torch.testing.assert_close(x.grad, other.grad)


def test_images_without_convolutions_are_scaled() -> None:
    images, vectors = spaces.Box(0, 255, (10, 10, 1), np.uint8), spaces.Box(0, 255, (3,), np.uint8)
    box = spaces.Box(-1, 1, (1,), np.float32)
    scaled = Policy.create(images, box, head="squashed", convolutions=())
    assert scaled.inputs(np.full((1, 10, 10, 1), 255, np.uint8)).max() == 1
    assert Policy.create(vectors, box).inputs(np.full((1, 3), 255, np.uint8)).max() == 255


def test_exploring_chooses_only_actions_that_there_are() -> None:
    policy = Policy.create(spaces.Box(-1, 1, (1,), np.float32), spaces.Discrete(3), head="q")
    noise = np.array([[0.0, 1 - 2**-26]]).astype(np.float32)  # which float32 rounds up to 1
    assert replace(policy, epsilon=np.ones(1)).choose(np.zeros((1, 3), np.float32), noise).tolist() == [2]
