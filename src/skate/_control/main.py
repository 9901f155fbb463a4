"""The control service as a process of its own.

It reads its settings from standard input, in one line of JSON (so that no list of processes shows the token), says on
its standard output that it listens, and where, in another; then it serves until it is told to end.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time

import msgspec

from skate._control.service import Control
from skate._wire.entrance import Tls
from skate._wire.gate import Gate
from skate._wire.handshake import Versions
from skate._wire.loop import EventLoop

#: How long nodes have to hear that the cluster ends.
LAST_WORDS_S = 1.0


class ControlConfig(msgspec.Struct, kw_only=True):
    host: str
    #: 0: any that is free.
    port: int = 0
    token: str
    #: Encrypt all connections.
    tls: bool = False
    #: End when this process does; 0: outlive it.
    parent: int = 0


def _report(**what: object) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(what) + b"\n")
    sys.stdout.flush()


def main() -> None:
    config = msgspec.json.decode(sys.stdin.readline(), type=ControlConfig)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s skate control: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop = EventLoop()
    ended = False

    def end(reason: str) -> None:
        nonlocal ended
        ended = True

    control = Control(loop, end)

    def on_visitor(sock: socket.socket, theirs: Versions, rest: bytes) -> None:
        control.new_link().adopt(sock, rest)

    try:
        tls = Tls(listens=True) if config.tls else None
        gate = Gate(loop, config.token.encode(), config.host, config.port, on_visitor, tls)
    except (OSError, ImportError) as error:
        _report(error=getattr(error, "strerror", None) or str(error))
        sys.exit(1)
    _report(host=gate.address[0], port=gate.address[1])
    if config.parent:
        loop.watch(os.pidfd_open(config.parent), lambda events: control.end("the process that started it is gone"))
    signal.signal(signal.SIGTERM, lambda *_: loop.call_at(0.0, lambda: control.end("it was told to (SIGTERM)")))
    while not ended:
        loop.run_once(None)
    # With TLS another thread has our last words, and it ends with us: nodes that have heard them go.
    give_up_at = time.monotonic() + LAST_WORDS_S
    while control.is_listened_to and time.monotonic() < give_up_at:
        loop.run_once(give_up_at)


if __name__ == "__main__":
    main()
