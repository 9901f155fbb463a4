"""Looks at memory while tasks run and objects arrive, and acts on it before the kernel ends something.

When memory is short, the object store writes objects to disk and gives their pages back; if that is not enough, the
newest task is ended. What is done, and how that is explained, is decided in `_core/policy_memory.py`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from skate._control_groups import takes_memory
from skate._core.policy_memory import (
    PERIOD_S_MIN,
    PROCESSES_NAMED,
    Candidate,
    MemoryKill,
    MemoryUse,
    choose_victim,
    explain,
    is_largest,
    kill_settles,
    next_look_s,
    store_goes_first,
    store_limit,
)
from skate._node.memory_monitor import MemoryMonitor, largest_processes, resident_bytes
from skate._wire.loop import Timer
from skate._wire.messages import PeerGone

if TYPE_CHECKING:
    from skate._node.daemon import Daemon

#: How long a kill is given to show in what is in use.
KILL_PAUSE_S = 1.0


class MemoryWatch:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._monitor: MemoryMonitor | None = None
        self._timer: Timer | None = None
        #: Since when memory is short; 0 if it is not.
        self._short_since = 0.0
        #: Space was lent in the store since the last look.
        self._lent = False
        #: Whether objects that go to disk take up no memory there; not known before it matters.
        self._disk_helps: bool | None = None
        #: Bytes that were in use when the last worker was ended, and when that was.
        self._last_kill = (0, 0.0)
        #: Workers killed for memory and not buried yet.
        self._kills: dict[bytes, MemoryKill] = {}

    def begin(self) -> None:
        """There is work: look from now on, until there is none."""
        if self._timer is None and self._daemon.config.memory_threshold < 1:
            self._look_after(PERIOD_S_MIN)

    def before_lending(self, size: int) -> None:
        """A process asks for that much room in the store: is there memory for it? The last look may be too old."""
        if self._daemon.config.memory_threshold < 1:
            if self._timer is None or self._daemon.store.would_exceed(size):
                self._limit_store(self._read())
                self.begin()
            self._lent = True

    def _look_after(self, pause_s: float) -> None:
        self._timer = self._daemon.loop.call_at(time.monotonic() + pause_s, self._look)

    def _read(self) -> MemoryUse:
        if self._monitor is None:
            self._monitor = MemoryMonitor()
        return self._monitor.read()

    def _look(self) -> None:
        daemon = self._daemon
        if not (daemon.scheduler.leases or self._lent or self._short_since):
            self._timer = None
            return
        self._lent = False
        use = self._read()
        threshold = daemon.config.memory_threshold
        store_helps = self._limit_store(use)
        pause_s = next_look_s(use, threshold)
        now = time.monotonic()
        if use.fraction <= threshold:
            self._short_since = 0.0
        elif not daemon.scheduler.leases:
            self._short_since = (self._short_since or now) if store_helps else 0.0
        else:
            self._short_since = self._short_since or now
            store_first = store_helps and store_goes_first(use, threshold, now - self._short_since)
            used_at_kill, killed_at = self._last_kill
            if not store_first and not kill_settles(use, threshold, used_at_kill, now - killed_at):
                self._end_a_worker(use, threshold)
                self._last_kill = use.used_bytes, now
                pause_s = KILL_PAUSE_S
        self._look_after(pause_s)

    def _limit_store(self, use: MemoryUse) -> bool:
        """Let the store take up what is left; whether it gives memory back."""
        daemon = self._daemon
        limit = store_limit(use, daemon.config.memory_threshold, daemon.store.resident_bytes)
        if limit >= daemon.store.arena_bytes:
            return daemon.store.limit_memory(None, time.monotonic())
        if self._disk_helps is None:
            self._disk_helps = not takes_memory(daemon.config.spill_directory)
        return daemon.store.limit_memory(limit, time.monotonic(), spill=self._disk_helps)

    def _end_a_worker(self, use: MemoryUse, threshold: float) -> None:
        daemon = self._daemon
        candidates = self._candidates()
        victim = choose_victim(candidates)
        if victim is None:
            return
        names = {pid: self._name(id) for id, pid in daemon.pids.items()}
        users = largest_processes(names, PROCESSES_NAMED, use.group)
        self._kills[victim.process_id] = MemoryKill(
            use, threshold, [(name, pid, size) for pid, name, size in users], is_largest(victim, candidates)
        )
        daemon.pool.kill(victim.process_id, explain(victim, use, threshold, users))

    def _name(self, process_id: bytes) -> str:
        """What a node knows of its processes; the tasks of workers are known to their owners."""
        class_name = self._daemon.actors.class_of(process_id)
        if class_name:
            return f"actor {class_name}"
        return self._daemon.describe_process(process_id).split()[0]

    def _candidates(self) -> list[Candidate]:
        pids = self._daemon.pids
        return [
            Candidate(
                lease.worker,
                pids[lease.worker],
                lease.granted_at,
                resident_bytes(pids[lease.worker]),
                lease.blocked,
                lease.retriable,
            )
            for lease in self._daemon.scheduler.leases.values()
        ]

    def explain(self, gone: PeerGone) -> None:
        """Add what is known, if that process was ended for memory."""
        gone.memory = self._kills.pop(gone.process_id, None)
