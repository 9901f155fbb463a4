"""The driver of the tests with several hosts: it does what it is told, line by line, and answers in JSON.

    python netns_programs.py ADDRESS     joins the cluster, and says {"value": the id of its node}; or why not, and ends
    ◀── "code as a string of JSON"       runs it: statements; or an expression, whose value is the answer
    ──▶ {"value": …}, or {"error": the name of its class, "text": …}

What the tests run on the cluster is here, too. It ends when its input does.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import skate
from skate.strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy


def noise(seed: int, size_bytes: int) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def at(node_id: str, *, soft: bool = False) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id, soft)


def within(group: Any, index: int) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


@skate.remote
def where(seconds: float = 0.0, mark: str = "") -> str:
    """The id of the node that it runs on; that it runs is seen by a file with its pid."""
    if mark:
        with open(f"{mark}.new", "w") as file:
            file.write(str(os.getpid()))
        os.rename(f"{mark}.new", mark)
    time.sleep(seconds)
    return skate.get_runtime_context().get_node_id()


@skate.remote
def make(seed: int, size_bytes: int) -> bytes:
    return noise(seed, size_bytes)


@skate.remote
def digest_of(data: bytes) -> str:
    return digest(data)


@skate.remote
def read(refs: list[skate.ObjectRef[bytes]]) -> str:
    """Those that it holds references to, and not their values, fetches it."""
    return digest(b"".join(skate.get(refs)))


def held(runs: str, release: str) -> str:
    """Write a line to the first file, wait for the second one, and say where this runs."""
    with open(runs, "a") as file:
        file.write(f"{os.getpid()}\n")
    while not os.path.exists(release):
        time.sleep(0.02)
    return skate.get_runtime_context().get_node_id()


hold = skate.remote(held)


@skate.remote
def hold_and_make(runs: str, release: str, size_bytes: int) -> bytes:
    held(runs, release)
    return noise(0, size_bytes)


@skate.remote
class Keeper:
    def hold(self, runs: str, release: str) -> str:
        return held(runs, release)

    def own(self, value: Any) -> list[Any]:
        """References to objects that the actor owns: a put, and the result of a task that has not ended."""
        return [skate.put(value), where.options(num_cpus=0).remote(600)]


@skate.remote
def own_and_create(value: Any, node_id: str) -> tuple[int, skate.ObjectRef[Any], Any]:
    """The pid of the worker; an object that the worker owns; and an actor that it created on that node."""
    actor = Counter.options(scheduling_strategy=at(node_id), num_cpus=0).remote()
    skate.get(actor.add.remote())
    return os.getpid(), skate.put(value), actor


@skate.remote
def hold_and_own(runs: str, release: str) -> skate.ObjectRef[str]:
    return skate.put(held(runs, release))


def later(function: Callable[[], Any]) -> Future[Any]:
    """In a thread: the driver can be spoken to meanwhile."""
    result: Future[Any] = Future()

    def run() -> None:
        try:
            result.set_result(function())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return result


def attempt(function: Callable[[], Any]) -> Any:
    """Its value, or the name of the error that it raises."""
    try:
        return function()
    except Exception as error:
        return type(error).__name__


@skate.remote
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def pid(self) -> int:
        return os.getpid()

    def own(self, value: Any) -> skate.ObjectRef[Any]:
        return skate.put(value)

    def where(self) -> str:
        return skate.get_runtime_context().get_node_id()


def addresses() -> dict[str, str]:
    """Of the nodes of the cluster that live, by their ids."""
    return {node["NodeID"]: node["NodeManagerAddress"] for node in skate.nodes() if node["Alive"]}


def _answer(code: str) -> Any:
    names = globals()
    try:
        try:
            compiled = compile(code, "<test>", "eval")
        except SyntaxError:
            exec(compile(code, "<test>", "exec"), names)
            return {"value": None}
        return {"value": eval(compiled, names)}
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}


def main() -> None:
    # What workers print comes to this process, too: the conversation has a descriptor of its own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    joined = _answer(f"skate.init(address={sys.argv[1]!r})['node_id']")
    print(json.dumps(joined), file=answers, flush=True)
    if "error" in joined:
        return
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)
    skate.shutdown()


if __name__ == "__main__":
    main()
