"""Worker processes: start them through a zygote, hear of their end, kill them, bury them.

    start(env) ──▶ Zygote of that environment ──fork──▶ worker
                          │ Forked, Exited
                          ▼
    owner.on_worker_exited / on_start_failed / on_environment_failed

Owns:      the zygotes, one an environment; for each worker its control socket, output pipes and slot in the arena.
Knows not: why a worker is started or killed; the scheduler and the daemon decide that.
Invariant: a worker is in `workers` from the order to fork it until its end was reported; its slot is free again only
           after that.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections import deque
from typing import Protocol

import msgspec

from skate._core.environment import ENVIRONMENT_VARIABLE
from skate._core.ids import new_process_id, node_of
from skate._core.lease_events import Env
from skate._node import zygote
from skate._system_limits import limit_of
from skate._wire.channel import Channel
from skate._wire.loop import WRITE, EventLoop, Timer

#: A worker or a zygote that has not reported itself after this time is taken for dead.
START_TIMEOUT_S = 30.0
#: A process that was killed is waited for this long; one that hangs in the kernel longer has to be left to it.
KILL_TIMEOUT_S = 2.0
#: What is quoted of the stderr of a zygote that did not come up.
ZYGOTE_STDERR_BYTES_MAX = 2000
PR_SET_CHILD_SUBREAPER = 36


class PooledWorker:
    """One worker process, from the order to fork it to its end."""

    __slots__ = (
        "channel", "env", "exit_code", "kill_reason", "lost_with_zygote", "pid", "process_id", "slot", "start_timer",
        "stderr", "stdout",
    )  # fmt: skip

    def __init__(self, process_id: bytes, env: Env, slot: int, channel: Channel, *, stdout: int, stderr: int) -> None:
        self.process_id = process_id
        self.env = env
        self.slot = slot
        self.channel = channel
        #: Read ends of its output pipes.
        self.stdout = stdout
        self.stderr = stderr
        #: 0 until the zygote (or the worker's own hello) told it.
        self.pid = 0
        self.exit_code = 0
        #: Why it was killed, "" if it was not.
        self.kill_reason = ""
        #: If it was not ready, that was reported once for all workers of its zygote.
        self.lost_with_zygote = False
        self.start_timer: Timer | None = None

    def describe_end(self) -> str:
        code = self.exit_code
        how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
        why = f" ({self.kill_reason})" if self.kill_reason else ""
        return f"worker pid {self.pid} {how}{why}"


class PoolOwner(Protocol):
    """What the pool tells the daemon."""

    def on_worker_created(self, worker: PooledWorker) -> None:
        """It has a channel and pipes to listen to, and will be running soon."""

    def on_worker_exited(self, worker: PooledWorker) -> None:
        """It is dead: take leave of it, close its channel and pipes."""

    def on_worker_killed(self, worker: PooledWorker) -> None:
        """It is ordered to end, and has not ended yet."""

    def on_start_failed(self, env: Env, reason: str) -> None:
        """A worker could not be created."""

    def on_environment_failed(self, env: Env, reason: str, *, final: bool) -> None:
        """No worker of that environment can be started, or (not final) could not this time."""


class WorkerSetup(msgspec.Struct):
    """What all workers are started with."""

    node_id: bytes
    arena_fd: int
    arena_bytes: int
    #: What it runs, as "module:function".
    entry: str = zygote.WORKER_ENTRY
    #: Modules that zygotes import once their first workers are out.
    preload: list[str] = []


class ZygoteProcess:
    """The daemon's side of one zygote."""

    def __init__(self, env: Env, pid: int, sock: socket.socket, stderr: int = -1) -> None:
        sock.setblocking(False)
        self.env = env
        self.pid = pid
        self.sock = sock
        #: A memory file with what an interpreter of its own wrote to stderr; -1: it writes to ours.
        self.stderr = stderr
        self.ready = False
        self.ended = False
        #: What it gave as the reason of its end.
        self.failure = ""
        self.workers: dict[bytes, PooledWorker] = {}
        #: Packets that the socket has not taken yet, with descriptors that are ours to close.
        self.backlog: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self.idle_timer: Timer | None = None


class WorkerPool:
    def __init__(
        self, loop: EventLoop, owner: PoolOwner, setup: WorkerSetup, *, slots: int, zygote_idle_s: float
    ) -> None:
        self._loop = loop
        self._owner = owner
        self.setup = setup
        #: A zygote of an environment is kept this long without workers, for the next task of that environment.
        self._zygote_idle_s = zygote_idle_s
        self.workers: dict[bytes, PooledWorker] = {}
        self._zygotes: dict[Env, ZygoteProcess] = {}
        #: Those that were used before, and how many have been used at all.
        self._slots_free: deque[int] = deque()
        self._slots_used = 0
        self._slots = slots

    # -- zygotes --------------------------------------------------------------------------------------------------

    def adopt_zygote(self, pid: int, sock: socket.socket) -> None:
        """Take over the plain zygote, which was forked before anything else."""
        self._add_zygote(ZygoteProcess((), pid, sock))

    def _add_zygote(self, process: ZygoteProcess) -> None:
        self._zygotes[process.env] = process
        self._loop.watch(process.sock.fileno(), lambda events: self._on_zygote_events(process, events))
        self._loop.call_at(time.monotonic() + START_TIMEOUT_S, lambda: self._check_zygote_started(process))

    def _check_zygote_started(self, process: ZygoteProcess) -> None:
        if not process.ready and not process.ended:
            self._end_zygote(process, f"its interpreter was not ready after {START_TIMEOUT_S:.0f} s", by_us=True)

    def _spawn_zygote(self, env: Env) -> ZygoteProcess:
        """A fresh interpreter with the variables of the environment."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # What it writes there is the reason, should it not come up.
        stderr = os.memfd_create("skate-zygote-stderr", os.MFD_CLOEXEC)
        # The new interpreter must find this package; user code's own path comes with each worker.
        program = f"import sys; sys.path[:] = {sys.path!r}; from skate._node.zygote import main; main()"
        flags = ["-S"] if sys.flags.no_site else []
        theirs.set_inheritable(True)
        try:
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, *flags, "-c", program, str(theirs.fileno()), str(os.getpid()), self.setup.entry],
                {**os.environ, **dict(env), ENVIRONMENT_VARIABLE: msgspec.json.encode(dict(env)).decode()},
                file_actions=[(os.POSIX_SPAWN_DUP2, stderr, 2)],
            )
        except BaseException:
            ours.close()
            os.close(stderr)
            raise
        finally:
            theirs.close()
        process = ZygoteProcess(env, pid, ours, stderr)
        self._add_zygote(process)
        return process

    def _on_zygote_events(self, process: ZygoteProcess, events: int) -> None:
        if events & WRITE:
            self._flush(process)
        if not events & ~WRITE:
            return
        while not process.ended:
            try:
                packet = process.sock.recv(zygote.PACKET_BYTES_MAX)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # It left orders unread. What it said before is still there to be read.
                continue
            except OSError:
                packet = b""
            if not packet:
                reason = process.failure or "the process that its workers are forked from died"
                self._end_zygote(process, reason, by_us=False)
                return
            self._on_report(process, packet)

    def _on_report(self, process: ZygoteProcess, packet: bytes) -> None:
        report = zygote.decode_report(packet)
        if isinstance(report, zygote.Ready):
            process.ready = True
            if self.setup.preload:
                self._send(process, zygote.Preload(self.setup.preload))
        elif isinstance(report, zygote.Failed):
            process.failure = report.reason
        elif isinstance(report, zygote.Forked):
            worker = process.workers[report.process_id]
            worker.pid = report.pid
            if worker.kill_reason:
                zygote.kill_group(worker.pid)
        elif isinstance(report, zygote.Exited):
            self._bury(process, process.workers[report.process_id], report.exit_code)
        else:
            worker = process.workers[report.process_id]
            worker.kill_reason = report.reason
            self._bury(process, worker, 1)

    def _send(
        self,
        process: ZygoteProcess,
        order: zygote.ForkWorker | zygote.Preload | zygote.LetGo,
        fds: tuple[int, ...] = (),
    ) -> None:
        """Send an order; its descriptors belong to the pool from here."""
        process.backlog.append((zygote.encode(order), fds))
        self._flush(process)

    def _flush(self, process: ZygoteProcess) -> None:
        while process.backlog:
            packet, fds = process.backlog[0]
            try:
                socket.send_fds(process.sock, [packet], fds)
            except BlockingIOError:
                self._loop.watch_writing(process.sock.fileno(), True)
                return
            except OSError:
                # Its end is reported by the reading side.
                pass
            process.backlog.popleft()
            for fd in fds:
                os.close(fd)
        self._loop.watch_writing(process.sock.fileno(), False)

    def _end_zygote(self, process: ZygoteProcess, reason: str, *, by_us: bool) -> None:
        """The zygote is dead or has to be; the kernel kills its workers with it, we their children."""
        process.ended = True
        self._loop.unwatch(process.sock.fileno())
        process.sock.close()
        for _, fds in process.backlog:
            for fd in fds:
                os.close(fd)
        if process.idle_timer is not None:
            process.idle_timer.cancel()
        if self._zygotes.get(process.env) is process:
            del self._zygotes[process.env]
        _kill(process.pid)
        exit_code = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        reason += _read_last_lines(process.stderr)
        # Nobody may write into the arena any more when its memory is taken back. The orphans are our children now.
        pids = {worker.pid for worker in process.workers.values() if worker.pid}
        for pid in pids:
            zygote.kill_group(pid)
        _wait_for_end(pids, time.monotonic() + KILL_TIMEOUT_S)
        lost = list(process.workers.values())
        if not process.ready or any(worker.start_timer is not None for worker in lost):
            disturbed = process.ready or (exit_code == -signal.SIGKILL and not by_us)
            self._owner.on_environment_failed(process.env, reason, final=not disturbed)
        for worker in lost:
            worker.kill_reason = worker.kill_reason or reason
            worker.lost_with_zygote = True
            self._bury(process, worker, -signal.SIGKILL)

    def _end_idle_zygote(self, process: ZygoteProcess) -> None:
        if not process.workers and not process.ended:
            self._end_zygote(process, "idle", by_us=True)

    # -- workers --------------------------------------------------------------------------------------------------

    def start(self, env: Env) -> None:
        """Start a worker; the owner hears of it when it is there to listen to, and when it is dead."""
        process = self._zygotes.get(env)
        if process is None:
            try:
                process = self._spawn_zygote(env)
            except (OSError, ValueError) as error:
                reason = f"its interpreter could not be started: {limit_of(error) or error}"
                self._owner.on_environment_failed(env, reason, final=True)
                return
        if process.idle_timer is not None:
            process.idle_timer.cancel()
            process.idle_timer = None
        slot = self._take_slot()
        if slot is None:
            self._owner.on_start_failed(env, "all process slots of the arena are taken")
            return
        setup = self.setup
        try:
            control, stdout, stderr, arena_fd = _open_lines(setup.arena_fd)
        except OSError as error:
            self._slots_free.append(slot)
            self._owner.on_start_failed(env, f"its connections could not be made: {limit_of(error) or error.strerror}")
            return
        process_id = new_process_id(node_of(setup.node_id))
        channel = Channel(socket.socket(fileno=control[0]), carries_fds=True, name="worker")
        worker = PooledWorker(process_id, env, slot, channel, stdout=stdout[0], stderr=stderr[0])
        self.workers[process_id] = process.workers[process_id] = worker
        self._owner.on_worker_created(worker)
        worker.start_timer = self._loop.call_at(
            time.monotonic() + START_TIMEOUT_S,
            lambda: self.kill(process_id, f"it was not ready after {START_TIMEOUT_S:.0f} s"),
        )
        order = zygote.ForkWorker(process_id, worker.slot, setup.node_id, setup.arena_bytes)
        self._send(process, order, (control[1], arena_fd, stdout[1], stderr[1]))

    def _take_slot(self) -> int | None:
        """One that was used before, so that few pages of the arena are for slots; None: all are taken."""
        if self._slots_free:
            return self._slots_free.popleft()
        if self._slots_used == self._slots:
            return None
        self._slots_used += 1
        return self._slots_used - 1

    def said_hello(self, process_id: bytes, pid: int) -> None:
        """The worker works."""
        worker = self.workers[process_id]
        worker.pid = pid
        if worker.start_timer is not None:
            worker.start_timer.cancel()
            worker.start_timer = None

    def kill(self, process_id: bytes, reason: str) -> None:
        """Kill a worker and all that it started. Its end is reported as any other."""
        worker = self.workers.get(process_id)
        if worker is None:
            return
        worker.kill_reason = worker.kill_reason or reason
        if worker.pid:
            zygote.kill_group(worker.pid)
            self._owner.on_worker_killed(worker)

    def _bury(self, process: ZygoteProcess, worker: PooledWorker, exit_code: int) -> None:
        worker.exit_code = exit_code
        if worker.start_timer is not None:
            worker.start_timer.cancel()
        del process.workers[worker.process_id]
        del self.workers[worker.process_id]
        self._owner.on_worker_exited(worker)
        self._slots_free.append(worker.slot)
        reap_orphans({process.pid for process in self._zygotes.values()})
        if process.env and not process.workers and not process.ended:
            when = time.monotonic() + self._zygote_idle_s
            process.idle_timer = self._loop.call_at(when, lambda: self._end_idle_zygote(process))

    def preload(self, modules: list[str]) -> None:
        """Have zygotes import modules, so that the workers that come next share them."""
        new = [name for name in modules if name not in self.setup.preload]
        self.setup.preload = [*self.setup.preload, *new]
        for process in self._zygotes.values():
            if process.ready and new:
                self._send(process, zygote.Preload(new))

    def let_go_of_output(self) -> None:
        """The terminal of the first driver is not ours any more."""
        zygote.let_go_of_output()
        for process in self._zygotes.values():
            self._send(process, zygote.LetGo())

    # -- the end ----------------------------------------------------------------------------------------------------

    def end(self, deadline: float) -> None:
        """Kill everything, and stay until it is gone or the deadline has come. Nothing is reported any more."""
        # Zygotes first: no worker is forked behind our back then, and the workers have become our children.
        zygotes = {process.pid for process in self._zygotes.values()}
        workers = {worker.pid for worker in self.workers.values() if worker.pid}
        for pid in zygotes:
            _kill(pid)
        _wait_for_end(zygotes, deadline)
        for pid in workers:
            zygote.kill_group(pid)
        _wait_for_end(workers, deadline)


def _open_lines(arena_fd: int) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]:
    """What connects a worker with us: control sockets, pipes for stdout and stderr (our end first), and the arena."""
    opened: list[int] = []
    try:
        ours, theirs = socket.socketpair()
        control = (ours.detach(), theirs.detach())
        opened += control
        stdout = os.pipe2(os.O_CLOEXEC)
        opened += stdout
        stderr = os.pipe2(os.O_CLOEXEC)
        opened += stderr
        # Only our ends: what a worker prints waits when the pipe is full.
        os.set_blocking(stdout[0], False)
        os.set_blocking(stderr[0], False)
        return control, stdout, stderr, os.dup(arena_fd)
    except OSError:
        for fd in opened:
            os.close(fd)
        raise


def _wait_for_end(pids: set[int], deadline: float) -> None:
    while pids := {pid for pid in pids if not _reap(pid)}:
        if time.monotonic() > deadline:
            return
        time.sleep(0.0002)


def _read_last_lines(stderr: int) -> str:
    """What a zygote wrote before it ended, as the end of a sentence; the file is closed."""
    if stderr < 0:
        return ""
    with open(stderr, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - ZYGOTE_STDERR_BYTES_MAX))
        text = file.read().decode("utf-8", "replace").strip()
    return f": {text}" if text else ""


def become_subreaper() -> None:
    """Orphans of our workers become our children, so that we see them die."""
    zygote.prctl(PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans(but: set[int]) -> None:
    """Bury what workers started and left behind."""
    while True:
        try:
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if dead is None or dead.si_pid in but:
            return
        os.waitpid(dead.si_pid, 0)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _reap(pid: int) -> bool:
    """Take note of a child's end; True if it has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True
