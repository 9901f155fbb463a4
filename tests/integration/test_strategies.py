"""Where tasks and actors run, when they say so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

import skate
from skate._worker.current import get_runtime
from skate.cluster_utils import Cluster
from skate.util import placement_group
from skate.util.scheduling_strategies import (
    DoesNotExist,
    Exists,
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
    PlacementGroupSchedulingStrategy,
)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "labels": {"zone": "a"}}) as cluster:
        cluster.add_node(num_cpus=2, labels={"zone": "b", "disk": "ssd"})
        cluster.add_node(num_cpus=2, labels={"zone": "c"})
        cluster.connect()
        yield cluster
        skate.shutdown()


@skate.remote(num_cpus=0.1)
def node_id() -> str:
    return skate.get_runtime_context().get_node_id()


@skate.remote(num_cpus=0.1)
class Resident:
    def node_id(self) -> str:
        return skate.get_runtime_context().get_node_id()


def places_of(kind: str, count: int = 4, **options: object) -> set[str]:
    """Where tasks, or actors, with these options are."""
    if kind == "task":
        return set(skate.get([node_id.options(**options).remote() for _ in range(count)]))
    actors = [Resident.options(**options).remote() for _ in range(count)]
    return set(skate.get([actor.node_id.remote() for actor in actors]))


def test_the_first_node_of_a_cluster_is_the_one_that_has_the_mark_of_the_head(cluster: Cluster) -> None:
    assert cluster.head_node is not None
    assert skate.cluster_resources()["node:__internal_head__"] == 1
    assert skate.cluster_resources()["node:127.0.0.1"] == 3  # one a node, and all have this address
    head = {"resources": {"node:__internal_head__": 0.001}}
    assert places_of("task", **head) == places_of("actor", **head) == {cluster.head_node.node_id}


KINDS = pytest.mark.parametrize("kind", ["task", "actor"])


@KINDS
def test_affinity_to_a_node(cluster: Cluster, kind: str) -> None:
    for node in cluster.nodes:
        for soft in (True, False):
            strategy = NodeAffinitySchedulingStrategy(node.node_id, soft=soft)
            assert places_of(kind, scheduling_strategy=strategy) == {node.node_id}
    strategy = NodeAffinitySchedulingStrategy("ff" * 16, soft=True)
    assert places_of(kind, 1, scheduling_strategy=strategy) <= {node.node_id for node in cluster.nodes}


@KINDS
def test_spread_uses_all_nodes(cluster: Cluster, kind: str) -> None:
    assert places_of(kind, 6, num_cpus=1, scheduling_strategy="SPREAD") == {node.node_id for node in cluster.nodes}


def test_tasks_that_are_spread_one_by_one_go_over_all_nodes(cluster: Cluster) -> None:
    spread = node_id.options(num_cpus=1, scheduling_strategy="SPREAD")
    places = Counter(skate.get(spread.remote()) for _ in range(9))
    assert set(places) == {node.node_id for node in cluster.nodes}


def test_tasks_that_are_spread_one_by_one_leave_no_timers_behind(cluster: Cluster) -> None:
    spread = node_id.options(num_cpus=1, scheduling_strategy="SPREAD")
    timers = get_runtime().loop._timers
    for _ in range(100):
        skate.get(spread.remote())
    assert len(timers) < 20


def test_tasks_that_come_one_by_one_after_a_burst_are_spread(cluster: Cluster) -> None:
    """The burst leaves several leases behind, which the others use while they are there."""
    spread = node_id.options(num_cpus=1, scheduling_strategy="SPREAD")
    assert len(set(skate.get([spread.remote() for _ in range(30)]))) == 3
    counts = Counter(skate.get(spread.remote()) for _ in range(12))
    assert len(counts) == 3, counts
    assert max(counts.values()) <= 6, counts


def test_tasks_that_are_spread_wait_for_a_free_node_that_answers_late(cluster: Cluster) -> None:
    spread = node_id.options(num_cpus=1, scheduling_strategy="SPREAD")
    late = cluster.nodes[2]
    os.kill(late.pid, signal.SIGSTOP)
    try:
        refs = [spread.remote() for _ in range(30)]
        _, pending = skate.wait(refs, num_returns=len(refs), timeout=0.6)
    finally:
        os.kill(late.pid, signal.SIGCONT)
    assert pending, "they ran where there were leases already"
    assert set(skate.get(refs)) == {node.node_id for node in cluster.nodes}


def test_tasks_that_are_spread_do_not_wait_for_nodes_that_are_full(cluster: Cluster) -> None:
    """For as long as those are: forever."""
    first = cluster.nodes[0].node_id
    residents = [Resident.options(num_cpus=2, label_selector={"zone": zone}).remote() for zone in "bc"]
    skate.get([resident.node_id.remote() for resident in residents])
    spread = node_id.options(num_cpus=1, scheduling_strategy="SPREAD")
    assert set(skate.get([spread.remote() for _ in range(30)], timeout=30)) == {first}


@pytest.mark.parametrize("options", [{"num_cpus": 0}, {"num_cpus": None}, {"num_cpus": 1}], ids=str)
def test_actors_spread_evenly_right_after_tasks(cluster: Cluster, options: dict[str, object]) -> None:
    spread = node_id.options(num_cpus=1, scheduling_strategy="SPREAD")
    for _ in range(3):
        skate.get([spread.remote() for _ in range(30)])
        actors = [Resident.options(scheduling_strategy="SPREAD", **options).remote() for _ in range(6)]
        places = Counter(skate.get([actor.node_id.remote() for actor in actors]))
        assert places == {node.node_id: 2 for node in cluster.nodes}
        for actor in actors:
            skate.kill(actor)


#: Which of the three nodes may be chosen.
LABELS = [
    ({"label_selector": {"zone": "b"}}, {1}),
    ({"label_selector": {"zone": "!a"}}, {1, 2}),
    ({"label_selector": {"zone": "in(a, c)"}}, {0, 2}),
    ({"label_selector": {"zone": "!in(a, c)"}}, {1}),
    ({"label_selector": {"zone": "!a", "disk": "ssd"}}, {1}),
    ({"scheduling_strategy": NodeLabelSchedulingStrategy(hard={"zone": In("b", "c")})}, {1, 2}),
    ({"scheduling_strategy": NodeLabelSchedulingStrategy(hard={"zone": NotIn("b", "c")})}, {0}),
    ({"scheduling_strategy": NodeLabelSchedulingStrategy(hard={"disk": Exists()})}, {1}),
    ({"scheduling_strategy": NodeLabelSchedulingStrategy(hard={"disk": DoesNotExist()})}, {0, 2}),
    ({"scheduling_strategy": NodeLabelSchedulingStrategy(soft={"zone": In("c")})}, {2}),
    ({"scheduling_strategy": NodeLabelSchedulingStrategy({"zone": In("a", "b")}, soft={"zone": In("c")})}, {0, 1}),
]


@KINDS
def test_labels_select_nodes(cluster: Cluster, kind: str) -> None:
    for options, expected in LABELS:
        where = places_of(kind, **options)
        assert where <= {cluster.nodes[index].node_id for index in expected}, options


@KINDS
def test_soft_affinity_gives_way_to_labels(cluster: Cluster, kind: str) -> None:
    first, second, _third = (node.node_id for node in cluster.nodes)
    strategy = NodeAffinitySchedulingStrategy(first, soft=True)
    assert places_of(kind, scheduling_strategy=strategy, label_selector={"zone": "b"}) == {second}
    assert places_of(kind, scheduling_strategy=strategy, label_selector={"zone": "!b"}) == {first}


@KINDS
def test_a_timeout_says_where_it_waits_to_run(cluster: Cluster, kind: str) -> None:
    def why(**options: object) -> str:
        resident = Resident.options(**options).remote() if kind == "actor" else None
        ref = node_id.options(**options).remote() if resident is None else resident.node_id.remote()
        with pytest.raises(skate.exceptions.GetTimeoutError) as caught:
            skate.get(ref, timeout=0.2)
        skate.cancel(ref)
        return str(caught.value)

    here = cluster.nodes[0].node_id
    assert "on a node whose label zone is nowhere" in why(label_selector={"zone": "nowhere"})
    assert f"on node {here}" in why(scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False), num_cpus=100)
    group = placement_group([{"CPU": 100}])
    told = why(scheduling_strategy=PlacementGroupSchedulingStrategy(group), num_cpus=1)
    assert f"needs 1 CPU in the placement group {group.id.hex()}" in told
    # What no node has, all of them together may have: a number would mislead.
    assert "the machine has" not in why(num_cpus=3)


@pytest.fixture
def alone() -> Iterator[None]:
    with skate.init(num_cpus=1, labels={"zone": "a"}, infeasible_grace_s=0.2):
        yield


@KINDS
def test_on_one_machine(alone: None, kind: str) -> None:
    here = skate.get_runtime_context().get_node_id()
    assert places_of(kind, 1, scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False)) == {here}
    assert places_of(kind, 1, label_selector={"zone": "a"}) == {here}
    assert places_of(kind, 1, scheduling_strategy="SPREAD") == {here}


@KINDS
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"label_selector": {"zone": "b"}}, "no node has the labels"),
        ({"scheduling_strategy": NodeAffinitySchedulingStrategy("ff" * 16, soft=False)}, "not part of the cluster"),
    ],
)
def test_what_is_nowhere_is_an_error(alone: None, kind: str, options: dict[str, object], why: str) -> None:
    errors = (skate.exceptions.TaskUnschedulableError, skate.exceptions.ActorUnschedulableError)
    with pytest.raises(errors, match=why):
        places_of(kind, 1, **options)


@KINDS
def test_affinity_to_a_node_without_the_labels_is_an_error(alone: None, kind: str) -> None:
    here = NodeAffinitySchedulingStrategy(skate.get_runtime_context().get_node_id(), soft=False)
    errors = (skate.exceptions.TaskUnschedulableError, skate.exceptions.ActorUnschedulableError)
    with pytest.raises(errors, match=f"the node {here.node_id} does not have the labels"):
        places_of(kind, 1, scheduling_strategy=here, label_selector={"zone": "b"})


def test_a_node_is_named_by_its_digits_or_by_its_id(alone: None) -> None:
    here = skate.get_runtime_context().node_id
    names = NodeAffinitySchedulingStrategy(here, soft=False), NodeAffinitySchedulingStrategy(bytes(here), soft=False)
    assert names == (NodeAffinitySchedulingStrategy(here.hex(), soft=False),) * 2
    assert places_of("task", 1, scheduling_strategy=names[0]) == {here.hex()}


def test_the_private_arguments_of_ray_are_accepted(alone: None) -> None:
    here = skate.get_runtime_context().get_node_id()
    strategy = NodeAffinitySchedulingStrategy(here, False, _spill_on_unavailable=True, _fail_on_unavailable=True)
    assert (strategy._spill_on_unavailable, strategy._fail_on_unavailable) == (True, True)
    assert places_of("task", 1, scheduling_strategy=strategy) == {here}


@pytest.mark.parametrize("node", ["", "xyz", 7, "ff", b"ff"])
def test_an_id_that_is_none_is_refused(node: object) -> None:
    with pytest.raises(ValueError, match=r"skate.nodes\(\) lists"):
        NodeAffinitySchedulingStrategy(node, soft=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("selector", [{"zone": "in(a"}, {"zone": "in()"}, {"zone": ""}, {"zone": "!"}])
def test_a_selector_that_says_nothing_is_refused(selector: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="label_selector"):
        node_id.options(label_selector=selector)


def test_modules_of_util_need_no_import_of_their_own() -> None:
    program = """
import sys
import skate as ray
assert "skate.util.scheduling_strategies" not in sys.modules
print(ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy.__name__, ray.util.queue.Queue.__name__)
"""
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, timeout=60)
    assert ran.stdout.split() == ["NodeAffinitySchedulingStrategy", "Queue"]
