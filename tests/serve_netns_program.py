"""A program that serves on a host of its own (tests/netns.py): it says its port, and ends when its input does.

python serve_netns_program.py ADDRESS FOLDER LIMIT_S     bodies, answers and silence have this limit of time
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from starlette.requests import Request

import skate
from skate import serve

PIECE_BYTES = 64 << 10


@serve.deployment(max_ongoing_requests=4, graceful_shutdown_timeout_s=1)
class Watched:
    """Notes by files when its handlers begin, and when they are over without having come to their end."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)

    async def __call__(self, request: Request) -> Any:
        name = request.url.path.strip("/")
        if name == "upload":
            (self.folder / "upload-began").touch()
            try:
                return len(await request.body())
            except BaseException:
                (self.folder / "upload-over").touch()
                raise
        if name in ("flood", "drip"):
            return self.stream(name)
        return {"pid": os.getpid()}

    async def stream(self, name: str) -> AsyncIterator[bytes]:
        """Without end: as much as goes through, or a few bytes at a time, which the kernel takes for very long."""
        (self.folder / f"{name}-began").touch()
        try:
            while True:
                yield bytes(PIECE_BYTES if name == "flood" else 10)
                await asyncio.sleep(0.01)
        finally:
            (self.folder / f"{name}-over").touch()


def main(host: str, folder: str, limit_s: float) -> None:
    names = ("body_timeout_s", "write_timeout_s", "keep_alive_timeout_s")
    skate.init(num_cpus=2)
    serve.run(Watched.bind(folder), http_options={"host": host, "port": 0, **dict.fromkeys(names, limit_s)})
    address = serve.status().http_address
    assert address is not None
    print(address[1], flush=True)
    sys.stdin.read()
    serve.shutdown()
    skate.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
