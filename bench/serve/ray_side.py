"""Rows on Ray Serve, at its defaults and at the settings that its documentation has for throughput."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import handle_load
import models
import numpy as np
import tools
from http_client import Target

#: https://docs.ray.io/en/master/kuberay/user-guides/serve-high-throughput.html
THROUGHPUT = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # It sends requests by gRPC then, with a limit of 4 MB that a batch of states of 100 KB is above.
    "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(64 << 20),
}
SMALL: dict[str, Any] = {"ray_actor_options": {"num_cpus": 0}, "max_ongoing_requests": 1000}
#: Seconds that a batch waits to fill: Ray's default.
BATCHING: dict[str, Any] = {"max_batch_size": 64, "batch_wait_timeout_s": 0.01}


@contextlib.contextmanager
def _ray(tuned: bool = False, port: int | None = None) -> Iterator[Any]:
    """Ray with Serve started, until the end of the block. tuned: with its settings for throughput."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if tuned:
        os.environ.update(THROUGHPUT)  # they are read when ray.serve is imported, here and in replicas
    import logging

    import ray

    logging.disable(logging.WARNING)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    # Of this process alone: without it, a tuned handle works in coroutines only.
    os.environ["RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP"] = "1"
    from ray import serve

    try:
        if port is not None:
            serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield serve
    finally:
        ray.shutdown()  # with serve.shutdown() before it, HAProxy would take 30 s


def _noop(serve: Any, **options: Any) -> Any:
    @serve.deployment(**{**SMALL, **options})
    class Noop:
        async def __call__(self, request: Any = None) -> str:
            return "ok"

    return Noop


def _model(serve: Any) -> Any:
    @serve.deployment(**SMALL)
    class Model:
        def __init__(self, kind: dict[str, Any], size_bytes: int = 0) -> None:
            import models

            self.model, self.size_bytes = models.make(kind), size_bytes

        # In a thread: a model that blocked the loop would keep requests from being received.
        async def whole(self, states: Any) -> Any:
            import asyncio

            return await asyncio.to_thread(self.model, states)

        @serve.batch(**BATCHING)
        async def act(self, states: list[Any]) -> Any:
            import asyncio

            return list(await asyncio.to_thread(self.model, np.stack(states)))

        async def __call__(self, request: Any) -> Any:
            import models
            from starlette.responses import Response

            states = models.decode(await request.body(), self.size_bytes)
            found = await (self.act(states[0]) if len(states) == 1 else self.whole(states))
            return Response(found.tobytes(), media_type="application/octet-stream")

    return Model


def _by_handle(serve: Any, app: Any) -> Any:
    return serve.run(app, route_prefix=None)


# -- without a model ---------------------------------------------------------------------------------------------------


def handle(tuned: bool = False, count: int = 2000) -> dict[str, Any]:
    with _ray(tuned) as serve:
        deployed = _by_handle(serve, _noop(serve).bind())
        return handle_load.noop(handle_load.ok(deployed.remote), count)


def composed(tuned: bool = False, count: int = 2000) -> dict[str, Any]:
    with _ray(tuned) as serve:

        @serve.deployment(**SMALL)
        class Outer:
            def __init__(self, inner: Any) -> None:
                self.inner = inner

            async def __call__(self) -> str:
                return str(await self.inner.remote())

        outer = _by_handle(serve, Outer.bind(_noop(serve).bind()))
        return handle_load.composed(serve.get_deployment_handle("Noop", "default"), outer, count)


def http(tuned: bool = False, count: int = 3500) -> dict[str, Any]:
    target = Target(tools.free_port())
    with _ray(tuned, target.port) as serve:
        serve.run(_noop(serve).bind())
        tools.wait_until_answers(target)
        return tools.latency_beside_bare(target, count)


def http_rate(tuned: bool = False, seconds: float = 8) -> dict[str, Any]:
    target = Target(tools.free_port())
    with _ray(tuned, target.port) as serve:
        serve.run(_noop(serve, num_replicas=2).bind())
        tools.wait_until_answers(target)
        return tools.rate(target, seconds)


def websocket(steps: int = 2000) -> dict[str, Any]:
    """A websocket of FastAPI as the ingress of a deployment."""
    port = tools.free_port()
    with _ray(port=port) as serve:
        import ray_websocket

        serve.run(ray_websocket.Policy.bind())
        tools.wait_until_answers(Target(port))
        return tools.episodes(port, steps)


# -- models ------------------------------------------------------------------------------------------------------------


def _served(tuned: bool) -> Callable[..., Any]:
    """A model behind HTTP, until the end of the block."""

    @contextlib.contextmanager
    def block(kind: dict[str, Any], size_bytes: int, given: np.ndarray[Any, Any]) -> Any:
        target = Target(tools.free_port(), "/", given.tobytes(), tools.NUMBERS, b"")
        with _ray(tuned, target.port) as serve:
            serve.run(_model(serve).bind(kind, size_bytes))
            tools.wait_until_answers(target)
            yield target

    return block


def batches(
    loads: dict[str, Any],
    widths: dict[str, int],
    states: int = 64,
    seconds: float = 4,
    way: str = "handle",
    tuned: bool = False,
) -> dict[str, Any]:
    if way == "http":
        return tools.over_http(_served(tuned), loads, states, widths, seconds)
    with _ray(tuned) as serve:
        deploy: Callable[[Any], Any] = lambda kind: _by_handle(serve, _model(serve).bind(kind))  # noqa: E731
        return handle_load.of_batches(deploy, loads, states, widths, seconds)


def one_by_one(
    loads: dict[str, Any], width: int = 128, seconds: float = 4, way: str = "handle", tuned: bool = False
) -> dict[str, Any]:
    if way == "http":
        return tools.over_http(_served(tuned), loads, 1, {"": width}, seconds)
    with _ray(tuned) as serve:
        deploy: Callable[[Any], Any] = lambda kind: _by_handle(serve, _model(serve).bind(kind))  # noqa: E731
        return handle_load.of_singles(deploy, loads, width, seconds)


def open_loop(
    kind: dict[str, Any],
    size_bytes: int,
    shares: list[int],
    low_rate: float,
    seconds: float = 8,
    width: int = 128,
    way: str = "handle",
    tuned: bool = False,
) -> dict[str, Any]:
    if way == "http":
        with _served(tuned)(kind, size_bytes, models.states(1, size_bytes)) as target:
            return tools.open_loop_over_http(target, shares, low_rate, seconds, width)
    with _ray(tuned) as serve:
        remote = _by_handle(serve, _model(serve).bind(kind)).act.remote
        return handle_load.open_loop(remote, size_bytes, shares, low_rate, seconds, width)


# -- what replicas cost ------------------------------------------------------------------------------------------------


def deploy(way: str = "handle") -> dict[str, Any]:
    """From `serve.run` on a machine where Ray runs and serves nothing, to the first answer."""
    target = Target(tools.free_port())
    with _ray() as serve:
        began = time.perf_counter()
        if way == "handle":
            assert _by_handle(serve, _noop(serve).bind()).remote().result() == "ok"
        else:
            serve.start(http_options={"host": "127.0.0.1", "port": target.port})
            serve.run(_noop(serve).bind())
            tools.wait_until_answers(target)
        return {"seconds": time.perf_counter() - began}


def memory(replicas: int = 4) -> dict[str, Any]:
    """What one replica more adds, after it has answered. Its replicas answer no HTTP themselves: a proxy does."""
    totals = []
    with _ray() as serve:
        for count in (1, 1 + replicas):
            deployed = _by_handle(serve, _noop(serve, num_replicas=count).bind())
            handle_load.take_turns([handle_load.ok(deployed.remote)], 200)
            totals.append(tools.megabytes())
    each = (totals[1] - totals[0]) / replicas
    return {"mb": {"handle": each, "HTTP": each}}


if __name__ == "__main__":
    tools.main(
        {
            "handle": handle,
            "composed": composed,
            "http": http,
            "http_rate": http_rate,
            "websocket": websocket,
            "batches": batches,
            "one_by_one": one_by_one,
            "open_loop": open_loop,
            "deploy": deploy,
            "memory": memory,
        }
    )
