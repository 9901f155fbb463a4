"""Dask's futures and actors on a LocalCluster: one process with one thread for each CPU, no dashboard.

`pure=False` because equal calls would otherwise be one task, and `direct=True` because a value that is put goes to a
worker without passing through the scheduler then: the faster of Dask's two ways.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from distributed import Client, Future, LocalCluster, wait, worker_client

from adapters import CLUSTER_ROWS
from tasks import noop


def _spawn(count: int) -> int:
    with worker_client() as client:
        return len(client.gather([client.submit(noop, pure=False) for _ in range(count)]))


_NO_PROCESSES = "actors of Dask live in the processes of its workers and have none of their own"
_NO_NODES = "Dask has workers rather than nodes, and the rows for clusters compare with Ray"


class Peer:
    cannot: ClassVar[dict[str, str]] = {
        **dict.fromkeys(CLUSTER_ROWS, _NO_NODES),
        "actor_n_n": "two actors of Dask on one worker share a thread, and a call between them is a plain call",
        "actor_threaded": "an actor of Dask runs one call at a time, unless its methods are coroutines",
        "actor_create": _NO_PROCESSES,
        "actor_idle": _NO_PROCESSES,
    }

    def start(self, cpus: int) -> None:
        self._cluster = LocalCluster(
            n_workers=cpus, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=logging.CRITICAL
        )
        self._client = Client(self._cluster)

    def stop(self) -> None:
        self._client.close()
        self._cluster.close()

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return partial(self._client.submit, function, pure=False)

    def get(self, ref: Any) -> Any:
        return ref.result()

    def get_all(self, refs: Sequence[Any]) -> list[Any]:
        if isinstance(refs[0], Future):
            values: list[Any] = self._client.gather(refs)
            return values
        return [ref.result() for ref in refs]  # of calls of actors, which the client does not gather

    def put(self, value: Any) -> Any:
        return self._client.scatter(value, direct=True, hash=False)

    def wait_one(self, refs: Sequence[Any]) -> Sequence[Any]:
        done, rest = wait(refs, return_when="FIRST_COMPLETED")
        done.pop()
        return [*done, *rest]

    def parent(self) -> Callable[[int], Any]:
        return self.task(_spawn)

    def actor(self, cls: type, *, max_concurrency: int | None = None) -> Callable[[], Any]:
        return lambda: self._client.submit(cls, actor=True, pure=False).result()

    def method(self, actor: Any, name: str) -> Callable[..., Any]:
        call: Callable[..., Any] = getattr(actor, name)
        return call
