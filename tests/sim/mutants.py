"""The simulation, tested itself: bugs of one line, each of which it has to find.

A mutant replaces one method of the real code, or of the played servers where the bug would be in a script. `hunt.py`
looks for the first seed that finds it; `found.json` keeps those seeds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from patches import Mutants
from redis_member import Op, SimRedis, run
from service import Service
from voter import SimVoter

from skate._core.cluster.chain import Chain, State
from skate._core.cluster.chain_messages import Acknowledge, Reply, Verdict
from skate._core.cluster.joining import Attempt
from skate._core.cluster.lease import LeaderLease, SuccessorLease
from skate._core.cluster.register import Proposal

MUTANTS = Mutants()
mutant, also, applied = MUTANTS.mutant, MUTANTS.also, MUTANTS.applied


# -- scripts -----------------------------------------------------------------------------------------------------------


@mutant(SimRedis, "apply")
def _no_epoch_check(apply: Any) -> Any:
    """A server takes batches of any epoch."""

    def mutated(self: SimRedis, cluster: str, epoch: int, *rest: Any) -> Reply:
        meta = self.data.meta
        return apply(self, cluster, epoch if meta is None else meta.epoch, *rest)

    return mutated


@mutant(SimRedis, "seal")
def _seal_left_out(seal: Any) -> Any:
    """A take-over only asks what the members have. They move on to its epoch with its first batch."""

    def mutated(self: SimRedis, *rest: Any) -> Reply:
        meta = self.data.meta
        reply = seal(self, *rest)
        if reply.verdict is Verdict.OK and meta is not None and self.data.meta is not None:
            self.data.meta = replace(self.data.meta, epoch=meta.epoch)
        return reply

    return mutated


@also("seal-left-out", SimRedis, "apply")
def _moves_on_with_a_batch(apply: Any) -> Any:
    def mutated(self: SimRedis, cluster: str, epoch: int, *rest: Any) -> Reply:
        if self.data.meta is not None and self.source is None:
            self.data.meta = replace(self.data.meta, epoch=max(epoch, self.data.meta.epoch))
        return apply(self, cluster, epoch, *rest)

    return mutated


@also("seal-left-out", SimRedis, "read")
def _reads_do_not_look_at_the_epoch(read: Any) -> Any:
    return lambda self, cluster, epoch: read(self, cluster, None)


@mutant(SimRedis, "apply")
def _gaps_are_taken(apply: Any) -> Any:
    """A server takes a batch although it lacks the one before."""

    def mutated(self: SimRedis, cluster: str, epoch: int, seq: int, *rest: Any) -> Reply:
        meta = self.data.meta
        if meta is not None and seq > meta.seq + 1 and self.source is None:
            self.data.meta = replace(meta, seq=seq - 1)
        return apply(self, cluster, epoch, seq, *rest)

    return mutated


@mutant(SimRedis, "apply")
def _repeats_are_run_again(apply: Any) -> Any:
    """A repeated batch is evaluated again instead of being answered from the log."""

    def mutated(self: SimRedis, cluster: str, epoch: int, seq: int, acked: int, batch: bytes) -> Reply:
        meta = self.data.meta
        reply = apply(self, cluster, epoch, seq, acked, batch)
        if reply.verdict is Verdict.OK and meta is not None and seq <= meta.seq:
            return Reply(Verdict.OK, reply.epoch, reply.seq, reply.trim, run(dict(self.data.rows), batch))
        return reply

    return mutated


@mutant(SimRedis, "replicate")
def _replicate_is_not_fenced(replicate: Any) -> Any:
    """A writer of an old epoch can turn a member into a replica."""
    return lambda self, cluster, epoch, source: replicate(self, cluster, 1 << 30, source)


@mutant(SimVoter, "may_vote")
def _a_voter_without_memory_votes(_: Any) -> Any:
    """A voter that forgot what it promised goes on voting."""
    return lambda self, token: True


# -- the writer --------------------------------------------------------------------------------------------------------


@mutant(Chain, "_advance")
def _acknowledged_at_the_head(advance: Any) -> Any:
    """A batch is acknowledged when the head has it."""

    def mutated(self: Chain) -> None:
        told = self.__dict__.setdefault("told", self.acked)
        head = next(iter(self.links.values())).confirmed
        if self.state is State.RUNNING:
            for seq in range(max(told, self.acked) + 1, head + 1):
                if seq > self.inherited:
                    self._out.append(Acknowledge(seq, self._results[seq]))
                self.__dict__["told"] = seq
        early, self._out = self._out, []
        advance(self)
        self._out = early + [command for command in self._out if not isinstance(command, Acknowledge)]

    return mutated


@mutant(Chain, "_trim")
def _log_trimmed_too_early(_: Any) -> Any:
    """Logs forget a batch when the head has it."""
    return lambda self: next(iter(self.links.values())).confirmed


@mutant(Chain, "_resume")
def _resent_one_too_late(resume: Any) -> Any:
    """After a repair, the first batch that a member lacks is left out."""

    def mutated(self: Chain, link: Any) -> None:
        resume(self, link)
        link.sent = min(link.sent + 1, self.last) if not self.is_recovering else link.sent

    return mutated


@mutant(Chain, "_resume")
def _results_are_not_asked_for(_: Any) -> Any:
    """A batch that a member has needs no answer: its results are lost with the connection."""

    def mutated(self: Chain, link: Any) -> None:
        link.sent = link.confirmed = link.sealed.seq
        while not self.is_recovering and self.known < link.sealed.seq:
            self.known += 1
            self._results.setdefault(self.known, (0,) * 9)

    return mutated


@mutant(Chain, "_adopt")
def _window_forgotten(adopt: Any) -> Any:
    """What was under way when the chain changed is not sent again."""

    def mutated(self: Chain) -> None:
        adopt(self)
        if not self.is_recovering:
            self._batches.clear()
            self._results.clear()
            self.acked = self.known = self.last

    return mutated


@mutant(Chain, "_propose")
def _removed_without_the_authority(propose: Any) -> Any:
    """A member that fails is left out of the chain, and the authority does not hear of it."""

    def mutated(self: Chain, members: tuple[Any, ...]) -> None:
        if not set(members) < set(self.links):
            propose(self, members)
            return
        self.links = {member: self.links[member] for member in members}
        self._formed()

    return mutated


@mutant(Chain, "_recover")
def _levelled_by_the_tail(recover: Any) -> Any:
    """A take-over goes on from the batch that the tail has, and does not look at what others have."""

    def mutated(self: Chain) -> None:
        seq = self.links[self.tail].sealed.seq
        for link in self.links.values():
            link.sent = link.confirmed = seq
        self._recovered(seq, ())

    return mutated


@mutant(Attempt, "has_all")
def _joiner_not_compared(_: Any) -> Any:
    """A server becomes a member whatever number of batches it has."""
    return lambda self, reply, acked, last: reply.verdict is Verdict.OK


@mutant(Service, "prepared")
def _conditions_evaluated_by_the_writer(_: Any) -> Any:
    """The writer decides a compare-and-set by what it has acknowledged, not by what it has sent."""

    def decided(self: Service, op: Op) -> Op:
        if op[0] == "cas":
            return ("cas", op[1], self.rows.get(str(op[1])), op[3] if self.rows.get(str(op[1])) == op[2] else "")
        return op

    return lambda self, ops: [decided(self, op) for op in ops]


# -- the lease ---------------------------------------------------------------------------------------------------------


@mutant(LeaderLease, "_counts_from")
def _lease_from_the_acknowledgement(_: Any) -> Any:
    """The leader counts its lease from the acknowledgement, not from before it sent the renewal."""
    return lambda self, sent_at, acknowledged_at: acknowledged_at


@mutant(SuccessorLease, "sealed")
def _lease_of_an_older_renewal(_: Any) -> Any:
    """The successor counts from the renewal that it saw before the seal."""
    return lambda self, renewal, now: self._seen_at + self._wait_s


@mutant(SuccessorLease, "sealed")
def _successor_does_not_wait(_: Any) -> Any:
    """The successor acknowledges at once."""
    return lambda self, renewal, now: now


# -- the register ------------------------------------------------------------------------------------------------------


@mutant(Proposal, "on_prepared")
def _accepted_value_ignored(on_prepared: Any) -> Any:
    """A proposer takes the value it expects for the present one."""

    def mutated(self: Proposal, voter: Any, ballot: Any, answer: Any) -> Any:
        if answer.value is not None and self.new is not None:
            answer = type(answer)(answer.vote, answer.promised, answer.accepted, self.expected)
        return on_prepared(self, voter, ballot, answer)

    return mutated


@mutant(Proposal, "_has_majority")
def _one_vote_is_enough(_: Any) -> Any:
    """A change is made when one voter has it."""
    return lambda self: len(self._votes) > 0
