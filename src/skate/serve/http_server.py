"""HTTP in the event loop of a replica: connections from a shared listening socket, answered by an ASGI app.

The listening socket belongs to another process, and several replicas hold a duplicate of it. A replica takes one
connection in each turn of its loop. A loop that is idle turns faster than one that is busy, so the idle replica gets
the connection, and what none takes waits in the kernel.

uvicorn's protocols serve the connections. uvicorn's server is not used, because it accepts as many connections as it
can, and closes idle ones at once when it stops. A rolling update must close neither a connection on which a request may
be on its way, nor one that is answering.
"""

from __future__ import annotations

import asyncio
import select
import socket
import time
from email.utils import formatdate
from functools import partial
from typing import Any

from uvicorn import Config
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState
from websockets.frames import Frame
from websockets.protocol import OPEN

from skate.serve.http_settings import (
    ASGIApp,
    ConnectionsState,
    HttpSettings,
    Receive,
    Scope,
    Send,
    StallClock,
)
from skate.serve.limits import LINGER_S, LOGGER, PROTOCOL_LOGGER, HttpConnection

__all__ = ["ASGIApp", "HttpServer", "HttpSettings"]

#: The pause in accepting after an error, most often that no file descriptor is left.
ACCEPT_PAUSE_S = 0.5
#: Between two sweeps over the connections: fine enough for limits of seconds.
SWEEP_S_MAX = 1.0
#: How long a client may take to close an idle connection of which our half is closed already, when a drain has to end.
FAREWELL_S = 0.5
#: Between two looks whether a drain has come to its end.
DRAIN_LOOK_S = 0.01
#: The kernel's largest limit of time.
UNHEARD_MS_MAX = (1 << 31) - 1


class HttpServer:
    """Serves `app` on listening sockets that others may serve as well.

    `app` gets scopes of the types "http" and "websocket", never "lifespan". In `scope["extensions"]` of a request,
    "skate.disconnect" is a function: the callback given to it is called if the client goes before it has the response.
    "skate.headers" is the list of the headers that every response to the request gets; more can be appended.
    "skate.task" is the task that calls the app.

    An app that raises ConnectionAbortedError has logged why. What it has not answered is broken off.
    """

    def __init__(self, app: ASGIApp, settings: HttpSettings) -> None:
        self._settings = settings
        self._state = ConnectionsState(settings)
        self._config = _protocol_config(app, settings)
        self._loop: asyncio.AbstractEventLoop | None = None
        #: The sockets to accept from, each with the timer that ends a pause after an error.
        self._listening: dict[socket.socket, asyncio.TimerHandle | None] = {}
        #: Accepted connections that have no protocol yet.
        self._opening: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        timeouts_s = (settings.header_timeout_s, settings.body_timeout_s, settings.write_timeout_s)
        self._sweep_s = min(SWEEP_S_MAX, settings.keep_alive_s / 4, *(timeout_s / 4 for timeout_s in timeouts_s))
        self._sweep_due = 0.0
        #: How long the kernel waits for a sign that what it sends has arrived. By itself it would try for a quarter of
        #: an hour, and take megabytes meanwhile: a stream of small pieces would not see that its client has vanished.
        self._unheard_ms = min(max(1, round(1000 * settings.write_timeout_s)), UNHEARD_MS_MAX)

    @property
    def connections(self) -> int:
        """Open connections, websockets included."""
        return len(self._state.connections) + len(self._opening)

    @property
    def requests(self) -> int:
        """Calls of the app that run; each websocket is one."""
        return len(self._state.tasks)

    # --- accepting

    def listen(self, sock: socket.socket) -> None:
        """Start to accept in the running loop. The caller keeps `sock`, and closes it after `stop_accepting`."""
        self._loop = asyncio.get_running_loop()
        sock.setblocking(False)
        self._listening[sock] = None
        self._loop.add_reader(sock, self._accept, self._loop, sock)
        if self._sweeper is None:
            self._sweep_due = self._loop.time()
            self._sweep(self._loop)

    def stop_accepting(self) -> None:
        """Leave new connections to the other holders of the listening sockets."""
        for sock, pause in self._listening.items():
            if pause is not None:
                pause.cancel()
            elif self._loop is not None:
                self._loop.remove_reader(sock)
        self._listening.clear()

    def _accept(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        try:
            connection, _ = sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            # Another holder was faster, or the client has gone again.
            return
        except OSError as error:
            # The socket stays ready, so the loop would come here in every turn.
            LOGGER.warning("accepting connections stops for %s s: %s", ACCEPT_PAUSE_S, error)
            loop.remove_reader(sock)
            self._listening[sock] = loop.call_later(ACCEPT_PAUSE_S, self._resume, loop, sock)
            return
        task = loop.create_task(self._open(loop, connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _resume(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._listening[sock] = None
        loop.add_reader(sock, self._accept, loop, sock)

    async def _open(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
        """Give an accepted connection to its protocol."""
        try:
            connection.setblocking(False)
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._unheard_ms)
            await loop.connect_accepted_socket(lambda: HttpConnection(self._config, self._state, {}, loop), connection)
        except OSError as error:
            LOGGER.debug("a connection was lost before it was open: %s", error)
            connection.close()

    # --- watching over the connections

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        late_s = now - self._sweep_due
        for connection in list(self._state.connections):
            assert isinstance(connection, HttpConnection | WebSocketConnection)
            if late_s > self._sweep_s:
                # Something held the loop. What the client sent meanwhile may not have been read yet.
                connection.since += late_s
            connection.sweep(now)
        self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]
        self._sweep_due = now + self._sweep_s
        self._sweeper = loop.call_at(self._sweep_due, self._sweep, loop)

    # --- leaving

    async def drain(self, timeout_s: float, silent_s: float | None = None) -> None:
        """Stop accepting and return when no connection is left, or at the timeout, with what is left closed.

        Each keep-alive connection learns from its next response that it ends. Those that stay silent are closed after
        `silent_s`, by default at the timeout. Websockets are closed at once, with code 1012. After the timeout up to
        half a second passes, in which clients with silent connections can close them.
        """
        end = time.monotonic() + timeout_s
        self.stop_accepting()
        self._state.draining = True
        for connection in list(self._state.connections):
            assert isinstance(connection, HttpConnection | WebSocketConnection)
            connection.drain()
        await self._until_empty(timeout_s if silent_s is None else min(silent_s, timeout_s))
        # A response whose headers had left before the drain leaves a silent connection when it is complete.
        while self._leave_silent() and time.monotonic() < end:
            await self._until_empty(DRAIN_LOOK_S)
        if self._state.connections:
            await self._until_empty(FAREWELL_S)
        self.close()

    def close(self) -> None:
        """Abort every connection and cancel the calls of the app."""
        self.stop_accepting()
        self._state.closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for connection in list(self._state.connections):
            assert isinstance(connection, HttpConnection | WebSocketConnection)
            connection.abort()
        for task in list(self._state.tasks):
            task.cancel()

    async def _until_empty(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while (self.connections or self.requests) and time.monotonic() < deadline:
            await asyncio.sleep(DRAIN_LOOK_S)

    def _leave_silent(self) -> bool:
        """Leave the idle connections. Whether others are left, which are in use."""
        for connection in self._silent_connections():
            connection.leave()
        return self.requests > 0

    def _silent_connections(self) -> list[HttpConnection]:
        """The idle connections. One whose next request has arrived, but is not read yet, is not idle."""
        idle = {}
        poll = select.poll()
        for connection in self._state.connections:
            if isinstance(connection, HttpConnection) and connection.idle and not connection.transport.is_closing():
                fd = connection.transport.get_extra_info("socket").fileno()
                idle[fd] = connection
                poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(0):
            del idle[fd]
        return list(idle.values())


class WebSocketConnection(WebSocketsSansIOProtocol):
    """One websocket. Messages, pings and what is sent to a peer that does not read are bounded."""

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any | None = None
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(server_state, ConnectionsState)
        self.settings = server_state.settings
        self.logger = self.conn.logger = PROTOCOL_LOGGER
        self.app = partial(self._serve, self.app)
        self.stall = StallClock()
        self.since = 0.0
        #: When the last bytes came.
        self.heard_at = self.loop.time()

    def handle_events(self) -> None:
        super().handle_events()
        if not self.handshake_initiated:
            # The head came whole, and the websockets library could not parse it. uvicorn would not answer.
            response = b"".join(self.conn.data_to_send())
            self.transport.write(response or self.conn.reject(400, "Invalid websocket handshake.\n").serialize())
            self.transport.close()

    async def _serve(self, app: Any, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app. However it ends, the client gets a close frame, or 500 if the handshake is not done."""
        try:
            await app(scope, receive, send)
            code = 1000
        except ClientDisconnected:
            raise
        except BaseException as error:
            if self.disconnected and isinstance(error, asyncio.CancelledError | OSError):
                raise ClientDisconnected from error
            if not isinstance(error, ConnectionAbortedError):
                LOGGER.exception("the app failed in websocket %(path)s", scope)
            code = 1011
        if self.initial_response is not None:
            # The handshake was answered with a whole response of HTTP, which uvicorn takes for a mistake.
            raise ClientDisconnected
        if self.conn.state is OPEN and not self.disconnected:
            await send({"type": "websocket.close", "code": code})
        elif not self.handshake_complete and code == 1011:
            self.send_500_response()
            raise ClientDisconnected

    async def send(self, message: Any) -> None:
        """Send what the app says. An app that only sends learns in this way, too, that its client has gone."""
        if self.transport.is_closing() and not self.disconnected:
            # What is written now is dropped at once, so the app would never let the loop turn and tell of the loss.
            await asyncio.sleep(0)
        await super().send(message)

    def handle_cont(self, event: Frame) -> None:
        # Empty pieces of a message count for nothing in its size, so they would gather without a limit.
        if event.data or event.fin:
            super().handle_cont(event)

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            # A peer that pings and does not read would fill the memory with answers.
            self.conn.data_to_send()

    def data_received(self, data: bytes) -> None:
        self.heard_at = self.loop.time()
        super().data_received(data)

    def send_keepalive_ping(self) -> None:
        if self.read_paused:
            # A message waits for the app, and nothing is read behind it. The answer could not be heard.
            self.schedule_ping()
        else:
            super().send_keepalive_ping()

    def keepalive_timeout(self) -> None:
        limit_s = self.ping_timeout or 0.0
        if self.read_paused or self.loop.time() - self.heard_at < limit_s:
            # The answer may wait behind the messages of a peer that is alive.
            self.pong_timer = self.loop.call_later(limit_s, self.keepalive_timeout)
        else:
            super().keepalive_timeout()

    def handle_parser_exception(self) -> None:
        if not self.disconnected:
            self._leave()
            self.transport.write_eof()

    def drain(self) -> None:
        """Close with code 1012, "service restart". The client's own close frame is waited for."""
        if self.disconnected or self.close_sent or self.initial_response is not None:
            return
        if self.handshake_complete:
            self.conn.send_close(1012)
        else:
            self.conn.send_response(self.conn.reject(503, "This server is being replaced; connect again.\n"))
        self._leave()

    def _leave(self) -> None:
        """Send what is ready, end the app's conversation, and give the peer a moment to close."""
        close = self.conn.close_sent
        self.queue.put_nowait({"type": "websocket.disconnect", "code": close.code if close else 1012})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.stop_keepalive()
        # `disconnected` makes the app's next send fail as if the client had gone.
        self.close_sent = self.disconnected = self.handshake_complete = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self.close_timer = self.loop.call_later(LINGER_S, self.transport.abort)

    idle = False

    def sweep(self, now: float) -> None:
        if self.stall.stalled_s(self.transport.get_write_buffer_size(), now) > self.settings.write_timeout_s:
            self.abort()

    def abort(self) -> None:
        self.disconnected = True
        self.transport.abort()


def _protocol_config(app: ASGIApp, settings: HttpSettings) -> Config:
    """What uvicorn's protocols read. `Config.load` is not called: it calls the app, in case it is a factory of apps."""
    config = Config(
        app,
        interface="asgi3",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        root_path=settings.root_path,
        ws_max_size=settings.max_websocket_bytes,
        # Compressing arrays costs more time than sending them.
        ws_per_message_deflate=False,
    )
    config.loaded_app = app
    config.ws_protocol_class = WebSocketConnection
    config.encoded_headers = []
    config.loaded = True
    return config
