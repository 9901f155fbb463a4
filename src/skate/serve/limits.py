"""HTTP connections that keep to limits: uvicorn's protocol, with bounds on bytes and on time.

uvicorn parses requests and speaks ASGI. What it leaves open is bounded here: the size of a head and of a body, the
time a client may take to send either, the time it may leave a response unread, and the number of requests it may send
ahead.

A connection sets no timers. It notes when it last made progress, and the server calls `sweep` on every connection about
once a second. A refused client gets a response, then the end of the stream, and what it still sends is read and
dropped for a moment: closing at once would reset the connection, and the reset could overtake the response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import httptools
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from skate.serve.head_writer import HeadWriter
from skate.serve.http_settings import ConnectionsState, Refused, StallClock

LOGGER = logging.getLogger("skate.serve")
#: For uvicorn's own messages. It logs every websocket as information; only its warnings and errors are wanted.
PROTOCOL_LOGGER = logging.getLogger("skate.serve.protocol")
PROTOCOL_LOGGER.setLevel(logging.WARNING)
#: Text of a websocket that is not UTF-8 is the client's mistake, and the close code says so: not a traceback for each.
PROTOCOL_LOGGER.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError)))

#: Requests that wait behind a running one of the same connection. A client with more has to send the rest again.
MAX_PIPELINED = 256
#: How long what a refused client still sends is read and dropped.
LINGER_S = 2.0
#: The app is called when this much of a body is there, or all of a smaller one, or any part of one of unknown size.
BODY_BEGIN_BYTES = 64 * 1024
#: The slowest body that is taken, in bytes for each second, apart from `body_timeout_s`.
BODY_RATE = 16 * 1024
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
#: Requests with these methods have no body as a rule, so their headers are not searched for its length.
BODILESS = (b"GET", b"HEAD", b"OPTIONS")


class HttpConnection(HttpToolsProtocol):
    """One HTTP/1.1 connection, within the limits of the server's settings."""

    server_state: ConnectionsState

    def __init__(
        self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any | None = None
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = PROTOCOL_LOGGER
        self.settings = self.server_state.settings
        #: The request that the app is answering. Requests behind it wait in `pipeline`.
        self.running: RequestResponseCycle | None = None
        #: The number of the request that ran last, and of the one whose client went before it had the response.
        self.request = self.cut_request = 0
        self.disconnect_callbacks: list[Callable[[], object]] = []
        self.stall = StallClock()
        self.writer: HeadWriter
        #: When the present wait began: for a head, for more of a body, for the next request, for the client to close.
        self.since = 0.0
        self.in_head = True
        self.in_body = False
        #: Bytes since the beginning of the message that gave no body: of the head, of chunk extensions, of trailers.
        self.silent_bytes = 0
        self.body_bytes = 0
        #: How long the present body was waited for, by the sweeps, and when the last one was.
        self.body_s = self.swept_at = 0.0
        #: The sizes of the last read, and of the read in which the present message began.
        self.read_bytes = self.first_read_bytes = 0
        #: The present head asks for another protocol than websocket. It is parsed again without that.
        self.is_read_again = False
        #: What arrives is dropped.
        self.deaf = False
        #: The end of our stream has been sent.
        self.leaving = False

    # --- what the transport reports

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.writer = HeadWriter(transport, self.loop, self.flow.pause_writing)
        self.since = self.swept_at = self.loop.time()
        if self.server_state.closed:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.deaf:
            return None
        self.read_bytes = len(data)
        self.silent_bytes += self.read_bytes
        try:
            while data:
                try:
                    self.parser.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    if self._should_upgrade():
                        return self.handle_websocket_upgrade()
                    data = self._without_upgrade() + data[upgrade.args[0] :]
        except httptools.HttpParserError as error:
            cause = error.__context__
            self.refuse(cause if isinstance(cause, Refused) else Refused(400, "Invalid HTTP request received."))
        else:
            if self.silent_bytes > self.settings.max_header_bytes and (self.in_head or self.in_body):
                self.refuse(self._head_too_large())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.pipeline.clear()
        self._disconnect_app()

    # --- what the parser reports

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.since = self.loop.time()
        self.in_head = True
        self.silent_bytes = self.body_bytes = 0
        self.first_read_bytes = self.read_bytes

    def on_headers_complete(self) -> None:
        self._check_head()
        self.is_read_again = self.parser.should_upgrade() and not self._should_upgrade()
        if self.is_read_again:
            return
        super().on_headers_complete()
        self.in_head = False
        self.in_body = True
        self.since = self.loop.time()
        self.body_s = 0.0
        if "path" in self.scope:
            # Not an upgrade. The parser reports trailers, which follow the body, as headers; the app must not see them.
            self.headers = []

    def on_body(self, body: bytes) -> None:
        self.silent_bytes = 0
        self.body_bytes += len(body)
        self.since = self.loop.time()
        if self.body_bytes > self.settings.max_body_bytes:
            raise self._body_too_large()
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.is_read_again:
            return
        self.in_body = False
        super().on_message_complete()

    def _without_upgrade(self) -> bytes:
        """The head that was just read, without its wish for a protocol that is not spoken here, for a new parser.

        The parser takes what follows such a head for the other protocol, so it would lose the body.
        """
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = _parser(self)
        return b"\r\n".join([*lines, b"", b""])

    def _check_head(self) -> None:
        """Refuse the request whose head has just ended, if it must not reach the app."""
        settings = self.settings
        # The read in which the head began may hold the end of a body too, so only large reads are worth a count.
        if self.first_read_bytes + self.silent_bytes > settings.max_header_bytes:
            head_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if head_bytes > settings.max_header_bytes:
                raise self._head_too_large()
        if self.parser.get_method() == b"CONNECT":
            raise Refused(400, "CONNECT is for proxies.")
        if self.parser.get_method() not in BODILESS:
            for name, value in self.headers:
                if name == b"content-length" and int(value) > settings.max_body_bytes:
                    raise self._body_too_large()
        if self.parser.should_upgrade() and self._should_upgrade():
            if self.running is not None:
                raise Refused(400, "A websocket cannot begin while an earlier request of its connection is unanswered.")
            if self.server_state.draining:
                raise Refused(503, "This server is being replaced; connect again.")
            # The websocket protocol fails on other bytes. This failure becomes an answer with 400.
            self.url.decode("ascii")
        if len(self.pipeline) >= MAX_PIPELINED:
            raise Refused(400, f"More than {MAX_PIPELINED} requests were sent ahead.")

    def _head_too_large(self) -> Refused:
        return Refused(431, f"The request line and headers have more than {self.settings.max_header_bytes} bytes.")

    def _body_too_large(self) -> Refused:
        return Refused(413, f"The body has more than {self.settings.max_body_bytes} bytes.")

    # --- requests

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.running = cycle
        if self.server_state.draining and not self.pipeline:
            cycle.keep_alive = False
        scope: Any = cycle.scope
        self.request += 1
        self.writer.is_head_next = True
        cycle.transport = self.writer  # type: ignore[assignment]  # it has what the cycle uses
        headers = cycle.default_headers = cycle.default_headers.copy()
        # A number, because a reference from the scope to its own request would leave work for the garbage collector.
        disconnect = partial(self._call_on_disconnect, self.request)
        extensions = scope["extensions"] = {"skate.disconnect": disconnect, "skate.headers": headers}
        task = extensions["skate.task"] = self.loop.create_task(self._answer(cycle, app))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _answer(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Run the app for one request. A request that it leaves without a response is answered with 500."""
        try:
            if cycle.more_body:
                await self._body_began(cycle)
                if cycle.disconnected:
                    return
            await app(cycle.scope, cycle.receive, cycle.send)
            if not cycle.response_complete and not cycle.disconnected:
                LOGGER.error("the app returned before it had answered %(method)s %(path)s", cycle.scope)
        except BaseException as error:
            # Work is cancelled when its client has gone: that is no error. An app that breaks off has said why.
            gone = cycle.disconnected and isinstance(error, asyncio.CancelledError)
            if not gone and not isinstance(error, ConnectionAbortedError):
                LOGGER.exception("the app failed to answer %(method)s %(path)s", cycle.scope)
        finally:
            if not cycle.response_complete and not cycle.disconnected:
                if cycle.response_started:
                    self.writer.close()
                else:
                    await cycle.send_500_response()
            # The cycle refers to the connection and the connection to the cycle.
            cycle.on_response = _nothing

    async def _body_began(self, cycle: RequestResponseCycle) -> None:
        """Wait for so much of the body that a client which sends no more has not cost the app one of its places."""
        length = next((int(value) for name, value in cycle.scope["headers"] if name == b"content-length"), 1)
        if cycle.waiting_for_100_continue:
            cycle.waiting_for_100_continue = False
            self.writer.write(CONTINUE)
        while cycle.more_body and len(cycle.body) < min(length, BODY_BEGIN_BYTES) and not cycle.disconnected:
            # It was paused if the request was sent ahead of an answer.
            self.flow.resume_reading()
            cycle.message_event.clear()
            await cycle.message_event.wait()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self.running = None
        self.disconnect_callbacks.clear()
        if self.transport.is_closing():
            return
        if not self.in_head:
            self.since = self.loop.time()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            # Reading stops at a second request, so that a client cannot queue more than one read holds.
            self.flow.resume_reading()

    def _call_on_disconnect(self, request: int, callback: Callable[[], object]) -> None:
        """Call back if the client goes before it has the response. Apps find this in `scope["extensions"]`."""
        if request == self.cut_request:
            callback()
        elif request == self.request and self.running is not None:
            self.disconnect_callbacks.append(callback)

    def _disconnect_app(self) -> None:
        cycle, self.running = self.running, None
        if cycle is not None:
            self.cut_request = self.request
            cycle.disconnected = True
            cycle.message_event.set()
            # At once, as sends to a lost client return at once: an app that only sends would not let the loop turn.
            callbacks, self.disconnect_callbacks = self.disconnect_callbacks, []
            for callback in callbacks:
                try:
                    callback()
                except Exception:
                    LOGGER.exception("a callback for a disconnect failed")

    # --- limits

    def refuse(self, refused: Refused) -> None:
        """Answer the request that is being received with an error, and leave. Earlier requests are answered first."""
        if self.transport.is_closing():
            return
        self.deaf = True
        own = self.cycle if self.in_body else None
        if own is not None and self.pipeline:
            self.pipeline.popleft()
        last = self.pipeline[0][0] if self.pipeline else self.running
        if last is not None and last is not own:
            last.keep_alive = False
        elif own is None or not own.response_started:
            self.leave(self._error_response(refused))
        elif own.response_complete:
            self.leave()
        else:
            self._disconnect_app()
            self.writer.close()

    def _error_response(self, refused: Refused) -> bytes:
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(refused.why)),
            (b"connection", b"close"),
        ]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        return STATUS_LINE[refused.status] + lines + b"\r\n" + refused.why.encode("ascii")

    def leave(self, response: bytes = b"") -> None:
        """Send `response` and the end of the stream. The client is to close; `sweep` does it if the client does not."""
        if self.transport.is_closing() or self.leaving:
            return
        self.deaf = self.leaving = True
        self.since = self.loop.time()
        self._disconnect_app()
        if response:
            self.transport.write(response)
        self.transport.write_eof()
        self.flow.resume_reading()

    @property
    def idle(self) -> bool:
        """No request is being received or answered."""
        receiving = self.in_body or (self.in_head and self.headers is not None)
        return self.running is None and not receiving

    def sweep(self, now: float) -> None:
        """Leave if the client has been silent or has not read for too long."""
        unread = self.transport.get_write_buffer_size()
        if unread:
            # The client is busy with what it was sent; only a client that takes nothing is cut off.
            self.since = now
        waited_s = now - self.since
        swept_s, self.swept_at = now - self.swept_at, now
        if self.stall.stalled_s(unread, now) > self.settings.write_timeout_s:
            self.abort()
        elif self.transport.is_closing():
            pass
        elif self.leaving:
            if waited_s > LINGER_S:
                self.abort()
        elif self.in_body:
            if self.flow.read_paused or self.cycle.waiting_for_100_continue:
                # The client waits for the app.
                self.since = now
            elif waited_s > self.settings.body_timeout_s:
                self.refuse(Refused(408, f"No byte of the body came for {self.settings.body_timeout_s:g} s."))
            else:
                self.body_s += min(swept_s, self.settings.body_timeout_s / 4)  # the loop may have been held
                if self.body_s > self.settings.body_timeout_s + self.body_bytes / BODY_RATE:
                    self.refuse(Refused(408, f"Fewer than {BODY_RATE} bytes of the body came in a second."))
        elif self.running is not None:
            pass
        elif self.idle:
            # A connection on which nothing has come yet owes a whole head.
            if waited_s > (self.settings.header_timeout_s if self.in_head else self.settings.keep_alive_s):
                self.leave()
        elif waited_s > self.settings.header_timeout_s:
            self.refuse(Refused(408, f"The headers took more than {self.settings.header_timeout_s:g} s."))

    def drain(self) -> None:
        """Close after the next response, if its headers are not sent yet; else after the one that follows."""
        if self.running is not None and not self.running.response_started and not self.pipeline:
            self.running.keep_alive = False

    def abort(self) -> None:
        self._disconnect_app()
        self.transport.abort()


def _parser(connection: HttpConnection) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(connection)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
    return parser


def _nothing() -> None:
    """The end of a response that needs no sequel."""
