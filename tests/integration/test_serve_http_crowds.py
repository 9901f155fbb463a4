"""HTTP when places are scarce: silent clients, queues of other applications, replicas that cannot be reached."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from serve_http import UPGRADE, Connection, address, ask, connection_to, delete_all, metrics_of
from skate import serve
from skate.serve import keeper
from waiting import WITHIN_S, wait_for

#: Of every test here, so that one port is enough.
HTTP = {"port": 0, "max_queued_requests": 2}


@serve.deployment(max_ongoing_requests=1)
class Gated:
    """Works until a file is there."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    @serve.get("/wait")
    async def wait(self) -> str:
        while not (self.folder / "open").exists():
            await asyncio.sleep(0.005)
        return "done"

    @serve.post("/take")
    async def take(self, body: bytes) -> int:
        return len(body)

    @serve.get("/quick")
    async def quick(self) -> str:
        return "quick"

    @serve.websocket("/loop")
    async def loop(self, socket: Any) -> None:
        async for message in socket:
            await socket.send(message)


@serve.deployment
class Limited:
    """Says how many files its process may open, and sets that."""

    @serve.get("/files")
    async def files(self, number: int) -> int:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
        return soft

    @serve.get("/id")
    async def id(self) -> str:
        return serve.get_replica_context().replica_tag


@pytest.fixture(scope="module", autouse=True)
def _one_port() -> Iterator[None]:
    yield
    serve.shutdown()


@pytest.fixture(autouse=True)
def _ended(runtime: Any) -> Iterator[None]:
    yield
    delete_all()


@contextmanager
def to_first(count: int) -> Iterator[list[Connection]]:
    """Connections to the replica of the application /first, which passes on what is for others."""
    own = ask("/first/id").json
    with ExitStack() as stack:
        yield [stack.enter_context(connection_to(own.__eq__)) for _ in range(count)]


def asks(connection: Connection, path: str, within_s: float = 0.3, **headers: str) -> int | None:
    """The status of the answer; None if there is none yet."""
    lines = [f"GET {path} HTTP/1.1", "Host: h", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    connection.sock.sendall("\r\n".join(lines).encode())
    return status_of(connection, within_s)


def status_of(connection: Connection, within_s: float = WITHIN_S) -> int | None:
    connection.sock.settimeout(within_s)
    try:
        answer = connection.sock.recv(1 << 16)
    except TimeoutError:
        return None
    return int(answer.split()[1])


def test_clients_that_send_no_body_take_no_place(tmp_path: Path) -> None:
    serve.run(Gated.bind(str(tmp_path)), http_options=HTTP)
    head = b"POST /take HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n"
    silent = [socket.create_connection(address(), WITHIN_S) for _ in range(4)]
    for each in silent:
        each.sendall(head)
    assert ask("/quick").json == "quick"
    assert metrics_of()["working"] == 0
    for each in silent:
        each.sendall(bytes(10))
        assert each.recv(1 << 16).endswith(b"\r\n\r\n10")
        each.close()


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Two applications: /first passes on what is for /gated. Two requests may wait there."""
    serve.run(Limited.bind(), name="first", route_prefix="/first", http_options=HTTP)
    serve.run(Gated.bind(str(tmp_path)), name="gated", route_prefix="/gated")
    return tmp_path


def test_requests_that_are_passed_on_wait_up_to_the_limit(two: Path) -> None:
    with to_first(5) as connections:
        for each in connections[:3]:
            assert asks(each, "/gated/wait") is None
        for each in connections[3:]:
            refused = each.ask("/gated/wait")
            assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        (two / "open").touch()
        assert [status_of(each) for each in connections[:3]] == 3 * [200]
        assert connections[3].ask("/gated/wait").json == "done"
    wait_for(lambda: metrics_of("gated")["rejected"] == 2, WITHIN_S, "the controller to hear of the refusals")


def test_a_websocket_that_waits_to_be_passed_on_leaves_the_queue_with_its_client(two: Path) -> None:
    with to_first(4) as (working, one, two_, late):
        assert asks(working, "/gated/wait") is None
        for each in (one, two_):
            assert asks(each, "/gated/loop", **UPGRADE) is None
        assert asks(late, "/gated/wait", WITHIN_S) == 503
        one.close()
        wait_for(lambda: asks(late, "/gated/wait") is None, WITHIN_S, "the websocket to leave the queue")
        (two / "open").touch()
        assert [status_of(working), status_of(two_), status_of(late)] == [200, 101, 200]


def test_a_websocket_that_is_passed_on_loses_no_message(two: Path) -> None:
    """Also one that is sent before the handshake is answered."""
    with to_first(2) as (working, one):
        assert asks(working, "/gated/wait") is None
        assert asks(one, "/gated/loop", **UPGRADE) is None
        hello = b"\x81\x85\0\0\0\0hello"
        one.sock.sendall(hello)
        (two / "open").touch()
        came = b""
        one.sock.settimeout(WITHIN_S)
        while not came.endswith(b"\x81\x05hello"):
            came += one.sock.recv(1 << 16)
        one.sock.sendall(hello)
        assert one.sock.recv(1 << 16) == b"\x81\x05hello"


def test_a_replica_that_cannot_be_reached_for_want_of_files_is_not_taken_for_dead(two: Path) -> None:
    with to_first(4) as (first, second, third, working):
        assert asks(working, "/gated/wait") is None, "it uses the connection between the replicas"
        serve.run(Gated.options(max_ongoing_requests=10).bind(str(two)), name="gated", route_prefix="/gated")
        before = first.ask("/first/files?number=3").json
        refused = second.ask("/gated/quick")
        assert (refused.status, refused.headers["retry-after"]) == (503, "1")
        first.ask(f"/first/files?number={before}")
        assert third.ask("/gated/quick").json == "quick"
        (two / "open").touch()
        assert status_of(working) == 200


def test_a_connection_starts_an_application_that_scales_and_no_other() -> None:
    serve.run(Limited.options(num_replicas=0).bind(), name="none", route_prefix="/none", http_options=HTTP)
    scaled = Limited.options(autoscaling_config={"min_replicas": 0, "initial_replicas": 0, "max_replicas": 1})
    serve.run(scaled.bind(), name="first", route_prefix="/first")
    assert ask("/first/id").status == 200


def test_a_keeper_that_cannot_tell_of_a_connection_looks_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeper, "KNOCK_EVERY_S", 0.0)
    monkeypatch.setattr(keeper, "CONTROLLER", None)  # what cannot be found, in another way than a controller that ended

    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as sock, socket.create_connection(sock.getsockname()):
            one = keeper.Keeper.__new__(keeper.Keeper)
            one._loop, one._holders, one._watching, one._socket = asyncio.get_running_loop(), {}, False, sock
            one._look()
            while caplog.text.count("could not be told") < 2:
                await asyncio.sleep(0)
            one._loop.remove_reader(sock)

    asyncio.run(asyncio.wait_for(main(), WITHIN_S))
