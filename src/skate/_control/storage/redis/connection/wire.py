"""One connection to a server, from the first request to the reset: requests in order, answers in that order.

    send ─▶ what the socket does not take ─▶ socket ─▶ server      dialled by an errand; requests wait for it
    answers, in the order of the requests ◀─ hiredis ◀─ socket

Owns:      the socket, what was not sent yet, and who waits for which answer.
Invariant: `on_broken` is called once at most, and not after `close`. After either no answer is handed in.
Bound:     what was not sent is a part of what the storage admits; answers are those to that.
"""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from skate._control.storage.errors import StorageError
from skate._control.storage.redis.connection.handshake import Dialled, Facts
from skate._control.storage.redis.connection.poller import WRITE, Poller

Answer = Callable[[Any], None]

RECEIVE_BYTES = 1 << 18
_MORE = object()
_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Wire:
    def __init__(
        self,
        poller: Poller,
        dial: Callable[[], Dialled] | None,
        on_broken: Callable[[str, StorageError | None], None],
        on_heard: Callable[[], None] = lambda: None,
        on_open: Callable[[Facts], None] = lambda facts: None,
    ) -> None:
        """dial: makes the connection; None: there is none, and nothing will be answered.

        on_broken: why, and the error if the server refused us. on_heard: a part of an answer came.
        """
        self._poller = poller
        self._on_broken = on_broken
        self._on_heard = on_heard
        self._on_open = on_open
        self._reader = hiredis.Reader(notEnoughData=_MORE)
        self._sock: Any = None
        self._fd = -1
        self._out: deque[bytes | memoryview] = deque()
        self._answers: deque[Answer | None] = deque()
        self._is_writing = False
        self.is_closed = dial is None
        #: How many times something was received.
        self.heard = 0
        if dial is not None:
            poller.send_out(dial, self._dialled)

    def _dialled(self, found: Dialled | Exception) -> None:
        if isinstance(found, Exception):
            self._break(
                found.what + " " + found.why if isinstance(found, StorageError) else str(found),
                found if isinstance(found, StorageError) else None,
            )
        elif self.is_closed:
            found.close()
        else:
            self._sock = found.sock
            self._fd = self._sock.fileno()
            self._poller.watch(self._fd, self._on_events)
            self._on_open(found.facts)
            self.flush()

    # -- sending ------------------------------------------------------------------------------------------------------

    def send(self, request: bytes, *answers: Answer | None) -> None:
        """Requests, and who gets the answer of each; None: its answer is passed over. `flush` sends them."""
        self._out.append(request)
        self._answers.extend(answers)

    def flush(self) -> None:
        """Send as much as the socket takes."""
        if self._sock is None or not self._out:
            return
        out = self._out
        while out:
            data = out.popleft() if len(out) == 1 else self._gathered()
            try:
                sent = self._sock.send(data)
            except _WOULD_BLOCK:
                out.appendleft(data)
                break
            except OSError as error:
                self._break(str(error))
                return
            if sent < len(data):
                out.appendleft(memoryview(data)[sent:])
        if bool(out) != self._is_writing:
            self._is_writing = bool(out)
            self._poller.watch_writing(self._fd, self._is_writing)

    def _gathered(self) -> bytes:
        """Small requests become one system call."""
        parts: list[bytes | memoryview] = []
        size = 0
        while self._out and size < RECEIVE_BYTES:
            parts.append(self._out.popleft())
            size += len(parts[-1])
        return b"".join(parts)

    # -- receiving ----------------------------------------------------------------------------------------------------

    def _on_events(self, events: int) -> None:
        if events & WRITE:
            self.flush()
            if not self.is_closed:
                self._on_heard()  # it takes what is sent: a frozen server does so until its buffers are full
        if events & ~WRITE and not self.is_closed:
            self._receive()

    def _receive(self) -> None:
        reader, answers = self._reader, self._answers
        while not self.is_closed:
            try:
                data = self._sock.recv(RECEIVE_BYTES)
            except _WOULD_BLOCK:
                return
            except OSError as error:
                self._break(str(error))
                return
            if not data:
                self._break("the server ended the connection")
                return
            self.heard += 1
            try:
                reader.feed(data)
                count = 0
                while (answer := reader.gets()) is not _MORE:
                    count += 1
                    if not answers:
                        self._break(f"the server said what it was not asked: {str(answer)[:100]}")
                        return
                    then = answers.popleft()
                    if then is not None:
                        then(answer)
                        if self.is_closed:
                            return
            except hiredis.ProtocolError as error:
                self._break(str(error))
                return
            if not count:
                self._on_heard()
            if len(data) < RECEIVE_BYTES and self._fd_is_plain():
                return

    def _fd_is_plain(self) -> bool:
        """Whether the kernel knows all that is there: TLS may have read more than it gave."""
        return not isinstance(self._sock, ssl.SSLSocket)

    # -- the end ------------------------------------------------------------------------------------------------------

    def _break(self, why: str, error: StorageError | None = None) -> None:
        if not self.is_closed:
            self.close()
            self._on_broken(why, error)

    def give_up(self, why: str) -> None:
        """The server said something that cannot be gone on with."""
        self._break(why)

    def close(self) -> None:
        self.is_closed = True
        self._answers.clear()
        self._out.clear()
        if self._sock is not None:
            self._poller.unwatch(self._fd)
            self._sock.close()
            self._sock = None
