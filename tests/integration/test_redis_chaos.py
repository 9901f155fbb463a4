"""Members of a store that are killed, frozen, flushed and started again with old data, by chance, while it is written.

    SKATE_CHAOS_S=120 SKATE_CHAOS_SEED=7 python -m pytest tests/integration/test_redis_chaos.py

What may fail is bounded by the promise: of each chain one member is left that is there and has everything.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

import redis_servers
from redis_load import TABLE, Load
from redis_servers import KINDS, WITHIN_S, Server
from skate._control.storage.errors import StorageError, StorageUnreachable
from skate._control.storage.interface import Delete
from skate._control.storage.redis.connection.address import parse
from skate._control.storage.redis.store import RedisStorage

pytestmark = pytest.mark.skipif(not KINDS, reason="no redis-server and no valkey-server")

RUN_S = float(os.environ.get("SKATE_CHAOS_S", "3"))
SEED = int(os.environ.get("SKATE_CHAOS_SEED", "0")) or random.randrange(1, 1 << 30)
SILENCE_S = 0.3


FAULTS = ["kill", "kill", "freeze", "flush", "old", "reset", "scripts", "service", "crash", "crash"]


class Chaos:
    def __init__(self, kind: str, chance: random.Random, folder: Path, *, votes: bool) -> None:
        self.chance = chance
        self.votes = votes
        self.chains = [[Server(kind) for _ in range(count)] for count in (3, 2)]
        self.address = parse(redis_servers.address(*self.chains))
        self.folder = folder
        self.storage = self.open()
        self.load = Load(self.storage)
        self.faults: list[str] = []

    def open(self) -> RedisStorage:
        return RedisStorage(
            self.address, self.folder, silence_s=SILENCE_S, lease_s=SILENCE_S, has_standby=self.votes, open_s=WITHIN_S
        )

    def end(self) -> None:
        self.storage.close()
        for chain in self.chains:
            for server in chain:
                server.thaw()
                server.end()

    def members(self, shard: int) -> list[str]:
        return [member.name for member in self.storage.status().shards[shard].members]

    def is_whole(self) -> bool:
        """All servers are members, and all of them vote."""
        if not all(len(self.members(shard)) == len(chain) for shard, chain in enumerate(self.chains)):
            return False
        if self.votes:
            try:
                self.storage._authority.read()
            except StorageUnreachable:
                return False
        return not self.storage.status().absent_voters

    def fail(self) -> None:
        """One fault of one server, or of the service; and writes until all is whole again."""
        shard = self.chance.randrange(len(self.chains))
        victim = self.chance.choice(self.chains[shard])
        fault = self.chance.choice(FAULTS)
        self.faults.append(f"{fault} {shard}/{self.chains[shard].index(victim)}")
        self.load.run_more(self.chance.randint(1, 100))
        getattr(self, f"_{fault}")(victim)
        self.load.run(self.is_whole, f"all to be whole again after {self.faults[-1]}")

    def _kill(self, victim: Server) -> None:
        victim.kill()
        self.load.run_more(self.chance.randint(0, 200))
        victim.restart_empty()
        self.load.run_more(1)

    def _freeze(self, victim: Server) -> None:
        victim.freeze()
        end = time.monotonic() + self.chance.random() * 2 * SILENCE_S
        self.load.run(lambda: time.monotonic() > end, "a moment")
        victim.thaw()
        self.load.run_more(50)

    def _flush(self, victim: Server) -> None:
        victim.call("FLUSHALL")
        self.load.run_more(50)

    def _old(self, victim: Server) -> None:
        victim.call("SAVE")
        self.load.run_more(self.chance.randint(1, 50))
        victim.kill()
        victim.start()
        self.load.run_more(50)

    def _reset(self, victim: Server) -> None:
        victim.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        self.load.run_more(50)

    def _scripts(self, victim: Server) -> None:
        victim.call("SCRIPT", "FLUSH")
        self.load.run_more(50)

    def _service(self, victim: Server) -> None:
        self.load.end()
        written = self.load.written
        self.storage.close()
        self.storage = self.open()
        self.load = Load(self.storage, written)
        self.load.run_more(50)

    def _crash(self, victim: Server) -> None:
        """The service is gone in the middle of its writes, and perhaps a server with it."""
        self.load.in_flight = self.chance.choice((1, 8, 50))
        self.load.run_more(self.chance.randint(1, 50))
        loses = self.chance.choice(["nothing", "a member", "a member before"])
        if loses == "a member before":
            victim.kill()
            self.load.run_more(self.chance.randint(0, 3))
        for shard in self.storage._shards:
            shard._error = StorageError("crashed")  # it writes nothing more
        self.storage.close()
        if loses == "a member":
            victim.kill()
        before = self.load
        self.storage = self.open()
        before.check_after_crash(dict(self.storage.scan(TABLE)))
        if loses != "nothing":
            victim.restart_empty()
        rows = [key for key, _ in self.storage.scan(TABLE)]
        for at in range(0, len(rows), 100):
            self.storage.write([Delete(TABLE, key) for key in rows[at : at + 100]])
        assert self.storage.flush(WITHIN_S)
        self.storage.completed()
        self.load = Load(self.storage)
        self.load.run_more(50)


@pytest.mark.parametrize(
    ("kind", "votes"),
    [(kind, number % 2 == 1) for number, kind in enumerate(KINDS)],
    ids=[f"{kind}, {'voters' if number % 2 else 'file'}" for number, kind in enumerate(KINDS)],
)
def test_every_acknowledged_write_is_there_whatever_fails(kind: str, votes: bool, tmp_path: Path) -> None:
    print(f"seed {SEED}: SKATE_CHAOS_S={RUN_S:g} SKATE_CHAOS_SEED={SEED} pytest {__file__} -k {kind}")
    chaos = Chaos(kind, random.Random(SEED), tmp_path, votes=votes)
    try:
        end = time.monotonic() + RUN_S
        while time.monotonic() < end:
            chaos.fail()
        chaos.load.check()
        for shard, chain in enumerate(chaos.chains):
            assert sorted(chaos.members(shard)) == sorted(server.name for server in chain)
            assert all(server.rows("load") == chain[0].rows("load") for server in chain)
    finally:
        print("faults:", ", ".join(chaos.faults))
        chaos.end()
