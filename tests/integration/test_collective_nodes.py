"""Collective operations of groups whose ranks are on several nodes."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator

import numpy as np
import pytest
from collective_ranks import check_every_operation, in_all, in_each, join, make_ranks

import skate
from shared_runtime import Sharing
from skate import collective
from skate.cluster_utils import Cluster
from skate.collective import CollectiveError, MismatchError, RankDiedError, RankLeftError, ReduceOp, board
from skate.connections import Address
from waiting import value_of


def three_nodes() -> Cluster:
    """Three nodes, with the resources first, second and third."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"first": 9}})
    for name in ("second", "third"):
        cluster.add_node(num_cpus=1, resources={name: 9})
    return cluster


@pytest.fixture(scope="module")
def shared_nodes(sharing: Sharing) -> Iterator[Cluster]:
    """For tests that leave them as they were: starting three takes longer than most of these tests."""
    assert not sharing.end()
    with three_nodes() as cluster:
        yield cluster


@pytest.fixture
def nodes(shared_nodes: Cluster) -> Iterator[Cluster]:
    shared_nodes.connect()
    yield shared_nodes
    skate.shutdown()


@pytest.fixture
def own_nodes() -> Iterator[Cluster]:
    with three_nodes() as cluster:
        cluster.connect()
        yield cluster
        skate.shutdown()


def ranks_on(*nodes: str) -> list[skate.ActorHandle]:
    return [make_ranks(1, resources={node: 1})[0] for node in nodes]


def test_every_operation_gives_what_numpy_gives_wherever_the_ranks_are(nodes: Cluster) -> None:
    def check() -> None:
        for shape, dtype in (((), "float64"), ((0,), "float32"), ((70_001,), "float32")):
            check_every_operation(shape, dtype)
        check_every_operation((9,), "int64", ReduceOp.MAX)

    for places in (("first", "second", "first", "second"), ("second", "first", "third", "third")):
        ranks = ranks_on(*places)
        join(ranks)
        in_all(ranks, check)
        value_of([each.leave.remote() for each in ranks])


def test_the_death_of_any_rank_is_an_error_on_all_nodes_that_names_it(nodes: Cluster) -> None:
    def for_ever() -> None:
        while True:
            collective.allreduce(np.zeros(10), "g")

    for victim, by_kill in ((1, True), (2, True), (3, True), (3, False)):
        ranks = ranks_on("first", "first", "second", "second")
        pids = join(ranks)
        kept = value_of(ranks[victim].do.remote(lambda: [skate.put(7)]))  # so the process outlives the actor
        refs = [each.do.remote(for_ever) for at, each in enumerate(ranks) if at != victim]
        if by_kill:
            os.kill(pids[victim], signal.SIGKILL)
        else:
            ranks[victim].do.remote(skate.actor.exit_actor)
        for ref in refs:
            with pytest.raises(RankDiedError, match=rf"rank {victim} \(.*pid {pids[victim]} ") as caught:
                value_of(ref)
            assert caught.value.rank == victim
        del refs, ref, caught, kept
        value_of([each.leave.remote() for at, each in enumerate(ranks) if at != victim])


def test_different_calls_on_two_nodes_are_an_error_that_names_both(nodes: Cluster) -> None:
    ranks = ranks_on("first", "second", "second")
    join(ranks)

    def one() -> None:
        collective.allreduce(np.zeros(3), "g")

    def other() -> None:
        collective.allreduce(np.zeros(4), "g")

    for ref in in_each(ranks, one, other, other):
        with pytest.raises(MismatchError) as caught:
            value_of(ref)
        assert "allreduce(float64[3], SUM)" in str(caught.value)
        assert "allreduce(float64[4], SUM)" in str(caught.value)


def test_messages_of_two_ranks_may_be_on_their_way_during_collective_operations(nodes: Cluster) -> None:
    def go() -> list[float]:
        rank, one, sums = collective.get_rank("g"), np.full(100, 7.0, np.float32), np.ones(4, np.float32)
        if rank == 0:
            collective.send(one, 2, "g")
        collective.barrier("g")
        collective.allreduce(sums, "g")
        got = np.zeros(100, np.float32)
        if rank == 2:
            collective.recv(got, 0, "g")
        return [float(sums[0]), float(got[0])]

    ranks = ranks_on("first", "second", "third")
    join(ranks)
    assert in_all(ranks, go) == [[3, 0], [3, 0], [3, 7]]


def test_alltoall_may_write_to_the_arrays_that_it_reads_and_times_are_reduced_like_numbers(nodes: Cluster) -> None:
    def go() -> None:
        rank = collective.get_rank("g")
        parts = [np.full(2, 10.0 * rank + to) for to in range(3)]
        collective.alltoall(parts, parts, "g")
        assert [part[0] for part in parts] == [10.0 * source + rank for source in range(3)]
        seconds = np.full(3, rank + 1, "m8[s]")
        collective.allreduce(seconds, "g")
        assert seconds.tolist() == np.full(3, 6, "m8[s]").tolist()

    ranks = ranks_on("first", "second", "third")
    join(ranks)
    in_all(ranks, go)


def allreduce_once() -> None:
    collective.allreduce(np.ones(3), "g")


def test_a_rank_that_leaves_before_anything_was_done_has_left_and_is_not_dead(nodes: Cluster) -> None:
    ranks = ranks_on("first", "second", "second")
    join(ranks)
    value_of(ranks[1].leave.remote())
    with pytest.raises(RankLeftError, match="rank 1"):
        value_of(ranks[0].do.remote(allreduce_once))


def test_a_rank_that_does_not_get_into_the_group_is_named_on_other_nodes_too(nodes: Cluster) -> None:
    def fail_to_map() -> None:
        def cut_off(self: board.Board, *arguments: object) -> None:
            raise OSError(12, "no memory")

        board.Board.__init__ = cut_off  # type: ignore[method-assign]

    ranks = ranks_on("first", "second")
    value_of(ranks[1].do.remote(fail_to_map))
    joining = [each.join.remote(2, rank) for rank, each in enumerate(ranks)]
    with pytest.raises(OSError, match="no memory"):
        value_of(joining[1])
    with pytest.raises(CollectiveError, match="rank 1"):
        value_of(joining[0])
        value_of(ranks[0].do.remote(allreduce_once))


def test_a_rank_that_is_slow_to_say_hello_is_not_dead(nodes: Cluster) -> None:
    def be_slow() -> None:
        connect = Address.connect

        def slowly(self: Address, *arguments: float) -> socket.socket:
            sock = connect(self, *arguments)
            time.sleep(1.2)
            return sock

        Address.connect = slowly  # type: ignore[method-assign]

    ranks = ranks_on("first", "second")
    value_of(ranks[1].do.remote(be_slow))
    join(ranks)
    in_all(ranks, allreduce_once)


def test_the_death_of_a_node_is_an_error_in_the_ranks_of_the_others(own_nodes: Cluster) -> None:
    def for_ever() -> None:
        while True:
            collective.allreduce(np.zeros(1_000_000), "g")

    ranks = ranks_on("first", "second", "third")
    join(ranks)
    refs = [each.do.remote(for_ever) for each in ranks[:2]]
    own_nodes.remove_node(own_nodes.worker_nodes[1], allow_graceful=False)
    for ref in refs:
        with pytest.raises(RankDiedError, match="rank 2"):
            value_of(ref)
