"""The scripts on a real server do what the simulation takes them to do: random histories, answer by answer."""

from __future__ import annotations

import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hiredis
import msgspec
import pytest

import redis_servers
from waiting import wait_for

sys.path.append(str(Path(__file__).resolve().parents[1] / "sim"))

from redis_member import Op, SimRedis, encode

import skate
from skate._core.cluster import batch_format
from skate._core.cluster.chain_messages import Reply, Verdict
from skate._core.cluster.configuration import MemberID

SCRIPTS = Path(skate.__file__).parent / "_control" / "storage" / "scripts"
APPLY = (SCRIPTS / "apply.lua").read_text()
SEAL = (SCRIPTS / "seal.lua").read_text()
KEYS = ("skate:meta", "skate:log")


class RealRedis(redis_servers.Server):
    """A server of our own, and one connection to it."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind, "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")
        self.socket = socket.create_connection(("127.0.0.1", self.port))
        self.reader = hiredis.Reader(notEnoughData=self)

    def end(self) -> None:
        self.socket.close()
        super().end()

    def call(self, *words: str | bytes | int) -> Any:
        """An error is an answer like others."""
        self.socket.sendall(hiredis.pack_command(words))
        while (answer := self.reader.gets()) is self:
            self.reader.feed(self.socket.recv(1 << 16))
        return answer

    def script(self, text: str, *arguments: str | bytes | int) -> Reply:
        answer = self.call("EVAL", text, 2, *KEYS, *arguments)
        if isinstance(answer, hiredis.ReplyError):
            assert "READONLY" in str(answer), answer
            return Reply(Verdict.REPLICA)
        verdict, epoch, seq, trim, results = answer
        return Reply(Verdict(verdict.decode()), epoch, seq, trim, tuple(results))

    def apply(self, cluster: str, epoch: int, seq: int, acked: int, batch: bytes) -> Reply:
        operations = [as_fields(op) for op in msgspec.msgpack.decode(batch)]
        return self.run(cluster, epoch, seq, acked, batch_format.encode(operations))

    def run(self, cluster: str, epoch: int, seq: int, acked: int, batch: bytes) -> Reply:
        return self.script(APPLY, cluster, epoch, seq, acked, batch, "skate:rows:")

    def seal(self, cluster: str, epoch: int, members: tuple[str, ...]) -> Reply:
        return self.script(SEAL, cluster, epoch, " ".join(members))

    def found(self, cluster: str, epoch: int) -> None:
        self.call("HSET", KEYS[0], "cluster", cluster, "epoch", epoch, "seq", 0, "trim", 0)

    def texts(self) -> dict[str, str]:
        return {key.decode(): value.decode() for key, value in self.rows("table").items()}

    def replicate(self, source: RealRedis) -> None:
        self.call("WATCH", KEYS[0])
        self.call("HGET", KEYS[0], "epoch")
        for words in (("MULTI",), ("DEL", KEYS[0]), ("REPLICAOF", "127.0.0.1", source.port)):
            assert not isinstance(self.call(*words), hiredis.ReplyError)
        assert self.call("EXEC") is not None


def as_fields(op: list[Any]) -> tuple[bytes, ...]:
    kind, key, *rest = op
    if kind == "cas" and rest[0] is None:
        kind, rest = "absent", rest[1:]
    return tuple(str(word).encode() for word in (kind, "table", key, *rest))


@pytest.fixture(params=redis_servers.KINDS)
def servers(request: pytest.FixtureRequest) -> Iterator[list[RealRedis]]:
    started = [RealRedis(request.param) for _ in range(2)]
    yield started
    for server in started:
        server.end()


def some_ops(chance: random.Random) -> list[Op]:
    ops: list[Op] = []
    for _ in range(chance.randint(0, 4)):
        key, value = chance.choice("ab"), chance.choice(("", "x", "xy", "z\n\r"))
        ops.append(
            chance.choice(
                [
                    ("put", key, value),
                    ("delete", key),
                    ("cas", key, chance.choice((None, "", "x")), value),
                    ("append", key, chance.choice((0, 1, 2)), chance.choice(("p", "pq"))),
                ]
            )
        )
    return ops


@pytest.mark.parametrize("seed", range(8))
def test_a_real_server_answers_like_the_simulated_one(servers: list[RealRedis], seed: int) -> None:
    chance = random.Random(seed)
    real, played = servers[0], SimRedis(MemberID("r"))
    assert real.apply("c", 1, 1, 0, encode([])) == played.apply("c", 1, 1, 0, encode([])) == Reply(Verdict.NOTHING)
    real.found("c", 1)
    played.found("c", 1, ())
    epoch = seq = 1
    batches: dict[int, bytes] = {}
    for _ in range(300):
        assert played.data.meta is not None
        epoch, seq = played.data.meta.epoch, played.data.meta.seq
        cluster = chance.choice(("c",) * 20 + ("d",))
        if chance.random() < 0.1:
            arguments = (cluster, epoch + chance.choice((-1, 0, 1)), chance.choice(((), ("r", "s"))))
            assert real.seal(*arguments) == played.seal(*arguments)
            continue
        number = max(1, seq + chance.choice((1, 1, 1, 1, 0, -1, 2)))
        batch = batches.setdefault(number, encode(some_ops(chance)))
        asked = (cluster, epoch + chance.choice((0,) * 20 + (1, -1)), number, chance.randint(0, number), batch)
        assert real.apply(*asked) == played.apply(*asked), asked
        assert real.texts() == played.data.rows
        assert {int(n) for n in real.call("HKEYS", KEYS[1])} == played.data.log.keys()


def test_a_copy_shows_nothing_until_it_is_one_and_refuses_writes(servers: list[RealRedis]) -> None:
    """Also: REPLICAOF is allowed in a transaction, so it can be fenced by WATCH."""
    source, copy = servers
    source.found("c", 3)
    copy.found("c", 3)
    assert source.apply("c", 3, 1, 0, encode([("put", "a", "x")])).verdict is Verdict.OK
    copy.replicate(source)
    wait_for(lambda: copy.call("HGET", KEYS[0], "seq") == b"1", 20, "the copy to be one")
    assert copy.apply("c", 3, 2, 0, encode([])).verdict is Verdict.REPLICA
    assert copy.apply("c", 3, 1, 0, encode([])).verdict is Verdict.REPLICA
    assert copy.seal("c", 4, ()).verdict is Verdict.REPLICA
    copy.call("REPLICAOF", "NO", "ONE")
    assert copy.seal("c", 4, ()) == Reply(Verdict.OK, 3, 1, 0)
    assert copy.texts() == {"a": "x"}


def test_values_are_bytes_and_a_repeat_has_the_results_of_the_first_time(servers: list[RealRedis]) -> None:
    real = servers[0]
    real.found("c", 1)
    operations = [
        (b"put", b"table", b"k\0", b"\0\xff"),
        (b"cas", b"table", b"k\0", b"\0\xff", b""),
        (b"absent", b"table", b"k\0", b"1"),
        (b"delete", b"table", b"none"),
        (b"missing", b"table", b"none"),
        (b"missing", b"table", b"k\0"),
        (b"drop", b"table", b"k\0", b"other"),
        (b"drop", b"table", b"k\0", b""),
        (b"put", b"table", b"last", b""),
    ]
    batch = batch_format.encode(operations)
    assert batch_format.decode(batch) == operations
    for _ in range(2):
        assert real.run("c", 1, 1, 0, batch).results == (1, 0, 0, 1, 0, 0, 1)
    assert real.texts() == {"last": ""}


def test_a_batch_that_cannot_be_read_changes_nothing(servers: list[RealRedis]) -> None:
    real = servers[0]
    real.found("c", 1)
    batch = batch_format.encode([(b"put", b"table", b"k", b"value")])
    assert isinstance(real.call("EVAL", APPLY, 2, *KEYS, "c", 1, 1, 0, batch[:-1], "skate:rows:"), hiredis.ReplyError)
    assert real.call("HGET", KEYS[0], "seq") == b"0"
    assert real.texts() == {}
