"""ASGI messages as bytes on a stream, and back.

A frame carries one message, or one piece of a message that is long:

    OFFSET  SIZE  DESCRIPTION
    0       4     size of the head, big endian
    4       4     size of the body, big endian
    8       head  the message without its body: a msgpack map
    8+head  body  the body as it is: `body`, `bytes` or `text` (as UTF-8) of the message

The scope of an exchange is a message too: the first one, with the type "http" or "websocket". A body of HTTP is cut
where it is convenient, since ASGI lets it come in pieces. A websocket message has to arrive whole, so its pieces are
marked and the decoder puts them together.

This module reads and writes no socket. Every size is compared with its limit before memory is taken for it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

import msgspec

__all__ = [
    "FROM_CALLER",
    "FROM_SERVER",
    "BadFrame",
    "Buffers",
    "FrameDecoder",
    "Message",
    "encode",
    "plain_scope",
    "size_of",
]

Message = dict[str, Any]
#: A frame, in the parts that are written one after the other.
Buffers = list[bytes | memoryview]

#: No frame is larger than this.
FRAME_BYTES_MAX = 1 << 20
#: No head is larger than this. Headers of HTTP are most of it, and servers rarely let them exceed 64 KiB.
HEAD_BYTES_MAX = 256 << 10
#: Longer bodies are cut into pieces of this size: small enough that a few of them are little memory, large enough that
#: their heads cost nothing.
PIECE_BYTES = 256 << 10
#: No websocket message is larger than this, because it has to be whole before it is delivered.
MESSAGE_BYTES_MAX = 64 << 20
#: A body up to this size is copied behind its head, which is cheaper than a second buffer.
JOINED_BYTES = 16 << 10
#: What a message costs in memory besides its body, about.
MESSAGE_BYTES_OWN = 256

SIZES = struct.Struct("!II")

#: The part of a scope that means the same in another process.
SCOPE_KEYS = (
    "type",
    "http_version",
    "method",
    "path",
    "raw_path",
    "query_string",
    "root_path",
    "headers",
    "scheme",
    "client",
    "server",
    "subprotocols",
)

#: The messages that the side which makes the connections may send.
FROM_CALLER = frozenset(
    {"http", "http.request", "websocket", "websocket.connect", "websocket.receive", "websocket.disconnect"}
)
#: The messages of the side with the application. Those of the tunnel say that the application of a websocket returned,
#: that an application raised an exception, and that the server ends and wants the connection to be closed.
FROM_SERVER = frozenset(
    {
        "http.response.start",
        "http.response.body",
        "websocket.accept",
        "websocket.send",
        "websocket.close",
        "websocket.http.response.start",
        "websocket.http.response.body",
        "tunnel.end",
        "tunnel.error",
        "tunnel.leave",
    }
)

Host = tuple[str, int | None]


class Head(TypedDict, total=False):
    """The fields of all heads. Other fields are dropped, and values of other types are a bad frame."""

    type: str
    # of scopes
    http_version: str
    method: str
    path: str
    raw_path: bytes
    query_string: bytes
    root_path: str
    scheme: str
    client: Host
    server: Host
    subprotocols: list[str]
    # of scopes and messages
    headers: list[tuple[bytes, bytes]]
    # of messages
    status: int
    load: int
    more_body: bool
    subprotocol: str | None
    code: int
    reason: str | None
    # of frames: what the body is called in the message, and whether the next frame continues it
    part: bool
    long: Literal["body", "bytes", "text"]


_encoder = msgspec.msgpack.Encoder(enc_hook=list)
_decoder = msgspec.msgpack.Decoder(Head)


class BadFrame(Exception):
    """The bytes from the other side are no frames of a tunnel. The connection cannot go on."""


def plain_scope(scope: Mapping[str, Any]) -> Message:
    """Reduce a scope to what can be sent: neither functions and objects of this process, nor what is None."""
    return {key: scope[key] for key in SCOPE_KEYS if scope.get(key) is not None}


def size_of(message: Message) -> int:
    """Return about how much memory a message takes."""
    return MESSAGE_BYTES_OWN + len(message.get("body") or message.get("bytes") or message.get("text") or b"")


def encode(message: Mapping[str, Any]) -> list[Buffers]:
    """Return the frames of a message.

    Raises ValueError if the message is too long, and what msgspec raises if it holds a value that cannot be sent.
    """
    head = dict(message)
    body, long = head.pop("body", None), "body"
    raw, text = head.pop("bytes", None), head.pop("text", None)
    if text is not None:
        body, long = text.encode(), "text"
    elif raw is not None:
        body, long = raw, "bytes"
    if body is None:
        return [[_frame(head, 0)]]
    if not isinstance(body, bytes):
        body = bytes(body)  # the socket may keep it for a while, and its owner may change it
    head["long"] = long
    size = len(body)
    if size <= PIECE_BYTES:
        start = _frame(head, size)
        return [[start + body] if size <= JOINED_BYTES else [start, body]]
    if long != "body" and size > MESSAGE_BYTES_MAX:
        raise ValueError(
            f"a websocket message of {size} bytes is too long: at most {MESSAGE_BYTES_MAX} bytes are forwarded.\n"
            "  next: send it as several messages."
        )
    last = size - 1 - (size - 1) % PIECE_BYTES
    view = memoryview(body)
    piece = _frame({**head, "more_body" if long == "body" else "part": True}, PIECE_BYTES)
    frames: list[Buffers] = [[piece, view[at : at + PIECE_BYTES]] for at in range(0, last, PIECE_BYTES)]
    frames.append([_frame(head, size - last), view[last:]])
    return frames


def _frame(head: Message, body_size: int) -> bytes:
    """Return a frame up to where its body begins."""
    packed = _encoder.encode(head)
    if len(packed) > HEAD_BYTES_MAX:
        raise ValueError(
            f"the headers of a message take {len(packed)} bytes: at most {HEAD_BYTES_MAX} bytes are forwarded.\n"
            "  next: send fewer or shorter headers."
        )
    return SIZES.pack(len(packed), body_size) + packed


class FrameDecoder:
    """Makes messages of bytes, however the stream has cut them.

    >>> decoder = FrameDecoder(FROM_CALLER)
    >>> messages = decoder.feed(data)     # as often as data comes; raises BadFrame
    """

    def __init__(self, accepted: frozenset[str]) -> None:
        self._accepted = accepted
        #: The beginning of a frame whose head is not complete.
        self._start = b""
        #: The head of the frame whose body is not complete, and what has come of that body.
        self._head: Head | None = None
        self._came: list[bytes] = []
        self._missing = 0
        #: Earlier pieces of a websocket message that is not complete.
        self._pieces: list[bytes] = []
        self._pieces_size = 0

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete with these bytes."""
        messages: list[Message] = []
        if self._start:
            data, self._start = self._start + data, b""
        at, end = 0, len(data)
        while at < end:
            if self._head is None:
                if (body_at := self._open(data, at, end)) is None:
                    self._start = data[at:]
                    break
                at = body_at
            if self._missing:
                came = data[at : at + self._missing]
                self._came.append(came)
                self._missing -= len(came)
                at += len(came)
            if not self._missing and (message := self._complete()) is not None:
                messages.append(message)
        return messages

    def _open(self, data: bytes, at: int, end: int) -> int | None:
        """Read sizes and head of a frame and return where its body begins, or None if they are not complete."""
        if end - at < SIZES.size:
            return None
        head_size, body_size = SIZES.unpack_from(data, at)
        if head_size > HEAD_BYTES_MAX or SIZES.size + head_size + body_size > FRAME_BYTES_MAX:
            raise BadFrame(f"a frame says that its head has {head_size} bytes and its body {body_size}: too many")
        body_at: int = at + SIZES.size + head_size
        if body_at > end:
            return None
        try:
            head = _decoder.decode(data[at + SIZES.size : body_at])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"the head of a frame cannot be read: {error}") from error
        if head.get("type") not in self._accepted:
            raise BadFrame(f"a message of type {head.get('type')!r} does not come from that side")
        if body_size and "long" not in head:
            raise BadFrame(f"a message of type {head.get('type')!r} has a body that it does not name")
        self._head, self._missing = head, body_size
        return body_at

    def _complete(self) -> Message | None:
        """Make the message of a complete frame, unless the next frame continues it."""
        message: Message = dict(self._head or {})
        body = self._came[0] if len(self._came) == 1 else b"".join(self._came)
        self._head, self._came = None, []
        if message.pop("part", False):
            self._pieces.append(body)
            self._pieces_size += len(body)
            # Many small pieces would take far more memory than their bytes.
            if self._pieces_size > MESSAGE_BYTES_MAX or len(body) < JOINED_BYTES:
                raise BadFrame("a websocket message is too long, or is cut into pieces that are too small")
            return None
        long = message.pop("long", None)
        if self._pieces and long is not None:
            body = b"".join([*self._pieces, body])
            self._pieces, self._pieces_size = [], 0
        if long == "text":
            try:
                message["text"] = body.decode()
            except UnicodeDecodeError as error:
                raise BadFrame(f"the text of a websocket message is no UTF-8: {error}") from error
        elif long is not None:
            message[long] = body
        return message
