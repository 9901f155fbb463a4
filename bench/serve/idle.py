"""What an answer takes on a machine that sleeps between requests: the floor of `open_loop` at 20 requests a second.

Run it as `python bench/serve/idle.py`, where Skate with its serving extra is installed. It prints the median time of a
call of a bare actor and of a GET of bare uvicorn, in microseconds, back to back and 50 ms apart.
"""

from __future__ import annotations

import http.client
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import skate

GAP_S = 0.05
SERVER = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

async def answer(request):
    return PlainTextResponse("")

app = Starlette(routes=[Route("/", answer)])
uvicorn.run(app, fd=int(sys.argv[1]), log_level="error", loop="uvloop", http="httptools")
"""


def p50_us(call: Callable[[], object], gap_s: float) -> float:
    times = []
    for _ in range(100 if gap_s else 2000):
        if gap_s:
            time.sleep(gap_s)
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)


@skate.remote
class Actor:
    def answer(self) -> None: ...


def show(what: str, call: Callable[[], object]) -> None:
    call()
    print(
        f"{what:<16} back to back {p50_us(call, 0.0):5.0f} µs, {1000 * GAP_S:g} ms apart {p50_us(call, GAP_S):5.0f} µs"
    )


def main() -> None:
    with skate.init(num_cpus=2):
        actor = Actor.remote()
        show("a bare actor", lambda: skate.get(actor.answer.remote()))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-c", SERVER, str(listening.fileno())]
        server = subprocess.Popen(command, pass_fds=[listening.fileno()])
        try:
            client = http.client.HTTPConnection(*listening.getsockname(), timeout=30)
            show("bare uvicorn", lambda: (client.request("GET", "/"), client.getresponse().read()))
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()
