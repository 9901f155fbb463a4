"""How the replicas of a deployment become what they are to be: decisions over events and a clock. Pure.

    STARTING ──started──► RUNNING ──to be replaced, too many──► DRAINING ──left──► (gone)
        └──failed──► (gone; tried again later)    └──died──► (gone; another is started)

Rules: A new version is started one replica at a time, and an old replica drains when a new one runs in its place. The
       first new one waits until `may_begin`, the first old one drains when `may_replace`: `application.py` says both.
       A version that fails `TRIES` times before it is proven is broken: no further replica is started, and those that
       run go on. A version that is proven is tried again for ever, ever more slowly.
       A replica that dies within `STEADY_S` of its start has failed, as one has that does not start. Failures are
       forgotten when a replica that was started after them has run so long.
       Other settings, which replicas take while they run, count as another version in this: a replica that refuses them
       has failed.
"""

from __future__ import annotations

import enum
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from skate.serve.records import DeploymentSpec

__all__ = ["Command", "Configure", "Deployment", "Drain", "Kill", "Publish", "Replica", "Start", "State"]

#: A version that is not proven yet may fail so often.
TRIES = 3
#: Seconds before the next try after a failure; they double with each failure, up to the limit.
PAUSE_S, PAUSE_S_MAX = 0.1, 30.0
#: Seconds after which a replica counts as well started.
STEADY_S = 3.0
#: A replica of a new version runs for so long before it counts: one that dies at once is to replace nothing.
PROBATION_S = 0.3
#: Seconds of starting after which status mentions a replica.
SLOW_S = 5.0
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
    #: Whether the whole application has worked with this specification.
    proven: bool = False
    #: Failures in a row; when the latest one was; when the next try may be.
    failures: int = 0
    failed_at: float = -math.inf
    not_before: float = 0.0
    #: Whether a new version may be started beside the replicas of another one, and whether those may drain for it.
    may_begin: bool = True
    may_replace: bool = True
    new_id: Callable[[], str] = lambda: uuid.uuid4().hex[:8]
    #: What handles were told last.
    _published: object = None

    # -- what is to be ----------------------------------------------------------------------------------------------

    def become(self, spec: DeploymentSpec, wanted: int, *, proven: bool = False) -> None:
        """Take another target. `proven` says that it has worked before, so that it is tried for ever."""
        if self.broken or spec != self.spec:
            self.failures, self.not_before, self.message = 0, 0.0, ""
        self.spec, self.wanted, self.proven, self.broken, self.deleted = spec, wanted, proven, False, False

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
        self._clear_message(replica)

    def failed(self, id: str, why: str, now: float) -> None:
        """A replica did not start."""
        replica = self.replicas.pop(id, None)
        if replica is None or not self._is_right(replica):
            return
        self._fails(why)
        self._pause(now)

    def died(self, id: str, why: str, now: float) -> None:
        """A replica that ran, or drained, is dead; `why` is empty if it left in order."""
        replica = self.replicas.get(id)
        if replica is not None and replica.state is State.STARTING:
            self.failed(id, why, now)
        elif replica is not None:
            del self.replicas[id]
            if why and replica.state is State.RUNNING:
                self._lose(replica, why, now)

    def configured(self, id: str, settings: str, why: str = "") -> None:
        """A replica has taken other settings; or `why` says why not, and a new one, begun with them, replaces it."""
        replica = self.replicas.get(id)
        if replica is None:
            return
        replica.configuring = False
        replica.settings = settings
        if replica.state is State.RUNNING and not why:
            self._clear_message(replica)
        elif replica.state is State.RUNNING:
            if self._is_right(replica):
                self._fails(why)
                self.failed_at = max(each.since for each in self.replicas.values())  # those prove nothing of settings
            replica.version = ""

    def adopt(self, id: str, replica: Replica) -> None:
        """A replica is there that an earlier controller has started."""
        self.replicas[id] = replica

    # -- what is to be done -----------------------------------------------------------------------------------------

    def step(self, now: float) -> list[Command]:
        """The commands to carry out now."""
        commands: list[Command] = []
        new = [each for each in self.replicas.values() if each.version == self.spec.version]
        old = [each for each in self.replicas.values() if each.version != self.spec.version]
        starting = [each for each in new if each.state is State.STARTING]
        running = [each for each in new if each.state is State.RUNNING]
        old_running = [each for each in old if each.state is State.RUNNING]
        self._forget_failures(running, now)
        commands += [self._end(each, now) for each in old if each.state is State.STARTING]
        if self.deleted or self.broken:
            # Beside a broken version, replicas that run go on; the application decides what comes next.
            ending = [*starting, *running, *old_running] if self.deleted else starting
            commands += [self._end(each, now) for each in ending]
        else:
            # While the old ones stay, one new replica is there beside as many of them as before.
            stay = bool(old_running) and not self.may_replace
            surplus = len(old_running) + (0 if stay else len(running)) - self.wanted
            leaving = [*old_running, *sorted(running, key=lambda each: each.since, reverse=True)]
            commands += [self._end(each, now) for each in leaving[: max(0, surplus)]]
            commands += [self._end(each, now) for each in starting[max(0, self.wanted - len(running)) :]]
            missing = self.wanted - len(running) - len(starting)
            may = (1 if old_running else STARTING_MAX) - len(starting) - (len(running) if stay else 0)
            if old_running and not self.may_begin:
                may = 0
            if now >= self.not_before:
                if self.failures:
                    may = min(may, 1 - len(starting))
                commands += [self._start(now) for _ in range(min(missing, may))]
            if self.may_replace:
                commands += self._configure(running)
        shown = self._shown()
        if shown != self._published:
            self._published = shown
            commands.insert(0, Publish())
        return commands

    def publish_again(self) -> None:
        """Tell handles once more: they may not have heard."""
        self._published = None

    def wake_at(self, now: float, linger_s: float = 0.0) -> float | None:
        """When time alone changes what is to be done, or what `is_ready` and `has_spread` say; None: never."""
        times = [self.not_before] if self.failures and not self.broken else []
        if not self.proven:
            times += [each.since + PROBATION_S for each in self.members if each.version == self.spec.version]
        times += [each.since + linger_s for each in self.replicas.values() if each.state is State.DRAINING]
        return min((each for each in times if each > now), default=None)

    @property
    def members(self) -> list[Replica]:
        """The replicas that take requests."""
        return [each for each in self.replicas.values() if each.state is State.RUNNING]

    @property
    def is_settled(self) -> bool:
        """Whether the replicas are what the specification asks for."""
        current = [each for each in self.members if each.version == self.spec.version and not each.configuring]
        there = [each for each in self.replicas.values() if each.state is not State.DRAINING]
        right = all(each.settings == self.spec.settings for each in current)
        return len(current) == len(there) == self.wanted and right and not self.broken

    @property
    def has_replaced(self) -> bool:
        """Whether all replicas of other versions have ended, those that drained included."""
        return all(each.version == self.spec.version for each in self.replicas.values())

    @property
    def why_broken(self) -> str:
        """What `serve.run` says when the version does not start."""
        there = sum(each.version == self.spec.version for each in self.members)
        what = f"has {there} of {self.wanted} replicas, and no other one starts" if there else "did not start"
        return f"deployment {self.spec.name} of application {self.spec.app} {what}.\n{self.message}"

    def why_waiting(self, now: float) -> str:
        """What `serve.status` says of replicas that start for long; "" if there are none."""
        begun = [each.since for each in self.replicas.values() if each.state is State.STARTING]
        late = [since for since in begun if now - since >= SLOW_S]
        if not late:
            return ""
        return (
            f"{len(late)} of {self.wanted} replicas have been starting for {now - min(late):.0f} s: "
            "their constructor takes long, or no node has room for what they ask for."
        )

    def has_spread(self, now: float, linger_s: float) -> bool:
        """Whether processes had time to hear that the replicas of another version are to be used no more."""
        old = [each for each in self.replicas.values() if each.version != self.spec.version]
        return not any(each.state is State.DRAINING and now - each.since < linger_s for each in old)

    def is_ready(self, now: float) -> bool:
        """Whether its version runs, so that others may count on it."""
        ran = [now - each.since for each in self.members if each.version == self.spec.version]
        return self.proven or self.wanted == 0 or (bool(ran) and max(ran) >= PROBATION_S)

    @property
    def is_gone(self) -> bool:
        """Whether it was deleted and has no replicas any more."""
        return self.deleted and not self.replicas

    def _is_right(self, replica: Replica) -> bool:
        return (replica.version, replica.settings) == (self.spec.version, self.spec.settings)

    def _clear_message(self, replica: Replica) -> None:
        if self._is_right(replica) and not self.broken:
            self.message = ""

    def _forget_failures(self, running: list[Replica], now: float) -> None:
        """A replica that was started after the latest failure has run long enough: what was wrong is over."""
        if not self.broken and any(each.since > self.failed_at and now - each.since >= STEADY_S for each in running):
            self.failures = 0

    def _lose(self, replica: Replica, why: str, now: float) -> None:
        """A replica that ran has died."""
        if self.broken:
            return
        self.message = why
        # Replicas that die together have failed once: the loss of a node says little of the version.
        if self._is_right(replica) and now - replica.since < STEADY_S and replica.since > self.failed_at:
            self._fails(why)
            self._pause(now)

    def _fails(self, why: str) -> None:
        self.failures += 1
        self.message = why
        self.broken = not self.proven and self.failures >= TRIES

    def _pause(self, now: float) -> None:
        self.failed_at = now
        doublings = min(self.failures - 1, 20)  # a float has no room for thousands of them
        self.not_before = now + min(PAUSE_S_MAX, PAUSE_S * 2**doublings)

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
