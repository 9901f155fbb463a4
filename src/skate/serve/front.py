"""HTTP in a replica: every path of the port, whichever application it belongs to.

    a connection ──► HttpServer ──► Front ──► /-/…        what skate.serve says of itself
                                      ├─────► the own app in a place here, or in a free one of a sibling
                                      └─────► other apps  through a tunnel to one of their replicas
    other replicas ──► TunnelServer ──► the own app in a place here

Idea: the own app is the fast path. A request of it costs one look at its path and its headers, a place, and the app.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import time
from typing import TYPE_CHECKING

import msgspec

import skate
from skate.serve.access import Access
from skate.serve.config import HTTPOptions
from skate.serve.directory import directory
from skate.serve.exceptions import BackPressureError, DeploymentUnavailableError
from skate.serve.forward import Forwarder, Siblings
from skate.serve.guard import Guard, TimeGuard, is_raised_by_code
from skate.serve.http_server import HttpServer, HttpSettings
from skate.serve.ingress_app import ASGIApp, GivenApp, app_of
from skate.serve.records import CONTROLLER, NAMESPACE, AppSpec, DeploymentSpec, Route, Routes
from skate.serve.refusals import RETRY_AFTER, refuse, send_unless_started
from skate.serve.request_context import RequestContext, current_request, set_request
from skate.serve.responses import JSON, TEXT, Message, Receive, Scope, Send, send_whole
from skate.serve.shared_socket import SharedSocket
from skate.serve.slots import NoRoom
from skate.serve.tunnel import RemoteAppError, TunnelBroken, TunnelClient, TunnelServer

if TYPE_CHECKING:
    from skate.serve.replica import Replica

__all__ = ["Front", "start"]

logger = logging.getLogger("skate.serve")

PROMETHEUS = b"text/plain; version=0.0.4; charset=utf-8"
OWN = "/-/"
MODEL, ID, ORIGIN = b"serve_multiplexed_model_id", b"x-request-id", b"origin"
NOTED = frozenset({MODEL, ID, ORIGIN})
#: A longer id of a client is replaced by one of ours.
ID_LENGTH_MAX = 128


async def start(replica: Replica, app: AppSpec, spec: DeploymentSpec, http: HTTPOptions) -> Front:
    """Answer HTTP in this replica. Raises OSError if its node has no socket for it."""
    front = Front(replica, app, spec, http)
    await front.listen()
    return front


class Front:
    """The ASGI app of the port, in one replica."""

    def __init__(self, replica: Replica, app: AppSpec, spec: DeploymentSpec, http: HTTPOptions) -> None:
        self._replica, self._spec, self._http = replica, spec, http
        self._slots, self._metrics = replica.slots, replica.metrics
        self._slots.most_waiting = http.max_queued_requests if spec.max_queued < 0 else spec.max_queued
        self._app: ASGIApp = app_of(replica.servable, replica.threads)
        self._access = Access(http)
        #: An app that was given to serve.ingress has rules of its own for pages of other sites.
        self._refuses_foreign = not isinstance(self._app, GivenApp)
        self._prefix = "" if app.route_prefix in (None, "/") else str(app.route_prefix)
        self._root = http.root_path + self._prefix
        self._loop = asyncio.get_running_loop()
        self._routes: list[Route] = []
        #: Whether every path but those below /-/ is the own app's.
        self._is_alone = False
        self._forwarder = Forwarder(http.max_queued_requests)
        self._siblings = Siblings(spec.key, replica.id)
        self._ids = itertools.count(1)
        #: An id tells which replica has taken the request.
        self._id_prefix = replica.id
        self._tunnel = TunnelServer(self._answer_tunnel, self._loop, load=lambda: self._slots.load)
        #: Where other replicas reach this one.
        self.tunnel = pickle.dumps(self._tunnel.address)
        self._server = HttpServer(
            self,
            HttpSettings(
                keep_alive_s=http.keep_alive_timeout_s,
                header_timeout_s=http.header_timeout_s,
                max_header_bytes=http.max_header_bytes,
                max_body_bytes=http.max_body_bytes,
                body_timeout_s=http.body_timeout_s,
                write_timeout_s=http.write_timeout_s,
                max_websocket_bytes=http.max_websocket_bytes,
                root_path=http.root_path,
            ),
        )
        self._socket = SharedSocket(replica.id)

    async def listen(self) -> None:
        """Take connections from the socket of this node."""
        if isinstance(self._app, GivenApp):
            await self._app.lifespan.startup()

        def on_routes(routes: Routes) -> None:
            self._loop.call_soon_threadsafe(self._on_routes, routes)

        directory().watch_routes(on_routes)
        listening = await self._socket.open(self._http.host, self._http.port)
        if listening is not None:
            self._server.listen(listening)

    def learn_routes(self) -> None:
        """Read the routes as they are now: what was published may not have come yet. Not on the event loop."""
        directory().read_all()

    async def drain(self, timeout_s: float, silent_s: float | None = None) -> None:
        """Leave new connections to others, answer what is there, and let clients go.

        A connection on which nothing happens is closed after `silent_s`, by default after `timeout_s`.
        """
        self._server.stop_accepting()
        self._socket.close()
        tunnels = asyncio.wait_for(self._tunnel.drain(), max(0.01, timeout_s))
        await asyncio.gather(self._server.drain(timeout_s, silent_s), tunnels, return_exceptions=True)
        self._tunnel.close()
        if isinstance(self._app, GivenApp):
            await self._app.lifespan.shutdown()

    # -- whose request it is ----------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of a client."""
        origin = self._enter(scope)
        path: str = scope["path"]
        root = self._http.root_path
        if root and path.startswith(root):
            path = path[len(root) :]
        if origin and scope["type"] == "http" and self._access.allows(origin):
            if await self._access.answer_preflight(scope, send, origin):
                return None
            send = self._access.readable(send, origin)
        if path.startswith(OWN):
            return await self._answer_for_itself(path, scope, send)
        if self._access.lacks_token(scope):
            return await refuse(scope, send, 401, "a token is needed", {"www-authenticate": "Bearer"})
        if self._is_alone:
            return await self._answer(origin, scope, receive, send, self._in_some_place)
        route = self._route_of(path)
        if route is None:
            return await refuse(scope, send, 404, f"no application is served at {path}")
        if route.key == self._spec.key:
            return await self._answer(origin, scope, receive, send, self._in_some_place)
        return await self._pass_on(route, scope, receive, send)

    async def _answer_tunnel(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that another replica has taken, and has looked at."""
        await self._answer(self._enter(scope), scope, receive, send, self._in_own_place)

    def _enter(self, scope: Scope) -> bytes:
        """Note which request this is, for logs, for handles that work for it, and for the answer; its origin."""
        id = model = ""
        origin = b""
        has_foreign_id = False
        for name, value in scope["headers"]:
            if name in NOTED:
                if name == ID:
                    text = value.decode("latin-1")
                    id = text if len(text) <= ID_LENGTH_MAX and text.isascii() and text.isprintable() else ""
                    has_foreign_id = not id
                elif name == MODEL:
                    model = value.decode("latin-1")
                else:
                    origin = value
        if not id:
            id = f"{self._id_prefix}-{next(self._ids):x}"
            if has_foreign_id:
                scope["headers"] = [each for each in scope["headers"] if each[0] != ID]
            scope["headers"].append((ID, id.encode()))  # apps and their middleware look for it there
        set_request(RequestContext(id, model, self._prefix or "/"))
        headers = scope["extensions"].get("skate.headers")
        if headers is not None:
            headers.append((ID, id.encode()))
            headers += self._access.headers
        return origin

    def _on_routes(self, routes: Routes) -> None:
        self._routes = routes.routes
        self._is_alone = [route.key for route in self._routes] == [self._spec.key] and not self._prefix

    def _route_of(self, path: str) -> Route | None:
        for route in self._routes:
            prefix = route.prefix
            if prefix == "/" or path == prefix or path.startswith(prefix + "/"):
                return route
        if not self._routes and (path + "/").startswith(self._prefix + "/"):
            return Route(self._prefix or "/", self._spec.app, self._spec.key)  # it serves before it is announced
        return None

    # -- the own app ------------------------------------------------------------------------------------------------

    async def _answer(self, origin: bytes, scope: Scope, receive: Receive, send: Send, app: ASGIApp) -> None:
        """Answer for the own app; `app` finds a place for it. Websockets need no place, because most of them wait."""
        if origin and self._refuses_foreign and self._access.is_foreign(scope, origin):
            why = "a page of another site asks; HTTPOptions(allowed_origins=…) can allow that"
            return await refuse(scope, send, 403, why)
        if scope["type"] == "http":
            return await self._guarded(scope, receive, send, app)
        scope["root_path"] = self._root
        self._metrics.requests += 1
        try:
            await self._app(scope, receive, send)
        except OSError:  # the client has gone
            raise
        except (Exception, KeyboardInterrupt, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and not is_raised_by_code():
                raise
            self._metrics.errors += 1
            logger.error("websocket %s failed: %s", _id(), scope["path"], exc_info=error)
            raise ConnectionAbortedError("the handler of the websocket failed") from None
        return None

    async def _in_some_place(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer in a place of this replica, or of a sibling if none is free here and one is there."""
        if self._slots.take_at_once():
            return await self._in_place(scope, receive, send)
        sibling = self._siblings.free()
        if sibling is None:
            return await self._in_own_place(scope, receive, send)
        first = await receive()
        try:
            return await self._through(sibling, scope, receive, send, first)
        except TunnelBroken as error:
            if error.was_sent or error.started:
                raise
        messages = [first]

        async def receive_again() -> Message:
            return messages.pop() if messages else await receive()

        return await self._in_own_place(scope, receive_again, send)

    async def _in_own_place(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._slots.take_at_once():
            await self._slots.take()
        await self._in_place(scope, receive, send)

    async def _in_place(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer in a place that was taken, and give that back."""
        if self._root:
            scope["root_path"] = self._root
        begin = time.perf_counter()
        failed = False
        try:
            await self._app(scope, receive, send)
        except asyncio.CancelledError:
            failed = is_raised_by_code()
            raise
        except BaseException:
            failed = True
            raise
        finally:
            self._slots.give_back()
            self._metrics.ended(time.perf_counter() - begin, failed=failed)

    # -- limits and failures ----------------------------------------------------------------------------------------

    async def _guarded(self, scope: Scope, receive: Receive, send: Send, app: ASGIApp) -> None:
        """Answer until the client goes or the time is over. Whatever is raised, the client gets an answer."""
        guard: Guard
        if self._http.request_timeout_s is None:
            guard = Guard(scope)
        else:
            whole_send = send
            guard = TimeGuard(scope, send, self._http.request_timeout_s, lambda: self._too_late(scope, whole_send))
            send = guard.send
        try:
            await app(scope, receive, send)
        except asyncio.CancelledError as error:
            if not guard.has_cut and is_raised_by_code():
                await self._failed(scope, send, error)
            elif not guard.caused_cancellation():
                raise
        except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - any of a handler
            if not guard.is_late:
                await self._failed(scope, send, error)
        finally:
            guard.end()
        if guard.is_late:
            await guard.conclude()

    async def _failed(self, scope: Scope, send: Send, error: BaseException) -> None:
        """The log has the traceback of a handler, the client an id to ask with."""
        if isinstance(error, (NoRoom, BackPressureError)):
            self._metrics.rejected += isinstance(error, NoRoom)
            return await refuse(scope, send, 503, "too many requests wait", RETRY_AFTER)
        if isinstance(error, DeploymentUnavailableError):
            return await refuse(scope, send, 503, "the application cannot be had at present", RETRY_AFTER)
        where = f"{scope.get('method', 'websocket')} {scope['path']}"
        if isinstance(error, TunnelBroken):
            logger.warning("request %s: the replica that worked on %s was lost: %s", _id(), where, error)
            return await refuse(scope, send, 502, "the replica that worked on the request was lost")
        if isinstance(error, (RemoteAppError, ConnectionAbortedError)):  # it is in a log already
            raise ConnectionAbortedError("the app failed in the middle of its answer") from None
        logger.error("request %s failed: %s", _id(), where, exc_info=error)
        text = f"Internal Server Error\nrequest id: {_id()}\n"
        if self._http.show_tracebacks:
            import traceback

            text += "\n" + "".join(traceback.format_exception(type(error), error, error.__traceback__))
        return await send_unless_started(scope, send, 500, TEXT, text.encode())

    async def _too_late(self, scope: Scope, send: Send) -> None:
        self._metrics.errors += 1
        text = f"no answer within {self._http.request_timeout_s:g} s\nrequest id: {_id()}\n"
        await send_unless_started(scope, send, 504, TEXT, text.encode())

    # -- other replicas ---------------------------------------------------------------------------------------------

    async def _pass_on(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """Let another application answer."""
        _name(scope)

        async def forward(scope: Scope, receive: Receive, send: Send) -> None:
            await self._forwarder(route.key, scope, receive, send)

        if scope["type"] == "http":
            return await self._guarded(scope, receive, send, forward)
        try:
            await forward(scope, receive, send)
        except Exception as error:
            if isinstance(error, OSError) and not isinstance(error, TunnelBroken):  # the client has gone
                raise
            await self._failed(scope, send, error)

    async def _through(self, sibling: TunnelClient, scope: Scope, receive: Receive, send: Send, first: Message) -> None:
        _name(scope)
        await sibling(scope, receive, send, first)

    # -- what skate.serve says of itself ----------------------------------------------------------------------------

    async def _answer_for_itself(self, path: str, scope: Scope, send: Send) -> None:
        if scope["type"] == "websocket":
            return await refuse(scope, send, 404, "there is no websocket here")
        if path == "/-/healthz":
            return await send_whole(send, scope, 200, TEXT, b"success")
        if self._access.lacks_token(scope):
            return await refuse(scope, send, 401, "a token is needed", {"www-authenticate": "Bearer"})
        if path == "/-/routes":
            found = {route.prefix: route.app for route in self._routes}
            return await send_whole(send, scope, 200, JSON, msgspec.json.encode(found))
        if path == "/-/metrics":
            try:
                text = await asyncio.wait_for(_metrics(), 10.0)
            except Exception:  # noqa: BLE001 - it is being started again
                return await refuse(scope, send, 503, "the controller is being started again", RETRY_AFTER)
            return await send_whole(send, scope, 200, PROMETHEUS, text.encode())
        return await refuse(scope, send, 404, "there are /-/healthz, /-/routes and /-/metrics")


async def _metrics() -> str:
    controller = await asyncio.to_thread(skate.get_actor, CONTROLLER, NAMESPACE)
    text: str = await controller.metrics.remote()
    return text


def _id() -> str:
    context = current_request()
    return "" if context is None else context.request_id


def _name(scope: Scope) -> None:
    """Let the replica that answers know the request by the id that it has here."""
    others = [(name, value) for name, value in scope["headers"] if name != ID]
    scope["headers"] = [*others, (ID, _id().encode())]
