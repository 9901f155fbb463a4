"""HTTP when things go wrong: too many requests, clients that go, handlers that fail."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import random
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.requests import Request

from serve_http import Connection, address, ask, delete_all, metrics_of, wait_until_free
from skate import serve
from waiting import WITHIN_S, wait_for


@serve.deployment(max_ongoing_requests=4, max_queued_requests=4)
class Gated:
    """Works until a file is there, and notes what becomes of its requests."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    async def __call__(self, request: Request) -> Any:
        path, number = request.url.path, request.query_params.get("number", "0")
        if path == "/pid":
            return {"pid": os.getpid()}
        (self.folder / f"began-{number}").touch()
        try:
            if path == "/wait":
                while not (self.folder / "open").exists():
                    await asyncio.sleep(0.005)
            elif path == "/fail":
                raise ValueError("of the handler")
            elif path == "/half":
                return self.half()
            elif path == "/drip":
                return self.drip()
            elif path == "/forever":
                await asyncio.sleep(1000)
        except asyncio.CancelledError:
            (self.folder / f"cancelled-{number}").touch()
            raise
        return "done"

    async def drip(self) -> AsyncIterator[str]:
        while True:
            yield "drip"
            await asyncio.sleep(0.01)

    async def half(self) -> AsyncIterator[str]:
        yield "half"
        raise ValueError("in the middle")


@pytest.fixture(scope="module", autouse=True)
def _one_port() -> Iterator[None]:
    yield
    serve.shutdown()


@pytest.fixture(autouse=True)
def _ended(runtime: Any) -> Iterator[None]:
    yield
    delete_all()


@pytest.fixture
def own_port() -> Iterator[None]:
    """HTTP with options of its own, which it has from its start to its end."""
    serve.shutdown()
    yield
    serve.shutdown()


@pytest.fixture
def gated(tmp_path: Path) -> Path:
    serve.run(Gated.bind(str(tmp_path)), port=0)
    return tmp_path


@contextlib.contextmanager
def asked(paths: list[str]) -> Iterator[list[Connection]]:
    """Connections on which the paths have been asked for, without waiting for answers."""
    connections = [Connection() for _ in paths]
    for connection, path in zip(connections, paths, strict=True):
        connection.request("GET", path)
    try:
        yield connections
    finally:
        for connection in connections:
            connection.close()


def waiting(count: int) -> Callable[[], bool]:
    return lambda: metrics_of()["waiting"] == count


def all_places_are_free(folder: Path) -> None:
    """As many requests as there are places succeed at once, and no place is taken after them."""
    wait_until_free()
    (folder / "open").unlink(missing_ok=True)
    with asked([f"/wait?number=place{number}" for number in range(4)]) as connections:
        for number in range(4):
            wait_for((folder / f"began-place{number}").exists, WITHIN_S, f"request {number} to have a place")
        (folder / "open").touch()
        assert [each.answer().text for each in connections] == 4 * ["done"]
    wait_until_free()


# -- too much ----------------------------------------------------------------------------------------------------------


def test_more_requests_than_may_wait_are_refused_and_the_others_answered(gated: Path) -> None:
    with asked([f"/wait?number={number}" for number in range(8)]) as connections:
        wait_for(waiting(4), WITHIN_S, "the queue to be full")
        refused = ask("/wait")
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        assert refused.json == {"error": "too many requests wait"}
        assert ask("/-/healthz").status == 200
        (gated / "open").touch()
        assert [each.answer().status for each in connections] == 8 * [200]
    assert metrics_of()["rejected"] == 1


def test_a_queued_request_whose_client_goes_is_taken_out(gated: Path) -> None:
    with asked([f"/wait?number={number}" for number in range(4)]) as running:
        wait_for(lambda: metrics_of()["working"] == 4, WITHIN_S, "all places to be taken")
        with asked(["/wait?number=queued"]):
            wait_for(waiting(1), WITHIN_S, "a request to wait")
        wait_for(waiting(0), WITHIN_S, "the request to be taken out")
        (gated / "open").touch()
        assert [each.answer().status for each in running] == 4 * [200]
    all_places_are_free(gated)
    assert not (gated / "began-queued").exists()


def test_a_running_request_whose_client_goes_is_cancelled(gated: Path) -> None:
    with asked(["/forever?number=1"]):
        wait_for((gated / "began-1").exists, WITHIN_S, "the request to run")
    wait_for((gated / "cancelled-1").exists, WITHIN_S, "the handler to be cancelled")
    all_places_are_free(gated)
    assert metrics_of()["errors"] == 0


@pytest.mark.usefixtures("own_port")
def test_a_request_that_takes_too_long_is_a_504_and_cancelled(tmp_path: Path) -> None:
    serve.run(Gated.bind(str(tmp_path)), http_options={"port": 0, "request_timeout_s": 0.2})
    answer = ask("/forever?number=1")
    assert (answer.status, answer.text.splitlines()[0]) == (504, "no answer within 0.2 s")
    wait_for((tmp_path / "cancelled-1").exists, WITHIN_S, "the handler to be cancelled")
    with asked([f"/forever?number={number}" for number in range(8)]) as connections:
        assert [each.answer().status for each in connections] == 8 * [504]
    with pytest.raises(http.client.IncompleteRead):
        ask("/drip")
    wait_until_free()
    assert ask("/quick").text == "done"


@pytest.mark.usefixtures("own_port")
def test_a_plain_function_that_takes_too_long_is_a_504_at_once_and_keeps_its_place(tmp_path: Path) -> None:
    @serve.deployment(max_ongoing_requests=1)
    def slow(request: Request) -> str:
        while not (tmp_path / "open").exists():
            time.sleep(0.005)
        return "done"

    serve.run(slow.bind(), http_options={"port": 0, "request_timeout_s": 0.2})
    connection = Connection()
    assert connection.ask("/").status == 504
    assert metrics_of()["working"] == 1
    (tmp_path / "open").touch()
    wait_until_free()
    assert connection.ask("/").text == "done"
    connection.close()


# -- what handlers do --------------------------------------------------------------------------------------------------


def test_an_exception_in_the_middle_of_a_stream_breaks_the_connection_and_no_other(gated: Path) -> None:
    other = Connection()
    assert other.ask("/quick").status == 200
    connection = Connection()
    with pytest.raises(http.client.IncompleteRead):
        connection.ask("/half")
    connection.close()
    assert other.ask("/quick").status == 200
    other.close()
    all_places_are_free(gated)


def test_health_is_answered_while_a_plain_function_computes(tmp_path: Path) -> None:
    @serve.deployment
    def compute(request: Request) -> float:
        (tmp_path / "began").touch()
        number = 0
        while number % 1000 or not (tmp_path / "open").exists():
            number += 1
        return sys.getswitchinterval()

    serve.run(compute.bind(), port=0)
    with asked(["/"]) as connections:
        wait_for((tmp_path / "began").exists, WITHIN_S, "the computation to begin")
        for _ in range(10):
            assert ask("/-/healthz").status == 200
        (tmp_path / "open").touch()
        assert 0.0 < connections[0].answer().json <= 0.001, "the loop waits so long for each thread that computes"


@pytest.mark.usefixtures("own_port")
def test_no_place_is_lost_in_a_storm_of_disconnects_errors_and_timeouts(tmp_path: Path) -> None:
    """The same for requests that another replica has taken."""
    options = {"port": 0, "request_timeout_s": 0.3}
    serve.run(Gated.bind(str(tmp_path)), http_options=options)
    serve.run(Gated.bind(str(tmp_path)), name="other", route_prefix="/other")
    (tmp_path / "open").touch()
    dice = random.Random(7)
    where = address()

    def one(seed: int) -> None:
        dice = random.Random(seed)
        path = dice.choice(["/wait", "/fail", "/half", "/forever", "/quick"])
        connection = Connection(where)
        try:
            connection.request("GET", f"{path}?number=storm")
            if dice.random() < 0.5:
                time.sleep(dice.random() * 0.02)
                if dice.random() < 0.5:
                    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            else:
                connection.answer()
        except (http.client.HTTPException, ConnectionError):
            pass
        finally:
            connection.close()

    with ThreadPoolExecutor(24) as pool:
        list(pool.map(one, [dice.randrange(1 << 30) for _ in range(300)]))
    wait_until_free("other")
    all_places_are_free(tmp_path)


# -- what clients do ---------------------------------------------------------------------------------------------------

PIECES = [
    b"GET / HTTP/1.1\r\n", b"POST /quick HTTP/1.1\r\n", b"Host: h\r\n", b"Content-Length: 5\r\n",
    b"Content-Length: -1\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Upgrade: websocket\r\nConnection: upgrade\r\n", b"\r\n", b"\0", b"\xff\xfe",
    b"HTTP/1.1 200 OK\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"Sec-WebSocket-Key: x\r\n",
    b"GET /%ff%00 HTTP/1.1\r\n", b"GET //// HTTP/9.9\r\n",
    b"A" * 5000 + b": b\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"Expect: 100-continue\r\n", b"Origin: \xe4\r\n", b"X-Request-ID: \x01\x80\r\n",
]  # fmt: skip


def replica_process() -> psutil.Process:
    return psutil.Process(ask("/pid").json["pid"])


def test_malformed_requests_and_floods_leave_the_replica_as_it_was(gated: Path) -> None:
    process = replica_process()
    where = address()
    dice = random.Random(11)

    def malformed() -> None:
        with socket.create_connection(where, WITHIN_S) as sock, contextlib.suppress(OSError):
            sock.sendall(b"".join(dice.choices(PIECES, k=dice.randrange(1, 8))))
            if dice.random() < 0.2:
                sock.shutdown(socket.SHUT_WR)
                sock.settimeout(0.05)
                sock.recv(1000)

    def flood() -> None:
        for head in (b"GET / HTTP/1.1\r\nX: " + bytes(1 << 20), b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 100_000):
            with socket.create_connection(where, WITHIN_S) as sock, contextlib.suppress(OSError):
                sock.sendall(head)

    for _ in range(300):  # what it needs once
        malformed()
    flood()
    all_places_are_free(gated)
    files, size = process.num_fds(), process.memory_info().rss
    for number in range(2000):
        malformed()
        if number % 500 == 0:
            flood()
            assert ask("/quick").text == "done"
    all_places_are_free(gated)
    wait_for(lambda: process.num_fds() <= files + 2, WITHIN_S, "the connections to be closed")
    assert process.memory_info().rss < size + (16 << 20)
    assert replica_process().pid == process.pid


@pytest.mark.usefixtures("own_port")
def test_a_client_that_does_not_read_loses_its_place_after_the_limit(tmp_path: Path) -> None:
    @serve.deployment(max_ongoing_requests=1)
    class Flood:
        async def __call__(self, request: Request) -> Any:
            return self.pieces() if request.url.path == "/flood" else "done"

        async def pieces(self) -> AsyncIterator[bytes]:
            try:
                while True:
                    yield bytes(1 << 16)
            finally:
                (tmp_path / "over").touch()

    serve.run(Flood.bind(), http_options={"port": 0, "write_timeout_s": 0.2})
    with asked(["/flood"]):
        wait_for((tmp_path / "over").exists, WITHIN_S, "the stream to end")
        assert ask("/quick").text == "done"


def test_a_thousand_idle_connections_leave_room_for_others(gated: Path) -> None:
    process = replica_process()
    files = process.num_fds()
    where = address()
    idle = [socket.create_connection(where, WITHIN_S) for _ in range(1000)]
    try:
        for each in idle[::2]:
            each.sendall(b"GET /quick HTTP/1.1\r\nHost: h\r\n\r\n")
        for each in idle[::2]:
            assert each.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert ask("/quick").text == "done"
        assert process.num_fds() >= 1000
    finally:
        for each in idle:
            each.close()
    wait_for(lambda: process.num_fds() <= files + 2, WITHIN_S, "the connections to be closed")
