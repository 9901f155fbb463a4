"""What becomes of a training: which failure is the cause, when checkpoints count, when it starts again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate.train.supervise import (
    Commit,
    Failed,
    Finish,
    Finished,
    GiveUp,
    Reported,
    Restart,
    Supervisor,
    Wait,
    Waited,
    is_communication,
)

BROKEN = RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1")
CAUSE = ValueError("cause")


def test_a_checkpoint_is_committed_when_the_last_rank_has_reported_it() -> None:
    supervisor = Supervisor(2, 0)
    assert supervisor.handle(Reported(0, 3, True)) == []
    assert supervisor.handle(Reported(0, 4, True)) == []
    assert supervisor.handle(Reported(1, 3, False)) == []
    assert supervisor.handle(Reported(1, 3, True)) == [Commit(3)]
    assert supervisor.handle(Finished(0)) == []
    assert supervisor.handle(Finished(1)) == [Finish({4: (0,)})]


@given(st.data(), st.integers(1, 4), st.integers(1, 5))
def test_in_any_order_of_arrival_all_steps_are_committed_once_and_in_order(
    data: st.DataObject, workers: int, steps: int
) -> None:
    supervisor = Supervisor(workers, 0)
    sent = dict.fromkeys(range(workers), 0)
    commands = []
    while sent:
        rank = data.draw(st.sampled_from(sorted(sent)))
        if sent[rank] == steps:
            del sent[rank]
            commands += supervisor.handle(Finished(rank))
        else:
            commands += supervisor.handle(Reported(rank, sent[rank], True))
            sent[rank] += 1
    assert commands == [*map(Commit, range(steps)), Finish()]


def test_an_ordinary_failure_starts_all_again_until_no_failure_is_left() -> None:
    supervisor = Supervisor(3, 2)
    assert supervisor.handle(Failed(1, CAUSE)) == [Restart(1, CAUSE, 1)]
    assert supervisor.handle(Failed(2, CAUSE)) == [Restart(2, CAUSE, 0)]
    assert supervisor.handle(Failed(0, CAUSE)) == [GiveUp(0, CAUSE)]


def test_parts_and_ends_of_an_attempt_do_not_count_in_the_next() -> None:
    supervisor = Supervisor(2, 1)
    supervisor.handle(Reported(0, 1, True))
    supervisor.handle(Finished(0))
    supervisor.handle(Failed(1, CAUSE))
    assert supervisor.handle(Reported(1, 1, True)) == []
    assert supervisor.handle(Finished(1)) == []
    assert supervisor.handle(Reported(0, 1, True)) == [Commit(1)]
    assert supervisor.handle(Finished(0)) == [Finish()]


@given(st.permutations(range(4)), st.integers(0, 3))
def test_the_cause_wins_over_broken_connections_in_any_order_of_arrival(order: list[int], guilty: int) -> None:
    supervisor = Supervisor(4, 0)
    ends = []
    for rank in order:
        failed = Failed(rank, CAUSE) if rank == guilty else Failed(rank, BROKEN, is_communication(BROKEN))
        ends += [each for each in supervisor.handle(failed) if not isinstance(each, Wait)]
        if ends:
            break
    assert ends == [GiveUp(guilty, CAUSE)]


def test_a_broken_connection_is_the_cause_if_no_other_comes() -> None:
    supervisor = Supervisor(3, 0)
    (wait,) = supervisor.handle(Failed(2, BROKEN, True))
    assert isinstance(wait, Wait)
    assert supervisor.handle(Finished(0)) == []
    assert supervisor.handle(Waited()) == [GiveUp(2, BROKEN)]


def test_nobody_is_waited_for_when_all_ranks_have_ended() -> None:
    supervisor = Supervisor(2, 0)
    supervisor.handle(Failed(1, BROKEN, True))
    assert supervisor.handle(Finished(0)) == [GiveUp(1, BROKEN)]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(BROKEN, True), (BrokenPipeError(), True), (CAUSE, False), (RuntimeError("size mismatch"), False)],
)
def test_errors_of_communication(error: BaseException, expected: bool) -> None:
    assert is_communication(error) is expected
