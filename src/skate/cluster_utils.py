"""Many nodes on one machine, for tests: of Skate itself, and of programs that are to run on a cluster.

    from skate.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    worker = cluster.add_node(num_cpus=2, resources={"fast": 1})
    skate.init(address=cluster.address)
    ...
    cluster.remove_node(worker)
    cluster.wait_for_nodes()  # until its end is known
    assert cluster.list_all_nodes() == [cluster.head_node]
    skate.shutdown()
    cluster.shutdown()

Every node is a node in earnest: a daemon with its workers and its object store, connected to the others by TCP. Only
the machine, its cores and its memory are shared.
"""

from __future__ import annotations

import math
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from types import TracebackType
from typing import Any

from skate._config import STORE_BYTES_LEAST, node_resources, temporary_directory
from skate._control.config import ControlConfig, StoreConfig, Supervised
from skate._node.launch import start_control, start_node
from skate._node.lobby import node_id_of
from skate._node.main import ClusterConfig, NodeConfig

#: Of Ray, which has no clusters of several nodes on some systems.
cluster_not_supported = False
LOOPBACK = "127.0.0.1"
STORE_BYTES = 100 << 20
ENDS_S = 5.0
#: A driver is told of nodes that have joined within a moment; no longer than this is waited for that.
NEWS_S = 5.0


class ClusterNode:
    """A node of a `Cluster`."""

    def __init__(self, process: subprocess.Popen[bytes], said: dict[str, str]) -> None:
        self._process = process
        self._node_id = said["node_id"]
        self._lobby = said["lobby"]

    @property
    def node_id(self) -> str:
        """It is another one when the node, held to be dead because it stood still for too long, has joined anew."""
        if self.is_alive():
            self._node_id = node_id_of(self.pid) or self._node_id
        return self._node_id

    @property
    def pid(self) -> int:
        """Of its daemon."""
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def _end(self, *, gracefully: bool) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM if gracefully else signal.SIGKILL)
        try:
            self._process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def __repr__(self) -> str:
        return f"ClusterNode({self.node_id[:8]}…, pid {self.pid})"


class Cluster:
    """A control service and nodes, as processes on this machine. They end with the process that made them."""

    def __init__(
        self,
        initialize_head: bool = False,
        connect: bool = False,
        head_node_args: dict[str, Any] | None = None,
        shutdown_at_exit: bool = True,
        *,
        tls: bool = False,
        store: str | None = None,
    ) -> None:
        """Start the control service, and with `initialize_head` a node, whose arguments are those of `add_node`.

        connect: make this process a driver of it. tls: encrypt what the nodes say to each other. shutdown_at_exit has
        no effect: the cluster always ends with the process that made it.

        store: a directory in which the control service keeps its state, or the address of Redis servers
        (redis://h1,h2). Then the head node starts the service again when it has died. Without a store the state is in
        memory, and the cluster ends with the service.
        """
        self._tls = tls
        self._token = secrets.token_hex(32)
        #: What a store on Redis servers notes on the machine of the head.
        self._notes = tempfile.mkdtemp(prefix="skate-store-") if store is not None and "://" in store else ""
        stored = None
        if store is not None:
            stored = StoreConfig(address=store if self._notes else os.path.abspath(store), parent=self._notes)
        config = ControlConfig(host=LOOPBACK, token=self._token, parent=os.getpid(), tls=tls, store=stored)
        self._control, host, port = start_control(config, log=subprocess.DEVNULL)
        config.port = port
        self._supervised = Supervised(pid=self._control.pid, config=config) if stored is not None else None
        self._control_address = (host, port)
        self.address = f"{host}:{port}"
        self.head_node: ClusterNode | None = None
        self.worker_nodes: list[ClusterNode] = []
        if initialize_head:
            self.head_node = self.add_node(**(head_node_args or {}))
        if connect:
            self.connect()

    @property
    def gcs_address(self) -> str:
        """The same as `address`, by the name that it has in Ray."""
        return self.address

    @property
    def nodes(self) -> list[ClusterNode]:
        """Those that were added and not removed, the head first."""
        return [*([self.head_node] if self.head_node is not None else []), *self.worker_nodes]

    def list_all_nodes(self) -> list[ClusterNode]:
        """The same as `nodes`, by the name that it has in Ray."""
        return self.nodes

    def remaining_processes_alive(self) -> bool:
        """Whether the control service and the daemons of all nodes that were not removed still run."""
        return self._control.poll() is None and all(node.is_alive() for node in self.nodes)

    def wait_for_nodes(self, timeout: float = 30) -> None:
        """Wait until the cluster, and this process if it is a driver of it, know of all nodes and of no others.

        >>> cluster.remove_node(worker, allow_graceful=False)
        >>> cluster.wait_for_nodes()

        Raises TimeoutError if that takes longer than so many seconds: a node that was not removed has died, say.
        """
        deadline = time.monotonic() + timeout
        # One that joins anew meanwhile is expected under its new id.
        while (known := self._known_nodes()) != [expected := {node.node_id for node in self.nodes}] * len(known):
            if time.monotonic() >= deadline:
                raise TimeoutError(
                    f"wait_for_nodes(timeout={timeout:g}): {len(expected)} nodes were added and not removed, and "
                    f"{' and '.join(str(len(ids & expected)) for ids in known)} of them are known, besides "
                    f"{' and '.join(str(len(ids - expected)) for ids in known)} others."
                )
            time.sleep(0.01)

    def _known_nodes(self) -> list[set[str]]:
        """The nodes that the control service knows, and those that this process does if it is a driver of it."""
        import skate
        from skate.cli.asking import Asking

        with Asking(self._control_address, self._token.encode()) as asking:
            known = [{node["node_id"] for node in asking.ask("nodes") if node["serves"]}]
        if self._is_driver():
            known.append({node["NodeID"] for node in skate.nodes() if node["Alive"]})
        return known

    def add_node(
        self,
        wait: bool = True,
        *,
        num_cpus: float = 1,
        num_gpus: int = 0,
        resources: dict[str, float] | None = None,
        memory: int | None = None,
        object_store_memory: int = STORE_BYTES,
        labels: dict[str, str] | None = None,
        node_name: str = "",
        env_vars: dict[str, str] | None = None,
        **ignored: Any,
    ) -> ClusterNode:
        """Start a node, and wait until it is part of the cluster and, after `connect()`, the driver knows of it.

        wait: with False, what the driver knows is not waited for; `wait_for_nodes` does that for several at once.
        env_vars: variables of the node's processes, beside those of this one.
        Names that begin with `_`, such as `_system_config`, and those of `init` that have no effect have none here.
        """
        from skate._no_effect import NO_EFFECT
        from skate._options import checked_labels

        for name in ignored:
            if not name.startswith("_") and name not in NO_EFFECT["init"]:
                raise TypeError(f"add_node() has no argument {name!r}; see help(skate.cluster_utils.Cluster.add_node).")
        for name, value, least in (
            ("num_cpus", num_cpus, 0),
            ("num_gpus", num_gpus, 0),
            ("memory", memory, 0),
            ("object_store_memory", object_store_memory, STORE_BYTES_LEAST),
        ):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if value is not None and not (is_number and least <= value < math.inf):
                raise ValueError(f"add_node({name}={value!r}): it may be a number, {least} or more.")
        config = NodeConfig(
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            resources=node_resources(resources),
            memory=memory,
            labels=checked_labels(labels),
            is_head=self.head_node is None,
            supervises=self._supervised if self.head_node is None else None,
            object_store_memory=object_store_memory,
            spill_directory=temporary_directory(),
            parent=os.getpid(),
            cluster=ClusterConfig(
                control=self._control_address, token=self._token, host=LOOPBACK, name=node_name, tls=self._tls
            ),
        )
        node = ClusterNode(*start_node(config, env_vars=env_vars))
        if self.head_node is None:
            self.head_node = node
        else:
            self.worker_nodes.append(node)
        if wait:
            self._wait_for_news()
        return node

    def remove_node(self, node: ClusterNode, allow_graceful: bool = True) -> None:
        """End a node: it says goodbye, or is killed. Raises ValueError if it is none of this cluster's (any more)."""
        if node not in self.nodes:
            raise ValueError(
                f"{node} is not in this cluster: it was removed already, or is of another one. cluster.nodes lists "
                "those that can be removed; one that died by itself is among them until it is."
            )
        node._end(gracefully=allow_graceful)
        if node is self.head_node:
            self.head_node = None
        else:
            self.worker_nodes.remove(node)

    def connect(self, namespace: str | None = None) -> Any:
        """Make this process a driver of the cluster, and wait until it knows of all nodes."""
        import skate

        context = skate.init(address=self.address, namespace=namespace)
        self._wait_for_news()
        return context

    def _wait_for_news(self) -> None:
        """Until this process knows of all nodes, if it is a driver of this cluster."""
        import skate

        if not self._is_driver():
            return
        ids = {node.node_id for node in self.nodes if node.is_alive()}
        deadline = time.monotonic() + NEWS_S
        while not ids <= {node["NodeID"] for node in skate.nodes()} and time.monotonic() < deadline:
            time.sleep(0.005)

    def _is_driver(self) -> bool:
        """Whether this process is a driver of this cluster."""
        import skate

        ids = {node.node_id for node in self.nodes}
        return skate.is_initialized() and not ids.isdisjoint(node["NodeID"] for node in skate.nodes())

    def shutdown(self) -> None:
        """End all of it."""
        for node in reversed(self.nodes):
            node._end(gracefully=True)
        self.head_node, self.worker_nodes = None, []
        if self._supervised is not None:
            self._end_supervised()
        self._control.terminate()
        self._control.wait()
        if self._notes:
            shutil.rmtree(self._notes, ignore_errors=True)

    def _end_supervised(self) -> None:
        """The service may be another process than the one that was started here."""
        from skate.cli.asking import Asking
        from skate.cli.trouble import Trouble

        try:
            with Asking(self._control_address, self._token.encode()) as asking:
                asking.end_cluster("the cluster was shut down", keep=True)
        except Trouble:  # it has died, and no node was left to start it again
            pass

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
