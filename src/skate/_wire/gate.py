"""The one TCP port of a node: strangers are kept outside, cheaply.

Whoever connects has HANDSHAKE_S to prove that it knows the cluster's token (`_wire/handshake.py`). Before that nothing
of what it sends is decoded, little more than the handshake is read, and at most STRANGERS_MAX may stand there at once:
of those the one that came first is sent away for the next. A refusal is logged once for each address and kind of
reason (`_wire/complaints.py`).

Owns:      the listening socket, and connections that have not proved themselves yet.
Knows not: what those who come in want. `on_visitor(sock, theirs, rest)` gets the socket, the versions at the other
           end, and what it sent right behind its proof.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable

from skate._wire.complaints import Complaints
from skate._wire.entrance import Entrance, Tls
from skate._wire.handshake import HandshakeError, SilentError, StrangerError, VersionError, Versions
from skate._wire.loop import WRITE, EventLoop, Timer

HANDSHAKE_S = 5.0
#: A connection whose first packet was not answered by then is given up, and tried again by those who wait for it: the
#: kernel doubles its pauses, and would try for the next time long after a cut has healed.
CONNECT_S = 1.5
#: The first byte of TCP_INFO while the first packet is not answered.
SYN_SENT = 2
STRANGERS_MAX = 128
#: A gate that has said nothing for so long waits for us to begin.
SPEAKS_FIRST_S = 1.0
#: An idle connection shows that it is there so often.
KEEPALIVE_S = 30
READ_BYTES = 4096
BACKLOG = 256

OnVisitor = Callable[[socket.socket, Versions, bytes], None]


class _Stranger:
    """A connection that has not proved itself yet."""

    def __init__(self, sock: socket.socket, host: str, entrance: Entrance, timer: Timer) -> None:
        self.sock = sock
        self.host = host
        self.entrance = entrance
        self.timer = timer


class Gate:
    def __init__(
        self,
        loop: EventLoop,
        token: bytes,
        host: str,
        port: int,
        on_visitor: OnVisitor,
        tls: Tls | None = None,
    ) -> None:
        """Listens from now on. Raises OSError with what to do if it cannot."""
        self._tls = tls
        self._loop = loop
        self._token = token
        self._on_visitor = on_visitor
        self._strangers: OrderedDict[int, _Stranger] = OrderedDict()
        self._complaints = Complaints()
        self._sock = _listen(host, port)
        self.address: tuple[str, int] = self._sock.getsockname()[:2]
        loop.watch(self._sock.fileno(), self._on_knock)

    def close(self) -> None:
        self._loop.unwatch(self._sock.fileno())
        self._sock.close()
        for fd in list(self._strangers):
            self._send_away(fd)

    def _on_knock(self, events: int) -> None:
        try:
            sock, address = self._sock.accept()
        except OSError:  # it is gone already, or we have no descriptor left: then others wait in the backlog
            return
        if len(self._strangers) >= STRANGERS_MAX:
            self._refuse(next(iter(self._strangers)), "crowd", "too many connect at once without a word.")
        sock.setblocking(False)
        _prepare(sock)
        fd = sock.fileno()
        entrance = Entrance(self._token, listens=True, tls=self._tls)
        hint = "" if self._tls is None else " (this end uses --tls)"
        late = self._loop.call_at(
            time.monotonic() + HANDSHAKE_S,
            lambda: self._refuse(fd, "late", f"no proof came within {HANDSHAKE_S:g} s{hint}."),
        )
        self._strangers[fd] = _Stranger(sock, str(address[0]), entrance, late)
        self._loop.watch(fd, lambda events: self._on_words(fd))
        self._send(fd, entrance.begin())

    def _on_words(self, fd: int) -> None:
        stranger = self._strangers[fd]
        try:
            data = stranger.sock.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._send_away(fd)
            return
        try:
            answer = stranger.entrance.receive(data)
        except ConnectionError as error:
            self._refuse(fd, _kind(error), str(error))
            return
        if not self._send(fd, answer) or not stranger.entrance.done:
            return
        theirs = stranger.entrance.theirs
        assert theirs is not None
        del self._strangers[fd]
        stranger.timer.cancel()
        self._loop.unwatch(fd)
        self._on_visitor(_plain(stranger.sock, stranger.entrance), theirs, stranger.entrance.rest)

    def _send(self, fd: int, data: bytes) -> bool:
        """A handshake fits into any socket buffer; one that does not take it is not read by anybody."""
        stranger = self._strangers[fd]
        try:
            if not data or stranger.sock.send(data) == len(data):
                return True
        except OSError:
            pass
        self._send_away(fd)
        return False

    def _refuse(self, fd: int, kind: str, reason: str) -> None:
        if fd not in self._strangers:
            return
        host = self._strangers[fd].host
        self._send_away(fd)
        self._complaints.make(host, kind, f"a connection from {host} was refused: {reason}")

    def _send_away(self, fd: int) -> None:
        stranger = self._strangers.pop(fd)
        stranger.timer.cancel()
        self._loop.unwatch(fd)
        with contextlib.suppress(OSError):
            stranger.sock.close()


def _kind(error: ConnectionError) -> str:
    """What a refusal is logged once for: the text, unless the stranger has a say in it."""
    return type(error).__name__ if isinstance(error, VersionError | StrangerError) else str(error)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}. Choose another port.") from None
    return sock


def _prepare(sock: socket.socket) -> None:
    """Small messages leave at once, and what stands between two machines does not forget a connection that is idle."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)


def _plain(sock: socket.socket, entrance: Entrance) -> socket.socket:
    """The connection, as one that carries messages: itself, or the plain end of what encrypts it."""
    if entrance.stream is None:
        return sock
    from skate._wire.relay import relay

    return relay(sock, entrance.stream)


def knock(
    host: str, port: int, token: bytes, timeout_s: float = HANDSHAKE_S, tls: Tls | None = None
) -> tuple[socket.socket, Versions, bytes]:
    """Connect to a gate and come in: the socket, the versions there, and what came right behind. Blocks.

    Raises HandshakeError if we are not let in, or the other end is none of ours; OSError if it cannot be reached.
    """
    deadline = time.monotonic() + timeout_s
    sock = socket.create_connection((host, port), timeout=timeout_s)
    try:
        _prepare(sock)
        entrance = Entrance(token, listens=False, tls=tls)
        sock.sendall(entrance.begin())
        while not entrance.done:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            sock.settimeout(left)
            data = sock.recv(READ_BYTES)
            if not data:
                what = "it closed the connection: it may have another token"
                if entrance.theirs is None:
                    what = "it hung up without a word, and may not be Skate"
                raise HandshakeError(f"{host}:{port} did not let us in; {what}.")
            sock.sendall(entrance.receive(data))
        sock.settimeout(None)
        assert entrance.theirs is not None
        return _plain(sock, entrance), entrance.theirs, entrance.rest
    except TimeoutError:
        sock.close()
        # The other reasons are rarer: who does not speak first is taken to use TLS, and one that is stopped does not.
        hint = "it may use --tls, or not be Skate" if tls is None else "it may not be Skate, or not use --tls"
        raise SilentError(
            f"{host}:{port} did not answer within {timeout_s:g} s. It may be stopped or overloaded. If not, {hint}."
        ) from None
    except StrangerError as error:
        # Who does not speak first is spoken to with TLS. To a user who met another service that means nothing; what
        # OpenSSL has to say may.
        sock.close()
        why = str(error) if error.__cause__ is not None else "it does not speak Skate's protocol."
        raise StrangerError(f"what answers at {host}:{port} is not a head of Skate: {why}") from None
    except BaseException:
        sock.close()
        raise


def speaks_tls(host: str, port: int) -> bool:
    """Whether a gate wants TLS: one that does not speaks first. Raises OSError if it cannot be reached.

    Nobody can use this to have us talk in plain text: the proofs of an encrypted connection cover its certificate, and
    those of a plain one do not, so the two ends would not understand each other.
    """
    with socket.create_connection((host, port), timeout=HANDSHAKE_S) as sock:
        sock.settimeout(SPEAKS_FIRST_S)
        try:
            sock.recv(1)
        except TimeoutError:
            return True
        return False


class Dial:
    """Connects to a gate and comes in, without blocking. Calls `on_done(sock, why)` once; no socket if it failed.

    The other end says nothing after its proof before it was spoken to, so nothing is read that is not ours to read.
    """

    def __init__(
        self,
        loop: EventLoop,
        host: str,
        port: int,
        token: bytes,
        on_done: Callable[[socket.socket | None, str], None],
        tls: Tls | None = None,
    ) -> None:
        self._loop = loop
        self._where = f"{host}:{port}"
        self._on_done = on_done
        self._entrance = Entrance(token, listens=False, tls=tls)
        #: What is sent as soon as the connection is there: with TLS, who connects speaks first.
        self._first = self._entrance.begin()
        self._over = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        _prepare(self._sock)
        now = time.monotonic()
        self._timer = loop.call_at(now + HANDSHAKE_S, lambda: self._fail("no answer came in time."))
        self._connect_timer = loop.call_at(now + CONNECT_S, self._check_connected)
        try:
            error = self._sock.connect_ex((host, port))
            reason = os.strerror(error)
        except OSError as unknown:  # the name of the host
            error, reason = -1, str(unknown.strerror)
        if error not in (0, errno.EINPROGRESS):
            loop.call_at(time.monotonic(), lambda: self._fail(f"{reason}."))
            return
        # It speaks first: that it can be read, or has failed, is the next thing to happen.
        loop.watch(self._sock.fileno(), self._on_events)
        if self._first:
            loop.watch_writing(self._sock.fileno(), True)

    def _check_connected(self) -> None:
        if not self._over and self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == SYN_SENT:
            self._fail(f"it did not answer within {CONNECT_S:g} s.")

    def _on_events(self, events: int) -> None:
        if events & WRITE and self._first:
            self._loop.watch_writing(self._sock.fileno(), False)
            first, self._first = self._first, b""
            try:
                self._sock.send(first)
            except OSError as error:
                self._fail(f"{error.strerror}.")
                return
        if events & ~WRITE:
            self._on_words()

    def _on_words(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
            if not data:
                self._fail("it closed the connection; it may have another token.")
                return
            answer = self._entrance.receive(data)
            if answer and self._sock.send(answer) != len(answer):
                self._fail("it does not read what we send.")
                return
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(f"{error.strerror}." if error.strerror else str(error))
            return
        if self._entrance.done:
            sock = self._sock
            self._stop_timers()
            self._loop.unwatch(sock.fileno())
            self._over = True
            self._on_done(_plain(sock, self._entrance), "")

    def _fail(self, why: str) -> None:
        if not self._over:
            self.cancel()
            self._on_done(None, f"{self._where}: {why}")

    def cancel(self) -> None:
        """Nobody is told."""
        if not self._over:
            self._over = True
            self._stop_timers()
            self._loop.unwatch(self._sock.fileno())
            self._sock.close()

    def _stop_timers(self) -> None:
        self._timer.cancel()
        self._connect_timer.cancel()
