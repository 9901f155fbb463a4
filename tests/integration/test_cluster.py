"""Several nodes: one program on all of them."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

import skate
from skate.cluster_utils import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A head with one CPU and a second node with two; this process is a driver at the head."""
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as cluster:
        cluster.add_node(num_cpus=2, resources={"second": 2})
        cluster.connect()
        yield cluster
        skate.shutdown()


@skate.remote
def node_id(seconds: float = 0.0) -> str:
    time.sleep(seconds)
    return skate.get_runtime_context().get_node_id()


def test_a_task_that_fits_stays_on_its_node(cluster: Cluster) -> None:
    assert cluster.head_node is not None
    assert {skate.get(node_id.remote()) for _ in range(20)} == {cluster.head_node.node_id}


def test_tasks_spread_over_all_nodes_when_there_are_enough_of_them(cluster: Cluster) -> None:
    where = Counter(skate.get([node_id.remote(0.1) for _ in range(30)]))
    assert set(where) == {node.node_id for node in cluster.nodes}
    assert where[cluster.worker_nodes[0].node_id] > where[cluster.nodes[0].node_id], "it has twice as many CPUs"


def test_a_task_goes_to_the_node_that_has_what_it_asks_for(cluster: Cluster) -> None:
    second = node_id.options(resources={"second": 1}, num_cpus=0)
    assert set(skate.get([second.remote() for _ in range(10)])) == {cluster.worker_nodes[0].node_id}


def test_tasks_of_tasks_run_on_any_node(cluster: Cluster) -> None:
    @skate.remote
    def parent() -> list[str]:
        return skate.get([node_id.remote(0.1) for _ in range(12)])

    where = skate.get(parent.options(resources={"second": 1}).remote())
    assert set(where) == {node.node_id for node in cluster.nodes}


def test_an_error_comes_from_another_node(cluster: Cluster) -> None:
    @skate.remote(resources={"second": 1})
    def fail() -> None:
        raise KeyError("elsewhere")

    with pytest.raises(KeyError, match="elsewhere"):
        skate.get(fail.remote())
