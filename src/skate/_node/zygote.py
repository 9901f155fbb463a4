"""The process that workers are forked from: interpreter started and modules imported once, their memory shared.

    daemon ──ForkWorker + descriptors, Preload──▶ zygote ──fork──▶ worker: run(WorkerStart)
    daemon ◀──Ready, Forked, ForkFailed, Exited── zygote ◀──SIGCHLD── worker

The plain zygote is forked from the daemon before the daemon has done anything else. An environment (variables that
libraries read when they are loaded) has a zygote of its own, a fresh interpreter started with these variables.

Owns:      its children: it alone forks, reaps and reports them, "Forked" always before "Exited".
Knows not: user code. It has one thread and holds no locks, so a fork of it is always sound.
Invariant: nothing outlives the daemon. The zygote reads its socket; when that ends it kills every worker with its
           process group and leaves. A worker dies with the zygote by a signal from the kernel. (The zygote itself has
           only a soft death signal: killed at once it could not take the workers' own children along.)

Messages travel on a SOCK_SEQPACKET socket pair: one packet is one message, with its descriptors.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import traceback
from typing import Any, NoReturn

import msgspec

from skate._node import interpreter
from skate._system_limits import USER_DESCRIPTORS_MAX, limit_of, raise_descriptor_limit, raise_process_limit

#: The largest packet: a ForkWorker with a long sys.path.
PACKET_BYTES_MAX = 160 << 10
#: What a zygote runs in a worker, as "module:function"; the function takes a WorkerStart.
WORKER_ENTRY = "skate._worker.main:run"
PR_SET_PDEATHSIG = 1


class WorkerStart(msgspec.Struct, frozen=True):
    """What a worker is born with. sys.path, working directory, output and signals are set up already."""

    #: Its control channel to the daemon.
    control_fd: int
    arena_fd: int
    process_id: bytes
    #: Its process slot in the arena (`_store/layout.py`).
    slot: int
    node_id: bytes
    arena_bytes: int


# -- daemon → zygote ----------------------------------------------------------------------------------------------


class ForkWorker(msgspec.Struct, array_like=True, tag=1):
    """Fork a worker. With it come four descriptors: control socket, arena, stdout, stderr. Reply: Forked, Exited."""

    process_id: bytes
    slot: int
    node_id: bytes
    arena_bytes: int


class Preload(msgspec.Struct, array_like=True, tag=2):
    """Import these modules, so that workers forked from now on share them. What cannot be imported is left out."""

    modules: list[str]


class LetGo(msgspec.Struct, array_like=True, tag=3):
    """The first driver is gone, and others use the node: let go of that driver's terminal, or its reader waits on."""


# -- zygote → daemon ----------------------------------------------------------------------------------------------


class Ready(msgspec.Struct, array_like=True, tag=10):
    """The worker's modules are imported."""


class Forked(msgspec.Struct, array_like=True, tag=11):
    process_id: bytes
    pid: int


class ForkFailed(msgspec.Struct, array_like=True, tag=12):
    process_id: bytes
    reason: str


class Exited(msgspec.Struct, array_like=True, tag=13):
    """A worker is dead, and its process group with it."""

    process_id: bytes
    exit_code: int  # as in subprocess: negative is a signal


class Failed(msgspec.Struct, array_like=True, tag=14):
    """The zygote cannot work, and leaves."""

    reason: str


_decode_order = msgspec.msgpack.Decoder(ForkWorker | Preload | LetGo).decode
decode_report = msgspec.msgpack.Decoder(Ready | Forked | ForkFailed | Exited | Failed).decode
encode = msgspec.msgpack.Encoder().encode


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process."""
    global _libc_prctl
    if _libc_prctl is None:
        import ctypes

        _libc_prctl = ctypes.CDLL(None).prctl
    _libc_prctl(option, value, 0, 0, 0)


#: Loaded once, in the zygote, and shared by all that is forked from it.
_libc_prctl: Any = None


def die_with_parent(parent_pid: int, with_signal: int) -> None:
    """Have the kernel send us a signal when our parent ends; if it ended already, send it now."""
    prctl(PR_SET_PDEATHSIG, int(with_signal))
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), with_signal)


def close_all_but(keep: set[int]) -> None:
    """Close every descriptor but the standard ones and these."""
    low = 3
    for fd in sorted(keep):
        if fd >= low:
            os.closerange(low, fd)
            low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def run_zygote(sock: socket.socket, parent_pid: int, entry: str = WORKER_ENTRY) -> NoReturn:
    """The life of a zygote, in a process of its own. `sock` leads to the daemon."""
    interpreter.runs_no_user_code = True
    code = 0
    try:
        Zygote(sock, entry).run(parent_pid)
    except KeyboardInterrupt:
        code = 1
    except BaseException:  # noqa: BLE001 - the last frame of this process: there is nobody to raise to
        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)


def main() -> None:
    """Entry of a zygote that is an interpreter of its own: arguments are socket, parent and worker entry."""
    fd, parent_pid, entry = sys.argv[1:4]
    sock = socket.socket(fileno=int(fd))
    sock.set_inheritable(False)
    run_zygote(sock, int(parent_pid), entry)


class Zygote:
    def __init__(self, sock: socket.socket, entry: str) -> None:
        self._sock = sock
        self._entry = entry
        self._pid = os.getpid()
        self._run: Any = None
        #: Process ids of the children that have not been reaped, by pid.
        self._children: dict[int, bytes] = {}

    def run(self, parent_pid: int) -> None:
        close_all_but({self._sock.fileno()})
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        die_with_parent(parent_pid, signal.SIGTERM)
        raise_descriptor_limit(USER_DESCRIPTORS_MAX)
        raise_process_limit()
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread a worker: there is a worker a core
        self._sock.setblocking(True)
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        if not self._import_worker():
            return
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        while True:
            for fd, _events in poll.poll():
                if fd == wake_read:
                    os.read(wake_read, 4096)
                    self._reap()
                else:
                    self._receive()

    def _import_worker(self) -> bool:
        """Import what workers need, so that they share it."""
        try:
            import faulthandler  # noqa: F401
            import importlib
            import random  # noqa: F401

            module, _, function = self._entry.partition(":")
            self._run = getattr(importlib.import_module(module), function)
            gc.enable()  # it was switched off for the imports
        except Exception as error:  # noqa: BLE001 - whatever it was, the daemon is told
            reason = "".join(traceback.format_exception_only(type(error), error)).strip()
            self._report(Failed(f"the modules of a worker could not be imported: {reason}"))
            return False
        self._report(Ready())
        return True

    def _report(self, report: Ready | Forked | ForkFailed | Exited | Failed) -> None:
        try:
            self._sock.send(encode(report))
        except OSError:
            self._end()

    def _receive(self) -> None:
        try:
            packet, fds, _flags, _address = socket.recv_fds(self._sock, PACKET_BYTES_MAX, 4)
        except OSError:
            packet, fds = b"", []
        if not packet:
            self._end()
        order = _decode_order(packet)
        if isinstance(order, ForkWorker):
            self._fork(order, fds)
        elif isinstance(order, LetGo):
            let_go_of_output()
        else:
            self._preload(order)

    def _preload(self, order: Preload) -> None:
        import importlib

        for name in order.modules:
            try:
                importlib.import_module(name)
            except Exception:  # noqa: BLE001 - a module that is not there, or is broken, is the business of its tasks
                continue

    def _fork(self, order: ForkWorker, fds: list[int]) -> None:
        # Objects made so far are taken out of the collector's sight: it would write to their pages, and so copy them.
        gc.freeze()
        try:
            pid = os.fork()
        except OSError as error:
            self._report(ForkFailed(order.process_id, f"fork failed: {limit_of(error) or error.strerror}"))
        else:
            if pid == 0:
                become_worker(order, fds, self._run, parent_pid=self._pid)
            # Both parent and child do this: whoever comes first, the group is there when it is needed.
            try:
                os.setpgid(pid, pid)
            except OSError:
                pass
            self._children[pid] = order.process_id
            self._report(Forked(order.process_id, pid))
        for fd in fds:
            os.close(fd)

    def _reap(self) -> None:
        while self._children:
            # The dead child stays a zombie while its group is killed, so that its number cannot be another's yet.
            try:
                dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if dead is None:
                return
            kill_group(dead.si_pid)
            _pid, status = os.waitpid(dead.si_pid, 0)
            process_id = self._children.pop(dead.si_pid, None)
            if process_id is not None:
                self._report(Exited(process_id, os.waitstatus_to_exitcode(status)))

    def _end(self) -> NoReturn:
        """The daemon is gone: so is everything else."""
        # A child that has just been forked still has our signal handlers.
        if os.getpid() == self._pid:
            for pid in self._children:
                kill_group(pid)
        os._exit(0)


def let_go_of_output() -> None:
    """What this process writes has no reader any more."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os.close(null)


def kill_group(pid: int) -> None:
    """Kill a worker with all that it started (what left its process group by setsid asked to live on)."""
    for kill in (os.killpg, os.kill):  # the second for a worker that left its own group
        try:
            kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def become_worker(order: ForkWorker, fds: list[int], run: Any, parent_pid: int) -> NoReturn:
    """In the forked child: leave nothing of the zygote, then do the worker's work."""
    interpreter.runs_no_user_code = False
    code = 1
    try:
        die_with_parent(parent_pid, signal.SIGKILL)
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        control_fd, arena_fd, stdout_fd, stderr_fd = fds
        _set_up_output(stdout_fd, stderr_fd)
        close_all_but({control_fd, arena_fd})
        _seed()
        run(WorkerStart(control_fd, arena_fd, order.process_id, order.slot, order.node_id, order.arena_bytes))
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 - the last frame of this process: the traceback goes to its stderr
        limit = limit_of(error)
        if limit:
            sys.stderr.write(f"skate: a worker ends: {limit}\n")
        else:
            traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _set_up_output(stdout_fd: int, stderr_fd: int) -> None:
    import faulthandler

    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(stdout_fd, 1)
    os.dup2(stderr_fd, 2)
    # The daemon's own streams may have been a terminal, a file or closed. Lines leave at once: a worker can be killed.
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # type: ignore[misc]  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _line_writer(1)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = _line_writer(2)  # type: ignore[misc]
    # Of the crashing thread only: what our own thread was doing would bury it.
    faulthandler.enable(file=2, all_threads=False)


def _line_writer(fd: int) -> Any:
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _seed() -> None:
    """Children of one process would otherwise draw the same random numbers."""
    import random

    random.seed()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
