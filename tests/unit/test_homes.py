"""Actors that are to be spread are, whatever the nodes have reported lately."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate._control.placing import MOVE_AFTER_S, Placing
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
    info = ActorInfo("Sim", to_place={"CPU": 1.0}, where=Where(spread=True))
    decider.place("first", [node(B)])
    nodes = [node(A, used=2), node(B)]
    decider.placing.place(b"second", info, Job(), nodes, 0.0)
    assert decider.at[b"second"] == A
    decider.placing.look(nodes, MOVE_AFTER_S)
    assert decider.at[b"second"] == B


@given(st.lists(st.tuples(st.sampled_from(["in", "out", "died"]), st.sampled_from("xyz"), st.sampled_from(NODES))))
def test_the_sums_are_right(history: list[tuple[str, str, bytes]]) -> None:
    homes = Homes()
    for what, actor, place in history:
        match what:
            case "in":
                homes.move_in(actor.encode(), Home(place, {"CPU": 3}, spread=actor != "z"))
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
