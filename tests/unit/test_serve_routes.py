"""Classes with routes answer HTTP: what the decorators accept, where arguments come from, what answers look like."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypedDict

import cloudpickle
import msgspec
import numpy as np
import pytest
import uvicorn
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from skate.serve import routes as serve
from skate.serve.responses import respond
from waiting import wait_for

if TYPE_CHECKING:
    from starlette.requests import Request as CheckedOnly


class Answer(NamedTuple):
    """What a client sees of a response."""

    status: int
    headers: dict[str, str]
    body: bytes
    messages: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def app_of(cls: type, **hooks: Any) -> serve.RoutesApp:
    return serve.RoutesApp(cls(), serve.routes_of(cls), **hooks)


def scope_of(method: str, target: str, **more: Any) -> dict[str, Any]:
    path, _, query = target.partition("?")
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": []}
    return {**scope, "root_path": "", **more}


def ask(app: Any, method: str, target: str, body: bytes = b"", kind: str = "application/json", **more: Any) -> Answer:
    """Drive an ASGI app with one request. The client stays until it has the answer."""

    async def run() -> Answer:
        pieces = [body[at : at + 7] for at in range(0, len(body), 7)]
        incoming = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
        incoming.append({"type": "http.request", "body": b"", "more_body": False})
        incoming.reverse()
        sent: list[Any] = []

        async def receive() -> Any:
            return incoming.pop() if incoming else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-type", kind.encode())]
        await app(scope_of(method, target, headers=headers, **more), receive, send)
        assert not sent[-1].get("more_body")
        fields = {name.decode(): text.decode() for name, text in sent[0]["headers"]}
        return Answer(sent[0]["status"], fields, b"".join(each["body"] for each in sent[1:]), len(sent))

    return asyncio.run(run())


class Query(msgspec.Struct):
    observation: list[float]
    deterministic: bool = True


@dataclass
class Point:
    x: float
    y: float = 0.0


class Named(TypedDict):
    name: str


class Api:
    """Routes of every kind."""

    @serve.get("/")
    def root(self) -> str:
        return "hello"

    @serve.get("/runs")
    @serve.get("/all-runs")
    async def runs(self, limit: int = 10, only: str | None = None, fast: bool = False) -> dict[str, Any]:
        return {"limit": limit, "only": only, "fast": fast}

    @serve.get("/runs/{run}/steps/{step}")
    async def step(self, run: str, step: int) -> list[Any]:
        return [run, step]

    @serve.get("/runs/latest")
    async def latest(self) -> str:
        return "latest"

    @serve.delete("/runs/{run}")
    async def remove(self, run: str) -> None:
        return None

    @serve.get("/files/{name:path}")
    async def file(self, name: str) -> str:
        return name

    @serve.post("/act")
    async def act(self, query: Query) -> dict[str, Any]:
        return {"action": np.asarray(query.observation, np.float32) * 2, "n": np.int64(3)}

    @serve.post("/point/{name}")
    def point(self, name: str, point: Point, *, scale: float = 1.0) -> Point:
        return Point(point.x * scale, point.y * scale)

    @serve.put("/list")
    async def total(self, numbers: list[int]) -> int:
        return sum(numbers)

    @serve.post("/named")
    async def named(self, who: Named | None = None) -> Any:
        return who

    @serve.post("/raw")
    async def raw(self, data: bytes) -> bytes:
        return data[::-1]

    @serve.get("/limited")
    async def limited(self, n: Annotated[int, msgspec.Meta(ge=1)]) -> int:
        return n

    @serve.get("/sum")
    async def sum(self, x: list[int], words: set[str] | None = None, y: tuple[float, ...] = (1.0,)) -> Any:
        return [x, sorted(words or ()), y]

    @serve.post("/starlette")
    async def starlette(self, request: Request) -> PlainTextResponse:
        return PlainTextResponse(await request.body(), 201, {"x-path": request.url.path})

    @serve.get("/checked/{name}")
    async def checked(self, name: str, request: CheckedOnly) -> str:
        return f"{request.method} {request.path_params['name']}"

    @serve.get("/teapot")
    def teapot(self) -> None:
        raise HTTPException(418, "short and stout", {"x-tea": "green"})

    @serve.get("/broken")
    def broken(self) -> None:
        raise ZeroDivisionError("one by zero")

    @serve.get("/odd")
    def odd(self) -> dict[str, Any]:
        return {"lock": threading.Lock()}

    @serve.get("/lines")
    def lines(self) -> Iterator[Any]:
        yield {"step": 1}
        yield Point(1.0, 2.0)

    @serve.get("/text")
    async def text(self) -> AsyncIterator[str]:
        yield "a"
        yield "ü"

    @serve.get("/bytes")
    def chunks(self) -> Iterator[bytes]:
        yield b"\x00"
        yield b"\xff"


@pytest.fixture(scope="module")
def app() -> serve.RoutesApp:
    return app_of(Api)


# -- requests and answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/", "hello"),
        ("GET", "/runs", {"limit": 10, "only": None, "fast": False}),
        ("GET", "/all-runs?limit=3&only=a%20b&fast=true", {"limit": 3, "only": "a b", "fast": True}),
        ("GET", "/runs/one/steps/7", ["one", 7]),
        ("GET", "/runs/latest", "latest"),
        ("DELETE", "/runs/latest", None),
        ("GET", "/files/a/b.txt", "a/b.txt"),
        ("GET", "/limited?n=1", 1),
        ("GET", "/checked/me", "GET me"),
    ],
)
def test_arguments_come_from_path_and_query(app: Any, method: str, target: str, expected: Any) -> None:
    answer = ask(app, method, target)
    assert (answer.status, answer.json) == (200, expected)
    assert answer.headers == {"content-type": "application/json", "content-length": str(len(answer.body))}
    assert answer.messages == 2


def test_a_body_is_decoded_to_its_type(app: Any) -> None:
    assert ask(app, "POST", "/act", b'{"observation": [1, 2.5]}').json == {"action": [2.0, 5.0], "n": 3}
    assert ask(app, "POST", "/point/p?scale=2", b'{"x": 1.5}').json == {"x": 3.0, "y": 0.0}
    assert ask(app, "PUT", "/list", b"[1, 2, 3]").json == 6
    assert ask(app, "POST", "/named", b'{"name": "ada"}').json == {"name": "ada"}
    assert ask(app, "POST", "/named").json is None
    packed = msgspec.msgpack.encode([4, 5])
    for kind in ("application/msgpack", "application/x-msgpack; v=1"):
        assert ask(app, "PUT", "/list", packed, kind).json == 9


def test_raw_bytes_go_in_and_out(app: Any) -> None:
    answer = ask(app, "POST", "/raw", b"0123456789")
    assert (answer.body, answer.headers["content-type"]) == (b"9876543210", "application/octet-stream")


def test_starlette_requests_and_responses_are_passed_through(app: Any) -> None:
    answer = ask(app, "POST", "/starlette", b"a longer body")
    assert (answer.status, answer.body, answer.headers["x-path"]) == (201, b"a longer body", "/starlette")


def test_a_wrong_body_is_refused_and_the_field_is_named(app: Any) -> None:
    wrong = ask(app, "POST", "/act", b'{"observation": [1, 2, 3, "x"]}')
    assert (wrong.status, wrong.json["field"]) == (422, "$.observation[3]")
    assert wrong.json["error"] == "Expected `float`, got `str`"
    missing = ask(app, "POST", "/act", b"{}")
    assert (missing.status, missing.json["field"]) == (422, "$.observation")
    assert ask(app, "POST", "/act").json == {"error": "the request has no body", "field": "$"}
    deep = ask(app, "POST", "/named", b'{"a":' * 50_000)
    assert deep.status == 400


@pytest.mark.parametrize("body", [b'{"observation": [1,]}', b"{", b"\xff", b'{"observation": "\xff"}'])
def test_malformed_json_is_a_bad_request(app: Any, body: bytes) -> None:
    answer = ask(app, "POST", "/act", body)
    assert answer.status in (400, 422)
    assert answer.json["error"]
    if body.endswith(b",]}"):
        assert answer.json["error"].endswith("(byte 19)")


@pytest.mark.parametrize(
    ("target", "field"), [("/limited", "n"), ("/limited?n=0", "n"), ("/limited?n=x", "n"), ("/runs/r/steps/x", "step")]
)
def test_a_wrong_or_missing_parameter_is_named(app: Any, target: str, field: str) -> None:
    answer = ask(app, "GET", target)
    assert (answer.status, answer.json["field"]) == (422, field)


def test_a_list_in_a_get_request_is_a_parameter_that_is_repeated(app: Any) -> None:
    assert ask(app, "GET", "/sum?x=1&words=b&x=2&words=a&words=b").json == [[1, 2], ["a", "b"], [1.0]]
    assert ask(app, "GET", "/sum?x=7&y=0.5").json == [[7], [], [0.5]]
    for target in ("/sum", "/sum?x=1&x=two"):
        answer = ask(app, "GET", target)
        assert (answer.status, answer.json["field"]) == (422, "x")


def test_unknown_paths_and_wrong_methods_are_told_apart(app: Any) -> None:
    for path in ("/nothing", "/runs/", "/runs/a/steps/", "//", "/runs/latest/"):
        assert ask(app, "GET", path).status == 404
    wrong = ask(app, "POST", "/runs/latest")
    assert (wrong.status, wrong.headers["allow"]) == (405, "DELETE, GET, HEAD")


def test_head_has_the_headers_of_get_and_no_body(app: Any) -> None:
    got, head = ask(app, "GET", "/runs"), ask(app, "HEAD", "/runs")
    assert (head.status, head.headers, head.body) == (200, got.headers, b"")
    assert ask(app, "HEAD", "/lines").body == b""


def test_the_prefix_of_the_application_is_no_part_of_the_path(app: Any) -> None:
    assert ask(app, "GET", "/brain/runs/latest", root_path="/brain").json == "latest"
    assert ask(app, "GET", "/brain", root_path="/brain").json == "hello"
    assert ask(app, "GET", "/brainless", root_path="/brain").status == 404


def test_generators_are_streamed(app: Any) -> None:
    lines = ask(app, "GET", "/lines")
    assert lines.body == b'{"step":1}\n{"x":1.0,"y":2.0}\n'
    assert lines.headers == {"content-type": "application/x-ndjson"}
    text = ask(app, "GET", "/text")
    assert (text.body.decode(), text.headers["content-type"]) == ("aü", "text/plain; charset=utf-8")
    assert ask(app, "GET", "/bytes").headers["content-type"] == "application/octet-stream"


def test_an_http_exception_is_the_answer_it_asks_for(app: Any) -> None:
    answer = ask(app, "GET", "/teapot")
    assert (answer.status, answer.json, answer.headers["x-tea"]) == (418, {"error": "short and stout"}, "green")


def test_other_exceptions_come_out_of_the_app(app: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        ask(app, "GET", "/broken")
    with pytest.raises(TypeError, match=r"Api\.odd returned a dict .*\n.*_thread\.lock"):
        ask(app, "GET", "/odd")


class Text(str):
    """A string of a class of its own, as many libraries have."""


class Number(float):
    """A number of the same kind."""


@pytest.mark.parametrize("kind", [str, Text])
def test_a_str_is_plain_text_where_that_is_asked_for(kind: type[str]) -> None:
    async def call(scope: Any, receive: Any, send: Any) -> None:
        await respond(kind("héllo"), scope, receive, send, plain_text=True)

    answer = ask(call, "GET", "/")
    assert (answer.body.decode(), answer.headers["content-type"]) == ("héllo", "text/plain; charset=utf-8")


def test_strings_and_numbers_of_subclasses_are_written_as_what_they_are() -> None:
    async def call(scope: Any, receive: Any, send: Any) -> None:
        await respond({"a": [Text("b"), Number(1.5)]}, scope, receive, send, plain_text=False)

    assert ask(call, "GET", "/").json == {"a": ["b", 1.5]}


def test_handlers_and_items_go_through_the_hooks() -> None:
    called: list[str] = []

    async def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        called.append(function.__name__)
        return await serve.call_handler(function, *args, **kwargs)

    async def fetch(function: Any, *args: Any) -> Any:
        called.append(function.__name__)
        return await asyncio.to_thread(function, *args)

    assert ask(app_of(Api, call=call, fetch=fetch), "GET", "/lines").status == 200
    assert called == ["lines", "next", "next", "next", "close"]


def test_plain_functions_run_in_threads_and_coroutines_in_the_loop() -> None:
    class Where:
        @serve.get("/plain")
        def plain(self) -> bool:
            return threading.current_thread() is threading.main_thread()

        @serve.get("/coroutine")
        async def coroutine(self) -> bool:
            return threading.current_thread() is threading.main_thread()

    where = app_of(Where)
    assert (ask(where, "GET", "/plain").json, ask(where, "GET", "/coroutine").json) == (False, True)


# -- clients that go away ----------------------------------------------------------------------------------------------


class Slow:
    """Handlers that last until their client goes."""

    def __init__(self) -> None:
        self.began, self.ended = asyncio.Event(), asyncio.Event()
        self.closed = threading.Event()

    @serve.post("/wait")
    async def wait(self, numbers: list[int]) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    @serve.get("/stream")
    async def stream(self) -> AsyncIterator[str]:
        try:
            yield "first"
            self.began.set()
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    @serve.get("/count")
    def count(self) -> Iterator[int]:
        try:
            number = 0
            while True:
                yield (number := number + 1)
        finally:
            self.closed.set()


@pytest.mark.parametrize("hook", [True, False])
@pytest.mark.parametrize(("method", "path"), [("POST", "/wait"), ("GET", "/stream"), ("GET", "/count")])
def test_a_handler_ends_when_its_client_goes(method: str, path: str, hook: bool) -> None:
    """Both ways to notice it: the hook of the server, and `receive`. A handler that is cancelled raises nothing."""

    async def run() -> None:
        slow = Slow()
        gone, callbacks = asyncio.Event(), []
        incoming = [{"type": "http.request", "body": b"[1]"}]

        async def receive() -> Any:
            if not incoming:
                await gone.wait()
            return incoming.pop() if incoming else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message.get("body"):
                slow.began.set()
            # As a server does whose connection can take more.
            await asyncio.sleep(0)

        extensions = {"skate.disconnect": callbacks.append} if hook else {}
        app = serve.RoutesApp(slow, serve.routes_of(Slow))
        request = asyncio.ensure_future(app(scope_of(method, path, extensions=extensions), receive, send))
        await slow.began.wait()
        if hook:
            for callback in callbacks:
                callback()
        else:
            gone.set()
        await asyncio.wait_for(request, 20)
        if path == "/count":
            assert await asyncio.to_thread(slow.closed.wait, 20)
        else:
            assert slow.ended.is_set()

    asyncio.run(run())


def test_a_stream_ends_quietly_when_the_server_cannot_send_it() -> None:
    async def run() -> Slow:
        slow = Slow()

        async def receive() -> Any:
            return await asyncio.Event().wait()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                raise OSError("the client has gone")

        await serve.RoutesApp(slow, serve.routes_of(Slow))(scope_of("GET", "/count"), receive, send)
        return slow

    assert asyncio.run(run()).closed.is_set()


def test_a_handler_that_is_cancelled_from_outside_stays_cancelled() -> None:
    async def run() -> None:
        slow = Slow()

        async def receive() -> Any:
            return {"type": "http.request", "body": b"[]"} if not slow.began.is_set() else await asyncio.Event().wait()

        app = serve.RoutesApp(slow, serve.routes_of(Slow))
        request = asyncio.ensure_future(app(scope_of("POST", "/wait"), receive, receive))
        await slow.began.wait()
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request

    asyncio.run(run())


# -- mistakes in the class ---------------------------------------------------------------------------------------------


def test_a_decorator_without_parentheses_says_how_it_is_written() -> None:
    with pytest.raises(TypeError, match=r'write @serve\.get\("/path"\)'):

        @serve.get
        def forgot(self: Any) -> None: ...


@pytest.mark.parametrize("path", ["runs", "", "/{", "/}", "/{}", "/{a}/{a}", "/{a-b}", "/{a:int}", "/{{a}}", "/{a"])
def test_paths_that_cannot_be_read(path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        serve.get(path)


def test_only_methods_have_routes() -> None:
    with pytest.raises(TypeError, match="no method"):
        serve.get("/x")(staticmethod(len))
    with pytest.raises(TypeError, match="no method"):
        serve.get("/x")(Point)

    class Under:
        @staticmethod
        @serve.get("/x")
        def static() -> None: ...

    with pytest.raises(TypeError, match=r"Under\.static"):
        serve.routes_of(Under)


def test_two_methods_cannot_have_the_same_route() -> None:
    class Twice:
        @serve.get("/runs/{a}")
        def one(self, a: str) -> None: ...

        @serve.get("/runs/{b}")
        def two(self, b: str) -> None: ...

    with pytest.raises(ValueError, match=r"Twice\.one and Twice\.two"):
        serve.routes_of(Twice)


def one_route(handler: Any, path: str = "/x") -> list[serve.Route]:
    return serve.routes_of(type("Api", (), {"handler": serve.post(path)(handler)}))


def test_signatures_that_no_request_can_fill() -> None:
    def two_bodies(self: Any, a: Point, b: Query) -> None: ...
    def anything(self: Any, *args: int) -> None: ...
    def array(self: Any, a: np.ndarray) -> None: ...
    def unknown(self: Any, a: Unknown) -> None: ...  # type: ignore[name-defined] # noqa: F821
    def nothing(self: Any) -> None: ...

    with pytest.raises(TypeError, match=r"parameter b .*second body"):
        one_route(two_bodies)
    with pytest.raises(TypeError, match=r"parameter args .*any arguments"):
        one_route(anything)
    with pytest.raises(TypeError, match=r"parameter a .*cannot be read from a request"):
        one_route(array)
    with pytest.raises(TypeError, match=r"(?s)parameter a .*'Unknown' cannot be resolved.*top of the module"):
        one_route(unknown)
    with pytest.raises(TypeError, match=r"names run, and Api\.handler has no such parameter"):
        one_route(nothing, "/{run}")


def test_types_that_are_local_to_a_function_are_found_and_travel_with_the_class() -> None:
    """The other process has neither this function's names nor its module's: the class goes there by value."""

    class Local(msgspec.Struct):
        x: int

    class Brain:
        @serve.post("/act")
        async def act(self, query: Local, scale: Annotated[int, msgspec.Meta(ge=1)] = 1) -> list[Local]:
            return [Local(query.x * scale)]

        @serve.get("/{part}")
        async def one_part(self, part: str) -> str:
            return part

        @serve.get("/{rest:path}")
        async def all_the_rest(self, rest: str) -> str:
            return rest

    assert ask(app_of(Brain), "POST", "/act?scale=2", b'{"x": 2}').json == [{"x": 4}]
    program = (
        "import sys, pickle; from skate.serve import routes\n"
        "cls = pickle.load(sys.stdin.buffer)\n"
        "print([(each.name, str(each.annotation)) for each in routes.routes_of(cls)[0].parameters])\n"
        "print([each.name for each in routes.routes_of(cls)])"
    )
    result = subprocess.run([sys.executable, "-c", program], input=cloudpickle.dumps(Brain), capture_output=True)
    assert "Local'" in result.stdout.decode(), result.stderr.decode()
    assert "Meta(ge=1)" in result.stdout.decode()
    # The first pattern that fits answers, so their order is a promise.
    assert "['act', 'one_part', 'all_the_rest']" in result.stdout.decode()


def test_a_method_that_overrides_one_with_routes_keeps_them() -> None:
    class Base:
        @serve.get("/x")
        def x(self) -> int:
            return 1

    class Derived(Base):
        def x(self) -> int:
            return 2

    assert ask(app_of(Derived), "GET", "/x").json == 2
    assert ask(app_of(Base), "GET", "/x").json == 1


def test_routes_can_be_pickled() -> None:
    routes = serve.routes_of(Api)
    assert pickle.loads(pickle.dumps(routes)) == routes


def test_the_decorators_need_neither_starlette_nor_numpy() -> None:
    program = (
        "import sys; from skate.serve import routes\n"
        "print([each for each in ('starlette', 'numpy', 'uvicorn', 'fastapi') if each in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


# -- a real server -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def served(app: Any) -> Iterator[int]:
    """Serve an app with uvicorn in a thread, and give its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(app, http="httptools", ws="websockets-sansio", lifespan="off", log_level="error")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            wait_for(lambda: server.started, 20, "uvicorn to serve")
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def test_a_real_server_answers_on_one_connection() -> None:
    with served(app_of(Api)) as port, contextlib.closing(http.client.HTTPConnection("127.0.0.1", port)) as client:
        for method, path, body, expected in (
            ("GET", "/runs/a/steps/3", None, b'["a",3]'),
            ("POST", "/act", b'{"observation":[1]}', b'{"action":[2.0],"n":3}'),
            ("GET", "/lines", None, b'{"step":1}\n{"x":1.0,"y":2.0}\n'),
            ("HEAD", "/runs", None, b""),
            ("GET", "/files/a%20b", None, b'"a b"'),
        ):
            client.request(method, path, body)
            assert client.getresponse().read() == expected


def test_a_real_server_cancels_a_handler_whose_client_has_gone() -> None:
    class Waits:
        ended = threading.Event()
        began = threading.Event()

        @serve.get("/wait")
        async def wait(self) -> None:
            self.began.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()

    with served(app_of(Waits)) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
            assert Waits.began.wait(20)
            assert not Waits.ended.is_set()
        assert Waits.ended.wait(20)
