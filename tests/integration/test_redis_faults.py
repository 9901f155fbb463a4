"""Servers that die, freeze, forget and come back while a store writes to them: every acknowledged write is there."""

from __future__ import annotations

import functools
import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import redis_servers
from redis_load import Load
from redis_servers import KINDS, WITHIN_S, Server
from skate._control.ledger import Ledger
from skate._control.storage.errors import StorageError, StorageFenced, StorageLost, StorageUnreachable
from skate._control.storage.interface import Put
from skate._control.storage.redis.connection.address import parse
from skate._control.storage.redis.store import RedisStorage
from skate._wire.loop import EventLoop
from waiting import wait_for

#: Long enough for servers on a machine that has much else to do.
SILENCE_S = 0.8

pytestmark = pytest.mark.skipif(not KINDS, reason="no redis-server and no valkey-server")


@pytest.fixture
def servers() -> Iterator[Callable[..., list[Server]]]:
    """Starts servers, which end with the test."""
    started: list[Server] = []

    def start(count: int, *options: str, kind: str = KINDS[-1] if KINDS else "") -> list[Server]:
        found = [Server(kind, *options) for _ in range(count)]
        started.extend(found)
        return found

    yield start
    for server in started:
        server.thaw()
        server.end()


@contextmanager
def opened(folder: Path, *chains: list[Server], **options: Any) -> Iterator[RedisStorage]:
    options.setdefault("silence_s", SILENCE_S)
    storage = RedisStorage(parse(redis_servers.address(*chains)), folder / "store", **options)
    try:
        yield storage
    finally:
        storage.close()


def members(storage: RedisStorage) -> list[str]:
    return [member.name for member in storage.status().shards[0].members]


def has_members(storage: RedisStorage, *servers: Server) -> bool:
    return sorted(members(storage)) == sorted(server.name for server in servers)


#: Each place in the chain, and every kind of server.
PLACES = [(place, KINDS[number % len(KINDS)]) for number, place in enumerate((0, 1, 2)) if KINDS]


@pytest.mark.parametrize(("place", "kind"), PLACES)
def test_a_member_that_is_killed_is_cut_out_and_comes_back(
    servers: Callable[..., list[Server]], tmp_path: Path, place: int, kind: str
) -> None:
    chain = servers(3, kind=kind)
    victim = chain[place]
    with opened(tmp_path, chain) as storage:
        load = Load(storage)
        load.run_more(50)
        victim.kill()
        load.run_more(50)
        others = [server for server in chain if server is not victim]
        assert members(storage) == [server.name for server in others]
        load.check(*others)
        victim.restart_empty()
        load.run(lambda: victim.name in members(storage), "the server to be a member again")
        load.run_more(20)
        assert members(storage)[-1] == victim.name
        load.check(*chain)
        assert len(storage.status().shards[0].changes) == 2


@pytest.mark.parametrize(("place", "kind"), PLACES)
def test_a_member_that_is_frozen_is_cut_out_and_comes_back(
    servers: Callable[..., list[Server]], tmp_path: Path, place: int, kind: str
) -> None:
    chain = servers(3, kind=kind)
    victim = chain[place]
    with opened(tmp_path, chain) as storage:
        load = Load(storage)
        load.run_more(20)
        victim.freeze()
        load.run_more(50)
        assert victim.name not in members(storage)
        victim.thaw()
        load.run(lambda: victim.name in members(storage), "the server to be a member again")
        load.run_more(20)
        load.check(*chain)


@pytest.mark.parametrize("kind", KINDS)
def test_a_member_that_returns_with_old_data_is_not_believed(
    servers: Callable[..., list[Server]], tmp_path: Path, kind: str
) -> None:
    chain = servers(2, kind=kind)
    with opened(tmp_path, chain) as storage:
        load = Load(storage)
        for victim, other in ((chain[0], chain[1]), (chain[1], chain[0])):
            load.run_more(20)
            victim.call("SAVE")
            load.run_more(20)
            victim.kill()
            victim.start()
            assert victim.meta(), "it has what it saved"
            load.run(functools.partial(has_members, storage, other), "it to be cut out")
            load.run(functools.partial(has_members, storage, *chain), "it to come back")
        load.check(*chain)


def test_a_member_that_is_flushed_copies_the_others(servers: Callable[..., list[Server]], tmp_path: Path) -> None:
    chain = servers(2)
    with opened(tmp_path, chain) as storage:
        load = Load(storage)
        load.run_more(20)
        chain[0].call("FLUSHALL")
        load.run(lambda: members(storage) == [chain[1].name, chain[0].name], "the server to be a member again")
        load.run_more(20)
        load.check(*chain)


@pytest.mark.parametrize("count", [1, 2])
def test_a_store_whose_servers_were_all_flushed_ends_and_says_so(
    servers: Callable[..., list[Server]], tmp_path: Path, count: int
) -> None:
    chain = servers(count)
    with opened(tmp_path, chain) as storage:
        load = Load(storage)
        load.run_more(20)
        load.end()
        for server in chain:
            server.call("FLUSHALL")
        number = storage.write([Put("t", b"k", b"v")])
        assert storage.flush(WITHIN_S)
        (done,) = storage.completed()
        assert done.number == number
        assert isinstance(done.error, StorageLost)
        assert "FLUSHALL" in str(done.error)
        with pytest.raises(StorageLost):
            storage.write([Put("t", b"k", b"v")])
    with pytest.raises(StorageLost), opened(tmp_path, chain):
        pass


def test_new_servers_join_while_writes_go_on(servers: Callable[..., list[Server]], tmp_path: Path) -> None:
    chain = servers(3)
    with opened(tmp_path, chain[:1]) as storage:
        for at in range(0, 20_000, 200):
            storage.write([Put("many", b"%d" % number, bytes(100)) for number in range(at, at + 200)])
        assert storage.flush(WITHIN_S)
        storage.completed()
        load = Load(storage)
        load.run_more(50)
        load.end()
    with opened(tmp_path, chain) as storage:
        load = Load(storage, load.written)
        load.run(lambda: has_members(storage, *chain), "both servers to be members")
        load.run_more(50)
        load.check(*chain)
        assert len(chain[2].rows("many")) == 20_000


def test_a_service_that_was_overtaken_is_fenced(servers: Callable[..., list[Server]], tmp_path: Path) -> None:
    chain = servers(2)
    with opened(tmp_path, chain) as older:
        load = Load(older)
        load.run_more(20)
        load.end()
        with opened(tmp_path / "elsewhere", chain, adopt=True) as newer:
            assert newer.meta.cluster_id == older.meta.cluster_id
            assert newer.meta.incarnation == older.meta.incarnation + 1
            later = Load(newer, load.written)
            later.run_more(20)
            older.write([Put("load", b"late", b"")])
            assert older.flush(WITHIN_S)
            (done,) = older.completed()
            assert isinstance(done.error, StorageFenced)
            later.run_more(20)
            later.check(*chain)


def test_a_store_without_servers_waits_and_says_so(servers: Callable[..., list[Server]], tmp_path: Path) -> None:
    (server,) = servers(1, "--appendonly", "yes", "--appendfsync", "always")
    with opened(tmp_path, [server]) as storage:
        load = Load(storage)
        load.run_more(20)
        server.kill()
        load.write_one()
        load.wait_for_trouble()
        trouble = storage.trouble
        assert trouble is not None
        assert isinstance(trouble.error, StorageUnreachable)
        assert server.name in str(trouble.error)
        server.start()
        load.run_more(20)
        assert storage.trouble is None
        load.check(server)


def test_a_chain_below_its_minimum_waits_for_its_member(servers: Callable[..., list[Server]], tmp_path: Path) -> None:
    chain = servers(2)
    with opened(tmp_path, chain, members_min=2) as storage:
        load = Load(storage)
        load.run_more(20)
        chain[1].kill()
        load.write_one()
        load.wait_for_trouble()
        chain[1].restart_empty()
        load.run_more(20)
        load.check(*chain)


def test_a_member_that_was_down_at_the_start_comes_in_later(
    servers: Callable[..., list[Server]], tmp_path: Path
) -> None:
    chain = servers(3)
    with opened(tmp_path, chain) as storage:
        load = Load(storage)
        load.run_more(20)
        load.end()
    chain[0].kill()
    with opened(tmp_path, chain) as storage:
        load = Load(storage, load.written)
        load.run_more(20)
        assert has_members(storage, *chain[1:])
        chain[0].restart_empty()
        load.run(lambda: has_members(storage, *chain), "the server to be a member again")
        load.check(*chain)


def test_a_member_that_froze_while_nothing_was_written_is_cut_out(
    servers: Callable[..., list[Server]], tmp_path: Path
) -> None:
    chain = servers(2)
    with opened(tmp_path, chain) as storage:
        load = Load(storage)
        load.run_more(20)
        load.end()
        # Until the store has nothing to look after, so that its descriptor stays quiet.
        wait_for(lambda: not storage.completed() and is_quiet_for(storage, SILENCE_S), WITHIN_S, "an idle store")
        chain[1].freeze()
        load.run_more(20)
        assert has_members(storage, chain[0])
        load.check(chain[0])


def is_quiet_for(storage: RedisStorage, seconds: float) -> bool:
    return not select.select([storage.fileno()], [], [], seconds)[0]


def test_rows_are_read_although_the_tail_is_frozen(servers: Callable[..., list[Server]], tmp_path: Path) -> None:
    chain = servers(2)
    with opened(tmp_path, chain) as storage:
        load = Load(storage)
        load.run_more(20)
        load.end()
        chain[1].freeze()
        assert dict(storage.scan("load")) == load.rows(load.written)
        assert has_members(storage, chain[0])


def test_servers_without_memory_let_writes_wait(servers: Callable[..., list[Server]], tmp_path: Path) -> None:
    chain = servers(2)
    with opened(tmp_path, chain) as storage:
        load = Load(storage)
        load.run_more(20)
        for server in chain:
            server.call("CONFIG", "SET", "maxmemory", "1mb")
        load.write_one()
        load.wait_for_trouble()
        assert storage.trouble is not None
        assert "maxmemory" in str(storage.trouble.error)
        for server in chain:
            server.call("CONFIG", "SET", "maxmemory", "0")
        load.run_more(20)
        load.run(lambda: has_members(storage, *chain), "both servers to be members")
        load.check(*chain)


def test_a_change_waits_until_the_authority_can_note_it(servers: Callable[..., list[Server]], tmp_path: Path) -> None:
    chain = servers(2)
    with opened(tmp_path, chain) as storage:
        load = Load(storage)
        load.run_more(20)
        in_the_way = tmp_path / "store" / "authority.json.part"
        in_the_way.mkdir()
        chain[0].kill()
        load.write_one()
        load.wait_for_trouble()
        assert storage.trouble is not None
        assert "authority.json" in str(storage.trouble.error)
        in_the_way.rmdir()
        load.run_more(20)
        assert storage.trouble is None
        load.check(chain[1])


def test_a_large_row_is_no_silence(servers: Callable[..., list[Server]], tmp_path: Path) -> None:
    chain = servers(2)
    with opened(tmp_path, chain) as storage:
        value = bytes(16 << 20)
        storage.write([Put("t", b"k", value)])
        assert storage.flush(WITHIN_S)
        assert [done.error for done in storage.completed()] == [None]
        assert dict(storage.scan("t")) == {b"k": value}
        assert has_members(storage, *chain)


def test_a_member_that_is_not_named_any_more_stays_until_it_fails(
    servers: Callable[..., list[Server]], tmp_path: Path
) -> None:
    one, two, three = servers(3)
    with opened(tmp_path, [one, two]) as storage:
        load = Load(storage)
        load.run_more(20)
        load.end()
    with opened(tmp_path, [one, three]) as storage:
        load = Load(storage, load.written)
        load.run(lambda: has_members(storage, one, two, three), "the new server to be a member")
        two.kill()
        load.run_more(20)
        assert storage.status().shards[0].missing == []
        two.restart_empty()
        three.kill()
        load.run_more(20)
        assert storage.status().shards[0].missing == [three.name]
        load.check(one)


def test_the_loop_of_the_control_service_needs_nothing_but_the_descriptor(
    servers: Callable[..., list[Server]], tmp_path: Path
) -> None:
    """Messages leave when the rows before them are durable, with members that fail in between."""
    chain = servers(3)
    loop = EventLoop()
    with opened(tmp_path, chain) as storage:
        lost: list[StorageError] = []
        ledger = Ledger(storage, lambda action: loop.call_at(0.0, action), lost.append)
        loop.watch(storage.fileno(), lambda events: ledger.collect())
        said: list[int] = []
        give_up_at = time.monotonic() + WITHIN_S
        for number in range(1, 301):
            ledger.put("t", b"k", b"%d" % number)
            ledger.say(lambda number=number: said.append(number))  # type: ignore[misc]
            ledger.commit()
            if number == 100:
                chain[0].kill()
            if number == 200:
                chain[1].freeze()
            while len(said) < number - 3:
                assert time.monotonic() < give_up_at
                loop.run_once(give_up_at)
        while len(said) < 300:
            assert time.monotonic() < give_up_at
            loop.run_once(give_up_at)
        assert said == list(range(1, 301))
        assert not lost
        assert ledger.is_clear
        assert chain[2].rows("t") == {b"k": b"300"}
        loop.unwatch(storage.fileno())
    loop.close()
