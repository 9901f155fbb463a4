"""Clients of HTTP for the tests of serving, and applications that several tests use."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from skate import serve
from waiting import WITHIN_S, wait_for

#: The headers of a request for a websocket.
UPGRADE = {
    "Connection": "upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==",
}


@dataclass
class Answer:
    """What a server answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        return self.body.decode()


def address() -> tuple[str, int]:
    """Where HTTP is answered."""
    found = serve.status().http_address
    assert found is not None
    return found[0], found[1]


class Connection(http.client.HTTPConnection):
    """A connection that is kept between requests, and is not made again by itself."""

    def __init__(self, where: tuple[str, int] | None = None) -> None:
        super().__init__(*(where or address()), timeout=WITHIN_S)
        self.connect()
        self.auto_open = 0

    def ask(self, path: str, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """Send a request and return the whole answer."""
        self.request(method, path, body, headers or {})
        return self.answer()

    def answer(self) -> Answer:
        """Return the whole answer to the request that was sent."""
        response = self.getresponse()
        fields = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, fields, response.read())

    @property
    def replica(self) -> str:
        """The id of the replica at the other end, whichever application is asked."""
        return self.ask("/-/healthz").headers["x-request-id"].rpartition("-")[0]


def ask(path: str, method: str = "GET", body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    """Ask on a connection of its own."""
    connection = Connection()
    try:
        return connection.ask(path, method, body, headers)
    finally:
        connection.close()


@contextmanager
def connection_to(is_wanted: Callable[[str], bool]) -> Iterator[Connection]:
    """A connection to a replica whose id is wanted. The kernel chooses which replica gets one, so several are made."""
    made: list[Connection] = []

    def make() -> bool:
        made.append(Connection())
        return is_wanted(made[-1].replica)

    try:
        wait_for(make, WITHIN_S, "a connection to the wanted replica")
        yield made[-1]
    finally:
        for each in made:
            each.close()


def raw(data: bytes, until_closed: bool = True) -> bytes:
    """Send bytes and return all that comes until the server closes, or the first piece."""
    with socket.create_connection(address(), WITHIN_S) as sock:
        sock.sendall(data)
        came = b""
        try:
            while piece := sock.recv(1 << 16):
                came += piece
                if not until_closed:
                    break
        except ConnectionResetError:
            pass
        return came


def websocket_url(path: str) -> str:
    """The address of a websocket."""
    host, port = address()
    return f"ws://[{host}]:{port}{path}" if ":" in host else f"ws://{host}:{port}{path}"


def delete_all() -> None:
    """Delete every application. The controller and the port stay for the next test: starting both costs more."""
    for name in serve.status().applications:
        serve.delete(name)


def metrics_of(app: str = "default") -> dict[str, Any]:
    """What the deployment that answers for an application has counted until now."""
    assert ask("/-/metrics").status == 200, "this has the controller ask the replicas"
    found = serve.status().applications[app]
    return found.deployments[found.ingress].metrics


def wait_until_free(app: str = "default") -> None:
    """Wait until no request has a place, or waits for one."""

    def is_free() -> bool:
        counted = metrics_of(app)
        return counted["working"] == 0 and counted["waiting"] == 0

    wait_for(is_free, WITHIN_S, f"all places of {app} to be free")
