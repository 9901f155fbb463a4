"""Routes describe themselves: /openapi.json for programs, /docs for people."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from fastapi.openapi.models import OpenAPI
from starlette.responses import Response
from test_serve_routes import app_of, ask

from skate.serve import routes as serve
from skate.serve.sockets import WebSocket


class Inner(msgspec.Struct):
    gain: float = 1.0


class Query(msgspec.Struct):
    """One question to the policy."""

    observation: list[float]
    mode: Literal["best", "sampled"] = "best"
    inner: Inner | None = None


@dataclass
class Action:
    action: list[float]
    value: float


class Described:
    @serve.post("/act")
    async def act(self, query: Query) -> Action:
        """The policy's action.

        Computed in batches: <fast> & "cheap".
        """
        raise AssertionError

    @serve.get("/runs/{run}/{rest:path}")
    async def get_run(self, run: int, rest: str, limit: int = 10, tag: str | None = None) -> np.ndarray:
        raise AssertionError

    @serve.put("/weights")
    async def weights(self, data: bytes) -> None: ...

    @serve.get("/actions")
    async def actions(self) -> AsyncIterator[Action]:
        yield Action([], 0.0)

    @serve.get("/words")
    def words(self) -> Iterator[str]:
        raise AssertionError

    @serve.get("/anything")
    def anything(self):  # type: ignore[no-untyped-def]
        yield 1

    @serve.delete("/runs")
    async def own(self) -> Response:
        raise AssertionError

    @serve.websocket("/loop")
    async def loop(self, socket: WebSocket, speed: float = 1.0) -> None:
        """Closed loop."""


@pytest.fixture(scope="module")
def document() -> Any:
    return ask(app_of(Described), "GET", "/openapi.json").json


def test_the_document_is_valid_openapi(document: Any) -> None:
    OpenAPI.model_validate(document)
    assert document["openapi"] == "3.1.0"
    assert document["info"]["title"] == "Described"
    paths = ["/act", "/runs/{run}/{rest}", "/weights", "/actions", "/words", "/anything", "/runs"]
    assert list(document["paths"]) == paths


def test_bodies_and_answers_refer_to_the_schemas_of_their_types(document: Any) -> None:
    act = document["paths"]["/act"]["post"]
    assert act["summary"] == "The policy's action."
    assert act["description"] == 'Computed in batches: <fast> & "cheap".'
    assert act["requestBody"]["required"]
    body = act["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/Query"}
    assert act["responses"]["200"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Action"}
    assert set(act["responses"]) == {"200", "400", "422"}
    schemas = document["components"]["schemas"]
    assert set(schemas) == {"Query", "Inner", "Action"}
    assert schemas["Query"]["required"] == ["observation"]


def test_a_stream_is_described_as_what_it_sends(document: Any) -> None:
    streams = ("/actions", "/words", "/anything")
    content = {path: document["paths"][path]["get"]["responses"]["200"]["content"] for path in streams}
    assert content["/actions"] == {"application/x-ndjson": {"x-item-schema": {"$ref": "#/components/schemas/Action"}}}
    assert content["/words"] == {"text/plain": {}}
    assert set(content["/anything"]) == {"application/x-ndjson", "text/plain", "application/octet-stream"}


def test_what_a_response_of_starlette_will_be_is_not_said(document: Any) -> None:
    assert set(document["paths"]["/runs"]["delete"]["responses"]) == {"default"}


def test_parameters_say_where_they_stand_and_what_they_are(document: Any) -> None:
    parameters = {each["name"]: each for each in document["paths"]["/runs/{run}/{rest}"]["get"]["parameters"]}
    assert parameters["run"] == {"name": "run", "in": "path", "required": True, "schema": {"type": "integer"}}
    assert parameters["limit"]["schema"] == {"type": "integer", "default": 10}
    assert not parameters["tag"]["required"]
    assert "requestBody" not in document["paths"]["/runs/{run}/{rest}"]["get"]


def test_websockets_are_described_beside_the_paths(document: Any) -> None:
    assert document["x-websockets"]["/loop"]["summary"] == "Closed loop."


class Lists:
    @serve.get("/sum")
    async def sum(self, x: list[int], words: set[str] | None = None, y: tuple[float, ...] = (1.0, 2.0)) -> Any:
        raise AssertionError

    @serve.get("/a-b")
    @serve.get("/a_b")
    @serve.get("/a.b")
    async def get(self) -> None: ...


def test_a_list_in_a_get_request_is_a_parameter_of_the_query() -> None:
    operation = ask(app_of(Lists), "GET", "/openapi.json").json["paths"]["/sum"]["get"]
    assert "requestBody" not in operation
    x, words, y = operation["parameters"]
    assert x == {
        "name": "x",
        "in": "query",
        "required": True,
        "schema": {"type": "array", "items": {"type": "integer"}},
    }
    assert (words["in"], words["required"], y["schema"]["default"]) == ("query", False, [1.0, 2.0])
    page = ask(app_of(Lists), "GET", "/docs").body.decode()
    assert "<input data-in='query' data-list name='y' value='1.0, 2.0'>" in page


def test_operations_have_identifiers_of_their_own() -> None:
    paths = ask(app_of(Lists), "GET", "/openapi.json").json["paths"]
    identifiers = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert sorted(identifiers) == ["get_get_a_b", "get_get_a_b_2", "get_get_a_b_3", "get_sum_sum"]


def test_the_prefix_is_the_server_of_the_document() -> None:
    document = ask(app_of(Described), "GET", "/brain/openapi.json", root_path="/brain").json
    assert document["servers"] == [{"url": "/brain"}]


class Tags(HTMLParser):
    """Checks that tags are closed in order, and collects what a page refers to."""

    void = ("meta", "link", "input", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_loads_nothing_from_elsewhere() -> None:
    answer = ask(app_of(Described), "GET", "/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = answer.body.decode()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert {each for each in tags.addresses if not each.startswith("#")} == {"data:,", "openapi.json"}
    assert "//" not in re.sub(r"(?m)^// .*$", "", page)
    assert "&lt;fast&gt; &amp;" in page
    assert "<p>Streams <small><a href='#Action'>" in page
    for text in ("/act", "/runs/{run}/{rest}", "WEBSOCKET", "<a href='#Query'>Query</a>", 'href="openapi.json"'):
        assert text in page


def test_a_class_may_have_such_paths_itself() -> None:
    class Own:
        @serve.get("/docs")
        def docs(self) -> str:
            return "mine"

        @serve.get("/{rest:path}")
        def rest(self, rest: str) -> str:
            return rest

    app = app_of(Own)
    assert ask(app, "GET", "/docs").json == "mine"
    assert ask(app, "GET", "/openapi.json").json == "openapi.json"


def test_types_that_share_a_name_have_schemas_of_their_own() -> None:
    def other() -> type:
        class Query(msgspec.Struct):
            different: int

        return Query

    second = other()

    class Both:
        @serve.post("/a")
        def a(self, query: Query) -> None: ...

        @serve.post("/b")
        def b(self, query: second) -> None: ...  # type: ignore[valid-type]

    schemas = ask(app_of(Both), "GET", "/openapi.json").json["components"]["schemas"]
    assert sum(name.endswith("Query") for name in schemas) == 2
