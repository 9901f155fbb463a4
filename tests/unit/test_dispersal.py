"""Where leases are looked for: each rule by example, then clusters and demands that change at random.

Every test keeps the books of what each node has been told, and compares them with what the dispersal believes.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skate._core.dispersal import SLOTS_MAX, Changes, Dispersal, slots
from skate._core.placement import Affinity, Condition, Input, NodeView, Nowhere, Request, order
from skate._core.policy_turns import Class
from skate._core.resources import PRECISION, to_units

HERE, B, C, D = b"node-a", b"node-b", b"node-c", b"node-d"
X: Class = (b"process-x", 1)
Y: Class = (b"process-y", 1)
MB = 10**6


def node(
    id: bytes, cpus: float = 2, *, free: float | None = None, more: dict[str, float] | None = None, **facts: Any
) -> NodeView:
    total = to_units({"CPU": cpus, **(more or {})})
    available = dict(total) if free is None else {**total, "CPU": round(free * PRECISION)}
    return NodeView(id=id, total=total, available=available, **facts)


def request(cpus: float = 1, *, more: dict[str, float] | None = None, **facts: Any) -> Request:
    return Request(needs=to_units({"CPU": cpus, **(more or {})}), **facts)


class Books:
    """A dispersal among nodes, and what each of them has been told."""

    def __init__(self, *nodes: NodeView) -> None:
        self.nodes = {view.id: view for view in nodes}
        self.dispersal = Dispersal(HERE)
        self.told: dict[Class, dict[bytes, int]] = {}
        #: How many leases each class wants, by what its owner said and was granted.
        self.wants: Counter[Class] = Counter()

    def demand(
        self, count: int = 1, needs: Request | None = None, *, cls: Class = X, **facts: Any
    ) -> Changes | Nowhere:
        self.wants[cls] = count
        return self._note(cls, self.dispersal.demand(cls, needs or request(), count, self.nodes, **facts))

    def decide(self, cls: Class = X) -> Changes | Nowhere:
        return self._note(cls, self.dispersal.decide(cls, self.nodes))

    def spill(self, cls: Class = X) -> Changes | Nowhere:
        """It has waited for this node for SPILL_S."""
        self.dispersal.wanted[cls].may_leave = True
        return self.decide(cls)

    def report(self, view: NodeView, cls: Class = X) -> Changes | Nowhere:
        """A node says how it is, and the demand is thought over."""
        self.nodes[view.id] = view
        return self.decide(cls)

    def grant(self, node: bytes, cls: Class = X) -> None:
        """By a node that was told to."""
        told = self.told[cls]
        told[node] -= 1
        if not told[node]:
            del told[node]
        self.wants[cls] -= 1
        self.dispersal.granted(cls, node)
        self.check()

    def process_dies(self, process: bytes) -> None:
        """Nodes hear of that by themselves."""
        for cls in [cls for cls in self.told if cls[0] == process]:
            del self.told[cls]
        for cls in [cls for cls in self.wants if cls[0] == process]:
            del self.wants[cls]
        self.dispersal.process_died(process)
        self.check()

    def node_dies(self, node: bytes) -> list[Class]:
        del self.nodes[node]
        hit = [cls for cls, told in self.told.items() if told.pop(node, 0)]
        classes = self.dispersal.node_died(node)
        assert sorted(classes) == sorted(hit)
        self.check()
        return classes

    def asked(self, cls: Class = X) -> dict[bytes, int]:
        return self.told.get(cls, {})

    def _note(self, cls: Class, changes: Changes) -> Changes | Nowhere:
        wanted = self.dispersal.wanted.get(cls)
        told = self.told.setdefault(cls, {})
        for node, count in changes.items():
            assert node in self.nodes, "a node that is gone was told something"
            assert told.get(node, 0) != count, "a node was told what it knows"
            told[node] = count
            if not count:
                del told[node]
        self.check()
        if wanted is not None and wanted.nowhere:
            assert not told, "some node is asked for what no node can run"
            return Nowhere(wanted.nowhere)
        assert sum(told.values()) == self.wants[cls], "it is not looked for in full"
        return changes

    def check(self) -> None:
        self.dispersal.validate()
        asked = {cls: wanted.asked for cls, wanted in self.dispersal.wanted.items() if wanted.asked}
        assert asked == {cls: told for cls, told in self.told.items() if told}
        assert {cls: wanted.count for cls, wanted in self.dispersal.wanted.items()} == dict(+self.wants)
        for told in self.told.values():
            assert set(told) <= set(self.nodes)


# -- here first --------------------------------------------------------------------------------------------------------


def test_a_node_whose_workers_all_are_actors_is_asked_only_if_there_is_no_other() -> None:
    books = Books(node(HERE, full_of_actors=True), node(B, free=0))
    assert books.demand() == {B: 1}
    assert books.report(node(B, full_of_actors=True)) == {HERE: 1, B: 0}
    assert books.report(node(B)) == {B: 1, HERE: 0}


def test_a_demand_stays_here_until_it_may_leave() -> None:
    books = Books(node(HERE, free=0), node(B))
    assert books.demand(5) == {HERE: 5}
    assert books.decide() == {}
    assert books.spill() == {HERE: 3, B: 2}


def test_an_owner_with_much_to_do_need_not_wait() -> None:
    books = Books(node(HERE), node(B))
    assert books.demand(5, may_leave=True) == {HERE: 3, B: 2}


def test_what_may_leave_once_may_leave_until_it_is_served() -> None:
    books = Books(node(HERE, free=0), node(B, 4))
    books.demand(1, may_leave=True)
    assert books.demand(3) == {B: 3}
    books.demand(0)
    assert books.demand(3) == {HERE: 3}, "a new demand waits for this node again"


def test_what_this_node_has_free_is_taken_first_even_if_another_is_idle() -> None:
    books = Books(node(HERE, 4, free=1, queued=5), node(B, 8))
    assert books.demand(3, may_leave=True) == {HERE: 1, B: 2}


def test_a_node_that_is_alone_asks_itself() -> None:
    books = Books(node(HERE, free=0))
    assert books.demand(7) == {HERE: 7}
    assert books.spill() == {}


# -- elsewhere at once -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wants",
    [
        request(4),
        request(more={"lamp": 1}),
        request(affinity=Affinity(B)),
        request(affinity=Affinity(B, soft=True)),
        request(required=[Condition("zone", frozenset({"y"}))]),
        request(inputs=[Input(100 * MB, frozenset({B}))]),
    ],
    ids=["more than is here", "what is not here", "affinity", "soft affinity", "labels", "data"],
)
def test_what_belongs_elsewhere_leaves_at_once(wants: Request) -> None:
    books = Books(node(HERE, labels={"zone": "x"}), node(B, 4, more={"lamp": 2}, labels={"zone": "y"}))
    assert books.demand(1, wants) == {B: 1}


@pytest.mark.parametrize("may_leave", [False, True])
def test_labels_that_are_preferred_are_a_reason_to_leave(may_leave: bool) -> None:
    books = Books(node(HERE, labels={"zone": "x"}), node(B, labels={"zone": "y"}))
    wants = request(preferred=[Condition("zone", frozenset({"y"}))])
    assert books.demand(1, wants, may_leave=may_leave) == {B: 1}


def test_labels_that_are_preferred_and_that_nobody_has_are_no_reason_to_leave() -> None:
    books = Books(node(HERE, labels={"zone": "x"}), node(B))
    assert books.demand(1, request(preferred=[Condition("zone", frozenset({"q"}))])) == {HERE: 1}


def test_data_that_is_here_too_is_no_reason_to_leave() -> None:
    books = Books(node(HERE), node(B))
    assert books.demand(2, request(inputs=[Input(100 * MB, frozenset({HERE, B}))])) == {HERE: 2}
    assert books.demand(2, request(inputs=[Input(100 * MB)])) == {}, "nobody has it yet"


def test_a_long_queue_where_the_data_is_keeps_it_here() -> None:
    books = Books(node(HERE), node(B, free=0, queued=1000, task_s=1.0))
    assert books.demand(2, request(inputs=[Input(100 * MB, frozenset({B}))])) == {HERE: 2}


def test_many_long_tasks_do_not_all_wait_beside_their_data() -> None:
    """Four at a time there take longer than bringing the data elsewhere."""
    nodes = node(HERE), node(B), node(C)
    data = [Input(100 * MB, frozenset({B}))]  # a tenth of a second
    assert Books(*nodes).demand(6, request(inputs=data, task_s=1.0)) == {HERE: 2, B: 2, C: 2}
    assert Books(*nodes).demand(6, request(inputs=data, task_s=0.001)) == {B: 6}


def test_who_has_waited_beside_the_data_for_longer_than_bringing_it_takes_waits_no_more() -> None:
    books = Books(node(HERE), node(B), node(C))
    assert books.demand(6, request(inputs=[Input(100 * MB, frozenset({B}))])) == {B: 6}, "who knows how long they take"
    books.dispersal.wanted[X].waited_s = 0.02
    assert books.decide() == {}
    books.dispersal.wanted[X].waited_s = 0.2
    assert books.decide() == {HERE: 2, B: 2, C: 2}


def test_data_is_not_brought_where_it_can_never_fit() -> None:
    books = Books(node(HERE), node(B), node(C, store_bytes=50 * MB))
    assert books.demand(6, request(inputs=[Input(100 * MB, frozenset({B}))], task_s=1.0)) == {HERE: 3, B: 3}


def test_spread_gives_each_node_the_same() -> None:
    books = Books(node(HERE, 4), node(B, 4), node(C, 4))
    assert books.demand(6, request(spread=True)) == {HERE: 2, B: 2, C: 2}
    assert sorted(books.demand(1, request(spread=True), cls=Y).values()) == [1]  # type: ignore[union-attr]


def test_what_is_spread_and_comes_one_by_one_takes_turns() -> None:
    books = Books(node(HERE), node(B), node(C, free=1))
    places = []
    for _ in range(4):  # each lease is given back before the next is asked for
        books.demand(1, request(spread=True))
        (place,) = books.asked()
        books.grant(place)
        places.append(place)
    assert places == [HERE, B, HERE, B], "C is used more"
    books.nodes[C] = node(C)
    for _ in range(2):
        books.demand(1, request(spread=True))
        (place,) = books.asked()
        books.grant(place)
        places.append(place)
    assert places[4:] == [C, HERE]


def test_spread_takes_free_nodes_before_full_ones_and_then_all_alike() -> None:
    books = Books(node(HERE, 4, free=0), node(B, 4, free=1), node(C, 4, free=2))
    assert books.demand(3, request(spread=True)) == {B: 1, C: 2}
    books.demand(9, request(spread=True))
    assert books.asked() == {HERE: 3, B: 3, C: 3}


def test_what_is_spread_is_short_of_what_is_not_free() -> None:
    books = Books(node(HERE, 4, free=0), node(B, 4, free=1), node(C, 4, free=2))
    wanted = books.dispersal.wanted
    books.demand(3, request(spread=True))
    assert wanted[X].short == 0
    books.demand(9, request(spread=True))
    assert wanted[X].short == 6
    books.grant(B)
    assert wanted[X].short == 6, "one that was free has come: as many others as before are not"
    books.nodes[B] = node(B, 4, free=0)
    books.nodes[HERE] = node(HERE, 4, free=2)
    books.decide()
    assert (wanted[X].count, wanted[X].short) == (8, 4)


def test_what_is_spread_stays_so_when_one_has_granted() -> None:
    books = Books(node(HERE, 4), node(B, 4), node(C, 4))
    books.demand(3, request(spread=True))
    books.grant(HERE)
    assert books.decide() == {}


def test_affinity_waits_for_its_node() -> None:
    books = Books(node(HERE), node(B, free=0, queued=100), node(C))
    assert books.demand(3, request(affinity=Affinity(B)), may_leave=True) == {B: 3}


def test_affinity_to_this_node_stays_here() -> None:
    books = Books(node(HERE, free=0), node(B))
    assert books.demand(3, request(affinity=Affinity(HERE)), may_leave=True) == {HERE: 3}


def test_soft_affinity_to_a_node_that_is_gone_goes_elsewhere() -> None:
    books = Books(node(HERE), node(B))
    books.demand(1, request(affinity=Affinity(B, soft=True)))
    assert books.node_dies(B) == [X]
    assert books.decide() == {HERE: 1}


def test_soft_affinity_to_a_node_that_is_gone_is_like_none() -> None:
    wants = request(affinity=Affinity(D, soft=True))
    books = Books(node(HERE, free=1), node(B), node(C))
    books.demand(5, wants, may_leave=True)
    assert books.asked() == {HERE: 1, B: 2, C: 2}


@pytest.mark.parametrize("wanted", [HERE, B])
def test_soft_affinity_to_a_node_without_the_labels_goes_to_one_that_has_them(wanted: bytes) -> None:
    books = Books(node(HERE), node(B), node(C, free=0, queued=100, labels={"zone": "x"}))
    assert books.demand(3, request(affinity=Affinity(wanted, soft=True), required=[Condition("zone")])) == {C: 3}


def test_soft_affinity_to_a_node_that_is_gone_does_not_follow_queues() -> None:
    books = Books(node(HERE, free=0, queued=9), node(B, free=0), node(C, free=0, queued=1))
    books.demand(2, request(affinity=Affinity(D, soft=True)), may_leave=True)
    assert books.report(node(B, free=0, queued=2)) == {}


# -- others ------------------------------------------------------------------------------------------------------------


def test_what_others_have_free_comes_before_waiting() -> None:
    books = Books(node(HERE, free=0), node(B, free=1), node(C, 4, free=3))
    books.demand(4, may_leave=True)
    assert books.asked() == {B: 1, C: 3}


def test_of_two_nodes_the_one_where_it_begins_first_is_asked() -> None:
    books = Books(node(HERE, free=0), node(B, queued=5), node(C, queued=1))
    books.demand(1, may_leave=True)
    assert books.asked() == {C: 1}


def test_more_than_all_have_free_is_asked_of_as_many_as_could_run_it_at_a_time() -> None:
    books = Books(node(HERE, 2, free=0), node(B, 3, free=1), node(C, 4, free=0))
    books.demand(9, may_leave=True)
    assert books.asked() == {HERE: 2, B: 3, C: 4}


def test_what_is_more_than_all_nodes_can_run_at_a_time_waits_at_the_first() -> None:
    books = Books(node(HERE, 1, free=0), node(B, 1, free=0))
    books.demand(10, may_leave=True)
    assert books.asked() == {HERE: 9, B: 1}


def test_what_needs_nothing_stays_here_in_any_number() -> None:
    books = Books(node(HERE, free=0), node(B))
    books.demand(1000, request(0), may_leave=True)
    assert books.asked() == {HERE: 1000}


# -- no bouncing -------------------------------------------------------------------------------------------------------


def test_what_is_asked_and_will_be_granted_stays_where_it_is() -> None:
    books = Books(node(HERE, free=0), node(B))
    assert books.demand(2, may_leave=True) == {B: 2}
    assert books.report(node(HERE)) == {}
    assert books.report(node(C, 8)) == {}


def test_nobody_has_anything_free_so_nothing_moves() -> None:
    books = Books(node(HERE, free=0), node(B))
    books.demand(2, may_leave=True)
    assert books.report(node(B, free=0, queued=50)) == {}
    assert books.report(node(HERE, free=0, queued=99)) == {}
    assert books.report(node(C, free=0)) == {}


def test_what_waits_goes_to_what_becomes_free() -> None:
    books = Books(node(HERE, free=0), node(B, free=0))
    assert books.demand(2, may_leave=True) == {HERE: 2}
    assert books.report(node(B, free=1)) == {HERE: 1, B: 1}
    assert books.report(node(B, free=0)) == {}
    assert books.report(node(HERE, free=2)) == {B: 0, HERE: 2}


def test_a_new_node_takes_what_waits() -> None:
    books = Books(node(HERE, free=0))
    books.demand(3, may_leave=True)
    assert books.report(node(B)) == {HERE: 1, B: 2}


def test_a_smaller_demand_is_taken_back_and_what_will_be_granted_last() -> None:
    books = Books(node(HERE, free=0), node(B))
    books.demand(4, may_leave=True)
    assert books.asked() == {HERE: 2, B: 2}
    assert books.demand(2) == {HERE: 0}
    assert books.demand(0) == {B: 0}
    assert not books.dispersal.wanted


def test_a_demand_that_ends_before_it_began_tells_nobody() -> None:
    assert Books(node(HERE)).demand(0) == {}


# -- grants and deaths -------------------------------------------------------------------------------------------------


def test_a_grant_is_asked_for_no_more() -> None:
    books = Books(node(HERE, free=0), node(B))
    books.demand(3, may_leave=True)
    books.grant(B)
    assert books.asked() == {HERE: 1, B: 1}
    books.grant(B)
    books.grant(HERE)
    assert not books.dispersal.wanted
    books.dispersal.granted(X, B)  # one that was on its way when the owner wanted no more


@pytest.mark.parametrize("grants", [1, 2])
def test_a_grant_of_a_node_that_is_asked_no_more_is_asked_of_nobody_else(grants: int) -> None:
    """It was on its way while the demand moved; the owner says nothing when it has got what it wants."""
    books = Books(node(HERE, free=0), node(B))
    books.demand(2, may_leave=True)
    assert books.report(node(B, free=0)) == {}
    assert books.report(node(HERE)) == {B: 0, HERE: 2}
    for _ in range(grants):
        books.dispersal.granted(X, B)
    books.dispersal.validate()


def test_what_was_asked_of_a_dead_node_is_looked_for_elsewhere() -> None:
    books = Books(node(HERE, free=0), node(B), node(C))
    books.demand(2, may_leave=True)
    books.demand(2, cls=Y)
    assert books.node_dies(B) == [X]
    assert books.decide() == {C: 2}
    assert books.decide(Y) == {}


def test_with_its_process_a_demand_is_gone() -> None:
    books = Books(node(HERE), node(B))
    books.demand(5, may_leave=True)
    books.demand(5, cls=Y)
    books.process_dies(X[0])
    assert list(books.dispersal.wanted) == [Y]
    assert books.demand(1) == {HERE: 1}, "one of the same name begins anew"


# -- nowhere -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wants", "why"),
    [
        (request(8), "so much of CPU"),
        (request(more={"lamp": 1}), "so much of lamp"),
        (request(required=[Condition("zone")]), "labels"),
        (request(affinity=Affinity(D)), "not part of the cluster"),
        (request(3, affinity=Affinity(HERE)), "less than it needs"),
        (request(affinity=Affinity(HERE), required=[Condition("zone")]), "does not have the labels"),
        (request(affinity=Affinity(B, soft=True), required=[Condition("zone")]), "no node has the labels"),
        (request(8, spread=True), "so much of CPU"),
        (request(8, affinity=Affinity(D, soft=True)), "so much of CPU"),
    ],
)
def test_what_nobody_can_run_says_why_and_is_asked_of_nobody(wants: Request, why: str) -> None:
    books = Books(node(HERE), node(B, 4))
    nowhere = books.demand(2, wants)
    assert isinstance(nowhere, Nowhere)
    assert why in nowhere.reason
    assert books.asked() == {}
    books.dispersal.validate()


def test_what_nobody_could_run_goes_to_the_node_that_comes_and_can() -> None:
    books = Books(node(HERE), node(B))
    wants = request(more={"lamp": 1})
    assert isinstance(books.demand(2, wants), Nowhere)
    assert books.report(node(C, more={"lamp": 1})) == {C: 2}
    books.node_dies(C)
    assert isinstance(books.decide(), Nowhere)
    assert books.demand(0, wants) == {}


def test_what_nobody_can_run_any_more_is_asked_of_nobody() -> None:
    """A node lost its lamp. What it is asked for should follow the demand, which goes down."""
    books = Books(node(HERE), node(B, more={"lamp": 2}))
    wants = request(more={"lamp": 1})
    assert books.demand(2, wants) == {B: 2}
    books.nodes[B] = node(B)
    books.dispersal.demand(X, wants, 1, books.nodes)
    books.dispersal.validate()


# -- slots -------------------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(-5, 50)),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 9)),
)
def test_slots_are_how_often_the_needs_fit(amounts: dict[str, int], needs: dict[str, int]) -> None:
    found = slots(amounts, needs)

    def fits(times: int) -> bool:
        return all(times * amount <= amounts.get(name, 0) for name, amount in needs.items() if amount)

    if not any(needs.values()):
        assert found == SLOTS_MAX
        return
    assert found == 0 or fits(found)
    assert not fits(found + 1)


# -- at random ---------------------------------------------------------------------------------------------------------

LABELS = [{}, {"zone": "x"}, {"zone": "y"}]
#: What the classes of a process want, by key: a class keeps to what it is.
KINDS = [
    request(),
    request(0.5),
    request(3),
    request(0),
    request(more={"lamp": 1}),
    request(spread=True),
    request(2, required=[Condition("zone", frozenset({"y"}))]),
    request(affinity=Affinity(B)),
    request(affinity=Affinity(C, soft=True)),
    request(affinity=Affinity(B), required=[Condition("zone", frozenset({"y"}))]),
    request(affinity=Affinity(C, soft=True), required=[Condition("zone", frozenset({"y"}))]),
    request(inputs=[Input(100 * MB, frozenset({B, C}))]),
    request(inputs=[Input(1000, frozenset({C})), Input(MB)]),
]
PROCESSES = [b"process-x", b"process-y"]
COUNTS = st.one_of(st.integers(0, 12), st.integers(100, 300))


class Cluster(RuleBasedStateMachine):
    """Nodes, owners and schedulers do whatever they like; what is asked adds up to what is wanted, and is served."""

    @initialize(cpus=st.integers(0, 4), labels=st.sampled_from(LABELS))
    def begin(self, cpus: int, labels: dict[str, str]) -> None:
        self.books = Books(node(HERE, cpus, labels=labels))

    def classes(self) -> list[Class]:
        return sorted(self.books.dispersal.wanted)

    def asked(self) -> list[tuple[Class, bytes]]:
        return sorted((cls, node) for cls, told in self.books.told.items() for node in told)

    def decide(self, cls: Class) -> None:
        """Once more changes something, perhaps; twice more does not."""
        before = dict(self.books.asked(cls))
        asked_in_full = sum(before.values()) == self.books.wants[cls]
        changes = self.books.decide(cls)
        self.check_reasons(cls, before if asked_in_full else {})
        again = self.books.decide(cls)
        assert again == (changes if isinstance(changes, Nowhere) else {}), "it bounces"

    def check_reasons(self, cls: Class, before: dict[bytes, int]) -> None:
        wanted = self.books.dispersal.wanted[cls]
        request, asked, nodes = wanted.request, self.books.asked(cls), self.books.nodes
        possible = order(request, nodes.values())
        assert all(view.has_labels(request.required) for view in (nodes[id] for id in asked))
        if request.affinity is not None:
            return
        assert bool(possible) == bool(asked)
        assert set(asked) <= {view.id for view in possible}
        free = {view.id: slots(view.available, request.needs) for view in possible}
        # To wait where the data is may be better than to bring it to where there is room.
        if not request.inputs and (set(asked) != {HERE} or wanted.may_leave):
            waits = [id for id, count in asked.items() if count > free[id]]
            assert not waits or all(asked.get(id, 0) >= free[id] for id in free), "it waits, and another has room"
            if not request.spread:
                for id in set(before) & set(free):
                    assert asked.get(id, 0) >= min(before[id], free[id]), "it left where it would have been granted"

    @precondition(lambda self: len(self.books.nodes) < 4)
    @rule(
        id=st.sampled_from([B, C, D]),
        cpus=st.integers(0, 4),
        lamps=st.integers(0, 2),
        labels=st.sampled_from(LABELS),
        queued=st.integers(0, 20),
    )
    def node_joins(self, id: bytes, cpus: int, lamps: int, labels: dict[str, str], queued: int) -> None:
        if id not in self.books.nodes:
            self.books.nodes[id] = node(id, cpus, more={"lamp": lamps}, labels=labels, queued=queued)

    @rule(which=st.integers(0, 9), free=st.integers(-1, 4), lamps=st.integers(0, 2), queued=st.integers(0, 20))
    def node_changes(self, which: int, free: int, lamps: int, queued: int) -> None:
        view = self.books.nodes[sorted(self.books.nodes)[which % len(self.books.nodes)]]
        for name, amount in (("CPU", free), ("lamp", lamps)):
            if name in view.total:
                view.available[name] = min(amount * PRECISION, view.total[name])
        view.queued = queued

    @precondition(lambda self: len(self.books.nodes) > 1)
    @rule(which=st.integers(0, 9))
    def node_dies(self, which: int) -> None:
        others = sorted(set(self.books.nodes) - {HERE})
        for cls in self.books.node_dies(others[which % len(others)]):
            self.decide(cls)

    @rule()
    def news_come(self) -> None:
        for cls in self.classes():
            self.decide(cls)

    @rule(
        process=st.sampled_from(PROCESSES),
        key=st.integers(0, len(KINDS) - 1),
        count=COUNTS,
        may_leave=st.booleans(),
    )
    def owner_demands(self, process: bytes, key: int, count: int, may_leave: bool) -> None:
        changes = self.books.demand(count, KINDS[key], cls=(process, key), may_leave=may_leave)
        assert isinstance(changes, dict) or count
        if count:
            self.decide((process, key))

    @precondition(lambda self: self.classes())
    @rule(which=st.integers(0, 99))
    def owner_has_waited(self, which: int) -> None:
        cls = self.classes()[which % len(self.classes())]
        self.books.dispersal.wanted[cls].may_leave = True
        self.decide(cls)

    @precondition(lambda self: self.asked())
    @rule(which=st.integers(0, 99), times=st.integers(1, 4))
    def node_grants(self, which: int, times: int) -> None:
        cls, id = self.asked()[which % len(self.asked())]
        for _ in range(min(times, self.books.asked(cls)[id])):
            self.books.grant(id, cls)

    @rule(process=st.sampled_from(PROCESSES))
    def process_dies(self, process: bytes) -> None:
        self.books.process_dies(process)
        assert not [cls for cls in self.classes() if cls[0] == process]

    @rule(choices=st.lists(st.integers(0, 99), max_size=20))
    def views_stay_as_they_are_and_all_settles(self, choices: list[int]) -> None:
        """A report is old as soon as something was granted; who goes by it may err, but not for ever."""
        self.news_come()
        for which in choices:
            if self.asked():
                self.node_grants(which, 1)
                self.news_come()
        settled = {cls: dict(told) for cls, told in self.books.told.items()}
        self.news_come()
        assert {cls: dict(told) for cls, told in self.books.told.items()} == settled

    @rule()
    def everything_is_served(self) -> None:
        """Nodes grant what is asked of them and fits, and tasks end: then only that is wanted which nobody can run."""
        self.news_come()
        wanted = sum(count for cls, count in self.books.wants.items() if self.books.asked(cls))
        for _ in range(wanted):
            if not self.grant_what_fits():
                break
        assert not self.asked()
        assert all(isinstance(self.books.decide(cls), Nowhere) for cls in self.classes())

    def grant_what_fits(self) -> bool:
        """One round: all is idle; nodes grant until they are full or asked for nothing that fits."""
        for view in self.books.nodes.values():
            view.available = dict(view.total)
        granted = False
        for cls, id in itertools.chain.from_iterable(self.asked() for _ in range(2)):
            view, needs = self.books.nodes[id], self.books.dispersal.wanted.get(cls)
            while needs is not None and self.books.asked(cls).get(id) and view.fits(needs.request.needs):
                for name, amount in needs.request.needs.items():
                    view.available[name] -= amount
                self.books.grant(id, cls)
                granted = True
        self.news_come()
        return granted

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "books"):
            self.books.check()


Cluster.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestCluster = Cluster.TestCase
