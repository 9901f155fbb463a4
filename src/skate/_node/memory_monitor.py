"""How much memory is in use: of the machine, and of the container that we are in.

Owns:      the names of the files in /proc and /sys/fs/cgroup that say so; reading them costs some 50 µs.
Knows not: what to do about it; `_core/policy_memory.py` says that.
"""

from __future__ import annotations

import os

from skate._core.policy_memory import MemoryUse

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: A limit above this is the kernel's way to say that there is none.
NO_LIMIT_BYTES = 1 << 60


class MemoryMonitor:
    def __init__(self, proc: str = "/proc", cgroup_root: str = "/sys/fs/cgroup") -> None:
        self._proc = proc
        self._cgroups = _find_cgroups(proc, cgroup_root)

    def read(self) -> MemoryUse:
        """Of the machine, or of the container if that is closer to its limit."""
        return max(self._read_all(), key=lambda use: use.fraction)

    def available_bytes(self) -> int:
        """What may still be used, of the machine and within every limit."""
        return min(use.total_bytes - use.used_bytes for use in self._read_all())

    def _read_all(self) -> list[MemoryUse]:
        machine = _read_machine(self._proc)
        limits = [_read_cgroup(*files) for files in self._cgroups]
        # A limit above what the machine has is none.
        return [machine, *(use for use in limits if use is not None and use.total_bytes < machine.total_bytes)]


def _read_machine(proc: str) -> MemoryUse:
    total = available = 0
    for line in _read(f"{proc}/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            total = int(rest.split()[0]) * 1024
        elif name == "MemAvailable":
            available = int(rest.split()[0]) * 1024
            break
    return MemoryUse(total - available, total)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process without the files and the arena that it shares with others; 0 if it is gone."""
    try:
        _size, resident, shared, *_ = _read(f"/proc/{pid}/statm").split()
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * PAGE_BYTES


def largest_processes(named: dict[int, str], count: int) -> list[tuple[int, str, int]]:
    """The processes of the machine that hold most memory: pid, name, bytes. `named` are names for some of them."""
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    found = sorted(((resident_bytes(pid), pid) for pid in pids), reverse=True)
    return [(pid, named.get(pid) or _command(pid), rss) for rss, pid in found[:count] if rss]


def _command(pid: int) -> str:
    try:
        return _read(f"/proc/{pid}/comm").strip()
    except OSError:
        return "ended"


def _find_cgroups(proc: str, root: str) -> list[tuple[str, str, str]]:
    """Files with limit, usage and statistics of the memory cgroups that we are in (v2 and v1)."""
    found: dict[tuple[str, str, str], None] = {}
    try:
        lines = _read(f"{proc}/self/cgroup").splitlines()
    except OSError:
        return []
    for line in lines:
        _number, controllers, path = line.split(":", 2)
        if controllers == "":
            bases, names = [root, f"{root}/unified"], ("memory.max", "memory.current", "memory.stat")
        elif "memory" in controllers.split(","):
            bases, names = [f"{root}/memory"], ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat")
        else:
            continue
        for base in bases:
            # Inside a container the path may be that of the host, which is not visible: then the root is ours.
            for folder in (base + path.rstrip("/"), base):
                files = (f"{folder}/{names[0]}", f"{folder}/{names[1]}", f"{folder}/{names[2]}")
                if all(os.access(file, os.R_OK) for file in files):
                    found[files] = None
    return list(found)


def _read_cgroup(limit_file: str, usage_file: str, stat_file: str) -> MemoryUse | None:
    try:
        limit_text = _read(limit_file).strip()
        if limit_text == "max" or int(limit_text) > NO_LIMIT_BYTES:
            return None
        usage = int(_read(usage_file))
        # Cached files are counted as used, but the kernel takes them back when it has to.
        stat = dict(line.split(" ", 1) for line in _read(stat_file).splitlines())
        cached = int(stat.get("total_inactive_file") or stat.get("inactive_file") or 0)
    except (OSError, ValueError):
        return None
    return MemoryUse(max(0, usage - cached), int(limit_text))


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
