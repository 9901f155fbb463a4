"""Soft actor-critic (Haarnoja et al. 2018b, https://arxiv.org/abs/1812.05905), for continuous actions.

    lanes     simulate with the newest policy, and draw their actions from it
    replay    keeps the transitions, drawn evenly
    learner   takes a block, then `ratio` gradient steps for each of its steps: two critics learn the soft value of
              actions, the policy follows the smaller of the two, and the temperature keeps its entropy at a target

Departures from the paper:
- The replay is drawn, and targets are computed, for a `round` of gradient steps together, with the weights at its
  beginning: one pass over 8 minibatches costs little more than one over a single minibatch.
- The first actions are those of the untrained policy, which are spread over the whole range, instead of even ones.
- The two critics are one network with a layer for both in every place. Weights begin orthogonal.
- The temperature begins at 1 and is learnt by the same optimiser as the policy, from the same minibatch.
- An episode that a time limit cuts is not over: the value of its last observation goes into its return.
- Actions are those of tanh in [-1, 1]; the policy scales them to the bounds of the environment.

What happens when a process is killed: a lane is started again, and `run.reasons` says so. After the death of the
learner's process, `resume=` goes on from the last checkpoint. A checkpoint has the replay if that takes at most
`save_replay_mb`; else the replay fills again with `warm_up` transitions first.

Ordered, the weights follow from (options, seed). Unordered, blocks are taken as they finish, which depends on the
machine.

>>> run = train("Pendulum-v1", steps=20_000, seed=1)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from skate.rl import files, spaces, torch_policy
from skate.rl.block import Block
from skate.rl.options import choose, setting
from skate.rl.policy import Network, Policy, initial_weights
from skate.rl.replay import Ring
from skate.rl.returns import n_step
from skate.rl.run import Callback, Run


@dataclass(frozen=True)
class SACOptions:
    """Settings of SAC. The defaults suit small control problems; larger ones want `hidden=(256, 256)`."""

    lanes: int = setting(2, "actors that simulate", least=1)
    envs: int = setting(4, "environments in each lane", least=1)
    fragment: int = setting(8, "steps of every environment in a block", least=1)
    ahead: int = setting(1, "blocks that each lane may be ahead of the learner", least=1)
    ordered: bool = setting(True, "take the blocks of the lanes in turn; the run can be repeated")
    ratio: float = setting(0.5, "gradient steps for each step of an environment", above=0)
    round: int = setting(8, "gradient steps whose minibatches and targets are prepared together", least=1)
    minibatch: int = setting(256, "transitions in a gradient step", least=1)
    warm_up: int = setting(1_000, "transitions before the first gradient step", least=0)
    learning_rate: float = setting(1e-3, "step size of Adam", above=0, most=1_000)
    gamma: float = setting(0.99, "discount of rewards a step", least=0, most=1)
    tau: float = setting(0.005, "how far the critics for targets follow in a gradient step", above=0, most=1)
    entropy: float | None = setting(None, "entropy that the policy is kept at; none: minus the number of dimensions")
    capacity: int = setting(100_000, "transitions in the replay", least="minibatch")
    save_replay_mb: int = setting(64, "a larger replay is not part of checkpoints", least=0)
    hidden: tuple[int, ...] = setting((64, 64), "sizes of the hidden layers", least=1)
    activation: Literal["tanh", "relu"] = setting("relu", "tanh or relu")
    report: int = setting(1_000, "steps in a row of the history", least=1)
    threads: int = setting(1, "threads of the learner; sums depend on it", least=1)


class Critics(nn.Module):  # type: ignore[misc, unused-ignore]
    """Two networks that value observations with actions, as one: every layer has the weights of both."""

    def __init__(self, network: Network, seed: int) -> None:
        super().__init__()
        width = math.prod(spaces.shape_and_dtype(network.observation)[0]) + math.prod(network.action["shape"])
        described = replace(network, observation={"kind": "box", "shape": [width], "dtype": "float32"})
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1_000_001,)))
        drawn = [initial_weights(described, 1, 1.0, rng) for _ in range(2)]
        names = [name.removesuffix(".weight") for name in drawn[0] if name.endswith(".weight")]
        pairs = [
            [torch.from_numpy(np.stack([one[f"{name}.{kind}"] for one in drawn])) for kind in ("weight", "bias")]
            for name in names
        ]
        self.weights = nn.ParameterList(weight.transpose(1, 2).contiguous() for weight, _ in pairs)
        self.biases = nn.ParameterList(bias.unsqueeze(1) for _, bias in pairs)
        self.layers = list(zip(self.weights, self.biases, strict=True))
        self._activation = torch.relu if network.activation == "relu" else torch.tanh

    def forward(self, x: Tensor) -> Tensor:
        """[M, observation and action] -> [2, M]."""
        x = x.expand(2, *x.shape)
        for i, (weight, bias) in enumerate(self.layers):
            x = torch.baddbmm(bias, self._activation(x) if i else x, weight)
        return x[..., 0]


class Learner:
    """The policy, the critics, their older copy for targets, the temperature, and the optimisers."""

    def __init__(self, policy: Policy, options: SACOptions, seed: int) -> None:
        self.policy, self.options = policy, options
        self.actor = torch_policy.module(policy)
        self.critics, self.targets = Critics(policy.network, seed), Critics(policy.network, seed)
        self.actor.log_alpha = nn.Parameter(torch.zeros(()))
        self.critic_optimizer = torch_policy.Adam(self.critics.parameters(), options.learning_rate, eps=1e-8)
        self.actor_optimizer = torch_policy.Adam(self.actor.parameters(), options.learning_rate, eps=1e-8)
        self._followers = list(zip(self.targets.parameters(), self.critics.parameters(), strict=True))
        self.rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1_000_000,)))
        self.updates, self.owed, self._published = 0, 0.0, -1
        self._size = math.prod(policy.network.action["shape"])
        self._entropy = -float(self._size) if options.entropy is None else options.entropy

    def learn(self, ring: Ring) -> dict[str, float]:
        """Take the gradient steps of a round; numbers for the history."""
        options = self.options
        drawn = ring.sample(options.round * options.minibatch).transitions
        with torch.no_grad():
            following = torch_policy.tensor(self.policy.inputs(drawn.next_observations))
            actions, log_probs = torch_policy.squashed_sample(self.actor(following), self._noise(len(following)))
            values = self.targets(torch.cat([following, actions], 1)).amin(0) - self.actor.log_alpha.exp() * log_probs
            goals = torch_policy.tensor(drawn.rewards) + torch_policy.tensor(drawn.discounts) * values
        inputs = torch_policy.tensor(self.policy.inputs(drawn.observations))
        done = torch.cat([inputs, torch_policy.tensor(drawn.actions).reshape(len(inputs), -1)], 1)
        noise = self._noise(len(inputs))
        sums = torch.zeros(3)
        for part in zip(*(column.chunk(options.round) for column in (inputs, done, goals, noise)), strict=True):
            sums += self._step(*part)
        self.updates += options.round
        self.owed -= options.round
        names = ("critic_loss", "policy_loss", "entropy")
        means = {name: float(value) / options.round for name, value in zip(names, sums, strict=True)}
        return {**means, "temperature": float(self.actor.log_alpha.detach().exp())}

    def _step(self, inputs: Tensor, done: Tensor, goals: Tensor, noise: Tensor) -> Tensor:
        critic_loss = 0.5 * (self.critics(done) - goals).square().mean(1).sum()
        self.critic_optimizer.step(critic_loss)
        actions, log_probs = torch_policy.squashed_sample(self.actor(inputs), noise)
        self._learn_critics(False)
        values = self.critics(torch.cat([inputs, actions], 1)).amin(0)
        log_alpha = self.actor.log_alpha
        entropy = -log_probs.mean()
        policy_loss = -(log_alpha.detach().exp() * entropy + values.mean())
        self.actor_optimizer.step(policy_loss + log_alpha * (entropy.detach() - self._entropy))
        self._learn_critics(True)
        with torch.no_grad():
            for target, newest in self._followers:
                target.lerp_(newest, self.options.tau)
            return torch.stack([critic_loss, policy_loss, entropy])

    def _learn_critics(self, learn: bool) -> None:
        for _, newest in self._followers:
            newest.requires_grad_(learn)

    def _noise(self, count: int) -> Tensor:
        return torch.from_numpy(self.rng.standard_normal((count, self._size), np.float32))

    def newest(self) -> Policy:
        """Give the policy with the newest weights."""
        if self._published != self.updates:
            weights = torch_policy.weights(self.actor)
            del weights["log_alpha"]
            self.policy, self._published = self.policy.with_weights(weights), self.updates
        return self.policy

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything that `restore` needs, as arrays and as what goes into JSON."""
        nets = {"actor": self.actor, "critics": self.critics, "targets": self.targets}
        tensors = torch_policy.state(nets, actor_adam=self.actor_optimizer, critic_adam=self.critic_optimizer)
        return tensors, {
            "rng": self.rng.bit_generator.state,
            "updates": self.updates,
            "owed": self.owed,
            "version": self.policy.version,
        }

    def restore(self, tensors: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        nets = {"actor": self.actor, "critics": self.critics, "targets": self.targets}
        torch_policy.restore(tensors, nets, actor_adam=self.actor_optimizer, critic_adam=self.critic_optimizer)
        self.rng.bit_generator.state = meta["rng"]
        self.updates, self.owed = meta["updates"], meta["owed"]
        self.policy = replace(self.policy, version=meta["version"])


def train(
    env: Any,
    steps: float = 20_000,
    *,
    seed: int = 0,
    options: SACOptions | None = None,
    path: str | None = None,
    resume: str | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    evaluate_every: float = 0,
    stop_at: float | None = None,
    **settings: Any,
) -> Run:
    """Train a policy with SAC for a number of steps. Settings of `SACOptions` can be given by name.

    Every `evaluate_every` steps 20 episodes are played; `stop_at` ends the run when their mean reaches it.

    >>> run = train("Pendulum-v1", steps=20_000, seed=1, hidden=(256, 256))
    >>> action = run.policy.act(observation)
    """
    chosen = choose(SACOptions, options, settings, resume)
    how = (path, resume, callbacks, progress, evaluate_every, stop_at)
    started = Run.begin("sac", env, chosen, steps, seed, *how)
    with started as run, run.simulators(chosen.lanes, chosen.envs) as sims, torch_policy.threads(chosen.threads):
        policy = Policy.create(
            sims.observation_space,
            sims.action_space,
            hidden=chosen.hidden,
            activation=chosen.activation,
            head="squashed",
            convolutions=(),
            seed=run.seed,
        )
        learner = Learner(policy, chosen, run.seed)
        ring = Ring(chosen.capacity, run.fresh_seed)
        if run.state is not None:
            run.check_network(policy)
            learner.restore(**run.state)
            if kept := files.part(run.state["tensors"], "replay"):
                ring.restore(kept)
        if not chosen.ordered:
            run.not_repeatable("blocks were taken as they finished")
        stream = sims.stream(learner.newest, ahead=chosen.ahead, fragment=chosen.fragment, ordered=chosen.ordered)
        while run.more():
            iterate(run, stream, learner, ring)
            if run.due():
                tensors, meta = learner.state()
                run.checkpoint(learner.newest(), tensors | _kept(ring, chosen.save_replay_mb), meta)
        run.finish(learner.newest())
    return run


def iterate(run: Run, stream: Iterator[Block], learner: Learner, ring: Ring) -> None:
    """Take blocks, and the gradient steps that go with them, for one row of the history."""
    options, steps = learner.options, 0
    returns: list[float] = []
    numbers: dict[str, float] = {}
    while steps < options.report:
        block = next(stream)
        steps += block.steps
        returns.extend(block.episode_returns)
        ring.add(n_step(block, 1, options.gamma))
        if len(ring) >= min(options.warm_up, options.capacity):
            learner.owed += block.steps * options.ratio
        while learner.owed >= options.round:
            numbers = learner.learn(ring)
    numbers |= {"updates": learner.updates, "replay": len(ring)}
    run.log(run.steps + steps, returns=returns, policy=learner.newest(), **numbers)


def _kept(ring: Ring, limit_mb: int) -> dict[str, np.ndarray]:
    """What a checkpoint keeps of the replay: all of it, or nothing if it is large."""
    state = {f"replay.{name}": array for name, array in ring.state().items()}
    return state if sum(array.nbytes for array in state.values()) <= limit_mb * 1_000_000 else {}


if __name__ == "__main__":
    from skate.rl.command import train_main

    train_main("sac")
