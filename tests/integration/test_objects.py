"""Objects: where they live, that they are freed within a second of their last reference, and that they stay right.

How much of the store is in use is read as a user would read it, from `available_resources()`. The store is small and
the objects are large, so that what a process keeps for its next small objects does not matter.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import psutil
import pytest

import skate
from waiting import wait_for

MB = 1_000_000
STORE_BYTES = 128 * MB
#: What processes may keep for their next small objects.
SLACK_BYTES = 10 * MB
#: The promise is a second. A test that fails because the machine is busy teaches nothing, so more is waited for.
FREED_WITHIN_S = 10.0


@pytest.fixture(autouse=True)
def store() -> Iterator[ModuleType]:
    skate.init(num_cpus=2, object_store_memory=STORE_BYTES)
    yield skate
    skate.shutdown()


def held_bytes() -> int:
    """What objects take in the store at present."""
    name = "object_store_memory"
    return int(skate.cluster_resources()[name] - skate.available_resources().get(name, 0))


def wait_until_freed() -> None:
    wait_for(lambda: held_bytes() < SLACK_BYTES, FREED_WITHIN_S, "the store to be empty")


def big(seed: int = 0, size: int = 20 * MB) -> np.ndarray[Any, Any]:
    """An array of `size` bytes that is far above the limit for inline values, and different for each seed."""
    return np.full(size // 8, seed, dtype=np.int64)


def keep(name: str, value: object) -> int:
    """Keep something in this process beyond the end of the task; the pid of the process."""
    import builtins

    setattr(builtins, name, value)
    return os.getpid()


# --- Where values live ------------------------------------------------------------------------------------------------


def test_small_values_take_no_shared_memory() -> None:
    refs = [skate.put(bytes(90_000)) for _ in range(300)]
    assert held_bytes() < SLACK_BYTES
    assert all(len(value) == 90_000 for value in skate.get(refs))


def test_large_values_are_in_shared_memory() -> None:
    refs = [skate.put(bytes(200_000)) for _ in range(200)]
    wait_for(lambda: held_bytes() >= 200 * 200_000, FREED_WITHIN_S, "the values to be in the store")
    assert all(len(value) == 200_000 for value in skate.get(refs))
    del refs
    wait_until_freed()


def test_small_results_take_no_shared_memory_and_large_ones_do() -> None:
    @skate.remote
    def make(size: int) -> bytes:
        return bytes(size)

    small = [make.remote(90_000) for _ in range(200)]
    assert all(len(value) == 90_000 for value in skate.get(small))
    assert held_bytes() < SLACK_BYTES
    large = [make.remote(200_000) for _ in range(200)]
    assert all(len(value) == 200_000 for value in skate.get(large))
    wait_for(lambda: held_bytes() >= 200 * 200_000, FREED_WITHIN_S, "the results to be in the store")


@pytest.mark.parametrize("size", [0, 1, 99_999, 100_000, 100_001, 102_400, 102_401, 1_000_000])
def test_values_of_every_size_come_back_equal(size: int) -> None:
    @skate.remote
    def same(value: bytes) -> bytes:
        return value

    value = random.Random(size).randbytes(size)
    assert skate.get(skate.put(value)) == value
    assert skate.get(same.remote(value)) == value
    assert skate.get(same.remote(skate.put(value))) == value


def test_dropped_small_values_do_not_pile_up_in_the_driver() -> None:
    process = psutil.Process()
    skate.get(skate.put(b"warm"))
    before = process.memory_info().rss
    for number in range(10_000):
        ref = skate.put(bytes([number % 256]) * 90_000)
    assert skate.get(ref)[0] == 9_999 % 256
    assert process.memory_info().rss - before < 300 * MB, "900 MB were put and dropped"


# --- Freed in the driver ----------------------------------------------------------------------------------------------


def test_freed_when_the_only_reference_goes() -> None:
    ref = skate.put(big())
    assert held_bytes() >= 20 * MB
    del ref
    wait_until_freed()


def test_every_reference_keeps_it() -> None:
    ref = skate.put(big(7))
    again = ref
    copies = {"in a dict": [ref]}
    del ref, again
    gc.collect()
    assert held_bytes() >= 20 * MB
    assert skate.get(copies["in a dict"][0])[0] == 7
    copies.clear()
    wait_until_freed()


def test_freed_when_the_reference_sat_in_a_cycle() -> None:
    node: dict[str, Any] = {"ref": skate.put(big())}
    node["self"] = node
    del node
    gc.collect()
    wait_until_freed()


def test_a_view_keeps_the_memory_after_the_reference_is_gone() -> None:
    ref = skate.put(big(3))
    part = skate.get(ref)[10:1000:7]
    del ref
    gc.collect()
    # New objects would take the place of the old one if it had been freed.
    others = [skate.put(big(9)) for _ in range(4)]
    assert (part == 3).all()
    assert held_bytes() >= 5 * 20 * MB
    del others, part
    wait_until_freed()


def test_views_of_views_keep_the_memory() -> None:
    ref = skate.put({"a": big(1), "b": [big(2, 8 * MB)]})
    inner = memoryview(skate.get(ref)["b"][0].reshape(1000, -1)[5])
    del ref
    gc.collect()
    others = [skate.put(big(9)) for _ in range(3)]
    assert set(inner.tolist()) == {2}
    del inner, others
    wait_until_freed()


def test_freed_when_the_result_is_never_asked_for() -> None:
    @skate.remote
    def make() -> Any:
        return big()

    for _ in range(20):
        make.remote()
    assert skate.get(make.remote())[0] == 0
    wait_until_freed()


def test_freed_when_one_of_several_results_is_kept() -> None:
    @skate.remote(num_returns=3)
    def make() -> Any:
        return big(1), big(2), big(3)

    _, second, _ = make.remote()
    assert skate.get(second)[0] == 2
    del _
    wait_for(lambda: held_bytes() < 20 * MB + SLACK_BYTES, FREED_WITHIN_S, "the other two results to be freed")
    assert skate.get(second)[-1] == 2
    del second
    wait_until_freed()


def test_freed_when_dropped_by_many_threads() -> None:
    def work(seed: int) -> None:
        for number in range(20):
            ref = skate.put(big(seed + number, 2 * MB))
            assert skate.get(ref)[0] == seed + number

    threads = [threading.Thread(target=work, args=(1000 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait_until_freed()


# --- Freed after tasks ------------------------------------------------------------------------------------------------


def test_a_task_keeps_its_argument_until_it_has_run(tmp_path: Path) -> None:
    go = tmp_path / "go"

    @skate.remote(num_cpus=2)
    def blocker() -> None:
        while not go.exists():
            time.sleep(0.005)

    @skate.remote
    def total(array: Any) -> int:
        return int(array.sum())

    first = blocker.remote()
    ref = skate.put(big(1))
    result = total.remote(ref)
    del ref
    gc.collect()
    others = [skate.put(big(9)) for _ in range(2)]
    go.touch()
    assert skate.get([first, result]) == [None, 20 * MB // 8]
    del others
    wait_until_freed()


def test_a_large_argument_by_value_is_freed() -> None:
    @skate.remote
    def total(array: Any) -> int:
        return int(array.sum())

    assert [skate.get(total.remote(big(number))) for number in range(10)] == [n * 20 * MB // 8 for n in range(10)]
    wait_until_freed()


def test_arguments_of_a_task_that_fails_are_freed() -> None:
    @skate.remote
    def fail(array: Any) -> None:
        raise ValueError("no")

    for _ in range(10):
        with pytest.raises(ValueError, match="no"):
            skate.get(fail.remote(big()))
    gc.collect()
    wait_until_freed()


def test_arguments_of_a_task_whose_worker_dies_are_freed() -> None:
    @skate.remote(max_retries=1)
    def die(array: Any, refs: Any) -> None:
        assert skate.get(refs[0])[0] == array[0]
        os._exit(1)

    ref = skate.put(big())
    with pytest.raises(skate.exceptions.WorkerCrashedError):
        skate.get(die.remote(ref, [ref]))
    del ref
    gc.collect()
    wait_until_freed()


def test_a_chain_of_tasks_keeps_only_what_it_needs() -> None:
    @skate.remote
    def add_one(array: Any) -> Any:
        return array + 1

    ref = skate.put(big())
    for _ in range(30):
        ref = add_one.remote(ref)
    assert skate.get(ref)[0] == 30
    wait_for(lambda: held_bytes() < 20 * MB + SLACK_BYTES, FREED_WITHIN_S, "all but the last to be freed")
    del ref
    wait_until_freed()


# --- Inside containers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("depth", [1, 5])
def test_a_reference_inside_an_object_keeps_its_object(depth: int) -> None:
    ref = skate.put(big(5))
    for _ in range(depth):
        ref = skate.put([{"inner": ref}])
    gc.collect()
    others = [skate.put(big(9)) for _ in range(4)]
    for _ in range(depth):
        ref = skate.get(ref)[0]["inner"]
    assert skate.get(ref)[0] == 5
    del ref, others
    wait_until_freed()


def test_a_reference_inside_a_large_object_keeps_its_object() -> None:
    container = skate.put((big(1), skate.put(big(2))))
    gc.collect()
    array, inner = skate.get(container)
    assert (array[0], skate.get(inner)[0]) == (1, 2)
    del container, array
    assert skate.get(inner)[-1] == 2
    del inner
    wait_until_freed()


def test_a_container_that_is_never_opened_frees_what_is_in_it() -> None:
    container = skate.put([skate.put(big()), skate.put(big())])
    assert held_bytes() >= 40 * MB
    del container
    wait_until_freed()


def test_a_reference_returned_from_a_task_keeps_its_object() -> None:
    @skate.remote
    def make(seed: int) -> Any:
        return [skate.put(big(seed))]

    (ref,) = skate.get(make.remote(4))
    others = [skate.put(big(9)) for _ in range(3)]
    assert skate.get(ref)[0] == 4
    del ref, others
    wait_until_freed()


def test_a_reference_returned_through_many_tasks_is_freed() -> None:
    @skate.remote
    def make(depth: int) -> Any:
        return [skate.put(big(depth))] if depth == 0 else [make.remote(depth - 1)]

    value = skate.get(make.remote(5))
    while isinstance(value, list):
        value = skate.get(value[0])
    assert value[0] == 0
    del value
    wait_until_freed()


def test_results_of_nested_tasks_that_nobody_kept_are_freed() -> None:
    @skate.remote
    def leaf(seed: int) -> Any:
        return big(seed, 4 * MB)

    @skate.remote
    def root() -> int:
        refs = [leaf.remote(seed) for seed in range(10)]
        return int(sum(array[0] for array in skate.get(refs)))

    assert skate.get([root.remote() for _ in range(4)]) == [45] * 4
    wait_until_freed()


def test_a_reference_in_a_closure_keeps_its_object() -> None:
    ref = skate.put(big(6))

    @skate.remote
    def read() -> int:
        return int(skate.get(ref)[0])

    assert skate.get([read.remote() for _ in range(4)]) == [6] * 4


# --- Borrowed by workers ----------------------------------------------------------------------------------------------


def test_a_worker_that_keeps_a_reference_keeps_the_object_until_it_drops_it() -> None:
    @skate.remote(num_cpus=2)
    def hold(refs: Any) -> int:
        return keep("kept", refs)

    @skate.remote(num_cpus=2)
    def read() -> tuple[int, int]:
        import builtins

        return os.getpid(), int(skate.get(builtins.kept[0])[0])  # type: ignore[attr-defined]

    @skate.remote(num_cpus=2)
    def drop() -> int:
        return keep("kept", None)

    ref = skate.put(big(8))
    pid = skate.get(hold.remote([ref]))
    del ref
    gc.collect()
    others = [skate.put(big(9)) for _ in range(4)]
    assert skate.get(read.remote()) == (pid, 8), "tasks that need both CPUs take the same worker one after the other"
    del others
    assert skate.get(drop.remote()) == pid
    wait_until_freed()


def test_a_worker_that_keeps_an_array_keeps_the_object_until_it_drops_it() -> None:
    @skate.remote(num_cpus=2)
    def hold(array: Any) -> int:
        return keep("kept", array[5:])

    @skate.remote(num_cpus=2)
    def read() -> tuple[int, int]:
        import builtins

        return os.getpid(), int(builtins.kept.min())  # type: ignore[attr-defined]

    @skate.remote(num_cpus=2)
    def drop() -> int:
        return keep("kept", None)

    ref = skate.put(big(8))
    pid = skate.get(hold.remote(ref))
    del ref
    gc.collect()
    others = [skate.put(big(9)) for _ in range(4)]
    assert skate.get(read.remote()) == (pid, 8)
    del others
    assert skate.get(drop.remote()) == pid
    wait_until_freed()


@pytest.mark.parametrize("what", ["a reference", "an array"])
def test_a_worker_killed_while_it_borrows_lets_go(what: str) -> None:
    @skate.remote
    def hold(refs: Any) -> int:
        return keep("kept", refs if what == "a reference" else skate.get(refs[0]))

    ref = skate.put(big())
    pid = skate.get(hold.remote([ref]))
    del ref
    gc.collect()
    assert held_bytes() >= 20 * MB
    os.kill(pid, signal.SIGKILL)
    wait_until_freed()


def test_a_worker_killed_while_it_borrows_harms_no_other_holder() -> None:
    @skate.remote
    def hold(refs: Any) -> int:
        return keep("kept", (refs, skate.get(refs[0])))

    ref = skate.put(big(4))
    view = skate.get(ref)
    os.kill(skate.get(hold.remote([ref])), signal.SIGKILL)
    others = [skate.put(big(9)) for _ in range(4)]
    assert (view == 4).all()
    assert skate.get(hold.remote([ref]))
    del others


def test_a_borrower_may_pass_the_reference_on() -> None:
    @skate.remote
    def read(refs: Any) -> int:
        return int(skate.get(refs[0])[0])

    @skate.remote
    def pass_on(refs: Any) -> Any:
        return [read.remote(refs)]

    ref = skate.put(big(3))
    outer = pass_on.remote([ref])
    del ref
    (inner,) = skate.get(outer)
    assert skate.get(inner) == 3
    del outer, inner
    wait_until_freed()


def test_workers_killed_while_they_write_leave_nothing() -> None:
    @skate.remote(max_retries=0)
    def write(path: str) -> None:
        with open(path, "w") as file:
            file.write(str(os.getpid()))
        while True:
            skate.put(big(1, 5 * MB))

    import tempfile

    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(6):
            path = Path(folder, str(number))
            ref = write.remote(str(path))
            pid = int(wait_for(lambda path=path: path.exists() and path.read_text(), 20, "the task to run"))
            # A random moment of its loop, so that all of them are hit in the end.
            deadline = time.monotonic() + rng.random() / 50
            while time.monotonic() < deadline:
                pass
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(skate.exceptions.WorkerCrashedError):
                skate.get(ref)
    wait_until_freed()


def test_a_result_outlives_the_worker_that_made_it() -> None:
    @skate.remote
    def make() -> Any:
        return os.getpid(), big(2)

    ref = make.remote()
    pid, _ = skate.get(ref)
    del _
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(pid), 10, "the worker to be gone")
    assert skate.get(ref)[1][0] == 2
    del ref
    wait_until_freed()


def test_an_object_whose_owner_died_is_an_error_or_a_value_but_no_hang() -> None:
    @skate.remote
    def make() -> Any:
        return os.getpid(), [skate.put(big(2))]

    pid, (ref,) = skate.get(make.remote())
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(pid), 10, "the worker to be gone")
    try:
        outcome = str(skate.get(ref, timeout=20)[0])
    except skate.exceptions.ObjectLostError as error:
        outcome = str(error)
    assert outcome == "2" or str(pid) in outcome
    del ref
    gc.collect()
    wait_until_freed()


# --- Many -------------------------------------------------------------------------------------------------------------


def test_many_objects_of_many_sizes_stay_right() -> None:
    """Puts, drops, views and tasks in a random order, with contents that are checked."""
    rng = random.Random(5)

    @skate.remote
    def first_and_last(array: Any) -> tuple[int, int]:
        return int(array[0]), int(array[-1])

    live: dict[int, Any] = {}
    checks = []
    for number in range(400):
        live[number] = skate.put(big(number, rng.choice([1000, 150_000, 400_000, 3 * MB])))
        if len(live) > 15:
            del live[rng.choice(list(live))]
        chosen = rng.choice(list(live))
        if rng.random() < 0.5:
            assert (skate.get(live[chosen]) == chosen).all()
        else:
            checks.append((chosen, first_and_last.remote(live[chosen])))
    for chosen, ref in checks:
        assert skate.get(ref) == (chosen, chosen)
    live.clear()
    del checks, ref
    wait_until_freed()


def test_a_steady_stream_of_small_arena_objects() -> None:
    """They are carved from pieces that the process has; housekeeping gives those back, at moments of its own."""
    deadline = time.monotonic() + 3
    number = 0
    while time.monotonic() < deadline:
        number += 1
        assert skate.get(skate.put(big(number, 200_000)))[-1] == number
        if number % 20 == 0:
            time.sleep(0.005)  # a pause in which housekeeping gets its turn
    wait_until_freed()


def put_and_drop(total: int, size: int) -> None:
    for number in range(total // size):
        ref = skate.put(big(number, size))
        if number % 50 == 0:
            assert skate.get(ref)[-1] == number


def make_and_drop(total: int, size: int) -> None:
    @skate.remote
    def make(number: int) -> Any:
        return big(number, size)

    pending: list[Any] = []
    for number in range(total // size):
        pending.append(make.remote(number))
        if len(pending) == 4:
            assert skate.get(pending.pop(0))[-1] == number - 3


@pytest.mark.parametrize("stream", [put_and_drop, make_and_drop])
def test_objects_that_are_dropped_make_room(stream: Callable[[int, int], None], tmp_path: Path) -> None:
    skate.shutdown()
    skate.init(num_cpus=2, object_store_memory=200 * MB, spill_directory=str(tmp_path))
    stream(3_000 * MB, 10 * MB)
    wait_until_freed()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_50_gb_go_through_a_store_of_200_mb() -> None:
    skate.shutdown()
    skate.init(num_cpus=2, object_store_memory=200 * MB)
    put_and_drop(40_000 * MB, 20 * MB)
    make_and_drop(10_000 * MB, 20 * MB)
    wait_until_freed()
