"""One adapter for each peer: the same few verbs, spelt in each library's own words.

An adapter uses its library the way that library's documentation does, with its usual defaults, and adds as little as
it can: `task(f)` returns the library's own submitting callable where there is one, so that the loop that is timed
calls it directly.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol, cast

#: Rows that need several nodes, for the peers that have none.
CLUSTER_ROWS = (
    *("locality_100kb", "locality_1mb", "locality_10mb", "locality_100mb"),
    *("nodes_2", "nodes_4", "nodes_16", "nodes_64", "nodes_100"),
    *("transfer_1gib", "broadcast_256mb"),
)


class Adapter(Protocol):
    """What a workload may ask of a peer. A peer leaves out the verbs that it lacks, and `cannot` says why."""

    #: Rows that this peer has no means to run, each with the reason that the report prints.
    cannot: ClassVar[dict[str, str]]

    def start(self, cpus: int) -> None:
        """Start the runtime with `cpus` workers."""

    def stop(self) -> None:
        """Stop it, with all its processes."""

    def task(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a callable that submits `function` with the given arguments and returns its future."""

    def get(self, ref: Any) -> Any:
        """Wait for one future and return its value."""

    def get_all(self, refs: Sequence[Any]) -> list[Any]:
        """Wait for all futures and return their values in order."""

    def put(self, value: Any) -> Any:
        """Hand a value to the runtime and return its future."""

    def wait_one(self, refs: Sequence[Any]) -> Sequence[Any]:
        """Wait until any one future is done and return the others."""

    def parent(self) -> Callable[[int], Any]:
        """Return a callable that submits one task, which submits `count` no-op tasks itself and waits for them."""

    def actor(self, cls: type, *, max_concurrency: int | None = None) -> Callable[[], Any]:
        """Return a callable that makes an actor and returns its handle. Without `max_concurrency` the actor runs as
        many calls at a time as such an actor does by default."""

    def method(self, actor: Any, name: str) -> Callable[..., Any]:
        """Return a callable that calls a method and returns its future, for `get` and `get_all`. It holds the actor."""

    def caller(self, actor: Any) -> Callable[[int], Any]:
        """Make a second actor, and return a callable that has it call `actor.noop` `count` times, wait for the
        results, and return how many there were. It holds them both."""

    # -- several nodes on this machine, for the rows of `cluster_rows.py` ----------------------------------------------

    #: A task that returns the id of the node that it runs on; one that reads an array first.
    where: Callable[[], str]
    read_where: Callable[[Any], str]

    def start_cluster(self, nodes: int, *, cpus: int, store_bytes: int) -> list[str]:
        """Start so many nodes, each with so many CPUs, and become a driver at the first of them. Return the ids of all
        nodes, that one's first, when this process knows them all."""

    def stop_cluster(self) -> None:
        """Stop it, with all its processes."""

    def node_processes(self) -> list[list[int]]:
        """For each node, in that order, the processes that it began with; those below them belong to it, too."""

    def task_on(self, function: Callable[..., Any], node: str) -> Callable[..., Any]:
        """As `task`, to run on that node and nowhere else."""

    def task_spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """As `task`, to be spread over all nodes."""

    def wait_all(self, refs: Sequence[Any]) -> None:
        """Wait until all values are there, wherever that is."""

    def stored_bytes(self) -> float:
        """How much the stores of all nodes hold."""


def load(peer: str) -> Adapter:
    """Import the adapter of `peer`, and with it the peer's library: only possible in that peer's own environment."""
    return cast(Adapter, importlib.import_module(f"adapters.{peer}").Peer())
