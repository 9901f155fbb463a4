"""After a restart: what nodes say that they have is compared with what was stored.

    load rows ──▶ under way ──every node of the table has said Holding, or RECOVERY_S have passed──▶ settled

While it is under way keys, names and places of objects are answered; actors and bundles find no new places, and
nothing is killed, declared dead or dropped for being absent. Then, in one step: nodes that have not come back are dead;
processes that no node has are dead; actors that wait are placed; workers and bundles that nothing needs are given back,
by name.

A node that comes back to a service that was there all along, because their link was lost, says the same; then only what
that node has is compared.

Owns:      which nodes have yet to come, and what the others have said.
Invariant: what is ended is named by the node that has it, and by no other fact than that no row needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skate._control.state.steps import SettleAnyway
from skate._core import actors as core
from skate._core.ids import node_of
from skate._core.task import Job
from skate._wire import cluster
from skate._wire import messages as wire

if TYPE_CHECKING:
    from skate._control.state.control import Control

#: How long nodes have to come back.
RECOVERY_S = 10.0
NOT_BACK = f"it did not come back within {RECOVERY_S:g} s after the control service was started again."
#: Of a process that its node no longer has, and whose end was not heard of.
VANISHED = "it ended while the control service was away"
NOT_NEEDED = "the actor that it was for no longer needs it"


class Recovery:
    def __init__(self, control: Control) -> None:
        self._control = control
        #: Nodes that are part of the cluster and have not said what they have.
        self._awaited: set[bytes] = set()
        self._holdings: dict[bytes, cluster.Holding] = {}

    @property
    def is_under_way(self) -> bool:
        return bool(self._awaited)

    def begin(self) -> None:
        """The rows are loaded."""
        self._awaited = set(self._control.nodes.membership.members)
        self._control.functions.keeps_all = True
        if self._awaited:
            self._control.after(RECOVERY_S, SettleAnyway())
        else:
            self._settle()

    def on_holding(self, link: int, message: cluster.Holding) -> None:
        node = self._control.nodes.by_link[link]
        for process in message.processes:
            self._control.processes.jobs[process.id] = process.job
        if node in self._awaited:
            self._control.functions.await_needs(process.id for process in message.processes if process.pid)
            self._holdings[node] = message
            self._take_objects(node, message)
            if self._awaited <= self._holdings.keys():
                self._settle()
        elif self.is_under_way:
            self._take_objects(node, message)
            self._holdings[node] = message  # it joined after the restart, and has lost its link since
        else:
            self._take_objects(node, message)
            self._compare({node: message})
            self._control.groups.place(self._control.nodes.views)

    def _take_objects(self, node: bytes, holding: cluster.Holding) -> None:
        """At once: what becomes of an object may be heard next."""
        for object, owner in holding.owned:
            self._control.objects.locations.owned(object, owner, node)
        self._control.objects.node_came_back(node)
        locations = self._control.objects.locations
        freed = set() if self.is_under_way else {object for object in holding.copies if not locations.is_known(object)}
        if freed:  # while the node could not be told so
            self._control.send_to_node(node, cluster.DropCopies(sorted(freed)))
        for object in holding.copies:
            if object not in freed:
                locations.stored(object, node)

    # -- what changes meanwhile ---------------------------------------------------------------------------------------

    def process_came(self, link: int, process_id: bytes, pid: int, job: Job) -> None:
        """It began after its node had said what it has."""
        holding = self._holdings.get(self._control.nodes.by_link[link])
        if holding is not None:
            holding.processes.append(cluster.HeldProcess(process_id, pid, job))

    def process_gone(self, process_id: bytes) -> None:
        """It was held when its node came."""
        for holding in self._holdings.values():
            holding.processes = [process for process in holding.processes if process.id != process_id]
            holding.workers = [worker for worker in holding.workers if worker.id != process_id]

    def actor_placed(self, node: bytes, message: cluster.ActorPlaced) -> bool:
        """A worker was found for an actor since its node came. False: that is not for this table to know."""
        if not self.is_under_way or node not in self._holdings:
            return False
        self.actor_not_placed(node, message.actor)
        self._holdings[node].workers.append(cluster.HeldWorker(message.worker, message.pid, message.actor, 0))
        return True

    def actor_not_placed(self, node: bytes, actor: bytes) -> None:
        """The node looks for a worker for it no longer."""
        if node in self._holdings:
            looking = self._holdings[node].looking
            self._holdings[node].looking = [other for other in looking if other != actor]

    def node_left(self, node: bytes) -> None:
        """It is dead, and will not come."""
        if node in self._awaited:
            self._awaited.discard(node)
            self._holdings.pop(node, None)
            if not self._awaited or self._awaited <= self._holdings.keys():
                self._settle()

    def settle_anyway(self) -> None:
        if self.is_under_way:
            self._settle()

    def _settle(self) -> None:
        control = self._control
        missing = self._awaited - self._holdings.keys()
        holdings, self._holdings = self._holdings, {}
        self._awaited = set()
        for node in missing:
            control.nodes.do(control.nodes.membership.leave(node, NOT_BACK))
        self._compare(holdings)
        self._repair()
        for process_id in control.key_values.writers():
            if process_id not in control.processes:
                control.key_values.forget_writes(process_id)
        control.functions.keeps_all = False
        control.functions.forget_unneeded()
        control.objects.drop_of_strangers()
        for actor in list(control.actors.table.actors.values()):
            if actor.state == core.PENDING and actor.id not in control.placing.waiting:
                control.actors.place(actor.id)
        control.groups.place(control.nodes.views)
        if holdings or missing:
            control.note(f"all is known again: {len(holdings)} nodes have come back, {len(missing)} have not")

    def _repair(self) -> None:
        """The rows of one event may lie on several shards, of which some were written and some were not."""
        control = self._control
        for process_id in sorted(self._known_processes()):
            if node_of(process_id) not in control.nodes.by_number:
                self._vanished(process_id)
        control.groups.drop_of_strangers()

    # -- comparing ----------------------------------------------------------------------------------------------------

    def _compare(self, holdings: dict[bytes, cluster.Holding]) -> None:
        """What these nodes have with what they should have."""
        self._compare_processes(holdings)
        for node, holding in holdings.items():
            for worker in holding.workers:
                self._compare_worker(worker)
            self._compare_looking(node, set(holding.looking))
        bundles = {
            (node, group, index): counts
            for node, holding in holdings.items()
            for group, index, counts in holding.bundles
        }
        self._control.groups.settle(bundles, holdings.keys())

    def _compare_processes(self, holdings: dict[bytes, cluster.Holding]) -> None:
        """Processes of these nodes that are known here and not there have ended."""
        control = self._control
        numbers = {node_of(node) for node in holdings}
        there = {process.id for holding in holdings.values() for process in holding.processes}
        there |= {worker.id for holding in holdings.values() for worker in holding.workers}
        for process_id in sorted(self._known_processes() - there):
            if node_of(process_id) in numbers:
                self._vanished(process_id)
        for owner in sorted(control.actors.table.early_owners() - there):
            if not control.lives(owner):  # it may not have said anything yet: its node is asked
                self._vanished(owner)

    def _known_processes(self) -> set[bytes]:
        """Those that have to be somewhere."""
        control = self._control
        return (set(control.processes.jobs) | set(control.jobs.drivers) | control.actors.processes()) - {b""}

    def _vanished(self, process_id: bytes) -> None:
        self._control.jobs.driver_ended(process_id, "lost")
        self._control.process_gone(wire.PeerGone(process_id, 0, 0, b"", [], VANISHED, node_lost=True))

    def _compare_worker(self, worker: cluster.HeldWorker) -> None:
        """A worker that was found for an actor, or is one."""
        control = self._control
        actor = control.actors.table.actors.get(worker.actor)
        if actor is not None and actor.state == core.PENDING and not worker.life:
            control.placing.waiting.pop(worker.actor, None)
            control.actors.granted(worker.actor, worker.id, worker.pid)
        elif actor is not None and actor.leaves and worker.life == actor.lives:
            control.send(worker.id, wire.LeaveActor())  # it ends when no process needs what it owns
            return
        elif actor is None or actor.worker != worker.id:
            control.kill(worker.id, NOT_NEEDED)
            return
        elif actor.state == core.STARTING and not worker.life:
            control.actors.start(worker.actor, worker.id)
        node = control.nodes.by_number.get(node_of(worker.id))
        if node is not None:
            control.placing.is_placed(worker.actor, actor.info, node)

    def _compare_looking(self, node: bytes, looking: set[bytes]) -> None:
        """The actors that a node looks for workers for."""
        control = self._control
        for id in sorted(looking):
            actor = control.actors.table.actors.get(id)
            waiting = control.placing.waiting.get(id)
            if not control.actors.is_looking(id) or (waiting is not None and waiting.node not in (b"", node)):
                control.send_to_node(node, cluster.UnplaceActor(id))
            elif actor is not None:
                job = control.actors.job_of(id)
                control.placing.is_looked_for(id, actor.info, job, node, control.now)
        for id in control.placing.asked_of(node):
            if id not in looking:
                control.placing.ask_again(id)
