"""A client of HTTP/1.1 on a raw socket: it costs little, and the same for every server. Standard library alone."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

#: Servers that take longer than this for an answer make the cell fail.
TIMEOUT_S = 60.0
_LENGTH = re.compile(rb"\r\ncontent-length:\s*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:\s*chunked", re.IGNORECASE)


class WrongAnswer(Exception):
    """A server answered something else than what the row asks for."""


@dataclass(frozen=True)
class Target:
    """A request that is sent again and again, and what its answer has to contain."""

    port: int
    path: str = "/"
    body: bytes = b""
    content_type: str = "application/octet-stream"
    expected: bytes = b"ok"

    @property
    def method(self) -> str:
        return "POST" if self.body else "GET"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{self.path}"

    def message(self) -> bytes:
        head = f"{self.method} {self.path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
        if self.body:
            head += f"Content-Type: {self.content_type}\r\nContent-Length: {len(self.body)}\r\n"
        return head.encode() + b"\r\n" + self.body


class Connection:
    """A connection that is kept alive. One request at a time is on it."""

    def __init__(self, target: Target) -> None:
        self._target, self._message = target, target.message()
        self._received = b""
        self._length: int | None = None
        self._socket = socket.create_connection(("127.0.0.1", target.port), TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        #: When the request that is on the way was due.
        self.due = 0.0

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def ask(self) -> bytes:
        """Send the request, and return the body of the answer."""
        self.send()
        while (body := self.receive()) is None:
            pass
        return body

    def send(self) -> None:
        self._socket.sendall(self._message)

    def receive(self) -> bytes | None:
        """Take what has arrived; the body of the answer if that is complete. Raises WrongAnswer."""
        arrived = self._socket.recv(1 << 16)
        if not arrived:
            raise WrongAnswer("the server closed a connection that was to be kept alive")
        self._received += arrived
        if self._length is None and not self._read_head():
            return None
        if self._length == -1:
            if not self._received.endswith(b"0\r\n\r\n"):
                return None
        elif len(self._received) < (self._length or 0):
            return None
        answer, self._received, self._length = self._received, b"", None
        if not answer.startswith(b"HTTP/1.1 200") or self._target.expected not in answer:
            raise WrongAnswer(f"{self._target.url} answered {answer[:300]!r}")
        return answer.partition(b"\r\n\r\n")[2]

    def _read_head(self) -> bool:
        """Find out how long the answer is, -1 for one in chunks; False if its head is not complete."""
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = self._received[: end + 2]
        found = _LENGTH.search(head)
        if found is None and not _CHUNKED.search(head):
            raise WrongAnswer(f"an answer says nothing of its length: {head[:300]!r}")
        self._length = -1 if found is None else end + 4 + int(found.group(1))
        return True
