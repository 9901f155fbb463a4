"""How many tasks a worker gets: one when in doubt, hundreds when tiny, and never more than its share."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skate._core.pipelining import (
    BATCH_MAX,
    DEPTH_MAX,
    NEWEST,
    PATIENCE_S,
    PATIENCE_S_MAX,
    TARGET_S,
    Estimates,
    Patience,
)
from skate._core.task import Task, Timing

TINY, SHORT, LONG, NEW = b"tiny", b"short", b"long", b"new"
COSTS = {TINY: 1e-6, SHORT: TARGET_S / 10, LONG: 10 * TARGET_S}


def estimates() -> Estimates:
    """Three functions that have run, and one (`NEW`) that has not."""
    known = Estimates()
    for fn, seconds in COSTS.items():
        known.learn(Timing(fn, 1, seconds))
    return known


def tasks(*fns: bytes) -> deque[Task]:
    return deque(Task(str(number).encode(), fn, b"") for number, fn in enumerate(fns))


def taken_by_idle_worker(queue: deque[Task], workers: int = 1) -> int:
    taken, _ = estimates().take(queue, load_s=0.0, inflight=0, workers=workers)
    return len(taken)


# --- How many ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", [NEW, LONG])
def test_an_idle_worker_gets_one_task_that_is_long_or_unknown(fn: bytes) -> None:
    assert taken_by_idle_worker(tasks(*[fn] * 100)) == 1


@pytest.mark.parametrize("fn", [NEW, LONG, SHORT, TINY])
def test_a_worker_with_enough_to_do_gets_nothing(fn: bytes) -> None:
    queue = tasks(*[fn] * 100)
    assert estimates().take(queue, load_s=TARGET_S, inflight=1) == ([], 0.0)
    assert len(queue) == 100


@pytest.mark.parametrize("fn", [NEW, LONG])
def test_nothing_long_is_queued_behind_a_task(fn: bytes) -> None:
    assert estimates().take(tasks(fn), load_s=TARGET_S / 2, inflight=1) == ([], 0.0)


def test_tiny_tasks_come_by_the_hundred() -> None:
    assert taken_by_idle_worker(tasks(*[TINY] * 5000)) == BATCH_MAX > 100


def test_short_tasks_fill_the_target() -> None:
    taken, added = estimates().take(tasks(*[SHORT] * 100), load_s=0.0, inflight=0)
    assert 8 <= len(taken) <= 10
    assert added == pytest.approx(len(taken) * COSTS[SHORT])
    assert added <= TARGET_S


def test_an_empty_queue_gives_nothing() -> None:
    assert estimates().take(deque(), load_s=0.0, inflight=0) == ([], 0.0)


def test_a_worker_never_has_more_than_the_most() -> None:
    known = Estimates()
    known.learn(Timing(TINY, 1000, 0.0))  # below the clock's resolution
    queue = tasks(*[TINY] * 5000)
    inflight = 0
    while True:
        taken, added = known.take(queue, load_s=0.0, inflight=inflight)
        assert added == 0.0
        assert len(taken) <= BATCH_MAX
        if not taken:
            break
        inflight += len(taken)
    assert inflight == DEPTH_MAX


@pytest.mark.parametrize(
    ("queued", "workers", "share"), [(100, 4, 25), (101, 4, 26), (3, 4, 1), (1, 100, 1), (7, 1, 7)]
)
def test_a_worker_gets_its_share_and_no_more(queued: int, workers: int, share: int) -> None:
    """So that ten tiny tasks run on ten idle workers rather than on one."""
    assert taken_by_idle_worker(tasks(*[TINY] * queued), workers) == share


@given(st.integers(1, 2000), st.integers(1, 64))
@settings(deadline=None)
def test_shares_handed_out_in_turn_empty_the_queue_evenly(queued: int, workers: int) -> None:
    queue = tasks(*[TINY] * queued)
    shares = []
    for left in range(workers, 0, -1):
        taken, _ = estimates().take(queue, load_s=0.0, inflight=0, workers=left)
        shares.append(len(taken))
    if max(shares) < BATCH_MAX:
        assert not queue
        assert max(shares) - min(shares) <= 1


@given(
    st.lists(st.sampled_from([TINY, SHORT, LONG, NEW]), max_size=600),
    st.floats(0, 2 * TARGET_S),
    st.integers(0, DEPTH_MAX + 5),
    st.integers(1, 8),
)
@settings(deadline=None)
def test_what_is_taken_is_the_head_of_the_queue_and_within_every_limit(
    fns: list[bytes], load_s: float, inflight: int, workers: int
) -> None:
    queue = tasks(*fns)
    before = list(queue)
    taken, added = estimates().take(queue, load_s=load_s, inflight=inflight, workers=workers)
    assert [*taken, *queue] == before
    assert len(taken) <= BATCH_MAX
    assert len(taken) <= -(-len(before) // workers)
    assert not taken or inflight + len(taken) <= DEPTH_MAX
    assert added == pytest.approx(sum(COSTS.get(task.fn, 1.0) for task in taken))
    if len(taken) > 1 or (taken and inflight):
        assert load_s + added <= TARGET_S * (1 + 1e-9)
    if not inflight and before:
        assert taken, "a worker with nothing to do always gets something"


# --- Learning ---------------------------------------------------------------------------------------------------------


def test_bad_news_is_believed_at_once() -> None:
    known = Estimates()
    known.learn(Timing(TINY, 1000, 1000 * 1e-6))
    known.learn(Timing(TINY, 1, 1.0))
    assert known.seconds[TINY] == 1.0
    assert len(known.take(tasks(*[TINY] * 100), load_s=0.0, inflight=0)[0]) == 1


def test_good_news_is_believed_slowly() -> None:
    known = Estimates()
    known.learn(Timing(LONG, 1, 1.0))
    known.learn(Timing(LONG, 1, 0.0))
    assert known.seconds[LONG] == pytest.approx(1 - NEWEST)
    for _ in range(100):
        known.learn(Timing(LONG, 10, 10 * 1e-6))
    assert known.seconds[LONG] == pytest.approx(1e-6, rel=1e-3)


def test_noise_is_averaged() -> None:
    known = Estimates()
    for seconds in [1e-3, 2e-3] * 50:
        known.learn(Timing(SHORT, 1, seconds))
    assert 1e-3 < known.seconds[SHORT] < 2e-3


def test_a_batch_counts_as_its_mean() -> None:
    known = Estimates()
    known.learn(Timing(SHORT, 50, 0.1))
    assert known.seconds[SHORT] == pytest.approx(0.002)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=30))
@settings(deadline=None)
def test_an_estimate_lies_within_what_was_seen(seen: list[float]) -> None:
    known = Estimates()
    for seconds in seen:
        known.learn(Timing(SHORT, 1, seconds))
    assert min(seen) - 1e-9 <= known.seconds[SHORT] <= max(seen) + 1e-9
    assert known.seconds[SHORT] >= seen[-1] / 4 - 1e-9, "never below a quarter of the newest"


def test_functions_are_learnt_and_forgotten_one_by_one() -> None:
    known = estimates()
    known.forget(TINY)
    known.forget(TINY)
    known.forget(NEW)
    assert set(known.seconds) == {SHORT, LONG}
    assert len(known.take(tasks(*[TINY] * 9), load_s=0.0, inflight=0)[0]) == 1


# -- silence -----------------------------------------------------------------------------------------------------------


def test_patience_follows_how_late_workers_answer() -> None:
    patience = Patience()
    assert patience.seconds == PATIENCE_S
    for _ in range(50):
        patience.answered(0.0002)
    assert patience.seconds == PATIENCE_S, "they answer at once: a silent one is in a long task"
    for _ in range(50):
        patience.answered(0.015)
    assert patience.seconds == pytest.approx(0.06)
    for _ in range(50):
        patience.answered(5.0)
    assert patience.seconds == pytest.approx(PATIENCE_S_MAX)
    for _ in range(100):
        patience.answered(0.0)
    assert patience.seconds == pytest.approx(PATIENCE_S)
