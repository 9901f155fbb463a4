"""`serve.ingress`: routes of methods know their instance, apps travel to replicas, and lifespans run."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import cloudpickle
import pytest
from fastapi import APIRouter, Depends, FastAPI, Header, Response, WebSocket
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient

from skate import serve
from skate.serve.asgi_class import Lifespan, asgi_app_of, ingress
from skate.serve.exceptions import ServeError


class Item(BaseModel):
    n: int
    note: str = ""


class Public(BaseModel):
    n: int


def page(size: int = 10) -> int:
    return size


def arrived(cls: Any) -> Any:
    """The class as a replica gets it."""
    return cloudpickle.loads(cloudpickle.dumps(cls))


def client_of(cls: Any, *args: Any, root_path: str = "") -> TestClient:
    app = asgi_app_of(arrived(cls)(*args))
    assert app is not None
    return TestClient(app, root_path=root_path)


def fastapi_class() -> Any:
    app = FastAPI(title="Counts")
    router = APIRouter(prefix="/router", tags=["routed"])

    @app.get("/plain")
    def plain(x: int) -> int:
        return x

    @ingress(app)
    class Api:
        def __init__(self, start: int) -> None:
            self.count = start

        @app.get("/add")
        def add(self, x: int, size: Annotated[int, Depends(page)]) -> dict[str, int]:
            """Add to the count."""
            return {"count": self.count + x, "size": size}

        @app.post("/items/{key}", response_model=Public, status_code=201, tags=["items"], summary="Make it")
        async def make(self, key: str, item: Item, response: Response, x_user: Annotated[str, Header()] = "-") -> Any:
            response.headers["x-made"] = f"{key} {x_user} {self.count}"
            return item

        @app.get("/lines")
        def lines(self, n: int) -> Iterator[Item]:
            for i in range(n):
                yield Item(n=self.count + i)

        @app.get("/text")
        async def text(self) -> StreamingResponse:
            return StreamingResponse(iter([str(self.count), "!"]))

        @app.websocket("/ws/{name}")
        async def talk(self, websocket: WebSocket, name: str, size: int = Depends(page)) -> None:
            await websocket.accept()
            await websocket.send_json([name, self.count, size, await websocket.receive_text()])
            await websocket.close()

        @router.get("/count")
        def counted(self, request: Request) -> str:
            return f"{request.url.path} {self.count}"

        @router.websocket("/ws")
        async def talk_there(self, websocket: WebSocket) -> None:
            await websocket.accept()
            await websocket.send_text(str(self.count))
            await websocket.close()

        @staticmethod
        @app.get("/static")
        def static(x: int) -> int:
            return x

        @classmethod
        @app.get("/class")
        def of_class(cls, x: int) -> str:
            return f"{cls.__name__} {x}"

        @app.get("/same")
        def same(self) -> str:
            return f"first {self.count}"

        @app.get("/same_name")
        def same(self) -> str:  # type: ignore[no-redef]  # noqa: F811
            return f"second {self.count}"

    outer = APIRouter()
    outer.include_router(router, prefix="/outer")
    app.include_router(outer, dependencies=[Depends(page)])
    return Api


def test_methods_with_routes_of_fastapi_are_called_on_the_instance() -> None:
    client = client_of(fastapi_class(), 40)
    assert client.get("/add", params={"x": 2}).json() == {"count": 42, "size": 10}
    assert client.get("/add", params={"x": 2, "size": 3}).json() == {"count": 42, "size": 3}
    assert client.get("/plain", params={"x": 2}).json() == 2
    made = client.post("/items/a", json={"n": 1, "note": "not public"}, headers={"X-User": "ada"})
    assert (made.status_code, made.json(), made.headers["x-made"]) == (201, {"n": 1}, "a ada 40")
    assert client.get("/text").text == "40!"
    assert client.get("/static", params={"x": 3}).json() == 3
    assert client.get("/class", params={"x": 3}).json() == "Api 3"


def test_self_is_no_parameter_of_the_request_and_missing_ones_are_named() -> None:
    client = client_of(fastapi_class(), 40)
    answer = client.get("/add")
    assert answer.status_code == 422
    assert [each["loc"] for each in answer.json()["detail"]] == [["query", "x"]]


def test_the_document_keeps_what_was_said_of_each_route() -> None:
    document = client_of(fastapi_class(), 40).get("/openapi.json").json()
    add, make = document["paths"]["/add"]["get"], document["paths"]["/items/{key}"]["post"]
    assert [each["name"] for each in add["parameters"]] == ["x", "size"]
    assert add["description"] == "Add to the count."
    assert (make["summary"], make["tags"], list(make["responses"])) == ("Make it", ["items"], ["201", "422"])
    assert make["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Item"}
    routed = document["paths"]["/outer/router/count"]["get"]
    assert (routed["tags"], [each["name"] for each in routed["parameters"]]) == (["routed"], ["size"])


def test_generators_stream_what_they_yield() -> None:
    answer = client_of(fastapi_class(), 40).get("/lines", params={"n": 2})
    assert answer.text.splitlines() == ['{"n":40,"note":""}', '{"n":41,"note":""}']


def test_websockets_are_methods_too() -> None:
    client = client_of(fastapi_class(), 40)
    with client.websocket_connect("/ws/ada?size=7") as socket:
        socket.send_text("hello")
        assert socket.receive_json() == ["ada", 40, 7, "hello"]
    with client.websocket_connect("/outer/router/ws") as socket:
        assert socket.receive_text() == "40"


def test_routers_may_be_included_in_routers() -> None:
    assert client_of(fastapi_class(), 40).get("/outer/router/count").json() == "/outer/router/count 40"


def test_methods_of_one_name_are_different_routes() -> None:
    client = client_of(fastapi_class(), 40)
    assert (client.get("/same").json(), client.get("/same_name").json()) == ("first 40", "second 40")


def test_the_docs_page_works_below_a_prefix() -> None:
    client = client_of(fastapi_class(), 40, root_path="/counts")
    assert "url: '/counts/openapi.json'" in client.get("/counts/docs").text
    document = client.get("/counts/openapi.json").json()
    assert document["servers"] == [{"url": "/counts"}]
    assert client.get("/counts/add", params={"x": 1}).json()["count"] == 41


def test_a_class_stays_what_it_is() -> None:
    cls = fastapi_class()
    assert cls(1).add(x=2, size=3) == {"count": 3, "size": 3}
    assert arrived(cls)(1).add(x=2, size=3) == {"count": 3, "size": 3}
    assert arrived(cls).__name__ == "Api"


def test_an_app_that_was_used_before_is_bound_all_the_same() -> None:
    cls = fastapi_class()
    app = vars(cls)["__serve_ingress__"].app
    before = TestClient(app).get("/openapi.json").json()["paths"]["/add"]["get"]["parameters"]
    assert "self" in [each["name"] for each in before]
    client = client_of(cls, 40)
    after = client.get("/openapi.json").json()["paths"]["/add"]["get"]["parameters"]
    assert "self" not in [each["name"] for each in after]
    assert client.get("/outer/router/count").json() == "/outer/router/count 40"


def test_routes_are_inherited_and_overridden_like_methods() -> None:
    app = FastAPI()

    class Base:
        def name(self) -> str:
            return "base"

        @app.get("/inherited")
        def inherited(self) -> str:
            return self.name()

        @app.get("/overridden")
        def overridden(self) -> str:
            return "base"

        @app.get("/again")
        def again(self) -> str:
            return "base"

    class Middle(Base):
        def overridden(self) -> str:
            return "middle before " + super().overridden()

        @app.get("/again")
        def again(self) -> str:
            return "middle"

    @ingress(app)
    class Last(Middle):
        def name(self) -> str:
            return "last"

    client = client_of(Last)
    answers = [client.get(path).json() for path in ("/inherited", "/overridden", "/again")]
    assert answers == ["last", "middle before base", "middle"]
    assert asgi_app_of(type("Child", (arrived(Last),), {})()) is not None


def test_two_classes_share_an_app_and_each_has_its_own_routes() -> None:
    app = FastAPI()

    @ingress(app)
    class A:
        @app.get("/a")
        def a(self) -> str:
            return "a"

    @ingress(app)
    class B:
        @app.get("/b")
        def b(self) -> str:
            return "b"

    assert [client_of(A).get(path).status_code for path in ("/a", "/b")] == [200, 404]
    assert [client_of(B).get(path).status_code for path in ("/a", "/b")] == [404, 200]


def test_a_route_class_and_a_mounted_app_are_kept() -> None:
    class Marks(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Any]:
            handler = super().get_route_handler()

            async def marked(request: Request) -> Response:
                response = await handler(request)
                response.headers["x-mark"] = self.name
                return response

            return marked

    app, inner, router = FastAPI(), FastAPI(), APIRouter(route_class=Marks)

    @ingress(app)
    class Api:
        @router.get("/marked")
        def marked(self) -> str:
            return type(self).__name__

        @inner.get("/x")
        def x(self, y: int) -> str:
            return f"{type(self).__name__} {y}"

    app.include_router(router)
    app.mount("/inner", inner)
    client = client_of(Api)
    assert client.get("/marked").headers["x-mark"] == "marked"
    assert client.get("/inner/x", params={"y": 1}).json() == "Api 1"
    assert [each["name"] for each in client.get("/inner/openapi.json").json()["paths"]["/x"]["get"]["parameters"]] == [
        "y"
    ]


def test_dependencies_may_be_overridden() -> None:
    cls = fastapi_class()
    vars(cls)["__serve_ingress__"].app.dependency_overrides[page] = lambda: 99
    client = client_of(cls, 40)
    assert client.get("/add", params={"x": 2}).json()["size"] == 99
    with client.websocket_connect("/ws/ada") as socket:
        socket.send_text("")
        assert socket.receive_json()[2] == 99


def test_routes_of_starlette_may_be_methods_behind_middleware_and_in_mounts() -> None:
    class Api:
        def hello(self, request: Request) -> PlainTextResponse:
            return PlainTextResponse(f"{type(self).__name__} {request.path_params['name']}")

        async def talk(self, websocket: Any) -> None:
            await websocket.accept()
            await websocket.close(4000, type(self).__name__)

    routes = [Route("/{name}", Api.hello, methods=["GET"]), WebSocketRoute("/ws", Api.talk)]
    app = CORSMiddleware(Starlette(routes=[Mount("/in", routes=routes)]), allow_origins=["*"])
    client = client_of(ingress(app)(Api))
    assert client.get("/in/ada").text == "Api ada"
    with client.websocket_connect("/in/ws") as socket:
        assert socket.receive()["reason"] == "Api"


def test_a_method_route_with_middleware_of_its_own_is_refused() -> None:
    class Api:
        def hello(self, request: Request) -> PlainTextResponse: ...

    app = Starlette(routes=[Route("/x", Api.hello, middleware=[Middleware(CORSMiddleware)])])
    with pytest.raises(TypeError, match=r"/x is a method of Api and has middleware.*\n  next: give the middleware"):
        asgi_app_of(arrived(ingress(app)(Api))())


def test_a_plain_function_and_a_builder_are_apps() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({"path": scope["path"]})(scope, receive, send)

    def build() -> FastAPI:
        built = FastAPI()
        built.get("/built")(lambda: "yes")
        return built

    assert client_of(ingress(app)(), "argument").get("/x").json() == {"path": "/x"}
    assert client_of(ingress(build)(type("Api", (), {}))).get("/built").json() == "yes"
    assert serve.deployment(ingress(app)()).bind("argument") is not None


def test_a_class_without_ingress_has_no_app() -> None:
    assert asgi_app_of(object()) is None


def test_what_cannot_be_meant_is_refused_with_advice() -> None:
    async def build() -> FastAPI: ...

    class Api: ...

    advice = r"next: @serve.ingress\(app\) below @serve.deployment and above the class"
    for wrong in (Api, FastAPI, serve.deployment(Api), build, 3, "app", lambda scope: None):
        with pytest.raises(TypeError, match=advice):
            ingress(wrong)
    for wrong in (serve.deployment(Api), test_a_class_without_ingress_has_no_app):
        with pytest.raises(TypeError, match=advice):
            ingress(FastAPI())(wrong)
    with pytest.raises(TypeError, match=r"Api: .*<lambda>\(\) returned 3, which is no ASGI app"):
        asgi_app_of(ingress(lambda: 3)(Api)())


PROGRAM = """
    from __future__ import annotations
    import sys, cloudpickle
    from typing import Annotated
    from fastapi import APIRouter, Depends, FastAPI
    from pydantic import BaseModel
    from skate import serve

    class Inner(BaseModel):
        n: int
    class Item(BaseModel):
        inner: list[Inner]
    app, router = FastAPI(), APIRouter()
    def total(item: Item) -> int: return sum(each.n for each in item.inner)
    @router.post("/plain")
    def plain(item: Item) -> Item: return item

    class Base:
        def __init__(self, k: int) -> None: self.k = k
    @serve.deployment
    @serve.ingress(app)
    class Api(Base):
        def __init__(self, k: int) -> None: super().__init__(k)
        @app.post("/sum")
        def sum(self, item: Item, known: Annotated[int, Depends(total)]) -> Item:
            return Item(inner=[Inner(n=self.k * known)])
        @router.post("/routed")
        async def routed(self, item: Item) -> int: return total(item) + self.k
    app.include_router(router, prefix="/in")
    if __name__ == "__main__": sys.stdout.buffer.write(cloudpickle.dumps(Api.func_or_class))
"""

REPLICA = """
    import pickle, sys
    from starlette.testclient import TestClient
    from skate.serve.asgi_class import asgi_app_of
    instance = pickle.load(sys.stdin.buffer)(2)
    client = TestClient(asgi_app_of(instance))
    item = {"inner": [{"n": 1}, {"n": 4}]}
    print([client.post(path, json=item).json() for path in ("/sum", "/in/routed", "/in/plain")])
    print(list(client.get("/openapi.json").json()["paths"]))
"""


def test_apps_and_models_of_a_program_travel_to_another_process(tmp_path: Path) -> None:
    """Annotations are strings there, and name models that no code of their functions uses."""

    def run(name: str, program: str, stdin: bytes = b"") -> bytes:
        file = tmp_path / name
        file.write_text(textwrap.dedent(program))
        return subprocess.run([sys.executable, str(file)], input=stdin, capture_output=True, check=True).stdout

    lines = run("replica.py", REPLICA, run("program.py", PROGRAM)).decode().splitlines()
    item = {"inner": [{"n": 1}, {"n": 4}]}
    assert lines == [str([{"inner": [{"n": 10}]}, 7, item]), "['/sum', '/in/plain', '/in/routed']"]


def test_ingress_needs_fastapi_only_for_its_apps() -> None:
    program = """
        import sys
        from skate import serve
        from skate.serve.asgi_class import asgi_app_of
        async def app(scope, receive, send): ...
        assert asgi_app_of(serve.ingress(app)()()) is app
        assert not {"fastapi", "starlette"} & set(sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


# --- lifespan


def on_loop(test: Callable[[], Any]) -> Callable[[], None]:
    """Run an asynchronous test on an event loop of its own."""

    def run() -> None:
        asyncio.run(asyncio.wait_for(test(), 20))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def app_with(*, fails_at: str = "", said: list[str] | None = None) -> Any:
    said = [] if said is None else said

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[dict[str, int]]:
        said.append("start")
        if fails_at == "startup":
            raise ValueError("no model at /models")
        yield {"models": 3}
        said.append("end")
        if fails_at == "shutdown":
            raise ValueError("cannot say goodbye")

    return FastAPI(lifespan=lifespan)


@on_loop
async def test_a_lifespan_starts_ends_and_leaves_its_state() -> None:
    said: list[str] = []
    lifespan = Lifespan(app_with(said=said))
    await lifespan.startup()
    assert (said, lifespan.state) == (["start"], {"models": 3})
    await lifespan.shutdown()
    assert said == ["start", "end"]
    await lifespan.shutdown()
    assert said == ["start", "end"]


@on_loop
async def test_a_startup_that_fails_raises_with_the_message_of_the_app() -> None:
    with pytest.raises(ServeError, match=r"(?s)the app did not start.*ValueError: no model at /models"):
        await Lifespan(app_with(fails_at="startup")).startup()


def test_a_shutdown_that_fails_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        lifespan = Lifespan(app_with(fails_at="shutdown"))
        await lifespan.startup()
        await lifespan.shutdown()

    with caplog.at_level(logging.ERROR, "skate.serve"):
        asyncio.run(run())
    assert "cannot say goodbye" in caplog.text


@on_loop
async def test_apps_that_know_no_lifespan_start_all_the_same() -> None:
    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "http"

    async def ignores(scope: Any, receive: Any, send: Any) -> None: ...

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    for app in (refuses, ignores, answers):
        lifespan = Lifespan(app)
        await lifespan.startup()
        await lifespan.shutdown()


@on_loop
async def test_an_app_that_waits_for_more_events_ends_at_its_shutdown() -> None:
    async def loops(scope: Any, receive: Any, send: Any) -> None:
        while True:
            await send({"type": (await receive())["type"] + ".complete"})

    lifespan = Lifespan(loops)
    await lifespan.startup()
    await lifespan.shutdown()


@on_loop
async def test_a_cancelled_startup_ends_the_app() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def waits(scope: Any, receive: Any, send: Any) -> None:
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    starting = asyncio.create_task(Lifespan(waits).startup())
    await started.wait()
    starting.cancel()
    await asyncio.wait((starting,))
    assert starting.cancelled()
    await ended.wait()
