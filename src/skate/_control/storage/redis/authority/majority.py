"""The authority among voters: all servers of a store and its witnesses, three at least. It outlives the head's machine.

    change ─▶ Proposal ──prepare, accept──▶ voters: `vote.lua` on each       decided by a majority of them
    read   ─▶ the same with the present value; voters that forgot are admitted again, if we lead

Owns:      the connections to the voters.
Invariant: part (1) of the proof in `chain.py`; the decisions are in `register.py`.
Threads:   its methods block. They are called in errands, and one after the other.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from hiredis import ReplyError

from skate._control.storage.errors import StorageError, StorageOfOtherCluster, StorageUnreachable
from skate._control.storage.redis.connection.address import Server
from skate._control.storage.redis.connection.handshake import Dialled, Facts, dial
from skate._control.storage.redis.connection.poller import Poller
from skate._control.storage.redis.connection.requests import VOTE, VOTE_SHA, packed
from skate._control.storage.redis.connection.wire import Wire
from skate._core.cluster import register
from skate._core.cluster.configuration import Changed, Configuration, LeaderID, Refused, VoterID
from skate._core.cluster.register import Ballot, Ballotted, Proposal, Vote

VOTERS_MIN = 3
#: How long a change or a look may take before it is given up, and tried again by the caller.
DECIDE_S = 3.0
#: How long a voter may take to answer.
VOTER_S = 1.0
#: How long a look waits for the voters that were not needed for the majority.
LATE_S = 0.3
#: The ballot of the first value.
FIRST: Ballot = (1, "")


class _Voter:
    """One voter's connection."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.wire: Wire | None = None
        self.facts = Facts(server.name)
        #: Requests that wait for the connection.
        self.waiting: list[Callable[[Wire], None]] = []
        #: Requests without an answer, and since when there was none.
        self.owed = 0
        self.silent_since = 0.0

    def forget(self) -> None:
        """The connection is gone, or given up."""
        if self.wire is not None:
            self.wire.close()
        self.wire = None
        self.facts = Facts(self.server.name)
        self.waiting.clear()
        self.owed = 0

    @property
    def life(self) -> tuple[str, str]:
        """What `vote.lua` wants to know of the server that this connection leads to."""
        return self.facts.run_id, "1" if self.facts.aof == "always" else "0"


class MajorityAuthority:
    #: The time between two looks of a leader at the configuration.
    look_s = 1.0

    def __init__(self, me: LeaderID, servers: Sequence[Server]) -> None:
        if len(servers) < VOTERS_MIN:
            raise StorageError(
                f"A standby needs {VOTERS_MIN} voters, and there are {len(servers)}.",
                "Who leads is decided by a majority, and of two servers none is left when one is gone.",
                "name more Redis servers, or witnesses (--witness redis://HOST): small servers that only vote.",
            )
        self._me = me
        self._poller = Poller()
        self._voters = {VoterID(server.name): _Voter(server) for server in servers}
        self._present: Configuration | None = None
        #: Voters that refused to vote since the last proposal began, and the tokens that they were asked with.
        self._not_admitted: dict[VoterID, str] = {}
        #: Voters that did not vote when a leader looked last: they are silent, or have no memory.
        self.absent: list[str] = []
        #: Of our proposals and attempts to admit: each has a name of its own.
        self._proposals = 0
        self._ballot = 0
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return f"a majority of {', '.join(self._voters)}"

    # -- what a leader wants ------------------------------------------------------------------------------------------

    def change(self, expected: Configuration, new: Configuration) -> Changed | Refused:
        with self._lock:
            answer = self._decide(self._proposal(expected, new))
            self._present = answer.configuration
            return answer

    def read(self) -> Configuration:
        with self._lock:
            assert self._present is not None, "`find` comes first"
            return self._look(self._present)

    def find(self) -> Configuration | None:
        """For a service that starts: the present configuration; None if no voter has heard of any."""
        newest = self.newest_heard_of()
        if newest is None:
            return None
        with self._lock:
            return self._look(newest)

    def newest_heard_of(self) -> Configuration | None:
        """What some voter has accepted: perhaps an old configuration, perhaps one that was never decided."""
        with self._lock:
            values = [answer.value for answer in self._hear_all() if answer.value is not None]
            return max(values, key=lambda value: value.epoch, default=None)

    def begin(self, first: Configuration, *, adopts: bool = False) -> Configuration:
        """The first configuration, on all voters. If another service begins at the same time, both go on with one.

        The first voter decides between them; so all have to answer. adopts: whatever they have heard of.
        """
        with self._lock:
            tokens = tuple((voter, secrets.token_hex(8)) for voter in sorted(self._voters))
            value = msgspec.structs.replace(first, voters=tokens)
            for voter, _ in tokens:
                token = dict(value.voters).get(voter, "")
                answer = self._call(voter, "admit" if adopts else "first", token, FIRST, value)
                if answer is None or answer.value is None:
                    raise StorageUnreachable(f"The voter {voter} does not answer.", "To begin a store, all have to.")
                if answer.value.cluster != value.cluster and voter != tokens[0][0]:
                    raise StorageOfOtherCluster(
                        f"The voter {voter} has heard of another cluster.",
                        f"It is {answer.value.cluster}, and this is {value.cluster}.",
                        "name other voters, or empty that one.",
                    )
                value = answer.value
            self._present = value
            return value

    # -- proposals ----------------------------------------------------------------------------------------------------

    def _look(self, known: Configuration) -> Configuration:
        answer = self._decide(self._proposal(known, None))
        self._present = answer.configuration
        # A majority was enough. What the others say tells which of them have to be admitted again.
        self._run(lambda: not any(voter.owed for voter in self._voters.values()), time.monotonic() + LATE_S)
        tokens = dict(self._present.voters)
        forgetful = {name for name, token in self._not_admitted.items() if tokens.get(name) == token}
        silent = {name for name, voter in self._voters.items() if voter.wire is None or voter.owed}
        self.absent = sorted(silent | forgetful)
        for voter in forgetful:
            if self._present.leader == self._me:
                self._admit_again(voter, self._present)
        return self._present

    def _admit_again(self, voter: VoterID, present: Configuration) -> None:
        """The others have to know the new token before the voter has it; it gets each token once."""
        token = secrets.token_hex(8)
        proposal = self._proposal(present, present.with_voter(voter, token))
        answer = self._decide(proposal)
        self._present = answer.configuration
        if isinstance(answer, Changed):
            self._call(voter, "admit", token, proposal.ballot, answer.configuration)

    def _proposal(self, expected: Configuration, new: Configuration | None) -> Proposal:
        self._proposals += 1
        name = LeaderID(f"{self._me}.{self._proposals}")
        return Proposal(name, expected, new, random.random, self._ballot)

    def _decide(self, proposal: Proposal) -> Changed | Refused:
        decided: list[Changed | Refused] = []

        def carry_out(commands: list[register.Command]) -> None:
            for command in commands:
                match command:
                    case register.Prepare(voter, token, ballot):
                        self._ask(voter, "prepare", token, ballot, None, partial(prepared, voter, ballot))
                    case register.Accept(voter, token, ballot, value):
                        self._ask(voter, "accept", token, ballot, value, partial(accepted, voter, ballot))
                    case register.Again(delay_s, attempt):
                        self._poller.after(delay_s, partial(again, attempt))
                    case Changed() | Refused():
                        decided.append(command)

        def prepared(voter: VoterID, ballot: Ballot, answer: Ballotted) -> None:
            carry_out(proposal.on_prepared(voter, ballot, answer))

        def accepted(voter: VoterID, ballot: Ballot, answer: Ballotted) -> None:
            carry_out(proposal.on_accepted(voter, ballot, answer))

        def again(attempt: int) -> None:
            if not decided and time.monotonic() < deadline:
                carry_out(proposal.retry(attempt))

        self._poller.run(0.0)  # what came since the last call
        self._not_admitted.clear()
        deadline = time.monotonic() + DECIDE_S
        carry_out(proposal.start())
        self._run(lambda: bool(decided), deadline)
        self._ballot = max(self._ballot, proposal.ballot[0])
        if not decided:
            raise self._no_majority(proposal.forgetful)
        return decided[0]

    def _no_majority(self, forgetful: set[VoterID]) -> StorageUnreachable:
        silent = [name for name, voter in self._voters.items() if voter.wire is None]
        reasons = []
        if silent:
            reasons.append(f"No answer from {', '.join(silent)}.")
        if forgetful:
            reasons.append(f"Without memory of what was decided: {', '.join(sorted(forgetful))}.")
        return StorageUnreachable(
            f"No majority of the {len(self._voters)} voters says who leads.",
            " ".join(reasons) or "They did not answer in time.",
            "start the voters again. If most of them were started without their data, adopt the store.",
        )

    # -- voters -------------------------------------------------------------------------------------------------------

    def _hear_all(self) -> list[Ballotted]:
        """What each voter has accepted last, from those that answer: no promise, and no proof."""
        heard: list[Ballotted] = []
        self._poller.run(0.0)
        for name in self._voters:
            self._ask(name, "prepare", "", (0, ""), None, heard.append)
        deadline = time.monotonic() + VOTER_S
        self._run(lambda: len(heard) + self._silent() >= len(self._voters), deadline)
        return heard

    def _silent(self) -> int:
        return sum(voter.wire is None for voter in self._voters.values())

    def _call(
        self, voter: VoterID, kind: str, token: str, ballot: Ballot, value: Configuration | None
    ) -> Ballotted | None:
        answers: list[Ballotted] = []
        self._ask(voter, kind, token, ballot, value, answers.append)
        self._run(lambda: bool(answers) or self._voters[voter].wire is None, time.monotonic() + VOTER_S)
        return answers[0] if answers else None

    def _ask(
        self,
        name: VoterID,
        kind: str,
        token: str,
        ballot: Ballot,
        value: Configuration | None,
        then: Callable[[Ballotted], None],
    ) -> None:
        voter = self._voters.get(name)
        if voter is None:
            return  # the configuration names a voter that this service does not know

        def answered(answer: Any) -> None:
            voter.owed -= 1
            voter.silent_since = time.monotonic()
            if not isinstance(answer, ReplyError):
                ballotted = as_ballotted(answer)
                if ballotted.vote is Vote.NOT_ADMITTED and token:
                    self._not_admitted[name] = token
                then(ballotted)
            elif "NOSCRIPT" in str(answer):  # (A replica, which is about to become a member, cannot vote.)
                voter.forget()

        def send(wire: Wire) -> None:
            encoded = b"" if value is None else msgspec.json.encode(value)
            wire.send(packed("EVALSHA", VOTE_SHA, 1, VOTE, kind, token, *voter.life, *ballot, encoded), answered)
            wire.flush()

        now = time.monotonic()
        if voter.owed and now - voter.silent_since > VOTER_S:
            voter.forget()
        if not voter.owed:
            voter.silent_since = now
        voter.owed += 1
        if voter.wire is None:
            self._connect(voter)
        if voter.wire is not None and voter.facts.run_id:
            send(voter.wire)
        else:
            voter.waiting.append(send)

    def _connect(self, voter: _Voter) -> None:
        """Requests wait for the connection, because they say to which life of the server they go."""

        def opened(facts: Facts) -> None:
            voter.facts = facts
            voter.silent_since = time.monotonic()
            waiting, voter.waiting = voter.waiting, []
            for send in waiting:
                if voter.wire is not None:
                    send(voter.wire)

        voter.wire = Wire(self._poller, partial(_dial, voter.server), lambda why, error: voter.forget(), on_open=opened)

    def _run(self, is_over: Callable[[], bool], deadline: float) -> None:
        while not is_over():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            self._poller.run(left_s)

    def close(self) -> None:
        with self._lock:
            for voter in self._voters.values():
                voter.forget()
            self._poller.close()


def _dial(server: Server) -> Dialled:
    return dial(server, VOTER_S)


def as_ballotted(answer: Sequence[Any]) -> Ballotted:
    vote, promised_n, promised_by, accepted_n, accepted_by, value = answer
    return Ballotted(
        Vote(vote.decode()),
        (promised_n, promised_by.decode()),
        (accepted_n, accepted_by.decode()),
        msgspec.json.decode(value, type=Configuration) if value else None,
    )


def voters_of(servers: Sequence[Server], witnesses: Sequence[Server]) -> list[Server]:
    """All servers of the store, and those that only vote."""
    return list({server.name: server for server in (*witnesses, *servers)}.values())
