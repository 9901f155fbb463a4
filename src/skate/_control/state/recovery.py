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
from skate._wire import cluster
from skate._wire import messages as wire

if TYPE_CHECKING:
    from skate._control.state.control import Control

#: How long nodes have to come back.
RECOVERY_S = 10.0
NOT_BACK = f"it did not come back within {RECOVERY_S:g} s after the control service was started again."
#: Of a process that a node does not have any more, and of whose end nothing was heard.
VANISHED = "it ended while the control service was away"
NOT_NEEDED = "the actor that it was for does not need it any more"


class Recovery:
    def __init__(self, control: Control) -> None:
        self._control = control
        #: Nodes that are part of the cluster and have not said what they have.
        self._awaited: set[bytes] = set()
        #: Of the others: the nodes, which bundles they hold, processes that they do not have any more, and workers that
        #: no actor needs.
        self._come: set[bytes] = set()
        self._bundles: dict[tuple[bytes, int], tuple[bytes, bool]] = {}
        self._vanished: set[bytes] = set()
        self._unneeded: list[bytes] = []

    @property
    def is_under_way(self) -> bool:
        return bool(self._awaited)

    def begin(self) -> None:
        """The rows are loaded."""
        self._awaited = set(self._control.nodes.membership.members)
        if self._awaited:
            self._control.functions.keeps_all = True
            self._control.after(RECOVERY_S, SettleAnyway())

    def on_holding(self, link: int, message: cluster.Holding) -> None:
        """What a node has is taken in at once: it goes on working, and what it says next rests on that."""
        node = self._control.nodes.by_link[link]
        self._take_in(node, message)
        if node in self._awaited:
            self._awaited.discard(node)
            if not self._awaited:
                self._settle()
        elif not self.is_under_way:  # the service was there all along, and their link was lost
            self._compare()
            self._control.groups.place(self._control.nodes.views)

    def node_left(self, node: bytes) -> None:
        """It is dead, and will not come."""
        self._come.discard(node)
        if node in self._awaited:
            self._awaited.discard(node)
            if not self._awaited:
                self._settle()

    def settle_anyway(self) -> None:
        """Nodes have had their time."""
        missing, self._awaited = sorted(self._awaited), set()
        if missing:
            for node in missing:
                self._control.nodes.do(self._control.nodes.membership.leave(node, NOT_BACK))
            self._settle()

    def _settle(self) -> None:
        control = self._control
        come = len(self._come)
        self._compare()
        for process_id in control.key_values.writers():
            if process_id not in control.processes:
                control.key_values.forget_writes(process_id)
        control.functions.keeps_all = False
        control.functions.forget_unneeded()
        control.objects.drop_of_strangers(set(control.processes.jobs))
        for actor in list(control.actors.table.actors.values()):
            if actor.state == core.PENDING and actor.id not in control.placing.waiting:
                control.actors.place(actor.id)
        control.groups.place(control.nodes.views)
        control.note(f"all is known again: {come} nodes have come back")

    # -- taking in ----------------------------------------------------------------------------------------------------

    def _take_in(self, node: bytes, holding: cluster.Holding) -> None:
        """What ends nothing: the rest waits until all have come."""
        control = self._control
        self._come.add(node)
        for process in holding.processes:
            control.processes.says_again(process.id, process.job)
        there = {process.id for process in holding.processes} | {worker.id for worker in holding.workers}
        known = set(control.processes.jobs) | set(control.jobs.drivers) | control.actors.processes()
        self._vanished |= {id for id in known - there if id and node_of(id) == node_of(node)}
        for worker in holding.workers:
            self._take_in_worker(worker)
        self._take_in_looking(node, set(holding.looking))
        for object, owner in holding.owned:
            control.objects.locations.owned(object, owner, node)
        for object in holding.copies:
            control.objects.locations.stored(object, node)
        self._bundles.update({(group, index): (node, counts) for group, index, counts in holding.bundles})

    def _take_in_worker(self, worker: cluster.HeldWorker) -> None:
        """A worker that was found for an actor, or is one."""
        control = self._control
        actor = control.actors.table.actors.get(worker.actor)
        if actor is not None and actor.state == core.PENDING and not worker.life:
            control.placing.waiting.pop(worker.actor, None)
            control.actors.granted(worker.actor, worker.id, worker.pid)
        elif actor is None or actor.worker != worker.id:
            self._unneeded.append(worker.id)
            return
        elif actor.state == core.STARTING and not worker.life:
            control.actors.start(worker.actor, worker.id)
        node = control.nodes.by_number.get(node_of(worker.id))
        if node is not None:
            control.placing.is_placed(worker.actor, actor.info, node)

    def _take_in_looking(self, node: bytes, looking: set[bytes]) -> None:
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

    # -- comparing ----------------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """What nodes have with what they should have: the rest ends, by its name."""
        control = self._control
        come, self._come = self._come, set()
        bundles, self._bundles = self._bundles, {}
        vanished, self._vanished = self._vanished, set()
        unneeded, self._unneeded = self._unneeded, []
        for process_id in sorted(vanished):
            if process_id in control.jobs.drivers:
                control.jobs.driver_ended(process_id, "lost")
            control.process_gone(wire.PeerGone(process_id, 0, 0, b"", [], VANISHED, node_lost=True))
        for worker in unneeded:
            control.kill(worker, NOT_NEEDED)
        control.groups.settle(bundles, come)
