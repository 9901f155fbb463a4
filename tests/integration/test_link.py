"""Links between daemons over real TCP: in order, told once when they end, and bytes of others left to others.

Both ends live on one event loop, in the thread of the test: it runs until what the test waits for has come.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from skate._message_limits import FRAME_BYTES_MAX
from skate._wire import cluster
from skate._wire import gate as gate_module
from skate._wire import link as link_module
from skate._wire.channel import HEADER, RECEIVE_BYTES
from skate._wire.complaints import Complaints
from skate._wire.gate import Dial, Gate
from skate._wire.guard import ProtocolError
from skate._wire.handshake import HELLO_BYTES, Handshake, Versions
from skate._wire.link import Link
from skate._wire.loop import EventLoop
from skate._wire.messages import Borrowed, Message, Resume, encoder

TOKEN = b"the token of this cluster"
HOST = "127.0.0.1"
#: Far more than anything here takes, even on a busy machine.
WITHIN_S = 20.0
RESET = b"\1\0\0\0\0\0\0\0"


class End:
    """One end of a connection, which notes what happens to it."""

    def __init__(self, loop: EventLoop, *, one_by_one: bool = False) -> None:
        self.messages: list[Any] = []
        self.ends: list[str] = []
        #: What to do with a message, once it was noted.
        self.act: Callable[[Any], None] = lambda message: None
        self.link = Link(loop, self.on_message, self.on_closed, one_by_one=one_by_one)

    def on_message(self, link: Link, message: Any) -> None:
        assert link is self.link
        self.messages.append(message)
        self.act(message)

    def on_closed(self, link: Link, why: str) -> None:
        assert link is self.link
        assert link.closed
        self.ends.append(why)


class Town:
    """A loop, a gate, and an end for each who came in."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.gate = Gate(self.loop, TOKEN, HOST, 0, self._on_visitor)
        self.port = self.gate.address[1]
        self.visitors: list[End] = []
        #: What visitors do with messages.
        self.act: Callable[[End, Any], None] = lambda end, message: None
        self._ends: list[End] = []
        self._socks: list[socket.socket] = []

    def _on_visitor(self, sock: socket.socket, theirs: Versions, rest: bytes) -> None:
        visitor = self.end()
        visitor.act = lambda message: self.act(visitor, message)
        self.visitors.append(visitor)
        visitor.link.adopt(sock, rest)

    def end(self, *, one_by_one: bool = False) -> End:
        """Not connected yet."""
        made = End(self.loop, one_by_one=one_by_one)
        self._ends.append(made)
        return made

    def caller(self, *, one_by_one: bool = False, token: bytes = TOKEN) -> End:
        """On its way to the gate."""
        made = self.end(one_by_one=one_by_one)
        made.link.connect(HOST, self.port, token)
        return made

    def pair(self, *, one_by_one: bool = False) -> tuple[End, End]:
        """A caller and its visitor, connected."""
        caller = self.caller(one_by_one=one_by_one)
        caller.link.send(cluster.Ask("who is there?"))
        self.run_until(lambda: self.visitors and self.visitors[-1].messages, "the visitor")
        self.visitors[-1].messages.clear()
        return caller, self.visitors[-1]

    def stranger(self) -> tuple[socket.socket, End]:
        """A bare socket that was let in, and the end that it talks to."""
        done: list[socket.socket | None] = []
        known = len(self.visitors)
        Dial(self.loop, HOST, self.port, TOKEN, lambda sock, why: done.append(sock))
        self.run_until(lambda: done and len(self.visitors) > known, "the stranger to be let in")
        sock = done[0]
        assert sock is not None
        self._socks.append(sock)
        return sock, self.visitors[-1]

    def keep(self, sock: socket.socket) -> socket.socket:
        """To be closed when the test is over."""
        self._socks.append(sock)
        return sock

    def run_until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert time.monotonic() < deadline, f"waited {WITHIN_S:g} s for {what}"
            self.loop.run_once(deadline)

    def settle(self) -> None:
        """Act on all that has come. For what must not happen: nothing waits for anything here."""
        for _ in range(10):
            self.loop.run_once(time.monotonic())

    def close(self) -> None:
        for end in self._ends:
            end.link.close()
        for sock in self._socks:
            sock.close()
        self.gate.close()
        self.loop.close()


@pytest.fixture
def town() -> Iterator[Town]:
    made = Town()
    yield made
    made.close()


def frame(message: Message) -> bytes:
    payload = encoder.encode(message)
    return HEADER.pack(len(payload)) + payload


def asks(numbers: range) -> list[cluster.Ask]:
    return [cluster.Ask(str(number)) for number in numbers]


def receive(town: Town, sock: socket.socket, size: int) -> bytes:
    """So many bytes, while the loop runs."""
    sock.setblocking(False)
    data = bytearray()

    def all_has_come() -> bool:
        while len(data) < size:
            try:
                more = sock.recv(size - len(data))
            except BlockingIOError:
                return False
            assert more, f"it hung up after {bytes(data)!r}"
            data.extend(more)
        return True

    town.loop.watch(sock.fileno(), lambda events: None)  # so that the loop wakes up
    town.run_until(all_has_come, f"{size} bytes")
    town.loop.unwatch(sock.fileno())
    return bytes(data)


def read_to_end(sock: socket.socket) -> bytes:
    """What has come and still comes, until the other end closes, which it has done or is about to do."""
    sock.settimeout(WITHIN_S)
    data = b""
    try:
        while more := sock.recv(1 << 16):
            data += more
    except ConnectionResetError:
        pass  # it hung up before it had read all
    return data


# -- messages ----------------------------------------------------------------------------------------------------------


def test_what_is_sent_before_the_connection_is_there_arrives_in_order_and_first(town: Town) -> None:
    caller = town.end()
    sent = asks(range(300))
    for message in sent[:100]:
        caller.link.send(message)
    caller.link.connect(HOST, town.port, TOKEN)
    for message in sent[100:200]:
        caller.link.send(message)
    town.run_until(lambda: town.visitors, "the visitor")
    for message in sent[200:]:
        caller.link.send(message)
    town.run_until(lambda: len(town.visitors[0].messages) >= len(sent), "the messages")
    assert town.visitors[0].messages == sent
    assert not caller.ends


def test_both_ends_talk(town: Town) -> None:
    town.act = lambda visitor, message: visitor.link.send(cluster.Reply(message.what))
    caller = town.caller()
    for message in asks(range(50)):
        caller.link.send(message)
    town.run_until(lambda: len(caller.messages) >= 50, "the replies")
    assert caller.messages == [cluster.Reply(str(number)) for number in range(50)]


def test_large_frames_go_both_ways_at_once(town: Town) -> None:
    """More than the sockets take, so both ends keep some back and send it when they can."""
    caller, visitor = town.pair()
    large = [cluster.Reply(os.urandom(1000) * 1000 * size) for size in (1, 8, 3)]
    for message in large:
        caller.link.send(message)
        visitor.link.send(message)
    assert not caller.link.flush()
    town.run_until(lambda: len(caller.messages) == len(visitor.messages) == len(large), "the frames")
    assert caller.messages == visitor.messages == large
    assert caller.link.flush()
    assert visitor.link.flush()


def test_a_large_frame_may_wait_for_the_connection(town: Town) -> None:
    caller = town.caller()
    sent = [cluster.Reply(b"x" * (8 << 20)), cluster.Ask("and this behind it")]
    for message in sent:
        caller.link.send(message)
    town.run_until(lambda: town.visitors and len(town.visitors[0].messages) >= 2, "the messages")
    assert town.visitors[0].messages == sent


def test_connections_do_not_mix(town: Town) -> None:
    callers = [town.caller() for _ in range(20)]
    for number, caller in enumerate(callers):
        for message in asks(range(100 * number, 100 * number + 100)):
            caller.link.send(message)
    town.run_until(lambda: sum(len(visitor.messages) for visitor in town.visitors) >= 2000, "the messages")
    for visitor in town.visitors:
        first = int(visitor.messages[0].what)
        assert visitor.messages == asks(range(first, first + 100))


def test_what_was_read_with_the_handshake_comes_first(town: Town) -> None:
    """Whole messages, and the beginning of one whose end is still to come."""
    sock, visitor = town.stranger()
    stream = b"".join(map(frame, asks(range(3))))
    adopted = town.end()
    adopted.link.adopt(visitor.link.hand_over(), stream[:-5])
    assert adopted.messages == asks(range(2))
    sock.sendall(stream[-5:])
    town.run_until(lambda: len(adopted.messages) == 3, "the third message")
    assert adopted.messages == asks(range(3))


def test_the_first_frames_may_come_with_the_proof(town: Town) -> None:
    sock = town.keep(socket.create_connection((HOST, town.port), timeout=WITHIN_S))
    handshake = Handshake(TOKEN, listens=False)
    answer = handshake.receive(receive(town, sock, HELLO_BYTES))
    sock.sendall(answer + b"".join(map(frame, asks(range(5)))))
    town.run_until(lambda: town.visitors and len(town.visitors[0].messages) >= 5, "the messages")
    assert town.visitors[0].messages == asks(range(5))


def pending(town: Town) -> int:
    """Moments that the loop is to act at."""
    return sum(timer.action is not None for _, _, timer in town.loop._timers)


# -- connections that are not made -------------------------------------------------------------------------------------


def test_another_token_is_told_once_and_with_the_likely_reason(town: Town) -> None:
    caller = town.caller(token=b"another token")
    caller.link.send(cluster.Ask("never heard"))
    town.run_until(lambda: caller.ends, "the refusal")
    town.settle()
    (why,) = caller.ends
    assert f"{HOST}:{town.port}" in why
    assert "token" in why
    assert not town.visitors


def test_where_nobody_listens_is_told_once(town: Town) -> None:
    with socket.socket() as deaf:
        deaf.bind((HOST, 0))
        caller = town.end()
        caller.link.connect(HOST, deaf.getsockname()[1], TOKEN)
        assert not caller.ends, "not before connect has returned"
        town.run_until(lambda: caller.ends, "the refusal")
    town.settle()
    (why,) = caller.ends
    assert "refused" in why


def test_an_address_that_cannot_be_reached_is_told_later_and_once(town: Town) -> None:
    caller = town.end()
    caller.link.connect("255.255.255.255", 9, TOKEN)
    assert not caller.ends, "not before connect has returned"
    town.run_until(lambda: caller.ends, "the refusal")
    town.settle()
    assert len(caller.ends) == 1


def test_a_name_that_nobody_knows_is_told_once(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too long for a question to a name server: nobody is asked."""
    monkeypatch.setattr(gate_module, "HANDSHAKE_S", 0.05)
    caller = town.end()
    raised: list[OSError] = []
    try:
        caller.link.connect("x" * 300, 9, TOKEN)
    except OSError as error:
        raised.append(error)
    town.run_until(lambda: caller.ends, "the refusal")
    assert not raised
    assert len(caller.ends) == 1


def test_one_that_accepts_and_says_nothing_is_not_waited_for(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "HANDSHAKE_S", 0.05)
    with socket.create_server((HOST, 0)) as server:
        caller = town.end()
        caller.link.connect(HOST, server.getsockname()[1], TOKEN)
        caller.link.send(cluster.Ask("never heard"))
        town.run_until(lambda: caller.ends, "the end of patience")
    (why,) = caller.ends
    assert "no answer came in time" in why


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak Skate's protocol"),
        (b"", "closed the connection"),
        (Handshake(TOKEN, listens=True).begin()[:20], "closed the connection"),
    ],
    ids=["another protocol", "nothing", "part of a hello"],
)
def test_one_that_is_no_gate_is_told_once(town: Town, words: bytes, why: str) -> None:
    with socket.create_server((HOST, 0)) as server:
        caller = town.end()
        caller.link.connect(HOST, server.getsockname()[1], TOKEN)
        sock, _ = server.accept()
        with sock:
            sock.sendall(words)
        town.run_until(lambda: caller.ends, "the end")
    town.settle()
    assert len(caller.ends) == 1
    assert why in caller.ends[0]


def test_a_gate_that_does_not_know_the_token_itself_is_refused(town: Town) -> None:
    """It lets everybody in, to hear what they say."""
    with socket.create_server((HOST, 0)) as server:
        caller = town.end()
        caller.link.connect(HOST, server.getsockname()[1], TOKEN)
        caller.link.send(cluster.Ask("a secret"))
        sock, _ = server.accept()
        with sock:
            sock.sendall(Handshake(b"no idea", listens=True).begin() + os.urandom(32))
            town.run_until(lambda: caller.ends, "the end")
            assert b"a secret" not in read_to_end(sock)
    assert "does not know the token" in caller.ends[0]


def test_a_connection_whose_first_packet_is_not_answered_is_not_waited_for(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel would try for two minutes, with pauses that double. Who lets others wait in line is waited for."""
    monkeypatch.setattr(gate_module, "CONNECT_S", 0.05)
    with socket.create_server((HOST, 0), backlog=0) as full, socket.create_connection(full.getsockname()):
        caller = town.end()
        caller.link.connect(HOST, full.getsockname()[1], TOKEN)
        town.run_until(lambda: caller.ends, "the time to be over")
        (why,) = caller.ends
        assert "did not answer within" in why


def test_a_lasting_link_that_is_renewed_goes_on_over_another_connection(town: Town) -> None:
    caller = town.end()
    caller.link.last(b"session!")
    connected: list[Link] = []
    caller.link.on_connected = connected.append
    caller.link.connect(HOST, town.port, TOKEN)
    assert caller.link.dials
    caller.link.send(cluster.Ask("1"))
    town.run_until(lambda: town.visitors and town.visitors[0].messages, "the first message")
    visitor = town.visitors[0]
    assert not visitor.link.dials
    visitor.link.renew()
    assert visitor.link.is_connected, "one that is not lasting is left alone"
    visitor.link.last(b"session!")

    def go_on(end: End, message: Any) -> None:
        if isinstance(message, Resume):
            visitor.link.go_on_with(end.link, message)

    town.act = go_on
    caller.link.renew()
    assert not caller.link.is_connected
    caller.link.renew()
    caller.link.send(cluster.Ask("2"))
    town.run_until(lambda: len(visitor.messages) == 2, "the second message, over another connection")
    assert visitor.messages == [cluster.Ask("1"), cluster.Ask("2")]
    assert connected == [caller.link] * 2
    visitor.link.renew()
    caller.link.send(cluster.Ask("3"))
    town.run_until(lambda: len(visitor.messages) == 3, "the third: the end that made it makes another")


def test_nothing_is_left_of_the_time_out_of_a_connection_that_was_made(town: Town) -> None:
    town.pair()
    assert pending(town) == 0


def test_a_dial_that_was_called_off_tells_nobody(town: Town) -> None:
    told: list[Any] = []
    at_once = Dial(town.loop, HOST, town.port, TOKEN, lambda sock, why: told.append(why))
    at_once.cancel()
    at_once.cancel()
    with socket.create_server((HOST, 0)) as server:
        half_way = Dial(town.loop, HOST, server.getsockname()[1], TOKEN, lambda sock, why: told.append(why))
        sock, _ = server.accept()
        with sock:
            sock.sendall(Handshake(TOKEN, listens=True).begin())
            receive(town, sock, HELLO_BYTES)
            half_way.cancel()
    unreachable = Dial(town.loop, "255.255.255.255", 9, TOKEN, lambda sock, why: told.append(why))
    unreachable.cancel()
    town.run_until(lambda: not pending(town), "the gate to forget the one that hung up")
    assert not told


def test_a_dial_that_is_done_leaves_the_socket_alone(town: Town) -> None:
    told: list[Any] = []
    dial = Dial(town.loop, HOST, town.port, TOKEN, lambda sock, why: told.append((sock, why)))
    town.run_until(lambda: told and town.visitors, "the connection")
    ((sock, why),) = told
    town.keep(sock)
    assert not why
    dial.cancel()
    sock.sendall(frame(cluster.Ask("still there")))
    town.run_until(lambda: town.visitors[0].messages, "the message")


def test_a_link_that_is_closed_while_it_connects_tells_nobody(town: Town) -> None:
    caller = town.caller()
    caller.link.send(cluster.Ask("never heard"))
    caller.link.close()
    caller.link.send(cluster.Ask("nor this"))
    town.settle()
    assert not caller.ends
    assert not town.visitors


# -- connections that end ----------------------------------------------------------------------------------------------


def test_the_other_end_that_closes_is_told_once_and_after_what_was_said(town: Town) -> None:
    caller, visitor = town.pair()
    sent = asks(range(100))
    for message in sent:
        visitor.link.send(message)
    visitor.link.close()
    town.run_until(lambda: caller.ends, "the end")
    town.settle()
    assert caller.messages == sent
    assert len(caller.ends) == 1
    assert visitor.ends == [], "who closes knows"
    caller.link.send(cluster.Ask("to nobody"))
    caller.link.close()
    assert len(caller.ends) == 1


def test_one_that_vanishes_in_the_middle_of_a_message_is_told_once(town: Town) -> None:
    sock, visitor = town.stranger()
    sock.sendall(frame(cluster.Ask("whole")) + frame(cluster.Ask("not so"))[:-1])
    town.run_until(lambda: visitor.messages, "the first message")
    sock.close()
    town.run_until(lambda: visitor.ends, "the end")
    town.settle()
    assert visitor.messages == [cluster.Ask("whole")]
    assert len(visitor.ends) == 1


def test_one_that_is_reset_while_much_waits_to_be_sent_is_told_once(town: Town) -> None:
    sock, visitor = town.stranger()
    visitor.link.send(cluster.Reply(b"x" * (32 << 20)))
    assert not visitor.link.flush()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()
    visitor.link.send(cluster.Ask("and more"))
    town.run_until(lambda: visitor.ends, "the end")
    town.settle()
    assert len(visitor.ends) == 1


def test_when_one_ends_the_next_may_begin_at_once(town: Town) -> None:
    """As a node does that has lost its control service."""
    caller, visitor = town.pair()
    again = town.end()

    def on_closed(link: Link, why: str) -> None:
        again.link.connect(HOST, town.port, TOKEN)
        again.link.send(cluster.Ask("again"))

    caller.link.rebind(caller.on_message, on_closed)
    visitor.link.close()
    town.run_until(lambda: len(town.visitors) == 2 and town.visitors[1].messages, "the second connection")
    assert not again.ends


def test_a_link_may_be_closed_by_one_of_its_messages(town: Town) -> None:
    """What came in the same read is for nobody."""
    sock, visitor = town.stranger()
    town.act = lambda visitor, message: visitor.link.close() if message.what == "1" else None
    sock.sendall(b"".join(map(frame, asks(range(5)))))
    town.run_until(lambda: visitor.link.closed, "the end")
    town.settle()
    assert visitor.messages == asks(range(2))
    assert not visitor.ends
    assert read_to_end(sock) == b"", "the other end is told"


@pytest.mark.parametrize("one_by_one", [False, True])
def test_what_a_message_makes_wrong_ends_the_link_and_not_the_loop(town: Town, one_by_one: bool) -> None:
    """One that is not for us at all: its handler raises ProtocolError."""
    caller, visitor = town.pair(one_by_one=one_by_one)

    def refuse(message: Any) -> None:
        raise ProtocolError(f"{type(message).__name__} does not begin a conversation")

    caller.act = refuse
    for message in asks(range(3)):
        visitor.link.send(message)
    town.run_until(lambda: caller.ends and visitor.ends, "both ends")
    assert caller.ends == ["Ask does not begin a conversation"]
    assert caller.messages == asks(range(1))
    assert len(visitor.ends) == 1


def test_a_message_may_change_what_the_link_is_for(town: Town) -> None:
    """The next one of the same read goes to the new reader already, and so does the end."""
    sock, visitor = town.stranger()
    messages: list[Any] = []
    ends: list[str] = []
    town.act = lambda visitor, message: visitor.link.rebind(
        lambda link, message: messages.append(message), lambda link, why: ends.append(why)
    )
    sock.sendall(b"".join(map(frame, asks(range(3)))))
    sock.close()
    town.run_until(lambda: ends, "the end")
    assert visitor.messages == asks(range(1))
    assert messages == asks(range(1, 3))
    assert visitor.ends == []
    assert len(ends) == 1


# -- connections that are handed over ----------------------------------------------------------------------------------

#: Another protocol: to us it would look like a frame that is too large, the beginning of one, or none at all.
RAW = [b"GET / HTTP/1.1\r\n\r\n", b"\1\0\0\0", b"\0", frame(cluster.Ask("not for you")), os.urandom(100_000), b""]


@pytest.mark.parametrize("raw", RAW, ids=["http", "a header", "a byte", "a frame", "much", "nothing"])
@pytest.mark.parametrize("pieces", ["at once", "byte by byte"])
def test_every_byte_behind_the_last_message_is_for_the_next_reader(town: Town, raw: bytes, pieces: str) -> None:
    with socket.create_server((HOST, 0)) as server:
        sender = town.keep(socket.create_connection(server.getsockname()))
        receiver, _ = server.accept()
    handed: list[socket.socket] = []

    def hand_over(message: Any) -> None:
        if isinstance(message, cluster.ChannelOpened):
            handed.append(town.keep(end.link.hand_over()))

    end = town.end(one_by_one=True)
    end.act = hand_over
    end.link.adopt(receiver)
    first = frame(cluster.Ask("before")) + frame(cluster.ChannelOpened(7))
    if pieces == "at once":
        sender.sendall(first + raw)
    else:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in first:
            sender.sendall(bytes([byte]))
            town.settle()
        sender.sendall(raw)
    town.run_until(lambda: handed, "the hand-over")
    sender.shutdown(socket.SHUT_WR)
    town.settle()
    assert end.messages == [cluster.Ask("before"), cluster.ChannelOpened(7)]
    assert read_to_end(handed[0]) == raw
    assert end.link.closed
    assert not end.ends, "the end of the connection is another's business"
    end.link.send(cluster.Ask("to nobody"))
    end.link.close()
    assert handed[0].fileno() >= 0, "and the socket is, too"


def test_two_nodes_hand_a_connection_over_to_two_processes(town: Town) -> None:
    """As with OpenChannel: who is asked talks in another way right behind its answer."""
    handed: dict[str, socket.socket] = {}

    def on_open(visitor: End, message: Any) -> None:
        visitor.link.send(cluster.ChannelOpened(8))
        sock = handed["asked"] = town.keep(visitor.link.hand_over())
        sock.sendall(b"first words")

    def on_opened(message: Any) -> None:
        sock = handed["asker"] = town.keep(caller.link.hand_over())
        sock.sendall(b"good day")

    town.act = on_open
    caller = town.end(one_by_one=True)
    caller.act = on_opened
    caller.link.send(cluster.OpenChannel(b"asker", 7, b"target"))
    caller.link.connect(HOST, town.port, TOKEN)
    town.run_until(lambda: len(handed) == 2, "the channel")
    assert receive(town, handed["asker"], len(b"first words")) == b"first words"
    assert receive(town, handed["asked"], len(b"good day")) == b"good day"
    assert not caller.ends
    assert not town.visitors[0].ends


# -- garbage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("garbage", "why"),
    [
        (HEADER.pack(FRAME_BYTES_MAX + 1) + b"GET /", "bytes was announced"),
        (HEADER.pack(0), "not a message"),
        (HEADER.pack(3) + b"\xc1\xc1\xc1", "not a message"),
        (HEADER.pack(5000) + b"\x91" * 5000, "not a message"),
        (frame(Borrowed(2**40)), "not a message"),
        (frame(cluster.Ask("cut"))[:-2], "end of stream"),
    ],
    ids=["too large", "empty", "no msgpack", "deep", "not for a node", "cut"],
)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_garbage_ends_the_link_and_nothing_else(town: Town, garbage: bytes, why: str, one_by_one: bool) -> None:
    caller, bystander = town.pair()
    sock, visitor = town.stranger()
    end = town.end(one_by_one=one_by_one)
    end.link.adopt(visitor.link.hand_over())
    sock.sendall(frame(cluster.Ask("this is one")))
    town.run_until(lambda: end.messages, "the message")
    sock.sendall(garbage)
    sock.shutdown(socket.SHUT_WR)
    town.run_until(lambda: end.ends, "the end")
    town.settle()
    assert len(end.ends) == 1
    assert why in end.ends[0]
    assert end.messages == [cluster.Ask("this is one")]
    assert read_to_end(sock) == b"", "it hung up"
    caller.link.send(cluster.Ask("still there"))
    town.run_until(lambda: bystander.messages, "the others to go on")


def test_garbage_is_logged_once_and_as_harmless_text(
    town: Town, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_complaints", Complaints())
    with caplog.at_level(logging.WARNING, "skate"):
        for garbage in (encoder.encode("\n\x1b[2Jforged"), b"\xc1", b"\xc1\xc1"):
            sock, visitor = town.stranger()
            sock.sendall(HEADER.pack(len(garbage)) + garbage)
            town.run_until(lambda visitor=visitor: visitor.ends, "the end of the link")
            assert visitor.ends[0].isprintable()
        sock, visitor = town.stranger()
        sock.close()
        town.run_until(lambda: visitor.ends, "the end of a link with nothing wrong")
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert "not a message" in record.getMessage()
    assert HOST in record.getMessage()


def test_where_small_messages_are_expected_a_large_one_ends_the_link(town: Town) -> None:
    caller, visitor = town.pair(one_by_one=True)
    visitor.link.send(cluster.Reply(b"x" * RECEIVE_BYTES))
    town.run_until(lambda: caller.ends and visitor.ends, "both ends")
    assert "where a small one is expected" in caller.ends[0]


def test_garbage_that_comes_with_the_handshake_ends_the_link(town: Town) -> None:
    _, visitor = town.stranger()
    end = town.end()
    end.link.adopt(visitor.link.hand_over(), frame(cluster.Ask("lost with it")) + HEADER.pack(1) + b"\xc1")
    assert len(end.ends) == 1
    assert end.link.closed


def test_five_hundred_malformed_streams_harm_nobody(town: Town) -> None:
    """Messages with bits changed, cut, doubled or in disorder, from somebody who knows the token."""
    choose = random.Random(7)
    whole = [frame(message) for message in (cluster.Link(b"node"), cluster.Ask("what"), cluster.ChannelOpened(7))]
    whole.append(frame(cluster.FromProcess(b"process", Borrowed(7))))
    whole.append(frame(cluster.Reply({"body": [1, 2.5, None, "text", {"deep": [[]]}]})))
    caller, bystander = town.pair()
    for number in range(500):
        stream = bytearray(b"".join(choose.choices(whole, k=choose.randrange(1, 6))))
        for _ in range(choose.randrange(4)):
            stream[choose.randrange(len(stream))] ^= 1 << choose.randrange(8)
        if number % 4 == 0:
            del stream[choose.randrange(len(stream)) :]
        ours, theirs = socket.socketpair()
        end = town.end(one_by_one=number % 2 == 0)
        end.link.adopt(ours)
        with theirs:
            theirs.sendall(stream)
        town.run_until(lambda end=end: end.ends, "the end")  # type: ignore[misc]
        assert len(end.ends) == 1
    caller.link.send(cluster.Ask("still there"))
    town.run_until(lambda: bystander.messages, "the others to go on")
