"""Evolution strategies (Salimans et al. 2017, https://arxiv.org/abs/1703.03864).

    repeat:  draw directions; play one episode with the weights moved along each of them, and one along its opposite
             rank all episodes by their returns
             move the weights along the sum of the directions, each weighted by the ranks of its two episodes

A direction is a slice of a table of noise, which is stored once and which every process reads where it lies. So what
tells two episodes apart is a number, and so is what they give. These numbers go through a tree of actors, as in the
paper of Ray (Moritz et al. 2018, section 5.3.1):

    driver                aggregators (actors)                  tasks, on every CPU of the cluster
    weights  ─────────→   split their share into chunks  ────→  play a chunk of episodes side by side
    ranks    ←─────────   returns of their share         ←────  returns
             ─────────→   sum their directions, weighted
    Adam     ←─────────   one sum each

The driver exchanges two messages with each aggregator in an iteration, however many episodes there are.

Departures from the two papers:
- Equal returns share the mean of their ranks: where many episodes reach the highest return, their order says nothing.
- Policies act greedily. Weights begin orthogonal, the last layer's small. Episodes are not cut by a limit that adapts.
- Observations are scaled (`normalise`) by the statistics of all of them, not of a sample; images are not scaled.
- The two episodes of a direction have one seed; in vector environments a chunk has one. The tree has one level.

The weights follow from (options, seed), bit for bit, on any number of CPUs of one kind; a chunk whose process is killed
is played again from the same seeds. Environments of EnvPool are the exception: they take seeds only when they are made.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

import skate
from skate.rl.env import Loop, blamed, make_envs, not_finite, wrong
from skate.rl.lane import EPISODE_STEPS_MAX, endless
from skate.rl.options import choose, setting
from skate.rl.policy import Policy
from skate.rl.run import Callback, Run
from skate.rl.simulate import env_errors

#: Environments that do not come as a vector are stepped one by one: with more of them side by side nothing is gained.
SINGLE_ENVS_MAX = 8


@dataclass(frozen=True)
class ESOptions:
    """Settings of evolution strategies. The defaults suit small control problems."""

    directions: int = setting(64, "directions in an iteration, with two episodes each", least=1)
    sigma: float = setting(0.1, "how far weights are moved along a direction", above=0)
    learning_rate: float = setting(0.05, "step size of Adam", above=0, most=1_000)
    weight_decay: float = setting(0.0, "how strongly weights are pulled to zero", least=0)
    hidden: tuple[int, ...] = setting((32, 32), "sizes of the hidden layers", least=1)
    activation: Literal["tanh", "relu"] = setting("tanh", "tanh or relu")
    normalise: bool = setting(False, "scale observations by their mean and deviation")
    noise: int = setting(4_000_000, "numbers in the table of noise", least=2)
    tree: int = setting(2, "aggregators between the driver and the tasks; 0: the driver does their work", least=0)
    chunk: int = setting(32, "directions in a task at most; fewer in the last ones of an iteration", least=1)
    envs: int = setting(64, "environments side by side in a task; 8 at most if they do not come as a vector", least=1)


class Played(NamedTuple):
    """What came of a chunk, of an aggregator's share, or of a whole iteration."""

    returns: np.ndarray  #: [directions, 2]: of the episode along each direction, and along its opposite
    steps: int
    seconds: float  #: CPU seconds of simulating
    moments: np.ndarray  #: [3, *shape]: number, sum and sum of squares of observations; empty if they are not scaled

    @classmethod
    def joined(cls, parts: Sequence[Played]) -> Played:
        """Put parts together in their order."""
        returns, steps, seconds, moments = zip(*parts, strict=True)
        return cls(np.concatenate(returns), sum(steps), sum(seconds), sum(moments[1:], moments[0]))


def draw(seed: int, iteration: int, options: ESOptions, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw where in the table the directions of an iteration begin, and the seeds of their episodes."""
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(iteration,)))
    return rng.integers(options.noise - size + 1, size=options.directions), rng.integers(2**31, size=options.directions)


def chunks(first: int, last: int, largest: int, smallest: int) -> Iterator[tuple[int, int]]:
    """Split directions into chunks that get smaller towards the end, so that no CPU waits long for others."""
    while first < last:
        size = min(last - first, largest, max(smallest, (last - first) // 8))
        yield first, first + size
        first += size


def centred_ranks(returns: np.ndarray) -> np.ndarray:
    """Replace returns by their ranks, from -0.5 for the lowest to 0.5 for the highest; equal ones share theirs."""
    _, places, counts = np.unique(returns, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts + 1) / 2
    return (ranks[places].reshape(returns.shape) / (returns.size - 1) - 0.5).astype(np.float32)


def named(policy: Policy, flat: np.ndarray) -> dict[str, np.ndarray]:
    """View a vector of weights, or several side by side, by name. Greedy policies need no deviation of actions."""
    views, start = {}, 0
    for name, array in policy.weights.items():
        if name != "log_std":
            views[name] = flat[..., start : start + array.size].reshape(*flat.shape[:-1], *array.shape)
            start += array.size
    return views


class Player:
    """Plays chunks in one process: environments side by side, each with a policy of its own."""

    def __init__(self, env: Any, policy: Policy, options: ESOptions, seed: int, size: int) -> None:
        threadpool_limits(1)
        self.env, self._policy, self._options, self._seed = env, policy, options, seed
        self._envs: Any = make_envs(env, options.envs, seed, any_size=True)
        self._single = isinstance(self._envs, Loop)
        self._moved = np.zeros((self._envs.count, size), np.float32)
        self._weights = named(policy, self._moved)

    def play(self, table: np.ndarray, centre: Any, iteration: int, first: int, last: int) -> Played:
        """Play both episodes of each direction from `first` to before `last`, around the weights in `centre`."""
        began, envs, moved, (weights, normaliser) = time.process_time(), self._envs, self._moved, centre
        policy = replace(self._policy, normaliser=normaliser)
        starts, seeds = draw(self._seed, iteration, self._options, moved.shape[1])
        episodes = 2 * (last - first)
        returns, lengths = np.zeros(episodes + 1), np.zeros(episodes + 1, np.int64)
        moments = np.zeros((0 if normaliser is None else 3, *envs.shape))
        playing = np.minimum(np.arange(envs.count), episodes)  # the episode in each slot; after the last one: none
        turns, live, waiting = 0, list(range(min(envs.count, episodes))), iter(range(envs.count, episodes))
        observations = np.zeros((envs.count, *envs.shape), envs.dtype)
        moved[:] = 0.0  # what slots without an episode do may not depend on what was played before

        def begin(slot: int, episode: int) -> None:
            playing[slot] = episode
            start, sign = starts[first + episode // 2], -1.0 if episode % 2 else 1.0
            np.multiply(table[start : start + moved.shape[1]], sign * self._options.sigma, out=moved[slot])
            moved[slot] += weights
            if self._single:
                observations[slot] = envs.reset_one(slot, int(seeds[first + episode // 2]))

        for slot in live:
            begin(slot, slot)
        if not self._single:
            observations = envs.reset([int(seeds[(first + i // 2) % len(seeds)]) for i in range(envs.count)])
        while live:
            if len(moments):
                seen = observations[live].astype(np.float64)
                moments += np.stack([np.full(envs.shape, float(len(seen))), seen.sum(0), (seen * seen).sum(0)])
            actions = policy.to_env(policy.choose(self._outputs(policy, observations), None))
            if self._single:
                rewards, over, real = np.zeros(envs.count), np.zeros(envs.count, bool), True
                choices = actions if actions.ndim > 1 else actions.tolist()
                for slot in live:
                    observations[slot], rewards[slot], terminated, truncated = envs.step_one(slot, choices[slot])
                    over[slot] = terminated or truncated
            else:
                observations, rewards, terminated, truncated, real, _ = envs.step(actions)
                over = terminated | truncated
            returns[playing] += rewards * real
            lengths[playing] += real
            for slot in [slot for slot in live if over[slot]] if over.any() else ():
                if (episode := next(waiting, None)) is not None:
                    begin(slot, episode)
                else:
                    live.remove(slot)
                    playing[slot] = episodes
            if (turns := turns + 1) % EPISODE_STEPS_MAX == 0 and lengths[:-1].max() >= EPISODE_STEPS_MAX:
                raise endless()
        if not np.isfinite(returns[:-1]).all():
            raise wrong(envs.one(0), "step", "an episode has a return that is not a finite number, and so no rank")
        return Played(returns[:-1].reshape(-1, 2), int(lengths[:-1].sum()), time.process_time() - began, moments)

    def _outputs(self, policy: Policy, observations: np.ndarray) -> np.ndarray:
        """Run each policy on the observation of its own environment."""
        weights, network = self._weights, policy.network
        if not_finite(observations):
            i, said = next((i, said) for i, own in enumerate(observations) if (said := not_finite(own)))
            raise wrong(self._envs.one(i), "step", f"environment {i} gave an observation that is {said}")
        if network.convolutions:
            own = ({name: array[i] for name, array in weights.items()} for i in range(len(observations)))
            return np.concatenate([replace(policy, weights=w).outputs(x[None]) for w, x in zip(own, observations)])
        x, last = policy.inputs(observations), len(network.hidden)
        for i in range(last + 1):
            layer = f"layers.{i}" if i < last else "head"
            x = (weights[f"{layer}.weight"] @ x[:, :, None])[:, :, 0]
            x += weights[f"{layer}.bias"]
            if i < last:
                x = np.maximum(x, 0.0, out=x) if network.activation == "relu" else np.tanh(x, out=x)
        return x


_players: dict[str, Player] = {}  #: at most one: that of the last run that this process played for


def play(job: list[Any], table: np.ndarray, centre: Any, iteration: int, first: int, last: int) -> Played:
    """Play a chunk: the task. A process keeps its environments from one chunk of a run to the next."""
    run = job[0].hex()
    if run not in _players:
        _players.clear()
        env, *others = skate.get(job[0])
        with blamed(env, 0):
            _players[run] = Player(env, *others)
    with blamed(_players[run].env, 0):
        return _players[run].play(table, centre, iteration, first, last)


class Aggregator:
    """Has a share of every iteration's directions played, and sums them up: an actor, or a part of the driver."""

    def __init__(self, job: list[Any], table: list[Any], share: list[tuple[int, int]]) -> None:
        self._job, self._table, self._share, self._play = job, table[0], share, skate.remote(play)

    def simulate(self, iteration: int, centre: list[Any]) -> Played:
        """Play the episodes of the share, chunk by chunk."""
        refs = [self._play.remote(self._job, self._table, centre[0], iteration, *chunk) for chunk in self._share]
        try:
            return Played.joined(skate.get(refs))
        except BaseException:
            for ref in refs:  # after an error or Ctrl-C the others would be played to their end
                skate.cancel(ref)
            raise

    def add_up(self, starts: np.ndarray, gains: np.ndarray, size: int) -> np.ndarray:
        """Sum directions, each times its gain, in their order."""
        table, total = skate.get(self._table), np.zeros(size, np.float32)
        for start, gain in zip(starts.tolist(), gains, strict=True):
            total += gain * table[start : start + size]
        return total


class Strategy:
    """What is learnt: weights, Adam's means, statistics of observations. `improve` does one iteration."""

    def __init__(self, env: Any, policy: Policy, options: ESOptions, seed: int, single: bool) -> None:
        self.policy, self._options, self._seed, self._iteration = policy, options, seed, 0
        self._weights = np.concatenate([array.ravel() for name, array in policy.weights.items() if name != "log_std"])
        self._mean, self._square = np.zeros_like(self._weights), np.zeros_like(self._weights)
        self._moments = np.zeros(0 if policy.normaliser is None else (3, *policy.normaliser.mean.shape))
        count, shares, largest, size = options.directions, max(options.tree, 1), options.chunk, self._weights.size
        if options.tree > count or options.noise < 2 * size:
            limits = f"tree is at most {count}, the number of directions, and noise at least {2 * size:,}"
            raise ValueError(f"tree={options.tree} with noise={options.noise:,} cannot be: {limits}.")
        self._shares = [(count * i // shares, count * (i + 1) // shares) for i in range(shares)]
        split = [list(chunks(*share, largest, 1 if single else largest)) for share in self._shares]
        envs = min(options.envs, 2 * largest, SINGLE_ENVS_MAX if single else options.envs)
        job = [skate.put((env, policy, replace(options, envs=envs), seed, size))]
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
        table = [skate.put(rng.standard_normal(options.noise, dtype=np.float32))]
        remote = skate.remote(Aggregator).options(num_cpus=0, max_restarts=3, max_task_retries=3)
        self._tree: list[Any] = [(remote.remote if options.tree else Aggregator)(job, table, share) for share in split]

    def improve(self) -> Played:
        """Play the episodes of an iteration, and improve the policy from their returns."""
        self._iteration += 1
        policy, options, size = self.policy, self._options, self._weights.size
        centre = [skate.put((self._weights, policy.normaliser))]
        played = Played.joined(self._ask("simulate", [(self._iteration, centre)] * len(self._tree)))
        ranks = centred_ranks(played.returns)
        gains = ranks[:, 0] - ranks[:, 1]
        starts, _ = draw(self._seed, self._iteration, options, size)
        sums = self._ask("add_up", [(starts[i:j], gains[i:j], size) for i, j in self._shares])
        gradient = sum(sums[1:], sums[0]) / np.float32(2 * options.directions)
        self._climb(gradient - np.float32(options.weight_decay) * self._weights)
        if (normaliser := policy.normaliser) is not None:
            self._moments = self._moments + played.moments
            _, mean, square = self._moments / self._moments[0]
            variance = np.maximum(square - mean**2, 0.0).astype(np.float32)
            normaliser = replace(normaliser, mean=mean.astype(np.float32), variance=variance)
        self.policy = policy.with_weights({**policy.weights, **named(policy, self._weights)}, normaliser)
        return played

    def _climb(self, gradient: np.ndarray) -> None:
        """Take a step of Adam (Kingma and Ba 2015) along the gradient."""
        self._mean = 0.9 * self._mean + 0.1 * gradient
        self._square = 0.999 * self._square + 0.001 * gradient**2
        rate = self._options.learning_rate * math.sqrt(1 - 0.999**self._iteration) / (1 - 0.9**self._iteration)
        self._weights = self._weights + rate * self._mean / (np.sqrt(self._square) + 1e-8)

    def _ask(self, method: str, arguments: list[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every aggregator with arguments of its own; the results in their order."""
        calls = [getattr(aggregator, method) for aggregator in self._tree]
        if self._options.tree:
            return skate.get([call.remote(*given) for call, given in zip(calls, arguments, strict=True)])
        return [call(*given) for call, given in zip(calls, arguments, strict=True)]

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Everything that `restore` needs."""
        adam = np.stack([self._weights, self._mean, self._square])
        return {"adam": adam, "moments": self._moments}, {"iteration": self._iteration}

    def restore(self, policy: Policy, tensors: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
        """Go on from a checkpoint, to the same numbers as without the interruption."""
        self.policy, self._iteration, self._moments = policy, meta["iteration"], tensors["moments"]
        self._weights, self._mean, self._square = tensors["adam"]


def train(
    env: Any,
    steps: float = 1_000_000,
    *,
    seed: int = 0,
    options: ESOptions | None = None,
    path: str | None = None,
    resume: str | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | None = None,
    evaluate_every: float = 0,
    stop_at: float | None = None,
    **settings: Any,
) -> Run:
    """Train a policy with evolution strategies for a number of steps. Settings of `ESOptions` can be given by name.

    Every `evaluate_every` steps 20 episodes are played; `stop_at` ends the run when their mean reaches it. Rows of
    the history have `busy`, the share of all CPUs' time that simulated, and `driver`, the driver's share of one CPU.

    >>> run = train("CartPole-v1", steps=1_000_000, seed=1, directions=128)
    """
    chosen = choose(ESOptions, options, settings, resume)
    how = (path, resume, callbacks, progress, evaluate_every, stop_at)
    started = Run.begin("es", env, chosen, steps, seed, *how)
    with started as run, run.simulators(lanes=2) as sims, env_errors(env):  # lanes evaluate; tasks simulate
        layers: dict[str, Any] = {name: getattr(chosen, name) for name in ("hidden", "activation", "normalise")}
        policy = Policy.create(sims.observation_space, sims.action_space, **layers, seed=run.seed)
        strategy = Strategy(sims.env, policy, chosen, run.seed, single=not sims.vector)
        if run.state is not None:
            run.check_network(policy)
            strategy.restore(run.policy, **run.state)
        cpus = skate.cluster_resources()["CPU"]
        while run.more():
            wall, cpu = time.perf_counter(), time.process_time()
            played = strategy.improve()
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            shares = {"busy": played.seconds / (cpus * wall), "driver": cpu / wall}
            run.log(run.steps + played.steps, returns=played.returns.ravel(), policy=strategy.policy, **shares)
            if run.due():
                run.checkpoint(strategy.policy, *strategy.state())
        run.finish(strategy.policy)
    return run


if __name__ == "__main__":
    from skate.rl.command import train_main

    train_main("es")
