"""HTTP of one application: what endpoints return, what they are sent, and what the server says of itself."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from websockets.sync.client import connect

import skate
from serve_http import UPGRADE, Connection, ask, connection_to, metrics_of, raw, wait_until_free, websocket_url
from shared_runtime import Sharing
from skate import serve
from waiting import WITHIN_S, wait_for


class Query(msgspec.Struct):
    observation: list[float]
    scale: float = 1.0


@serve.deployment(num_replicas=2)
class Api:
    """Typed routes."""

    @serve.post("/act")
    async def act(self, query: Query) -> dict[str, Any]:
        return {"action": [query.scale * each for each in query.observation]}

    @serve.get("/items/{number}")
    def item(self, number: int, verbose: bool = False) -> dict[str, Any]:
        return {"number": number, "verbose": verbose}

    @serve.get("/context")
    async def context(self) -> dict[str, Any]:
        return {"replica": serve.get_replica_context().replica_tag, "app": serve.get_replica_context().app_name}

    @serve.websocket("/loop")
    async def loop(self, socket: Any) -> None:
        async for observation in socket.arrays():
            await socket.send(2 * observation)

    @serve.websocket("/push")
    async def push(self, socket: serve.WebSocket, note: str) -> None:
        try:
            while True:
                await socket.send(bytes(1 << 16))
        finally:
            Path(note).touch()


@serve.deployment
class Called:
    """Answers by path, as `__call__` does in Ray Serve."""

    async def __call__(self, request: Request) -> Any:
        path = request.url.path.rpartition("/")[2]
        return await getattr(self, path)(request)

    async def text(self, request: Request) -> str:
        return f"Hello {request.query_params.get('name', 'you')}"

    async def ids(self, request: Request) -> list[str]:
        return [serve.get_replica_context().replica_tag, request.headers["x-request-id"], serve.get_request_id()]

    async def dict(self, request: Request) -> Any:
        return {"array": np.arange(3), "method": request.method}

    async def bytes(self, request: Request) -> bytes:
        return await request.body()

    async def response(self, request: Request) -> Response:
        return JSONResponse({"teapot": True}, status_code=418, headers={"x-of-mine": "yes"})

    async def stream(self, request: Request) -> AsyncIterator[str]:
        async def pieces() -> AsyncIterator[str]:
            for number in range(5):
                yield f"{number}\n"

        return pieces()

    async def plain_stream(self, request: Request) -> Iterator[dict[str, int]]:
        return ({"number": number} for number in range(3))

    async def refuse(self, request: Request) -> None:
        raise HTTPException(404, "no such thing")

    async def fail(self, request: Request) -> None:
        raise ValueError("the secret of the house")

    async def fail_in_another_way(self, request: Request) -> None:
        raise LookupError("the secret of the garden")

    async def time_out(self, request: Request) -> None:
        raise TimeoutError("of the handler's own")

    async def await_what_was_cancelled(self, request: Request) -> None:
        other = asyncio.ensure_future(asyncio.sleep(60))
        other.cancel()
        await other

    async def interrupt(self, request: Request) -> None:
        raise KeyboardInterrupt


@serve.deployment
def plain(request: Request) -> str:
    return f"{request.method} {request.url.path} below {request.scope['root_path']}"


async def given_post(request: Request) -> Response:
    return JSONResponse({"given": (await request.body()).decode(), "state": request.state.started})


async def given_fail(request: Request) -> Response:
    raise OverflowError("the secret of the cellar")


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[dict[str, str]]:
    yield {"started": "yes"}


@serve.deployment
@serve.ingress(
    Starlette(routes=[Route("/post", given_post, methods=["POST"]), Route("/fail", given_fail)], lifespan=lifespan)
)
class Given:
    pass


class Served:
    """The applications of this file, served until its end, and again after a test that failed."""

    def __init__(self, sharing: Sharing) -> None:
        self._sharing = sharing

    def ensure(self) -> None:
        if skate.is_initialized() and serve.status().applications:
            return
        self._sharing.start("test_serve_http.py")
        serve.run(Api.bind(), name="api", route_prefix="/api", port=0)
        serve.run(Called.bind(), name="called", route_prefix="/called")
        serve.run(plain.bind(), name="plain", route_prefix="/plain")
        serve.run(Given.bind(), name="given", route_prefix="/given")


@pytest.fixture(scope="module")
def served(sharing: Sharing) -> Iterator[Served]:
    yield Served(sharing)
    serve.shutdown()


@pytest.fixture(autouse=True)
def _served(served: Served, runtime: Any) -> None:
    served.ensure()


def test_a_str_is_answered_as_plain_text() -> None:
    answer = ask("/called/text?name=Ada")
    assert (answer.status, answer.text) == (200, "Hello Ada")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


def test_a_dict_is_answered_as_json_with_its_arrays() -> None:
    answer = ask("/called/dict", "PUT")
    assert answer.json == {"array": [0, 1, 2], "method": "PUT"}
    assert answer.headers["content-type"] == "application/json"


def test_bytes_are_answered_as_they_are() -> None:
    body = bytes(range(256)) * 20_000
    answer = ask("/called/bytes", "POST", body)
    assert answer.body == body
    assert answer.headers["content-type"] == "application/octet-stream"


def test_a_response_of_starlette_is_sent_as_it_is() -> None:
    answer = ask("/called/response")
    assert (answer.status, answer.json, answer.headers["x-of-mine"]) == (418, {"teapot": True}, "yes")


@pytest.mark.parametrize(("path", "body"), [("stream", b"0\n1\n2\n3\n4\n"), ("plain_stream", None)])
def test_generators_are_streamed(path: str, body: bytes | None) -> None:
    answer = ask(f"/called/{path}")
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.body == (body or b'{"number":0}\n{"number":1}\n{"number":2}\n')


def test_a_function_is_a_deployment_that_sees_the_whole_path() -> None:
    assert ask("/plain/a/b", "DELETE").text == "DELETE /plain/a/b below /plain"


def test_the_answer_to_head_has_no_body() -> None:
    answer = ask("/plain", "HEAD")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "24")


def test_an_exception_with_a_status_of_starlette_is_that_answer() -> None:
    assert ask("/called/refuse").status == 404


def test_a_body_that_does_not_fit_is_refused_with_the_name_of_the_field() -> None:
    assert ask("/api/act", "POST", b'{"observation": [1, 2], "scale": 2}').json == {"action": [2.0, 4.0]}
    answer = ask("/api/act", "POST", b'{"observation": [1, "two"]}')
    assert (answer.status, answer.json["field"]) == (422, "$.observation[1]")
    answer = ask("/api/act", "POST", b"{}")
    assert (answer.status, answer.json["field"]) == (422, "$.observation")


def test_the_path_and_the_query_become_arguments() -> None:
    assert ask("/api/items/7?verbose=true").json == {"number": 7, "verbose": True}
    answer = ask("/api/items/seven")
    assert (answer.status, answer.json["field"]) == (422, "number")


def test_a_wrong_method_is_told_which_are_right() -> None:
    answer = ask("/api/act")
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


def test_the_document_of_an_application_is_below_its_prefix() -> None:
    document = ask("/api/openapi.json").json
    assert set(document["paths"]) == {"/act", "/items/{number}", "/context"}
    assert document["servers"] == [{"url": "/api"}]
    page = ask("/api/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert "/items/{number}" in page.text


def test_a_websocket_takes_arrays_and_gives_arrays() -> None:
    with connect(websocket_url("/api/loop")) as websocket:
        for size in (1, 4, 100_000):
            sent = np.arange(size, dtype=np.float32)
            websocket.send(sent.tobytes())
            came = websocket.recv(WITHIN_S)
            assert isinstance(came, bytes)
            np.testing.assert_array_equal(np.frombuffer(came, np.float32), 2 * sent)


def test_an_app_of_starlette_answers_for_its_class() -> None:
    assert ask("/given/post", "POST", b"body").json == {"given": "body", "state": "yes"}
    assert ask("/given/nothing").status == 404
    assert ask("/given/post", "GET").status == 405


def test_an_unknown_path_is_a_404_in_json() -> None:
    answer = ask("/nowhere/at/all")
    assert (answer.status, answer.json) == (404, {"error": "no application is served at /nowhere/at/all"})
    assert ask("/apiary").status == 404, "a prefix ends where a part of the path ends"


def test_the_server_says_that_it_is_well_and_what_it_serves() -> None:
    assert ask("/-/healthz").body == b"success"
    assert ask("/-/routes").json == {"/api": "api", "/called": "called", "/plain": "plain", "/given": "given"}
    assert ask("/-/nothing").status == 404


def test_the_metrics_are_text_that_prometheus_reads() -> None:
    for _ in range(3):
        ask("/called/text")
    ask("/called/fail")
    wait_until_free("called")
    answer = ask("/-/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values: dict[str, float] = {}
    for line in answer.text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert re.fullmatch(r'[a-z_]+\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\}', name), line
            values[name] = float(value)
    labels = 'application="called",deployment="Called"'
    counted = metrics_of("called")
    assert counted["requests"] >= values[f"skate_serve_requests_total{{{labels}}}"] >= 4
    assert values[f"skate_serve_errors_total{{{labels}}}"] >= 1
    assert values[f"skate_serve_waiting{{{labels}}}"] == 0
    whole = values[f'skate_serve_latency_seconds_bucket{{{labels},le="+Inf"}}']
    assert whole == values[f"skate_serve_latency_seconds_count{{{labels}}}"] >= 4
    assert f"skate_serve_batch_size_sum{{{labels}}}" in values


def test_every_answer_has_the_id_that_the_client_chose_or_one_of_ours() -> None:
    assert ask("/called/text", headers={"X-Request-ID": "mine-17"}).headers["x-request-id"] == "mine-17"
    first, second = ask("/api/context").headers["x-request-id"], ask("/nowhere").headers["x-request-id"]
    assert first != second
    long = ask("/called/text", headers={"X-Request-ID": 500 * "x"})
    assert long.headers["x-request-id"] != 500 * "x"


def test_a_handler_knows_the_id_of_its_request_whichever_replica_took_it() -> None:
    own = ask("/called/ids").json[0]
    for is_wanted in (own.__eq__, own.__ne__):
        with connection_to(is_wanted) as connection:
            for headers in ({}, {"X-Request-ID": "mine-16"}, {"X-Request-ID": 500 * "x"}):
                answer = connection.ask("/called/ids", headers=headers)
                assert answer.json[1:] == 2 * [answer.headers["x-request-id"]]


#: Before Python 3.11 an error of this kind cannot be told from the end of the client.
CANCELLED = ["await_what_was_cancelled"] if hasattr(asyncio.Task, "cancelling") else []


def test_a_handler_that_fails_is_a_500_with_the_id_and_without_the_traceback() -> None:
    errors = metrics_of("called")["errors"]
    for number, how in enumerate(failing := ["fail", "interrupt", *CANCELLED]):
        answer = ask(f"/called/{how}", headers={"X-Request-ID": f"mine-{number}"})
        assert (answer.status, answer.text) == (500, f"Internal Server Error\nrequest id: mine-{number}\n")
        assert answer.headers["x-request-id"] == f"mine-{number}"
    assert metrics_of("called")["errors"] == errors + len(failing)
    assert ask("/called/time_out").status == 500


def test_the_log_has_the_traceback_and_the_id(capfd: pytest.CaptureFixture[str]) -> None:
    ask("/called/fail_in_another_way", headers={"X-Request-ID": "mine-19"})
    printed = ""

    def is_logged() -> bool:
        nonlocal printed
        printed += "".join(capfd.readouterr())
        return "mine-19" in printed and "LookupError: the secret of the garden" in printed

    wait_for(is_logged, WITHIN_S, "the traceback in the log")
    assert printed.count("LookupError: ") == 1


def test_the_client_of_a_websocket_may_go_at_any_time_and_the_log_is_silent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    note = tmp_path / "over"
    own = {ask("/api/context").json["replica"] for _ in range(20)}
    with connection_to(lambda replica: replica not in own) as connection:
        assert connection.ask(f"/api/push?note={note}", headers=UPGRADE).status == 101
    wait_for(note.exists, WITHIN_S, "the handler to end")
    ask("/called/fail", headers={"X-Request-ID": "mine-22"})
    printed = ""

    def is_logged() -> bool:
        nonlocal printed
        printed += "".join(capfd.readouterr())
        return "request mine-22 failed" in printed

    wait_for(is_logged, WITHIN_S, "what comes after it in the log")
    assert "/push" not in printed


def test_an_app_that_answers_its_own_errors_is_logged_once_whichever_replica_was_asked(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The app answers with 500, and raises after that."""
    own = {ask("/api/context").json["replica"] for _ in range(20)}
    with connection_to(own.__contains__) as connection:
        for id in ("mine-23", "mine-24"):
            failed = connection.ask("/given/fail", headers={"X-Request-ID": id})
            assert (failed.status, failed.text, failed.headers["x-request-id"]) == (500, "Internal Server Error", id)
    printed = ""

    def is_logged() -> bool:
        nonlocal printed
        printed += "".join(capfd.readouterr())
        return "mine-23" in printed and "mine-24" in printed

    wait_for(is_logged, WITHIN_S, "both errors in the log")
    assert "ConnectionAbortedError" not in printed


def test_a_connection_is_kept_for_further_requests_also_of_other_applications() -> None:
    connection = Connection()
    for path in ("/called/text", "/api/context", "/plain", "/called/fail", "/nowhere", "/-/healthz") * 3:
        assert "connection" not in connection.ask(path).headers
    connection.close()


def test_requests_that_were_sent_ahead_are_answered_in_order() -> None:
    paths = ["/called/text?name=1", "/plain/2", "/called/text?name=3", "/-/healthz"]
    heads = [f"GET {path} HTTP/1.1\r\nHost: h\r\n" for path in paths]
    came = raw("\r\n".join([*heads[:-1], heads[-1] + "Connection: close\r\n\r\n"]).encode()).decode()
    assert re.findall(r"Hello 1|GET /plain/2|Hello 3|success", came) == [
        "Hello 1",
        "GET /plain/2",
        "Hello 3",
        "success",
    ]


def test_a_page_of_another_site_may_read_and_not_write() -> None:
    connection = Connection()
    host = f"{connection.host}:{connection.port}"
    post = {"method": "POST", "body": b'{"observation": []}'}
    for origin, status in (("https://elsewhere.example", 403), ("null", 403), (f"http://{host}", 200)):
        assert connection.ask("/api/act", headers={"Origin": origin}, **post).status == status
    assert connection.ask("/api/context", headers={"Origin": "https://elsewhere.example"}).status == 200
    assert connection.ask("/given/post", "POST", headers={"Origin": "https://elsewhere.example"}).status != 403
    connection.close()


def test_a_page_of_another_site_gets_no_websocket() -> None:
    origin: Any = "https://elsewhere.example"
    with pytest.raises(Exception, match="403"), connect(websocket_url("/api/loop"), origin=origin):
        pass


def test_what_another_replica_took_is_answered_alike() -> None:
    """Each replica answers for all applications: small and large bodies, streams, errors and websockets."""
    own = {ask("/api/context").json["replica"] for _ in range(20)}
    with connection_to(lambda replica: replica not in own) as connection:
        context = connection.ask("/api/context", headers={"X-Request-ID": "mine-20"})
        assert context.json["app"] == "api"
        assert context.headers["x-request-id"] == "mine-20"
        assert connection.ask("/api/act", "POST", b"{}").status == 422
        refused = connection.ask("/api/nothing", headers=UPGRADE)
        assert (refused.status, refused.json) == (404, {"error": "there is no websocket at /nothing"})
    with connection_to(own.__contains__) as connection:
        assert connection.ask("/called/text?name=Ada").text == "Hello Ada"
        body = bytes(range(256)) * 40_000
        assert connection.ask("/called/bytes", "POST", body).body == body
        assert connection.ask("/called/stream").body == b"0\n1\n2\n3\n4\n"
        failed = connection.ask("/called/fail", headers={"X-Request-ID": "mine-21"})
        assert (failed.status, failed.text) == (500, "Internal Server Error\nrequest id: mine-21\n")
        head = connection.ask("/called/text", "HEAD")
        assert (head.body, head.headers["content-length"]) == (b"", "9")
        refused = connection.ask("/called/text", headers=UPGRADE)
        assert (refused.status, refused.json) == (404, {"error": "this application takes no websockets"})


def test_a_body_in_chunks_arrives_whole() -> None:
    connection = Connection()
    chunks = iter([b"in ", b"three ", b"chunks"])
    connection.request("POST", "/called/bytes", chunks, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
    assert connection.answer().body == b"in three chunks"
    connection.close()


def test_a_body_above_the_limit_is_refused() -> None:
    head = f"POST /called/bytes HTTP/1.1\r\nHost: h\r\nContent-Length: {1 << 40}\r\n\r\n"
    assert raw(head.encode()).startswith(b"HTTP/1.1 413 ")


def test_json_of_errors_can_be_parsed_whatever_the_path_holds() -> None:
    answer = ask("/%22%0a%5c")
    assert answer.status == 404
    assert json.loads(answer.body)["error"].endswith('/"\n\\')


def test_the_protocol_is_http_1_1() -> None:
    connection = http.client.HTTPConnection(*_address(), timeout=WITHIN_S)
    connection.request("GET", "/plain")
    assert connection.getresponse().version == 11
    connection.close()


def _address() -> tuple[str, int]:
    found = serve.status().http_address
    assert found is not None
    return found[0], found[1]
