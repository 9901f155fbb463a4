"""Simulators: lanes of environments whose data follows from the seed, and which survive the death of a lane."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import skate
from programs import append, lines
from rl_probes import Numbered, Salary
from skate.rl import Block, Policy, Simulators, evaluate
from skate.rl.env import EnvError
from waiting import WITHIN_S, wait_for

runtime = pytest.mark.usefixtures("runtime")

COLUMNS = ("observations", "actions", "rewards", "terminated", "truncated", "mask", "log_probs", "cuts", "bootstrap")


class Marked(gymnasium.Env[np.ndarray, int]):
    """Writes down its process and the seeds that it gets, and stops at a gate.

    The file `gate` is closed while it exists: a step waits then, in the first process that came to a gate only.
    """

    def __init__(self, folder: Path) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self.action_space = spaces.Discrete(2)
        self._folder = folder

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            append(self._folder / "seeds", f"{os.getpid()} {seed}")
        return self._observe(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        gate = self._folder / "gate"
        if gate.exists():
            with contextlib.suppress(FileExistsError):
                (self._folder / "first").symlink_to(str(os.getpid()))
            if os.readlink(self._folder / "first") == str(os.getpid()):
                append(self._folder / "waiting", os.getpid())
                wait_for(lambda: not gate.exists(), WITHIN_S, "the gate to open")
        return self._observe(), 1.0, bool(self.np_random.random() < 0.1), False, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.standard_normal(1).astype(np.float32)


def policy_for(sims: Simulators, **arguments: Any) -> Policy:
    return Policy.create(sims.observation_space, sims.action_space, **{"hidden": (8,), **arguments})


def copied(batch: Any) -> dict[str, np.ndarray]:
    """What is in a batch, without holding on to shared memory."""
    return {name: np.array(getattr(batch, name)) for name in (*COLUMNS, "episode_returns", "episode_lengths")}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[name], other[name]) for name in one)


def memory_of(array: np.ndarray) -> str:
    """The name of the mapping that an array lies in."""
    address = array.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        first, last = (int(end, 16) for end in fields[0].split("-"))
        if first <= address < last:
            return fields[5] if len(fields) > 5 else ""
    return ""


# --- Ordered sampling -------------------------------------------------------------------------------------------------


def rounds(seed: int) -> list[dict[str, np.ndarray]]:
    with Simulators(Numbered, lanes=2, envs=3, seed=seed) as sims:
        policy = policy_for(sims)
        better = policy.with_weights({name: array + 0.1 for name, array in policy.weights.items()})
        found = [
            copied(sims.sample(acting, steps=steps)) for acting, steps in ((policy, 200), (better, 61), (None, 50))
        ]
        assert sims.restarts == 0
        return [*found, copied(sims.sample(better, episodes=7))]


def test_the_data_is_the_same_on_1_2_and_4_cpus_and_other_with_another_seed() -> None:
    found = {}
    for cpus in (1, 2, 4):
        with skate.init(num_cpus=cpus):
            found[cpus] = rounds(seed=5)
            if cpus == 2:
                assert not any(same(*pair) for pair in zip(rounds(seed=6), found[2], strict=True))
    for cpus in (2, 4):
        assert [same(*pair) for pair in zip(found[cpus], found[1], strict=True)] == [True] * 4
    assert found[1][0]["rewards"].shape == (34, 6), "each environment gives as many steps as any other"
    assert found[1][1]["rewards"].shape == (11, 6)
    assert len(found[1][3]["episode_returns"]) == 12, "each environment gives as many episodes as any other"


@runtime
def test_columns_stand_in_the_order_of_lanes_and_blocks_say_who_made_them() -> None:
    with Simulators(Numbered, lanes=3, envs=2, seed=1) as sims:
        assert sims.total == 6
        policy = policy_for(sims).with_weights({**policy_for(sims).weights})
        batch = sims.sample(policy, steps=300)
        batch.validate()
        assert [block.lane for block in batch.blocks] == [0, 1, 2]
        assert [block.version for block in batch.blocks] == [1, 1, 1] == [batch.version] * 3
        for lane, block in enumerate(batch.blocks):
            np.testing.assert_array_equal(batch.observations[:, 2 * lane : 2 * lane + 2], block.observations)
        assert len({batch.observations[:, n].tobytes() for n in range(6)}) == 6, "each environment is another one"
        whole = sims.sample(policy, episodes=13)
        whole.validate()
        assert len(whole.episode_returns) == 18
        assert (whole.terminated | whole.truncated).sum(0).tolist() == [3] * 6


@runtime
def test_policies_go_out_once_and_are_read_where_they_lie_and_blocks_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put: list[Any] = []
    plain_put = skate.put
    monkeypatch.setattr(skate, "put", lambda value: [put.append(value), plain_put(value)][1])
    with Simulators("CartPole-v1", lanes=2, envs=16) as sims:
        policy = policy_for(sims, hidden=(256, 256))
        spy = Spy(policy.network, policy.weights, None, 3, None, str(tmp_path / "memory"))
        for _ in range(2):
            batch = sims.sample(spy, steps=3 * sims.total)
        sims.sample(spy, steps=3 * sims.total, ordered=False, fragment=3)
        sims.evaluate(spy, episodes=2)
        assert put == [spy]
        memory = lines(tmp_path / "memory")
        assert len(memory) > 12
        assert {line.partition(" ")[0] for line in memory} == {"read-only"}
        assert all("skate" in line for line in memory), memory[0]
        sims.sample(policy, steps=1)
        assert put == [spy, policy]
        del batch
    with Simulators("CartPole-v1", lanes=1, envs=16) as sims:
        batch = sims.sample(policy, steps=600 * 16)
        assert batch.observations.nbytes > 100_000
        for array in (batch.observations, batch.actions, batch.rewards, batch.log_probs, batch.mask):
            assert not array.flags.writeable
            assert "skate" in memory_of(array)
        assert np.shares_memory(batch.observations, batch.blocks[0].observations)
        del batch, array


@dataclass(frozen=True)
class Spy(Policy):
    """Writes down where its weights lie when it acts."""

    file: str = ""

    def outputs(self, observations: np.ndarray) -> np.ndarray:
        weights = self.weights["layers.1.weight"]
        kind = "writeable" if weights.flags.writeable else "read-only"
        append(Path(self.file), f"{kind} {memory_of(weights)}")
        return super().outputs(observations)


# --- Taken as they finish ---------------------------------------------------------------------------------------------


@runtime
def test_a_lane_that_stands_still_does_not_hold_up_unordered_sampling(tmp_path: Path) -> None:
    with Simulators(functools.partial(Marked, tmp_path), lanes=4, envs=2) as sims:
        policy = policy_for(sims)
        sims.sample(policy, steps=8)
        (tmp_path / "gate").touch()
        batch = sims.sample(policy, steps=8 * 10 * 2, ordered=False, fragment=10)
        batch.validate()
        assert 160 <= batch.steps < 160 + 20, "it stops when it has enough"
        assert {block.shape for block in batch.blocks} == {(10, 2)}
        newer = policy.with_weights(policy.weights)
        more = sims.sample(newer, steps=8 * 10 * 2, ordered=False, fragment=10)
        still = {0, 1, 2, 3} - {block.lane for block in (*batch.blocks, *more.blocks)}
        assert len(still) == 1
        assert lines(tmp_path / "waiting") == [os.readlink(tmp_path / "first")]
        assert {block.version for block in more.blocks} == {0, 1} == {more.version, more.version + 1}
        (tmp_path / "gate").unlink()
        late = iter(lambda: sims.sample(newer, steps=1, ordered=False, fragment=10).blocks[0], None)
        block = next(block for block in late if block.lane in still)
        assert block.version == 0, "it was begun with the policy of then"
        block.validate()
        assert sims.sample(newer, steps=8, ordered=True).version == 1
        del batch, more, block


@runtime
def test_a_stream_gives_blocks_of_every_lane_and_takes_the_newest_policy() -> None:
    with Simulators(Numbered, lanes=2, envs=2) as sims:
        newest = policy_for(sims)
        asked = []

        def policy() -> Policy:
            asked.append(newest.version)
            return newest

        stream = sims.stream(policy, ahead=3, fragment=5)
        seen = taken_from_both(stream, 4)
        assert {block.version for block in seen} == {0}
        newest = newest.with_weights(newest.weights)
        later = taken_from_both(stream, 8)
        for lane in (0, 1):
            versions = [block.version for block in later if block.lane == lane]
            assert versions == sorted(versions)
            assert 0 < versions.count(0) <= 3, "those that were to do already"
            columns = np.concatenate([block.observations for block in (*seen, *later) if block.lane == lane])
            steps = columns[1:] - columns[:-1]
            within, first = (steps[..., 1] == 0) & (steps[..., 2] == 1), (steps[..., 1] == 1) & (columns[1:, :, 2] == 0)
            assert (within | first).all(), "blocks of a lane follow one another without a gap"
        for block in later:
            block.validate()
        assert len(asked) == 2 * 3 + len(seen) + len(later)
        stream.close()


def taken_from_both(stream: Iterator[Block], each: int) -> list[Block]:
    """Blocks of a stream until there are some of each of two lanes."""
    blocks: list[Block] = []
    while min(sum(block.lane == lane for block in blocks) for lane in (0, 1)) < each:
        blocks.append(next(stream))
    return blocks


# --- Scores -----------------------------------------------------------------------------------------------------------


@runtime
def test_a_score_follows_from_seed_and_episode_on_any_number_of_lanes() -> None:
    with Simulators("CartPole-v1", lanes=3, envs=1) as sims:
        policy = policy_for(sims, seed=2)
        six = sims.evaluate(policy, episodes=6, seed=7)
        assert sims.evaluate(policy, episodes=6, seed=7).returns.tolist() == six.returns.tolist()
        assert sims.evaluate(policy, episodes=2, seed=7).returns.tolist() == six.returns[:2].tolist()
        assert sims.evaluate(policy, episodes=6, seed=8).returns.tolist() != six.returns.tolist()
        drawn = sims.evaluate(policy, episodes=6, seed=7, greedy=False)
        assert drawn.returns.tolist() != six.returns.tolist()
    alone = evaluate(policy, "CartPole-v1", episodes=6, seed=7, lanes=1)
    assert alone.returns.tolist() == six.returns.tolist() == six.lengths.tolist()
    assert alone.mean == six.returns.mean()
    assert str(alone) == f"{alone.mean:.4g} ± {alone.std:.3g} over 6 episodes"


# --- Lanes that die ---------------------------------------------------------------------------------------------------


def seeds_of(folder: Path) -> dict[int, list[int]]:
    """The seeds that each process got, in the order of processes."""
    found: dict[int, list[int]] = {}
    for line in lines(folder / "seeds"):
        pid, seed = map(int, line.split())
        found.setdefault(pid, []).append(seed)
    return found


@runtime
def test_a_lane_that_was_killed_is_started_again_with_other_seeds(tmp_path: Path) -> None:
    with Simulators(functools.partial(Marked, tmp_path), lanes=2, envs=2, seed=3) as sims:
        policy = policy_for(sims)
        before = copied(sims.sample(policy, steps=40))
        first = seeds_of(tmp_path)
        assert len(first) == 2
        victim = next(iter(first))
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: not Path("/proc", str(victim)).exists(), WITHIN_S, "the lane to be gone")
        sims.sample(policy, steps=40).validate()
        assert sims.restarts == 1
        (new,) = seeds_of(tmp_path).keys() - first.keys()
        seeds = [seed for some in seeds_of(tmp_path).values() for seed in some]
        assert len(set(seeds)) == len(seeds) == 6

        # And in the middle of a block, of which nothing may remain in the next one.
        (tmp_path / "gate").touch()

        def kill_at_the_gate() -> None:
            wait_for(lambda: lines(tmp_path / "waiting"), WITHIN_S, "a lane at the gate")
            (tmp_path / "gate").unlink()
            os.kill(int(lines(tmp_path / "waiting")[0]), signal.SIGKILL)

        killer = threading.Thread(target=kill_at_the_gate)
        killer.start()
        for _ in range(2):
            batch = sims.sample(policy, steps=40)
            batch.validate()
            assert batch.steps == 40
        killer.join()
        assert sims.restarts == 2
        assert new
        after = [sims.sample(policy, steps=40) for _ in range(3)]
        assert not any(same(before, copied(batch)) for batch in after)
        del batch, after
        assert sims.evaluate(policy, episodes=3).mean > 0


@runtime
def test_a_stream_goes_on_when_a_lane_was_killed(tmp_path: Path) -> None:
    with Simulators(functools.partial(Marked, tmp_path), lanes=2, envs=2) as sims:
        policy = policy_for(sims)
        stream = sims.stream(lambda: policy, ahead=2, fragment=5)
        for _ in range(4):
            next(stream).validate()
        os.kill(next(iter(seeds_of(tmp_path))), signal.SIGKILL)
        lanes = [next(stream).lane for _ in range(12)]
        wait_for(lambda: (lanes.append(next(stream).lane), sims.restarts == 1)[1], WITHIN_S, "the restart")
        wait_for(lambda: (lanes.append(next(stream).lane), set(lanes[-6:]) == {0, 1})[1], WITHIN_S, "both lanes")
        stream.close()


class Crashes(Numbered):
    """One that ends its process in its first step."""

    def step(self, action: Any) -> Any:
        print("the wing has come off", flush=True)
        os._exit(7)


@runtime
def test_a_lane_that_keeps_dying_is_an_error_that_names_the_environment() -> None:
    with Simulators(Crashes, lanes=1, envs=1) as sims:
        policy = policy_for(sims)
        with pytest.raises(
            EnvError, match=r"^Crashes: lane 0 died 3 times in a row without finishing anything"
        ) as caught:
            sims.sample(policy, steps=1)
        assert "why:" in str(caught.value)
        assert "7" in str(caught.value)
        assert "its last output:\n" in str(caught.value)
        assert str(caught.value).count("the wing has come off") == 1
        assert "max_restarts" not in str(caught.value)
        assert sims.restarts == 2
        del caught


# --- Errors -----------------------------------------------------------------------------------------------------------


class Wrong(Numbered):
    """One that raises in its third step."""

    def step(self, action: Any) -> Any:
        if self._step == 0 and self._episode == 2:
            raise ZeroDivisionError("the wheel is off")
        return super().step(action)


@runtime
@pytest.mark.parametrize("ordered", [True, False])
def test_what_an_environment_raises_arrives_with_its_name_lane_and_line(ordered: bool) -> None:
    with Simulators(Wrong, lanes=2, envs=1) as sims:
        policy = policy_for(sims)
        with pytest.raises(
            EnvError, match=r"^Wrong failed in lane [01]: ZeroDivisionError: the wheel is off"
        ) as caught:
            sims.sample(policy, steps=500, ordered=ordered)
        line = Wrong.step.__code__.co_firstlineno + 2
        assert re.search(rf'File "{re.escape(__file__)}", line {line}', str(caught.value))
        assert caught.value.__cause__ is None, "the way that the error took is of no use to the reader"
        del caught


@runtime
@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("CartPoul-v1", r"CartPoul-v1 failed in lane 0: NameNotFound"),
        (functools.partial(dict, a=1), "dict failed in lane 0"),
    ],
)
def test_an_environment_that_cannot_be_made_is_an_error_here(env: Any, said: str) -> None:
    with Simulators(env, lanes=1) as sims, pytest.raises(EnvError, match=said):
        sims.sample(None, steps=10)


def test_what_is_no_factory_is_an_error_at_once_and_leaves_no_session() -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match="pass a function that makes one"):
        Simulators(gymnasium.make("CartPole-v1"))
    with pytest.raises(TypeError, match="pickle"):
        Simulators(lambda: (lock, Numbered())[1])
    with pytest.raises(ValueError, match="lanes is 0"):
        Simulators("CartPole-v1", lanes=0)
    assert not skate.is_initialized()


@runtime
def test_an_id_that_only_the_driver_has_registered_is_known_in_lanes() -> None:
    gymnasium.register("OnlyHere-v0", Numbered, max_episode_steps=3)
    try:
        with Simulators("OnlyHere-v0", lanes=1, envs=2) as sims:
            assert max(sims.sample(None, episodes=20).episode_lengths) <= 3
    finally:
        del gymnasium.registry["OnlyHere-v0"]


def test_the_session_of_simulators_ends_with_the_last_of_them() -> None:
    first, second = Simulators(Numbered, lanes=1, envs=1), Simulators(Numbered, lanes=1, envs=1)
    first.close()
    assert second.sample(None, steps=3).steps == 3
    second.close()
    assert not skate.is_initialized()


@runtime
def test_what_was_interrupted_is_given_up() -> None:
    """Ctrl-C may come while a lane describes its environments."""
    with Simulators(Numbered, lanes=1, envs=1) as sims:
        sims._call(0, "describe")
        assert sims.sample(None, steps=3, ordered=False).steps >= 3


@runtime
def test_a_lane_that_was_started_again_does_first_what_came_first() -> None:
    with Simulators(Numbered, lanes=1, envs=1) as sims:
        stream = sims.stream(lambda: None, ahead=3, fragment=8)
        os.kill(skate.get(sims._actors[0].__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
        blocks = [next(stream) for _ in range(4)]
        assert sims.restarts == 1
        episodes = np.concatenate([block.observations[:, 0, 1] for block in blocks if block.lane == 0])
        assert (np.diff(episodes) >= 0).all()


@runtime
def test_arguments_that_make_no_sense_are_refused() -> None:
    with Simulators(Numbered, lanes=1, envs=1) as sims:
        for arguments in ({}, {"steps": 1, "episodes": 1}):
            with pytest.raises(TypeError, match="either steps= or episodes="):
                sims.sample(None, **arguments)
        for arguments in ({"steps": 0}, {"episodes": 0}, {"steps": 1, "fragment": 0}):
            with pytest.raises(ValueError, match="at least 1"):
                sims.sample(None, **arguments)
        policy = policy_for(sims)
        with pytest.raises(ValueError, match="at least 1"):
            sims.evaluate(policy, episodes=0)
        with pytest.raises(
            TypeError, match=r"a policy is a skate\.rl\.Policy, or None for random actions; this is a str"
        ):
            sims.sample("random", steps=1)  # type: ignore[arg-type]
        box = gymnasium.spaces.Box(-1, 1, (7,), np.float32)
        for spaces, what in (
            (
                (box, sims.action_space),
                r"observations are arrays of shape \(7,\), those of Numbered are arrays of shape",
            ),
            ((sims.observation_space, box), r"actions are arrays of shape \(7,\), those of Numbered are choices of"),
        ):
            with pytest.raises(ValueError, match=f"this policy is for other environments: its {what}"):
                sims.sample(Policy.create(*spaces), steps=1)
    with pytest.raises(RuntimeError, match="closed"):
        sims.sample(policy, steps=1)
    sims.close()


# --- Threads ----------------------------------------------------------------------------------------------------------


def with_torch() -> Salary:
    import scipy.linalg  # noqa: F401 - has a BLAS of its own
    import torch

    assert torch.get_num_threads() >= 1
    return Salary()


@runtime
def test_a_lane_uses_as_many_threads_as_it_was_given() -> None:
    with Simulators(with_torch, lanes=1, envs=1) as sims:
        (counts,) = sims.threads()
        assert set(counts.values()) == {1}
        assert {"openblas", "torch"} <= counts.keys()
    with Simulators("CartPole-v1", lanes=2, envs=1, threads=2) as sims:
        assert [counts["openblas"] for counts in sims.threads()] == [2, 2]


# --- The end ----------------------------------------------------------------------------------------------------------


def test_a_session_that_was_started_here_ends_here_also_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Simulators(functools.partial(Marked, tmp_path), lanes=2, envs=1) as sims:
        sims.sample(policy_for(sims), steps=4, ordered=False, fragment=1)
        assert skate.is_initialized()
        raise ZeroDivisionError
    assert not skate.is_initialized()
    assert all_gone(tmp_path)


@runtime
def test_a_stream_goes_on_after_other_sampling() -> None:
    with Simulators(Numbered, lanes=2, envs=1) as sims:
        for ordered in (False, True):
            stream = sims.stream(lambda: None, ahead=2, fragment=5, ordered=ordered)
            for _ in range(2):
                assert next(stream).shape == (5, 1)
                assert sims.sample(None, steps=6).shape == (3, 2)
            assert [next(stream).shape for _ in range(4)] == [(5, 1)] * 4


def test_closed_simulators_begin_no_session() -> None:
    with Simulators(Numbered, lanes=1, envs=1) as sims:
        policy = policy_for(sims)
    with pytest.raises(RuntimeError, match="these simulators are closed"):
        sims.sample(policy, steps=3)
    assert not skate.is_initialized()


@runtime
def test_lanes_are_gone_after_close_and_the_session_stays(tmp_path: Path) -> None:
    with Simulators(functools.partial(Marked, tmp_path), lanes=2, envs=1) as sims:
        stream = sims.stream(lambda: None, ahead=2, fragment=10)
        wait_for(lambda: next(stream) and len(seeds_of(tmp_path)) == 2, WITHIN_S, "both lanes to run")
    assert skate.is_initialized()
    assert all_gone(tmp_path)


def test_simulators_can_be_closed_after_their_session(tmp_path: Path) -> None:
    skate.init(num_cpus=2)
    with Simulators(functools.partial(Marked, tmp_path), lanes=1, envs=1) as sims:
        sims.sample(None, steps=4)
        skate.shutdown()
    assert all_gone(tmp_path)


def all_gone(folder: Path) -> bool:
    return wait_for(
        lambda: not any(Path("/proc", str(pid)).exists() for pid in seeds_of(folder)), WITHIN_S, "the lanes to be gone"
    )


INTERRUPTED = """
import functools, pathlib, sys
import skate
sys.path[:0] = {path!r}
from skate.rl import Simulators
from test_rl_simulate import Marked
folder = pathlib.Path({folder!r})
try:
    with Simulators(functools.partial(Marked, folder), lanes=2, envs=1) as sims:
        sims.sample(None, steps=2)
        (folder / "gate").touch()
        sims.sample(None, steps=10)
except KeyboardInterrupt:
    print("interrupted", skate.is_initialized())
"""


@contextlib.contextmanager
def program(text: str) -> Iterator[subprocess.Popen[str]]:
    """A program in a process group of its own, as the terminal has it."""
    process = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_ctrl_c_while_sampling_ends_the_lanes(tmp_path: Path) -> None:
    here = Path(__file__).parent
    text = INTERRUPTED.format(path=[str(here), str(here.parent)], folder=str(tmp_path))
    with program(text) as process:
        wait_for(lambda: lines(tmp_path / "waiting") or process.poll() is not None, 60, "the lane to stand still")
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=40)
    assert out == "interrupted False\n", err
    assert all_gone(tmp_path)
