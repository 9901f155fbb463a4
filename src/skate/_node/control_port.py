"""The control state as a node sees it: what it is told, and what it says is to be done here.

    processes ──RegisterActor, KeyValue, …──▶ ControlPort ──▶ the control service, or the same state in this daemon
    actors, bundles, workers of this node ◀── ControlPort ◀──

Owns:      which processes the state knows of.
Knows not: what is decided. How the state is reached is said by `local_control.py` (a node that is alone) and
           `remote_control.py` (a node of a cluster).
"""

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from skate._core.task import Death, Job
from skate._wire import cluster
from skate._wire import messages as wire
from skate._wire.protocol_error import ProtocolError

if TYPE_CHECKING:
    from skate._node.daemon import Daemon

#: Of a command line that is told, in characters.
COMMAND_LINE_MAX = 2000


class ControlPort(ABC):
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        #: Processes that the state knows of, and their jobs as it knows them.
        self._known: dict[bytes, Job] = {}

    # -- what this node says ------------------------------------------------------------------------------------------

    @abstractmethod
    def tell(self, message: wire.Message) -> None:
        """What the node itself has to say."""

    def pass_on(self, process_id: bytes, message: wire.Message) -> None:
        """What a process of this node says."""
        self.introduce(process_id)
        self.tell(cluster.FromProcess(process_id, message))  # type: ignore[arg-type]

    def introduce(self, process_id: bytes) -> None:
        """The state is to know of a process of this node, and of its end."""
        job = self._daemon.processes[process_id].job
        known = self._known.get(process_id)
        if known is not job and known != job:
            self._known[process_id] = job
            self.tell(cluster.Acquaint(process_id, self._daemon.pids[process_id], job))

    def process_died(self, gone: wire.PeerGone) -> None:
        if self._known.pop(gone.process_id, None) is not None:
            self.tell(cluster.ProcessGone(gone))

    def job_started(self, job: Job, pid: int) -> None:
        self.tell(cluster.JobStarted(job, pid, command_line(pid)))

    def job_ended(self, job: Job) -> None:
        self.tell(cluster.JobEnded(job))

    def actor_placed(self, actor: bytes, worker: bytes, pid: int) -> None:
        self.introduce(worker)
        self.tell(cluster.ActorPlaced(actor, worker, pid))

    def actor_not_placed(self, actor: bytes, death: Death) -> None:
        self.tell(cluster.ActorNotPlaced(actor, death))

    def ask_group(self, group: bytes) -> None:
        """Whether it was removed."""
        self.tell(cluster.AskGroup(group))

    @abstractmethod
    def resources_changed(self) -> None:
        """Something of this node was taken or given back."""

    @abstractmethod
    def leave(self, reason: str) -> None:
        """This node ends."""

    def silence(self) -> dict[str, Any] | None:
        """Since when nothing was heard of the control service, if that is longer than it should be."""
        return None

    def trouble(self) -> dict[str, Any] | None:
        """Why the state cannot be stored at present."""
        return None

    def report_now(self) -> None:
        """What this node has in all has changed."""
        self.tell(cluster.Report(self._daemon.view(), urgent=True))

    def detached(self) -> list[str]:
        """What users call their detached actors that end with this node."""
        return []

    # -- what is to be done here --------------------------------------------------------------------------------------

    def on_order(self, message: Any) -> None:
        daemon = self._daemon
        match message:
            case cluster.ToProcess(process, wire.Published() as published):
                daemon.mailboxes.deliver(process, published)
            case cluster.ToProcess(process, wire.StartActor() as start):
                daemon.actors.start(process, start)
            case cluster.ToProcess(process, inner):
                daemon.send(process, inner)
            case cluster.PlaceActor(actor, info, job):
                daemon.actors.find_worker(actor, info, job)
            case cluster.UnplaceActor(actor):
                daemon.actors.stop_looking(actor)
            case cluster.PrepareBundle(group, index, attempt, needs):
                ok = daemon.groups.set_aside(group, index, attempt, needs)
                self.tell(cluster.BundlePrepared(group, index, attempt, ok))
            case cluster.CommitBundle(group, index):
                daemon.groups.count(group, index)
                self.report_now()
            case cluster.ReleaseBundle(group, index):
                daemon.groups.give_back(group, index)
                self.report_now()
            case cluster.GroupRemoved(group):
                daemon.groups.removed(group)
            case cluster.KillProcess(process, reason):
                daemon.pool.kill(process, reason)
            case cluster.Introduce(process):
                if process in daemon.processes:
                    self.introduce(process)
                else:
                    self.tell(cluster.ProcessGone(daemon.switchboard.death_of(process)))
            case cluster.Heard():
                pass
            case _:
                raise ProtocolError(f"{type(message).__name__} is not for a node")


def command_line(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", errors="replace") as file:
            return shlex.join(file.read(COMMAND_LINE_MAX).rstrip("\0").split("\0"))
    except OSError:  # it has ended already
        return ""
