"""The HTTP server of replicas, over real sockets, in asyncio's loop and in uvloop's.

Every test also checks that no file descriptor is left open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import resource
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from serve_http_servers import (
    GET,
    WITHIN_S,
    App,
    Client,
    Run,
    Served,
    client,
    eventually,
    request,
    run,
    serving,
)
from skate.serve import http_server
from skate.serve.http_server import HttpServer, HttpSettings

__all__ = ["run"]  # a fixture


# --- requests


def test_requests_of_a_keep_alive_connection_are_answered(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            for _ in range(3):
                response = await one.get()
                assert (response.status, response.body) == (200, b"/hello")
                assert "date" in response.headers
                assert "server" not in response.headers
                assert not response.closes
            assert (await one.get(request("/echo", b"abc"))).body == b"abc"
            assert served.server.connections == 1
            scope = served.app.scopes[0]
            assert scope["client"] == one.writer.get_extra_info("sockname")
            assert (scope["path"], scope["query_string"], scope["root_path"]) == ("/hello", b"name=x", "")
        await eventually(lambda: served.server.connections == 0, "the connection to be forgotten")

    run(scenario())


def test_pipelined_requests_are_answered_in_order(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            one.send(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(100)))
            assert [(await one.response()).body for _ in range(100)] == [b"/%d" % number for number in range(100)]

    run(scenario())


def test_requests_sent_ahead_are_bounded(run: Run) -> None:
    """The surplus is not given to the app; the client sees that the connection ends and can send it again."""

    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            one.send(b"GET /wait HTTP/1.1\r\n\r\n" + b"GET /x HTTP/1.1\r\n\r\n" * 5000)
            await eventually(lambda: served.server.requests == 1, "the first request to run")
            served.app.gate.set()
            received = await one.end()
            assert 2 <= received.count(b"HTTP/1.1 200") <= 300
            assert received.count(b"connection: close") == 1
            assert len(served.app.scopes) == received.count(b"HTTP/1.1 200")

    run(scenario())


def test_root_path_is_before_the_path(run: Run) -> None:
    async def scenario() -> None:
        async with serving(root_path="/app") as served, client(served) as one:
            assert (await one.get()).body == b"/app/hello"

    run(scenario())


def test_trailers_do_not_become_headers(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            head = b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
            assert (await one.get(head + b"3\r\nabc\r\n0\r\nx-role: admin\r\n\r\n")).body == b"abc"
            assert (b"x-role", b"admin") not in served.app.scopes[0]["headers"]

    run(scenario())


@pytest.mark.parametrize("path", ["/fail", "/nothing"])
def test_an_app_that_fails_gives_500_and_the_connection_lives_in_the_next(
    run: Run, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving() as served:
            async with client(served) as one:
                response = await one.get(request(path))
                assert (response.status, response.body) == (500, b"Internal Server Error")
            async with client(served) as another:
                assert (await another.get()).status == 200

    run(scenario())
    record = next(record for record in caplog.records if record.name == "skate.serve")
    assert record.levelno == logging.ERROR
    assert path in record.getMessage()
    if path == "/fail":
        assert "the handler is broken" in caplog.text


def test_an_app_that_fails_within_its_response_ends_the_connection(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            one.send(request("/half"))
            received = await one.end()
            assert b"half" in received
            assert not received.endswith(b"0\r\n\r\n")

    run(scenario())


def test_a_disconnect_reaches_the_app(run: Run) -> None:
    """Also when a request that was sent ahead waits behind the running one."""

    async def scenario() -> None:
        for ahead in (b"", GET):
            async with serving() as served:
                async with client(served) as one:
                    one.send(request("/disconnect") + ahead)
                    await eventually(lambda: served.app.events, "the request to run")
                await eventually(lambda: len(served.app.events) == 4, "the app to notice")
                assert served.app.events == ["http.request", "called back", "http.disconnect", "called back late"]
                await eventually(lambda: served.server.requests == 0, "the app to return")

    run(scenario())


# --- accepting


def test_two_servers_share_a_listening_socket_until_one_stops(run: Run) -> None:
    """Each takes one connection in a turn of the loop, so of ten that wait both get some."""

    async def scenario() -> None:
        async with serving() as served:
            other = HttpServer(App(), HttpSettings())
            with served.sock.dup() as shared:
                other.listen(shared)
                with ten_connections(served) as connections:
                    await eventually(lambda: served.server.connections + other.connections == 10, "all to be accepted")
                    assert served.server.connections == other.connections == 5
                    assert [await status_of(connection) for connection in connections] == [200] * 10
                served.server.stop_accepting()
                served.server.stop_accepting()
                await eventually(lambda: served.server.connections + other.connections == 0, "all to be closed")
                with ten_connections(served) as connections:
                    await eventually(lambda: other.connections == 10, "the other to accept all")
                    assert [await status_of(connection) for connection in connections] == [200] * 10
                other.close()

    run(scenario())


@contextlib.contextmanager
def ten_connections(served: Served) -> Iterator[list[socket.socket]]:
    """Made in the kernel, before the loop turns."""
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", served.port)
        connections = [stack.enter_context(socket.create_connection(address)) for _ in range(10)]
        for connection in connections:
            connection.setblocking(False)
        yield connections


async def status_of(connection: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connection, GET)
    return int((await loop.sock_recv(connection, 1000)).split()[1])


def test_accepting_goes_on_after_descriptors_ran_out(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "ACCEPT_PAUSE_S", 0.1)

    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            assert (await one.get()).status == 200
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            with socket.socket() as late:
                late.setblocking(False)
                resource.setrlimit(resource.RLIMIT_NOFILE, (late.fileno(), hard))
                try:
                    await asyncio.get_running_loop().sock_connect(late, ("127.0.0.1", served.port))
                    await eventually(lambda: "accepting connections stops" in caplog.text, "accepting to fail")
                    assert (await one.get()).status == 200
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                await asyncio.get_running_loop().sock_sendall(late, GET)
                assert b"200" in await asyncio.get_running_loop().sock_recv(late, 1000)

    run(scenario())
    assert caplog.text.count("accepting connections stops") <= 5


def test_idle_connections_do_not_disturb_others(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served, contextlib.AsyncExitStack() as stack:
            for number in range(200):
                idle = await stack.enter_async_context(client(served))
                if number % 2:
                    await idle.get()
            await eventually(lambda: served.server.connections == 200, "all to be connected")
            async with client(served) as one:
                for _ in range(50):
                    assert (await one.get()).status == 200

    run(scenario())


# --- limits


def test_large_heads_are_refused_with_431(run: Run) -> None:
    async def scenario() -> None:
        async with serving(max_header_bytes=2000) as served:
            large = b"a" * 3000
            heads = [
                b"GET /%b HTTP/1.1\r\n\r\n" % large,
                b"GET / HTTP/1.1\r\nx: %b\r\n\r\n" % large,
                b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 1000 + b"\r\n",
            ]
            for head in heads:
                async with client(served) as one:
                    response = await one.get(head)
                    assert (response.status, response.closes) == (431, True)
                    assert await one.end() == b""
            assert served.app.scopes == []
            async with client(served) as one:
                assert (await one.get(b"GET / HTTP/1.1\r\nx: %b\r\n\r\n" % large[:1900])).status == 200

    run(scenario())


@pytest.mark.parametrize(
    "start",
    [
        b"GET /",
        b"GET / HTTP/1.1\r\nx",
        b"GET / HTTP/1.1\r\nx: ",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;",
        b"POST /wait HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx: ",
    ],
    ids=["url", "name", "value", "chunk extension", "trailer"],
)
def test_a_flood_of_header_bytes_ends(run: Run, start: bytes) -> None:
    async def scenario() -> None:
        async with serving(max_header_bytes=2000) as served, client(served) as one:
            with contextlib.suppress(OSError):
                one.send(start)
                for _ in range(100):
                    one.send(b"a" * 10_000)
                    await one.writer.drain()
            with contextlib.suppress(OSError):
                received = await one.end()
                assert received.startswith((b"HTTP/1.1 431", b"HTTP/1.1 200"))

    run(scenario())


def test_large_bodies_are_refused_with_413_by_length_and_by_count(run: Run) -> None:
    async def scenario() -> None:
        async with serving(max_body_bytes=100_000) as served:
            async with client(served) as one:
                response = await one.get(request("/echo", b"a" * 100_001))
                assert (response.status, response.closes) == (413, True)
                assert served.app.scopes == []
            async with client(served) as one:
                one.send(b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
                for _ in range(1000):
                    one.send(b"1000\r\n" + b"a" * 0x1000 + b"\r\n")
                response = await one.response()
                assert (response.status, response.closes) == (413, True)
            await eventually(lambda: served.server.requests == 0, "the app to be told that its client has gone")
            async with client(served) as one:
                assert len((await one.get(request("/echo", b"a" * 100_000))).body) == 100_000

    run(scenario())


def test_a_refusal_waits_for_the_responses_to_earlier_requests(run: Run) -> None:
    async def scenario() -> None:
        async with serving(max_body_bytes=10) as served, client(served) as one:
            one.send(b"GET /wait HTTP/1.1\r\n\r\n" + b"rubbish\r\n\r\n")
            await eventually(lambda: served.server.requests == 1, "the first request to run")
            served.app.gate.set()
            response = await one.response()
            assert (response.status, response.body, response.closes) == (200, b"waited", True)
            assert await one.end() == b""

    run(scenario())


def test_slow_clients_are_refused_with_408_and_silent_ones_closed(run: Run) -> None:
    async def scenario() -> None:
        limits = {"header_timeout_s": 0.2, "body_timeout_s": 0.2, "keep_alive_s": 0.2}
        async with serving(**limits) as served, contextlib.AsyncExitStack() as stack:
            head, body, later, silent, kept = [await stack.enter_async_context(client(served)) for _ in range(5)]
            dripping = asyncio.create_task(drip(head))
            body.send(b"POST /echo HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc")
            assert (await later.get()).status == 200
            later.send(b"GET /")
            assert (await kept.get()).status == 200
            for slow in (head, body, later):
                response = await slow.response()
                assert (response.status, response.closes) == (408, True)
                assert await slow.end() == b""
            assert await silent.end() == await kept.end() == b""
            dripping.cancel()

    run(scenario())


async def drip(one: Client) -> None:
    """A head of which every part comes in time, and which never ends."""
    one.send(b"GET / HTTP/1.1\r\n")
    while True:
        one.send(b"a: b\r\n")
        await asyncio.sleep(0.02)


def test_a_request_that_runs_is_not_silence(run: Run) -> None:
    async def scenario() -> None:
        limits = {"header_timeout_s": 0.05, "body_timeout_s": 0.05, "keep_alive_s": 0.05}
        async with serving(**limits) as served, client(served) as one:
            one.send(request("/wait", b"body"))
            await asyncio.sleep(0.2)
            served.app.gate.set()
            assert (await one.response()).body == b"waited"

    run(scenario())


def test_a_client_that_does_not_read_is_cut_off(run: Run) -> None:
    """Both while the app sends, and when the app is done and the response waits in the buffer."""

    async def scenario() -> None:
        async with serving(write_timeout_s=0.1) as served:
            for path in (b"/flood", b"/large"):
                served.app.events.clear()
                with socket.socket() as deaf:
                    deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                    deaf.setblocking(False)
                    loop = asyncio.get_running_loop()
                    await loop.sock_connect(deaf, ("127.0.0.1", served.port))
                    await loop.sock_sendall(deaf, b"GET " + path + b" HTTP/1.1\r\n\r\n")
                    await eventually(lambda: served.app.events, "the app to send")
                    await eventually(lambda: served.server.connections == 0, "the client to be cut off")
                    await eventually(lambda: served.server.requests == 0, "the app to return")

    run(scenario())


def test_malformed_requests_get_400_and_disturb_no_one(run: Run) -> None:
    async def scenario() -> None:
        chance = random.Random(7)
        async with serving() as served, client(served) as bystander:
            for _ in range(10):
                await asyncio.gather(*(send_rubbish(served, rubbish(chance)) for _ in range(40)))
                assert (await bystander.get()).status == 200
            await eventually(lambda: served.server.connections == 1, "the malformed connections to be closed")

    run(scenario())


def rubbish(chance: random.Random) -> bytes:
    """Random bytes, or a request with some bytes changed."""
    if chance.random() < 0.3:
        return chance.randbytes(chance.randrange(1, 2000))
    template = chance.choice([GET, request("/echo", b"body", "Expect: 100-continue\r\n"), upgrade(), GET * 5])
    data = bytearray(template)
    for _ in range(chance.randrange(1, 6)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data)


def upgrade(headers: str = "") -> bytes:
    return (
        "GET /loop HTTP/1.1\r\nHost: t\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n{headers}\r\n"
    ).encode()


async def send_rubbish(served: Served, data: bytes) -> None:
    """What comes back, if anything does, is HTTP. The client closes its half, as the data may be the start of more."""
    async with client(served) as one:
        one.send(data)
        one.writer.write_eof()
        with contextlib.suppress(OSError):
            received = await one.end()
            assert received == b"" or received.startswith(b"HTTP/1.1 ")


@pytest.mark.parametrize(
    "data",
    [
        b"rubbish\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET \xff HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    ],
)
def test_a_malformed_request_gets_400(run: Run, data: bytes) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            response = await one.get(data)
            assert (response.status, response.closes) == (400, True)
            assert await one.end() == b""
            assert served.app.scopes == []

    run(scenario())


# --- websockets


def test_websockets_carry_messages_and_close_codes(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served:
            async with connect(served.url, proxy=None) as websocket:
                await websocket.send("hello")
                assert await websocket.recv() == "hello"
                await websocket.send(bytes(1_000_000))
                assert await websocket.recv() == "1000000"
            await eventually(lambda: served.app.events, "the app to see the end")
            assert served.app.events[0]["code"] == 1000
            with pytest.raises(InvalidStatus, match="403"):
                await connect(served.url.replace("loop", "refuse"), proxy=None)
            for text, code in (("return", 1000), ("fail", 1011)):
                async with connect(served.url, proxy=None) as websocket:
                    await websocket.send(text)
                    await websocket.wait_closed()
                    assert websocket.close_code == code

    run(scenario())


def test_large_websocket_messages_are_refused_with_1009(run: Run) -> None:
    async def scenario() -> None:
        async with serving(max_websocket_bytes=1000) as served, connect(served.url, proxy=None) as websocket:
            with contextlib.suppress(ConnectionClosed):
                await websocket.send(bytes(1_000_000))
            await websocket.wait_closed()
            assert websocket.close_code == 1009
            await eventually(lambda: served.server.requests == 0, "the app to see the end")
            assert served.app.events[0]["code"] == 1009

    run(scenario())


def test_text_that_is_not_utf_8_closes_a_websocket_with_1007_and_is_no_news_for_the_log(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            assert (await one.get(upgrade())).status == 101
            one.send(b"\x81\x81\0\0\0\0\xff")
            assert await one.end() == b"\x88\x02" + (1007).to_bytes(2, "big")

    run(scenario())
    assert not caplog.records


def test_a_websocket_handshake_that_is_not_one_is_answered(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served:
            many = "".join(f"x-{number}: y\r\n" for number in range(200))
            body = upgrade("Content-Length: 3\r\n") + b"abc"
            path = upgrade().replace(b"/loop", b"/\xff")
            for head, status in ((upgrade(many), b"431"), (body, b"400"), (path, b"400")):
                async with client(served) as one:
                    one.send(head)
                    assert (await one.end()).startswith(b"HTTP/1.1 " + status)
            assert served.app.scopes == []

    run(scenario())


def test_a_websocket_client_that_pings_and_does_not_read_fills_no_memory(run: Run) -> None:
    async def scenario() -> None:
        async with serving(write_timeout_s=0.15) as served:
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.setblocking(False)
                loop = asyncio.get_running_loop()
                await loop.sock_connect(deaf, ("127.0.0.1", served.port))
                await loop.sock_sendall(deaf, upgrade())
                assert b" 101 " in await loop.sock_recv(deaf, 1000)
                ping = b"\x89\xfd\0\0\0\0" + bytes(125)
                with contextlib.suppress(OSError):
                    while served.server.connections:
                        await loop.sock_sendall(deaf, ping * 1000)
                        for connection in served.server._state.connections:
                            assert connection.transport.get_write_buffer_size() < 1_000_000
                await eventually(lambda: served.server.connections == 0, "the client to be cut off")

    run(scenario())


# --- draining


def test_a_drain_ends_at_once_without_connections(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served:
            await served.server.drain(timeout_s=WITHIN_S)

    run(scenario())


def test_a_drain_answers_pausing_clients_once_more_and_says_that_it_closes(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as one, client(served) as other, client(served) as new:
            assert (await one.get()).status == (await other.get()).status == 200
            await eventually(lambda: served.server.connections == 3, "all to be connected")
            drain = asyncio.create_task(served.server.drain(timeout_s=WITHIN_S))
            for paused in (one, other, new):
                await asyncio.sleep(0.05)
                assert not drain.done()
                response = await paused.get()
                assert (response.status, response.closes) == (200, True)
                assert await paused.end() == b""
            await drain

    run(scenario())


def test_a_drain_lets_running_requests_finish(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            one.send(request("/wait"))
            await eventually(lambda: served.server.requests == 1, "the request to run")
            drain = asyncio.create_task(served.server.drain(timeout_s=WITHIN_S))
            await asyncio.sleep(0.05)
            served.app.gate.set()
            response = await one.response()
            assert (response.status, response.body, response.closes) == (200, b"waited", True)
            await drain

    run(scenario())


def test_a_drain_closes_silent_connections_and_cancels_requests_at_its_timeout(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "FAREWELL_S", 0.1)

    async def scenario() -> None:
        async with serving() as served, client(served) as silent, client(served) as busy:
            assert (await silent.get()).status == 200
            busy.send(request("/wait"))
            await eventually(lambda: served.server.requests == 1, "the request to run")
            await served.server.drain(timeout_s=0.05)
            assert await silent.end() == b""
            with contextlib.suppress(ConnectionResetError):
                assert await busy.end() == b""
            await eventually(lambda: served.server.requests == 0, "the request to be cancelled")

    run(scenario())
    assert caplog.records == []


def test_a_request_that_crosses_the_end_of_a_drain_is_answered(run: Run) -> None:
    """It has arrived when the drain times out, and the loop has not read it."""

    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            assert (await one.get()).status == 200
            served.server.stop_accepting()
            with one.writer.get_extra_info("socket").dup() as raw:
                drain = asyncio.create_task(served.server.drain(timeout_s=0))
                # The drain reaches its timeout in the loop's next turn, before the loop looks for input.
                raw.send(GET)
                response = await one.response()
            assert (response.status, response.closes) == (200, True)
            await drain

    run(scenario())


def test_a_drain_closes_websockets_with_1012(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as kept:
            assert (await kept.get()).status == 200
            async with connect(served.url, proxy=None) as websocket:
                await websocket.send("hello")
                assert await websocket.recv() == "hello"
                drain = asyncio.create_task(served.server.drain(timeout_s=WITHIN_S))
                await websocket.wait_closed()
                assert websocket.close_code == 1012
                await eventually(lambda: served.app.events, "the app to be told")
                assert served.app.events[0] == {"type": "websocket.disconnect", "code": 1012}
            response = await kept.get(upgrade())
            assert (response.status, response.closes) == (503, True)
            assert await kept.end() == b""
            await kept.close()
            await drain

    run(scenario())


def test_a_websocket_that_talks_all_the_time_sees_1012(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving() as served, connect(served.url, proxy=None) as websocket:
            talk = asyncio.create_task(talk_on(websocket))
            await eventually(lambda: served.server.requests == 1, "the websocket to open")
            await served.server.drain(timeout_s=WITHIN_S)
            await talk
            assert websocket.close_code == 1012

    run(scenario())
    assert caplog.records == []


async def talk_on(websocket: Any) -> None:
    with contextlib.suppress(ConnectionClosed):
        while True:
            await websocket.send(json.dumps([0.5] * 100))
            await websocket.recv()
