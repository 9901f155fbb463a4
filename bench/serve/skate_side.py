"""Rows on Skate."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import handle_load
import models
import numpy as np
import tools
from http_client import Target

import skate
from skate import serve

SMALL: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": 1000}


@serve.deployment(**SMALL)
class Noop:
    async def __call__(self, request: Any = None) -> str:
        return "ok"


@serve.deployment(**SMALL)
class Route:
    @serve.get("/")
    async def answer(self) -> str:
        return "ok"


@serve.deployment(**SMALL)
class Outer:
    def __init__(self, inner: serve.DeploymentHandle) -> None:
        self.inner = inner

    async def __call__(self) -> str:
        return str(await self.inner.remote())


def model_of(**batching: Any) -> Any:
    """A deployment of a model: whole batches, or single states that are put together."""

    @serve.deployment(**SMALL)
    class Model:
        def __init__(self, kind: dict[str, Any], size_bytes: int = 0) -> None:
            import models

            self.model, self.size_bytes = models.make(kind), size_bytes

        def whole(self, states: Any) -> Any:
            return self.model(states)

        @serve.batch(**batching)
        def act(self, states: list[Any]) -> Any:
            return self.model(np.stack(states))

        async def __call__(self, request: Any) -> Any:
            import asyncio

            import models
            from starlette.responses import Response

            states = models.decode(await request.body(), self.size_bytes)
            found = await self.act(states[0]) if len(states) == 1 else await asyncio.to_thread(self.whole, states)
            return Response(found.tobytes(), media_type="application/octet-stream")

    return Model


@serve.deployment(**SMALL)
class Policy:
    def __init__(self) -> None:
        import models

        self.policy = models.CartPolePolicy()

    @serve.websocket("/loop")
    async def loop(self, socket: Any) -> None:
        async for observation in socket.arrays():
            await socket.send(self.policy.act(observation))


def _by_handle(app: Any) -> Any:
    return serve.run(app, route_prefix=None)


# -- without a model ---------------------------------------------------------------------------------------------------


def handle(count: int = 5000) -> dict[str, Any]:
    with skate.init(num_cpus=2):
        deployed = _by_handle(Noop.bind())
        return handle_load.noop(handle_load.ok(deployed.remote), count)


def actor(count: int = 5000) -> dict[str, Any]:
    """The same call without skate.serve."""

    @skate.remote(num_cpus=0)
    class Bare:
        async def answer(self) -> str:
            return "ok"

    with skate.init(num_cpus=2):
        bare = Bare.remote()

        def call() -> None:
            assert skate.get(bare.answer.remote()) == "ok"

        return handle_load.noop(call, count)


def composed(count: int = 5000) -> dict[str, Any]:
    with skate.init(num_cpus=2):
        outer = _by_handle(Outer.bind(Noop.bind()))
        return handle_load.composed(serve.get_deployment_handle("Noop"), outer, count)


def http(style: str = "route", count: int = 7000) -> dict[str, Any]:
    """One connection. style: a typed route, or `__call__` with a request of starlette as in Ray Serve."""
    target = Target(tools.free_port())
    with skate.init(num_cpus=2):
        serve.run((Route if style == "route" else Noop).bind(), port=target.port)
        return tools.latency_beside_bare(target, count)


def http_rate(seconds: float = 8) -> dict[str, Any]:
    target = Target(tools.free_port())
    with skate.init(num_cpus=2):
        serve.run(Route.options(num_replicas=2).bind(), port=target.port)
        return tools.rate(target, seconds)


def websocket(steps: int = 5000) -> dict[str, Any]:
    port = tools.free_port()
    with skate.init(num_cpus=2):
        serve.run(Policy.bind(), port=port)
        return tools.flat(tools.episodes(port, steps), "us")


# -- models ------------------------------------------------------------------------------------------------------------


def _served(kind: dict[str, Any], size_bytes: int, given: np.ndarray[Any, Any], **batching: Any) -> Any:
    """A model behind HTTP, until the end of the block."""
    import contextlib

    @contextlib.contextmanager
    def block() -> Any:
        target = Target(tools.free_port(), "/", given.tobytes(), tools.NUMBERS, b"")
        with skate.init(num_cpus=2):
            serve.run(model_of(**batching).bind(kind, size_bytes), port=target.port)
            yield target

    return block()


def batches(
    loads: dict[str, Any], widths: dict[str, int], states: int = 64, seconds: float = 4, way: str = "handle"
) -> dict[str, Any]:
    if way == "http":
        return tools.over_http(_served, loads, states, widths, seconds)
    with skate.init(num_cpus=2):
        deploy: Callable[[Any], Any] = lambda kind: _by_handle(model_of().bind(kind))  # noqa: E731
        return tools.flat(handle_load.of_batches(deploy, loads, states, widths, seconds), "states_per_s")


def one_by_one(loads: dict[str, Any], width: int = 128, seconds: float = 4, way: str = "handle") -> dict[str, Any]:
    batching = {"max_batch_size": 64}
    if way == "http":
        return tools.over_http(lambda *each: _served(*each, **batching), loads, 1, {"": width}, seconds)
    with skate.init(num_cpus=2):
        deploy: Callable[[Any], Any] = lambda kind: _by_handle(model_of(**batching).bind(kind))  # noqa: E731
        return handle_load.of_singles(deploy, loads, width, seconds)


def open_loop(
    kind: dict[str, Any],
    size_bytes: int,
    shares: list[int],
    low_rate: float,
    seconds: float = 8,
    width: int = 128,
    latency_ms: float = 20,
    way: str = "handle",
) -> dict[str, Any]:
    """Batches as large as the objective lets them be."""
    if way == "http":
        with _served(kind, size_bytes, models.states(1, size_bytes), latency_ms=latency_ms) as target:
            return tools.open_loop_over_http(target, shares, low_rate, seconds, width)
    with skate.init(num_cpus=2):
        remote = _by_handle(model_of(latency_ms=latency_ms).bind(kind)).act.remote
        return handle_load.open_loop(remote, size_bytes, shares, low_rate, seconds, width)


def capacity(
    kind: dict[str, Any],
    size_bytes: int,
    sizes: list[int] | None = None,
    seconds: float = 6,
    width: int = 128,
    latency_ms: float = 20,
) -> dict[str, Any]:
    """States a second with batches that follow the objective; or with the best of fixed sizes that keeps to it."""
    given, found = models.states(256, size_bytes), {}
    with skate.init(num_cpus=2):
        for size in sizes or [0]:
            batching = {"max_batch_size": size} if size else {"latency_ms": latency_ms}
            remote = _by_handle(model_of(**batching).bind(kind)).act.remote
            found[size] = handle_load.run(handle_load.closed(remote, given, width, seconds))
    good = {size: one for size, one in found.items() if one["p99"] <= latency_ms} or found
    best = max(good, key=lambda size: good[size]["per_s"])
    return {"states_per_s": good[best]["per_s"], "size": best, "sizes": found}


# -- what replicas cost ------------------------------------------------------------------------------------------------


def deploy(way: str = "handle") -> dict[str, Any]:
    """From `serve.run` on a machine where Skate runs and serves nothing, to the first answer."""
    target = Target(tools.free_port())
    with skate.init(num_cpus=2):
        began = time.perf_counter()
        if way == "handle":
            assert _by_handle(Noop.bind()).remote().result() == "ok"
        else:
            serve.run(Route.bind(), port=target.port)
            tools.wait_until_answers(target)
        return {"seconds": time.perf_counter() - began}


def memory(replicas: int = 4) -> dict[str, Any]:
    """What one replica more adds, without and with HTTP, after it has answered."""
    found = {}
    for way in ("handle", "HTTP"):
        totals = []
        with skate.init(num_cpus=2):
            for count in (1, 1 + replicas):
                target = Target(tools.free_port())
                if way == "handle":
                    deployed = _by_handle(Noop.options(num_replicas=count).bind())
                    handle_load.take_turns([handle_load.ok(deployed.remote)], 200)
                else:
                    serve.run(Route.options(num_replicas=count).bind(), port=target.port)
                    tools.load("ask", target=target, connections=8, count=50)
                totals.append(tools.megabytes())
                serve.shutdown()
        found[way] = (totals[1] - totals[0]) / replicas
    return tools.flat({"mb": found}, "mb")


if __name__ == "__main__":
    tools.main(
        {
            "handle": handle,
            "actor": actor,
            "composed": composed,
            "http": http,
            "http_rate": http_rate,
            "websocket": websocket,
            "batches": batches,
            "one_by_one": one_by_one,
            "open_loop": open_loop,
            "capacity": capacity,
            "deploy": deploy,
            "memory": memory,
        }
    )
