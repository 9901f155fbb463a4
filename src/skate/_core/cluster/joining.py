"""One attempt to make a server a member, as far as the server itself is concerned.

    COPYING ──near the tail──▶ CLOSING ──has every acknowledged batch──▶ DETACHING ──still has──▶ SEALING ──▶ ready
    Replicate, Inspect …       new batches are held                      StopReplicating          Seal(next epoch)

Writes go on while the server copies. They are held only for the end, a few round trips.

Why the server is compared twice, and sealed *before* the authority is asked: until it is sealed with the coming epoch,
a repetition of Replicate that was under way for long could make it a replica again. The seal is the last look, and
nothing but a batch of the coming epoch can change the server after it.

What was left: to believe the replication link (`ROLE` says `connected` on a copy of a server that restarted empty),
and to hold batches from the beginning (a copy of some gigabytes takes minutes).
"""

from __future__ import annotations

import enum

import msgspec

from skate._core.cluster.chain_messages import (
    After,
    Command,
    Inspect,
    Look,
    Replicate,
    Reply,
    Seal,
    StopReplicating,
    Verdict,
)
from skate._core.cluster.configuration import MemberID

#: How long the writer waits between two looks at a server that copies, and at one that has nearly all.
LOOK_S = 0.05
LOOK_CLOSING_S = 0.001


class Phase(enum.Enum):
    COPYING = "copying"
    CLOSING = "closing"
    DETACHING = "detaching"
    SEALING = "sealing"
    #: It may be a member: the authority is asked, or about to be.
    READY = "ready"


class Attempt(msgspec.Struct):
    number: int
    member: MemberID
    source: MemberID
    #: The epoch of the chain that is copied. An attempt does not outlive it.
    epoch: int
    #: When the server was heard of last, and since when batches are held for it.
    heard_at: float
    phase: Phase = Phase.COPYING
    closing_since: float = 0.0

    def start(self) -> list[Command]:
        return [Replicate(self.member, self.epoch, self.source)]

    def on_replicated(self, now: float) -> list[Command]:
        self.heard_at = now
        return [After(LOOK_CLOSING_S, Look(self.number))]

    def look(self) -> list[Command]:
        return [Inspect(self.member)]

    def on_inspected(
        self, reply: Reply, now: float, *, acked: int, last: int, near: bool, settled: bool
    ) -> list[Command]:
        """`near`: it lacks few batches. `settled`: none is under way, so that `acked` stays what it is."""
        self.heard_at = now
        copied = reply.verdict is Verdict.OK and reply.epoch == self.epoch
        if self.phase is Phase.COPYING and copied and near:
            self.phase = Phase.CLOSING
            self.closing_since = now
        if self.phase is Phase.CLOSING and settled and self.has_all(reply, acked, last):
            self.phase = Phase.DETACHING
            return [StopReplicating(self.member)]
        return [After(LOOK_S if self.phase is Phase.COPYING else LOOK_CLOSING_S, Look(self.number))]

    def on_detached(self, reply: Reply, now: float, *, acked: int, last: int, epoch: int) -> list[Command] | None:
        """None: it does not have what it should, and the attempt is over."""
        self.heard_at = now
        if not (self.is_ours(reply) and self.has_all(reply, acked, last)):
            return None
        self.phase = Phase.SEALING
        return [Seal(self.member, epoch)]

    def on_sealed(self, reply: Reply, *, acked: int, last: int) -> bool:
        """Whether it may become a member now."""
        if not self.has_all(reply, acked, last):
            return False
        self.phase = Phase.READY
        return True

    def is_ours(self, reply: Reply) -> bool:
        """It holds a copy of this chain in this epoch, not of something that took the place of the source."""
        return reply.verdict is Verdict.OK and reply.epoch == self.epoch

    def has_all(self, reply: Reply, acked: int, last: int) -> bool:
        """It has every acknowledged batch. Later ones are sent to it like to the others."""
        return reply.verdict is Verdict.OK and acked <= reply.seq <= last

    @property
    def holds_batches(self) -> bool:
        return self.phase is not Phase.COPYING

    def is_overdue(self, now: float, silence_s: float) -> bool:
        """The server is silent, or others wait too long for it."""
        if self.phase is Phase.READY:
            return False
        return now - self.heard_at > silence_s or (self.holds_batches and now - self.closing_since > silence_s)
