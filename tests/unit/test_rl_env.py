"""Environments in lanes: every kind that gymnasium has, and one meaning of autoreset, checked against a naive loop."""

from __future__ import annotations

import functools
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from skate.rl import env as env_module
from skate.rl import lane as lane_module
from skate.rl.block import Block
from skate.rl.env import EnvError, Loop, Vector, make_envs, name_of
from skate.rl.lane import Lane
from skate.rl.policy import Policy
from skate.rl.spaces import describe, describe_action, flatten, flatten_one

COUNT = 3
#: How an episode of `Scripted` ends.
TERMINATED, TRUNCATED, BOTH = 0, 1, 2


@pytest.fixture(autouse=True)
def threads_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane limits the threads of its process, and here that is the process of the tests."""
    monkeypatch.setattr(lane_module, "limit_threads", lambda _: None)


def script(number: int, episode: int) -> tuple[int, int]:
    """Length and kind of end of an episode of environment `number`."""
    rng = np.random.default_rng((number, episode))
    return int(rng.integers(1, 8)), int(rng.integers(3))


def paid(number: int, episode: int, step: int) -> float:
    return float(np.float32(np.sin(number + 7.1 * episode + 1.3 * step)))


class Scripted(gymnasium.Env[np.ndarray, Any]):
    """An observation is (number of the environment, episode, step); the action is added to the reward."""

    observation_space: Any = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space: Any = spaces.Discrete(5)

    def __init__(self, number: int = 0) -> None:
        self.number, self.episode, self.age = number, -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.age = self.episode + 1, 0
        return self.seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward = paid(self.number, self.episode, self.age) + float(action)
        self.age += 1
        length, kind = script(self.number, self.episode)
        over = self.age == length
        return self.seen(), reward, over and kind != TRUNCATED, over and kind != TERMINATED, {}

    def seen(self) -> np.ndarray:
        return np.array([self.number, self.episode, self.age], np.float32)


class ScriptedVector(VectorEnv[Any, Any, Any]):
    """The same side by side, in a mode of autoreset, and with the same arrays in every step if `reuse`."""

    def __init__(self, num_envs: int, mode: AutoresetMode, reuse: bool = False) -> None:
        self.metadata = {"autoreset_mode": mode}
        self.num_envs, self.mode, self.reuse = num_envs, mode, reuse
        self.single_observation_space, self.single_action_space = Scripted.observation_space, Scripted.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, num_envs)
        self.envs = [Scripted(number) for number in range(num_envs)]
        self.rewards, self.terminated = np.zeros(num_envs, np.float32), np.zeros(num_envs, bool)
        self.truncated, self.seen = np.zeros(num_envs, bool), np.zeros((num_envs, 3), np.float32)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        chosen = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        for i in np.flatnonzero(chosen):
            self.seen[i] = self.envs[i].reset()[0]
        self.over = np.zeros(self.num_envs, bool)
        return self.out(self.seen), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        info: dict[str, Any] = {}
        was_over, self.over = self.over, np.zeros(self.num_envs, bool)
        for i, env in enumerate(self.envs):
            if was_over[i]:
                assert self.mode is AutoresetMode.NEXT_STEP, "a step after the end of an episode"
                self.seen[i] = env.reset()[0]
                self.rewards[i], self.terminated[i], self.truncated[i] = 0, False, False
                continue
            self.seen[i], self.rewards[i], self.terminated[i], self.truncated[i], _ = env.step(int(actions[i]))
            if self.terminated[i] or self.truncated[i]:
                if self.mode is AutoresetMode.SAME_STEP:
                    info.setdefault("final_obs", np.full(self.num_envs, None, object))[i] = self.seen[i].copy()
                    self.seen[i] = env.reset()[0]
                else:
                    self.over[i] = True
        return *map(self.out, (self.seen, self.rewards, self.terminated, self.truncated)), info

    def out(self, array: np.ndarray) -> np.ndarray:
        return array if self.reuse else array.copy()

    def close(self, **_: Any) -> None:
        pass


class Pool:
    """As EnvPool was: single spaces, a length, no metadata, no seed in reset(), a reset in the step after the end."""

    def __init__(self, num_envs: int) -> None:
        self._vector = ScriptedVector(num_envs, AutoresetMode.NEXT_STEP)
        self.observation_space, self.action_space = Scripted.observation_space, Scripted.action_space

    def __len__(self) -> int:
        return self._vector.num_envs

    def reset(self, env_id: Any = None) -> Any:
        assert env_id is None
        return self._vector.reset()

    def step(self, action: Any) -> Any:
        return self._vector.step(action)

    def close(self) -> None:
        pass


Pool.__module__ = "envpool.made_up"


def loop() -> Callable[[], Scripted]:
    numbers = itertools.count()
    return lambda: Scripted(next(numbers))


def vector(mode: AutoresetMode, reuse: bool = False) -> Callable[[], Callable[[int], VectorEnv[Any, Any, Any]]]:
    return lambda: lambda num_envs: ScriptedVector(num_envs, mode, reuse)


def sync(mode: AutoresetMode) -> Callable[[], Callable[[int], SyncVectorEnv]]:
    def factory(num_envs: int) -> SyncVectorEnv:
        return SyncVectorEnv([lambda n=n: Scripted(n) for n in range(num_envs)], autoreset_mode=mode)

    return lambda: factory


KINDS: dict[str, Callable[[], Any]] = {
    "loop": loop,
    "pool": lambda: Pool,
    **{mode.value: vector(mode) for mode in AutoresetMode},
    **{f"{mode.value}, reused arrays": vector(mode, True) for mode in AutoresetMode},
    **{f"{mode.value} of gymnasium": sync(mode) for mode in AutoresetMode},
}


def naive(number: int) -> Iterator[tuple[Any, ...]]:
    """What happens in an environment, one transition after the other, as a loop without blocks would see it."""
    for episode in itertools.count():
        length, kind = script(number, episode)
        for step in range(length):
            over = step + 1 == length
            yield (
                (number, episode, step),
                paid(number, episode, step),
                over and kind != TRUNCATED,
                over and kind != TERMINATED,
                (number, episode, step + 1),
            )


def made(kind: str, envs: int = COUNT) -> Lane:
    return Lane(KINDS[kind](), 0, envs, 0, 0, 1)


def policy_of(lane: Lane, **arguments: Any) -> Policy:
    return Policy.create(*lane.describe(), hidden=(4,), **arguments)


# --- One meaning of autoreset -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("acting", [True, False], ids=["policy", "random"])
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_have_the_transitions_of_a_naive_loop(kind: str, acting: bool) -> None:
    lane = made(kind)
    policy = policy_of(lane) if acting else None
    columns = [naive(number) for number in range(COUNT)]
    sums, lasted = np.zeros(COUNT), np.zeros(COUNT, int)
    ends_in_the_last_row = 0
    for steps in (7, 1, 12, 3, 1, 1, 30):
        block = lane.run(policy, steps)
        block.validate()
        assert block.shape == (steps, COUNT)
        following = block.next_observations()
        episodes = []
        for t, n in itertools.product(range(steps), range(COUNT)):
            if not block.mask[t, n]:
                assert block.rewards[t, n] == 0
                continue
            seen, reward, terminated, truncated, then = next(columns[n])
            assert tuple(block.observations[t, n]) == seen
            assert block.rewards[t, n] == pytest.approx(reward + block.actions[t, n], abs=1e-5)
            assert (block.terminated[t, n], block.truncated[t, n]) == (terminated, truncated)
            if not terminated:
                assert tuple(following[t, n]) == then
            sums[n], lasted[n] = sums[n] + block.rewards[t, n], lasted[n] + 1
            if terminated or truncated:
                episodes.append((sums[n], lasted[n]))
                sums[n], lasted[n] = 0, 0
                ends_in_the_last_row += t == steps - 1
        np.testing.assert_allclose(block.episode_returns, [total for total, _ in episodes], atol=1e-6)
        assert block.episode_lengths.tolist() == [length for _, length in episodes]
    assert ends_in_the_last_row > 2


@pytest.mark.parametrize("kind", KINDS)
def test_whole_episodes_are_whole(kind: str) -> None:
    lane = made(kind)
    lane.run(None, 4)
    block = lane.episodes(policy_of(lane), 4)
    block.validate()
    over = block.terminated | block.truncated
    assert over.sum(0).tolist() == [4] * COUNT == np.bincount(np.nonzero(over)[1]).tolist()
    for n in range(COUNT):
        seen = block.observations[block.mask[:, n], n]
        episodes = [seen[seen[:, 1] == episode] for episode in np.unique(seen[:, 1])]
        assert len(episodes) == 4
        for episode in episodes:
            assert episode[:, 2].tolist() == list(range(script(n, int(episode[0, 1]))[0]))
    assert sorted(block.episode_lengths) == sorted(len(each) for each in split_at_ends(block))


@pytest.mark.parametrize("kind", KINDS)
def test_episodes_after_whole_episodes_are_counted_from_their_beginning(kind: str) -> None:
    lane = made(kind)
    lane.episodes(None, 2)
    block = lane.run(None, 40)
    block.validate()
    lengths = [script(*map(int, block.observations[t, n][:2]))[0] for t, n in ended(block)]
    assert block.episode_lengths.tolist() == lengths
    expected = [
        sum(paid(n, int(block.observations[t, n][1]), k) for k in range(length))
        for (t, n), length in zip(ended(block), lengths)
    ]
    actions = block.episode_returns - expected
    np.testing.assert_allclose(actions, actions.round(), atol=1e-4)


def ended(block: Block) -> list[tuple[int, int]]:
    return [(int(t), int(n)) for t, n in np.argwhere(block.terminated | block.truncated)]


def split_at_ends(block: Block) -> list[np.ndarray]:
    parts = []
    for n in range(block.shape[1]):
        real = block.mask[:, n]
        over = (block.terminated | block.truncated)[real, n]
        parts += np.split(np.arange(real.sum()), np.flatnonzero(over)[:-1] + 1)
    return parts


def test_without_an_end_inside_a_block_the_column_is_cut_at_its_last_row() -> None:
    lane = Lane(lambda: gymnasium.make("Pendulum-v1"), 0, 2, 0, 0, 1)
    first, second = lane.run(None, 5), lane.run(None, 5)
    assert first.cuts.tolist() == [[4, 0], [4, 1]]
    np.testing.assert_array_equal(first.bootstrap, second.observations[0])
    assert second.observations.dtype == np.float32
    assert second.actions.dtype == np.float32


# --- What an environment is made from ---------------------------------------------------------------------------------


def test_an_id_with_a_vector_entry_point_is_made_with_it_and_players_one_by_one() -> None:
    assert isinstance(make_envs("CartPole-v1", 3), Vector)
    assert isinstance(make_envs("CartPole-v1", 3, single=True), Loop)
    assert make_envs("Acrobot-v1", 3).count == 3


def test_a_spec_keeps_its_arguments_its_limit_and_its_wrappers() -> None:
    limited = gymnasium.make("CartPole-v1", max_episode_steps=3).spec
    block = Lane(limited, 0, 2, 0, 0, 1).run(None, 8)
    assert block.truncated[2].all()
    wrapped = gymnasium.wrappers.RescaleObservation(gymnasium.make("MountainCar-v0"), -1, 1).spec
    assert make_envs(wrapped, 2).observation_space.high.tolist() == [1, 1]
    clipped = gymnasium.wrappers.TransformReward(gymnasium.make("CartPole-v1"), lambda reward: reward - 3).spec
    assert clipped.vector_entry_point
    assert (Lane(clipped, 0, 2, 0, 0, 1).run(None, 4).rewards == -2).all()


def test_an_id_may_name_the_module_that_registers_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registers_one.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Registered-v0', 'gymnasium.envs.classic_control:PendulumEnv', max_episode_steps=9)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    monkeypatch.setattr(gymnasium, "registry", gymnasium.envs.registration.registry)
    assert make_envs("registers_one:Registered-v0", 2).count == 2


def test_a_factory_gets_the_number_and_the_seed_that_it_asks_for() -> None:
    given = []

    def factory(seed: int, num_envs: int) -> Any:
        given.append((num_envs, seed))
        return ScriptedVector(num_envs, AutoresetMode.NEXT_STEP)

    assert make_envs(factory, 4, seed=11).count == 4
    assert given == [(4, 11)]


def test_wrappers_of_vectors_and_of_environments_are_applied() -> None:
    def vectors(num_envs: int) -> Any:
        made_envs = gymnasium.make_vec("Pendulum-v1", num_envs, vectorization_mode="sync")
        return gymnasium.wrappers.vector.TransformReward(made_envs, lambda rewards: rewards * 0 - 5)

    def single() -> Any:
        return gymnasium.wrappers.TransformReward(gymnasium.make("Pendulum-v1"), lambda reward: -5)

    for factory in (vectors, single):
        assert (Lane(factory, 0, 2, 0, 0, 1).run(None, 3).rewards == -5).all()


def test_every_environment_of_a_vector_has_the_seed_of_its_number() -> None:
    def factory(num_envs: int) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: gymnasium.make("Pendulum-v1")] * num_envs)

    seeds = [41, 7, 1999]
    alone = [gymnasium.make("Pendulum-v1").reset(seed=seed)[0] for seed in seeds]
    np.testing.assert_array_equal(make_envs(factory, 3).reset(seeds), alone)
    np.testing.assert_array_equal(make_envs("Pendulum-v1", 3).reset(seeds), alone)


def test_names_are_those_that_people_use() -> None:
    from functools import partial

    assert name_of("CartPole-v1") == name_of(gymnasium.spec("CartPole-v1")) == "CartPole-v1"
    assert name_of(Scripted) == name_of(partial(Scripted, 3)) == "Scripted"
    assert "<" not in name_of(lambda: Scripted())


# --- Spaces -----------------------------------------------------------------------------------------------------------

OBSERVATIONS: list[tuple[Any, tuple[int, ...], str]] = [
    (spaces.Box(-1, 1, (2, 3), np.float64), (2, 3), "float64"),
    (spaces.Box(0, 255, (8, 8, 3), np.uint8), (8, 8, 3), "uint8"),
    (spaces.Discrete(4, start=2), (4,), "float32"),
    (spaces.MultiDiscrete([3, 2], start=[1, -1]), (5,), "float32"),
    (spaces.MultiBinary(3), (3,), "float32"),
    (spaces.Dict(b=spaces.Discrete(3), a=spaces.Box(-1, 1, (2, 2), np.float32)), (7,), "float32"),
    (spaces.Tuple([spaces.Box(0, 255, (2,), np.uint8), spaces.Dict(x=spaces.MultiDiscrete([2, 2]))]), (6,), "float32"),
]
ACTIONS: list[Any] = [
    spaces.Discrete(4, start=-1),
    spaces.MultiDiscrete([3, 2], start=[1, 5]),
    spaces.MultiBinary(3),
    spaces.Box(-2, 3, (2,), np.float32),
    spaces.Box(-0.1, 0.1, (2,), np.float64),
    spaces.Box(np.array([0, -1, -np.inf, 5]), np.array([np.inf, 1, np.inf, 6]), dtype=np.float64),
    spaces.Box(-1, 1, (2, 2), np.float32),
]


class Anything(gymnasium.Env[Any, Any]):
    """Observations and actions of any space; one that is not in it is an error."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(int(self.np_random.integers(1000)))
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        over = bool(self.np_random.random() < 0.3)
        return self.observation_space.sample(), 1.0, over, False, {}


@pytest.mark.parametrize("mode", ["loop", *AutoresetMode])
@pytest.mark.parametrize(("space", "shape", "dtype"), OBSERVATIONS, ids=lambda value: str(value)[:20])
def test_observations_of_every_space(space: Any, shape: tuple[int, ...], dtype: str, mode: Any) -> None:
    def factory(num_envs: int) -> Any:
        one = Anything(space, spaces.Discrete(2))
        return (
            one
            if mode == "loop"
            else SyncVectorEnv([lambda: Anything(space, spaces.Discrete(2))] * num_envs, autoreset_mode=mode)
        )

    lane = Lane(factory, 0, 3, 0, 0, 1)
    policy = policy_of(lane)
    for acts in (policy, None):
        block = lane.run(acts, 12)
        block.validate()
        assert block.observations.shape == (12, 3, *shape)
        assert block.observations.dtype == block.bootstrap.dtype == dtype
    assert len(lane.episodes(policy, 1).episode_returns) == 3


@pytest.mark.parametrize("vectors", [False, True], ids=["loop", "vector"])
@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_actions_of_every_space_are_in_it(space: Any, vectors: bool) -> None:
    seen = spaces.Box(-1, 1, (2,), np.float32)

    def factory(num_envs: int) -> Any:
        return SyncVectorEnv([lambda: Anything(seen, space)] * num_envs) if vectors else Anything(seen, space)

    lane = Lane(factory, 0, 3, 0, 0, 1)
    policy = policy_of(lane, log_std=2.0)
    for acts in (policy, None):
        block = lane.run(acts, 60)
        block.validate()
        discrete = not isinstance(space, spaces.Box)
        assert block.actions.shape == (60, 3, *space.shape)
        assert np.issubdtype(block.actions.dtype, np.integer if discrete else np.floating)
        if discrete:  # counted from 0, whatever the space says
            assert block.actions.min() == 0
    assert space.contains(policy.act(np.zeros(2, np.float32)))


def test_flattening_is_onehot_from_the_start_and_in_the_order_of_the_parts() -> None:
    space = spaces.Dict(b=spaces.Discrete(3, start=4), a=spaces.Box(-1, 1, (2,), np.float32))
    flat = flatten_one(describe(space), {"a": np.array([0.5, -0.5], np.float32), "b": 5})
    assert flat.tolist() == [0, 1, 0, 0.5, -0.5]
    both = flatten(describe(space), {"a": np.array([[1, 0], [0, 1]], np.float32), "b": np.array([4, 6])})
    assert both.tolist() == [[1, 0, 0, 1, 0], [0, 0, 1, 0, 1]]


@pytest.mark.parametrize("value", [3, -1])
def test_a_discrete_observation_outside_of_its_space_is_an_error(value: int) -> None:
    with pytest.raises((ValueError, IndexError)):
        flatten(describe(spaces.Discrete(3)), np.array([0, value]))


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Graph(spaces.Discrete(2), None), spaces.Sequence(spaces.Discrete(2))]
)
def test_spaces_that_are_not_supported_say_what_is(space: Any) -> None:
    with pytest.raises(TypeError, match="not supported: they can be Box, Discrete"):
        describe(space)
    with pytest.raises(TypeError, match="not supported: they can be Discrete"):
        describe_action(space)
    with pytest.raises(EnvError, match=r"failed in lane 2: TypeError: .*not supported") as caught:
        Lane(lambda: Anything(space, spaces.Discrete(2)), 2, 1, 0, 0, 1)
    line = Anything.__init__.__code__.co_firstlineno
    assert str(caught.value).endswith(f"\n  the environment is in {__file__}:{line}"), "and no line of ours"


# --- Errors -----------------------------------------------------------------------------------------------------------


def line_of(function: Any, text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    first = function.__code__.co_firstlineno
    return f"line {next(n for n in range(first, len(lines)) if text in lines[n - 1])}"


def failing() -> Any:
    raise FileNotFoundError("the ROM is not there")


class Breaks(Scripted):
    """One that does something wrong in its second step."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def step(self, action: Any) -> Any:
        if self.age == 1 and self.how == "raises":
            raise ZeroDivisionError("the wheel is off")
        observation, reward, *rest = super().step(action)
        if self.age == 2 and self.how == "shape":
            observation = np.zeros((1, 3), np.float32)
        if self.age == 2 and self.how == "reward":
            reward = np.array([reward])
        return (observation, reward, rest[0], {}) if self.how == "four" else (observation, reward, *rest)


def test_an_unknown_id_is_named_with_its_lane() -> None:
    with pytest.raises(EnvError, match=r"CartPoul-v1 failed in lane 3: NameNotFound.*CartPole"):
        Lane("CartPoul-v1", 3, 2, 0, 0, 1)


def test_a_package_that_an_environment_lacks_is_named_without_the_steps_of_importing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lacking_env.py").write_text("import physics_that_is_not_there\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "ale_py", None)  # as if it were not installed
    with pytest.raises(EnvError, match="ModuleNotFoundError: No module named 'physics_that_is_not_there'") as caught:
        Lane("lacking_env:Walk-v0", 0, 1, 0, 0, 1)
    assert str(tmp_path / "lacking_env.py") in str(caught.value)
    assert "importlib" not in str(caught.value)
    with pytest.raises(EnvError, match="which has the games of Atari: pip install ale-py"):
        Lane("ALE/Pong-v5", 0, 1, 0, 0, 1)


def test_a_factory_that_raises_is_named_with_its_lane_and_line() -> None:
    with pytest.raises(EnvError, match=r"^failing failed in lane 1: FileNotFoundError: the ROM is not there") as caught:
        Lane(failing, 1, 2, 0, 0, 1)
    assert __file__ in str(caught.value)
    assert line_of(failing, "raise FileNotFoundError") in str(caught.value)


@pytest.mark.parametrize("acting", [True, False], ids=["policy", "random"])
def test_a_step_that_raises_is_named_with_its_lane_and_line(acting: bool) -> None:
    lane = Lane(lambda: Breaks("raises"), 4, 2, 0, 0, 1)
    with pytest.raises(EnvError, match=r"failed in lane 4: ZeroDivisionError: the wheel is off") as caught:
        lane.run(policy_of(lane) if acting else None, 10)
    assert __file__ in str(caught.value)
    assert line_of(Breaks.step, "raise ZeroDivisionError") in str(caught.value)


@pytest.mark.parametrize("acting", [True, False], ids=["policy", "random"])
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("shape", r"observation of shape \(1, 3\), and its observation_space says \(3,\)"),
        ("reward", r"gave array\(\[.*\]\) as a reward, and that is one number"),
        (
            "four",
            r"expected 5, got 4\); step\(\) gives an observation, a reward, terminated, truncated and a dictionary",
        ),
    ],
)
def test_a_step_that_returns_the_wrong_thing_says_which_and_where(how: str, said: str, acting: bool) -> None:
    lane = Lane(lambda: Breaks(how), 4, 2, 0, 0, 1)
    with pytest.raises(EnvError, match=rf"failed in lane 4: (?s:.*){said}") as caught:
        lane.run(policy_of(lane) if acting else None, 10)
    assert f"{__file__}:{Breaks.step.__code__.co_firstlineno}" in str(caught.value)


@pytest.mark.parametrize(
    ("how", "said"), [("four", "expected 5, got 4"), ("reward", "as a reward"), ("shape", "shape")]
)
def test_a_step_of_one_environment_is_named_as_well(how: str, said: str) -> None:
    """`es` steps its environments one by one."""
    envs = make_envs(lambda: Breaks(how), 1)
    assert isinstance(envs, Loop)
    envs.reset([0])
    with pytest.raises(ValueError, match=said) as caught:
        for _ in range(2):
            envs.step_one(0, 1)
    assert f"its step() is in {__file__}:{Breaks.step.__code__.co_firstlineno}" in str(caught.value)


def test_a_step_of_four_values_inside_a_wrapper_is_named_too() -> None:
    lane = Lane(lambda: gymnasium.wrappers.TimeLimit(Breaks("four"), 5), 0, 1, 0, 0, 1)
    with pytest.raises(EnvError, match="expected 5, got 4") as caught:
        lane.run(None, 3)
    assert f"{__file__}:{Breaks.step.__code__.co_firstlineno}" in str(caught.value)


def test_a_reset_without_a_dictionary_is_named() -> None:
    class Old(Scripted):
        def reset(self, **arguments: Any) -> Any:
            return super().reset(**arguments)[0]

    with pytest.raises(EnvError, match=r"gave an array of shape \(3,\) of float32 from reset\(\); .* gives") as caught:
        Lane(Old, 0, 1, 0, 0, 1)
    assert f"its reset() is in {__file__}:{Old.reset.__code__.co_firstlineno}" in str(caught.value)


@pytest.mark.parametrize("vector", [False, True], ids=["env", "vector"])
def test_a_reset_that_takes_no_seed_is_named(vector: bool) -> None:
    class Old(Scripted):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    class OldVector(ScriptedVector):
        def reset(self) -> Any:  # type: ignore[override]
            return super().reset()

    kind: Any = OldVector if vector else Old
    with pytest.raises(EnvError, match=r"unexpected keyword argument 'seed'; reset\(\) takes `seed` and") as caught:
        Lane(lambda: OldVector(2, AutoresetMode.NEXT_STEP) if vector else Old(), 0, 2, 0, 0, 1)
    assert f"its reset() is in {__file__}:{kind.reset.__code__.co_firstlineno}" in str(caught.value)


class Unfinished:
    """No environment: it has no spaces."""

    def reset(self, **arguments: Any) -> Any:
        return None

    def step(self, action: Any) -> Any:
        return None


class Maker:
    def __call__(self) -> Any:
        return Unfinished()


def forgets_to_return() -> Any:
    Scripted()


@pytest.mark.parametrize(
    ("factory", "line", "said"),
    [
        (
            forgets_to_return,
            forgets_to_return,
            "gave None, .* no reset, no step, no observation_space, no action_space",
        ),
        (functools.partial(forgets_to_return), forgets_to_return, "gave None, and it must give an Env or a VectorEnv"),
        (Unfinished, Unfinished.reset, "gave an Unfinished, .* this has no observation_space, no action_space"),
        (Maker(), Maker.__call__, "gave an Unfinished, .* this has no observation_space, no action_space"),
    ],
)
def test_a_factory_that_makes_no_environment_is_named(factory: Any, line: Any, said: str) -> None:
    with pytest.raises(EnvError, match=f"TypeError: the factory {said}") as caught:
        Lane(factory, 0, 2, 0, 0, 1)
    assert f"the factory is in {__file__}:{line.__code__.co_firstlineno}" in str(caught.value)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (lambda size: Scripted(), "missing 1 required positional argument: 'size'; "),
        (lambda: Scripted, "the class Scr"),
    ],
    ids=["arguments", "class"],
)
def test_a_factory_that_is_not_called_as_it_must_be_is_named_with_its_line(factory: Any, said: str) -> None:
    with pytest.raises(EnvError, match=said) as caught:
        Lane(factory, 0, 2, 0, 0, 1)
    assert f"the factory is in {__file__}:{factory.__code__.co_firstlineno}" in str(caught.value)


def test_an_environment_that_exits_is_named_with_its_line() -> None:
    class Closed(Scripted):
        def step(self, action: Any) -> Any:
            sys.exit("the window was closed")

    with pytest.raises(EnvError, match="failed in lane 3: SystemExit: the window was closed") as caught:
        Lane(Closed, 3, 1, 0, 0, 1).run(None, 3)
    assert __file__ in str(caught.value)


def test_an_episode_without_an_end_is_an_error_where_whole_episodes_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Scripted):
        def step(self, action: Any) -> Any:
            return self.seen(), 0.0, False, False, {}

    monkeypatch.setattr(lane_module, "EPISODE_STEPS_MAX", 50)
    lane = Lane(Endless, 0, 2, 0, 0, 1)
    with pytest.raises(EnvError, match="has not ended after 50 steps"):
        lane.episodes(None, 2)
    with pytest.raises(EnvError, match="has not ended after 50 steps"):
        lane.play(policy_of(lane), [1], True)


def test_an_observation_may_have_no_numbers() -> None:
    class Blind(Scripted):
        observation_space = spaces.Box(-1, 1, (0,), np.float32)

        def seen(self) -> np.ndarray:
            return np.zeros(0, np.float32)

    block = Lane(Blind, 0, 2, 0, 0, 1).run(None, 6)
    assert block.bootstrap.shape == (len(block.cuts), 0)


def test_a_vector_that_resets_without_its_last_observations_is_named() -> None:
    class Hides(ScriptedVector):
        def step(self, actions: Any) -> tuple[Any, ...]:
            return *super().step(actions)[:4], {}

    lane = Lane(lambda: Hides(2, AutoresetMode.SAME_STEP), 0, 2, 0, 0, 1)
    with pytest.raises(EnvError, match="its dictionary has no 'final_obs': the last observations") as caught:
        lane.run(None, 10)
    assert f"its step() is in {__file__}:{Hides.step.__code__.co_firstlineno}" in str(caught.value)


@pytest.mark.parametrize("method", ["reset", "step", "factory"])
def test_a_stop_iteration_is_an_error_of_the_environment(method: str) -> None:
    class Exhausted(Scripted):
        def reset(self, **arguments: Any) -> Any:
            return super().reset(**arguments) if method == "step" else next(iter(()))

        def step(self, action: Any) -> Any:
            return next(iter(()))

    with pytest.raises(EnvError, match=r"failed in lane 5: StopIteration") as caught:
        Lane((lambda: next(iter(()))) if method == "factory" else Exhausted, 5, 1, 0, 0, 1).run(None, 3)
    assert __file__ in str(caught.value)


def test_both_ways_to_step_take_the_same_observations_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array of another class gets the same look in both, and a plain one none."""
    looks: list[type] = []
    really = Loop._checked

    def looked(self: Loop, i: int, observation: Any, method: str = "step") -> np.ndarray:
        if method == "step":
            looks.append(type(observation))
        return really(self, i, observation, method)

    class Masked(Scripted):
        def step(self, action: Any) -> Any:
            observation, *rest = super().step(action)
            return np.ma.MaskedArray(observation), *rest

    monkeypatch.setattr(Loop, "_checked", looked)
    for kind, expected in ((Scripted, []), (Masked, [np.ma.MaskedArray] * 3)):
        lane = Lane(kind, 0, 1, 0, 0, 1)
        for policy in (policy_of(lane), None):
            looks.clear()
            lane.run(policy, 3)
            assert looks == expected


def test_an_observation_that_is_used_again_is_copied() -> None:
    class Reuses(Scripted):
        shown = np.zeros(3, np.float32)

        def step(self, action: Any) -> Any:
            observation, *rest = super().step(action)
            self.shown[:] = observation
            return self.shown, *rest

    plain, reused = (Lane(kind, 0, 1, 0, 0, 1).run(None, 700) for kind in (Scripted, Reuses))
    assert (plain.observations == reused.observations).all()
    assert (plain.bootstrap == reused.bootstrap).all()


def test_a_vector_of_the_wrong_shape_says_so() -> None:
    class Wrong(ScriptedVector):
        def step(self, actions: Any) -> tuple[Any, ...]:
            seen, *rest = super().step(actions)
            return seen[:, :2], *rest

    lane = Lane(lambda: Wrong(2, AutoresetMode.NEXT_STEP), 0, 2, 0, 0, 1)
    with pytest.raises(EnvError, match=r"observations of shape \(2, 2\); its spaces say \(2, 3\)") as caught:
        lane.run(None, 3)
    assert f"{__file__}:{Wrong.step.__code__.co_firstlineno}" in str(caught.value)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.float32])
def test_flags_of_another_type_mean_the_same(mode: AutoresetMode, dtype: Any) -> None:
    class Flags(ScriptedVector):
        def step(self, actions: Any) -> tuple[Any, ...]:
            seen, rewards, terminated, truncated, info = super().step(actions)
            return seen, rewards, terminated.astype(dtype), truncated.astype(dtype), info

    found, expected = (
        Lane(lambda kind=kind: kind(2, mode), 0, 2, 0, 0, 1).run(None, 40) for kind in (Flags, ScriptedVector)
    )
    for name in ("mask", "terminated", "truncated", "rewards", "observations", "cuts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        assert getattr(found, name).dtype == getattr(expected, name).dtype


class Shows(Scripted):
    """Observes what it was given, in a space of bytes."""

    observation_space: Any = spaces.Box(0, 255, (3,), np.uint8)

    def __init__(self, observation: Any) -> None:
        super().__init__()
        self.observation = observation

    def seen(self) -> Any:
        return self.observation


@pytest.mark.parametrize("wrong", [np.array([0.5, 0.2, 1.0]), np.array([300, 0, 0]), np.array([-1, 0, 0]), [0.5, 0, 0]])
def test_observations_that_their_type_cannot_hold_are_an_error(wrong: Any) -> None:
    with pytest.raises(EnvError, match=r"with values that uint8, which its observation_space says, cannot hold"):
        Lane(lambda: Shows(wrong), 0, 1, 0, 0, 1).run(None, 3)


@pytest.mark.parametrize("right", [np.array([0, 255, 7]), np.array([0.0, 255.0, 7.0]), [0, 255, 7]])
def test_observations_of_another_type_are_taken_if_they_have_the_same_values(right: Any) -> None:
    block = Lane(lambda: Shows(right), 0, 1, 0, 0, 1).run(None, 3)
    assert block.observations.dtype == np.uint8
    assert block.observations[0, 0].tolist() == [0, 255, 7]


@pytest.mark.parametrize("what", ["a reward", "an observation"])
@pytest.mark.parametrize("as_vector", [True, False])
def test_what_is_no_number_is_an_error(what: str, as_vector: bool) -> None:
    class Odd(Scripted):
        def step(self, action: Any) -> Any:
            seen, reward, *rest = super().step(action)
            if self.episode == 1 and self.number == 1:
                return (seen, np.nan, *rest) if what == "a reward" else (seen * np.nan, reward, *rest)
            return seen, reward, *rest

    numbers = itertools.count()

    def several(num_envs: int) -> Any:
        return SyncVectorEnv([lambda n=n: Odd(n) for n in range(num_envs)])

    lane = Lane(several if as_vector else lambda: Odd(next(numbers)), 0, 2, 0, 0, 1)
    with pytest.raises(EnvError, match=f"environment 1 of this lane gave {what} that is NaN, in step"):
        lane.run(None, 60)


@pytest.mark.parametrize(("reward", "said"), [(np.nan, "NaN"), (-np.inf, "infinite"), (1e308, "infinite")])
def test_a_reward_that_is_no_number_has_no_score(reward: float, said: str) -> None:
    class Odd(Scripted):
        def step(self, action: Any) -> Any:
            seen, _, *rest = super().step(action)
            return seen, reward, *rest

    numbers = itertools.count()
    lane = Lane(lambda: Odd(next(numbers)), 0, 2, 0, 0, 1)
    policy = Policy.create(Scripted.observation_space, Scripted.action_space)
    with pytest.raises(EnvError, match=f"environment 0 of this lane gave a reward that is {said}"):
        lane.play(policy, [1, 2], True)


def test_environments_that_are_made_with_a_seed_get_one_each() -> None:
    class Maze(Scripted):
        def __init__(self, seed: int = 0) -> None:
            super().__init__(seed)

    walls = [env.unwrapped.number for env in make_envs(Maze, 4, seed=7).envs]
    assert len(set(walls)) == 4
    assert walls == [env.unwrapped.number for env in make_envs(Maze, 4, seed=7).envs]


def test_a_vector_of_another_size_says_what_to_do() -> None:
    with pytest.raises(EnvError, match=r"made 3 environments and envs=2 were asked for.*num_envs"):
        Lane(lambda: ScriptedVector(3, AutoresetMode.NEXT_STEP), 0, 2, 0, 0, 1)


def test_an_environment_itself_is_not_a_factory() -> None:
    with pytest.raises(EnvError, match=r"Scripted failed in lane 0: TypeError: .*pass a function that makes one"):
        Lane(Scripted(), 0, 2, 0, 0, 1)


def test_a_vector_whose_reset_raises_a_type_error_is_not_taken_for_an_old_pool() -> None:
    class Odd(ScriptedVector):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            if seed is not None:
                raise TypeError("seeds are text here")
            return super().reset()

    with pytest.raises(EnvError, match="seeds are text here"):
        Lane(lambda: Odd(2, AutoresetMode.NEXT_STEP), 0, 2, 0, 0, 1)


# --- Playing episodes -------------------------------------------------------------------------------------------------


def test_an_episode_follows_from_its_seed_alone() -> None:
    seeds = [5, 6, 7, 8, 9]
    for env in ("CartPole-v1", lambda num_envs: gymnasium.make_vec("CartPole-v1", num_envs, "sync")):
        lane = Lane(env, 0, 2, 0, 0, 1)
        policy = policy_of(lane)
        for greedy in (True, False):
            together = lane.play(policy, seeds, greedy)
            assert together == lane.play(policy, seeds, greedy)
            alone = [lane.play(policy, [seed], greedy) for seed in seeds]
            assert together == ([r for (r,), _ in alone], [n for _, (n,) in alone])


def test_a_vector_of_one_size_can_be_played_any_number_of_times() -> None:
    lane = Lane(lambda: ScriptedVector(2, AutoresetMode.NEXT_STEP), 0, 2, 0, 0, 1)
    returns, lengths = lane.play(policy_of(lane), [1, 2, 3, 4, 5], True)
    assert len(returns) == len(lengths) == 5


def test_playing_does_not_disturb_the_environments_that_are_sampled() -> None:
    one, other = made("loop"), made("loop")
    policy = policy_of(one)
    one.run(policy, 5)
    other.run(policy, 5)
    other.play(policy, [1, 2], True)
    np.testing.assert_array_equal(one.run(policy, 9).observations, other.run(policy, 9).observations)


def test_players_that_are_replaced_are_closed() -> None:
    closed: list[int] = []

    class Closing(Scripted):
        def close(self) -> None:
            closed.append(1)

    lane = Lane(Closing, 0, 1, 0, 0, 1)
    policy = policy_of(lane)
    lane.play(policy, [1, 2], True)
    lane.play(policy, [1, 2, 3], True)
    assert len(closed) == 2


def test_players_see_what_the_policy_was_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some ids have a vector environment with other observations, such as stacked frames, than the single one."""
    module: Any = types.ModuleType("two_faces")
    module.Single = lambda **_: Anything(spaces.Box(0, 255, (9, 9, 3), np.uint8), Scripted.action_space)
    module.Many = lambda num_envs, **_: ScriptedVector(num_envs, AutoresetMode.SAME_STEP)
    monkeypatch.setitem(sys.modules, "two_faces", module)
    spec = gymnasium.envs.registration.EnvSpec(
        "TwoFaces-v0", entry_point="two_faces:Single", vector_entry_point="two_faces:Many"
    )
    lane = Lane(spec, 0, 2, 0, 0, 1)
    assert len(lane.play(policy_of(lane), [1, 2, 3], True)[0]) == 3


def test_the_module_says_where_the_line_is_without_its_own_frames() -> None:
    """What is not of this library comes first: the user's file is what has to be opened."""
    with pytest.raises(EnvError) as caught:
        Lane(failing, 0, 1, 0, 0, 1)
    assert str(Path(env_module.__file__)) not in str(caught.value)


@pytest.mark.parametrize("acting", [True, False], ids=["policy", "random"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("when", ["last", "first", "reward"])
def test_what_is_not_finite_is_an_error_that_names_the_step(when: str, value: float, acting: bool) -> None:
    class Odd(Scripted):
        observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)

        def step(self, action: Any) -> Any:
            observation, reward, over, cut, info = super().step(action)
            if when == "reward":
                return observation, value, over, cut, info
            if over or cut if when == "last" else self.age == 1:
                observation = np.full(3, value)
            return observation, reward, over, True if when == "last" and over else cut, info

    lane = Lane(lambda: Odd(), 0, 1, 0, 0, 1)
    said = "NaN" if np.isnan(value) else "infinite" if np.isinf(value) or when == "reward" else "too large for float32"
    with pytest.raises(EnvError, match=f"gave an? (observation|reward) that is {said}, in step") as caught:
        for _ in range(40):
            lane.run(policy_of(lane) if acting else None, 10)
    assert f"{__file__}:{Odd.step.__code__.co_firstlineno}" in str(caught.value)


@pytest.mark.parametrize("acting", [True, False], ids=["policy", "random"])
@pytest.mark.parametrize(
    "space", [spaces.MultiDiscrete([3, 4]), spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(5)]
)
def test_an_environment_may_change_the_action_that_it_gets(space: Any, acting: bool) -> None:
    class Changes(Anything):
        def step(self, action: Any) -> Any:
            found = super().step(action)
            if isinstance(action, np.ndarray):
                action *= 0
            return found

    box = spaces.Box(-1, 1, (3,), np.float32)
    blocks = []
    for kind in (Anything, Changes):
        lane = Lane(lambda kind=kind: kind(box, space), 0, 2, 0, 0, 1)
        blocks.append(lane.run(policy_of(lane) if acting else None, 20))
    assert (blocks[0].actions == blocks[1].actions).all()
    assert blocks[0].actions.any()
