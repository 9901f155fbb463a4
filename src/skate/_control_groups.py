"""What control groups (containers, batch jobs, systemd units) allow this process: memory, and CPUs.

Owns:      the names of the files, and reading them: some 100 µs for a process in a group or two.
Knows not: what they mean; `_core/control_groups.py` parses them.

Everything is read below `root`, which tests replace by a folder of their own.
"""

from __future__ import annotations

from typing import NamedTuple

from skate._core.control_groups import (
    Group,
    Mount,
    cpu_limit,
    groups_of,
    is_in_memory,
    limit_from_above,
    memory_limit,
    parse_membership,
    parse_mounts,
)


class MemoryFiles(NamedTuple):
    """The files of a control group that say how much memory its processes may use, and use."""

    limit: str
    usage: str
    statistics: str


#: By version.
MEMORY_FILES = {
    1: MemoryFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat"),
    2: MemoryFiles("memory.max", "memory.current", "memory.stat"),
}


def read(path: str) -> str:
    """The text of a file; "" if there is none, or it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def read_mounts(root: str = "/") -> list[Mount]:
    return parse_mounts(read(f"{root.rstrip('/')}/proc/self/mountinfo"))


def control_groups(controller: str, root: str = "/") -> list[Group]:
    """The groups whose limits for that controller hold for this process, with their folders below `root`."""
    base = root.rstrip("/")
    groups = groups_of(controller, parse_membership(read(f"{base}/proc/self/cgroup")), read_mounts(root))
    return [Group(group.version, base + group.folder) for group in groups]


def group_memory_limit(group: Group) -> int | None:
    """Bytes that the processes of a group may use; None: there is no limit."""
    files = MEMORY_FILES[group.version]
    limits = [memory_limit(read(f"{group.folder}/{files.limit}"))]
    if group.version == 1:
        limits.append(limit_from_above(read(f"{group.folder}/{files.statistics}")))
    return min((limit for limit in limits if limit is not None), default=None)


def least_memory_limit(root: str = "/") -> int | None:
    """Bytes that this process's groups may use, the strictest of them; None: there is no limit."""
    limits = (group_memory_limit(group) for group in control_groups("memory", root))
    return min((limit for limit in limits if limit is not None), default=None)


def least_cpu_limit(root: str = "/") -> int | None:
    """CPUs that this process's groups may use, the strictest of them; None: there is no limit."""
    limits = (_group_cpu_limit(group) for group in control_groups("cpu", root))
    return min((limit for limit in limits if limit is not None), default=None)


def _group_cpu_limit(group: Group) -> int | None:
    if group.version == 1:
        return cpu_limit(read(f"{group.folder}/cpu.cfs_quota_us"), read(f"{group.folder}/cpu.cfs_period_us"))
    quota, _, period = read(f"{group.folder}/cpu.max").partition(" ")
    return cpu_limit(quota, period)


def pids_of(folder: str) -> list[int]:
    """The processes of a control group and of all groups below it, as far as this process can see them."""
    import os

    pids = []
    for parent, _children, names in os.walk(folder):
        if "cgroup.procs" in names:
            pids += [int(pid) for pid in read(f"{parent}/cgroup.procs").split() if int(pid)]
    return pids


def takes_memory(directory: str, root: str = "/") -> bool:
    """Whether what is written to that directory is kept in memory (a tmpfs), so that it saves none."""
    import os

    return is_in_memory(os.path.realpath(directory), read_mounts(root))
