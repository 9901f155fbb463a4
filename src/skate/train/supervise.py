"""What becomes of a training when its ranks report, finish, raise, die or stall: events in, commands out.

    Reported ──► Commit        when the parts of all ranks are there, or a folder is and all ranks have got that far
    Finished ──► Finish        when all ranks have
    HasRoom  ──► Grow          when a checkpoint was committed, and there is room for more workers
    Failed   ──► Restart       while failures are left: end all ranks, and go on from the last committed checkpoint
             ──► GiveUp        otherwise
             ──► nothing yet   if it is a consequence of something that another rank has not told yet
    Tick     ──► Look          when ranks were silent for too long (stalls.py)
    Looked   ──► Restart, …    as Failed

Idea: when one rank dies, the others fail too, because their connections to it break, and their errors may arrive first.
      So an error of communication is believed only when no other one has come for a while.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from skate.train.stalls import Look as RankLook
from skate.train.stalls import Progress, StalledError

#: How long the cause of a broken connection may take to be known.
CAUSE_WITHIN_S = 5.0

#: What the text of an error says that gloo, NCCL, torch's store or a hook of ours raise when another rank is gone.
_BROKEN = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "gloo/",
    "nccl error",
    "ncclremoteerror",
    "socket timeout",
    "rankdiederror: ",
    "ranklefterror: ",
    "collectiveerror: ",
)


class Given(IntEnum):
    """What a rank has given of the checkpoint of a step."""

    NOTHING = 0
    #: Its own part; every rank has to give one.
    PART = 1
    #: Files that count when all ranks have reported that step, with files of their own or without.
    FOLDER = 2
    #: Its own part, which only the same number of ranks can restore.
    SHARD = 3


@dataclass(frozen=True)
class Reported:
    rank: int
    step: int
    given: int


@dataclass(frozen=True)
class Finished:
    rank: int


@dataclass(frozen=True)
class Failed:
    """A rank raised, or its process died. rank: None if it died before it had one."""

    rank: int | None
    error: BaseException
    is_communication: bool = False


@dataclass(frozen=True)
class HasRoom:
    """A checkpoint was committed, and the group could have so many workers now."""

    workers: int


@dataclass(frozen=True)
class Tick:
    """It is time that `Supervisor.wake_at` has named."""


@dataclass(frozen=True)
class Looked:
    """Where the main threads of the ranks are, after a Look."""

    looks: Mapping[int, RankLook]


@dataclass(frozen=True)
class Commit:
    step: int
    #: The ranks that gave files of the program; none if every rank gave its part.
    files_of: frozenset[int] = frozenset()
    #: Whether only as many ranks as there are now can go on from it.
    is_sharded: bool = False


@dataclass(frozen=True)
class Look:
    """Find out where the main thread of each rank is."""


@dataclass(frozen=True)
class Grow:
    """End the group and make it again with more workers. No failure is charged."""

    workers: int


@dataclass(frozen=True)
class Restart:
    rank: int | None
    error: BaseException
    failures_left: int | None


@dataclass(frozen=True)
class GiveUp:
    rank: int | None
    error: BaseException


@dataclass(frozen=True)
class Finish:
    #: Checkpoints that only some ranks have reported, and these ranks.
    incomplete: dict[int, tuple[int, ...]] = field(default_factory=dict)


Event = Reported | Finished | Failed | HasRoom | Tick | Looked
Command = Commit | Look | Grow | Restart | GiveUp | Finish


class Supervisor:
    """The state of a training, as far as decisions need it. `begin` begins an attempt."""

    def __init__(self, failures: int | None, stall_after: float | None = None) -> None:
        self._failures_left, self._stall_after = failures, stall_after
        self.begin(0, 0.0)

    def begin(self, workers: int, now: float) -> None:
        """The ranks of an attempt have begun to train."""
        self._workers = workers
        self._parts: dict[int, set[int]] = {}
        #: Steps of which ranks have given a folder, and which; and the last step that each rank has reported.
        self._folders: dict[int, frozenset[int]] = {}
        self._reached: dict[int, int] = {}
        self._finished: set[int] = set()
        #: Ranks that could not reach another one, in the order in which that was heard.
        self._broken: dict[int | None, Failed] = {}
        self._believe_at: float | None = None
        self._progress = Progress(workers, self._stall_after, now)
        self._is_looking = False

    def wake_at(self) -> float | None:
        """When a Tick is due, if nothing happens until then."""
        look_at = None if self._is_looking else self._progress.look_at()
        return min((at for at in (self._believe_at, look_at) if at is not None), default=None)

    def handle(self, event: Event, now: float) -> list[Command]:
        if isinstance(event, Reported):
            self._progress.reported(event.rank, now)
            return self._reported(event)
        if isinstance(event, Finished):
            self._finished.add(event.rank)
            self._progress.finished(event.rank, now)
            if len(self._finished) == self._workers:
                return [Finish(self._incomplete())]
        elif isinstance(event, Failed):
            if not event.is_communication:
                return [self._fail(event)]
            if not self._broken:
                self._believe_at = now + CAUSE_WITHIN_S
            self._broken.setdefault(event.rank, event)
        elif isinstance(event, HasRoom):
            is_ending = bool(self._finished or self._broken)
            return [Grow(event.workers)] if event.workers > self._workers and not is_ending else []
        elif isinstance(event, Looked):
            self._is_looking = False
            if ranks := self._progress.blame(event.looks, now):
                error = StalledError(ranks, event.looks, self._stall_after or 0.0)
                return [self._fail(Failed(ranks[0], error))]
            self._progress.looked(now)
        # Only a Tick says that there is no report which has come and was not read.
        return self._believe(now) or (self._look(now) if isinstance(event, Tick) else [])

    def _believe(self, now: float) -> list[Command]:
        """Take a broken connection for the cause if no other cause can come, or none has come for a while."""
        if not self._broken or self._believe_at is None:
            return []
        all_have_ended = len(self._broken.keys() | self._finished) == self._workers
        if all_have_ended or now >= self._believe_at:
            return [self._fail(next(iter(self._broken.values())))]
        return []

    def _look(self, now: float) -> list[Command]:
        look_at = self._progress.look_at()
        if self._is_looking or self._broken or look_at is None or now < look_at:
            return []
        self._is_looking = True
        return [Look()]

    def _reported(self, event: Reported) -> list[Command]:
        self._reached[event.rank] = max(event.step, self._reached.get(event.rank, 0))
        if event.given == Given.FOLDER:
            self._folders[event.step] = self._folders.get(event.step, frozenset()) | {event.rank}
        complete = sorted(step for step in self._folders if len(self._past(step)) == self._workers)
        commits: list[Command] = [Commit(step, self._folders.pop(step)) for step in complete]
        if event.given in (Given.PART, Given.SHARD):
            ranks = self._parts.setdefault(event.step, set())
            ranks.add(event.rank)
            if len(ranks) == self._workers:
                del self._parts[event.step]
                commits.append(Commit(event.step, is_sharded=event.given == Given.SHARD))
        return commits

    def _past(self, step: int) -> tuple[int, ...]:
        """The ranks that have reported that step, or a later one."""
        return tuple(sorted(rank for rank, reached in self._reached.items() if reached >= step))

    def _incomplete(self) -> dict[int, tuple[int, ...]]:
        parts = {step: tuple(sorted(ranks)) for step, ranks in self._parts.items()}
        return dict(sorted({**parts, **{step: self._past(step) for step in self._folders}}.items()))

    def _fail(self, cause: Failed) -> Command:
        if self._failures_left == 0:
            return GiveUp(cause.rank, cause.error)
        if self._failures_left is not None:
            self._failures_left -= 1
        return Restart(cause.rank, cause.error, self._failures_left)


def is_communication(error: BaseException) -> bool:
    """Whether an error says only that another rank could not be reached."""
    cause: Any = getattr(error, "cause", None) or error
    if isinstance(cause, ConnectionError) or type(cause).__module__.startswith("torch.distributed"):
        return True
    if type(cause).__name__ in ("DistBackendError", "DistNetworkError", "DistStoreError"):
        return True
    return isinstance(cause, RuntimeError) and any(words in str(cause).lower() for words in _BROKEN)
