"""An application, its web clients, and a tunnel between them, for the tests of tunnels."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import uvloop

import skate
from skate.connections import Address
from skate.serve.tunnel import TunnelClient, TunnelServer
from skate.serve.tunnel_client import Connectable
from waiting import WITHIN_S, wait_for

#: Far more than what may be under way between the two sides, and than what the buffers of sockets hold.
LARGE = 20_000_000
#: What may be under way in one direction: the buffers of the two sides and of the socket.
UNDER_WAY = 4_000_000
CHUNK = 60_000

Message = dict[str, Any]
Run = Callable[[Callable[[], Coroutine[Any, Any, None]]], None]

# The first event loop of uvloop opens a pipe that stays open as long as the process lives.
uvloop.new_event_loop().close()


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a test in one of the two event loops."""
    return (lambda main: asyncio.run(main())) if request.param == "asyncio" else (lambda main: uvloop.run(main()))


async def until(condition: Callable[[], Any], what: str) -> None:
    """Wait for a condition while the event loop goes on."""
    await asyncio.to_thread(wait_for, condition, WITHIN_S, what)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


class App:
    """An application that does what the path says, and keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.running = 0
        self.sent = self.taken = 0

    async def __call__(self, scope: Message, receive: Any, send: Any) -> None:
        self.running += 1
        try:
            await getattr(self, scope["path"].strip("/"))(scope, receive, send)
        except asyncio.CancelledError:
            self.seen.append("cancelled")
            raise
        finally:
            self.running -= 1

    async def echo(self, scope: Message, receive: Any, send: Any) -> None:
        """Send each piece of the body back as soon as it has come."""
        await send({"type": "http.response.start", "status": 201, "headers": [(b"pid", str(os.getpid()).encode())]})
        more = True
        while more:
            message = await receive()
            more = message["more_body"]
            await send({"type": "http.response.body", "body": message["body"], "more_body": more})

    async def describe(self, scope: Message, receive: Any, send: Any) -> None:
        self.seen.append(scope)
        await self.echo(scope, receive, send)

    async def flood(self, scope: Message, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for left in reversed(range(LARGE // CHUNK)):
            self.sent += CHUNK
            await send({"type": "http.response.body", "body": b"x" * CHUNK, "more_body": left > 0})

    async def hang(self, scope: Message, receive: Any, send: Any) -> None:
        """Answer nothing and read nothing."""
        await asyncio.Event().wait()

    async def watch(self, scope: Message, receive: Any, send: Any) -> None:
        """Wait to be called when the client is gone."""
        gone = asyncio.Event()
        scope["extensions"]["skate.disconnect"](gone.set)
        await gone.wait()
        scope["extensions"]["skate.disconnect"](lambda: self.seen.append("told again"))
        await asyncio.sleep(0)
        self.seen.append("told")

    async def listen(self, scope: Message, receive: Any, send: Any) -> None:
        """Read until the client is gone, and see that nothing can be sent to it."""
        while (message := await receive())["type"] == "http.request":
            pass
        self.seen.append(message)
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        except OSError:
            self.seen.append("nothing can be sent")

    async def refuse(self, scope: Message, receive: Any, send: Any) -> None:
        """Answer without reading, and go on a little after that."""
        await send({"type": "http.response.start", "status": 413, "headers": []})
        await send({"type": "http.response.body", "body": b"too much"})
        self.seen.append(await receive())

    async def raise_early(self, scope: Message, receive: Any, send: Any) -> None:
        raise KeyError("early")

    async def raise_late(self, scope: Message, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise KeyError("late")

    async def raise_at_once(self, scope: Message, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise KeyError("at once")

    async def silent(self, scope: Message, receive: Any, send: Any) -> None:
        """Return without an answer."""

    async def wrong(self, scope: Message, receive: Any, send: Any) -> None:
        await send({"type": "http.response.pathsend", "path": "/etc/passwd"})

    async def choir(self, scope: Message, receive: Any, send: Any) -> None:
        """Send long messages from several tasks at once."""
        await send({"type": "websocket.accept"})
        await asyncio.gather(*(send({"type": "websocket.send", "bytes": bytes([n]) * 1_000_000}) for n in range(8)))
        await send({"type": "websocket.close", "code": 1000})

    async def chat(self, scope: Message, receive: Any, send: Any) -> None:
        """Send messages back. "bye" closes the websocket."""
        self.seen.append(await receive())
        await send({"type": "websocket.accept", "subprotocol": scope["subprotocols"][0], "headers": [(b"a", b"1")]})
        while (message := await receive())["type"] == "websocket.receive":
            if message.get("text") == "bye":
                await send({"type": "websocket.close", "code": 1012, "reason": "restart"})
                return
            await send({**message, "type": "websocket.send"})
        self.seen.append(message)


class Visit:
    """A request as a web server presents it to an application: a scope, `receive` and `send`."""

    def __init__(self, path: str, *pieces: bytes, method: str = "POST", **scope: Any) -> None:
        self.scope = {"type": "http", "http_version": "1.1", "method": method, "path": path, "headers": [], **scope}
        self.pieces = list(pieces) or [b""]
        self.received = 0
        self.answers: list[Message] = []
        self.got = 0
        self.gone = asyncio.Event()
        self.may_send = asyncio.Event()
        self.may_send.set()

    async def through(self, client: TunnelClient) -> Visit:
        await client(self.scope, self.receive, self.send)
        return self

    async def receive(self) -> Message:
        if self.received < len(self.pieces):
            self.received += 1
            more = self.received < len(self.pieces)
            return {"type": "http.request", "body": self.pieces[self.received - 1], "more_body": more}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self.may_send.wait()
        self.answers.append(message)
        self.got += len(message.get("body", b""))

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.answers)


class Talk:
    """A websocket as a web server presents it."""

    def __init__(self, path: str = "/chat") -> None:
        self.scope = {"type": "websocket", "path": path, "headers": [], "subprotocols": ["raw", "other"]}
        self.says: asyncio.Queue[Message] = asyncio.Queue()
        self.hears: asyncio.Queue[Message] = asyncio.Queue()
        self.says.put_nowait({"type": "websocket.connect"})

    def through(self, client: TunnelClient) -> asyncio.Task[None]:
        return asyncio.ensure_future(client(self.scope, self.says.get, self.hears.put))  # type: ignore[arg-type]

    async def say(self, **message: Any) -> Message:
        """Send a message and return the next one of the application."""
        self.says.put_nowait({"type": "websocket.receive", **message})
        return await self.hears.get()


class Counted:
    """An address that counts how often it is connected to."""

    def __init__(self, address: Connectable) -> None:
        self.address = address
        self.connects = 0

    def connect(self) -> socket.socket:
        self.connects += 1
        return self.address.connect()


@contextmanager
def calling(address: Connectable) -> Iterator[TunnelClient]:
    client = TunnelClient(address)
    try:
        yield client
    finally:
        client.close()


@asynccontextmanager
async def serving(app: App) -> AsyncIterator[tuple[TunnelServer, Counted, TunnelClient]]:
    """A server and a client in this process, between them a connection as between any two processes."""
    server = TunnelServer(app, asyncio.get_running_loop(), grace_s=0.02)
    address = Counted(server.address)
    try:
        with calling(address) as client:
            yield server, address, client
    finally:
        server.close()
        await asyncio.wait_for(server.drain(), WITHIN_S)


@skate.remote(num_cpus=0)
class Far:
    """A process that serves the application in the event loop of an async actor."""

    async def serve(self) -> Address:
        self.app = App()
        self.server = TunnelServer(self.app, asyncio.get_running_loop(), grace_s=0.02)
        return self.server.address

    async def pid(self) -> int:
        return os.getpid()

    async def files(self) -> int:
        return open_files()

    async def running(self) -> int:
        return self.app.running

    async def end(self) -> None:
        await self.server.drain()
