"""A lane: some environments in a process of their own, and the loop that runs a policy in them.

The loop is where a simulation spends its time, so it keeps nothing but what it must: noise is drawn for a whole block
at once, returns of episodes and log-probabilities are computed from the block when it is complete.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from skate.rl import spaces
from skate.rl.block import Block
from skate.rl.env import Envs, Loop, blamed, make_envs, not_finite, wrong
from skate.rl.policy import Policy

#: Steps that are simulated at once without a policy, and drawn at once where the number of steps is not known.
CHUNK = 256
#: Episodes that are played at the same time.
PLAYERS_MAX = 64
#: An episode that is played for longer has no end: evaluations must have one.
EPISODE_STEPS_MAX = 100_000


class Tape(NamedTuple):
    """What happened in T steps of N environments, and `finals`: (t, n, last observation) of the episodes that ended."""

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    mask: np.ndarray
    log_probs: np.ndarray
    finals: list[tuple[int, int, np.ndarray]]


class Lane:
    """Some environments in a process of their own. `Simulators` makes lanes and talks to them."""

    def __init__(
        self, env: Any, index: int, envs: int, seed: int, restart: int, threads: int, only_plays: bool = False
    ) -> None:
        limit_threads(threads)
        self._env, self._index, self._seed, self._restart = env, index, seed, restart
        first = index * envs
        with blamed(env, index):
            self._envs: Envs = make_envs(env, envs, self._seed_of(first), any_size=only_plays)
            self._numbers = range(first, first + self._envs.count)
            limit_threads(threads)
            sequences = [np.random.SeedSequence(seed, spawn_key=(number, restart, 1)) for number in self._numbers]
            self._rngs = [np.random.default_rng(sequence) for sequence in sequences]
            self._next = self._envs.reset([self._seed_of(number) for number in self._numbers])
        #: Return and length so far of the episode that each environment is in.
        self._returns, self._lengths = np.zeros(self._envs.count), np.zeros(self._envs.count, np.int64)
        #: How many players were asked for, and what was made.
        self._players: tuple[int, Envs] | None = None

    def describe(self) -> tuple[Any, Any]:
        """Give the spaces of one environment."""
        return self._envs.observation_space, self._envs.action_space

    def is_vector(self) -> bool:
        """Whether the environments come as a vector, and are not stepped one by one."""
        return not isinstance(self._envs, Loop)

    def threads(self) -> dict[str, int]:
        """Give the number of threads that each numeric library uses in this process."""
        counts: dict[str, int] = {}
        for library in threadpool_info():  # there may be two of a kind: numpy and scipy have an OpenBLAS each
            api = library["internal_api"]
            counts[api] = max(counts.get(api, 0), library["num_threads"])
        if (torch := sys.modules.get("torch")) is not None:
            counts["torch"] = torch.get_num_threads()
        return counts

    def run(self, policy: Policy | None, steps: int) -> Block:
        """Simulate a fixed number of steps of every environment, from where the last call stopped."""
        began = time.process_time()
        with blamed(self._env, self._index), np.errstate(invalid="ignore", over="ignore"):  # `_block` looks for those
            if policy is None and isinstance(self._envs, Loop):
                return self._block(self._open_loop(self._envs, steps), 0, began)
            return self._block(self._closed_loop(policy, steps, 0), 0 if policy is None else policy.version, began)

    def episodes(self, policy: Policy | None, episodes: int) -> Block:
        """Simulate whole episodes, the same number in every environment, from new starts."""
        began = time.process_time()
        with blamed(self._env, self._index), np.errstate(invalid="ignore", over="ignore"):
            self._begin_again()
            block = self._block(self._closed_loop(policy, 0, episodes), 0 if policy is None else policy.version, began)
            self._begin_again()  # some have gone on into episodes of which nothing was recorded
            return block

    def play(self, policy: Policy, seeds: Sequence[int], greedy: bool) -> tuple[list[float], list[int]]:
        """Play one episode for each seed in environments of their own; returns and lengths of the episodes."""
        with blamed(self._env, self._index), np.errstate(invalid="ignore", over="ignore"):
            players = self._make_players(min(len(seeds), PLAYERS_MAX), int(seeds[0]))
            returns, lengths = [], []
            for first in range(0, len(seeds), players.count):
                some = list(seeds[first : first + players.count])
                spare = [some[0]] * (players.count - len(some))
                played = play(players, policy, some + spare, greedy)
                returns += played[0][: len(some)]
                lengths += played[1][: len(some)]
            return returns, lengths

    def _make_players(self, count: int, seed: int) -> Envs:
        if self._players is not None and self._players[0] == count:
            return self._players[1]
        if self._players is not None:
            self._players[1].close()
            self._players = None
        players = make_envs(self._env, count, seed, single=True)
        if (players.observation, players.action) != (self._envs.observation, self._envs.action):
            players.close()  # the vector environment of this id shows something else, such as stacked frames
            players = make_envs(self._env, count, seed)
        self._players = count, players
        return players

    def _begin_again(self) -> None:
        self._next = self._envs.reset()
        self._returns[:], self._lengths[:] = 0, 0

    def _seed_of(self, number: int) -> int:
        return int(np.random.SeedSequence(self._seed, spawn_key=(number, self._restart)).generate_state(1)[0] >> 1)

    def _closed_loop(self, policy: Policy | None, steps: int, episodes: int) -> Tape:
        """Step all environments together, since one run of the policy serves them all."""
        envs = self._envs
        mine = slice(self._numbers.start, self._numbers.stop)
        acting = _Random(envs.action, self._rngs) if policy is None else _Acting(policy.for_envs(mine), self._rngs)
        rows: list[tuple[np.ndarray, ...]] = []
        finals: list[tuple[int, int, np.ndarray]] = []
        chunk = steps or CHUNK
        observations = np.empty((chunk, envs.count, *envs.shape), envs.dtype)
        left = np.full(envs.count, episodes)
        t = 0
        while t < steps or (episodes and left.any()):
            if t % chunk == 0:
                acting.draw(chunk)
                if t == len(observations):
                    observations = np.concatenate([observations, np.empty_like(observations)])
            observations[t] = self._next
            action, to_env = acting(self._next, t % chunk)
            step = envs.step(to_env)
            self._next = step.observations
            real = step.real & (left > 0) if episodes else step.real
            if episodes and t > (EPISODE_STEPS_MAX + 1) * episodes:  # one step more, if a reset takes one
                raise endless()
            rows.append((action, step.rewards, step.terminated, step.truncated, real))
            for n, final in step.finals.items():
                if real[n]:
                    finals.append((t, n, final))
                    left[n] -= 1
            t += 1
        actions, rewards, terminated, truncated, mask = (np.stack(column) for column in zip(*rows, strict=True))
        log_probs = acting.log_probs(actions)
        return Tape(observations[:t], actions, rewards, terminated, truncated, mask, log_probs, finals)

    def _open_loop(self, envs: Loop, steps: int) -> Tape:
        """Run one environment after the other: random actions do not depend on what is observed."""
        acting = _Random(envs.action, self._rngs)
        acting.draw(steps)
        observations = np.empty((envs.count, steps, *envs.shape), envs.dtype)
        rewards = np.empty((envs.count, steps), np.float32)
        flags = np.zeros((2, steps, envs.count), bool)
        finals: list[tuple[int, int, np.ndarray]] = []
        for n in range(envs.count):
            actions = acting.for_env(n)
            for start in range(0, steps, CHUNK):
                part = slice(start, start + CHUNK)
                rolled = envs.roll(n, self._next[n], actions[part], observations[n, part])
                self._next[n], rewards[n, part], ends = rolled
                for t, terminated, truncated, final in ends:
                    flags[:, start + t, n] = terminated, truncated
                    finals.append((start + t, n, final))
        observations, rewards = (np.ascontiguousarray(array.swapaxes(0, 1)) for array in (observations, rewards))
        real = np.ones((steps, envs.count), bool)
        finals.sort(key=lambda final: final[:2])
        log_probs = acting.log_probs(acting.drawn)
        return Tape(observations, acting.drawn, rewards, flags[0], flags[1], real, log_probs, finals)

    def _block(self, tape: Tape, version: int, began: float) -> Block:
        """Make a block of a tape: where it is cut and what followed, and the episodes that ended."""
        self._check_numbers("a reward", tape.rewards, tape.mask)
        self._check_numbers("an observation", tape.observations, tape.mask)
        rewards, terminated = tape.rewards * tape.mask, tape.terminated & tape.mask
        truncated = tape.truncated & tape.mask
        cuts = [(t, n, final) for t, n, final in tape.finals if not terminated[t, n]]
        going_on = np.flatnonzero(tape.mask[-1] & ~(terminated[-1] | truncated[-1])).tolist()
        cuts += [(len(rewards) - 1, n, self._next[n]) for n in going_on]
        paid, lasted = rewards.cumsum(0, dtype=np.float64), tape.mask.cumsum(0)
        returns, lengths = [], []
        for t, n, _ in tape.finals:
            returns.append(paid[t, n] + self._returns[n])
            lengths.append(lasted[t, n] + self._lengths[n])
            self._returns[n], self._lengths[n] = -paid[t, n], -lasted[t, n]
        self._returns += paid[-1]
        self._lengths += lasted[-1]
        shape = self._envs.shape
        bootstrap = np.array([cut[2] for cut in cuts], self._envs.dtype).reshape(len(cuts), *shape)
        if not_finite(bootstrap):
            for t, n, last in cuts:
                self._check_one("an observation", np.asarray(last), t, n)
        return Block(
            observations=tape.observations,
            actions=tape.actions,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            mask=tape.mask,
            log_probs=tape.log_probs,
            cuts=np.array([cut[:2] for cut in cuts], np.int64).reshape(-1, 2),
            bootstrap=bootstrap,
            episode_returns=np.array(returns, np.float64),
            episode_lengths=np.array(lengths, np.int64),
            version=version,
            lane=self._index,
            seconds=time.process_time() - began,
        )

    def _check_numbers(self, what: str, array: np.ndarray, mask: np.ndarray) -> None:
        """Raise ValueError if a number is not finite: weights would silently become NaN."""
        if not_finite(array):
            odd = ~np.isfinite(array.astype(np.float32)).reshape(*mask.shape, -1).all(-1)
            for t, n in np.argwhere(odd & mask):
                self._check_one(what, array[t, n], int(t), int(n))

    def _check_one(self, what: str, numbers: np.ndarray, t: int, n: int) -> None:
        if said := not_finite(numbers):
            gave = f"environment {n} of this lane gave {what} that is {said}, in step {t} of this block"
            raise wrong(self._envs.one(n), "step", gave)


class _Acting:
    """A policy that acts for a lane during one block: its noise is drawn in one go, and its outputs are kept."""

    def __init__(self, policy: Policy, rngs: list[np.random.Generator]) -> None:
        self._policy, self._rngs = policy, rngs
        self._outputs: list[np.ndarray] = []

    def draw(self, steps: int) -> None:
        self._noise = self._policy.noise(self._rngs, steps)

    def __call__(self, observations: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        outputs = self._policy.outputs(observations)
        self._outputs.append(outputs)
        action = self._policy.choose(outputs, self._noise[t])
        to_env = self._policy.to_env(action)
        return action, action.copy() if to_env is action else to_env  # an environment may change what it gets

    def log_probs(self, actions: np.ndarray) -> np.ndarray:
        return self._policy.log_probs(np.stack(self._outputs), actions)


class _Random:
    """Actions drawn evenly from the action space, or normally where a box has no bounds."""

    def __init__(self, action: spaces.Description, rngs: list[np.random.Generator]) -> None:
        self._action, self._rngs = action, rngs
        self._start = 0 if action["kind"] == "box" else np.asarray(action["start"])

    def draw(self, steps: int) -> None:
        self.drawn = np.stack([self._draw(rng, steps) for rng in self._rngs], axis=1)

    def __call__(self, observations: np.ndarray, t: int) -> tuple[np.ndarray, np.ndarray]:
        return self.drawn[t], self.drawn[t] + self._start

    def for_env(self, n: int) -> list[Any] | np.ndarray:
        """Give the actions of one environment in the form that it takes."""
        actions = self.drawn[:, n] + self._start  # a copy: an environment may change what it gets
        return actions.tolist() if actions.ndim == 1 else actions

    def log_probs(self, actions: np.ndarray) -> np.ndarray:
        return np.zeros(actions.shape[:2], np.float32)

    def _draw(self, rng: np.random.Generator, steps: int) -> np.ndarray:
        if self._action["kind"] == "discrete":
            return rng.integers(self._action["sizes"][0], size=steps)
        if self._action["kind"] == "multi":
            return rng.integers(self._action["sizes"], size=(steps, len(self._action["sizes"])))
        size = steps, *self._action["shape"]
        dtype = np.dtype(self._action["dtype"])
        low, high = (np.array(self._action[end], dtype).reshape(size[1:]) for end in ("low", "high"))
        with np.errstate(over="ignore"):
            span = high - low
        bounded = np.isfinite(span)
        if bounded.all():
            drawn = low + span * rng.random(size, np.float32)
        else:
            even = np.where(bounded, low, 0) + np.where(bounded, span, 0) * rng.random(size, np.float32)
            drawn = np.where(bounded, even, rng.standard_normal(size, np.float32))
        return np.clip(drawn, low, high).astype(dtype, copy=False)


def limit_threads(count: int) -> None:
    """Have numeric libraries use a number of threads: those that are loaded, and those that will be."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(count)
    threadpool_limits(count)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(count)


def play(envs: Envs, policy: Policy, seeds: Sequence[int], greedy: bool) -> tuple[list[float], list[int]]:
    """Play one episode in each environment; their returns and lengths. What follows an episode is not counted."""
    observations = envs.reset(seeds)
    rngs = [np.random.default_rng(seed) for seed in seeds]
    returns, lengths = np.zeros(envs.count), np.zeros(envs.count, np.int64)
    playing = np.ones(envs.count, bool)
    while playing.any():
        noise = None if greedy else policy.noise(rngs, 1)[0]
        step = envs.step(policy.to_env(policy.choose(policy.outputs(observations), noise)))
        paid = np.where(playing, step.rewards, 0.0)
        if said := not_finite(paid):
            odd = next(n for n in range(envs.count) if not_finite(paid[n : n + 1]))
            raise wrong(envs.one(odd), "step", f"environment {odd} of this lane gave a reward that is {said}")
        returns += paid
        lengths += playing
        playing &= ~(step.terminated | step.truncated)
        if playing.any() and lengths.max() >= EPISODE_STEPS_MAX:
            raise endless()
        observations = step.observations
    return returns.tolist(), lengths.tolist()


def endless() -> ValueError:
    """Make the error for an episode that does not end."""
    return ValueError(
        f"an episode has not ended after {EPISODE_STEPS_MAX:,} steps, so it cannot be scored. "
        "Give the environment a time limit: gymnasium.wrappers.TimeLimit."
    )
