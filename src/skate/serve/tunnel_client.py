"""The side of a tunnel that asks; `tunnel.py` tells the whole story."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import MutableMapping
from typing import Any, Protocol

from skate.serve.tunnel_frames import FROM_SERVER, BadFrame, Buffers, Message, encode, plain_scope
from skate.serve.tunnel_wire import Inbox, Receive, RemoteAppError, Scope, Send, TunnelBroken, Wire

__all__ = ["Connectable", "TunnelClient"]

#: A client keeps this many idle connections, each for this long.
IDLE_MAX = 16
IDLE_S = 60.0
#: Methods of requests that may be sent again although the first may have arrived. That of a websocket is GET.
SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}


class Connectable(Protocol):
    """What a client can connect to: in a cluster, the `Address` of a server."""

    def connect(self) -> socket.socket:
        """Return a connected stream socket, or raise OSError. It may block for a moment."""


class TunnelClient:
    """The application behind an address, for the use of one event loop: `await client(scope, receive, send)`."""

    def __init__(self, address: Connectable) -> None:
        self._address = address
        #: The longest idle comes first.
        self._idle: deque[ClientWire] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False
        #: Exchanges of this client that are under way.
        self.in_flight = 0
        #: What else the other process had to do when its latest response began, and when that was.
        self.others, self.heard_at = 0, 0.0

    async def __call__(
        self, scope: Scope, receive: Receive, send: Send, first: MutableMapping[str, Any] | None = None
    ) -> None:
        """Forward one exchange. `first` is its first message, if that was taken from `receive` already.

        Raises TunnelBroken if the other process cannot be reached or dies, and RemoteAppError if its application raises
        an exception. If the client of this process goes, it returns, and the other application is told and ended.
        """
        first = await receive() if first is None else first
        if first["type"].endswith(".disconnect"):
            return
        self.in_flight += 1
        try:
            await self._exchange(scope, receive, send, first)
        finally:
            self.in_flight -= 1

    def heard(self, load: int) -> None:
        """A response began, and says what the other process has to do."""
        self.others, self.heard_at = max(0, load - self.in_flight), time.monotonic()

    async def _exchange(self, scope: Scope, receive: Receive, send: Send, first: MutableMapping[str, Any]) -> None:
        wire = self._take_idle()
        if wire is not None:
            call = Call(wire, scope, receive, send)
            try:
                await call.run(first)
                return
            except TunnelBroken:
                if not call.may_be_repeated(first):
                    raise
        await Call(await self._connect(), scope, receive, send).run(first)

    def close(self) -> None:
        """Close the idle connections. Exchanges that are under way go on."""
        self._closed = True
        self._close_idle(time.monotonic())

    def release(self, wire: ClientWire) -> None:
        """Keep a connection for the next exchange."""
        if self._closed or wire.leaving or len(self._idle) >= IDLE_MAX or not wire.is_open():
            wire.abort()
            return
        wire.idle_since = time.monotonic()
        self._idle.append(wire)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_S, self._on_sweep)

    def forget(self, wire: ClientWire) -> None:
        """Take notice of an idle connection that ends."""
        with contextlib.suppress(ValueError):
            self._idle.remove(wire)

    def _take_idle(self) -> ClientWire | None:
        while self._idle:
            wire = self._idle.pop()
            if wire.is_usable():
                return wire
            wire.abort()
        return None

    async def _connect(self) -> ClientWire:
        loop = asyncio.get_running_loop()
        connecting = loop.run_in_executor(None, self._address.connect)
        try:
            sock = await asyncio.shield(connecting)
        except asyncio.CancelledError:
            connecting.add_done_callback(_close_unused)
            raise
        except OSError as error:
            raise TunnelBroken(
                f"the process with the application cannot be reached.\n  why:  {error}", was_sent=False
            ) from error
        try:
            _, wire = await loop.connect_accepted_socket(lambda: ClientWire(self), sock)
        except BaseException:
            sock.close()
            raise
        return wire

    def _on_sweep(self) -> None:
        self._sweep = None
        self._close_idle(time.monotonic() - IDLE_S)
        if self._idle:
            delay_s = self._idle[0].idle_since + IDLE_S - time.monotonic()
            self._sweep = asyncio.get_running_loop().call_later(max(0.0, delay_s), self._on_sweep)

    def _close_idle(self, since: float) -> None:
        while self._idle and self._idle[0].idle_since <= since:
            self._idle.popleft().abort()
        if not self._idle and self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None


def _close_unused(connecting: asyncio.Future[socket.socket]) -> None:
    if not connecting.cancelled() and connecting.exception() is None:
        connecting.result().close()


class ClientWire(Wire):
    """A connection to the process with the application."""

    def __init__(self, client: TunnelClient) -> None:
        super().__init__(FROM_SERVER)
        self.client = client
        self.inbox: Inbox | None = None
        #: Whether the server asked to close the connection.
        self.leaving = False
        #: When the last exchange ended.
        self.idle_since = 0.0
        self._poll = select.poll()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Get ready to look at the socket itself."""
        super().connection_made(transport)
        self._poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)

    def is_usable(self) -> bool:
        """Tell if nothing came while it was idle, not even its end. The event loop may not have noticed that yet."""
        return self.is_open() and not self._poll.poll(0)

    def on_message(self, message: Message) -> None:
        """Hand the message to the exchange that goes on."""
        if message["type"] == "tunnel.leave":
            self.leaving = True
            if self.inbox is None:
                self.client.forget(self)
                self.abort()
        elif self.inbox is not None:
            self.inbox.put(message)
        else:
            raise BadFrame("an answer came that belongs to no request")

    def on_lost(self) -> None:
        """End the exchange that goes on."""
        if self.inbox is not None:
            self.inbox.end()
        self.client.forget(self)


class Call:
    """One exchange, seen from the client."""

    def __init__(self, wire: ClientWire, scope: Scope, receive: Receive, send: Send) -> None:
        self._wire, self._scope, self._receive, self._send = wire, scope, receive, send
        self._inbox = wire.inbox = Inbox(wire.transport)
        self._is_http = scope["type"] == "http"
        #: What was sent ends with a whole request, or a whole message of a websocket.
        self._is_whole = False
        #: The answer has come to its end.
        self._is_answered = False
        #: The first message of the answer was given to `send`.
        self._has_started = False
        #: More than the first message was taken from `receive`.
        self._has_received = False
        #: The client of this process is gone.
        self._is_abandoned = False
        #: The exchange has ended, and its connection may already serve another.
        self._is_over = False
        #: What `receive` raised.
        self._failure: Exception | None = None

    async def run(self, first: MutableMapping[str, Any]) -> None:
        """Send the request, whose first message was taken already, and forward the answer."""
        pump: asyncio.Task[None] | None = None
        try:
            scope, (start, *rest) = encode(plain_scope(self._scope))[0], encode(first)
            self._wire.write([*scope, *start])
            more = first.get("more_body", False)
            self._is_whole = not rest and not more
            if not (self._is_http and self._is_whole and self._watch()):
                pump = asyncio.get_running_loop().create_task(self._pump(rest, more))
            await self._forward()
        finally:
            self._is_over = True
            self._wire.inbox = None
            if pump is not None:
                pump.cancel()
            if self._is_whole and self._is_answered and not self._inbox:
                self._wire.client.release(self._wire)
            else:
                self._wire.abort()

    def may_be_repeated(self, first: MutableMapping[str, Any]) -> bool:
        """Tell if the request can be sent once more, and does no harm if it arrives twice."""
        is_safe = self._scope.get("method", "GET") in SAFE_METHODS and not first.get("body")
        return is_safe and self._is_whole and not (self._has_started or self._has_received)

    async def _forward(self) -> None:
        """Give the answer to `send`, until it ends or the connection does."""
        while (message := await self._inbox.get()) is not None:
            kind = message["type"]
            self._is_answered = kind.startswith("tunnel.")
            if kind == "tunnel.error" and not self._is_abandoned:
                raise RemoteAppError(message.get("reason", ""))
            if self._is_answered:
                return
            if kind == "http.response.start":
                self._wire.client.heard(message.pop("load", 0))
            if not self._is_abandoned:
                self._has_started = True
                await self._send(message)
            if kind == "http.response.body" and not message.get("more_body", False):
                self._is_answered = True
                return
        if self._failure is not None:
            raise self._failure
        if not self._is_abandoned:
            raise TunnelBroken(
                "the connection to the process with the application ended in the middle of an exchange.\n"
                f"  why:  {self._wire.error or 'the process has ended'}.",
                started=self._has_started,
            )

    async def _pump(self, frames: list[Buffers], more: bool) -> None:
        """Send the rest of the first message, and then what `receive` gives, until the client is gone."""
        try:
            while True:
                for frame in frames:
                    self._wire.write(frame)
                    await self._wire.flushed()
                self._is_whole = not more
                if self._is_abandoned or (self._is_http and self._is_whole and self._watch()):
                    return
                message = await self._receive()
                if self._is_over:
                    return
                self._has_received = True
                if message["type"] == "http.disconnect":
                    self.abandon()
                    return
                frames, more = encode(message), message.get("more_body", False)
                self._is_whole = False
                # The end of a websocket is sent like its other messages, since the application has to learn its code.
                self._is_abandoned = message["type"] == "websocket.disconnect"
        except TunnelBroken:
            pass  # `_forward` notices that too
        except Exception as error:  # noqa: BLE001 - it is raised where the exchange was asked for
            self._failure = error
            self._wire.abort()

    def _watch(self) -> bool:
        """Ask to be told when the client is gone, which is cheaper than to wait in `receive`, if the server can do so.

        Such a server puts a function into the scope that registers another one.
        """
        register = (self._scope.get("extensions") or {}).get("skate.disconnect")
        if register is not None:
            register(self.abandon)
        return register is not None

    def abandon(self) -> None:
        """End the exchange, because the client of this process is gone."""
        if not self._is_over:
            self._is_abandoned = True
            self._wire.abort()
