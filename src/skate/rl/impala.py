"""IMPALA: actors that never stop, and a learner that corrects for their lag (Espeholt et al. 2018,
https://arxiv.org/abs/1802.01561).

    lanes:    simulate `unroll` steps with the newest policy they were given, again and again
    learner:  take the next `blocks` blocks, whichever lanes they come from; weigh them with V-trace, because a slightly
              older policy made them; make one gradient step; give the new policy to every lane that gets work

Each lane has `ahead` blocks to do, so it does not wait for the learner; the learner waits only if no lane has finished
a block. What is recorded says which side is the slower one: `waiting` is the learner's share of time without a block,
`busy` the lanes' share of time spent on simulating, `lag` the mean number of versions that a block was behind.

Departures from the paper:
- Policy and value are two networks, without an LSTM and without actions or rewards as inputs.
- Losses are means over the transitions of a batch, not sums; Adam takes the place of RMSProp.
- Observations and rewards are scaled by their own statistics (`normalise`, `scale_rewards`): one step size suits most
  environments.
- V-trace has a lambda of its own below 1 by option, as in the paper's appendix.
- An episode that a time limit cuts is not over: the value of its last observation goes into its return.

Which blocks meet which version depends on the machine, so a run cannot be repeated bit for bit.

>>> run = train("CartPole-v1", steps=500_000, seed=1)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from skate.rl import returns, torch_policy
from skate.rl.block import Batch
from skate.rl.options import choose, setting
from skate.rl.policy import Policy
from skate.rl.run import Callback, Run
from skate.rl.scaling import RewardScale


@dataclass(frozen=True)
class IMPALAOptions:
    """Settings of IMPALA."""

    lanes: int = setting(2, "actors that simulate", least=1)
    envs: int = setting(16, "environments in each lane", least=1)
    unroll: int = setting(32, "steps of every environment in a block", least=1)
    ahead: int = setting(2, "blocks that each lane has to do; more lag, less waiting", least=1)
    blocks: int = setting(1, "blocks in a gradient step", least=1)
    learning_rate: float = setting(1e-3, "step size of Adam at the beginning", above=0, most=1_000)
    anneal: bool = setting(True, "the step size falls linearly to zero at the last step")
    gamma: float = setting(0.99, "discount of rewards a step", least=0, most=1)
    lam: float = setting(1.0, "weight of long returns in V-trace (lambda)", least=0, most=1)
    rho_max: float = setting(1.0, "largest importance weight of a temporal difference", above=0, infinite=True)
    c_max: float = setting(1.0, "largest importance weight that is carried back", above=0, infinite=True)
    entropy: float = setting(0.01, "weight of the entropy", least=0)
    value: float = setting(0.5, "weight of the value's error", least=0)
    gradient_norm: float = setting(0.5, "largest norm of a gradient", above=0, infinite=True)
    hidden: tuple[int, ...] = setting((64, 64), "sizes of the hidden layers", least=1)
    activation: Literal["tanh", "relu"] = setting("tanh", "tanh or relu")
    log_std: float = setting(
        0.0, "logarithm of the deviation of continuous actions at the beginning", least=-20, most=10
    )
    normalise: bool = setting(True, "scale observations by their mean and deviation; not images")
    scale_rewards: bool = setting(True, "divide rewards by the deviation of the discounted return")
    threads: int = setting(1, "threads of the learner; sums depend on it", least=1)
    report: int = setting(20, "gradient steps in a row of the history", least=1)


class Learner:
    """The policy and value networks with their optimiser: improves a policy from blocks of older versions."""

    def __init__(self, policy: Policy, options: IMPALAOptions, seed: int) -> None:
        self.policy, self.options = policy, options
        self.actor = torch_policy.module(policy)
        self.critic = torch_policy.critic(policy.network, seed + 1)
        parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch_policy.Adam(parameters, options.learning_rate)
        self._scale = RewardScale(options.gamma)

    def learn(self, batch: Batch, left: float) -> np.ndarray:
        """Make one gradient step; losses of policy and value, and entropy."""
        options, policy = self.options, self.policy
        if not batch.steps:
            return np.zeros(3)  # all environments have spent the step on resetting
        self.optimizer.learning_rate = options.learning_rate * (left if options.anneal else 1.0)
        observations = batch.observations.reshape(-1, *batch.observations.shape[2:])
        inputs = torch_policy.tensor(policy.inputs(observations))
        actions = torch_policy.tensor(batch.actions.reshape(-1, *batch.actions.shape[2:]))
        chances = torch_policy.Distribution(policy.network, self.actor(inputs), self.actor.log_std)
        log_probs, values = chances.log_prob(actions), self.critic(inputs)[:, 0]
        if options.scale_rewards:
            batch = self._scale(batch)
        with torch.no_grad():
            cut_values = self.critic(torch_policy.tensor(policy.inputs(batch.bootstrap)))[:, 0].numpy()
            targets, advantages = returns.vtrace(
                batch,
                (values.numpy().reshape(batch.shape), cut_values),
                log_probs.numpy().reshape(batch.shape),
                options.gamma,
                options.lam,
                options.rho_max,
                options.c_max,
            )
        mask = torch_policy.tensor(batch.mask.reshape(-1))
        count = batch.steps
        policy_loss = -(log_probs * torch.from_numpy(advantages.reshape(-1)))[mask].sum() / count
        value_loss = ((values - torch.from_numpy(targets.reshape(-1)))[mask] ** 2).sum() / count
        entropy = chances.entropy()[mask].sum() / count
        loss = policy_loss + options.value * value_loss - options.entropy * entropy
        self.optimizer.step(loss, options.gradient_norm)
        normaliser = None if policy.normaliser is None else policy.normaliser.updated(batch.observations[batch.mask])
        self.policy = policy.with_weights(torch_policy.weights(self.actor), normaliser)
        return torch.stack([policy_loss, value_loss, entropy]).detach().numpy()

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything that `restore` needs, as arrays and as what goes into JSON."""
        tensors = torch_policy.state({"actor": self.actor, "critic": self.critic}, optimizer=self.optimizer)
        return tensors | self._scale.state(), {}

    def restore(self, policy: Policy, tensors: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.policy = policy
        torch_policy.restore(tensors, {"actor": self.actor, "critic": self.critic}, optimizer=self.optimizer)
        self._scale.restore(tensors)


def train(
    env: Any,
    steps: float = 500_000,
    *,
    seed: int = 0,
    options: IMPALAOptions | None = None,
    path: str | None = None,
    resume: str | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    evaluate_every: float = 0,
    stop_at: float | None = None,
    **settings: Any,
) -> Run:
    """Train a policy with IMPALA for a number of steps. Settings of `IMPALAOptions` can be given by name.

    Every `evaluate_every` steps 20 episodes are played; `stop_at` ends the run when their mean reaches it.

    >>> run = train("CartPole-v1", steps=500_000, seed=1, lanes=8)
    """
    chosen = choose(IMPALAOptions, options, settings, resume)
    how = (path, resume, callbacks, progress, evaluate_every, stop_at)
    started = Run.begin("impala", env, chosen, steps, seed, *how)
    with started as run, run.simulators(chosen.lanes, chosen.envs) as sims, torch_policy.threads(chosen.threads):
        policy = Policy.create(
            sims.observation_space,
            sims.action_space,
            hidden=chosen.hidden,
            activation=chosen.activation,
            normalise=chosen.normalise,
            log_std=chosen.log_std,
            seed=run.seed,
        )
        learner = Learner(policy, chosen, run.seed)
        run.not_repeatable("blocks were taken as they finished")
        if run.state is not None:
            run.check_network(policy)
            learner.restore(run.policy, **run.state)
        stream = sims.stream(lambda: learner.policy, ahead=chosen.ahead, fragment=chosen.unroll)
        while run.more():
            part = Part()
            for _ in range(chosen.report):
                batch = Batch.join(part.take(stream) for _ in range(chosen.blocks))
                part.add(batch, learner.policy.version, learner.learn(batch, run.left))
            run.log(run.steps + part.steps, returns=part.returns, policy=learner.policy, **part.numbers(sims.lanes))
            if run.due():
                run.checkpoint(learner.policy, *learner.state())
        run.finish(learner.policy)
    return run


class Part:
    """What some gradient steps did: sums for a row of the history."""

    def __init__(self) -> None:
        self.steps, self.returns, self._updates, self._lag = 0, [], 0, 0.0  # type: int, list[float], int, float
        self._losses, self._simulating_s, self._waiting_s = np.zeros(3), 0.0, 0.0
        self._began = time.perf_counter()

    def take(self, stream: Any) -> Any:
        """Take the next block, and note how long this thread slept until there was one."""
        began, worked = time.perf_counter(), time.thread_time()
        block = next(stream)
        # The two clocks are read one after the other, so a call that did not wait may come out below 0.
        self._waiting_s += max(0.0, time.perf_counter() - began - (time.thread_time() - worked))
        return block

    def add(self, batch: Batch, version: int, losses: np.ndarray) -> None:
        """Count one gradient step."""
        self.steps += batch.steps
        self.returns.extend(batch.episode_returns.tolist())
        self._updates += 1
        self._lag += version - sum(block.version for block in batch.blocks) / len(batch.blocks)
        self._losses += losses
        self._simulating_s += batch.seconds

    def numbers(self, lanes: int) -> dict[str, float]:
        """Give the numbers of the row."""
        wall_s = time.perf_counter() - self._began
        policy_loss, value_loss, entropy = (self._losses / self._updates).tolist()
        return {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "lag": self._lag / self._updates,
            "waiting": self._waiting_s / wall_s,
            "busy": self._simulating_s / (wall_s * lanes),
        }


if __name__ == "__main__":
    from skate.rl.command import train_main

    train_main("impala")
