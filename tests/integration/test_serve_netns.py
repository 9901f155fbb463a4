"""HTTP for clients that vanish without a word: the cable of their host is cut, and no end of their stream is seen."""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

import serve_netns_program
from netns import NAMESPACES, Host, Network
from waiting import WITHIN_S, wait_for

#: How long the server waits for more of a body, for a client to take what it is sent, and for the next request.
LIMIT_S = 0.4
HEAD = b"%b HTTP/1.1\r\nHost: h\r\n%b\r\n"


def test_a_client_whose_cable_is_cut_costs_nothing_after_the_limits(network: Network, tmp_path: Path) -> None:
    server, lost, other, _ = network.hosts
    with serving(server, tmp_path) as port:
        where = (server.address, port)
        process = psutil.Process(json.loads(ask(other, where, "/pid"))["pid"])

        def descriptors() -> int:
            assert json.loads(ask(other, where, "/pid")) == {"pid": process.pid}, "others are answered meanwhile"
            return process.num_fds()

        before = descriptors()
        with contextlib.ExitStack() as stack:
            upload, flood, drip, idle = (stack.enter_context(connected(lost, where)) for _ in range(4))
            upload.sendall(HEAD % (b"POST /upload", b"Content-Length: 200000\r\n") + bytes(100_000))
            for each, path in ((flood, b"GET /flood"), (drip, b"GET /drip")):
                each.sendall(HEAD % (path, b""))
                assert each.recv(1000).startswith(b"HTTP/1.1 200")
            wait_for((tmp_path / "upload-began").exists, WITHIN_S, "the upload to have a place")
            idle.sendall(HEAD % (b"GET /pid", b""))
            assert b"pid" in idle.recv(1 << 16)
            lost.cut()
            for name in ("upload", "flood", "drip"):
                over = tmp_path / f"{name}-over"
                wait_for(lambda over=over: descriptors() and over.exists(), WITHIN_S, f"{name} to be cancelled")
            wait_for(lambda: descriptors() <= before, WITHIN_S, "the lost connections to be closed")
            wait_for(lambda: working(ask(other, where, "/-/metrics")) == 0, WITHIN_S, "all places to be free")


def working(metrics: str) -> float:
    """How many requests have a place."""
    (line,) = (each for each in metrics.splitlines() if each.startswith("skate_serve_working{"))
    return float(line.rpartition(" ")[2])


@contextlib.contextmanager
def serving(host: Host, folder: Path) -> Iterator[int]:
    """The port of an application on a host."""
    with (folder / "log").open("wb") as log:
        command = [sys.executable, serve_netns_program.__file__, host.address, str(folder), str(LIMIT_S)]
        process = host.popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    assert process.stdin is not None
    assert process.stdout is not None
    port = process.stdout.readline()
    assert port, (folder / "log").read_text()
    yield int(port)
    process.stdin.close()
    assert process.wait(WITHIN_S) == 0, (folder / "log").read_text()


def connected(host: Host, where: tuple[str, int]) -> socket.socket:
    """A connection that begins on a host. A socket belongs to the network in which its thread was when it was made."""
    made: list[socket.socket] = []

    def connect() -> None:
        with open(NAMESPACES / host.namespace) as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        made.append(socket.create_connection(where, WITHIN_S))

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    return made[0]


def ask(host: Host, where: tuple[str, int], path: str) -> str:
    """The body of an answer, on a connection of its own."""
    with connected(host, where) as sock:
        sock.sendall(HEAD % (b"GET " + path.encode(), b"Connection: close\r\n"))
        answer = http.client.HTTPResponse(sock)
        answer.begin()
        assert answer.status == 200
        return answer.read().decode()
