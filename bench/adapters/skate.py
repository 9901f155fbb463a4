"""Skate, through its public API."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import skate
from tasks import look_at, noop

#: Nodes that are started at once. More do not start sooner: they compete for the cores.
STARTING_AT_A_TIME = 8

_noop = skate.remote(noop)


def _spawn(count: int) -> int:
    return len(skate.get([_noop.remote() for _ in range(count)]))


@skate.remote
class _Caller:
    def __init__(self, actor: Any) -> None:
        self._noop = actor.noop.remote

    def call(self, count: int) -> int:
        noop = self._noop
        return len(skate.get([noop() for _ in range(count)]))


def _where() -> str:
    return skate.get_runtime_context().get_node_id()


def _read_where(array: Any) -> str:
    look_at(array)
    return skate.get_runtime_context().get_node_id()


class Peer:
    cannot: ClassVar[dict[str, str]] = {}
    where = staticmethod(_where)
    read_where = staticmethod(_read_where)

    def start(self, cpus: int) -> None:
        skate.init(num_cpus=cpus, log_to_driver=False)
        self._begin()

    def _begin(self) -> None:
        self.get: Callable[[Any], Any] = skate.get
        self.get_all: Callable[[Sequence[Any]], list[Any]] = skate.get
        self.put: Callable[[Any], Any] = skate.put

    def stop(self) -> None:
        skate.shutdown()

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        submit: Callable[..., Any] = skate.remote(function).remote
        return submit

    def wait_one(self, refs: Sequence[Any]) -> Sequence[Any]:
        rest: Sequence[Any] = skate.wait(refs, num_returns=1)[1]
        return rest

    def parent(self) -> Callable[[int], Any]:
        return self.task(_spawn)

    def actor(self, cls: type, *, max_concurrency: int | None = None) -> Callable[[], Any]:
        remote_class: Any = skate.remote(cls)
        if max_concurrency is not None:
            remote_class = remote_class.options(max_concurrency=max_concurrency)
        make: Callable[[], Any] = remote_class.remote
        return make

    def method(self, actor: Any, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(actor, name).remote
        return call

    def caller(self, actor: Any) -> Callable[[int], Any]:
        call: Callable[[int], Any] = _Caller.remote(actor).call.remote
        return call

    # -- several nodes -------------------------------------------------------------------------------------------------

    def start_cluster(self, nodes: int, *, cpus: int, store_bytes: int) -> list[str]:
        from concurrent.futures import ThreadPoolExecutor

        from skate.cluster_utils import Cluster  # here, since other rows measure the memory of what is imported

        options: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": store_bytes}
        self._cluster = Cluster(initialize_head=True, head_node_args=options)
        with ThreadPoolExecutor(STARTING_AT_A_TIME) as pool:
            for started in [pool.submit(self._cluster.add_node, **options) for _ in range(nodes - 1)]:
                started.result()
        skate.init(address=self._cluster.address, log_to_driver=False)
        self._begin()
        while sum(node["Alive"] for node in skate.nodes()) < nodes:
            time.sleep(0.01)
        here = skate.get_runtime_context().get_node_id()
        self._nodes = sorted(self._cluster.nodes, key=lambda node: node.node_id != here)
        return [node.node_id for node in self._nodes]

    def stop_cluster(self) -> None:
        skate.shutdown()
        self._cluster.shutdown()

    def node_processes(self) -> list[list[int]]:
        return [[node.pid] for node in self._nodes]

    def task_on(self, function: Callable[..., Any], node: str) -> Callable[..., Any]:
        from skate.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        submit: Callable[..., Any] = skate.remote(function).options(scheduling_strategy=strategy).remote
        return submit

    def task_spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        submit: Callable[..., Any] = skate.remote(function).options(scheduling_strategy="SPREAD").remote
        return submit

    def wait_all(self, refs: Sequence[Any]) -> None:
        skate.wait(list(refs), num_returns=len(refs), fetch_local=False)

    def stored_bytes(self) -> float:
        name = "object_store_memory"
        return skate.cluster_resources()[name] - skate.available_resources().get(name, 0.0)
