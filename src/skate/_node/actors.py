"""Actors on this node: workers are found for them here.

control state ──PlaceActor──▶ Actors ──a demand for a worker──▶ local scheduler
              ◀──ActorPlaced──        ◀──────── granted ────────
              ──StartActor──▶         ──▶ the worker becomes the actor

Owns:      the actors that a worker is looked for, and the workers that were found for actors.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from skate._core import lease_events as leases
from skate._core.resources import to_units
from skate._core.task import ActorInfo, Death, Job
from skate._wire import messages as wire

if TYPE_CHECKING:
    from skate._node.daemon import Daemon
    from skate._wire.cluster import HeldWorker

#: Most actors with the same needs that a worker is looked for at a time.
LOOKING_MAX = 16

#: What an actor holds, what it takes to place it, its environment, whether it may start again.
Needs = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], bool]


class Placed(msgspec.Struct):
    """A worker that was found for an actor."""

    actor: bytes
    class_name: str
    #: Which life of the actor it was told to become; 0: none yet.
    life: int = 0


class Actors:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        #: Those that a worker is looked for: what they are, their job, and since when.
        self._placing: dict[bytes, tuple[ActorInfo, Job, float]] = {}
        #: The same by what they need, and those that wait for their turn. The scheduler looks at every demand at every
        #: event; of a thousand that ask for the same a few are enough.
        self._looking: dict[Needs, set[bytes]] = {}
        self._waiting: dict[Needs, deque[bytes]] = {}
        #: By worker.
        self._placed: dict[bytes, Placed] = {}

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
        self._placed[command.worker] = Placed(actor, self._placing[actor][0].class_name)
        self._found(actor)
        self._daemon.output.begin_actor(self._daemon.processes[command.worker])
        self._daemon.control.actor_placed(actor, command.worker, pid)

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
        self._daemon.control.actor_not_placed(command.process, death)

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

    # -- those that live here -----------------------------------------------------------------------------------------

    def start(self, worker: bytes, message: wire.StartActor) -> None:
        """A worker is to become an actor. What the first async one imports for itself, the next ones share: 7 MB."""
        placed = self._placed.get(worker)
        if placed is None or placed.life == message.life:  # its end is on the way, or it has been told before
            return
        placed.life = message.life
        if message.create.settings.is_async:
            self._daemon.pool.preload(["asyncio"])
        self._daemon.send(worker, message)

    def class_of(self, worker: bytes) -> str:
        """The class of the actor in that process; empty if it is none."""
        placed = self._placed.get(worker)
        return placed.class_name if placed is not None else ""

    def on_process_died(self, process_id: bytes) -> None:
        self._placed.pop(process_id, None)

    def held(self) -> list[HeldWorker]:
        """Workers that were found for actors, for a control service that was started again."""
        from skate._wire.cluster import HeldWorker  # only a node of a cluster loads it

        pids = self._daemon.pids
        return [HeldWorker(worker, pids[worker], it.actor, it.life) for worker, it in self._placed.items()]

    def looking(self) -> list[bytes]:
        """Actors for which a worker is looked for."""
        return list(self._placing)


def _needs(info: ActorInfo) -> Needs:
    return (
        tuple(sorted(info.resources.items())),
        tuple(sorted(info.to_place.items())),
        tuple(sorted(info.env.items())),
        info.max_restarts != 0,
    )
