"""Servers that should be members and are not: looked for until they are there, then proposed to the writer.

A server that failed, one that the address names and the configuration does not, one that was down when the service
started: each becomes a member by a copy of the tail. What it holds is discarded, so it is looked at first. Data that do
not belong to this store are not discarded: the server is refused.

Owns:      when to look, and which servers were refused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from skate._control.storage.errors import ServerNotEmpty, ServerRefused, StorageError, StorageOfOtherCluster
from skate._control.storage.redis.connection.address import Server
from skate._control.storage.redis.connection.handshake import Dialled, Facts, check_distinct, dial, replica
from skate._control.storage.redis.connection.poller import Poller
from skate._control.storage.redis.members import Members
from skate._core.cluster import chain_messages as m
from skate._core.cluster.chain import Chain, State
from skate._core.cluster.configuration import MemberID

log = logging.getLogger("skate")

#: The pause between two looks at a server.
LOOK_S = 0.5


def not_empty(facts: Facts) -> ServerNotEmpty:
    error = ServerNotEmpty(
        f"The server {facts.name} holds {facts.keys} keys that Skate did not write.",
        "A server that becomes part of the store is emptied first, so it has to be empty.",
        "name another server, or empty it yourself (FLUSHALL) if its data are not needed.",
    )
    error.server = facts.name
    return error


def of_other_cluster(facts: Facts, wanted: str) -> StorageOfOtherCluster:
    error = StorageOfOtherCluster(
        f"The server {facts.name} holds the data of another cluster.",
        f"It is a part of cluster {facts.cluster}, and this is cluster {wanted}.",
        "name the servers of this cluster; or empty that one (FLUSHALL) if the other cluster is not needed.",
    )
    error.found, error.wanted = facts.cluster, wanted
    return error


class Joiners:
    def __init__(
        self,
        poller: Poller,
        members: Members,
        servers: Sequence[Server],
        chain: Chain,
        handle: Callable[[m.Event], None],
        cluster: str,
    ) -> None:
        self._poller = poller
        self._members = members
        self._servers = servers
        self._chain = chain
        self._handle = handle
        self._cluster = cluster
        #: Servers that are looked for.
        self._wanted: set[MemberID] = set()
        #: Servers that cannot become members, and why. They are looked at again, because the cause may be removed.
        self.refused: dict[MemberID, StorageError] = {}

    def start(self) -> None:
        """The store is open: all that were named may come in."""
        for server in self._servers:
            if server.name not in self._chain.links:
                self.look_for(server.name)

    def look_for(self, member: MemberID) -> None:
        """A server that the address no longer names may stay away."""
        if member not in self._wanted and member in {server.name for server in self._servers}:
            self._wanted.add(member)
            self._poller.after(0.0, partial(self._look, member))

    @property
    def missing(self) -> list[MemberID]:
        """Servers that were named, are no members, and were not refused."""
        names = [server.name for server in self._servers]
        return [name for name in names if name not in self._chain.links and name not in self.refused]

    def refuse(self, member: MemberID, reason: str) -> None:
        self._refused(member, ServerRefused(f"The server {member} cannot join.", reason))

    def _look(self, member: MemberID) -> None:
        if self._chain.state is State.ENDED or member in self._chain.links:
            self._wanted.discard(member)
            return
        attempt = self._chain.attempt
        if attempt is not None and attempt.member == member:
            self._later(member)
            return
        server = self._members.server(member)
        self._poller.send_out(partial(dial, server, self._chain.silence_s), partial(self._on_dialled, member))

    def _later(self, member: MemberID) -> None:
        self._poller.after(LOOK_S, partial(self._look, member))

    def _on_dialled(self, member: MemberID, found: Dialled | Exception) -> None:
        self._later(member)
        if isinstance(found, Exception):
            if isinstance(found, ServerRefused):
                self._refused(member, found)
            elif not isinstance(found, StorageError):
                raise found
            return
        found.close()
        error = self._objection(found.facts)
        if error is not None:
            self._refused(member, error)
            return
        self.refused.pop(member, None)
        self._handle(m.Join(member))

    def _objection(self, facts: Facts) -> StorageError | None:
        """Why the server must not be made a copy of our tail."""
        known = [other for name, other in self._members.facts.items() if name in self._chain.links]
        try:
            check_distinct([*known, facts])
        except ServerRefused as error:
            return error
        if facts.cluster and facts.cluster != self._cluster:
            return of_other_cluster(facts, self._cluster)
        if facts.role != "master" and facts.source not in {server.name for server in self._servers}:
            return replica(facts)
        if facts.is_foreign and facts.role == "master":
            return not_empty(facts)
        return None

    def _refused(self, member: MemberID, error: StorageError) -> None:
        before = self.refused.get(member)
        self.refused[member] = error
        if before is None or before.what != error.what:
            log.warning("store: %s", error)
