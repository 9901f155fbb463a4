"""Leases that processes of this node want: carries their demands to the local scheduler, and to other nodes.

What is asked of whom is decided in `_core/dispersal.py`; a node that is alone asks itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from skate._core import lease_events as leases
from skate._core.dispersal import SPILL_S, Changes, Dispersal
from skate._core.ids import node_at, node_of
from skate._core.placement import Input, NodeView, Request
from skate._core.policy_turns import Class
from skate._core.resources import Amounts, group_of, to_floats, to_units
from skate._core.stakes import Stakes
from skate._wire import messages as wire

if TYPE_CHECKING:
    from skate._node.daemon import Daemon

#: How often it is considered anew, at least, whether to bring the data elsewhere.
LOOK_AGAIN_S_MAX = 1.0


class Demands:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._dispersal = Dispersal(daemon.node_id)
        self._stakes = Stakes(daemon.number)
        #: The demand of each class, as its owner put it.
        self._messages: dict[Class, wire.LeaseDemand] = {}
        #: Since when each of them has been granted nothing.
        self._short_since: dict[Class, float] = {}
        #: How many leases the owners of what is to be spread have been told not to wait for.
        self._told_short: dict[Class, int] = {}
        #: Those that no node can serve, and that are refused when none comes.
        self._refusing: set[Class] = set()
        #: Classes that pass their placement group on to what they start, their own and those of guests.
        self._captures: dict[Class, bytes] = {}

    def on_demand(self, process_id: bytes, message: wire.LeaseDemand) -> None:
        """From a process of this node."""
        group = group_of(message.resources)
        if group and message.count and self._daemon.groups.is_removed(group):
            self.forget(process_id, message.key)
            self._daemon.send(process_id, wire.LeaseInfeasible(message.key, {}, {}, removed=True))
            return
        if message.where is None and not self._daemon.neighbours.may_come:
            self.ask_here(process_id, message)
            return
        cls = (process_id, message.key)
        try:
            inputs = [Input(size, frozenset(self._ids(nodes))) for size, nodes in message.inputs]
            request = Request.of(to_units(message.resources), message.where, inputs, message.task_s)
        except ValueError:
            self.ask_here(process_id, message)  # it says what is wrong with them
            return
        is_new = cls not in self._messages
        self._messages[cls] = message
        if is_new:
            self._short_since[cls] = time.monotonic()
        self._carry_out(cls, self._dispersal.demand(cls, request, message.count, self._views(cls, request)))
        if is_new and cls in self._messages:
            self._later(cls, SPILL_S, self._has_waited)

    def _later(self, cls: Class, seconds: float, action: Callable[[Class], None]) -> None:
        """Unless the demand is another one by then."""
        wanted = self._dispersal.wanted[cls]

        def act() -> None:
            if self._dispersal.wanted.get(cls) is wanted:
                action(cls)

        self._daemon.loop.call_at(time.monotonic() + seconds, act)

    def ask_here(self, process_id: bytes, message: wire.LeaseDemand) -> None:
        """Of the scheduler of this node, for one of its processes or for a guest."""
        if message.task_s and message.count:
            self._daemon.task_s.learn(message.task_s)
        if message.where is not None and message.where.captures:
            self._captures[process_id, message.key] = message.where.captures
        self._daemon.post(
            leases.DemandChanged(
                process_id,
                message.key,
                message.resources,
                message.env,
                message.count,
                message.depth,
                message.retriable,
                program=self._daemon.job_of(process_id).program,
            )
        )

    def _has_waited(self, cls: Class) -> None:
        """Long enough for this node alone; and for who waits beside its data it is considered again and again."""
        wanted = self._dispersal.wanted[cls]
        wanted.may_leave = True
        self._consider(cls)
        if wanted.request.inputs and self._dispersal.wanted.get(cls) is wanted:
            self._later(cls, min(max(SPILL_S, wanted.waited_s), LOOK_AGAIN_S_MAX), self._has_waited)

    def _consider(self, cls: Class) -> None:
        """Once more where to ask for what it wants."""
        self._dispersal.wanted[cls].waited_s = time.monotonic() - self._short_since[cls]
        self._carry_out(cls, self._dispersal.decide(cls, self._views(cls)))

    def _refuse(self, cls: Class) -> None:
        """Nobody who could serve it has come."""
        wanted = self._dispersal.wanted[cls]
        self._refusing.discard(cls)
        if not wanted.nowhere:
            return
        process_id, key = cls
        group = group_of(wanted.request.needs)
        if group:  # it may be reserved at any time, or be removed
            self._daemon.control.ask_group(group)
            self._refusing.add(cls)
            self._later(cls, self._daemon.config.infeasible_grace_s, self._refuse)
            return
        most: Amounts = {}
        for view in self._views(cls).values():
            for name, amount in view.total.items():
                most[name] = max(most.get(name, 0), amount)
        asked = to_floats(wanted.request.needs)
        infeasible = wire.LeaseInfeasible(key, asked, to_floats(most), nowhere=wanted.nowhere)
        self.forget(process_id, key)
        self._daemon.send(process_id, infeasible)

    def on_group_removed(self, group: bytes) -> None:
        """What waits for a place in it is refused."""
        waiting = {cls for cls, wanted in self._dispersal.wanted.items() if group_of(wanted.request.needs) == group}
        here = self._daemon.scheduler.demands.values()
        waiting |= {it.cls for it in here if not it.dedicated and group_of(it.needs) == group}
        for process_id, key in waiting:
            if node_of(process_id) != self._daemon.number:
                continue  # its own node does that
            if (process_id, key) in self._messages:
                request = self._dispersal.wanted[process_id, key].request
                self._carry_out((process_id, key), self._dispersal.demand((process_id, key), request, 0, {}))
            else:
                self._daemon.post(leases.DemandChanged(process_id, key, {}, {}, 0))
            self._daemon.send(process_id, wire.LeaseInfeasible(key, {}, {}, removed=True))

    def captures(self, process_id: bytes, key: int) -> bytes:
        return self._captures.get((process_id, key), b"")

    def forget(self, process_id: bytes, key: int) -> None:
        """Its demand was refused: the owner has dropped it."""
        self._messages.pop((process_id, key), None)
        self._short_since.pop((process_id, key), None)
        self._told_short.pop((process_id, key), None)
        self._dispersal.wanted.pop((process_id, key), None)

    def on_granted(self, process_id: bytes, message: wire.LeaseGranted) -> None:
        """To a process of this node, by whichever node."""
        cls = (process_id, message.key)
        if cls in self._messages:
            node = self._ids([node_at(message.lease)])
            if node and node[0] != self._daemon.node_id:
                needs = self._dispersal.wanted[cls].request.needs
                self._stakes.granted(message.lease, node[0], process_id, needs, time.monotonic())
            self._short_since[cls] = time.monotonic()
            self._carry_out(cls, self._dispersal.granted(cls, node[0] if node else b""))

    def on_returned(self, lease: int) -> None:
        """A lease on another node, by a process of this one."""
        for node in self._ids([node_at(lease)]):
            self._stakes.returned(lease, node)

    def on_report(self, view: NodeView) -> None:
        """Of another node."""
        self._stakes.reported(view, time.monotonic())

    def on_news(self) -> None:
        """Nodes have joined, changed or gone."""
        for cls in list(self._dispersal.wanted):
            self._consider(cls)

    def on_process_died(self, process_id: bytes) -> None:
        self._stakes.process_died(process_id)
        self._dispersal.process_died(process_id)
        for cls in [cls for cls in self._captures if cls[0] == process_id]:
            del self._captures[cls]
        for cls in [cls for cls in self._messages if cls[0] == process_id]:
            del self._messages[cls], self._short_since[cls]
            self._told_short.pop(cls, None)

    def on_node_gone(self, node_id: bytes) -> None:
        self._stakes.node_died(node_id)
        self._dispersal.node_died(node_id)
        self.on_news()

    def _ids(self, numbers: list[int]) -> list[bytes]:
        known = [self._daemon.node_id] if self._daemon.number in numbers else []
        others = self._daemon.neighbours.members
        return [*known, *(others[number].view.id for number in numbers if number in others)]

    def _views(self, cls: Class, request: Request | None = None) -> dict[bytes, NodeView]:
        """All nodes, as they would be without what this class asks for."""
        here = self._daemon.view()
        wanted = self._dispersal.wanted.get(cls)
        if wanted is not None:
            here.queued = max(0, here.queued - wanted.asked.get(here.id, 0))
        views = {view.id: view for view in self._daemon.neighbours.views()}
        self._stakes.correct(views, self._dispersal.asked_by_others(cls), time.monotonic())
        views[here.id] = here
        if request is None and wanted is not None:
            request = wanted.request
        return views if request is None else self._within_reach(request, views)

    def _within_reach(self, request: Request, views: dict[bytes, NodeView]) -> dict[bytes, NodeView]:
        """Without the nodes that cannot be reached at the moment, unless only they can serve it."""
        reach = self._daemon.neighbours.reach
        near = {id: view for id, view in views.items() if not reach.is_cut(node_of(id))}
        if len(near) == len(views):
            return views
        affinity = request.affinity
        if affinity is not None and not affinity.soft:
            return views
        return near if any(view.can_ever_run(request) for view in near.values()) else views

    def on_unreachable(self, node_id: bytes, reason: str, *, again: bool) -> None:
        """That node could not be reached for too long: what only it could serve is refused.

        again: that was so before. What has been asked for since is refused; the owner knows which that is.
        """
        for cls in [cls for cls, wanted in self._dispersal.wanted.items() if wanted.asked.get(node_id)]:
            process_id, key = cls
            wanted = self._dispersal.wanted[cls]
            if not again:
                self._carry_out(cls, self._dispersal.demand(cls, wanted.request, 0, {}))
            self._daemon.send(process_id, wire.LeaseInfeasible(key, {}, {}, unreachable=reason, again=again))

    def _carry_out(self, cls: Class, changes: Changes) -> None:
        process_id, _key = cls
        message = self._messages[cls]
        self._tell_short(cls)
        for node_id, count in changes.items():
            asked = msgspec.structs.replace(message, count=count)
            if node_id == self._daemon.node_id:
                self.ask_here(process_id, asked)
            else:
                self._daemon.neighbours.pass_on(process_id, node_of(node_id), asked)
        wanted = self._dispersal.wanted.get(cls)
        if wanted is None:
            self._messages.pop(cls, None)
            self._short_since.pop(cls, None)
            self._told_short.pop(cls, None)
            self._refusing.discard(cls)
        elif not wanted.nowhere:
            self._refusing.discard(cls)
        elif cls not in self._refusing:
            self._refusing.add(cls)
            self._later(cls, self._daemon.config.infeasible_grace_s, self._refuse)

    def _tell_short(self, cls: Class) -> None:
        """To the owner of what is to be spread: its tasks wait for leases that will come, and for no others."""
        wanted = self._dispersal.wanted.get(cls)
        if wanted is not None and wanted.request.spread and self._told_short.get(cls, 0) != wanted.short:
            self._told_short[cls] = wanted.short
            process_id, key = cls
            self._daemon.send(process_id, wire.LeasesShort(key, wanted.short))
