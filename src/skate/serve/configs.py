"""user_config as one run of bytes whose arrays are mapped, not copied, where it is read.

    OFFSET   SIZE       DESCRIPTION
    0        4          number of buffers, n
    4        8          size of the pickle
    12       8 * n      sizes of the buffers
    12 + 8n  …          the pickle, then the buffers, each at the next multiple of 64

The controller keeps these bytes without reading what they mean: the modules of the deployer are not there.
"""

from __future__ import annotations

import pickle
import struct
from typing import Any

import skate

__all__ = ["dump", "load", "put"]

ALIGN = 64


def dump(value: Any) -> bytes:
    """Write a value as bytes."""
    buffers: list[pickle.PickleBuffer] = []
    data = skate.cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    parts: list[Any] = [struct.pack(f"<I{len(raw) + 1}Q", len(raw), len(data), *(each.nbytes for each in raw)), data]
    size = sum(len(part) for part in parts)
    for each in raw:
        padding = -size % ALIGN
        parts += [bytes(padding), each]
        size += padding + each.nbytes
    return b"".join(parts)


def load(data: Any) -> Any:
    """The value of such bytes. Its arrays lie in `data`, and cannot be written to."""
    view = memoryview(data).cast("B")
    (count,) = struct.unpack_from("<I", view)
    size, *sizes = struct.unpack_from(f"<{count + 1}Q", view, 4)
    at = 4 + 8 * (count + 1)
    pickled, at = view[at : at + size], at + size
    buffers = []
    for each in sizes:
        at += -at % ALIGN
        buffers.append(view[at : at + each].toreadonly())
        at += each
    return pickle.loads(pickled, buffers=buffers)


def put(data: bytes) -> Any:
    """Put the bytes into the object store so that readers map them."""
    if struct.unpack_from("<I", data) == (0,):
        return skate.put(data)
    import numpy as np

    return skate.put(np.frombuffer(data, np.uint8))
