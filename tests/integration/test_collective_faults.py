"""What ranks of a group hear when one of them dies, leaves, or calls something else."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from collective_ranks import in_all, in_each, join, make_group, make_ranks

import skate
from skate import collective
from skate.collective import CollectiveError, CollectiveTimeoutError, MismatchError, RankDiedError, RankLeftError
from skate.collective.layout import ASLEEP
from skate.collective.meeting import actor_name
from skate.exceptions import ActorError
from waiting import value_of, wait_for


def for_ever() -> None:
    while True:
        collective.allreduce(np.zeros(10), "g")


def once() -> float:
    array = np.ones(10)
    collective.allreduce(array, "g")
    return float(array[0])


def end_by_exit() -> None:
    os._exit(3)


def end_of_the_actor() -> None:
    skate.actor.exit_actor()


def kill_yourself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("end", [kill_yourself, end_by_exit, end_of_the_actor])
def test_the_death_of_a_rank_is_an_error_in_the_others_that_names_it(
    runtime: ModuleType, end: Callable[[], None]
) -> None:
    ranks = make_ranks(3)
    pids = join(ranks)
    refs = [each.do.remote(for_ever) for each in ranks[:2]]
    ranks[2].do.remote(end)
    for ref in refs:
        with pytest.raises(RankDiedError, match=rf"rank 2 \(.*pid {pids[2]} ") as caught:
            value_of(ref)
        assert (caught.value.rank, caught.value.pid) == (2, pids[2])
    # The group says so from then on, and another one can be made under the same name.
    with pytest.raises(CollectiveError, match="is broken by an earlier error"):
        value_of(ranks[0].do.remote(once))
    value_of([each.leave.remote() for each in ranks[:2]])
    join(ranks[:2])
    assert in_all(ranks[:2], once) == [2, 2]


def test_an_actor_that_has_ended_is_dead_though_its_process_stays(runtime: ModuleType) -> None:
    """The process stays because others hold what it owns: the actor that a group meets in is often of that kind."""
    ranks = make_group(2)
    (kept,) = value_of(ranks[1].do.remote(lambda: [skate.put(7)]))
    waiting = ranks[0].do.remote(for_ever)
    ranks[1].do.remote(end_of_the_actor)
    with pytest.raises(RankDiedError, match="rank 1"):
        value_of(waiting)
    assert value_of(kept) == 7


def test_a_child_of_a_dead_rank_does_not_hide_its_death(runtime: ModuleType, tmp_path: Path) -> None:
    """A forked child has the rank's end of its socket pair, so that end is not closed by the rank's death."""

    def leave_a_child_and_die() -> None:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        (tmp_path / "child").write_text(str(child))
        os.kill(os.getpid(), signal.SIGKILL)

    ranks = make_group(2)
    waiting = ranks[0].do.remote(for_ever)
    ranks[1].do.remote(leave_a_child_and_die)
    try:
        with pytest.raises(RankDiedError, match="rank 1"):
            value_of(waiting)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)


def fork_for_a_minute() -> int:
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    return child


@pytest.mark.parametrize("end", ["leaves", "ends"])
def test_a_child_of_a_rank_does_not_hide_that_it_leaves_or_ends(runtime: ModuleType, end: str) -> None:
    ranks = make_group(2)
    kept = value_of(ranks[1].do.remote(lambda: [skate.put(7)]))  # so the process outlives the actor
    child = value_of(ranks[1].do.remote(fork_for_a_minute))
    waiting = ranks[0].do.remote(for_ever)
    try:
        _end = ranks[1].leave.remote() if end == "leaves" else ranks[1].do.remote(end_of_the_actor)
        with pytest.raises(RankLeftError if end == "leaves" else RankDiedError, match="rank 1"):
            value_of(waiting)
    finally:
        os.kill(child, signal.SIGKILL)
        del kept


def test_a_child_that_destroys_the_group_takes_nothing_from_the_rank(runtime: ModuleType) -> None:
    def destroy_in_a_child() -> None:
        if (child := os.fork()) == 0:
            collective.destroy_collective_group("g")
            os._exit(0)
        os.waitpid(child, 0)

    ranks = make_group(2)
    value_of(ranks[1].do.remote(destroy_in_a_child))
    assert in_all(ranks, once) == [2, 2]
    waiting = ranks[0].do.remote(for_ever)
    ranks[1].do.remote(kill_yourself)
    with pytest.raises(RankDiedError, match="rank 1"):
        value_of(waiting)


def test_a_rank_that_leaves_is_an_error_for_those_who_go_on(runtime: ModuleType) -> None:
    ranks = make_group(3)
    in_all(ranks, once)
    value_of(ranks[1].leave.remote())
    for ref in [ranks[0].do.remote(once), ranks[2].do.remote(once)]:
        with pytest.raises(RankLeftError, match=r"rank 1 .* has left the group"):
            value_of(ref)


#: Two calls at once, and what the error of both says.
UNFIT: list[tuple[Callable[[], Any], Callable[[], Any], list[str]]] = [
    (
        lambda: collective.allreduce(np.zeros(3), "g"),
        lambda: collective.allreduce(np.zeros((3, 1)), "g"),
        ["rank 0", "allreduce(float64[3], SUM)", "rank 1", "allreduce(float64[3, 1], SUM)"],
    ),
    (
        lambda: collective.allreduce(np.zeros(3, np.float32), "g"),
        lambda: collective.allreduce(np.zeros(3), "g", collective.ReduceOp.MAX),
        ["allreduce(float32[3], SUM)", "allreduce(float64[3], MAX)"],
    ),
    (
        lambda: collective.broadcast(np.zeros(3), 0, "g"),
        lambda: collective.broadcast(np.zeros(3), 1, "g"),
        ["broadcast(float64[3], from rank 0)", "broadcast(float64[3], from rank 1)"],
    ),
    (
        lambda: collective.barrier("g"),
        lambda: collective.allreduce(np.zeros(3_000_000), "g"),
        ["barrier()", "allreduce(float64[3000000], SUM)"],
    ),
    (
        lambda: (collective.send(np.zeros(3), 1, "g"), collective.barrier("g")),
        lambda: collective.recv(np.zeros(4), 0, "g"),
        ["send or recv(float64[3])", "send or recv(float64[4])"],
    ),
    (
        lambda: collective.recv(np.zeros(3), 1, "g"),
        lambda: collective.barrier("g"),
        ["wait for each other", "waits in recv(float64[3]) from rank 1", "waits in barrier()"],
    ),
    (
        lambda: collective.send(np.zeros(1_000_000), 1, "g"),
        lambda: collective.send(np.zeros(1_000_000), 0, "g"),
        ["wait for each other", "waits in send(float64[1000000]) to rank 1", "to rank 0"],
    ),
]


def test_calls_that_do_not_fit_are_an_error_in_both_that_names_both(runtime: ModuleType) -> None:
    ranks = make_ranks(2)
    for first, second, named in UNFIT:
        join(ranks)
        for ref in in_each(ranks, first, second):
            with pytest.raises(MismatchError) as caught:
                value_of(ref)
            assert all(words in str(caught.value) for words in named), str(caught.value)
        value_of([each.leave.remote() for each in ranks])


def test_ranks_that_wait_in_a_circle_are_told_so(runtime: ModuleType) -> None:
    def receive() -> None:
        collective.recv(np.zeros(1), (collective.get_rank("g") + 1) % 3, "g")

    for ref in [each.do.remote(receive) for each in make_group(3)]:
        with pytest.raises(MismatchError, match="none can go on"):
            value_of(ref)


def test_a_mistake_in_the_arguments_leaves_the_group_as_it_was(runtime: ModuleType) -> None:
    def wrong_then_right(shared: Any) -> float:
        for wrong, kind, text in (
            (lambda: collective.allreduce([1, 2], "g"), TypeError, "numpy array or a torch tensor"),
            (lambda: collective.allreduce(np.array([object()]), "g"), TypeError, "Python objects"),
            (lambda: collective.allreduce(np.array(["a"]), "g"), TypeError, "cannot be reduced with SUM"),
            (lambda: collective.allreduce(np.zeros(1), "g", "sum"), TypeError, "is not a ReduceOp"),
            (lambda: collective.allreduce(shared, "g"), ValueError, "read-only"),
            (lambda: collective.broadcast(np.zeros(1), 2, "g"), ValueError, "src_rank=2"),
            (lambda: collective.send(np.zeros(1), collective.get_rank("g"), "g"), ValueError, "is this rank itself"),
            (lambda: collective.allgather([np.zeros(1)], np.zeros(1), "g"), ValueError, "2 ranks"),
            (lambda: collective.allgather([np.zeros(2)] * 2, np.zeros(1), "g"), ValueError, "one shape and one dtype"),
            (lambda: collective.allreduce(np.zeros(1), "other"), RuntimeError, "in no group 'other'"),
            (lambda: collective.init_collective_group(2, 0, group_name="g"), RuntimeError, "is initialized"),
            (lambda: collective.init_collective_group(2, 2, group_name="h"), ValueError, "rank=2"),
            (lambda: collective.init_collective_group(2, 0, "nccl", "h"), ValueError, "GPUs are not supported"),
        ):
            with pytest.raises(kind, match=text):
                wrong()
        return once()

    ranks = make_group(2)
    assert in_all(ranks, wrong_then_right, skate.put(np.zeros(100_000))) == [2, 2]


def test_joining_wrongly_is_an_error_that_names_the_other_rank(runtime: ModuleType) -> None:
    ranks = make_ranks(4)
    waiting = ranks[0].join.remote(2, 0)

    def rank_0_is_there() -> bool:
        with contextlib.suppress(ValueError, ActorError):  # there is no meeting yet, or an old one
            return bool(value_of(skate.get_actor(actor_name("g")).missing.remote()) == [1])
        return False

    wait_for(rank_0_is_there, 10, "rank 0 to join")
    with pytest.raises(ValueError, match=r"rank 1 .* says world_size=3, and rank 0 .* says world_size=2"):
        value_of(ranks[1].join.remote(3, 1))
    with pytest.raises(ValueError, match=r"rank 0 .* has the rank already, and rank 0 .* wants it too"):
        value_of(ranks[1].join.remote(2, 0))
    value_of([waiting, ranks[2].join.remote(2, 1)])

    def join_late() -> None:
        from skate.collective import group

        group.NAME_IS_FREE_S = 0.1
        collective.init_collective_group(2, 1, group_name="g")

    with pytest.raises(ValueError, match=r"the group exists, with\n *rank 0 .*\n *rank 1"):
        value_of(ranks[3].do.remote(join_late))
    assert in_all([ranks[0], ranks[2]], once) == [2, 2]


def test_a_rank_that_cannot_map_the_others_tells_them(runtime: ModuleType) -> None:
    def join_and_fail(rank: int) -> None:
        def no_memory(*args: Any) -> None:
            raise OSError(12, "Cannot allocate memory")

        with pytest.MonkeyPatch.context() as patch:
            if rank == 1:
                patch.setattr("skate.collective.board.Board.__init__", no_memory)
            collective.init_collective_group(3, rank, group_name="g")

    ranks = make_ranks(3)
    refs = [each.do.remote(join_and_fail, rank) for rank, each in enumerate(ranks)]
    with pytest.raises(OSError, match="Cannot allocate memory"):
        value_of(refs[1])
    for ref in (refs[0], refs[2]):
        # Of ranks 0 and 2, the later one may hear of the earlier one, which heard of rank 1.
        with pytest.raises(CollectiveError, match=r"rank [012] .* did not get into group 'g'"):
            value_of(ref)
    join(ranks)
    assert in_all(ranks, once) == [3, 3, 3]


def test_a_group_that_does_not_come_together_says_who_is_missing(runtime: ModuleType) -> None:
    ranks = make_ranks(2)
    with pytest.raises(CollectiveTimeoutError, match="did not join: 1, 2"):
        value_of(ranks[0].join.remote(3, 0, gloo_timeout=200))
    join(ranks)  # the rank that gave up may come again
    assert in_all(ranks, once) == [2, 2]


def test_a_rank_that_does_not_come_in_time_is_named(runtime: ModuleType) -> None:
    ranks = make_group(2, timeout_s=0.3)
    with pytest.raises(CollectiveTimeoutError, match=r"rank 1 .* did not come within 0.3 s"):
        value_of(ranks[0].do.remote(once))
    with pytest.raises(CollectiveError, match=r"rank 1 .* did not come within"):
        value_of(ranks[1].do.remote(once))


def test_ctrl_c_in_a_rank_that_waits_is_heard_there_and_by_the_others(runtime: ModuleType) -> None:
    """The driver may be a rank, too."""
    other = make_ranks(1)[0]
    joined = other.join.remote(2, 1)
    collective.init_collective_group(2, 0, group_name="g")
    value_of(joined)
    board = collective.get_group_handle("g")._board
    assert board is not None

    def interrupt() -> None:
        wait_for(lambda: board._words[0][ASLEEP], 10, "this rank to wait in the kernel")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            once()
        thread.join()
        with pytest.raises(CollectiveError, match=r"rank 0 .* was interrupted"):
            value_of(other.do.remote(once))
    finally:
        collective.destroy_collective_group("g")
