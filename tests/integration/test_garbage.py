"""Short of store memory, processes collect cycles that hold references before anything goes to disk.

Collections of Python's own are switched off in the processes that make garbage: those come when they come.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import skate
from skate._worker import current
from waiting import wait_for

MB = 1 << 20
STORE_BYTES = 64 * MB
#: Objects of 8 MB: four times what the store has room for.
COUNT = 32


class Cycle:
    """Holds something, and itself."""

    def __init__(self, held: Any) -> None:
        self.held = held
        self.itself = self


def make_garbage(count: int = COUNT) -> None:
    for number in range(count):
        Cycle(skate.put(np.full(MB, number)))


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def start(directory: Path) -> None:
    skate.init(num_cpus=2, object_store_memory=STORE_BYTES, spill_directory=str(directory))


def spilled() -> int:
    return int(current.get_runtime().query("statistics")["store"]["spilled"])


def test_cycles_of_the_driver_are_collected_and_nothing_is_spilled(tmp_path: Path) -> None:
    start(tmp_path)
    make_garbage()
    assert spilled() == 0


def test_cycles_of_a_running_task_are_collected(tmp_path: Path) -> None:
    start(tmp_path)

    @skate.remote
    def work() -> None:
        gc.disable()
        make_garbage()

    skate.get(work.remote())
    assert spilled() == 0


def test_cycles_of_an_actor_that_does_nothing_are_collected(tmp_path: Path) -> None:
    """It is not asked for anything while the driver runs out of room."""
    start(tmp_path)

    @skate.remote
    class Keeper:
        def __init__(self) -> None:
            gc.disable()

        def make(self) -> None:
            make_garbage(6)

    keeper = Keeper.remote()
    skate.get(keeper.make.remote())
    held = [skate.put(np.full(MB, number)) for number in range(6)]
    assert spilled() == 0
    assert [int(skate.get(ref)[0]) for ref in held] == list(range(6))


def test_what_one_process_drops_another_one_frees(tmp_path: Path) -> None:
    """The driver holds references, in cycles, to what an actor owns."""
    start(tmp_path)

    @skate.remote
    class Owner:
        def put(self, number: int) -> list[Any]:
            return [skate.put(np.full(MB, number))]

    owner = Owner.remote()
    for number in range(COUNT):
        Cycle(skate.get(owner.put.remote(number)))
    assert spilled() == 0


def test_views_in_cycles_are_let_go(tmp_path: Path) -> None:
    """They are in use: without a collection they could not even be spilled."""
    start(tmp_path)
    for number in range(COUNT):
        Cycle(skate.get(skate.put(np.full(MB, number))))
    assert spilled() == 0


def test_a_process_that_cannot_answer_holds_nobody_up(tmp_path: Path) -> None:
    """What is really needed goes to disk, and is read back."""
    start(tmp_path)
    go = threading.Event()
    lock = current.get_runtime().lock

    class Obstinate:
        """Its finalizer runs in the collection, and takes its time; the runtime's lock is free meanwhile."""

        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            assert not lock._is_owned()  # type: ignore[attr-defined]
            go.wait(20)

    Obstinate()
    refs = [skate.put(np.full(MB, number)) for number in range(12)]
    go.set()
    assert spilled() > 0
    assert [int(skate.get(ref)[0]) for ref in refs] == list(range(12))


@skate.remote(num_cpus=0)
class Large:
    """As many objects as a process has that has imported torch, and a reference that cycles could hold."""

    def __init__(self, refs: list[skate.ObjectRef[bytes]]) -> None:
        self.refs, self.objects = refs, [[number] for number in range(1_000_000)]
        self.seconds = self.began = 0.0
        gc.callbacks.append(self.note)

    def note(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] == 2:
            self.seconds += time.monotonic() - self.began if phase == "stop" else 0.0
            self.began = time.monotonic()

    def collecting(self) -> float:
        return self.seconds


def test_collecting_takes_a_small_part_of_the_time_of_a_process_with_many_objects(runtime: ModuleType) -> None:
    """It would collect several times a second between its calls, and nothing else runs meanwhile."""
    large = Large.remote([skate.put(bytes(1_000_000))])
    wait_for(lambda: skate.get(large.collecting.remote()) > 0, 10, "the first collection")
    before, began = skate.get(large.collecting.remote()), time.monotonic()
    while (elapsed := time.monotonic() - began) < 2.5:
        seconds = skate.get(large.collecting.remote()) - before
        time.sleep(0.05)
    assert seconds < 0.15 * elapsed
