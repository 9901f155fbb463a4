"""Messages that are too large for one frame: several that say the same, or an answer that says why there is none.

Most large messages are lists, of tasks, results or ids, and their halves mean the same as the whole. An answer that is
too large becomes one that says so: the process that asked waits for it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from skate._wire import cluster
from skate._wire import messages as m
from skate._wire.messages import Message

#: The list that a message is about; its other fields are the same in each half, except those below.
LISTS: dict[type, str] = {
    m.Tasks: "tasks",
    m.Results: "results",
    m.Returned: "ids",
    m.Undefine: "fns",
    m.Fetch: "ids",
    m.Release: "registrations",
    m.Seal: "objects",
    m.Unpin: "ids",
    m.Free: "ids",
    m.Logs: "lines",
    cluster.Freed: "objects",
    cluster.DropCopies: "objects",
}
#: What only the first half says.
SAID_ONCE: dict[type, dict[str, Any]] = {m.Results: {"timings": []}, m.Free: {"tasks": []}}

ENVELOPES = (cluster.FromProcess, cluster.ToProcess)

replace = msgspec.structs.replace


def parts_of(message: Message, size: int, limit: int) -> list[Message]:
    """Smaller messages that together say the same; none if there are no such."""
    kind = type(message)
    if isinstance(message, ENVELOPES):
        return [replace(message, message=part) for part in parts_of(message.message, size, limit)]
    name = LISTS.get(kind)
    if name is not None:
        everything = getattr(message, name)
        half = len(everything) // 2
        if not half:
            return []
        first = replace(message, **{name: everything[:half]})
        return [first, replace(message, **{name: everything[half:]}, **SAID_ONCE.get(kind, {}))]
    if isinstance(message, m.Prefetch) and len(message.ids) > 1:
        half = len(message.ids) // 2
        return [
            m.Prefetch(message.ids[:half], message.places[:half]),
            m.Prefetch(message.ids[half:], message.places[half:]),
        ]
    why = f"the answer has {size} bytes, and a message may have {limit}"
    if isinstance(message, m.Answer):
        return [] if message.error else [m.Answer(message.request, None, why)]
    if isinstance(message, cluster.NodeEvents):
        return [cluster.NodeEvents(message.request, [])] if message.events else []
    if isinstance(message, m.Events):
        return [m.Events(message.request, 0, m.encode_events([]))] if message.count else []
    return []
