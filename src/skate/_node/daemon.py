"""The node daemon: builds the parts of a node and connects them. It makes no decisions of its own.

    driver, workers ──control channels──▶ Daemon ──events──▶ Scheduler   (_core: who gets which worker)
                                            │  ◀──commands──
                                            ├──▶ Store        objects in the arena, on disk
                                            ├──▶ Switchboard  direct channels between processes
                                            ├──▶ WorkerPool   zygotes, forks, deaths
                                            ├──▶ Actors       who lives where, under which name
                                            ├──▶ Logs         what workers print, to the driver
                                            └──▶ Inquiries    answers for people

Everything runs in one thread, on one event loop; with nothing to do it sleeps in the kernel.

A worker's end has one order of things, in `on_worker_exited`: hear what it still said, note what it printed last and
which task it was in, take back its memory, tell its peers that it is gone, and only then let the scheduler go on.

A daemon that `init` started ends with its last driver, and takes everything along, detached actors included; while it
lives other drivers can join it (`lobby.py`). One that `skate start` started outlives drivers; so do its actors.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from skate._config import scheduling_delay_ms
from skate._control.mailboxes import Mailboxes
from skate._core import lease_events as leases
from skate._core.actors import ended_with_node
from skate._core.ids import new_job_id, new_process_id, node_at, node_of, place_of
from skate._core.last_output import LastOutput
from skate._core.placement import BYTES_PER_S_AT_FIRST, TASK_S_AT_FIRST, Average, NodeView
from skate._core.policy_crowding import has_no_worker_for_tasks
from skate._core.resources import to_floats, to_units
from skate._core.scheduler import Scheduler, SchedulerConfig
from skate._core.task import Job
from skate._core.worker_limit import DESCRIPTORS_LEAST, worker_limit
from skate._node import descriptors
from skate._node.actors import Actors
from skate._node.control_port import ControlPort
from skate._node.demands import Demands
from skate._node.end_orders import EndOrders
from skate._node.garbage import Garbage
from skate._node.groups import Groups
from skate._node.inquiries import Inquiries
from skate._node.lease_commands import LeaseCommands
from skate._node.lobby import Lobby, complain, lobby_name
from skate._node.logs import Stream
from skate._node.memory_watch import MemoryWatch
from skate._node.no_neighbours import NoNeighbours
from skate._node.output import Output
from skate._node.oversize import on_refusal, on_unsent
from skate._node.store import Store
from skate._node.switchboard import Switchboard
from skate._node.system import resources_of, wait_writable
from skate._node.worker_pool import PooledWorker, WorkerPool, WorkerSetup, become_subreaper
from skate._store.layout import SLOT_COUNT
from skate._system_limits import raise_descriptor_limit, raise_process_limit, thread_limits
from skate._wire import messages as wire
from skate._wire.channel import RECEIVE_BYTES, Channel, ChannelClosed, TooLarge
from skate._wire.guard import ProtocolError, survive
from skate._wire.loop import EventLoop, Timer
from skate._wire.messages import AnyMessage, Message

if TYPE_CHECKING:
    from skate._node.main import NodeConfig
    from skate._node.neighbours import Neighbours
    from skate._node.supervisor import Supervisor

#: A worker whose control channel ended is killed if it is still there after this time.
EXIT_GRACE_S = 0.2
#: A connection between two processes for which no descriptor is free is tried again after this time.
CONNECT_AGAIN_S = 0.1
#: The zygote of an environment stays so much longer than its idle workers: it costs a hundred times as much to start.
ZYGOTE_IDLE_FACTOR = 6
#: Time that ending may take, and how long a driver that is still reading the last lines is given in all.
END_S = 1.0
LAST_LINES_S = 10.0
#: What processes say that is for the control state.
TO_CONTROL = (
    wire.RegisterActor, wire.CreateActor, wire.ActorStarted, wire.ActorEnded, wire.WatchActor, wire.UnwatchActor,
    wire.KillActor, wire.DropActor, wire.FindActor, wire.CreateGroup, wire.RemoveGroup, wire.KeyValue, wire.Topic,
    wire.Define, wire.Undefine, wire.Needs,
)  # fmt: skip


NO_JOB = Job()


class Process:
    """A driver or a worker, as the daemon knows it."""

    def __init__(self, process_id: bytes, channel: Channel, worker: PooledWorker | None = None) -> None:
        self.id = process_id
        self.channel = channel
        #: None for a driver.
        self.worker = worker
        #: It said hello.
        self.ready = False
        self.pidfd = -1
        #: What a worker prints.
        self.streams: list[Stream] = []
        #: None: it has printed nothing.
        self.last_output: LastOutput | None = None
        self.partial_timer: Timer | None = None
        #: That it works for.
        self.job = NO_JOB
        #: A driver that said Shutdown, and waits for Goodbye.
        self.leaves = False


class Daemon:
    def __init__(self, config: NodeConfig, zygote_pid: int, zygote_sock: socket.socket) -> None:
        self.config = config
        self.loop = EventLoop()
        self.total = to_units(resources_of(config))
        self.neighbours: Neighbours | NoNeighbours
        if config.cluster is not None:
            from skate._node.neighbours import Neighbours  # a node that is alone starts sooner without

            self.neighbours = Neighbours(self, config.cluster)
        else:
            self.neighbours = NoNeighbours(self)
        self.node_id = self.neighbours.node_id
        self.control: ControlPort = self.neighbours.control
        self.number = node_of(self.node_id)
        self.processes: dict[bytes, Process] = {}
        #: Pids of `processes`, for those who need no more of them.
        self.pids: dict[bytes, int] = {}
        self.output = Output(self)
        self._buffer = bytearray(RECEIVE_BYTES)
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.loop.watch(self._wake_fd, self._on_wake)
        self.garbage = Garbage(self)
        self.store = Store(
            config.object_store_memory,
            config.spill_directory,
            self._reply_from_store,
            self._wake,
            self.describe_process,
            full_grace_s=config.store_full_grace_s,
            collect=self.garbage.ask,
        )
        raise_process_limit()
        open_files = raise_descriptor_limit()
        if open_files.amount < DESCRIPTORS_LEAST:
            raise OSError(errno.EMFILE, f"A node needs {DESCRIPTORS_LEAST}")
        limit = worker_limit(
            slots=SLOT_COUNT,
            descriptors=open_files,
            threads=thread_limits(),
            cpus=config.num_cpus,
            in_cluster=config.cluster is not None,
        )
        prestart = max(1, int(config.num_cpus)) if config.prestart is None else config.prestart
        if not config.serves or (config.cluster is not None and config.control_fd < 0):
            prestart = 0  # it may be one of many nodes, and have nothing to do for long
        self.scheduler = Scheduler(
            self.total,
            SchedulerConfig(
                prestart=prestart,
                idle_worker_s=config.idle_worker_s,
                infeasible_grace_s=config.infeasible_grace_s,
                starting_max=max(4, prestart + 2),
                workers_max=limit.workers,
                kept_for_tasks=limit.for_tasks,
                workers_max_why=limit.why,
            ),
            first_lease=place_of(self.number, 1),
        )
        self.demands = Demands(self)
        #: How long tasks take that are submitted here, and how fast objects arrive: for those who choose a node.
        self.task_s = Average(TASK_S_AT_FIRST)
        self.bytes_per_s = Average(BYTES_PER_S_AT_FIRST)
        self._lease_commands = LeaseCommands(self)
        self._end_orders = EndOrders(self)
        self.switchboard = Switchboard(self.send, self.pids)
        self.inquiries = Inquiries(self)
        self.descriptors = descriptors.Descriptors(self.send, open_files.amount)
        self.mailboxes = Mailboxes(self.send, self._is_congested)
        self.actors = Actors(self)
        self.groups = Groups(self)
        setup = WorkerSetup(self.node_id, self.store.fd, config.object_store_memory, entry=config.worker_entry)
        zygote_idle_s = config.idle_worker_s * ZYGOTE_IDLE_FACTOR
        self.pool = WorkerPool(self.loop, self, setup, slots=SLOT_COUNT, zygote_idle_s=zygote_idle_s)
        self.pool.adopt_zygote(zygote_pid, zygote_sock)
        self.memory_watch = MemoryWatch(self)
        cluster = "{}:{}".format(*config.cluster.control) if config.cluster is not None else ""
        self.address = lobby_name(self.node_id, cluster, private=bool(config.parent))
        self._lobby: Lobby | None = None
        self._ended = False
        #: It was taken for dead by its cluster: all that it ran is over, and it begins again as another node.
        self.joins_anew = False
        #: It serves a cluster, and ends when that does or when it is told to.
        self._serves = config.cluster is not None and config.control_fd < 0
        if config.control_fd >= 0:
            self._add_driver(socket.socket(fileno=config.control_fd))
        else:
            self.open_lobby()
        self._supervisor: Supervisor | None = None
        if config.supervises is not None:
            from skate._node.supervisor import Supervisor  # only the head loads it

            self._supervisor = Supervisor(self, config.supervises)
        self.neighbours.begin()

    # -- the loop -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until the end."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self._serves:
            signal.signal(signal.SIGTERM, lambda *_: self.end("it was told to (SIGTERM)"))
        while not self._ended:
            deadlines = (self.scheduler.next_deadline(), self.store.next_deadline())
            self.loop.run_once(min((deadline for deadline in deadlines if deadline is not None), default=None))
            self._act_on_deadlines(time.monotonic())
            self.output.send()
            if self.mailboxes:
                self.mailboxes.send_waiting()
        self._end()

    def _act_on_deadlines(self, now: float) -> None:
        deadline = self.scheduler.next_deadline()
        if deadline is not None and now >= deadline:
            self.post(leases.TimePassed())
        deadline = self.store.next_deadline()
        if deadline is not None and now >= deadline:
            self.store.tick(now)

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _on_wake(self, events: int) -> None:
        os.eventfd_read(self._wake_fd)
        self.store.on_wake(time.monotonic())

    def send(self, process_id: bytes, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send to a process, here or elsewhere; if it is gone, nobody misses the message."""
        process = self.processes.get(process_id)
        if process is not None:
            try:
                process.channel.send(message, fds)
            except TooLarge as error:
                on_unsent(self, process, message, error)
        elif node_of(process_id) != self.number:
            self.neighbours.send_to_process(process_id, message)

    def _is_congested(self, process_id: bytes) -> bool | None:
        process = self.processes.get(process_id)
        return process.channel.has_backlog if process is not None else None

    def describe_process(self, process_id: bytes) -> str:
        process = self.processes.get(process_id)
        if process is None:
            return self.neighbours.describe(process_id) or "a process that has ended"
        return f"{'driver' if process.worker is None else 'worker'} pid {self.pids[process_id]}"

    # -- processes come ---------------------------------------------------------------------------------------------

    def _add_driver(self, sock: socket.socket) -> None:
        process = Process(new_process_id(self.number), Channel(sock, carries_fds=True, name="driver"))
        self._add(process, pid=0)

    def open_lobby(self) -> None:
        """Others than the first driver may need this node one day."""
        if self._lobby is None:
            self._lobby = Lobby(self.address, self._add_driver)
            self.loop.watch(self._lobby.sock.fileno(), self._lobby.on_readable)

    def on_worker_created(self, worker: PooledWorker) -> None:
        process = Process(worker.process_id, worker.channel, worker)
        process.streams = [Stream(is_error=False), Stream(is_error=True)]
        self._add(process, pid=0)
        for fd, stream in zip((worker.stdout, worker.stderr), process.streams):
            self.output.watch(process, fd, stream)

    def _add(self, process: Process, pid: int) -> None:
        self.processes[process.id] = process
        self.pids[process.id] = pid
        self.loop.watch_channel(process.channel, lambda: self._on_readable(process))

    def _on_hello(self, process: Process, message: wire.Hello) -> None:
        if process.ready or (message.kind == "driver") != (process.worker is None):
            raise ProtocolError("hello was said before, or by the wrong kind of process")
        process.ready = True
        self.pids[process.id] = message.pid
        if process.worker is None:
            path, wants = tuple(message.sys_path), message.log_to_driver
            job_id, id = message.job_id or new_job_id(), process.id
            said = message.namespace, wants, path, message.cwd
            process.job = Job(job_id, id, *said, program=id, ray_version=message.ray_version, logging=message.logging)
        else:
            self.pool.said_hello(process.id, message.pid)
            for stream in process.streams:
                stream.pid = message.pid
        process.channel.send(
            wire.Welcome(
                process.id,
                self.node_id,
                process.job.id,
                self.config.object_store_memory,
                self.capacity(),
                os.getpid(),
                process.job.namespace,
                self.address,
                self.neighbours.host,
                scheduling_delay_ms(),
            ),
            (self.store.fd,) if process.worker is None else (),
        )
        if process.worker is not None:
            self.post(leases.WorkerReady(process.id, process.worker.env))
            return
        self.post(leases.JobStarted(process.id))
        self.pool.preload(message.preload)
        if message.log_to_driver:
            self.output.listen(process)
        self.control.job_started(process.job, message.pid)
        self._watch_life(process, message.pid)
        become_subreaper()  # not earlier: this is the first thing that nobody waits for

    def _watch_life(self, process: Process, pid: int) -> None:
        """A driver's children may hold its end of the channel open; its own end is what counts."""
        try:
            process.pidfd = os.pidfd_open(pid)
            self.loop.watch(process.pidfd, lambda _: self._on_driver_gone(process))
        except ProcessLookupError:  # it has ended since it said hello
            self._on_driver_gone(process)
        except OSError:
            return

    # -- processes speak --------------------------------------------------------------------------------------------

    def _on_readable(self, process: Process) -> None:
        try:
            messages = process.channel.receive(self._buffer)
            self._handle(process, messages)
        except (ChannelClosed, ProtocolError) as error:
            self._cut_off(process, error)

    def _handle(self, process: Process, messages: list[AnyMessage]) -> None:
        for message in messages:
            if process.id not in self.processes:
                return  # it said goodbye; what it said behind that is about what is gone with it
            try:
                self.handle(process, message)
            except Exception as error:  # noqa: BLE001 - whatever it is, one message does not end the node
                survive(error, f"handling {type(message).__name__} of pid {self.pids.get(process.id, 0)}")

    def handle(self, process: Any, message: Message) -> None:
        """From a process of this node, or from a guest."""
        handler = HANDLERS.get(type(message))
        if handler is None or not (process.ready or type(message) is wire.Hello):
            raise ProtocolError(f"{type(message).__name__} is not for the daemon, or came before Hello")
        handler(self, process, message)

    def _cut_off(self, process: Process, error: Exception) -> None:
        """Its channel ended, or it sent what it must not: it is as good as dead."""
        self.loop.unwatch(process.channel.fileno())
        if process.worker is None:
            if not _is_end(error):
                complain(error)
            self._on_driver_gone(process)
            return
        self.post(leases.WorkerRetired(process.id))
        if _is_end(error):
            reason = "its connection to the node daemon ended"
            self.loop.call_at(time.monotonic() + EXIT_GRACE_S, lambda: self.pool.kill(process.id, reason))
        else:
            self.pool.kill(process.id, f"it broke the protocol: {error}")

    def _on_store_message(self, process: Process, message: Any) -> None:
        self.store.handle(process.id, message, time.monotonic())

    def _on_allocate(self, process: Process, message: wire.Allocate) -> None:
        self.memory_watch.before_lending(message.size)
        self.store.handle(process.id, message, time.monotonic())

    def _reply_from_store(self, process_id: bytes, message: Message) -> None:
        if process_id not in self.processes:
            self.neighbours.transfers.on_store_reply(process_id, message)
        else:
            self.send(process_id, message)

    def _on_garbage_collected(self, process: Process, message: wire.GarbageCollected) -> None:
        self.garbage.on_collected(process, message)

    def _on_pin(self, process: Process, message: wire.Pin) -> None:
        if not message.places or not self.neighbours.transfers.on_pin(process.id, message):
            self.store.handle(process.id, message, time.monotonic())

    def _on_prefetch(self, process: Process, message: wire.Prefetch) -> None:
        self.neighbours.transfers.on_prefetch(process.id, message)

    def _on_free(self, process: Process, message: wire.Free) -> None:
        if self._is_elsewhere(message.node or self.number):
            if message.node in self.neighbours.members:
                self._pass_on(process, message.node, message)
            else:  # copies of them may be left
                self.neighbours.transfers.free_copies(message.ids)
            return
        if message.tasks:
            message = wire.Free([*message.ids, *self.store.returns_of(message.tasks)])
        self.store.handle(process.id, message, time.monotonic())
        self.neighbours.transfers.on_freed(message.ids)

    def _on_connect(self, process: Process, message: wire.Connect) -> None:
        if self._is_elsewhere(node_of(message.process_id)):
            self.neighbours.bridges.connect(process.id, message.process_id, message.again)
        else:
            self._connect(process.id, message.process_id)

    def _connect(self, asker: bytes, target: bytes) -> None:
        try:
            self.switchboard.connect(asker, target)
        except OSError:  # no descriptor is left for a moment: files that are spilled, or visitors, have them
            if asker in self.processes:
                self.loop.call_at(time.monotonic() + CONNECT_AGAIN_S, lambda: self._connect(asker, target))

    def _on_end_order(self, process: Process, message: wire.KillWorker | wire.GiveUpLease) -> None:
        if self._is_elsewhere(node_of(message.process_id)):
            self._pass_on(process, node_of(message.process_id), message)
        else:
            self._end_orders.carry_out(process.id, message)

    def _on_retire(self, process: Process, message: wire.Retire) -> None:
        self.post(leases.WorkerRetired(process.id))

    def _on_ready(self, process: Process, message: wire.Ready) -> None:
        self.post(leases.WorkerStays(process.id))

    def _on_shutdown(self, process: Process, message: wire.Shutdown) -> None:
        if process.worker is None:
            process.leaves = True
            self._on_driver_gone(process)

    def _on_demand(self, process: Process, message: wire.LeaseDemand) -> None:
        self.demands.on_demand(process.id, message)

    def _on_lease_return(self, process: Process, message: wire.LeaseReturn) -> None:
        if self._is_elsewhere(node_at(message.lease)):
            self.demands.on_returned(message.lease)
            self._pass_on(process, node_at(message.lease), message)
        else:
            lease = self.scheduler.leases.get(message.lease)
            if lease is not None and lease.worker in self.processes:
                self._hear_out(self.processes[lease.worker])  # it may have said that it leaves
            self.post(leases.LeaseReturned(process.id, message.lease))

    def _is_elsewhere(self, node: int) -> bool:
        return node != self.number

    def _pass_on(self, process: Process, node: int, message: Message) -> None:
        self.neighbours.pass_on(process.id, node, message)

    def _on_blocked(self, process: Process, message: wire.Blocked) -> None:
        self.post(leases.WorkerBlocked(process.id))

    def _on_unblocked(self, process: Process, message: wire.Unblocked) -> None:
        self.post(leases.WorkerUnblocked(process.id))

    def _on_control_message(self, process: Process, message: Any) -> None:
        self.control.pass_on(process.id, message)

    def _on_descriptor_message(self, process: Any, message: Any) -> None:
        if process.id not in self.processes:
            raise ProtocolError(f"{type(message).__name__} came from another node: descriptors stay on theirs")
        self.descriptors.on_message(process.id, message, process.channel.fds)

    def _on_call_listener(self, process: Process, message: wire.CallListener) -> None:
        self.neighbours.callers.call(process.id, message)

    def _on_query(self, process: Process, message: wire.Query) -> None:
        self.inquiries.ask(process, message)

    def _on_events(self, process: Process, message: wire.Events) -> None:
        self.inquiries.on_events(process, message)

    def post(self, event: leases.Event) -> None:
        """Tell the scheduler, and do what it says."""
        self._lease_commands.post(event)

    def job_of(self, owner: bytes) -> Job:
        """That a lease is for: of the process that asks, or of the actor."""
        if self.actors.is_placing(owner):
            return self.actors.job_for(owner)
        process = self.processes.get(owner) or self.neighbours.guests.get(owner)
        return process.job if process is not None else NO_JOB

    # -- processes go -------------------------------------------------------------------------------------------------

    def on_worker_exited(self, worker: PooledWorker) -> None:
        process = self.processes[worker.process_id]
        self._hear_out(process)
        self.output.drain(process)
        if process.partial_timer is not None:
            process.partial_timer.cancel()
        for fd in (worker.stdout, worker.stderr):
            self.loop.unwatch(fd)
            os.close(fd)
        running = self.store.last_task(worker.slot)
        self.store.clear_slot(worker.slot)
        self.store.process_died(process.id, time.monotonic())
        self._remove(process)
        said = process.last_output or LastOutput()
        gone = wire.PeerGone(
            process.id, worker.pid, worker.exit_code, running, said.stderr(), worker.kill_reason, output=said.text()
        )
        self.memory_watch.explain(gone)
        self._tell_of_death(process, gone)
        if process.ready:
            self.post(leases.ProcessDied(process.id))
        elif not worker.lost_with_zygote:
            why = "".join(f" | {line}" for line in gone.stderr)
            self.post(leases.StartFailed(worker.env, worker.describe_end() + why))

    def _hear_out(self, process: Process) -> None:
        """What a worker has said comes before what others did upon it, or its death; not if it was not even ready."""
        if not process.ready:
            return
        try:
            while messages := process.channel.receive(self._buffer):
                self._handle(process, messages)
        except (ChannelClosed, ProtocolError):
            pass

    def _remove(self, process: Process) -> None:
        if process.channel.fileno() >= 0:
            self.loop.unwatch(process.channel.fileno())
        process.channel.close()
        del self.processes[process.id]
        del self.pids[process.id]

    def on_worker_killed(self, worker: PooledWorker) -> None:
        self.post(leases.WorkerKilled(worker.process_id))

    def on_start_failed(self, env: leases.Env, reason: str) -> None:
        self.post(leases.StartFailed(env, reason))

    def on_environment_failed(self, env: leases.Env, reason: str, *, final: bool) -> None:
        self.post(leases.EnvironmentFailed(env, reason, final))

    def _on_driver_gone(self, process: Process) -> None:
        """A node that `init` started ends with its last driver."""
        if process.id not in self.processes:
            return
        if process.pidfd >= 0:  # otherwise it left before it had said who it is
            self.loop.unwatch(process.pidfd)
            os.close(process.pidfd)
        if process.ready:
            self.control.job_ended(process.job)
        others = any(other.worker is None and other is not process for other in self.processes.values())
        if not (self._serves or others):
            self._ended = True
            return
        self.output.stop_listening(process)
        if process.ready and not self._serves:  # one that serves a cluster writes to a log of its own
            self.pool.let_go_of_output()
        process.channel.send(wire.Goodbye(stays=True))
        gone = wire.PeerGone(process.id, self.pids[process.id], 0, b"", [], "the driver has ended")
        self.store.process_died(process.id, time.monotonic())
        self._remove(process)
        self._tell_of_death(process, gone)
        self.post(leases.ProcessDied(process.id))

    def _tell_of_death(self, process: Process, gone: wire.PeerGone) -> None:
        """Everybody but the scheduler."""
        self.switchboard.on_process_died(gone)
        self.descriptors.process_died(process.id)
        self.garbage.on_process_died(process.id)
        self.actors.on_process_died(process.id)
        self.inquiries.on_process_died(process)
        self.demands.on_process_died(process.id)
        self.control.process_died(gone)
        self.neighbours.bridges.on_process_died(process.id)
        self.neighbours.transfers.on_process_died(process.id)
        self.neighbours.on_process_died(gone)

    # -- other nodes --------------------------------------------------------------------------------------------------

    def view(self) -> NodeView:
        """This node, for the others."""
        pool = self.scheduler.pool
        queued = sum(demand.count for demand in self.scheduler.demands.values())
        return NodeView(
            id=self.node_id,
            total=dict(pool.total),
            available=dict(pool.available),
            labels=self.config.labels,
            serves=self.config.serves,
            queued=queued,
            stakes=self.neighbours.stakes_of_others(),
            task_s=self.task_s.value,
            bytes_per_s=self.bytes_per_s.value,
            store_bytes=self.config.object_store_memory,
            store_used_bytes=self.store.used_bytes,
            actor_room=max(0, self.scheduler.actor_room()),
            full_of_actors=has_no_worker_for_tasks(self.scheduler),
        )

    def capacity(self) -> dict[str, float]:
        """What all nodes have together."""
        total = dict(self.total)
        for view in self.neighbours.views():
            for name, amount in view.total.items():
                total[name] = total.get(name, 0) + amount
        return to_floats(total)

    def end(self, reason: str, *, joins_anew: bool = False) -> None:
        """Told to, by the cluster or a person."""
        self._ended = True
        self.joins_anew = joins_anew and self._serves
        if joins_anew:
            sys.stderr.write(f"skate: node {self.number} ends, and joins anew if it can: {reason}\n")

    # -- the end ------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Say what is left to say, and take everything along."""
        deadline = time.monotonic() + END_S
        if self._supervisor is not None:
            self._supervisor.end()
        detached = self.control.detached()
        drivers = [process for process in self.processes.values() if process.worker is None]
        if detached and not any(driver.leaves for driver in drivers):
            # The last driver was killed. If it started this node, the daemon has its terminal.
            sys.stderr.write(ended_with_node(detached))
        self.control.leave("it was ended")
        for process in self.processes.values():
            if process.worker is not None:
                self.output.drain(process)
        self.pool.end(deadline)
        self.output.send_all()
        for driver in drivers:
            self._take_leave(driver.channel, detached)
        self.store.close()

    def _take_leave(self, channel: Channel, detached: list[str]) -> None:
        channel.send(wire.Goodbye(detached=detached))
        give_up_at = time.monotonic() + LAST_LINES_S
        while channel.has_backlog and not channel.flush() and time.monotonic() < give_up_at:
            if not wait_writable(channel.fileno(), END_S):
                return  # it does not read


def _is_end(error: Exception) -> bool:
    """Whether a channel just ended, or something came over it that must not."""
    return isinstance(error.__cause__, OSError) or str(error) == "end of stream"


HANDLERS: dict[type, Any] = {
    wire.Hello: Daemon._on_hello,
    wire.Connect: Daemon._on_connect,
    wire.KillWorker: Daemon._on_end_order,
    wire.GiveUpLease: Daemon._on_end_order,
    wire.Retire: Daemon._on_retire,
    wire.Ready: Daemon._on_ready,
    wire.Shutdown: Daemon._on_shutdown,
    wire.Query: Daemon._on_query,
    wire.Events: Daemon._on_events,
    wire.LeaseDemand: Daemon._on_demand,
    wire.LeaseReturn: Daemon._on_lease_return,
    wire.Blocked: Daemon._on_blocked,
    wire.Unblocked: Daemon._on_unblocked,
    wire.Allocate: Daemon._on_allocate,
    wire.Seal: Daemon._on_store_message,
    wire.ReturnSpace: Daemon._on_store_message,
    wire.Pin: Daemon._on_pin,
    wire.Prefetch: Daemon._on_prefetch,
    wire.Unpin: Daemon._on_store_message,
    wire.Free: Daemon._on_free,
    wire.Refusal: on_refusal,
    wire.GarbageCollected: Daemon._on_garbage_collected,
    wire.CallListener: Daemon._on_call_listener,
}

HANDLERS.update(dict.fromkeys(descriptors.MESSAGES, Daemon._on_descriptor_message))
HANDLERS.update(dict.fromkeys(TO_CONTROL, Daemon._on_control_message))
