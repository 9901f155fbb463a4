"""The life of actors: who exists, under which name, in which process, and what happens when that process ends.

    register ──▶ WAITING ──arguments are there──▶ PENDING ──a worker──▶ STARTING ──__init__ returned──▶ ALIVE
                                                     ▲                      │                            │
                                                     └────── its process ended, and it may start again ──┤
                                                                            │                            │
                 DEAD ◀── __init__ raised · killed · left · no handle, no owner, no restart left ────────┘

An actor belongs to the process that created it and dies with that, unless it is detached. Whoever holds a handle
watches the actor, and is told of every state that matters to a caller: where it lives now, that it starts again, that
it is dead and why.

Owns:      the actors, their names, who watches them.
Knows not: processes, sockets, time. `_node/actors.py` carries what happens in, and the returned commands out.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from skate._core.task import ActorInfo, Death

WAITING = "waiting"
PENDING = "pending"
STARTING = "starting"
ALIVE = "alive"
DEAD = "dead"

#: An actor whose process ended so many times in a row before __init__ returned is not started again, whatever its
#: max_restarts.
FAILED_STARTS_MAX = 5
#: Pause before a start that follows a failed one; doubled each time.
RESTART_PAUSE_S = 0.1
#: Dead actors that are remembered, to tell late callers why; of the oldest only that they are dead is known.
DEAD_MAX = 10_000
FORGOTTEN_MAX = 100_000


class Actor(msgspec.Struct):
    id: bytes
    #: The process that created it.
    owner: bytes
    info: ActorInfo
    state: str = WAITING
    #: Its process while it is starting or alive.
    worker: bytes = b""
    pid: int = 0
    #: How often a process was found for it.
    lives: int = 0
    #: Starts after the first one, each after the end of a process.
    restarts: int = 0
    #: Ends in a row before __init__ returned.
    failed_starts: int = 0
    death: Death | None = None
    watchers: set[bytes] = msgspec.field(default_factory=set)
    #: The actor is dead, and its worker ends by itself when no process needs what the worker owns.
    leaves: bool = False

    def without_watchers(self) -> Actor:
        """As it is stored: watchers say again that they watch."""
        return msgspec.structs.replace(self, watchers=set())

    @property
    def full_name(self) -> tuple[str, str]:
        return self.info.namespace, self.info.name


# -- what to do --------------------------------------------------------------------------------------------------------


class FindWorker(msgspec.Struct, frozen=True):
    """Find a worker for it, after a pause."""

    actor: bytes
    pause_s: float = 0.0


class StopLooking(msgspec.Struct, frozen=True):
    actor: bytes


class Start(msgspec.Struct, frozen=True):
    """Tell the worker to become the actor."""

    actor: bytes
    worker: bytes


class Leave(msgspec.Struct, frozen=True):
    """Tell the worker to end by itself, as soon as nobody needs what it owns."""

    worker: bytes


class Kill(msgspec.Struct, frozen=True):
    worker: bytes
    reason: str


class Tell(msgspec.Struct, frozen=True):
    """Tell a process how the actor is."""

    process: bytes
    actor: bytes


Command = FindWorker | StopLooking | Start | Leave | Kill | Tell


class NameTaken(Exception):
    """Another living actor has that name."""

    def __init__(self, holder: Actor) -> None:
        self.holder = holder


class ActorTable:
    def __init__(self) -> None:
        self.actors: dict[bytes, Actor] = {}
        self.names: dict[tuple[str, str], bytes] = {}
        self._by_worker: dict[bytes, bytes] = {}
        #: By process, in the order in which they came: the actors that it watches, and those that end with it.
        #: Thousands of the dead are remembered, and the end of a process must not look at each of them.
        self._watched: dict[bytes, dict[bytes, None]] = {}
        self._owned: dict[bytes, dict[bytes, None]] = {}
        #: Who wanted to watch actors that nobody has registered yet, and the owners of those.
        self._early: dict[bytes, tuple[bytes, set[bytes]]] = {}
        #: The dead, by the order in which they died.
        self._dead: dict[bytes, int] = {}
        #: Ids of dead actors of whom nothing else is known, oldest first.
        self._forgotten: dict[bytes, None] = {}
        #: How many have died so far.
        self.deaths = 0
        #: Those of whom something that is stored has changed; who stores it empties the set.
        self.changed: set[bytes] = set()
        #: Two that live have the same name: the death of one was not stored, and the registration of the other was.
        #: Neither was acknowledged, and one of them will be said again.
        self._has_rivals = False

    def load(self, actors: Iterable[Actor], orders: Iterable[int]) -> None:
        """What was stored, the dead in the order in which they died; 0 stands for the living."""
        for actor, order in zip(actors, orders, strict=True):
            self.actors[actor.id] = actor
            if actor.state == DEAD:
                self._dead[actor.id] = self.deaths = order
                continue
            self._owned.setdefault(actor.owner, {})[actor.id] = None
            if actor.info.name:
                holder = self.actors.get(self.names.get(actor.full_name, b""))
                self._has_rivals |= holder is not None
                if holder is None or holder.state == WAITING:
                    self.names[actor.full_name] = actor.id
            if actor.worker:
                self._by_worker[actor.worker] = actor.id

    def order_of(self, id: bytes) -> int:
        """When it died, among the others; 0: it has not."""
        return self._dead.get(id, 0)

    # -- coming to life -----------------------------------------------------------------------------------------------

    def register(self, id: bytes, owner: bytes, info: ActorInfo) -> list[Command]:
        """It exists from now on; its arguments may still be on their way. Raises NameTaken.

        Said again, because the answer was lost, nothing changes.
        """
        if id in self.actors or id in self._forgotten:
            if self._has_rivals and self.is_living(id):
                self._give_way(self.actors[id])
            return []
        if info.name:
            holder = self.named(info.namespace, info.name)
            if holder is not None:
                raise NameTaken(holder)
            self.names[(info.namespace, info.name)] = id
        actor = self.actors[id] = Actor(id, owner, info)
        self._owned.setdefault(owner, {})[id] = None
        self.changed.add(id)
        _, watchers = self._early.pop(id, (b"", set()))
        for process in watchers:
            self._add_watcher(actor, process)
        return self._tell(actor)

    def _give_way(self, actor: Actor) -> None:
        """Raises NameTaken, if its name is that of an actor whose death was not stored, and has not happened again."""
        holder = self.named(*actor.full_name) if actor.info.name else None
        if holder is not None and holder is not actor:
            self._bury(actor, Death("kill", f"another actor has the name {actor.info.name!r}."))
            raise NameTaken(holder)

    def created(self, id: bytes) -> list[Command]:
        """All that a worker needs to become it is here."""
        actor = self.actors.get(id)
        if actor is None or actor.state != WAITING:
            return []
        actor.state = PENDING
        self.changed.add(id)
        return [FindWorker(id)]

    def granted(self, id: bytes, worker: bytes, pid: int) -> list[Command]:
        actor = self.actors[id]
        assert actor.state == PENDING, actor
        actor.state = STARTING
        actor.worker, actor.pid = worker, pid
        actor.lives += 1
        self.changed.add(id)
        self._by_worker[worker] = id
        return [Start(id, worker)]

    def started(self, worker: bytes) -> list[Command]:
        """Its __init__ returned."""
        actor = self.of_worker(worker)
        if actor is None or actor.state != STARTING:
            return []
        actor.state = ALIVE
        actor.failed_starts = 0
        self.changed.add(actor.id)
        return self._tell(actor)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def ended(self, worker: bytes, death: Death) -> list[Command]:
        """The actor in that process is over by its own doing, and its process leaves: __init__ raised, or it left."""
        actor = self.of_worker(worker)
        if actor is None:
            return []
        if actor.state == STARTING and actor.restarts and actor.death is not None:
            before = actor.death
            how = before.reason.rstrip(".")
            death.before = f"restart {actor.restarts} of it has failed. Before that, {how}."
            death.reason = f"{death.before} In the restart {death.reason}"
            death.stderr = death.stderr or before.stderr
            death.output = death.output or before.output
        actor.leaves = True
        return self._bury(actor, death)

    def process_died(self, process: bytes, death: Death) -> list[Command]:
        """A process of the node is gone: it may have been an actor, owned some, watched some."""
        commands: list[Command] = []
        id = self._by_worker.pop(process, None)
        actor = self.actors.get(id) if id is not None else None
        if actor is not None and actor.worker == process and actor.state in (STARTING, ALIVE):
            commands += self._start_again(actor, death)
        for watched in self._watched.pop(process, ()):
            self.actors[watched].watchers.discard(process)
        for owned in list(self._owned.get(process, ())):
            other = self.actors[owned]
            if other.state != DEAD:
                if not other.info.detached:
                    commands += self.kill(other.id, Death("owner", "the process that created it is gone."))
                elif other.state == WAITING:
                    reason = "the process that created it ended before the arguments of its creation were there."
                    commands += self.kill(other.id, Death("owner", reason))
        for id, (owner, watchers) in list(self._early.items()):
            watchers.discard(process)
            if owner == process:
                commands += [Tell(watcher, id) for watcher in sorted(watchers)]
                del self._early[id]
        return commands

    def _start_again(self, actor: Actor, death: Death) -> list[Command]:
        actor.worker, actor.pid = b"", 0
        self.changed.add(actor.id)
        most = actor.info.max_restarts
        was_starting = actor.state == STARTING
        actor.failed_starts += was_starting
        if was_starting and actor.failed_starts < FAILED_STARTS_MAX:
            death.reason = f"{death.reason} It was being created: its __init__ had not returned."
        if 0 <= most <= actor.restarts:
            if most:
                death.kind = "restarts"
                often = "once" if most == 1 else f"{most} times"
                death.reason = f"{death.reason} It had been restarted {often}, which is its max_restarts."
            return self._bury(actor, death)
        if actor.failed_starts >= FAILED_STARTS_MAX:
            death.kind = "restarts"
            death.reason = (
                f"its process ended {actor.failed_starts} times in a row before __init__ returned, so it is not "
                f"restarted any more. The last time: {death.reason}"
            )
            return self._bury(actor, death)
        actor.state = PENDING
        actor.restarts += 1
        pause_s = RESTART_PAUSE_S * 2 ** (actor.failed_starts - 1) if actor.failed_starts else 0.0
        actor.death = death
        return [*self._tell(actor), FindWorker(actor.id, pause_s)]

    def kill(self, id: bytes, death: Death, *, no_restart: bool = True, life: int = 0) -> list[Command]:
        """End it at once; it is dead for everybody before its process is.

        With a restart only one life ends: the one that is meant, or, with 0, the present one.
        """
        actor = self.actors.get(id)
        if actor is None or actor.state == DEAD:
            return []
        worker = actor.worker
        if not no_restart:
            if 0 < life < actor.lives:  # it was said again, and that life is over
                return []
            return [Kill(worker, death.reason)] if worker else []
        commands = self._bury(actor, death)
        return [*commands, Kill(worker, death.reason)] if worker else commands

    def drop(self, id: bytes, owner: bytes) -> list[Command]:
        """No handle is left anywhere and no call is pending."""
        actor = self.actors.get(id)
        if actor is None or actor.state == DEAD or actor.info.detached or actor.owner != owner:
            return []
        worker, starting = actor.worker, actor.state == STARTING
        death = Death("scope", "no handle to it was left.")
        actor.leaves = bool(worker) and not starting
        commands = self._bury(actor, death)
        if not worker:
            return commands
        # Nobody could end it any more if its __init__ hangs.
        return [*commands, Kill(worker, death.reason) if starting else Leave(worker)]

    def infeasible(self, id: bytes, death: Death) -> list[Command]:
        """No worker for it can ever be found."""
        actor = self.actors.get(id)
        if actor is None or actor.state != PENDING:
            return []
        return self._bury(actor, death)

    def _bury(self, actor: Actor, death: Death) -> list[Command]:
        looking = actor.state == PENDING
        actor.state = DEAD
        actor.death = death
        actor.worker, actor.pid = b"", 0
        if actor.info.name and self.names.get(actor.full_name) == actor.id:
            del self.names[actor.full_name]
            if self._has_rivals:
                same = (other for other in self.actors.values() if other.full_name == actor.full_name)
                self.names.update((other.full_name, other.id) for other in same if other.state != DEAD)
        commands: list[Command] = [StopLooking(actor.id)] if looking else []
        commands += self._tell(actor)
        self.deaths += 1
        owned = self._owned.get(actor.owner, {})
        owned.pop(actor.id, None)
        if not owned:
            self._owned.pop(actor.owner, None)
        self._dead[actor.id] = self.deaths
        self.changed.add(actor.id)
        if len(self._dead) > DEAD_MAX:
            forgotten = next(iter(self._dead))
            for process in list(self.actors[forgotten].watchers):
                self._remove_watcher(self.actors[forgotten], process)
            del self._dead[forgotten], self.actors[forgotten]
            self.changed.add(forgotten)
            self._forgotten[forgotten] = None
            if len(self._forgotten) > FORGOTTEN_MAX:
                del self._forgotten[next(iter(self._forgotten))]
        return commands

    # -- who wants to know --------------------------------------------------------------------------------------------

    def watch(self, id: bytes, process: bytes, owner: bytes, *, owner_lives: bool) -> list[Command]:
        """Tell that process from now on. The actor may not have been heard of yet: its owner says so later."""
        actor = self.actors.get(id)
        if actor is not None:
            self._add_watcher(actor, process)
        elif owner_lives and id not in self._forgotten:
            self._early.setdefault(id, (owner, set()))[1].add(process)
            return []
        return [Tell(process, id)]

    def unwatch(self, id: bytes, process: bytes) -> None:
        actor = self.actors.get(id)
        if actor is not None:
            self._remove_watcher(actor, process)
        elif id in self._early:
            self._early[id][1].discard(process)

    def _add_watcher(self, actor: Actor, process: bytes) -> None:
        actor.watchers.add(process)
        self._watched.setdefault(process, {})[actor.id] = None

    def _remove_watcher(self, actor: Actor, process: bytes) -> None:
        actor.watchers.discard(process)
        watched = self._watched.get(process, {})
        watched.pop(actor.id, None)
        if not watched:
            self._watched.pop(process, None)

    def _tell(self, actor: Actor) -> list[Command]:
        return [Tell(process, actor.id) for process in sorted(actor.watchers)]

    def is_living(self, id: bytes) -> bool:
        actor = self.actors.get(id)
        return actor is not None and actor.state != DEAD

    def early_owners(self) -> set[bytes]:
        """Those whose actors are watched before they were registered."""
        return {owner for owner, _ in self._early.values()}

    def early_processes(self) -> set[bytes]:
        """Those, and who watches."""
        return self.early_owners().union(*(watchers for _, watchers in self._early.values()))

    def of_worker(self, worker: bytes) -> Actor | None:
        id = self._by_worker.get(worker)
        actor = self.actors.get(id) if id is not None else None
        return actor if actor is not None and actor.worker == worker else None

    def named(self, namespace: str, name: str) -> Actor | None:
        id = self.names.get((namespace, name))
        return self.actors[id] if id is not None else None

    # -- looking inside -----------------------------------------------------------------------------------------------

    def validate(self) -> None:
        for (namespace, name), id in self.names.items():
            actor = self.actors[id]
            assert actor.full_name == (namespace, name), actor
            assert actor.state != DEAD, f"{actor} is dead and keeps its name"
        for actor in self.actors.values():
            assert bool(actor.worker) == (actor.state in (STARTING, ALIVE)), actor
            assert (actor.state == DEAD) <= (actor.death is not None), actor
            if actor.worker:
                assert self._by_worker[actor.worker] == actor.id, actor
            most = actor.info.max_restarts
            assert most < 0 or actor.restarts <= most, actor
            assert actor.failed_starts <= FAILED_STARTS_MAX, actor
        assert len(self._dead) <= DEAD_MAX
        pairs = {(process, actor.id) for actor in self.actors.values() for process in actor.watchers}
        assert pairs == {(process, id) for process, ids in self._watched.items() for id in ids}
        living = {(actor.owner, actor.id) for actor in self.actors.values() if actor.state != DEAD}
        assert living == {(owner, id) for owner, ids in self._owned.items() for id in ids}

    def statistics(self) -> dict[str, int]:
        states = [actor.state for actor in self.actors.values()]
        return {f"actors_{state}": states.count(state) for state in (WAITING, PENDING, STARTING, ALIVE, DEAD)}


# -- detached actors and the end of their node ---------------------------------------------------------------------

#: Names and namespaces of actors that Skate's own libraries make begin with this.
OWN_PREFIX = "_skate"
#: Detached actors that the line at the end of a node names; it counts the others.
NAMED_MAX = 5


def is_kept_by_user(actor: Actor) -> bool:
    """Whether it is a detached actor of a user that would live on if its node did."""
    own = any(text.startswith(OWN_PREFIX) for text in actor.full_name)
    return actor.info.detached and actor.state not in (WAITING, DEAD) and not own


def label(info: ActorInfo) -> str:
    """How a user recognises an actor: 'counter' (Counter), or just Counter if the actor has no name."""
    return f"{info.name!r} ({info.class_name})" if info.name else info.class_name


def ended_with_node(labels: list[str]) -> str:
    """The line that the last driver of a node prints if detached actors end with it."""
    named = labels[:NAMED_MAX]
    if len(labels) > NAMED_MAX:
        named.append(f"{len(labels) - NAMED_MAX} more")
    listed = " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
    actors, end = ("actor", "ends") if len(labels) == 1 else ("actors", "end")
    return (
        f"skate: the detached {actors} {listed} {end} with the node: skate.init() started it, and its last program has "
        "ended. Detached actors outlive programs on nodes that `skate start` has started.\n"
    )
