"""The door of a node, with real sockets: whose it is, is asked of the kernel, at both ends."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import msgspec
import pytest

import skate
from skate._node import lobby
from skate._node.lobby import Lobby, enter, lobby_name, nodes_of, nodes_of_programs, open_nodes
from skate._wire.channel import HEADER
from skate._wire.handshake import greeting
from skate.cluster_utils import Cluster

NOBODY = 65534

#: Lets everybody in, as a node does, and prints what the first who stays has to say.
IMPOSTOR = """
import os, socket, sys
name, greeting, user = sys.argv[1:]
os.setuid(int(user))
door = socket.socket(socket.AF_UNIX)
door.bind("\\0" + name)
door.listen()
print("open", flush=True)
heard = b""
while not heard:
    visitor, _ = door.accept()
    try:
        visitor.sendall(bytes.fromhex(greeting))
        heard = visitor.recv(100)
    except OSError:
        continue
print(heard, flush=True)
"""


@contextlib.contextmanager
def impostor(name: str) -> Iterator[subprocess.Popen[str]]:
    """A process of another user behind a door with the name of ours."""
    if os.getuid() != 0:
        pytest.skip("only root can be another user")
    process = subprocess.Popen(
        [sys.executable, "-c", IMPOSTOR, name, greeting().hex(), str(NOBODY)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "open\n"
        try:
            yield process
        finally:
            process.kill()
        assert process.stdout.read() == "", "it was sent something"


def test_the_door_of_another_user_is_not_entered_whatever_its_name_says() -> None:
    name = lobby_name(os.urandom(16))
    with impostor(name) as process:
        assert name in open_nodes(), "the kernel lists it as one of ours"
        with pytest.raises(PermissionError, match=str(NOBODY)):
            enter(name)
        with pytest.raises(ConnectionError, match="no running node of this user"):
            skate.init(name)
        assert process.pid not in nodes_of_programs()


def test_the_node_of_a_cluster_is_found_behind_the_door_of_another_user() -> None:
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as cluster:
        first = f"skate-{os.getuid()}-{0:020}-{os.urandom(16).hex()}@{cluster.address}"
        with impostor(first):
            assert nodes_of(cluster.address)[0] == first
            with skate.init(cluster.address):
                assert skate.get(skate.remote(abs).remote(-1)) == 1


@pytest.mark.parametrize("user", [os.geteuid(), 0, os.geteuid() + 1])
def test_a_visitor_asks_the_kernel_who_listens(user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    visitors: list[socket.socket] = []
    door = Lobby(lobby_name(os.urandom(16)), visitors.append)
    name = door.sock.getsockname()[1:].decode()
    monkeypatch.setattr(lobby, "_other_end", lambda sock: (1, user))
    if user in (0, os.geteuid()):
        lobby._connect(name).close()
    else:
        with pytest.raises(PermissionError, match=str(user)):
            enter(name)
    door.sock.close()
    assert not visitors


def test_names_that_are_no_text_hide_nobody() -> None:
    with socket.socket(socket.AF_UNIX) as strange, socket.socket(socket.AF_UNIX) as ours:
        strange.bind(b"\0\xff\xfe-" + os.urandom(8).hex().encode())
        strange.listen()
        name = lobby_name(os.urandom(16))
        ours.bind(f"\0{name}")
        ours.listen()
        assert name in open_nodes()


def test_a_door_that_nobody_opens_is_not_waited_at_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lobby, "GREETING_S", 0.05)
    name = lobby_name(os.urandom(16))
    with socket.socket(socket.AF_UNIX) as door, socket.socket(socket.AF_UNIX) as first:
        door.bind(f"\0{name}")
        door.listen(0)
        first.connect(f"\0{name}")  # all that fit
        with pytest.raises(BlockingIOError):
            enter(name)
        door.accept()[0].close()
        lobby._connect(name).close()


@contextlib.contextmanager
def full_doors(count: int, cluster: str = "") -> Iterator[list[str]]:
    """Doors with names of ours, newer than any other, that never open: nobody can tell whose they are."""
    with contextlib.ExitStack() as stack:
        names = []
        for number in range(count):
            mark = f"@{cluster}" if cluster else ""
            names.append(f"skate-{os.getuid()}-{10**20 - 1 - number:020}-{os.urandom(16).hex()}{mark}")
            door = stack.enter_context(socket.socket(socket.AF_UNIX))
            door.bind(f"\0{names[-1]}")
            door.listen(0)
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(f"\0{names[-1]}")  # all that fit
        yield names


def test_doors_that_never_open_keep_nobody_from_a_node_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are, and however long one of them could be waited at."""
    monkeypatch.setattr(lobby, "GREETING_S", 600.0)
    monkeypatch.setattr(lobby, "OPENS_S", 600.0)
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as cluster:
        node = nodes_of(cluster.address)
        assert len(node) == 1
        with full_doors(50, cluster.address) as names:
            assert open_nodes()[:50] == names
            monkeypatch.setattr(lobby, "nodes_of", lambda cluster: [*names, *node])
            monkeypatch.setattr(lobby, "public_nodes", lambda: [*names, *node])
            for address in ("auto", cluster.address):
                with skate.init(address):
                    assert skate.get(skate.remote(abs).remote(-1)) == 1


def test_they_are_waited_at_together_and_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lobby, "GREETING_S", 600.0)
    monkeypatch.setattr(lobby, "OPENS_S", 0.05)
    with full_doors(50) as names:
        monkeypatch.setattr(lobby, "open_nodes", lambda: names)  # others of this user may run on the machine
        with pytest.raises(ConnectionError, match="no running node of this user"):
            skate.init("auto")
        assert not nodes_of_programs()


@contextlib.contextmanager
def silent_doors(count: int) -> Iterator[list[str]]:
    """Doors of ours that open, and behind which nothing is said: as of nodes that are stopped."""
    with contextlib.ExitStack() as stack:
        names = []
        for _ in range(count):
            names.append(lobby_name(os.urandom(16)))
            door = stack.enter_context(socket.socket(socket.AF_UNIX))
            door.bind(f"\0{names[-1]}")
            door.listen()
        yield names


def test_nodes_that_are_stopped_keep_nobody_from_one_behind_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long one of them could be waited for."""
    monkeypatch.setattr(lobby, "GREETING_S", 600.0)
    monkeypatch.setattr(lobby, "OPENS_S", 0.05)
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as cluster, silent_doors(20) as names:
        node = nodes_of(cluster.address)
        monkeypatch.setattr(lobby, "nodes_of", lambda cluster: [*names, *node])
        monkeypatch.setattr(lobby, "public_nodes", lambda: [*names, *node])
        for address in ("auto", cluster.address):
            with skate.init(address):
                assert skate.get(skate.remote(abs).remote(-1)) == 1


def test_they_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lobby, "GREETING_S", 0.1)
    monkeypatch.setattr(lobby, "OPENS_S", 0.05)
    with silent_doors(20) as names:
        monkeypatch.setattr(lobby, "public_nodes", lambda: names)
        with pytest.raises(ConnectionError, match="no running node of this user"):
            skate.init("auto")


def test_a_full_door_that_opens_after_a_while_is_entered() -> None:
    visitors: list[socket.socket] = []
    door = Lobby(lobby_name(os.urandom(16)), visitors.append)
    door.sock.listen(0)
    name = door.sock.getsockname()[1:].decode()
    with full_doors(3) as names, socket.socket(socket.AF_UNIX) as first:
        first.connect(f"\0{name}")
        opened = lobby.doors_that_open([*names, name], patience_s=20.0)
        timer = threading.Timer(0.05, door.on_readable, [0])
        timer.start()
        next(opened).close()
        timer.join()
    for sock in (door.sock, *visitors):
        sock.close()


def test_drivers_that_garble_are_cut_off_and_logged_once(capfd: pytest.CaptureFixture[str]) -> None:
    with Cluster(initialize_head=True, head_node_args={"num_cpus": 1}) as cluster:
        (name,) = nodes_of(cluster.address)
        for garbage in (b"\xc1", b"\xc1\xc1", msgspec.msgpack.encode("\n\x1b[2Jforged")):
            with enter(name) as visitor:
                visitor.sendall(HEADER.pack(len(garbage)) + garbage)
                while visitor.recv(1000):  # until it is cut off
                    pass
        with skate.init(cluster.address):
            assert skate.get(skate.remote(abs).remote(-1)) == 1
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "broke the protocol" in line]
    assert line.isprintable()
