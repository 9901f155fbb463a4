"""What tests of learners share: the values that a run has learnt, and a learner that is stopped and goes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from skate.rl import lane, torch_policy
from skate.rl.block import Batch
from skate.rl.files import read_tensors
from skate.rl.lane import Lane
from skate.rl.policy import Policy
from skate.rl.run import Run


def learnt_values(run: Run, *observations: Sequence[float]) -> list[float]:
    """What the critic of a finished run says about observations."""
    tensors, _ = read_tensors(run.path / "checkpoint.safetensors")
    critic = torch_policy.critic(run.policy.network, 0)
    weights = {name.removeprefix("critic."): array for name, array in tensors.items() if name.startswith("critic.")}
    torch_policy.load(critic, weights)
    with torch.no_grad():
        inputs = run.policy.inputs(np.array(observations, np.float32))
        values: list[float] = critic(torch.from_numpy(inputs))[:, 0].tolist()
    return values


def same_weights(one: Policy, other: Policy) -> bool:
    """Whether two policies have the same weights, and normalise in the same way, bit for bit."""
    if (one.normaliser is None) != (other.normaliser is None):
        return False
    if one.normaliser is not None and other.normaliser is not None:
        pairs = [(one.normaliser.mean, other.normaliser.mean), (one.normaliser.variance, other.normaliser.variance)]
        if not all(np.array_equal(*pair) for pair in pairs):
            return False
    assert one.weights.keys() == other.weights.keys()
    return all(np.array_equal(array, other.weights[name]) for name, array in one.weights.items())


def taught_twice(kind: Any, options: Any) -> bool:
    """Whether a learner that goes on from the state of another has the same weights after the same batches."""
    with pytest.MonkeyPatch.context() as patch, torch_policy.threads(1):
        patch.setattr(lane, "limit_threads", lambda _: None)
        made = Lane("CartPole-v1", 0, 4, 0, 0, 1)
        policy = Policy.create(*made.describe(), hidden=options.hidden, normalise=options.normalise, seed=1)
        batches = [Batch.join([made.run(policy, 32)]) for _ in range(4)]
        return _taught_twice(kind(policy, options, 7), kind(policy, options, 8), batches)


def _taught_twice(whole: Any, gone_on: Any, batches: list[Batch]) -> bool:
    for batch in batches[:2]:
        whole.learn(batch, 0.5)
    tensors, meta = whole.state()
    tensors = {name: np.array(array) for name, array in tensors.items()}
    at_the_stop = whole.policy
    for batch in batches[2:]:
        whole.learn(batch, 0.25)
    gone_on.restore(at_the_stop, tensors, meta)
    restored, _ = gone_on.state()
    assert restored.keys() == tensors.keys()
    assert all(np.array_equal(restored[name], tensors[name]) for name in tensors)
    assert same_weights(gone_on.policy, at_the_stop)
    for batch in batches[2:]:
        gone_on.learn(batch, 0.25)
    assert gone_on.policy.version == whole.policy.version == 4
    assert not same_weights(at_the_stop, whole.policy)
    return same_weights(gone_on.policy, whole.policy)
