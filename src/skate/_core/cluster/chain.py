"""The writer of one chain: every batch on every member, whatever fails, and who may say that it is there.

Chain replication (van Renesse and Schneider, 2004) over servers that know nothing of it. Only the writer speaks to the
servers, and a script on each server refuses whatever does not come from the writer of the present epoch.

    Submit ─▶ n ─Apply─▶ head ─OK─▶ ─Apply─▶ middle ─OK─▶ ─Apply─▶ tail ─OK─▶ Acknowledge(n)
                          n+1        …         n                    n-1

    SEALING ──all members answered──▶ RUNNING ──a member fails──▶ SEALING (the same epoch: who is still there?)
       ▲  │                              │
       │  └─some failed, enough are left─┴─or a server has joined──▶ CHANGING ──the authority agreed──▶ SEALING (next)
       └─ RECOVERING: after a take-over, the batches that some members have and others have not are read from a log

A member has failed if its connection breaks and cannot be made again, if it is silent for `silence_s`, or if it gives
any answer but OK. Before one is removed, all others are asked again: a member that is there, with every acknowledged
batch, must be left. So a fault of the writer's own network costs no member, and a member that restarted with old data
is found out before the one that has them is given up for it.

The proof, and where its parts are kept:
(1) An epoch has one leader: `configuration.py`.
(2) On a member batches have no gaps, and the number of the last one is written with it: the script of Apply.
(3) In an epoch a member has a prefix of what the member before it has: `_pump` sends a batch on only after the OK.
(4) A member that was sealed with an epoch takes nothing of an earlier one: the scripts; `_adopt` seals before `_formed`
    lets anything be sent.
A batch is acknowledged when every member of the epoch has it (`_advance`). So every member that a later leader seals
has it, and the later leader keeps all that its members have (`_recover`). A batch that was not acknowledged is either
on all members in the end, or on none.

A batch that is sent again after its answer was lost is answered with the results of the first time: the log of a
server keeps them. Without that, a compare-and-set that was done would be reported as refused, by its own effect.

Owns:      the numbers of the batches, those not acknowledged, and what is known of each member.
Knows not: sockets, clocks, and what is in a batch. The time comes in.
Invariant: `validate()`. Histories with crashes, partitions and several writers: tests/sim.
"""

from __future__ import annotations

import enum
import math

import msgspec

from skate._core.cluster.chain_messages import (
    Acknowledge,
    After,
    Applied,
    Apply,
    AuthorityChanged,
    AuthorityRefused,
    Broken,
    ChangeAuthority,
    Command,
    Detached,
    Event,
    Fenced,
    Heard,
    Inspected,
    Join,
    Joined,
    Load,
    Loaded,
    LogRead,
    Look,
    Open,
    ReadLog,
    RefuseJoin,
    Removed,
    Replicated,
    Reply,
    Reset,
    Results,
    Seal,
    Sealed,
    Stop,
    Submit,
    Tick,
    Verdict,
)
from skate._core.cluster.configuration import Configuration, LeaderID, MemberID
from skate._core.cluster.joining import Attempt, Phase

#: Batches sent to the head and not acknowledged. More of them hide more latency, and lengthen a repair.
WINDOW = 32
#: Batches submitted and not acknowledged. Whoever submits looks at `is_full` first.
BATCHES_MAX = 4096
#: A member that owes an answer for so long has failed. A lower value only makes false alarms: they are safe, and each
#: costs a copy of all data.
SILENCE_S = 1.0
#: How many times a broken connection is made again before the member has failed.
CONNECTS_MAX = 2
#: An attempt to join that failed is repeated after so long.
REJOIN_S = 1.0
#: Servers that wait to become members, one after the other.
JOINERS_MAX = 16


class State(enum.Enum):
    SEALING = "sealing"
    CHANGING = "changing"
    RECOVERING = "recovering"
    RUNNING = "running"
    ENDED = "ended"


class Standing(enum.Enum):
    #: It was asked what it has, with a seal.
    ASKED = "asked"
    #: It answered the seal of this epoch, and has every acknowledged batch.
    SEALED = "sealed"
    FAILED = "failed"


class Link(msgspec.Struct):
    """What the writer knows of one member."""

    standing: Standing = Standing.ASKED
    #: The last batch that was sent to it, and the last one that it is known to have. confirmed ≤ sent.
    sent: int = 0
    confirmed: int = 0
    #: What it said in answer to the last seal.
    sealed: Reply = Reply(Verdict.OK)
    #: Requests without an answer, and since when there was none; infinity if nothing is owed.
    owed: int = 0
    silent_since: float = math.inf
    #: Connections that broke since it was sealed.
    breaks: int = 0
    #: Why it failed, and whether its data are gone.
    reason: str = ""
    is_lost: bool = False


class Chain:
    def __init__(
        self,
        configuration: Configuration,
        shard: int = 0,
        *,
        now: float,
        members_min: int = 1,
        window: int = WINDOW,
        silence_s: float = SILENCE_S,
    ) -> None:
        """For the leader that `configuration` names: it has just won the authority, or began the cluster."""
        self.me: LeaderID = configuration.leader
        self.shard = shard
        self.members_min = max(1, members_min)
        self.window = window
        self.silence_s = silence_s
        self.configuration = configuration
        self.epoch = configuration.shards[shard].epoch
        self.state = State.SEALING
        #: The chain from head to tail, and what is known of each member.
        self.links: dict[MemberID, Link] = {m: Link() for m in configuration.shards[shard].members}
        #: The last number that was given, and the last one that every member has.
        self.last = 0
        self.acked = 0
        #: Results are known of all batches up to this one. acked ≤ known ≤ last.
        self.known = 0
        #: Batches up to this one were found on the members: an earlier leader gave their numbers.
        self.inherited = 0
        #: The batches acked+1 … last, and the results of those that some member has run.
        self._batches: dict[int, bytes] = {}
        self._results: dict[int, Results] = {}
        #: After a take-over, until it is known which batches exist.
        self.is_recovering = True
        #: The rows were read, and batches may be submitted.
        self.is_open = False
        self.attempt: Attempt | None = None
        self._attempts = 0
        #: Servers that wait for their turn to join.
        self._joiners: list[MemberID] = []
        #: While a server joins, the head gets no batch behind this one.
        self._hold: int | None = None
        #: The members that the authority was asked for.
        self._proposed: tuple[MemberID, ...] = ()
        #: The epoch in which the rows were asked for; 0 if they have to be asked for again.
        self._load_epoch = 0
        self._out: list[Command] = []
        self._now = now
        self._ticked_at = now

    # -- from outside --------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Command]:
        self._now = now
        for member in self.links:
            self._ask(member)
        return self._taken()

    def handle(self, event: Event, now: float) -> list[Command]:
        if self.state is State.ENDED:
            return []
        self._now = now
        match event:
            case Submit():
                self._on_submit(event.batch)
            case Applied():
                self._on_applied(event)
            case Sealed():
                self._on_sealed(event)
            case LogRead():
                self._on_log_read(event)
            case Loaded():
                self._on_loaded(event)
            case Heard():
                self._on_heard(event.member)
            case Broken():
                self._on_broken(event)
            case Tick():
                self._on_tick()
            case AuthorityChanged():
                self._on_authority(event.configuration)
            case AuthorityRefused():
                self._on_authority(event.configuration)
            case Join():
                self._on_join(event.member)
            case Replicated() | Inspected() | Detached() | Look():
                self._on_joiner(event)
        self._join_next()
        return self._taken()

    @property
    def members(self) -> tuple[MemberID, ...]:
        return tuple(self.links)

    @property
    def tail(self) -> MemberID:
        """The member that rows are read from: what it has, all others have."""
        return next(reversed(self.links))

    @property
    def is_full(self) -> bool:
        return self.last - self.acked >= BATCHES_MAX

    @property
    def tick_s(self) -> float:
        return self.silence_s / 4

    def validate(self) -> None:
        assert self.acked <= self.known <= self.last
        assert list(self._batches) == list(range(self.acked + 1, self.last + 1))
        assert self.links or self.state is State.ENDED
        assert self.configuration.leader == self.me
        for link in self.links.values():
            assert link.confirmed <= link.sent or self.is_recovering
            assert link.confirmed <= self.last or self.is_recovering
            assert (link.owed == 0) == (link.silent_since == math.inf)
        if self.state is State.RUNNING:
            assert all(link.standing is Standing.SEALED for link in self.links.values())
            assert not self.is_recovering
        if self._hold is not None:
            assert self.attempt is not None
            assert self.attempt.holds_batches

    # -- batches -------------------------------------------------------------------------------------------------------

    def _on_submit(self, batch: bytes) -> None:
        assert self.is_open, "rows are read before the first batch is submitted"
        assert not self.is_full, f"more than {BATCHES_MAX} batches wait; look at is_full before Submit"
        self.last += 1
        self._batches[self.last] = batch
        self._pump()

    def _pump(self) -> None:
        """Send what may be sent. Part (3): a member gets a batch when the one before it has it."""
        if self.state is not State.RUNNING:
            return
        limit = min(self.last, self.acked + self.window, self.last if self._hold is None else self._hold)
        for member, link in self.links.items():
            while link.sent < limit:
                link.sent += 1
                batch = self._batches[link.sent]
                self._request(member, Apply(member, self.epoch, link.sent, self._trim(), batch))
            limit = self._passed_on(link)

    def _passed_on(self, link: Link) -> int:
        """The last batch that the member behind this one may be sent."""
        return link.confirmed

    def _trim(self) -> int:
        """What no log needs to keep: every member has it."""
        return self.acked

    def _on_applied(self, event: Applied) -> None:
        link = self._answered(event.member)
        if link is None or event.epoch != self.epoch or link.standing is Standing.FAILED:
            return
        if event.reply.verdict is not Verdict.OK:
            self._refused(event.member, link, event.reply)
            return
        if event.seq > self.known:
            self._results.setdefault(event.seq, event.reply.results)
            while self.known + 1 in self._results:
                self.known += 1
        if link.standing is Standing.SEALED:
            link.confirmed = max(link.confirmed, event.seq)
            self._advance()
            self._pump()

    def _advance(self) -> None:
        """Acknowledge what every member has."""
        if self.state is not State.RUNNING:
            return
        everywhere = self._everywhere()
        while self.acked < everywhere:
            self.acked += 1
            del self._batches[self.acked]
            results = self._results.pop(self.acked, ())
            if self.acked > self.inherited:
                self._out.append(Acknowledge(self.acked, results))
        if not self.is_open and self.acked == self.last and self._load_epoch != self.epoch:
            self._load_epoch = self.epoch
            self._request(self.tail, Load(self.tail, self.epoch))

    def _everywhere(self) -> int:
        return min(link.confirmed for link in self.links.values())

    # -- members that fail ---------------------------------------------------------------------------------------------

    def _refused(self, member: MemberID, link: Link, reply: Reply) -> None:
        """It answered, and not with OK."""
        match reply.verdict:
            case Verdict.FENCED if reply.epoch > self.epoch:
                self._end(Fenced(f"{member} was sealed with epoch {reply.epoch}; this writer has {self.epoch}."))
            case Verdict.FENCED:
                self._fail(member, f"it fell back to epoch {reply.epoch}: it restarted with old data", is_lost=True)
            case Verdict.GAP:
                self._fail(member, f"it has batches up to {reply.seq} and should have more", is_lost=True)
            case Verdict.NOTHING:
                self._fail(member, "it holds no data: it restarted empty or was flushed", is_lost=True)
            case Verdict.STRANGER:
                self._fail(member, "it holds the data of another cluster", is_lost=True)
            case _:
                self._fail(member, "it is a replica of another server: what it holds is not its own", is_lost=True)

    def _on_broken(self, event: Broken) -> None:
        if self.attempt is not None and self.attempt.member == event.member:
            self._abandon()
        link = self.links.get(event.member)
        if link is None or link.standing is Standing.FAILED:
            return
        self._owes_nothing(link)
        link.breaks += 1
        if link.breaks > CONNECTS_MAX:
            self._fail(event.member, event.reason, is_lost=False)
            return
        link.standing = Standing.FAILED  # until it has answered: `_prove` asks it, too
        self._prove()
        self._ask(event.member)

    def _fail(self, member: MemberID, reason: str, *, is_lost: bool) -> None:
        link = self.links[member]
        link.standing = Standing.FAILED
        link.reason = reason
        link.is_lost = is_lost
        self._owes_nothing(link)
        self._out.append(Reset(member))
        if self.attempt is not None and self.attempt.source == member:
            self._abandon()
        self._prove()
        self._decide()

    def _prove(self) -> None:
        """One has failed: are the others there, with all that was acknowledged?"""
        if self.state not in (State.RUNNING, State.RECOVERING):
            return
        self.state = State.SEALING
        self._load_epoch = 0
        self._abandon()
        for member, link in self.links.items():
            if link.standing is Standing.SEALED:
                self._ask(member)

    def _ask(self, member: MemberID) -> None:
        self.links[member].standing = Standing.ASKED
        self._request(member, Seal(member, self.epoch, self.members))

    def _on_sealed(self, event: Sealed) -> None:
        attempt = self.attempt
        if attempt is not None and attempt.member == event.member and event.epoch != self.epoch:
            self._on_joiner_sealed(attempt, event)
            return
        link = self._answered(event.member)
        if link is None or event.epoch != self.epoch:
            return
        reply = event.reply
        if reply.verdict is not Verdict.OK:
            self._refused(event.member, link, reply)
            return
        if not self.is_recovering and not self.acked <= reply.seq <= self.last:
            self._fail(event.member, f"it has batches up to {reply.seq}, of {self.acked} to {self.last}", is_lost=True)
            return
        link.standing = Standing.SEALED
        link.sealed = reply
        link.breaks = 0
        link.reason = ""
        link.is_lost = False
        self._resume(link)
        self._decide()

    def _resume(self, link: Link) -> None:
        """Begin behind what it has. A batch whose results are not known is sent again: the answer tells them."""
        link.sent = link.confirmed = link.sealed.seq if self.is_recovering else min(link.sealed.seq, self.known)

    def _decide(self) -> None:
        """Every member has answered or failed: go on, change the chain, or wait."""
        if self.state is not State.SEALING:
            return
        standings = [link.standing for link in self.links.values()]
        if Standing.ASKED in standings:
            return
        there = self._there()
        if len(there) == len(self.links):
            self._formed()
        elif all(link.is_lost for link in self.links.values()):
            reasons = "; ".join(f"{member}: {link.reason}" for member, link in self.links.items())
            self._end(Stop(f"all servers of this part of the control store lost their data ({reasons})."))
        elif len(there) >= self.members_min:
            self._propose(there)
        else:
            # Too few are left. One that lost its data cannot help by coming back: it has to copy the others.
            for member in [member for member, link in self.links.items() if link.is_lost]:
                self._on_join(member)

    def _there(self) -> tuple[MemberID, ...]:
        return tuple(member for member, link in self.links.items() if link.standing is Standing.SEALED)

    @property
    def is_blocked(self) -> bool:
        """Too few members are left, and those are proved. With every tick they are asked again."""
        standings = [link.standing for link in self.links.values()]
        return self.state is State.SEALING and Standing.FAILED in standings and Standing.ASKED not in standings

    def _propose(self, members: tuple[MemberID, ...]) -> None:
        self.state = State.CHANGING
        self._proposed = members
        self._out.append(ChangeAuthority(self.configuration, self.configuration.with_members(self.shard, members)))

    def _on_authority(self, configuration: Configuration) -> None:
        """Ours, or that of another chain of this leader, or somebody else's."""
        if configuration.epoch <= self.configuration.epoch:
            return  # an answer that was overtaken by a later one
        if configuration.leader != self.me:
            self._end(Fenced(f"{configuration.leader} leads in epoch {configuration.epoch}."))
            return
        self.configuration = configuration
        if configuration.shards[self.shard].epoch > self.epoch:
            self._adopt()
        elif self.state is State.CHANGING:
            self._propose(self._proposed)

    def _adopt(self) -> None:
        """The chain has changed. Part (4): each member is sealed before it gets a batch of the new epoch."""
        shard = self.configuration.shards[self.shard]
        before = self.links
        self.epoch = shard.epoch
        self.links = {member: before.get(member) or Link() for member in shard.members}
        for member, link in before.items():
            if member not in self.links:
                self._out += [Reset(member), Removed(member, link.reason, link.is_lost)]
        self._out += [Joined(member) for member in self.links if member not in before]
        self._abandon(retry=self.attempt is not None and self.attempt.member not in self.links)
        self.state = State.SEALING
        for member in self.links:
            self._ask(member)

    def _formed(self) -> None:
        """All members of the epoch are sealed."""
        if self.is_recovering:
            self._recover()
            return
        self.state = State.RUNNING
        self._advance()
        self._pump()

    # -- take-over -----------------------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """The earlier leader is gone, and with it the batches that not all members have: read them from a log."""
        seals = {member: link.sealed for member, link in self.links.items()}
        kept = max(seal.trim for seal in seals.values())
        for member, seal in seals.items():
            if seal.seq < kept:  # every member had said that it had those
                self._fail(member, f"it has batches up to {seal.seq}, and had {kept}", is_lost=True)
                return
        first, last = min(seal.seq for seal in seals.values()), max(seal.seq for seal in seals.values())
        if first == last:
            self._recovered(first, ())
            return
        self.state = State.RECOVERING
        best = next(member for member, seal in seals.items() if seal.seq == last)
        self._request(best, ReadLog(best, self.epoch, first + 1, last))

    def _on_log_read(self, event: LogRead) -> None:
        link = self._answered(event.member)
        if link is None or event.epoch != self.epoch or self.state is not State.RECOVERING:
            return
        if event.first + len(event.batches) - 1 != link.sealed.seq:
            self._fail(event.member, "its log is not what it should be", is_lost=True)
            return
        self._recovered(event.first - 1, event.batches)

    def _recovered(self, everywhere: int, batches: tuple[bytes, ...]) -> None:
        """Every member has the batches up to `everywhere`; `batches` follow, and are sent to those that miss them."""
        self.is_recovering = False
        self.acked = everywhere
        self.last = self.known = self.inherited = everywhere + len(batches)
        self._batches = dict(enumerate(batches, start=everywhere + 1))
        self._formed()

    def _on_loaded(self, event: Loaded) -> None:
        self._answered(event.member)
        if event.epoch == self.epoch and self.state is State.RUNNING and not self.is_open:
            self.is_open = True
            self._out.append(Open(self.last))

    # -- members that join ---------------------------------------------------------------------------------------------

    def _on_join(self, member: MemberID) -> None:
        waits = member in self._joiners or (self.attempt is not None and self.attempt.member == member)
        link = self.links.get(member)
        if waits or (link is not None and not link.is_lost) or len(self._joiners) >= JOINERS_MAX:
            return
        self._joiners.append(member)

    def _join_next(self) -> None:
        """The tail is the source; if the chain waits for members, the last one that is there."""
        can_join = (self.is_open and self.state is State.RUNNING) or self.is_blocked
        there = self._there()
        if self.attempt is not None or not self._joiners or not can_join or not there:
            return
        member = self._joiners.pop(0)
        if member in there:
            return
        self._attempts += 1
        self.attempt = Attempt(self._attempts, member, there[-1], self.epoch, self._now)
        self._out += self.attempt.start()

    def _on_joiner(self, event: Replicated | Inspected | Detached | Look) -> None:
        attempt = self.attempt
        if attempt is None or (attempt.number if isinstance(event, Look) else attempt.member) != (
            event.attempt if isinstance(event, Look) else event.member
        ):
            return
        match event:
            case Look():
                self._out += attempt.look()
            case Replicated() if event.reply.verdict is Verdict.OK and attempt.phase is Phase.COPYING:
                self._out += attempt.on_replicated(self._now)
            case Replicated() if event.reply.verdict is Verdict.STRANGER:
                self._abandon(retry=False)
                self._out.append(RefuseJoin(event.member, "it holds the data of another cluster."))
            case Replicated() | Inspected() if event.reply.epoch > self.epoch:
                # It was sealed by an attempt of ours that failed after its seal, or by a leader after us. To raise the
                # epoch settles which: the authority refuses whoever leads no more.
                self._abandon()
                if self.state is not State.CHANGING:
                    self._propose(self.members)
            case Inspected() if attempt.phase in (Phase.COPYING, Phase.CLOSING):
                self._on_inspected(attempt, event.reply)
            case Detached() if attempt.phase is Phase.DETACHING:
                acked, last = self._expected(attempt)
                epoch = self.configuration.epoch + 1
                commands = attempt.on_detached(event.reply, self._now, acked=acked, last=last, epoch=epoch)
                if commands is None:
                    self._abandon()
                else:
                    self._out += commands
            case _:
                pass

    def _on_inspected(self, attempt: Attempt, reply: Reply) -> None:
        acked, last = self._expected(attempt)
        settled = self._is_settled()
        sent = max(link.sent for link in self.links.values())
        near = sent - reply.seq <= self.window
        self._out += attempt.on_inspected(reply, self._now, acked=acked, last=last, near=near, settled=settled)
        if attempt.holds_batches and self._hold is None:
            self._hold = sent

    def _expected(self, attempt: Attempt) -> tuple[int, int]:
        """A server that joins has the batches up to a number between these two."""
        if self.is_recovering:  # what was acknowledged is not known: every member has it, the source as well
            there = self.links[attempt.source].sealed.seq
            return there, there
        return self.acked, self.last

    def _is_settled(self) -> bool:
        """No batch is under way, and none will be while batches are held."""
        if self._hold is None:
            return False
        return self.is_blocked or (self.state is State.RUNNING and self.acked == self._hold)

    def _on_joiner_sealed(self, attempt: Attempt, event: Sealed) -> None:
        if attempt.phase is not Phase.SEALING or not (self.state is State.RUNNING or self.is_blocked):
            return
        acked, last = self._expected(attempt)
        if attempt.on_sealed(event.reply, acked=acked, last=last):
            self._propose((*self._there(), attempt.member))
        else:
            self._abandon()

    def _abandon(self, *, retry: bool = True) -> None:
        """The attempt to join is over, one way or the other."""
        attempt, self.attempt, self._hold = self.attempt, None, None
        if attempt is None:
            return
        if retry:
            self._out += [Reset(attempt.member), After(REJOIN_S, Join(attempt.member))]
        self._pump()

    # -- silence -------------------------------------------------------------------------------------------------------

    def _on_tick(self) -> None:
        gap, self._ticked_at = self._now - self._ticked_at, self._now
        frozen_s = gap - self.tick_s if gap > 2 * self.tick_s else 0.0
        for link in self.links.values():
            link.silent_since += frozen_s  # what they answered meanwhile has not been read yet
        if self.attempt is not None:
            self.attempt.heard_at += frozen_s
            if self.attempt.is_overdue(self._now, self.silence_s):
                self._abandon()
        if self.is_blocked:
            for member, link in self.links.items():
                # Those that are there know whether another leader has come. (A server that joins knows it, too.)
                if not link.is_lost and (link.standing is Standing.FAILED or self.attempt is None):
                    self._ask(member)
        for member, link in list(self.links.items()):
            silent_s = self._now - link.silent_since
            if silent_s > self.silence_s and link.standing is not Standing.FAILED and member in self.links:
                self._fail(member, f"it was silent for {silent_s:.1f} s", is_lost=False)

    def _on_heard(self, member: MemberID) -> None:
        link = self.links.get(member)
        if link is not None and link.owed:
            link.silent_since = self._now

    def _request(self, member: MemberID, command: Command) -> None:
        link = self.links[member]
        if link.owed == 0:
            link.silent_since = self._now
        link.owed += 1
        self._out.append(command)

    def _answered(self, member: MemberID) -> Link | None:
        link = self.links.get(member)
        if link is not None and link.owed:
            link.owed -= 1
            link.silent_since = self._now if link.owed else math.inf
        return link

    @staticmethod
    def _owes_nothing(link: Link) -> None:
        link.owed = 0
        link.silent_since = math.inf

    # -- the end -------------------------------------------------------------------------------------------------------

    def _end(self, command: Fenced | Stop) -> None:
        self.state = State.ENDED
        self.attempt = self._hold = None
        self._out.append(command)

    def _taken(self) -> list[Command]:
        commands, self._out = self._out, []
        return commands
