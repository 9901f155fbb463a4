"""Proximal policy optimisation (Schulman et al. 2017, https://arxiv.org/abs/1707.06347).

    repeat:  simulate `horizon` steps in every environment with the newest policy
             estimate advantages (Schulman et al. 2016, https://arxiv.org/abs/1506.02438)
             for some epochs, in shuffled minibatches: a gradient step on the clipped objective, the value's error
             and the entropy

Departures from the paper, all of them usual today:
- Policy and value are two networks (the paper shares layers in some experiments). Images too.
- Advantages are scaled to mean 0 and deviation 1 in every minibatch. Gradients are cut to a norm of `gradient_norm`.
- Weights begin orthogonal, the policy's last layer small. Step size and clipping fall linearly with `anneal`.
- Observations and rewards are scaled by their own statistics (`normalise`, `scale_rewards`): one step size suits most
  environments.
- An episode that a time limit cuts is not over: the value of its last observation goes into its return.
- `ordered=False` samples as in the paper of Ray (Moritz et al. 2018): blocks of `horizon` steps are taken as they
  finish until there are enough, so a slow lane delays nothing, and some blocks were made by the policy before.

Ordered, the weights follow from (options, seed), bit for bit, on any number of CPUs of one kind. `learners` is one of
the options: several processes share every minibatch (learners.py).

>>> run = train("CartPole-v1", steps=50_000, seed=1)
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from skate.rl import returns, torch_policy
from skate.rl.block import Batch
from skate.rl.learners import Learners, Share
from skate.rl.options import choose, setting
from skate.rl.policy import Policy
from skate.rl.run import Callback, Run
from skate.rl.scaling import RewardScale
from skate.rl.simulate import Simulators


@dataclass(frozen=True)
class PPOOptions:
    """Settings of PPO. The defaults solve CartPole, Acrobot, Pendulum and LunarLander."""

    lanes: int = setting(2, "actors that simulate", least=1)
    envs: int = setting(8, "environments in each lane", least=1)
    horizon: int = setting(128, "steps of every environment in an iteration", least=1)
    ordered: bool = setting(True, "every environment gives the same number of steps; the run can be repeated")
    epochs: int = setting(8, "passes over the data of an iteration", least=1)
    minibatch: int = setting(128, "transitions in a gradient step", least=2)
    learning_rate: float = setting(1e-3, "step size of Adam at the beginning", above=0, most=1_000)
    anneal: bool = setting(True, "step size and clipping fall linearly to zero at the last step")
    gamma: float = setting(0.99, "discount of rewards a step", least=0, most=1)
    lam: float = setting(0.95, "weight of long returns in advantages (lambda)", least=0, most=1)
    clip: float = setting(0.2, "how far the probability of an action may move in an iteration", least=0)
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
    learners: int = setting(1, "processes that share every minibatch; sums depend on it", least=1)


class Learner:
    """The policy and value networks with their optimiser: improves a policy from a batch."""

    def __init__(self, policy: Policy, options: PPOOptions, seed: int, share: Share | None = None) -> None:
        self.policy, self.options, self._share = policy, options, share
        self.actor = torch_policy.module(policy)
        self.critic = torch_policy.critic(policy.network, seed + 1)
        parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self.optimizer = torch_policy.Adam(parameters, options.learning_rate)
        self.rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1_000_000,)))
        self._scale = RewardScale(options.gamma)

    def learn(self, batch: Batch, left: float) -> dict[str, float]:
        """Improve the policy from a batch; `left` is the part of the run that is still to come."""
        options, policy = self.options, self.policy
        remaining = left if options.anneal else 1.0
        self.optimizer.learning_rate = options.learning_rate * remaining
        real = np.flatnonzero(batch.mask)
        inputs = torch_policy.tensor(policy.inputs(_rows(batch.observations, 2)))
        with torch.no_grad():
            values = self.critic(inputs)[:, 0].numpy().reshape(batch.shape)
            cut_values = self.critic(torch_policy.tensor(policy.inputs(batch.bootstrap)))[:, 0].numpy()
        if options.scale_rewards:
            batch = self._scale(batch)
        advantages, targets = returns.gae(batch, (values, cut_values), options.gamma, options.lam)
        data = (
            inputs,
            torch_policy.tensor(_rows(batch.actions, 2)),
            torch_policy.tensor(batch.log_probs.reshape(-1)),
            torch_policy.tensor(advantages.reshape(-1)),
            torch_policy.tensor(targets.reshape(-1)),
        )
        numbers: list[torch.Tensor] = []
        for epoch in range(options.epochs):
            last = epoch == options.epochs - 1
            order = torch.from_numpy(self.rng.permutation(real))
            for minibatch in zip(*(column[order].split(options.minibatch) for column in data), strict=True):
                if len(minibatch[0]) > 1:  # one advantage has no deviation
                    self._step(*minibatch, clip=options.clip * remaining, numbers=numbers if last else None)
        normaliser = (
            None if policy.normaliser is None else policy.normaliser.updated(_rows(batch.observations, 2)[real])
        )
        self.policy = policy.with_weights(torch_policy.weights(self.actor), normaliser)
        if not numbers:
            return {}
        means = torch.stack(numbers).mean(0)
        if self._share is not None:
            self._share.add_up(means)
        return dict(zip(("policy_loss", "value_loss", "entropy", "clipped"), means.tolist(), strict=True))

    def _step(
        self,
        inputs: torch.Tensor,
        actions: torch.Tensor,
        old_log_probs: torch.Tensor,
        advantages: torch.Tensor,
        targets: torch.Tensor,
        *,
        clip: float,
        numbers: list[torch.Tensor] | None,
    ) -> None:
        """Make a gradient step. The slopes of the loss are written out up to the outputs of the networks."""
        options, count, share = self.options, len(inputs), self._share
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        if share is not None:
            rows = share.rows(count)
            inputs, actions, old_log_probs = inputs[rows], actions[rows], old_log_probs[rows]
            advantages, targets = advantages[rows], targets[rows]
        outputs, values, log_std = self.actor(inputs), self.critic(inputs)[:, 0], self.actor.log_std
        with torch.no_grad():
            chances = torch_policy.Distribution(self.policy.network, outputs, log_std)
            ratio = (chances.log_prob(actions) - old_log_probs).exp()
            clipped = ratio.clamp(1 - clip, 1 + clip)
            gains, clipped_gains = ratio * advantages, clipped * advantages
            # The objective is the smaller gain. Its slope along a log-probability is the gain, or 0 if it is clipped.
            slopes = gains.masked_fill(clipped_gains < gains, 0.0)
            policy_slopes = chances.slopes(actions, slopes / -count, -options.entropy / count)
            errors = values - targets
            if numbers is not None:
                policy_loss, moved = -torch.min(gains, clipped_gains), (ratio != clipped).float()
                each = policy_loss, errors.square(), chances.entropy(), moved
                numbers.append(torch.stack([column.sum() for column in each]) / count)
        tensors = (values, outputs) if log_std is None else (values, outputs, log_std)
        value_slopes = errors * (2 * options.value / count)
        add_up = None if share is None else share.add_up
        self.optimizer.step(tensors, options.gradient_norm, slopes=(value_slopes, *policy_slopes), add_up=add_up)

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything that `restore` needs, as arrays and as what goes into JSON."""
        tensors = torch_policy.state({"actor": self.actor, "critic": self.critic}, optimizer=self.optimizer)
        return tensors | self._scale.state(), {"rng": self.rng.bit_generator.state}

    def restore(self, policy: Policy, tensors: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.policy = policy
        torch_policy.restore(tensors, {"actor": self.actor, "critic": self.critic}, optimizer=self.optimizer)
        self.rng.bit_generator.state = meta["rng"]
        self._scale.restore(tensors)


def train(
    env: Any,
    steps: float = 100_000,
    *,
    seed: int = 0,
    options: PPOOptions | None = None,
    path: str | None = None,
    resume: str | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    evaluate_every: float = 0,
    stop_at: float | None = None,
    **settings: Any,
) -> Run:
    """Train a policy with PPO for a number of steps. Settings of `PPOOptions` can be given by name.

    Every `evaluate_every` steps 20 episodes are played; `stop_at` ends the run when their mean reaches it.

    >>> run = train("CartPole-v1", steps=50_000, seed=1, learning_rate=3e-4)
    >>> action = run.policy.act(observation)
    """
    chosen = choose(PPOOptions, options, settings, resume)
    how = (path, resume, callbacks, progress, evaluate_every, stop_at)
    started = Run.begin("ppo", env, chosen, steps, seed, *how)
    threads = torch_policy.threads(chosen.threads)
    with started as run, run.simulators(chosen.lanes, chosen.envs) as sims, threads, ExitStack() as team:
        policy = Policy.create(
            sims.observation_space,
            sims.action_space,
            hidden=chosen.hidden,
            activation=chosen.activation,
            normalise=chosen.normalise,
            log_std=chosen.log_std,
            seed=run.seed,
        )
        learner: Learner | Learners = (
            Learner(policy, chosen, run.seed)
            if chosen.learners == 1
            else team.enter_context(Learners(chosen.learners, Learner, policy, chosen, run.seed))
        )
        if not chosen.ordered:
            run.not_repeatable("blocks were taken as they finished (ordered=False)")
        if run.state is not None:
            run.check_network(policy)
            learner.restore(run.policy, **run.state)
        while run.more():
            batch = _sample(sims, learner.policy, chosen)
            numbers = learner.learn(batch, run.left)
            run.log(run.steps + batch.steps, returns=batch.episode_returns, policy=learner.policy, **numbers)
            if run.due():
                run.checkpoint(learner.policy, *learner.state())
        run.finish(learner.policy)
    return run


def _sample(sims: Simulators, policy: Policy, options: PPOOptions) -> Batch:
    wanted = options.horizon * sims.total
    return sims.sample(policy, steps=wanted, ordered=options.ordered, fragment=options.horizon)


def _rows(array: np.ndarray, leading: int) -> np.ndarray:
    return array.reshape(-1, *array.shape[leading:])


if __name__ == "__main__":
    from skate.rl.command import train_main

    train_main("ppo")
