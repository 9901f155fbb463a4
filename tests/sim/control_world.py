"""The control state of a cluster and all who have to do with it, in one thread: the service dies, and nothing is lost.

    World(seed).run()      the same seed, the same history, to the last digit

Real: the control service with its state, ledger and links; on nodes `RemoteControl` with its outbox, actors, groups and
resources. Played: sockets, the disk, schedulers, processes (`control_network`, `control_node`, `control_programs`).

For RUN_S seconds programs ask for keys, actors, groups and topics, while the service is killed between any two of its
steps, links break, nodes die, join, or come back too late. Then everything is healed. When nothing moves any more:

- every request was answered once, and the answers about each key fit into one order (`linearizable`)
- every actor that is alive has one worker, every worker has its actor, no life was started twice, and all that
  watch an actor know how it is
- bundles are held and counted exactly where groups have them
- nothing has died without a reason; no id and no number has changed or was given twice
- nothing is kept for processes that are gone, and nothing waits

While the service waits for its nodes after a restart, it ends nothing for being absent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from control_network import Crash, SimDial, SimDisk, SimLoop, SimSocket, Wire
from control_node import SimNode
from control_programs import Program
from linearizable import Operation, is_linearizable
from network import Clockwork

import skate._node.remote_control as remote_control
from skate._control.service import ControlService
from skate._control.state import processes, recovery, steps, tables
from skate._core import actors as actor_states
from skate._core import groups as group_states
from skate._core.bundles import assign
from skate._core.ids import node_of
from skate._core.placement import Nowhere, choose
from skate._core.task import ActorInfo, Job
from skate._wire import cluster
from skate._wire import messages as wire

HEAL_S = 40.0
#: Of some rows a part changes without being stored, because nodes say it again, or because it is not needed any more.
LASTING: dict[str, Callable[[Any], Any]] = {
    tables.NODES: lambda row: (row.gone, row.order),
    tables.KV: lambda row: row.value,
}
#: A link that was cut for longer than this may be that of a dead node: less than COME_BACK_S, with time for a new try.
AWAY_S = 0.8
#: Modules that ask what time it is.
CLOCKED = ("_control.host", "_control.service", "_node.remote_control", "_node.actors", "_wire.link")

#: Faults by name, the most frequent ones more than once.
PROFILES: dict[str, tuple[str, ...]] = {
    "restarts": ("crash", "crash soon", "crash soon", "break a link"),
    "twice": ("crash twice", "crash soon", "break a link", "end a process"),
    "processes": ("end a process", "end a process", "crash soon", "break a link"),
    "nodes": ("end a node", "cut a node", "add a node", "crash soon", "crash", "crash between shards"),
    "late": ("crash and come late", "crash and come late", "end a process", "end a process", "end a node"),
    "shards": ("crash between shards", "crash between shards", "end a node", "end a process", "add a node"),
    "links": ("break a link", "join again", "join again", "cut a node", "crash soon"),
    "all": ("crash", "crash soon", "crash twice", "break a link", "join again", "end a process", "end a node",
            "cut a node", "add a node", "crash and come late", "crash between shards"),
}  # fmt: skip


class Violation(AssertionError):
    """The promise was broken."""


@dataclass
class KnownActor:
    """An actor as its creator meant it."""

    id: bytes
    owner: bytes
    info: ActorInfo
    fn: bytes
    job: Job
    #: The answer to its registration has come: it was registered, or its name was taken.
    is_registered: bool = False
    was_taken: bool = False
    #: The worker of each life.
    lives: dict[int, bytes] = field(default_factory=dict)
    #: Which life was killed by whom, so that it may start again.
    kills: dict[int, bytes] = field(default_factory=dict)
    asked_to_end: set[str] = field(default_factory=set)
    #: Workers of it that have ended, and not because the service said so.
    ends_by_itself: int = 0


@dataclass
class KnownGroup:
    id: bytes
    creator: Program
    name: str
    detached: bool
    is_there: bool = False
    was_taken: bool = False
    is_removed: bool = False
    remover: Program | None = None


class SimService(ControlService):
    """The real one, which may be killed between any two things that it does."""

    def __init__(self, world: World, loop: SimLoop, storage: Any) -> None:
        self.world = world
        self.ended: list[str] = []
        super().__init__(loop, self.ended.append, storage)  # type: ignore[arg-type]

    def _carry_out(self, commands: list[steps.Command]) -> None:
        for command in commands:
            if isinstance(command, steps.Defect):
                raise command.error
        self.world.look_at(commands, getattr(self, "control", None))
        super()._carry_out(commands)
        self.control.validate()

    def _act(self, command: steps.Command) -> None:
        self.world.crash_point()
        super()._act(command)

    def send(self, link: int, message: wire.Message) -> None:
        self.world.crash_point()
        super().send(link, message)


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.clock = Clockwork(seed)
        self.random = self.clock.random
        self.failures: list[str] = []
        self.notes: list[str] = []
        self.is_healing = False
        self.cluster_id = "sim"
        #: So much time has passed that nothing is remembered of processes that are gone.
        self.has_forgotten = False

        choice = self.random.choice
        self.profile = choice(list(PROFILES))
        self.run_s = choice((2.0, 4.0, 6.0))
        self.fault_period_s = choice((0.2, 0.5, 1.0))
        self.pause_s = choice((0.02, 0.05, 0.2))
        self.key_value_weight = choice((1, 6, 20))
        self.operations_max = 24
        self.actors_max = choice((4, 10))
        self.groups_max = choice((0, 3, 6))
        self.objects_max = choice((0, 0, 6))
        #: Workers that were told to leave stay, because others need what they own.
        self.everyone_left_stays = choice((False, False, True))
        self.down_s = choice((0.05, 0.5))
        #: How long a node waits to hear that what its processes have said is durable.
        self.confirm_s = 0.3 if seed % 3 == 0 else processes.CONFIRM_S

        write_s = choice(((0.0002, 0.002), (0.001, 0.02), (0.02, 0.2)))
        shards = choice((1, 1, 4))
        self.disk = SimDisk(self, 4 if self.profile == "shards" else shards, write_s)
        #: The service is killed when one shard has written what others have not.
        self.crashes_between = False
        self.service: SimService | None = None
        self.service_loop: SimLoop | None = None
        self._crash_in = 0
        self._starts = 0
        self.wires: list[Wire] = []

        self.nodes: list[SimNode] = []
        self.numbers: dict[int, bytes] = {}
        self.cut_until: dict[SimNode, float] = {}
        self.everyone: dict[bytes, Program] = {}
        self.actors: dict[bytes, KnownActor] = {}
        self.groups: dict[bytes, KnownGroup] = {}
        self.objects: dict[bytes, bytes] = {}
        self.objects_freed: set[bytes] = set()
        self.operations: dict[bytes, list[Operation]] = {}
        self._values = 0

    # -- running -------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        with self._played():
            self.start_service()
            for _ in range(self.random.choice((2, 2, 3))):
                self.clock.after(self.random.uniform(0, 0.1), self.add_node)
            self.clock.after(0.5 + self.random.random(), self._fault)
            self.clock.run_until(self.run_s, self._has_failed)
            self.heal()
            end = self.run_s + HEAL_S
            while not self.failures and self.clock.now < end:
                self._pass(0.25)
                unrest = self.unrest()
                if not unrest:
                    self._pass(1.5)
                    if not self.unrest():
                        break
            else:
                if not self.failures:
                    self.fail(f"not calm {HEAL_S:g} s after everything was healed: {unrest}")
            if not self.failures:
                self._last_words()
                self.check()
        if self.failures:
            raise Violation(f"seed {self.seed}: {'; '.join(self.failures[:3])}")

    @contextmanager
    def _played(self) -> Iterator[None]:
        """Time, chance and connections are those of the simulation."""
        world = self

        class Time:
            monotonic = staticmethod(lambda: world.clock.now)
            time = staticmethod(lambda: world.clock.now)

        class Complaints:
            def make(self, who: str, kind: str, text: str) -> None:
                world.fail(text)

        def survive(error: Exception, doing: str) -> None:
            raise error

        SimSocket._numbers = iter(range(1000, 1 << 40))  # type: ignore[assignment]
        with ExitStack() as stack:
            for module in CLOCKED:
                stack.enter_context(patch(f"skate.{module}.time", Time))
            stack.enter_context(patch.object(processes, "CONFIRM_S", self.confirm_s))
            stack.enter_context(patch("skate._wire.link.Dial", type("Dial", (SimDial,), {"world": self})))
            stack.enter_context(patch("skate._wire.link._complaints", Complaints()))
            stack.enter_context(patch("skate._wire.link.survive", survive))
            stack.enter_context(patch("skate._node.control_port.command_line", lambda pid: "program"))
            stack.enter_context(patch.object(os, "urandom", self.random.randbytes))
            stack.enter_context(patch.object(remote_control, "JoinError", Violation))
            yield

    def _pass(self, seconds: float) -> None:
        self.clock.after(seconds, lambda: None)
        self.clock.run_until(self.clock.now + seconds, self._has_failed)

    def _has_failed(self) -> bool:
        return bool(self.failures)

    def fail(self, reason: str) -> None:
        self.failures.append(f"at {self.clock.now:.4f}: {reason}")

    def note(self, text: str) -> None:
        self.notes.append(f"{self.clock.now:.4f} {text}")

    # -- the service ---------------------------------------------------------------------------------------------------

    def start_service(self) -> None:
        if self.service_loop is not None:
            return
        loop = self.service_loop = SimLoop(self.clock, self.crash)
        self._starts += 1
        self.note("service starts")
        try:
            self.service = SimService(self, loop, self.disk.opened(loop))
        except Crash:
            self.crash()

    def crash_point(self) -> None:
        if self._crash_in:
            self._crash_in -= 1
            if not self._crash_in:
                raise Crash

    def crash(self) -> None:
        """By `kill -9`. It is started again after a while."""
        if self.service_loop is None:
            return
        self.note("service killed")
        self.service_loop.is_over = True
        self.service = self.service_loop = None
        self._crash_in = 0
        self.disk.crash()
        for wire_ in self.wires:
            wire_.broken()
        self.wires.clear()
        self.clock.after(self.random.uniform(0.01, 2 * self.down_s), self.start_service)

    def connected(self, loop: SimLoop, host: str) -> SimSocket | None:
        """A node dials: its end of the connection, or nothing."""
        node = next((node for node in self.nodes if node.loop is loop), None)
        if self.service is None or self.service_loop is None or node is None or node.is_over:
            return None
        if self.cut_until.get(node, 0.0) > self.clock.now:
            return None
        wire_ = Wire(self.clock, loop, self.service_loop)
        self.wires.append(wire_)
        theirs: Any = wire_.ends[1]
        self.service.new_link().adopt(theirs)
        return wire_.ends[0]

    def wires_of(self, node: SimNode) -> list[Wire]:
        return [wire_ for wire_ in self.wires if wire_.ends[0].loop is node.loop]

    def look_at(self, commands: list[steps.Command], control: Any) -> None:
        """While it waits for nodes, it ends nothing for being absent."""
        if control is None or not control.recovery.is_under_way:
            return
        for command in commands:
            if isinstance(command, steps.Send):
                match command.message:
                    case cluster.KillProcess(_, reason) if reason in (recovery.NOT_NEEDED, recovery.VANISHED):
                        self.fail(f"{reason}: something was ended before all nodes had come")
                    case cluster.News(_, gone) if gone:
                        self.fail("a node was declared dead before all had come")
                    case cluster.DropCopies():
                        self.notes.append("copies dropped during recovery")

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def add_node(self) -> None:
        if len(self.nodes) < 5:
            self.nodes.append(SimNode(self, self.random.choice((2, 3, 4))))

    def numbered(self, node: SimNode) -> None:
        number = node_of(node.id)
        self.note(f"node {number} has joined")
        if self.numbers.setdefault(number, node.id) != node.id:
            self.fail(f"number {number} was given twice")

    def node_with(self, number: int) -> SimNode | None:
        return next((node for node in self.nodes if node.id and node_of(node.id) == number), None)

    def node_ends(self, node: SimNode, *, joins_anew: bool) -> None:
        """The machine is gone with all that ran there."""
        if node.is_over:
            return
        self.note(f"node {node_of(node.id) if node.id else '?'} ends")
        for process in list(node.processes.values()):
            process.ends("its node is gone", by_control=False)
        node.is_over = node.loop.is_over = True
        is_seen = self.random.random() < 0.7
        for wire_ in self.wires_of(node):
            wire_.broken(is_seen=is_seen)
        self.nodes.remove(node)
        if joins_anew:
            self.clock.after(self.random.uniform(0.05, 1.0), self.add_node)

    def cut(self, node: SimNode, seconds: float) -> None:
        """Its connections break, and for a while it makes no others."""
        self.note(f"node {node_of(node.id) if node.id else '?'} is cut off for {seconds:.2f} s")
        if seconds > AWAY_S or (seconds and self.clock.now - self.cut_until.get(node, -AWAY_S) < AWAY_S):
            node.may_be_given_up = True
        self.cut_until[node] = max(self.cut_until.get(node, 0.0), self.clock.now + seconds)
        for wire_ in self.wires_of(node):
            wire_.broken()

    # -- faults --------------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        if self.is_healing:
            return
        self.clock.after(self.random.uniform(0, 2 * self.fault_period_s), self._fault)
        name = self.random.choice(PROFILES[self.profile])
        self.note(f"fault: {name}")
        self._faults()[name]()

    def _faults(self) -> dict[str, Callable[[], None]]:
        return {
            "crash": self.crash,
            "crash soon": self._crash_soon,
            "crash twice": self._crash_twice,
            "crash between shards": self._crash_between_shards,
            "crash and come late": self._crash_and_come_late,
            "break a link": lambda: self._with_node(lambda node: self.cut(node, 0.0)),
            "cut a node": lambda: self._with_node(
                lambda node: self.cut(node, self.random.choice((0.2, 0.5, AWAY_S, 3.0)))
            ),
            "join again": lambda: self._with_node(self._join_again),
            "end a process": self._end_process,
            "end a node": lambda: self._with_node(
                lambda node: self.node_ends(node, joins_anew=self.random.random() < 0.5)
            ),
            "add a node": self.add_node,
        }

    def _with_node(self, act: Callable[[SimNode], None]) -> None:
        there = [node for node in self.nodes if node.control._begun]
        if there:
            act(self.random.choice(there))

    def _crash_soon(self) -> None:
        if self.service is not None:
            self._crash_in = self.random.choice((1, 2, 3, 5, 10, 20, 50))

    def _crash_between_shards(self) -> None:
        self.crashes_between = True

    def _crash_twice(self) -> None:
        self.crash()

        def again() -> None:
            if self.service is None:
                self.clock.after(0.05, again)
            else:
                self._crash_in = self.random.choice((1, 3, 10, 30))

        self.clock.after(0.05, again)

    def _crash_and_come_late(self) -> None:
        self.crash()
        for node in self.nodes:
            if node.id and self.random.random() < 0.5:
                self.cut(node, self.random.choice((0.3, 1.0, 3.0, recovery.RECOVERY_S + 3)))
                if self.random.random() < 0.2:
                    self.node_ends(node, joins_anew=False)
                    break

    def _join_again(self, node: SimNode) -> None:
        """As when too much waited in its link. Some of that arrives when it has said all of it again."""
        self.note(f"node {node_of(node.id)} joins again")
        for wire_ in self.wires_of(node):
            wire_.slow(0.1)

        def join() -> None:
            if not node.is_over and node.control._link.is_connected:
                node.control._join_again()

        self.clock.after(self.random.uniform(0.0, 0.1), join)

    def _end_process(self) -> None:
        living = [process for process in self.everyone.values() if self.lives(process)]
        if living:
            process = self.random.choice(living)
            process.exits("it was killed")
            if self.random.random() < 0.5:
                self._crash_soon()
            if process.worker is None and self.random.random() < 0.7:
                process.node.new_driver()

    def heal(self) -> None:
        self.note("healed")
        self.is_healing = True
        self._crash_in = 0
        self.crashes_between = False
        self.cut_until = {node: min(until, self.clock.now + 5.0) for node, until in self.cut_until.items()}

    # -- what programs ask for -----------------------------------------------------------------------------------------

    def new_id(self, size: int) -> bytes:
        return self.random.randbytes(size)

    def next_value(self) -> int:
        self._values += 1
        return self._values

    def new_actor(self, actor: bytes, owner: Program, info: ActorInfo, fn: bytes) -> None:
        self.actors[actor] = KnownActor(actor, owner.id, info, fn, owner.job)

    def new_group(self, group: bytes, creator: Program, name: str, *, detached: bool) -> KnownGroup:
        known = self.groups[group] = KnownGroup(group, creator, name, detached)
        return known

    def new_objects(self) -> bool:
        return len(self.objects) < self.objects_max

    def new_object(self, owner: Program) -> bytes:
        object = self.new_id(20)
        self.objects[object] = owner.id
        return object

    def living_objects(self) -> list[bytes]:
        return [object for object in self.objects if self.object_lives(object)]

    def object_lives(self, object: bytes) -> bool:
        return object not in self.objects_freed and self.lives(self.everyone[self.objects[object]])

    def lives(self, process: Program) -> bool:
        return process.is_alive and not process.node.is_over

    def copy_dropped(self, node: SimNode, object: bytes) -> None:
        if self.object_lives(object) and not self.everyone[self.objects[object]].node.may_be_given_up:
            self.fail(f"a copy of object {object.hex()} was dropped, and its owner lives")

    def note_kill(self, process: Program, reason: str) -> None:
        self.note(f"{process} is killed: {reason}")

    # -- the end -------------------------------------------------------------------------------------------------------

    def unrest(self) -> str:
        """What still moves."""
        if self.service is None:
            return "there is no service"
        control = self.service.control
        if control.recovery.is_under_way:
            return "the service waits for nodes"
        if away := [node_of(node.id) for node in self.nodes if not node.is_in]:
            return f"nodes {away} are not in"
        if control.nodes.membership.members.keys() != {node.id for node in self.nodes}:
            return f"the service has the nodes {sorted(map(node_of, control.nodes.membership.members))}"
        for node in self.nodes:
            if said := node.control._outbox.statistics()["messages"]:
                return f"{said} messages of processes of node {node_of(node.id)} are not done"
            if node.actors.held() and any(not held.life for held in node.actors.held()):
                return "a worker was not told to become its actor"
        if waiting := [process for process in self.everyone.values() if self.lives(process) and process.waits]:
            return f"{waiting[0]} waits for an answer"
        for actor in control.actors.table.actors.values():
            if actor.state == actor_states.STARTING:
                return f"actor {actor.id.hex()} is starting"
            if actor.state == actor_states.WAITING and self.lives(self.everyone[actor.owner]):
                return f"actor {actor.id.hex()} waits to be created"
        for group in control.groups.table.groups.values():
            if group.state == group_states.PREPARING:
                return f"group {group.id.hex()} is being prepared"
        if self.service.ledger.waiting:
            return "messages wait for the disk"
        return self._unplaced(control)

    def _unplaced(self, control: Any) -> str:
        views = control.nodes.views
        for group in control.groups.table.groups.values():
            if group.state != group_states.READY:
                left = [bundle for bundle in group.bundles if not bundle.node]
                beside = [bundle.node for bundle in group.bundles if bundle.node]
                if assign([bundle.needs for bundle in left], views, group.strategy, beside=beside) is not None:
                    return f"group {group.id.hex()} is {group.state}, and there is room"
        for actor in control.actors.table.actors.values():
            if actor.state == actor_states.PENDING:
                from skate._control.state.placing import _request

                request = _request(actor.info)
                if any(view.fits(request.needs) and view.can_ever_fit(request.needs) for view in views):
                    return f"actor {actor.id.hex()} is pending, and there is room"
                if isinstance(choose(request, views), Nowhere) and not actor.info.resources.keys() - {"CPU"}:
                    return f"actor {actor.id.hex()} can be placed nowhere"
        return ""

    def _last_words(self) -> None:
        """All programs read once more: the service hears which answers have come."""
        for key in self.operations:
            living = [process for process in self.everyone.values() if self.lives(process)]
            for process in living:
                operation = Operation("read", key.decode(), (), self.clock.now)

                def answered(body: Any, operation: Operation = operation) -> None:
                    operation.returned_at = self.clock.now
                    operation.result = body.decode() if body is not None else None

                process.ask(
                    lambda request, key=key: wire.KeyValue(request, "get", "n", key),
                    answered,  # type: ignore[misc]
                )
                if process is living[0]:
                    self.operations[key].append(operation)
            self._pass(0.6)
        if self.seed % 4 == 0:
            self._pass(processes.REMEMBER_S)
            self.has_forgotten = True

    def check(self) -> None:
        assert self.service is not None
        control = self.service.control
        control.validate()
        control.placing._homes.validate()
        for key, operations in self.operations.items():
            if not is_linearizable(operations):
                self.fail(f"no order explains what was read and written under {key!r}")
        self._check_nodes(control)
        self._check_actors(control)
        self._check_groups(control)
        self._check_the_rest(control)
        self._check_disk(control)

    def _check_nodes(self, control: Any) -> None:
        numbers = {node_of(node.id): node.id for node in self.nodes}
        if control.nodes.by_number != numbers:
            self.fail("the service has other nodes than there are")
        for node in self.nodes:
            node.control._outbox.validate()
            if strangers := node.control._outbox._boxes.keys() - node.processes.keys():
                self.fail(f"node {node_of(node.id)} keeps messages of {len(strangers)} processes that are gone")
            if node.scheduler._demands and not node.actors.looking():
                self.fail("a worker is looked for, and nobody wants it")

    def _check_actors(self, control: Any) -> None:
        table = control.actors.table
        workers = {process.id: process for process in self.everyone.values() if self.lives(process) and process.worker}
        for actor in table.actors.values():
            mine = [process for process in workers.values() if process.actor == actor.id]
            if actor.state == actor_states.ALIVE:
                if [process.id for process in mine] != [actor.worker] or mine[0].life != actor.lives:
                    self.fail(f"actor {actor.id.hex()} is alive as {actor.worker.hex()}, and its workers are {mine}")
            elif mine and not all(process._is_leaving for process in mine):
                self.fail(f"actor {actor.id.hex()} is {actor.state}, and its workers are {mine}")
            self._check_end(actor, table)
        for process in workers.values():
            if not process.actor or process.actor not in table.actors:
                self.fail(f"{process} is the worker of no actor")
        for known in self.actors.values():
            if known.is_registered and known.id not in table.actors:
                self.fail(f"actor {known.id.hex()} was registered, and is not known")
            if known.was_taken and table.is_living(known.id):
                self.fail(f"actor {known.id.hex()} lives, and its name was taken")
        for process in self.everyone.values():
            if self.lives(process):
                self._check_watches(process, table)
        holders: dict[str, int] = {}
        for actor in table.actors.values():
            if actor.info.name and actor.state != actor_states.DEAD:
                holders[actor.info.name] = holders.get(actor.info.name, 0) + 1
                if table.named("n", actor.info.name) is not actor:
                    self.fail(f"actor {actor.id.hex()} is not found by its name")
        if any(count > 1 for count in holders.values()):
            self.fail("two living actors have one name")

    def _check_end(self, actor: Any, table: Any) -> None:
        """Whoever is dead has a reason to be."""
        known, owner = self.actors[actor.id], self.everyone[actor.owner]
        if not self.lives(owner) and actor.state != actor_states.DEAD and not actor.info.detached:
            self.fail(f"actor {actor.id.hex()} lives, and its owner is dead")
        if actor.state != actor_states.DEAD:
            return
        kind = actor.death.kind
        is_explained = {
            "kill": "kill" in known.asked_to_end,
            "scope": "scope" in known.asked_to_end,
            "init": "init" in known.asked_to_end,
            "exit": "exit" in known.asked_to_end,
            # A shard may have written that its node is dead, and the one that has the row of the node may not.
            "owner": not self.lives(owner) or (owner.node.may_be_given_up and len(self.disk.shards) > 1),
            "crash": bool(known.ends_by_itself or known.kills or not self.lives(owner)),
            "restarts": bool(known.ends_by_itself or known.kills),
        }.get(kind, True)
        if not is_explained:
            self.fail(f"actor {actor.id.hex()} is dead without a reason: {kind}: {actor.death.reason}")

    def _check_watches(self, process: Program, table: Any) -> None:
        for id, told in process.watched.items():
            actor = table.actors.get(id)
            state = actor.state if actor is not None else actor_states.DEAD
            if actor is None and self.lives(self.everyone[self.actors[id].owner]):
                continue  # it may still be registered
            if (told is not None and told.state == actor_states.DEAD) != (state == actor_states.DEAD):
                self.fail(f"actor {id.hex()} is {state}, and {process} was told {told}")
            elif state == actor_states.ALIVE and told is not None:
                if (told.state, told.life, told.process_id) != (state, actor.lives, actor.worker):
                    self.fail(f"actor {id.hex()} is alive as {actor.worker.hex()}, and {process} was told {told}")
            elif told is not None and told.state == actor_states.ALIVE:
                self.fail(f"actor {id.hex()} is {state}, and {process} was told {told}")

    def _check_groups(self, control: Any) -> None:
        table = control.groups.table
        held = {(node.id, group, index): counts for node in self.nodes for group, index, counts in node.groups.held()}
        meant = {
            (bundle.node, group.id, index): bundle.committed
            for group in table.groups.values()
            for index, bundle in enumerate(group.bundles)
            if bundle.node
        }
        if held != meant:
            self.fail(f"bundles are held as {_shown(held)}, and should be as {_shown(meant)}")
        for known in self.groups.values():
            group = table.groups.get(known.id)
            if known.is_there and group is None and not known.is_removed and known.detached:
                self.fail(f"group {known.id.hex()} was created, and is not known")
            was_heard = known.remover is not None and not known.remover.node.is_over
            if group is not None and (was_heard or known.was_taken):
                self.fail(f"group {known.id.hex()} is known, and was removed, or its name taken")
            if group is not None and group.job:
                driver, actor = self.everyone.get(group.job), control.actors.table.actors.get(group.job)
                if not (driver and self.lives(driver)) and not (actor and actor.state != actor_states.DEAD):
                    self.fail(f"group {known.id.hex()} is known, and its job is over")
                if known.is_there and driver and not self.lives(driver):
                    self.fail(f"group {known.id.hex()} has outlived its driver")
        named = [group.name for group in table.groups.values() if group.name]
        if len(named) != len(set(named)) or control.groups._names.keys() != set(named):
            self.fail(f"groups are called {named}, and found as {list(control.groups._names)}")

    def _check_the_rest(self, control: Any) -> None:
        living = {process.id for process in self.everyone.values() if self.lives(process)}
        if strangers := control.processes.jobs.keys() - living:
            self.fail(f"{len(strangers)} processes that are gone are known")
        writers = set(control.key_values.writers())
        if writers if self.has_forgotten else writers & living:
            self.fail("writes are kept whose answers have come")
        if control.processes._untold or self.service is None or self.service.ledger.waiting:
            self.fail("something is not confirmed")
        drivers = {process.id for process in self.everyone.values() if self.lives(process) and process.worker is None}
        if control.jobs.drivers.keys() != drivers:
            self.fail("the service knows other drivers than there are")
        for process in self.everyone.values():
            if self.lives(process) and control.processes.jobs.get(process.id, process.job) != process.job:
                self.fail(f"{process} is known with another job")
        for topic in ("t", "u"):
            subscribed = {id for id in living if topic in self.everyone[id].topics}
            if control._topics._subscribers.get(("n", topic), set()) != subscribed:
                self.fail(f"other processes subscribe to {topic} than the service knows")
        known = control.functions._known
        needed = {fn for id in living for fn in self.everyone[id].functions}
        needed |= {self.actors[id].fn for id in control.actors._creations}
        given_up = len(self.disk.shards) > 1 and any(node.may_be_given_up for node in self.nodes)
        if not known.keys() <= needed if given_up else known.keys() != needed:
            self.fail(f"the functions {sorted(known)} are known, and {sorted(needed)} needed")
        for object in self.objects:
            holders = [node for node in self.nodes if object in node.transfers.copies]
            # What a node had said of its objects may be lost with it: then no one knows whose the copies are.
            is_told = not self.everyone[self.objects[object]].node.is_over
            if not self.object_lives(object) and holders and is_told:
                self.fail(f"copies of object {object.hex()} are left, and it is gone")

    def _check_disk(self, control: Any) -> None:
        """What is stored is what is known."""
        for table, row_of in control._row_of.items():
            lasting: Callable[[Any], Any] = LASTING.get(table, lambda row: row)
            unpack = tables.unpacker(tables.RECORDS[table])
            stored = {key: lasting(unpack(row)) for key, row in self.disk.rows(table)}
            known = {key: lasting(unpack(row)) if (row := row_of(key)) is not None else None for key in stored}
            for key, row in stored.items():
                if row != known[key]:
                    self.fail(f"row {key!r} of {table} is stored as {row}, and is {known[key]}")
                    return


def _shown(bundles: dict[tuple[bytes, bytes, int], bool]) -> str:
    return str([(node_of(node), group[:3].hex(), index, counts) for (node, group, index), counts in bundles.items()])
