"""What a handler returns becomes the messages of an HTTP response.

    starlette Response         sent as it is
    generator, sync or async   a stream of chunks; the first chunk decides what kind of stream it is
    bytes                      application/octet-stream
    str, with plain_text=True  text/plain
    everything else            JSON, also numpy arrays and numbers, dataclasses and msgspec structs

A small JSON answer is two calls of `send` and makes no other object than the messages. starlette and numpy are looked
up in `sys.modules`: a value can be of their types only when the program has imported them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, MutableMapping
from typing import Any, TypeAlias

import msgspec

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
#: Runs a plain function with its arguments where it may block, and returns what it returned.
RunBlocking: TypeAlias = Callable[..., Awaitable[Any]]

JSON = b"application/json"
JSON_LINES = b"application/x-ndjson"
TEXT = b"text/plain; charset=utf-8"
BYTES = b"application/octet-stream"
#: Statuses whose responses have no body.
WITHOUT_BODY = frozenset({204, 205, 304})

#: The client of a request is watched from this moment on: most requests are answered sooner, without a second task.
WATCH_AFTER_S = 0.005

#: The types of most answers: a value of one of them needs no other question.
_PLAIN = frozenset({dict, list, int, float, bool, type(None)})
_END = object()


class Refusal(Exception):
    """A request gets an error as its answer, because of what the client sent. It never leaves this library."""

    def __init__(self, status: int, error: str, headers: Mapping[str, str] | None = None, **more: Any) -> None:
        super().__init__(status, error)
        self.status = status
        self.body = {"error": error, **more}
        self.headers = dict(headers or {})


class ClientGone(Exception):
    """The client of a request went away before it had its answer. It never leaves this library."""


def encodable(value: Any) -> Any:
    """Turn what msgspec does not write into what it does: values of numpy, strings and numbers of subclasses."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        return value.tolist()
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, (int, float)):
        return int(value) if isinstance(value, int) else float(value)
    raise TypeError(f"{type(value).__module__}.{type(value).__qualname__} has no JSON form")


_encoder = msgspec.json.Encoder(enc_hook=encodable)


def encode(value: Any, handler: str) -> bytes:
    """Write a value as JSON. The error for a value that has no JSON form names the handler."""
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise TypeError(
            f"{handler} returned a {type(value).__qualname__} that cannot be written as JSON.\n"
            f"  why:  {error}.\n"
            "  next: return dicts, lists, strings, numbers, arrays, dataclasses, msgspec structs, bytes or a starlette "
            "response."
        ) from error


async def respond(
    value: Any,
    scope: Scope,
    receive: Receive,
    send: Send,
    *,
    plain_text: bool,
    handler: str = "the handler",
    fetch: RunBlocking = asyncio.to_thread,
) -> None:
    """Answer a request with what its handler returned.

    plain_text: a str is sent as text/plain, as Ray Serve does for `__call__`; otherwise it is a JSON string.
    handler:    the name of the handler in errors.
    fetch:      runs a plain function in a thread; the items of a plain generator are fetched by it.
    """
    kind = type(value)
    if kind not in _PLAIN:
        if isinstance(value, str):
            if plain_text:
                return await send_whole(send, scope, 200, TEXT, value.encode())
        elif isinstance(value, (bytes, bytearray, memoryview)):
            return await send_whole(send, scope, 200, BYTES, bytes(value))
        elif hasattr(kind, "__anext__"):
            return await _stream(value, scope, receive, send, handler)
        elif isinstance(value, Generator):
            return await _stream(_fetched(value, fetch), scope, receive, send, handler)
        elif is_starlette_response(value):
            await value(scope, receive, send)
            return None
    return await send_whole(send, scope, 200, JSON, encode(value, handler))


async def send_whole(
    send: Send, scope: Scope, status: int, content_type: bytes, body: bytes, headers: Mapping[str, str] | None = None
) -> None:
    """Send a response whose body is known. The response to HEAD has the headers alone."""
    fields = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    if headers:
        fields += [(name.lower().encode("latin-1"), text.encode("latin-1")) for name, text in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def send_refusal(refusal: Refusal, scope: Scope, send: Send) -> None:
    """Answer with the error of a refused request."""
    if refusal.status in WITHOUT_BODY or refusal.status < 200:
        fields = [(name.lower().encode("latin-1"), text.encode("latin-1")) for name, text in refusal.headers.items()]
        await send({"type": "http.response.start", "status": refusal.status, "headers": fields})
        await send({"type": "http.response.body", "body": b""})
    else:
        body = encode(refusal.body, "a refused request")
        await send_whole(send, scope, refusal.status, JSON, body, refusal.headers)


def refusal_of(error: BaseException) -> Refusal | None:
    """The answer that an exception of a handler asks for: a Refusal, or an HTTPException of starlette or FastAPI."""
    if isinstance(error, Refusal):
        return error
    starlette = sys.modules.get("starlette.exceptions")
    if starlette is not None and isinstance(error, starlette.HTTPException):
        return Refusal(error.status_code, error.detail, error.headers)
    return None


def is_starlette_response(value: Any) -> bool:
    """Whether the value is a Response of starlette, which sends itself."""
    starlette = sys.modules.get("starlette.responses")
    return starlette is not None and isinstance(value, starlette.Response)


# -- streams -----------------------------------------------------------------------------------------------------------


async def _stream(items: AsyncIterator[Any], scope: Scope, receive: Receive, send: Send, handler: str) -> None:
    """Send what an async iterator gives, item by item. It is closed at the end and when the client goes away."""

    async def deliver(message: Message) -> None:
        # Only here: an OSError of the handler's own code must reach the log.
        try:
            await send(message)
        except OSError as error:
            raise ClientGone from error

    async def start(content_type: bytes) -> None:
        headers = [(b"content-type", content_type)]
        await deliver({"type": "http.response.start", "status": 200, "headers": headers})

    watch = ClientWatch(scope, receive)
    started = False
    try:
        async for item in items:
            if not started:
                await start(_content_type(item))
                started = True
                if scope["method"] == "HEAD":
                    break
            await deliver({"type": "http.response.body", "body": _chunk(item, handler), "more_body": True})
        if not started:
            await start(JSON_LINES)
        watch.end()
        await deliver({"type": "http.response.body", "body": b""})
    except asyncio.CancelledError:
        if not watch.caused_cancellation():
            raise
    except ClientGone:
        pass
    finally:
        watch.end()
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


def _content_type(item: Any) -> bytes:
    """The kind of a stream, by its first item."""
    return TEXT if isinstance(item, str) else BYTES if isinstance(item, (bytes, bytearray, memoryview)) else JSON_LINES


def _chunk(item: Any, handler: str) -> bytes:
    """The bytes of one item of a stream."""
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, (bytes, bytearray, memoryview)):
        return bytes(item)
    return encode(item, handler) + b"\n"


async def _fetched(items: Generator[Any, Any, Any], fetch: RunBlocking) -> AsyncIterator[Any]:
    """The items of a plain generator. Its code runs where `fetch` runs it, which may be another thread each time."""
    in_thread = False
    try:
        while True:
            in_thread = True
            item = await fetch(next, items, _END)
            in_thread = False
            if item is _END:
                return
            yield item
    finally:
        # A generator whose code runs in a thread at this moment cannot be closed from here. The thread holds the last
        # reference to it, and Python closes the generator when that reference goes.
        if not in_thread:
            await fetch(items.close)


# -- clients that go away ----------------------------------------------------------------------------------------------


class ClientWatch:
    """Cancels the task that makes it when the client of the request goes away.

    The server's own hook, `scope["extensions"]["skate.disconnect"]`, is used if it is there: it takes a function and
    calls it when the client disconnects, or soon if the client has gone already. Otherwise a second task waits in
    `receive`, from WATCH_AFTER_S on. Nothing else may receive after that, so make a watch when the body has been read.
    """

    __slots__ = ("_receive", "_receiving", "_task", "_timer", "gone")

    def __init__(self, scope: Scope, receive: Receive | None) -> None:
        #: Whether the client went away before `end`.
        self.gone = False
        #: The task to cancel; None after `end`.
        self._task = asyncio.current_task()
        self._receive = receive
        self._receiving: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        notify = (scope.get("extensions") or {}).get("skate.disconnect")
        if notify is not None:
            notify(self._leave)
        elif receive is not None:
            self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._start)

    def end(self) -> None:
        """Watch no longer. May be called again."""
        self._task = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._receiving is not None:
            self._receiving.cancel()
            self._receiving = None

    def caused_cancellation(self) -> bool:
        """Whether the CancelledError that was just caught comes from this watch alone, and ends here."""
        if not self.gone:
            return False
        task: Any = asyncio.current_task()
        # Before Python 3.11 a task does not count who cancelled it.
        return not hasattr(task, "uncancel") or task.uncancel() == 0

    def _start(self) -> None:
        self._timer = None
        self._receiving = asyncio.ensure_future(self._wait())

    async def _wait(self) -> None:
        assert self._receive is not None
        while (await self._receive())["type"] != "http.disconnect":
            # The end of a body comes before the disconnect.
            pass
        self._leave()

    def _leave(self) -> None:
        if self._task is not None and not self.gone:
            self.gone = True
            self._task.cancel()
