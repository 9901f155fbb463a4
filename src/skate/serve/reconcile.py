"""How the replicas of a deployment become what they are to be: decisions over events and a clock. Pure.

    STARTING ──started──► RUNNING ──to be replaced, too many──► DRAINING ──left──► (gone)
        └──failed──► (gone; tried again later)    └──died──► (gone; another is started)

Rules: A new version is started one replica at a time, and an old replica drains when a new one runs in its place. A
       version that fails `TRIES` times before any replica has run with it is broken: no further one is started, and
       the replicas that run go on. A version that has run is tried again for ever, ever more slowly.
       Other settings, which replicas take while they run, count as another version in this: a replica that refuses them
       has failed.
"""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from skate.serve.records import DeploymentSpec

__all__ = ["Command", "Configure", "Deployment", "Drain", "Kill", "Publish", "Replica", "Start", "State"]

#: A version that has not run yet may fail so often.
TRIES = 3
#: After a failure the next try waits so long, twice as long each time, up to a limit.
PAUSE_S, PAUSE_S_MAX = 0.1, 30.0
#: Replicas started at a time where nothing is replaced.
STARTING_MAX = 16


class State(enum.Enum):
    """Of a replica."""

    STARTING = "STARTING"
    RUNNING = "RUNNING"
    DRAINING = "DRAINING"


@dataclass
class Replica:
    """What is known of one."""

    id: str
    version: str
    state: State
    #: The settings that it has, and whether others are on their way.
    settings: str
    since: float
    configuring: bool = False
    node: str = ""
    tunnel: bytes = b""
    misses: int = 0


@dataclass(frozen=True)
class Start:
    """Make a replica of a version."""

    id: str
    spec: DeploymentSpec


@dataclass(frozen=True)
class Configure:
    """Give a replica other settings."""

    id: str
    spec: DeploymentSpec


@dataclass(frozen=True)
class Drain:
    """Let a replica end, after it has answered what it has."""

    id: str
    timeout_s: float


@dataclass(frozen=True)
class Kill:
    """End a replica at once."""

    id: str


@dataclass(frozen=True)
class Publish:
    """Tell handles which replicas there are."""


Command = Start | Configure | Drain | Kill | Publish


@dataclass
class Deployment:
    """One deployment: what it is to be, and the replicas that there are."""

    spec: DeploymentSpec
    #: How many replicas there are to be; autoscaling changes it.
    wanted: int
    replicas: dict[str, Replica] = field(default_factory=dict)
    #: What is wrong with the version, if it does not start; and whether it is given up.
    message: str = ""
    broken: bool = False
    deleted: bool = False
    #: Whether a replica has run with this version and these settings; failures since then; when the next try may be.
    has_run: bool = False
    failures: int = 0
    not_before: float = 0.0
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex[:8]
    #: What handles were told last.
    _published: object = None

    # -- what is to be ----------------------------------------------------------------------------------------------

    def become(self, spec: DeploymentSpec, wanted: int, *, proven: bool = False) -> None:
        """Take another target. `proven` says that it has worked before, so that it is tried for ever."""
        changed = (spec.version, spec.settings) != (self.spec.version, self.spec.settings)
        again = changed or self.broken
        self.spec, self.wanted, self.broken, self.deleted = spec, wanted, False, False
        if again:
            self.has_run = any(each.state is State.RUNNING and self._is_right(each) for each in self.replicas.values())
            self.failures, self.not_before, self.message = 0, 0.0, ""
        self.has_run = self.has_run or proven

    def delete(self) -> None:
        """Let all replicas end."""
        self.deleted = True
        self.wanted = 0

    # -- what happened ----------------------------------------------------------------------------------------------

    def started(self, id: str, node: str, tunnel: bytes, now: float) -> None:
        """A replica takes requests."""
        replica = self.replicas.get(id)
        if replica is None or replica.state is not State.STARTING:
            return
        replica.state, replica.since, replica.node, replica.tunnel = State.RUNNING, now, node, tunnel
        self._works(replica)

    def failed(self, id: str, why: str, now: float) -> None:
        """A replica did not start."""
        replica = self.replicas.pop(id, None)
        if replica is None or not self._is_right(replica):
            return
        self._fails(why)
        doublings = min(self.failures - 1, 20)  # a float has no room for thousands of them
        self.not_before = now + min(PAUSE_S_MAX, PAUSE_S * 2**doublings)

    def died(self, id: str, why: str, now: float) -> None:
        """A replica that ran, or drained, is dead; `why` is empty if it left in order."""
        replica = self.replicas.get(id)
        if replica is not None and replica.state is State.STARTING:
            self.failed(id, why, now)
        elif replica is not None:
            del self.replicas[id]
            if why and replica.state is State.RUNNING:
                self.message = why

    def configured(self, id: str, settings: str, why: str = "") -> None:
        """A replica has taken other settings; or `why` says why not, and a new one, begun with them, replaces it."""
        replica = self.replicas.get(id)
        if replica is None:
            return
        replica.configuring = False
        replica.settings = settings
        if replica.state is State.RUNNING and not why:
            self._works(replica)
        elif replica.state is State.RUNNING:
            if self._is_right(replica):
                self._fails(why)
            replica.version = ""

    def adopt(self, id: str, replica: Replica) -> None:
        """A replica is there that an earlier controller has started."""
        self.replicas[id] = replica
        self.has_run = self.has_run or (replica.state is State.RUNNING and self._is_right(replica))

    # -- what is to be done -----------------------------------------------------------------------------------------

    def step(self, now: float) -> list[Command]:
        """What is to be done now."""
        commands: list[Command] = []
        new = [each for each in self.replicas.values() if each.version == self.spec.version]
        old = [each for each in self.replicas.values() if each.version != self.spec.version]
        starting = [each for each in new if each.state is State.STARTING]
        running = [each for each in new if each.state is State.RUNNING]
        old_running = [each for each in old if each.state is State.RUNNING]
        commands += [self._end(each, now) for each in old if each.state is State.STARTING]
        if self.deleted or self.broken:
            # Beside a broken version, replicas that run go on; the application decides what comes next.
            ending = [*starting, *running, *old_running] if self.deleted else starting
            commands += [self._end(each, now) for each in ending]
        else:
            surplus = len(running) + len(old_running) - self.wanted
            leaving = [*old_running, *sorted(running, key=lambda each: each.since, reverse=True)]
            commands += [self._end(each, now) for each in leaving[: max(0, surplus)]]
            commands += [self._end(each, now) for each in starting[max(0, self.wanted - len(running)) :]]
            missing = self.wanted - len(running) - len(starting)
            may = (1 if old_running else STARTING_MAX) - len(starting)
            if now >= self.not_before:
                if self.failures:
                    may = min(may, 1 - len(starting))
                commands += [self._start(now) for _ in range(min(missing, may))]
            commands += self._configure(running)
        shown = self._shown()
        if shown != self._published:
            self._published = shown
            commands.insert(0, Publish())
        return commands

    def publish_again(self) -> None:
        """Tell handles once more: they may not have heard."""
        self._published = None

    def wake_at(self, now: float) -> float | None:
        """When `step` has something to do without an event; None: never."""
        return self.not_before if self.failures and not self.broken and self.not_before > now else None

    @property
    def members(self) -> list[Replica]:
        """The replicas that take requests."""
        return [each for each in self.replicas.values() if each.state is State.RUNNING]

    @property
    def is_settled(self) -> bool:
        """Whether all is as it is to be."""
        current = [each for each in self.members if each.version == self.spec.version and not each.configuring]
        there = [each for each in self.replicas.values() if each.state is not State.DRAINING]
        right = all(each.settings == self.spec.settings for each in current)
        return len(current) == len(there) == self.wanted and right and not self.broken

    @property
    def is_gone(self) -> bool:
        """Whether it was deleted and has no replicas any more."""
        return self.deleted and not self.replicas

    def _is_right(self, replica: Replica) -> bool:
        return (replica.version, replica.settings) == (self.spec.version, self.spec.settings)

    def _works(self, replica: Replica) -> None:
        if self._is_right(replica) and not self.broken:
            self.has_run, self.failures, self.message = True, 0, ""

    def _fails(self, why: str) -> None:
        self.failures += 1
        self.message = why
        self.broken = not self.has_run and self.failures >= TRIES

    def _shown(self) -> object:
        members = [(each.id, each.tunnel) for each in self.members]
        return members, self.spec.max_ongoing, self.spec.max_queued

    def _start(self, now: float) -> Start:
        id = self.new_id()
        self.replicas[id] = Replica(id, self.spec.version, State.STARTING, self.spec.settings, now)
        return Start(id, self.spec)

    def _end(self, replica: Replica, now: float) -> Command:
        if replica.state is State.STARTING:
            del self.replicas[replica.id]
            return Kill(replica.id)
        replica.state, replica.since = State.DRAINING, now
        return Drain(replica.id, self.spec.drain_s)

    def _configure(self, running: list[Replica]) -> list[Command]:
        commands: list[Command] = []
        for each in running:
            if each.settings != self.spec.settings and not each.configuring and each.state is State.RUNNING:
                each.configuring = True
                commands.append(Configure(each.id, self.spec))
        return commands
