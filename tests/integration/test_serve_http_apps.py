"""HTTP of several applications on one port, where it is answered, and who may ask."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.requests import Request
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from serve_http import Connection, address, ask, connection_to, delete_all, websocket_url
from skate import serve
from skate.serve import keeper
from skate.serve.exceptions import ServeError
from skate.serve.keeper import _owner
from waiting import WITHIN_S, wait_for


@serve.deployment
class Named:
    """Answers with its name, by HTTP and over a websocket."""

    def __init__(self, name: str) -> None:
        self.name = name

    @serve.get("/")
    async def root(self) -> dict[str, str]:
        return {"name": self.name, "replica": serve.get_replica_context().replica_tag}

    @serve.get("/deep/{rest}")
    async def deep(self, rest: str) -> dict[str, str]:
        return {"name": self.name, "rest": rest}

    @serve.websocket("/loop")
    async def loop(self, socket: Any) -> None:
        async for array in socket.arrays():
            await socket.send(array + 1)


@serve.deployment
async def caller(request: Request) -> Any:
    return {"path": request.url.path, "root": request.scope["root_path"]}


@pytest.fixture(scope="module", autouse=True)
def _one_port() -> Iterator[None]:
    yield
    serve.shutdown()


@pytest.fixture(autouse=True)
def _ended(runtime: Any) -> Iterator[None]:
    yield
    delete_all()


@pytest.fixture
def own_port() -> Iterator[None]:
    """HTTP with options of its own, which it has from its start to its end."""
    serve.shutdown()
    yield
    serve.shutdown()


def run(name: str, prefix: str, **options: Any) -> None:
    serve.run(Named.bind(name), name=name, route_prefix=prefix, **options)


def test_the_longest_prefix_answers_and_a_deleted_application_leaves_the_others() -> None:
    run("root", "/", port=0)
    run("a", "/a")
    run("ab", "/a/b")
    served = {"/": "root", "/a": "a", "/a/deep/x": "a", "/a/b": "ab", "/a/b/deep/x": "ab", "/deep/a": "root"}
    for path, name in served.items():
        assert ask(path).json["name"] == name, path
    serve.delete("a")
    wait_for(lambda: ask("/a/deep/x").status == 404, WITHIN_S, "the routes to be known")
    for path in ("/a/b", "/"):
        assert ask(path).json["name"] == served[path], path


def test_an_application_answers_at_once_when_run_returns() -> None:
    run("first", "/first", port=0)
    for number in range(3):
        run(f"app{number}", f"/app{number}")
        for _ in range(3):
            assert ask(f"/app{number}").json["name"] == f"app{number}"


def test_websockets_of_every_application_work_through_every_replica() -> None:
    run("one", "/one", port=0)
    run("two", "/two")
    where = address()
    seen = set()

    def talk_to_both() -> bool:
        for name in ("one", "two"):
            with connect(websocket_url(f"/{name}/loop")) as websocket:
                websocket.send(np.zeros(3, np.float32).tobytes())
                came = websocket.recv(WITHIN_S)
                assert isinstance(came, bytes)
                assert np.frombuffer(came, np.float32).tolist() == [1, 1, 1]
        connection = Connection(where)
        seen.add(connection.replica)
        connection.close()
        return len(seen) == 2

    for _ in range(10):
        talk_to_both()
    wait_for(talk_to_both, WITHIN_S, "both replicas to take connections")
    with pytest.raises(InvalidStatus), connect(websocket_url("/nowhere/loop")):
        pass


def test_a_port_of_zero_is_one_that_is_free_on_loopback_alone() -> None:
    run("app", "/", port=0)
    host, port = address()
    assert (host, port > 0) == ("127.0.0.1", True)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), WITHIN_S)


@pytest.mark.usefixtures("own_port")
def test_a_port_that_is_taken_is_said_at_once_with_the_process_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ServeError, match=r"process \d+ listens there: .*(?s:.*)port=0 takes one that is free"):
            run("app", "/", port=port)
    run("app", "/", port=port)
    assert address()[1] == port
    assert f"listens there, of Skate in process {os.getpid()}: " in _owner(port)
    monkeypatch.setattr(keeper, "COMMAND_LENGTH_MAX", 10)
    assert _owner(port).endswith(" …"), "a command line that was cut says so"


def test_another_port_while_http_is_answered_is_refused_with_advice() -> None:
    run("app", "/", port=0)
    with pytest.raises(ServeError, match=r"(?s)answered already.*serve\.shutdown\(\)"):
        run("other", "/other", port=address()[1] + 1)
    assert ask("/").json["name"] == "app"
    serve.start()  # it asks for nothing else
    run("other", "/other", port=address()[1])
    assert ask("/other").json["name"] == "other"


@pytest.mark.usefixtures("own_port")
def test_a_token_is_asked_for_everywhere_but_for_health_and_messages_have_a_limit() -> None:
    run("app", "/", http_options={"port": 0, "token": "open sesame", "max_websocket_bytes": 4000})
    right = {"Authorization": "Bearer open sesame"}
    assert ask("/", headers={"Authorization": "bearer open sesame"}).status == 200
    for path in ("/", "/nowhere", "/-/routes", "/-/metrics"):
        refused = ask(path)
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        for wrong in ("Bearer open sesamE", "Basic open sesame", "open sesame", "Bearer"):
            assert ask(path, headers={"Authorization": wrong}).status == 401
        assert ask(path, headers=right).status in (200, 404)
    assert ask("/-/healthz").status == 200
    with pytest.raises(InvalidStatus, match="401"), connect(websocket_url("/loop")):
        pass
    with connect(websocket_url("/loop"), additional_headers=right) as websocket:
        websocket.send(np.zeros(1, np.float32).tobytes())
        assert websocket.recv(WITHIN_S) == np.ones(1, np.float32).tobytes()
        websocket.send(np.zeros(1001, np.float32).tobytes())
        with pytest.raises(ConnectionClosed) as closed:
            websocket.recv(WITHIN_S)
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


@pytest.mark.usefixtures("own_port")
def test_a_page_of_an_origin_that_is_allowed_is_asked_for_the_token_and_may_read_the_answers() -> None:
    """Also of another application, which its request is passed on to."""
    run("app", "/", http_options={"port": 0, "token": "t", "allowed_origins": ("https://friend.example",)})
    run("other", "/other")
    friend = {"Origin": "https://friend.example"}
    may_i = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for path in ("/", "/other"):
        told = ask(path, "OPTIONS", headers=friend | may_i)
        assert (told.status, told.headers["access-control-allow-headers"]) == (204, "authorization")
        assert ask(path, "OPTIONS", headers={"Origin": "https://elsewhere.example"} | may_i).status == 401
        for token, status in (("t", 200), ("wrong", 401)):
            answer = ask(path, headers=friend | {"Authorization": f"Bearer {token}"})
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == "https://friend.example"
            assert answer.headers["vary"] == "origin"
        answer = ask(path, headers={"Origin": "https://elsewhere.example", "Authorization": "Bearer t"})
        assert answer.status == 200
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["vary"] == "origin"


@pytest.mark.usefixtures("own_port")
def test_options_of_http_are_kept_to() -> None:
    """These do not disturb each other, so one port shows them all: an address, a path, origins, tracebacks."""

    @serve.deployment
    async def fails(request: Request) -> None:
        raise ValueError("shown")

    friends = ("https://friend.example",)
    options = {"host": "::1", "port": 0, "root_path": "/outside", "allowed_origins": friends, "show_tracebacks": True}
    serve.run(caller.bind(), name="app", route_prefix="/app", http_options=options)
    serve.run(fails.bind(), name="fails", route_prefix="/fails")
    assert address()[0] == "::1"

    assert ask("/app/x").json == {"path": "/outside/app/x", "root": "/outside/app"}, "a server in front has a path"
    assert ask("/-/healthz").status == 200

    assert ask("/app", "POST", headers={"Origin": "https://friend.example"}).status == 200
    assert ask("/app", "POST", headers={"Origin": "https://friend.example:81"}).status == 403
    assert ask("/app", "POST", headers={"Origin": "https://elsewhere.example"}).status == 403

    assert "ValueError: shown" in ask("/fails").text


def test_a_client_of_an_application_without_replicas_waits_for_one() -> None:
    """The keeper watches the socket, and a connection starts a replica that answers it."""
    scaled = Named.options(autoscaling_config={"min_replicas": 0, "initial_replicas": 0, "max_replicas": 1})
    serve.run(scaled.bind("sleeper"), port=0)
    assert serve.status().applications["default"].deployments["Named"].replica_states == {}
    answers: list[Any] = []
    clients = [threading.Thread(target=lambda: answers.append(ask("/").json["name"])) for _ in range(5)]
    for each in clients:
        each.start()
    for each in clients:
        each.join(WITHIN_S)
    assert answers == 5 * ["sleeper"]


def test_a_request_through_another_replica_waits_for_an_application_without_replicas() -> None:
    run("awake", "/awake", port=0)
    scaled = Named.options(autoscaling_config={"min_replicas": 0, "initial_replicas": 0, "max_replicas": 1})
    serve.run(scaled.bind("sleeper"), name="sleeper", route_prefix="/sleeper")
    body = {"method": "GET", "body": b"some body"}
    assert ask("/sleeper/deep/1", **body).json == {"name": "sleeper", "rest": "1"}


def test_a_full_replica_hands_requests_to_a_sibling_with_a_free_place() -> None:
    """All clients are connected to one of two replicas that work on one request at a time."""

    @serve.deployment(num_replicas=2, max_ongoing_requests=1)
    class Slow:
        async def __call__(self, request: Request) -> Any:
            import asyncio

            await asyncio.sleep(0.05)
            return {"replica": serve.get_replica_context().replica_tag, "body": (await request.body()).decode()}

    serve.run(Slow.bind(), port=0)
    with connection_to(lambda _: True) as first:
        own = first.replica
        with connection_to(lambda replica: replica == own) as second:
            helpers: set[str] = set()

            def ask_both() -> bool:
                first.request("POST", "/", b"first")
                second.request("POST", "/", b"second")
                answers = [first.answer().json, second.answer().json]
                assert [each["body"] for each in answers] == ["first", "second"]
                helpers.update(each["replica"] for each in answers)
                return len(helpers) == 2

            wait_for(ask_both, WITHIN_S, "the sibling to help")
            assert own in helpers
