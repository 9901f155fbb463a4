"""How a store on Redis servers is begun, opened and adopted, and which servers are refused, each with its sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import redis_servers
from redis_load import Load
from redis_servers import KINDS, WITHIN_S, Server
from skate._control.storage import errors
from skate._control.storage.interface import Put
from skate._control.storage.redis.connection.address import parse
from skate._control.storage.redis.offline import differences, rows_of, survey, wipe
from skate._control.storage.redis.store import RedisStorage

pytestmark = pytest.mark.skipif(not KINDS, reason="no redis-server and no valkey-server")

#: A service that writes until it is killed, and says after each batch how many are acknowledged.
SERVICE = """
import sys
sys.path.insert(0, {tests!r})
from redis_load import Load
from skate._control.storage.redis.connection.address import parse
from skate._control.storage.redis.store import RedisStorage

storage = RedisStorage(parse({address!r}), {directory!r})
load = Load(storage, {written})
while True:
    load.run_more(1)
    print(load.acknowledged, flush=True)
"""


class Servers:
    def __init__(self) -> None:
        self.started: list[Server] = []

    def __call__(self, count: int, *options: str, kind: str = KINDS[-1] if KINDS else "") -> list[Server]:
        found = [Server(kind, *options) for _ in range(count)]
        self.started += found
        return found


@pytest.fixture
def servers() -> Iterator[Servers]:
    servers = Servers()
    yield servers
    for server in servers.started:
        server.thaw()
        server.end()


def opened(folder: Path, text: str, **options: Any) -> RedisStorage:
    options.setdefault("open_s", WITHIN_S)
    return RedisStorage(parse(text), folder, **options)


def refused(kind: type[errors.StorageError], folder: Path, text: str, **options: Any) -> str:
    """The error, which says what happened, why, and what to do; and no server was touched."""
    with pytest.raises(kind) as raised:
        opened(folder, text, **options).close()
    assert raised.value.what
    assert raised.value.why
    assert raised.value.next
    return str(raised.value)


# -- services that end ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2])
def test_a_store_is_whole_after_its_service_was_killed_again_and_again(
    servers: Servers, tmp_path: Path, count: int
) -> None:
    chain = servers(count)
    written = 0
    for round_ in range(4):
        program = SERVICE.format(
            tests=str(Path(__file__).parents[1]),
            address=redis_servers.address(chain),
            directory=str(tmp_path),
            written=written,
        )
        with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as service:
            assert service.stdout is not None
            acknowledged = [int(service.stdout.readline()) for _ in range(20 + 7 * round_)][-1]
            os.kill(service.pid, signal.SIGKILL)
            acknowledged = max([acknowledged, *[int(line) for line in service.stdout if line.endswith("\n")]])
        storage = opened(tmp_path, redis_servers.address(chain))
        try:
            rows = dict(storage.scan("load"))
            written = int(rows[b"counter"])
            assert written >= acknowledged
            assert rows == Load(storage).rows(written)
            assert all(server.rows("load") == rows for server in chain)
            assert storage.meta.incarnation == 2 * round_ + 2
        finally:
            storage.close()


# -- the authority ----------------------------------------------------------------------------------------------------


def test_a_store_without_its_authority_is_not_begun_again_and_can_be_adopted(servers: Servers, tmp_path: Path) -> None:
    chains = [servers(2), servers(2)]
    text = redis_servers.address(*chains)
    storage = opened(tmp_path / "first", text)
    load = Load(storage)
    load.run_more(20)
    chains[0][0].kill()
    load.run_more(20)
    load.end()
    meta = storage.meta
    storage.close()
    chains[0][0].start()

    assert chains[1][0].name in refused(errors.AuthorityMissing, tmp_path / "other", text)
    chains[1][1].freeze()
    missing = refused(errors.AuthorityMissing, tmp_path / "other", text, adopt=True, silence_s=0.3)
    assert chains[1][1].name in missing
    assert chains[0][1].name not in missing
    chains[1][1].thaw()

    # The server that was left behind is there, empty. Its chain of one knows itself to be the newest.
    storage = opened(tmp_path / "other", text, adopt=True)
    try:
        assert storage.meta.cluster_id == meta.cluster_id
        assert storage.meta.created_at == meta.created_at
        assert storage.meta.incarnation == meta.incarnation + 1
        load = Load(storage, load.written)
        load.run_more(20)
        load.end()
        assert dict(storage.scan("load")) == load.rows(load.written)
    finally:
        storage.close()


def test_a_beginning_that_was_interrupted_is_finished(servers: Servers, tmp_path: Path) -> None:
    chain = servers(2)
    text = redis_servers.address(chain)
    storage = opened(tmp_path, text)
    cluster = storage.meta.cluster_id
    storage.close()
    # As after a crash between the authority's first record and the second server.
    record = tmp_path / "authority.json"
    chain[0].call("FLUSHALL")
    chain[1].call("FLUSHALL")
    chain[0].call("HSET", "skate:meta", "cluster", cluster, "epoch", "0", "seq", "0", "trim", "0")
    first = record.read_bytes().replace(b'"epoch":1,', b'"epoch":0,')
    record.write_bytes(first)
    storage = opened(tmp_path, text)
    try:
        assert storage.meta.cluster_id == cluster
        Load(storage).run_more(5)
    finally:
        storage.close()


def test_a_directory_has_one_service(servers: Servers, tmp_path: Path) -> None:
    text = redis_servers.address(servers(1))
    storage = opened(tmp_path, text)
    try:
        refused(errors.StorageLocked, tmp_path, text)
    finally:
        storage.close()


def test_an_authority_that_cannot_be_read_is_no_reason_to_begin_anew(servers: Servers, tmp_path: Path) -> None:
    text = redis_servers.address(servers(1))
    opened(tmp_path, text).close()
    (tmp_path / "authority.json").write_bytes(b"{")
    assert "authority.json" in refused(errors.StorageCorrupt, tmp_path, text)


def test_a_store_that_should_exist_is_not_begun(servers: Servers, tmp_path: Path) -> None:
    text = redis_servers.address(servers(1))
    refused(errors.StorageMissing, tmp_path, text, must_exist=True)
    opened(tmp_path, text).close()
    opened(tmp_path, text, must_exist=True).close()


def test_a_store_keeps_its_number_of_shards(servers: Servers, tmp_path: Path) -> None:
    chains = [[server] for server in servers(2)]
    opened(tmp_path, redis_servers.address(*chains)).close()
    assert "2 shards" in refused(errors.StorageError, tmp_path, redis_servers.address(chains[0]))


# -- servers that are refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_may_drop_rows_is_refused(servers: Servers, tmp_path: Path, kind: str) -> None:
    (server,) = servers(1, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru", kind=kind)
    assert "maxmemory-policy noeviction" in refused(errors.ServerEvicts, tmp_path, redis_servers.address([server]))
    server.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    opened(tmp_path, redis_servers.address([server])).close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_in_cluster_mode_is_refused(servers: Servers, tmp_path: Path, kind: str) -> None:
    (server,) = servers(1, "--cluster-enabled", "yes", kind=kind)
    assert "cluster-enabled no" in refused(errors.ServerRedirects, tmp_path, redis_servers.address([server]))


def test_a_replica_is_refused(servers: Servers, tmp_path: Path) -> None:
    one, two = servers(2)
    two.call("REPLICAOF", "127.0.0.1", one.port)
    assert two.name in refused(errors.ServerIsReplica, tmp_path, redis_servers.address([one, two]))


def test_two_names_for_one_server_are_refused(servers: Servers, tmp_path: Path) -> None:
    (server,) = servers(1)
    text = f"redis://127.0.0.1:{server.port},localhost:{server.port}"
    assert "run id" in refused(errors.ServerNamedTwice, tmp_path, text)


def test_a_server_with_other_data_is_refused(servers: Servers, tmp_path: Path) -> None:
    one, two = servers(2)
    two.call("SET", "mine", "1")
    assert two.name in refused(errors.ServerNotEmpty, tmp_path, redis_servers.address([one, two]))
    assert two.call("GET", "mine") == b"1"
    storage = opened(tmp_path, redis_servers.address([one]))
    storage.close()
    storage = opened(tmp_path, redis_servers.address([one, two]))
    try:
        Load(storage).run(lambda: storage.status().shards[0].refused, "the new server to be refused")
        assert two.name in storage.status().shards[0].refused
    finally:
        storage.close()
    assert two.call("GET", "mine") == b"1"


def test_the_data_of_another_cluster_are_refused(servers: Servers, tmp_path: Path) -> None:
    one, two = servers(2)
    opened(tmp_path / "one", redis_servers.address([one]), cluster_id="one").close()
    opened(tmp_path / "two", redis_servers.address([two]), cluster_id="two").close()
    refused(errors.StorageOfOtherCluster, tmp_path / "one", redis_servers.address([two]))
    refused(errors.StorageOfOtherCluster, tmp_path / "one", redis_servers.address([one, two]))
    refused(errors.StorageOfOtherCluster, tmp_path / "one", redis_servers.address([one]), cluster_id="two")


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_password_is_refused_and_not_shown(servers: Servers, tmp_path: Path, kind: str) -> None:
    one, two = servers(2, "--requirepass", "right", kind=kind)
    text = f"redis://:%s@{one.name},{two.name}"
    for wrong in ("redis://" + one.name, text % "wr0ng"):
        assert "wr0ng" not in refused(errors.ServerKeepsOut, tmp_path, wrong)
    storage = opened(tmp_path, text % "right")
    try:
        load = Load(storage)
        load.run_more(10)
        two.kill()
        load.run_more(10)
        two.start()
        load.run(lambda: len(storage.status().shards[0].members) == 2, "the server to copy with the password")
        load.end()
    finally:
        storage.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("missing", ["replicaof", "config", "evalsha"])
def test_rights_that_are_missing_are_named(servers: Servers, tmp_path: Path, kind: str, missing: str) -> None:
    (server,) = servers(1, kind=kind)
    server.call("ACL", "SETUSER", "skate", "on", ">secret", "~skate:*", "+@all", f"-{missing}")
    text = f"redis://skate:secret@{server.name}"
    assert missing.upper() in refused(errors.ServerLacksRights, tmp_path, text)
    server.call("ACL", "SETUSER", "skate", f"+{missing}")
    storage = opened(tmp_path, text)
    storage.write([Put("t", b"k", b"v")])
    assert storage.flush(WITHIN_S)
    storage.close()


def test_servers_that_do_not_answer_are_named(servers: Servers, tmp_path: Path) -> None:
    one, two = servers(2)
    two.kill()
    assert two.name in refused(errors.StorageUnreachable, tmp_path, redis_servers.address([one, two]))
    two.start()
    opened(tmp_path, redis_servers.address([one, two])).close()
    one.kill()
    two.kill()
    text = refused(errors.StorageUnreachable, tmp_path, redis_servers.address([one, two]), open_s=0.5)
    assert one.name in text
    assert two.name in text


# -- from outside -----------------------------------------------------------------------------------------------------


def test_a_store_is_surveyed_compared_and_wiped(servers: Servers, tmp_path: Path) -> None:
    chain = servers(3)
    text = redis_servers.address(chain[:2])
    address = parse(redis_servers.address(chain))
    storage = opened(tmp_path, text, cluster_id="c")
    try:
        load = Load(storage)
        load.run_more(50)
        load.end()
        before = storage.status().shards[0].members[1].used_memory
        storage.write([Put("t", b"k", bytes(1 << 20))])
        assert storage.flush(WITHIN_S)
        storage.completed()
        load.run(lambda: storage.status().shards[0].members[1].used_memory >= before + (1 << 20), "the size to grow")
        load.end()
        found = survey(address, tmp_path)
        assert found.configuration is not None
        assert found.configuration.cluster == "c"
        assert [(report.is_member, report.cluster) for report in found.servers] == [
            (True, "c"),
            (True, "c"),
            (False, ""),
        ]
        assert found.problems == [f"{chain[2].name} is no member of shard 0."]
        with pytest.raises(errors.StorageLocked):
            wipe(address, tmp_path)
        assert Load(storage, load.written).rows(load.written) == dict(storage.scan("load"))
    finally:
        storage.close()
    members = parse(text).servers
    assert differences(members) == []
    rows = {key: value for table, key, value in rows_of(members[1]) if table == "load"}
    assert rows == load.rows(load.written)
    chain[1].call("HSET", "skate:rows:load", "counter", "7")
    assert ["counter" in line for line in differences(members)] == [True]

    with pytest.raises(errors.StorageOfOtherCluster):
        wipe(address, tmp_path, "d")
    chain[0].call("SET", "mine", "1")
    assert wipe(address, tmp_path, "c") == [server.name for server in chain]
    assert [server.call("DBSIZE") for server in chain] == [1, 0, 0]
    assert survey(address, tmp_path).configuration is None
    chain[0].call("DEL", "mine")
    opened(tmp_path, redis_servers.address(chain)).close()
