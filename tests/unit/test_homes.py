"""Actors that are to be spread are, whatever the nodes have reported lately."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate._control.state.placing import MOVE_AFTER_S, NOWHERE_GRACE_S, Placing
from skate._core.homes import Home, Homes
from skate._core.placement import NodeView, Residents, Where
from skate._core.resources import PRECISION, to_units, to_units_of_bundle
from skate._core.task import ActorInfo, Job

A, B, C = NODES = b"node-a", b"node-b", b"node-c"


def node(id: bytes, *, used: float = 0, more: dict[str, int] | None = None) -> NodeView:
    total = {**to_units({"CPU": 2}), **(more or {})}
    return NodeView(id=id, total=total, available={**total, "CPU": total["CPU"] - round(used * PRECISION)})


def stale() -> list[NodeView]:
    """Two nodes are said to be busy with tasks that have ended."""
    return [node(A, used=2), node(B, used=1), node(C)]


class Decider:
    """The one who places actors, and what it has asked of whom."""

    def __init__(self) -> None:
        self.at: dict[bytes, bytes] = {}
        self.placing = Placing(self._ask, lambda node, actor: self.at.pop(actor, None), lambda actor, why: None)

    def _ask(self, node: bytes, actor: bytes, info: ActorInfo, job: Job) -> None:
        self.at[actor] = node

    def place(self, name: str, nodes: list[NodeView], **facts: Any) -> bytes:
        """Its node, which finds it a worker at once."""
        actor = name.encode()
        info = ActorInfo("Sim", where=Where(spread=facts.pop("spread", True)), **facts)
        self.placing.place(actor, info, Job(), nodes, 0.0)
        assert self.placing.is_expected(actor, self.at[actor])
        return self.at[actor]


@pytest.mark.parametrize(
    "facts",
    [{}, {"to_place": {"CPU": 1.0}}, {"resources": {"CPU": 1.0}, "to_place": {"CPU": 1.0}}],
    ids=["no CPUs", "a CPU to be placed", "a CPU"],
)
def test_what_tasks_had_in_use_a_moment_ago_does_not_crowd_actors(facts: dict[str, Any]) -> None:
    decider = Decider()
    # Reports come between any two of them, and say the same: none of the actors has started.
    places = Counter(decider.place(f"sim {index}", stale(), **facts) for index in range(6))
    assert places == {A: 2, B: 2, C: 2}


def test_among_equals_the_node_that_is_used_least_is_taken() -> None:
    assert Decider().place("sim", stale()) == C


def test_a_node_that_actors_or_bundles_fill_is_not_taken() -> None:
    needs: dict[str, Any] = {"resources": {"CPU": 2.0}, "to_place": {"CPU": 2.0}}
    decider = Decider()
    assert decider.place("holder", [node(A)], spread=False, **needs) == A
    bundle = to_units_of_bundle({"CPU": 1.0}, b"group", 0)
    nodes = [node(A), node(B, more=bundle), node(C)]
    assert decider.place("first", nodes, **needs) == C
    decider.placing.actor_died(b"holder")
    assert decider.place("second", nodes, **needs) == A


def test_actors_that_are_gone_do_not_count() -> None:
    decider = Decider()
    for name in ("one", "two", "three"):
        decider.place(name, [node(A)])
    decider.placing.actor_died(b"one")
    decider.placing.actor_died(b"two")
    decider.placing.unplace(b"three")
    assert decider.place("four", [node(A), node(B)]) == A


def test_one_that_starts_again_counts_once() -> None:
    decider = Decider()
    places = [decider.place("same", [node(A), node(B)]) for _ in range(4)]
    assert places == [A] * 4


def test_one_that_has_waited_for_a_busy_node_is_moved_to_a_free_one() -> None:
    decider = Decider()
    info = ActorInfo("Sim", resources={"CPU": 1.0}, to_place={"CPU": 1.0}, where=Where(spread=True))
    decider.place("first", [node(B)])
    nodes = [node(A, used=2), node(B)]
    decider.placing.place(b"second", info, Job(), nodes, 0.0)
    assert decider.at[b"second"] == A
    decider.placing.look(nodes, MOVE_AFTER_S)
    assert decider.at[b"second"] == B


# -- actors without options: they hold no CPU, and need a node that has one -------------------------------------------

DEFAULT: dict[str, Any] = {"spread": False, "to_place": {"CPU": 1.0}}


def test_one_that_holds_no_cpu_is_placed_though_all_cpus_are_busy() -> None:
    decider = Decider()
    nodes = [node(A, used=2), node(B, used=2)]
    decider.placing.place(b"sim", ActorInfo("Sim", to_place={"CPU": 1.0}), Job(), nodes, 0.0)
    assert decider.at[b"sim"] == A
    decider.placing.look([node(A, used=2), node(B)], MOVE_AFTER_S)
    assert decider.at[b"sim"] == A, "it does not wait for a CPU, so there is no reason to move it"


def test_a_node_without_cpus_gets_none_of_them() -> None:
    decider = Decider()
    bare = NodeView(id=A, total={}, available={})
    assert decider.place("sim", [bare, node(B, used=2)], **DEFAULT) == B
    assert decider.place("free", [bare, node(B, used=2)], spread=False) == A, "with num_cpus=0 any node will do"
    gave_up: list[bytes] = []
    placing = Placing(lambda *_: None, lambda *_: None, lambda actor, why: gave_up.append(actor))
    placing.place(b"sim", ActorInfo("Sim", to_place={"CPU": 1.0}), Job(), [bare], 0.0)
    placing.look([bare], NOWHERE_GRACE_S - 0.1)
    assert gave_up == []
    placing.look([bare], NOWHERE_GRACE_S)
    assert gave_up == [b"sim"]


def test_what_an_actor_without_a_worker_waits_for_is_told() -> None:
    placing = Placing(lambda *_: None, lambda *_: None, lambda *_: None)
    far = ActorInfo("Sim", resources={"far": 1.0}, to_place={"far": 1.0})
    with_far = node(B, more=to_units({"far": 1}))
    placing.place(b"sim", far, Job(), [node(A)], 0.0)
    assert placing.waits_for(b"sim", [node(A)]) == "no node has so much of far."
    placing.look([node(A), with_far], 0.5)
    assert placing.waits_for(b"sim", [node(A), with_far]) == f"a worker is looked for on node {B.hex()}."
    with_far.available["far"] = 0
    assert placing.waits_for(b"sim", [node(A), with_far]).endswith("others hold the resources that it needs there.")
    assert placing.is_expected(b"sim", B)
    assert placing.waits_for(b"sim", [node(A), with_far]) == ""


@pytest.mark.parametrize("used", [0, 2], ids=["idle nodes", "busy nodes"])
def test_they_are_balanced_though_no_report_shows_them(used: float) -> None:
    """One by one, with a report between any two: they hold nothing, so the reports say the same all the time."""
    decider = Decider()
    places = [decider.place(f"sim {index}", [node(id, used=used) for id in NODES], **DEFAULT) for index in range(9)]
    assert Counter(places) == {A: 3, B: 3, C: 3}


def test_how_long_tasks_take_does_not_matter_to_one_that_does_not_wait_for_them() -> None:
    decider = Decider()

    def nodes() -> list[NodeView]:
        quick, slow = node(A, used=2), node(B, used=2)
        quick.task_s, slow.task_s = 0.001, 10.0
        quick.queued, slow.queued = 0, 100
        return [quick, slow]

    places = [decider.place(f"sim {index}", nodes(), **DEFAULT) for index in range(6)]
    assert Counter(places) == {A: 3, B: 3}


def test_nodes_with_more_cpus_and_fewer_of_them_in_use_get_more() -> None:
    decider = Decider()
    large = NodeView(id=A, total=to_units({"CPU": 4}), available=to_units({"CPU": 4}))
    places = [decider.place(f"sim {index}", [large, node(B, used=2), node(C)], **DEFAULT) for index in range(9)]
    assert Counter(places) == {A: 5, B: 1, C: 3}


def test_what_they_hold_besides_counts() -> None:
    decider = Decider()
    gpu: dict[str, Any] = {"spread": False, "resources": {"GPU": 1.0}, "to_place": {"CPU": 1.0, "GPU": 1.0}}
    nodes = [node(A, more=to_units({"GPU": 1})), node(B, used=2, more=to_units({"GPU": 1}))]
    assert [decider.place(f"sim {index}", nodes, **gpu) for index in range(2)] == [A, B]


def with_room(id: bytes, room: int | None, **facts: Any) -> NodeView:
    view = node(id, **facts)
    view.actor_room = room
    return view


@pytest.mark.parametrize("facts", [DEFAULT, {"spread": True}, {"spread": False, "resources": {"CPU": 1.0}}])
def test_a_node_that_has_no_worker_for_an_actor_is_the_last_resort(facts: dict[str, Any]) -> None:
    facts = dict(facts)
    assert Decider().place("sim", [with_room(A, 0), with_room(B, 1, used=2), with_room(C, 0)], **facts) == B
    assert Decider().place("sim", [with_room(A, 0), with_room(B, None, used=2)], **facts) == B, "it does not say"
    assert Decider().place("sim", [with_room(A, 0), with_room(B, 0, used=2)], **facts) == A


def test_its_last_workers_are_not_promised_twice() -> None:
    decider = Decider()
    nodes = [with_room(A, 2), with_room(B, 50, used=2)]
    assert Counter(decider.place(f"sim {index}", nodes, **DEFAULT) for index in range(6)) == {A: 2, B: 4}


def test_one_that_waits_for_a_worker_is_moved_to_a_node_that_has_one() -> None:
    decider = Decider()
    decider.placing.place(b"sim", ActorInfo("Sim", to_place={"CPU": 1.0}), Job(), [with_room(A, 0)], 0.0)
    assert decider.at[b"sim"] == A
    decider.placing.look([with_room(A, 0), with_room(B, 0)], MOVE_AFTER_S)
    assert decider.at[b"sim"] == A
    decider.placing.look([with_room(A, 0), with_room(B, 1)], MOVE_AFTER_S)
    assert decider.at[b"sim"] == B


@given(st.lists(st.tuples(st.sampled_from(["in", "out", "died"]), st.sampled_from("xyz"), st.sampled_from(NODES))))
def test_the_sums_are_right(history: list[tuple[str, str, bytes]]) -> None:
    homes = Homes()
    for what, actor, place in history:
        match what:
            case "in":
                homes.move_in(actor.encode(), Home(place, {"CPU" if actor != "y" else "GPU": 3}, spread=actor != "z"))
            case "out":
                homes.move_out(actor.encode())
            case "died":
                homes.node_died(place)
                assert place not in homes.on
        homes.validate()
    for actor in "xyz":
        homes.move_out(actor.encode())
    assert homes.on == {}
    homes.move_in(b"x", Home(A, {"CPU": 3}, spread=True))
    assert homes.on == {A: Residents({"CPU": 3}, 1)}
