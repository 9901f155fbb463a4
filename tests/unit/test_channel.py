"""Messages and descriptors over real sockets: in order, whole or not at all, and never a blocked sender."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skate._message_limits import FRAME_BYTES_MAX
from skate._wire import channel as wire
from skate._wire.channel import RECEIVE_BYTES, Channel, ChannelClosed
from skate._wire.messages import Answer, AnyMessage, Borrowed, Define, Logs, Message, Shutdown, Unpin, encoder

SCRATCH = bytearray(RECEIVE_BYTES)


class Ends:
    """Both ends of one channel, in one thread."""

    def __init__(self, *, carries_fds: bool = False, send_buffer: int | None = None) -> None:
        ours, theirs = socket.socketpair()
        if send_buffer is not None:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.ours = Channel(ours, carries_fds=carries_fds, name="ours")
        self.theirs = Channel(theirs, carries_fds=carries_fds, name="theirs")

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *_: object) -> None:
        self.ours.close()
        self.theirs.close()

    def received(self) -> list[AnyMessage]:
        """What has arrived, read to the last byte, and everything that was kept back after it."""
        messages: list[AnyMessage] = []
        while True:
            before = len(messages)
            while more := read_all(self.theirs):
                messages += more
            if self.ours.flush() and len(messages) == before and not unread(self.theirs):
                return messages


def unread(channel: Channel) -> bool:
    try:
        return bool(channel.sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def read_all(channel: Channel) -> list[AnyMessage]:
    """Messages until there is nothing to read; a read may be part of a frame only."""
    messages: list[AnyMessage] = []
    while unread(channel):
        messages += channel.receive(SCRATCH)
    return messages


def frame(message: Message) -> bytes:
    payload = encoder.encode(message)
    return struct.pack("<I", len(payload)) + payload


def open_descriptors() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def ends() -> Iterator[Ends]:
    with Ends() as pair:
        yield pair


@pytest.fixture
def fd_ends() -> Iterator[Ends]:
    with Ends(carries_fds=True) as pair:
        yield pair


#: A send buffer as small as the kernel allows: everything of any size is sent in pieces.
TINY = 1


# --- Frames -----------------------------------------------------------------------------------------------------------


def test_a_frame_is_laid_out_as_its_table_says(ends: Ends) -> None:
    ends.ours.send(Borrowed(7))
    data = ends.theirs.sock.recv(100)
    assert data[:4] == (len(data) - 4).to_bytes(4, "little")
    assert data[4:] == encoder.encode(Borrowed(7))
    assert wire.HEADER_BYTES == wire.HEADER.size == 4


def test_messages_arrive_in_order_and_several_in_one_read(ends: Ends) -> None:
    sent = [Borrowed(number) for number in range(100)]
    for message in sent:
        ends.ours.send(message)
    assert ends.theirs.receive(SCRATCH) == sent


def test_both_directions_are_independent(ends: Ends) -> None:
    ends.ours.send(Borrowed(1))
    ends.theirs.send(Borrowed(2))
    assert ends.theirs.receive(SCRATCH) == [Borrowed(1)]
    assert ends.ours.receive(SCRATCH) == [Borrowed(2)]


def test_nothing_to_read_is_no_message_and_no_end(ends: Ends) -> None:
    assert ends.theirs.receive(SCRATCH) == []


MESSAGES = st.one_of(
    st.just(Shutdown()),
    st.builds(Borrowed, st.integers(0, 2**40)),
    st.builds(Unpin, st.lists(st.binary(max_size=20), max_size=5)),
    st.builds(
        Define, st.binary(max_size=16), st.text(st.characters(exclude_categories=["Cs"])), st.binary(max_size=300)
    ),
)


@given(st.lists(MESSAGES, min_size=1, max_size=8), st.data())
@settings(max_examples=100, deadline=None)
def test_frames_may_be_split_anywhere(sent: list[Message], data: st.DataObject) -> None:
    stream = b"".join(frame(message) for message in sent)
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream)), max_size=10)))
    with Ends() as ends:
        received: list[AnyMessage] = []
        for begin, end in zip([0, *cuts], [*cuts, len(stream)]):
            ends.ours.sock.sendall(stream[begin:end])
            received += read_all(ends.theirs)
        assert received == sent


def test_frames_may_arrive_byte_by_byte(ends: Ends) -> None:
    sent = [Borrowed(2**40), Shutdown(), Unpin([b"a", b"b"])]
    received: list[AnyMessage] = []
    for byte in b"".join(frame(message) for message in sent):
        ends.ours.sock.send(bytes([byte]))
        received += ends.theirs.receive(SCRATCH)
    assert received == sent


@pytest.mark.parametrize("size", [RECEIVE_BYTES - 40, RECEIVE_BYTES, RECEIVE_BYTES + 1, 3 * RECEIVE_BYTES, 30 << 20])
def test_a_frame_may_be_larger_than_a_read(ends: Ends, size: int) -> None:
    large = Define(b"fn", "large", os.urandom(1000) * (size // 1000))
    sent = [Borrowed(1), large, Borrowed(2), large, Borrowed(3)]
    for message in sent:
        ends.ours.send(message)
    assert ends.received() == sent


# --- A full socket ----------------------------------------------------------------------------------------------------


def test_a_full_socket_blocks_nobody_and_what_is_kept_back_stays_in_order() -> None:
    with Ends(send_buffer=TINY) as ends:
        told: list[Channel] = []
        ends.ours.on_backlog = told.append
        sent = [Define(b"fn", str(number), os.urandom(number * 1000)) for number in range(50)]
        for message in sent:
            ends.ours.send(message)
        assert ends.ours.has_backlog
        assert told
        assert set(told) == {ends.ours}
        assert not ends.ours.flush()
        assert ends.received() == sent
        assert not ends.ours.has_backlog
        assert ends.ours.flush()


def test_an_end_that_does_not_read_is_given_up_before_it_takes_all_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "BACKLOG_BYTES_MAX", 1 << 20)
    with Ends(send_buffer=4096) as ends:
        for _ in range(12):
            ends.ours.send(Answer(1, bytes(1 << 17)))
        assert not ends.ours.has_backlog
        with pytest.raises(ChannelClosed):
            ends.ours.receive(SCRATCH)


def test_what_was_read_late_does_not_count_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "BACKLOG_BYTES_MAX", 1 << 20)
    with Ends(send_buffer=4096) as ends:
        for _ in range(40):
            ends.ours.send(Answer(1, bytes(1 << 17)))
            assert len(ends.received()) == 1


def test_what_the_socket_takes_at_once_is_not_kept_back(ends: Ends) -> None:
    ends.ours.on_backlog = lambda _: pytest.fail("nothing had to be kept back")
    for number in range(100):
        ends.ours.send(Borrowed(number))
        assert not ends.ours.has_backlog
        assert ends.theirs.receive(SCRATCH) == [Borrowed(number)]


def test_nothing_overtakes_what_was_kept_back() -> None:
    """Even when the socket could take it at once, because the peer has read meanwhile and nobody has flushed yet."""
    with Ends(send_buffer=TINY) as ends:
        large = Define(b"fn", "large", bytes(100_000))
        ends.ours.send(large)
        while unread(ends.theirs):
            assert ends.theirs.receive(SCRATCH) == []
        ends.ours.send(Borrowed(1))
        assert ends.received() == [large, Borrowed(1)]


@given(st.lists(st.one_of(st.sampled_from(["read", "flush"]), st.integers(0, 30_000)), max_size=30))
@settings(max_examples=50, deadline=None)
def test_sending_reading_and_flushing_mix_in_any_order(steps: list[str | int]) -> None:
    """A number sends a message of about that size."""
    with Ends(send_buffer=TINY) as ends:
        sent: list[Message] = []
        received: list[AnyMessage] = []
        for step in steps:
            if step == "read":
                received += ends.theirs.receive(SCRATCH)
            elif step == "flush":
                ends.ours.flush()
            else:
                sent.append(Define(b"fn", str(len(sent)), b"x" * int(step)))
                ends.ours.send(sent[-1])
        received += ends.received()
        assert received == sent


def test_threads_may_send_at_once() -> None:
    count, senders = 200, 4
    with Ends(send_buffer=TINY) as ends:

        def send(sender: int) -> None:
            for number in range(count):
                ends.ours.send(Define(bytes([sender]), str(number), b"x" * (number * 7 % 500)))

        threads = [threading.Thread(target=send, args=(sender,)) for sender in range(senders)]
        for thread in threads:
            thread.start()
        received: list[AnyMessage] = []
        while len(received) < count * senders:
            received += ends.theirs.receive(SCRATCH)
            ends.ours.flush()
        for thread in threads:
            thread.join()
        assert ends.received() == []
    for sender in range(senders):
        mine = [message for message in received if isinstance(message, Define) and message.fn == bytes([sender])]
        assert [message.name for message in mine] == [str(number) for number in range(count)]
        assert all(len(message.definition) == int(message.name) * 7 % 500 for message in mine)


def test_a_message_that_cannot_be_encoded_harms_no_other(ends: Ends) -> None:
    ends.ours.send(Borrowed(1))
    with pytest.raises(TypeError):
        ends.ours.send(Answer(1, {"a": [1, 2, object()]}))
    ends.ours.send(Borrowed(2))
    assert ends.received() == [Borrowed(1), Borrowed(2)]


# --- Descriptors ------------------------------------------------------------------------------------------------------


def memory_file(content: bytes) -> int:
    fd = os.memfd_create("skate-test")
    os.write(fd, content)
    return fd


def content_of(fd: int) -> bytes:
    try:
        return os.pread(fd, 100, 0)
    finally:
        os.close(fd)


def send_files(channel: Channel, message: Message, *contents: bytes) -> None:
    """As callers do: send, then close our own copies at once."""
    fds = tuple(memory_file(content) for content in contents)
    channel.send(message, fds)
    for fd in fds:
        os.close(fd)


def test_a_descriptor_comes_with_its_message(fd_ends: Ends) -> None:
    send_files(fd_ends.ours, Borrowed(1), b"hello")
    assert fd_ends.received() == [Borrowed(1)]
    assert len(fd_ends.theirs.fds) == 1
    assert not os.get_inheritable(fd_ends.theirs.fds[0])
    assert content_of(fd_ends.theirs.fds.popleft()) == b"hello"


def test_descriptors_come_in_the_order_of_their_messages(fd_ends: Ends) -> None:
    for number in range(20):
        fd_ends.ours.send(Borrowed(number))
        send_files(fd_ends.ours, Unpin([b"%d" % number]), b"first of %d" % number, b"second of %d" % number)
    received: list[AnyMessage] = []
    while len(received) < 40:
        for message in fd_ends.theirs.receive(SCRATCH):
            received.append(message)
            if isinstance(message, Unpin):  # its descriptors are there as soon as the message is
                assert content_of(fd_ends.theirs.fds.popleft()) == b"first of " + message.ids[0]
                assert content_of(fd_ends.theirs.fds.popleft()) == b"second of " + message.ids[0]
    assert not fd_ends.theirs.fds


def test_descriptors_wait_their_turn_behind_a_full_socket() -> None:
    """The sender closes its own at once, although they are still to be sent."""
    with Ends(carries_fds=True, send_buffer=TINY) as ends:
        before = open_descriptors()
        large = Define(b"fn", "large", bytes(200_000))
        ends.ours.send(large)
        send_files(ends.ours, Borrowed(1), b"one")
        ends.ours.send(large)
        send_files(ends.ours, Define(b"fn", "with", bytes(100_000)), b"two")
        assert ends.received() == [large, Borrowed(1), large, Define(b"fn", "with", bytes(100_000))]
        assert [content_of(ends.theirs.fds.popleft()) for _ in range(2)] == [b"one", b"two"]
        assert open_descriptors() == before


def test_closing_closes_descriptors_that_were_not_sent_and_not_taken() -> None:
    before = open_descriptors()
    with Ends(carries_fds=True, send_buffer=TINY) as ends:
        send_files(ends.ours, Borrowed(1), b"arrives, and nobody takes it")
        assert ends.received() == [Borrowed(1)]
        ends.ours.send(Define(b"fn", "large", bytes(200_000)))
        send_files(ends.ours, Borrowed(2), b"is never sent")
        assert ends.ours.has_backlog
    assert open_descriptors() == before


def test_a_dead_peer_costs_no_descriptors() -> None:
    before = open_descriptors()
    with Ends(carries_fds=True, send_buffer=TINY) as ends:
        ends.ours.send(Define(b"fn", "large", bytes(200_000)))
        send_files(ends.ours, Borrowed(1), b"waits")
        ends.theirs.close()
        assert ends.ours.flush(), "nothing is left to send"
        send_files(ends.ours, Borrowed(2), b"too late")
        assert not ends.ours.has_backlog
    assert open_descriptors() == before


# --- The end ----------------------------------------------------------------------------------------------------------


def test_what_was_sent_before_the_end_is_read_before_the_end(ends: Ends) -> None:
    ends.ours.send(Borrowed(1))
    ends.ours.close()
    assert ends.theirs.receive(SCRATCH) == [Borrowed(1)]
    for _ in range(2):
        with pytest.raises(ChannelClosed, match="end of stream"):
            ends.theirs.receive(SCRATCH)


def test_the_end_in_the_middle_of_a_frame_is_an_end(ends: Ends) -> None:
    ends.ours.sock.send(frame(Borrowed(2**40))[:-1])
    ends.ours.close()
    assert ends.theirs.receive(SCRATCH) == []
    with pytest.raises(ChannelClosed):
        ends.theirs.receive(SCRATCH)


def test_sending_after_the_end_is_silent(ends: Ends) -> None:
    ends.theirs.close()
    ends.ours.send(Borrowed(1))
    ends.ours.send(Define(b"fn", "large", bytes(1 << 20)))
    ends.ours.close()
    ends.ours.send(Borrowed(2))
    ends.ours.close()
    assert ends.ours.closed
    assert ends.ours.flush()


def payload(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


#: The first bytes of an Answer, whose body may be anything that msgpack can say.
ANSWER = b"\x93\x0c\x01"

GARBAGE = {
    "an empty frame": payload(b""),
    "no msgpack": payload(b"\xc1"),
    "a number": payload(encoder.encode(1)),
    "an unknown tag": payload(encoder.encode([99, 1])),
    "a wrong type": payload(encoder.encode([83, "one"])),
    "two messages in one frame": payload(encoder.encode(Borrowed(1)) * 2),
    "a frame that is longer than its message": payload(encoder.encode(Borrowed(1)) + b"\0"),
    "text of another protocol": b"\x05\0\0\0GET / HTTP/1.1\r\n",
    "text that is not UTF-8": payload(ANSWER + b"\xa2\xff\xff"),
    "arrays in arrays without end": payload(ANSWER + b"\x91" * 100_000 + b"\xc0"),
    "a key that cannot be one": payload(ANSWER + b"\x81\x80\x01"),
    "a time that was never": payload(ANSWER + b"\xc7\x0c\xff" + b"\xff" * 12),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
def test_garbage_ends_the_channel(ends: Ends, garbage: bytes) -> None:
    """With the one exception that a loop expects: any other would end the loop and not just the channel."""
    ends.ours.sock.sendall(garbage)
    with pytest.raises(ChannelClosed):
        ends.theirs.receive(SCRATCH)


@given(st.binary(min_size=1, max_size=100))
@settings(max_examples=200, deadline=None)
def test_noise_raises_nothing_but_the_end(noise: bytes) -> None:
    with Ends() as ends:
        ends.ours.sock.sendall(payload(ANSWER + noise) + noise)
        try:
            read_all(ends.theirs)
        except ChannelClosed:
            pass


def test_an_oversized_announcement_of_what_is_no_message_ends_the_channel(ends: Ends) -> None:
    ends.ours.sock.send(struct.pack("<I", FRAME_BYTES_MAX + 1) + b"GET / HTTP/1.1")
    with pytest.raises(ChannelClosed, match=f"{FRAME_BYTES_MAX + 1} bytes was announced"):
        ends.theirs.receive(SCRATCH)


def test_an_oversized_announcement_is_seen_behind_other_messages_and_in_pieces(ends: Ends) -> None:
    header = struct.pack("<I", 2**32 - 1)
    ends.ours.sock.send(frame(Borrowed(1)) + header[:3])
    assert ends.theirs.receive(SCRATCH) == [Borrowed(1)]
    ends.ours.sock.send(header[3:])
    assert ends.theirs.receive(SCRATCH) == []
    ends.ours.sock.send(b"\0")
    with pytest.raises(ChannelClosed):
        ends.theirs.receive(SCRATCH)


def test_the_largest_announcement_is_waited_for(ends: Ends) -> None:
    ends.ours.sock.send(struct.pack("<I", FRAME_BYTES_MAX))
    assert ends.theirs.receive(SCRATCH) == []


def test_a_line_with_any_text_can_be_sent(ends: Ends) -> None:
    from skate._core.task import Line

    logs = Logs([Line(1, "f", False, "naïve \0 日本語 🛼"), Line(1, "f", True, "")])
    ends.ours.send(logs)
    assert ends.received() == [logs]
