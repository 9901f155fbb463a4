"""How a worker leaves: all that it has said reaches the others first."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from skate._wire.channel import Channel
    from skate._worker.runtime import Runtime

#: A peer that reads nothing for this time does not hear the rest.
LAST_WORDS_S = 10.0


def exit_cleanly(runtime: Runtime) -> NoReturn:
    """End this process when its output is written and its messages are sent.

    What is larger than the buffer of a socket, some 200 KB, lies in the channel until the other side has read: the
    error of an actor's `__init__`, or the results of the last task of a worker with `max_calls`.
    """
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    for channel in (runtime._control, *(peer.channel for peer in runtime.peers.all())):
        if channel is not None:
            _send_rest(channel)
    os._exit(0)


def _send_rest(channel: Channel) -> None:
    give_up_at = time.monotonic() + LAST_WORDS_S
    while not channel.flush() and time.monotonic() < give_up_at:
        poll = select.poll()
        poll.register(channel.fileno(), select.POLLOUT)
        poll.poll(100)
