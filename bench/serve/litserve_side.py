"""Rows on LitServe. The process that holds the model is another one than the one that answers HTTP."""

from __future__ import annotations

import sys
from base64 import b64decode, b64encode
from typing import Any

import litserve
import models
import numpy as np
import tools
from fastapi import Response
from http_client import Target

#: How long its loop waits for a batch to become full.
BATCH_TIMEOUT_S = 0.01


# LitServe takes annotations of these methods for schemas of requests and answers.


class Noop(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, device):
        pass

    def decode_request(self, request):
        return request["input"]

    def predict(self, x):
        return x

    def encode_response(self, output):
        return output


class Model(litserve.LitAPI):  # type: ignore[misc]
    #: How long a state is, in bytes.
    size_bytes = 0

    def setup(self, device):
        self.model = models.made_from_environment()

    def decode_request(self, request):
        return models.decode(b64decode(request["states"]), self.size_bytes)

    def batch(self, inputs):
        return np.concatenate(inputs)

    def predict(self, x):
        return self.model(x)

    def unbatch(self, output):
        return output

    def encode_response(self, output):
        return Response(output.tobytes(), media_type=tools.NUMBERS)


def serve(port: str, rows: str, workers: str, batch: str, size_bytes: str) -> None:
    """What this file does if its first argument is "serve": answer at a port."""
    batching = {"max_batch_size": int(batch), "batch_timeout": BATCH_TIMEOUT_S} if int(batch) > 1 else {}
    api = Noop() if rows == "noop" else Model(**batching)
    if isinstance(api, Model):
        api.size_bytes = int(size_bytes)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=int(workers))
    server.run(host="127.0.0.1", port=int(port), generate_client_file=False, log_level="warning", access_log=False)


def _noop(workers: int = 1) -> Any:
    target = Target(tools.free_port(), "/predict", b'{"input": "ok"}', tools.JSON)
    return tools.server([__file__, "serve", str(target.port), "noop", str(workers), "1", "0"], target)


def _serve(batch: int) -> Any:
    def start(kind: dict[str, Any], size_bytes: int, given: np.ndarray[Any, Any]) -> Any:
        # It takes JSON or forms. Numbers in base64 are the shortest JSON that holds them.
        body = b'{"states": "' + b64encode(given.tobytes()) + b'"}'
        target = Target(tools.free_port(), "/predict", body, tools.JSON, b"")
        command = [__file__, "serve", str(target.port), "model", "1", str(batch), str(size_bytes)]
        return tools.server(command, target, kind)

    return start


def http(count: int = 3500) -> dict[str, Any]:
    with _noop() as target:
        return tools.latency_beside_bare(target, count)


def http_rate(workers: int = 2, seconds: float = 8) -> dict[str, Any]:
    with _noop(workers) as target:
        return tools.rate(target, seconds)


def batches(loads: dict[str, Any], widths: dict[str, int], states: int = 64, seconds: float = 4) -> dict[str, Any]:
    return tools.over_http(_serve(1), loads, states, widths, seconds)


def one_by_one(loads: dict[str, Any], width: int = 128, seconds: float = 4) -> dict[str, Any]:
    return tools.over_http(_serve(64), loads, 1, {"": width}, seconds)


def open_loop(
    kind: dict[str, Any], size_bytes: int, shares: list[int], low_rate: float, seconds: float = 8, width: int = 128
) -> dict[str, Any]:
    with _serve(64)(kind, size_bytes, models.states(1, size_bytes)) as target:
        return tools.open_loop_over_http(target, shares, low_rate, seconds, width)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(*sys.argv[2:])
    else:
        tools.main(
            {
                "http": http,
                "http_rate": http_rate,
                "batches": batches,
                "one_by_one": one_by_one,
                "open_loop": open_loop,
            }
        )
