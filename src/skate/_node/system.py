"""Small questions to the operating system."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from skate._node.memory_monitor import MemoryMonitor

if TYPE_CHECKING:
    from skate._node.main import NodeConfig


#: The address of a node that is alone.
LOOPBACK = "127.0.0.1"


def resources_of(config: NodeConfig) -> dict[str, float]:
    """What a node has for tasks and actors, without the marks that carry its address."""
    if not config.serves:
        return {}
    memory = config.memory
    if memory is None:
        memory = max(0, MemoryMonitor().available_bytes() - config.object_store_memory)
    resources = {"CPU": float(config.num_cpus), "memory": float(memory), **config.resources}
    if config.num_gpus:
        resources["GPU"] = float(config.num_gpus)
    return resources


def wait_writable(fd: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    return bool(poll.poll(timeout_s * 1000))


def is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t", "Z", "X")
    except OSError:
        return True
