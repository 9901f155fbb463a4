"""What a store on Redis servers shows of itself: plain records, for `skate store status` and for tests."""

from __future__ import annotations

import msgspec

from skate._control.storage.redis.connection.handshake import Facts
from skate._core.cluster.chain import Link


class MemberStatus(msgspec.Struct, frozen=True):
    name: str
    #: "sealed": it is there and agrees. "asked", "failed": it has to prove itself.
    standing: str
    #: Entries that it is not known to have yet.
    lag: int
    #: Why it failed, if it did.
    reason: str
    #: As of its last connection: program and version, bytes of memory used and the limit (0: none), persistence.
    program: str
    version: str
    used_memory: int
    maxmemory: int
    aof: str

    @classmethod
    def of(cls, name: str, link: Link, last: int, facts: Facts | None) -> MemberStatus:
        known = facts or Facts(name)
        return cls(
            name,
            link.standing.value,
            max(0, last - link.confirmed),
            link.reason,
            known.program,
            known.version,
            known.used_memory,
            known.maxmemory,
            known.aof,
        )


class ShardStatus(msgspec.Struct, frozen=True):
    shard: int
    #: "running", or what the chain is busy with.
    state: str
    epoch: int
    #: Entries that were numbered, and those that every member has.
    last: int
    acknowledged: int
    #: From head to tail.
    members: list[MemberStatus]
    #: Batches that were written and have not ended.
    waiting: int
    #: The server that is about to become a member.
    joining: str | None
    #: Servers that were named and are no members: they do not answer, or wait for their turn to join.
    missing: list[str]
    #: Servers that cannot become members, and why.
    refused: dict[str, str]
    #: Why nothing can be written.
    trouble: str | None
    #: The last changes of the chain: seconds since the epoch, and what happened.
    changes: list[tuple[float, str]]


class StoreStatus(msgspec.Struct, frozen=True):
    engine: str
    cluster: str
    incarnation: int
    epoch: int
    leader: str
    authority: str
    #: Why the authority cannot be asked. Writes go on as long as no chain has to change.
    authority_trouble: str | None
    #: Voters that did not vote when the leader looked last: they are silent, or wait to be admitted again.
    absent_voters: list[str]
    #: How many slots each shard has.
    slots: list[int]
    shards: list[ShardStatus]
