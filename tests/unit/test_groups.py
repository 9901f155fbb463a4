"""Placement groups are reserved whole or not at all, whatever nodes answer and whenever they die."""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skate._core.bundles import Strategy
from skate._core.groups import PENDING, PREPARING, READY, RESCHEDULING, Commit, GroupTable, Prepare, Release, Tell
from skate._core.placement import NodeView
from skate._core.resources import Amounts, to_units

A, B, C = b"a", b"b", b"c"
X = b"group-x"


def view(id: bytes, cpus: float = 4) -> NodeView:
    total = to_units({"CPU": cpus})
    return NodeView(id=id, total=total, available=dict(total))


def cpus(*amounts: float) -> list[Amounts]:
    return [to_units({"CPU": amount}) for amount in amounts]


def table_with(strategy: Strategy, *amounts: float) -> GroupTable:
    table = GroupTable()
    table.create(X, cpus(*amounts), strategy)
    return table


def prepare_all(table: GroupTable, commands: list[Any]) -> list[Any]:
    answers: list[Any] = []
    for command in commands:
        if isinstance(command, Prepare):
            answers += table.prepared(command.node, command.group, command.index, command.attempt, ok=True)
    return answers


def test_a_group_is_ready_when_every_node_has_set_its_bundle_aside() -> None:
    table = table_with("STRICT_SPREAD", 2, 2)
    commands = table.place([view(A), view(B)])
    assert [(command.node, command.index) for command in commands if isinstance(command, Prepare)] == [(A, 0), (B, 1)]
    assert table.groups[X].state == PREPARING
    assert prepare_all(table, commands[:1]) == []
    assert prepare_all(table, commands[1:]) == [Commit(A, X, 0), Commit(B, X, 1), Tell(X)]
    assert table.groups[X].state == READY


def test_one_refusal_gives_all_of_it_back() -> None:
    table = table_with("STRICT_SPREAD", 2, 2)
    first, second = table.place([view(A), view(B)])
    prepare_all(table, [first])
    assert isinstance(second, Prepare)
    assert table.prepared(B, X, second.index, second.attempt, ok=False) == [Release(A, X, 0)]
    assert table.groups[X].state == PENDING
    assert prepare_all(table, table.place([view(A), view(C)]))[-1] == Tell(X)


def test_a_late_answer_does_not_undo_the_next_attempt() -> None:
    table = table_with("STRICT_SPREAD", 2, 2)
    first, second = table.place([view(A), view(B)])
    assert isinstance(first, Prepare)
    assert isinstance(second, Prepare)
    assert table.prepared(B, X, second.index, second.attempt, ok=False) == [Release(A, X, 0)]
    again = table.place([view(A), view(C)])
    assert table.prepared(A, X, first.index, first.attempt, ok=True) == [], (
        "the node was told, before it was asked again"
    )
    assert table.groups[X].state == PREPARING
    assert prepare_all(table, again)[-1] == Tell(X)


def test_a_node_that_dies_in_the_middle_leaves_nothing_reserved() -> None:
    table = table_with("STRICT_SPREAD", 2, 2)
    first, _ = table.place([view(A), view(B)])
    prepare_all(table, [first])
    assert table.node_died(B) == [Release(A, X, 0)]
    assert table.groups[X].state == PENDING


def test_only_the_bundles_of_a_dead_node_move() -> None:
    table = table_with("STRICT_SPREAD", 2, 2)
    prepare_all(table, table.place([view(A), view(B)]))
    assert table.node_died(B) == []
    assert table.groups[X].state == RESCHEDULING
    assert table.place([view(A)]) == [], "no other node is there"
    commands = table.place([view(A), view(C)])
    assert [(command.node, command.index) for command in commands if isinstance(command, Prepare)] == [(C, 1)]
    assert prepare_all(table, commands) == [Commit(C, X, 1), Tell(X)]


def test_groups_do_not_plan_with_the_same_room() -> None:
    table = table_with("PACK", 3)
    table.create(b"group-y", cpus(3), "PACK")
    commands = table.place([view(A)])
    assert [command.group for command in commands if isinstance(command, Prepare)] == [X]


def test_removed_at_every_state() -> None:
    pending = table_with("PACK", 3)
    assert pending.remove(X) == [Tell(X)]
    preparing = table_with("PACK", 3)
    (prepare,) = preparing.place([view(A)])
    assert isinstance(prepare, Prepare)
    assert preparing.remove(X) == [Release(A, X, 0), Tell(X)]
    assert preparing.prepared(A, X, 0, prepare.attempt, ok=True) == []
    ready = table_with("PACK", 3)
    prepare_all(ready, ready.place([view(A)]))
    assert ready.remove(X) == [Release(A, X, 0), Tell(X)]
    assert ready.remove(X) == []


def test_a_group_ends_with_its_job_unless_it_is_detached() -> None:
    table = GroupTable()
    table.create(X, cpus(1), "PACK", job=b"job")
    table.create(b"group-y", cpus(1), "PACK")
    assert table.job_ended(b"job") == [Tell(X)]
    assert list(table.groups) == [b"group-y"]


# --- any history ------------------------------------------------------------------------------------------------------


class Node:
    """A node as it behaves: sets aside what it has, and refuses what it has not."""

    def __init__(self, cpus: int) -> None:
        self.total = to_units({"CPU": cpus})
        self.held: dict[tuple[bytes, int], Amounts] = {}
        self.committed: set[tuple[bytes, int]] = set()
        self.inbox: deque[Any] = deque()

    @property
    def available(self) -> Amounts:
        taken = sum(needs.get("CPU", 0) for needs in self.held.values())
        return {"CPU": self.total.get("CPU", 0) - taken}


class Histories(RuleBasedStateMachine):
    """Messages are delivered in order between two ends, and otherwise at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.table = GroupTable()
        self.nodes: dict[bytes, Node] = {}
        #: Answers on their way, by the node that sent them.
        self.answers: dict[bytes, deque[tuple[bytes, int, int, bool]]] = {}
        self.count = 0

    def do(self, commands: list[Any]) -> None:
        for command in commands:
            if not isinstance(command, Tell) and command.node in self.nodes:
                self.nodes[command.node].inbox.append(command)

    @rule(cpus=st.integers(1, 4))
    def a_node_joins(self, cpus: int) -> None:
        self.count += 1
        id = b"node-%d" % self.count
        self.nodes[id], self.answers[id] = Node(cpus), deque()

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def a_node_dies(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.nodes)))
        del self.nodes[id], self.answers[id]
        self.do(self.table.node_died(id))

    @rule(
        amounts=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        strategy=st.sampled_from(["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"]),
    )
    def a_group_is_made(self, amounts: list[int], strategy: Strategy) -> None:
        self.count += 1
        self.table.create(b"group-%d" % self.count, cpus(*amounts), strategy)

    @precondition(lambda self: self.table.groups)
    @rule(data=st.data())
    def a_group_is_removed(self, data: st.DataObject) -> None:
        self.do(self.table.remove(data.draw(st.sampled_from(sorted(self.table.groups)))))

    @rule(stale=st.booleans())
    def places_are_looked_for(self, stale: bool) -> None:
        """By what nodes reported last, which may be old: then they look emptier than they are."""
        self.do(
            self.table.place(
                [
                    NodeView(id=id, total=node.total, available=dict(node.total if stale else node.available))
                    for id, node in self.nodes.items()
                ]
            )
        )

    @precondition(lambda self: any(node.inbox for node in self.nodes.values()))
    @rule(data=st.data())
    def a_node_acts(self, data: st.DataObject) -> None:
        self.act(data.draw(st.sampled_from(sorted(id for id, node in self.nodes.items() if node.inbox))))

    def act(self, id: bytes) -> None:
        node = self.nodes[id]
        command = node.inbox.popleft()
        key = (command.group, command.index)
        if isinstance(command, Prepare):
            assert key not in node.held, "asked twice without a release in between"
            ok = all(amount <= node.available.get(name, 0) for name, amount in command.needs.items())
            if ok:
                node.held[key] = command.needs
            self.answers[id].append((command.group, command.index, command.attempt, ok))
        elif isinstance(command, Commit):
            assert key in node.held, "committed what is not there"
            node.committed.add(key)
        else:
            node.held.pop(key, None)
            node.committed.discard(key)

    @precondition(lambda self: any(self.answers.values()))
    @rule(data=st.data())
    def an_answer_arrives(self, data: st.DataObject) -> None:
        self.answer(data.draw(st.sampled_from(sorted(id for id, answers in self.answers.items() if answers))))

    def answer(self, id: bytes) -> None:
        group, index, attempt, ok = self.answers[id].popleft()
        self.do(self.table.prepared(id, group, index, attempt, ok=ok))

    @invariant()
    def nothing_is_wrong(self) -> None:
        self.table.validate()
        for node in self.nodes.values():
            assert node.available["CPU"] >= 0

    def teardown(self) -> None:
        """When all messages have arrived, nodes hold what groups have, and nothing else."""
        while any(node.inbox for node in self.nodes.values()) or any(self.answers.values()):
            for id in list(self.nodes):
                if self.nodes[id].inbox:
                    self.act(id)
                elif self.answers[id]:
                    self.answer(id)
        for id, node in self.nodes.items():
            expected = {
                (group.id, index)
                for group in self.table.groups.values()
                for index, bundle in enumerate(group.bundles)
                if bundle.node == id
            }
            assert set(node.held) == expected
        for group in self.table.groups.values():
            if group.state == READY:
                for index, bundle in enumerate(group.bundles):
                    assert (group.id, index) in self.nodes[bundle.node].committed


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
