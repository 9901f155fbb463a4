"""Rewards are scaled by the deviation of discounted returns, whichever lanes come when."""

from __future__ import annotations

import numpy as np
import pytest

from skate.rl.block import Batch, Block
from skate.rl.scaling import LARGEST, RewardScale

GAMMA = 0.9


def block(lane: int, seed: int, steps: int = 6, envs: int = 3) -> Block:
    rng = np.random.default_rng([lane, seed])
    flags, column = np.zeros((steps, envs), bool), np.zeros((steps, envs), np.float32)
    return Block(
        observations=np.zeros((steps, envs, 1), np.float32),
        actions=column,
        rewards=rng.normal(50, 20, (steps, envs)).astype(np.float32),
        terminated=rng.random((steps, envs)) < 0.2,
        truncated=flags,
        mask=~flags,
        log_probs=column,
        cuts=np.zeros((0, 2), np.int64),
        bootstrap=np.zeros((0, 1), np.float32),
        episode_returns=np.zeros(0),
        episode_lengths=np.zeros(0, np.int64),
        lane=lane,
    )


def naive_returns(blocks: list[Block]) -> list[float]:
    """Discounted sums of each environment over all its blocks in their order."""
    found: list[float] = []
    for lane in {each.lane: None for each in blocks}:
        own = [each for each in blocks if each.lane == lane]
        for n in range(own[0].shape[1]):
            carried = 0.0
            for each in own:
                for t in range(each.shape[0]):
                    carried = carried * GAMMA + float(each.rewards[t, n])
                    found.append(carried)
                    carried = 0.0 if each.terminated[t, n] else carried
    return found


def test_rewards_are_divided_by_the_deviation_of_all_returns_so_far() -> None:
    blocks = [block(0, 1), block(1, 1), block(1, 2), block(0, 2)]
    scale = RewardScale(GAMMA)
    for count, each in enumerate(blocks, start=1):
        scaled = scale(each)
        expected = each.rewards / np.std(naive_returns(blocks[:count]))
        np.testing.assert_allclose(scaled.rewards, np.clip(expected, -LARGEST, LARGEST), rtol=1e-5)
        assert scaled.observations is each.observations


def test_a_batch_of_all_lanes_is_the_same_as_their_blocks_together() -> None:
    scale = RewardScale(GAMMA)
    for seed in (1, 2):
        batch = Batch.join([block(0, seed), block(1, seed)])
        scaled = scale(batch)
    blocks = [block(lane, seed) for seed in (1, 2) for lane in (0, 1)]
    np.testing.assert_allclose(scaled.rewards, batch.rewards / np.std(naive_returns(blocks)), rtol=1e-5)


@pytest.mark.parametrize("seed", [3, 4])
def test_it_goes_on_from_its_state_bit_for_bit(seed: int) -> None:
    scale, again = RewardScale(GAMMA), RewardScale(GAMMA)
    scale(block(0, 1))
    scale(block(1, 1))
    again.restore(scale.state())
    assert scale(block(1, seed)).rewards.tobytes() == again(block(1, seed)).rewards.tobytes()


def test_a_run_may_go_on_with_another_number_of_environments() -> None:
    before, after = RewardScale(GAMMA), RewardScale(GAMMA)
    before(block(0, 1, envs=3))
    after.restore(before.state())
    assert after(block(0, 2, envs=5)).rewards.shape == (6, 5)
