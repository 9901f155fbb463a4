"""How a driver starts a node daemon of its own, or joins one that is there.

The daemon takes longer to start than anything else, so it is started first: this module imports only what that needs,
and the runtime is imported while the daemon boots on another core.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

from skate._core.environment import JOB_VARIABLE as JOB_ENVIRONMENT
from skate._core.ids import JOB_BYTES
from skate._node.interpreter import command
from skate._node.main import ClusterConfig, NodeConfig
from skate._worker.surroundings import job_logging, module_path, ray_version, set_job, working_directory

#: Modules worth sharing between workers when the driver has them.
PRELOAD = ("numpy", "skate._alias.finder")
START_TIMEOUT_S = 60.0
#: The job that `skate submit` runs this program as, in hexadecimal digits.
JOB_VARIABLE = "SKATE_JOB_ID"
EXIT_TIMEOUT_S = 0.5
#: A driver on no node has joined in a fraction of this. If it has not, it may have been told the wrong port.
JOIN_SLOW_S = 1.0


class Node:
    """A node, and the runtime of this driver that is connected to it."""

    def __init__(self, sock: socket.socket, *, log_to_driver: bool, namespace: str) -> None:
        # What the runtime and the first tasks need: a program that submits must not be in the middle of an import.
        import skate._serialize.errors
        import skate._serialize.patches
        import skate._serialize.pickler  # noqa: F401
        from skate._system_limits import USER_DESCRIPTORS_MAX, raise_descriptor_limit
        from skate._wire.messages import Hello
        from skate._worker.logs import LogPrinter
        from skate._worker.runtime import Runtime

        raise_descriptor_limit(USER_DESCRIPTORS_MAX)
        try:
            self.runtime = Runtime(sock)
        except OSError:
            sock.close()
            raise
        self.runtime.daemon_exit_code = self._exit_code
        self._printer = LogPrinter(self.runtime.loop)
        if log_to_driver:
            self.runtime.on_logs = self._printer.print_lines
        hello = Hello(
            os.getpid(),
            "driver",
            sys_path=module_path(),
            cwd=working_directory(),
            preload=[name for name in PRELOAD if name in sys.modules],
            log_to_driver=log_to_driver,
            namespace=namespace,
            job_id=_submitted_job(),
            ray_version=ray_version(),
            logging=job_logging(),
        )
        set_job(hello.sys_path, hello.ray_version)
        try:
            self.runtime.start(hello, START_TIMEOUT_S)
        except BaseException:
            self.close()
            raise

    def _exit_code(self) -> int | None:
        """How the daemon ended, if that is known."""
        return None

    def close(self) -> None:
        """End the runtime."""
        self.runtime.close()
        self._printer.flush()
        detached, self.runtime.ended_with_node = self.runtime.ended_with_node, []
        if detached:
            from skate._core.actors import ended_with_node

            sys.stderr.write(ended_with_node(detached))


class JoinedNode(Node):
    """A node that another program or `skate start` has started; see `enter_node`."""


class LocalNode(Node):
    """A node that this driver has started."""

    def __init__(self, config: NodeConfig, *, log_to_driver: bool, env_vars: dict[str, str], namespace: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            config.control_fd = theirs.fileno()
            report, config.report_fd = os.pipe() if config.cluster is not None else (-1, -1)
            environment = {**os.environ, **env_vars, JOB_ENVIRONMENT: _as_json(env_vars)}
            self.process = _spawn(config, [theirs.fileno(), config.report_fd], environment)
        try:
            if config.cluster is not None:
                os.close(config.report_fd)
                _check(report, config.cluster, self.process)
            super().__init__(ours, log_to_driver=log_to_driver, namespace=namespace)
        except OSError:
            ours.close()
            self.process.wait()
            raise

    def _exit_code(self) -> int | None:
        # Its socket has ended, so it is dead or about to be.
        try:
            return self.process.wait(EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """End the runtime, then make sure that the daemon is gone, unless it is still needed."""
        super().close()
        if self.runtime.node_stays:
            self.process.returncode = 0  # it is on its own now: nobody waits for it
            return
        deadline = time.monotonic() + 2.0
        while self.process.poll() is None and time.monotonic() < deadline:
            try:
                self.process.wait(deadline - time.monotonic())
            except subprocess.TimeoutExpired:
                break
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextlib.contextmanager
def naming_limits() -> Iterator[None]:
    """An error that comes from a limit of the system says which."""
    try:
        yield
    except (OSError, RuntimeError, MemoryError) as error:
        from skate._system_limits import limit_of

        limit = limit_of(error)
        if not limit:
            raise
        from skate.exceptions import SystemLimitError

        raise SystemLimitError(what="init() could not start a node, or join one.", limit=limit) from None


def _submitted_job() -> bytes:
    try:
        job = bytes.fromhex(os.environ.get(JOB_VARIABLE, ""))
    except ValueError:
        return b""
    return job if len(job) == JOB_BYTES else b""


def enter_node(address: str) -> socket.socket:
    """A connection to the node on this machine that the address means. Raises ConnectionError if none lets us in."""
    from skate._node.lobby import doors_that_greet, enter, greeted, nodes_of, public_nodes
    from skate._wire.handshake import HandshakeError

    in_cluster = address != "auto" and not address.startswith("skate-")
    refused: HandshakeError | None = None
    named = address.startswith("skate-")
    names = [address] if named else public_nodes() if address == "auto" else nodes_of(address)
    for found in names if named else doors_that_greet(names):
        try:
            return enter(found) if isinstance(found, str) else greeted(found)
        except HandshakeError as error:
            refused = error  # another node may do
        except OSError:
            continue  # it has just ended
    if refused is not None:
        raise ConnectionError(f"init(address={address!r}): cannot join the node on this machine: {refused}")
    if in_cluster:
        raise ConnectionError(
            f"init(address={address!r}): no node of that cluster runs on this machine.\n"
            f"  why:  a driver joins its cluster through a node on its own machine.\n"
            f"  next: start one with `skate start --address={address}`."
        )
    raise ConnectionError(
        f"init(address={address!r}): there is no running node of this user to join.\n"
        "  why:  a node that init() starts ends with its last driver, and opens to others with its first detached "
        "actor.\n"
        "  next: start one that stays with `skate start --head`, or leave the address out to start a node."
    )


def enter_cluster_here(cluster: str) -> socket.socket | None:
    """A connection to a node of that cluster ("host:port"), if one of this user's runs on this machine.

    The kernel says whose process a driver on the same machine is, so it needs no token.
    """
    from skate._node.lobby import doors_that_greet, greeted, nodes_of

    for door in doors_that_greet(nodes_of(cluster)):
        try:
            return greeted(door)
        except OSError:  # the node has just ended, or has another version
            continue
    return None


def _check(report: int, cluster: ClusterConfig, daemon: subprocess.Popen[bytes]) -> None:
    """Raise what kept the daemon from joining its cluster."""
    import select

    import msgspec

    with os.fdopen(report, "rb") as file:
        poll = select.poll()
        poll.register(file, select.POLLIN)
        if not poll.poll(JOIN_SLOW_S * 1000) and _is_no_head(cluster):
            daemon.kill()  # it would try for longer
            host, port = cluster.control
            raise ConnectionError(
                f"init(address='skate://{host}:{port}'): what listens there ends the conversation when it is asked "
                "for the cluster.\n"
                "  why:  it may be a node's port and not the head's, or have just ended.\n"
                "  next: check the port: `skate start --head` printed it, and it is 6380 unless --port named another."
            )
        said = msgspec.json.decode(file.readline() or b'{"error": "its daemon has died."}')
    if "error" in said:
        raise ConnectionError(f"init(address='skate://…'): {said['error']}")


def _is_no_head(cluster: ClusterConfig) -> bool:
    """Whether what is there lets us in, and hangs up when it is asked what only a control service knows."""
    from skate._wire.channel import Channel
    from skate._wire.cluster import Ask
    from skate._wire.entrance import Tls
    from skate._wire.gate import HANDSHAKE_S, knock, speaks_tls

    host, port = cluster.control
    try:
        tls = Tls(listens=False) if speaks_tls(host, port) else None
        sock, _versions, _rest = knock(host, port, cluster.token.encode(), tls=tls)
        with sock:
            Channel(sock).send(Ask("cluster"))
            sock.settimeout(HANDSHAKE_S)
            return sock.recv(1) == b""
    except OSError:
        return False  # the daemon will say what is wrong


def _as_json(variables: dict[str, str]) -> str:
    if not variables:
        return ""
    import json

    return json.dumps(variables)


def _spawn(config: NodeConfig, fds: list[int], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    import msgspec

    settings = msgspec.json.encode(config)
    # The token of a cluster is nothing for the list of processes, which everybody can read.
    secret = config.cluster is not None
    process = subprocess.Popen(
        command("skate._node.main", *([] if secret else [settings.decode()])),
        stdin=subprocess.PIPE if secret else subprocess.DEVNULL,
        pass_fds=[fd for fd in fds if fd >= 0],
        start_new_session=True,
        env=environment,
    )
    if process.stdin is not None:
        process.stdin.write(settings + b"\n")
        process.stdin.close()
    return process
