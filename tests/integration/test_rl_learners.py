"""Learners that share minibatches: the same weights as one learner has, and a named end when one of them dies."""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_learners import same_weights
from rl_probes import probe
from skate.rl import lane, ppo, torch_policy
from skate.rl.block import Batch
from skate.rl.lane import Lane
from skate.rl.learners import Share
from skate.rl.policy import Policy
from skate.rl.run import Run

pytestmark = pytest.mark.usefixtures("runtime")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Run, "plot", lambda *_: None)  # half a second each
    return tmp_path


def batches(env: str, options: ppo.PPOOptions, count: int) -> tuple[Policy, list[Batch]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lane, "limit_threads", lambda _: None)
        made = Lane(env, 0, 4, 0, 0, 1)
        policy = Policy.create(*made.describe(), hidden=options.hidden, normalise=options.normalise, seed=1)
        return policy, [Batch.join([made.run(policy, 33)]) for _ in range(count)]


class Together(Share):
    """A share whose learners are threads of this process."""

    def __init__(self, rank: int, count: int, meeting: threading.Barrier, given: dict[int, torch.Tensor]) -> None:
        super().__init__(rank, count, "")
        self._meeting, self._given = meeting, given

    def add_up(self, numbers: torch.Tensor) -> None:
        self._given[self.rank] = numbers.clone()
        self._meeting.wait()
        numbers.copy_(sum(self._given[rank] for rank in range(self.count)))
        self._meeting.wait()


def learn_in_threads(count: int, policy: Policy, options: ppo.PPOOptions, made: list[Batch]) -> list[ppo.Learner]:
    meeting, given = threading.Barrier(count), {}
    learners = [ppo.Learner(policy, options, 7, Together(rank, count, meeting, given)) for rank in range(count)]

    def learn(learner: ppo.Learner) -> None:
        for batch in made:
            learner.learn(batch, 0.5)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(learn, learners))
    return learners


def distance(one: Policy, other: Policy) -> float:
    return max(float(np.abs(one.weights[name] - weights).max()) for name, weights in other.weights.items())


@pytest.mark.parametrize(("env", "count"), [("CartPole-v1", 2), ("Pendulum-v1", 2), ("Pendulum-v1", 3)])
def test_learners_that_share_minibatches_have_the_weights_of_one(env: str, count: int) -> None:
    options = ppo.PPOOptions(minibatch=50, epochs=2)
    policy, made = batches(env, options, 2)
    with torch_policy.threads(1):
        alone = ppo.Learner(policy, options, 7)
        for batch in made:
            alone.learn(batch, 0.5)
        together = learn_in_threads(count, policy, options, made)
    assert distance(together[0].policy, alone.policy) < 1e-5 < distance(policy, alone.policy)
    assert all(same_weights(each.policy, together[0].policy) for each in together)


def test_every_row_of_a_minibatch_belongs_to_one_learner() -> None:
    for count in range(1, 6):
        for total in range(20):
            rows = [list(range(total))[Share(rank, count, "").rows(total)] for rank in range(count)]
            assert sum(rows, []) == list(range(total))  # noqa: RUF017


QUICK: dict[str, Any] = {
    "lanes": 1, "envs": 8, "horizon": 16, "epochs": 4, "minibatch": 64, "learning_rate": 1e-2, "hidden": (16,),
    "gamma": 0.9, "entropy": 0.0, "normalise": False, "scale_rewards": False, "progress": False,
}  # fmt: skip


def test_learners_of_a_run_learn_as_one_does_and_the_death_of_one_is_told_and_one_goes_on(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """Each learner has another one at its side, which learns alone from the first two batches."""
    monkeypatch.setattr("skate.rl.run.CHECKPOINT_FIRST_S", 0.0)

    class Dying(ppo.Learner):
        def __init__(self, policy: Policy, options: ppo.PPOOptions, seed: int, share: Share) -> None:
            super().__init__(policy, options, seed, share)
            self.rank, self.start = share.rank, policy
            self.alone, self.seen = ppo.Learner(policy, options, seed), list[Any]()

        def learn(self, batch: Batch, left: float) -> dict[str, float]:
            if left < 0.5 and self.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            numbers = super().learn(batch, left)
            if len(self.seen) < 2:
                expected = self.alone.learn(batch, left)
                tensors, meta = self.state()
                self.seen.append(
                    {
                        "state": repr([(name, array.tobytes()) for name, array in tensors.items()]) + repr(meta),
                        "distance": self.distance(self.alone.policy),
                        "moved": self.distance(self.start),
                        "numbers": numbers,
                        "expected": expected,
                    }
                )
                (folder / f"seen-{self.rank}").write_text(json.dumps(self.seen))
            return numbers

        def distance(self, other: Policy) -> float:
            weights = self.policy.weights
            return max(float(np.abs(weights[name] - array).max()) for name, array in other.weights.items())

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="learner 1 of 2 died") as caught:
        patch.setattr(ppo, "Learner", Dying)
        ppo.train(probe("both"), 3_000, path="killed", learners=2, **QUICK)
    assert "next: train(…, resume=path)" in str(caught.value)
    one, other = (json.loads((folder / f"seen-{rank}").read_text()) for rank in range(2))
    assert len(one) == len(other) == 2
    assert [update["state"] for update in one] == [update["state"] for update in other], "they have the same bits"
    for update in one:
        assert update["distance"] < 1e-5 < update["moved"], "and the weights of one that learns alone"
        assert update["numbers"] == pytest.approx(update["expected"], abs=1e-4)

    run = ppo.train(probe("both"), 3_000, resume="killed", learners=1, progress=False)
    assert run.history[0]["steps"] < 1_500
    assert run.policy.act(np.array([[-1.0], [1.0]], np.float32)).tolist() == [0, 1]
