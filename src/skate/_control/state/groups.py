"""Placement groups: carries messages to the table of groups, and its commands to nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from skate._control.state.checks import checked_units
from skate._control.state.tables import GROUPS, pack
from skate._core import groups as core
from skate._core.placement import NodeView
from skate._core.resources import to_floats
from skate._core.task import Death
from skate._wire import cluster
from skate._wire import messages as wire
from skate._wire.protocol_error import ProtocolError

if TYPE_CHECKING:
    from skate._control.state.control import Control

#: Of an actor that cannot be placed.
GROUP_REMOVED = Death("group", "its placement group was removed.")


class GroupService:
    def __init__(self, control: Control) -> None:
        self._control = control
        self.table = core.GroupTable()
        self._names: dict[str, bytes] = {}

    # -- rows ---------------------------------------------------------------------------------------------------------

    def load(self, rows: Iterable[tuple[bytes, core.Group]]) -> None:
        for id, group in rows:
            self.table.groups[id] = group
            if group.name:
                self._names[group.name] = id

    def row(self, id: bytes) -> bytes | None:
        group = self.table.groups.get(id)
        return None if group is None else pack(group)

    # -- processes ----------------------------------------------------------------------------------------------------

    def handle(self, process_id: bytes, message: wire.Message, nodes: Sequence[NodeView]) -> None:
        match message:
            case wire.CreateGroup():
                if message.required and len(message.required) != len(message.bundles):
                    raise ProtocolError("the labels of a group are not as many as its bundles")
                answer: dict[str, Any] = {}
                if self._names.get(message.name, message.group) != message.group:
                    answer = {"taken": True}
                    self._do(self.table.remove(message.group))  # stored, when the end of the other one was not
                elif message.group not in self.table.groups and not self._is_over(process_id, message):
                    bundles = [checked_units(bundle) for bundle in message.bundles]
                    # What a detached actor has reserved is there as long as the actor, whose driver may be gone.
                    job = b"" if message.detached else self._control.actors.detached_in(process_id) or message.job
                    self.table.create(
                        message.group,
                        bundles,
                        message.strategy,  # type: ignore[arg-type]
                        name=message.name,
                        job=job,
                        required=message.required,
                    )
                    if message.name:
                        self._names[message.name] = message.group
                    self._control.mark(GROUPS, message.group)
                    self.place(nodes)
                self._control.send(process_id, wire.Answer(message.request, answer))
            case wire.RemoveGroup():
                self._do(self.table.remove(message.group))
                self.place(nodes)

    def _is_over(self, process_id: bytes, message: wire.CreateGroup) -> bool:
        """The job that the group would end with has ended."""
        is_kept = message.detached or self._control.actors.detached_in(process_id)
        return not is_kept and message.job in self._control.jobs.ended

    def place(self, nodes: Sequence[NodeView]) -> None:
        """Nodes have changed: those that wait may have a place."""
        if self.waits and not self._control.recovery.is_under_way:
            self._do(self.table.place(nodes))

    def prepared(self, node: bytes, group: bytes, index: int, attempt: int, *, ok: bool) -> None:
        self._do(self.table.prepared(node, group, index, attempt, ok=ok))

    def drop_of_strangers(self) -> None:
        """All nodes have come back: what belongs to a job or an actor that is over goes, and bundles on dead nodes."""
        control = self._control
        for group in list(self.table.groups.values()):
            if group.job and group.job not in control.jobs.drivers and not control.actors.table.is_living(group.job):
                self._do(self.table.remove(group.id))
        there = control.nodes.membership.members
        for node in sorted({bundle.node for group in self.table.groups.values() for bundle in group.bundles}):
            if node and node not in there:
                self._do(self.table.node_died(node))

    def settle(self, held: dict[tuple[bytes, bytes, int], bool], nodes: Collection[bytes]) -> None:
        """These nodes have said which bundles they hold, and whether those count."""
        self._do(self.table.settle(held, nodes))

    def node_died(self, node: bytes, nodes: Sequence[NodeView]) -> None:
        self._do(self.table.node_died(node))
        self.place(nodes)

    def job_ended(self, job: bytes) -> None:
        self._do(self.table.job_ended(job))

    @property
    def waits(self) -> bool:
        """Whether some group has not all of its bundles."""
        return any(group.state != core.READY for group in self.table.groups.values())

    def _do(self, commands: list[core.Command]) -> None:
        for command in commands:
            match command:
                case core.Prepare(node, group, index, attempt, needs):
                    self._control.send_to_node(node, cluster.PrepareBundle(group, index, attempt, needs))
                case core.Commit(node, group, index):
                    self._control.send_to_node(node, cluster.CommitBundle(group, index))
                case core.Release(node, group, index):
                    self._control.send_to_node(node, cluster.ReleaseBundle(group, index))
                case core.Tell(group):
                    if group not in self.table.groups:
                        left = self.table.groups.items()  # one of them may have the same name, if rows were lost
                        self._names = {known.name: id for id, known in left if known.name}
                        self._control.group_removed(group)
        for id in self.table.changed:
            self._control.mark(GROUPS, id)
        self.table.changed.clear()

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "group": group.id,
                "name": group.name,
                "strategy": group.strategy,
                "state": group.state,
                "bundles": [
                    {"needs": to_floats(bundle.needs), "node": bundle.node, "committed": bundle.committed}
                    for bundle in group.bundles
                ],
            }
            for group in self.table.groups.values()
        ]


MESSAGES = (wire.CreateGroup, wire.RemoveGroup)
