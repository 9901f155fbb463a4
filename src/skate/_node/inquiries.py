"""Questions about the node (`Query`), and where their answers come from.

Owns:      task events: those that workers sent, those of dead workers included, the newest EVENTS_MAX of them.
Knows not: anything else; it looks at the parts of the daemon and changes none of them.

Most answers are there at once. Events are gathered: every worker is asked for those it still holds, and what has
arrived when all have answered, or after GATHER_S, is the answer. A worker that is too busy is left out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from skate._core.lease_report import describe_room
from skate._core.placement import NodeView
from skate._core.resources import Amounts, to_floats
from skate._node.memory_monitor import resident_bytes
from skate._wire.loop import Timer
from skate._wire.messages import Answer, CollectEvents, Events, Query, decode_events

if TYPE_CHECKING:
    from skate._node.daemon import Daemon, Process

#: Task events that are kept; the oldest make room for the newest.
EVENTS_MAX = 200_000
#: How long workers are given to send theirs.
GATHER_S = 1.0


class Gathering:
    """A question for events that waits for workers to send theirs."""

    def __init__(self, asker: bytes | int, request: int, waiting_for: set[bytes | int]) -> None:
        #: A process, or another node by its number.
        self.asker = asker
        self.request = request
        #: Workers, and other nodes by their numbers.
        self.waiting_for = waiting_for
        self.from_elsewhere: list[tuple[Any, ...]] = []
        self.timer: Timer | None = None


class Inquiries:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        #: Task events in batches as they came: pid, number, (name, id, start, end) of each in msgpack, which takes a
        #: fifth of the memory that the objects would, and what to add to the times.
        self._events: deque[tuple[int, int, bytes, float]] = deque()
        self._event_count = 0
        self._gatherings: dict[int, Gathering] = {}
        self._last_gathering = 0
        self._answers: dict[str, Callable[[], Any]] = {
            "resources": self.resources,
            "nodes": self.nodes,
            "workers": self.workers,
            "demands": self.demands,
            "room": lambda: describe_room(daemon.scheduler),
            "store": self.store,
            "statistics": self.statistics,
            "pulls": lambda: daemon.neighbours.transfers.describe(),
            "cuts": lambda: daemon.neighbours.reach.describe(),
            "silence": self.silence,
        }

    def silence(self) -> dict[str, Any] | None:
        """Why what needs the control service waits, if it has to."""
        return self._daemon.control.silence() or self._daemon.control.trouble()

    def ask(self, process: Process, query: Query) -> None:
        if query.what == "events":
            self.gather(process.id, query.request, list(self._daemon.neighbours.members))
            return
        if query.what in ("actors", "functions", "groups"):
            self._daemon.control.pass_on(process.id, query)
            return
        answer = self._answers.get(query.what)
        self._daemon.send(process.id, Answer(query.request, answer() if answer is not None else None))

    # -- answers that are there ---------------------------------------------------------------------------------------

    def resources(self) -> dict[str, dict[str, float]]:
        """Of all nodes together."""
        total: dict[str, float] = {}
        available: dict[str, float] = {}
        for view in self._views():
            for sums, amounts in ((total, _for_people(view.total)), (available, _for_people(view.available))):
                for name, amount in amounts.items():
                    sums[name] = sums.get(name, 0.0) + amount
            total["object_store_memory"] = total.get("object_store_memory", 0.0) + view.store_bytes
            free = available.get("object_store_memory", 0.0) + view.store_bytes - view.store_used_bytes
            available["object_store_memory"] = free
        return {"total": total, "available": {name: amount for name, amount in available.items() if amount}}

    def _views(self) -> list[NodeView]:
        views = [self._daemon.view(), *self._daemon.neighbours.views()]
        return [view for view in views if view.serves]

    def nodes(self) -> list[dict[str, Any]]:
        neighbours = self._daemon.neighbours
        places = [(self._daemon.view(), neighbours.host, neighbours.name)]
        places += [(member.view, member.host, member.name) for member in neighbours.members.values()]
        living = [_describe_node(*place) for place in places if place[0].serves]
        departed = [_describe_node(it.view, it.host, it.name, alive=False) for it in neighbours.departed]
        return [*living, *departed]

    def workers(self) -> list[dict[str, Any]]:
        daemon = self._daemon
        found = []
        for worker in daemon.pool.workers.values():
            known = daemon.scheduler.workers.get(worker.process_id)
            lease = known.lease if known is not None else None
            state = "starting" if known is None else known.state
            if lease is not None and lease.blocked:
                state = "blocked"
            found.append(
                {
                    "process_id": worker.process_id,
                    "pid": worker.pid,
                    "state": state,
                    "env": dict(worker.env),
                    "owner_pid": daemon.pids.get(lease.owner, 0) if lease is not None else 0,
                    "resources": to_floats(lease.allocation.amounts) if lease is not None else {},
                    "gpu_ids": lease.allocation.gpu_ids if lease is not None else [],
                    "running": daemon.store.running_task(worker.slot),
                    "rss_bytes": resident_bytes(worker.pid) if worker.pid else 0,
                }
            )
        return found

    def demands(self) -> dict[str, Any]:
        daemon = self._daemon
        answer = daemon.scheduler.describe_demands(time.monotonic())
        for lease in answer["leases"]:
            lease["owner_pid"] = daemon.pids.get(lease["owner"], 0)
            lease["worker_pid"] = daemon.pids.get(lease["worker"], 0)
        for demand in answer["demands"]:
            demand["pid"] = daemon.pids.get(demand["process"], 0)
        return answer

    def store(self) -> str:
        return self._daemon.store.report()

    def statistics(self) -> dict[str, Any]:
        daemon = self._daemon
        return {
            "scheduler": daemon.scheduler.statistics(),
            "store": daemon.store.statistics(),
            "processes": len(daemon.processes),
            "events": self._event_count,
        }

    # -- events -------------------------------------------------------------------------------------------------------

    def gather(self, asker: bytes | int, request: int, nodes: Sequence[int] = ()) -> None:
        """For a process, from all nodes; or for another node, from this one."""
        daemon = self._daemon
        workers = [other.id for other in daemon.processes.values() if other.worker is not None and other.ready]
        self._last_gathering += 1
        number = self._last_gathering
        gathering = self._gatherings[number] = Gathering(asker, request, {*workers, *nodes})
        # Other nodes may have to wait for busy workers of theirs, and then answer.
        patience_s = GATHER_S * (2 if nodes else 1)
        gathering.timer = daemon.loop.call_at(time.monotonic() + patience_s, lambda: self._finish(number))
        for worker in workers:
            daemon.send(worker, CollectEvents(number))
        for node in nodes:
            daemon.neighbours.ask_events(node, number)
        if not gathering.waiting_for:
            self._finish(number)

    def on_node_events(self, node: int, number: int, events: list[tuple[Any, ...]]) -> None:
        gathering = self._gatherings.get(number)
        if gathering is not None:
            gathering.from_elsewhere += events
            self._arrived(number, node)

    def on_node_gone(self, node: int) -> None:
        for number in list(self._gatherings):
            self._arrived(number, node)

    def on_events(self, process: Process, message: Events) -> None:
        if message.count:
            self._events.append((self._daemon.pids[process.id], message.count, message.events, message.epoch))
            self._event_count += message.count
        while self._event_count > EVENTS_MAX:
            self._event_count -= self._events.popleft()[1]
        self._arrived(message.request, process.id)

    def on_process_died(self, process: Process) -> None:
        for number in list(self._gatherings):
            self._arrived(number, process.id)

    def _arrived(self, number: int, whose: bytes | int) -> None:
        gathering = self._gatherings.get(number)
        if gathering is not None:
            gathering.waiting_for.discard(whose)
            if not gathering.waiting_for:
                self._finish(number)

    def _finish(self, number: int) -> None:
        gathering = self._gatherings.pop(number)
        if gathering.timer is not None:
            gathering.timer.cancel()
        events = [*self._all_events(), *gathering.from_elsewhere]
        if isinstance(gathering.asker, bytes):
            self._daemon.send(gathering.asker, Answer(gathering.request, events))
        else:
            self._daemon.neighbours.send_events(gathering.asker, gathering.request, events)

    def _all_events(self) -> list[tuple[Any, ...]]:
        """Name, id, pid, start and end of each, and the number of this node."""
        node = self._daemon.number
        return [
            (name, task, pid, start + epoch, end + epoch, node)
            for pid, _count, batch, epoch in self._events
            for name, task, start, end in decode_events(batch)
        ]


def _for_people(amounts: Amounts) -> dict[str, float]:
    """A node that goes on with tasks that had waited has less than nothing; people are told "nothing"."""
    return {name: max(0.0, amount) for name, amount in to_floats(amounts).items()}


def _describe_node(view: NodeView, host: str, name: str, *, alive: bool = True) -> dict[str, Any]:
    """The dead have no resources: whoever adds them up need not ask who lives."""
    resources = {**to_floats(view.total), "object_store_memory": float(view.store_bytes)}
    free_bytes = float(view.store_bytes - view.store_used_bytes)
    return {
        "NodeID": view.id.hex(),
        "Alive": alive,
        "alive": alive,
        "NodeManagerAddress": host,
        "NodeManagerHostname": name,
        "NodeName": name,
        "Resources": resources if alive else {},
        "Available": {**_for_people(view.available), "object_store_memory": free_bytes} if alive else {},
        "Labels": dict(view.labels),
    }
