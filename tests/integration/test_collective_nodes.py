"""Collective operations of groups whose ranks are on several nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
from collective_ranks import check_every_operation, in_all, in_each, join, make_ranks

import skate
from skate import collective
from skate.cluster_utils import Cluster
from skate.collective import MismatchError, RankDiedError, ReduceOp
from waiting import value_of


@pytest.fixture
def nodes() -> Iterator[None]:
    """Three nodes, with the resources first, second and third."""
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"first": 9}}) as cluster:
        for name in ("second", "third"):
            cluster.add_node(num_cpus=1, resources={name: 9})
        cluster.connect()
        yield
        skate.shutdown()


def ranks_on(*nodes: str) -> list[skate.ActorHandle]:
    return [make_ranks(1, resources={node: 1})[0] for node in nodes]


def test_every_operation_gives_what_numpy_gives_wherever_the_ranks_are(nodes: None) -> None:
    def check() -> None:
        for shape, dtype in (((), "float64"), ((0,), "float32"), ((70_001,), "float32")):
            check_every_operation(shape, dtype)
        check_every_operation((9,), "int64", ReduceOp.MAX)

    for places in (("first", "second", "first", "second"), ("second", "first", "third", "third")):
        ranks = ranks_on(*places)
        join(ranks)
        in_all(ranks, check)
        value_of([each.leave.remote() for each in ranks])


def test_the_death_of_any_rank_is_an_error_on_all_nodes_that_names_it(nodes: None) -> None:
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


def test_different_calls_on_two_nodes_are_an_error_that_names_both(nodes: None) -> None:
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
