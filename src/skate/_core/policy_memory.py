"""What to do when the machine, or the container, runs out of memory: which worker to kill, and how to say so.

The object store goes first: it writes objects that are not in use to disk and gives their pages back. Only if it has
none, or takes too long, a worker is ended. Killing something of ours in time is better than the kernel's choice, which
may be the driver or the daemon.

Idea: of the workers whose tasks may be run again, the one whose lease is newest. It has lost the least work, and the
older ones, which may well be what the newer ones wait for, get to their end; so the node makes progress however little
memory there is. The last worker left is killed too: alone, and still too large, it will not become smaller.

A task that was killed is run again after a pause, and a longer one each time: at once, it would be killed for the same
memory. If another worker held more than its own, that one is likely to blame, so the attempt does not count as one of
its retries; but not for ever, since what is short may be held by somebody whom nobody here ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

#: How often memory is looked at while there are leases; more often, down to the second, when little is left: a process
#: can take GROWTH_BYTES_PER_S, and a container of 300 MB would be full between two looks.
PERIOD_S = 0.25
PERIOD_S_MIN = 0.02
GROWTH_BYTES_PER_S = 1 << 30
#: Seconds for which the object store may try to make memory less short before a worker is ended; and only while less
#: than this part of what is left above the threshold is in use.
STORE_FIRST_S = 5.0
STORE_FIRST_PART = 0.8
#: Seconds that the memory of a worker that was ended may take to show as free: seen to be several on a virtual machine.
KILL_SETTLE_S = 5.0
#: Processes that are named when one is killed.
PROCESSES_NAMED = 5
#: Pause before a task is run again, doubled each time. The monitor looks again earlier: if one kill was not enough,
#: another worker has gone by then.
FIRST_PAUSE_S = 2.0
PAUSE_S_MAX = 60.0
#: So many attempts that were ended while another worker held more do not count.
FORGIVEN_MAX = 10


class MemoryUse(msgspec.Struct, frozen=True):
    """Memory of the machine, or of the control group that is closer to its limit."""

    used_bytes: int
    total_bytes: int
    #: The folder of that control group; "" for the machine.
    group: str = ""

    @property
    def fraction(self) -> float:
        return self.used_bytes / self.total_bytes if self.total_bytes else 0.0


def headroom(use: MemoryUse, threshold: float) -> int:
    """Bytes that may still be taken before memory is short; negative if it is."""
    return int(use.total_bytes * threshold) - use.used_bytes


def next_look_s(use: MemoryUse, threshold: float) -> float:
    """How long memory cannot become short, as far as one can know: then it is looked at again."""
    return min(PERIOD_S, max(PERIOD_S_MIN, headroom(use, threshold) / GROWTH_BYTES_PER_S))


def store_limit(use: MemoryUse, threshold: float, resident_bytes: int) -> int:
    """Bytes of memory that the object store may take up, of which it takes up `resident_bytes` now."""
    return max(0, resident_bytes + headroom(use, threshold))


def store_goes_first(use: MemoryUse, threshold: float, short_for_s: float) -> bool:
    """Whether no worker is ended yet, because the store is about to give memory back."""
    return short_for_s < STORE_FIRST_S and use.fraction < threshold + (1 - threshold) * STORE_FIRST_PART


def kill_settles(use: MemoryUse, threshold: float, used_at_kill: int, since_s: float) -> bool:
    """Whether no further worker is ended yet, because memory has not grown since the last one was."""
    in_time = since_s < KILL_SETTLE_S and use.fraction < threshold + (1 - threshold) * STORE_FIRST_PART
    return in_time and use.used_bytes <= used_at_kill


class MemoryKill(msgspec.Struct, array_like=True, frozen=True):
    """A worker was killed for memory: what its owner is told."""

    use: MemoryUse
    #: The fraction that may be in use.
    limit: float
    #: Who used how much, largest first: name, pid, bytes.
    users: list[tuple[str, int, int]]
    #: No other worker held more.
    was_largest: bool


class Candidate(msgspec.Struct, frozen=True):
    """A worker that works for somebody."""

    process_id: bytes
    pid: int
    #: When it was lent.
    leased_at: float
    rss_bytes: int
    #: It waits for others: its own memory is in use, but the tasks that it waits for are younger than it.
    blocked: bool = False
    #: What it runs may be run again.
    retriable: bool = True


def choose_victim(candidates: Sequence[Candidate]) -> Candidate | None:
    """The worker to kill, None if there is none: what may be run again first, then what runs rather than waits, then
    the newest."""

    def readiness(worker: Candidate) -> tuple[bool, bool, float, int]:
        return (worker.retriable, not worker.blocked, worker.leased_at, worker.pid)

    return max(candidates, key=readiness, default=None)


def is_largest(victim: Candidate, candidates: Sequence[Candidate]) -> bool:
    return all(victim.rss_bytes >= worker.rss_bytes for worker in candidates)


def next_attempt(kill: MemoryKill, earlier_kills: int) -> tuple[bool, float]:
    """Whether the attempt that was ended counts as one of the task's retries, and the seconds before the next one."""
    counts = kill.was_largest or earlier_kills >= FORGIVEN_MAX
    return counts, min(FIRST_PAUSE_S * 2 ** min(earlier_kills, FORGIVEN_MAX), PAUSE_S_MAX)


def explain(victim: Candidate, use: MemoryUse, threshold: float, processes: Sequence[tuple[int, str, int]]) -> str:
    """Why it was killed. `processes`: pid, name and resident bytes of the processes that were running."""
    largest = sorted(processes, key=lambda process: -process[2])[:PROCESSES_NAMED]
    users = ", ".join(f"{name} pid {pid}: {format_bytes(rss)}" for pid, name, rss in largest)
    whose = f" of the control group {use.group}" if use.group else ""
    return (
        f"memory: {format_bytes(use.used_bytes)} of {format_bytes(use.total_bytes)}{whose} were in use "
        f"({use.fraction:.0%}; "
        f"the limit is {threshold:.0%}); this worker, pid {victim.pid}, held {format_bytes(victim.rss_bytes)} and was "
        f"started on its work last. Largest processes: {users}"
    )


def format_bytes(count: int) -> str:
    amount = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
