"""Nodes that this one cannot reach while both reach the control service: who notices, and who is told.

    link to a node ──Ping──▶      silent: the connection is replaced; still silent: the two are cut off
                   ◀──Pong──
    cut off ──▶ control service (Unreached), transfers (other sources), demands (other nodes)
    healed  ──▶ the same, and the channels of processes get new connections at once
    grace over ──▶ processes (Unreachable): what may be retried is, the rest fails; so does what asks for the path later

Owns:      the heartbeats on links, and the state of each node (`_core/reachability.py`, which decides).
Knows not: tasks, calls and objects.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from skate._core import reachability as core
from skate._core.ids import node_of
from skate._wire import cluster
from skate._wire import messages as wire
from skate._wire.link import Link

if TYPE_CHECKING:
    from skate._node.daemon import Daemon
    from skate._node.neighbours import Neighbours

log = logging.getLogger("skate")

#: Ids of nodes are shown so far to people, as `skate list nodes` shows them.
ID_SHOWN = 12


class Reach:
    def __init__(self, daemon: Daemon, neighbours: Neighbours, grace_s: float) -> None:
        self._daemon = daemon
        self._neighbours = neighbours
        self._nodes = core.Reachability(time.monotonic(), grace_s)
        self._ping_at = 0.0
        self.is_cut = self._nodes.is_cut
        self.forget = self._nodes.forget

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    def watch(self, link: Link) -> None:
        """A link to that node exists from now on."""
        self._nodes.watch(node_of(link.node_id), time.monotonic())
        link.on_connected = self._ping

    def _ping(self, link: Link) -> None:
        """The end that makes the connection asks, and the other one answers."""
        if link.dials and link.is_connected:
            link.send(cluster.Ping())

    def on_ping(self, link: Link) -> None:
        link.send(cluster.Pong())
        self.on_pong(link)

    def on_pong(self, link: Link) -> None:
        self._do(self._nodes.heard(node_of(link.node_id), time.monotonic()))

    def look(self, now: float) -> None:
        """Called regularly, and at least once every LOOK_PERIOD_S."""
        self._do(self._nodes.look(now))
        if now >= self._ping_at:
            self._ping_at = now + core.PING_S
            for link in self._neighbours.links():
                self._ping(link)

    # -- what was decided ---------------------------------------------------------------------------------------------

    def _do(self, commands: list[core.Command]) -> None:
        for command in commands:
            match command:
                case core.Reconnect(node):
                    for link in self._neighbours.links_of(node):
                        link.renew()
                case core.DeclareCut(node):
                    log.warning("%s", self.describe_cut(node))
                    self._neighbours.control.tell(cluster.Unreached(node, is_cut=True))
                    self._neighbours.transfers.on_cut(node)
                    self._daemon.demands.on_news()
                case core.DeclareHealed(node, cut_s):
                    log.warning("%s reach each other again, after %.1f s.", self._names(node), cut_s)
                    self._neighbours.control.tell(cluster.Unreached(node, is_cut=False))
                    self._neighbours.bridges.renew(node)
                    self._neighbours.transfers.on_healed(node)
                    self._daemon.demands.on_news()
                case core.GraceOver(node, cut_s):
                    names = self._names(node)
                    log.warning("%s have not reached each other for %.1f s: waits for that are given up.", names, cut_s)
                    self._on_grace_over(node, cut_s)
                case core.StillOver(node, cut_s):
                    self._on_grace_over(node, cut_s, again=True)

    def _on_grace_over(self, node: int, cut_s: float, *, again: bool = False) -> None:
        member = self._neighbours.members.get(node)
        if member is None:
            return
        names = self._names(node)
        reason = (
            f"{names} have not reached each other for {cut_s:.1f} s, which is longer than partition_grace_s "
            f"({self._nodes.grace_s:g} s). Check the network between the two."
        )
        # What waits for a lease there goes first: what is sent again because of the message waits for the next one.
        self._daemon.demands.on_unreachable(member.view.id, reason, again=again)
        self._neighbours.transfers.on_unreachable(node, reason, again=again)
        message = wire.Unreachable(node, reason, again)
        for process in list(self._daemon.processes.values()):
            if process.ready:
                process.channel.send(message)

    # -- for people ---------------------------------------------------------------------------------------------------

    def _names(self, node: int) -> str:
        here, there = self._neighbours.member, self._neighbours.members.get(node)
        return f"{_name(here)} and {_name(there) if there is not None else f'node number {node}'}"

    def describe_cut(self, node: int) -> str:
        cut_s = self._nodes.cuts(time.monotonic()).get(node, 0.0)
        control = "the first reaches" if self._neighbours.control.silence() is None else "the first cannot reach"
        setting = f"partition_grace_s ({self._nodes.grace_s:g} s)"
        grace = f"What needs that path waits until it heals, or until {setting} is over."
        if self._nodes.is_over(node):
            grace = f"That is longer than {setting}, so that only what has retries left waits for that path."
        return (
            f"{self._names(node)} cannot reach each other: nothing has come through for {cut_s:.1f} s. "
            f"{control.capitalize()} the control service. {grace}"
        )

    def describe(self) -> dict[int, str]:
        """A sentence for each node that this one cannot reach, by its number."""
        return {node: self.describe_cut(node) for node in self._nodes.cuts(time.monotonic())}


def _name(member: Any) -> str:
    return f"node {member.view.id.hex()[:ID_SHOWN]} ({member.name}, {member.host})"
