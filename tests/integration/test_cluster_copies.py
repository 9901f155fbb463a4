"""Copies of objects on other nodes: they go with their owner, make way when memory is short, and can be had again."""

from __future__ import annotations

import os
import random
import resource
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest

import skate
from skate.cluster_utils import Cluster, ClusterNode
from waiting import wait_for

MB = 1 << 20


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head and a second node; this process is a driver at the head."""
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as cluster:
        cluster.add_node(num_cpus=2, resources={"second": 2})
        cluster.connect()
        yield cluster
        skate.shutdown()


def living() -> set[str]:
    return {node["NodeID"] for node in skate.nodes() if node["Alive"]}


def used_bytes() -> float:
    return skate.cluster_resources()["object_store_memory"] - skate.available_resources()["object_store_memory"]


@skate.remote(num_cpus=0)
class Keeper:
    def put(self) -> list[skate.ObjectRef[bytes]]:
        self.refs = [skate.put(bytes(5_000_000))]
        return self.refs


@skate.remote(num_cpus=0)
def make_bytes() -> bytes:
    return bytes(5_000_000)


@skate.remote(num_cpus=0)
def own_what_is_made(where: str) -> tuple[int, list[skate.ObjectRef[bytes]]]:
    """The owner is the worker of this task."""
    refs = [make_bytes.options(resources={where: 1}).remote()]
    skate.wait(refs, fetch_local=False)
    return os.getpid(), refs


@skate.remote(num_cpus=0)
def length_of_first(refs: list[skate.ObjectRef[bytes]]) -> int:
    return len(skate.get(refs[0]))


def test_copies_of_what_a_dead_node_owned_are_freed_on_the_others(cluster: Cluster) -> None:
    """Nobody else could tell of their end."""
    third = cluster.add_node(num_cpus=0, resources={"third": 2})
    keeper = Keeper.options(resources={"third": 1}).remote()
    refs = skate.get(keeper.put.remote())
    assert skate.get(length_of_first.options(resources={"second": 1}).remote(refs)) == 5_000_000
    assert skate.get(length_of_first.remote(refs)) == 5_000_000
    wait_for(lambda: used_bytes() >= 15_000_000, 10, "the copies to be counted")
    del refs
    cluster.remove_node(third, allow_graceful=False)
    wait_for(lambda: used_bytes() == 0, 15, "all memory to be free")


def test_copies_of_what_was_made_on_a_dead_node_go_when_their_owner_dies(cluster: Cluster) -> None:
    """Its owner lives on, so they stay; when it dies, the node that would have told of it is dead."""
    third = cluster.add_node(num_cpus=0, resources={"third": 1})
    pid, refs = skate.get(own_what_is_made.options(resources={"second": 1}).remote("third"))
    assert skate.get(length_of_first.remote(refs)) == 5_000_000
    cluster.remove_node(third, allow_graceful=False)
    wait_for(lambda: len(living()) == 2, 10, "the death of the node to be known")
    assert skate.get(length_of_first.remote(refs)) == 5_000_000
    wait_for(lambda: used_bytes() > 0, 10, "the copy to be counted")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: used_bytes() == 0, 15, "all memory to be free")
    with pytest.raises(skate.exceptions.OwnerDiedError):
        skate.get(refs[0], timeout=10)


def is_unread(node: ClusterNode, control: str) -> bool:
    """Whether the control service has yet to read something that the node has sent."""
    port = int(control.rpartition(":")[2])
    of_node = psutil.Process(node.pid).net_connections("tcp")
    (own_port,) = (it.laddr.port for it in of_node if it.raddr and it.raddr.port == port)
    with open("/proc/net/tcp") as file:
        fields = [line.split() for line in file][1:]
    (queues,) = (it[4] for it in fields if it[1].endswith(f":{port:04X}") and it[2].endswith(f":{own_port:04X}"))
    return int(queues.partition(":")[2], 16) > 0


def test_copies_that_the_control_service_heard_of_late_go_when_their_owner_dies(cluster: Cluster) -> None:
    """It hears whose they are before it hears that they are, and once only: the nodes did not wait for it."""
    third = cluster.add_node(num_cpus=0, resources={"third": 1})
    pid, refs = skate.get(own_what_is_made.options(resources={"second": 1}).remote("third"))
    wait_for(lambda: used_bytes() >= 5_000_000, 10, "what was made to be counted")
    head, control = psutil.Process(cluster.nodes[0].pid), psutil.Process(cluster._control.pid)
    try:
        head.suspend()
        control.suspend()
        wait_for(lambda: is_unread(third, cluster.address), 10, "the third node to be the first that will be heard")
        head.resume()
        assert skate.get(length_of_first.remote(refs), timeout=30) == 5_000_000
        psutil.Process(third.pid).suspend()  # it says nothing more
    finally:
        head.resume()
        control.resume()
    wait_for(lambda: used_bytes() >= 10_000_000, 10, "the copy to be counted")
    cluster.remove_node(third, allow_graceful=False)
    wait_for(lambda: len(living()) == 2, 10, "the death of the node to be known")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: used_bytes() == 0, 15, "all memory to be free")


def test_a_node_without_room_for_an_object_says_so_and_the_object_lives_on() -> None:
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as cluster:
        cluster.add_node(num_cpus=1, resources={"small": 1}, object_store_memory=16 << 20)
        cluster.connect()
        ref = skate.put(bytes(20_000_000))

        @skate.remote(resources={"small": 1})
        def length(value: bytes) -> int:
            return len(value)

        for attempt in (length.remote(ref), length_of_first.options(resources={"small": 1}).remote([ref])):
            with pytest.raises(skate.exceptions.ObjectStoreFullError, match=r"19\.1 MiB can never fit") as caught:
                skate.get(attempt, timeout=30)
            assert caught.value.needed_bytes >= 20_000_000
            assert caught.value.capacity_bytes < 20_000_000
        assert skate.get(length.remote(bytes(1_000_000))) == 1_000_000
        assert len(skate.get(ref)) == 20_000_000
        skate.shutdown()


@skate.remote(num_cpus=0)
def numbered(number: int) -> np.ndarray[Any, Any]:
    return np.full(10_000_000, number, dtype=np.uint8)


@skate.remote(num_cpus=0)
def last_of(*arrays: np.ndarray[Any, Any]) -> list[int]:
    return [int(array[-1]) for array in arrays]


def forbid_spilling(node: ClusterNode) -> None:
    """A limit on the size of files stands for the full disk: the write fails in the same place."""
    psutil.Process(node.pid).rlimit(resource.RLIMIT_FSIZE, (MB, MB))


def test_copies_are_dropped_and_pulled_again_where_nothing_can_be_spilled() -> None:
    """Several nodes at a time, so that some are sent to a copy that has just been dropped."""
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as cluster:
        for _ in range(2):
            forbid_spilling(cluster.add_node(resources={"small": 2}, object_store_memory=32 * MB))
        cluster.connect()
        refs = [numbered.remote(number) for number in range(6)]
        skate.wait(refs, num_returns=6, fetch_local=False)
        read = last_of.options(resources={"small": 1}, max_retries=0)
        for number, ref in enumerate(refs):
            assert skate.get(read.remote(ref), timeout=30) == [number]
        dice = random.Random(1)
        which = [dice.randrange(6) for _ in range(60)]
        assert skate.get([read.remote(refs[number]) for number in which], timeout=50) == [[number] for number in which]
        skate.shutdown()


def test_a_pin_of_several_copies_finds_all_of_them() -> None:
    """Those that came first are not dropped for those that come last."""
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as cluster:
        cluster.add_node(resources={"small": 2}, object_store_memory=36 * MB)
        cluster.connect()
        refs = [numbered.remote(number) for number in range(6)]
        skate.wait(refs, num_returns=6, fetch_local=False)
        read = last_of.options(resources={"small": 1}, max_retries=0)
        which = [(0, 1, 2), (3, 4, 5), (0, 3, 4), (5, 1, 2), (2, 4, 0)]
        for trio in which:
            assert skate.get(read.remote(*(refs[number] for number in trio)), timeout=30) == list(trio)
        many = [read.remote(*(refs[number] for number in trio)) for trio in which * 3]
        assert skate.get(many, timeout=50) == [list(trio) for trio in which * 3]
        skate.shutdown()


def test_a_copy_stays_when_the_node_that_made_it_is_gone() -> None:
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as cluster:
        cluster.add_node(resources={"small": 1}, object_store_memory=32 * MB)
        maker = cluster.add_node(resources={"maker": 1})
        cluster.connect()
        rare = numbered.options(resources={"maker": 1}, max_retries=0).remote(77)
        read = last_of.options(resources={"small": 1}, max_retries=0)
        assert skate.get(read.remote(rare)) == [77]
        cluster.remove_node(maker, allow_graceful=False)
        wait_for(lambda: len(living()) == 2, 10, "the death of the node to be known")
        others = [numbered.options(resources={}).remote(number) for number in range(6)]
        for number, other in enumerate(others):
            assert skate.get(read.remote(other), timeout=30) == [number]
        assert skate.get(read.remote(rare), timeout=30) == [77]
        skate.shutdown()
