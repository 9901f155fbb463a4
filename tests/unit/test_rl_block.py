"""Blocks: what follows a step, where returns stop, how blocks are joined and travel."""

from __future__ import annotations

import dataclasses
import doctest
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skate.rl.block
from rl_reference import random_block, read_only, value
from skate.rl.block import Batch, Block

blocks = st.builds(random_block, st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 5))
STEPS = ("observations", "actions", "rewards", "terminated", "truncated", "mask", "log_probs")


def test_the_example_in_the_docstring_runs() -> None:
    results = doctest.testmod(skate.rl.block)
    assert (results.failed, results.attempted) == (0, 3)


@settings(deadline=None)
@given(blocks)
def test_what_follows_a_step_is_what_the_episode_says(made: tuple) -> None:
    block, pieces = read_only(made[0]), made[1]
    block.validate()
    values = value(block.observations.reshape(-1)).reshape(block.shape)
    following = block.next_values(values, value(block.bootstrap[:, 0]))
    observed = block.next_observations()
    expected = np.zeros(block.shape)
    for step in (step for piece in pieces for step in piece):
        if not step.terminated:
            expected[step.t, step.n] = value(np.float64([step.next_observation]))[0]
            assert observed[step.t, step.n] == step.next_observation
    np.testing.assert_array_equal(following, expected)
    assert observed.dtype == block.observations.dtype
    assert block.steps == sum(map(len, pieces))


@settings(deadline=None)
@given(blocks)
def test_returns_stop_at_the_last_step_of_each_piece_and_where_there_is_no_transition(made: tuple) -> None:
    block, pieces = read_only(made[0]), made[1]
    goes_on = np.zeros(block.shape, bool)
    for piece in pieces:
        for step in piece[:-1]:
            goes_on[step.t, step.n] = True
    np.testing.assert_array_equal(block.ends, ~goes_on)


def test_returns_stop_at_the_last_row_and_at_a_limit_also_if_no_observation_was_kept_there() -> None:
    block, _ = random_block(0, 3, 1)
    off = np.zeros((3, 1), bool)
    limit = np.array([[True], [False], [False]])
    bare = dataclasses.replace(block, terminated=off, truncated=limit, mask=~off, cuts=np.zeros((0, 2), np.int64))
    assert bare.ends.ravel().tolist() == [True, False, True]


def test_values_keep_their_precision() -> None:
    block, _ = random_block(0, 5, 3)
    for dtype in (np.float32, np.float64):
        following = block.next_values(np.ones(block.shape, dtype), np.ones(len(block.cuts), dtype))
        assert following.dtype == dtype


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 8), st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_joined_blocks_are_one_block(seed: int, time: int, widths: list[int]) -> None:
    parts = [random_block(seed + k, time, width)[0] for k, width in enumerate(widths)]
    for k, part in enumerate(parts):
        part.version, part.lane, part.seconds = 7 - k, k, 0.5
    batch = Batch.join(iter(parts))
    batch.validate()
    assert batch.shape == (time, sum(widths))
    for name in STEPS:
        np.testing.assert_array_equal(getattr(batch, name), np.hstack([getattr(part, name) for part in parts]))
    first = [part.next_observations()[part.mask & ~part.terminated] for part in parts]
    joined = batch.next_observations()
    start = 0
    for part, observed in zip(parts, first):
        columns = slice(start, start + part.shape[1])
        mine = joined[:, columns][part.mask & ~part.terminated]
        np.testing.assert_array_equal(mine, observed)
        start += part.shape[1]
    assert batch.episode_returns.tolist() == [r for part in parts for r in part.episode_returns.tolist()]
    assert batch.episode_lengths.tolist() == [r for part in parts for r in part.episode_lengths.tolist()]
    assert (batch.version, batch.lane, batch.seconds) == (8 - len(parts), 0, 0.5 * len(parts))
    assert all(mine is part for mine, part in zip(batch.blocks, parts))


def test_one_block_alone_is_not_copied() -> None:
    block, _ = random_block(1, 6, 2)
    block.version, block.lane = 3, 5
    batch = Batch.join([block])
    for field in dataclasses.fields(Block):
        assert getattr(batch, field.name) is getattr(block, field.name)
    assert batch.blocks == (block,)


def test_blocks_of_different_lengths_and_no_blocks_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[3, 4\] time steps"):
        Batch.join([random_block(1, 3, 2)[0], random_block(1, 4, 2)[0]])
    with pytest.raises(ValueError, match="no blocks"):
        Batch.join([])


@settings(deadline=None)
@given(blocks, st.integers(0, 5))
def test_a_padded_block_says_the_same_and_nothing_of_the_rest(made: tuple, more: int) -> None:
    block = read_only(made[0])
    time = block.shape[0]
    longer = block.padded(time + more)
    longer.validate()
    assert longer.shape == (time + more, block.shape[1])
    assert longer.steps == block.steps
    assert longer.ends[time:].all()
    np.testing.assert_array_equal(longer.ends[:time], block.ends)
    for name in STEPS:
        assert getattr(longer, name).dtype == getattr(block, name).dtype
        np.testing.assert_array_equal(getattr(longer, name)[:time], getattr(block, name))
    real = block.mask & ~block.terminated
    np.testing.assert_array_equal(longer.next_observations()[:time][real], block.next_observations()[real])


def test_images_stay_bytes() -> None:
    block, _ = random_block(2, 6, 2)
    block.observations = np.random.default_rng(0).integers(0, 256, (6, 2, 10, 10, 1), np.uint8)
    block.bootstrap = np.full((len(block.cuts), 10, 10, 1), 9, np.uint8)
    block.validate()
    batch = Batch.join([block, block])
    assert batch.observations.dtype == batch.bootstrap.dtype == batch.next_observations().dtype == np.uint8
    assert (block.next_observations()[tuple(block.cuts.T)] == 9).all()


def test_arrays_travel_out_of_band_and_arrive_as_views() -> None:
    block, _ = random_block(3, 50, 20)
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(block, protocol=5, buffer_callback=buffers.append)
    assert len(data) < 2_000
    raw = [bytes(buffer.raw()) for buffer in buffers]
    there: Block = pickle.loads(data, buffers=raw)
    assert not there.observations.flags.owndata
    assert not there.observations.flags.writeable
    there.validate()
    for name in STEPS:
        np.testing.assert_array_equal(getattr(there, name), getattr(block, name))
    assert there.next_observations().shape == block.observations.shape
    assert there.ends.flags.writeable


def test_a_block_is_described_in_a_line() -> None:
    block, pieces = random_block(4, 30, 3)
    block.version = 2
    episodes = sum(piece[-1].terminated or piece[-1].truncated for piece in pieces)
    text = f"(30 steps x 3 environments: {block.steps} transitions, {episodes} episodes, version 2)"
    assert (repr(block), repr(Batch.join([block]))) == ("Block" + text, "Batch" + text)


def test_contradictions_are_found() -> None:
    def broken(**changes: object) -> Block:
        return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]

    two = np.zeros((2, 1))
    plain = Block(
        observations=np.zeros((2, 1, 3)),
        actions=two,
        rewards=two,
        terminated=two > 0,
        truncated=two > 0,
        mask=two == 0,
        log_probs=two,
        cuts=np.array([[1, 0]]),
        bootstrap=np.zeros((1, 3)),
        episode_returns=np.zeros(0),
        episode_lengths=np.zeros(0),
    )
    plain.validate()
    gap = random_block(0, 3, 1)[0]
    gap.mask = np.array([[True], [False], [True]])
    gap.terminated = gap.truncated = np.zeros((3, 1), bool)
    yes_no, no_yes = np.array([[True], [False]]), np.array([[False], [True]])
    for message, block in {
        r"rewards has the shape \(3, 1\)": broken(rewards=np.zeros((3, 1))),
        "1 cuts do not go with": broken(bootstrap=np.zeros((2, 3))),
        "do not go with a bootstrap": broken(bootstrap=np.zeros((1, 4))),
        "marked as the end": broken(mask=no_yes, terminated=yes_no),
        "inside an episode": gap,
        r"cuts are \[\], but must be \[\[1, 0\]\]": broken(cuts=np.zeros((0, 2)), bootstrap=np.zeros((0, 3))),
        r"must be \[\[0, 0\], \[1, 0\]\]": broken(truncated=yes_no),
        r"cuts are \[\[1, 0\]\], but must be \[\]": broken(terminated=no_yes),
    }.items():
        with pytest.raises(ValueError, match=message):
            block.validate()
