"""Rows on FastAPI under uvicorn."""

from __future__ import annotations

import json
from typing import Any

import models
import numpy as np
import tools
from fastapi import FastAPI, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.concurrency import run_in_threadpool
from http_client import Target

app = FastAPI()
model = models.made_from_environment()
policy = models.CartPolePolicy()


@app.get("/")
async def answer() -> str:
    return "ok"


@app.post("/states/{size_bytes}")
async def act(size_bytes: int, request: Request) -> Response:
    states = models.decode(await request.body(), size_bytes)
    found = await run_in_threadpool(model, states)
    return Response(found.tobytes(), media_type=tools.NUMBERS)


@app.post("/json")
async def act_on_json(states: list[list[float]]) -> list[float]:
    """As FastAPI is meant to be used: the body is JSON, and pydantic checks it."""
    found = await run_in_threadpool(model, np.array(states, np.float32))
    return [float(each) for each in found]


@app.websocket("/loop")
async def loop(socket: WebSocket) -> None:
    await socket.accept()
    try:
        while True:
            observation = np.frombuffer(await socket.receive_bytes(), np.float32)
            await socket.send_bytes(policy.act(observation).tobytes())
    except WebSocketDisconnect:
        pass


def http(count: int = 7000) -> dict[str, Any]:
    target = Target(tools.free_port())
    with tools.uvicorn("fastapi_side:app", target):
        return tools.latency_beside_bare(target, count)


def http_rate(workers: int, seconds: float = 8) -> dict[str, Any]:
    target = Target(tools.free_port())
    with tools.uvicorn("fastapi_side:app", target, workers):
        return tools.rate(target, seconds)


def _serve(kind: dict[str, Any], size_bytes: int, given: np.ndarray[Any, Any]) -> Any:
    target = Target(tools.free_port(), f"/states/{size_bytes}", given.tobytes(), tools.NUMBERS, b"")
    return tools.uvicorn("fastapi_side:app", target, kind=kind)


def _serve_json(kind: dict[str, Any], size_bytes: int, given: np.ndarray[Any, Any]) -> Any:
    target = Target(tools.free_port(), "/json", json.dumps(given.tolist()).encode(), tools.JSON, b"")
    return tools.uvicorn("fastapi_side:app", target, kind=kind)


def batches(
    loads: dict[str, Any], widths: dict[str, int], states: int = 64, seconds: float = 4, body: str = "bytes"
) -> dict[str, Any]:
    return tools.over_http(_serve if body == "bytes" else _serve_json, loads, states, widths, seconds)


def one_by_one(loads: dict[str, Any], width: int = 128, seconds: float = 4, body: str = "bytes") -> dict[str, Any]:
    """FastAPI puts no requests together: every state is a batch of its own."""
    return tools.over_http(_serve if body == "bytes" else _serve_json, loads, 1, {"": width}, seconds)


def websocket(steps: int = 5000) -> dict[str, Any]:
    target = Target(tools.free_port())
    with tools.uvicorn("fastapi_side:app", target):
        return tools.episodes(target.port, steps)


if __name__ == "__main__":
    tools.main(
        {"http": http, "http_rate": http_rate, "batches": batches, "one_by_one": one_by_one, "websocket": websocket}
    )
