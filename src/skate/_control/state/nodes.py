"""The nodes of the cluster: who joined, over which link each is reached, who is gone.

Owns:      the membership, the numbers of nodes, the links that are theirs, and the rows of nodes and of the cluster.
Knows not: what was lost with a node; `Control.node_died` tells the other tables.
Invariant: a number is given to one node, ever: its row is durable before the node hears of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from skate._control.state.steps import Disconnect, PassOn
from skate._control.state.tables import CLUSTER, NODES, ClusterRow, NodeRow, pack
from skate._core import membership as core
from skate._core.ids import NUMBER_MAX, new_node_id, node_of
from skate._core.placement import NodeView
from skate._core.reachability import CutPairs
from skate._wire import cluster
from skate._wire.messages import Message
from skate._wire.protocol_error import ProtocolError

if TYPE_CHECKING:
    from skate._control.state.control import Control

#: Reports are passed on together, this often; who joined or died is told at once.
NEWS_S = 0.1
#: What a node is told that was declared dead and speaks again.
SILENT_FOR_TOO_LONG = "it was not heard of for too long, and was declared dead."


class Nodes:
    def __init__(self, control: Control, row: ClusterRow) -> None:
        self._control = control
        self.cluster = row
        self.membership = core.Membership(control.now)
        #: The link of each node that is connected, or may come back to it; and the node of each link.
        self.links: dict[bytes, int] = {}
        self.by_link: dict[int, bytes] = {}
        #: Links whose nodes have made others instead. What still comes over one was said again.
        self.replaced: set[int] = set()
        #: Links of nodes that were declared dead and have been told so.
        self._told: set[int] = set()
        self._names: dict[bytes, str] = {}
        self.by_number: dict[int, bytes] = {}
        self.cuts = CutPairs()
        #: Nodes whose reports have not been passed on, and whether the time for that is set.
        self._changed: set[bytes] = set()
        self._passes_on = False
        #: Why each of the dead is dead, and the order in which they died, as far as their rows are kept.
        self._gone: dict[bytes, tuple[str, int, cluster.Member]] = {}
        self._deaths = 0

    # -- rows ---------------------------------------------------------------------------------------------------------

    def load(self, rows: Iterable[tuple[bytes, NodeRow]]) -> None:
        """What was stored, for a service that starts. Nodes that were alive have to come back."""
        dead = []
        for id, row in rows:
            member = row.member
            # The row of the cluster may lie on a shard that has not written it.
            self.cluster.last_number = max(self.cluster.last_number, node_of(id))
            if row.gone:
                dead.append((row.order, id, row))
                continue
            self.membership.join(member.view, (member.host, member.port), self._control.now)
            self._names[id] = member.name
            self.by_number[node_of(id)] = id
        for order, id, row in sorted(dead, key=lambda entry: entry[0]):
            member = row.member
            self._names[id] = member.name
            self._gone[id] = (row.gone, order, member)
            self.membership.was_dead(member.view, (member.host, member.port), self._control.now)
            self._deaths = order

    def row(self, id: bytes) -> bytes | None:
        if id in self.membership.members:
            return pack(NodeRow(self._member(id)))
        gone = self._gone.get(id)
        return None if gone is None else pack(NodeRow(gone[2], gone[0], gone[1]))

    def cluster_row(self, key: bytes) -> bytes:
        return pack(self.cluster)

    # -- coming and going ---------------------------------------------------------------------------------------------

    def joins(self, link: int, message: cluster.Join) -> bool:
        """Whether that is a node of the cluster from now on. It may have been one before, over another link."""
        control, member = self._control, message.member
        if message.cluster_id not in ("", self.cluster.cluster_id):
            why = f"the control service at this address belongs to another cluster, {self.cluster.cluster_id}."
            control.say(link, cluster.TellToEnd(why))
            return False
        if not member.view.id:
            if self.cluster.last_number == NUMBER_MAX:
                raise ProtocolError("this cluster has had as many nodes as it can have")
            self.cluster.last_number += 1
            member.view.id = new_node_id(self.cluster.last_number)
            control.mark(CLUSTER, b"")
        elif member.view.id not in self.membership.members:
            is_dead = member.view.id in self.membership
            why = SILENT_FOR_TOO_LONG if is_dead else "the control service was started again and does not know it."
            control.say(link, cluster.TellToEnd(why))
            return False
        id = member.view.id
        commands = self.admit(link, member)
        departed = [self._described(node, member) for node, member in self.membership.departed.items()]
        members = [self._member(node) for node in self.membership.members]
        control.say(
            link, cluster.Joined(id, members, self.cluster.cluster_id, departed, incarnation=control.incarnation)
        )
        self.do(commands)
        return True

    def admit(self, link: int, member: cluster.Member) -> list[core.Command]:
        """It is part of the cluster, and reached over that link from now on."""
        id = member.view.id
        commands = self.membership.join(member.view, (member.host, member.port), self._control.now)
        if id in self.links and self.links[id] != link:
            self.replaced.add(self.links[id])
            self.by_link.pop(self.links[id], None)
            self._control.processes.node_joined_again(node_of(id))
        self.forget_link(id)
        self.links[id], self.by_link[link] = link, id
        self._names[id] = member.name
        self.by_number[node_of(id)] = id
        self._control.mark(NODES, id)
        return commands

    def is_member(self, link: int) -> bool:
        """Whether what comes over that link counts. A node that was declared dead is told so, once."""
        node = self.by_link.get(link)
        if node is None or node in self.membership.members:
            return True
        if link not in self._told:
            self._told.add(link)
            self._control.say(link, cluster.TellToEnd(SILENT_FOR_TOO_LONG))
        return False

    def on_report(self, link: int, message: cluster.Report) -> None:
        node = message.view.id = self.by_link[link]
        member = self.membership.members[node]
        if member.view != message.view:
            self._changed.add(node)
        self.do(self.membership.heard(node, self._control.now, message.view))
        if message.urgent:
            self.pass_on()
        elif self._changed and not self._passes_on and len(self.links) > 1:
            self._passes_on = True
            self._control.after(NEWS_S, PassOn())

    def heard(self, link: int) -> None:
        node = self.by_link.get(link)
        if node is not None:
            self.do(self.membership.heard(node, self._control.now))

    def broke(self, link: int) -> None:
        """It may come back, but has to be quick: the connection of a living node has no reason to end."""
        node = self.by_link.get(link)
        if node is not None and self.links.get(node) == link:
            self.membership.suspect(node, self._control.now)
            self._control.look_soon()

    def link_ended(self, link: int) -> None:
        self._told.discard(link)
        self.replaced.discard(link)
        node = self.by_link.pop(link, None)
        if node is not None and self.links.get(node) == link:
            del self.links[node]

    def do(self, commands: list[core.Command]) -> None:
        for command in commands:
            match command:
                case core.Announce(node):
                    self._control.event("node", f"node {node_of(node)} joined", node_id=node.hex())
                    self.tell_all(cluster.News([self._member(node)]), but=node)
                case core.DeclareDead(node, reason, member):
                    self._died(node, reason, member)
                case core.TellToEnd(node):
                    if node in self.links:
                        self._control.say(self.links[node], cluster.TellToEnd(SILENT_FOR_TOO_LONG))

    def _died(self, node: bytes, reason: str, member: core.Member) -> None:
        self._control.event("node", f"node {node_of(node)} is gone: {reason}", node_id=node.hex())
        self._deaths += 1
        self._gone[node] = (reason, self._deaths, self._described(node, member))
        self._control.mark(NODES, node)
        for id in [id for id in self._gone if id not in self.membership]:  # too long ago to be remembered
            del self._gone[id]
            self._control.mark(NODES, id)
        self.tell_all(cluster.News(gone=[(node, reason)]))
        self.forget_link(node)
        known = self.membership.members.keys() | self.membership.departed.keys()
        self._names = {id: name for id, name in self._names.items() if id in known}
        self.by_number.pop(node_of(node), None)
        self._changed.discard(node)
        self.cuts.node_died(node)
        self._control.node_died(node, reason)

    def forget_link(self, node: bytes) -> None:
        """Over a connection that still stands the node can be told that it was declared dead."""
        link = self.links.pop(node, None)
        if link is not None:
            self._control.out.append(Disconnect(link))

    # -- news ---------------------------------------------------------------------------------------------------------

    def on_time_to_pass_on(self) -> None:
        self._passes_on = False
        self.pass_on()

    def pass_on(self) -> None:
        """What nodes have reported lately, to all others."""
        if self._changed:
            changed, self._changed = self._changed, set()
            members = [self._member(id) for id in sorted(changed) if id in self.membership.members]
            if len(self.links) > 1:
                # Views are in no row, and would pile up while the storage is in trouble.
                self.tell_all(cluster.News(members), at_once=True)

    def tell_all(self, message: Message, but: bytes = b"", *, at_once: bool = False) -> None:
        for node, link in self.links.items():
            if node != but:
                self._control.say(link, message, at_once=at_once)

    def on_please_link(self, link: int, message: cluster.PleaseLink) -> None:
        node = self.by_number.get(message.node, b"")
        self._control.send_to_node(node, cluster.PleaseLink(node_of(self.by_link[link])))

    def on_unreached(self, link: int, message: cluster.Unreached) -> None:
        """One of two nodes tells; the other one may not have noticed yet."""
        node, other = self.by_link[link], self.by_number.get(message.node)
        if other is not None and self.cuts.said(node, other, is_cut=message.is_cut):
            what = "cannot reach each other" if message.is_cut else "reach each other again"
            names = " and ".join(f"node {id.hex()[:12]} ({self._names.get(id, '')})" for id in (node, other))
            self._control.event("node", f"{names} {what}", node_id=node.hex())

    # -- looking inside -----------------------------------------------------------------------------------------------

    @property
    def views(self) -> list[NodeView]:
        """Of the nodes that are there: those that have to come back after a restart are not."""
        members = self.membership.members
        return [member.view for id, member in members.items() if id in self.links]

    def _member(self, node: bytes) -> cluster.Member:
        return self._described(node, self.membership.members[node])

    def _described(self, node: bytes, member: core.Member) -> cluster.Member:
        return cluster.Member(member.view, *member.address, self._names.get(node, ""))

    def describe(self) -> list[dict[str, Any]]:
        return [self._describe(self._member(node)) for node in self.membership.members]

    def _describe(self, member: cluster.Member) -> dict[str, Any]:
        view = member.view
        return {
            "node_id": view.id.hex(),
            "number": node_of(view.id),
            "name": member.name,
            "host": member.host,
            "port": member.port,
            "total": view.total,
            "available": view.available,
            "labels": view.labels,
            "queued": view.queued,
            "store_bytes": view.store_bytes,
            "store_used_bytes": view.store_used_bytes,
            "serves": view.serves,
            #: Ids of nodes that it cannot reach, or that cannot reach it.
            "cut_off_from": sorted(id.hex() for id in self.cuts.of(view.id)),
        }
