"""Where other drivers come in: a node of `skate start`, and one of `init` once it has a detached actor, can be joined.

The door is a UNIX socket in the abstract namespace of Linux: there is no file that could be left behind, and the kernel
lists it for those who look. Anybody on the machine could knock, so each who does is asked, through the kernel, whose
process it is: only the user that the node belongs to, and root, come in. They are told the node's versions before
anything else: code that was compiled for another Python would crash the workers.

Anybody could open such a door, too, with the name of somebody else in it, and would be handed that one's functions to
change. So whoever comes asks the kernel as well, and leaves without a word unless it is its own user's door, or root's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator

from skate._wire.complaints import Complaints, harmless

_LISTENING = "00010000"
PRIVATE = "-private"
#: A node of this user that does not say its versions within this time is left alone; so is one that was named, if it
#: does not open.
GREETING_S = 10.0
#: How long doors where too many wait are waited at, all together. Whose they are is not known before they open, so
#: any user of the machine could make others wait.
OPENS_S = 1.0
LOOK_S = 0.01
#: A node is given at least this long to greet, however many before it are silent.
SPEAKS_S = 0.1
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid

_complaints = Complaints()


def _prefix(uid: int) -> str:
    return f"skate-{uid}-"


def lobby_name(node_id: bytes, cluster: str = "", *, private: bool = False) -> str:
    """The address of a node, whether it can be joined or not. Names sort by age, and tell the cluster's address.

    private: it belongs to a program, and is joined by those only who know the cluster's address.
    """
    mark = f"{PRIVATE if private else ''}@" if cluster else ""
    return f"{_prefix(os.getuid())}{time.time_ns():020}-{node_id.hex()}{mark}{cluster}"


def public_nodes() -> list[str]:
    """Names of the nodes that a driver which does not say which one may join, newest first."""
    return [name for name in open_nodes() if not name.partition("@")[0].endswith(PRIVATE)]


def nodes_of(cluster: str) -> list[str]:
    """Names of the nodes here of the cluster with that address ("host:port"), oldest first."""
    host, _, port = cluster.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")  # of an IPv6 address
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except OSError:
        addresses = {host}
    return [name for name in reversed(open_nodes()) if name.partition("@")[2] in {f"{it}:{port}" for it in addresses}]


class Lobby:
    def __init__(self, name: str, on_driver: Callable[[socket.socket], None]) -> None:
        self._on_driver = on_driver
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        self.sock.bind(f"\0{name}")
        self.sock.listen()

    def on_readable(self, events: int) -> None:
        try:
            visitor, _ = self.sock.accept()
        except OSError:
            return
        from skate._wire.handshake import greeting  # most nodes never need it

        try:
            _check_user(visitor)
            visitor.send(greeting())
        except OSError:  # or it has left
            visitor.close()
        else:
            self._on_driver(visitor)


def complain(error: Exception) -> None:
    """Of a driver that broke the protocol; once, for any process of this user can come in and say anything."""
    what = f"skate: a driver is cut off from its node, because it broke the protocol: {harmless(str(error))}"
    _complaints.make("driver", type(error).__name__, what)


def open_nodes() -> list[str]:
    """Names of the nodes that can be joined and say to be this user's, newest first; `enter` finds out if they are."""
    return sorted(_doors(), reverse=True)


def node_id_of(pid: int) -> str:
    """The id of the node whose daemon that process is, in hexadecimal digits; empty while it has no door."""
    held = set()
    with contextlib.suppress(OSError):  # it has ended
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):  # it was closed
                held.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    names = [name for name, inode in _doors().items() if f"socket:[{inode}]" in held]
    return names[0].split("-")[3].partition("@")[0] if names else ""


def _doors() -> dict[str, str]:
    """By their names, how the kernel numbers the sockets of those that say to be this user's."""
    prefix = "@" + _prefix(os.getuid())
    found = {}
    # The names in there are bytes of anybody's choice.
    with open("/proc/net/unix", encoding="ascii", errors="replace") as file:
        for line in file:
            fields = line.split()
            if len(fields) == 8 and fields[7].startswith(prefix) and fields[3] == _LISTENING:
                found[fields[7][1:]] = fields[6]
    return found


def nodes_of_programs() -> list[int]:
    """Pids of the daemons of this user that `init` has started and that others can join."""
    pids = []
    for sock in doors_that_open(name for name in open_nodes() if "@" not in name):
        with sock:
            pids.append(_other_end(sock)[0])
    return pids


def doors_that_open(names: Iterable[str], patience_s: float | None = None) -> Iterator[socket.socket]:
    """Connections to those of the nodes that are this user's, in order.

    A door where too many wait may be that of a node that is busy, or of another user who never opens. Such doors are
    tried last, again and again, for OPENS_S in all, however many they are.
    """
    full: list[str] = []
    for name in names:
        try:
            yield _connect(name)
        except BlockingIOError:
            full.append(name)
        except OSError:  # it has ended, or is not this user's
            continue
    give_up_at = time.monotonic() + (OPENS_S if patience_s is None else patience_s)
    while full and time.monotonic() < give_up_at:
        time.sleep(LOOK_S)
        for name in list(full):
            try:
                sock = _connect(name)
            except BlockingIOError:
                continue
            except OSError:
                full.remove(name)
            else:
                full.remove(name)
                yield sock


def doors_that_greet(names: Iterable[str]) -> Iterator[socket.socket]:
    """Those of them behind which a node has said something, in order.

    A node that is stopped says nothing. Such nodes are waited for together: for OPENS_S before the nodes behind them
    are asked, and at last, if no other has let us in, for GREETING_S.
    """
    silent: list[socket.socket] = []
    patience_s = OPENS_S
    try:
        for sock in doors_that_open(names):
            begin = time.monotonic()
            if _has_spoken([sock], max(patience_s, SPEAKS_S)):
                yield sock
            else:
                silent.append(sock)
            patience_s -= time.monotonic() - begin
        give_up_at = time.monotonic() + GREETING_S
        while silent and (left_s := give_up_at - time.monotonic()) > 0:
            for sock in _has_spoken(silent, left_s):
                silent.remove(sock)
                yield sock
    finally:
        for sock in silent:
            sock.close()


def _has_spoken(socks: Iterable[socket.socket], timeout_s: float) -> list[socket.socket]:
    """Those of them from which something can be read; as soon as there is one."""
    poll = select.poll()  # descriptors may have high numbers
    by_number = {sock.fileno(): sock for sock in socks}
    for number in by_number:
        poll.register(number, select.POLLIN)
    return [by_number[number] for number, _ in poll.poll(timeout_s * 1000)]


def _connect(name: str) -> socket.socket:
    """At once. Raises BlockingIOError if too many wait at the door, PermissionError if it is another user's."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.connect(f"\0{name}")
        sock.setblocking(True)
        _check_user(sock)
    except OSError:
        sock.close()
        raise
    return sock


def _other_end(sock: socket.socket) -> tuple[int, int]:
    """The process at the other end, and its user: of a listener, as they were when it began to listen."""
    pid, uid, _gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid


def _check_user(sock: socket.socket) -> None:
    """Raises PermissionError unless the other end is a process of our user, or root's."""
    _pid, uid = _other_end(sock)
    if uid not in (0, os.geteuid()):
        raise PermissionError(errno.EPERM, f"it belongs to the user {uid}")


def enter(name: str) -> socket.socket:
    """A connection to a node that can be joined.

    Raises HandshakeError if it is of another version, and another OSError if it has ended or is not this user's.
    """
    try:
        sock = _connect(name)
    except BlockingIOError:
        opened = next(doors_that_open([name], GREETING_S), None)
        if opened is None:
            raise
        sock = opened
    return greeted(sock)


def greeted(sock: socket.socket) -> socket.socket:
    """The same connection, if the node at the other end is one that this driver can join; raises as `enter` does."""
    from skate._wire.handshake import HELLO_BYTES, check_greeting

    try:
        sock.settimeout(GREETING_S)  # it may be stopped
        said = sock.recv(HELLO_BYTES, socket.MSG_WAITALL)
        sock.settimeout(None)
        if len(said) < HELLO_BYTES:
            raise ConnectionResetError("it has ended")
        check_greeting(said)
    except OSError:
        sock.close()
        raise
    return sock
