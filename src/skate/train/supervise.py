"""What becomes of a training when its ranks report, finish, raise or die: events in, commands out.

    Reported ──► Commit        when the parts of all ranks are there
    Finished ──► Finish        when all ranks have
    Failed   ──► Restart       while failures are left: end all ranks, and go on from the last committed checkpoint
             ──► GiveUp        otherwise
             ──► Wait          if it is a consequence of something that another rank has not told yet

Idea: when one rank dies, the others fail too, because their connections to it break, and their errors may arrive first.
      So an error of communication is believed only when no other one has come for a while.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: How long the cause of a broken connection may take to be known.
CAUSE_WITHIN_S = 5.0

#: What the text of an error says that gloo, NCCL or torch's store raise when another rank is gone.
_BROKEN = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "gloo/",
    "nccl error",
    "ncclremoteerror",
    "socket timeout",
)


@dataclass(frozen=True)
class Reported:
    rank: int
    step: int
    has_checkpoint: bool


@dataclass(frozen=True)
class Finished:
    rank: int


@dataclass(frozen=True)
class Failed:
    """A rank raised, or its process died."""

    rank: int
    error: BaseException
    is_communication: bool = False


@dataclass(frozen=True)
class Waited:
    """The time of a Wait is over."""


@dataclass(frozen=True)
class Commit:
    step: int


@dataclass(frozen=True)
class Wait:
    seconds: float


@dataclass(frozen=True)
class Restart:
    rank: int
    error: BaseException
    failures_left: int


@dataclass(frozen=True)
class GiveUp:
    rank: int
    error: BaseException


@dataclass(frozen=True)
class Finish:
    #: Checkpoints that only some ranks have reported, and these ranks.
    incomplete: dict[int, tuple[int, ...]] = field(default_factory=dict)


Event = Reported | Finished | Failed | Waited
Command = Commit | Wait | Restart | GiveUp | Finish


class Supervisor:
    """The state of a training, as far as decisions need it. A Restart begins a new attempt."""

    def __init__(self, workers: int, failures: int) -> None:
        self._workers, self._failures_left = workers, failures
        self._begin()

    def _begin(self) -> None:
        self._parts: dict[int, set[int]] = {}
        self._finished: set[int] = set()
        self._failed: dict[int, Failed] = {}

    def handle(self, event: Event) -> list[Command]:
        if isinstance(event, Reported):
            return self._reported(event)
        if isinstance(event, Finished):
            self._finished.add(event.rank)
            if len(self._finished) == self._workers:
                return [Finish({step: tuple(sorted(ranks)) for step, ranks in sorted(self._parts.items())})]
        elif isinstance(event, Failed):
            if not event.is_communication:
                return [self._fail(event)]
            self._failed.setdefault(event.rank, event)
        if not self._failed:
            return []
        nobody_is_left = len(self._failed.keys() | self._finished) == self._workers
        if nobody_is_left or isinstance(event, Waited):
            return [self._fail(next(iter(self._failed.values())))]
        return [Wait(CAUSE_WITHIN_S)] if isinstance(event, Failed) and len(self._failed) == 1 else []

    def _reported(self, event: Reported) -> list[Command]:
        if not event.has_checkpoint:
            return []
        ranks = self._parts.setdefault(event.step, set())
        ranks.add(event.rank)
        if len(ranks) < self._workers:
            return []
        del self._parts[event.step]
        return [Commit(event.step)]

    def _fail(self, cause: Failed) -> Command:
        if self._failures_left == 0:
            return GiveUp(cause.rank, cause.error)
        self._failures_left -= 1
        self._begin()
        return Restart(cause.rank, cause.error, self._failures_left)


def is_communication(error: BaseException) -> bool:
    """Whether an error says only that another rank could not be reached."""
    cause: Any = getattr(error, "cause", None) or error
    if isinstance(cause, ConnectionError) or type(cause).__module__.startswith("torch.distributed"):
        return True
    if type(cause).__name__ in ("DistBackendError", "DistNetworkError", "DistStoreError"):
        return True
    return isinstance(cause, RuntimeError) and any(words in str(cause).lower() for words in _BROKEN)
