"""Several processes that learn one policy together: each has a share of every minibatch, and all make the same step.

    driver ── blocks, once, through the object store ──► learner 0   gradient of the first rows ─┐
                                                         learner 1   gradient of the others     ─┴─ allreduce ──► step

Idea: every learner has the same weights, the same random numbers and the whole batch, as views of shared memory. So
      nothing but gradients travels between learners, and their weights stay equal to the last bit. They differ from
      those of one learner by the rounding of a sum that is made in two parts.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import skate
from skate import collective, exceptions
from skate.rl.block import Batch, Block
from skate.rl.lane import limit_threads
from skate.rl.policy import Policy

#: How long the other learners may take to fail after the first one: the first error may be a consequence.
CAUSE_WITHIN_S = 6.0


class Share:
    """The part that one of several learners has in the work."""

    def __init__(self, rank: int, count: int, group: str) -> None:
        self.rank, self.count, self._group = rank, count, group

    def rows(self, total: int) -> slice:
        """This learner's rows of a minibatch."""
        return slice(self.rank * total // self.count, (self.rank + 1) * total // self.count)

    def add_up(self, numbers: torch.Tensor) -> None:
        """Replace numbers by the sums over all learners, which have equal bits in all of them."""
        collective.allreduce(numbers, group_name=self._group)


class LearnerProcess:
    """The actor of one learner. `make(policy, options, seed, share)` makes the learner itself."""

    def __init__(
        self, make: Callable[..., Any], policy: Policy, options: Any, seed: int, rank: int, count: int, group: str
    ) -> None:
        limit_threads(options.threads)
        collective.init_collective_group(count, rank, group_name=group)
        self._rank = rank
        self._learner = make(policy, options, seed, Share(rank, count, group))

    def learn(self, blocks: tuple[Block, ...], left: float) -> tuple[dict[str, float], Policy | None]:
        """Improve the policy; the first learner returns it, and the others have the same."""
        numbers = self._learner.learn(Batch.join(blocks), left)
        return numbers, self._learner.policy if self._rank == 0 else None

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        found: tuple[dict[str, np.ndarray], dict[str, Any]] = self._learner.state()
        return found

    def restore(self, policy: Policy, tensors: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        self._learner.restore(policy, tensors, meta)


class Learners:
    """Learners in actors, with the methods of a single one.

    >>> with Learners(2, Learner, policy, options, seed=1) as learners:
    ...     numbers = learners.learn(batch, left=0.5)
    ...     learners.policy
    """

    def __init__(self, count: int, make: Callable[..., Any], policy: Policy, options: Any, seed: int) -> None:
        self.policy = policy
        remote = skate.remote(LearnerProcess).options(num_cpus=0)
        group = f"skate.rl.learners-{uuid.uuid4().hex}"
        self._actors = [remote.remote(make, policy, options, seed, rank, count, group) for rank in range(count)]

    def __enter__(self) -> Learners:
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            skate.kill(actor)

    def learn(self, batch: Batch, left: float) -> dict[str, float]:
        """Improve the policy from a batch; `left` is the part of the run that is still to come."""
        blocks = skate.put(batch.blocks)
        answers = self._all([actor.learn.remote(blocks, left) for actor in self._actors])
        numbers, self.policy = answers[0]
        return dict(numbers)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """What a checkpoint needs: the state of any learner is the state of all."""
        found: tuple[dict[str, np.ndarray], dict[str, Any]] = self._all([self._actors[0].state.remote()])[0]
        return found

    def restore(self, policy: Policy, tensors: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Go on from a checkpoint, which may be that of a run with another number of learners."""
        self.policy = policy
        shared = skate.put(tensors)
        self._all([actor.restore.remote(policy, shared, meta) for actor in self._actors])

    def _all(self, refs: list[Any]) -> list[Any]:
        """Wait for the answers of all learners. If one dies, raise an error that names it."""
        left = list(refs)
        while left:
            ready, left = skate.wait(left, num_returns=1)
            try:
                skate.get(ready)
            except exceptions.SkateError as error:
                self._raise_cause(refs, error)
        return list(skate.get(refs))

    def _raise_cause(self, refs: list[Any], first: exceptions.SkateError) -> None:
        """Raise what went wrong first: a dead learner's partners fail too, and their errors may arrive sooner."""
        ended, _ = skate.wait(refs, num_returns=len(refs), timeout=CAUSE_WITHIN_S)
        for ref in ended:
            try:
                skate.get(ref)
            except exceptions.ActorError as error:
                raise RuntimeError(
                    f"learner {refs.index(ref)} of {len(refs)} died.\n  why:  {error}\n"
                    "  next: train(…, resume=path) goes on from the last checkpoint of the run."
                ) from error
            except exceptions.SkateError:
                continue
        raise first
