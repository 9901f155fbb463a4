"""A cluster is closed to strangers: what they send changes nothing."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

import skate
from skate._wire.entrance import Tls
from skate._wire.gate import knock
from skate._wire.handshake import HELLO_BYTES, Handshake, HandshakeError
from skate.cluster_utils import Cluster

#: To each port.
INPUTS = 10_000


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster(initialize_head=True) as cluster:
        cluster.add_node(resources={"second": 1})
        cluster.connect()
        yield cluster
        skate.shutdown()


@skate.remote(resources={"second": 1})
def double(data: bytes) -> bytes:
    return data * 2


def ports(cluster: Cluster) -> list[int]:
    listening = [int(cluster.address.rpartition(":")[2])]
    for node in cluster.nodes:
        inodes = set()
        for fd in os.listdir(f"/proc/{node.pid}/fd"):
            with contextlib.suppress(OSError):  # it was closed meanwhile
                link = os.readlink(f"/proc/{node.pid}/fd/{fd}")
                inodes.add(link.removeprefix("socket:[").removesuffix("]"))
        with open("/proc/net/tcp") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        listening += [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes]
    return listening


def malformed(dice: random.Random, recorded: bytes) -> bytes:
    """What a stranger might send."""
    match dice.randrange(6):
        case 0:
            return dice.randbytes(dice.choice([0, 1, 7, 64, 500, 5000]))
        case 1:  # the right beginning
            return b"skate\r\n\0" + dice.randbytes(dice.randrange(200))
        case 2:  # what an honest one sent on another connection
            return recorded
        case 3:
            return recorded[: dice.randrange(len(recorded))]
        case 4:  # another protocol
            return b"GET / HTTP/1.1\r\nHost: skate\r\n\r\n"
        case _:
            return struct.pack("<I", dice.randrange(1 << 32)) + dice.randbytes(40)


def record_honest_words(port: int, token: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        handshake = Handshake(token, listens=False)
        return handshake.receive(sock.recv(HELLO_BYTES))


def bother(port: int, recorded: bytes, seed: int, count: int) -> None:
    dice = random.Random(seed)
    left: list[socket.socket] = []
    for _ in range(count):
        sock = socket.create_connection(("127.0.0.1", port))
        try:
            sock.sendall(malformed(dice, recorded))
        except OSError:
            pass
        left.append(sock)
        if len(left) > 20:  # some stay, and say nothing more
            left.pop(dice.randrange(len(left))).close()
    for sock in left:
        sock.close()


def test_nothing_that_strangers_send_does_harm(cluster: Cluster) -> None:
    token = cluster._token.encode()
    listening = ports(cluster)
    assert len(listening) == 3, "the control service and two nodes, one port each"
    threads = []
    for seed, port in enumerate(listening):
        recorded = record_honest_words(port, token)
        thread = threading.Thread(target=bother, args=(port, recorded, seed, INPUTS))
        thread.start()
        threads.append(thread)
    while any(thread.is_alive() for thread in threads):
        assert skate.get(double.remote(b"work goes on")) == b"work goes on" * 2
        for thread in threads:
            thread.join(0.1)
    cluster.add_node(resources={"third": 1})
    assert skate.get(double.options(resources={"third": 1}).remote(bytes(300_000))) == bytes(600_000)


def test_what_somebody_with_the_token_garbles_ends_his_connection_only(cluster: Cluster) -> None:
    dice = random.Random(7)
    for port in ports(cluster):
        for _ in range(100):
            sock, _, _ = knock("127.0.0.1", port, cluster._token.encode())
            with sock:
                body = dice.randbytes(dice.choice([1, 10, 100]))
                size = len(body) if dice.random() < 0.8 else dice.randrange(1 << 32)
                sock.sendall(struct.pack("<I", size) + body)
                if size == len(body):
                    assert sock.recv(1) == b"", "it was cut off"
    assert skate.get(double.remote(b"x")) == b"xx"


@pytest.mark.parametrize("token", ["b" * 64, "short"])
def test_a_wrong_token_is_refused(cluster: Cluster, token: str) -> None:
    for port in ports(cluster):
        with pytest.raises(HandshakeError, match="another token"):
            knock("127.0.0.1", port, token.encode())


def test_a_cluster_with_tls() -> None:
    with Cluster(initialize_head=True, tls=True) as cluster:
        cluster.add_node(resources={"second": 1})
        cluster.connect()
        for size in (10, 3_000_000):
            data = os.urandom(size)
            assert skate.get(double.remote(data)) == data * 2

        @skate.remote(resources={"second": 1}, num_cpus=0)
        class Counter:
            def __init__(self) -> None:
                self.count = 0

            def add(self) -> int:
                self.count += 1
                return self.count

        counter = Counter.remote()
        assert skate.get([counter.add.remote() for _ in range(1000)]) == list(range(1, 1001))
        port = int(cluster.address.rpartition(":")[2])
        with pytest.raises(HandshakeError, match="may use --tls"):
            knock("127.0.0.1", port, cluster._token.encode(), 1.0)
        with pytest.raises(HandshakeError, match="another token"):
            knock("127.0.0.1", port, b"b" * 64, tls=Tls(listens=False))
        skate.shutdown()


def test_tls_at_one_end_only_is_refused(cluster: Cluster) -> None:
    with pytest.raises(ConnectionError, match="--tls"):
        knock("127.0.0.1", ports(cluster)[0], cluster._token.encode(), tls=Tls(listens=False))
