"""A node that is alone is a cluster of one: it has the control state in its own process.

The state is made when something first has to do with it: the first result of a program does not wait for that. It keeps
nothing on disk, and ends with the node.
"""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING

from skate._node.control_port import ControlPort
from skate._node.system import LOOPBACK
from skate._wire import messages as wire

if TYPE_CHECKING:
    from skate._control.host import Host
    from skate._core.task import Job
    from skate._node.daemon import Daemon

#: What makes the state look for places: it has to know how the node is by then.
PLACING = (wire.CreateGroup, wire.RemoveGroup, wire.CreateActor)


class LocalControl(ControlPort):
    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon)
        self._host: Host | None = None

    def _made(self) -> Host:
        if self._host is None:
            self._host = _make_host(self._daemon, self)
            for process in self._daemon.processes.values():
                if process.worker is None and process.ready:
                    super().job_started(process.job, self._daemon.pids[process.id])
        return self._host

    def tell(self, message: wire.Message) -> None:
        from skate._control.state.steps import Said

        self._made().give(Said(0, message))

    def pass_on(self, process_id: bytes, message: wire.Message) -> None:
        if isinstance(message, PLACING):
            self._report()
        elif isinstance(message, wire.RegisterActor) and message.info.detached:
            self._daemon.open_lobby()  # other drivers may want to find it
        super().pass_on(process_id, message)

    def process_died(self, gone: wire.PeerGone) -> None:
        if self._host is not None:
            super().process_died(gone)

    def job_started(self, job: Job, pid: int) -> None:
        if self._host is not None:
            super().job_started(job, pid)

    def job_ended(self, job: Job) -> None:
        if self._host is not None:
            super().job_ended(job)

    def resources_changed(self) -> None:
        if self._host is not None and self._host.control.groups.waits:
            self._report()

    def _report(self) -> None:
        from skate._wire.cluster import Report

        self.tell(Report(self._daemon.view()))

    def leave(self, reason: str) -> None:
        """The state ends with its node."""

    def detached(self) -> list[str]:
        return self._host.control.actors.detached() if self._host is not None else []


def _make_host(daemon: Daemon, port: LocalControl) -> Host:
    from skate._control.host import Host
    from skate._control.state.control import Settings
    from skate._wire import cluster

    class LocalHost(Host):
        """What the state says over the one link that there is is done here."""

        def send(self, link: int, message: wire.Message) -> None:
            if link == 0:
                port.on_order(message)

        def enveloped(self, process_id: bytes, message: wire.Message) -> wire.Message:
            return cluster.ToProcess(process_id, message)  # type: ignore[arg-type]

        def has_backlog(self, link: int) -> bool | None:
            return False  # the mailboxes of the daemon hold back

        def before_sent(self, link: int, message: wire.Message) -> None:
            """Nothing waits: there is no storage."""

        def disconnect(self, link: int) -> None:
            """This process is both ends."""

        def cut(self, link: int, error: Exception) -> None:
            raise error

        def note(self, text: str) -> None:
            """A node that is alone has no log of its cluster."""

        def end(self, reason: str) -> None:
            """It ends with its node."""

        def end_anyway(self, reason: str) -> None:
            """It ends with its node."""

        def on_trouble(self, before: object, now: object) -> None:
            """There is no storage."""

        def on_store_lost(self, error: Exception) -> None:
            """There is none."""

    settings = Settings(
        cluster_id=os.urandom(8).hex(),
        epoch=time.time() - time.monotonic(),
        nowhere_grace_s=daemon.config.infeasible_grace_s,
        watches_nodes=False,
    )
    host = LocalHost(daemon.loop, settings)
    host.begin()
    host.control.nodes.admit(0, cluster.Member(daemon.view(), LOOPBACK, 0, socket.gethostname()))
    return host
