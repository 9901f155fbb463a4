"""What control groups allow: trees of both versions, nested and hybrid, built below a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from skate._config import cpu_count, default_store_bytes, machine_bytes, memory_bytes, store_warning
from skate._control_groups import least_cpu_limit, least_memory_limit, pids_of
from skate._core.control_groups import (
    cpu_limit,
    groups_of,
    is_in_memory,
    memory_limit,
    memory_used,
    parse_membership,
    parse_mounts,
)
from skate._core.policy_memory import MemoryUse
from skate._node.memory_monitor import MemoryMonitor

MIB = 1 << 20
V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs ro,mode=755\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
UNLIMITED_V1 = "9223372036854771712\n"


class Machine:
    """A file system with what the kernel says, below `root`."""

    def __init__(self, root: Path, *, mounts: str, cgroup: str, total_mib: int = 64_000) -> None:
        self.root = root
        self.write("proc/self/cgroup", cgroup)
        self.write("proc/self/mountinfo", f"23 1 254:0 / / rw - ext4 /dev/vda rw\n{mounts}")
        kib = total_mib * 1024
        self.write("proc/meminfo", f"MemTotal: {kib} kB\nMemFree: 1 kB\nMemAvailable: {kib // 2} kB\n")

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def group(self, path: str, **files: str) -> str:
        """A control group with these files, dots written as double underscores; its folder."""
        (self.root / path).mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            self.write(f"{path}/{name.replace('__', '.')}", text)
        return str(self.root / path)


def limits(root: Path) -> tuple[int | None, int | None]:
    return least_memory_limit(str(root)), least_cpu_limit(str(root))


def test_without_groups_there_are_no_limits(tmp_path: Path) -> None:
    assert limits(tmp_path) == (None, None)
    assert memory_bytes(str(tmp_path)) == machine_bytes()
    assert cpu_count(str(tmp_path)) == len(os.sched_getaffinity(0))


def test_version_2(tmp_path: Path) -> None:
    machine = Machine(tmp_path, mounts=V2, cgroup="0::/box\n")
    machine.group("sys/fs/cgroup/box", memory__max=f"{600 * MIB}\n", cpu__max="150000 100000\n")
    assert limits(tmp_path) == (600 * MIB, 2), "a quota of one and a half CPUs is two"


def test_version_2_seen_from_inside_a_container_with_a_namespace(tmp_path: Path) -> None:
    machine = Machine(tmp_path, mounts=V2, cgroup="0::/\n")
    machine.group("sys/fs/cgroup", memory__max=f"{600 * MIB}\n", cpu__max="50000 100000\n")
    assert limits(tmp_path) == (600 * MIB, 1)


def test_the_strictest_of_nested_groups_counts(tmp_path: Path) -> None:
    machine = Machine(tmp_path, mounts=V2, cgroup="0::/slice/box/part\n")
    machine.group("sys/fs/cgroup/slice", memory__max=f"{4000 * MIB}\n", cpu__max="300000 100000\n")
    machine.group("sys/fs/cgroup/slice/box", memory__max=f"{600 * MIB}\n", cpu__max="max 100000\n")
    machine.group("sys/fs/cgroup/slice/box/part", memory__max="max\n", cpu__max="400000 100000\n")
    assert limits(tmp_path) == (600 * MIB, 3)
    machine.group("sys/fs/cgroup/slice/box/part", memory__max=f"{100 * MIB}\n")
    assert limits(tmp_path)[0] == 100 * MIB


def test_version_1_on_a_host(tmp_path: Path) -> None:
    machine = Machine(tmp_path, mounts=V1, cgroup="4:memory:/jobs/7/step\n1:cpu,cpuacct:/jobs/7\n")
    machine.group("sys/fs/cgroup/memory", memory__limit_in_bytes=UNLIMITED_V1)
    machine.group("sys/fs/cgroup/memory/jobs/7", memory__limit_in_bytes=f"{600 * MIB}\n")
    machine.group("sys/fs/cgroup/memory/jobs/7/step", memory__limit_in_bytes=UNLIMITED_V1)
    machine.group("sys/fs/cgroup/cpu,cpuacct", cpu__cfs_quota_us="-1\n", cpu__cfs_period_us="100000\n")
    machine.group("sys/fs/cgroup/cpu,cpuacct/jobs/7", cpu__cfs_quota_us="210000\n", cpu__cfs_period_us="100000\n")
    assert limits(tmp_path) == (600 * MIB, 3)


def test_version_1_seen_from_inside_a_container(tmp_path: Path) -> None:
    """The path is that of the host, and what is mounted is the container's part of the tree."""
    mounts = (
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "36 31 0:33 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    )
    machine = Machine(tmp_path, mounts=mounts, cgroup="4:memory:/docker/abc/inner\n3:cpu:/docker/abc\n")
    machine.group("sys/fs/cgroup/memory", memory__limit_in_bytes=f"{600 * MIB}\n")
    machine.group("sys/fs/cgroup/memory/inner", memory__limit_in_bytes=f"{200 * MIB}\n")
    machine.group("sys/fs/cgroup/cpu", cpu__cfs_quota_us="100000\n", cpu__cfs_period_us="100000\n")
    assert limits(tmp_path) == (200 * MIB, 1)


def test_version_1_below_a_limit_that_cannot_be_seen(tmp_path: Path) -> None:
    """The limit is on a group above the root of the container's namespace; the kernel names it in the statistics."""
    machine = Machine(tmp_path, mounts=V1, cgroup="4:memory:/\n")
    statistics = f"cache 0\nhierarchical_memory_limit {600 * MIB}\ntotal_inactive_file 0\n"
    machine.group("sys/fs/cgroup/memory", memory__limit_in_bytes=UNLIMITED_V1, memory__stat=statistics)
    assert limits(tmp_path) == (600 * MIB, None)


def test_a_hybrid_system_has_both(tmp_path: Path) -> None:
    """As this: version 1 has the controllers, and version 2 is mounted beside it, without any."""
    unified = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    machine = Machine(tmp_path, mounts=V1 + unified, cgroup="4:memory:/box\n1:cpu:/\n0::/other\n")
    machine.group("sys/fs/cgroup/memory/box", memory__limit_in_bytes=f"{600 * MIB}\n")
    machine.group("sys/fs/cgroup/unified/other", cgroup__procs="")
    assert limits(tmp_path) == (600 * MIB, None)
    machine.group("sys/fs/cgroup/unified/other", memory__max=f"{50 * MIB}\n", cpu__max="100000 100000\n")
    assert limits(tmp_path) == (50 * MIB, 1)


def test_a_process_outside_of_its_namespace_is_limited_by_what_it_can_see(tmp_path: Path) -> None:
    machine = Machine(tmp_path, mounts=V2, cgroup="0::/../neighbour\n")
    machine.group("sys/fs/cgroup", memory__max=f"{600 * MIB}\n", cpu__max="max 100000\n")
    assert limits(tmp_path) == (600 * MIB, None)


def test_the_usual_places_are_looked_at_where_mounts_are_not_known(tmp_path: Path) -> None:
    machine = Machine(tmp_path, mounts="", cgroup="4:memory:/box\n3:cpu:/box\n")
    machine.group("sys/fs/cgroup/memory/box", memory__limit_in_bytes=f"{600 * MIB}\n")
    machine.group("sys/fs/cgroup/cpu/box", cpu__cfs_quota_us="100000\n", cpu__cfs_period_us="100000\n")
    assert limits(tmp_path) == (600 * MIB, 1)


def test_the_store_is_a_part_of_the_container(tmp_path: Path) -> None:
    machine = Machine(tmp_path, mounts=V2, cgroup="0::/outer/inner\n")
    machine.group("sys/fs/cgroup/outer", memory__max=f"{600 * MIB}\n")
    machine.group("sys/fs/cgroup/outer/inner", memory__max="max\n")
    assert default_store_bytes(str(tmp_path)) == 180 * MIB


def test_a_store_larger_than_the_container_is_said_so_with_both_numbers(tmp_path: Path) -> None:
    machine = Machine(tmp_path, mounts=V2, cgroup="0::/box\n")
    machine.group("sys/fs/cgroup/box", memory__max=f"{600 * MIB}\n")
    warning = store_warning(1000 * MIB, str(tmp_path))
    assert str(1000 * MIB) in warning
    assert str(600 * MIB) in warning
    assert "written to disk" in warning
    assert store_warning(600 * MIB, str(tmp_path)) == ""
    machine.group("sys/fs/cgroup/box", memory__max="max\n")
    assert store_warning(1000 * MIB, str(tmp_path)) == ""


def test_use_is_that_of_the_group_closest_to_its_limit(tmp_path: Path) -> None:
    machine = Machine(tmp_path, mounts=V2, cgroup="0::/outer/inner\n")
    outer = machine.group(
        "sys/fs/cgroup/outer",
        memory__max=f"{600 * MIB}\n",
        memory__current=f"{595 * MIB}\n",
        memory__stat=f"anon 5\ninactive_file {5 * MIB}\n",
    )
    machine.group(
        "sys/fs/cgroup/outer/inner", memory__max=f"{500 * MIB}\n", memory__current=f"{100 * MIB}\n", memory__stat=""
    )
    monitor = MemoryMonitor(str(tmp_path))
    assert monitor.read() == MemoryUse(590 * MIB, 600 * MIB, outer)
    assert monitor.available_bytes() == 10 * MIB


def test_processes_of_a_group_are_those_of_the_groups_below_it_too(tmp_path: Path) -> None:
    machine = Machine(tmp_path, mounts=V2, cgroup="0::/box\n")
    folder = machine.group("sys/fs/cgroup/box", cgroup__procs="11\n12\n0\n")
    machine.group("sys/fs/cgroup/box/inner", cgroup__procs="13\n")
    machine.group("sys/fs/cgroup/other", cgroup__procs="14\n")
    assert sorted(pids_of(folder)) == [11, 12, 13]


@pytest.mark.parametrize(
    ("quota", "period", "cpus"),
    [
        ("max", "100000", None),
        ("-1", "100000", None),
        ("", "", None),
        ("0", "0", None),
        ("1000", "100000", 1),
        ("100000", "100000", 1),
        ("100001", "100000", 2),
        ("800000", "100000", 8),
    ],
)
def test_quotas_are_rounded_up(quota: str, period: str, cpus: int | None) -> None:
    assert cpu_limit(quota, period) == cpus


@pytest.mark.parametrize(
    ("text", "limit"), [("max\n", None), ("", None), (UNLIMITED_V1, None), ("0\n", 0), ("4096\n", 4096)]
)
def test_limits_of_memory(text: str, limit: int | None) -> None:
    assert memory_limit(text) == limit


def test_cached_files_are_not_in_use() -> None:
    assert memory_used("100", "anon 1\ninactive_file 30\n") == 70
    assert memory_used("100", "inactive_file 3\ntotal_inactive_file 40\n") == 60, "version 1: with the groups below it"
    assert memory_used("100", "") == 100


def test_names_with_spaces_are_understood() -> None:
    mounts = parse_mounts("35 31 0:32 / /mnt/my\\040groups rw - cgroup cgroup rw,memory\nno such line\n")
    assert [group.folder for group in groups_of("memory", parse_membership("4:memory:/a\n"), mounts)] == [
        "/mnt/my groups/a",
        "/mnt/my groups",
    ]


def test_which_directories_are_in_memory() -> None:
    mounts = parse_mounts(
        "1 0 0:1 / / rw - ext4 /dev/vda rw\n"
        "2 1 0:2 / /tmp rw - tmpfs tmpfs rw\n"
        "3 2 0:3 / /tmp/disk rw - xfs /dev/vdb rw\n"
    )
    assert is_in_memory("/tmp", mounts)
    assert is_in_memory("/tmp/a/b", mounts)
    assert not is_in_memory("/tmp/disk/a", mounts)
    assert not is_in_memory("/tmpfile", mounts)
    assert not is_in_memory("/", mounts)
