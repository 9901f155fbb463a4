"""The HTTP server of replicas: bodies that are late or slow, other protocols, pings, and clients that break off.

Every test also checks that no file descriptor is left open.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from typing import Any

import pytest
from websockets.asyncio.client import connect

from serve_http_servers import UPGRADE, Client, Run, client, eventually, request, run, serving

__all__ = ["run"]  # a fixture

INNER = b"GET /smuggled HTTP/1.1\r\nHost: t\r\n\r\n"
H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n"
CHUNKED = b"POST /echo HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n"


# --- other protocols


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("upgrade", [H2C, "Connection: upgrade\r\nUpgrade: websocket, h2c\r\n"])
def test_a_request_that_asks_for_another_protocol_keeps_its_body(run: Run, upgrade: str, split: bool) -> None:
    """Otherwise the body would be taken for the next request."""

    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            whole = request("/echo", INNER, upgrade)
            one.send(whole[: -len(INNER)])
            if split:
                await one.writer.drain()
                await eventually(lambda: served.server.requests, "the head to be read")
            one.send(INNER)
            assert (await one.response()).body == INNER
            assert (await one.get()).body == b"/hello"
            assert [scope["path"] for scope in served.app.scopes] == ["/echo", "/hello"]
            assert b"upgrade" not in dict(served.app.scopes[0]["headers"])

    run(scenario())


def test_requests_for_other_protocols_are_answered_in_order(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            chunked = CHUNKED + H2C.encode() + b"\r\n3\r\nabc\r\n0\r\n\r\n"
            one.send((chunked + f"GET /plain HTTP/1.1\r\n{H2C}\r\n".encode()) * 50)
            for _ in range(50):
                assert [(await one.response()).body for _ in range(2)] == [b"abc", b"/plain"]
            assert (await one.get()).body == b"/hello"

    run(scenario())


def test_connect_is_refused(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            response = await one.get(b"CONNECT elsewhere:80 HTTP/1.1\r\nHost: t\r\n\r\n" + INNER)
            assert (response.status, response.closes) == (400, True)
            assert await one.end() == b""
            assert served.app.scopes == []

    run(scenario())


# --- bodies


@pytest.mark.parametrize(
    ("head", "parts"),
    [
        (b"POST /echo HTTP/1.1\r\nContent-Length: 6\r\n\r\n", [b"abc", b"def"]),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 200000\r\n\r\n", [bytes(65_535), bytes(134_465)]),
        (CHUNKED + b"\r\n", [b"", b"3\r\nabc\r\n0\r\n\r\n"]),
    ],
    ids=["small", "large", "chunked"],
)
def test_the_app_is_called_when_the_body_has_begun_to_come(run: Run, head: bytes, parts: list[bytes]) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            one.send(head + parts[0])
            await eventually(lambda: served.server.requests == 1, "the head to be read")
            connection: Any = next(iter(served.server._state.connections))
            await eventually(lambda: connection.body_bytes == len(parts[0]), "the first part to be read")
            assert served.app.scopes == []
            one.send(parts[1])
            assert len((await one.response()).body) in (3, 6, 200_000)

    run(scenario())


def test_a_body_of_unknown_size_is_given_to_the_app_in_parts(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            one.send(CHUNKED + b"\r\n3\r\nabc\r\n")
            await eventually(lambda: served.app.scopes, "the app to be called")
            one.send(b"3\r\ndef\r\n0\r\n\r\n")
            assert (await one.response()).body == b"abcdef"

    run(scenario())


def test_a_client_that_asks_if_it_may_send_its_body_is_told_to(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            one.send(b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
            assert (await one.response()).status == 100
            assert served.app.scopes == []
            assert (await one.get(b"abc")).body == b"abc"

    run(scenario())


def test_a_client_that_goes_before_its_body_came_does_not_reach_the_app(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served:
            async with client(served) as one:
                one.send(b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\n\r\n")
                await eventually(lambda: served.server.requests == 1, "the head to be read")
            await eventually(lambda: served.server.requests == served.server.connections == 0, "the client to be gone")
            assert served.app.scopes == []

    run(scenario())


def test_a_body_behind_a_request_that_runs_is_read_in_its_turn(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served, client(served) as one:
            whole = request("/echo", b"body")
            one.send(b"GET /wait HTTP/1.1\r\n\r\n" + whole[:-2])
            await eventually(lambda: served.app.scopes, "the first request to run")
            one.send(whole[-2:])
            served.app.gate.set()
            assert [(await one.response()).body for _ in range(2)] == [b"waited", b"body"]

    run(scenario())


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_drips_is_refused_with_408(run: Run, chunked: bool) -> None:
    async def drip(one: Client) -> None:
        one.send(CHUNKED + b"\r\n" if chunked else b"POST /wait HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
        while True:
            one.send(b"1\r\na\r\n" if chunked else b"a")
            await asyncio.sleep(0.02)

    async def scenario() -> None:
        async with serving(body_timeout_s=0.15) as served, client(served) as one:
            dripping = asyncio.create_task(drip(one))
            response = await one.response()
            assert (response.status, response.closes) == (408, True)
            assert b"in a second" in response.body
            dripping.cancel()

    run(scenario())


def test_a_body_that_comes_fast_enough_may_take_long(run: Run) -> None:
    async def scenario() -> None:
        async with serving(body_timeout_s=0.2) as served, client(served) as one:
            one.send(b"POST /echo HTTP/1.1\r\nContent-Length: 40000\r\n\r\n")
            begin = time.monotonic()
            for _ in range(20):
                one.send(bytes(2000))
                await asyncio.sleep(0.02)
            assert len((await one.response()).body) == 40_000
            assert time.monotonic() - begin > 0.3, "longer than the limit of a silence"

    run(scenario())


# --- pings


def test_a_websocket_whose_message_waits_for_the_app_is_not_taken_for_dead(run: Run) -> None:
    """Nothing is read behind the message, so the answer to a ping is not heard."""

    async def scenario() -> None:
        async with serving() as served:
            served.server._config.ws_ping_interval = served.server._config.ws_ping_timeout = 0.05
            async with connect(f"ws://127.0.0.1:{served.port}/slow", ping_interval=None) as websocket:
                await websocket.send("one")
                await websocket.send("two")
                await asyncio.sleep(0.25)
                served.app.gate.set()
                assert [await websocket.recv() for _ in range(2)] == ["one", "two"]
                await asyncio.sleep(0.25)
                await websocket.send("three")
                assert await websocket.recv() == "three"

    run(scenario())


def test_a_websocket_whose_client_answers_no_ping_is_closed(run: Run) -> None:
    async def scenario() -> None:
        async with serving() as served:
            served.server._config.ws_ping_interval = served.server._config.ws_ping_timeout = 0.1
            async with client(served) as one:
                one.send(f"GET /loop HTTP/1.1\r\nHost: t\r\n{UPGRADE}\r\n".encode())
                assert b"keepalive ping timeout" in await one.end()

    run(scenario())


# --- clients that break off


@pytest.mark.parametrize("headers", ["", UPGRADE], ids=["stream", "websocket"])
def test_an_app_that_only_sends_is_told_that_its_client_has_gone(run: Run, headers: str) -> None:
    """What it sends is dropped at once, so it has nothing to wait for, and would keep the loop for ever."""

    async def scenario() -> None:
        async with serving() as served:
            loop = asyncio.get_running_loop()
            with socket.socket() as sock:
                sock.setblocking(False)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                await loop.sock_connect(sock, ("127.0.0.1", served.port))
                await loop.sock_sendall(sock, f"GET /only-send HTTP/1.1\r\nHost: t\r\n{headers}\r\n".encode())
                await loop.sock_recv(sock, 1 << 16)
            served.app.gate.set()  # the app sends before the server can read that the connection was reset
            await eventually(lambda: served.server.requests == 0, "the app to return")
            assert served.app.events == ["told"]

    run(scenario())
