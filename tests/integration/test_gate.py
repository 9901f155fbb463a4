"""The TCP port of a node, with real sockets: who knows the token comes in; others are refused, and harm nobody."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
from collections.abc import Iterator

import pytest

from skate._wire import complaints as complaints_module
from skate._wire import gate as gate_module
from skate._wire.complaints import Complaints
from skate._wire.gate import STRANGERS_MAX, Gate, knock
from skate._wire.handshake import HELLO_BYTES, MAGIC, Handshake, HandshakeError, Versions
from skate._wire.loop import EventLoop
from waiting import wait_for

TOKEN = b"the token of this cluster"
WITHIN_S = 20.0


class House:
    """A gate with a loop in a thread of its own; visitors are greeted and counted."""

    def __init__(self) -> None:
        self.visitors: list[tuple[Versions, bytes]] = []
        self._loop = EventLoop()
        self.gate = Gate(self._loop, TOKEN, "127.0.0.1", 0, self._on_visitor)
        self.port = self.gate.address[1]
        self._wake, self._end = socket.socketpair()
        self._is_open = True
        self._loop.watch(self._end.fileno(), self._on_end)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _on_visitor(self, sock: socket.socket, theirs: Versions, rest: bytes) -> None:
        self.visitors.append((theirs, rest))
        sock.sendall(b"welcome")
        sock.close()

    def _on_end(self, events: int) -> None:
        self._is_open = False

    def _run(self) -> None:
        while self._is_open:
            self._loop.run_once(None)

    @property
    def strangers(self) -> int:
        return len(self.gate._strangers)

    def close(self) -> None:
        self._wake.send(b".")
        self._thread.join()
        self.gate.close()
        self._loop.close()
        self._wake.close()
        self._end.close()


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.close()


def visit(house: House) -> bytes:
    sock, _, rest = knock("127.0.0.1", house.port, TOKEN)
    with sock:
        while len(rest) < len(b"welcome"):
            data = sock.recv(100)
            assert data, "it hung up"
            rest += data
    return rest


def connect(house: House) -> socket.socket:
    return socket.create_connection(("127.0.0.1", house.port), timeout=WITHIN_S)


def read_to_end(sock: socket.socket) -> bytes:
    data = b""
    try:
        while more := sock.recv(4096):
            data += more
    except ConnectionResetError:
        pass  # it hung up while we still talked
    return data


def test_who_knows_the_token_comes_in(house: House) -> None:
    assert visit(house) == b"welcome"
    assert [theirs for theirs, _ in house.visitors] == [Versions.ours()]


def test_what_comes_right_behind_the_proof_is_not_lost(house: House) -> None:
    with connect(house) as sock:
        end = Handshake(TOKEN, listens=False)
        hello = sock.recv(HELLO_BYTES, socket.MSG_WAITALL)
        sock.sendall(end.receive(hello) + b"first frames")
        assert read_to_end(sock).endswith(b"welcome")
    assert house.visitors[0][1] == b"first frames"


def test_another_token_is_refused_at_both_ends(house: House, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "skate"):
        for _ in range(3):
            with pytest.raises(HandshakeError, match="did not let us in"):
                knock("127.0.0.1", house.port, b"another token")
        wait_for(lambda: "does not know the token" in caplog.text, WITHIN_S, "the line in the log")
    assert caplog.text.count("does not know the token") == 1, "said once"
    assert visit(house) == b"welcome"


def test_what_strangers_call_themselves_neither_fills_the_log_nor_forges_it(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "skate"):
        for number in range(50):
            with connect(house) as sock:
                sock.recv(HELLO_BYTES, socket.MSG_WAITALL)
                said = f"9.{number}\n\x1b[2Jforged"
                hello = MAGIC + bytes([number, 1, 3, number]) + said.encode().ljust(20, b"\0") + os.urandom(32)
                assert len(hello) == HELLO_BYTES
                sock.sendall(hello)
                assert read_to_end(sock) == b""
        wait_for(lambda: "forged" in caplog.text, WITHIN_S, "the line in the log")
        assert visit(house) == b"welcome"
    (record,) = [record for record in caplog.records if "forged" in record.getMessage()]
    assert record.getMessage().isprintable()


def test_the_log_is_bounded_however_many_strangers_there_are(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(complaints_module, "LINES_MAX", 10)
    complaints = Complaints()
    with caplog.at_level(logging.WARNING, "skate"):
        for number in range(100):
            complaints.make(f"10.0.0.{number}", "late", "a connection was refused")
    assert len(caplog.records) == 11
    assert "not logged any more" in caplog.records[-1].getMessage()


def test_one_that_is_no_gate_is_an_error_that_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def answer() -> None:
            sock, _ = server.accept()
            sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            sock.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(HandshakeError, match="does not speak Skate's protocol"):
            knock("127.0.0.1", port, TOKEN)
        thread.join()


def test_one_that_says_nothing_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(HandshakeError, match="did not answer"):
        knock("127.0.0.1", server.getsockname()[1], TOKEN, timeout_s=0.1)


def test_a_port_that_is_taken_is_an_error_that_says_what_to_do(house: House) -> None:
    with pytest.raises(OSError, match=rf"127.0.0.1:{house.port}[\s\S]*another port"):
        Gate(EventLoop(), TOKEN, "127.0.0.1", house.port, lambda *_: None)


def test_a_replayed_conversation_is_refused(house: House) -> None:
    with connect(house) as sock:
        end = Handshake(TOKEN, listens=False)
        overheard = end.receive(sock.recv(HELLO_BYTES, socket.MSG_WAITALL))
        sock.sendall(overheard)
        assert read_to_end(sock).endswith(b"welcome")
    with connect(house) as sock:
        sock.recv(HELLO_BYTES, socket.MSG_WAITALL)
        sock.sendall(overheard)
        assert read_to_end(sock) == b""
    assert len(house.visitors) == 1


def test_silent_strangers_are_sent_away_in_time(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_module, "HANDSHAKE_S", 0.05)
    with connect(house) as sock:
        assert len(read_to_end(sock)) == HELLO_BYTES, "a hello, and then the end"
    wait_for(lambda: not house.strangers, WITHIN_S, "the stranger to be forgotten")


def test_a_crowd_of_strangers_keeps_nobody_out(house: House) -> None:
    crowd = [connect(house) for _ in range(STRANGERS_MAX + 50)]
    assert visit(house) == b"welcome"
    assert house.strangers <= STRANGERS_MAX
    for sock in crowd:
        sock.close()
    wait_for(lambda: not house.strangers, WITHIN_S, "all of them to be forgotten")


def test_ten_thousand_malformed_inputs_harm_nobody(house: House) -> None:
    """Whole and cut handshakes with bits changed, garbage, floods; every so often somebody who may come in does."""
    choose = random.Random(7)
    for number in range(10_000):
        kind = number % 5
        if kind == 0:
            words = choose.randbytes(choose.randrange(200))
        elif kind == 1:
            words = MAGIC + choose.randbytes(choose.randrange(300))
        elif kind == 2:
            words = Handshake(TOKEN, listens=True).begin() + choose.randbytes(32)
        elif kind == 3:
            words = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
        else:
            whole = bytearray(Handshake(TOKEN, listens=True).begin() + choose.randbytes(32))
            whole[choose.randrange(len(whole))] ^= 1 << choose.randrange(8)
            words = bytes(whole[: choose.randrange(len(whole))])
        with connect(house) as sock:
            try:
                sock.sendall(words)
            except OSError:
                pass  # it has hung up already
            if number % 3 == 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
        if number % 1000 == 0:
            assert visit(house) == b"welcome"
    assert len(house.visitors) == 10
    wait_for(lambda: not house.strangers, WITHIN_S, "all of them to be forgotten")
    assert len(os.listdir("/proc/self/fd")) < 200
