"""The servers of one chain: what the writer wants of them, as requests; what they answer, as its events.

    Chain ──Apply, Seal, Replicate …──▶ carry_out ──▶ a Wire each ──▶ servers
          ◀──Applied, Sealed, Broken …── handle ◀──

Owns:      one connection a server, at most.
Invariant: the rules of `chain_messages.py`: a server's requests are executed in the order of the commands; after Reset
           no answer comes, and the next command opens another connection.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from hiredis import ReplyError

from skate._control.storage.errors import StorageError, StorageUnreachable
from skate._control.storage.redis.connection.address import Server
from skate._control.storage.redis.connection.handshake import Dialled, Facts, dial, sizes_in
from skate._control.storage.redis.connection.poller import Poller
from skate._control.storage.redis.connection.requests import (
    META,
    Broken,
    Requests,
    as_batches,
    as_reply,
    executed,
    packed,
)
from skate._control.storage.redis.connection.wire import Answer, Wire
from skate._core.cluster import chain_messages as m
from skate._core.cluster.chain_messages import Reply, Verdict
from skate._core.cluster.configuration import MemberID

#: How often REPLICAOF is tried again because `meta` changed in between.
WATCHES_MAX = 5
#: A machine that refused a connection is not asked again within this time: the writer tries several times in a row, and
#: each attempt costs a thread.
REFUSED_S = 0.05
#: Above this a batch is large, and a server may take its time to receive it and to run the script.
LARGE_BYTES = 4 << 20
LARGE_BYTES_PER_S = 5e6
#: A server that copies another one says this until it has all.
_NOT_YET = ("LOADING", "MASTERDOWN")


class Note(msgspec.Struct, frozen=True):
    """What a seal leaves on a server beside the epoch: enough to adopt the store without its authority."""

    shard: int
    members: tuple[MemberID, ...]
    #: The shard of each slot, in hexadecimal digits.
    slots: str

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


class Members:
    def __init__(
        self,
        poller: Poller,
        requests: Requests,
        servers: Mapping[MemberID, Server],
        handle: Callable[[m.Event], None],
        note: Callable[[tuple[MemberID, ...]], Note],
        timeout_s: float,
    ) -> None:
        self._poller = poller
        self._requests = requests
        self._servers = servers
        self._handle = handle
        self._note = note
        self._timeout_s = timeout_s
        self._wires: dict[MemberID, Wire] = {}
        #: Connections with requests that were not sent yet.
        self._unsent: list[Wire] = []
        #: Servers that were asked for their sizes.
        self._refreshing: set[MemberID] = set()
        #: When a machine said last that no server listens.
        self._refused_at: dict[MemberID, float] = {}
        #: Servers that were sent a large batch, and how long they may be silent because of it.
        self._busy_until: dict[MemberID, float] = {}
        #: What each server said of itself when it was connected last, and why it could not be.
        self.facts: dict[MemberID, Facts] = {}
        self.refusals: dict[MemberID, StorageError] = {}

    # -- connections --------------------------------------------------------------------------------------------------

    def server(self, member: MemberID) -> Server:
        """A member that the address no longer names is reached with the password of the first server."""
        return self._servers.get(member) or next(iter(self._servers.values())).with_name(member)

    def wire(self, member: MemberID) -> Wire:
        found = self._wires.get(member)
        if found is None:
            was_refused = time.monotonic() - self._refused_at.get(member, -math.inf) < REFUSED_S
            found = Wire(
                self._poller,
                None if was_refused else partial(self._dial, member),
                partial(self._on_broken, member),
                lambda: self._handle(m.Heard(member)),
                partial(self._on_open, member),
            )
            if was_refused:
                self._handle(m.Broken(member, "no server listens there"))
                return found
            self._wires[member] = found
        self._unsent.append(found)
        return found

    def _dial(self, member: MemberID) -> Dialled:
        return dial(self.server(member), self._timeout_s)

    def _on_open(self, member: MemberID, facts: Facts) -> None:
        self.facts[member] = facts
        self.refusals.pop(member, None)

    def _on_broken(self, member: MemberID, why: str, error: StorageError | None) -> None:
        self._wires.pop(member, None)
        self._refreshing.discard(member)
        if error is not None:
            self.refusals[member] = error
            if isinstance(error, StorageUnreachable) and error.is_refused:
                self._refused_at[member] = time.monotonic()
        self._handle(m.Broken(member, why.rstrip(".")))

    def busy(self, now: float) -> list[MemberID]:
        """Servers that may be silent for a while, because a large batch keeps them busy."""
        for member in [member for member, until in self._busy_until.items() if until <= now]:
            del self._busy_until[member]
        return list(self._busy_until)

    def flush(self) -> None:
        unsent, self._unsent = self._unsent, []
        for wire in unsent:
            wire.flush()

    def close(self) -> None:
        for wire in self._wires.values():
            wire.close()
        self._wires.clear()

    # -- commands -----------------------------------------------------------------------------------------------------

    def carry_out(self, command: m.Command) -> bool:
        """False: it is none for a server."""
        match command:
            case m.Apply(member, epoch, seq, acked, batch):
                request = self._requests.apply(epoch, seq, acked, batch)
                if len(batch) > LARGE_BYTES:
                    self._busy_until[member] = time.monotonic() + len(batch) / LARGE_BYTES_PER_S
                self._script(member, request, lambda reply: m.Applied(member, epoch, seq, reply))
            case m.Seal(member, epoch, members):
                note = self._note(members).encode() if members else ""
                self._script(member, self._requests.seal(epoch, note), lambda reply: m.Sealed(member, epoch, reply))
            case m.ReadLog(member, epoch, first, last):
                self._read_log(member, epoch, first, last)
            case m.Load(member, epoch):
                self._load(member, epoch)
            case m.Replicate(member, epoch, source):
                self._replicate(member, epoch, source, WATCHES_MAX)
            case m.Inspect(member):
                self._inspect(member)
            case m.StopReplicating(member):
                self._stop_replicating(member)
            case m.Reset(member):
                self._refreshing.discard(member)
                if wire := self._wires.pop(member, None):
                    wire.close()
            case _:
                return False
        return True

    def _script(self, member: MemberID, request: bytes, event: Callable[[Reply], m.Event]) -> None:
        wire = self.wire(member)

        def answered(answer: Any) -> None:
            try:
                reply = as_reply(answer)
            except Broken as error:
                # NOSCRIPT, too: what was sent behind it must not overtake it. The handshake loads the scripts again.
                wire.give_up(str(error))
            else:
                self._handle(event(reply))

        wire.send(request, answered)

    def ask(self, member: MemberID, request: bytes, then: Answer, unread: int = 0) -> Wire:
        """`then` gets the last answer of a request; `unread` others come before it. It may raise Broken."""
        wire = self.wire(member)

        def answered(answer: Any) -> None:
            try:
                then(answer)
            except Broken as error:
                wire.give_up(str(error))

        wire.send(request, *[None] * unread, answered)
        return wire

    def _read_log(self, member: MemberID, epoch: int, first: int, last: int) -> None:
        def answered(answer: Any) -> None:
            look, values = executed(answer)
            reply = self._requests.as_looked(look)
            is_ours = reply.verdict is Verdict.OK and reply.epoch == epoch
            self._handle(m.LogRead(member, epoch, first, as_batches(values) if is_ours else ()))

        self.ask(member, self._requests.read_log(first, last), answered, unread=3)

    def _load(self, member: MemberID, epoch: int) -> None:
        """Rows are read when they are asked for (`rows.py`). Here, whether the server is still the one it was."""

        def answered(answer: Any) -> None:
            reply = self._requests.as_looked(answer)
            if reply.verdict is not Verdict.OK or reply.epoch != epoch:
                raise Broken("the server changed while the store was opened")
            self._handle(m.Loaded(member, epoch))

        self.ask(member, self._requests.look(), answered)

    def refresh(self, member: MemberID) -> None:
        """Ask how much memory the server uses: `facts` has it a moment later."""
        if member not in self._wires or member in self._refreshing:
            return
        self._refreshing.add(member)

        def answered(answer: Any) -> None:
            self._refreshing.discard(member)
            if isinstance(answer, bytes) and member in self.facts:
                facts = self.facts[member]
                sizes = sizes_in(answer)
                self.facts[member] = msgspec.structs.replace(facts, used_memory=sizes[0], maxmemory=sizes[1])

        self.ask(member, packed("INFO", "memory"), answered)

    # -- servers that join --------------------------------------------------------------------------------------------

    def _replicate(self, member: MemberID, epoch: int, source: MemberID, watches: int) -> None:
        """WATCH meta, look, MULTI, DEL meta, REPLICAOF source, EXEC: refused if `meta` changes in between."""
        self._prepare_source(source)
        wire = self.wire(member)
        role: list[Any] = []

        def looked(answer: Any) -> None:
            reply = self._requests.as_looked(answer)
            refusal = None
            if reply.verdict is Verdict.STRANGER:
                refusal = Reply(Verdict.STRANGER)
            elif reply.epoch > epoch:
                refusal = Reply(Verdict.FENCED, reply.epoch, reply.seq)
            if refusal is not None:
                self.ask(member, packed("UNWATCH"), lambda answer: self._handle(m.Replicated(member, refusal)))
            elif role[0] == b"slave":  # DEL is not queued by a replica
                self.ask(member, packed("UNWATCH") + packed("REPLICAOF", "NO", "ONE"), detached, unread=1)
            else:
                self._copy(member, source, copied)
            self.flush()

        def detached(answer: Any) -> None:
            if isinstance(answer, ReplyError):
                raise Broken(str(answer))
            again()

        def copied(answer: Any) -> None:
            if answer is None:
                again()
                return
            executed(answer)
            self._handle(m.Replicated(member, Reply(Verdict.OK)))

        def again() -> None:
            if not watches:
                raise Broken("its data changed whenever it was about to copy")
            self._replicate(member, epoch, source, watches - 1)
            self.flush()

        def is_master(answer: Any) -> None:
            if isinstance(answer, ReplyError):
                raise Broken(str(answer))
            role.append(answer[0])

        wire.send(packed("WATCH", META), None)
        self.ask(member, packed("ROLE"), is_master)
        self.ask(member, self._requests.look(), looked)

    def _copy(self, member: MemberID, source: MemberID, then: Answer) -> None:
        server = self.server(source)
        settings = [("masteruser", server.username), ("masterauth", server.password)] if server.password else []
        if server.is_tls:
            settings.append(("tls-replication", "yes"))
        parts = [packed("CONFIG", "SET", *setting) for setting in settings]
        parts += [packed("MULTI"), packed("DEL", META), packed("REPLICAOF", server.host, server.port), packed("EXEC")]
        self.ask(member, b"".join(parts), then, unread=len(parts) - 1)

    def _prepare_source(self, source: MemberID) -> None:
        """Since version 7 a server waits 5 s for more replicas before it sends its data."""
        self.wire(source).send(packed("CONFIG", "SET", "repl-diskless-sync-delay", 0), None)

    def _inspect(self, member: MemberID) -> None:
        def answered(answer: Any) -> None:
            if isinstance(answer, ReplyError) and str(answer).startswith(_NOT_YET):
                reply = Reply(Verdict.NOTHING)
            else:
                reply = self._requests.as_looked(answer)
            self._handle(m.Inspected(member, reply))

        self.ask(member, self._requests.look(), answered)

    def _stop_replicating(self, member: MemberID) -> None:
        def answered(answer: Any) -> None:
            self._handle(m.Detached(member, self._requests.as_looked(executed(answer)[1])))

        parts = [packed("MULTI"), packed("REPLICAOF", "NO", "ONE"), self._requests.look(), packed("EXEC")]
        self.ask(member, b"".join(parts), answered, unread=3)
