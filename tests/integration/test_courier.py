"""Couriers, with real sockets and arenas: bytes arrive, failures are told once, and a closed one touches nothing."""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import random
import select
import signal
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skate._node import courier
from skate._node.courier import HEADER, SCRATCH_BYTES, Inlet, Outlet
from waiting import wait_for

WITHIN_S = 20.0
MIB = 1 << 20
ARENA_BYTES = 32 * MIB
#: More than two sockets hold between them when nobody reads.
TOO_MUCH = 24 * MIB


class Reports:
    """What a courier reported: tags, and None for its end."""

    def __init__(self) -> None:
        self.all: list[int | None] = []

    def __call__(self, tags: list[int] | None) -> None:
        self.all.extend([None] if tags is None else tags)

    def wait(self, *expected: int | None) -> None:
        wait_for(lambda: len(self.all) >= len(expected), WITHIN_S, f"{len(expected)} reports")
        assert self.all == list(expected)


class Arena:
    def __init__(self, size: int = ARENA_BYTES) -> None:
        self.fd = os.memfd_create("skate-arena-of-test", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, size)
        self.map = mmap.mmap(self.fd, size)
        self.view = memoryview(self.map)

    def close(self) -> None:
        self.view.release()
        self.map.close()  # an error if a courier still has a view of it
        os.close(self.fd)


def connect(kind: str) -> tuple[socket.socket, socket.socket]:
    if kind == "unix":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    return ours, theirs


class Yard:
    """Two ends of a connection, and whatever a test starts there; all is ended after the test."""

    def __init__(self, kind: str) -> None:
        self._ends = contextlib.ExitStack()
        self.source, self.target = Arena(), Arena()
        for arena in (self.source, self.target):
            self._ends.callback(arena.close)
        #: Where chunks leave and where they arrive. One that is given to no courier is a peer that the test plays.
        self.near, self.far = connect(kind)
        for sock in (self.near, self.far):
            sock.settimeout(WITHIN_S)
            self._ends.callback(sock.close)
        self.sent, self.received = Reports(), Reports()

    def outlet(self) -> Outlet:
        outlet = Outlet(self.near, self.source.fd, self.sent)
        self._ends.callback(outlet.close)
        return outlet

    def inlet(self, asked_before: int = 0) -> Inlet:
        inlet = Inlet(self.far, self.target.view, self.received, asked_before)
        self._ends.callback(inlet.close)
        return inlet

    def close(self) -> None:
        self._ends.close()


@pytest.fixture(params=["unix", "tcp"])
def yard(request: pytest.FixtureRequest) -> Iterator[Yard]:
    made = Yard(request.param)
    yield made
    made.close()


def reset(sock: socket.socket) -> None:
    """End a connection without a farewell, where there is one."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def was_ended(sock: socket.socket) -> bool:
    """The other end has hung up."""
    try:
        return sock.recv(1) == b""
    except (ConnectionResetError, BrokenPipeError):
        return True


def begin_chunk(yard: Yard, inlet: Inlet, tag: int = 1) -> bytes:
    """Half of a chunk of 1 MiB, for the beginning of the arena, is there; return the other half."""
    data = random.Random(tag).randbytes(MIB)
    inlet.expect(tag, 0, MIB)
    yard.near.sendall(HEADER.pack(tag, MIB) + data[: MIB // 2])
    wait_for(lambda: yard.target.view[: MIB // 2] == data[: MIB // 2], WITHIN_S, "half of the chunk")
    return data[MIB // 2 :]


# --- Bytes ------------------------------------------------------------------------------------------------------------


def test_every_byte_arrives_where_it_belongs_and_nothing_else_changes(yard: Yard) -> None:
    """Many chunks of all sizes, from anywhere to anywhere, expected in another order than sent."""
    choose = random.Random(5)
    yard.source.view[:] = choose.randbytes(ARENA_BYTES)
    sizes = [0, 1, 1, 2, 15, 16, 17, 4095, 4096, 65_537, 3 * MIB + 1, 4 * MIB, 5 * MIB - 7]
    sizes += [choose.randrange(1, 100_000) for _ in range(60)]
    choose.shuffle(sizes)
    outlet, inlet = yard.outlet(), yard.inlet()
    expected = bytearray(ARENA_BYTES)
    chunks: list[tuple[int, int, int, int]] = []
    end = 0
    for size in sizes:
        start, offset = choose.randrange(ARENA_BYTES - size), end + choose.randrange(1000)
        end = offset + size
        chunks.append((choose.randrange(1 << 64), start, offset, size))
        expected[offset:end] = yard.source.view[start : start + size]
    for tag, _, offset, size in chunks:
        inlet.expect(tag, offset, size)
    choose.shuffle(chunks)
    for tag, start, _, size in chunks:
        outlet.send(tag, start, size)
    tags = [chunk[0] for chunk in chunks]
    yard.received.wait(*tags)
    yard.sent.wait(*tags)
    assert yard.target.view == expected


def test_the_peer_gets_what_the_bytes_were_when_they_were_reported_as_sent(yard: Yard) -> None:
    """The report ends the pin of the object: its place may hold another one before the peer has read any of it."""
    before = random.Random(6).randbytes(64 << 10)
    yard.source.view[: len(before)] = before
    outlet = yard.outlet()
    outlet.send(1, 0, len(before))
    yard.sent.wait(1)
    yard.source.view[: len(before)] = bytes(len(before))
    assert yard.far.recv(HEADER.size, socket.MSG_WAITALL) == HEADER.pack(1, len(before))
    assert yard.far.recv(len(before), socket.MSG_WAITALL) == before


def test_several_connections_fill_one_arena() -> None:
    with contextlib.ExitStack() as ends:
        arena = Arena()
        ends.callback(arena.close)
        reports = [Reports() for _ in range(3)]
        for number, received in enumerate(reports):
            yard = Yard("tcp")
            ends.callback(yard.close)
            yard.source.view[:] = bytes([number + 1]) * ARENA_BYTES
            outlet, inlet = yard.outlet(), Inlet(yard.far, arena.view, received)
            ends.callback(inlet.close)
            for tag in range(8):
                place = (tag * len(reports) + number) * MIB
                inlet.expect(tag, place, MIB)
                outlet.send(tag, place, MIB)
        for received in reports:
            received.wait(*range(8))
        expected = b"".join(bytes([number]) * MIB for number in (1, 2, 3)) * 8
        assert arena.view[: 24 * MIB] == expected


def test_signals_do_not_tear_a_chunk(yard: Yard) -> None:
    """They cut system calls short in the middle of a chunk, at both ends."""
    size = 3 * TOO_MUCH // 4
    yard.source.view[:size] = random.Random(8).randbytes(size)
    outlet, inlet = yard.outlet(), yard.inlet()
    came: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: came.append(number))
    try:
        for tag in range(3):
            inlet.expect(tag, 0, size)
            outlet.send(tag, 0, size)
            while tag not in yard.received.all:
                assert None not in yard.received.all + yard.sent.all
                for either in (outlet, inlet):
                    assert either._thread.ident is not None
                    signal.pthread_kill(either._thread.ident, signal.SIGUSR2)
            assert yard.target.view[:size] == yard.source.view[:size]
            yard.target.view[:size] = bytes(size)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert came


# --- The end of a connection ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hang_up", [socket.socket.close, reset])
@pytest.mark.parametrize("after", ["nothing", "half a header", "half a chunk", "a chunk"])
def test_the_end_of_the_peer_is_told_once_by_an_inlet(
    yard: Yard, hang_up: Callable[[socket.socket], None], after: str
) -> None:
    inlet = yard.inlet()
    inlet.expect(7, 0, 4)
    data = HEADER.pack(7, 4) + b"data"
    part = {"nothing": 0, "half a header": 8, "half a chunk": 18, "a chunk": 20}[after]
    yard.near.sendall(data[:part])
    reports: list[int | None] = [7] if after == "a chunk" else []
    yard.received.wait(*reports)
    hang_up(yard.near)
    yard.received.wait(*reports, None)
    assert yard.far.fileno() == -1, "it has closed its own end"
    inlet.close()
    assert yard.received.all == [*reports, None]


@pytest.mark.parametrize("hang_up", [socket.socket.close, reset])
def test_the_end_of_the_peer_is_told_once_by_an_idle_outlet(
    yard: Yard, hang_up: Callable[[socket.socket], None]
) -> None:
    outlet = yard.outlet()
    hang_up(yard.far)
    yard.sent.wait(None)
    assert yard.near.fileno() == -1
    outlet.send(1, 0, 1)
    outlet.close()
    assert yard.sent.all == [None]


@pytest.mark.parametrize("hang_up", [socket.socket.close, reset])
def test_the_end_of_the_peer_is_told_once_by_an_outlet_that_waits_for_it(
    yard: Yard, hang_up: Callable[[socket.socket], None]
) -> None:
    outlet = yard.outlet()
    for tag in range(3):
        outlet.send(tag, 0, TOO_MUCH)
    assert yard.far.recv(1)
    hang_up(yard.far)
    yard.sent.wait(None)
    outlet.close()
    assert yard.sent.all == [None]


def test_a_peer_that_speaks_to_an_outlet_is_hung_up_on(yard: Yard) -> None:
    yard.outlet()
    yard.far.sendall(b"hello")
    yard.sent.wait(None)
    assert was_ended(yard.far)


@pytest.mark.parametrize(
    ("tag", "size", "says"),
    [(8, 100, "nobody had asked"), (7, 99, "100 bytes"), (7, 101, "100 bytes"), (7, (1 << 64) - 1, "100 bytes")],
)
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_chunk_that_is_not_as_expected_ends_the_connection(
    yard: Yard, caplog: pytest.LogCaptureFixture, tag: int, size: int, says: str, forgotten: bool
) -> None:
    inlet = yard.inlet()
    inlet.expect(7, 0, 100)
    if forgotten:
        assert inlet.forget(7)
    with caplog.at_level(logging.WARNING, "skate"):
        yard.near.sendall(HEADER.pack(tag, size) + b"x" * 200)
        yard.received.wait(None)
    assert says in caplog.text
    assert was_ended(yard.near)
    inlet.close()
    assert yard.received.all == [None]
    assert yard.target.view[:200] == bytes(200)


def test_a_chunk_that_comes_twice_ends_the_connection(yard: Yard) -> None:
    inlet = yard.inlet()
    inlet.expect(7, 0, 3)
    yard.near.sendall(HEADER.pack(7, 3) + b"one" + HEADER.pack(7, 3) + b"two")
    yard.received.wait(7, None)
    assert yard.target.view[:3] == b"one"


def test_a_chunk_that_was_asked_for_over_a_former_connection_is_thrown_away(
    yard: Yard, caplog: pytest.LogCaptureFixture
) -> None:
    inlet = yard.inlet(asked_before=9)
    inlet.expect(8, 0, 3)  # it waited for this connection
    inlet.expect(9, 3, 3)
    with caplog.at_level(logging.WARNING, "skate"):
        for tag, data in ((7, b"x" * 100_000), (8, b"one"), (9, b"two")):
            yard.near.sendall(HEADER.pack(tag, len(data)) + data)
        yard.received.wait(8, 9)
    assert yard.target.view[:6] == b"onetwo"
    assert not caplog.text


# --- Forgetting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, SCRATCH_BYTES, 3 * SCRATCH_BYTES + 1])
def test_a_chunk_forgotten_before_it_comes_is_thrown_away(yard: Yard, size: int) -> None:
    yard.source.view[:] = b"x" * ARENA_BYTES
    outlet, inlet = yard.outlet(), yard.inlet()
    inlet.expect(1, 0, size)
    inlet.expect(2, 10 * MIB, 5)
    assert inlet.forget(1)
    outlet.send(1, 0, size)
    outlet.send(2, 0, 5)
    yard.received.wait(2)
    assert yard.target.view[: 10 * MIB] == bytes(10 * MIB)
    assert yard.target.view[10 * MIB : 10 * MIB + 6] == b"xxxxx\0"


def test_a_chunk_that_has_begun_cannot_be_forgotten_and_is_reported(yard: Yard) -> None:
    inlet = yard.inlet()
    rest = begin_chunk(yard, inlet)
    assert not inlet.forget(1)
    assert yard.received.all == []
    yard.near.sendall(rest)
    yard.received.wait(1)
    assert yard.target.view[MIB // 2 : MIB] == rest
    assert not inlet.forget(1), "it was reported, and stays so"


def test_all_places_are_free_after_the_end(yard: Yard) -> None:
    inlet = yard.inlet()
    begin_chunk(yard, inlet)
    inlet.expect(2, MIB, 5)
    yard.near.close()
    yard.received.wait(None)
    assert inlet.forget(1)
    assert inlet.forget(2)


def test_all_places_are_free_after_close(yard: Yard) -> None:
    inlet = yard.inlet()
    begin_chunk(yard, inlet)
    inlet.close()
    assert inlet.forget(1)
    assert yard.received.all == []


def test_forgotten_chunks_are_not_remembered_for_ever(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes all the same, long after, is unknown: the connection ends, and its place is not touched."""
    monkeypatch.setattr(courier, "FORGOTTEN_MAX", 2)
    inlet = yard.inlet()
    for tag in (1, 2, 3):
        inlet.expect(tag, 0, 3)
        assert inlet.forget(tag)
    inlet.expect(4, 10, 3)
    yard.near.sendall(b"".join(HEADER.pack(tag, 3) + b"abc" for tag in (3, 2, 4)))
    yard.received.wait(4)
    yard.near.sendall(HEADER.pack(1, 3) + b"abc")
    yard.received.wait(4, None)
    assert yard.target.view[:10] == bytes(10)


# --- Closing ----------------------------------------------------------------------------------------------------------


def test_an_outlet_whose_peer_does_not_read_can_be_closed(yard: Yard) -> None:
    outlet = yard.outlet()
    for tag in range(3):
        outlet.send(tag, 0, TOO_MUCH)
    select.select([yard.far], [], [], WITHIN_S)
    outlet.close()
    outlet.close()
    assert yard.near.fileno() == -1
    outlet.send(4, 0, 1)
    assert yard.sent.all == []


def test_an_idle_courier_can_be_closed(yard: Yard) -> None:
    outlet, inlet = yard.outlet(), yard.inlet()
    outlet.close()
    yard.received.wait(None)
    inlet.close()
    outlet.close()
    inlet.close()
    assert yard.sent.all == []
    assert yard.received.all == [None]


def test_nothing_is_written_after_close(yard: Yard) -> None:
    """In the middle of a chunk, while the peer goes on sending it and others."""
    inlet = yard.inlet()
    rest = begin_chunk(yard, inlet)
    inlet.expect(2, MIB, MIB)
    inlet.close()
    assert yard.far.fileno() == -1
    before = bytes(yard.target.view[: 2 * MIB])
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        for _ in range(10):
            yard.near.sendall(rest + HEADER.pack(2, MIB) + b"x" * MIB)
    assert was_ended(yard.near)
    assert yard.target.view[: 2 * MIB] == before
    assert yard.received.all == []


# --- What the loop must not ask for -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("offset", "size"), [(ARENA_BYTES, 1), (ARENA_BYTES - 9, 10), (-1, 5), (5, -1)])
def test_a_place_outside_the_arena_is_refused(yard: Yard, offset: int, size: int) -> None:
    with pytest.raises(ValueError, match="do not lie in an arena"):
        yard.outlet().send(1, offset, size)
    with pytest.raises(ValueError, match="do not lie in an arena"):
        yard.inlet().expect(1, offset, size)


def test_a_tag_is_not_used_twice_at_a_time(yard: Yard) -> None:
    inlet = yard.inlet()
    inlet.expect(1, 0, 5)
    with pytest.raises(ValueError, match="used once"):
        inlet.expect(1, 10, 5)
    inlet.forget(1)
    with pytest.raises(ValueError, match="used once"):
        inlet.expect(1, 10, 5)


# --- Any order of events ----------------------------------------------------------------------------------------------

SLOT_BYTES = 100_000

steps = st.lists(
    st.one_of(
        st.tuples(st.just("expect"), st.integers(0, SLOT_BYTES)),
        st.tuples(st.sampled_from(["send", "forget"]), st.integers(0, 1000)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
@given(history=steps)
@settings(max_examples=60, deadline=None)
def test_in_any_history_a_chunk_arrives_or_its_place_is_not_touched(kind: str, history: list[Any]) -> None:
    """Each chunk has a slot of its own; those that were not sent by the end are sent then, forgotten or not."""
    yard = Yard(kind)
    with contextlib.closing(yard):
        yard.source.view[: 2 * SLOT_BYTES] = random.Random(1).randbytes(2 * SLOT_BYTES)
        outlet, inlet = yard.outlet(), yard.inlet()
        sizes: list[int] = []
        unsent: list[int] = []
        free: set[int] = set()
        kept: set[int] = set()
        for what, number in history:
            if what == "expect":
                inlet.expect(len(sizes), len(sizes) * SLOT_BYTES, number)
                unsent.append(len(sizes))
                sizes.append(number)
            elif what == "send" and unsent:
                tag = unsent.pop(number % len(unsent))
                outlet.send(tag, tag, sizes[tag])
            elif what == "forget" and sizes and (tag := number % len(sizes)) not in free | kept:
                (free if inlet.forget(tag) else kept).add(tag)
        for tag in unsent:
            outlet.send(tag, tag, sizes[tag])
        last = len(sizes)
        inlet.expect(last, last * SLOT_BYTES, 1)
        outlet.send(last, 0, 1)
        wait_for(lambda: last in yard.received.all, WITHIN_S, "the last chunk")
        assert sorted(map(str, yard.received.all)) == sorted(str(tag) for tag in range(last + 1) if tag not in free)
        for tag, size in enumerate(sizes):
            slot = yard.target.view[tag * SLOT_BYTES : (tag + 1) * SLOT_BYTES]
            size = 0 if tag in free else size
            assert slot == bytes(yard.source.view[tag : tag + size]) + bytes(SLOT_BYTES - size)
            slot.release()
