"""On which nodes objects lie, and how large they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from skate._core.ids import NODE_BYTES
from skate._object_ref import NIL_SAYS, ObjectRef
from skate._worker.current import get_runtime
from skate.exceptions import GetTimeoutError

__all__ = ["get_local_object_locations", "get_object_locations"]

#: How long the owner of an object is waited for if no time is given.
OWNER_S = 10.0


def get_object_locations(
    obj_refs: Sequence[ObjectRef[Any]], timeout_ms: int = -1
) -> dict[ObjectRef[Any], dict[str, Any]]:
    """Where each object lies: {"node_ids": [hexadecimal ids], "object_size": bytes, "did_spill": False}.

        >>> get_object_locations([ref])[ref]
        {'node_ids': ['0000000175f2…'], 'object_size': 8000128, 'did_spill': False}

    A node that has a copy is listed if this process has learnt of it, because it read the object or submitted a task
    that did. Values up to 100 KiB travel in messages and lie on no node. What does not exist yet has no nodes and
    the size None. An object of another process is asked for where this process does not know it; GetTimeoutError if
    there is no answer in time. "did_spill" is always False: a node does not tell which objects it has written to disk.
    """
    _check(obj_refs)
    runtime = get_runtime()
    patience_s = OWNER_S if timeout_ms < 0 else timeout_ms / 1000
    begin = time.monotonic()
    for ref in obj_refs:
        entry = runtime.table.entries.get(ref._id)
        if entry is not None and entry.owner and entry.value is None:
            left_s = max(0.0, begin + patience_s - time.monotonic())
            if not runtime.wait([ref], 1, left_s)[0] and timeout_ms >= 0:
                raise GetTimeoutError(
                    f"get_object_locations(): the owner of {ref} did not tell of it within {timeout_ms} ms."
                )
    return get_local_object_locations(obj_refs)


def get_local_object_locations(obj_refs: Sequence[ObjectRef[Any]]) -> dict[ObjectRef[Any], dict[str, Any]]:
    """The same, as far as this process knows without asking another; objects that it does not know are left out."""
    _check(obj_refs)
    runtime = get_runtime()
    found: dict[ObjectRef[Any], tuple[int | None, list[int]]] = {}
    with runtime.lock:
        for ref in obj_refs:
            entry = runtime.table.entries.get(ref._id)
            if entry is None:
                continue
            value = entry.value
            if isinstance(value, int):
                ((size, nodes),) = runtime.copies.inputs([(ref._id, value)])
                found[ref] = (size, nodes)
            else:
                found[ref] = (len(value) if isinstance(value, bytes) else None, [])
    ids: dict[int, str] = {}
    if any(nodes for _, nodes in found.values()):
        for node in runtime.query("nodes"):
            ids[int(node["NodeID"][: 2 * NODE_BYTES], 16)] = node["NodeID"]
    return {
        ref: {"node_ids": [ids[node] for node in nodes if node in ids], "object_size": size, "did_spill": False}
        for ref, (size, nodes) in found.items()
    }


def _check(refs: Any) -> None:
    if not isinstance(refs, (list, tuple)) or not all(isinstance(ref, ObjectRef) for ref in refs):
        raise TypeError("get_object_locations() takes a list of references.")
    if any(ref.is_nil() for ref in refs):
        raise ValueError(f"get_object_locations() was given {NIL_SAYS}. `ref.is_nil()` tells.")
