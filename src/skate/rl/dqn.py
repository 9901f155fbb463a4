"""Deep Q-learning (Mnih et al. 2015) in the shape of Ape-X (Horgan et al. 2018, https://arxiv.org/abs/1803.00933).

    lanes     simulate without a pause; each environment has an exploration rate of its own, from 0.4 to almost 0
    replay    keeps n-step transitions, drawn by their errors (Schaul et al. 2016, https://arxiv.org/abs/1511.05952)
    learner   takes a block, then `ratio` gradient steps for each of its steps, in rounds: draw the minibatches of
              a round, compute their targets, take the steps, send the new errors to the replay

Targets are those of double Q-learning (van Hasselt et al. 2016, https://arxiv.org/abs/1509.06461) with the duelling
network (Wang et al. 2016, https://arxiv.org/abs/1511.06581).

Departures from the papers:
- `ratio` ties the gradient steps to the steps of environments, so that a result does not depend on the speed of the
  machine. In Ape-X both run as fast as they can. Lanes wait once they are `ahead` blocks ahead of the learner.
- The targets of a round are computed together, with the weights at its beginning: one pass over 16 minibatches costs
  little more than one over a single minibatch. The replay draws a round in advance, so that an actor draws while the
  learner learns, and priorities are one round late. New transitions have the largest priority, not their own error.
- The two streams of the duelling network are one layer each. So Q is linear in the features that they share, and the
  policy gets it as a plain head: `policy.outputs` are the values of the actions.
- Adam instead of RMSProp. Errors are clipped (the Huber loss), gradients and rewards are not.
- An episode that a time limit cuts is not over: the value of its last observation goes into its return. The end of a
  block shortens the n steps of transitions that reach it.

What happens when a process is killed: a lane is started again. A replay in an actor is made again, from the last
checkpoint if it is in there, else empty, and learning goes on when it has `warm_up` transitions; `run.reasons` says so.
After the death of the learner's process, `resume=` goes on from the last checkpoint. A checkpoint has the replay if
that takes at most `save_replay_mb`; else it fills again first.

Ordered, the weights follow from (options, seed), with a replay of either kind. Unordered, blocks are taken as they
finish, which depends on the machine.

>>> run = train("CartPole-v1", steps=50_000, seed=1)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

import skate
from skate.rl import files, torch_policy
from skate.rl.block import Block
from skate.rl.options import choose, setting
from skate.rl.policy import Policy
from skate.rl.replay import Prioritised, Sample
from skate.rl.returns import Transitions, n_step
from skate.rl.run import Callback, Run

#: A replay that dies this many times in a row without giving anything is given up.
DEATHS_MAX = 3


@dataclass(frozen=True)
class DQNOptions:
    """Settings of DQN. The defaults suit small control problems and small images."""

    lanes: int = setting(2, "actors that simulate", least=1)
    envs: int = setting(8, "environments in each lane", least=1)
    fragment: int = setting(16, "steps of every environment in a block", least=1)
    ahead: int = setting(1, "blocks that each lane may be ahead of the learner", least=1)
    ordered: bool = setting(True, "take the blocks of the lanes in turn; the run can be repeated")
    ratio: float = setting(0.25, "gradient steps for each step of an environment", above=0)
    round: int = setting(16, "gradient steps whose minibatches and targets are prepared together", least=1)
    minibatch: int = setting(128, "transitions in a gradient step", least=1)
    warm_up: int = setting(1_000, "transitions of random actions before the first gradient step", least=0)
    learning_rate: float = setting(2e-3, "step size of Adam", above=0, most=1_000)
    gamma: float = setting(0.99, "discount of rewards a step", least=0, most=1)
    n_step: int = setting(3, "steps of a transition", least=1)
    target_every: int = setting(50, "gradient steps between two copies to the target network", least=1)
    double: bool = setting(True, "choose the action of a target with the newest network")
    duelling: bool = setting(True, "learn the value of a state apart from the advantages of its actions")
    epsilon: float = setting(0.4, "share of random actions of the environment that explores most", least=0, most=1)
    epsilon_power: float = setting(7.0, "the one that explores least has epsilon to the power of 1 + this", least=0)
    capacity: int = setting(100_000, "transitions in the replay", least="minibatch")
    alpha: float = setting(0.6, "power of the errors by which transitions are drawn; 0 draws evenly", least=0)
    beta: float = setting(0.4, "how far weights correct for that at first; all the way at the end", least=0, most=1)
    replay: Literal["local", "actor"] = setting("local", "where the replay is: in the learner's process or in an actor")
    save_replay_mb: int = setting(64, "a larger replay is not part of checkpoints", least=0)
    hidden: tuple[int, ...] = setting((64, 64), "sizes of the hidden layers", least=1)
    activation: Literal["tanh", "relu"] = setting("relu", "tanh or relu")
    report: int = setting(1_000, "steps in a row of the history", least=1)
    threads: int = setting(1, "threads of the learner; sums depend on it", least=1)


class Learner:
    """The network, its older copy for targets, and its optimiser: improves a policy from samples of the replay."""

    def __init__(self, policy: Policy, options: DQNOptions, seed: int) -> None:
        self.policy, self.options = policy, options
        actions = policy.network.outputs
        self.net = torch_policy.critic(policy.network, seed, actions + 1)
        self.target = torch_policy.critic(policy.network, seed, actions + 1)
        self.optimizer = torch_policy.Adam(self.net.parameters(), options.learning_rate, eps=1e-8)
        self.updates, self.owed, self._published = 0, 0.0, -1
        # The last output is the value of the state: Q = outputs @ mix.
        centred = torch.eye(actions) - 1 / actions
        rows = [centred, torch.ones(1, actions)] if options.duelling else [torch.eye(actions), torch.zeros(1, actions)]
        self._mix = torch.cat(rows)

    def learn(self, sample: Sample) -> tuple[np.ndarray, dict[str, float]]:
        """Take the gradient steps of a round; the errors of its transitions, and numbers for the history."""
        options, drawn, mix = self.options, sample.transitions, self._mix
        with torch.no_grad():
            following = torch_policy.tensor(self.policy.inputs(drawn.next_observations))
            values = self.target(following) @ mix
            best = (self.net(following) @ mix if options.double else values).argmax(1, keepdim=True)
            future = values.gather(1, best)[:, 0]
            targets = torch_policy.tensor(drawn.rewards) + torch_policy.tensor(drawn.discounts) * future
            # A sample is in the order of the replay: each minibatch takes one of every `round` transitions.
            parts = [
                column.unflatten(0, (-1, options.round)).transpose(0, 1).contiguous()
                for column in (
                    torch_policy.tensor(self.policy.inputs(drawn.observations)),
                    mix.T[torch_policy.tensor(drawn.actions)],
                    targets,
                    torch_policy.tensor(sample.weights),
                )
            ]
        errors = []
        for inputs, chosen, goals, weights in zip(*parts, strict=True):
            outputs = self.net(inputs)
            with torch.no_grad():
                error = (outputs * chosen).sum(1).sub_(goals)
                slope = error.clamp(-1, 1).mul_(weights).div_(options.minibatch)  # of the Huber loss
                gradient = chosen * slope.unsqueeze(1)
            self.optimizer.step(outputs, slopes=gradient)
            errors.append(error)
        updates, self.updates = self.updates, self.updates + options.round
        self.owed -= options.round
        if self.updates // options.target_every > updates // options.target_every:
            self.target.load_state_dict(self.net.state_dict())
        found = torch.stack(errors).T.flatten().numpy()
        return found, {"error": float(np.abs(found).mean()), "value": float(future.mean())}

    def greedy(self) -> Policy:
        """Give the newest policy as it is used after the training: the lanes' rates of exploring are theirs alone."""
        return replace(self.newest(), epsilon=None)

    def newest(self) -> Policy:
        """Give the policy with the newest weights."""
        if self._published != self.updates:
            weights, mix = torch_policy.weights(self.net), self._mix.numpy()
            weights |= {name: mix.T @ weights[name] for name in ("head.weight", "head.bias")}
            self.policy, self._published = self.policy.with_weights(weights), self.updates
        return self.policy

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything that `restore` needs, as arrays and as what goes into JSON."""
        tensors = torch_policy.state({"net": self.net, "target": self.target}, adam=self.optimizer)
        return tensors, {"updates": self.updates, "owed": self.owed, "version": self.policy.version}

    def restore(self, tensors: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        torch_policy.restore(tensors, {"net": self.net, "target": self.target}, adam=self.optimizer)
        self.updates, self.owed = meta["updates"], meta["owed"]
        self.policy = replace(self.policy, version=meta["version"])


class Memory:
    """The replay of a run, in this process or in an actor. An actor that dies is made again."""

    def __init__(self, options: DQNOptions, run: Run) -> None:
        self._options, self._run = options, run
        self._in_actor = options.replay == "actor"
        self.length, self._width, self._deaths = 0, 0, 0  # transitions, bytes of each, deaths in a row
        self._replay: Any = None
        self._next: Any = None
        self._make(run.state["tensors"] if run.state is not None else {})

    def add(self, transitions: Transitions) -> None:
        """Keep transitions."""
        self._width = sum(array.nbytes for array in vars(transitions).values()) // max(len(transitions), 1)
        self.length = min(self.length + len(transitions), self._options.capacity)
        self._call("add", transitions)

    def sample(self, size: int, beta: float) -> Sample | None:
        """Draw transitions, in advance also those of the next call; None if the replay was lost."""
        drawn = self._call("sample", size, beta) if self._next is None else self._next
        sample: Sample | None = self._result(drawn)
        self._next = None if sample is None else self._call("sample", size, beta)
        return sample

    def update(self, indices: np.ndarray, errors: np.ndarray) -> None:
        """Give transitions the priorities of their new errors."""
        self._call("update", indices, errors)

    def state(self) -> dict[str, np.ndarray]:
        """What a checkpoint keeps of the replay: all of it, or nothing if it is large."""
        if self.length * self._width > self._options.save_replay_mb * 1_000_000:
            return {}
        while (state := self._result(self._call("state"))) is None:
            pass
        return {f"replay.{name}": array for name, array in state.items()}

    def close(self) -> None:
        """End the actor."""
        if self._in_actor:
            skate.kill(self._replay)

    def _call(self, method: str, *arguments: Any) -> Any:
        bound = getattr(self._replay, method)
        return bound.remote(*arguments) if self._in_actor else bound(*arguments)

    def _result(self, result: Any) -> Any:
        """Wait for a result of the actor; None if it has died, and was made again."""
        if not self._in_actor:
            return result
        try:
            result = skate.get(result)
        except (skate.exceptions.ActorError, skate.exceptions.ObjectLostError):
            self._deaths += 1
            if self._deaths == DEATHS_MAX:
                raise
            with contextlib.suppress(skate.exceptions.SkateError):
                skate.kill(self._replay)
            file = self._run.path / "checkpoint.safetensors"
            self._make(files.read_tensors(file)[0] if file.exists() else {})
            has = f"with the {self.length:,} transitions of the last checkpoint" if self.length else "empty"
            self._run.not_repeatable(f"the replay died at {self._run.steps:,} steps and was made again {has}")
            return None
        self._deaths = 0
        return result

    def _make(self, tensors: dict[str, np.ndarray]) -> None:
        kind: Any = skate.remote(Prioritised).options(num_cpus=0).remote if self._in_actor else Prioritised
        self._replay = kind(self._options.capacity, self._run.fresh_seed, self._options.alpha)
        self._next = None
        kept = files.part(tensors, "replay")
        self.length = len(kept.get("rewards", ()))
        if kept:
            restored = self._call("restore", kept)
            if self._in_actor:
                with contextlib.suppress(skate.exceptions.ActorError):  # the next call finds it dead, and counts that
                    skate.get(restored)  # an error if it does not fit, such as another capacity


def train(
    env: Any,
    steps: float = 100_000,
    *,
    seed: int = 0,
    options: DQNOptions | None = None,
    path: str | None = None,
    resume: str | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    evaluate_every: float = 0,
    stop_at: float | None = None,
    **settings: Any,
) -> Run:
    """Train a policy with DQN for a number of steps. Settings of `DQNOptions` can be given by name.

    Every `evaluate_every` steps 20 episodes are played; `stop_at` ends the run when their mean reaches it.

    >>> run = train("CartPole-v1", steps=50_000, seed=1, learning_rate=3e-4)
    >>> action = run.policy.act(observation)
    """
    chosen = choose(DQNOptions, options, settings, resume)
    how = (path, resume, callbacks, progress, evaluate_every, stop_at)
    started = Run.begin("dqn", env, chosen, steps, seed, *how)
    with started as run, run.simulators(chosen.lanes, chosen.envs) as sims, torch_policy.threads(chosen.threads):
        policy = Policy.create(
            sims.observation_space,
            sims.action_space,
            hidden=chosen.hidden,
            activation=chosen.activation,
            head="q",
            seed=run.seed,
        )
        rates = chosen.epsilon ** np.linspace(1, 1 + chosen.epsilon_power, sims.total)
        learner = Learner(replace(policy, epsilon=rates), chosen, run.seed)
        if run.state is not None:
            run.check_network(policy)
            learner.restore(**run.state)
        if not chosen.ordered:
            run.not_repeatable("blocks were taken as they finished")

        def newest() -> Policy | None:
            return learner.newest() if learner.updates else None  # None acts at random

        stream = sims.stream(newest, ahead=chosen.ahead, fragment=chosen.fragment, ordered=chosen.ordered)
        with contextlib.closing(Memory(chosen, run)) as memory:
            while run.more():
                iterate(run, stream, learner, memory)
                if run.due():
                    tensors, meta = learner.state()
                    run.checkpoint(learner.greedy(), tensors | memory.state(), meta)
        run.finish(learner.greedy())
    return run


def iterate(run: Run, stream: Iterator[Block], learner: Learner, memory: Memory) -> None:
    """Take blocks, and the gradient steps that go with them, for one row of the history."""
    options, steps = learner.options, 0
    returns: list[float] = []
    numbers: dict[str, float] = {}
    beta = 1 - run.left * (1 - options.beta)
    while steps < options.report:
        block = next(stream)
        steps += block.steps
        returns.extend(block.episode_returns)
        memory.add(n_step(block, options.n_step, options.gamma))
        if memory.length >= min(options.warm_up, options.capacity):
            learner.owed += block.steps * options.ratio
        while learner.owed >= options.round and memory.length >= min(options.warm_up, options.capacity):
            sample = memory.sample(options.round * options.minibatch, beta)
            if sample is not None:
                errors, numbers = learner.learn(sample)
                memory.update(sample.indices, errors)
    numbers |= {"updates": learner.updates, "replay": memory.length}
    run.log(run.steps + steps, returns=returns, policy=learner.greedy(), **numbers)


if __name__ == "__main__":
    from skate.rl.command import train_main

    train_main("dqn")
