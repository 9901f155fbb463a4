"""The authority among voters: one rewritable value, changed by compare-and-set, decided by a majority.

CASPaxos (Rystsov, 2018): Paxos whose value is replaced instead of appended to a log. A change takes two rounds.

    Prepare(ballot) ──▶ voters      a majority promises: the accepted value with the highest ballot is the present one
    Accept(ballot, value) ──▶       present = expected? the new value; otherwise the present one again, so that a
                                    refusal, too, rests on a value that is decided

A voter that restarts without its memory would break its promises without knowing. So each voter holds the token with
which it was admitted, the value names the tokens of all voters, and who asks names the token it expects: a voter that
lost its memory does not vote. It is admitted again like this:

    1. compare-and-set the value to one with a new token for it          (decided by the others)
    2. Admit(token, ballot, value) to the voter, once                     (it knows now what was decided without it)

Safe, because every majority that counted the lost voter shares a member that did not forget with every majority that
counts without it. A token is handed out once: if the answer to Admit is lost, the next attempt takes another token,
because a repetition could reach a voter that has voted and forgotten in the meantime.

Owns:      ballots, promises and acceptances of one change. Knows not: sockets, clocks, and what is in the value.
Invariant: part (1) of the proof in `chain.py`; tests/sim/test_register.py.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import msgspec

from skate._core.cluster.configuration import Changed, Configuration, LeaderID, Refused, VoterID

#: Ballots are ordered by number, then by the name of who made them.
Ballot = tuple[int, str]
NO_BALLOT: Ballot = (0, "")
#: A round that is not decided after so long is begun anew with a higher ballot; the wait is random up to twice that.
ROUND_S = 0.2


class Vote(enum.Enum):
    OK = "OK"
    #: A higher ballot was promised.
    OUTBID = "OUTBID"
    #: The voter has no memory, or was admitted with another token.
    NOT_ADMITTED = "NOT_ADMITTED"


class Ballotted(msgspec.Struct, frozen=True):
    """The answer of a voter."""

    vote: Vote
    #: The highest ballot that it promised.
    promised: Ballot = NO_BALLOT
    #: What it accepted last; also if it was admitted with another token, as a hint for whom to ask.
    accepted: Ballot = NO_BALLOT
    value: Configuration | None = None


# -- commands ----------------------------------------------------------------------------------------------------------


class Prepare(msgspec.Struct, frozen=True):
    voter: VoterID
    token: str
    ballot: Ballot


class Accept(msgspec.Struct, frozen=True):
    voter: VoterID
    token: str
    ballot: Ballot
    value: Configuration


class Again(msgspec.Struct, frozen=True):
    """Call `Proposal.retry(attempt)` after so many seconds."""

    delay_s: float
    attempt: int


Command = Prepare | Accept | Again | Changed | Refused


class Proposal:
    """One compare-and-set, or, with `new=None`, one linearisable read. Answers end with Changed or Refused.

    A read is answered with Refused(present value).
    """

    def __init__(
        self,
        me: LeaderID,
        expected: Configuration,
        new: Configuration | None,
        random: Callable[[], float],
        number: int = 0,
    ) -> None:
        """`expected` also names the voters, as far as they are known. `number`: that of an earlier proposal of ours."""
        self.me = me
        self.expected = expected
        self.new = new
        self.ballot: Ballot = (number, me)
        self.is_done = False
        #: Voters that have no memory, or another than they should.
        self.forgetful: set[VoterID] = set()
        self._random = random
        self._voters = dict(expected.voters)
        self._voters_epoch = expected.epoch
        self._votes: dict[VoterID, Ballotted] = {}
        self._value: Configuration | None = None
        self._attempt = 0

    def start(self) -> list[Command]:
        """Begin a round, with a ballot above all that were heard of."""
        self.ballot = (self.ballot[0] + 1, self.me)
        self._votes = {}
        self._value = None
        self._attempt += 1
        prepares: list[Command] = [Prepare(voter, token, self.ballot) for voter, token in self._voters.items()]
        return [*prepares, Again(ROUND_S * (1 + self._random()), self._attempt)]

    def retry(self, attempt: int) -> list[Command]:
        return self.start() if attempt == self._attempt and not self.is_done else []

    def on_prepared(self, voter: VoterID, ballot: Ballot, answer: Ballotted) -> list[Command]:
        if self._value is not None:
            return []
        if not self._counts(voter, ballot, answer):
            return self._learn(ballot, answer)
        if not self._has_majority():
            return []
        newest = max(self._votes.values(), key=lambda vote: vote.accepted)
        assert newest.value is not None, "a voter is admitted with a value"
        if newest.value.voters != tuple(self._voters.items()):
            return self._ask_voters_of(newest.value)
        self._value = self.new if self.new is not None and newest.value == self.expected else newest.value
        self._votes = {}
        return [Accept(voter, token, self.ballot, self._value) for voter, token in self._voters.items()]

    def on_accepted(self, voter: VoterID, ballot: Ballot, answer: Ballotted) -> list[Command]:
        if self._value is None or not self._counts(voter, ballot, answer) or not self._has_majority():
            return []
        self.is_done = True
        return [Changed(self._value) if self._value == self.new else Refused(self._value)]

    def _learn(self, ballot: Ballot, answer: Ballotted) -> list[Command]:
        """A voter was admitted again since we last looked. Two of them, and the tokens we know have no majority."""
        value = answer.value
        if self.is_done or ballot != self.ballot or value is None or value.epoch <= self._voters_epoch:
            return []
        return self._ask_voters_of(value)

    def _ask_voters_of(self, value: Configuration) -> list[Command]:
        """Safe even if the value was never decided: a token is handed to its voter only after that."""
        self._voters = dict(value.voters)
        self._voters_epoch = value.epoch
        self.forgetful.clear()
        return self.start()

    def _counts(self, voter: VoterID, ballot: Ballot, answer: Ballotted) -> bool:
        if self.is_done or ballot != self.ballot:
            return False
        if answer.vote is Vote.NOT_ADMITTED:
            self.forgetful.add(voter)
            return False
        if answer.vote is Vote.OUTBID:
            # This round is over. The timer begins the next: two that outbid each other at once would never end.
            self.ballot = (max(self.ballot[0], answer.promised[0]), self.me)
            self._votes = {}
            return False
        self._votes[voter] = answer
        return True

    def _has_majority(self) -> bool:
        return len(self._votes) > len(self._voters) // 2
