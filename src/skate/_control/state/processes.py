"""The processes that have to do with the control state, and which of their messages need not be said again.

A node numbers what its processes say to the control service, keeps it, and says it again to a service that was started
again, until it hears that it is durable (Done). So no request is lost with the service, and nothing that the service
has acknowledged is asked for twice.

Owns:      for each process its job, the last message that has come, and what its node has not been told of.
Invariant: Done is said after the rows that the message has changed: the storage makes them durable before it leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skate._control.state.steps import Confirm, ForgetProcess
from skate._core.ids import node_of
from skate._core.task import Job
from skate._wire import cluster

if TYPE_CHECKING:
    from skate._control.state.control import Control

#: Nodes are told together of what is durable, this often.
CONFIRM_S = 0.02
#: What a process has written is remembered for this time after its end: until its node has heard Done, it may say it
#: again. A node that has not heard so for longer is dead itself.
REMEMBER_S = 10.0


class Processes:
    def __init__(self, control: Control) -> None:
        self._control = control
        self.jobs: dict[bytes, Job] = {}
        #: The number of the last message of each process.
        self._last: dict[bytes, int] = {}
        #: Processes whose nodes have something to be told.
        self._untold: dict[bytes, int] = {}

    def __contains__(self, process_id: bytes) -> bool:
        return process_id in self.jobs

    def on_acquaint(self, link: int, message: cluster.Acquaint) -> None:
        self.jobs[message.process_id] = message.job
        self._control.recovery.process_came(link, message.process_id, message.pid, message.job)

    def node_joined_again(self, number: int) -> None:
        """It will say again what is not Done.

        The answers to that may have been lost with its old link. So Done must not come over the new one before them,
        and what is said again is handled like that of processes that were not known before.
        """
        self._last = {id: last for id, last in self._last.items() if node_of(id) != number}
        self._untold = {id: last for id, last in self._untold.items() if node_of(id) != number}

    def is_new(self, process_id: bytes, number: int) -> bool:
        """Whether a message with that number has not come yet. Number 0: its node does not count."""
        if not number:
            return True
        if not self._untold:
            self._control.after(CONFIRM_S, Confirm())
        last = self._last.get(process_id, 0)
        self._untold[process_id] = max(last, number)
        if number <= last:
            return False
        self._last[process_id] = number
        return True

    def confirm(self) -> None:
        """Tell nodes what they need not keep."""
        untold, self._untold = self._untold, {}
        by_node: dict[int, list[tuple[bytes, int]]] = {}
        for process_id, number in untold.items():
            by_node.setdefault(node_of(process_id), []).append((process_id, number))
        for number, done in by_node.items():
            self._control.send_to_node(self._control.nodes.by_number.get(number, b""), cluster.Done(done))

    def died(self, process_id: bytes) -> None:
        self.jobs.pop(process_id, None)
        if self._last.pop(process_id, 0):
            self._control.after(REMEMBER_S, ForgetProcess(process_id))

    def node_died(self, number: int) -> None:
        self.jobs = {id: job for id, job in self.jobs.items() if node_of(id) != number}
        self._last = {id: last for id, last in self._last.items() if node_of(id) != number}
        self._untold = {id: last for id, last in self._untold.items() if node_of(id) != number}
