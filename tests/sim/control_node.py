"""A node of the simulated cluster: the real `RemoteControl`, `Actors`, `Groups` and `ResourcePool`; the rest is played.

    programs (control_programs.py) ──▶ RemoteControl ──Link──▶ the control service
                                       ◀── orders ──

Played: the scheduler (workers are found after a while), processes, and the objects that nodes copy from each other.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from control_network import SimLoop
from control_programs import Program

from skate._core import lease_events as leases
from skate._core.ids import new_process_id, node_of, place_of
from skate._core.placement import NodeView
from skate._core.resources import PRECISION, Allocation, ResourcePool, group_of, to_units
from skate._core.task import Job
from skate._node.actors import Actors
from skate._node.groups import Groups
from skate._node.remote_control import RemoteControl
from skate._wire import cluster
from skate._wire import messages as wire

if TYPE_CHECKING:
    from control_world import World

#: How long it takes to start a worker, to kill one, and to deliver a message within a node.
START_S = (0.01, 0.3)
KILL_S = 0.01
HAND_OVER_S = 0.0005


class SimNode:
    """Its attributes are those of the daemon that the real classes use."""

    def __init__(self, world: World, cpus: int) -> None:
        self.world = world
        self.loop: Any = SimLoop(world.clock)
        self.is_over = False
        #: It may be declared dead from then on: it was away for too long.
        self.may_be_given_up = False
        self.processes: dict[bytes, Program] = {}
        self.pids: dict[bytes, int] = {}
        self.deaths: dict[bytes, wire.PeerGone] = {}
        self.scheduler = SimScheduler(self, cpus)
        self.output = SimpleNamespace(begin_actor=lambda process: None, tell_drivers=lambda text: None)
        self.switchboard = self.pool = self.demands = self.mailboxes = self
        self.transfers = SimTransfers(self)
        self.neighbours = SimNeighbours(self)
        self.actors = Actors(self)  # type: ignore[arg-type]
        self.groups = Groups(self)  # type: ignore[arg-type]
        config: Any = SimpleNamespace(control=("control", 1), token="")
        self.control = RemoteControl(self, self.neighbours, config, None)  # type: ignore[arg-type]
        # As `RemoteControl.join` does, which waits for the answer.
        self.control._link.connect("control", 1, b"")
        self.control._link.send(cluster.Join(self.neighbours.member, self.control._link.session))

    @property
    def id(self) -> bytes:
        return self.neighbours.node_id

    @property
    def is_in(self) -> bool:
        """The service that runs now has taken it in."""
        return self.control._begun and self.control._is_in and self.control.incarnation == self.world.disk.incarnation

    def begin(self) -> None:
        if not self.is_over:
            self.control.begin()
            for _ in range(self.world.random.choice((0, 1, 1, 2))):
                self.new_driver()

    # -- what the real classes ask of a daemon ------------------------------------------------------------------------

    def view(self) -> NodeView:
        pool = self.scheduler.pool
        return NodeView(id=self.id, total=dict(pool.total), available=dict(pool.available))

    def send(self, process_id: bytes, message: Any) -> None:
        self.world.clock.after(HAND_OVER_S, lambda: self._hand_over(process_id, message))

    def deliver(self, process_id: bytes, message: Any) -> None:
        self.send(process_id, message)

    def _hand_over(self, process_id: bytes, message: Any) -> None:
        process = self.processes.get(process_id)
        if process is not None and not self.is_over:
            process.hear(message)

    def post(self, event: Any) -> None:
        self.scheduler.post(event)

    def death_of(self, process_id: bytes) -> wire.PeerGone:
        unknown = wire.PeerGone(process_id, 0, 0, b"", [], "the node daemon does not know this process")
        return self.deaths.get(process_id, unknown)

    def kill(self, process_id: bytes, reason: str) -> None:
        self.world.clock.after(KILL_S, lambda: self.process_ends(process_id, reason, by_control=True))

    def on_group_removed(self, group: bytes) -> None:
        """No task waits for one here."""

    def on_news(self) -> None:
        """No task waits for a node here."""

    def end(self, reason: str, *, joins_anew: bool = False) -> None:
        """The service says that this node is dead, or that the cluster is."""
        if not self.is_over:
            if not joins_anew:
                self.world.fail(f"node {node_of(self.id)} was told that the cluster has ended: {reason}")
            elif not self.may_be_given_up:
                self.world.fail(f"node {node_of(self.id)} was there, and was told to end: {reason}")
            self.world.node_ends(self, joins_anew=True)

    # -- processes ----------------------------------------------------------------------------------------------------

    def new_process(self, job: Job | None) -> Program:
        """A worker of that job; without one a driver."""
        id = new_process_id(node_of(self.id))
        is_driver = job is None
        if job is None:
            job = Job(id[-4:], id, "n", program=id)
        process = self.processes[id] = Program(self.world, self, id, job, is_driver=is_driver)
        self.pids[id] = len(self.world.everyone) + 100
        self.world.everyone[id] = process
        return process

    def new_driver(self) -> None:
        process = self.new_process(None)
        self.control.job_started(process.job, self.pids[process.id])
        process.begin()

    def process_ends(self, process_id: bytes, reason: str, *, by_control: bool = False) -> None:
        """In the order of `Daemon._on_driver_gone` and `Daemon.on_worker_exited`."""
        process = self.processes.get(process_id)
        if process is None or self.is_over:
            return
        if by_control:
            self.world.note_kill(process, reason)
        process.ends(reason, by_control=by_control)
        if process.worker is None:
            self.control.job_ended(process.job)
        gone = wire.PeerGone(process_id, self.pids[process_id], -9, b"", [], reason)
        del self.processes[process_id], self.pids[process_id]
        self.deaths[process_id] = gone
        self.actors.on_process_died(process_id)
        self.control.process_died(gone)
        self.transfers.on_process_died(process_id)
        self.scheduler.process_died(process_id)


class SimNeighbours:
    def __init__(self, node: SimNode) -> None:
        self._node = node
        self.node_id = b""
        self.cluster_id = ""
        self.transfers = node.transfers
        self.reach = SimpleNamespace(look=lambda now: None)
        total = dict(node.scheduler.pool.total)
        self.member = cluster.Member(NodeView(id=b"", total=total, available=dict(total)), "127.0.0.1", 1, "sim")

    def prepare_member(self, host: str, port: int) -> None:
        """It is prepared."""

    def on_joined(self, message: cluster.Joined) -> None:
        node, world = self._node, self._node.world
        if not self.node_id:
            self.node_id = self.member.view.id = message.node_id
            self.cluster_id = message.cluster_id
            world.numbered(node)
            world.clock.after(world.random.choice((0.0, 0.02)), node.begin)
        elif message.node_id != self.node_id:
            world.fail(f"node {self.node_id.hex()} became {message.node_id.hex()}")
        if message.cluster_id != world.cluster_id:
            world.fail("the cluster has another id")

    def on_joined_again(self) -> None:
        self.transfers.on_control_back()

    def on_control(self, message: Any) -> bool:
        match message:
            case cluster.News():
                for node_id, reason in message.gone:
                    if node_id == self.node_id:
                        self._node.end(reason, joins_anew=True)
            case cluster.Located():
                self.transfers.on_located(message)
            case cluster.Tracked(object):
                self.transfers.on_tracked(object)
            case cluster.DropCopies(objects):
                self.transfers.on_drop_copies(objects)
            case _:
                return False
        return True


class SimScheduler:
    def __init__(self, node: SimNode, cpus: int) -> None:
        self._node = node
        self.pool = ResourcePool({"CPU": cpus * PRECISION})
        self._demands: dict[bytes, leases.DemandChanged] = {}
        self._held: dict[bytes, Allocation] = {}

    def post(self, event: Any) -> None:
        world = self._node.world
        match event:
            case leases.DemandChanged():
                if event.count:
                    self._demands[event.process] = event
                    world.clock.after(world.random.uniform(*START_S), lambda: self._serve(event.process))
                else:
                    self._demands.pop(event.process, None)
            case leases.BundleCommitted(group, index):
                self.pool.commit(group, index)
                self._look()
            case leases.BundleReleased(group, index):
                self.pool.release(group, index)
                for worker, allocation in list(self._held.items()):
                    if group_of(allocation.amounts) == group:
                        self._node.world.clock.after(KILL_S, lambda worker=worker: self._node.process_ends(worker, "x"))
                self._look()

    def process_died(self, process_id: bytes) -> None:
        allocation = self._held.pop(process_id, None)
        if allocation is not None:
            self.pool.give_back(allocation)
            self._look()

    def _look(self) -> None:
        for actor in list(self._demands):
            self._node.world.clock.after(0.0, lambda actor=actor: self._serve(actor))

    def _serve(self, actor: bytes) -> None:
        node, demand = self._node, self._demands.get(actor)
        if demand is None or node.is_over:
            return
        needs = to_units(demand.resources)
        if not self.pool.can_ever_fit(to_units(demand.to_place) or needs):
            del self._demands[actor]
            node.actors.on_infeasible(leases.ReportInfeasible(actor, 0, {}, {}, ""))
        elif self.pool.fits(needs):
            del self._demands[actor]
            process = node.new_process(node.actors.job_for(actor))
            self._held[process.id] = self.pool.take(needs)
            node.actors.on_granted(leases.GrantLease(actor, 0, 1, process.id, demand.resources, []))


class SimTransfers:
    """Objects: made here and known to others, and copies of those of others. As `transfers.py` tells of them."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        #: What was made here, with its owner; and which of it the service knows.
        self.made: dict[bytes, bytes] = {}
        self._tracked: set[bytes] = set()
        self.copies: set[bytes] = set()
        self._pulling: dict[bytes, bytes] = {}

    def _tell(self, message: Any) -> None:
        self._node.control.tell(message)

    def held(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        return [(object, self.made[object]) for object in sorted(self._tracked)], sorted(self.copies)

    def pull(self, object: bytes, maker: SimNode) -> None:
        if object not in self.copies and object not in self._pulling:
            self._pulling[object] = maker.id
            self._locate(object)

    def _locate(self, object: bytes) -> None:
        self._tell(cluster.Locate(object, place_of(node_of(self._pulling[object]), 1)))

    def on_located(self, message: cluster.Located) -> None:
        if self._pulling.pop(message.object, None) is not None and message.source:
            source = self._node.world.node_with(message.source)
            is_there = source is not None and source.control._link.is_connected  # it can say whose that is
            if is_there and source.transfers.serves(message.object):
                self.copies.add(message.object)
                self._tell(cluster.CopyStored(message.object))
            else:
                self._tell(cluster.CopyDropped(message.object))

    def serves(self, object: bytes) -> bool:
        """Another node gets it from here. Before that, the service is told whose it is."""
        if object in self.made:
            self.on_tracked(object)
        return object in self.made or object in self.copies

    def on_tracked(self, object: bytes) -> None:
        if object in self.made:
            self._tracked.add(object)
            self._tell(cluster.Owned(object, self.made[object]))
        else:
            self._tell(cluster.Freed([object]))

    def on_drop_copies(self, objects: list[bytes]) -> None:
        for object in objects:
            if object in self.copies:
                self.copies.discard(object)
                self._node.world.copy_dropped(self._node, object)

    def free(self, object: bytes) -> None:
        if self.made.pop(object, None) is not None and object in self._tracked:
            self._tracked.discard(object)
            self._tell(cluster.Freed([object]))

    def on_process_died(self, process_id: bytes) -> None:
        for object in [object for object, owner in self.made.items() if owner == process_id]:
            self.free(object)

    def on_control_back(self) -> None:
        for object in self._pulling:
            self._locate(object)

    def on_control_silent(self) -> None:
        """What is pulled waits."""
