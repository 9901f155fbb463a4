"""A policy behind a websocket of Ray Serve.

A module of its own, with annotations that are no strings: FastAPI reads them once more in the replica, by their names.
"""

import contextlib

import models
import numpy as np
from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from ray import serve

api = FastAPI()


@serve.deployment(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=1000)
@serve.ingress(api)
class Policy:
    def __init__(self) -> None:
        self.policy = models.CartPolePolicy()

    @api.get("/")
    async def answer(self) -> str:
        return "ok"

    @api.websocket("/loop")
    async def loop(self, socket: WebSocket) -> None:
        await socket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                observation = np.frombuffer(await socket.receive_bytes(), np.float32)
                await socket.send_bytes(self.policy.act(observation).tobytes())
