"""Settings of a node that `init` decides: what the machine has, and how much of it is ours by default."""

from __future__ import annotations

import os
from collections.abc import Mapping

#: Part of the machine's memory that the object store may use by default; memory is taken only as objects arrive.
STORE_PART = 0.3
#: The smallest store that can be asked for.
STORE_BYTES_LEAST = 8 << 20
STORE_BYTES_MIN = 64 << 20
STORE_BYTES_MAX = 200 << 30


def cpu_count() -> int:
    """CPUs that this process may use: its affinity mask and the quota of its control group, whichever is less."""
    count = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        if quota != "max":
            count = min(count, max(1, int(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return count


def memory_bytes() -> int:
    """Memory of the machine, or of the control group if that has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            limit = file.read().strip()
        if limit != "max":
            total = min(total, int(limit))
    except (OSError, ValueError):
        pass
    return total


def node_resources(given: Mapping[str, float] | None) -> dict[str, float]:
    """The custom resources that a node is given, checked as those of tasks are. ValueError for a name that is ours."""
    from skate._core.resources import HEAD
    from skate._options import task_options

    resources = task_options(resources=given or {}).resources
    if HEAD in resources:
        raise ValueError(
            f"resources={{{HEAD!r}: …}} cannot be given to a node.\n"
            f"  why:  {HEAD!r} marks the first node of a cluster, and only that node has it.\n"
            "  next: choose another name."
        )
    return resources


def default_store_bytes() -> int:
    return int(min(max(memory_bytes() * STORE_PART, STORE_BYTES_MIN), STORE_BYTES_MAX))


def temporary_directory() -> str:
    """Where `tempfile` would put files. That module finds out by writing one, which `kill -9` could leave there."""
    for directory in (*map(os.environ.get, ("TMPDIR", "TEMP", "TMP")), "/tmp", "/var/tmp"):
        if directory and os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK):
            return os.path.abspath(directory)
    return os.getcwd()
