"""What becomes of a training: which failure is the cause, when checkpoints count, when it starts again."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate.train.stalls import Look as RankLook
from skate.train.stalls import Progress, StalledError
from skate.train.supervise import (
    CAUSE_WITHIN_S,
    Command,
    Commit,
    Event,
    Failed,
    Finish,
    Finished,
    Given,
    GiveUp,
    Grow,
    HasRoom,
    Look,
    Looked,
    Reported,
    Restart,
    Supervisor,
    Tick,
    is_communication,
)

BROKEN = RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1")
CAUSE = ValueError("cause")
WAITS = RankLook(True, waits=True, stack="in all_reduce", process="process 1")
WORKS = RankLook(True, waits=False, stack="in load_data", process="process 2")
MUTE = RankLook(False, process="process 3, stopped by a signal (SIGSTOP)")


class Trial:
    """A supervisor with a clock that stands still unless a test moves it."""

    def __init__(self, workers: int, failures: int | None = 0, stall_after: float | None = None) -> None:
        self.supervisor = Supervisor(failures, stall_after)
        self.now = 100.0
        self.workers = workers
        self.supervisor.begin(workers, self.now)

    def handle(self, event: Event) -> list[Command]:
        return self.supervisor.handle(event, self.now)

    def tick(self) -> list[Command]:
        """Let time pass until the supervisor wants to be woken."""
        wake_at = self.supervisor.wake_at()
        assert wake_at is not None
        self.now = wake_at
        return self.handle(Tick())


def test_a_checkpoint_is_committed_when_the_last_rank_has_reported_it() -> None:
    trial = Trial(2)
    assert trial.handle(Reported(0, 3, True)) == []
    assert trial.handle(Reported(0, 4, True)) == []
    assert trial.handle(Reported(1, 3, False)) == []
    assert trial.handle(Reported(1, 3, True)) == [Commit(3)]
    assert trial.handle(Finished(0)) == []
    assert trial.handle(Finished(1)) == [Finish({4: (0,)})]


def test_without_a_limit_the_workers_start_again_after_every_failure() -> None:
    trial = Trial(1, failures=None)
    error = ValueError("no luck")
    for _ in range(3):
        assert trial.handle(Failed(0, error)) == [Restart(0, error, None)]
        trial.supervisor.begin(1, trial.now)


def test_a_folder_of_one_rank_is_committed_when_all_ranks_have_reported_that_step() -> None:
    trial = Trial(3)
    assert trial.handle(Reported(0, 0, Given.FOLDER)) == []
    assert trial.handle(Reported(1, 0, Given.FOLDER)) == []
    assert trial.handle(Reported(1, 1, Given.NOTHING)) == []
    assert trial.handle(Reported(2, 0, Given.NOTHING)) == [Commit(0, frozenset({0, 1}))]
    assert trial.handle(Reported(0, 2, Given.FOLDER)) == []
    ends = [command for rank in range(3) for command in trial.handle(Finished(rank))]
    assert ends == [Finish({2: (0,)})]


@given(st.data(), st.integers(1, 4), st.integers(1, 5))
def test_folders_of_any_rank_are_committed_once_and_in_order(data: st.DataObject, workers: int, steps: int) -> None:
    trial = Trial(workers)
    givers = data.draw(st.lists(st.sets(st.integers(0, workers - 1)), min_size=steps, max_size=steps))
    left, commands = dict.fromkeys(range(workers), 0), []
    while left:
        rank = data.draw(st.sampled_from(sorted(left)))
        if (step := left[rank]) == steps:
            del left[rank]
            continue
        what = Given.FOLDER if rank in givers[step] else Given.NOTHING
        commands += trial.handle(Reported(rank, step, what))
        left[rank] += 1
    assert commands == [Commit(step, frozenset(givers[step])) for step in range(steps) if givers[step]]


def test_a_checkpoint_that_only_as_many_ranks_can_restore_says_so() -> None:
    trial = Trial(2)
    assert trial.handle(Reported(0, 0, Given.SHARD)) == []
    assert trial.handle(Reported(1, 0, Given.SHARD)) == [Commit(0, is_sharded=True)]


def test_a_part_that_completes_a_step_commits_the_folders_before_it_too() -> None:
    trial = Trial(2)
    assert trial.handle(Reported(0, 0, Given.FOLDER)) == []
    assert trial.handle(Reported(0, 1, Given.PART)) == []
    assert trial.handle(Reported(1, 1, Given.PART)) == [Commit(0, frozenset({0})), Commit(1)]


@given(st.data(), st.integers(1, 4), st.integers(1, 5))
def test_in_any_order_of_arrival_all_steps_are_committed_once_and_in_order(
    data: st.DataObject, workers: int, steps: int
) -> None:
    trial = Trial(workers)
    sent = dict.fromkeys(range(workers), 0)
    commands: list[Command] = []
    while sent:
        rank = data.draw(st.sampled_from(sorted(sent)))
        if sent[rank] == steps:
            del sent[rank]
            commands += trial.handle(Finished(rank))
        else:
            commands += trial.handle(Reported(rank, sent[rank], True))
            sent[rank] += 1
    assert commands == [*map(Commit, range(steps)), Finish()]


def test_an_ordinary_failure_starts_all_again_until_no_failure_is_left() -> None:
    trial = Trial(3, 2)
    assert trial.handle(Failed(1, CAUSE)) == [Restart(1, CAUSE, 1)]
    trial.supervisor.begin(3, trial.now)
    assert trial.handle(Failed(2, CAUSE)) == [Restart(2, CAUSE, 0)]
    trial.supervisor.begin(3, trial.now)
    assert trial.handle(Failed(0, CAUSE)) == [GiveUp(0, CAUSE)]


def test_parts_and_ends_of_an_attempt_do_not_count_in_the_next() -> None:
    trial = Trial(2, 1)
    trial.handle(Reported(0, 1, True))
    trial.handle(Finished(0))
    trial.handle(Failed(1, CAUSE))
    trial.supervisor.begin(2, trial.now)
    assert trial.handle(Reported(1, 1, True)) == []
    assert trial.handle(Finished(1)) == []
    assert trial.handle(Reported(0, 1, True)) == [Commit(1)]
    assert trial.handle(Finished(0)) == [Finish()]


@given(st.permutations(range(4)), st.integers(0, 3))
def test_the_cause_wins_over_broken_connections_in_any_order_of_arrival(order: list[int], guilty: int) -> None:
    trial = Trial(4)
    ends: list[Command] = []
    for rank in order:
        failed = Failed(rank, CAUSE) if rank == guilty else Failed(rank, BROKEN, is_communication(BROKEN))
        ends += trial.handle(failed)
        if ends:
            break
    assert ends == [GiveUp(guilty, CAUSE)]


def test_a_broken_connection_is_the_cause_if_no_other_comes() -> None:
    trial = Trial(3)
    assert trial.handle(Failed(2, BROKEN, True)) == []
    assert trial.handle(Finished(0)) == []
    assert trial.supervisor.wake_at() == trial.now + CAUSE_WITHIN_S
    assert trial.tick() == [GiveUp(2, BROKEN)]


def test_no_other_cause_is_expected_when_all_ranks_have_ended() -> None:
    trial = Trial(2)
    trial.handle(Failed(1, BROKEN, True))
    assert trial.handle(Finished(0)) == [GiveUp(1, BROKEN)]


def test_a_worker_that_dies_before_it_has_a_rank_is_a_failure_of_no_rank() -> None:
    assert Trial(2, 1).handle(Failed(None, CAUSE)) == [Restart(None, CAUSE, 0)]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (BROKEN, True),
        (BrokenPipeError(), True),
        (CAUSE, False),
        (RuntimeError("size mismatch"), False),
        (RuntimeError("Got the following error when running the callback: RankDiedError: rank 1 died."), True),
        (RuntimeError("… running the callback: MismatchError: two ranks called different operations."), False),
    ],
)
def test_errors_of_communication(error: BaseException, expected: bool) -> None:
    assert is_communication(error) is expected


def test_a_group_grows_when_there_is_room_but_not_while_it_ends() -> None:
    trial = Trial(2)
    assert trial.handle(HasRoom(2)) == []
    assert trial.handle(HasRoom(3)) == [Grow(3)]
    trial.handle(Finished(0))
    assert trial.handle(HasRoom(4)) == []


# -- stalls ------------------------------------------------------------------------------------------------------------


def test_without_a_limit_nothing_is_ever_a_stall() -> None:
    trial = Trial(2)
    assert trial.supervisor.wake_at() is None
    trial.now += 1e6
    assert trial.handle(Tick()) == []


def test_the_rank_that_others_wait_for_has_stalled() -> None:
    trial = Trial(3, stall_after=5)
    trial.handle(Reported(1, 0, False))
    assert trial.supervisor.wake_at() == trial.now + 5
    assert trial.tick() == [Look()]
    assert trial.supervisor.wake_at() is None
    (end,) = trial.handle(Looked({0: WAITS, 1: WORKS, 2: WAITS}))
    assert isinstance(end, GiveUp)
    assert isinstance(end.error, StalledError)
    assert (end.rank, end.error.ranks) == (1, (1,))
    assert "rank 1 has not reached the collective that ranks 0 and 2 are in" in str(end.error)
    assert "in load_data" in str(end.error)


def test_ranks_are_looked_at_again_if_one_reports_meanwhile() -> None:
    trial = Trial(2, stall_after=8)
    assert trial.tick() == [Look()]
    trial.handle(Reported(0, 0, False))
    assert trial.handle(Looked({0: WORKS, 1: WORKS})) == []
    trial.handle(Reported(1, 0, False))
    assert trial.supervisor.wake_at() == trial.now + 8


def test_ranks_that_never_report_are_no_stall_while_another_does() -> None:
    trial = Trial(2, stall_after=5)
    for step in range(10):
        trial.now += 4
        assert trial.handle(Reported(0, step, False)) == []
    assert trial.supervisor.wake_at() == trial.now + 5


@pytest.mark.parametrize(
    ("looks", "ranks", "text"),
    [
        ([WAITS, MUTE, WORKS], (1,), "rank 1 has not reached the collective that rank 0 is in"),
        ([WAITS, MUTE, WAITS], (1,), "(process 3, stopped by a signal (SIGSTOP)) does not answer"),
        ([WORKS, WORKS, WAITS], (0, 1), "ranks 0 and 1 have not reached the collective that rank 2 is in"),
        ([WORKS, WORKS, WORKS], (0, 1, 2), "ranks 0, 1 and 2 are in no collective and reported nothing"),
        ([WAITS, WAITS, WAITS], (0, 1, 2), "ranks 0, 1 and 2 are in collectives that do not match"),
    ],
)
def test_who_holds_up_the_others(looks: list[RankLook], ranks: tuple[int, ...], text: str) -> None:
    progress = Progress(3, 5.0, 0.0)
    found = progress.blame(dict(enumerate(looks)), 5.0)
    assert found == ranks
    error = StalledError(found, dict(enumerate(looks)), 5.0)
    assert text in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.ranks, again.looks) == (str(error), error.ranks, error.looks)


def test_a_rank_that_reports_but_reaches_no_collective_is_found_by_the_silence_of_the_other() -> None:
    progress = Progress(2, 5.0, 0.0)
    progress.reported(0, 1.0)
    progress.reported(1, 5.5)
    assert progress.silent(6.0) == {0}
    assert progress.blame({0: WAITS, 1: WORKS}, 6.0) == (1,)


def test_a_rank_that_reports_and_does_not_answer_is_not_blamed_for_a_silent_one_elsewhere() -> None:
    progress = Progress(2, 5.0, 0.0)
    progress.reported(1, 1.0)
    progress.reported(0, 9.0)
    assert progress.blame({0: MUTE, 1: WORKS}, 9.5) == (1,)
    assert progress.blame({0: MUTE, 1: WAITS}, 9.5) == (0,)


@given(st.data())
def test_in_any_history_only_silence_leads_to_a_look_and_only_running_ranks_are_blamed(data: st.DataObject) -> None:
    trial = Trial(data.draw(st.integers(1, 4)), stall_after=5.0)
    running = set(range(trial.workers))
    heard, reported = trial.now, dict[int, float]()
    for _ in range(data.draw(st.integers(0, 20))):
        trial.now += data.draw(st.integers(0, 6))
        rank = data.draw(st.sampled_from(sorted(running)))
        event = data.draw(st.sampled_from([Reported(rank, 0, False), Finished(rank), Tick()]))
        if not isinstance(event, Tick):
            heard = reported[rank] = trial.now
        if isinstance(event, Finished):
            running.discard(rank)
            del reported[rank]
        commands = trial.handle(event)
        is_silent = trial.now - min([heard, *reported.values()]) >= 5.0
        if commands == [Look()]:
            assert is_silent
            looks = {each: data.draw(st.sampled_from([WAITS, WORKS, MUTE])) for each in sorted(running)}
            (end,) = trial.handle(Looked(looks))
            assert isinstance(end, GiveUp)
            assert isinstance(end.error, StalledError)
            assert end.error.ranks
            assert set(end.error.ranks) <= running
            return
        if not running:
            assert commands == [Finish()]
            return
        assert commands == []
        assert not (is_silent and isinstance(event, Tick))
        assert trial.supervisor.wake_at() == min([heard, *reported.values()]) + 5.0
