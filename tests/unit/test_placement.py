"""The global scheduler's decisions: a demand goes where it begins first, does not bounce, and says why it cannot go."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate._core.placement import (
    BYTES_PER_S_AT_FIRST,
    Affinity,
    Average,
    Condition,
    Input,
    NodeView,
    Nowhere,
    Request,
    choose,
    wait_s,
)
from skate._core.resources import PRECISION, to_units

A, B, C = b"node-a", b"node-b", b"node-c"
MB = 10**6
IN_X = Condition("zone", frozenset({"x"}))


def node(id: bytes, cpus: float = 2, *, used: float = 0, **facts: Any) -> NodeView:
    total = to_units({"CPU": cpus, **facts.pop("more", {})})
    available = {**total, "CPU": total.get("CPU", 0) - round(used * PRECISION)}
    return NodeView(id=id, total=total, available=available, **facts)


def request(cpus: float = 1, **facts: Any) -> Request:
    return Request(needs=to_units({"CPU": cpus, **facts.pop("more", {})}), **facts)


def chosen(demand: Request, *nodes: NodeView) -> bytes:
    found = choose(demand, nodes)
    assert isinstance(found, NodeView), found
    return found.id


def test_the_estimate_is_queue_times_duration_plus_bytes_over_bandwidth() -> None:
    there = node(A, queued=10, task_s=0.5, bytes_per_s=100 * MB)
    inputs = [Input(300 * MB, frozenset({B})), Input(50 * MB, frozenset({A}))]
    assert wait_s(there, request(inputs=inputs)) == pytest.approx(10 * 0.5 + 300 / 100)


def test_the_shorter_queue_is_taken() -> None:
    assert chosen(request(), node(A, queued=5), node(B, queued=1)) == B


def test_a_long_queue_of_quick_tasks_may_be_the_shorter_one() -> None:
    assert chosen(request(), node(A, queued=1, task_s=10), node(B, queued=100, task_s=0.001)) == B


def test_a_task_goes_to_its_data() -> None:
    inputs = [Input(100 * MB, frozenset({B}))]
    assert chosen(request(inputs=inputs), node(A), node(B)) == B
    assert chosen(request(inputs=inputs), node(A), node(B, queued=3)) == B, "a short wait costs less than to move it"
    assert chosen(request(inputs=inputs), node(A), node(B, queued=1000, task_s=1.0)) == A, "a long one more"


def test_small_inputs_do_not_outweigh_a_queue() -> None:
    inputs = [Input(1000, frozenset({B}))]
    assert chosen(request(inputs=inputs), node(A), node(B, queued=1)) == A


def test_free_resources_come_before_taken_ones() -> None:
    assert chosen(request(), node(A, used=2), node(B)) == B


def test_what_only_one_node_has_is_found() -> None:
    assert chosen(request(more={"lamp": 1}), node(A), node(B, queued=100, more={"lamp": 1})) == B


@pytest.mark.parametrize(
    ("demand", "nodes", "why"),
    [
        (request(3), [node(A), node(B)], "so much of CPU"),
        (request(2, more={"lamp": 1}), [node(A, 1, more={"lamp": 1}), node(B)], "no single node"),
        (request(), [], "no node"),
        (request(required=[Condition("zone", frozenset({"x"}))]), [node(A)], "labels"),
        (request(affinity=Affinity(C)), [node(A)], "not part of the cluster"),
        (request(3, affinity=Affinity(A)), [node(A), node(B, 4)], "less than it needs"),
        (
            request(affinity=Affinity(A), required=[IN_X]),
            [node(A), node(B, labels={"zone": "x"})],
            "not have the labels",
        ),
        (request(affinity=Affinity(A, soft=True), required=[IN_X]), [node(A), node(B)], "no node has the labels"),
    ],
)
def test_what_can_never_run_says_why(demand: Request, nodes: list[NodeView], why: str) -> None:
    nowhere = choose(demand, nodes)
    assert isinstance(nowhere, Nowhere)
    assert why in nowhere.reason


def test_affinity_is_stronger_than_queues_and_if_soft_gives_way() -> None:
    busy, idle = node(A, used=2, queued=1000), node(B)
    assert chosen(request(affinity=Affinity(A)), busy, idle) == A
    assert chosen(request(affinity=Affinity(A, soft=True)), busy, idle) == A
    assert chosen(request(affinity=Affinity(C, soft=True)), busy, idle) == B
    assert chosen(request(3, affinity=Affinity(A, soft=True)), busy, node(B, 4)) == B


def test_affinity_does_not_do_without_the_labels_that_are_required() -> None:
    here, there, far = node(A), node(B, labels={"zone": "x"}, queued=1000), node(C, labels={"zone": "x"})
    assert chosen(request(affinity=Affinity(B), required=[IN_X]), here, there, far) == B
    assert chosen(request(affinity=Affinity(B, soft=True), required=[IN_X]), here, there, far) == B
    assert chosen(request(affinity=Affinity(A, soft=True), required=[IN_X]), here, there, far) == C


def test_labels_that_are_required_and_labels_that_are_preferred() -> None:
    here, there = node(A, labels={"zone": "x", "gpu": "old"}), node(B, labels={"zone": "y"})
    assert chosen(request(required=[Condition("zone", frozenset({"y", "z"}))]), here, there) == B
    assert chosen(request(required=[Condition("gpu")]), here, there) == A
    assert chosen(request(required=[Condition("gpu", negated=True)]), here, there) == B
    assert chosen(request(required=[Condition("zone", frozenset({"x"}), negated=True)]), here, there) == B
    assert chosen(request(preferred=[Condition("zone", frozenset({"y"}))]), here, there) == B
    assert chosen(request(preferred=[Condition("zone", frozenset({"q"}))]), here, there) == A, "nobody has it"


def test_spread_takes_turns() -> None:
    views = {id: node(id, 4) for id in (A, B, C)}
    places = []
    for _ in range(6):
        id = chosen(request(spread=True), *views.values())
        views[id].available["CPU"] -= PRECISION
        places.append(id)
    assert sorted(places) == [A, A, B, B, C, C]
    assert sorted(places[:3]) == [A, B, C]


def test_averages_follow_what_is_seen() -> None:
    average = Average(BYTES_PER_S_AT_FIRST)
    for _ in range(50):
        average.learn(100 * MB)
    assert average.value == pytest.approx(100 * MB, rel=0.01)


nodes_of_a_cluster = st.lists(
    st.builds(
        node,
        st.sampled_from([bytes([65 + index]) for index in range(6)]),
        st.integers(0, 4),
        queued=st.integers(0, 1000),
        task_s=st.floats(1e-6, 10),
        bytes_per_s=st.floats(1e6, 1e10),
    ),
    unique_by=lambda view: view.id,
)
demands = st.builds(
    request,
    st.integers(0, 5),
    inputs=st.lists(
        st.builds(
            Input,
            st.integers(0, 10**10),
            st.frozensets(st.sampled_from([bytes([65 + index]) for index in range(6)])),
        ),
        max_size=3,
    ),
    spread=st.booleans(),
)


@given(demands, nodes_of_a_cluster)
def test_whoever_decides_decides_alike_and_feasibly(demand: Request, nodes: list[NodeView]) -> None:
    found = choose(demand, nodes)
    assert found == choose(demand, nodes[::-1])
    feasible = [view for view in nodes if view.can_ever_fit(demand.needs)]
    if isinstance(found, Nowhere):
        assert not feasible
        return
    assert found in feasible
    if not demand.spread:
        # No node is better by more than the task that occupies it.
        best = min(wait_s(view, demand) for view in feasible)
        assert wait_s(found, demand) <= best + max(view.task_s for view in feasible)
