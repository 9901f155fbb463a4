"""The side of a tunnel with the application; `tunnel.py` tells the whole story."""

from __future__ import annotations

import asyncio
import socket
import traceback
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any

from skate.connections import Address, Listener
from skate.serve.tunnel_frames import FROM_CALLER, FROM_SERVER, BadFrame, Buffers, Message, encode
from skate.serve.tunnel_wire import App, Inbox, Scope, TunnelBroken, Wire, log

__all__ = ["TunnelServer"]

#: How long an application may go on after its client has gone.
GRACE_S = 1.0
#: The server pauses for this long when it cannot accept, for example because too many files are open.
ACCEPT_AGAIN_S = 0.5
#: The close code of a websocket whose server ends, and is replaced by another.
RESTART = 1012
#: The extension of ASGI by which an app refuses a websocket with a whole response. The server in front has it, too.
HTTP_ANSWER = "websocket.http.response"
#: The end of a traceback that the client gets to see.
ERROR_CHARACTERS = 20_000


class TunnelServer:
    """Lets other processes call an application of this one, through its `address`, which can be sent to them.

    It can be made in any thread. The application and all else run in `loop`, where the other methods are called.
    """

    def __init__(
        self,
        app: App,
        loop: asyncio.AbstractEventLoop,
        *,
        grace_s: float = GRACE_S,
        load: Callable[[], int] = lambda: 0,
    ) -> None:
        self.app, self.loop, self.grace_s = app, loop, grace_s
        #: The work of this process, of which the start of each response tells its client.
        self.load = load
        self._listener = Listener()
        self.address: Address = self._listener.address
        self.draining = False
        self._deaf = False
        self._wires: set[ServerWire] = set()
        #: Applications that run, and connections that are being set up.
        self._tasks: set[asyncio.Task[None]] = set()
        self._change = asyncio.Event()
        loop.call_soon_threadsafe(self._listen)

    async def drain(self) -> None:
        """Accept no more connections, and wait until applications have ended and clients have closed theirs.

        Requests that are under way go on. Websockets are closed with code 1012, "service restart". A client closes its
        connections when it is told of this and nothing is under way. A client whose process is stopped does not, so
        limit the time, and call `close` after it.
        """
        self.draining = True
        self._accept()
        self._stop_listening()
        for wire in list(self._wires):
            wire.ask_to_leave()
            if wire.exchange is not None:
                wire.exchange.drain()
        while self._tasks or self._wires:
            self._change.clear()
            await self._change.wait()

    def close(self) -> None:
        """End everything at once: the listener, the connections, and the applications that run."""
        self.draining = True
        self._stop_listening()
        for wire in list(self._wires):
            wire.abort()
        for task in list(self._tasks):
            task.cancel()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something until it ends, or until `close`."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def add(self, wire: ServerWire) -> None:
        """Take notice of a connection that has been made."""
        self._wires.add(wire)
        if self.draining:
            wire.ask_to_leave()

    def forget(self, wire: ServerWire) -> None:
        """Take notice of a connection that has ended."""
        self._wires.discard(wire)
        self._change.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._change.set()

    def _listen(self) -> None:
        if not self._deaf:
            self.loop.add_reader(self._listener.fileno(), self._accept)

    def _stop_listening(self) -> None:
        if not self._deaf:
            self._deaf = True
            self.loop.remove_reader(self._listener.fileno())
            self._listener.close()

    def _accept(self) -> None:
        while not self._deaf:
            try:
                sock = self._listener.accept(timeout=0)
            except BlockingIOError:
                return
            except OSError as error:
                log.warning("a replica cannot accept connections from others: %s", error)
                self.loop.remove_reader(self._listener.fileno())
                self.loop.call_later(ACCEPT_AGAIN_S, self._listen)
                return
            self.start(self._serve(sock))

    async def _serve(self, sock: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: ServerWire(self), sock)
        except BaseException:
            sock.close()
            raise


class ServerWire(Wire):
    """A connection on which a client asks for one exchange after the other."""

    def __init__(self, server: TunnelServer) -> None:
        super().__init__(FROM_CALLER)
        self.server = server
        self.exchange: Exchange | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let the server know."""
        super().connection_made(transport)
        self.server.add(self)

    def on_message(self, message: Message) -> None:
        """Begin an exchange, or hand the message to the one that goes on."""
        if message["type"] in ("http", "websocket"):
            if self.exchange is not None:
                raise BadFrame("a request came before the one before it was answered")
            self.exchange = Exchange(self, message)
        elif self.exchange is not None:
            self.exchange.on_message(message)
        # What else comes is the rest of a request that was answered before it was read to the end.

    def on_lost(self) -> None:
        """The client is gone."""
        if self.exchange is not None:
            self.exchange.on_client_gone()
        self.server.forget(self)

    def end_exchange(self) -> None:
        """Make room for the next exchange, just before the last frame of this one is written."""
        self.exchange = None
        if self.server.draining:
            self.ask_to_leave()

    def ask_to_leave(self) -> None:
        """Ask the client to close the connection when nothing is under way."""
        self.tell({"type": "tunnel.leave"})


class Exchange:
    """A request that the application answers, or a websocket that it talks to."""

    def __init__(self, wire: ServerWire, head: Message) -> None:
        self._wire = wire
        self._server = wire.server
        self._inbox = Inbox(wire.transport)
        self._is_http = head["type"] == "http"
        #: The start of the response, which waits for the first piece of its body: both leave together.
        self._start: Buffers = []
        self._has_started = False
        #: Neither side says more: the response is complete, the application has returned, or the client is gone.
        self._over = False
        self._client_gone = False
        #: What the application wants to be called if its client goes before it has the response.
        self._on_disconnect: list[Callable[[], object]] = []
        #: What `receive` gives when there is nothing else to come.
        self._farewell: Message = {"type": "http.disconnect"}
        # The version is uvicorn's, so that an application acts as if it were called by uvicorn itself.
        scope = {"asgi": {"version": "3.0", "spec_version": "2.3"}, "client": None, "server": None, **head}
        if self._is_http:
            scope["extensions"] = {"skate.disconnect": self._call_on_disconnect}
        else:
            scope["extensions"] = {HTTP_ANSWER: {}}
            self._farewell = {"type": "websocket.disconnect", "code": 1006, "reason": ""}
        self._task = self._server.start(self._run(scope))

    async def receive(self) -> Message:
        """Give the application what the client sends."""
        message = None if self._is_http and self._over else await self._inbox.get()
        if message is None:
            return dict(self._farewell)
        if message["type"] == "websocket.disconnect":
            self._farewell = message
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send what the application says to the client. Raises TunnelBroken, an OSError, if the client is gone."""
        if self._client_gone:
            raise TunnelBroken("the client has gone.", started=True)
        if message["type"] not in FROM_SERVER:
            raise RuntimeError(f"messages of type {message['type']!r} are not forwarded.")
        if self._over:
            raise RuntimeError(f"the application sent {message['type']!r} after its response was complete.")
        if self._is_http and message["type"] == "http.response.start":
            if self._has_started:
                raise RuntimeError("the application sent 'http.response.start' twice.")
            self._has_started = True
            self._start = encode({**message, "load": self._server.load()})[0]
            self._server.loop.call_soon(self._send_start)
            return
        frames = encode(message)
        if self._start:
            frames[0] = [*self._start, *frames[0]]
            self._start = []
        for frame in frames[:-1]:
            self._wire.write(frame)
            # The pieces of a websocket message follow each other, though several tasks may send at once.
            if self._is_http:
                await self._wire.flushed()
        if message["type"] == "http.response.body" and not message.get("more_body", False):
            self._end()
        self._wire.write(frames[-1])
        await self._wire.flushed()

    def on_message(self, message: Message) -> None:
        """Take a message of the client."""
        self._inbox.put(message)
        if message["type"] == "websocket.disconnect":
            self._let_go()

    def on_client_gone(self) -> None:
        """Let the application know that its client is gone, and end it if it goes on."""
        self._client_gone = self._over = True
        self._inbox.end()
        self._let_go()
        for callback in self._on_disconnect:
            self._server.loop.call_soon(callback)
        self._on_disconnect.clear()

    def drain(self) -> None:
        """Close a websocket, because this process is about to end. Requests go on."""
        if self._is_http or self._over:
            return
        self._farewell = {"type": "websocket.disconnect", "code": RESTART, "reason": ""}
        self._over = self._client_gone = True
        self._wire.tell({"type": "websocket.close", "code": RESTART})
        self._wire.end_exchange()
        self._wire.tell({"type": "tunnel.end"})
        self._inbox.end()
        self._let_go()

    def _let_go(self) -> None:
        limit = self._server.loop.call_later(self._server.grace_s, self._task.cancel)
        self._task.add_done_callback(lambda _: limit.cancel())

    def _call_on_disconnect(self, callback: Callable[[], object]) -> None:
        """Call back if the client goes before it has the response, or soon if it is gone."""
        if self._client_gone:
            self._server.loop.call_soon(callback)
        elif not self._over:
            self._on_disconnect.append(callback)

    def _send_start(self) -> None:
        """Send the start of a response whose body did not come in the same turn of the loop."""
        start, self._start = self._start, []
        if start and self._wire.is_open():
            self._wire.write(start)

    def _end(self) -> None:
        self._over = True
        # Of a response without a body; after the end it would be taken for the start of the next one.
        self._start = []
        self._on_disconnect.clear()
        self._inbox.end()
        self._wire.end_exchange()

    async def _run(self, scope: Scope) -> None:
        failure = ""
        try:
            await self._server.app(scope, self.receive, self.send)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is the client's, or is logged
            # An app that raises ConnectionAbortedError has logged why.
            is_known = isinstance(error, asyncio.CancelledError | ConnectionAbortedError)
            if self._over and not is_known and not _comes_of_a_broken_tunnel(error):
                log.error("an application failed when its client had its answer, or was gone", exc_info=error)
            failure = "".join(traceback.format_exception(error))[-ERROR_CHARACTERS:]
        if not self._over:
            if self._is_http and not failure:
                failure = "the application returned before its response was complete."
            self._end()
            self._wire.tell({"type": "tunnel.error", "reason": failure} if failure else {"type": "tunnel.end"})


def _comes_of_a_broken_tunnel(error: BaseException | None) -> bool:
    """Tell if an error is what a framework made of the one that `send` raised when the client was gone."""
    while error is not None and not isinstance(error, TunnelBroken):
        error = error.__cause__ or error.__context__
    return error is not None
