"""The control service as a process of its own.

It reads its settings from standard input, in one line of JSON (so that no list of processes shows the token), says on
its standard output that it listens, and where, in another; then it serves until it is told to end.

SIGTERM ends the service and not the cluster, if the state is stored: another service goes on with it. SIGUSR1 ends the
cluster for good, on all its machines, as `skate stop` does.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, NoReturn

import msgspec

from skate._control.config import ControlConfig as ControlConfig
from skate._control.service import ControlService
from skate._wire.entrance import Tls
from skate._wire.gate import Gate
from skate._wire.handshake import Versions
from skate._wire.loop import EventLoop

if TYPE_CHECKING:
    from skate._control.storage.errors import StorageError
    from skate._control.storage.interface import Storage

#: How long nodes have to hear that the cluster ends.
LAST_WORDS_S = 1.0
#: How long the storage has to write what is left.
LAST_WRITES_S = 3.0

log = logging.getLogger("skate")


def _report(**what: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.flush()


def _fail(error: str, **more: object) -> NoReturn:
    _report(error=error, **more)
    sys.exit(1)


def _cannot_use(error: StorageError) -> NoReturn:
    from skate._control.opening import ClusterEnded

    log.error("the control service cannot start: %s %s", error.what, error.why)
    why = f"{error.what} {error.why}".strip()
    _fail(why, next=error.next, of_store=True, is_over=isinstance(error, ClusterEnded))


def _open(config: ControlConfig, port: int) -> Storage | None:
    if config.store is None:
        return None
    from skate._control.opening import open_store
    from skate._control.storage.errors import StorageError

    try:
        return open_store(config.store, port)
    except StorageError as error:
        _cannot_use(error)


def main() -> None:
    config = msgspec.json.decode(sys.stdin.readline(), type=ControlConfig)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s skate control: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop = EventLoop()
    ended = False

    def end(reason: str) -> None:
        nonlocal ended
        ended = True

    def on_visitor(sock: socket.socket, theirs: Versions, rest: bytes) -> None:
        control.new_link().adopt(sock, rest)

    try:
        tls = Tls(listens=True) if config.tls else None
        gate = Gate(loop, config.token.encode(), config.host, config.port, on_visitor, tls)
    except (OSError, ImportError) as error:
        _fail(getattr(error, "strerror", None) or str(error))
    storage = _open(config, gate.address[1])
    try:
        control = ControlService(loop, end, storage)
    except Exception as error:
        from skate._control.storage.errors import StorageError

        if storage is None or not isinstance(error, StorageError):
            raise
        storage.close()
        _cannot_use(error)
    _report(host=gate.address[0], port=gate.address[1])

    def on_parent_gone(events: int) -> None:
        control.end_cluster("the process that started it is gone", keep=True)

    def on_term() -> None:
        if storage is not None:
            end("it was told to (SIGTERM)")
        else:  # nothing could go on with what it knows
            control.end_cluster("it was told to (SIGTERM)")

    if config.parent:
        loop.watch(os.pidfd_open(config.parent), on_parent_gone)
    signal.signal(signal.SIGTERM, lambda *_: loop.call_at(0.0, on_term))
    signal.signal(signal.SIGUSR1, lambda *_: loop.call_at(0.0, lambda: control.end_cluster("it was stopped")))
    while not ended:
        loop.run_once(None)
    # With TLS another thread has our last words, and it ends with us: nodes that have heard them go.
    give_up_at = time.monotonic() + LAST_WORDS_S
    while control.has_said_goodbye and control.is_listened_to and time.monotonic() < give_up_at:
        loop.run_once(give_up_at)
    if storage is not None:
        from skate._control.opening import path_of, remove_store

        storage.flush(LAST_WRITES_S)
        storage.close()
        if config.store is not None and config.store.passing and control.control.nodes.cluster.ended:
            remove_store(path_of(config.store, gate.address[1]))


if __name__ == "__main__":
    main()
