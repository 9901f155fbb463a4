"""How many workers a node can have: the strictest limit counts, and is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from skate._core.worker_limit import (
    DESCRIPTORS_KEPT,
    DESCRIPTORS_KEPT_IN_CLUSTER,
    DESCRIPTORS_PER_WORKER,
    THREADS_KEPT,
    THREADS_PER_WORKER,
    Limit,
    WorkerLimit,
    worker_limit,
)
from skate._store.layout import SLOT_COUNT
from skate._system_limits import thread_limits


def limit(descriptors: int = 1 << 20, threads: int = 1 << 22, cpus: float = 4, in_cluster: bool = False) -> WorkerLimit:
    return worker_limit(
        slots=SLOT_COUNT,
        descriptors=Limit(descriptors, "open files"),
        threads=[Limit(1 << 22, "threads of the machine"), Limit(threads, "threads of the user")],
        cpus=cpus,
        in_cluster=in_cluster,
    )


def test_without_other_limits_it_is_the_room_in_the_arena() -> None:
    assert limit() == (SLOT_COUNT - 1, 4, "a node has room for 16,383")


@pytest.mark.parametrize("workers", [1, 10, 5_000])
def test_open_files_and_threads_are_counted_for_each_worker(workers: int) -> None:
    files = DESCRIPTORS_KEPT + workers * DESCRIPTORS_PER_WORKER
    assert (limit(files).workers, limit(files).why) == (workers, "open files")
    assert limit(files - DESCRIPTORS_KEPT + DESCRIPTORS_KEPT_IN_CLUSTER, in_cluster=True).workers == workers
    threads = THREADS_KEPT + workers * THREADS_PER_WORKER
    assert (limit(threads=threads).workers, limit(threads=threads).why) == (workers, "threads of the user")


@pytest.mark.parametrize(("cpus", "kept"), [(0, 1), (0.5, 1), (2.5, 2), (64, 37)])
def test_tasks_keep_a_worker_for_each_cpu_if_that_leaves_half_of_them_to_actors(cpus: float, kept: int) -> None:
    assert limit(248, cpus=cpus) == (74, kept, "open files")


def test_there_is_always_one_to_try_with() -> None:
    assert limit(20) == (1, 0, "open files")


def test_limits_of_control_groups_and_of_the_machine_are_read(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "0::/outer/inner\n",
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        "sys/fs/cgroup/outer/pids.max": "100\n",
        "sys/fs/cgroup/outer/inner/pids.max": "max\n",
        "proc/sys/kernel/pid_max": "32768\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {amount: what for amount, what in thread_limits(str(tmp_path)) if "user" not in what}
    assert list(found) == [100, 32768]
    assert "control group is 100: /sys/fs/cgroup/outer/pids.max" in found[100]
    assert "machine is 32,768: /proc/sys/kernel/pid_max" in found[32768]
