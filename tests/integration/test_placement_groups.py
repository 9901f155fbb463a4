"""Placement groups, on one machine and on several."""

from __future__ import annotations

import os
import pickle
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import skate
from programs import run_program
from skate.cluster_utils import Cluster
from skate.util.placement_group import (
    PlacementGroup,
    get_current_placement_group,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from skate.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from waiting import meet, wait_for


@pytest.fixture
def alone() -> Iterator[None]:
    with skate.init(num_cpus=3, num_gpus=2, infeasible_grace_s=0.2):
        yield


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Three nodes with two CPUs each."""
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 2}) as cluster:
        cluster.add_node(num_cpus=2)
        cluster.add_node(num_cpus=2)
        cluster.connect()
        yield cluster
        skate.shutdown()


@skate.remote(num_cpus=1)
def node_id() -> str:
    return skate.get_runtime_context().get_node_id()


@skate.remote(num_cpus=1)
class Resident:
    def node_id(self) -> str:
        return skate.get_runtime_context().get_node_id()

    def group(self) -> PlacementGroup | None:
        return get_current_placement_group()

    def child_group(self) -> PlacementGroup | None:
        return skate.get(current_group.remote())


@skate.remote(num_cpus=0)
def current_group() -> PlacementGroup | None:
    return get_current_placement_group()


def in_group(group: PlacementGroup, index: int = -1, **more: Any) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(group, index, **more)


def nodes_of(group: PlacementGroup) -> list[str]:
    return list(placement_group_table(group)["bundles_to_node_id"].values())


def cpus() -> float:
    return skate.available_resources().get("CPU", 0.0)


# -- on one machine ----------------------------------------------------------------------------------------------------


def test_a_group_reserves_what_it_asks_for_and_gives_it_back(alone: None) -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 1}])
    assert skate.get(group.ready(), timeout=10) == group
    assert group.bundle_specs == [{"CPU": 1}, {"CPU": 1}]
    assert cpus() == 1
    assert placement_group_table(group)["state"] == "CREATED"
    remove_placement_group(group)
    wait_for(lambda: cpus() == 3, 10, "the CPUs to be free")
    assert placement_group_table(group)["state"] == "REMOVED"


def test_tasks_and_actors_use_the_bundles_and_nothing_else(alone: None) -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 1}])
    actors = [Resident.options(scheduling_strategy=in_group(group, index)).remote() for index in (0, 1)]
    assert skate.get([actor.group.remote() for actor in actors]) == [group, group]
    waiting = node_id.options(scheduling_strategy=in_group(group)).remote()
    assert skate.wait([waiting], timeout=0.3) == ([], [waiting]), "both bundles are full, although a CPU is free"
    assert skate.get(node_id.remote()) == skate.get_runtime_context().get_node_id()
    del actors
    assert skate.get(waiting)


def test_an_actor_without_options_starts_in_a_bundle_whose_cpu_is_in_use(alone: None) -> None:
    group = placement_group([{"CPU": 1}])
    holder = Resident.options(num_cpus=1, scheduling_strategy=in_group(group, 0)).remote()
    assert skate.get(holder.group.remote(), timeout=20) == group
    actor = Resident.options(num_cpus=None, scheduling_strategy=in_group(group, 0)).remote()
    assert skate.get(actor.group.remote(), timeout=20) == group
    waiting = Resident.options(num_cpus=1, scheduling_strategy=in_group(group, 0)).remote().group.remote()
    assert skate.wait([waiting], timeout=0.3) == ([], [waiting])


def test_an_actor_without_options_needs_a_bundle_with_a_cpu(alone: None) -> None:
    group = placement_group([{"memory": 1000}])
    with pytest.raises(ValueError, match="CPU"):
        Resident.options(num_cpus=None, scheduling_strategy=in_group(group)).remote()


@pytest.mark.parametrize("bundles", [[{"CPU": 3}], [{"CPU": 1}] * 3], ids=["one bundle", "three bundles"])
def test_as_many_tasks_run_at_once_as_the_bundles_hold(
    alone: None, bundles: list[dict[str, float]], tmp_path: Path
) -> None:
    where = in_group(placement_group(bundles), 0 if len(bundles) == 1 else -1)
    guest = skate.remote(num_cpus=1, scheduling_strategy=where)(meet)
    assert skate.get([guest.remote(tmp_path, me, 3) for me in range(3)]) == [0, 1, 2]


def test_the_older_spelling_leads_into_the_group(alone: None) -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 1}])
    task = current_group.options(num_cpus=1, placement_group=group, placement_group_bundle_index=1)
    actor = Resident.options(placement_group=group, placement_group_capture_child_tasks=True).remote()
    assert skate.get([task.remote(), actor.group.remote(), actor.child_group.remote()]) == [group] * 3


def test_a_group_waits_until_there_is_room(alone: None) -> None:
    first = placement_group([{"CPU": 2}])
    assert first.wait(10)
    second = placement_group([{"CPU": 2}])
    assert not second.wait(0.5), "longer than what can never run may wait"
    assert placement_group_table(second)["state"] == "PENDING"
    remove_placement_group(first)
    assert second.wait(10)


def test_children_are_captured_if_asked_for(alone: None) -> None:
    @skate.remote(num_cpus=1)
    def parent() -> tuple[PlacementGroup | None, PlacementGroup | None]:
        actor = Resident.options(num_cpus=0).remote()
        return skate.get(current_group.remote()), skate.get(actor.group.remote())

    group = placement_group([{"CPU": 1}])
    captured = in_group(group, placement_group_capture_child_tasks=True)
    assert skate.get(parent.options(scheduling_strategy=captured).remote()) == (group, group)
    assert skate.get(parent.options(scheduling_strategy=in_group(group)).remote()) == (None, None)
    assert skate.get(parent.options(scheduling_strategy=captured).remote()) == (group, group)
    actor = Resident.options(scheduling_strategy=captured).remote()
    assert skate.get(actor.child_group.remote()) == group


def test_what_is_captured_can_say_that_it_is_in_no_group(alone: None) -> None:
    outside = PlacementGroupSchedulingStrategy(None)

    @skate.remote(num_cpus=1)
    def parent() -> list[PlacementGroup | None]:
        actor = Resident.options(num_cpus=0, scheduling_strategy=outside).remote()
        # The bundle has one CPU: outside of it there are more.
        task = current_group.options(num_cpus=2, scheduling_strategy=outside).remote()
        return [skate.get(task), skate.get(actor.group.remote()), skate.get(current_group.remote())]

    group = placement_group([{"CPU": 1}])
    captured = in_group(group, placement_group_capture_child_tasks=True)
    assert skate.get(parent.options(scheduling_strategy=captured).remote()) == [None, None, group]
    assert skate.get(current_group.options(scheduling_strategy=outside).remote()) is None
    with pytest.raises(ValueError, match="no group"):
        PlacementGroupSchedulingStrategy(None, 0)


@pytest.mark.parametrize("where", ["alone", "cluster"])
def test_no_group_may_capture_children_and_places_as_by_default(where: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(where)
    nowhere = PlacementGroupSchedulingStrategy(None, placement_group_capture_child_tasks=True)
    assert skate.get(current_group.options(scheduling_strategy=nowhere).remote()) is None
    actor = Resident.options(scheduling_strategy=nowhere).remote()
    assert skate.get([actor.group.remote(), actor.child_group.remote()]) == [None, None]
    old = {"placement_group": None, "placement_group_capture_child_tasks": True}
    assert skate.get(current_group.options(**old).remote()) is None


@skate.remote(num_cpus=0)
def groups_of_children(*options: dict[str, Any]) -> list[PlacementGroup | None]:
    return [
        group
        for each in options
        for group in (
            skate.get(current_group.options(**each).remote()),
            skate.get(Resident.options(num_cpus=0, **each).remote().group.remote()),
        )
    ]


def test_the_default_group_is_that_of_the_parent_if_children_are_captured(alone: None) -> None:
    default = {"placement_group": "default"}
    captured = {**default, "placement_group_capture_child_tasks": True}
    strategy = {"scheduling_strategy": PlacementGroupSchedulingStrategy("default", -1, True)}
    free = {**default, "placement_group_capture_child_tasks": False}
    for options in (default, captured, strategy, free):
        assert skate.get(current_group.options(**options).remote()) is None, "a driver is in no group"
    group, other = placement_group([{"CPU": 1}]), placement_group([{"CPU": 1}])
    parent = groups_of_children.options(scheduling_strategy=in_group(group)).remote(default, captured, strategy, free)
    assert skate.get(parent) == [None, None, group, group, group, group, None, None]
    # The same worker, in another group: what it knew of the last one is of no use.
    parent = groups_of_children.options(scheduling_strategy=in_group(other)).remote(captured)
    assert skate.get(parent) == [other, other]
    captures = in_group(group, placement_group_capture_child_tasks=True)
    parent = groups_of_children.options(scheduling_strategy=captures).remote(default, captured, free)
    assert skate.get(parent) == [group, group, group, group, None, None]
    bare = {"placement_group": "default", "placement_group_bundle_index": -1}
    assert skate.get(groups_of_children.options(scheduling_strategy=captures).remote(bare)) == [group, group]


def test_nested_tasks_in_one_bundle_do_not_wait_for_each_other(alone: None) -> None:
    @skate.remote(num_cpus=1)
    def depth(levels: int) -> int:
        return 1 + (skate.get(depth.remote(levels - 1)) if levels else 0)

    group = placement_group([{"CPU": 1}])
    strategy = in_group(group, placement_group_capture_child_tasks=True)
    assert skate.get(depth.options(scheduling_strategy=strategy).remote(5)) == 6


def test_gpus_of_a_bundle_are_its_own(alone: None) -> None:
    @skate.remote(num_cpus=0, num_gpus=1)
    def gpus() -> tuple[list[int], str | None]:
        return skate.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")

    group = placement_group([{"GPU": 1}, {"GPU": 1}])
    seen = [skate.get(gpus.options(scheduling_strategy=in_group(group, index)).remote()) for index in (0, 1, 0)]
    assert seen[0] == seen[2] != seen[1]
    assert sorted([seen[0][0], seen[1][0]]) == [[0], [1]]
    assert all(variable == str(ids[0]) for ids, variable in seen)


@pytest.mark.parametrize(
    ("needs", "index", "why"),
    [
        ({"num_cpus": 2}, -1, "{'CPU': 2}, and no bundle of the placement group has that: {'CPU': 1}, {'CPU': 0.5}."),
        ({"num_gpus": 1}, -1, "and no bundle of the placement group has that: {'CPU': 1}, {'CPU': 0.5}."),
        ({"num_cpus": 1}, 1, "{'CPU': 1}, and bundle 1 of the placement group has only {'CPU': 0.5}."),
    ],
)
def test_what_no_bundle_can_hold_is_an_error_at_once(
    alone: None, needs: dict[str, float], index: int, why: str
) -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 0.5}])
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    with pytest.raises(ValueError, match=re.escape(why)):
        node_id.options(scheduling_strategy=strategy, **needs).remote()
    with pytest.raises(ValueError, match=re.escape(why)):
        Resident.options(scheduling_strategy=strategy, **needs).remote()


@pytest.mark.parametrize("where", ["alone", "cluster"])
def test_an_actor_whose_group_was_removed_is_refused(where: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(where)
    group = placement_group([{"CPU": 1}])
    again = Resident.options(max_restarts=-1, max_task_retries=-1, scheduling_strategy=in_group(group)).remote()
    skate.get(again.node_id.remote())
    waiting = Resident.options(scheduling_strategy=in_group(group)).remote()
    remove_placement_group(group)

    def is_refused(actor: Any) -> bool:
        """A call may still be answered before the bundle is given back."""
        try:
            skate.get(actor.node_id.remote())
        except skate.exceptions.ActorPlacementGroupRemoved as error:
            return "of the actor Resident was removed" in str(error)
        return False

    for actor in (again, waiting, Resident.options(scheduling_strategy=in_group(group)).remote()):
        wait_for(lambda actor=actor: is_refused(actor), 10, "the actor to be refused")


def test_removing_a_group_ends_what_is_in_it(alone: None, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    @skate.remote(num_cpus=1, max_retries=0)
    def hang() -> None:
        begun.touch()
        time.sleep(60)

    group = placement_group([{"CPU": 1}])
    strategy = in_group(group)
    actor = Resident.options(num_cpus=0, scheduling_strategy=strategy).remote()
    skate.get(actor.node_id.remote())
    running = hang.options(scheduling_strategy=strategy).remote()
    wait_for(begun.exists, 10, "the task to run")
    waiting = hang.options(scheduling_strategy=strategy).remote()
    remove_placement_group(group)
    with pytest.raises(skate.exceptions.TaskPlacementGroupRemoved):
        skate.get(waiting)
    with pytest.raises(skate.exceptions.WorkerCrashedError, match="why:  the placement group that it was in") as ended:
        skate.get(running)
    assert "next:" not in str(ended.value), "to run it again would not help"
    with pytest.raises(skate.exceptions.ActorDiedError, match="placement group"):
        skate.get(actor.node_id.remote())
    with pytest.raises(skate.exceptions.TaskPlacementGroupRemoved):
        skate.get(node_id.options(scheduling_strategy=strategy).remote())
    wait_for(lambda: cpus() == 3, 10, "the CPUs to be free")


def test_a_task_on_another_node_is_told_that_its_group_was_removed(cluster: Cluster, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    @skate.remote(num_cpus=1, max_retries=0)
    def hang() -> None:
        begun.touch()
        time.sleep(60)

    group = placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD")
    skate.get(group.ready(), timeout=10)
    here = skate.get_runtime_context().get_node_id()
    elsewhere = next(index for index, node in enumerate(nodes_of(group)) if node != here)
    running = hang.options(scheduling_strategy=in_group(group, elsewhere)).remote()
    wait_for(begun.exists, 10, "the task to run")
    remove_placement_group(group)
    with pytest.raises(skate.exceptions.WorkerCrashedError, match="why:  the placement group that it was in"):
        skate.get(running)


def test_groups_have_names(alone: None) -> None:
    group = placement_group([{"CPU": 1}], name="mine")
    assert get_placement_group("mine") == group
    assert get_placement_group("mine").bundle_specs == [{"CPU": 1.0}]
    with pytest.raises(ValueError, match="another group has that name"):
        placement_group([{"CPU": 1}], name="mine")
    remove_placement_group(group)
    with pytest.raises(ValueError, match="no placement group has that name"):
        get_placement_group("mine")
    assert placement_group([{"CPU": 1}], name="mine").wait(10)


def test_a_group_travels(alone: None) -> None:
    @skate.remote(num_cpus=0)
    def use(group: PlacementGroup) -> PlacementGroup | None:
        strategy = PlacementGroupSchedulingStrategy(group)
        return skate.get(current_group.options(scheduling_strategy=strategy).remote())

    group = placement_group([{"CPU": 1}])
    assert pickle.loads(pickle.dumps(group)) == group
    assert skate.get(use.remote(group)) == group
    assert skate.util.placement_group([{"CPU": 1}]) != group, "the module can be called, as in Ray"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"bundles": []}, "one or more dicts"),
        ({"bundles": [{}]}, "not a dict of resources"),
        ({"bundles": [{"CPU": -1}]}, "is no amount"),
        ({"bundles": [{"CPU": 0}]}, "asks for nothing"),
        ({"bundles": [{"CPU": 1}], "strategy": "TIGHT"}, "STRICT_SPREAD"),
        ({"bundles": [{"CPU": 1}], "lifetime": "long"}, "detached"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        placement_group(**arguments)


def test_a_bundle_that_is_not_there_is_refused(alone: None) -> None:
    group = placement_group([{"CPU": 1}])
    with pytest.raises(ValueError, match="one of 0 to 0"):
        in_group(group, 1)
    with pytest.raises(TypeError, match="has returned"):
        PlacementGroupSchedulingStrategy("group")


# -- on several --------------------------------------------------------------------------------------------------------


def test_strategies_choose_nodes(cluster: Cluster) -> None:
    expected = {"STRICT_PACK": 1, "PACK": 1, "SPREAD": 2, "STRICT_SPREAD": 2}
    for strategy, nodes in expected.items():
        group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy=strategy)
        assert group.wait(10)
        assert len(set(nodes_of(group))) == nodes, strategy
        for index, node in enumerate(nodes_of(group)):
            assert skate.get(node_id.options(scheduling_strategy=in_group(group, index)).remote()) == node
            actor = Resident.options(scheduling_strategy=in_group(group, index)).remote()
            assert skate.get(actor.node_id.remote()) == node
        remove_placement_group(group)
        wait_for(lambda: cpus() == 6, 10, "the CPUs to be free")


def test_tasks_in_any_bundle_run_in_all_of_them_at_once(cluster: Cluster, tmp_path: Path) -> None:
    group = placement_group([{"CPU": 2}] * 3, strategy="STRICT_SPREAD")
    guest = skate.remote(num_cpus=1, scheduling_strategy=in_group(group))(meet)
    assert skate.get([guest.remote(tmp_path, me, 6) for me in range(6)]) == list(range(6))


def test_bundles_that_do_not_fit_on_one_node(cluster: Cluster) -> None:
    assert len(set(nodes_of(_ready(placement_group([{"CPU": 2}] * 3))))) == 3
    strict = placement_group([{"CPU": 2}, {"CPU": 1}], strategy="STRICT_PACK")
    assert not strict.wait(0.5)
    cluster.add_node(num_cpus=3)
    assert strict.wait(10)


def test_bundles_of_a_node_that_is_gone_find_another(cluster: Cluster) -> None:
    group = _ready(placement_group([{"CPU": 1}] * 3, strategy="STRICT_SPREAD"))
    lost = cluster.worker_nodes[0]
    index = nodes_of(group).index(lost.node_id)
    cluster.remove_node(lost, allow_graceful=False)
    wait_for(lambda: placement_group_table(group)["state"] == "RESCHEDULING", 10, "the loss to be known")
    fourth = cluster.add_node(num_cpus=2)
    wait_for(lambda: placement_group_table(group)["state"] == "CREATED", 10, "another place")
    assert nodes_of(group)[index] == fourth.node_id
    assert skate.get(node_id.options(scheduling_strategy=in_group(group, index)).remote()) == fourth.node_id


RESERVE = """
import skate
from skate.util.placement_group import placement_group

skate.init({address!r}, namespace="place")

@skate.remote(num_cpus=0)
class Reserver:
    def reserve(self):
        group = placement_group([{{"CPU": 0.5}}])
        assert group.wait(20)
        return group

reserver = Reserver.options(name="reserver", lifetime="detached").remote()
print(skate.get(reserver.reserve.remote()).id.hex())
"""


@pytest.mark.parametrize("where", ["alone", "cluster"])
def test_groups_of_a_detached_actor_end_with_it_and_not_with_its_driver(
    where: str, request: pytest.FixtureRequest
) -> None:
    if where == "cluster":
        arguments, options = [request.getfixturevalue("cluster").address], {}
        skate.shutdown()
    else:
        arguments, options = [], {"num_cpus": 2}
    with skate.init(*arguments, namespace="place", **options) as info:
        opener = Resident.options(num_cpus=0, lifetime="detached").remote()  # others may join a node that has one
        skate.get(opener.node_id.remote())
        early = run_program(RESERVE.format(address=info["address"]))[0].strip()
        reserver = skate.get_actor("reserver")
        late = skate.get(reserver.reserve.remote(), timeout=20).id.hex()
        groups = placement_group_table()
        assert {id: groups[id]["state"] for id in groups} == {early: "CREATED", late: "CREATED"}
        skate.kill(reserver)
        wait_for(lambda: not placement_group_table(), 10, "the groups to go")
        skate.kill(opener)


def _ready(group: PlacementGroup) -> PlacementGroup:
    assert group.wait(10)
    return group


# --- labels -----------------------------------------------------------------------------------------------------------


def test_bundles_go_where_the_labels_are() -> None:
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "labels": {"zone": "a"}}) as cluster:
        second = cluster.add_node(num_cpus=2, labels={"zone": "b"})
        cluster.connect()
        assert cluster.head_node is not None
        bundles = [{"CPU": 1}, {"CPU": 1}, {"CPU": 1}]
        group = placement_group(bundles, bundle_label_selector=[{"zone": "b"}, {"zone": "!b"}, {}])
        assert group.wait(20)
        assert nodes_of(group)[:2] == [second.node_id, cluster.head_node.node_id]
        homeless = placement_group([{"CPU": 0.1}], bundle_label_selector=[{"zone": "c"}])
        assert not homeless.wait(0)
        third = cluster.add_node(num_cpus=1, labels={"zone": "c"})
        assert homeless.wait(20)
        assert nodes_of(homeless) == [third.node_id]
        skate.shutdown()


@pytest.mark.parametrize("selector", [[], [{}, {}], ["zone"], [{"zone": 1}], [{"zone": "in("}], {"zone": "a"}])
def test_a_selector_of_labels_that_is_none_is_refused(selector: Any) -> None:
    with pytest.raises(ValueError, match="bundle_label_selector"):
        placement_group([{"CPU": 1}], bundle_label_selector=selector)
    assert not skate.is_initialized()
