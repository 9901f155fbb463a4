"""One message at a time from a real socket, however it was cut into pieces, and not a byte behind it."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skate._wire import cluster
from skate._wire.channel import HEADER, HEADER_BYTES, RECEIVE_BYTES, Channel, ChannelClosed
from skate._wire.messages import Message, encoder

SCRATCH = bytearray(RECEIVE_BYTES)


@contextmanager
def channel_and_sender() -> Iterator[tuple[Channel, socket.socket]]:
    ours, theirs = socket.socketpair()
    channel = Channel(ours, decode=cluster.decode)
    with closing(channel), theirs:
        yield channel, theirs


def frame(message: Message) -> bytes:
    payload = encoder.encode(message)
    return HEADER.pack(len(payload)) + payload


def announced(frame_bytes: int) -> bytes:
    """The header of a frame that is so large, header and all."""
    return HEADER.pack(frame_bytes - HEADER_BYTES)


def unread(channel: Channel) -> bytes:
    """What the socket has for the next reader."""
    data = b""
    while True:
        try:
            more = channel.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return data
        if not more:
            return data
        data += more


def drain(receive: Callable[[], list[Any]]) -> list[Any]:
    messages: list[Any] = []
    while more := receive():
        messages += more
    return messages


MESSAGES = st.one_of(
    st.builds(cluster.ChannelOpened, st.integers(0, 2**40)),
    st.builds(cluster.Link, st.binary(max_size=40)),
    st.builds(cluster.OpenChannel, st.binary(max_size=20), st.integers(0, 2**20), st.binary(max_size=20)),
    st.builds(cluster.Ask, st.text(st.characters(exclude_categories=["Cs"]))),
    st.builds(cluster.Reply, st.binary(max_size=2000)),
)
STREAMS = st.lists(MESSAGES, min_size=1, max_size=6)


def pieces_of(stream: bytes, data: st.DataObject) -> list[bytes]:
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream)), max_size=12), label="cuts"))
    return [stream[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(stream)])]


@given(STREAMS, st.data())
@settings(deadline=None)
def test_frames_may_be_split_anywhere(sent: list[Message], data: st.DataObject) -> None:
    with channel_and_sender() as (channel, sender):
        received: list[Any] = []
        for piece in pieces_of(b"".join(map(frame, sent)), data):
            sender.sendall(piece)
            received += drain(channel.receive_one)
        assert received == sent


@given(MESSAGES, st.binary(max_size=300), st.data())
@settings(deadline=None)
def test_nothing_behind_the_first_frame_is_read(message: Message, behind: bytes, data: st.DataObject) -> None:
    """Whatever follows it, a part of which may come in the same piece: that is another's."""
    with channel_and_sender() as (channel, sender):
        received: list[Any] = []
        left = b""
        for piece in pieces_of(frame(message) + behind, data):
            sender.sendall(piece)
            if not received:
                received = channel.receive_one()
            if received:
                left += unread(channel)
        assert received == [message]
        assert left == behind


@given(STREAMS, st.data())
@settings(deadline=None)
def test_it_may_take_turns_with_receive(sent: list[Message], data: st.DataObject) -> None:
    """What a whole read left of a frame is where the next message begins."""
    with channel_and_sender() as (channel, sender):
        received: list[Any] = []
        for piece in pieces_of(b"".join(map(frame, sent)), data):
            sender.sendall(piece)
            if data.draw(st.booleans(), label="one by one"):
                received += channel.receive_one()
            else:
                received += channel.receive(SCRATCH)
        received += drain(channel.receive_one)
        assert received == sent


@given(STREAMS, st.binary(max_size=300), st.data())
@settings(deadline=None)
def test_what_another_has_read_before_comes_first(sent: list[Message], behind: bytes, data: st.DataObject) -> None:
    """`take` gets the beginning of the stream, and the socket has the rest of it."""
    stream = b"".join(map(frame, sent))
    cut = data.draw(st.integers(0, len(stream)), label="cut")
    with channel_and_sender() as (channel, sender):
        sender.sendall(stream[cut:] + behind)
        received = channel.take(stream[:cut], cut)
        while len(received) < len(sent):
            (message,) = channel.receive_one()
            received.append(message)
        assert received == sent
        assert unread(channel) == behind


def test_one_call_gives_one_message_though_more_are_there() -> None:
    with channel_and_sender() as (channel, sender):
        sender.sendall(frame(cluster.ChannelOpened(1)) + frame(cluster.ChannelOpened(2)))
        assert channel.receive_one() == [cluster.ChannelOpened(1)]
        assert channel.receive_one() == [cluster.ChannelOpened(2)]
        assert channel.receive_one() == []


def test_bytes_may_come_one_by_one() -> None:
    with channel_and_sender() as (channel, sender):
        received = []
        for byte in frame(cluster.Ask("nodes")) + frame(cluster.ChannelOpened(7)):
            sender.send(bytes([byte]))
            received += channel.receive_one()
            assert unread(channel) == b""
        assert received == [cluster.Ask("nodes"), cluster.ChannelOpened(7)]


def test_the_largest_frame_that_is_taken() -> None:
    message = cluster.Reply(b"x" * (RECEIVE_BYTES - len(frame(cluster.Reply(b"x" * 70_000))) + 70_000))
    stream = frame(message)
    assert len(stream) == RECEIVE_BYTES
    with channel_and_sender() as (channel, sender):
        received: list[Any] = []
        for begin in range(0, len(stream), 10_000):
            sender.sendall(stream[begin : begin + 10_000])
            received += channel.receive_one()
        assert received == [message]


@given(st.integers(RECEIVE_BYTES + 1, 2**32 - 1))
@settings(deadline=None, max_examples=30)
def test_a_larger_one_is_refused_when_it_is_announced(size: int) -> None:
    with channel_and_sender() as (channel, sender):
        sender.sendall(announced(size) + b"its first bytes")
        with pytest.raises(ChannelClosed, match=f"a frame of {size} bytes"):
            channel.receive_one()
        assert unread(channel) == b"its first bytes"


@given(MESSAGES, st.data())
@settings(deadline=None)
def test_the_end_of_the_stream_is_told_after_what_came_before_it(message: Message, data: st.DataObject) -> None:
    """Whether it ends between two frames, or in the middle of one."""
    part = data.draw(st.integers(0, len(frame(message)) - 1), label="of another frame")
    with channel_and_sender() as (channel, sender):
        sender.sendall(frame(message) + frame(message)[:part])
        sender.close()
        assert channel.receive_one() == [message]
        for _ in range(2):
            with pytest.raises(ChannelClosed, match="end of stream"):
                channel.receive_one()


def test_a_broken_connection_is_an_end() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = socket.create_connection(server.getsockname())
        channel = Channel(server.accept()[0], decode=cluster.decode)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
    sender.close()
    with pytest.raises(ChannelClosed, match="reset"):
        channel.receive_one()
    channel.close()


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_a_payload_that_is_no_message_is_refused_and_what_is_behind_it_stays(payload: bytes) -> None:
    try:
        cluster.decode(payload)
    except (ValueError, RecursionError):
        pass
    else:
        return
    with channel_and_sender() as (channel, sender):
        sender.sendall(HEADER.pack(len(payload)) + payload + b"behind")
        with pytest.raises(ChannelClosed, match="not a message"):
            channel.receive_one()
        assert unread(channel) == b"behind"
