"""Load on an application while it is updated and its replicas are killed, and what came of each request."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from serve_http import address
from skate import serve
from skate.exceptions import ActorDiedError


@dataclass
class Failure:
    """A request that was not answered: when it was sent, and when that was seen."""

    kind: str
    sent: float
    seen: float
    error: str

    def may_come_of(self, moments: list[float], slack_s: float) -> bool:
        """Whether the request was in flight at one of these moments."""
        return any(self.sent <= moment + slack_s and moment <= self.seen for moment in moments)


@dataclass
class Outcome:
    """What became of all requests."""

    answered: dict[str, int] = field(default_factory=lambda: {"http": 0, "handle": 0, "websocket": 0})
    failures: list[Failure] = field(default_factory=list)
    #: Versions that answered, in the order of their first answer.
    versions: list[str] = field(default_factory=list)
    #: Answers that belong to no request, or to another one.
    wrong: list[str] = field(default_factory=list)


class Fire:
    """Clients of all kinds that ask until the block ends: over HTTP with random pauses, else with pauses of `pause_s`.

    The application answers a number with `[version, number]` at `/?n=NUMBER`, at the websocket `/loop`, and by handle.
    """

    def __init__(
        self, *, http_clients: int = 6, handles: int = 2, websockets: int = 2, seed: int = 0, pause_s: float = 0.0
    ) -> None:
        self._pause_s = pause_s
        self.outcome = Outcome()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._where = address()
        kinds: list[Callable[[random.Random], None]] = [
            *[self._http] * http_clients, *[self._handle] * handles, *[self._websocket] * websockets,
        ]  # fmt: skip
        self._threads = [
            threading.Thread(target=kind, args=(random.Random(seed + number),), name=f"fire-{number}")
            for number, kind in enumerate(kinds)
        ]

    def __enter__(self) -> Fire:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        for each in self._threads:
            each.join(60)
            assert not each.is_alive(), f"{each.name} waits for an answer"

    def _note(self, kind: str, number: int, answer: Any) -> None:
        with self._lock:
            self.outcome.answered[kind] += 1
            version, answered = answer
            if answered != number:
                self.outcome.wrong.append(f"{kind}: {answer} for {number}")
            if version not in self.outcome.versions:
                self.outcome.versions.append(version)

    def _failed(self, kind: str, sent: float, error: BaseException | str) -> None:
        with self._lock:
            self.outcome.failures.append(Failure(kind, sent, time.monotonic(), repr(error)))

    def _http(self, rng: random.Random) -> None:
        """Ask on a connection that is kept, with pauses, until the server says that it ends."""
        connection: http.client.HTTPConnection | None = None
        while not self._ended.is_set():
            number, sent = rng.randrange(1 << 30), time.monotonic()
            try:
                if connection is None:
                    connection = http.client.HTTPConnection(*self._where, timeout=30)
                connection.request("GET", f"/?n={number}")
                response = connection.getresponse()
                body = response.read()
                if response.status == 200:
                    self._note("http", number, json.loads(body))
                else:
                    self._failed("http", sent, f"status {response.status}: {body[:200]!r}")
                if response.getheader("connection", "").lower() == "close":
                    connection.close()
                    connection = None
            except (OSError, http.client.HTTPException) as error:
                self._failed("http", sent, error)
                if connection is not None:
                    connection.close()
                connection = None
            if rng.random() < 0.2:
                self._ended.wait(rng.random() * 0.2)
        if connection is not None:
            connection.close()

    def _handle(self, rng: random.Random) -> None:
        handle = serve.get_app_handle("fire")
        while not self._ended.is_set():
            number, sent = rng.randrange(1 << 30), time.monotonic()
            try:
                self._note("handle", number, handle.echo.remote(number).result(timeout_s=30))
            except (ActorDiedError, TimeoutError) as error:
                self._failed("handle", sent, error)
            self._ended.wait(self._pause_s)

    def _websocket(self, rng: random.Random) -> None:
        """Ask over a websocket; a server that leaves closes it with code 1012, and another is asked."""
        while not self._ended.is_set():
            sent = time.monotonic()
            try:
                with connect(f"ws://{self._where[0]}:{self._where[1]}/loop", close_timeout=5) as socket:
                    while not self._ended.is_set():
                        number, sent = rng.randrange(1 << 30), time.monotonic()
                        socket.send(str(number))
                        version, _, answered = str(socket.recv(timeout=30)).partition(" ")
                        self._note("websocket", number, (version, int(answered)))
                        self._ended.wait(self._pause_s)
            except ConnectionClosed as closed:
                if closed.rcvd is None or closed.rcvd.code != 1012:
                    self._failed("websocket", sent, closed)
            except OSError as error:
                self._failed("websocket", sent, error)
