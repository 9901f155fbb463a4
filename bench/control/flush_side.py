"""Figure 10b: what memory is needed after work that leaves nothing to be known.

Puts and tasks are those of a driver. Actors and copies are those of a played node (`town.py`), since a hundred thousand
real processes would take hours: the control service does for them what it does for real ones, the daemon and the driver
have nothing to do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tools
from tools import key_of
from town import PlayedNode, Samples, town

import skate
from skate import kv
from skate._control.config import StoreConfig
from skate._core.ids import place_of
from skate._wire import cluster
from skate.cluster_utils import Cluster

VALUE = bytes(tools.VALUE_BYTES)
COPY_BYTES = 1 << 20


@contextmanager
def _places(engine: str) -> Iterator[tuple[Cluster, Path | None]]:
    """A cluster without a node whose state is in "memory" or in "sqlite", and the folder of its store."""
    with tools.folder() as folder:
        is_stored = engine == "sqlite"
        with town(StoreConfig(address=str(folder)) if is_stored else None) as made:
            yield made, folder if is_stored else None


def _found(samples: Samples) -> dict[str, Any]:
    return {"found": samples.figures(), "seconds": samples.taken[-1][0], "done": samples.done, "curve": samples.curve()}


# -- of a driver -------------------------------------------------------------------------------------------------------


@contextmanager
def _driver(engine: str, period_s: float) -> Iterator[Samples]:
    with _places(engine) as (made, folder):
        node = made.add_node(num_cpus=2)
        made.connect()
        try:
            pids = {"control": made._control.pid, "daemon": node.pid, "driver": os.getpid()}
            with Samples(pids, folder, period_s) as samples:
                yield samples
        finally:
            skate.shutdown()


def puts(engine: str, count: int, keys: int, threads: int, period_s: float) -> dict[str, Any]:
    """Writes by threads of a driver: an fsync is then shared by several."""
    with _driver(engine, period_s) as samples:
        lock = threading.Lock()

        def put(first: int) -> None:
            for number in range(first, count, threads):
                kv.put(key_of(number % keys), VALUE)
                with lock:
                    samples.done += 1

        running = [threading.Thread(target=put, args=(first,)) for first in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        assert samples.done == count, f"{samples.done} of {count} puts"
    return _found(samples)


@skate.remote
def nothing() -> None: ...


def tasks(engine: str, count: int, batch: int, period_s: float) -> dict[str, Any]:
    """Tasks in batches; the results of a batch are got and let go before the next one."""
    with _driver(engine, period_s) as samples:
        while samples.done < count:
            skate.get([nothing.remote() for _ in range(min(batch, count - samples.done))])
            samples.done += min(batch, count - samples.done)
    return _found(samples)


# -- of a played node --------------------------------------------------------------------------------------------------


def _count(samples: Samples, done: int) -> None:
    samples.done = done


def actors(engine: str, count: int, window: int, period_s: float) -> dict[str, Any]:
    """Actors that are registered, created, placed, started, dropped and ended."""
    with _places(engine) as (made, folder):
        node = PlayedNode(made)
        with Samples({"control": made._control.pid}, folder, period_s) as samples:
            node.many(count, window, lambda number: node.create_actor()[0], lambda done: _count(samples, node.ended))
            node.run_until(lambda: node.ended == count, "all actors to have ended")
            node.wait_for(node.put(b"last", b""))  # all that was said before it is known to the service
            samples.done = node.ended
        node.close()
    return _found(samples)


def copies(engine: str, count: int, window: int, period_s: float) -> dict[str, Any]:
    """Objects that were made on one node, located and copied by another, and freed."""
    with _places(engine) as (made, folder):
        maker, asker = PlayedNode(made), PlayedNode(made)
        located, dropped = 0, 0

        def on_maker(message: Any) -> None:
            if isinstance(message, cluster.Tracked):
                maker.tell(cluster.Owned(message.object, maker.owner))

        def on_asker(message: Any) -> None:
            nonlocal located, dropped
            match message:
                case cluster.Located(object, _):
                    located += 1
                    asker.tell(cluster.CopyStored(object))
                case cluster.DropCopies(objects):
                    dropped += len(objects)
                    for object in objects:
                        asker.tell(cluster.CopyDropped(object))

        def both_run_until(wanted: int, what: str, of: Any) -> None:
            def step() -> bool:
                maker.loop.run_once(0.0)
                return bool(of() >= wanted)

            asker.run_until(step, what)

        maker.on_object, asker.on_object = on_maker, on_asker
        place = place_of(maker.number, COPY_BYTES)
        with Samples({"control": made._control.pid}, folder, period_s) as samples:
            while samples.done < count:
                objects = [os.urandom(20) for _ in range(min(window, count - samples.done))]
                for object in objects:
                    asker.tell(cluster.Locate(object, place))
                both_run_until(samples.done + len(objects), "the objects to be located", lambda: located)
                # What the asker has said of its copies is with the service before the maker speaks of their end.
                asker.wait_for(asker.put(b"stored", b""))
                maker.tell(cluster.Freed(objects))
                both_run_until(samples.done + len(objects), "the copies to be dropped", lambda: dropped)
                samples.done += len(objects)
        maker.close()
        asker.close()
    return _found(samples)


if __name__ == "__main__":
    tools.main({"puts": puts, "tasks": tasks, "actors": actors, "copies": copies})
