"""What the two scripts of a voter mean (`skate._core.cluster.register`)."""

from __future__ import annotations

from skate._core.cluster.configuration import Configuration
from skate._core.cluster.register import NO_BALLOT, Ballot, Ballotted, Vote


class SimVoter:
    def __init__(self) -> None:
        self.token = ""
        self.promised: Ballot = NO_BALLOT
        self.accepted: Ballot = NO_BALLOT
        self.value: Configuration | None = None

    def admit(self, token: str, ballot: Ballot, value: Configuration) -> None:
        self.token = token
        self.promised = self.accepted = ballot
        self.value = value

    def prepare(self, token: str, ballot: Ballot) -> Ballotted:
        if not self.may_vote(token):
            return Ballotted(Vote.NOT_ADMITTED, value=self.value)
        if ballot <= self.promised:
            return Ballotted(Vote.OUTBID, self.promised)
        self.promised = ballot
        return Ballotted(Vote.OK, ballot, self.accepted, self.value)

    def accept(self, token: str, ballot: Ballot, value: Configuration) -> Ballotted:
        if not self.may_vote(token):
            return Ballotted(Vote.NOT_ADMITTED, value=self.value)
        if ballot < self.promised:
            return Ballotted(Vote.OUTBID, self.promised)
        self.promised = self.accepted = ballot
        self.value = value
        return Ballotted(Vote.OK, ballot, ballot, value)

    def may_vote(self, token: str) -> bool:
        return bool(token) and self.token == token

    def restart(self, found: str) -> None:
        if found != "all":
            self.__init__()  # type: ignore[misc]
