"""What the scheduler is told (events, past tense) and what it wants done (commands, imperative).

`Scheduler.handle(event, now)` returns commands; `_node/daemon.py` makes events of messages and deaths, and messages and
processes of commands.
"""

from __future__ import annotations

import msgspec

#: An environment: the variables that its workers are started with, sorted. () is the plain one.
Env = tuple[tuple[str, str], ...]


# -- what happened --------------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True):
    """Base of everything that `Scheduler.handle` takes."""


class JobStarted(Event, frozen=True):
    """Somebody is there to work for: have workers ready. The driver, if it is one of this node."""

    driver: bytes = b""


class WorkerReady(Event, frozen=True):
    """One of the workers that were to be started said hello."""

    worker: bytes
    env: Env = ()


class StartFailed(Event, frozen=True):
    """A worker died before it was ready."""

    env: Env
    reason: str


class EnvironmentFailed(Event, frozen=True):
    """No worker of this environment can be started; those on the way have failed too."""

    env: Env
    reason: str
    #: It would fail again; False: somebody killed what was needed, and another attempt may do better.
    final: bool = True


class ProcessDied(Event, frozen=True):
    """A driver, or a worker that had been ready."""

    process: bytes


class DemandChanged(Event, frozen=True):
    """`count` more workers would be of use (absolute)."""

    process: bytes
    key: int
    resources: dict[str, float]
    env: dict[str, str]
    count: int
    depth: int = 0
    #: Its tasks may be run again should their worker be killed.
    retriable: bool = True
    #: What the node must have in all, free or not, if that is more than what is held.
    to_place: dict[str, float] = {}
    #: The worker is for good: it is not asked back, and ends with what it is wanted for.
    dedicated: bool = False
    #: The driver that it works for, though perhaps that is gone. A worker keeps the modules that it has imported, so it
    #: works for one program only.
    program: bytes = b""
    #: When it began to wait, if that was before it is told.
    since: float | None = None


class LeaseReturned(Event, frozen=True):
    process: bytes
    lease: int


class WorkerBlocked(Event, frozen=True):
    """Its task waits for others."""

    worker: bytes


class WorkerUnblocked(Event, frozen=True):
    worker: bytes


class WorkerRetired(Event, frozen=True):
    """It leaves by itself, soon."""

    worker: bytes


class WorkerKilled(Event, frozen=True):
    """Its process is being killed. What it holds is free when it is dead; it gets no more."""

    worker: bytes


class WorkerStays(Event, frozen=True):
    """It was asked to leave and cannot: others hold objects that it owns."""

    worker: bytes


class BundleCommitted(Event, frozen=True):
    """A bundle of a placement group, which was set aside, counts from now on."""

    group: bytes
    index: int


class BundleReleased(Event, frozen=True):
    """It is given back; what runs in it is of no use any more."""

    group: bytes
    index: int


class TimePassed(Event, frozen=True):
    """`next_deadline` was reached."""


# -- what to do about it ----------------------------------------------------------------------------------------------


class StartWorker(msgspec.Struct, frozen=True):
    env: Env


class GrantLease(msgspec.Struct, frozen=True):
    process: bytes
    key: int
    lease: int
    worker: bytes
    resources: dict[str, float]
    gpu_ids: list[int]


class AskReclaim(msgspec.Struct, frozen=True):
    process: bytes
    leases: list[int]


class AskRetire(msgspec.Struct, frozen=True):
    """The worker is not needed: it may leave, if it owns nothing that others hold."""

    worker: bytes


class KillWorker(msgspec.Struct, frozen=True):
    worker: bytes
    reason: str


class ReportInfeasible(msgspec.Struct, frozen=True):
    process: bytes
    key: int
    asked: dict[str, float]
    total: dict[str, float]
    reason: str
    #: Set if the node can have no more workers, and none of those that it has will be free: the limit.
    limit: str = ""


Command = StartWorker | GrantLease | AskReclaim | AskRetire | KillWorker | ReportInfeasible
