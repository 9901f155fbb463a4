"""Returns against slow and obvious references that walk along episodes."""

from __future__ import annotations

import doctest
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import skate.rl.returns
from rl_reference import Piece, Step, random_block, read_only, value
from skate.rl.block import Array, Batch, Block
from skate.rl.returns import discounted, gae, n_step, vtrace

blocks = st.builds(random_block, st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 5))
unit = st.sampled_from([0.0, 0.3, 0.9, 0.99, 1.0])


def v(observation: float) -> float:
    return float(value(np.float32([observation]))[0])


def v_after(step: Step) -> float:
    return 0.0 if step.terminated else v(step.next_observation)


def spread(block: Block, pieces: list[Piece], numbers: Any) -> Array:
    """An array [T, N] with what `numbers(piece)` says of each step, and 0 elsewhere."""
    array = np.zeros(block.shape)
    for piece in pieces:
        for step, number in zip(piece, numbers(piece)):
            array[step.t, step.n] = number
    return array


def same(ours: Array, reference: Array) -> None:
    assert ours.dtype == np.float32
    np.testing.assert_allclose(ours, reference, rtol=1e-5, atol=1e-5)


def test_the_example_in_the_docstring_runs() -> None:
    results = doctest.testmod(skate.rl.returns)
    assert (results.failed, results.attempted) == (0, 7)


@settings(deadline=None)
@given(blocks, unit, unit)
def test_gae_is_the_discounted_sum_of_the_errors_that_follow(made: Any, gamma: float, lam: float) -> None:
    block, pieces = read_only(made[0]), made[1]

    def numbers(piece: Piece) -> list[float]:
        errors = [step.reward + gamma * v_after(step) - v(step.observation) for step in piece]
        return [sum((gamma * lam) ** k * error for k, error in enumerate(errors[i:])) for i in range(len(errors))]

    advantages, targets = gae(block, lambda observations: value(observations[:, 0]), gamma, lam)
    expected = spread(block, pieces, numbers)
    same(advantages, expected)
    same(targets, expected + spread(block, pieces, lambda piece: [v(step.observation) for step in piece]))


@settings(deadline=None)
@given(blocks, unit)
def test_gae_with_lambda_one_is_the_return_with_the_value_at_a_cut(made: Any, gamma: float) -> None:
    block, _ = made
    ahead = value(block.bootstrap[:, 0])
    _, targets = gae(block, lambda observations: value(observations[:, 0]), gamma, 1.0)
    np.testing.assert_allclose(targets, discounted(block, gamma, ahead), rtol=1e-5, atol=1e-4)


@settings(deadline=None)
@given(blocks, unit, st.booleans())
def test_discounted_rewards_are_summed_to_the_end_of_the_episode(made: Any, gamma: float, valued: bool) -> None:
    block, pieces = read_only(made[0]), made[1]

    def numbers(piece: Piece) -> list[float]:
        rewards = [step.reward for step in piece] + [v_after(piece[-1]) if valued else 0.0]
        return [sum(gamma**k * reward for k, reward in enumerate(rewards[i:])) for i in range(len(piece))]

    ahead = value(block.bootstrap[:, 0]) if valued else None
    same(discounted(block, gamma, ahead), spread(block, pieces, numbers))


@settings(deadline=None)
@given(blocks, unit, unit, st.sampled_from([0.5, 1.0, 2.0, math.inf]), st.sampled_from([0.5, 1.0, 2.0]))
def test_vtrace_is_the_formula_of_the_paper(made: Any, gamma: float, lam: float, rho_max: float, c_max: float) -> None:
    block, pieces = read_only(made[0]), made[1]
    log_probs = np.random.default_rng(len(pieces)).normal(-1, 1, block.shape).astype(np.float32)

    def ratio(step: Step) -> float:
        return math.exp(float(log_probs[step.t, step.n]) - step.log_prob)

    def targets(piece: Piece) -> list[float]:
        """v_s = V(x_s) + sum over t >= s of gamma^(t-s) (c_s ... c_(t-1)) rho_t (r_t + gamma V(x_(t+1)) - V(x_t))"""
        found = []
        for s, start in enumerate(piece):
            total, trace = v(start.observation), 1.0
            for step in piece[s:]:
                error = step.reward + gamma * v_after(step) - v(step.observation)
                total += trace * min(rho_max, ratio(step)) * error
                trace *= gamma * lam * min(c_max, ratio(step))
            found.append(total)
        return found

    def advantages(piece: Piece) -> list[float]:
        """rho_s (r_s + gamma (lam v_(s+1) + (1 - lam) V(x_(s+1))) - V(x_s)); after the last step, its value alone"""
        after = [*targets(piece)[1:], v_after(piece[-1])]
        return [
            min(rho_max, ratio(step))
            * (step.reward + gamma * (lam * target + (1 - lam) * v_after(step)) - v(step.observation))
            for step, target in zip(piece, after)
        ]

    found = vtrace(
        block, lambda observations: value(observations[:, 0]), log_probs, gamma, lam, rho_max=rho_max, c_max=c_max
    )
    for ours, reference in zip(found, (targets, advantages)):
        expected = spread(block, pieces, reference)
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4 * max(1.0, np.abs(expected).max()))


@settings(deadline=None)
@given(blocks, unit, unit)
def test_vtrace_of_the_policy_that_acted_is_gae(made: Any, gamma: float, lam: float) -> None:
    block, _ = made
    values = value(block.observations.reshape(-1)).reshape(block.shape), value(block.bootstrap[:, 0])
    targets, advantages = vtrace(block, values, block.log_probs, gamma, lam)
    expected_advantages, expected_targets = gae(block, values, gamma, lam)
    np.testing.assert_allclose(advantages, expected_advantages, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(targets, expected_targets, rtol=1e-5, atol=1e-5)


def test_a_policy_that_is_far_away_does_not_overflow() -> None:
    block, _ = random_block(0, 10, 3)
    values = np.zeros(block.shape), np.zeros(len(block.cuts))
    for far in (-1e4, 1e4):
        for found in vtrace(block, values, np.full(block.shape, far, np.float32)):
            assert np.isfinite(found).all()


@settings(deadline=None)
@given(blocks, st.integers(1, 6), unit)
def test_transitions_over_n_steps_are_those_of_the_episodes(made: Any, n: int, gamma: float) -> None:
    block, pieces = read_only(made[0]), made[1]
    expected = {}
    for piece in pieces:
        for i, step in enumerate(piece):
            taken = piece[i : i + n]
            expected[step.observation] = (
                step.action,
                sum(gamma**k * later.reward for k, later in enumerate(taken)),
                None if taken[-1].terminated else taken[-1].next_observation,
                0.0 if taken[-1].terminated else gamma ** len(taken),
                (step.t, step.n),
            )
    found = n_step(block, n, gamma)
    assert len(found) == len(expected) == block.steps
    assert found.rewards.dtype == found.discounts.dtype == np.float32
    places = []
    for k in range(len(found)):
        action, reward, following, discount, place = expected.pop(float(found.observations[k, 0]))
        places.append(place)
        assert found.actions[k] == action
        assert found.rewards[k] == pytest.approx(reward, rel=1e-5, abs=1e-5)
        assert found.discounts[k] == pytest.approx(discount, rel=1e-6)
        if following is not None:
            assert found.next_observations[k, 0] == following
    assert places == sorted(places)


def test_images_and_actions_keep_their_dtype_in_transitions() -> None:
    block, _ = random_block(2, 8, 3)
    block.observations = np.random.default_rng(0).integers(0, 256, (8, 3, 4, 4), np.uint8)
    block.bootstrap = np.full((len(block.cuts), 4, 4), 9, np.uint8)
    block.actions = np.zeros((8, 3, 2), np.float32)
    found = n_step(block, 3)
    assert found.observations.dtype == found.next_observations.dtype == np.uint8
    assert found.observations.shape == found.next_observations.shape == (block.steps, 4, 4)
    assert (found.actions.shape, found.actions.dtype) == ((block.steps, 2), np.float32)


def test_a_joined_batch_gives_what_its_blocks_give() -> None:
    parts = [random_block(seed, 9, 3)[0] for seed in range(3)]
    batch = Batch.join(parts)
    joined = gae(batch, lambda observations: value(observations[:, 0]))
    each = [gae(part, lambda observations: value(observations[:, 0])) for part in parts]
    for k in range(2):
        np.testing.assert_array_equal(joined[k], np.hstack([found[k] for found in each]))


def test_a_time_limit_is_not_the_end_of_the_world() -> None:
    """One a step for ever, cut off every 20 steps: the right value is its own target; cut as an end it would not be."""
    gamma, time = 0.9, 50
    right = 1 / (1 - gamma)
    truncated = np.zeros((time, 1), bool)
    truncated[19::20] = True
    cuts = np.array([[19, 0], [39, 0], [49, 0]])
    block = Block(
        observations=np.zeros((time, 1, 1), np.float32),
        actions=np.zeros((time, 1), np.int64),
        rewards=np.ones((time, 1), np.float32),
        terminated=np.zeros((time, 1), bool),
        truncated=truncated,
        mask=np.ones((time, 1), bool),
        log_probs=np.zeros((time, 1), np.float32),
        cuts=cuts,
        bootstrap=np.zeros((3, 1), np.float32),
        episode_returns=np.full(2, 20.0),
        episode_lengths=np.full(2, 20),
    )
    values = np.full((time, 1), right), np.full(3, right)
    np.testing.assert_allclose(gae(block, values, gamma)[1], right, rtol=1e-6)
    np.testing.assert_allclose(vtrace(block, values, block.log_probs, gamma)[0], right, rtol=1e-6)
    np.testing.assert_allclose(discounted(block, gamma, values[1]), right, rtol=1e-6)
    steps = n_step(block, 5, gamma)
    np.testing.assert_allclose(steps.rewards + steps.discounts * right, right, rtol=1e-6)


def test_long_sums_keep_their_precision() -> None:
    """Without a discount the smallest rewards of 20,000 steps are not lost beside the first ones."""
    block, _ = random_block(0, 20_000, 1, mean_length=1e9)
    block.rewards[...] = 0.1
    block.mask[...] = True
    block.terminated[...] = block.truncated[...] = False
    total = discounted(block, 1.0)[0, 0]
    assert total == pytest.approx(20_000 * float(np.float32(0.1)), rel=1e-7)


def test_wrong_shapes_and_numbers_are_refused() -> None:
    block, _ = random_block(0, 6, 2)
    values = np.zeros((6, 2)), np.zeros(len(block.cuts))
    with pytest.raises(ValueError, match=r"values has the shape \(2, 6\), but this block needs \(6, 2\)"):
        gae(block, (values[0].T, values[1]))
    with pytest.raises(ValueError, match="bootstrap values has the shape"):
        gae(block, (values[0], np.zeros(99)))
    with pytest.raises(ValueError, match="log_probs has the shape"):
        vtrace(block, values, np.zeros(6))
    with pytest.raises(ValueError, match="bootstrap_values has the shape"):
        discounted(block, 0.9, np.zeros((99,)))
    with pytest.raises(ValueError, match="at least one step"):
        n_step(block, 0)
