"""`@serve.ingress(app)`: a class whose HTTP requests are answered by an ASGI app, with methods of the class as routes.

    @serve.deployment
    @serve.ingress(app)              the class keeps the app, and both travel to the replicas together
    class Api:
        @app.get("/double")          FastAPI takes `self` for a parameter of the request
        def double(self, x: int): ...

    a replica: Api(…) ──asgi_app_of──► the app, whose route calls the method of this instance

Idea: a route of a method is made again with the bound method. A bound method has no `self` in its signature, so FastAPI
finds the parameters, the body and the documentation that are meant.

Apps travel by value, like the classes in whose bodies their routes are. Two kinds of objects in them need help with
that, and annotations that are strings do too: they may name what the function itself does not use.
"""

from __future__ import annotations

import asyncio
import copyreg
import inspect
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from types import MethodType
from typing import Any

from skate.serve.deployments import Deployment
from skate.serve.exceptions import ServeError

__all__ = ["ASGIApp", "Lifespan", "asgi_app_of", "ingress"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]

LOGGER = logging.getLogger("skate.serve")

NEXT = (
    "  next: @serve.ingress(app) below @serve.deployment and above the class, with app = FastAPI() or another ASGI app."
)

_ATTRIBUTE = "__serve_ingress__"


def ingress(app: Any, /) -> Callable[..., Any]:
    """Let an ASGI app answer the HTTP requests of a deployment.

        app = FastAPI()

        @serve.deployment
        @serve.ingress(app)
        class Api:
            @app.get("/double")
            def double(self, x: int) -> int: ...

    app: any ASGI app (FastAPI, Starlette, a function of scope, receive and send), or a function without arguments that
         returns one and is called in each replica.

    With FastAPI and Starlette, methods of the class and of its bases may be routes, on routers that the app includes as
    well. `serve.deployment(serve.ingress(app)())` serves an app that needs no class.
    """
    if isinstance(app, Deployment):
        raise TypeError(f"@serve.ingress was given {app!r}, a deployment, and no app.\n{NEXT}")
    if inspect.isclass(app):
        raise TypeError(f"@serve.ingress was given the class {app.__name__}, and no app.\n{NEXT}")
    if not (_accepts(app, 3) or _is_builder(app)):
        raise TypeError(
            f"@serve.ingress was given {app!r}, which is no ASGI app, nor a plain function without arguments that "
            f"returns one.\n{NEXT}"
        )
    _make_picklable()

    def decorate(cls: Any = None) -> Any:
        if isinstance(cls, Deployment):
            raise TypeError(f"@serve.ingress is above @serve.deployment of {cls.name}.\n{NEXT}")
        if cls is None:
            cls = type("ASGIIngress", (_Bare,), {"__module__": __name__})
        if not inspect.isclass(cls):
            raise TypeError(f"@serve.ingress decorates classes, and not {cls!r}.\n{NEXT}")
        setattr(cls, _ATTRIBUTE, _Given(app))
        return cls

    return decorate


class _Bare:
    """The class of a deployment that is an app and nothing else."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


def asgi_app_of(instance: Any) -> ASGIApp | None:
    """The app of a class with `@serve.ingress`, whose routes call this instance from now on; None for other classes.

    The app and its routers are changed, so an app belongs to the first instance that asks for it in a process.
    """
    given: _Given | None = getattr(type(instance), _ATTRIBUTE, None)
    if given is None:
        return None
    app = given.app
    if not _accepts(app, 3):
        app = app()
        if inspect.isclass(app) or not _accepts(app, 3):
            raise TypeError(
                f"@serve.ingress of {type(instance).__name__}: {_name(given.app)}() returned {app!r}, which is no ASGI "
                "app.\n  next: return the app, an instance of FastAPI for example."
            )
    _bind_routes(app, instance)
    made: ASGIApp = app
    return made


# --- what is given to `ingress`


def _accepts(function: Any, count: int) -> bool:
    """Whether it can be called with this number of positional arguments."""
    if not callable(function):
        return False
    try:
        inspect.signature(function).bind(*[None] * count)
    except (TypeError, ValueError):
        return False
    return True


def _is_builder(function: Any) -> bool:
    return _accepts(function, 0) and not inspect.iscoroutinefunction(function)


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", repr(function)))


# --- routes of methods


def _bind_routes(app: Any, instance: Any) -> None:
    """Make the routes of an app call `instance`, where they are methods of its class."""
    for owner in _owners_of_routes(app, set()):
        bound = [made for route in owner.routes if (made := _bound_route(route, owner, instance)) is not None]
        if bound == owner.routes:
            continue
        owner.routes[:] = bound
        # FastAPI keeps what it made of the routes, in routers that include this one and as a document.
        router = getattr(owner, "router", owner)
        if hasattr(router, "_mark_routes_changed"):
            router._mark_routes_changed()
        if hasattr(owner, "openapi_schema"):
            owner.openapi_schema = None


def _owners_of_routes(app: Any, seen: set[int]) -> Iterator[Any]:
    """The apps and routers with a list of routes: behind `app`, below its middleware, included and mounted."""
    routing = sys.modules.get("starlette.routing")
    while isinstance(app, getattr(routing, "BaseRoute", ())) or not isinstance(getattr(app, "routes", None), list):
        # FastAPI keeps a router that is included as what it is; mounts and middleware have an app.
        app = getattr(app, "original_router", None) or getattr(app, "app", None)
        if app is None or id(app) in seen:
            return
        seen.add(id(app))
    if id(app.routes) not in seen:
        seen.add(id(app.routes))
        yield app
        for route in app.routes:
            yield from _owners_of_routes(route, seen)


def _bound_route(route: Any, owner: Any, instance: Any) -> Any:
    """The route with the method of the instance; None if it is a method of a class that the instance is not of."""
    kind = _kind_of(route)
    if kind is None:
        return route
    endpoint = _bound_endpoint(route.endpoint, instance)
    if endpoint is route.endpoint or endpoint is None:
        return None if endpoint is None else route
    names = set(inspect.signature(kind).parameters) - {"path", "endpoint"}
    kwargs = {name: getattr(route, name) for name in names if hasattr(route, name)}
    if getattr(route, "stream_item_type", None) is not None:
        # FastAPI found the type of what a generator yields in its annotation, and finds it there again.
        kwargs.pop("response_model", None)
    if "dependency_overrides_provider" in names:
        # Routes of websockets do not keep it.
        provider = getattr(getattr(owner, "router", owner), "dependency_overrides_provider", None)
        kwargs.setdefault("dependency_overrides_provider", provider)
    if not kind.__module__.startswith("fastapi.") and not inspect.isfunction(route.app):
        raise TypeError(
            f"the route {route.path} is a method of {type(instance).__name__} and has middleware of its own, which "
            "cannot be kept.\n  next: give the middleware to the app or to a mount."
        )
    return type(route)(route.path, endpoint, **kwargs)


def _kind_of(route: Any) -> type | None:
    """The class of the library that a route is of, or None for mounts and the like."""
    kinds = [("fastapi.routing", "APIRoute"), ("fastapi.routing", "APIWebSocketRoute")]
    kinds += [("starlette.routing", "Route"), ("starlette.routing", "WebSocketRoute")]
    found = (getattr(sys.modules.get(module), name, None) for module, name in kinds)
    return next((kind for kind in found if kind is not None and isinstance(route, kind)), None)


def _bound_endpoint(endpoint: Any, instance: Any) -> Any:
    """The method of the instance; None if it is a method of another class; `endpoint` if it is no method.

    A method that a subclass overrides is the method of the subclass, as everywhere in Python.
    """
    cls = type(instance)
    place, _, name = getattr(endpoint, "__qualname__", "").rpartition(".")
    is_function = hasattr(type(endpoint), "__get__") and not isinstance(endpoint, (type, staticmethod, MethodType))
    if not place or place.endswith("<locals>") or not is_function:
        return endpoint
    # Several methods of a class may have one name and be routes all the same, so names say more than the class.
    bases = [base for base in cls.__mro__ if (base.__module__, base.__qualname__) == (endpoint.__module__, place)]
    if not bases:
        return None if next(iter(inspect.signature(endpoint).parameters), "") == "self" else endpoint
    for base in cls.__mro__[: cls.__mro__.index(bases[0])]:
        if name in vars(base):
            return getattr(instance, name)
    own = vars(bases[0]).get(name)
    if isinstance(own, (staticmethod, classmethod)) and own.__func__ is endpoint:
        return own.__get__(instance, cls)
    return endpoint.__get__(instance, cls)


# --- the way to another process


class _Given:
    """What `ingress` was given, as an attribute of the class."""

    def __init__(self, app: Any) -> None:
        self.app = app

    def __reduce__(self) -> Any:
        return _arrived, (self.app, list(_signatures(self.app)))


def _arrived(app: Any, signatures: list[tuple[Any, inspect.Signature]]) -> _Given:
    for function, signature in signatures:
        function.__signature__ = signature
    return _Given(app)


def _signatures(app: Any) -> Iterator[tuple[Any, inspect.Signature]]:
    """The functions of routes and dependencies whose annotations are strings, with what the strings mean.

    A function that travels by value takes along what its code uses, and FastAPI evaluates annotations in the replica.
    """
    for function in _functions_of_routes(app):
        if inspect.isfunction(function) and any(isinstance(each, str) for each in function.__annotations__.values()):
            try:
                yield function, inspect.signature(function, eval_str=True)
            except Exception as error:  # noqa: BLE001 - an annotation may hold any expression
                LOGGER.debug("annotations of %s mean nothing: %s", _name(function), error)


def _functions_of_routes(app: Any) -> Iterator[Any]:
    for owner in _owners_of_routes(app, set()):
        for route in owner.routes:
            if _kind_of(route) is not None:
                yield route.endpoint
                yield from (each.call for each in _every_dependant(getattr(route, "dependant", None)))


def _every_dependant(dependant: Any) -> Iterator[Any]:
    if dependant is not None:
        yield dependant
        for each in dependant.dependencies:
            yield from _every_dependant(each)


def _make_picklable() -> None:
    """Teach pickle the two kinds of objects in an app that it fails on."""
    datastructures = sys.modules.get("starlette.datastructures")
    if datastructures is not None:
        # Its __getattr__ needs an attribute that is not there yet while pickle fills it, and recurses.
        copyreg.pickle(datastructures.State, lambda state: (type(state), (dict(vars(state)["_state"]),)))
    included = getattr(sys.modules.get("fastapi.routing"), "_IncludedRouter", None)
    if included is not None:
        # It has a lock, and routes that it makes from these two.
        copyreg.pickle(included, lambda router: (type(router), (router.original_router, router.include_context)))


# --- what an app does before the first request and after the last


class Lifespan:
    """The start and the end of an ASGI app: what it does before the first request and after the last one.

    `state` has what the app said in its startup; each request is to have a copy of it as scope["state"].
    """

    def __init__(self, app: ASGIApp) -> None:
        self.state: dict[str, Any] = {}
        self._app = app
        #: None before the startup and after the shutdown, and for apps that know nothing of either.
        self._task: asyncio.Task[None] | None = None
        self._events: asyncio.Queue[Message | None] = asyncio.Queue()
        #: What the app says to the event that it was told last.
        self._answer: asyncio.Future[Message]

    async def startup(self) -> None:
        """Return when the app has started. Raises ServeError with the message of the app if it failed.

        An app that ends without an answer does not support the protocol, and has nothing to start.
        """
        scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}
        task = self._task = asyncio.create_task(_run(self._app, scope, self._receive, self._send))
        answer = await self._tell(task, "lifespan.startup")
        if answer is not None and answer["type"] == "lifespan.startup.complete":
            return
        self._task = None
        error = await self._end_of(task)
        if answer is not None:
            raise ServeError(f"the app did not start.\n  why:  {answer.get('message') or error or 'it does not say.'}")
        LOGGER.debug("the app does not support lifespan: %r", error)

    async def shutdown(self) -> None:
        """Return when the app has ended. The log has the message of an app that failed."""
        task, self._task = self._task, None
        if task is None:
            return
        answer = await self._tell(task, "lifespan.shutdown")
        error = await self._end_of(task)
        if answer is None and error is None:
            LOGGER.debug("the app ended its lifespan before it was told to")
        elif answer is None or answer["type"] == "lifespan.shutdown.failed":
            LOGGER.error("the app failed in its shutdown: %s", (answer and answer.get("message")) or repr(error))

    async def _tell(self, task: asyncio.Task[None], event: str) -> Message | None:
        """Tell the app of an event and return its answer; None if it has ended without one."""
        self._answer = asyncio.get_running_loop().create_future()
        self._events.put_nowait({"type": event})
        try:
            await asyncio.wait((task, self._answer), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        return self._answer.result() if self._answer.done() else None

    async def _end_of(self, task: asyncio.Task[None]) -> BaseException | None:
        """Wait for the end of the app, which has nothing to wait for any more; the error that it ended with."""
        self._events.put_nowait(None)
        await asyncio.wait((task,))
        return None if task.cancelled() else task.exception()

    async def _receive(self) -> Message:
        event = await self._events.get()
        if event is None:
            # An app that waits for more has not understood that this was all.
            raise asyncio.CancelledError
        return event

    async def _send(self, message: Message) -> None:
        if not message["type"].startswith("lifespan."):
            raise RuntimeError(f"an app answered {message['type']} to an event of its lifespan")
        if not self._answer.done():
            self._answer.set_result(message)


async def _run(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    await app(scope, receive, send)
