"""Actors that wait for a worker somewhere in the cluster: which node is asked, and what if that was the wrong one.

Owns:      which node was asked to find a worker for which actor, and those that no node could ever run; and where those
           live that have found one.
Knows not: what an actor is otherwise; see `actors.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from skate._core.homes import Home, Homes
from skate._core.placement import NodeView, Nowhere, Request, choose
from skate._core.resources import group_of, to_floats, to_units
from skate._core.task import ActorInfo, Death, Job

#: One that waits for this time is asked of another node, if that has room at once.
MOVE_AFTER_S = 1.0
#: What no node can run may wait this time for one that can.
NOWHERE_GRACE_S = 10.0


class Waiting(msgspec.Struct):
    info: ActorInfo
    job: Job
    since: float
    #: The node that was asked; empty if none can run it.
    node: bytes = b""


class Placing:
    def __init__(
        self,
        ask: Callable[[bytes, bytes, ActorInfo, Job], None],
        withdraw: Callable[[bytes, bytes], None],
        give_up: Callable[[bytes, Death], None],
        *,
        nowhere_grace_s: float = NOWHERE_GRACE_S,
        nodes_refuse: bool = False,
    ) -> None:
        """ask(node, actor, info, job), withdraw(node, actor), give_up(actor, why).

        nodes_refuse: there is one node, and what it can never run it refuses itself, with reasons that it knows better.
        """
        self._nowhere_grace_s = nowhere_grace_s
        self._nodes_refuse = nodes_refuse
        self._ask = ask
        self._withdraw = withdraw
        self._give_up = give_up
        self.waiting: dict[bytes, Waiting] = {}
        self._homes = Homes()

    def place(self, actor: bytes, info: ActorInfo, job: Job, nodes: Iterable[NodeView], now: float) -> None:
        waiting = self.waiting[actor] = Waiting(info, job, now)
        self._choose(actor, waiting, list(nodes))

    def _choose(self, actor: bytes, waiting: Waiting, nodes: list[NodeView]) -> None:
        self._homes.move_out(actor)
        request = _request(waiting.info)
        chosen = choose(request, nodes, self._homes.on)
        if isinstance(chosen, Nowhere) and self._nodes_refuse and waiting.info.where is None and nodes:
            chosen = nodes[0]
        if isinstance(chosen, Nowhere):
            waiting.node = b""
            return
        waiting.node = chosen.id
        self._homes.move_in(actor, Home(chosen.id, request.held, request.spread))
        chosen.queued += 1  # until its next report
        if chosen.actor_room:
            chosen.actor_room -= 1
        self._ask(chosen.id, actor, waiting.info, waiting.job)

    def is_placed(self, actor: bytes, info: ActorInfo, node: bytes) -> None:
        """It lives there already, which is known from before a restart."""
        request = _request(info)
        self._homes.move_in(actor, Home(node, request.held, request.spread))

    def is_looked_for(self, actor: bytes, info: ActorInfo, job: Job, node: bytes, now: float) -> None:
        """That node looks for a worker for it already."""
        self.waiting[actor] = Waiting(info, job, now, node)
        self.is_placed(actor, info, node)

    def asked_of(self, node: bytes) -> list[bytes]:
        """The actors that this node was asked to find workers for."""
        return [actor for actor, waiting in self.waiting.items() if waiting.node == node]

    def ask_again(self, actor: bytes) -> None:
        """The node that was asked does not know of it."""
        waiting = self.waiting[actor]
        self._ask(waiting.node, actor, waiting.info, waiting.job)

    def unplace(self, actor: bytes) -> None:
        self._homes.move_out(actor)
        waiting = self.waiting.pop(actor, None)
        if waiting is not None and waiting.node:
            self._withdraw(waiting.node, actor)

    def actor_died(self, actor: bytes) -> None:
        """For good."""
        self._homes.move_out(actor)

    def is_expected(self, actor: bytes, node: bytes) -> bool:
        """A node has found a worker. False: another one was asked meanwhile."""
        waiting = self.waiting.get(actor)
        if waiting is None or waiting.node != node:
            return False
        del self.waiting[actor]
        return True

    def node_died(self, node: bytes, nodes: Iterable[NodeView]) -> None:
        self._homes.node_died(node)
        living = list(nodes)
        for actor, waiting in list(self.waiting.items()):
            if waiting.node == node:
                self._choose(actor, waiting, living)

    def waits_for(self, actor: bytes, nodes: Iterable[NodeView]) -> str:
        """Why it has no worker yet, for people; empty if it has one."""
        waiting = self.waiting.get(actor)
        if waiting is None:
            return ""
        living, request = list(nodes), _request(waiting.info)
        asked = next((node for node in living if node.id == waiting.node), None)
        if asked is None:
            chosen = choose(request, living)
            return chosen.reason if isinstance(chosen, Nowhere) else ""
        held = "" if asked.can_start_actor(request.held) else ", and others hold the resources that it needs there"
        return f"a worker is looked for on node {asked.id.hex()}{held}."

    def look(self, nodes: Iterable[NodeView], now: float) -> None:
        """Nodes have changed, or time has passed."""
        living = list(nodes)
        for actor, waiting in list(self.waiting.items()):
            if not waiting.node:
                self._choose(actor, waiting, living)
                if group_of(waiting.info.to_place):
                    continue  # its group may be reserved at any time, or be removed
                if not waiting.node and now >= waiting.since + self._nowhere_grace_s:
                    del self.waiting[actor]
                    self._give_up(actor, _nowhere(waiting.info, living))
            elif now >= waiting.since + MOVE_AFTER_S:
                self._move(actor, waiting, living, now)

    def _move(self, actor: bytes, waiting: Waiting, nodes: list[NodeView], now: float) -> None:
        request = _request(waiting.info)
        here = next((node for node in nodes if node.id == waiting.node), None)
        if here is not None and here.can_start_actor(request.held):
            return
        free = [node for node in nodes if node.can_start_actor(request.held) and node.id != waiting.node]
        if free and not isinstance(choose(request, free), Nowhere):
            self._withdraw(waiting.node, actor)
            waiting.since = now
            self._choose(actor, waiting, free)


def _request(info: ActorInfo) -> Request:
    holds = to_units(info.resources)
    return msgspec.structs.replace(Request.of(to_units(info.to_place) or holds, info.where), holds=holds)


def _nowhere(info: ActorInfo, nodes: list[NodeView]) -> Death:
    chosen = choose(_request(info), nodes)
    reason = chosen.reason if isinstance(chosen, Nowhere) else ""
    most: dict[str, int] = {}
    for node in nodes:
        for name, amount in node.total.items():
            most[name] = max(most.get(name, 0), amount)
    return Death("nowhere", reason, asked=info.to_place or info.resources, total=to_floats(most))
