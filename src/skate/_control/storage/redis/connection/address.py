"""The address of a store on Redis servers, as a user types it.

    redis://h1,h2,h3;redis://h4,h5,h6      two shards, each a chain of three servers, head first
    rediss://app:secret@h1:6380,h2         TLS, a user and a password; both servers take them
    redis://:one@h1,:two@h2                a password for each
    rediss://h1?ssl_ca_certs=/etc/ca.pem   options of TLS, by their names in redis-py

A server without a scheme or a user takes those of the server before it. Characters that mean something here, in a
password most of all, are written as %XX.

Pure. Knows not: what runs at an address.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

import msgspec

from skate._control.storage.errors import StorageAddressError
from skate._control.storage.slots import SLOTS
from skate._core.cluster.configuration import MemberID

PORT = 6379
SCHEMES = ("redis://", "rediss://")
TLS_OPTIONS = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")

_SERVER = re.compile(r"(?:(?P<user>[^@]*)@)?(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\[\]:@/?#]+)(?::(?P<port>[0-9]+))?")


class Server(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Where one server is, and how to be let in."""

    host: str
    port: int = PORT
    username: str = ""
    password: str = ""
    is_tls: bool = False
    tls_options: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> MemberID:
        """The name that the configuration of the cluster, log lines and errors have. It shows no password."""
        return MemberID(f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}")

    def __repr__(self) -> str:
        return f"Server({self.name})"

    def with_name(self, name: MemberID) -> Server:
        """Another server, reached with the user, the password and the TLS options of this one."""
        host, _, port = name.rpartition(":")
        return msgspec.structs.replace(self, host=host.strip("[]"), port=int(port))


class RedisAddress(msgspec.Struct, frozen=True):
    #: The servers of each shard, in the order of the chain.
    shards: tuple[tuple[Server, ...], ...]

    @property
    def servers(self) -> tuple[Server, ...]:
        return tuple(server for shard in self.shards for server in shard)


def is_redis(address: str) -> bool:
    return address.lstrip().startswith(SCHEMES)


def parse(address: str) -> RedisAddress:
    shards: list[tuple[Server, ...]] = []
    before: Server | None = None
    for part in address.strip().split(";"):
        servers: list[Server] = []
        body, _, query = part.strip().partition("?")
        for item in body.split(","):
            before = _server(item.strip(), before, tuple(parse_qsl(query)), len(shards) + 1)
            servers.append(before)
        shards.append(tuple(servers))
    if len(shards) > SLOTS:
        raise _wrong(f"It has {len(shards)} shards, and a store has at most {SLOTS}.")
    found = RedisAddress(tuple(shards))
    names = [server.name for server in found.servers]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise _wrong(
            f"It names the server {twice} twice.", "name each server once: a copy beside its original is none."
        )
    return found


def _server(item: str, before: Server | None, options: tuple[tuple[str, str], ...], shard: int) -> Server:
    scheme = next((scheme for scheme in SCHEMES if item.startswith(scheme)), "")
    if not scheme and "://" in item:
        raise _wrong(f"Shard {shard} begins with {item.partition('://')[0]}://.", "write redis:// or rediss://.")
    if not scheme and before is None:
        raise _wrong("It does not begin with redis:// or rediss://.")
    rest = item[len(scheme) :]
    found = _SERVER.match(rest)
    if found is None:
        raise _wrong(f"Shard {shard} has a server without a name.", "write redis://HOST:PORT,HOST:PORT.")
    if found.end() != len(rest):
        if rest[found.end()] == "/":
            raise _wrong(
                f"The server {found['host']} is followed by a database or a path.",
                "leave it out: the whole server belongs to the store, because replication copies all its databases.",
            )
        raise _wrong(f"The server {found['host']} of shard {shard} is followed by what is not a port.")
    port = int(found["port"] or PORT)
    if not 0 < port < 65536:
        raise _wrong(f"The server {found['host']} has the port {port}.", "write a port from 1 to 65535.")
    username, password = "", ""
    if found["user"] is not None:
        name, _, secret = found["user"].partition(":")
        username, password = unquote(name), unquote(secret)
        if username and not password:
            raise _wrong(f"The server {found['host']} has a user and no password.", "write USER:PASSWORD@HOST.")
    elif not scheme and before is not None:
        username, password = before.username, before.password
    is_tls = scheme == "rediss://" if scheme or before is None else before.is_tls
    if options and not is_tls:
        raise _wrong(f"Shard {shard} has options of TLS and no TLS.", "write rediss:// to encrypt, or leave them out.")
    if unknown := [name for name, _ in options if name not in TLS_OPTIONS]:
        raise _wrong(f"Shard {shard} has the option {unknown[0]}.", f"there are {', '.join(TLS_OPTIONS)}.")
    if not options and not scheme and before is not None:
        options = before.tls_options
    return Server(found["host"].strip("[]"), port, username, password, is_tls, options)


def _wrong(why: str, next: str = "") -> StorageAddressError:
    example = "an address is like redis://h1,h2,h3;redis://h4,h5,h6: shards by `;`, the servers of a chain by `,`."
    return StorageAddressError("The address of the store cannot be read.", why, next or example)
