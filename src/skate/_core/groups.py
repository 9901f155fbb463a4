"""Placement groups: bundles of resources that are reserved on several nodes together, or not at all.

    create ──▶ PENDING ──nodes were found──▶ PREPARING ──every node said yes──▶ READY
                  ▲                              │                               │
                  └── a node said no, or died ───┘      a node died: its bundles ┘ are found another place,
                                                                                   the others stay (RESCHEDULING)
    remove, from anywhere ──▶ REMOVED

Reserving takes two rounds. In the first every node sets its bundle aside (Prepare); only if all have done so, all are
told that it counts (Commit). When an attempt is given up, every node that was asked is told to give its bundle back
(Release), whether it has answered or not: it hears that after the question, so nothing stays reserved for nobody, and
answers that come later mean nothing.

Owns:      the groups, where their bundles are, and which answers are awaited.
Knows not: messages, time, and what a node does with its bundles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from skate._core.bundles import Required, Strategy, assign, can_ever_be
from skate._core.placement import Condition, NodeView
from skate._core.resources import Amounts

PENDING = "pending"
PREPARING = "preparing"
READY = "ready"
RESCHEDULING = "rescheduling"
REMOVED = "removed"


class Bundle(msgspec.Struct):
    needs: Amounts
    #: The node that has it, or was asked for it.
    node: bytes = b""
    #: Its node has set it aside.
    prepared: bool = False
    committed: bool = False
    #: Labels that its node must have.
    required: tuple[Condition, ...] = ()


class Group(msgspec.Struct):
    id: bytes
    strategy: Strategy
    bundles: list[Bundle]
    name: str = ""
    #: The job, or the detached actor, that it ends with; empty: it is detached.
    job: bytes = b""
    state: str = PENDING
    #: Counts the attempts to reserve; answers carry it.
    attempt: int = 0

    @property
    def homeless(self) -> list[int]:
        """Bundles that no node has."""
        return [index for index, bundle in enumerate(self.bundles) if not bundle.node]


# -- what to do --------------------------------------------------------------------------------------------------------


class Prepare(msgspec.Struct, frozen=True):
    node: bytes
    group: bytes
    index: int
    attempt: int
    needs: Amounts


class Commit(msgspec.Struct, frozen=True):
    node: bytes
    group: bytes
    index: int


class Release(msgspec.Struct, frozen=True):
    node: bytes
    group: bytes
    index: int


class Tell(msgspec.Struct, frozen=True):
    """Whoever waits for the group has news: it is ready, or removed."""

    group: bytes


Command = Prepare | Commit | Release | Tell


class GroupTable:
    def __init__(self) -> None:
        self.groups: dict[bytes, Group] = {}
        #: Those of which something has changed; who stores them empties the set.
        self.changed: set[bytes] = set()

    def create(
        self,
        id: bytes,
        bundles: Sequence[Amounts],
        strategy: Strategy,
        *,
        name: str = "",
        job: bytes = b"",
        required: Required = (),
    ) -> None:
        labels = [tuple(conditions) for conditions in required] or [()] * len(bundles)
        made = [Bundle(dict(needs), required=labels[index]) for index, needs in enumerate(bundles)]
        self.groups[id] = Group(id, strategy, made, name, job)
        self.changed.add(id)

    def place(self, nodes: Sequence[NodeView]) -> list[Command]:
        """Look for nodes for every group that has none for some of its bundles, the oldest group first."""
        commands: list[Command] = []
        left = [msgspec.structs.replace(node, available=dict(node.available)) for node in nodes]
        for group in self.groups.values():
            if group.state in (PENDING, RESCHEDULING) and not self._is_asking(group):
                commands += self._place(group, left)
        return commands

    @staticmethod
    def _is_asking(group: Group) -> bool:
        return any(bundle.node and not bundle.prepared for bundle in group.bundles)

    def _place(self, group: Group, left: list[NodeView]) -> list[Command]:
        homeless = group.homeless
        beside = [bundle.node for bundle in group.bundles if bundle.node]
        places = assign(
            [group.bundles[index].needs for index in homeless],
            left,
            group.strategy,
            beside=beside,
            required=[group.bundles[index].required for index in homeless],
        )
        if places is None:
            return []
        by_id = {node.id: node for node in left}
        group.attempt += 1
        self.changed.add(group.id)
        commands: list[Command] = []
        for index, place in zip(homeless, places, strict=True):
            bundle = group.bundles[index]
            bundle.node = place
            for name, amount in bundle.needs.items():
                by_id[place].available[name] -= amount
            commands.append(Prepare(place, group.id, index, group.attempt, bundle.needs))
        if group.state == PENDING:
            group.state = PREPARING
        return commands or self._commit(group)

    def prepared(self, node: bytes, id: bytes, index: int, attempt: int, *, ok: bool) -> list[Command]:
        """A node's answer to Prepare."""
        group = self.groups.get(id)
        if group is None or group.attempt != attempt or group.bundles[index].node != node:
            return []
        if not ok:
            return self._give_up(group, but=index)
        group.bundles[index].prepared = True
        self.changed.add(id)
        return self._commit(group)

    def _commit(self, group: Group) -> list[Command]:
        if not all(bundle.prepared for bundle in group.bundles):
            return []
        commands: list[Command] = []
        for index, bundle in enumerate(group.bundles):
            if not bundle.committed:
                bundle.committed = True
                commands.append(Commit(bundle.node, group.id, index))
        group.state = READY
        return [*commands, Tell(group.id)]

    def _give_up(self, group: Group, *, but: int = -1) -> list[Command]:
        """Give back what was reserved in this attempt; `but` that one has it no more."""
        self.changed.add(group.id)
        commands: list[Command] = []
        group.attempt += 1
        for index, bundle in enumerate(group.bundles):
            if bundle.node and not bundle.committed:
                if index != but:
                    commands.append(Release(bundle.node, group.id, index))
                bundle.node, bundle.prepared = b"", False
        if group.state == PREPARING:
            group.state = PENDING
        return commands

    def node_died(self, node: bytes) -> list[Command]:
        commands: list[Command] = []
        for group in self.groups.values():
            lost = [bundle for bundle in group.bundles if bundle.node == node]
            if not lost:
                continue
            asking = any(not bundle.committed for bundle in lost)
            self.changed.add(group.id)
            for bundle in lost:
                bundle.node, bundle.prepared, bundle.committed = b"", False, False
            if asking:
                commands += self._give_up(group)
            if group.state == READY:
                group.state = RESCHEDULING
        return commands

    def settle(self, held: dict[tuple[bytes, bytes, int], bool], nodes: Collection[bytes]) -> list[Command]:
        """These nodes have said which bundles they hold: by node, group and index whether it counts there.

        What one of them holds for a group that does not have it there is given back. What it should hold and does not
        is looked for again. Attempts that were under way are given up.
        """
        commands: list[Command] = []
        for (node, id, index), counts in held.items():
            group = self.groups.get(id)
            bundle = group.bundles[index] if group is not None and 0 <= index < len(group.bundles) else None
            if bundle is None or bundle.node != node:
                commands.append(Release(node, id, index))
            elif bundle.committed and not counts:
                commands.append(Commit(node, id, index))
        for group in self.groups.values():
            if any(bundle.node in nodes and not bundle.committed for bundle in group.bundles):
                commands += self._give_up(group)
            for index, bundle in enumerate(group.bundles):
                if bundle.node in nodes and (bundle.node, group.id, index) not in held:
                    bundle.node, bundle.prepared, bundle.committed = b"", False, False
                    self.changed.add(group.id)
                    if group.state == READY:
                        group.state = RESCHEDULING
        return commands

    def remove(self, id: bytes) -> list[Command]:
        group = self.groups.pop(id, None)
        if group is None:
            return []
        held = [Release(bundle.node, id, index) for index, bundle in enumerate(group.bundles) if bundle.node]
        group.state = REMOVED
        self.changed.add(id)
        return [*held, Tell(id)]

    def job_ended(self, job: bytes) -> list[Command]:
        ended = [group.id for group in self.groups.values() if group.job and group.job == job]
        return [command for id in ended for command in self.remove(id)]

    def can_ever_be(self, id: bytes, nodes: Iterable[NodeView]) -> bool:
        group = self.groups[id]
        required = [bundle.required for bundle in group.bundles]
        return can_ever_be([bundle.needs for bundle in group.bundles], list(nodes), group.strategy, required=required)

    def validate(self) -> None:
        for group in self.groups.values():
            for bundle in group.bundles:
                assert bundle.prepared <= bool(bundle.node), group
                assert bundle.committed <= bundle.prepared, group
            if group.state == READY:
                assert all(bundle.committed for bundle in group.bundles), group
            places = [bundle.node for bundle in group.bundles if bundle.node]
            if group.strategy == "STRICT_PACK":
                assert len(set(places)) <= 1, group
            if group.strategy == "STRICT_SPREAD":
                assert len(set(places)) == len(places), group
