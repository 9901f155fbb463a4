"""Sizes of batches under simulated traffic: seeded arrivals, a clock that is a number, a model of what batches cost.

The server of these tests needs 2 ms for a batch and 0.1 ms for each of its items, unless a test says otherwise. Its
objective is 20 ms. Batches of 80 take 10 ms, the longest that keeps an item that has just missed one within the
objective, so 80 items in 10 ms is the capacity of the best fixed size.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate.serve.batching import BatchLimit, BatchOptions, Collector, checked_options

OBJECTIVE_S = 0.020
CAPACITY = 80 / 0.010

#: How long a batch takes: of its size, of the moment, and of chance.
Cost = Callable[[int, float, random.Random], float]


def model(size: int, now: float = 0.0, chance: random.Random | None = None) -> float:
    return 0.002 + 0.0001 * size


@dataclass
class Traffic:
    """What happened: when each item had its result, and how long it took; and the size and moment of each batch."""

    offered: int = 0
    results: list[tuple[float, float]] = field(default_factory=list)
    batches: list[tuple[float, int]] = field(default_factory=list)

    def percentile(self, share: float, since: float = 0.0, until: float = math.inf) -> float:
        times = sorted(seconds for at, seconds in self.results if since <= at < until)
        return times[int(share * len(times))]

    def throughput(self, since: float, until: float) -> float:
        return sum(since <= at < until for at, _ in self.results) / (until - since)

    def sizes(self, since: float, until: float = math.inf) -> list[int]:
        return [size for at, size in self.batches if since <= at < until]


def simulate(rate: float, seconds: float, cost: Cost = model, seed: int = 1) -> Traffic:
    """Items arrive at random at that rate and do not wait for results of others."""
    chance = random.Random(seed)
    collector: Collector[int] = Collector(BatchOptions(OBJECTIVE_S, max_batch_size=1024))
    traffic, arrivals = Traffic(), {}
    now, began, ends, batch = 0.0, 0.0, math.inf, list[int]()
    arrives = chance.expovariate(rate)
    while now < seconds:
        now = min(arrives, ends)
        if now == ends:
            traffic.results += [(now, now - arrivals.pop(item)) for item in batch]
            collector.finished(len(batch), now - began)
            ends = math.inf
        else:
            collector.add(traffic.offered, now)
            arrivals[traffic.offered] = now
            traffic.offered += 1
            arrives = now + chance.expovariate(rate)
        due_at = collector.due_at()
        if due_at is not None and due_at <= now:
            batch, began = collector.take(), now
            ends = now + cost(len(batch), now, chance)
            traffic.batches.append((now, len(batch)))
    return traffic


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_the_99th_percentile_meets_the_objective(load: float) -> None:
    traffic = simulate(load * CAPACITY, seconds=4)
    assert traffic.percentile(0.99) <= OBJECTIVE_S


def test_the_objective_is_met_also_when_no_batch_takes_what_the_last_one_took() -> None:
    def varies(size: int, now: float, chance: random.Random) -> float:
        return model(size) * chance.lognormvariate(0, 0.15)

    assert simulate(0.8 * CAPACITY, 4, varies).percentile(0.99) <= OBJECTIVE_S


def test_a_load_of_95_percent_is_served_without_a_queue_that_grows() -> None:
    traffic = simulate(0.95 * CAPACITY, seconds=6)
    assert traffic.offered - len(traffic.results) < 0.1 * CAPACITY
    assert traffic.percentile(0.5, since=1) <= OBJECTIVE_S


def test_a_saturated_server_does_nine_tenths_of_what_the_best_fixed_size_does() -> None:
    """Also in the first half second, in which the size begins at one."""
    traffic = simulate(2 * CAPACITY, seconds=3)
    assert traffic.throughput(1, 3) >= 0.9 * CAPACITY
    assert traffic.throughput(0, 0.5) >= 0.8 * CAPACITY


def test_at_low_load_an_item_waits_for_nothing() -> None:
    assert simulate(rate=50, seconds=10).percentile(0.5) <= model(1) + 0.0003


def test_the_limit_follows_a_model_that_becomes_three_times_as_slow_and_fast_again() -> None:
    def changes(size: int, now: float, chance: random.Random) -> float:
        return model(size) * (3 if 2 <= now < 4 else 1)

    light = simulate(600, 6, changes)
    assert light.percentile(0.99, since=2.5, until=4) <= OBJECTIVE_S
    heavy = simulate(2 * CAPACITY, 6, changes)
    assert max(heavy.sizes(2.5, 4)) * 0.0003 + 0.006 <= OBJECTIVE_S / 2 + 0.0003
    assert heavy.throughput(5, 6) >= 0.9 * CAPACITY


def test_the_limit_is_back_ten_batches_after_a_pause_of_the_garbage_collector() -> None:
    limit = BatchLimit(BatchOptions(OBJECTIVE_S, 1024))
    for _ in range(100):
        limit.finished(limit.size, model(limit.size))
    before = limit.size
    limit.finished(limit.size, 0.5)
    assert limit.size >= 0.85 * before
    for _ in range(10):
        limit.finished(limit.size, model(limit.size))
    assert limit.size >= 0.9 * before


def test_an_objective_that_no_size_meets_does_not_end_in_batches_of_one() -> None:
    """One item takes 30 ms, and so do ten: batches of one would leave nearly everything undone."""

    def slow(size: int, now: float, chance: random.Random) -> float:
        return 0.030 + 0.0001 * size

    traffic = simulate(3_000, 8, slow)
    assert traffic.throughput(2, 8) >= 0.9 * 3_000
    assert max(slow(size, 0, random.Random()) for size in traffic.sizes(2)) <= 2.2 * slow(1, 0, random.Random())


def test_the_limit_grows_no_more_than_batches_have_shown() -> None:
    limit = BatchLimit(BatchOptions(OBJECTIVE_S, 1024))
    limit.finished(1, 0.001)
    assert limit.size == 2
    for _ in range(100):
        limit.finished(1, 0.001)
    assert limit.size == 2, "batches of one do not say how long two take"


def test_without_an_objective_the_limit_is_the_largest_batch() -> None:
    options = BatchOptions(None, 7)
    limit = BatchLimit(options)
    limit.finished(7, 100.0)
    assert limit.size == 7
    options.max_batch_size = 9
    assert limit.size == 9


@given(
    latency_s=st.none() | st.floats(1e-4, 10),
    most=st.integers(1, 300),
    batches=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 100)), max_size=200),
)
def test_the_limit_is_always_between_one_and_the_largest_batch(
    latency_s: float | None, most: int, batches: list[tuple[float, float]]
) -> None:
    limit = BatchLimit(BatchOptions(latency_s, most))
    for fill, seconds in batches:
        limit.finished(max(1, round(fill * limit.size)), seconds)
        assert 1 <= limit.size <= most


@given(
    seed=st.integers(0, 2**32),
    latency_s=st.none() | st.just(0.02),
    most=st.integers(1, 8),
    wait_s=st.sampled_from([0.0, 0.01]),
    max_running=st.integers(1, 3),
)
def test_every_item_is_in_exactly_one_batch_unless_it_was_taken_out(
    seed: int, latency_s: float | None, most: int, wait_s: float, max_running: int
) -> None:
    chance = random.Random(seed)
    collector: Collector[int] = Collector(BatchOptions(latency_s, most, wait_s, max_running))
    waiting: list[int] = []
    running: list[list[int]] = []
    now, served, added, discarded = 0.0, list[int](), 0, 0
    for _ in range(200):
        now += chance.expovariate(200)
        match chance.choice(["add", "add", "discard", "end"]):
            case "add":
                collector.add(added, now, kind=chance.random() < 0.1)
                waiting.append(added)
                added += 1
            case "discard" if waiting:
                collector.discard(waiting.pop(chance.randrange(len(waiting))))
                discarded += 1
            case "end" if running:
                batch = running.pop(chance.randrange(len(running)))
                collector.finished(len(batch), chance.choice([None, 0.001, 0.1]))
                served += batch
        due_at = collector.due_at()
        assert (due_at is None) == (not waiting or len(running) == max_running)
        if due_at is not None and due_at <= now:
            size = collector.limit.size
            batch = collector.take()
            assert batch == waiting[: len(batch)], "in the order of their arrival"
            assert 1 <= len(batch) <= size
            del waiting[: len(batch)]
            running.append(batch)
        assert len(running) <= max_running
        assert len(collector) == len(waiting)
    in_batches = served + [item for batch in running for item in batch]
    assert len(in_batches) == len(set(in_batches)) == added - discarded - len(waiting)


def test_a_batch_begins_when_it_is_full_or_its_first_item_has_waited_long_enough() -> None:
    collector: Collector[str] = Collector(BatchOptions(None, max_batch_size=2, wait_s=0.5))
    assert collector.due_at() is None
    collector.add("first", 1.0)
    assert collector.due_at() == 1.5
    collector.add("second", 1.1)
    assert collector.due_at() == 1.0
    collector.discard("first")
    assert collector.due_at() == 1.6


def test_a_batch_has_items_of_one_kind() -> None:
    collector: Collector[str] = Collector(BatchOptions(None, 10))
    for item in ("a1", "a2", "b1", "a3"):
        collector.add(item, 0.0, kind=item[0])
    taken = []
    while batch := collector.take():
        taken.append(batch)
        collector.finished(len(batch), 0.0)
    assert taken == [["a1", "a2"], ["b1"], ["a3"]]


@pytest.mark.parametrize(
    ("wrong", "kind", "says"),
    [
        ({"latency_ms": 0}, ValueError, "above 0"),
        ({"latency_ms": "10"}, TypeError, "latency_ms='10'"),
        ({"latency_ms": math.nan}, ValueError, "latency_ms=nan"),
        ({"max_batch_size": 0}, ValueError, "whole number from 1"),
        ({"max_batch_size": 2.5}, ValueError, "whole number from 1"),
        ({"max_batch_size": True}, TypeError, "whole number from 1"),
        ({"wait_s": -1}, ValueError, "batch_wait_timeout_s=-1"),
        ({"wait_s": None}, TypeError, "seconds from 0"),
        ({"max_concurrent_batches": 0}, ValueError, "max_concurrent_batches=0"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(wrong: dict[str, object], kind: type[Exception], says: str) -> None:
    given: dict[str, object] = {"latency_ms": None, "max_batch_size": None, "wait_s": 0, "max_concurrent_batches": 1}
    with pytest.raises(kind, match=says) as raised:
        checked_options(**{**given, **wrong})
    assert "next:" in str(raised.value)


def test_the_largest_batch_is_that_of_ray_or_with_an_objective_a_thousand() -> None:
    assert checked_options(None, None, 0, 1) == BatchOptions(None, 10)
    assert checked_options(5, None, 0, 1) == BatchOptions(0.005, 1024)
    assert checked_options(None, 8.0, 0.1, 2) == BatchOptions(None, 8, 0.1, 2)
