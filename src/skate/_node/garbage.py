"""Asks the processes of the node to collect garbage when the object store is short of memory.

When that is done, and how long the store waits, is decided in `_core/policy_garbage.py`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from skate._wire.messages import CollectGarbage, GarbageCollected

if TYPE_CHECKING:
    from skate._node.daemon import Daemon


class Garbage:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        #: The number of the last round, and the processes whose answer to it is waited for.
        self._round = 0
        self._asked: set[bytes] = set()
        #: Those that have not answered an earlier round in time, nor since: they are asked, and not waited for.
        self._silent: set[bytes] = set()

    def ask(self) -> None:
        """Begin a round: every process that runs, or has run, code of a user is asked."""
        self._round += 1
        self._silent |= self._asked
        processes = [process.id for process in self._daemon.processes.values() if process.ready and process.job.id]
        self._asked = set(processes) - self._silent
        for process_id in processes:
            self._daemon.send(process_id, CollectGarbage(self._round))

    def on_collected(self, process: Any, message: GarbageCollected) -> None:
        self._silent.discard(process.id)
        if message.round == self._round:
            self._heard_of(process.id)

    def on_process_died(self, process_id: bytes) -> None:
        self._silent.discard(process_id)
        self._heard_of(process_id)

    def _heard_of(self, process_id: bytes) -> None:
        if process_id in self._asked:
            self._asked.remove(process_id)
            if not self._asked:
                self._daemon.store.garbage_collected(time.monotonic())
