"""Actors on this node: carries messages to the table of actors, and its commands to scheduler, workers and callers."""

from __future__ import annotations

import functools
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from skate._core import actors as core
from skate._core import lease_events as leases
from skate._core.resources import to_units
from skate._core.task import ActorInfo, Death
from skate._wire import messages as wire

if TYPE_CHECKING:
    from skate._node.daemon import Daemon, Process

#: Most actors with the same needs that a worker is looked for at a time.
LOOKING_MAX = 16

#: What an actor holds, what it takes to place it, its environment, whether it may start again.
Needs = tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...], bool]


class Actors:
    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self.table = core.ActorTable()
        #: What a worker needs to become the actor; for those that are not dead.
        self._creations: dict[bytes, wire.CreateActor] = {}
        #: Deaths when that was last tidied up.
        self._deaths = 0
        #: Actors that a worker is looked for, by what they need, and those that wait for their turn. The scheduler
        #: looks at every demand at every event; of a thousand that ask for the same a few are enough.
        self._looking: dict[Needs, set[bytes]] = {}
        self._needs: dict[bytes, Needs] = {}
        self._waiting: dict[Needs, deque[bytes]] = {}

    # -- messages -----------------------------------------------------------------------------------------------------

    def on_register(self, process: Process, message: wire.RegisterActor) -> None:
        answer: dict[str, Any] = {"taken": False}
        if message.info.detached:
            self._daemon.open_lobby()
        try:
            self._do(self.table.register(message.actor, process.id, message.info))
        except core.NameTaken as error:
            answer = {"taken": True, **self._describe(error.holder)}
        if message.request:
            process.channel.send(wire.Answer(message.request, answer))

    def on_create(self, process: Process, message: wire.CreateActor) -> None:
        actor = self.table.actors.get(message.actor)
        if actor is not None and actor.state == core.WAITING:
            self._creations[message.actor] = message
            self._do(self.table.created(message.actor))

    def on_started(self, process: Process, message: wire.ActorStarted) -> None:
        self._do(self.table.started(process.id))

    def on_ended(self, process: Process, message: wire.ActorEnded) -> None:
        self._do(self.table.ended(process.id, message.death))

    def on_watch(self, process: Process, message: wire.WatchActor) -> None:
        owner_lives = message.owner in self._daemon.processes
        self._do(self.table.watch(message.actor, process.id, message.owner, owner_lives=owner_lives))

    def on_unwatch(self, process: Process, message: wire.UnwatchActor) -> None:
        self.table.unwatch(message.actor, process.id)

    def on_kill(self, process: Process, message: wire.KillActor) -> None:
        if message.failure is not None:
            death = Death("arguments", "an argument of its creation is an error.", failure=message.failure)
        else:
            death = Death("kill", f"skate.kill() was called by {message.by}.")
        self._do(self.table.kill(message.actor, death, no_restart=message.no_restart))

    def on_drop(self, process: Process, message: wire.DropActor) -> None:
        self._do(self.table.drop(message.actor, process.id))

    def on_find(self, process: Process, message: wire.FindActor) -> None:
        actor = self.table.named(message.namespace, message.name)
        answer = None if actor is None else self._describe(actor)
        process.channel.send(wire.Answer(message.request, answer))

    @staticmethod
    def _describe(actor: core.Actor) -> dict[str, Any]:
        """What it takes to make a handle."""
        return {"actor": actor.id, "owner": b"" if actor.info.detached else actor.owner, "about": actor.info.about}

    # -- workers ------------------------------------------------------------------------------------------------------

    def on_granted(self, command: leases.GrantLease) -> None:
        self._found(command.process)
        self._do(self.table.granted(command.process, command.worker, self._daemon.pids[command.worker]))

    def on_infeasible(self, command: leases.ReportInfeasible) -> None:
        self._found(command.process)
        reason = command.reason or "it asks for more than this machine has."
        self._do(
            self.table.infeasible(
                command.process, Death("infeasible", reason, asked=command.asked, total=command.total)
            )
        )

    def on_process_died(self, gone: wire.PeerGone) -> None:
        self._do(self.table.process_died(gone.process_id, _death_of(gone)))

    # -- commands -----------------------------------------------------------------------------------------------------

    def _do(self, commands: list[core.Command]) -> None:
        for command in commands:
            match command:
                case core.Tell(process, actor):
                    self._daemon.send(process, self._state_of(actor))
                case core.FindWorker(actor, pause_s):
                    if pause_s:
                        again = functools.partial(self._find_worker, actor)
                        self._daemon.loop.call_at(time.monotonic() + pause_s, again)
                    else:
                        self._find_worker(actor)
                case core.StopLooking(actor):
                    self._daemon.post(leases.DemandChanged(actor, 0, {}, {}, 0))
                    self._found(actor)
                case core.Start(actor, worker):
                    record = self.table.actors[actor]
                    start = wire.StartActor(self._creations[actor], record.info, record.owner, record.lives)
                    self._daemon.send(worker, start)
                case core.Leave(worker):
                    self._daemon.send(worker, wire.LeaveActor())
                case core.Kill(worker, reason):
                    self._daemon.pool.kill(worker, reason)
        if self.table.deaths != self._deaths:
            self._deaths = self.table.deaths
            self._creations = {id: made for id, made in self._creations.items() if self.table.is_living(id)}

    def _find_worker(self, actor: bytes) -> None:
        record = self.table.actors.get(actor)
        if record is None or record.state != core.PENDING:
            return
        info = record.info
        needs = self._needs[actor] = _needs(info)
        looking = self._looking.setdefault(needs, set())
        # What can never be had is asked for by all at once, so that all are refused at the same time.
        if len(looking) >= LOOKING_MAX and self._daemon.scheduler.pool.can_ever_fit(to_units(info.to_place)):
            self._waiting.setdefault(needs, deque()).append(actor)
            return
        looking.add(actor)
        retriable = info.max_restarts != 0
        self._daemon.post(
            leases.DemandChanged(
                actor, 0, info.resources, info.env, 1, retriable=retriable, to_place=info.to_place, dedicated=True
            )
        )

    def _found(self, actor: bytes) -> None:
        """It needs no worker any more: the next one may look."""
        needs = self._needs.pop(actor, None)
        if needs is None:
            return
        looking, waiting = self._looking.get(needs, set()), self._waiting.get(needs)
        looking.discard(actor)
        while waiting and len(looking) < LOOKING_MAX:
            self._find_worker(waiting.popleft())
        if not waiting:
            self._waiting.pop(needs, None)
            if not looking:
                self._looking.pop(needs, None)

    def _state_of(self, id: bytes) -> wire.ActorState:
        actor = self.table.actors.get(id)
        if actor is None:
            death = Death("owner", "the process that created it is gone, or it is dead for so long that nobody knows.")
            return wire.ActorState(id, core.DEAD, 0, b"", death)
        return wire.ActorState(id, actor.state, actor.lives, actor.worker, actor.death)

    def has_detached(self) -> bool:
        return any(actor.info.detached and actor.state != core.DEAD for actor in self.table.actors.values())

    # -- looking inside -----------------------------------------------------------------------------------------------

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "actor_id": actor.id,
                "class_name": actor.info.class_name,
                "name": actor.info.name,
                "namespace": actor.info.namespace,
                "state": actor.state,
                "pid": actor.pid,
                "restarts": actor.restarts,
                "detached": actor.info.detached,
                "reason": actor.death.reason if actor.death is not None else "",
            }
            for actor in self.table.actors.values()
        ]


def _needs(info: ActorInfo) -> Needs:
    return (
        tuple(sorted(info.resources.items())),
        tuple(sorted(info.to_place.items())),
        tuple(sorted(info.env.items())),
        info.max_restarts != 0,
    )


def _death_of(gone: wire.PeerGone) -> Death:
    if gone.reason.startswith("memory"):
        return Death("memory", gone.reason, gone.stderr)
    code = gone.exit_code
    how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
    if code < 0:
        import signal

        try:
            how += f" ({signal.Signals(-code).name})"
        except ValueError:
            pass
    why = f": {gone.reason}" if gone.reason else "."
    return Death("crash", f"its process, pid {gone.pid}, {how}{why}", gone.stderr)
