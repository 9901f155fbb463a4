"""An app, the HTTP server of replicas around it, and clients that send bytes as they are given."""

from __future__ import annotations

import asyncio
import contextlib
import encodings.idna
import gc
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import uvloop

from skate.serve.http_server import HttpServer, HttpSettings

WITHIN_S = 20.0
GET = b"GET /hello?name=x HTTP/1.1\r\nHost: test\r\n\r\n"

# libuv opens a pipe for the whole process with its first loop, and keeps it.
uvloop.new_event_loop().close()
# uvloop looks this up with its first connection, for which a test leaves no descriptor.
assert encodings.idna

#: An app that only sends gives up after so many messages: a test would hang if it went on for ever.
SENDS_MAX = 200
#: The headers of a request for a websocket.
UPGRADE = (
    "Upgrade: websocket\r\nConnection: upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a scenario in a new event loop, with nothing left open and no error in a callback."""
    loop: asyncio.AbstractEventLoop = request.param()
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))

    def run_scenario(scenario: Coroutine[Any, Any, None]) -> None:
        loop.run_until_complete(leak_checked(scenario))

    yield run_scenario
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    assert errors == []


async def leak_checked(scenario: Coroutine[Any, Any, None]) -> None:
    before = open_sockets()
    await asyncio.wait_for(scenario, WITHIN_S)
    await eventually(lambda: open_sockets() <= before, "every socket to be closed")


def open_sockets() -> int:
    gc.collect()
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    return count


async def eventually(condition: Callable[[], object], what: str) -> None:
    """As `waiting.wait_for`, while the loop goes on."""
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"waited in vain for {what}")


# --- the app


class App:
    """Answers by path, and remembers what it saw."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []
        self.events: list[Any] = []
        #: Requests to /wait are answered when this is set.
        self.gate = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        if scope["type"] == "websocket":
            await self.websocket(scope, receive, send)
        elif scope["path"] == "/wait":
            await self.gate.wait()
            await answer(send, b"waited")
        elif scope["path"] == "/echo":
            await answer(send, await whole_body(receive))
        elif scope["path"] == "/fail":
            raise ValueError("the handler is broken")
        elif scope["path"] == "/nothing":
            pass
        elif scope["path"] == "/half":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"half", "more_body": True})
            raise ValueError("the handler broke in the middle")
        elif scope["path"] == "/disconnect":
            scope["extensions"]["skate.disconnect"](lambda: self.events.append("called back"))
            while (message := await receive())["type"] != "http.disconnect":
                self.events.append(message["type"])
            self.events.append("http.disconnect")
            scope["extensions"]["skate.disconnect"](lambda: self.events.append("called back late"))
        elif scope["path"] == "/flood":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            gone = asyncio.Event()
            scope["extensions"]["skate.disconnect"](gone.set)
            while not gone.is_set():
                await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
                self.events.append("sent")
        elif scope["path"] == "/only-send":
            gone = asyncio.Event()
            scope["extensions"]["skate.disconnect"](gone.set)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
            await self.gate.wait()
            for _ in range(SENDS_MAX):
                if gone.is_set():
                    self.events.append("told")
                    break
                await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        elif scope["path"] == "/large":
            await answer(send, bytes(16 << 20))
            self.events.append("sent")
        else:
            await answer(send, scope["path"].encode())

    async def websocket(self, scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "websocket.connect"
        if scope["path"] == "/refuse":
            await send({"type": "websocket.close"})
            return
        await send({"type": "websocket.accept"})
        if scope["path"] == "/only-send":
            await self.gate.wait()
            try:
                for _ in range(SENDS_MAX):
                    await send({"type": "websocket.send", "bytes": bytes(1 << 20)})
            except OSError:
                self.events.append("told")
            return
        while (message := await receive())["type"] == "websocket.receive":
            if message.get("text") == "fail":
                raise ValueError("the websocket handler is broken")
            if message.get("text") == "return":
                return
            if scope["path"] == "/slow":
                await self.gate.wait()
            await send({"type": "websocket.send", "text": message.get("text") or str(len(message["bytes"]))})
        self.events.append(message)


async def answer(send: Any, body: bytes) -> None:
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def whole_body(receive: Any) -> bytes:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


@dataclass
class Served:
    app: App
    server: HttpServer
    sock: socket.socket

    @property
    def port(self) -> int:
        return int(self.sock.getsockname()[1])

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/loop"


@contextlib.asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Served]:
    with socket.create_server(("127.0.0.1", 0), backlog=512) as sock:
        app = App()
        server = HttpServer(app, HttpSettings(**settings))
        server.listen(sock)
        try:
            yield Served(app, server, sock)
        finally:
            server.close()
            await eventually(lambda: server.connections == server.requests == 0, "the server to be empty")


# --- the client


@dataclass
class Response:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def closes(self) -> bool:
        return self.headers.get("connection") == "close"


class Client:
    """One connection, on which bytes are sent as they are given."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def response(self) -> Response:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.rstrip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        body = b""
        if "content-length" in headers:
            body = await self.reader.readexactly(int(headers["content-length"]))
        return Response(int(status.split()[1]), headers, body)

    async def get(self, request: bytes = GET) -> Response:
        self.send(request)
        return await self.response()

    async def end(self) -> bytes:
        """What comes until the server closes."""
        return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


@contextlib.asynccontextmanager
async def client(served: Served) -> AsyncIterator[Client]:
    connection = Client(*await asyncio.open_connection("127.0.0.1", served.port))
    try:
        yield connection
    finally:
        await connection.close()


def request(path: str, body: bytes = b"", headers: str = "") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: t\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body
