"""The first words with a server: who it is, whether it lets us in, whether it can keep a part of the store.

redis-py connects: names, TLS, users and passwords. What it leaves is a socket on which all later requests are made
(`wire.py`). All of this blocks, so it runs as an errand (`poller.py`).

Owns:      the sentences on why a server is refused.
Knows not: chains. Whether a replica or a full server is an error depends on who asks.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any

import hiredis
import msgspec
import redis
from redis.connection import Connection, SSLConnection

from skate._control.storage.errors import (
    ServerEvicts,
    ServerIsReplica,
    ServerKeepsOut,
    ServerLacksRights,
    ServerNamedTwice,
    ServerRedirects,
    ServerRefused,
    ServerTooOld,
    StorageError,
    StorageUnreachable,
)
from skate._control.storage.redis.connection.address import Server
from skate._control.storage.redis.connection.requests import LOADS, META, SHAS, VOTE
from skate._core.cluster.configuration import MemberID

VERSION_MIN = (6, 0)


class Facts(msgspec.Struct, frozen=True):
    """What a server says of itself."""

    name: str
    run_id: str = ""
    #: "redis" or "valkey", and its version.
    program: str = ""
    version: str = ""
    mode: str = "standalone"
    role: str = "master"
    is_loading: bool = False
    maxmemory: int = 0
    maxmemory_policy: str = "noeviction"
    used_memory: int = 0
    #: When changes reach its disk: "always" (before it answers), "everysec", "no"; "off" without a log of changes.
    aof: str = "off"
    #: The server that it copies.
    source: str = ""
    #: Keys in all of its databases, without that of a voter; and whether there are any that Skate did not write.
    keys: int = 0
    is_foreign: bool = False
    #: What `meta` says: cluster, epoch, seq, stamp; empty if the server keeps no part of any store.
    cluster: str = ""
    epoch: int = 0
    seq: int = 0
    stamp: str = ""


class Dialled:
    """A connection that was made."""

    def __init__(self, sock: socket.socket, facts: Facts) -> None:
        self.sock = sock
        self.facts = facts

    def close(self) -> None:
        self.sock.close()


def dial(server: Server, timeout_s: float, *, check_rights: bool = False) -> Dialled:
    """Connect. Raises ServerRefused or StorageUnreachable."""
    options: dict[str, Any] = {
        "host": server.host,
        "port": server.port,
        "protocol": 2,
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
    }
    if server.password:
        options |= {"username": server.username or None, "password": server.password}
    tls: dict[str, Any] = dict(server.tls_options)
    if "ssl_check_hostname" in tls:
        tls["ssl_check_hostname"] = tls["ssl_check_hostname"].lower() in ("1", "true", "yes")
    connection = SSLConnection(**options, **tls) if server.is_tls else Connection(**options)
    try:
        connection.connect()
        facts = _ask(connection, server)
        _check(facts)
        if check_rights and facts.role == "master":
            _check_rights(connection, server)
        _load_scripts(connection, server)
    except redis.AuthenticationError as error:
        connection.disconnect()
        raise _kept_out(server, error) from error
    except (redis.RedisError, OSError) as error:
        connection.disconnect()
        raise _explained(server, error) from error
    except StorageError:
        connection.disconnect()
        raise
    sock: socket.socket = connection._sock
    connection._sock = None  # it is ours now: redis-py would close it with its own object
    connection.disconnect()
    sock.setblocking(False)
    return Dialled(sock, facts)


def look_at(
    servers: Sequence[Server], timeout_s: float, *, refuses: bool = True
) -> dict[MemberID, Facts | StorageError]:
    """What each server says of itself; at the same time, because one may be silent. Raises what is refused.

    refuses: False: a refusal is the answer of that server.
    """
    found: dict[MemberID, Facts | StorageError] = {}
    broken: list[Exception] = []

    def look(server: Server) -> None:
        try:
            dialled = dial(server, timeout_s, check_rights=True)
        except StorageError as error:
            found[server.name] = error
        except Exception as error:  # noqa: BLE001 - raised below, in the thread that asked
            broken.append(error)
        else:
            dialled.close()
            found[server.name] = dialled.facts

    threads = [threading.Thread(target=look, args=(server,), name="skate-storage-look") for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]
    ordered = {server.name: found[server.name] for server in servers}
    for each in ordered.values():
        if refuses and isinstance(each, StorageError) and not isinstance(each, StorageUnreachable):
            raise each
    return ordered


def ask_once(server: Server, request: bytes, timeout_s: float) -> Any:
    """One request, on a connection of its own. Raises StorageError."""
    dialled = dial(server, timeout_s)
    try:
        dialled.sock.settimeout(timeout_s)
        dialled.sock.sendall(request)
        reader = hiredis.Reader(notEnoughData=dialled)
        while (answer := reader.gets()) is dialled:
            data = dialled.sock.recv(1 << 16)
            if not data:
                raise OSError("it ended the connection")
            reader.feed(data)
    except OSError as error:
        raise StorageUnreachable(f"The server {server.name} does not answer.", f"{error}.") from error
    finally:
        dialled.close()
    return answer


def _call(connection: Connection, *words: str | bytes | int) -> Any:
    connection.send_command(*words)
    return connection.read_response()


def _ask(connection: Connection, server: Server) -> Facts:
    info = _fields(_call(connection, "INFO"))
    keys = sum(int(value.split(",")[0].removeprefix("keys=")) for name, value in info.items() if _is_database(name))
    facts = Facts(
        name=server.name,
        run_id=info.get("run_id", ""),
        program="valkey" if "valkey_version" in info else "redis",
        version=info.get("valkey_version") or info.get("redis_version", "0"),
        mode=info.get("server_mode") or info.get("redis_mode", "standalone"),
        role=info.get("role", "master"),
        is_loading=info.get("loading", "0") != "0",
        maxmemory=int(info.get("maxmemory", "0")),
        maxmemory_policy=info.get("maxmemory_policy", "noeviction"),
        used_memory=int(info.get("used_memory", "0")),
        aof=_fsync(connection) if info.get("aof_enabled") == "1" else "off",
        source=f"{info.get('master_host', '')}:{info.get('master_port', '')}",
        keys=keys,
    )
    if facts.is_loading:
        raise StorageUnreachable(f"The server {server.name} is loading its data.", "It takes no requests meanwhile.")
    if facts.mode != "standalone":
        return facts  # it may refuse to be asked for a key
    cluster, epoch, seq, stamp = _call(connection, "HMGET", META, "cluster", "epoch", "seq", "stamp")
    if cluster is None:
        keys -= int(_call(connection, "EXISTS", VOTE))
        return msgspec.structs.replace(facts, keys=keys, is_foreign=keys > 0 and _has_other_keys(connection, info))
    return msgspec.structs.replace(
        facts, cluster=cluster.decode(), epoch=int(epoch), seq=int(seq), stamp=(stamp or b"").decode()
    )


def _fields(info: bytes) -> dict[str, str]:
    lines = [line.partition(":") for line in info.decode(errors="replace").splitlines()]
    return {name: value for name, colon, value in lines if colon}


def sizes_in(info: bytes) -> tuple[int, int]:
    """The memory that a server uses, and what it may use (0: any)."""
    fields = _fields(info)
    return int(fields.get("used_memory", "0")), int(fields.get("maxmemory", "0"))


def _fsync(connection: Connection) -> str:
    try:
        _, value = _call(connection, "CONFIG", "GET", "appendfsync")
    except (redis.ResponseError, ValueError):
        return "unknown"
    return str(value.decode())


def _is_database(name: str) -> bool:
    return name.startswith("db") and name[2:].isdigit()


def _has_other_keys(connection: Connection, info: dict[str, str]) -> bool:
    """Ours are few, one for each table, and all in the first database. (A copy that was given up leaves some.)"""
    if any(_is_database(name) and name != "db0" for name in info):
        return True
    cursor = b"0"
    while True:
        cursor, names = _call(connection, "SCAN", cursor, "COUNT", 1000)
        if any(not name.startswith(b"skate:") for name in names):
            return True
        if cursor == b"0":
            return False


def _load_scripts(connection: Connection, server: Server) -> None:
    for load, sha in zip(LOADS, SHAS):
        connection.send_packed_command([load])
        if connection.read_response().decode() != sha:
            raise StorageUnreachable(f"The server {server.name} names a script by another checksum.")


# -- refusals ---------------------------------------------------------------------------------------------------------


def _refused(kind: type[ServerRefused], server: str, what: str, why: str, next: str) -> ServerRefused:
    error = kind(what, why, next)
    error.server = server
    return error


def _check(facts: Facts) -> None:
    """Refuse a server that can keep no part of any store."""
    name = facts.name
    version = tuple(int(part) for part in facts.version.split(".")[:2] if part.isdigit())
    if facts.mode != "standalone":
        raise _refused(
            ServerRedirects,
            name,
            f"The server {name} cannot keep a part of the store: it runs in {facts.mode} mode.",
            "Redis Cluster moves keys and redirects requests, and loses acknowledged writes when a node fails; a "
            "Sentinel keeps no data.",
            "name servers that run alone (cluster-enabled no). Skate spreads and copies the data itself.",
        )
    if version < VERSION_MIN:
        raise _refused(
            ServerTooOld,
            name,
            f"The server {name} is {facts.program} {facts.version}.",
            f"Skate needs version {VERSION_MIN[0]} or later.",
            "bring in a later version of Redis, or Valkey.",
        )
    if facts.maxmemory and facts.maxmemory_policy != "noeviction":
        raise _refused(
            ServerEvicts,
            name,
            f"The server {name} may drop rows of the store.",
            f"Its maxmemory is {facts.maxmemory} bytes and its maxmemory-policy is {facts.maxmemory_policy}: when its "
            "memory is full it deletes keys by itself.",
            "set `maxmemory-policy noeviction` there; when its memory is full writes are then refused, and wait.",
        )


def replica(facts: Facts) -> ServerRefused:
    return _refused(
        ServerIsReplica,
        facts.name,
        f"The server {facts.name} is a replica of another server.",
        "What it holds is that server's, and it takes no writes.",
        "name servers that replicate from no other (`REPLICAOF NO ONE`, and no `replicaof` in the configuration file). "
        "Skate copies the data itself.",
    )


def check_distinct(found: Sequence[Facts]) -> None:
    """Two names for one server: it would be two members, and fail as one."""
    names: dict[str, str] = {}
    for facts in found:
        other = names.setdefault(facts.run_id, facts.name)
        if other != facts.name:
            raise _refused(
                ServerNamedTwice,
                facts.name,
                f"{other} and {facts.name} are one server.",
                f"Both have the run id {facts.run_id}. Its data would be counted as two copies, and lost together.",
                "name each server once, or start another one.",
            )


def _kept_out(server: Server, error: Exception) -> ServerRefused:
    user = server.username or "default"
    given = (
        f"the user {user} with the password that was given" if server.password else "a connection without a password"
    )
    return _refused(
        ServerKeepsOut,
        server.name,
        f"The server {server.name} refuses {given}.",
        f"It says: {error}.",
        "write redis://USER:PASSWORD@HOST in the store's address, best in a file (--store @FILE) or in SKATE_STORE.",
    )


#: One request of each kind that is made, with as many arguments as it needs: it is queued and never run.
_NEEDED: tuple[tuple[str | bytes | int, ...], ...] = (
    ("EVALSHA", SHAS[0], 2, META, "skate:log"),
    ("EVAL", "return 1", 2, META, "skate:log"),
    ("HMGET", META, "cluster"),
    ("HSCAN", "skate:rows:", 0),
    ("SCAN", 0),
    ("DEL", META),
    ("INFO",),
    ("CONFIG", "GET", "maxmemory"),
    ("REPLICAOF", "NO", "ONE"),
)


def _check_rights(connection: Connection, server: Server) -> None:
    """A server checks the rights of a command when it is queued in a transaction. The transaction is discarded.

    Not for a replica, which refuses the writes of every user.
    """
    refused: list[str] = []
    why = ""
    _call(connection, "MULTI")
    for words in _NEEDED:
        try:
            _call(connection, *words)
        except redis.ResponseError as error:
            refused.append(str(words[0]))
            why = why or str(error)
    _call(connection, "DISCARD")
    if refused:
        raise _refused(
            ServerLacksRights,
            server.name,
            f"The server {server.name} does not let us use {', '.join(refused)}.",
            f"It says: {why}.",
            "give the user these rights: `ACL SETUSER NAME on >PASSWORD ~skate:* +@all`. Services that rename or "
            "forbid REPLICAOF and CONFIG cannot be members of a chain.",
        )


def _explained(server: Server, error: Exception) -> StorageUnreachable | ServerRefused:
    text = str(error)
    if isinstance(error, redis.ResponseError) and any(word in text.upper() for word in ("NOAUTH", "AUTH", "WRONGPASS")):
        return _kept_out(server, error)
    if isinstance(error, redis.exceptions.NoPermissionError):
        return _refused(
            ServerLacksRights,
            server.name,
            f"The server {server.name} does not let us ask it who it is.",
            f"It says: {text}.",
            "give the user these rights: `ACL SETUSER NAME on >PASSWORD ~skate:* +@all`.",
        )
    unreachable = StorageUnreachable(
        f"The server {server.name} does not answer.", f"{text}.", "look whether it runs and can be reached from here."
    )
    unreachable.is_refused = isinstance(error.__context__, ConnectionRefusedError)
    return unreachable
