"""`@serve.get("/path/{name}")` and its siblings: the methods of a class become the endpoints of an ASGI app.

The decorators only note the route on the function; `signatures.py` says which arguments come from where. `RoutesApp`
finds the endpoint of a request, reads the arguments, calls the method, and answers with what that returns.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from skate.serve.responses import (
    JSON,
    ClientGone,
    ClientWatch,
    Receive,
    Refusal,
    RunBlocking,
    Scope,
    Send,
    encode,
    refusal_of,
    respond,
    send_refusal,
    send_whole,
)
from skate.serve.signatures import (
    HINTS,
    NOTES,
    REQUIRED,
    WEBSOCKET,
    Parameter,
    Route,
    Source,
    hints_of,
    is_repeated,
    names_around,
    pattern_of,
    routes_of,
)
from skate.serve.sockets import WebSocket, refuse, run_handler, run_starlette_handler

__all__ = [
    "Parameter",
    "Route",
    "RoutesApp",
    "Source",
    "call_handler",
    "delete",
    "get",
    "post",
    "put",
    "routes_of",
    "websocket",
]

HTML = b"text/html; charset=utf-8"
_MISSING = re.compile(r"missing required field `(.*)`")
#: Routes are numbered as they are noted: the first pattern that fits answers, and pickle sorts the methods of a class.
_numbers = itertools.count()

F = TypeVar("F", bound=Callable[..., Any])


# -- decorators --------------------------------------------------------------------------------------------------------


def get(path: str) -> Callable[[F], F]:
    """Answer GET requests (and HEAD) to the path with what the method returns."""
    return _decorator("GET", path)


def post(path: str) -> Callable[[F], F]:
    """Answer POST requests to the path with what the method returns."""
    return _decorator("POST", path)


def put(path: str) -> Callable[[F], F]:
    """Answer PUT requests to the path with what the method returns."""
    return _decorator("PUT", path)


def delete(path: str) -> Callable[[F], F]:
    """Answer DELETE requests to the path with what the method returns."""
    return _decorator("DELETE", path)


def websocket(path: str) -> Callable[[F], F]:
    """Give websocket connections to the path to the method, which takes the socket as its first argument."""
    return _decorator(WEBSOCKET, path)


def _decorator(method: str, path: str) -> Callable[[F], F]:
    name = f"serve.{method.lower()}"
    if not isinstance(path, str):
        raise TypeError(
            f"@{name} takes the path of the route.\n"
            f"  why:  it was given {getattr(path, '__qualname__', None) or repr(path)}.\n"
            f'  next: write @{name}("/path").'
        )
    pattern_of(path)

    def note(function: F) -> F:
        if isinstance(function, (type, staticmethod, classmethod)) or not callable(function):
            raise TypeError(
                f'@{name}("{path}") stands on {function!r}, which is no method.\n'
                f"  next: put it on a method of the class that serves, directly above `def` or `async def`."
            )
        # The route noted last stands above the others. The tuple is new: a wrapper of functools.wraps has the old one.
        setattr(function, NOTES, ((method, path, next(_numbers)), *getattr(function, NOTES, ())))
        setattr(function, HINTS, hints_of(function, names_around(function)))
        return function

    return note


# -- the app -----------------------------------------------------------------------------------------------------------


async def call_handler(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a handler: `async def` here, a plain function in a thread. A generator function only makes its generator."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


class Endpoint:
    """A route with the method of an object that it calls, and how its arguments are read."""

    def __init__(self, route: Route, function: Callable[..., Any]) -> None:
        self.route = route
        self.function = function
        self.parameters = route.parameters
        sources = {each.source for each in route.parameters}
        self.takes_request = Source.REQUEST in sources
        self.takes_starlette_socket = Source.STARLETTE_SOCKET in sources
        #: Code in a thread cannot be stopped, so only `async def` is cancelled when the client goes away.
        self.can_be_cancelled = inspect.iscoroutinefunction(function)
        #: Parameters of the query of which each value stands by itself: ?x=1&x=2.
        self._repeated = {
            each.name for each in route.parameters if each.source is Source.QUERY and is_repeated(each.annotation)
        }
        self._reads_body = bool(sources & {Source.BODY, Source.RAW_BODY})
        self._body = next((BodyReader(each) for each in route.parameters if each.source is Source.BODY), None)

    async def arguments(
        self, scope: Scope, receive: Receive, path_values: dict[str, str], socket: Any = None
    ) -> tuple[list[Any], dict[str, Any]]:
        """Read the arguments of the method from a request. Raises Refusal for what does not fit."""
        raw = await read_body(receive) if self._reads_body else b""
        query: dict[str, Any] | None = None
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for each in self.parameters:
            source = each.source
            if source is Source.PATH:
                value = converted(each, path_values[each.name])
            elif source is Source.BODY:
                assert self._body is not None
                value = self._body.read(scope, raw)
            elif source is Source.QUERY:
                if query is None:
                    pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
                    query = dict(pairs)
                    for name in self._repeated & query.keys():
                        query[name] = [value for of, value in pairs if of == name]
                value = converted(each, query[each.name]) if each.name in query else default_of(each)
            elif source is Source.RAW_BODY:
                value = raw
            elif source is Source.REQUEST:
                from starlette.requests import Request

                scope["path_params"] = path_values
                value = Request(scope, receive)
            else:
                value = socket
            if each.keyword_only:
                kwargs[each.name] = value
            else:
                args.append(value)
        return args, kwargs


class Matcher:
    """Which endpoint answers a request: exact paths first, by one look into a dict, then patterns in order."""

    def __init__(self) -> None:
        #: Endpoints by path and method.
        self._exact: dict[str, dict[str, Endpoint]] = {}
        #: The same for paths with braces.
        self._patterns: dict[str, tuple[re.Pattern[str], dict[str, Endpoint]]] = {}

    def add(self, route: Route, endpoint: Endpoint) -> None:
        """Let requests to the path of the route go to the endpoint. GET answers HEAD too, unless another route does."""
        if "{" in route.path:
            _, methods = self._patterns.setdefault(route.path, (pattern_of(route.path), {}))
        else:
            methods = self._exact.setdefault(route.path, {})
        methods[route.method] = endpoint
        if route.method == "GET":
            methods.setdefault("HEAD", endpoint)

    def find(self, method: str, path: str) -> tuple[Endpoint | None, dict[str, str]]:
        """The endpoint and the parts of the path; None if no route has the path. Raises Refusal for a wrong method."""
        methods = self._exact.get(path)
        if methods is not None:
            endpoint = methods.get(method)
            if endpoint is not None:
                return endpoint, {}
        allowed = set(methods or ())
        for pattern, methods in self._patterns.values():
            match = pattern.fullmatch(path)
            if match is not None:
                if method in methods:
                    return methods[method], match.groupdict()
                allowed |= methods.keys()
        if allowed:
            names = ", ".join(sorted(allowed))
            raise Refusal(405, f"{path} does not answer {method}, only {names}", {"allow": names})
        return None, {}


class RoutesApp:
    """The ASGI app of an object whose class has routes.

    call:  an async function that calls a handler with its arguments and returns what the handler returned.
    fetch: an async function that runs a plain function in a thread; items of plain generators are fetched by it.

    An exception of a handler leaves the app, for the layer around it to log and answer. The app itself answers an
    HTTPException of starlette, and requests that fit no route or do not fit the signature.

    When the client goes away, an `async def` that still runs is cancelled and a stream is closed. A handler that takes
    the request receives by itself, so it is cancelled only if the server offers the hook that ClientWatch describes.
    """

    def __init__(
        self,
        instance: Any,
        routes: Sequence[Route],
        call: Callable[..., Awaitable[Any]] = call_handler,
        fetch: RunBlocking = asyncio.to_thread,
    ) -> None:
        self._call, self._fetch = call, fetch
        self._title = type(instance).__name__
        self._routes = tuple(routes)
        self._requests = Matcher()
        self._sockets = Matcher()
        for route in routes:
            matcher = self._sockets if route.method == WEBSOCKET else self._requests
            matcher.add(route, Endpoint(route, getattr(instance, route.name)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            return await self._serve_socket(scope, receive, send)
        if scope["type"] != "http":
            raise RuntimeError(f"this app serves http and websocket, and knows no {scope['type']!r}.")
        path = scope["path"]
        if root := scope.get("root_path"):
            path = path_below(root, path)
        watch = None
        try:
            endpoint, values = self._requests.find(scope["method"], path)
            if endpoint is None:
                return await self._describe(path, scope, send)
            args, kwargs = await endpoint.arguments(scope, receive, values) if endpoint.parameters else ((), {})
            if endpoint.can_be_cancelled:
                watch = ClientWatch(scope, None if endpoint.takes_request else receive)
            value = await self._call(endpoint.function, *args, **kwargs)
        except asyncio.CancelledError:
            if watch is None or not watch.caused_cancellation():
                raise
            return None
        except ClientGone:
            return None
        except Exception as error:
            refusal = refusal_of(error)
            if refusal is None:
                raise
            return await send_refusal(refusal, scope, send)
        finally:
            if watch is not None:
                watch.end()
        handler = endpoint.route.handler
        return await respond(value, scope, receive, send, plain_text=False, handler=handler, fetch=self._fetch)

    async def _describe(self, path: str, scope: Scope, send: Send) -> None:
        """Answer for a path that no route has: with the description of the routes, or with 404."""
        if path not in ("/openapi.json", "/docs") or scope["method"] not in ("GET", "HEAD"):
            raise Refusal(404, f"there is nothing at {path}")
        from skate.serve import openapi

        document = openapi.document(self._title, self._routes, scope.get("root_path") or "")
        if path == "/docs":
            await send_whole(send, scope, 200, HTML, openapi.page(document).encode())
        else:
            await send_whole(send, scope, 200, JSON, encode(document, "openapi.json"))

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = path_below(scope.get("root_path") or "", scope["path"])
        try:
            endpoint, values = self._sockets.find(WEBSOCKET, path)
            if endpoint is None:
                raise Refusal(404, f"there is no websocket at {path}")
            scope["path_params"] = values
            socket: Any
            if endpoint.takes_starlette_socket:
                from starlette.websockets import WebSocket as StarletteWebSocket

                socket, run = StarletteWebSocket(scope, receive, send), run_starlette_handler
            else:
                socket, run = WebSocket(scope, receive, send), run_handler
            args, kwargs = await endpoint.arguments(scope, receive, values, socket)
        except Refusal as refusal:
            return await refuse(refusal, scope, send)
        return await run(socket, lambda: self._call(endpoint.function, *args, **kwargs))


def path_below(root: str, path: str) -> str:
    """The path as routes have it: without the prefix of the application, which servers leave in front of it."""
    root = root.rstrip("/")
    if root and (path == root or path.startswith(root + "/")):
        return path[len(root) :] or "/"
    return path


# -- what a request holds ----------------------------------------------------------------------------------------------


async def read_body(receive: Receive) -> bytes:
    """The whole body of a request. Raises ClientGone if the client leaves before its end."""
    pieces = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class BodyReader:
    """Decodes the body of requests to the type of a parameter."""

    def __init__(self, parameter: Parameter) -> None:
        self._parameter = parameter
        self._json: msgspec.json.Decoder[Any] = msgspec.json.Decoder(parameter.annotation)
        self._msgpack: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(parameter.annotation)

    def read(self, scope: Scope, raw: bytes) -> Any:
        """The value of a body. Raises Refusal: 400 for what cannot be parsed, 422 for what does not fit the type."""
        if not raw:
            return default_of(self._parameter)
        is_msgpack = _is_msgpack(scope)
        try:
            return self._msgpack.decode(raw) if is_msgpack else self._json.decode(raw)
        except msgspec.ValidationError as error:
            what, _, place = str(error).partition(" - at ")
            field = place.strip("`") or "$"
            if missing := _MISSING.search(what):
                field += "." + missing[1]
            raise Refusal(422, what, field=field) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            kind = "MessagePack" if is_msgpack else "JSON"
            raise Refusal(400, f"the body is no {kind}: {error}") from None


def _is_msgpack(scope: Scope) -> bool:
    for name, value in scope["headers"]:
        if name == b"content-type":
            kind = value.partition(b";")[0].strip().lower()
            return kind in (b"application/msgpack", b"application/x-msgpack")
    return False


def converted(parameter: Parameter, text: str | list[str]) -> Any:
    """A part of the path or query as the type of its parameter. Raises Refusal if the text does not fit."""
    if parameter.annotation is str:
        return text
    try:
        return msgspec.convert(text, parameter.annotation, strict=False)
    except msgspec.ValidationError as error:
        what = f"the {parameter.source.value} parameter {parameter.name}: {error}"
        raise Refusal(422, what, field=parameter.name) from None


def default_of(parameter: Parameter) -> Any:
    """The argument for a parameter that a request does not give. Raises Refusal if it must."""
    if parameter.default is not REQUIRED:
        return parameter.default
    if parameter.source is Source.BODY:
        raise Refusal(422, "the request has no body", field="$")
    raise Refusal(422, f"the {parameter.source.value} parameter {parameter.name} is missing", field=parameter.name)
