"""A replica: one process that works on the requests of one deployment.

    handles  ──call, stream──►  Slots ──► Handler ──► the user's method
    HTTP     ──Front─────────►    "          "
    the controller ──probe, reconfigure, drain──►

Requests run on the event loop of the main thread, plain functions in threads. What the controller asks has a loop and a
thread of its own, so that it is answered while a handler blocks the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib
import inspect
import pickle
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

import skate
from skate.serve import configs, request_context
from skate.serve.exceptions import BackPressureError
from skate.serve.guard import is_raised_by_code
from skate.serve.handler import Handler, handler_of
from skate.serve.metrics import ReplicaMetrics, Snapshot
from skate.serve.records import AppSpec, DeploymentSpec
from skate.serve.request_context import ReplicaContext, RequestContext
from skate.serve.slots import NoRoom, Slots
from skate.serve.threads import Threads

__all__ = ["Hello", "Replica"]

#: Methods of a deployment that the controller has called.
CONTROLLED = ("check_health", "reconfigure")
#: A replica that is to end goes on for so long after its latest request: some callers have not heard of it yet. What
#: they send later is lost with it, unseen, and they send it to another one.
LINGER_S = 0.2
LOOK_EVERY_S = 0.02
#: How long a thread of pure Python keeps the interpreter while another one waits for it. The event loop waits for it
#: several times in each request, each time for all threads that compute: with Python's own 5 ms, ten handlers that
#: compute would keep a health check waiting for a large part of a second.
SWITCH_S = 0.001
#: Seconds after the timeout within which clients can close silent connections.
FAREWELL_S = 1.0


class Hello(msgspec.Struct):
    """What a replica says of itself when it has started."""

    node: str
    tunnel: bytes = b""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """The fastest event loop that is installed."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ModuleNotFoundError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class Replica:
    """The actor. It is made by the controller and lives until that ends it, or its process dies."""

    __new_event_loop__ = staticmethod(new_event_loop)

    async def __init__(  # type: ignore[misc] # an event loop has to run
        self, id: str, app: AppSpec, spec: DeploymentSpec, code: bytes, config: Any, http: Any
    ) -> None:
        sys.path.extend(path for path in app.import_path if path not in sys.path)
        sys.setswitchinterval(SWITCH_S)
        self.id, self._spec = id, spec
        self._loop = asyncio.get_running_loop()
        self.slots = Slots(spec.max_ongoing)
        self.threads = Threads(spec.max_ongoing)
        #: For the methods that the controller has called: requests may take all other threads.
        self._own_threads = Threads(len(CONTROLLED))
        self._http = http
        self.metrics = ReplicaMetrics()
        self._handlers: dict[str, Handler] = {}
        self._front: Any = None
        self._configuring = asyncio.Lock()
        self._draining: asyncio.Task[bool] | None = None
        self._ended = asyncio.Event()
        request_context.set_replica(ReplicaContext(spec.app, spec.name, id))
        self._hook_batches()
        target, args, kwargs = pickle.loads(code)
        self.servable = await _made(target, args, kwargs)
        request_context.set_replica(ReplicaContext(spec.app, spec.name, id, self.servable))
        if spec.config:
            await self._configure(config)
        if hasattr(self.servable, "check_health"):
            await self._handler("check_health").call((), {})
        if http is not None and spec.is_ingress and app.route_prefix is not None:
            front = importlib.import_module("skate.serve.front")
            self._front = await front.start(self, app, spec, http)
        _give_back_memory()

    # -- requests --------------------------------------------------------------------------------------------------

    async def call(self, meta: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, int]:
        """Work on a request of a handle: its result, and how many other requests there are when it leaves."""
        slots, metrics = self.slots, self.metrics
        if not slots.take_at_once():
            await self._take()
        begin = time.perf_counter()
        failed = True
        try:
            handler, args, kwargs = self._entered(meta, args, kwargs)
            value = await handler.call(args, kwargs)
            failed = False
            return value, slots.load - 1
        except asyncio.CancelledError:
            failed = is_raised_by_code()  # else the caller has wished it
            raise
        finally:
            slots.give_back()
            metrics.ended(time.perf_counter() - begin, failed=failed)

    async def stream(self, meta: Any, /, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        """The same for a handle that wants what the method yields."""
        slots, metrics = self.slots, self.metrics
        await self._take()
        begin = time.perf_counter()
        failed = True
        try:
            handler, args, kwargs = self._entered(meta, args, kwargs)
            items = handler.stream(args, kwargs)
            async with contextlib.aclosing(items):  # type: ignore[type-var]
                async for item in items:
                    yield item
            failed = False
        except (GeneratorExit, asyncio.CancelledError):
            failed = False  # the caller has what it wanted
            raise
        finally:
            slots.give_back()
            metrics.ended(time.perf_counter() - begin, failed=failed)

    async def _take(self) -> None:
        """Take a place; wait for one if necessary. Raises BackPressureError if too many wait."""
        try:
            await self.slots.take()
        except NoRoom:
            self.metrics.rejected += 1
            raise BackPressureError(deployment=self._spec.name, waiting=self.slots.waiting) from None

    def _entered(
        self, meta: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Handler, tuple[Any, ...], dict[str, Any]]:
        """Note the request that the running code works on; what it calls, with which arguments."""
        if type(meta) is str:
            return self._handler(meta), args, kwargs
        method, model, id, answers = meta
        if model or id:
            request_context.set_request(RequestContext(id, model))
        if answers:
            args = tuple(each[0] if place in answers else each for place, each in enumerate(args))
            kwargs = {name: each[0] if name in answers else each for name, each in kwargs.items()}
        return self._handler(method), args, kwargs

    def _handler(self, name: str) -> Handler:
        found = self._handlers.get(name)
        if found is None:
            threads = self._own_threads if name in CONTROLLED else self.threads
            found = self._handlers[name] = handler_of(self.servable, name, threads)
        return found

    # -- what the controller asks ----------------------------------------------------------------------------------

    @skate.method(concurrency_group="control")
    async def hello(self) -> Hello:
        """What this replica is."""
        tunnel = b"" if self._front is None else self._front.tunnel
        return Hello(skate.get_runtime_context().get_node_id(), tunnel)

    @skate.method(concurrency_group="control")
    async def probe(self) -> Snapshot:
        """What this replica has counted, and has to do."""
        metrics, slots = self.metrics, self.slots
        metrics.working, metrics.waiting = slots.taken, slots.waiting
        return Snapshot(**{name: getattr(metrics, name) for name in Snapshot.__struct_fields__})

    @skate.method(concurrency_group="control")
    async def check_health(self) -> None:
        """Raises what the method `check_health` of the deployment raises."""
        if hasattr(self.servable, "check_health"):
            await self._in_main(self._handler("check_health").call((), {}))

    @skate.method(concurrency_group="control")
    async def reconfigure(self, spec: DeploymentSpec, config: Any) -> None:
        """Take other settings, and give user_config to the deployment if it has changed."""
        async with self._configuring:
            changed = spec.config != self._spec.config
            most_waiting = self.slots.most_waiting
            if self._front is not None:
                most_waiting = self._http.max_queued_requests if spec.max_queued < 0 else spec.max_queued
            self._loop.call_soon_threadsafe(self.slots.resize, spec.max_ongoing, most_waiting)
            self.threads.limit = spec.max_ongoing
            if changed and spec.config:
                await self._in_main(self._configure(config))
            self._spec = spec

    @skate.method(concurrency_group="control")
    async def learn_routes(self) -> None:
        """Know the routes as they are now."""
        if self._front is not None:
            await asyncio.to_thread(self._front.learn_routes)

    @skate.method(concurrency_group="control")
    async def stay(self) -> None:
        """Return when the replica ends; the error of this call says how it ended."""
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._ended.wait(), self._loop))

    async def drain(self, timeout_s: float, linger_s: float = LINGER_S, silent_s: float | None = None) -> bool:
        """Answer what is there and end; False if requests are left after `timeout_s`.

        linger_s: it goes on for so long after its latest request, for callers that have not heard of its end.
        silent_s: connections of HTTP without a request are closed after so long; None: at the timeout.
        """
        if self._draining is None:  # else a controller that was started again asks once more
            self._draining = asyncio.ensure_future(self._drain(timeout_s, linger_s, silent_s))
        if not await asyncio.shield(self._draining):
            return False
        self._ended.set()
        skate.exit_actor()
        return True

    async def _drain(self, timeout_s: float, linger_s: float, silent_s: float | None) -> bool:
        """Wait until the replica has nothing to do. After that it begins nothing any more."""
        quiet_since = time.monotonic()
        deadline = quiet_since + timeout_s
        front = None if self._front is None else asyncio.ensure_future(self._front.drain(timeout_s, silent_s))
        while True:
            now = time.monotonic()
            if self.slots.load or (front is not None and not front.done()):
                quiet_since = now
                if now >= deadline + (FAREWELL_S if front is not None and not self.slots.load else 0.0):
                    return False
            elif now - quiet_since >= min(linger_s, timeout_s):
                break
            await asyncio.sleep(LOOK_EVERY_S)
        self.slots.resize(0, -1)  # what comes now waits, and is sent elsewhere when this process has ended
        self._tidy_up()
        return True

    def _tidy_up(self) -> None:
        """Let the deployment tidy up: its `__del__`, if it has one, runs when nothing refers to it any more."""
        request_context.set_replica(ReplicaContext(self._spec.app, self._spec.name, self.id))
        self._handlers.clear()
        self._front = self.servable = None
        gc.collect()

    async def _configure(self, config: Any) -> None:
        if not hasattr(self.servable, "reconfigure"):
            raise TypeError(
                f"deployment {self._spec.name} has a user_config, and no method `reconfigure` that takes it.\n"
                "  next: define `def reconfigure(self, config)`, or leave out user_config."
            )
        await self._handler("reconfigure").call((configs.load(config),), {})

    async def _in_main(self, coroutine: Any) -> Any:
        """Run a coroutine on the loop of the requests."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self._loop))

    def _hook_batches(self) -> None:
        sizes = self.metrics.batches
        importlib.import_module("skate.serve.batches").set_hooks(
            on_batch=lambda _name, size, _seconds: sizes.add(size), run_blocking=self.threads.run
        )


def _give_back_memory() -> None:
    """Have the C library give back what it does not use: importing leaves 0.7 MB of it in every replica."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


async def _made(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What requests are given to: an instance, or the function itself."""
    if not inspect.isclass(target):
        return target
    if not inspect.iscoroutinefunction(target.__init__):
        return target(*args, **kwargs)
    instance = target.__new__(target)
    await target.__init__(instance, *args, **kwargs)
    return instance
