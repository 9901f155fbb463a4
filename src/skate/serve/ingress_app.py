"""The ASGI app of a deployment that answers HTTP: what `@serve.ingress` was given, its routes, or its `__call__`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from skate.serve.asgi_class import Lifespan, asgi_app_of
from skate.serve.handler import Handler, handler_of
from skate.serve.responses import Receive, Refusal, Scope, Send, refusal_of, respond, send_refusal
from skate.serve.routes import RoutesApp, routes_of
from skate.serve.sockets import refuse
from skate.serve.threads import Threads

__all__ = ["ASGIApp", "GivenApp", "app_of"]

ASGIApp = Callable[[Scope, Receive, Send], Any]


def app_of(servable: Any, threads: Threads) -> ASGIApp:
    """The app that answers for an instance of a deployment, or for a function. A GivenApp was written by the user."""
    if not inspect.isroutine(servable):
        given: ASGIApp | None = asgi_app_of(servable)
        if given is not None:
            return GivenApp(given)
        routes = routes_of(type(servable))
        if routes:
            handlers = {route.name: Handler(getattr(servable, route.name), route.name, threads) for route in routes}
            by_function = {handler.function: handler for handler in handlers.values()}

            async def call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
                handler = by_function.get(function)
                if handler is None:
                    handler = by_function[function] = Handler(function, function.__name__, threads)
                return function(*args, **kwargs) if handler.yields else await handler.call(args, kwargs)

            return RoutesApp(servable, routes, call=call, fetch=threads.run)
        if not callable(servable):
            return _Unanswered(type(servable).__name__)
    return _Called(handler_of(servable, "__call__", threads), threads)


class GivenApp:
    """An app that was given to `@serve.ingress`, with its start and its end."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.lifespan = Lifespan(app)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = self.lifespan.state.copy()
        await self._app(scope, receive, send)


class _Called:
    """Answers every path with what the deployment returns when it is called with the request."""

    def __init__(self, handler: Handler, threads: Threads) -> None:
        self._handler = handler
        self._threads = threads
        from starlette.requests import Request

        self._request = Request
        try:
            self._takes_request = bool(inspect.signature(handler.function).parameters)
        except (TypeError, ValueError):
            self._takes_request = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handler
        if scope["type"] == "websocket":
            return await refuse(Refusal(404, "this application takes no websockets"), scope, send)
        try:
            args = (self._request(scope, receive),) if self._takes_request else ()
            value = handler.function(*args) if handler.yields else await handler.call(args, {})
        except Exception as error:
            refusal = refusal_of(error)
            if refusal is None:
                raise
            return await send_refusal(refusal, scope, send)
        return await respond(
            value, scope, receive, send, plain_text=True, handler=handler.name, fetch=self._threads.run
        )


class _Unanswered:
    """Says that the deployment has nothing for HTTP. Handles reach its methods."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        why = f"{self._name} answers no HTTP: it has neither __call__, nor methods with @serve.get and the like"
        answer = refuse if scope["type"] == "websocket" else send_refusal
        await answer(Refusal(404, why), scope, send)
