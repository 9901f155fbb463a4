"""The keeper of a node: it holds the socket on which HTTP is answered there, and gives it to replicas.

    Keeper ◄── share, adopt, a pipe ── replicas ──accept──► the socket
       └─────── watches, with no replica left ──────────────────┘

A connection waits in the kernel until a replica accepts it. The keeper never accepts one. It lives longer than every
replica, so while one is replaced by another, and while there is none, connections wait and are not refused. With no
replica left it watches the socket, and tells the controller when a connection waits.

The keeper knows which replicas accept by pipes: each replica holds one end of its pipe, and closes it when it accepts
no more. A replica that is killed closes it too.

A keeper that is killed is started again. The replicas go on accepting meanwhile, and give their socket to the new
keeper. If no replica has it, the address is free and the new keeper binds it.

Two nodes on one machine have one address. The first keeper binds it. Replicas of the other node accept no connections,
and answer what those of the first one pass on.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from typing import Any

import msgspec

import skate
from skate.descriptors import Descriptor
from skate.exceptions import ActorError
from skate.serve.records import CONTROLLER, NAMESPACE

__all__ = ["Keeper", "keeper_of"]

logger = logging.getLogger("skate.serve")

BACKLOG = 4096
#: The controller is told so often of a connection that waits with no replica left.
KNOCK_EVERY_S = 1.0
#: How long replicas may take to give the socket to a keeper that was started again.
ADOPT_WITHIN_S = 5.0
#: How long another keeper may take to say where it is.
NEIGHBOUR_WITHIN_S = 2.0
#: What the command lines of a node's processes have: they do not say what they are part of.
NODE = "skate._node"
#: Characters of a command line that a message has.
COMMAND_LENGTH_MAX = 200
#: The key under which the controller keeps the options of HTTP and the address.
HTTP = "http"


class Keeper:
    """The actor. It does nothing but hold a socket: nothing that users write runs in it."""

    async def __init__(self) -> None:  # type: ignore[misc]  # Skate awaits it
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._shared: Descriptor | None = None
        #: Replicas that accept connections, each with the end of the pipe that shows its death.
        self._holders: dict[str, int] = {}
        self._watching = False
        self._has_socket = asyncio.Event()
        #: Where HTTP is answered in the cluster already; None while it is not.
        self._known = await asyncio.to_thread(_known_address)
        if self._known is not None:
            self._loop.create_task(self._regain(*self._known))

    async def bind(self, host: str | None, port: int) -> tuple[tuple[str, int] | None, str]:
        """Hold the socket of an address; that, or why it cannot be had."""
        host = host or "127.0.0.1"
        if self._known is not None and port == 0:
            port = self._known[1]  # the same on all nodes
        if self._socket is None:
            try:
                self._take(_listening(host, port))
            except OSError as error:
                if error.errno == errno.EADDRINUSE and self._known is not None:
                    if await self._is_held_by_neighbour():
                        return self._known, ""
                    # Replicas hold it, which outlived the keeper before this one.
                    await _within(self._has_socket.wait(), ADOPT_WITHIN_S)
                if self._socket is None:
                    return None, await asyncio.to_thread(_why_not, host, port, error)
        assert self._socket is not None
        return self._socket.getsockname()[:2], ""

    async def network(self) -> str:
        """Where the socket is: nodes of one machine have one network. Empty if there is no socket."""
        return _network() if self._socket is not None else ""

    async def share(self, replica: str, host: str | None, port: int, pipe: Descriptor) -> tuple[Any, str]:
        """The socket for a replica, which accepts connections from now on until its end of the pipe is closed.

        None if another node of this machine has the address.
        """
        _, problem = await self.bind(host, port)
        if problem or self._socket is None:
            pipe.close()
            return None, problem
        self._hold(replica, pipe)
        return self._shared, ""

    async def adopt(self, replica: str, held: Descriptor, pipe: Descriptor) -> None:
        """Take the socket from a replica that has outlived the keeper before this one."""
        if self._socket is None:
            self._take(socket.socket(fileno=held.detach()))
        self._hold(replica, pipe)

    async def returned(self, replica: str) -> None:
        """Note that a replica has stopped accepting connections: it drains, or is dead."""
        self._left(replica)

    async def holders(self) -> set[str]:
        """The replicas that accept connections."""
        return set(self._holders)

    async def stay(self) -> None:
        """Never return. The error of this call tells a replica that the keeper has ended."""
        await asyncio.Event().wait()

    async def _is_held_by_neighbour(self) -> bool:
        """Whether another node of this machine, of the same cluster, has the address."""
        ours = skate.get_runtime_context().get_node_id()
        for name in await asyncio.to_thread(_keepers):
            if name == keeper_name(ours):
                continue
            try:
                keeper = await asyncio.to_thread(skate.get_actor, name, NAMESPACE)
                if await asyncio.wait_for(_awaited(keeper.network.remote()), NEIGHBOUR_WITHIN_S) == _network():
                    return True
            except (ValueError, ActorError, asyncio.TimeoutError):  # it is gone, or does not answer
                continue
        return False

    async def _regain(self, host: str, port: int) -> None:
        """Bind the address again, unless replicas hold it: then one of them gives the socket."""
        while self._socket is None:
            try:
                self._take(_listening(host, port))
            except OSError:
                await _within(self._has_socket.wait(), KNOCK_EVERY_S)

    def _take(self, found: socket.socket) -> None:
        found.setblocking(False)
        self._socket, self._shared = found, Descriptor(found)
        self._has_socket.set()
        self._look()

    def _hold(self, replica: str, pipe: Descriptor) -> None:
        self._left(replica)
        fd = self._holders[replica] = pipe.detach()
        self._loop.add_reader(fd, self._left, replica)
        self._look()

    def _left(self, replica: str) -> None:
        fd = self._holders.pop(replica, None)
        if fd is not None:
            self._loop.remove_reader(fd)
            os.close(fd)
            self._look()

    def _look(self) -> None:
        """Watch the socket if no replica does."""
        if self._socket is None:
            return
        if not self._holders and not self._watching:
            self._loop.add_reader(self._socket, self._on_connection)
        elif self._holders and self._watching:
            self._loop.remove_reader(self._socket)
        self._watching = not self._holders

    def _on_connection(self) -> None:
        """A connection waits. It stays where it is, so the socket is watched again only after a while."""
        assert self._socket is not None
        self._loop.remove_reader(self._socket)
        self._loop.create_task(self._knock())

    async def _knock(self) -> None:
        try:
            controller = await asyncio.to_thread(skate.get_actor, CONTROLLER, NAMESPACE)
            controller.knocked.remote(skate.get_runtime_context().get_node_id())
        except ValueError:  # it is being started again
            pass
        except Exception as error:  # noqa: BLE001 - the next knock may succeed
            logger.warning("the controller could not be told that a connection waits: %s", error)
        finally:
            await asyncio.sleep(KNOCK_EVERY_S)
            self._watching = False
            self._look()


def keeper_name(node: str) -> str:
    """The name of the keeper of a node."""
    return f"SERVE_KEEPER::{node}"


def keeper_of(node: str) -> Any:
    """The keeper of a node; one is made if there is none."""
    from skate.strategies import NodeAffinitySchedulingStrategy

    return (
        skate.remote(Keeper)
        .options(
            name=keeper_name(node),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_concurrency=10_000,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote()
    )


def _keepers() -> list[str]:
    found = skate.util.list_named_actors(all_namespaces=True)
    return [
        each["name"] for each in found if each["namespace"] == NAMESPACE and each["name"].startswith("SERVE_KEEPER")
    ]


def _network() -> str:
    """What tells this network from those of other machines and containers."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')}"


async def _awaited(ref: Any) -> Any:
    return await ref


async def _within(what: Any, timeout_s: float) -> None:
    try:
        await asyncio.wait_for(what, timeout_s)
    except asyncio.TimeoutError:
        pass


def _known_address() -> tuple[str, int] | None:
    data = skate.kv.get(HTTP, namespace=NAMESPACE)
    if data is None:
        return None
    _, (host, port) = msgspec.msgpack.decode(data)
    return host, port


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def _why_not(host: str, port: int, error: OSError) -> str:
    """Why an address cannot be had, and by whom it is taken, if that can be seen."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return (
            f"HTTP cannot be answered at {where}.\n  why:  {_owner(port)}.\n"
            "  next: end it, or serve.run(…, port=…) with another one; port=0 takes one that is free."
        )
    if error.errno == errno.EACCES:
        return f"HTTP cannot be answered at {where}: ports below 1024 are for root.\n  next: choose another port."
    return f"HTTP cannot be answered at {where}: {error.strerror or error}.\n  next: choose a host of this machine."


def _owner(port: int) -> str:
    import psutil

    try:
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid:
                return _described(psutil.Process(each.pid))
    except (psutil.Error, OSError):
        pass
    return "another process listens there, of another user perhaps: its name cannot be seen"


def _described(found: Any) -> str:
    """What listens; of a process of Skate, the program that has started its node."""
    first = next((each for each in [found, *found.parents()] if NODE not in " ".join(each.cmdline())), None)
    if first == found:
        return f"process {found.pid} listens there: {_command(found)}"
    if first is None or first.pid == 1:
        return f"process {found.pid} listens there, of a node of Skate"
    return f"process {found.pid} listens there, of Skate in process {first.pid}: {_command(first)}"


def _command(found: Any) -> str:
    """The command line of a process, not too long for a message."""
    text = " ".join(found.cmdline())
    return text if len(text) <= COMMAND_LENGTH_MAX else f"{text[: COMMAND_LENGTH_MAX - 2]} …"
