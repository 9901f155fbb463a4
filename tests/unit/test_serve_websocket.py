"""The socket of `@serve.websocket`: what comes in and goes out, and how each connection ends."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
import starlette.websockets
from test_serve_routes import served
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from skate.serve import routes as serve
from skate.serve.sockets import Disconnected, WebSocket

HTTP_REFUSALS = {"extensions": {"websocket.http.response": {}}}


def talk(instance: Any, target: str, incoming: Sequence[Any] = (), ends_with: int = 1000, **more: Any) -> list[Any]:
    """Connect, send all messages, go with a close code; returns what the app sent."""
    path, _, query = target.partition("?")
    events: list[dict[str, Any]] = [{"type": "websocket.connect"}]
    events += [{"type": "websocket.receive", "text" if isinstance(m, str) else "bytes": m} for m in incoming]
    events.append({"type": "websocket.disconnect", "code": ends_with})
    events.reverse()
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.sleep(0)
        return events.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "websocket", "path": path, "query_string": query.encode(), "headers": [(b"X-A", b"1")], **more}
    app = serve.RoutesApp(instance, serve.routes_of(type(instance)))
    talk.sent = sent  # type: ignore[attr-defined]
    asyncio.run(app(scope, receive, send))
    return sent


ACCEPT = {"type": "websocket.accept", "subprotocol": None, "headers": []}


def close(code: int, reason: str = "") -> dict[str, Any]:
    return {"type": "websocket.close", "code": code, "reason": reason}


class Query(msgspec.Struct):
    x: int


class Sockets:
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.over: Any = None

    @serve.websocket("/loop")
    async def loop(self, socket):  # type: ignore[no-untyped-def]
        async for observation in socket.arrays():
            self.seen.append(observation)
            await socket.send(observation * 2)

    @serve.websocket("/images")
    async def images(self, socket: WebSocket) -> None:
        async for image in socket.arrays(dtype=np.uint8, shape=(-1, 2, 2)):
            self.seen.append(image)

    @serve.websocket("/echo/{name}")
    async def echo(self, socket: WebSocket, name: str, n: int = 0) -> None:
        self.seen += [socket.path_params, socket.query, socket.headers["x-a"], name, n]
        async for message in socket:
            await socket.send(message)

    @serve.websocket("/typed")
    async def typed(self, socket: WebSocket) -> None:
        async for query in socket.json(Query):
            await socket.send({"x": query.x + 1, "a": np.arange(2)})

    @serve.websocket("/chosen")
    async def chosen(self, socket: WebSocket) -> None:
        await socket.accept(subprotocol="raw", headers={"X-B": "2"})
        await socket.close(4000, "ü" * 100)
        await socket.close()

    @serve.websocket("/returns")
    async def returns(self, socket: WebSocket) -> None:
        return None

    @serve.websocket("/raises")
    async def raises(self, socket: WebSocket) -> None:
        await socket.receive()
        raise ZeroDivisionError

    @serve.websocket("/raises-early")
    async def raises_early(self, socket: WebSocket) -> None:
        raise ZeroDivisionError

    @serve.websocket("/pushes")
    async def pushes(self, socket: WebSocket) -> None:
        try:
            while True:
                await socket.receive()
        except Disconnected as error:
            self.over = error
        await socket.send("too late")

    @serve.websocket("/both")
    async def both(self, socket: WebSocket) -> None:
        await asyncio.gather(socket.send("hello"), socket.receive())

    @serve.websocket("/starlette")
    async def starlette(self, socket: starlette.websockets.WebSocket) -> None:
        await socket.accept()
        while True:
            await socket.send_text(await socket.receive_text())


def test_each_binary_frame_is_an_array_over_its_own_bytes() -> None:
    sockets, frame = Sockets(), np.arange(3, dtype=np.float32).tobytes()
    sent = talk(sockets, "/loop", [frame, b""])
    assert sent[0] == ACCEPT
    assert [each["bytes"] for each in sent[1:]] == [np.array([0, 2, 4], np.float32).tobytes(), b""]
    first = sockets.seen[0]
    assert first.dtype == np.float32
    assert not first.flags.writeable
    assert first.base is frame


def test_arrays_have_the_shape_that_is_asked_for() -> None:
    sockets = Sockets()
    talk(sockets, "/images", [bytes(range(8))])
    assert sockets.seen[0].shape == (2, 2, 2)
    assert not sockets.seen[0].flags.writeable


@pytest.mark.parametrize(
    ("path", "message", "code", "reason"),
    [
        ("/loop", b"12345", 1007, "a frame of 5 bytes does not fit items of float32 (4 bytes)"),
        ("/loop", "text", 1003, "expected binary frames of float32, got text"),
        ("/images", b"12345", 1007, "a frame of 5 bytes does not fit items of uint8 (1 bytes) in the shape (-1, 2, 2)"),
        ("/typed", "{", 1007, "Input data was truncated"),
        ("/typed", '{"x": "a"}', 1007, "Expected `int`, got `str` - at `$.x`"),
    ],
)
def test_a_message_that_does_not_fit_closes_the_socket_and_says_why(
    path: str, message: Any, code: int, reason: str
) -> None:
    assert talk(Sockets(), path, [message]) == [ACCEPT, close(code, reason)]


def test_messages_come_and_go_as_they_are() -> None:
    sockets = Sockets()
    sent = talk(sockets, "/echo/me?n=3", [b"a", "b"])
    assert sent[1:] == [{"type": "websocket.send", "bytes": b"a"}, {"type": "websocket.send", "text": "b"}]
    assert sockets.seen == [{"name": "me"}, {"n": "3"}, "1", "me", 3]


def test_json_is_decoded_to_its_type_and_everything_else_is_sent_as_json() -> None:
    assert talk(Sockets(), "/typed", ['{"x": 1}'])[1] == {"type": "websocket.send", "text": '{"x":2,"a":[0,1]}'}


def test_a_handler_may_accept_and_close_by_itself() -> None:
    accepted, closed = talk(Sockets(), "/chosen")
    assert accepted == {"type": "websocket.accept", "subprotocol": "raw", "headers": [(b"x-b", b"2")]}
    assert closed == close(4000, "ü" * 61)


def test_a_handler_that_returns_closes_normally() -> None:
    assert talk(Sockets(), "/returns") == [ACCEPT, close(1000)]


def test_a_handler_that_raises_closes_with_1011_and_the_exception_goes_on() -> None:
    with pytest.raises(ZeroDivisionError):
        talk(Sockets(), "/raises", ["x"])
    assert talk.sent == [ACCEPT, close(1011, "the handler failed")]  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        talk(Sockets(), "/raises-early", **HTTP_REFUSALS)
    assert talk.sent[0]["status"] == 500  # type: ignore[attr-defined]


@pytest.mark.parametrize("code", [1001, 1012])
def test_the_end_of_a_connection_ends_the_handler_quietly(code: int) -> None:
    """Code 1012 is that of a server which is replaced."""
    sockets = Sockets()
    assert talk(sockets, "/pushes", ["a", "b"], ends_with=code) == [ACCEPT]
    assert sockets.over.code == code


def test_sending_and_receiving_may_begin_at_the_same_time() -> None:
    assert talk(Sockets(), "/both", ["x"]) == [ACCEPT, {"type": "websocket.send", "text": "hello"}, close(1000)]


def test_starlettes_own_socket_is_given_where_it_is_asked_for() -> None:
    sent = talk(Sockets(), "/starlette", ["a"])
    assert sent[1] == {"type": "websocket.send", "text": "a"}


def test_what_no_websocket_answers_is_refused() -> None:
    assert talk(Sockets(), "/nothing", **HTTP_REFUSALS)[0]["status"] == 404
    assert talk(Sockets(), "/nothing") == [{"type": "websocket.close", "code": 1000}]
    assert talk(Sockets(), "/echo/me?n=x", **HTTP_REFUSALS)[0]["status"] == 422


def test_handlers_that_cannot_serve_a_websocket_are_named() -> None:
    class Plain:
        @serve.websocket("/x")
        def plain(self, socket: WebSocket) -> None: ...

    class Without:
        @serve.websocket("/x")
        async def without(self) -> None: ...

    class Body:
        @serve.websocket("/x")
        async def body(self, socket: WebSocket, query: Query) -> None: ...

    class Http:
        @serve.get("/x")
        async def http(self, socket: WebSocket) -> None: ...

    for cls, what in ((Plain, "async def plain"), (Without, "no socket"), (Body, "has none"), (Http, "has none")):
        with pytest.raises(TypeError, match=what):
            serve.routes_of(cls)


def test_a_real_client_plays_a_loop() -> None:
    with served(serve.RoutesApp(Sockets(), serve.routes_of(Sockets))) as port:
        address = f"ws://127.0.0.1:{port}"
        with connect(f"{address}/loop") as client:
            for step in range(5):
                client.send(np.full(4, step, np.float32).tobytes())
                answer = client.recv()
                assert isinstance(answer, bytes)
                assert np.frombuffer(answer, np.float32).tolist() == [2.0 * step] * 4
            client.send(b"odd")
            with pytest.raises(Exception, match="1007"):
                client.recv()
        with pytest.raises(InvalidStatus) as refused:
            connect(f"{address}/nothing")
        assert refused.value.response.status_code == 404
        with connect(f"{address}/starlette") as client:
            client.send("x")
            assert client.recv() == "x"
