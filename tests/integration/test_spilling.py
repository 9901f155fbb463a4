"""More objects than the store has room for: they go to disk and come back equal, and the disk is given back.

The files are looked for as an operator would, in the spill directory and among the open files of Skate's processes (a
file may have been unlinked while it is open).
"""

from __future__ import annotations

import contextlib
import os
import resource
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import skate
from waiting import wait_for

MB = 1_000_000


def start(spill_directory: Path, store_bytes: int = 100 * MB) -> None:
    skate.init(
        num_cpus=2, object_store_memory=store_bytes, spill_directory=str(spill_directory), store_full_grace_s=2.0
    )


def random_array(seed: int, size: int = 10 * MB) -> np.ndarray[Any, Any]:
    """Contents that cannot be right by chance."""
    return np.random.default_rng(seed).integers(0, 2**63, size // 8, dtype=np.int64)


def spilled_bytes(directory: Path) -> int:
    """Disk that Skate's processes use in this directory, unlinked files included."""
    inodes: dict[tuple[int, int], int] = {}
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(OSError, psutil.Error):
            for entry in Path(f"/proc/{process.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(entry.readlink()).startswith(str(directory)):
                        status = entry.stat()
                        inodes[(status.st_dev, status.st_ino)] = status.st_blocks * 512
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            status = path.stat()
            inodes[(status.st_dev, status.st_ino)] = status.st_blocks * 512
    return sum(inodes.values())


def hold_and_read_back(count: int, size: int) -> None:
    """No element of an object is as in another one. Random numbers for each took a third of the time of all this."""
    contents = random_array(0, size)
    refs = [skate.put(contents ^ number) for number in range(count)]
    for number, ref in enumerate(refs):
        assert np.array_equal(skate.get(ref), contents ^ number), f"object {number} came back different"


def test_more_than_fits_is_held_and_read_back_equal(tmp_path: Path) -> None:
    start(tmp_path)
    hold_and_read_back(count=50, size=10 * MB)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_5_gb_are_held_in_a_store_of_500_mb(tmp_path: Path) -> None:
    start(tmp_path, store_bytes=500 * MB)
    hold_and_read_back(count=250, size=20 * MB)


def test_read_back_in_another_order_and_twice(tmp_path: Path) -> None:
    start(tmp_path)
    refs = [skate.put(random_array(seed)) for seed in range(25)]
    for seed in (*reversed(range(25)), 0, 24, 0, 24):
        assert np.array_equal(skate.get(refs[seed]), random_array(seed))


def test_small_arena_objects_are_spilled_too(tmp_path: Path) -> None:
    start(tmp_path, store_bytes=20 * MB)
    refs = [skate.put(bytes([seed % 256]) * 200_000) for seed in range(400)]
    for seed, ref in enumerate(refs):
        assert skate.get(ref) == bytes([seed % 256]) * 200_000


def test_spilled_objects_reach_tasks(tmp_path: Path) -> None:
    start(tmp_path)

    @skate.remote
    def equal(array: Any, seed: int) -> bool:
        return np.array_equal(array, np.random.default_rng(seed).integers(0, 2**63, 10 * MB // 8, dtype=np.int64))

    refs = [skate.put(random_array(seed)) for seed in range(25)]
    assert skate.get([equal.remote(ref, seed) for seed, ref in enumerate(refs)]) == [True] * 25


def test_results_of_tasks_are_spilled(tmp_path: Path) -> None:
    start(tmp_path)

    @skate.remote
    def make(seed: int) -> Any:
        return np.random.default_rng(seed).integers(0, 2**63, 10 * MB // 8, dtype=np.int64)

    refs = [make.remote(seed) for seed in range(25)]
    for seed, ref in enumerate(refs):
        assert np.array_equal(skate.get(ref), random_array(seed))


def test_a_view_stays_while_everything_else_is_spilled(tmp_path: Path) -> None:
    start(tmp_path)
    view = skate.get(skate.put(random_array(1000)))
    refs = [skate.put(random_array(seed)) for seed in range(25)]
    assert np.array_equal(view, random_array(1000))
    assert np.array_equal(skate.get(refs[0]), random_array(0))


def test_containers_of_spilled_objects(tmp_path: Path) -> None:
    start(tmp_path)
    container = skate.put([(random_array(100), skate.put(random_array(seed))) for seed in range(5)])
    refs = [skate.put(random_array(seed)) for seed in range(20)]
    for seed, (array, inner) in enumerate(skate.get(container)):
        assert np.array_equal(array, random_array(100))
        del array
        assert np.array_equal(skate.get(inner), random_array(seed))
    del refs


def test_the_directory_is_the_one_that_was_asked_for(tmp_path: Path) -> None:
    start(tmp_path)
    refs = [skate.put(random_array(seed)) for seed in range(25)]
    assert spilled_bytes(tmp_path) >= 100 * MB
    del refs


def test_nothing_is_left_in_the_directory(tmp_path: Path) -> None:
    start(tmp_path)
    refs = [skate.put(random_array(seed)) for seed in range(25)]
    skate.shutdown()
    assert list(tmp_path.rglob("*")) == []
    del refs


def test_nothing_is_left_after_kill_9_of_the_node_daemon(tmp_path: Path) -> None:
    start(tmp_path)
    refs = [skate.put(random_array(seed)) for seed in range(25)]
    for process in psutil.Process().children():
        process.kill()
    skate.shutdown()
    assert list(tmp_path.rglob("*")) == []
    del refs


def test_disk_of_dropped_objects_is_given_back(tmp_path: Path) -> None:
    start(tmp_path)
    for _ in range(3):
        refs = [skate.put(random_array(seed)) for seed in range(25)]
        assert spilled_bytes(tmp_path) >= 100 * MB
        del refs
        wait_for(lambda: spilled_bytes(tmp_path) < 20 * MB, 10, "the disk to be given back")


def test_disk_of_the_living_is_given_back_when_half_is_dropped(tmp_path: Path) -> None:
    start(tmp_path)
    refs = [skate.put(random_array(seed)) for seed in range(40)]
    kept = refs[::4]
    del refs
    wait_for(lambda: spilled_bytes(tmp_path) <= 120 * MB, 10, "the disk of dropped objects to be given back or reused")
    for number, ref in enumerate(kept):
        assert np.array_equal(skate.get(ref), random_array(4 * number))


def test_driver_and_workers_under_pressure_at_once(tmp_path: Path) -> None:
    start(tmp_path)

    @skate.remote
    def churn(seed: int) -> bool:
        refs = [skate.put(np.full(500_000, seed + number)) for number in range(20)]
        return all((skate.get(ref) == seed + number).all() for number, ref in enumerate(refs))

    failures: list[BaseException] = []

    def churn_here(seed: int) -> None:
        try:
            refs = [skate.put(np.full(500_000, seed + number)) for number in range(20)]
            for number, ref in enumerate(refs):
                assert (skate.get(ref) == seed + number).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=churn_here, args=(10_000 * number,)) for number in range(1, 3)]
    for thread in threads:
        thread.start()
    assert skate.get([churn.remote(1000 * number) for number in range(6)]) == [True] * 6
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_directory_that_is_not_there_is_an_error_at_init(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ValueError, match="missing"):
        start(missing)
    assert not skate.is_initialized()


def fail_to_spill() -> None:
    """Put until there is no room; the error says that it is the disk, and the runtime goes on."""

    @skate.remote
    def add_one(x: int) -> int:
        return x + 1

    refs = []
    with pytest.raises((skate.exceptions.OutOfDiskError, skate.exceptions.ObjectStoreFullError)) as caught:
        for seed in range(40):
            refs.append(skate.put(random_array(seed)))  # noqa: PERF401 (what was put before the error is looked at)
    assert "disk" in str(caught.value) or "spill" in str(caught.value)
    for seed, ref in enumerate(refs):
        assert np.array_equal(skate.get(ref), random_array(seed)), "what was accepted is not lost"
    assert skate.get(add_one.remote(1)) == 2
    refs.clear()
    ref = wait_for(lambda: skate.put(random_array(77)), 10, "room")
    assert np.array_equal(skate.get(ref), random_array(77))


def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk: the write fails in the same place."""
    start(tmp_path)
    (daemon,) = psutil.Process().children()
    daemon.rlimit(resource.RLIMIT_FSIZE, (30 * MB, 30 * MB))
    fail_to_spill()


def test_a_directory_that_cannot_be_written_is_an_error_that_says_so() -> None:
    """Either at once or when the first object has to go there."""
    try:
        start(Path("/proc"))
    except (ValueError, OSError) as error:
        refusal = str(error)
    else:
        fail_to_spill()
        return
    assert "/proc" in refusal


def test_spilling_leaves_no_file_descriptors_in_the_driver(tmp_path: Path) -> None:
    start(tmp_path)
    skate.get(skate.put(random_array(0)))
    before = len(os.listdir("/proc/self/fd"))
    hold_and_read_back(count=15, size=10 * MB)
    assert len(os.listdir("/proc/self/fd")) <= before + 1
