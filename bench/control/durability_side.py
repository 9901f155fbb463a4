"""What durability costs a program: actors and `skate.kv` on a lone node, and in clusters with each kind of store."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tools
from tools import key_of
from town import town

import skate
from skate import kv
from skate._control.config import StoreConfig

#: Servers of the chain, and their kind.
MEMBERS, KIND = 2, "redis"


@contextmanager
def _runtime(store: str) -> Iterator[None]:
    """store: "alone" (no cluster), "memory", "full" or "normal" (SQLite), or "chain"."""
    with contextlib.ExitStack() as stack:
        if store == "alone":
            skate.init(num_cpus=2)
        else:
            folder = str(stack.enter_context(tools.folder()))
            config: StoreConfig | None = None
            if store in ("full", "normal"):
                config = StoreConfig(address=folder, durability=store)
            elif store == "chain":
                _, address = stack.enter_context(tools.chains(KIND, 1, MEMBERS))
                config = StoreConfig(address=address, parent=folder)
            made = stack.enter_context(town(config))
            made.add_node(num_cpus=2)
            made.connect()
        try:
            yield
        finally:
            skate.shutdown()


@skate.remote(num_cpus=0)
class Nothing:
    def answer(self) -> None: ...


def _per_s(count: int, act: Callable[[int], Any], threads: int = 1) -> float:
    """How often a second it is done, by so many threads together."""

    def some(first: int) -> None:
        for number in range(first, count, threads):
            act(number)

    running = [threading.Thread(target=some, args=(first,)) for first in range(threads)]
    began = time.perf_counter()
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return count / (time.perf_counter() - began)


def _create_ms(count: int) -> float:
    """The median time from the creation of one actor to the answer of its first call."""
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        actor = Nothing.remote()
        skate.get(actor.answer.remote())
        taken.append(1e3 * (time.perf_counter() - began))
        skate.kill(actor)
    return statistics.median(taken)


def cost(store: str, puts: int, threads: int, one_by_one: int, at_once: int) -> dict[str, Any]:
    value = os.urandom(tools.VALUE_BYTES)
    with _runtime(store):
        put = lambda number: kv.put(key_of(number % 1000), value)  # noqa: E731 - its name is its text
        _per_s(min(200, puts), put)
        _create_ms(min(3, one_by_one))
        found = {
            "kv puts, one thread: µs": 1e6 / _per_s(puts, put),
            f"kv puts, {threads} threads: µs each": 1e6 / _per_s(puts, put, threads),
            "kv gets, one thread: µs": 1e6 / _per_s(puts, lambda number: kv.get(key_of(number % 1000))),
            "an actor: ms": _create_ms(one_by_one),
        }
        began = time.perf_counter()
        actors = [Nothing.remote() for _ in range(at_once)]
        skate.get([actor.answer.remote() for actor in actors])
        found[f"{at_once} actors at once: ms each"] = 1e3 * (time.perf_counter() - began) / at_once
        began = time.perf_counter()
        for number in range(one_by_one):
            Nothing.options(name=f"named {number}").remote()  # comes back when the name is durably taken
        found["a name for an actor: ms"] = 1e3 * (time.perf_counter() - began) / one_by_one
    return {"found": found}


if __name__ == "__main__":
    tools.main({"cost": cost})
