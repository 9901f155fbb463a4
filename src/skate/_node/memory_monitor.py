"""How much memory is in use: of the machine, and of the control groups (containers) that this process is in.

Owns:      reading what /proc and the groups' folders say; that costs some 50 µs, and 30 µs for each limit.
Knows not: what to do about it; `_core/policy_memory.py` says that.
"""

from __future__ import annotations

import os

from skate._control_groups import MEMORY_FILES, control_groups, group_memory_limit, pids_of, read
from skate._core.control_groups import Group, memory_used
from skate._core.policy_memory import MemoryUse

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemoryMonitor:
    """What is read is read below `root`."""

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")
        self._groups = control_groups("memory", root)
        #: The first of each version: those that the process itself is in.
        self._own = list({group.version: group for group in reversed(self._groups)}.values())

    def read(self) -> MemoryUse:
        """Memory of the machine, or of the control group that is closest to its limit if that is closer."""
        return max(self._read_all(), key=lambda use: use.fraction)

    def available_bytes(self) -> int:
        """What may still be used, of the machine and within every limit."""
        return min(use.total_bytes - use.used_bytes for use in self._read_all())

    def _read_all(self) -> list[MemoryUse]:
        machine = _read_machine(f"{self._root}/proc/meminfo")
        limited = [(group, limit) for group in self._groups if (limit := group_memory_limit(group)) is not None]
        # The kernel brings the statistics of a group up to date when they are read, except for what happened in a group
        # below it whose own have not been read for a while: seen to be a second old, and then memory that was given
        # back does not show. So those of the process's own groups are read first.
        for group in self._own if limited else ():
            read(f"{group.folder}/{MEMORY_FILES[group.version].statistics}")
        uses = (_read_group(group, limit) for group, limit in limited)
        # A limit above what the machine has is none.
        return [machine, *(use for use in uses if use is not None and use.total_bytes < machine.total_bytes)]


def _read_machine(path: str) -> MemoryUse:
    total = available = 0
    for line in read(path).splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            total = int(rest.split()[0]) * 1024
        elif name == "MemAvailable":
            available = int(rest.split()[0]) * 1024
            break
    return MemoryUse(total - available, total)


def _read_group(group: Group, limit: int) -> MemoryUse | None:
    files = MEMORY_FILES[group.version]
    try:
        used = memory_used(read(f"{group.folder}/{files.usage}"), read(f"{group.folder}/{files.statistics}"))
    except ValueError:
        return None
    return MemoryUse(used, limit, group.folder)


def resident_bytes(pid: int) -> int:
    """Resident memory of a process without the files and the arena that it shares with others; 0 if it is gone."""
    try:
        _size, resident, shared, *_ = read(f"/proc/{pid}/statm").split()
    except ValueError:
        return 0
    return (int(resident) - int(shared)) * PAGE_BYTES


def largest_processes(named: dict[int, str], count: int, group: str = "") -> list[tuple[int, str, int]]:
    """The processes that hold most memory: pid, name, bytes. `named` are names for some of them.

    Those of the control group with that folder, which share its limit; without one, those of the whole machine.
    """
    if group:
        pids = pids_of(group)
    else:
        with os.scandir("/proc") as entries:
            pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    found = sorted(((resident_bytes(pid), pid) for pid in pids), reverse=True)
    return [(pid, named.get(pid) or _command(pid), rss) for rss, pid in found[:count] if rss]


def _command(pid: int) -> str:
    return read(f"/proc/{pid}/comm").strip() or "ended"
