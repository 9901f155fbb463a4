"""Replay buffers: what is kept, what is drawn and how often, and that a restored buffer goes on in the same way."""

from __future__ import annotations

import doctest
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skate.rl.replay
from skate.rl.block import Array
from skate.rl.replay import EPSILON, Prioritised, Ring, SumTree
from skate.rl.returns import Transitions

BUFFERS = [Ring, Prioritised]


def numbered(start: int, count: int) -> Transitions:
    """Transitions whose every field tells their number."""
    numbers = np.arange(start, start + count)
    return Transitions(
        observations=np.repeat((numbers % 256).astype(np.uint8), 4).reshape(count, 2, 2),
        actions=numbers.astype(np.int64),
        rewards=numbers.astype(np.float32) / 2,
        next_observations=np.repeat(((numbers + 1) % 256).astype(np.uint8), 4).reshape(count, 2, 2),
        discounts=numbers.astype(np.float32) / 4,
    )


def check(transitions: Transitions) -> Array:
    """Each row is one transition, in all its fields; the numbers of the rows."""
    numbers = transitions.actions
    expected = numbered(0, int(numbers.max()) + 1)
    for name in ("observations", "actions", "rewards", "next_observations", "discounts"):
        ours, theirs = getattr(transitions, name), getattr(expected, name)[numbers]
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)
    return numbers


def test_the_example_in_the_docstring_runs() -> None:
    results = doctest.testmod(skate.rl.replay)
    assert (results.failed, results.attempted) == (0, 4)


@pytest.mark.parametrize("kind", BUFFERS)
@settings(deadline=None)
@given(capacity=st.integers(1, 40), counts=st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_the_last_transitions_are_kept_and_all_of_them_are_drawn(kind: Any, capacity: int, counts: list[int]) -> None:
    buffer, kept = kind(capacity, seed=1), []
    for count in counts:
        start = kept[-1] + 1 if kept else 0
        buffer.add(numbered(start, count))
        kept = [*kept, *range(start, start + count)][-capacity:]
        assert len(buffer) == len(kept)
    if kept:
        drawn = check(buffer.sample(40 * capacity).transitions)
        assert set(drawn.tolist()) == set(kept)


@pytest.mark.parametrize("kind", BUFFERS)
def test_the_same_seed_draws_the_same_and_another_seed_does_not(kind: Any) -> None:
    def drawn(seed: int) -> list[int]:
        buffer = kind(1000, seed)
        buffer.add(numbered(0, 600))
        buffer.update(np.arange(600), np.arange(600.0))
        return [n for _ in range(3) for n in buffer.sample(32).indices.tolist()]

    assert drawn(3) == drawn(3) != drawn(4)


@pytest.mark.parametrize("kind", BUFFERS)
@pytest.mark.parametrize("count", [0, 70, 170])
def test_a_restored_buffer_goes_on_in_the_same_way(kind: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skate.rl.replay, "TOP", 4)
    buffer, rng = kind(100, seed=5), np.random.default_rng(0)
    if count:
        buffer.add(numbered(0, count))
        buffer.sample(7)
        buffer.update(np.arange(50), rng.normal(size=50) * 9)
    state = {name: array.copy() for name, array in buffer.state().items()}
    other = kind(100, seed=6)
    other.add(numbered(1000, 30))
    other.restore(state)
    for array in state.values():
        array[...] = 0  # what was restored does not hang on the arrays that it came from
    for step in range(4):
        for each in (buffer, other):
            each.add(numbered(count + 40 * step, 40))
        ours, theirs = buffer.sample(33, beta=0.7), other.sample(33, beta=0.7)
        assert check(ours.transitions).tolist() == check(theirs.transitions).tolist()
        assert ours.indices.tolist() == theirs.indices.tolist()
        assert ours.weights.tolist() == theirs.weights.tolist()
        for each in (buffer, other):
            each.update(ours.indices, ours.indices / 7.0)


@pytest.mark.parametrize("kind", BUFFERS)
def test_a_state_is_arrays_and_no_larger_than_what_is_kept(kind: Any) -> None:
    buffer = kind(10_000)
    buffer.add(numbered(0, 20))
    state = buffer.state()
    assert all(type(array) is np.ndarray and array.ndim and array.dtype != object for array in state.values())
    assert sum(array.nbytes for array in state.values()) < 20 * 64
    small = kind(9)
    with pytest.raises(ValueError, match="capacity 10000, but this one has 9"):
        small.restore(state)
    assert len(small) == 0


@pytest.mark.parametrize("kind", BUFFERS)
def test_mistakes_are_named(kind: Any) -> None:
    with pytest.raises(ValueError, match="capacity 0 can keep nothing"):
        kind(0)
    buffer = kind(10)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1)
    buffer.add(numbered(0, 3))
    other = numbered(0, 3)
    other.observations = other.observations.astype(np.float32)
    with pytest.raises(ValueError, match=r"observations are float32 .* needs uint8 \(3, 2, 2\)"):
        buffer.add(other)
    other = numbered(0, 3)
    other.actions = other.actions[:2]
    with pytest.raises(ValueError, match=r"actions are int64 \(2,\)"):
        buffer.add(other)
    assert len(buffer) == 3
    check(buffer.sample(20).transitions)


def test_a_ring_draws_uniformly_with_weights_of_one() -> None:
    ring = Ring(50, seed=0)
    ring.add(numbered(0, 80))
    sample = ring.sample(50_000)
    assert sample.weights.dtype == np.float32
    assert (sample.weights == 1).all()
    counts = np.bincount(sample.indices, minlength=50)
    assert (abs(counts - 1000) < 6 * math.sqrt(1000)).all()
    ring.update(sample.indices, sample.weights)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_transitions_are_drawn_in_proportion_and_weighted_against_it(alpha: float) -> None:
    buffer, rng = Prioritised(200, seed=0, alpha=alpha), np.random.default_rng(1)
    buffer.add(numbered(0, 200))
    priorities = rng.normal(size=200) * 5
    buffer.update(np.arange(200), priorities)
    shares = (abs(priorities) + EPSILON) ** alpha
    share = shares / shares.sum()
    size = 100_000
    sample = buffer.sample(size, beta=0.5)
    counts = np.bincount(sample.indices, minlength=200)
    # Strata differ from their share by less than two draws, where independent draws would by hundreds.
    assert (abs(counts - size * share) < 2.001).all()
    weights = (200 * share[sample.indices]) ** -0.5
    np.testing.assert_allclose(sample.weights, weights / weights.max(), rtol=1e-6)
    assert sample.weights.dtype == np.float32
    assert sample.weights.max() == 1
    full = buffer.sample(size, beta=1.0)
    np.testing.assert_allclose(full.weights * share[full.indices], (full.weights * share[full.indices])[0], rtol=1e-5)


def test_one_draw_is_taken_of_each_stratum_and_not_always_at_the_same_place() -> None:
    buffer = Prioritised(1000, seed=0)
    buffer.add(numbered(0, 1000))
    draws = np.array([buffer.sample(10).indices for _ in range(50)])
    assert (draws // 100 == np.arange(10)).all()
    assert all(len(set(column)) > 20 for column in draws.T.tolist())


def test_new_transitions_have_the_largest_priority_there_was() -> None:
    buffer = Prioritised(100, seed=0, alpha=1.0)
    buffer.add(numbered(0, 50))
    buffer.update(np.arange(50), np.full(50, 0.0))
    buffer.update(np.array([7]), np.array([-30.0]))
    buffer.update(np.array([7]), np.array([3.0]))
    buffer.add(numbered(50, 10))
    counts = np.bincount(buffer.sample(3030).indices, minlength=60)
    assert (abs(counts[50:] - 300) <= 2).all()
    assert abs(counts[7] - 30) <= 2
    assert counts.sum() - counts[50:].sum() - counts[7] <= 2


def test_a_transition_without_error_is_drawn_again_if_there_are_no_others() -> None:
    buffer = Prioritised(10, seed=0)
    buffer.add(numbered(0, 10))
    buffer.update(np.arange(10), np.zeros(10))
    assert set(buffer.sample(100).indices.tolist()) == set(range(10))
    assert (buffer.sample(10).weights == 1).all()


def test_priorities_that_make_no_sense_are_refused() -> None:
    buffer = Prioritised(10)
    buffer.add(numbered(0, 5))
    for wrong in (math.nan, math.inf):
        with pytest.raises(ValueError, match="not a finite number"):
            buffer.update(np.array([0, 1]), np.array([1.0, wrong]))
    for place in (-1, 5):
        with pytest.raises(IndexError, match="has 5 transitions"):
            buffer.update(np.array([0, place]), np.array([1.0, 1.0]))
    buffer.update(np.zeros(0, np.int64), np.zeros(0))
    assert set(buffer.sample(100).indices.tolist()) == set(range(5))


@settings(deadline=None)
@given(
    capacity=st.integers(1, 70),
    top=st.sampled_from([1, 2, 3, 8, 2048]),
    seed=st.integers(0, 10**6),
    rounds=st.integers(1, 4),
)
def test_a_tree_finds_what_a_walk_along_the_numbers_finds(capacity: int, top: int, seed: int, rounds: int) -> None:
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skate.rl.replay, "TOP", top)
        tree = SumTree(capacity)
    assert len(tree.levels[-1]) <= top
    numbers = np.zeros(capacity)
    for _ in range(rounds):
        places = rng.integers(0, capacity, rng.integers(1, 20))
        for place, number in zip(places, new := rng.integers(0, 5, len(places)).astype(float)):
            numbers[place] = number
        tree.set(places, new)
    if not numbers.any():
        return
    # Whole numbers and eighths of them are exact in floating point: so the answer is exact, too.
    total = int(numbers.sum())
    wanted = rng.integers(0, 8 * total, 30) / 8 + 1 / 16
    found, sizes = tree.find(wanted / total)
    for target, leaf, size in zip(wanted, found.tolist(), sizes):
        walked, position = 0.0, -1
        while walked <= target:
            position += 1
            walked += numbers[position]
        assert (leaf, size) == (position, numbers[position])


@pytest.mark.parametrize("top", [1, 2, 8])
def test_a_leaf_begins_where_the_one_before_it_ends(top: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skate.rl.replay, "TOP", top)
    tree = SumTree(8)
    tree.set(np.arange(8), np.array([0.0, 1, 0, 2, 0, 0, 1, 0]))
    found, _ = tree.find(np.array([0.0, 0.2, 0.25, 0.7, 0.75, 0.99, 1.0]))
    assert found.tolist() == [1, 1, 3, 3, 6, 6, 6]


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_no_rounding_leads_to_a_leaf_that_is_nothing(seed: int) -> None:
    """Numbers of very different sizes, most of them 0, searched where rounding hurts most."""
    rng = np.random.default_rng(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skate.rl.replay, "TOP", int(rng.choice([1, 2, 4])))
        tree = SumTree(16)
    numbers = np.where(
        rng.random(16) < 0.6, 0.0, (1 + rng.integers(0, 9, 16) * 2.0**-52) * 2.0 ** -rng.integers(0, 54, 16)
    )
    numbers[rng.integers(0, 16)] = 1 + 2.0**-51
    tree.set(np.arange(16), numbers)
    edges = numbers.cumsum() / numbers.sum()
    near = np.concatenate([edges - k * 2.0**-53 for k in range(-4, 5)])
    found, sizes = tree.find(near.clip(0, 1 - 2.0**-53))
    assert (sizes > 0).all()
    assert (numbers[found] == sizes).all()


def test_an_overshoot_by_rounding_falls_back_to_the_last_leaf() -> None:
    """Two numbers whose sum is rounded up: the last place before it, less the first number, is the whole second."""
    unit = 2.0**-52
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(skate.rl.replay, "TOP", 1)
        tree = SumTree(4)
    first, second = 1.5 * unit, 1 + 2 * unit
    tree.set(np.arange(4), np.array([first, 0, second, 0]))
    total, place = first + second, 1 + 3 * unit
    assert total == 1 + 4 * unit
    assert place - first == second
    fraction = next(f for f in (1 - k * unit / 2 for k in range(1, 9)) if f * total == place)
    found, sizes = tree.find(np.array([fraction]))
    assert (found.tolist(), sizes.tolist()) == ([2], [second])


def test_a_large_buffer_draws_in_proportion() -> None:
    """More leaves than fit in the top of the tree, a capacity that is no power of two, and only part of it filled."""
    buffer = Prioritised(100_003, seed=0, alpha=1.0)
    count = 70_001
    zeros = np.zeros(count, np.float32)
    buffer.add(Transitions(np.zeros((count, 1)), np.arange(count), zeros, np.zeros((count, 1)), zeros))
    buffer.update(np.arange(count), np.arange(count, dtype=np.float64))
    sample = buffer.sample(10_000)
    assert (sample.transitions.actions == sample.indices).all()
    expected = count * np.sqrt((np.arange(10_000) + 0.5) / 10_000)  # of the k-th of equal shares of a triangle
    assert abs(sample.indices - expected).max() < count * 0.011
    assert abs(sample.indices - expected)[100:].max() < count * 0.001


@pytest.mark.parametrize("kind", BUFFERS)
def test_buffers_and_samples_travel(kind: Any) -> None:
    buffer = kind(20, seed=1)
    buffer.add(numbered(0, 15))
    there = pickle.loads(pickle.dumps(buffer))
    ours, theirs = buffer.sample(8), pickle.loads(pickle.dumps(there.sample(8)))
    assert check(ours.transitions).tolist() == check(theirs.transitions).tolist()
