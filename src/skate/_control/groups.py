"""Placement groups: carries messages to the table of groups, and its commands to nodes.

For a node that is alone it runs in the node's daemon, otherwise in the control service.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from skate._control.checks import checked_units
from skate._core import groups as core
from skate._core.placement import NodeView
from skate._core.resources import Amounts, to_floats
from skate._core.task import Death
from skate._wire import messages as wire
from skate._wire.guard import ProtocolError

#: Of an actor that cannot be placed.
GROUP_REMOVED = Death("group", "its placement group was removed.")


class Outside(Protocol):
    """How the groups reach processes and nodes."""

    def send(self, process_id: bytes, message: wire.Message) -> None: ...

    def prepare(self, node: bytes, group: bytes, index: int, attempt: int, needs: Amounts) -> None:
        """Set a bundle aside. Answer: `prepared`."""

    def commit(self, node: bytes, group: bytes, index: int) -> None:
        """It counts from now on."""

    def release(self, node: bytes, group: bytes, index: int) -> None:
        """Give it back, and end what runs in it."""

    def removed(self, group: bytes) -> None:
        """Whoever waits for a place in it waits in vain."""

    def detached_in(self, process_id: bytes) -> bytes:
        """The detached actor that runs in that process, if there is one."""


class GroupService:
    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self.table = core.GroupTable()
        self._names: dict[str, bytes] = {}

    def handle(self, process_id: bytes, message: wire.Message, nodes: Sequence[NodeView]) -> None:
        match message:
            case wire.CreateGroup():
                if message.required and len(message.required) != len(message.bundles):
                    raise ProtocolError("the labels of a group are not as many as its bundles")
                answer: dict[str, Any] = {}
                if message.name and message.name in self._names:
                    answer = {"taken": True}
                else:
                    bundles = [checked_units(bundle) for bundle in message.bundles]
                    # What a detached actor has reserved is there as long as the actor, whose driver may be gone.
                    job = b"" if message.detached else self._outside.detached_in(process_id) or message.job
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
                    self.place(nodes)
                self._outside.send(process_id, wire.Answer(message.request, answer))
            case wire.RemoveGroup():
                self._do(self.table.remove(message.group))
                self.place(nodes)

    def place(self, nodes: Sequence[NodeView]) -> None:
        """Nodes have changed: those that wait may have a place."""
        self._do(self.table.place(nodes))

    def prepared(self, node: bytes, group: bytes, index: int, attempt: int, *, ok: bool) -> None:
        self._do(self.table.prepared(node, group, index, attempt, ok=ok))

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
                    self._outside.prepare(node, group, index, attempt, needs)
                case core.Commit(node, group, index):
                    self._outside.commit(node, group, index)
                case core.Release(node, group, index):
                    self._outside.release(node, group, index)
                case core.Tell(group):
                    if group not in self.table.groups:
                        self._names = {name: id for name, id in self._names.items() if id != group}
                        self._outside.removed(group)

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
