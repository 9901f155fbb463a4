"""The standard library's ProcessPoolExecutor, with its default way to start processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from functools import partial
from typing import Any, ClassVar

from adapters import CLUSTER_ROWS

_NO_OBJECTS = "a pool has no object store"
_NO_ACTORS = "a pool has no actors"
_NO_NODES = "a pool has one machine"


class Peer:
    cannot: ClassVar[dict[str, str]] = {
        **dict.fromkeys(CLUSTER_ROWS, _NO_NODES),
        "nested": "a task of a pool cannot submit tasks to it",
        "tree_reduce": "a pool does not take futures as arguments",
        **dict.fromkeys(("put_100b", "put_10kb", "put_1mb", "put_100mb", "put_1gib"), _NO_OBJECTS),
        **dict.fromkeys(("get_small", "get_1mb"), _NO_OBJECTS),
        **dict.fromkeys(("actor_async", "actor_sync", "actor_1_n", "actor_n_n"), _NO_ACTORS),
        **dict.fromkeys(("actor_asyncio", "actor_threaded", "actor_create", "actor_idle"), _NO_ACTORS),
    }

    def start(self, cpus: int) -> None:
        self._pool = ProcessPoolExecutor(cpus)

    def stop(self) -> None:
        self._pool.shutdown()

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return partial(self._pool.submit, function)

    def get(self, ref: Future[Any]) -> Any:
        return ref.result()

    def get_all(self, refs: Sequence[Future[Any]]) -> list[Any]:
        return [ref.result() for ref in refs]

    def wait_one(self, refs: Sequence[Future[Any]]) -> Sequence[Future[Any]]:
        done, rest = wait(refs, return_when=FIRST_COMPLETED)
        done.pop()
        return [*done, *rest]
