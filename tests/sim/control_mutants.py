"""The simulation of the control state, tested itself: bugs of one line, each of which it has to find.

As in `mutants.py`: a mutant replaces one method of the real code. `control_found.json` keeps the seed that found it.
"""

from __future__ import annotations

from typing import Any

from patches import Mutants

from skate._control.host import Host
from skate._control.ledger import Ledger
from skate._control.state import steps
from skate._control.state.actors import ActorService
from skate._control.state.control import Control
from skate._control.state.functions import Functions
from skate._control.state.groups import GroupService
from skate._control.state.kv import KeyValues
from skate._control.state.nodes import Nodes
from skate._control.state.processes import Processes
from skate._control.state.recovery import Recovery
from skate._core.actors import ActorTable
from skate._core.groups import GroupTable
from skate._core.outbox import Outbox
from skate._node.remote_control import RemoteControl
from skate._wire import cluster

MUTANTS = Mutants()
mutant, also = MUTANTS.mutant, MUTANTS.also

# -- durable before visible --------------------------------------------------------------------------------------------


def _at_once(kind: type) -> Any:
    """Messages of that kind do not wait for the storage."""

    def make(act: Any) -> Any:
        def mutated(self: Host, command: Any) -> None:
            if isinstance(command, steps.Send) and isinstance(command.message, kind):
                command = steps.Send(command.link, command.message, at_once=True)
            act(self, command)

        return mutated

    return make


@mutant(Host, "_act")
def _number_given_before_it_is_durable(act: Any) -> Any:
    """A node hears its number while a crash can still take it back."""
    return _at_once(cluster.Joined)(act)


@mutant(Host, "_act")
def _done_before_it_is_durable(act: Any) -> Any:
    """A node forgets what its processes have said while a crash can still take it back."""
    return _at_once(cluster.Done)(act)


@mutant(Host, "_act")
def _answered_before_it_is_durable(act: Any) -> Any:
    """Processes hear answers that a crash can still take back."""
    return _at_once(cluster.ToProcess)(act)


@mutant(Ledger, "say")
def _messages_wait_for_nothing(say: Any) -> Any:
    """What is said does not wait for the rows of its own event."""

    def mutated(self: Ledger, action: Any) -> None:
        if self._durable == self._commits:
            action()
        else:
            say(self, action)

    return mutated


# -- rows --------------------------------------------------------------------------------------------------------------


@mutant(ActorTable, "granted")
def _starting_is_not_saved(granted: Any) -> Any:
    """The row of an actor does not say which worker was found for it."""

    def mutated(self: ActorTable, id: bytes, *rest: Any) -> Any:
        was_changed = id in self.changed
        commands = granted(self, id, *rest)
        if not was_changed:
            self.changed.discard(id)
        return commands

    return mutated


@mutant(Nodes, "load")
def _dead_nodes_are_forgotten(load: Any) -> Any:
    """A service that was started again does not know who was declared dead."""

    def mutated(self: Nodes, rows: Any) -> None:
        load(self, [(id, row) for id, row in rows if not row.gone])

    return mutated


@mutant(Nodes, "load")
def _last_number_of_its_own_row_alone(load: Any) -> Any:
    """The row of the cluster is believed, although that of a node was written and it was not."""

    def mutated(self: Nodes, rows: Any) -> None:
        last = self.cluster.last_number
        load(self, rows)
        self.cluster.last_number = last

    return mutated


@mutant(GroupTable, "_commit")
def _ready_is_not_saved(commit: Any) -> Any:
    """The row of a group does not say that its bundles count."""

    def mutated(self: GroupTable, group: Any) -> Any:
        commands = commit(self, group)
        if commands:
            self.changed.discard(group.id)
        return commands

    return mutated


@mutant(KeyValues, "row")
def _tombstones_are_not_kept(row: Any) -> Any:
    """Of a key that was deleted nothing is stored."""

    def mutated(self: KeyValues, key: bytes) -> Any:
        return row(self, key) if key in self._values else None

    return mutated


# -- what is said again ------------------------------------------------------------------------------------------------


@mutant(RemoteControl, "_holding")
def _holding_is_empty(holding: Any) -> Any:
    """A node does not say what it has."""
    return lambda self: cluster.Holding()


@mutant(RemoteControl, "_describe_all")
def _holding_is_not_said(describe_all: Any) -> Any:
    """A node says everything again but what it has."""

    def mutated(self: RemoteControl) -> None:
        instead: Any = cluster.Report(self._daemon.view())
        self._holding = lambda: instead  # type: ignore[method-assign]
        try:
            describe_all(self)
        finally:
            del self._holding

    return mutated


@mutant(RemoteControl, "_describe_all")
def _outbox_before_holding(describe_all: Any) -> Any:
    """Messages of processes leave before the service is told of these."""

    def mutated(self: RemoteControl) -> None:
        for process_id, number, done_to, message in self._outbox.kept():
            self._link.send(cluster.FromProcess(process_id, message, number, done_to))
        describe_all(self)

    return mutated


@mutant(Outbox, "kept")
def _outbox_is_not_said_again(kept: Any) -> Any:
    """What is not done is lost with the service."""
    return lambda self: []


@mutant(Outbox, "answered")
def _answered_requests_are_said_again(answered: Any) -> Any:
    """A request that has its answer counts as not done until Done has come."""
    return lambda self, process_id, request: 0


@mutant(RemoteControl, "_holding")
def _dead_processes_have_no_job(holding: Any) -> Any:
    """What a process has said before its end is said again under no job."""

    def mutated(self: RemoteControl) -> Any:
        said = holding(self)
        for process in said.processes:
            if process.id in self._jobs_of_dead:
                process.job = type(process.job)()
        return said

    return mutated


# -- recognising what was said before ----------------------------------------------------------------------------------


@mutant(KeyValues, "_write")
def _writes_are_not_recognised(write: Any) -> Any:
    """A row does not say who wrote it: the same message writes again."""
    return lambda self, key, message, process_id, number: write(self, key, message, process_id, 0)


@mutant(GroupService, "handle")
def _a_group_said_again_is_taken(handle: Any) -> Any:
    """CreateGroup, repeated, finds its own name taken."""

    def mutated(self: GroupService, process_id: bytes, message: Any, nodes: Any) -> None:
        name = getattr(message, "name", "")
        own = self._names.get(name)
        if name and own == message.group:
            self._names[name] = b"another"
        handle(self, process_id, message, nodes)
        if name and own == message.group:
            self._names[name] = own

    return mutated


@mutant(Processes, "node_joined_again")
def _repeats_after_a_lost_link_are_not_answered(node_joined_again: Any) -> Any:
    """What a node says again over another link is taken for what has been answered."""
    return lambda self, number: None


@mutant(Control, "process_gone")
def _writes_of_the_dead_are_forgotten_at_once(process_gone: Any) -> Any:
    """What a dead process has written is not recognised when its node says it again."""

    def mutated(self: Control, gone: Any) -> None:
        process_gone(self, gone)
        self.key_values.forget_writes(gone.process_id)

    return mutated


# -- settling ----------------------------------------------------------------------------------------------------------


@mutant(Recovery, "on_holding")
def _settled_with_the_first_node(on_holding: Any) -> Any:
    """The first node that comes back counts as all."""

    def mutated(self: Recovery, link: int, message: Any) -> None:
        on_holding(self, link, message)
        if self.is_under_way:
            self._settle()

    return mutated


@mutant(Recovery, "_compare_worker")
def _workers_of_dead_actors_stay(compare_worker: Any) -> Any:
    """What was to be killed when the service died lives on."""

    def mutated(self: Recovery, worker: Any) -> None:
        if self._control.actors.table.is_living(worker.actor):
            compare_worker(self, worker)

    return mutated


@mutant(Recovery, "process_came")
def _who_began_meanwhile_has_vanished(process_came: Any) -> Any:
    """A process that began after its node had come is taken for one that has ended."""
    return lambda self, link, process_id, pid, job: None


@mutant(Recovery, "actor_placed")
def _what_was_found_meanwhile_is_not_needed(actor_placed: Any) -> Any:
    """A worker that was found before all nodes had come is ended."""
    return lambda self, node, message: False


@mutant(Recovery, "process_gone")
def _who_ended_meanwhile_is_there(process_gone: Any) -> Any:
    """A process that ended after its node had come is taken for one that lives."""
    return lambda self, process_id: None


@mutant(Recovery, "_repair")
def _nothing_is_repaired(repair: Any) -> Any:
    """Rows of one event, some of which were written, are left as they are."""
    return lambda self: None


@mutant(Functions, "await_needs")
def _functions_are_forgotten_too_early(await_needs: Any) -> Any:
    """Processes are not waited for to say which functions they need."""
    return lambda self, process_ids: None


@mutant(GroupTable, "settle")
def _bundles_that_no_group_has_stay(settle: Any) -> Any:
    """What a node holds for a group that is gone is not given back."""

    def mutated(self: GroupTable, held: Any, nodes: Any) -> Any:
        return settle(self, {key: counts for key, counts in held.items() if key[1] in self.groups}, nodes)

    return mutated


@mutant(ActorService, "load")
def _creations_are_not_loaded(load: Any) -> Any:
    """What it takes to make an actor again is lost with the service."""

    def mutated(self: ActorService, rows: Any) -> None:
        load(self, rows)
        self._functions.load((fn, known.define) for fn, known in list(self._functions._known.items()))

    return mutated


@mutant(Nodes, "admit")
def _replaced_links_are_heard(admit: Any) -> Any:
    """What still comes over a link that its node has replaced counts."""

    def mutated(self: Nodes, link: int, member: Any) -> Any:
        before = dict(self.by_link)
        commands = admit(self, link, member)
        self.by_link.update({old: node for old, node in before.items() if old in self.replaced})
        self.replaced.clear()
        return commands

    return mutated
