"""Whose mistake it is when a message cannot be acted on: the peer's, or ours.

    handler raises ProtocolError ──▶ the link of that peer is cut; all others go on
    handler raises anything else ──▶ logged with the message and the traceback; the link and the service go on
    a limit of the system        ──▶ goes through: without descriptors or memory there is no going on

Invariant: no message of one peer ends the service for the others. A timer is treated like a message of ours.
"""

from __future__ import annotations

import os
from collections import Counter
from types import TracebackType

from skate._system_limits import limit_of
from skate._wire.channel import ChannelClosed
from skate._wire.complaints import harmless
from skate._wire.protocol_error import ProtocolError as ProtocolError

#: A defect that comes again and again is logged with its traceback this many times, then only counted.
TRACEBACKS_MAX = 3
#: The count is logged when it reaches a multiple of this number.
COUNT_EVERY = 1000
#: Names a file that every defect is written to as well, so that a test can find those of all processes.
DEFECTS_VARIABLE = "SKATE_TEST_DEFECTS"

_seen: Counter[tuple[str, str]] = Counter()


def survive(error: Exception, doing: str) -> None:
    """Log a mistake of ours, from within its `except`. What is none is raised again: the peer's mistake, the end of a
    channel, a limit of the system.

    doing: what was being done, as in "handling Report of node 3"; it may hold words of the peer.
    """
    if isinstance(error, ProtocolError | ChannelClosed) or limit_of(error):
        raise error
    kind = (type(error).__name__, _place(error.__traceback__))
    _seen[kind] += 1
    times = _seen[kind]
    import logging  # most programs start and end without it

    log = logging.getLogger("skate")
    if times <= TRACEBACKS_MAX:
        log.error("%s failed. This is a bug of Skate, please report it; it goes on.", harmless(doing), exc_info=error)
    elif times % COUNT_EVERY == 0:
        log.error("%s failed again (%s at %s, %d times so far).", harmless(doing), *kind, times)
    if path := os.environ.get(DEFECTS_VARIABLE):
        _note(path, error, doing)


def _place(traceback: TracebackType | None) -> str:
    """The line that raised."""
    place = ""
    while traceback is not None:
        place = f"{traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def _note(path: str, error: Exception, doing: str) -> None:
    import traceback

    text = f"{doing} failed in process {os.getpid()}:\n{''.join(traceback.format_exception(error))}\n"
    with open(path, "a") as file:
        file.write(text)
