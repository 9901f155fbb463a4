"""From what the user typed to a storage: the one place that knows all engines.

    memory                  rows that end with their process
    DIR, /some/where        SQLite in that directory
    redis://…, rediss://…   servers of Redis or Valkey, by shard and chain (`address.py`)
    @FILE                   any of these, read from a file; SKATE_STORE has the same
    nothing                 SKATE_STORE; without it SQLite in the directory that the caller names

Addresses hold passwords, and every process of a machine can read the arguments of every other: so a file or the
environment, and the file should belong to its user alone.

An engine is imported when it is opened: SQLite and the client of Redis cost time and memory.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from skate._control.storage.errors import StorageAddressError, StorageError
from skate._control.storage.interface import Storage
from skate._control.storage.redis.connection.address import is_redis, parse

if TYPE_CHECKING:
    from skate._control.storage.redis.authority.leadership import Standby

log = logging.getLogger("skate")

VARIABLE = "SKATE_STORE"
MEMORY = "memory"
FILE_BYTES_MAX = 1 << 16


def address_of(store: str = "", environ: Mapping[str, str] = os.environ) -> str:
    """The address that `store` stands for: files are read and the environment is looked at. "": none was given."""
    address = store.strip() or environ.get(VARIABLE, "").strip()
    if not address.startswith("@"):
        return address
    path = address[1:]
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(FILE_BYTES_MAX)
            mode = os.fstat(file.fileno()).st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise StorageAddressError(
            f"The file {path} cannot be read.",
            f"It should hold the address of the store: {getattr(error, 'strerror', None) or error}.",
            "name a file with one line, like redis://USER:PASSWORD@h1,h2,h3.",
        ) from error
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) != 1 or lines[0].startswith("@"):
        raise StorageAddressError(
            f"The file {path} does not hold the address of a store.",
            f"It has {len(lines)} lines, and should have one. Lines that begin with # do not count.",
            "write one line, like redis://USER:PASSWORD@h1,h2,h3.",
        )
    if mode & 0o077:
        log.warning("other users of this machine can read %s, which may hold passwords: chmod 600 it", path)
    return lines[0]


def open_storage(
    store: str = "",
    *,
    directory: str | os.PathLike[str],
    cluster_id: str = "",
    must_exist: bool = False,
    adopt: bool = False,
    members_min: int = 1,
    has_standby: bool = False,
    witnesses: str = "",
    standby: Standby | None = None,
    reachable_at: str = "",
    environ: Mapping[str, str] = os.environ,
) -> Storage:
    """Open or begin the store that `store` names. Raises StorageError.

    directory:   of the head: where SQLite has its file if `store` names no other directory, and where a store on Redis
                 servers notes which of them have all of it.
    cluster_id:  the cluster that the store has to belong to. "": the one that is there; a new store makes one up.
    must_exist:  refuse to begin a store.
    adopt:       go on with a store on Redis servers although `directory` was lost.
    members_min: a chain of Redis servers waits rather than go on with fewer.
    has_standby: other services may take over a store on Redis servers: the servers decide who leads, three at least.
    witnesses:   addresses of servers that only vote, as redis://w1,w2.
    standby:     what has waited for the leader before this service (`stand_by`).
    reachable_at: where others find this service, for those that look who leads.
    """
    address = address_of(store, environ)
    if is_redis(address):
        servers = parse(address)
        voters = parse(witnesses).servers if witnesses else ()
        _check_client()
        from skate._control.storage.redis.store import RedisStorage

        return RedisStorage(
            servers,
            directory,
            cluster_id,
            must_exist=must_exist,
            adopt=adopt,
            members_min=members_min,
            has_standby=has_standby,
            witnesses=voters,
            standby=standby,
            reachable_at=reachable_at,
        )
    if has_standby:
        raise StorageError(
            "A standby needs a store on Redis servers.",
            "It could not reach what is on the disk or in the memory of the machine that is gone.",
            "name servers (--store redis://h1,h2,h3), or leave out --standby.",
        )
    if "://" in address:
        raise StorageAddressError(
            "The address of the store cannot be read.",
            f"It begins with {address.partition('://')[0]}://, which is no engine.",
            f"write redis:// or rediss://, a directory, or {MEMORY}.",
        )
    if address == MEMORY:
        from skate._control.storage.memory import MemoryStorage

        return MemoryStorage(cluster_id)
    from skate._control.storage.sqlite import SqliteStorage

    return SqliteStorage(os.path.expanduser(address) or directory, cluster_id, must_exist=must_exist)


def stand_by(store: str = "", *, witnesses: str = "", environ: Mapping[str, str] = os.environ) -> Standby:
    """What waits for the leader of a store on Redis servers to be gone: call `wait`, then `open_storage` with it."""
    address = address_of(store, environ)
    servers = parse(address)
    voters = parse(witnesses).servers if witnesses else ()
    _check_client()
    from skate._control.storage.redis.authority.leadership import Standby

    return Standby(servers, voters)


def _check_client() -> None:
    for package in ("redis", "hiredis"):
        if importlib.util.find_spec(package) is None:
            raise StorageError(
                "A store on Redis servers cannot be opened.",
                f"The package {package} is not installed where the control service runs.",
                "pip install 'skate[redis]'",
            )
