"""Ray, quiet: no dashboard, no log forwarding, no usage report. Everything else as it comes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import ray

from tasks import look_at, noop

#: It refuses to start with a smaller store.
STORE_BYTES_MIN = 80 * 10**6

_noop = ray.remote(noop)


def _spawn(count: int) -> int:
    return len(ray.get([_noop.remote() for _ in range(count)]))


@ray.remote
class _Caller:
    def __init__(self, actor: Any) -> None:
        self._noop = actor.noop.remote

    def call(self, count: int) -> int:
        noop = self._noop
        return len(ray.get([noop() for _ in range(count)]))


def _where() -> str:
    node: str = ray.get_runtime_context().get_node_id()
    return node


def _read_where(array: Any) -> str:
    look_at(array)
    return _where()


_MANY_NODES = "left out: a node of Ray takes seconds to start and hundreds of MB; nodes_2 has its figures"


class Peer:
    where = staticmethod(_where)
    read_where = staticmethod(_read_where)
    cannot: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("nodes_4", "nodes_16", "nodes_64", "nodes_100"), _MANY_NODES),
        "actor_idle": "left out: at its rate in actor_create 1,000 actors would take minutes, and tens of GB",
    }

    def start(self, cpus: int) -> None:
        ray.init(num_cpus=cpus, include_dashboard=False, log_to_driver=False, _temp_dir=tempfile.gettempdir())
        self._begin()

    def _begin(self) -> None:
        self.get: Callable[[Any], Any] = ray.get
        self.get_all: Callable[[Sequence[Any]], list[Any]] = ray.get
        self.put: Callable[[Any], Any] = ray.put

    def stop(self) -> None:
        ray.shutdown()

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        submit: Callable[..., Any] = ray.remote(function).remote
        return submit

    def wait_one(self, refs: Sequence[Any]) -> Sequence[Any]:
        rest: Sequence[Any] = ray.wait(refs, num_returns=1)[1]
        return rest

    def parent(self) -> Callable[[int], Any]:
        return self.task(_spawn)

    def actor(self, cls: type, *, max_concurrency: int | None = None) -> Callable[[], Any]:
        remote_class: Any = ray.remote(cls)
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
        from ray.cluster_utils import Cluster  # here, since other rows measure the memory of what is imported

        options: dict[str, Any] = {"num_cpus": cpus, "object_store_memory": max(store_bytes, STORE_BYTES_MIN)}
        # It finds the temporary directory itself, and fails to start if it is told.
        self._cluster = Cluster(initialize_head=True, head_node_args=options | {"include_dashboard": False})
        for _ in range(nodes - 1):
            self._cluster.add_node(**options)
        ray.init(address=self._cluster.address, log_to_driver=False)
        self._begin()
        self._cluster.wait_for_nodes()
        here = _where()
        self._nodes = sorted(self._cluster.list_all_nodes(), key=lambda node: node.node_id != here)
        return [node.node_id for node in self._nodes]

    def stop_cluster(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()

    def node_processes(self) -> list[list[int]]:
        return [[info.process.pid for infos in node.all_processes.values() for info in infos] for node in self._nodes]

    def task_on(self, function: Callable[..., Any], node: str) -> Callable[..., Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        submit: Callable[..., Any] = ray.remote(function).options(scheduling_strategy=strategy).remote
        return submit

    def task_spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        submit: Callable[..., Any] = ray.remote(function).options(scheduling_strategy="SPREAD").remote
        return submit

    def wait_all(self, refs: Sequence[Any]) -> None:
        ray.wait(list(refs), num_returns=len(refs), fetch_local=False)

    def stored_bytes(self) -> float:
        name = "object_store_memory"
        free: float = ray.available_resources().get(name, 0.0)
        return float(ray.cluster_resources()[name]) - free
