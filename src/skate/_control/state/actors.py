"""The actors of a cluster: carries messages to the table of actors, and its commands to nodes, workers and callers.

Owns:      for each actor that is not dead what it takes to make it, and its job; the rows of actors.
Knows not: where an actor finds a worker; see `placing.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from skate._control.state.checks import checked_units
from skate._control.state.steps import PlaceAgain
from skate._control.state.tables import ACTORS, ActorRow, pack
from skate._core import actors as core
from skate._core.ids import node_of
from skate._core.task import Death, Job
from skate._wire import messages as wire
from skate._wire.protocol_error import ProtocolError

if TYPE_CHECKING:
    from skate._control.state.control import Control


class ActorService:
    def __init__(self, control: Control) -> None:
        self._control = control
        self._functions = control.functions
        self.table = core.ActorTable()
        #: What a worker needs to become the actor; for those that are not dead.
        self._creations: dict[bytes, wire.CreateActor] = {}
        #: The jobs that they are part of, which may be over.
        self._jobs: dict[bytes, Job] = {}
        #: Deaths when that was last tidied up.
        self._deaths = 0

    # -- rows ---------------------------------------------------------------------------------------------------------

    def load(self, rows: Iterable[tuple[bytes, ActorRow]]) -> None:
        """What was stored, for a service that starts."""
        loaded = sorted((row for _, row in rows), key=lambda row: row.order)
        for row in loaded:
            if row.creation is not None and row.job is not None and row.actor.state != core.DEAD:
                self._creations[row.actor.id] = row.creation
                self._jobs[row.actor.id] = row.job
                self._functions.hold(row.creation.creation.fn, row.actor.id)
        self.table.load([row.actor for row in loaded], [row.order for row in loaded])
        self._deaths = self.table.deaths

    def row(self, id: bytes) -> bytes | None:
        actor = self.table.actors.get(id)
        if actor is None:
            return None
        return pack(
            ActorRow(actor.without_watchers(), self._creations.get(id), self._jobs.get(id), self.table.order_of(id))
        )

    # -- processes ----------------------------------------------------------------------------------------------------

    def handle(self, process_id: bytes, message: wire.Message) -> None:
        handler = HANDLERS.get(type(message))
        if handler is None:
            raise ProtocolError(f"{type(message).__name__} of a process is not for the control service")
        handler(self, process_id, message)
        self._mark_changed()

    def _mark_changed(self) -> None:
        for id in self.table.changed:
            self._control.mark(ACTORS, id)
        self.table.changed.clear()

    def _on_register(self, process_id: bytes, message: wire.RegisterActor) -> None:
        for resources in (message.info.resources, message.info.to_place):
            checked_units(resources)
        answer: dict[str, Any] = {"taken": False}
        try:
            self._do(self.table.register(message.actor, process_id, message.info))
        except core.NameTaken as error:
            answer = {"taken": True, **self._describe(error.holder)}
        if message.request:
            self._control.send(process_id, wire.Answer(message.request, answer))

    def _on_create(self, process_id: bytes, message: wire.CreateActor) -> None:
        actor = self.table.actors.get(message.actor)
        if actor is not None and actor.state == core.WAITING:
            self._creations[message.actor] = message
            self._jobs[message.actor] = self._control.job_of(process_id)
            self._functions.hold(message.creation.fn, message.actor)
            self._do(self.table.created(message.actor))

    def _on_started(self, process_id: bytes, message: wire.ActorStarted) -> None:
        self._do(self.table.started(process_id))

    def _on_ended(self, process_id: bytes, message: wire.ActorEnded) -> None:
        self._do(self.table.ended(process_id, message.death))

    def _on_watch(self, process_id: bytes, message: wire.WatchActor) -> None:
        known = message.actor in self.table.actors
        owner_lives = known or self._control.lives(message.owner)
        self._do(self.table.watch(message.actor, process_id, message.owner, owner_lives=owner_lives))

    def _on_unwatch(self, process_id: bytes, message: wire.UnwatchActor) -> None:
        self.table.unwatch(message.actor, process_id)

    def _on_kill(self, process_id: bytes, message: wire.KillActor) -> None:
        if message.failure is not None:
            death = Death("arguments", "an argument of its creation is an error.", failure=message.failure)
        else:
            death = Death("kill", f"skate.kill() was called by {message.by}.")
        self._do(self.table.kill(message.actor, death, no_restart=message.no_restart, life=message.life))

    def _on_drop(self, process_id: bytes, message: wire.DropActor) -> None:
        self._do(self.table.drop(message.actor, process_id))

    def _on_find(self, process_id: bytes, message: wire.FindActor) -> None:
        actor = self.table.named(message.namespace, message.name)
        answer = None if actor is None else self._describe(actor)
        self._control.send(process_id, wire.Answer(message.request, answer))

    @staticmethod
    def _describe(actor: core.Actor) -> dict[str, Any]:
        """What it takes to make a handle."""
        return {"actor": actor.id, "owner": b"" if actor.info.detached else actor.owner, "about": actor.info.about}

    # -- workers ------------------------------------------------------------------------------------------------------

    def granted(self, id: bytes, worker: bytes, pid: int) -> None:
        if self.is_looking(id):
            self._do(self.table.granted(id, worker, pid))
        else:
            self._control.kill(worker, "the actor that it was for no longer needs it")

    def infeasible(self, id: bytes, death: Death) -> None:
        self._do(self.table.infeasible(id, death))

    def process_died(self, gone: wire.PeerGone) -> None:
        self._do(self.table.process_died(gone.process_id, death_of(gone)))

    def node_died(self, node: int, reason: str) -> None:
        """All processes of that node are gone."""
        lost = {id for actor in self.table.actors.values() for id in (actor.worker, actor.owner, *actor.watchers)}
        for id in sorted(lost | self.table.early_processes()):
            if id and node_of(id) == node:
                self._do(self.table.process_died(id, Death("crash", f"its node is gone: {reason}")))

    def processes(self) -> set[bytes]:
        """All that are actors, or that actors end with."""
        found: set[bytes] = set()
        for actor in self.table.actors.values():
            if actor.state != core.DEAD:
                found |= {actor.worker, actor.owner}
        return found

    def job_of(self, id: bytes) -> Job:
        """Of an actor that is not dead, and whose creation is known."""
        return self._jobs[id]

    def is_looking(self, id: bytes) -> bool:
        """Whether it waits for a worker."""
        actor = self.table.actors.get(id)
        return actor is not None and actor.state == core.PENDING

    # -- commands -----------------------------------------------------------------------------------------------------

    def _do(self, commands: list[core.Command]) -> None:
        for command in commands:
            match command:
                case core.Tell(process, actor):
                    self._control.send(process, self._state_of(actor))
                case core.FindWorker(actor, pause_s):
                    if pause_s:
                        self._control.after(pause_s, PlaceAgain(actor))
                    else:
                        self.place(actor)
                case core.StopLooking(actor):
                    self._control.unplace(actor)
                case core.Start(actor, worker):
                    self.start(actor, worker)
                case core.Leave(worker):
                    self._control.send(worker, wire.LeaveActor())
                case core.Kill(worker, reason):
                    self._control.kill(worker, reason)
        if self.table.deaths != self._deaths:
            self._deaths = self.table.deaths
            dead = [id for id in self._creations if not self.table.is_living(id)]
            for id in dead:
                self._functions.let_go(self._creations.pop(id).creation.fn, id)
                del self._jobs[id]
            for id in dead:
                self._control.actor_died(id)  # which may be the death of others
        self._mark_changed()

    def start(self, id: bytes, worker: bytes) -> None:
        """Tell the worker what it takes to become the actor; it may have been told before."""
        define = self._functions.get(self._creations[id].creation.fn)
        actor = self.table.actors[id]
        if define is None:
            death = Death("crash", "the definition of its class is no longer in the control service.")
            self._do(self.table.kill(id, death, no_restart=True))
            return
        start = wire.StartActor(self._creations[id], define, actor.info, actor.owner, actor.lives)
        self._control.send(worker, start)

    def place(self, actor: bytes) -> None:
        """Find a worker for it, if it still needs one."""
        if self.is_looking(actor):
            self._control.place(actor, self.table.actors[actor].info, self._jobs[actor])

    def _state_of(self, id: bytes) -> wire.ActorState:
        actor = self.table.actors.get(id)
        if actor is None:
            death = Death("owner", "the process that created it is gone, or it died too long ago to be remembered.")
            return wire.ActorState(id, core.DEAD, 0, b"", death)
        return wire.ActorState(id, actor.state, actor.lives, actor.worker, actor.death)

    def detached(self) -> list[str]:
        """What users call their detached actors that live."""
        return [core.label(actor.info) for actor in self.table.actors.values() if core.is_kept_by_user(actor)]

    def detached_in(self, process_id: bytes) -> bytes:
        """The detached actor that runs in that process, if there is one."""
        actor = self.table.of_worker(process_id)
        return actor.id if actor is not None and actor.info.detached else b""

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
                "node": node_of(actor.worker) if actor.worker else None,
                "restarts": actor.restarts,
                "detached": actor.info.detached,
                "reason": actor.death.reason if actor.death is not None else "",
                "waits_for": self._control.waits_for(actor.id) if actor.state == core.PENDING else "",
            }
            for actor in self.table.actors.values()
        ]


HANDLERS: dict[type, Any] = {
    wire.RegisterActor: ActorService._on_register,
    wire.CreateActor: ActorService._on_create,
    wire.ActorStarted: ActorService._on_started,
    wire.ActorEnded: ActorService._on_ended,
    wire.WatchActor: ActorService._on_watch,
    wire.UnwatchActor: ActorService._on_unwatch,
    wire.KillActor: ActorService._on_kill,
    wire.DropActor: ActorService._on_drop,
    wire.FindActor: ActorService._on_find,
}


def death_of(gone: wire.PeerGone) -> Death:
    if gone.memory is not None:
        return Death("memory", gone.reason, gone.stderr, output=gone.output)
    if gone.node_lost:
        return Death("crash", gone.reason)
    code = gone.exit_code
    how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
    if code < 0:
        import signal

        try:
            how += f" ({signal.Signals(-code).name})"
        except ValueError:
            pass
    why = f": {gone.reason}" if gone.reason else "."
    return Death("crash", f"its process, pid {gone.pid}, {how}{why}", gone.stderr, output=gone.output)
