"""Channels and links that outlast their connections, over real sockets that are broken at bad moments."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from skate._wire import cluster
from skate._wire.channel import RECEIVE_BYTES, Channel, ChannelClosed
from skate._wire.gate import Gate
from skate._wire.handshake import Versions
from skate._wire.lasting import LastingChannel
from skate._wire.link import Link
from skate._wire.loop import EventLoop
from skate._wire.messages import Confirm, PeerConnected, Resume

TOKEN = b"the token of this cluster"
WITHIN_S = 20.0


def message(number: int, size: int = 0) -> PeerConnected:
    return PeerConnected(b"x" * size, number)


class Reader:
    """An end of a channel, and the numbers that came over it."""

    def __init__(self, sock: socket.socket) -> None:
        self.channel = LastingChannel(sock)
        self.channel.greet()
        self.buffer = bytearray(RECEIVE_BYTES)
        self.heard: list[int] = []

    def read(self) -> bool:
        """Whether the connection still stands."""
        try:
            self.channel.flush()
            self.heard += [message.pid for message in self.channel.receive(self.buffer)]
        except ChannelClosed:
            self.channel.close()
        return self.channel.fileno() >= 0


def test_nothing_is_lost_or_heard_twice_when_connections_break_at_random() -> None:
    chance = random.Random(1)
    a, b = (Reader(sock) for sock in socket.socketpair())
    said = 0
    for _ in range(200):
        for _ in range(chance.randrange(20)):
            size = chance.choice([0, 10, 1000, 100_000])
            a.channel.send(message(said, size))
            b.channel.send(message(said, size))
            said += 1
        for _ in range(chance.randrange(6)):
            chance.choice([a, b]).read()
        if chance.random() < 0.3:
            first, second = chance.sample([a, b], 2)
            first.channel.close()
            if chance.random() < 0.5:
                while second.read():  # it notices
                    pass
            for end, sock in zip([a, b], socket.socketpair()):
                end.channel.attach(sock)
    deadline = time.monotonic() + WITHIN_S
    while (len(a.heard) < said or len(b.heard) < said) and time.monotonic() < deadline:
        a.read()
        b.read()
    assert a.heard == b.heard == list(range(said))
    a.channel.end()
    b.channel.end()


@pytest.mark.parametrize("breaks", [False, True])
def test_what_was_said_without_a_connection_is_heard_at_once_or_before_the_end(breaks: bool) -> None:
    """Somebody may have said something, and then that it is of no use any more: nobody acts on the first alone."""
    a, b = (Reader(sock) for sock in socket.socketpair())
    a.channel.send(message(0))
    while not b.heard:
        a.read()
        b.read()
    a.channel.close()
    b.channel.close()
    for number in range(1, 6):
        a.channel.send(message(number, 300_000 if breaks else 0))  # more than a socket takes at a time
    for end, sock in zip((a, b), socket.socketpair(), strict=True):
        end.channel.attach(sock)
    a.channel.send(message(6))
    b.buffer = bytearray(4096 if breaks else 3)  # so that they come in pieces
    told = [b.heard.copy()]
    while b.heard[-1] < 5 and b.read():
        a.read()
        told.append(b.heard.copy())
        if breaks and b.channel._held:
            a.channel.close()
    assert all(heard in ([0], b.heard) for heard in told)
    if breaks:
        assert 1 < len(b.heard) < 6, "what has come is heard before the end is"
    else:
        assert b.heard[:6] == [0, 1, 2, 3, 4, 5]
    a.channel.end()
    b.channel.end()


def test_what_another_end_says_is_not_held_back_for_what_the_first_one_owed() -> None:
    """A control service dies while it says again what was lost; the next one says only that it knows nothing of it."""
    near, far = socket.socketpair()
    channel, buffer = LastingChannel(near), bytearray(RECEIVE_BYTES)
    channel.greet()
    first = Channel(far)
    first.send(Resume(b"", 0, 5))
    first.send(message(1))
    assert channel.receive(buffer) == [], "four more were announced"
    first.close()
    near, far = socket.socketpair()
    channel.attach(near)
    second = Channel(far)
    second.send(message(2))
    assert [heard.pid for heard in channel.receive(buffer)] == [1, 2]
    second.close()
    channel.end()


def test_one_end_may_begin_anew_while_the_other_has_spoken_already() -> None:
    """The connection was lost before this end got it: it knows nothing of what the other has said over it."""
    near, far = socket.socketpair()
    early = Reader(near)
    early.channel.send(message(0))
    early.channel.send(message(1))
    far.close()
    near, far = socket.socketpair()
    early.channel.attach(near)
    late = Reader(far)
    late.channel.send(message(7))
    deadline = time.monotonic() + WITHIN_S
    while (late.heard != [0, 1] or early.heard != [7]) and time.monotonic() < deadline:
        early.read()
        late.read()
    assert late.heard == [0, 1]
    assert early.heard == [7]
    early.channel.end()
    late.channel.end()


def test_what_is_sent_by_several_threads_meanwhile_arrives_in_the_order_of_each() -> None:
    a, b = (Reader(sock) for sock in socket.socketpair())
    each, threads = 500, 4

    def say(thread: int) -> None:
        for number in range(each):
            a.channel.send(message(thread * each + number))

    speakers = [threading.Thread(target=say, args=(thread,)) for thread in range(threads)]
    for speaker in speakers:
        speaker.start()
    deadline = time.monotonic() + WITHIN_S
    breaks = 0
    while len(b.heard) < each * threads and time.monotonic() < deadline:
        b.read()
        a.read()
        if breaks < 20 and len(b.heard) >= breaks * 90:
            breaks += 1
            for end, sock in zip([a, b], socket.socketpair()):
                end.channel.attach(sock)
    for speaker in speakers:
        speaker.join()
    for thread in range(threads):
        own = range(thread * each, (thread + 1) * each)
        assert [number for number in b.heard if number in own] == list(own)
    assert len(b.heard) == each * threads
    a.channel.end()
    b.channel.end()


def test_an_ended_channel_keeps_nothing() -> None:
    near, far = socket.socketpair()
    with far:
        channel = LastingChannel(near)
        channel.end()
        channel.send(message(1))
        assert channel._journal.unconfirmed() == []


# -- links -------------------------------------------------------------------------------------------------------------


class Host:
    """Answers at a gate as a node does: links go on where they were."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.heard: list[int] = []
        self.links: dict[bytes, Link] = {}
        self.visitors: list[Link] = []
        self.broken = 0
        self._open_gate(0)

    def _open_gate(self, port: int) -> None:
        self.gate = Gate(self.loop, TOKEN, "127.0.0.1", port, self._on_visitor)

    def _on_visitor(self, sock: socket.socket, theirs: Versions, rest: bytes) -> None:
        self.visitors.append(Link(self.loop, self._on_message, lambda link, why: None))
        self.visitors[-1].adopt(sock, rest)

    def _on_message(self, link: Link, message: Any) -> None:
        match message:
            case Resume(session):
                if session in self.links:
                    self.links[session].go_on_with(link, message)
                else:
                    link.begin_anew()
            case cluster.Link(_, session):
                link.last(session)
                link.on_broken = self._on_broken
                self.links[session] = link
            case cluster.ChannelOpened(number):
                self.heard.append(number)

    def _on_broken(self, link: Link, why: str) -> None:
        self.broken += 1

    def close_gate(self) -> None:
        self.gate.close()

    def open_gate(self) -> None:
        self._open_gate(self.gate.address[1])

    def run_until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            self.loop.run_once(min(deadline, time.monotonic() + 0.5))
            assert time.monotonic() < deadline

    def close(self) -> None:
        for link in self.visitors:
            link.close()
        self.gate.close()
        self.loop.close()


class Caller:
    def __init__(self, host: Host) -> None:
        self.heard: list[int] = []
        self.ends: list[str] = []
        self.said = 0
        self.link = Link(host.loop, self._on_message, lambda link, why: self.ends.append(why))
        self.link.last()
        self.link.send(cluster.Link(b"node", self.link.session))
        self.link.connect("127.0.0.1", host.gate.address[1], TOKEN)

    def _on_message(self, link: Link, message: Any) -> None:
        self.heard.append(message.pid)

    def say(self, count: int = 1) -> None:
        for _ in range(count):
            self.link.send(cluster.ChannelOpened(self.said))
            self.said += 1

    def break_connection(self) -> None:
        channel = self.link._channel
        assert channel is not None
        if channel.fileno() >= 0:
            channel.sock.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.close()


def test_a_lasting_link_says_again_what_was_lost(host: Host) -> None:
    caller = Caller(host)
    for _ in range(10):
        caller.say(30)
        host.run_until(lambda: host.heard)
        for link in host.links.values():
            for number in range(30):
                link.send(cluster.ChannelOpened(number))
        caller.break_connection()
        caller.say(3)
        host.run_until(lambda: len(host.heard) == caller.said)
    host.run_until(lambda: len(caller.heard) == 300)
    assert host.heard == list(range(caller.said))
    assert caller.heard == list(range(30)) * 10
    assert len(host.links) == 1
    assert host.broken >= 1
    assert caller.ends == []
    caller.link.close()


def test_a_lasting_link_knocks_until_it_is_let_in(host: Host) -> None:
    host.close_gate()
    caller = Caller(host)
    caller.say(5)
    knocked = time.monotonic() + 0.5
    host.run_until(lambda: time.monotonic() > knocked)
    assert host.heard == []
    host.open_gate()
    host.run_until(lambda: len(host.heard) == 5)
    caller.link.close()


def test_a_link_whose_first_words_were_lost_begins_anew(host: Host) -> None:
    """The connection broke when it was made: this end counts on a link that the other has never heard of."""
    caller = Caller(host)
    host.run_until(lambda: caller.link.is_connected)
    session = caller.link.session
    host.links.pop(session, None)  # as if its Link had not come
    host.heard.clear()
    caller.break_connection()
    host.run_until(lambda: session in host.links)
    caller.say(3)
    host.run_until(lambda: host.heard == [0, 1, 2])
    assert caller.ends == []
    caller.link.close()


def test_a_link_that_the_other_end_has_forgotten_ends_and_says_so_once(host: Host) -> None:
    caller = Caller(host)
    caller.say(200)  # much of it is confirmed, and not kept
    host.run_until(lambda: len(host.heard) == 200)
    channel = caller.link._channel
    assert channel is not None
    host.run_until(lambda: channel._journal.confirmed)
    host.links.pop(caller.link.session).close()
    host.run_until(lambda: caller.ends)
    assert len(caller.ends) == 1
    assert "the other end has 0 messages" in caller.ends[0]
    assert caller.link.closed


def test_confirmations_reach_nobody_but_the_channel(host: Host) -> None:
    caller = Caller(host)
    caller.say(1000)
    host.run_until(lambda: len(host.heard) == 1000)
    channel = caller.link._channel
    assert channel is not None
    host.run_until(lambda: channel._journal.confirmed > 900)
    assert not any(isinstance(heard, Confirm) for heard in caller.heard)
    caller.link.close()
