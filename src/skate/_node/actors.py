"""Actors on this node: workers are found for them here, and what processes say of actors goes to who decides.

processes ──RegisterActor, WatchActor, …──▶ Actors ──▶ ActorService, in this daemon if the node is alone,
local scheduler ◀── a demand for a worker ──┘   ▲      otherwise in the control service
                 ── granted ────────────────────┘
"""

from __future__ import annotations

import functools
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from skate._control.actors import ActorService
from skate._control.groups import GROUP_REMOVED
from skate._core import lease_events as leases
from skate._core.ids import node_of
from skate._core.placement import Nowhere, Request, choose
from skate._core.resources import group_of, to_floats, to_units
from skate._core.task import ActorInfo, Death, Job
from skate._wire import messages as wire

if TYPE_CHECKING:
    from skate._node.daemon import Daemon
    from skate._node.neighbours import Neighbours

#: Most actors with the same needs that a worker is looked for at a time.
LOOKING_MAX = 16

#: What an actor holds, what it takes to place it, its environment, whether it may start again.
Needs = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], bool]


class Actors:
    """Also the `Outside` of the service, if that is here."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        #: None: the control service has it.
        self.service: ActorService | None = (
            ActorService(self, daemon.commons.functions) if daemon.commons is not None else None
        )
        #: Those that a worker is looked for: what they are, their job, and since when.
        self._placing: dict[bytes, tuple[ActorInfo, Job, float]] = {}
        #: The same by what they need, and those that wait for their turn. The scheduler looks at every demand at every
        #: event; of a thousand that ask for the same a few are enough.
        self._looking: dict[Needs, set[bytes]] = {}
        self._waiting: dict[Needs, deque[bytes]] = {}

    # -- processes ----------------------------------------------------------------------------------------------------

    def on_message(self, process_id: bytes, message: wire.Message) -> None:
        if self.service is not None:
            self.service.handle(process_id, message)
        else:
            self._neighbours.pass_on(process_id, 0, message)

    def on_process_died(self, gone: wire.PeerGone) -> None:
        if self.service is not None:
            self.service.process_died(gone)

    @property
    def _neighbours(self) -> Neighbours:
        assert self._daemon.neighbours is not None
        return self._daemon.neighbours

    # -- the scheduler ------------------------------------------------------------------------------------------------

    def is_placing(self, actor: bytes) -> bool:
        return actor in self._placing

    def job_for(self, actor: bytes) -> Job:
        return self._placing[actor][1]

    def captures(self, actor: bytes, key: int) -> bytes:
        """The placement group that it passes on to what it starts."""
        where = self._placing[actor][0].where
        return where.captures if where is not None else b""

    def on_granted(self, command: leases.GrantLease) -> None:
        actor, pid = command.process, self._daemon.pids[command.worker]
        self._found(actor)
        self._daemon.output.begin_actor(self._daemon.processes[command.worker])
        if self.service is not None:
            self.service.granted(actor, command.worker, pid)
        else:
            self._neighbours.actor_placed(actor, command.worker, pid)

    def on_infeasible(self, command: leases.ReportInfeasible) -> None:
        env = self._placing[command.process][0].env
        self._found(command.process)
        if command.limit:
            death = Death("workers", command.limit)
        elif command.reason:  # workers for it could not be started
            reason = f"no worker could be started for it: {command.reason}"
            death = Death("infeasible" if env else "workers", command.reason if env else reason)
        else:
            reason = "it asks for more than this machine has."
            death = Death("infeasible", reason, asked=command.asked, total=command.total)
        if self.service is not None:
            self.service.infeasible(command.process, death)
        else:
            self._neighbours.actor_not_placed(command.process, death)

    def find_worker(self, actor: bytes, info: ActorInfo, job: Job, since: float | None = None) -> None:
        since = time.monotonic() if since is None else since
        self._placing[actor] = (info, job, since)
        needs = _needs(info)
        looking = self._looking.setdefault(needs, set())
        # What can never be had is asked for by all at once, so that all are refused at the same time.
        if len(looking) >= LOOKING_MAX and self._daemon.scheduler.pool.can_ever_fit(to_units(info.to_place)):
            self._waiting.setdefault(needs, deque()).append(actor)
            return
        looking.add(actor)
        retriable = info.max_restarts != 0
        self._daemon.post(
            leases.DemandChanged(
                actor,
                0,
                info.resources,
                info.env,
                1,
                retriable=retriable,
                to_place=info.to_place,
                dedicated=True,
                program=job.program,
                since=since,
            )
        )

    def stop_looking(self, actor: bytes) -> None:
        if actor in self._placing:
            self._daemon.post(leases.DemandChanged(actor, 0, {}, {}, 0))
            self._found(actor)

    def _found(self, actor: bytes) -> None:
        """It needs no worker any more: the next one may look."""
        placed = self._placing.pop(actor, None)
        if placed is None:
            return
        needs = _needs(placed[0])
        looking, waiting = self._looking.get(needs, set()), self._waiting.get(needs)
        looking.discard(actor)
        while waiting and len(looking) < LOOKING_MAX:
            following = waiting.popleft()
            if following in self._placing:
                self.find_worker(following, *self._placing[following])
        if not waiting:
            self._waiting.pop(needs, None)
            if not looking:
                self._looking.pop(needs, None)

    # -- the outside of a service that is here ------------------------------------------------------------------------

    def send(self, process_id: bytes, message: wire.Message) -> None:
        if type(message) is wire.StartActor:
            self.start(process_id, message)
        else:
            self._daemon.send(process_id, message)

    def start(self, worker: bytes, message: wire.StartActor) -> None:
        """A worker is to become an actor. What the first async one imports for itself, the next ones share: 7 MB."""
        if message.create.settings.is_async:
            self._daemon.pool.preload(["asyncio"])
        self._daemon.send(worker, message)

    def place(self, actor: bytes, info: ActorInfo, job: Job) -> None:
        group = group_of(info.to_place or info.resources)
        if group and self._daemon.groups.is_removed(group):
            assert self.service is not None
            self.call_later(0.0, functools.partial(self.service.infeasible, actor, GROUP_REMOVED))
            return
        if info.where is not None:
            needs = to_units(info.to_place or info.resources)
            chosen = choose(Request.of(needs, info.where), [self._daemon.view()])
            if isinstance(chosen, Nowhere):
                asked, total = to_floats(needs), to_floats(self._daemon.total)
                death = Death("nowhere", chosen.reason, asked=asked, total=total)
                assert self.service is not None
                refuse = functools.partial(self.service.infeasible, actor, death)
                self.call_later(self._daemon.config.infeasible_grace_s, refuse)
                return
        self.find_worker(actor, info, job if job.driver in self._daemon.processes else job.without_driver())

    def job_of(self, process_id: bytes) -> Job:
        return self._daemon.job_of(process_id)

    def unplace(self, actor: bytes) -> None:
        self.stop_looking(actor)

    def waits_for(self, actor: bytes) -> str:
        return ""  # the scheduler of this node tells (`Inquiries.demands`)

    def kill(self, process_id: bytes, reason: str) -> None:
        self._daemon.pool.kill(process_id, reason)

    def call_later(self, seconds: float, action: Any) -> None:
        self._daemon.loop.call_at(time.monotonic() + seconds, action)

    def lives(self, process_id: bytes) -> bool:
        return process_id in self._daemon.processes and node_of(process_id) == self._daemon.number

    def outlives_drivers(self) -> None:
        self._daemon.open_lobby()

    def actor_died(self, actor: bytes) -> None:
        self._daemon.groups.on_actor_died(actor)

    # -- looking inside -----------------------------------------------------------------------------------------------

    def detached(self) -> list[str]:
        """What users call their detached actors that live and end with this node; none if it is part of a cluster."""
        return self.service.detached() if self.service is not None else []


def _needs(info: ActorInfo) -> Needs:
    return (
        tuple(sorted(info.resources.items())),
        tuple(sorted(info.to_place.items())),
        tuple(sorted(info.env.items())),
        info.max_restarts != 0,
    )
