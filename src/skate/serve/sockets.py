"""The socket that a handler of `@serve.websocket` is given.

    connecting ── accept, or the first receive or send ──▶ open ──▶ over: closed by either side

A client that goes away is no error: iteration over the socket ends, and every other call raises `Disconnected`, which
ends the handler quietly. A handler that returns closes the socket with code 1000, one that raises with code 1011. A
server that stops ends the iteration in the same way, with code 1012.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, overload
from urllib.parse import parse_qsl

import msgspec

from skate.serve.responses import JSON, Message, Receive, Refusal, Scope, Send, encode, refusal_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

T = TypeVar("T")

#: Close codes of RFC 6455, section 7.4.1.
NORMAL, UNSUPPORTED_DATA, ABNORMAL, INVALID_DATA, INTERNAL_ERROR = 1000, 1003, 1006, 1007, 1011
#: The reason shares a frame of at most 125 bytes with the code.
REASON_BYTES_MAX = 123


class Disconnected(Exception):
    """The websocket is closed. `code` and `reason` say why; a handler may let this error pass."""

    __module__ = "skate.serve"

    def __init__(self, code: int = NORMAL, reason: str = "") -> None:
        self.code, self.reason = code, reason
        super().__init__(code, reason)

    def __str__(self) -> str:
        return f"the websocket is closed, code {self.code}" + (f": {self.reason}" if self.reason else "")


class WebSocket:
    """One websocket connection. `async for message in socket` gives its messages until the client goes."""

    __module__ = "skate.serve"

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._accepted = False
        #: Held while the handshake is answered.
        self._handshake = asyncio.Lock()
        #: Why the connection is over, once it is.
        self._over: Disconnected | None = None
        #: The raw scope of the ASGI protocol.
        self.scope = scope
        #: The parts of the path that the route names in braces.
        self.path_params: dict[str, Any] = dict(scope.get("path_params") or {})

    @property
    def query(self) -> dict[str, str]:
        """The parameters behind the question mark of the address."""
        return dict(parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True))

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the request, by their names in lower case."""
        found: dict[str, str] = {}
        for raw_name, raw_text in self.scope["headers"]:
            name, text = raw_name.decode("latin-1").lower(), raw_text.decode("latin-1")
            found[name] = f"{found[name]}, {text}" if name in found else text
        return found

    @property
    def is_accepted(self) -> bool:
        """Whether the handshake was answered."""
        return self._accepted

    @property
    def is_over(self) -> bool:
        """Whether either side has closed the connection."""
        return self._over is not None

    async def accept(self, subprotocol: str | None = None, headers: Mapping[str, str] | None = None) -> None:
        """Answer the handshake. The first receive or send does it too; only a subprotocol or headers need this call."""
        async with self._handshake:
            if self._over is not None:
                raise self._over
            if self._accepted:
                raise RuntimeError(
                    "this websocket was accepted before.\n"
                    "  why:  the first receive or send accepts it.\n"
                    "  next: call accept() once, before anything else."
                )
            await self._accept(subprotocol, headers or {})

    async def receive(self) -> bytes | str:
        """The next message: bytes for a binary frame, str for a text frame. Raises Disconnected at the end."""
        if not self._accepted or self._over is not None:
            await self._ready()
        message = await self._next_message()
        data: bytes | None = message.get("bytes")
        if data is not None:
            return data
        text: str = message["text"]
        return text

    async def send(self, value: Any) -> None:
        """Send one message.

        A numpy array becomes a binary frame of its raw bytes in C order, bytes become a binary frame, a str becomes a
        text frame, everything else becomes a text frame of JSON.
        """
        if not self._accepted or self._over is not None:
            await self._ready()
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            await self._deliver({"type": "websocket.send", "bytes": value.tobytes()})
        elif isinstance(value, (bytes, bytearray, memoryview)):
            await self._deliver({"type": "websocket.send", "bytes": bytes(value)})
        elif isinstance(value, str):
            await self._deliver({"type": "websocket.send", "text": value})
        else:
            text = encode(value, "the websocket handler").decode()
            await self._deliver({"type": "websocket.send", "text": text})

    async def close(self, code: int = NORMAL, reason: str = "") -> None:
        """Close the connection. Closing what is closed does nothing. A reason is cut to 123 bytes."""
        if self._over is not None:
            return
        self._over = Disconnected(code, reason)
        cut = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
        try:
            await self._send({"type": "websocket.close", "code": code, "reason": cut})
        except OSError:
            # The client went first.
            pass

    async def __aiter__(self) -> AsyncIterator[bytes | str]:
        try:
            while True:
                yield await self.receive()
        except Disconnected:
            return

    async def arrays(
        self, dtype: DTypeLike | None = None, shape: int | Sequence[int] | None = None
    ) -> AsyncIterator[np.ndarray[Any, Any]]:
        """Each binary message as a read-only array over its bytes, until the client goes.

        dtype: float32 if not given. shape: one-dimensional if not given; one of the numbers may be -1.
        A text message closes the socket with code 1003, bytes that do not fit dtype and shape with 1007.
        """
        import numpy as np

        kind = np.dtype(np.float32 if dtype is None else dtype)
        if kind.hasobject:
            raise TypeError("socket.arrays(dtype=object): raw bytes hold no Python objects. Use socket.json() instead.")
        async for message in self:
            if isinstance(message, str):
                await self.close(UNSUPPORTED_DATA, f"expected binary frames of {kind.name}, got text")
                return
            try:
                array = np.frombuffer(message, kind) if len(message) else np.empty(0, kind)
                array = array if shape is None else array.reshape(shape)
            except ValueError:
                fit = f"items of {kind.name} ({kind.itemsize} bytes)"
                fit += "" if shape is None else f" in the shape {shape}"
                await self.close(INVALID_DATA, f"a frame of {len(message)} bytes does not fit {fit}")
                return
            array.flags.writeable = False
            yield array

    @overload
    def json(self, type: type[T]) -> AsyncIterator[T]: ...
    @overload
    def json(self, type: None = None) -> AsyncIterator[Any]: ...
    async def json(self, type: Any = None) -> AsyncIterator[Any]:
        """Each message decoded from JSON, until the client goes; checked against `type` if that is given.

        A message that is no JSON, or does not fit the type, closes the socket with code 1007 and says why.
        """
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Any if type is None else type)
        async for message in self:
            try:
                value = decoder.decode(message)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                await self.close(INVALID_DATA, str(error))
                return
            yield value

    async def _ready(self) -> None:
        """Accept the connection if that has not happened. Raises Disconnected if the connection is over."""
        # A task that sends and one that receives may both come first.
        async with self._handshake:
            if self._over is not None:
                raise self._over
            if not self._accepted:
                await self._accept(None, {})

    async def _accept(self, subprotocol: str | None, headers: Mapping[str, str]) -> None:
        # The first message is always websocket.connect.
        await self._next_message()
        fields = [(name.lower().encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()]
        await self._deliver({"type": "websocket.accept", "subprotocol": subprotocol, "headers": fields})
        self._accepted = True

    async def _next_message(self) -> Message:
        """The next event of the connection. Raises Disconnected at its end."""
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            self._over = Disconnected(message.get("code") or NORMAL, message.get("reason") or "")
            raise self._over
        return message

    async def _deliver(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError:
            # Servers say by this that the client has gone.
            self._over = Disconnected(ABNORMAL, "the client is gone")
            raise self._over from None


async def run_handler(socket: WebSocket, handler: Callable[[], Awaitable[Any]]) -> None:
    """Run a handler to its end and close its socket. What it raises is raised again when the socket is closed."""
    try:
        await handler()
        if not socket.is_accepted and not socket.is_over:
            await socket.accept()
    except Disconnected:
        if not socket.is_over:
            # Of another socket.
            await socket.close(INTERNAL_ERROR, "the handler failed")
            raise
    except Exception as error:
        if socket.is_accepted or socket.is_over:
            await socket.close(INTERNAL_ERROR, "the handler failed")
            raise
        refusal = refusal_of(error)
        await refuse(refusal or Refusal(500, "the handler failed"), socket.scope, socket._send)
        if refusal is None:
            raise
    else:
        await socket.close()


async def refuse(refusal: Refusal, scope: Scope, send: Send) -> None:
    """Answer the handshake with an error: as HTTP if the server can, else by closing, which servers answer with 403."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": NORMAL})
        return
    body = encode(refusal.body, "a refused request")
    headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body))]
    await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body})


async def run_starlette_handler(socket: Any, handler: Callable[[], Awaitable[Any]]) -> None:
    """Run a handler that was given starlette's own WebSocket, and close that if the handler did not."""
    from starlette.websockets import WebSocketDisconnect, WebSocketState

    def is_open() -> bool:
        states = (socket.client_state, socket.application_state)
        return bool(states == (WebSocketState.CONNECTED, WebSocketState.CONNECTED))

    try:
        await handler()
        if is_open():
            await socket.close()
    except WebSocketDisconnect:
        pass
    except Exception:
        if is_open():
            await socket.close(INTERNAL_ERROR, "the handler failed")
        raise
