"""How many workers a node can have at the same time, and what sets that limit.

Problem:   a worker takes a place in the arena, descriptors of the daemon, and two threads of what the system allows. A
           limit that is met by surprise is a failure of whatever came last; one that is known is a sentence.
Owns:      nothing: limits in, the strictest of them out.
Knows not: where limits are read (`_system_limits.py`), and what workers do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: Descriptors that the daemon has open for a worker: its control channel, and the pipes of its output.
DESCRIPTORS_PER_WORKER = 3
#: Those that it needs for all else: the arena, zygotes, drivers, files that are spilled, a worker that is being
#: started. A node of a cluster has connections to others besides.
DESCRIPTORS_KEPT = 24
DESCRIPTORS_KEPT_IN_CLUSTER = 64
#: With fewer a node does not start: one worker is started while another one ends.
DESCRIPTORS_LEAST = DESCRIPTORS_KEPT + 2 * DESCRIPTORS_PER_WORKER
#: A worker has a thread for user code and one for its connections; the system counts threads as processes.
THREADS_PER_WORKER = 2
#: Driver, daemon, zygote and their threads.
THREADS_KEPT = 8


class Limit(NamedTuple):
    """What the system allows of something, or Skate itself."""

    amount: int
    #: What it is and how it is raised, for people.
    what: str


class WorkerLimit(NamedTuple):
    workers: int
    #: Of them, how many actors leave to tasks.
    for_tasks: int
    #: What sets the limit, for people.
    why: str


def worker_limit(
    *, slots: int, descriptors: Limit, threads: Iterable[Limit], cpus: float, in_cluster: bool = False
) -> WorkerLimit:
    """The strictest of all limits. `threads`: those on processes and threads, of user, group and machine."""
    kept = DESCRIPTORS_KEPT_IN_CLUSTER if in_cluster else DESCRIPTORS_KEPT
    limits = [
        # One slot to spare: a dead worker is replaced just before its slot is free again.
        Limit(slots - 1, f"a node has room for {slots - 1:,}"),
        Limit((descriptors.amount - kept) // DESCRIPTORS_PER_WORKER, descriptors.what),
        *(Limit((limit.amount - THREADS_KEPT) // THREADS_PER_WORKER, limit.what) for limit in threads),
    ]
    strictest = min(limits)
    workers = max(1, strictest.amount)
    # A task that runs has a CPU, so one worker for each CPU lets as many tasks run as can. Fewer, if there are few.
    return WorkerLimit(workers, min(max(1, int(cpus)), workers // 2), strictest.what)
