"""Settings of a node that `init` decides: what the machine has, and how much of it is ours by default."""

from __future__ import annotations

import os
from collections.abc import Mapping

from skate._control_groups import least_cpu_limit, least_memory_limit
from skate._core.environment import PARTITION_GRACE_VARIABLE, SCHEDULING_DELAY_VARIABLE, seconds_of

#: Part of the machine's memory that the object store may use by default; memory is taken only as objects arrive.
STORE_PART = 0.3
#: The smallest store that can be asked for.
STORE_BYTES_LEAST = 8 << 20
STORE_BYTES_MIN = 64 << 20
STORE_BYTES_MAX = 200 << 30
#: How long two nodes may be unable to reach each other before what waits for that is decided on, in seconds.
PARTITION_GRACE_S = 30.0


def cpu_count(root: str = "/") -> int:
    """CPUs that this process may use: its affinity mask, and the quotas of its control groups, whichever is least.

    A quota of 1.5 CPUs counts as 2. What is read is read below `root`.
    """
    count = len(os.sched_getaffinity(0))  # the kernel leaves out what the cpuset of a control group forbids
    limit = least_cpu_limit(root)
    return count if limit is None else min(count, limit)


def machine_bytes() -> int:
    """Memory of the machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


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


def memory_bytes(root: str = "/") -> int:
    """Memory that this process may use: that of the machine, or the smallest limit of its control groups."""
    limit = least_memory_limit(root)
    return machine_bytes() if limit is None else min(machine_bytes(), limit)


def default_store_bytes(root: str = "/") -> int:
    return int(min(max(memory_bytes(root) * STORE_PART, STORE_BYTES_MIN), STORE_BYTES_MAX))


def store_warning(store_bytes: int, root: str = "/") -> str:
    """What a user should know who asks for a store larger than the container; "" if it is not."""
    limit = least_memory_limit(root)
    if limit is None or store_bytes <= limit:
        return ""
    return (
        f"object_store_memory is {store_bytes} bytes, and the control group (container) of this process may use "
        f"{limit} bytes of memory in all. Objects are written to disk as soon as that memory is short, which is before "
        f"the store is full. Leave object_store_memory out to have {default_store_bytes(root)} bytes here, or give the "
        "container more memory."
    )


def temporary_directory() -> str:
    """Where `tempfile` would put files. That module finds out by writing one, which `kill -9` could leave there."""
    for directory in (*map(os.environ.get, ("TMPDIR", "TEMP", "TMP")), "/tmp", "/var/tmp"):
        if directory and os.path.isdir(directory) and os.access(directory, os.W_OK | os.X_OK):
            return os.path.abspath(directory)
    return os.getcwd()


def partition_grace_s(configured: float | None = None) -> float:
    """What a node was told when it started, or its environment says, or the default. A value that is no number of
    seconds does not keep a node from starting: the default counts."""
    if configured is not None:
        return configured
    seconds = seconds_of(os.environ.get(PARTITION_GRACE_VARIABLE, ""))
    return seconds if 0 <= seconds < float("inf") else PARTITION_GRACE_S


def scheduling_delay_ms() -> float:
    """How long each task waits between being ready and being scheduled: 0, unless the environment of the node has the
    test setting."""
    milliseconds = seconds_of(os.environ.get(SCHEDULING_DELAY_VARIABLE, ""))
    return milliseconds if 0 <= milliseconds < float("inf") else 0.0
