"""Plain Redis: HSET over one connection, requests packed and answers parsed as Skate does it."""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import Any

import hiredis
import tools
from servers import Server, servers


def writes(seconds: float) -> dict[str, Any]:
    with servers(1) as (server,):
        return tools.series(lambda in_flight: _measure(server, in_flight, seconds))


def _measure(server: Server, in_flight: int, seconds: float) -> tuple[float, float, float]:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = hiredis.Reader(notEnoughData=connection)
        began = time.perf_counter()
        latencies: list[float] = []
        under_way: deque[float] = deque()
        written = 0
        while (now := time.perf_counter()) < began + seconds:
            requests = []
            while len(under_way) < in_flight:
                written += 1
                under_way.append(now)
                requests.append(hiredis.pack_command((b"HSET", b"rows", tools.key(written), tools.VALUE)))
            connection.sendall(b"".join(requests))
            reader.feed(connection.recv(1 << 18))
            now = time.perf_counter()
            while reader.gets() is not connection:
                latencies.append(now - under_way.popleft())
        return tools.figures_of(latencies, time.perf_counter() - began)


if __name__ == "__main__":
    tools.main({"writes": writes})
