"""One shard of a store on Redis servers, as a storage: a chain, and the I/O around its writer.

    write ─▶ Gathering ─▶ Chain ─▶ Members ─▶ servers        all in the caller's thread, within `write` and `completed`
    completed ◀─ Done ◀─ Acknowledge ◀─ Chain ◀─ answers

Owns:      the writer of the chain, the results that were not collected, and why nothing can be written.
Knows not: who decides on changes of the chain (`authority`), and which rows belong here.
Invariant: events reach the writer one after the other. Its commands are carried out before the next event.
Waiting:   `flush`, `close` and the readers alone. To ask the authority is an errand.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from skate._control.storage.admission import Admission
from skate._control.storage.errors import (
    StorageClosed,
    StorageError,
    StorageFenced,
    StorageLost,
    StorageUnavailable,
    StorageUnreachable,
)
from skate._control.storage.interface import LAZY_S, Description, Done, Member, Meta, Operation, Put, Shard, Trouble
from skate._control.storage.redis import rows
from skate._control.storage.redis.authority import Authority
from skate._control.storage.redis.batches import Batch, Gathering, ends
from skate._control.storage.redis.connection.address import Server
from skate._control.storage.redis.connection.handshake import Facts
from skate._control.storage.redis.connection.poller import Poller
from skate._control.storage.redis.connection.requests import Requests
from skate._control.storage.redis.identity import META_KEY, META_TABLE, Identity
from skate._control.storage.redis.joiners import Joiners
from skate._control.storage.redis.members import Members, Note
from skate._control.storage.redis.status import MemberStatus, ShardStatus
from skate._core.cluster import chain_messages as m
from skate._core.cluster.chain import SILENCE_S, Chain, State
from skate._core.cluster.configuration import Changed, Configuration, MemberID, Refused
from skate._core.cluster.joining import Phase

log = logging.getLogger("skate")

#: Entries under way at once. With more of them fewer batches become one entry; with fewer the servers idle.
ENTRIES_MAX = 4
#: The chain's own bound. It also says how far behind a server may be when batches are held for it to join: with 32 it
#: is rarely that near while writes come without a pause, and 256 take it some milliseconds.
WINDOW = 256
#: The longest time that epoll is asked to wait: it takes no larger numbers than some days.
ROUND_S_MAX = 3600.0
#: A server that joins and has not caught up after this time is logged.
COPYING_S = 10.0
#: Ticks have at least this distance.
TICK_S_MIN = 0.001
#: How long `close` tries to write what is there.
CLOSE_S = 5.0
#: The pause after an authority that could not be asked: the first, and the longest.
RETRY_S = (0.1, 5.0)
#: Changes of the chain that are remembered.
CHANGES_MAX = 32


class RedisShard:
    def __init__(
        self,
        configuration: Configuration,
        shard: int,
        servers: Sequence[Server],
        authority: Authority,
        *,
        members_min: int = 1,
        silence_s: float = SILENCE_S,
        lazy_s: float = LAZY_S,
        admission: Admission | None = None,
    ) -> None:
        """For the leader that `configuration` names. Once `is_open`, `identify` comes before reads and writes."""
        self.shard = shard
        self._authority = authority
        self._lazy_s = lazy_s
        self._admission = admission or Admission()
        self._poller = Poller()
        self._requests = Requests(configuration.cluster)
        self._chain = Chain(
            configuration,
            shard,
            now=time.monotonic(),
            members_min=members_min,
            window=WINDOW,
            silence_s=silence_s,
        )
        self._members = Members(
            self._poller, self._requests, {s.name: s for s in servers}, self._handle, self._note, silence_s
        )
        self._joiners = Joiners(self._poller, self._members, servers, self._chain, self._handle, configuration.cluster)
        self._gathering = Gathering()
        #: The batches of each entry that was submitted and not acknowledged.
        self._entries: dict[int, list[Batch]] = {}
        self._done: list[Done] = []
        #: Number of the last batch that has ended.
        self._ended = 0
        self._trouble: Trouble | None = None
        self._error: StorageError | None = None
        self._is_closed = False
        self._identity: Identity | None = None
        #: Entries of the storage's own, and what to do when they are durable.
        self._own: dict[int, Callable[[], None]] = {}
        #: Events that the writer was not given yet, and whether it is busy with one.
        self._events: deque[m.Event] = deque()
        self._is_handling = False
        self._is_ticking = False
        self._was_busy = False
        self._lazy_timer_is_set = False
        #: The attempt to join that is under way, and when it was seen first.
        self._copying: tuple[int, float] | None = None
        self._changes: deque[m.ChangeAuthority] = deque()
        self._is_looking = False
        #: Why the authority could not be asked when it was looked at last.
        self.authority_trouble: StorageUnavailable | None = None
        #: The last changes of the chain: seconds since the epoch, and what happened.
        self.history: deque[tuple[float, str]] = deque(maxlen=CHANGES_MAX)
        self._carry_out(self._chain.start(time.monotonic()))
        self._members.flush()
        self._tick()
        if authority.look_s and shard == 0:  # one for all: a service that takes over takes every shard
            self._poller.after(authority.look_s, self._look)

    # -- opening ------------------------------------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """The members agree, so that rows can be read and written."""
        return self._chain.is_open

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def error(self) -> StorageError | None:
        return self._error

    def identify(self, cluster_id: str, deadline: float) -> None:
        """Read who the store is and count this opening, in a row of its own. Durable when it returns."""
        before = Identity.decode(self.own_row(META_KEY))
        identity = before.opened_again()
        written: list[bool] = []
        self.write_own(META_KEY, identity.encode(), lambda: written.append(True))
        self.drive(lambda: bool(written), deadline)
        if not written:
            raise self._error or StorageUnreachable(f"Shard {self.shard} of the store cannot be written.")
        self._identity = identity
        self.meta = identity.meta(cluster_id)

    meta: Meta

    def write_own(self, key: bytes, value: bytes, then: Callable[[], None]) -> None:
        """A row of the storage's own table."""
        self._own[self._chain.last + 1] = then
        self._submit([Batch(0, [Put(META_TABLE, key, value)])])

    def own_row(self, key: bytes) -> bytes | None:
        return rows.read(self, META_TABLE, key).get(key)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._poller.after(delay_s, action)

    def why_not_open(self) -> str:
        reasons = [
            f"{member}: {self._members.refusals.get(member) or link.reason or 'no answer yet'}"
            for member, link in self._chain.links.items()
        ]
        return "; ".join(reasons)

    # -- the contract -------------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> Trouble | None:
        return self._trouble

    def fileno(self) -> int:
        return self._poller.fileno()

    def write(self, batch: Sequence[Operation], *, lazy: bool = False) -> int:
        if self._error is not None:
            raise self._error
        if self._is_closed:
            raise StorageClosed("A batch was written to a storage that is closed.")
        number = self._admission.admit(batch)
        self._gathering.add(Batch(number, batch))
        if lazy:
            if not self._lazy_timer_is_set and self._lazy_s < math.inf:
                self._lazy_timer_is_set = True
                self._poller.after(self._lazy_s, self._lazy_is_due)
        else:
            self._gathering.hurry_to = number
            self._pump()
        return number

    def completed(self) -> list[Done]:
        if not self._is_closed:
            self._poller.run(0.0)
        done, self._done = self._done, []
        for end in done:
            self._admission.collect(end.number)
        return done

    def scan(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        found = rows.read(self, table, prefix)
        return iter(sorted(found.items()))

    def tables(self) -> list[str]:
        return sorted(rows.tables(self))

    def flush(self, timeout_s: float) -> bool:
        if self._is_closed or self._error is not None:
            return True
        self._gathering.hurry_to = self._admission.written
        if self._trouble is not None:
            self._handle(m.Tick())
        self._pump()
        if timeout_s > 0:
            self.drive(lambda: self._ended == self._admission.written, time.monotonic() + timeout_s)
        return self._ended == self._admission.written

    def close(self) -> None:
        if self._is_closed:
            return
        if self._error is None and self._identity is not None:
            self._gathering.hurry_to = self._admission.written
            self._pump()
            self.drive(
                lambda: self._ended == self._admission.written or self._trouble is not None,
                time.monotonic() + CLOSE_S,
            )
        self._end_all(self._error or StorageClosed("The storage was closed before the batch was written."))
        self._is_closed = True
        self._members.close()
        self._poller.close()

    # -- batches ------------------------------------------------------------------------------------------------------

    def _lazy_is_due(self) -> None:
        self._lazy_timer_is_set = False
        self._gathering.hurry_to = self._admission.written
        self._pump()

    def _pump(self) -> None:
        """Give the chain what it may have."""
        chain = self._chain
        while chain.last - chain.acked < ENTRIES_MAX and chain.is_open and self._error is None:
            batches = self._gathering.take()
            if not batches:
                return
            self._submit(batches)

    def _submit(self, batches: list[Batch]) -> None:
        self._was_busy = True
        if not self._is_ticking:
            self._tick()  # also tells the writer that no time was lost: it was idle
        self._entries[self._chain.last + 1] = batches
        data = batches[0].data if len(batches) == 1 else b"".join([batch.data for batch in batches])
        self._handle(m.Submit(data))

    def _acknowledged(self, seq: int, results: m.Results) -> None:
        batches = self._entries.pop(seq)
        if (then := self._own.pop(seq, None)) is not None:
            then()
        else:
            self._done += ends(batches, results)
            self._ended = batches[-1].number

    def _end_all(self, error: StorageError) -> None:
        """What was not acknowledged has ended, one way or the other."""
        left = [batch for entry in self._entries.values() for batch in entry] + self._gathering.clear()
        self._entries.clear()
        self._own.clear()
        self._done += [Done(batch.number, (), error) for batch in left if batch.number]
        self._ended = self._admission.written
        if not self._is_closed:
            self._poller.wake()

    # -- the writer ---------------------------------------------------------------------------------------------------

    def _handle(self, event: m.Event) -> None:
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                event = self._events.popleft()
                self._carry_out(self._chain.handle(event, time.monotonic()))
                if not self._events:
                    self._members.flush()  # a connection that breaks here is another event
        finally:
            self._is_handling = False
        self._look_at_trouble()
        if len(self._gathering):
            self._pump()

    def _carry_out(self, commands: list[m.Command]) -> None:
        for command in commands:
            if self._members.carry_out(command):
                continue
            match command:
                case m.Acknowledge(seq, results):
                    self._acknowledged(seq, results)
                case m.ChangeAuthority():
                    self._changes.append(command)
                    if len(self._changes) == 1:
                        self._change_authority()
                case m.After(delay_s, event):
                    self._poller.after(delay_s, lambda event=event: self._handle(event))  # type: ignore[misc]
                case m.Removed(member, reason, _):
                    self._note_change(f"{member} was removed: {reason}")
                    self._joiners.look_for(member)
                case m.Joined(member):
                    self._note_change(f"{member} has joined")
                    self._look_once()  # the copy has overwritten its vote, so it has to be admitted again
                case m.RefuseJoin(member, reason):
                    self._joiners.refuse(member, reason)
                case m.Open():
                    self._joiners.start()
                case m.Fenced(reason):
                    self._end(_fenced(reason))
                case m.Stop(reason):
                    self._end(_lost(self.shard, reason))
                case _:
                    raise AssertionError(command)

    def _note_change(self, what: str) -> None:
        text = f"{what.rstrip('.')}. Chain: {' -> '.join(self._chain.members)}, epoch {self._chain.epoch}."
        log.warning("store, shard %d: %s", self.shard, text)
        self.history.append((time.time(), text))

    def _end(self, error: StorageError) -> None:
        log.error("store, shard %d: %s", self.shard, error)
        self._error = error
        self._trouble = None
        self._end_all(error)
        self._members.close()

    def _note(self, members: tuple[MemberID, ...]) -> Note:
        return Note(self.shard, members, self._chain.configuration.slots.hex())

    # -- the authority ------------------------------------------------------------------------------------------------

    def _change_authority(self, attempts: int = 0) -> None:
        change = self._changes[0]

        def answered(answer: Changed | Refused | Exception) -> None:
            if isinstance(answer, StorageUnavailable):
                self._set_trouble(answer)
                pause_s = min(RETRY_S[0] * 2.0 ** min(attempts, 60), RETRY_S[1])
                self._poller.after(pause_s, lambda: self._change_authority(attempts + 1))
                return
            if isinstance(answer, StorageError):
                self._end(answer)
                return
            if isinstance(answer, Exception):
                raise answer
            # The change leaves its queue last: the writer may ask for the next one at once.
            if isinstance(answer, Changed):
                self._handle(m.AuthorityChanged(answer.configuration))
            else:
                self._handle(m.AuthorityRefused(answer.configuration))
            self._changes.popleft()
            if self._changes:
                self._change_authority()

        if self._error is None:
            self._poller.send_out(lambda: self._authority.change(change.expected, change.new), answered)

    def _look(self) -> None:
        """Now and then: is another service the leader by now? (It also admits voters again.)"""
        if self._error is None:
            self._poller.after(self._authority.look_s, self._look)
            self._look_once()

    def _look_once(self) -> None:
        def answered(answer: Configuration | Exception) -> None:
            self._is_looking = False
            if isinstance(answer, Configuration):
                self.authority_trouble = None
                self._handle(m.AuthorityChanged(answer))
            elif isinstance(answer, StorageUnavailable):
                if self.authority_trouble is None:
                    log.warning("store, shard %d: %s", self.shard, answer)
                self.authority_trouble = answer
            else:
                raise answer

        if not self._is_looking and self._authority.look_s:
            self._is_looking = True
            self._poller.send_out(self._authority.read, answered)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Ticks end when nothing has happened for a while, so that an idle service is not woken."""
        if self._error is not None:
            return
        chain = self._chain
        for member in self._members.busy(time.monotonic()):
            self._handle(m.Heard(member))
        self._handle(m.Tick())
        self._look_at_joiner()
        is_quiet = chain.state is State.RUNNING and chain.is_open and chain.attempt is None and not self._entries
        self._is_ticking = not (is_quiet and not self._was_busy)
        self._was_busy = False
        if self._is_ticking and not self._error:
            self._poller.after(self._next_tick_s(), self._tick)

    def _next_tick_s(self) -> float:
        """A member that stays silent is removed at that moment, and not at the next tick after it."""
        chain = self._chain
        silent_since = min((link.silent_since for link in chain.links.values()), default=math.inf)
        overdue_s = silent_since + chain.silence_s - time.monotonic()
        return min(chain.tick_s, overdue_s + TICK_S_MIN) if overdue_s > 0 else chain.tick_s

    def _look_at_joiner(self) -> None:
        attempt = self._chain.attempt
        if attempt is None:
            self._copying = None
        elif self._copying is None or self._copying[0] != attempt.number:
            self._copying = (attempt.number, time.monotonic())
        elif attempt.phase is Phase.COPYING and time.monotonic() - self._copying[1] > COPYING_S:
            self._copying = (attempt.number, math.inf)
            log.warning(
                "store, shard %d: %s is to copy %s and has not got everything for %g s. It connects to that address by "
                "itself: can it? If it can, it is slower than the writes.",
                self.shard,
                attempt.member,
                attempt.source,
                COPYING_S,
            )

    def _look_at_trouble(self) -> None:
        chain = self._chain
        if chain.state is State.RUNNING:
            if self._trouble is not None:
                log.warning("store, shard %d: it can be written again", self.shard)
                self._trouble = None
                self._poller.wake()
        elif chain.is_blocked and chain.is_open:
            self._set_trouble(
                StorageUnreachable(
                    f"Shard {self.shard} of the store cannot be written.",
                    f"Too few of its servers are there: {self.why_not_open()}.",
                    "start these servers again. Writes wait until then.",
                )
            )
        if chain.state is not State.RUNNING and not self._is_ticking and self._error is None:
            self._is_ticking = True
            self._poller.after(chain.tick_s, self._tick)

    def _set_trouble(self, error: StorageUnavailable) -> None:
        before = self._trouble
        if before is None:
            log.warning("store, shard %d: %s", self.shard, error)
            self._trouble = Trouble(error, time.time(), 1)
            self._poller.wake()
        else:
            self._trouble = Trouble(error, before.since, before.attempts + 1)

    def step(self) -> None:
        """One round, without waiting."""
        self._poller.run(0.0)

    def drive(self, is_over: Callable[[], bool], deadline: float) -> None:
        """Run rounds until something is so, the time is up, or the storage has ended."""
        while not is_over() and self._error is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            self._poller.run(min(left_s, ROUND_S_MAX))
        if self._done:
            self._poller.wake()

    # -- what is shown ------------------------------------------------------------------------------------------------

    @property
    def chain(self) -> Chain:
        return self._chain

    @property
    def members(self) -> Members:
        return self._members

    @property
    def requests(self) -> Requests:
        return self._requests

    def summary(self) -> str:
        """The chain, and what of it survives if all servers end at once."""
        members = [self._members.facts.get(name, Facts(name)) for name in self._chain.members]
        told = [f"{each.name} ({each.program} {each.version}, appendfsync {each.aof})" for each in members]
        weak = (
            ""
            if any(each.aof == "always" for each in members)
            else (" If all of them end at once, what they did not write to their disks is lost.")
        )
        return f"epoch {self._chain.epoch}, {' -> '.join(told)}.{weak}"

    def describe(self) -> Description:
        """As far as this service knows: rows are not counted, as that would ask the servers."""
        status = self.status()
        members = tuple(Member(each.name, each.used_memory, each.standing, each.lag) for each in status.members)
        survives = "power" if any(each.aof == "always" for each in status.members) else "process"
        waiting_bytes = self._admission.waiting_bytes
        return Description("redis", (Shard(members, status.epoch),), None, survives, status.waiting, waiting_bytes)

    def status(self) -> ShardStatus:
        """What is known. The sizes are those that servers told when they were asked last; this asks them again."""
        chain = self._chain
        if not self._is_closed and self._error is None:
            for member in chain.links:
                self._members.refresh(member)
            self._members.flush()
        members = [
            MemberStatus.of(name, link, chain.last, self._members.facts.get(name)) for name, link in chain.links.items()
        ]
        return ShardStatus(
            shard=self.shard,
            state=chain.state.value,
            epoch=chain.epoch,
            last=chain.last,
            acknowledged=chain.acked,
            members=members,
            waiting=self._admission.written - self._ended,
            joining=chain.attempt.member if chain.attempt is not None else None,
            missing=[*self._joiners.missing],
            refused={name: str(why) for name, why in self._joiners.refused.items()},
            trouble=str(self._trouble.error) if self._trouble is not None else None,
            changes=list(self.history),
        )


def _fenced(reason: str) -> StorageFenced:
    return StorageFenced(
        "Another control service has taken the store over.",
        reason,
        "this one has to end: what it has not been told to be written may be written or not.",
    )


def _lost(shard: int, reason: str) -> StorageLost:
    return StorageLost(
        f"The data of shard {shard} of the store are gone.",
        reason.replace("all servers of this part", "All servers of this part", 1),
        "bring back a server with its data (an RDB or AOF file) and start the service again; or wipe the store and "
        "begin a new cluster. Was FLUSHALL called, or were all servers started again without persistence?",
    )
