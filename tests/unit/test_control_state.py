"""The control state by hand: an event in, commands out. Histories by chance are in tests/sim."""

from __future__ import annotations

from typing import Any

from skate._control.state import steps
from skate._control.state.control import Control, Settings
from skate._core.placement import NodeView
from skate._core.task import Job
from skate._wire import cluster
from skate._wire import messages as wire


class Node:
    """Says to a control state what a node does, and takes down what it hears."""

    def __init__(self, control: Control, link: int) -> None:
        self.control, self.link, self.now = control, link, 0.0
        self.heard: list[Any] = []
        self.id = b""

    def say(self, message: Any) -> list[Any]:
        commands = self.control.handle(steps.Said(self.link, message), self.now)
        heard = [it.message for it in commands if isinstance(it, steps.Send) and it.link == self.link]
        self.heard += heard
        return heard

    def join(self) -> cluster.Joined:
        view = NodeView(id=self.id, total={"CPU": 10_000}, available={"CPU": 10_000})
        cluster_id = self.control.nodes.cluster.cluster_id if self.id else ""
        (joined,) = self.say(cluster.Join(cluster.Member(view, "h", 1, "n"), b"s", cluster_id))
        assert isinstance(joined, cluster.Joined)
        self.id = joined.node_id
        return joined


def control(**settings: Any) -> Control:
    made = Control(Settings(cluster_id="c", **settings), 0.0)
    made.begin()
    return made


def test_rows_come_before_what_rests_on_them() -> None:
    node = Node(control(stores=True), 1)
    view = NodeView(id=b"", total={}, available={})
    commands = node.control.handle(steps.Said(1, cluster.Join(cluster.Member(view, "h", 1), b"s")), 0.0)
    kinds = [type(it) for it in commands]
    assert steps.Save in kinds
    assert kinds.index(steps.Send) > max(number for number, kind in enumerate(kinds) if kind is steps.Save)


def test_an_answer_that_was_lost_with_a_link_is_given_over_the_next_one() -> None:
    """The service was there all along: what it has heard already counts once more when the node says it again."""
    state = control()
    node = Node(state, 1)
    node.join()
    process = node.id[:8] + b"p" * 4
    node.say(cluster.Acquaint(process, 1, Job()))
    put = cluster.FromProcess(process, wire.KeyValue(7, "put", "n", b"k", b"v", overwrite=False), 1)
    assert [it.message.body for it in node.say(put) if isinstance(it, cluster.ToProcess)] == [True]
    again = Node(state, 2)
    again.id = node.id
    again.join()
    again.say(cluster.Holding([cluster.HeldProcess(process, 1, Job())]))
    assert [it.message.body for it in again.say(put) if isinstance(it, cluster.ToProcess)] == [True]
    assert [it for it in again.say(put) if isinstance(it, cluster.ToProcess)] == [], "over one link it comes once"
