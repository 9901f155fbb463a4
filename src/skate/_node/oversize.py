"""Messages between a daemon and its processes that are too large.

Processes check what they send, and what a daemon says can be split or is small; so this is about what got through.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from skate._control.state.refusals import instead_of
from skate._wire import messages as wire
from skate._wire.channel import TooLarge

if TYPE_CHECKING:
    from skate._node.daemon import Daemon, Process


def on_unsent(daemon: Daemon, process: Process, message: wire.Message, error: TooLarge) -> None:
    """A worker that is not told what it should become is of no use."""
    sys.stderr.write(f"skate: pid {daemon.pids[process.id]} was not told something: {error}\n")
    if isinstance(message, wire.StartActor):
        daemon.pool.kill(process.id, f"it was to become an actor, and {error}")


def on_refusal(daemon: Daemon, process: Process, refusal: wire.Refusal) -> None:
    """A process sent what is too large; the rest of what it says is heard."""
    reply = instead_of(refusal.values, refusal.reason)
    if isinstance(reply, wire.KillActor):
        daemon.handle(process, reply)
    elif reply is not None:
        daemon.send(process.id, reply)
    else:
        sys.stderr.write(f"skate: a message of pid {daemon.pids[process.id]} was not taken: {refusal.reason}\n")
