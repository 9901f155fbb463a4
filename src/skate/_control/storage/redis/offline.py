"""A store on Redis servers as seen from outside: by a command line, with its service running or not.

survey       who is there and what each has; changes nothing
rows_of      all rows of one server
differences  where members of a chain disagree; of use while nothing is written
wipe         delete the store from its servers

Nothing here seals a server, so no service is disturbed. `wipe` takes the lock of the directory, which a service holds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import hiredis
import msgspec

from skate._control.storage.directory import Directory
from skate._control.storage.errors import StorageError, StorageUnreachable
from skate._control.storage.redis.authority.file import FILE_NAME, read_record
from skate._control.storage.redis.authority.majority import MajorityAuthority, voters_of
from skate._control.storage.redis.connection.address import RedisAddress, Server
from skate._control.storage.redis.connection.handshake import Dialled, Facts, dial, look_at
from skate._control.storage.redis.connection.requests import LOG, META, ROWS, VOTE, packed
from skate._control.storage.redis.joiners import of_other_cluster
from skate._core.cluster.configuration import Configuration, LeaderID, MemberID

TIMEOUT_S = 2.0
SCAN_ROWS = 500


class ServerReport(msgspec.Struct, frozen=True):
    name: str
    #: The shard that the address names it in, and whether the authority has it as a member.
    shard: int
    is_member: bool
    #: Why it does not answer, or was refused.
    error: str
    #: What it says of itself: the cluster ("" if it holds none), its epoch and the last entry that it has.
    program: str
    version: str
    role: str
    cluster: str
    epoch: int
    seq: int
    used_memory: int
    maxmemory: int
    aof: str


class Survey(msgspec.Struct, frozen=True):
    #: What the authority says; None if there is none.
    configuration: Configuration | None
    servers: list[ServerReport]
    #: What an operator should know, a sentence each.
    problems: list[str]


def survey(
    address: RedisAddress,
    directory: str | os.PathLike[str] = "",
    *,
    has_standby: bool = False,
    witnesses: Sequence[Server] = (),
    timeout_s: float = TIMEOUT_S,
) -> Survey:
    configuration = _configuration(address, directory, has_standby, witnesses)
    found = look_at(address.servers, timeout_s, refuses=False)
    servers: list[ServerReport] = []
    problems: list[str] = (
        [] if configuration is not None else ["No authority says which servers have all of the store."]
    )
    for number, chain in enumerate(address.shards):
        members: Sequence[MemberID] = ()
        if configuration is not None and number < len(configuration.shards):
            members = configuration.shards[number].members
        for server in chain:
            each = found[server.name]
            report = _report(server.name, number, server.name in members, each)
            servers.append(report)
            if isinstance(each, StorageError):
                problems.append(each.what)
            elif configuration is not None and not report.is_member:
                problems.append(f"{server.name} is no member of shard {number}.")
            elif configuration is not None and each.cluster != configuration.cluster:
                holds = f"the data of cluster {each.cluster}" if each.cluster else "no data"
                problems.append(f"{server.name} holds {holds}.")
        named = {server.name for server in chain}
        problems += [f"{name} is a member of shard {number}, and not named." for name in members if name not in named]
    return Survey(configuration, servers, problems)


def _configuration(
    address: RedisAddress, directory: str | os.PathLike[str], has_standby: bool, witnesses: Sequence[Server]
) -> Configuration | None:
    if not has_standby:
        return read_record(os.path.join(os.fspath(directory), FILE_NAME))
    authority = MajorityAuthority(LeaderID(""), voters_of(address.servers, witnesses))
    try:
        return authority.newest_heard_of()
    finally:
        authority.close()


def _report(name: str, shard: int, is_member: bool, each: Facts | StorageError) -> ServerReport:
    facts = each if isinstance(each, Facts) else Facts(name)
    return ServerReport(
        name=name,
        shard=shard,
        is_member=is_member,
        error=str(each) if isinstance(each, StorageError) else "",
        program=facts.program,
        version=facts.version,
        role=facts.role,
        cluster=facts.cluster,
        epoch=facts.epoch,
        seq=facts.seq,
        used_memory=facts.used_memory,
        maxmemory=facts.maxmemory,
        aof=facts.aof,
    )


# -- rows -------------------------------------------------------------------------------------------------------------


class _Talk:
    """Requests on one connection, each answered before the next."""

    def __init__(self, server: Server, timeout_s: float) -> None:
        self._name = server.name
        self._dialled: Dialled = dial(server, timeout_s)
        self._dialled.sock.settimeout(timeout_s)
        self._reader = hiredis.Reader(notEnoughData=self)

    def ask(self, *words: str | bytes | int) -> Any:
        try:
            self._dialled.sock.sendall(packed(*words))
            while (answer := self._reader.gets()) is self:
                data = self._dialled.sock.recv(1 << 18)
                if not data:
                    raise OSError("it ended the connection")
                self._reader.feed(data)
        except OSError as error:
            raise StorageUnreachable(f"The server {self._name} does not answer.", f"{error}.") from error
        if isinstance(answer, hiredis.ReplyError):
            raise StorageError(f"The server {self._name} refuses {words[0]!r}.", f"It says: {answer}.")
        return answer

    def tables(self) -> list[str]:
        found: set[str] = set()
        cursor: bytes = b"0"
        while True:
            cursor, names = self.ask("SCAN", cursor, "MATCH", f"{ROWS}*", "COUNT", SCAN_ROWS)
            found.update(name.decode()[len(ROWS) :] for name in names)
            if cursor == b"0":
                return sorted(found)

    def close(self) -> None:
        self._dialled.close()


def rows_of(server: Server, timeout_s: float = TIMEOUT_S) -> Iterator[tuple[str, bytes, bytes]]:
    """Table, key and value of all rows, the storage's own (in the table "") among them; in no order.

    While a service writes, a row may come as it was or as it is. A row that was there all the time comes at least once.
    """
    talk = _Talk(server, timeout_s)
    try:
        for table in talk.tables():
            cursor: bytes = b"0"
            while True:
                cursor, flat = talk.ask("HSCAN", ROWS + table, cursor, "COUNT", SCAN_ROWS)
                yield from ((table, key, value) for key, value in zip(flat[::2], flat[1::2]))
                if cursor == b"0":
                    break
    finally:
        talk.close()


def differences(chain: Sequence[Server], timeout_s: float = TIMEOUT_S) -> list[str]:
    """Rows that not all of these servers have with the same value, a sentence each."""
    held = [{(table, key): value for table, key, value in rows_of(server, timeout_s)} for server in chain]
    found: list[str] = []
    for row in sorted({row for rows in held for row in rows}):
        values = [rows.get(row) for rows in held]
        if len(set(values)) > 1:
            told = [f"{server.name}: {_told(value)}" for server, value in zip(chain, values)]
            found.append(f"The key {row[1]!r} of the table {row[0]!r} differs ({', '.join(told)}).")
    return found


def _told(value: bytes | None) -> str:
    return "no row" if value is None else f"{len(value)} bytes"


# -- the end ----------------------------------------------------------------------------------------------------------


def wipe(
    address: RedisAddress,
    directory: str | os.PathLike[str],
    cluster_id: str = "",
    *,
    witnesses: Sequence[Server] = (),
    timeout_s: float = TIMEOUT_S,
) -> list[str]:
    """Delete the store: from the servers, which all have to answer, and the authority's file. Returns their names.

    cluster_id: refuse to delete another cluster's store. Keys that are not Skate's stay. Raises StorageLocked while a
    service has the directory; a service whose authority is a majority is not noticed, and ends with StorageLost.
    """
    lock = Directory(os.fspath(directory))
    try:
        servers = voters_of(address.servers, witnesses)
        found = look_at(servers, timeout_s)
        for each in found.values():
            if isinstance(each, StorageError):
                raise each
            if cluster_id and each.cluster not in ("", cluster_id):
                raise of_other_cluster(each, cluster_id)
        for server in servers:
            talk = _Talk(server, timeout_s)
            try:
                talk.ask("REPLICAOF", "NO", "ONE")
                talk.ask("DEL", META, LOG, VOTE, *[ROWS + table for table in talk.tables()])
            finally:
                talk.close()
        path = os.path.join(lock.path, FILE_NAME)
        if os.path.exists(path):
            os.remove(path)
        return list(found)
    finally:
        lock.close()
