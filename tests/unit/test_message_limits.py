"""Messages beyond the limit: split, an error at the sender, or skipped by a receiver whose channel goes on behind."""

from __future__ import annotations

import itertools
import os
import pickle
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skate import exceptions
from skate._core.task import Failure, Result, Task
from skate._message_limits import FRAME_BYTES_LEAST, FRAME_BYTES_MAX, Limits, limits
from skate._serialize import errors
from skate._serialize.errors import pack_error, unpack_error
from skate._wire import cluster
from skate._wire import messages as m
from skate._wire.channel import HEADER, RECEIVE_BYTES, Channel, ChannelClosed, TooLarge
from skate._wire.lasting import LastingChannel
from skate._wire.refusal import HEAD_BYTES, NotOurs, read_refusal
from skate._wire.splitting import LISTS, parts_of

SCRATCH = bytearray(RECEIVE_BYTES)
ID = bytes(range(20))


@pytest.fixture(autouse=True)
def small_limit() -> Iterator[None]:
    limits.set(FRAME_BYTES_LEAST)
    yield
    limits.set(FRAME_BYTES_MAX)


class Pair:
    """Two ends; what the first sends, whatever its size, the second reads."""

    def __init__(self, kind: type[Channel] = Channel, **options: Any) -> None:
        ours, theirs = socket.socketpair()
        self.ours, self.theirs = kind(ours, **options), kind(theirs, **options)

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.ours.close()
        self.theirs.close()

    def received(self) -> list[Any]:
        messages: list[Any] = []
        while True:
            try:
                self.theirs.sock.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                if not self.ours.has_backlog:
                    return messages
                self.ours.flush()
                continue
            messages += self.theirs.receive(SCRATCH)


def raised_by_the_limit(channel: Channel) -> Channel:
    """A sender that does not know the limit."""
    channel.limit = 1 << 30
    return channel


# -- the sender --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Channel, LastingChannel])
def test_a_batch_that_is_too_large_is_sent_in_parts(kind: type[Channel]) -> None:
    tasks = [Task(bytes([number]) * 20, b"fn", os.urandom(90_000)) for number in range(50)]
    with Pair(kind) as pair:
        pair.ours.send(m.Tasks(7, tasks))
        received = pair.received()
        assert len(received) > 5
        assert {message.lease for message in received} == {7}
        assert [task for message in received for task in message.tasks] == tasks


@pytest.mark.parametrize("kind", [Channel, LastingChannel])
def test_what_cannot_be_split_is_an_error_and_everything_else_arrives(kind: type[Channel]) -> None:
    small = [Result(bytes([number]) * 20, b"x" * 1000) for number in range(9)]
    large = Result(b"L" * 20, Failure(bytes(limits.frame)))
    with Pair(kind) as pair:
        pair.ours.send(m.Borrowed(1))
        with pytest.raises(TooLarge, match="a Results of 52") as info:
            pair.ours.send(m.Results([*small[:4], large, *small[4:]]))
        assert [message.results for message, _ in info.value.unsent] == [[large]]
        assert info.value.unsent[0][1] > limits.frame == info.value.limit
        pair.ours.send(m.Borrowed(2))
        received = pair.received()
        assert received[0] == m.Borrowed(1)
        assert received[-1] == m.Borrowed(2)
        assert [result for message in received[1:-1] for result in message.results] == small


def test_a_large_message_leaves_no_large_buffer_behind() -> None:
    with Pair() as pair, pytest.raises(TooLarge):
        pair.ours.send(m.Define(b"fn", "f", bytes(2 * limits.frame)))
    assert len(pair.ours._buffer) < 1000


@pytest.mark.parametrize(
    "message",
    [
        m.Results([Result(ID, b"a"), Result(ID, b"b"), Result(ID, b"c")], [m.direct.Timing(b"fn", 3, 0.1)]),
        m.Free([b"a", b"b", b"c"], 5, [b"task"]),
        m.Returned([b"a", b"b"], blocked=True),
        m.Release([(b"a", 1), (b"b", 2)]),
        m.Prefetch([b"a", b"b", b"c"], [1, 2, 3]),
        cluster.FromProcess(b"process", m.Free([b"a", b"b", b"c"])),
    ],
    ids=lambda message: type(message).__name__,
)
def test_parts_say_the_same_as_the_whole(message: Any) -> None:
    def said(message: Any, what: dict[str, list[Any]]) -> dict[str, list[Any]]:
        inner = getattr(message, "message", message)
        for name in inner.__struct_fields__:
            value = getattr(inner, name)
            what.setdefault(name, []).extend(value if isinstance(value, list) else [] if what.get(name) else [value])
        return what

    def smallest(message: Any) -> list[Any]:
        parts = parts_of(message, 10, 5)
        return [small for part in parts for small in smallest(part)] if parts else [message]

    everything: dict[str, list[Any]] = {}
    parts = smallest(message)
    assert len(parts) > 1
    for part in parts:
        assert type(part) is type(message)
        said(part, everything)
    assert everything == said(message, {})


def test_every_list_that_is_split_is_a_field() -> None:
    for kind, name in LISTS.items():
        assert name in kind.__struct_fields__  # type: ignore[attr-defined]


def test_an_answer_that_is_too_large_becomes_one_that_says_so() -> None:
    with Pair() as pair:
        pair.ours.send(m.Answer(7, ["x" * 1000] * 1000))
        (answer,) = pair.received()
    assert (answer.request, answer.body) == (7, None)
    assert "the answer has 10" in answer.error
    assert str(limits.frame) in answer.error


# -- the receiver ------------------------------------------------------------------------------------------------------

OVERSIZED = [
    (m.Tasks(7, [Task(ID, b"fn", bytes(300_000)), Task(b"2" * 20, b"fn", bytes(300_000))]), 62, ID, 2),
    (m.Tasks(2**50, [Task(ID, b"fn", bytes(600_000))]), 62, ID, 1),
    (m.Results([Result(ID, bytes(200_000))] * 3), 63, ID, 3),
    (m.Results([Result(ID, Failure(bytes(600_000)))]), 63, ID, 1),
    (m.Define(ID[:16], "train", bytes(600_000)), 60, ID[:16], 1),
    (m.Yielded(ID, Failure(bytes(600_000))), 68, ID, 1),
    (m.Fetched(ID, bytes(600_000)), 81, ID, 1),
]


@pytest.mark.parametrize(("message", "tag", "id", "count"), OVERSIZED, ids=lambda it: type(it).__name__)
@pytest.mark.parametrize("kind", [Channel, LastingChannel])
def test_a_frame_that_is_too_large_is_skipped_and_told_of(
    kind: type[Channel], message: m.Message, tag: int, id: bytes, count: int
) -> None:
    with Pair(kind) as pair:
        raised_by_the_limit(pair.ours)
        for each in (m.Borrowed(1), message, m.Borrowed(2), message, m.Borrowed(3)):
            pair.ours.send(each)
        first, refusal, second, again, third = pair.received()
        assert [first, second, third] == [m.Borrowed(1), m.Borrowed(2), m.Borrowed(3)]
        for each in (refusal, again):
            assert (each.tag, each.id, each.count, each.limit) == (tag, id, count, limits.frame)
            assert each.size > limits.frame
        assert len(pair.theirs._partial) < 1000


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_a_skipped_frame_may_come_in_any_pieces(data: st.DataObject) -> None:
    limit = limits.frame
    body = m.encoder.encode(m.Define(b"fn", "f", bytes(limit)))
    small = m.encoder.encode(m.Borrowed(5))
    stream = HEADER.pack(len(body)) + body + HEADER.pack(len(small)) + small
    near = [0, 4, 5, 12, HEAD_BYTES, len(body), len(body) + 4, len(stream)]
    places = st.one_of(st.sampled_from(near), st.integers(0, len(stream)))
    reads = range(0, len(stream), RECEIVE_BYTES)  # no read is longer
    cuts = sorted({*reads, len(stream), *data.draw(st.lists(places, max_size=12))})
    with Pair() as pair:
        messages: list[Any] = []
        for begin, end in itertools.pairwise(cuts):
            messages += pair.theirs.take(stream[begin:end], end - begin)
        refusal, behind = messages
        assert (refusal.tag, refusal.size) == (60, len(body))
        assert behind == m.Borrowed(5)


def test_a_lasting_channel_counts_a_refused_frame_so_that_it_is_not_sent_again() -> None:
    with Pair(LastingChannel) as pair:
        raised_by_the_limit(pair.ours)
        pair.ours.send(m.Define(b"fn", "f", bytes(2 * limits.frame)))
        messages: list[Any] = []
        while not messages:  # and not to its end: the connection breaks in the middle of it
            messages += pair.theirs.receive(SCRATCH)
        assert [message.tag for message in messages] == [60]
        ours, theirs = socket.socketpair()
        pair.ours.attach(ours)
        pair.theirs.attach(theirs)
        pair.ours.receive(SCRATCH)
        pair.ours.send(m.Borrowed(1))
        assert pair.received() == [m.Borrowed(1)]


@given(st.binary(min_size=HEAD_BYTES, max_size=HEAD_BYTES + 50))
@settings(max_examples=300, deadline=None)
def test_noise_is_either_no_message_of_ours_or_something_with_a_tag(noise: bytes) -> None:
    try:
        refusal = read_refusal(memoryview(noise), 1 << 30, 1 << 20)
    except NotOurs:
        return
    assert refusal is not None
    assert type(refusal.tag) is int
    assert isinstance(refusal.id, bytes)


def test_a_large_frame_of_another_protocol_ends_the_channel() -> None:
    with Pair() as pair:
        pair.ours.sock.send(b"GET / HTTP/1.1\r\n")
        with pytest.raises(ChannelClosed, match="bytes was announced"):
            pair.theirs.receive(SCRATCH)


# -- errors ------------------------------------------------------------------------------------------------------------

TEXT_BYTES = 100_000


def text_of(size: int) -> str:
    return os.urandom(size // 2).hex()


def raised(error: BaseException) -> bytes:
    try:
        raise error
    except BaseException as caught:
        return pack_error(caught, function_name="f", pid=1)


@pytest.mark.parametrize("kind", [ValueError, KeyError, exceptions.SkateError, OSError])
def test_the_text_of_an_error_travels_once(kind: type[Exception]) -> None:
    text = text_of(TEXT_BYTES)
    data = raised(kind(text))
    assert TEXT_BYTES < len(data) < TEXT_BYTES + 5000
    error = unpack_error(data)
    assert isinstance(error, kind)
    assert error.args == (text,)
    assert str(error).count(text) == 1


def test_so_does_it_when_the_error_passes_through_another_task() -> None:
    text = text_of(TEXT_BYTES)
    again = raised(unpack_error(raised(ValueError(text))))
    assert len(again) < TEXT_BYTES + 10_000
    error = unpack_error(again)
    assert isinstance(error, ValueError)
    assert error.args == (text,)
    assert len(pickle.dumps(error)) < TEXT_BYTES + 10_000


def test_so_does_it_with_a_cause_of_the_same_text() -> None:
    text = text_of(TEXT_BYTES)
    error = RuntimeError(text)
    error.__cause__ = ValueError(text)
    assert len(raised(error)) < TEXT_BYTES + 10_000


def test_another_spelling_of_the_text_does_not_travel() -> None:
    text = "line\n" * (TEXT_BYTES // 5)
    assert len(raised(ValueError(text))) < 2 * TEXT_BYTES


def test_an_error_that_is_too_large_arrives_without_its_largest_parts() -> None:
    class Broken(ValueError):
        pass

    error = Broken("bad", 3)
    error.data = bytes(limits.error)  # type: ignore[attr-defined]
    error.code = 42  # type: ignore[attr-defined]
    data = raised(error)
    assert len(data) <= limits.error
    arrived = unpack_error(data)
    assert isinstance(arrived, exceptions.TaskError)
    assert isinstance(arrived, ValueError)
    assert type(arrived.cause).__name__ == "Broken"
    assert arrived.args == ("bad", 3)
    assert arrived.code == 42  # type: ignore[attr-defined]
    assert not hasattr(arrived, "data")
    assert "sent without data, 256.0 KiB" in str(arrived)


def test_a_text_that_is_too_large_is_cut() -> None:
    data = raised(ValueError("begin" + "x" * limits.error + "end"))
    assert len(data) <= limits.error
    arrived = unpack_error(data)
    assert isinstance(arrived, ValueError)
    assert "characters in all" in str(arrived)
    assert "begin" in str(arrived)
    assert str(arrived).endswith("end")


def test_one_that_passes_through_stays_small() -> None:
    first = unpack_error(raised(ValueError(bytes(limits.error), "small")))
    again = raised(first)
    assert len(again) <= limits.error
    arrived = unpack_error(again)
    assert isinstance(arrived, ValueError)
    assert arrived.args[1] == "small"
    assert "args[0], 256.0 KiB" in str(arrived)


def test_a_short_error_is_a_plain_pickle() -> None:
    assert raised(ValueError("bad"))[:1] == b"\x80"
    assert errors.LONG_TEXT < errors.CUT_TEXT


def test_the_shares_of_a_message_fit_into_it_together() -> None:
    for frame in (FRAME_BYTES_LEAST, FRAME_BYTES_MAX):
        shares = Limits(frame)
        assert shares.definition + shares.creation + shares.envelope < frame
        assert 2 * shares.inline + shares.envelope < shares.creation * 2
        assert shares.error + shares.envelope < frame
        assert shares.inline <= shares.creation
        assert frame > RECEIVE_BYTES
