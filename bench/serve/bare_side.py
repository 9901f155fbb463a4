"""The floor of every row: uvicorn with one route of starlette, and models that are called without any server."""

from __future__ import annotations

import time
from typing import Any

import models
import tools
from http_client import Target
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse("ok")


app = Starlette(routes=[Route("/", answer)])


def http(count: int = 7000) -> dict[str, Any]:
    """Two bare servers beside each other: how far a difference may be chance."""
    target = Target(tools.free_port())
    with tools.uvicorn("bare_side:app", target):
        return tools.latency_beside_bare(target, count)


def http_rate(workers: int, seconds: float = 8) -> dict[str, Any]:
    target = Target(tools.free_port())
    with tools.uvicorn("bare_side:app", target, workers):
        return tools.rate(target, seconds)


def batches(loads: dict[str, Any], states: int = 64, seconds: float = 4) -> dict[str, Any]:
    """The limit of each model: batches one after another, and nothing else."""
    found = {}
    for name, one in loads.items():
        model, given = models.make(one["model"]), models.states(states, one["bytes"])
        began, done = time.perf_counter(), 0
        while (took := time.perf_counter() - began) < seconds:
            model(given)
            done += len(given)
        found[name] = done / took
    return {"states_per_s": found}


def memory(replicas: int = 4) -> dict[str, Any]:
    """A worker of uvicorn more: what it adds."""
    found = []
    for workers in (2, 2 + replicas):
        target = Target(tools.free_port())
        with tools.uvicorn("bare_side:app", target, workers):
            tools.load("ask", target=target, connections=8, count=50)
            found.append(tools.megabytes())
    return {"mb": {"HTTP": (found[1] - found[0]) / replicas}}


if __name__ == "__main__":
    tools.main({"http": http, "http_rate": http_rate, "batches": batches, "memory": memory})
