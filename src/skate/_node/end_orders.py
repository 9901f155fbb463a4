"""Orders of owners to end a worker that they lease: one task is cancelled by force, or all tasks were given up.

A worker may be the owner of objects and the creator of actors that other processes use. So it is ended only if it is in
a task that the order names. A worker that has finished all tasks that were given up, or began none of them, takes no
more tasks and stays until no other process needs what it owns.

Knows not: why an owner gives up a task (`_core/reachability.py`).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Container
from typing import TYPE_CHECKING

from skate._core import lease_events as leases
from skate._node.system import is_stopped
from skate._wire import messages as wire

if TYPE_CHECKING:
    from skate._node.daemon import Daemon

#: How long a worker may take to stop when it is told to.
STOP_TIMEOUT_S = 0.05


class EndOrders:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def carry_out(self, owner: bytes, order: wire.KillWorker | wire.GiveUpLease) -> None:
        """For a worker of this node."""
        daemon = self._daemon
        worker = daemon.scheduler.workers.get(order.process_id)
        if worker is None or worker.lease is None or worker.lease.owner != owner:
            return
        if isinstance(order, wire.KillWorker):
            if not order.running or self._stop_in(order.process_id, (order.running,)):
                daemon.pool.kill(order.process_id, order.reason)
        elif worker.lease.number == order.lease:
            if self._stop_in(order.process_id, frozenset(order.tasks)):
                daemon.pool.kill(order.process_id, order.reason)
                return
            # Some of the tasks may still be on their way to the worker: no process leases it again, and it begins none.
            daemon.send(order.process_id, wire.Retire(at_once=True))
            daemon.post(leases.WorkerRetired(order.process_id))
            daemon.post(leases.LeaseReturned(owner, order.lease))

    def _stop_in(self, process_id: bytes, tasks: Container[bytes]) -> bool:
        """Whether that worker is in one of these tasks. If so it is stopped: it must not go on before it is killed."""
        daemon = self._daemon
        pid, slot = daemon.pids[process_id], daemon.pool.workers[process_id].slot
        if daemon.store.running_task(slot) not in tasks:
            return False
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while not is_stopped(pid) and time.monotonic() < deadline:
            time.sleep(0.0001)
        if daemon.store.running_task(slot) in tasks:
            return True
        os.kill(pid, signal.SIGCONT)
        return False
