"""Connections between living processes and nodes are reset: nothing is lost, nothing is done twice, nobody is dead."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator

import numpy as np
import psutil
import pytest

import skate
import tcp_breaks
from skate._worker import current
from skate.cluster_utils import Cluster
from waiting import wait_for


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    tcp_breaks.require()
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as cluster:
        cluster.add_node(num_cpus=1, resources={"far": 10})
        cluster.add_node(num_cpus=1, resources={"farther": 10})
        cluster.connect()
        yield cluster
        skate.shutdown()


@skate.remote(num_cpus=0, max_retries=0)
def increment(number: int) -> int:
    return number + 1


@skate.remote(num_cpus=0)
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def next(self) -> int:
        self.count += 1
        return self.count


def pids(cluster: Cluster) -> list[int]:
    """Of all processes of the cluster: the control service, daemons, workers, and this one."""
    ends = [psutil.Process(pid) for pid in (cluster._control.pid, *(node.pid for node in cluster.nodes))]
    return [os.getpid(), *{process.pid for end in ends for process in [end, *end.children(recursive=True)]}]


class Saboteur:
    """Breaks every connection of the cluster, again and again, while it is entered."""

    def __init__(self, cluster: Cluster) -> None:
        self.broken = 0
        self._cluster = cluster
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        chance = random.Random(5)
        while not self._over.wait(chance.uniform(0.05, 0.8)):
            self.broken += tcp_breaks.break_connections(pids(self._cluster))

    def __enter__(self) -> Saboteur:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


def test_tasks_calls_and_objects_survive_resets_of_all_connections(cluster: Cluster) -> None:
    members = {node["NodeID"]: node["Alive"] for node in skate.nodes()}
    counters = [Counter.options(resources={name: 1}).remote() for name in ("far", "farther")]
    far = increment.options(resources={"far": 1})
    farther = increment.options(resources={"farther": 1})

    @skate.remote(num_cpus=0, resources={"farther": 1}, max_retries=0)
    def total(array: np.ndarray) -> float:
        return float(array.sum())

    @skate.remote(num_cpus=0, resources={"far": 1}, max_retries=0)
    def make(number: int) -> np.ndarray:
        return np.full(200_000, float(number))

    rounds = 0
    with Saboteur(cluster) as saboteur:
        while saboteur.broken < 60 or rounds < 5:
            calls = [[counter.next.remote() for _ in range(200)] for counter in counters]
            chains = [far.remote(farther.remote(number)) for number in range(100)]
            totals = [total.remote(make.remote(number)) for number in range(5)]
            expected = list(range(rounds * 200 + 1, rounds * 200 + 201))
            assert skate.get(calls[0], timeout=60) == expected
            assert skate.get(calls[1], timeout=60) == expected
            assert skate.get(chains, timeout=60) == [number + 2 for number in range(100)]
            assert skate.get(totals, timeout=60) == [200_000.0 * number for number in range(5)]
            rounds += 1
    assert {node["NodeID"]: node["Alive"] for node in skate.nodes()} == members


def test_references_are_counted_right_across_resets(cluster: Cluster) -> None:
    """What another process holds on to is there as long as that is so, and freed when it lets go."""

    @skate.remote(num_cpus=0, resources={"far": 1})
    class Holder:
        def hold(self, refs: list[skate.ObjectRef[np.ndarray]]) -> None:
            self.refs = refs

        def read(self) -> float:
            return float(skate.get(self.refs[0])[0])

        def let_go(self) -> None:
            self.refs = []

    holder = Holder.remote()
    ref = skate.put(np.full(500_000, 7.0))
    id = ref.binary()
    skate.get(holder.hold.remote([ref]))
    del ref
    tcp_breaks.break_connections(pids(cluster))
    assert skate.get(holder.read.remote(), timeout=60) == 7.0
    tcp_breaks.break_connections(pids(cluster))
    skate.get(holder.let_go.remote(), timeout=60)
    wait_for(lambda: id not in current.get_runtime().table.entries, 20, "the object to be freed")


def test_the_death_of_a_process_is_known_although_its_connection_was_reset_just_before(cluster: Cluster) -> None:
    @skate.remote(num_cpus=0, resources={"far": 1})
    class Mortal:
        def pid(self) -> int:
            return os.getpid()

        def die(self) -> None:
            tcp_breaks.break_connections([os.getpid()])
            os._exit(3)

    mortal = Mortal.remote()
    skate.get(mortal.pid.remote())
    with pytest.raises(skate.exceptions.ActorDiedError, match="3"):
        skate.get(mortal.die.remote(), timeout=60)
