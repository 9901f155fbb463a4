"""ASGI messages as bytes between replicas, and back."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skate.serve.tunnel_frames import (
    FRAME_BYTES_MAX,
    FROM_CALLER,
    FROM_SERVER,
    HEAD_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    PIECE_BYTES,
    SIZES,
    BadFrame,
    FrameDecoder,
    Message,
    encode,
    plain_scope,
)

EITHER = FROM_CALLER | FROM_SERVER

headers = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=4)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
messages = st.one_of(
    st.builds(lambda body, more: {"type": "http.request", "body": body, "more_body": more}, st.binary(), st.booleans()),
    st.builds(lambda body: {"type": "http.response.body", "body": body}, st.binary()),
    st.builds(lambda h: {"type": "http.response.start", "status": 404, "headers": h}, headers),
    st.builds(lambda text: {"type": "websocket.send", "text": text}, texts),
    st.builds(lambda data: {"type": "websocket.receive", "bytes": data}, st.binary()),
    st.builds(lambda code, why: {"type": "websocket.close", "code": code, "reason": why}, st.integers(0, 4999), texts),
    st.builds(lambda h: {"type": "websocket.accept", "subprotocol": None, "headers": h}, headers),
    st.just({"type": "websocket.connect"}),
)


def written(message: Message) -> bytes:
    return b"".join(b"".join(frame) for frame in encode(message))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def frame(head: Any, body: bytes = b"") -> bytes:
    packed = msgspec.msgpack.encode(head)
    return SIZES.pack(len(packed), len(body)) + packed + body


@given(st.lists(messages, max_size=6), st.lists(st.integers(0), max_size=12))
def test_messages_arrive_as_they_were_sent_however_the_stream_is_cut(sent: list[Message], places: list[int]) -> None:
    decoder = FrameDecoder(EITHER)
    stream = b"".join(written(message) for message in sent)
    assert [message for data in cut(stream, places) for message in decoder.feed(data)] == sent


@given(st.lists(messages, max_size=3))
@settings(max_examples=20)
def test_messages_arrive_when_their_bytes_come_one_by_one(sent: list[Message]) -> None:
    decoder = FrameDecoder(EITHER)
    stream = b"".join(written(message) for message in sent)
    assert [message for at in range(len(stream)) for message in decoder.feed(stream[at : at + 1])] == sent


@pytest.mark.parametrize("size", [PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES, 3 * PIECE_BYTES + 7])
def test_a_long_body_comes_in_pieces_of_which_the_last_one_ends_it_if_it_did(size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"!" * (size % 256)
    for more in (False, True):
        message = {"type": "http.request", "body": body, "more_body": more}
        assert all(sum(map(len, frame)) <= FRAME_BYTES_MAX for frame in encode(message))
        came = FrameDecoder(FROM_CALLER).feed(written(message))
        assert b"".join(piece["body"] for piece in came) == body
        assert [piece["more_body"] for piece in came] == [True] * (len(came) - 1) + [more]


@pytest.mark.parametrize("content", [{"bytes": b"\0\1" * 999_999}, {"text": "é" * 999_999}])
def test_a_long_message_of_a_websocket_arrives_whole(content: Message) -> None:
    message = {"type": "websocket.send", **content}
    decoder = FrameDecoder(FROM_SERVER)
    frames = encode(message)
    assert len(frames) > 2
    *before, last = [decoder.feed(b"".join(frame)) for frame in frames]
    decoder.feed(b"".join(frames[0]))
    assert decoder.feed(written({"type": "tunnel.leave"})) == [{"type": "tunnel.leave"}]
    assert [message for frame in frames[1:] for message in decoder.feed(b"".join(frame))] == [message]
    assert not any(before)
    assert last == [message]
    assert decoder.feed(written({"type": "websocket.close", "code": 1012})) == [
        {"type": "websocket.close", "code": 1012}
    ]


def test_a_body_may_be_any_bytes_and_headers_anything_that_can_be_gone_through() -> None:
    mutable = bytearray(b"x" * 100_000)
    (frame,) = encode({"type": "http.response.body", "body": mutable})
    mutable[:] = b"y" * 100_000
    assert FrameDecoder(FROM_SERVER).feed(b"".join(frame)) == [{"type": "http.response.body", "body": b"x" * 100_000}]
    start = {"type": "http.response.start", "status": 200, "headers": ((name, b"1") for name in (b"a", b"b"))}
    assert FrameDecoder(FROM_SERVER).feed(written(start))[0]["headers"] == [(b"a", b"1"), (b"b", b"1")]


def test_a_scope_is_sent_without_what_belongs_to_its_process() -> None:
    plain = {
        "type": "websocket",
        "http_version": "1.1",
        "path": "/ä",
        "raw_path": b"/%C3%A4",
        "query_string": b"a=1",
        "headers": [(b"host", b"x")],
        "client": ("::1", 7),
        "server": ("/tmp/socket", None),
        "subprotocols": ["a", "b"],
    }
    own = {"state": {"a": object()}, "app": object(), "extensions": {"x": print}, "root_path": None, "asgi": {}}
    assert FrameDecoder(FROM_CALLER).feed(written(plain_scope({**plain, **own}))) == [plain]


def test_what_is_too_long_is_not_sent() -> None:
    with pytest.raises(ValueError, match="headers"):
        encode({"type": "http.response.start", "headers": [(b"a", b"x" * HEAD_BYTES_MAX)]})
    with pytest.raises(ValueError, match="websocket message"):
        encode({"type": "websocket.send", "bytes": bytes(MESSAGE_BYTES_MAX + 1)})


@given(st.binary(max_size=200), st.lists(st.integers(0), max_size=3))
def test_bytes_that_are_no_frames_raise_bad_frame_and_nothing_else(data: bytes, places: list[int]) -> None:
    decoder = FrameDecoder(EITHER)
    try:
        for part in cut(data, places):
            decoder.feed(part)
    except BadFrame:
        pass


@given(messages, st.integers(0), st.integers(0, 255))
def test_a_frame_with_one_wrong_byte_raises_bad_frame_or_nothing(message: Message, place: int, byte: int) -> None:
    damaged = bytearray(written(message))
    damaged[place % len(damaged)] = byte
    try:
        FrameDecoder(EITHER).feed(bytes(damaged))
    except BadFrame:
        pass


@pytest.mark.parametrize(
    "data",
    [
        SIZES.pack(HEAD_BYTES_MAX + 1, 0),
        SIZES.pack(10, FRAME_BYTES_MAX),
        SIZES.pack(0xFFFFFFFF, 0xFFFFFFFF),
        frame({"type": "http.response.body"}),
        frame({"type": "http.disconnect"}),
        frame({"more_body": True}),
        frame([1, 2]),
        frame({"type": "http", "path": b"/"}),
        frame({"type": "http", "headers": [("a", b"b")]}),
        frame({"type": "http.request", "long": "type"}, b"a body"),
        frame({"type": "http.request"}, b"a body without a name"),
        frame({"type": "websocket.receive", "long": "text"}, b"\xff"),
        frame({"type": "websocket.receive", "long": "bytes", "part": True}, b"a small piece"),
        b"\x91" * 200,
    ],
)
def test_a_bad_frame_is_refused_before_memory_is_taken_for_it(data: bytes) -> None:
    with pytest.raises(BadFrame):
        FrameDecoder(FROM_CALLER).feed(data)


def test_pieces_without_end_are_refused() -> None:
    decoder = FrameDecoder(FROM_CALLER)
    piece = frame({"type": "websocket.receive", "long": "bytes", "part": True}, bytes(PIECE_BYTES))
    with pytest.raises(BadFrame, match="too long"):
        for _ in range(MESSAGE_BYTES_MAX // PIECE_BYTES + 1):
            decoder.feed(piece)
