"""The number of replicas under simulated traffic: a clock that is a number, and loads by a formula."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skate.serve.autoscaling import Autoscaler
from skate.serve.config import AutoscalingConfig

EVERY_S = 0.5


def run(config: AutoscalingConfig, replicas: int, load: Callable[[float], float], for_s: float) -> list[int]:
    """The number of replicas at each look."""
    scaler = Autoscaler(config, replicas)
    return [scaler.look(load(n * EVERY_S), n * EVERY_S) for n in range(int(for_s / EVERY_S))]


def changes(counts: list[int]) -> int:
    return sum(one != other for one, other in itertools.pairwise(counts))


def config(**other: float | int | None) -> AutoscalingConfig:
    given = {"max_replicas": 10, "target_ongoing_requests": 2, "upscale_delay_s": 3, "downscale_delay_s": 20} | other
    return AutoscalingConfig(**given)  # type: ignore[arg-type]


def test_a_higher_load_is_followed_after_the_delay_and_not_before() -> None:
    counts = run(config(), 1, lambda now: 8, 10)
    assert counts[: int(3 / EVERY_S)] == [1] * int(3 / EVERY_S)
    assert set(counts[int(3 / EVERY_S) :]) == {4}


def test_a_lower_load_is_followed_after_the_delay_and_not_before() -> None:
    counts = run(config(), 4, lambda now: 2, 30)
    assert counts[: int(20 / EVERY_S)] == [4] * int(20 / EVERY_S)
    assert set(counts[int(20 / EVERY_S) :]) == {1}


def test_the_first_request_of_a_quiet_deployment_starts_a_replica_at_once() -> None:
    scaler = Autoscaler(config(min_replicas=0), 0)
    assert [scaler.look(0, at) for at in range(100)] == [0] * 100
    assert scaler.look(1, 100.0) == 1
    assert scaler.look(50, 100.1) == 1
    assert scaler.look(50, 103.2) == 10


def test_a_quiet_deployment_comes_to_zero_if_it_may() -> None:
    assert run(config(min_replicas=0), 3, lambda now: 0, 30)[-1] == 0
    assert run(config(min_replicas=2), 3, lambda now: 0, 30)[-1] == 2


def test_the_step_from_one_to_none_can_have_a_delay_of_its_own() -> None:
    counts = run(config(min_replicas=0, downscale_to_zero_delay_s=60), 4, lambda now: 0, 100)
    assert counts[int(21 / EVERY_S)] == 1
    assert counts[int(75 / EVERY_S)] == 1
    assert counts[-1] == 0


def test_a_pause_that_is_shorter_than_the_delay_changes_nothing() -> None:
    counts = run(config(), 4, lambda now: 8 if now % 20 < 5 else 0, 200)
    assert set(counts) == {4}


def test_a_burst_that_is_shorter_than_the_delay_changes_nothing() -> None:
    assert set(run(config(look_back_period_s=0.6), 1, lambda now: 20 if 10 <= now < 12 else 1, 30)) == {1}


def test_a_burst_that_lasts_is_followed_and_forgotten() -> None:
    counts = run(config(), 1, lambda now: 20 if 10 <= now < 40 else 1, 80)
    assert max(counts) == 10
    assert counts[-1] == 1
    assert counts == sorted(counts[: counts.index(10)]) + [10] * counts.count(10) + [1] * (
        len(counts) - counts.index(10) - counts.count(10)
    )


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("middle", [7.0, 8.0])
def test_noise_around_the_target_does_not_make_replicas_come_and_go(seed: int, middle: float) -> None:
    """For ten minutes; at 8.0, the very bound between four and five replicas, the number may settle on the higher."""
    chance = random.Random(seed)
    counts = run(config(), 4, lambda now: chance.gauss(middle, 1.0), 600)
    assert set(counts) <= {4, 5}
    assert changes(counts) <= (0 if middle == 7.0 else 3)


@pytest.mark.parametrize("factor", [0.1, 0.5, 1.0])
def test_a_part_of_the_way_at_a_time_arrives_at_the_same_number(factor: float) -> None:
    careful = config(min_replicas=0, upscaling_factor=factor, downscaling_factor=factor)
    up = run(careful, 1, lambda now: 19, 60)
    down = run(careful, 10, lambda now: 0, 300)
    assert (up[-1], down[-1]) == (10, 0)
    assert changes(up) == (9 if factor == 0.1 else 4 if factor == 0.5 else 1)
    assert up == sorted(up)
    assert down == sorted(down, reverse=True)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_the_number_stays_between_its_bounds(data: st.DataObject) -> None:
    low = data.draw(st.integers(0, 5))
    high = data.draw(st.integers(max(1, low), 12))
    factor = st.none() | st.floats(0.05, 5)
    bounded = config(
        min_replicas=low,
        max_replicas=high,
        upscale_delay_s=data.draw(st.floats(0, 5)),
        downscale_delay_s=data.draw(st.floats(0, 5)),
        upscaling_factor=data.draw(factor),
        downscaling_factor=data.draw(factor),
        downscale_to_zero_delay_s=data.draw(st.none() | st.floats(0, 9)),
    )
    scaler, now = Autoscaler(bounded, low), 0.0
    for load, pause in data.draw(st.lists(st.tuples(st.integers(0, 1000), st.floats(0, 10)), max_size=40)):
        now += pause
        assert low <= scaler.look(load, now) <= high
        assert scaler.wanted or not load
