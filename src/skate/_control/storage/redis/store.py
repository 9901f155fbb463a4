"""A store on Redis servers: opened, taken over from the service before, and its shards as one storage.

    FileAuthority ── who has which part ──▶ take over ──▶ a RedisShard each ──▶ seal, level, read who we are ──▶ open

Owns:      the order in which a store is begun, opened and adopted.
Invariant: a server gets its first data only after the authority has noted which servers these are; and a store whose
           authority is lost is never begun again over its data.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from skate._control.storage.admission import Admission
from skate._control.storage.errors import (
    AuthorityMissing,
    StorageError,
    StorageFenced,
    StorageMissing,
    StorageOfOtherCluster,
    StorageUnreachable,
)
from skate._control.storage.interface import LAZY_S, Description, Done, Meta, Operation, Storage, Trouble
from skate._control.storage.redis.authority import Authority
from skate._control.storage.redis.authority.file import FileAuthority
from skate._control.storage.redis.authority.leadership import RENEWAL_KEY, Renewals, Standby
from skate._control.storage.redis.authority.majority import MajorityAuthority, voters_of
from skate._control.storage.redis.connection.address import RedisAddress, Server
from skate._control.storage.redis.connection.handshake import Facts, ask_once, check_distinct, look_at, replica
from skate._control.storage.redis.connection.requests import Requests, as_reply
from skate._control.storage.redis.joiners import not_empty, of_other_cluster
from skate._control.storage.redis.members import Note
from skate._control.storage.redis.shard import RedisShard
from skate._control.storage.redis.status import StoreStatus
from skate._control.storage.sharded import ShardedStorage
from skate._control.storage.slots import Layout
from skate._core.cluster.chain import SILENCE_S
from skate._core.cluster.chain_messages import Verdict
from skate._core.cluster.configuration import (
    AdoptionRefused,
    Configuration,
    LeaderID,
    MemberID,
    Refused,
    ShardChain,
    Stamp,
    adopt,
)
from skate._core.cluster.lease import LEASE_S, SuccessorLease

log = logging.getLogger("skate")

T = TypeVar("T")

#: How long an opening may take.
OPEN_S = 30.0
#: The pause between two questions to an authority that does not answer.
AGAIN_S = 0.1
#: Epochs left free when a store is adopted: the lost authority may have given some that no server was sealed with.
ADOPTION_GAP = 1000


class RedisStorage:
    """Storage over the shards of an address. See `interface.py`; `status` is on top of it."""

    def __init__(
        self,
        address: RedisAddress,
        directory: str | os.PathLike[str],
        cluster_id: str = "",
        *,
        must_exist: bool = False,
        adopt: bool = False,
        members_min: int = 1,
        has_standby: bool = False,
        witnesses: Sequence[Server] = (),
        standby: Standby | None = None,
        reachable_at: str = "",
        silence_s: float = SILENCE_S,
        lease_s: float = LEASE_S,
        lazy_s: float = LAZY_S,
        open_s: float = OPEN_S,
        admission: Admission | None = None,
    ) -> None:
        """Open the store, or begin it on servers that are empty.

        directory:   where the authority has its file. Not used with a standby.
        cluster_id:  the cluster that it has to belong to. "": the one that is there; a new store makes one up.
        must_exist:  refuse to begin a store.
        adopt:       go on with a store whose authority is lost; all servers of its newest chains have to answer.
        members_min: chains wait rather than go on with fewer members.
        has_standby: other services may take over: all servers and `witnesses` vote on who leads, and a lease says when
                     this service may answer from memory (`holds_lease`).
        standby:     what has waited for the leader before this one to be gone.
        reachable_at: where others find this service, as the configuration says it.
        silence_s:   a member that has owed an answer for this time is removed.
        """
        deadline = time.monotonic() + open_s
        self._leader = LeaderID(secrets.token_hex(8))
        self._shards: list[RedisShard] = []
        self._reachable_at = reachable_at
        self._renewals: Renewals | None = None
        #: Whether it was reported that the storage ended while nothing was under way.
        self._has_told = False
        self._authority: Authority
        if has_standby:
            self._authority = MajorityAuthority(self._leader, voters_of(address.servers, witnesses))
        else:
            self._authority = FileAuthority(os.fspath(directory))
        try:
            configuration = self._take_over(address, cluster_id, must_exist, adopt, silence_s, deadline)
            layout = Layout(configuration.slots)
            count = len(configuration.shards)
            for number in range(count):
                self._shards.append(
                    RedisShard(
                        configuration,
                        number,
                        address.shards[number],
                        self._authority,
                        members_min=members_min,
                        silence_s=silence_s,
                        lazy_s=lazy_s,
                        admission=admission if count == 1 else None,
                    )
                )
            self._wait_open(deadline)
            if has_standby:
                self._wait_for_lease(standby.lease if standby else SuccessorLease(time.monotonic(), lease_s))
            for shard in self._shards:
                shard.identify(configuration.cluster, deadline)
            if has_standby:
                self._renewals = Renewals(self._shards[0], self._leader, lease_s)
            self._storage: Storage = (
                self._shards[0] if count == 1 else ShardedStorage(self._shards, layout, admission=admission)
            )
        except BaseException:
            for shard in self._shards:
                shard.close()
            self._authority.close()
            raise
        self.meta: Meta = self._storage.meta
        for shard in self._shards:
            log.info("store, shard %d: %s", shard.shard, shard.summary())

    # -- opening ------------------------------------------------------------------------------------------------------

    def _take_over(
        self,
        address: RedisAddress,
        cluster_id: str,
        must_exist: bool,
        adopts: bool,
        timeout_s: float,
        deadline: float,
    ) -> Configuration:
        found = look_at(address.servers, timeout_s)
        facts = {name: each for name, each in found.items() if isinstance(each, Facts)}
        check_distinct(list(facts.values()))
        try:
            present = _certainly(self._authority.find, time.monotonic() if adopts else deadline)
        except StorageUnreachable:  # most voters have no memory
            if not adopts:
                raise
            present = None
        if present is None and any(each.cluster for each in facts.values()):
            if not adopts:
                raise self._authority_missing(facts)
            present = self._authority.begin(_adopted(address, found), adopts=True)
        if present is None:
            if must_exist:
                raise StorageMissing(
                    f"There is no store on {', '.join(found)}.",
                    "This service goes on with a cluster that exists, and these servers are empty.",
                    "name the servers of that cluster, or begin a new one.",
                )
            _check_empty(found)
            present = self._authority.begin(_first(address, cluster_id))
        if cluster_id and present.cluster != cluster_id:
            raise _other_cluster(self._authority.name, present.cluster, cluster_id)
        if len(present.shards) != len(address.shards):
            raise StorageError(
                f"The store has {len(present.shards)} shards, and its address names {len(address.shards)}.",
                "The rows of a shard that is not named could not be found.",
                "write the address that the store was begun with.",
            )
        for each in facts.values():
            if each.cluster and each.cluster != present.cluster:
                raise of_other_cluster(each, present.cluster)
        if present.epoch == 0:
            self._found(present, address, found, timeout_s)
        mine = present.taken_over(self._leader, self._reachable_at)
        answer = _certainly(lambda: self._authority.change(present, mine), deadline)
        if isinstance(answer, Refused):
            raise StorageFenced(
                "Another control service took the store over at the same time.",
                f"It is {answer.configuration.leader}, in epoch {answer.configuration.epoch}.",
                "let that one go on, or try again when it has ended.",
            )
        return answer.configuration

    def _authority_missing(self, facts: dict[MemberID, Facts]) -> AuthorityMissing:
        holders = ", ".join(name for name, each in facts.items() if each.cluster)
        return AuthorityMissing(
            f"There is a store on {holders}, and nothing in {self._authority.name}.",
            "That is where it is noted which servers have all of the store. Without it a server that was left behind "
            "could not be told from the others.",
            "name the directory that the store was begun with. If it is lost, adopt the store (--adopt-store): all "
            "servers of its newest chains have to answer for that.",
        )

    def _found(
        self,
        first: Configuration,
        address: RedisAddress,
        found: dict[MemberID, Facts | StorageError],
        timeout_s: float,
    ) -> None:
        """Write the cluster's name to servers that are empty. Repeated if an earlier attempt was interrupted."""
        for name, each in found.items():
            if isinstance(each, StorageError):
                raise each
            if not each.cluster:
                _check_empty({name: each})
        requests = Requests(first.cluster)
        for number, servers in enumerate(address.shards):
            members = first.shards[number].members
            note = Note(number, members, first.slots.hex()).encode()
            for server in servers:
                reply = as_reply(ask_once(server, requests.found(0, note), timeout_s))
                if reply.verdict is not Verdict.OK:
                    raise StorageError(
                        f"The store cannot be begun on {server.name}.",
                        f"It was empty a moment ago, and now answers {reply.verdict.value}.",
                        "see to it that one service at a time begins a store on these servers.",
                    )

    def _wait_for_lease(self, lease: SuccessorLease) -> None:
        """The leader before this one may answer reads until its lease is over. Until then nothing is acknowledged."""
        opens_at = lease.sealed(self._shards[0].own_row(RENEWAL_KEY), time.monotonic())
        self._shards[0].drive(lambda: False, opens_at)
        for shard in self._shards:
            if shard.error is not None:
                raise shard.error

    def _wait_open(self, deadline: float) -> None:
        poll = select.poll()
        for shard in self._shards:
            poll.register(shard.fileno(), select.POLLIN)
        while not all(shard.is_open for shard in self._shards):
            for shard in self._shards:
                if shard.error is not None:
                    raise shard.error
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                shard = next(shard for shard in self._shards if not shard.is_open)
                raise StorageUnreachable(
                    f"Shard {shard.shard} of the store cannot be opened.",
                    f"Too few of its servers are there: {shard.why_not_open()}.",
                    "start these servers, and look whether they can be reached from here.",
                )
            poll.poll(left_s * 1000)
            for shard in self._shards:
                shard.step()

    # -- the contract -------------------------------------------------------------------------------------------------

    @property
    def trouble(self) -> Trouble | None:
        return self._storage.trouble

    def fileno(self) -> int:
        return self._storage.fileno()

    def write(self, batch: Sequence[Operation], *, lazy: bool = False) -> int:
        return self._storage.write(batch, lazy=lazy)

    def completed(self) -> list[Done]:
        done = self._storage.completed()
        if not done and not self._has_told:
            error = next((shard.error for shard in self._shards if shard.error is not None), None)
            if error is not None:
                self._has_told = True
                return [Done(0, (), error)]
        return done

    def scan(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        return self._storage.scan(table, prefix)

    def tables(self) -> list[str]:
        return self._storage.tables()

    def flush(self, timeout_s: float) -> bool:
        return self._storage.flush(timeout_s)

    def close(self) -> None:
        self._storage.close()
        self._authority.close()

    # -- what is shown ------------------------------------------------------------------------------------------------

    @property
    def holds_lease(self) -> bool:
        """Whether no other service can have acknowledged a write: what is in memory may be answered from."""
        if self._renewals is not None:
            return self._renewals.holds()
        return all(shard.error is None for shard in self._shards)

    def describe(self) -> Description:
        return self._storage.describe()

    def status(self) -> StoreStatus:
        """As far as this service knows: no server is asked."""
        present = max((shard.chain.configuration for shard in self._shards), key=lambda each: each.epoch)
        layout = Layout(present.slots)
        return StoreStatus(
            engine="redis",
            cluster=present.cluster,
            incarnation=self.meta.incarnation,
            epoch=present.epoch,
            leader=present.leader,
            authority=self._authority.name,
            authority_trouble=next((str(s.authority_trouble) for s in self._shards if s.authority_trouble), None),
            absent_voters=list(self._authority.absent),
            slots=[len(layout.slots_of(number)) for number in range(layout.count)],
            shards=[shard.status() for shard in self._shards],
        )


def _certainly(ask: Callable[[], T], deadline: float) -> T:
    """Ask the authority until it answers: voters may be about to start."""
    while True:
        try:
            return ask()
        except StorageUnreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(AGAIN_S)


def _first(address: RedisAddress, cluster_id: str) -> Configuration:
    shards = tuple(ShardChain(0, tuple(server.name for server in servers)) for servers in address.shards)
    slots = Layout.of(len(shards)).shards
    return Configuration(cluster_id or secrets.token_hex(8), 0, LeaderID(""), "", shards, (), slots)


def _check_empty(found: dict[MemberID, Facts | StorageError]) -> None:
    """A store begins on servers that all answer, that are empty, and that copy no other."""
    for each in found.values():
        if isinstance(each, StorageError):
            raise each
        if each.role != "master":
            raise replica(each)
        if each.keys:
            raise not_empty(each)


# -- adoption ---------------------------------------------------------------------------------------------------------


def _adopted(address: RedisAddress, found: dict[MemberID, Facts | StorageError]) -> Configuration:
    """The configuration to go on with, from the notes that seals have left on the servers."""
    shards: list[ShardChain] = []
    epoch = 0
    cluster = slots = ""
    for number, servers in enumerate(address.shards):
        stamps: dict[MemberID, Stamp | None] = {}
        for server in servers:
            each = found[server.name]
            stamps[server.name] = None
            if isinstance(each, Facts) and each.stamp:
                sealed, _, text = each.stamp.partition(" ")
                note = msgspec.json.decode(text, type=Note)
                if note.shard != number:
                    raise StorageError(
                        f"The server {server.name} has shard {note.shard} of the store, and the address names it in "
                        f"shard {number}.",
                        "Each shard has rows of its own.",
                        "write the shards in the order in which the store was begun.",
                    )
                stamps[server.name] = Stamp(each.cluster, int(sealed), note.members)
                slots = note.slots
        try:
            newest = adopt(stamps)
        except AdoptionRefused as error:
            silent = [f"{name}: {each}" for name, each in found.items() if isinstance(each, StorageError)]
            raise AuthorityMissing(
                f"Shard {number} of the store cannot be adopted.",
                f"As it is, {error}" + (f" ({'; '.join(silent)})" if silent else ""),
                "start all servers of the newest chain, and name them in the address.",
            ) from error
        if cluster and newest.cluster != cluster:
            raise _other_cluster(f"shard {number}", newest.cluster, cluster)
        cluster = newest.cluster
        epoch = max(epoch, newest.epoch)
        shards.append(ShardChain(newest.epoch, newest.members))
    return Configuration(cluster, epoch + ADOPTION_GAP, LeaderID(""), "", tuple(shards), (), bytes.fromhex(slots))


def _other_cluster(what: str, found: str, wanted: str) -> StorageOfOtherCluster:
    error = StorageOfOtherCluster(
        f"The store of {what} belongs to another cluster.",
        f"It is that of cluster {found}, and this is cluster {wanted}.",
        "name the store of this cluster, or empty servers and another directory for a new cluster.",
    )
    error.found, error.wanted = found, wanted
    return error
