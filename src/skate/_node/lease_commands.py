"""Carries out what the scheduler decides: starts and ends workers, grants leases, tells owners.

Owns:      the queue of events that the scheduler has not heard yet.
Knows not: how the scheduler decides (`_core/scheduler.py`).
Invariant: the commands of one event are carried out before the scheduler hears of the next event.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from skate._core import lease_events as leases
from skate._core.ids import node_of
from skate._wire import messages as wire

if TYPE_CHECKING:
    from skate._node.daemon import Daemon


class LeaseCommands:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._events: deque[leases.Event] = deque()

    def post(self, event: leases.Event) -> None:
        """Tell the scheduler, and do what it says; what happens meanwhile is told afterwards, in order."""
        self._events.append(event)
        if len(self._events) > 1:
            return
        while self._events:
            for command in self._daemon.scheduler.handle(self._events[0], time.monotonic()):
                COMMANDS[type(command)](self, command)
            self._events.popleft()
        self._daemon.control.resources_changed()

    def _do_start_worker(self, command: leases.StartWorker) -> None:
        self._daemon.pool.start(command.env)

    def _do_grant_lease(self, command: leases.GrantLease) -> None:
        job, worker = self._daemon.job_of(command.process), self._daemon.processes[command.worker]
        news = job if worker.job != job else None
        worker.job = job
        is_actor = self._daemon.actors.is_placing(command.process)
        where = self._daemon.actors if is_actor else self._daemon.demands
        started = wire.LeaseStarted(
            command.lease,
            command.process,
            command.resources,
            command.gpu_ids,
            news,
            where.captures(command.process, command.key),
        )
        self._daemon.send(command.worker, started)
        if self._daemon.actors.is_placing(command.process):
            self._daemon.actors.on_granted(command)
        else:
            granted = wire.LeaseGranted(command.key, command.lease, command.worker, self._daemon.pids[command.worker])
            if node_of(command.process) == self._daemon.number:
                self._daemon.switchboard.connect(command.process, command.worker)
                self._daemon.demands.on_granted(command.process, granted)
            self._daemon.send(command.process, granted)
        self._daemon.memory_watch.begin()

    def _do_ask_reclaim(self, command: leases.AskReclaim) -> None:
        self._daemon.send(command.process, wire.LeaseReclaim(command.leases))

    def _do_ask_retire(self, command: leases.AskRetire) -> None:
        self._daemon.send(command.worker, wire.Retire())

    def _do_kill_worker(self, command: leases.KillWorker) -> None:
        self._daemon.pool.kill(command.worker, command.reason)

    def _do_report_infeasible(self, command: leases.ReportInfeasible) -> None:
        if self._daemon.actors.is_placing(command.process):
            self._daemon.actors.on_infeasible(command)
            return
        self._daemon.demands.forget(command.process, command.key)
        infeasible = wire.LeaseInfeasible(
            command.key, command.asked, command.total, command.reason, limit=command.limit
        )
        self._daemon.send(command.process, infeasible)


COMMANDS: dict[type, Any] = {
    leases.StartWorker: LeaseCommands._do_start_worker,
    leases.GrantLease: LeaseCommands._do_grant_lease,
    leases.AskReclaim: LeaseCommands._do_ask_reclaim,
    leases.AskRetire: LeaseCommands._do_ask_retire,
    leases.KillWorker: LeaseCommands._do_kill_worker,
    leases.ReportInfeasible: LeaseCommands._do_report_infeasible,
}
