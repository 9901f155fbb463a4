"""What is done about a message of a process that was too large to be taken: the process that waits hears why.

Processes check what they send, so this is about those that do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skate._wire import messages as wire

#: Messages that begin with the number of a request, and are answered.
REQUESTS = {
    kind.__struct_config__.tag
    for kind in (wire.RegisterActor, wire.FindActor, wire.KeyValue, wire.Topic, wire.CreateGroup, wire.Query)
}


def instead_of(values: Sequence[Any], reason: str) -> wire.Answer | wire.KillActor | None:
    """By the tag and the first plain values of the message: the answer to it, or what counts as said instead."""
    tag, first = [*values, None, None][:2]
    if tag in REQUESTS and isinstance(first, int) and first:
        return wire.Answer(first, None, reason)
    if tag == wire.CreateActor.__struct_config__.tag and isinstance(first, bytes):
        return wire.KillActor(first, True, f"its node, because {reason}")
    return None
