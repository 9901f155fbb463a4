"""HTTP while replicas are replaced: no client notices, whatever it is doing at that moment."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from starlette.requests import Request
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from serve_http import Connection, address, ask, connection_to, delete_all, websocket_url
from skate import serve
from waiting import WITHIN_S, wait_for

#: A client that pauses, pauses shorter than this.
GRACE_S = 1.5
#: All clients pause a little, so that the replicas have the most of the machine.
PAUSE_S = 0.015
STREAM = [f"{number}\n" for number in range(20)]


@serve.deployment(num_replicas=2, graceful_shutdown_timeout_s=GRACE_S)
class Versioned:
    """Answers with its version."""

    def __init__(self, version: int) -> None:
        self.version = version

    @serve.get("/")
    async def root(self) -> dict[str, Any]:
        return {"version": self.version, "replica": serve.get_replica_context().replica_tag}

    @serve.post("/slow")
    async def slow(self, request: Request) -> dict[str, Any]:
        body = await request.body()
        await asyncio.sleep(0.05)
        return {"version": self.version, "size": len(body)}

    @serve.get("/stream")
    async def stream(self) -> AsyncIterator[str]:
        for item in STREAM:
            yield item
            await asyncio.sleep(0.02)

    @serve.websocket("/loop")
    async def loop(self, socket: Any) -> None:
        async for message in socket:
            await socket.send({"version": self.version, "message": message})


@pytest.fixture(scope="module", autouse=True)
def _one_port() -> Iterator[None]:
    yield
    serve.shutdown()


@pytest.fixture(autouse=True)
def _ended(runtime: Any) -> Iterator[None]:
    yield
    delete_all()


def run(version: int, name: str = "default", prefix: str = "/", **options: Any) -> None:
    serve.run(Versioned.bind(version), name=name, route_prefix=prefix, **options)


class Clients:
    """Clients of all kinds, each in a thread of its own, until the end of the block. None of them may fail."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._where = address()
        self._ended = threading.Event()
        self.versions: set[int] = set()
        self.answered = 0
        self.failures: list[str] = []
        kinds: list[Callable[[], None]] = [self.new, self.new, self.kept, self.kept, self.pausing, self.pausing]
        kinds += [self.streaming, self.posting, self.talking]
        self._threads = [threading.Thread(target=self._repeat, args=(kind,)) for kind in kinds]

    def __enter__(self) -> Clients:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        for each in self._threads:
            each.join()

    def wait_for_version(self, version: int) -> None:
        wait_for(lambda: version in self.versions or self.failures, WITHIN_S, f"version {version} to answer")
        count = self.answered
        wait_for(lambda: self.answered > count + 50 or self.failures, WITHIN_S, "further answers")

    def _repeat(self, kind: Callable[[], None]) -> None:
        try:
            while not self._ended.wait(PAUSE_S):
                kind()
        except Exception as error:
            self.failures.append(f"{kind.__name__}: {error!r}")

    def _note(self, version: int) -> None:
        self.versions.add(version)
        self.answered += 1

    def _ask(self, connection: Connection) -> bool:
        """Ask, and say whether the connection may be used again."""
        answer = connection.ask(f"{self._prefix}/")
        assert answer.status == 200, answer
        self._note(answer.json["version"])
        return "connection" not in answer.headers

    def new(self) -> None:
        connection = Connection(self._where)
        self._ask(connection)
        connection.close()

    def kept(self, pause_s: float = 0.0) -> None:
        connection = Connection(self._where)
        while self._ask(connection) and not self._ended.wait(PAUSE_S + random.random() * pause_s):
            pass
        connection.close()

    def pausing(self) -> None:
        self.kept(GRACE_S / 4)

    def posting(self) -> None:
        connection = Connection(self._where)
        answer = connection.ask(f"{self._prefix}/slow", "POST", bytes(300_000))
        assert (answer.status, answer.json["size"]) == (200, 300_000), answer
        connection.close()

    def streaming(self) -> None:
        connection = Connection(self._where)
        answer = connection.ask(f"{self._prefix}/stream")
        assert answer.text == "".join(STREAM)
        connection.close()

    def talking(self) -> None:
        """A websocket may be closed with code 1012, which asks the client to connect again, and with no other."""
        with connect(websocket_url(f"{self._prefix}/loop")) as websocket:
            try:
                for number in range(50):
                    websocket.send(str(number))
                    assert f'"message":"{number}"' in str(websocket.recv(WITHIN_S))
                    self._ended.wait(0.005)
            except ConnectionClosed:
                assert websocket.close_code == 1012


def test_an_update_drops_nothing_that_any_client_is_doing() -> None:
    run(1, port=0)
    with Clients() as clients:
        clients.wait_for_version(1)
        for version in (2, 3):
            run(version)
            clients.wait_for_version(version)
    assert clients.failures == []
    assert {ask("/").json["version"] for _ in range(20)} == {3}


def test_an_update_drops_nothing_that_comes_through_other_applications() -> None:
    run(1, port=0)
    run(1, "back", "/back")
    with Clients("/back") as clients:
        clients.wait_for_version(1)
        run(2, "back", "/back")
        clients.wait_for_version(2)
    assert clients.failures == []


def test_a_kept_connection_learns_from_an_answer_that_it_ends() -> None:
    run(1, port=0)
    kept = [Connection() for _ in range(8)]
    for each in kept:
        assert "connection" not in each.ask("/").headers
    update = threading.Thread(target=run, args=(2,))
    update.start()

    def ends(connection: Connection) -> bool:
        answer = connection.ask("/")
        assert answer.json["version"] == 1
        if "connection" not in answer.headers:  # the turn of its replica has not come
            return False
        assert answer.headers["connection"] == "close"
        with pytest.raises((http.client.HTTPException, OSError)):
            connection.ask("/")
        connection.close()
        return True

    def all_end() -> bool:
        kept[:] = [each for each in kept if not ends(each)]
        return not kept

    wait_for(all_end, WITHIN_S, "every connection to hear that it ends")
    update.join()
    assert {ask("/").json["version"] for _ in range(20)} == {2}


def test_a_silent_connection_is_closed_after_the_grace_and_not_before() -> None:
    version = Versioned.options(num_replicas=1, graceful_shutdown_timeout_s=0.5)
    serve.run(version.bind(1), port=0)
    silent = Connection()
    silent.ask("/")
    begin = time.monotonic()
    serve.run(version.bind(2))
    assert silent.sock.recv(1) == b""
    assert time.monotonic() - begin >= 0.5
    silent.close()


def test_a_websocket_is_closed_with_a_code_that_asks_to_connect_again() -> None:
    """One that its own replica has taken, and one that came through a replica of another application."""
    run(1, "front", "/front", port=0)
    run(1, "app", "/app")
    own = {ask("/app/").json["replica"] for _ in range(20)}
    with contextlib.ExitStack() as stack:
        websockets = []
        for is_wanted in (own.__contains__, lambda replica: replica not in own):
            near = stack.enter_context(connection_to(is_wanted))
            # The websocket takes over a connection whose other end is known.
            websockets.append(stack.enter_context(connect(websocket_url("/app/loop"), sock=near.sock.dup())))
            websockets[-1].send("hello")
            assert websockets[-1].recv(WITHIN_S) == '{"version":1,"message":"hello"}'
        update = threading.Thread(target=run, args=(2, "app", "/app"))
        update.start()
        for websocket in websockets:
            with pytest.raises(ConnectionClosed) as closed:
                websocket.recv(WITHIN_S)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
        update.join()
    with connect(websocket_url("/app/loop")) as websocket:
        websocket.send("again")
        assert websocket.recv(WITHIN_S) == '{"version":2,"message":"again"}'
