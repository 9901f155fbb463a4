"""Looks at the memory of the machine while tasks run, and ends the newest of them before the kernel ends something.

What is chosen, and how that is explained, is decided in `_core/policy_memory.py`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from skate._core.policy_memory import (
    PERIOD_S_MIN,
    PROCESSES_NAMED,
    Candidate,
    MemoryKill,
    choose_victim,
    explain,
    is_largest,
    next_look_s,
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
        #: Workers killed for memory and not buried yet.
        self._kills: dict[bytes, MemoryKill] = {}

    def begin(self) -> None:
        """There is work: look from now on, until there is none."""
        if self._timer is None and self._daemon.config.memory_threshold < 1:
            self._look_after(PERIOD_S_MIN)

    def _look_after(self, pause_s: float) -> None:
        self._timer = self._daemon.loop.call_at(time.monotonic() + pause_s, self._look)

    def _look(self) -> None:
        daemon = self._daemon
        if not daemon.scheduler.leases:
            self._timer = None
            return
        if self._monitor is None:
            self._monitor = MemoryMonitor()
        use = self._monitor.read()
        threshold = daemon.config.memory_threshold
        pause_s = next_look_s(use, threshold)
        if use.fraction > threshold:
            candidates = self._candidates()
            victim = choose_victim(candidates)
            if victim is not None:
                names = {pid: self._name(id) for id, pid in daemon.pids.items()}
                users = largest_processes(names, PROCESSES_NAMED, use.group)
                self._kills[victim.process_id] = MemoryKill(
                    use, threshold, [(name, pid, size) for pid, name, size in users], is_largest(victim, candidates)
                )
                daemon.pool.kill(victim.process_id, explain(victim, use, threshold, users))
                pause_s = KILL_PAUSE_S
        self._look_after(pause_s)

    def _name(self, process_id: bytes) -> str:
        """What a node knows of its processes; the tasks of workers are known to their owners."""
        service = self._daemon.actors.service
        actor = service.table.of_worker(process_id) if service is not None else None
        if actor is not None:
            return f"actor {actor.info.class_name}"
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
