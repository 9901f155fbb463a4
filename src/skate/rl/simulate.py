"""Simulating: lanes of environments that run a policy and return blocks of what happened.

    driver                            lane 0 … lane n (actors)
    put(policy)  ── reference ──→     read the policy where it lies, step the environments T times
    Batch        ←── block ─────      observations, actions, rewards … in shared memory

A message carries a whole block, never a step: on cheap environments a message a step costs more than the simulation.

In ordered sampling everything follows from (environment, lanes, envs, seed): environment number i draws its seeds and
the noise of its actions from generators of its own, gives the same number of steps in every round, and has its column
in the batch. So the data is the same on one CPU and on a hundred. A slow lane delays the round. In unordered sampling
and in a stream blocks are taken as they finish, and which ones those are depends on the machine.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import skate
from skate.rl.block import Batch, Block
from skate.rl.env import EnvError, name_of, portable
from skate.rl.lane import Lane
from skate.rl.options import whole
from skate.rl.policy import Network, Policy

CLOSED = "these simulators are closed: make new ones."
#: A lane that dies this many times without finishing anything is given up.
DEATHS_MAX = 3

_LOST = (skate.exceptions.ActorDiedError, skate.exceptions.ActorUnavailableError, skate.exceptions.ObjectLostError)


class _Session:
    """The session of simulators in a program that has not started one: it ends with the last of them."""

    def __init__(self) -> None:
        self._number, self._users = 0, 0

    def enter(self) -> int:
        """Begin to use the session, and start one if there is none; its number, or 0 if it is the program's own."""
        if not skate.is_initialized():
            skate.init()
            self._number, self._users = self._number + 1, 0
        elif not self._users:
            return 0
        self._users += 1
        return self._number

    def leave(self, number: int) -> None:
        if number == self._number and self._users:
            self._users -= 1
            if not self._users and skate.is_initialized():
                skate.shutdown()


_session = _Session()


class Simulators:
    """Lanes of environments: each lane is an actor with `envs` environments, and runs policies in them.

    `env` is an id, a gymnasium spec, or a factory of an `Env` or a `VectorEnv`. `lanes` and `envs` do not depend on the
    machine, because the data follows from them. With `envs=None` the lanes are for `evaluate` alone, and a factory may
    make vector environments of any size. Each lane uses `threads` threads for numerics.

    >>> with Simulators("CartPole-v1", lanes=2, envs=8, seed=1) as sims:
    ...     policy = Policy.create(sims.observation_space, sims.action_space)
    ...     batch = sims.sample(policy, steps=1_000)
    ...     batch.rewards.shape
    (63, 16)
    """

    def __init__(
        self, env: Any, *, lanes: int = 4, envs: int | None = 8, seed: int = 0, threads: int = 1, restart: int = 0
    ) -> None:
        self._only_plays, envs = envs is None, whole("envs", 1 if envs is None else envs, 1)
        lanes, threads = whole("lanes", lanes, 1), whole("threads", threads, 1)
        seed = whole("seed", seed, 0)
        self.env, self.lanes, self.envs, self.seed, self._threads = portable(env), lanes, envs, seed, threads
        self._session = _session.enter()
        self._remote = skate.remote(Lane).options(num_cpus=0, scheduling_strategy="SPREAD")
        self._restarts = [restart] * lanes
        self._deaths = [0] * lanes
        self._first_restart = restart
        self._actors: list[Any] = []
        self._sent: tuple[Policy | None, Any] = (None, None)
        self._pending: dict[Any, tuple[int, str, tuple[Any, ...]]] = {}
        self._spaces: tuple[Any, Any] | None = None
        self._network: Network | None = None
        try:
            for lane in range(lanes):
                self._actors.append(self._start(lane))
        except BaseException:
            self.close()
            raise

    @property
    def total(self) -> int:
        """How many environments there are in all lanes."""
        return self.lanes * self.envs

    @property
    def restarts(self) -> int:
        """How many times a lane was started again. Above 0, the data is no longer what the seed alone would give."""
        return sum(self._restarts) - self._first_restart * self.lanes

    @property
    def observation_space(self) -> Any:
        """The observation space of one environment."""
        return self._described()[0]

    @property
    def action_space(self) -> Any:
        """The action space of one environment."""
        return self._described()[1]

    @property
    def vector(self) -> bool:
        """Whether the environments come as a vector, and are not stepped one by one."""
        found: bool = self._take(self._call(0, "is_vector"))
        return found

    def sample(
        self,
        policy: Policy | None,
        *,
        steps: int | None = None,
        episodes: int | None = None,
        ordered: bool = True,
        fragment: int = 64,
    ) -> Batch:
        """Simulate with a policy (None: random actions): `steps` time steps of all environments together, rounded up,
        or `episodes` whole episodes.

        Vector environments that reset themselves in a step of its own have no transition there (`batch.mask`), so
        `batch.steps` may be less. Ordered, every environment gives the same number of steps, and the result is
        repeatable. With `ordered=False`
        lanes return blocks of `fragment` steps, which are taken as they finish until there are enough; what is under
        way then is part of the next call's batch, and `block.version` says which policy made each. That is not
        repeatable. Whole episodes are always ordered: taken as they finish, short ones would be too many.
        """
        if (steps is None) == (episodes is None):
            raise TypeError("sample() needs either steps= or episodes=.")
        steps = None if steps is None else whole("steps", steps, 1)
        episodes = None if episodes is None else whole("episodes", episodes, 1)
        fragment = whole("fragment", fragment, 1)
        if steps is not None and not ordered:
            return self._unordered(policy, steps, fragment)
        method, amount = ("run", steps) if steps is not None else ("episodes", episodes)
        assert amount is not None
        each = -(-amount // self.total)
        self._drop_pending()
        calls = [self._call(lane, method, self._reference(policy), each) for lane in range(self.lanes)]
        blocks = [self._take(ref) for ref in calls]
        return Batch.join(_same_length(blocks))

    def stream(
        self, policy: Callable[[], Policy | None], *, ahead: int = 2, fragment: int = 64, ordered: bool = False
    ) -> Iterator[Block]:
        """Simulate without end: give blocks as they finish, whichever lane they come from.

        Each lane has `ahead` blocks to do, so it never waits for the reader. `policy()` is asked for the newest policy
        whenever a lane gets its next block to do; `block.version` says which one made a block. Not repeatable, unless
        `ordered` takes the blocks of the lanes in turn: a slow lane then delays the others.
        """
        ahead, fragment = whole("ahead", ahead, 1), whole("fragment", fragment, 1)
        if not callable(policy):
            raise TypeError("stream() takes a function that returns the newest policy, such as `lambda: policy`.")
        for turn in itertools.count():
            self._top_up(policy, ahead, fragment)  # sample() between two blocks gives up what was under way
            yield self._next_block(policy, ahead, fragment, turn % self.lanes if ordered else None)

    def evaluate(self, policy: Policy, *, episodes: int = 100, seed: int = 0, greedy: bool = True) -> Score:
        """Play whole episodes in environments of their own; episode k is seeded by (seed, k).

        Environments that exist only as a vector take one seed for all of them. Their episodes depend on `lanes` too.
        """
        episodes, seed = whole("episodes", episodes, 1), whole("seed", seed, 0)
        if policy is None:
            raise TypeError("evaluate() needs a policy; sample(None, episodes=...) plays with random actions.")
        seeds = np.random.SeedSequence(seed).generate_state(episodes) >> 1
        shares = [share.tolist() for share in np.array_split(seeds, self.lanes) if len(share)]
        calls = [self._call(lane, "play", self._reference(policy), share, greedy) for lane, share in enumerate(shares)]
        played = [self._take(ref) for ref in calls]
        returns = np.array([value for returns, _ in played for value in returns])
        lengths = np.array([value for _, lengths in played for value in lengths])
        return Score(float(returns.mean()), float(returns.std()), returns, lengths)

    def threads(self) -> list[dict[str, int]]:
        """Give the number of threads that each numeric library uses, lane by lane."""
        return [self._take(self._call(lane, "threads")) for lane in range(self.lanes)]

    def close(self) -> None:
        """End the lanes, and the session if it was started here."""
        for actor in self._actors:
            skate.kill(actor)
        self._actors, self._pending = [], {}
        if self._session:
            number, self._session = self._session, 0
            _session.leave(number)

    def __enter__(self) -> Simulators:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _described(self) -> tuple[Any, Any]:
        if self._spaces is None:
            self._spaces = self._take(self._call(0, "describe"))
        return self._spaces

    def _reference(self, policy: Policy | None) -> Any:
        """Store a policy once, however many lanes and calls use it."""
        if not self._actors:
            raise RuntimeError(CLOSED)  # before anything is stored, which would begin a session
        if policy is None:
            return None
        if self._sent[0] is not policy:
            self._check(policy)
            self._sent = policy, skate.put(policy)
        return self._sent[1]

    def _check(self, policy: Policy) -> None:
        """Raise an error unless this is a policy for environments of this kind."""
        if not isinstance(policy, Policy):
            raise TypeError(
                f"a policy is a skate.rl.Policy, or None for random actions; this is a {type(policy).__name__}."
            )
        if policy.network is self._network:
            return
        policy.network.check_env(*self._described(), name_of(self.env))
        self._network = policy.network

    def _unordered(self, policy: Policy | None, steps: int, fragment: int) -> Batch:
        blocks: list[Block] = []
        self._top_up(lambda: policy, 1, fragment)
        while sum(block.steps for block in blocks) < steps:
            blocks.append(self._next_block(lambda: policy, 1, fragment))
        return Batch.join(blocks)

    def _top_up(self, policy: Callable[[], Policy | None], ahead: int, fragment: int) -> None:
        if any((method, *arguments[-1:]) != ("run", fragment) for _, method, arguments in self._pending.values()):
            self._drop_pending()  # blocks of another length cannot be joined with these
        under_way = [lane for lane, _, _ in self._pending.values()]
        for _ in range(ahead):
            for lane in range(self.lanes):
                if under_way.count(lane) < ahead:
                    self._call(lane, "run", self._reference(policy()), fragment)
                    under_way.append(lane)

    def _next_block(
        self, policy: Callable[[], Policy | None], ahead: int, fragment: int, lane: int | None = None
    ) -> Block:
        if not self._actors:
            raise RuntimeError(CLOSED)
        awaited = [ref for ref, (other, _, _) in self._pending.items() if lane in (None, other)]
        ready = awaited[0] if lane is not None else skate.wait(awaited, num_returns=1)[0][0]
        lane = self._pending[ready][0]
        block: Block = self._take(ready)
        under_way = sum(other == lane for other, _, _ in self._pending.values())
        for _ in range(ahead - under_way):
            self._call(lane, "run", self._reference(policy()), fragment)
        return block

    def _drop_pending(self) -> None:
        for ref in self._pending:
            skate.cancel(ref)
        self._pending = {}

    def _start(self, lane: int) -> Any:
        about = lane, self.envs, self.seed, self._restarts[lane], self._threads
        return self._remote.remote(self.env, *about, only_plays=self._only_plays)

    def _call(self, lane: int, method: str, *arguments: Any) -> Any:
        if not self._actors:
            raise RuntimeError(CLOSED)
        ref = getattr(self._actors[lane], method).remote(*arguments)
        self._pending[ref] = lane, method, arguments
        return ref

    def _take(self, ref: Any) -> Any:
        """Wait for a call's result; start its lane again, and repeat the call, if the lane has died."""
        while True:
            try:
                result = skate.get(ref)
            except skate.exceptions.TaskError as error:
                self._pending.pop(ref)
                raise_env_error(error)
                raise
            except _LOST as error:
                ref = self._replace(self._pending[ref][0], error)[ref]
            else:
                lane, _, _ = self._pending.pop(ref)
                self._deaths[lane] = 0
                return result

    def _replace(self, lane: int, error: BaseException) -> dict[Any, Any]:
        """Start a lane again. Its calls are repeated by the new one, in their order: by the old references, the new."""
        raise_env_error(error.__cause__)
        self._deaths[lane] += 1
        if self._deaths[lane] >= DEATHS_MAX:
            output = getattr(error, "last_output", "").strip()
            said = f"\n  its last output:\n{_indented(output)}" if output else ""
            raise EnvError(
                f"{name_of(self.env)}: lane {lane} died {DEATHS_MAX} times in a row without finishing anything.\n"
                f"  why:  {getattr(error, 'reason', '') or str(error).splitlines()[0]}{said}"
            ) from error
        self._restarts[lane] += 1
        self._actors[lane] = self._start(lane)
        repeated = {}
        for ref in [ref for ref, (other, _, _) in self._pending.items() if other == lane]:
            _, method, arguments = self._pending.pop(ref)
            repeated[ref] = self._call(lane, method, *arguments)
        return repeated


@dataclass(frozen=True, eq=False, repr=False)
class Score:
    """Returns of whole episodes."""

    mean: float
    std: float
    returns: np.ndarray
    lengths: np.ndarray

    def __str__(self) -> str:
        return f"{self.mean:.4g} ± {self.std:.3g} over {len(self.returns)} episodes"

    def __repr__(self) -> str:
        return f"<Score {self}>"


def evaluate(
    policy: Policy, env: Any, *, episodes: int = 100, seed: int = 0, greedy: bool = True, lanes: int = 2
) -> Score:
    """Play whole episodes with a policy and give their returns; episode k is seeded by (seed, k).

    >>> print(evaluate(policy, "CartPole-v1", episodes=20, seed=7))
    500 ± 0 over 20 episodes
    """
    with Simulators(env, lanes=lanes, envs=None, seed=seed) as sims:
        return sims.evaluate(policy, episodes=episodes, seed=seed, greedy=greedy)


def _same_length(blocks: list[Block]) -> list[Block]:
    """Make blocks of whole episodes equally long, with steps that the mask leaves out."""
    longest = max(len(block.rewards) for block in blocks)
    return [block.padded(longest) for block in blocks]


@contextlib.contextmanager
def env_errors(env: Any) -> Iterator[None]:
    """Errors of environments in tasks and actors are raised here as themselves; so is a task that kept dying."""
    try:
        yield
    except skate.exceptions.TaskError as error:
        raise_env_error(error)
        if isinstance(error.cause, skate.exceptions.WorkerCrashedError):
            raise EnvError(f"{name_of(env)}: {error.cause}") from None
        raise
    except skate.exceptions.WorkerCrashedError as error:
        raise EnvError(f"{name_of(env)}: {error}") from None


def raise_env_error(error: BaseException | None) -> None:
    """Raise what an environment did wrong as if it had been done here, without the way that the error took."""
    if isinstance(error, skate.exceptions.TaskError) and isinstance(error.cause, EnvError):
        raise EnvError(str(error.cause)) from None


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.strip().splitlines())
