"""What the connections of an HTTP server share: its settings, its state, and how a request or a client fails them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from uvicorn.server import ServerState

__all__ = ["ASGIApp", "ConnectionsState", "HttpSettings", "Receive", "Refused", "Scope", "Send", "StallClock"]

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Any]]
Send: TypeAlias = Callable[[Any], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class HttpSettings:
    """Limits of every HTTP connection, and the path under which the app is mounted."""

    #: The silence allowed between two requests of a connection.
    keep_alive_s: float = 120.0
    #: From the first byte of a request, or from the beginning of the connection, to the end of the request's headers.
    header_timeout_s: float = 10.0
    #: Of the request line and the headers together.
    max_header_bytes: int = 64 * 1024
    max_body_bytes: int = 64 * 1024 * 1024
    #: The silence allowed within a body, and the delay against one that comes with BODY_RATE.
    body_timeout_s: float = 30.0
    #: How long a client may take nothing of what is sent to it.
    write_timeout_s: float = 60.0
    #: Of one message.
    max_websocket_bytes: int = 16 * 1024 * 1024
    root_path: str = ""


class ConnectionsState(ServerState):
    """What the connections of one server share."""

    def __init__(self, settings: HttpSettings) -> None:
        super().__init__()
        self.settings = settings
        self.draining = False
        self.closed = False


class Refused(Exception):
    """The request is answered with this status and not given to the app. Raised in the parser, which it stops."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(status, why)
        self.status = status
        self.why = why


class StallClock:
    """How long a peer has taken none of the bytes that wait for it."""

    def __init__(self) -> None:
        self._waiting = 0
        self._since = 0.0

    def stalled_s(self, waiting: int, now: float) -> float:
        """`waiting` is the number of bytes in the write buffer. A smaller number than last time is progress."""
        if self._waiting == 0 or waiting < self._waiting:
            self._since = now
        self._waiting = waiting
        return now - self._since if waiting else 0.0
