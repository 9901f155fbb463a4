"""Entry of the node daemon: `python -c 'from skate._node.main import main; main()' <config as JSON>`.

Start-up is what a user waits for, so its order is deliberate: import what zygote and workers need too, fork the zygote
(it imports the worker's modules on another core), and only then import and build the rest of the daemon.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time

import msgspec

from skate._control.config import Supervised
from skate._node.zygote import WORKER_ENTRY, run_zygote

JOIN_AGAIN_S = 2.0


class ClusterConfig(msgspec.Struct, kw_only=True):
    """How a node finds its cluster, and how it is found."""

    #: Where the control service listens.
    control: tuple[str, int]
    token: str
    #: Encrypt all connections; None: if the control service does.
    tls: bool | None = None
    #: Where this node listens; port 0: any that is free. Without a host it listens nowhere.
    host: str = ""
    port: int = 0
    #: How others reach it, if that is not what it listens on.
    advertise: str = ""
    name: str = ""


class NodeConfig(msgspec.Struct, kw_only=True):
    """What the daemon is told by the driver that starts it."""

    #: Inherited descriptor: the control channel of that driver; -1: it serves a cluster, without one.
    control_fd: int = -1
    #: Inherited descriptor to which it says, in one line of JSON, that it serves or why it cannot.
    report_fd: int = -1
    #: The cluster that it is a node of; None: it is alone.
    cluster: ClusterConfig | None = None
    #: The control service that this node starts again when it has ended; None: it looks after none.
    supervises: Supervised | None = None
    #: A node of a cluster ends when this process does; 0: it outlives whoever has started it.
    parent: int = 0
    num_cpus: float
    num_gpus: int = 0
    #: Custom resources.
    resources: dict[str, float] = {}
    #: Bytes of memory that tasks can reserve (`memory=`); None: what is available at the start.
    memory: int | None = None
    #: It is the first node of its cluster; a node that is alone always is.
    is_head: bool = False
    #: It was part of its cluster before, and tries until it is again.
    joins_anew: bool = False
    #: It runs tasks and actors; otherwise it is there for its driver alone, and has nothing.
    serves: bool = True
    #: What tasks and actors can choose it by.
    labels: dict[str, str] = {}
    #: Size of the arena in bytes.
    object_store_memory: int
    #: Where objects go that do not fit into memory.
    spill_directory: str = ""
    #: Workers that are kept ready; None: one a CPU.
    prestart: int | None = None
    #: Part of the machine's memory above which the newest task is killed; 1 or more: never.
    memory_threshold: float = 0.95
    #: How long a task that asks for what the node does not have may wait before that is an error.
    infeasible_grace_s: float = 10.0
    #: How long this node and another may be unable to reach each other before what waits for that is decided on; None:
    #: as the environment says.
    partition_grace_s: float | None = None
    #: How long an object waits for room in a full store before that is an error.
    store_full_grace_s: float = 10.0
    #: Idle workers beyond `prestart` leave after this time.
    idle_worker_s: float = 5.0
    #: What a worker runs, as "module:function".
    worker_entry: str = WORKER_ENTRY


def fork_zygote(entry: str) -> tuple[int, socket.socket]:
    """The plain zygote: its pid and our end of its socket."""
    daemon_pid = os.getpid()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        run_zygote(theirs, daemon_pid, entry)
    theirs.close()
    return pid, ours


class JoinError(Exception):
    """The node could not join its cluster; says why, and what to do."""


def _report(config: NodeConfig, **what: str) -> None:
    """To whoever has started it."""
    if config.report_fd >= 0:
        os.write(config.report_fd, msgspec.json.encode(what) + b"\n")
        os.close(config.report_fd)


def _begin_again(config: NodeConfig) -> None:
    """As another node of the same cluster, in a process that knows nothing of the last one."""
    config.report_fd = -1
    config.joins_anew = True
    fd = os.memfd_create("skate-settings")  # it has the token in it
    os.write(fd, msgspec.json.encode(config) + b"\n")
    os.lseek(fd, 0, os.SEEK_SET)
    os.dup2(fd, 0)
    os.execv(sys.executable, sys.orig_argv)


def _start_control_if_gone(supervised: Supervised) -> None:
    from skate._node.launch import LaunchError
    from skate._node.supervisor import start_if_gone

    try:
        start_if_gone(supervised)
    except (LaunchError, OSError) as error:
        sys.stderr.write(f"skate: the control service could not be started: {error}\n")


def _tell_limit(config: NodeConfig, limit: str) -> None:
    """Why it cannot start, to its driver, or to the program that has started it."""
    _report(config, error=f"its node could not be started. {limit}")
    if config.control_fd >= 0:
        from skate._wire.channel import Channel
        from skate._wire.messages import Goodbye

        Channel(socket.socket(fileno=config.control_fd)).send(Goodbye(limit=limit))
    else:
        sys.stderr.write(f"skate: the node could not be started. {limit}\n")


def _open_parent(config: NodeConfig) -> int:
    """A descriptor that tells when that process ends; -1: there is none to end with."""
    if not config.parent:
        return -1
    try:
        return os.pidfd_open(config.parent)
    except ProcessLookupError:
        sys.exit(0)


def main() -> None:
    # One that serves a cluster knows its token, which no list of processes is to show.
    config = msgspec.json.decode(sys.argv[1] if sys.argv[1:] else sys.stdin.readline(), type=NodeConfig)
    for fd in (config.control_fd, config.report_fd):
        if fd >= 0:
            os.set_inheritable(fd, False)
    parent = _open_parent(config)
    import skate._wire.messages  # noqa: F401 - both need it, and it takes a while to make

    code = 1
    daemon = None
    try:
        zygote_pid, zygote_sock = fork_zygote(config.worker_entry)
        from skate._node.daemon import Daemon

        gc.enable()  # it was switched off for the imports
        daemon = Daemon(config, zygote_pid, zygote_sock)
        if parent >= 0:
            daemon.loop.watch(parent, lambda events: daemon.end("the process that started it is gone"))
        try:
            _report(config, node_id=daemon.node_id.hex(), lobby=daemon.address)
        except BrokenPipeError:
            daemon.end("the process that started it is gone")
        daemon.run()
        if daemon.joins_anew:
            _begin_again(config)
        code = 0
    except JoinError as error:
        _report(config, error=str(error))
        if config.joins_anew:  # its cluster may be out of reach for as long as it was cut off
            sys.stderr.write(f"skate: {error} It is tried again in {JOIN_AGAIN_S:g} s.\n")
            time.sleep(JOIN_AGAIN_S)
            if config.supervises is not None:
                _start_control_if_gone(config.supervises)
            _begin_again(config)
    except BaseException as error:  # noqa: BLE001 - the traceback must reach the driver's terminal, whatever it was
        import traceback

        from skate._system_limits import limit_of

        limit = limit_of(error)
        if limit and daemon is None:
            _tell_limit(config, limit)
            return
        if limit:
            sys.stderr.write(f"skate: the node daemon ends. {limit}\n")
            return
        sys.stderr.write("skate: the node daemon failed. This is a bug, please report it:\n")
        traceback.print_exc()
    finally:
        # Nothing is left that a tidy end of the interpreter could do better than the kernel.
        os._exit(code)


if __name__ == "__main__":
    main()
