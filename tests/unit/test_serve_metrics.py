"""Counts of replicas: they add up, and Prometheus can read them."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate.serve.metrics import SECONDS, SIZES, Histogram, ReplicaMetrics, Snapshot, prometheus_text

VALUES = st.lists(st.floats(0, 100))


@given(VALUES, VALUES)
def test_merged_histograms_are_that_of_all_values(ours: list[float], theirs: list[float]) -> None:
    one, two, both = (Histogram.of(SECONDS) for _ in range(3))
    for histogram, values in ((one, ours), (two, theirs), (both, ours + theirs)):
        for value in values:
            histogram.add(value)
    one.merge(two)
    assert (one.counts, one.count) == (both.counts, len(ours) + len(theirs))
    assert one.total == pytest.approx(both.total)


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_the_least_bound_that_has_the_share_below_it(values: list[float], share: float) -> None:
    histogram = Histogram.of(SECONDS)
    for value in values:
        histogram.add(value)
    bound = histogram.quantile(share)
    assert sum(value <= bound for value in values) >= share * len(values)
    lower = [each for each in SECONDS if each < bound]
    assert not lower or sum(value <= lower[-1] for value in values) < share * len(values)


def test_a_quantile_of_nothing_is_zero() -> None:
    assert Histogram.of(SECONDS).quantile(0.99) == 0.0


def test_histograms_with_different_bounds_are_not_added() -> None:
    with pytest.raises(AssertionError, match="bounds"):
        Histogram.of(SECONDS).merge(Histogram.of(SIZES))


def test_a_replica_that_is_gone_leaves_its_counts_and_no_work() -> None:
    replica = ReplicaMetrics(working=2, waiting=3)
    replica.ended(0.01, failed=False)
    replica.ended(0.02, failed=True)
    total = Snapshot()
    total.merge(replica.gone())
    total.merge(Snapshot(requests=5, working=1, rejected=4))
    assert (total.requests, total.errors, total.rejected, total.working, total.waiting) == (7, 1, 4, 1, 0)
    assert (replica.seconds.count, total.seconds.count) == (2, 2)


def test_counts_survive_the_way_to_the_controller() -> None:
    replica = ReplicaMetrics()
    replica.ended(0.3, failed=False)
    sent = msgspec.msgpack.encode(replica)
    assert msgspec.msgpack.decode(sent, type=Snapshot).seconds == replica.seconds


def test_the_text_is_what_prometheus_reads() -> None:
    counted = Snapshot(requests=3, errors=1, waiting=2)
    for value in (0.0004, 0.003, 99.0):
        counted.seconds.add(value)
    counted.batches.add(64)
    text = prometheus_text({("a", "x"): (counted, 2), ("b", 'quote " \\ \n'): (Snapshot(), 0)})
    assert text.endswith("\n")
    label = r'application="[^"]*",deployment="(?:[^"\\\n]|\\["\\n])*"(?:,le="[0-9.e+Inf-]+")?'
    for line in text.splitlines():
        assert re.fullmatch(rf"# (HELP|TYPE) \w+ .+|\w+{{{label}}} [0-9.e+-]+", line), line
    ours = 'application="a",deployment="x"'
    for line in (
        f"skate_serve_requests_total{{{ours}}} 3",
        f"skate_serve_errors_total{{{ours}}} 1",
        f"skate_serve_waiting{{{ours}}} 2",
        f"skate_serve_replicas{{{ours}}} 2",
        f'skate_serve_latency_seconds_bucket{{{ours},le="0.0005"}} 1',
        f'skate_serve_latency_seconds_bucket{{{ours},le="60"}} 2',
        f'skate_serve_latency_seconds_bucket{{{ours},le="+Inf"}} 3',
        f"skate_serve_latency_seconds_count{{{ours}}} 3",
        f"skate_serve_latency_seconds_sum{{{ours}}} 99.0034",
        f'skate_serve_batch_size_bucket{{{ours},le="32"}} 0',
        f'skate_serve_batch_size_bucket{{{ours},le="64"}} 1',
    ):
        assert line in text.splitlines()
    types = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
