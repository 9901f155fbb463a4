"""How large one message may be, and how much of it each kind of content may take.

A message that is larger than `frame` is never sent: what is in it goes through the object store, is split, or is an
error that names what it was and how large. The shares below are chosen so that whatever passes its own check also fits
into the messages that carry it further: a class and the arguments of its constructor travel together in the end.
"""

from __future__ import annotations

import os

#: Tests set it lower, in all processes of a node, so that they need not send a quarter of a gigabyte.
VARIABLE = "SKATE_FRAME_BYTES_MAX"
FRAME_BYTES_MAX = 256 << 20
#: A read takes up to this many bytes; a limit must be larger than what one read may bring.
FRAME_BYTES_LEAST = 512 << 10
#: Bytes of a name or of another text among the options of a task or an actor, and of all texts of one option together.
#: They travel with many messages; and the variables of an environment travel as one of them, which the kernel does not
#: take if it is longer than 128 KiB.
TEXT_BYTES_MAX = 100 << 10


class Limits:
    """All in bytes."""

    __slots__ = ("creation", "definition", "envelope", "error", "frame", "inline")

    def __init__(self, frame: int = FRAME_BYTES_MAX) -> None:
        self.set(frame)

    def set(self, frame: int) -> None:
        """Everything follows from the size of the largest message."""
        frame = max(frame, FRAME_BYTES_LEAST)
        self.frame = frame
        #: Room for what daemons put around a message of a process when they pass it on.
        self.envelope = 4096
        #: Values that one task or one result carries inside it, together. What is more lies in the object store.
        self.inline = frame // 16
        #: An exception that travels. Of a larger one the largest parts stay behind, and it says so.
        self.error = frame // 2
        #: A pickled function or class.
        self.definition = frame // 4 * 3
        #: What it takes to make an actor, apart from its class.
        self.creation = frame // 8


limits = Limits(int(os.environ.get(VARIABLE) or FRAME_BYTES_MAX))
