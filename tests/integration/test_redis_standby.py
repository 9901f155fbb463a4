"""A second control service that waits for the first to be gone: who leads is decided by the servers themselves."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

import redis_servers
from redis_load import Load
from redis_servers import KINDS, WITHIN_S, Server
from waiting import wait_for

sys.path.append(str(Path(__file__).resolve().parents[1] / "sim"))

from voter import SimVoter

from skate._control.storage import errors
from skate._control.storage.interface import Done, Put
from skate._control.storage.redis.authority.leadership import Standby
from skate._control.storage.redis.authority.majority import MajorityAuthority, as_ballotted
from skate._control.storage.redis.connection.address import parse
from skate._control.storage.redis.connection.requests import VOTE, script
from skate._control.storage.redis.store import RedisStorage
from skate._core.cluster.configuration import Changed, Configuration, LeaderID, MemberID, Refused, ShardChain
from skate._core.cluster.register import Ballot, Ballotted

pytestmark = pytest.mark.skipif(not KINDS, reason="no redis-server and no valkey-server")

LEASE_S = 0.6
SILENCE_S = 0.8
FIRST = Configuration("c", 0, LeaderID(""), "", (ShardChain(0, (MemberID("r"),)),))


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    started = [Server(KINDS[number % len(KINDS)]) for number in range(3)]
    yield started
    for server in started:
        server.thaw()
        server.end()


# -- the script of a voter --------------------------------------------------------------------------------------------


def vote(server: Server, kind: str, token: str, ballot: Ballot, value: Configuration | None = None) -> Ballotted:
    life = server.call("INFO", "server").decode().partition("run_id:")[2].split()[0]
    encoded = b"" if value is None else msgspec.json.encode(value)
    return as_ballotted(server.call("EVAL", script("vote"), 1, VOTE, kind, token, life, 0, *ballot, encoded))


@pytest.mark.parametrize("seed", range(2))
def test_a_real_voter_answers_like_the_simulated_one(servers: list[Server], seed: int) -> None:
    chance = random.Random(seed)
    for real in servers[:2]:
        played = SimVoter()
        token = "t"
        value = FIRST
        assert vote(real, "prepare", "", (9, "z")) == played.prepare("", (9, "z"))
        for _ in range(200):
            ballot = (chance.randint(1, 9), chance.choice(("A", "B", "a", "A.10", "A.9")))
            said = chance.choice((token,) * 9 + ("other",))
            if chance.random() < 0.05:
                token = f"t{chance.random()}"
                played.admit(token, ballot, value)
                vote(real, "admit", token, ballot, value)
            elif chance.random() < 0.5:
                assert vote(real, "prepare", said, ballot) == played.prepare(said, ballot)
            else:
                value = value.taken_over(LeaderID("L"), "")
                assert vote(real, "accept", said, ballot, value) == played.accept(said, ballot, value)


def test_a_voter_that_was_started_again_does_not_vote_until_it_is_admitted(servers: list[Server]) -> None:
    """Whatever it has on its disk: it may be old."""
    leader = MajorityAuthority(LeaderID("A"), [*parse(redis_servers.address(servers)).servers])
    try:
        begun = leader.begin(FIRST)
        answer = leader.change(begun, begun.taken_over(LeaderID("A"), ""))
        assert isinstance(answer, Changed)
        for server in servers:
            server.call("SAVE")
            server.kill()
            server.start()
            assert server.call("EXISTS", VOTE) == 1
            wait_for(lambda: admitted(leader) == 3, WITHIN_S, "the voter to be admitted again")
        present = leader.read()
        assert present.leader == "A"
        assert present.epoch >= 4, "one change to lead, and one at least for each voter"
        other = MajorityAuthority(LeaderID("B"), [*parse(redis_servers.address(servers)).servers])
        try:
            found = other.find()
            assert found == present
            assert isinstance(other.change(present, present.taken_over(LeaderID("B"), "")), Changed)
        finally:
            other.close()
        assert isinstance(leader.change(present, present.with_members(0, (MemberID("s"),))), Refused)
    finally:
        leader.close()


def admitted(authority: MajorityAuthority) -> int:
    """How many voters answer to the tokens that the present configuration names."""
    try:
        present = authority.read()
        present = authority.read()
    except errors.StorageUnreachable:
        return 0
    answers = [authority._call(voter, "prepare", token, (0, ""), None) for voter, token in present.voters]
    return sum(answer is not None and answer.vote.value != "NOT_ADMITTED" for answer in answers)


def test_the_first_service_waits_for_no_leader(servers: list[Server]) -> None:
    address = parse(redis_servers.address(servers))
    give_up_at = time.monotonic() + 2 * LEASE_S
    assert not Standby(address, lease_s=LEASE_S).wait(lambda: time.monotonic() > give_up_at), "there is no store"
    assert Standby(address, lease_s=LEASE_S).wait(begins=True)


def test_two_voters_are_too_few(servers: list[Server], tmp_path: Path) -> None:
    with pytest.raises(errors.StorageError, match="needs 3 voters, and there are 2"):
        RedisStorage(parse(redis_servers.address(servers[:2])), tmp_path, has_standby=True)


# -- services ---------------------------------------------------------------------------------------------------------

#: A service that leads and writes. It says how many batches are acknowledged, and what ended it.
LEADER = """
import sys
sys.path.insert(0, {tests!r})
from redis_load import Load
from skate._control.storage.redis.connection.address import parse
from skate._control.storage.errors import StorageError
from skate._control.storage.redis.store import RedisStorage

storage = RedisStorage(parse({address!r}), "", has_standby=True, witnesses=parse({witness!r}).servers, **{options!r})
load = Load(storage)
try:
    while True:
        load.run_more(1)
        print(load.acknowledged, storage.holds_lease, flush=True)
except (StorageError, AssertionError) as error:
    print("ended:", str(error).replace(chr(10), " "), flush=True)
"""

OPTIONS: dict[str, Any] = {"lease_s": LEASE_S, "silence_s": SILENCE_S}


@contextmanager
def leader(chain: list[Server], witness: Server) -> Iterator[subprocess.Popen[str]]:
    program = LEADER.format(
        tests=str(Path(__file__).parents[1]),
        address=redis_servers.address(chain),
        witness=redis_servers.address([witness]),
        options=OPTIONS,
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def said(process: subprocess.Popen[str], lines: int) -> int:
    """What the leader has acknowledged, after this number of further lines."""
    assert process.stdout is not None
    return [int(process.stdout.readline().split()[0]) for _ in range(lines)][-1]


def take_over(chain: list[Server], witness: Server) -> RedisStorage:
    address, witnesses = parse(redis_servers.address(chain)), parse(redis_servers.address([witness])).servers
    assert Standby(address, witnesses, lease_s=LEASE_S).wait(lambda: True) is False
    standby = Standby(address, witnesses, lease_s=LEASE_S)
    give_up_at = time.monotonic() + WITHIN_S
    assert standby.wait(lambda: time.monotonic() > give_up_at), "the leader is still heard of"
    return RedisStorage(address, "", has_standby=True, witnesses=witnesses, standby=standby, **OPTIONS)


def check(storage: RedisStorage, acknowledged: int) -> None:
    rows = dict(storage.scan("load"))
    written = int(rows[b"counter"])
    assert written >= acknowledged
    load = Load(storage, written)
    assert rows == load.rows(written)
    load.run(lambda: storage.holds_lease, "the lease of the new leader")
    load.run_more(20)
    load.check()


def test_a_service_waits_for_a_majority_of_the_voters(servers: list[Server]) -> None:
    address = parse(redis_servers.address(servers))
    storage = RedisStorage(address, "", has_standby=True, **OPTIONS)
    load = Load(storage)
    load.run_more(5)
    load.end()
    storage.close()
    servers[0].freeze()
    servers[1].freeze()
    threading.Timer(1.0, servers[0].thaw).start()
    storage = RedisStorage(address, "", has_standby=True, open_s=WITHIN_S, **OPTIONS)
    try:
        assert dict(storage.scan("load")) == load.rows(load.written)
    finally:
        storage.close()


def test_a_standby_takes_over_when_the_leader_is_killed(servers: list[Server]) -> None:
    chain, witness = servers[:2], servers[2]
    with leader(chain, witness) as first:
        acknowledged = said(first, 20)
        first.kill()
        storage = take_over(chain, witness)
        try:
            check(storage, acknowledged)
            assert storage.meta.incarnation == 2
        finally:
            storage.close()


def test_a_leader_that_was_frozen_finds_that_it_was_replaced(servers: list[Server]) -> None:
    chain, witness = servers[:2], servers[2]
    with leader(chain, witness) as first:
        acknowledged = said(first, 20)
        first.send_signal(signal.SIGSTOP)
        storage = take_over(chain, witness)
        try:
            check(storage, acknowledged)
            first.send_signal(signal.SIGCONT)
            assert first.stdout is not None
            last = [line for line in first.stdout if line.startswith("ended:")]
            assert "Another control service has taken the store over" in last[0]
            check(storage, acknowledged)
        finally:
            storage.close()


def test_a_leader_with_nothing_to_write_finds_that_it_was_replaced(servers: list[Server]) -> None:
    address = parse(redis_servers.address(servers))
    older = RedisStorage(address, "", has_standby=True, **OPTIONS)
    try:
        newer = RedisStorage(address, "", has_standby=True, **OPTIONS)
        try:
            ended: list[Done] = []
            wait_for(lambda: ended.extend(older.completed()) or ended, WITHIN_S, "the older leader to notice")
            assert [(done.number, type(done.error)) for done in ended] == [(0, errors.StorageFenced)]
            assert older.completed() == []
            assert not older.holds_lease
            with pytest.raises(errors.StorageFenced):
                older.write([])
            newer.write([Put("t", b"k", b"v")])
            assert newer.flush(WITHIN_S)
        finally:
            newer.close()
    finally:
        older.close()


def has_changed_to(storage: RedisStorage, epoch: int) -> bool:
    """Whether the configuration is as late as this one, and all voters vote."""
    status = storage.status()
    return status.epoch >= epoch and not status.absent_voters


def test_the_chain_changes_while_one_voter_is_gone(servers: list[Server]) -> None:
    """Of three servers, two members and a witness, one is killed at a time."""
    address, witnesses = parse(redis_servers.address(servers[:2])), parse(redis_servers.address(servers[2:])).servers
    storage = RedisStorage(address, "", has_standby=True, witnesses=witnesses, **OPTIONS)
    try:
        load = Load(storage)
        load.run_more(20)
        servers[1].kill()
        load.run_more(50)
        servers[1].restart_empty()
        # Its vote was overwritten by the copy: one change to remove it, one to let it in, one to admit it as a voter.
        load.run(lambda: has_changed_to(storage, 4), "the server to be a member and a voter again")
        assert len(storage.status().shards[0].members) == 2
        epoch = storage.status().epoch
        servers[2].kill()
        load.run_more(20)
        servers[2].restart_empty()
        load.run(lambda: has_changed_to(storage, epoch + 1), "the witness to be admitted again")
        servers[0].kill()
        load.run_more(20)
        load.check(servers[1])
        load.run(lambda: storage.holds_lease, "the lease to be renewed")
    finally:
        storage.close()
