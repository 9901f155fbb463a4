"""Values to bytes and back, with large buffers kept apart so that they are copied once and read in place.

A serialised value has one of three forms, told apart by its first byte:

    0x80          a pickle, as `pickle.dumps` makes it: the common, small case
    0x01          a pickle with out-of-band buffers:

        OFFSET SIZE  DESCRIPTION
        0      1     0x01
        1      3     zero
        4      4     number of buffers, little endian
        8      8     length of the pickle
        16     8n    lengths of the buffers
        …            the pickle
        …            each buffer, starting at a multiple of 64 from the beginning

    0x02          raw bytes: a `bytes` object larger than the inline limit, from offset 64 on

Idea: exact built-in scalars and short tuples of them go through C `pickle.dumps` (0.7 µs); everything else through
cloudpickle (5 µs), which also handles what is defined in `__main__`, closures, lambdas and local classes.
"""

from __future__ import annotations

import functools
import io
import pickle
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

from skate._object_ref import ObjectRef, collecting_refs
from skate._serialize.copying import copy_into

#: Values up to this size travel inside messages; larger ones lie in shared memory.
INLINE_BYTES_MAX = 100 * 1024
ALIGNMENT = 64

_BUFFERS = 0x01
_RAW = 0x02
_HEAD = struct.Struct("<B3xIQ")
#: Types whose exact instances hold no user code and no references.
_SCALARS = frozenset({int, float, bool, str, bytes, type(None), complex})
#: Tuples of scalars up to this length are treated like scalars: a look at each costs less than cloudpickle.
PLAIN_LENGTH_MAX = 8

_dumps = pickle.dumps
_loads = pickle.loads
NONE = _dumps(None, 5)
#: How instances of some classes are reduced for pickling, by what users have registered.
reducers: dict[type, Callable[[Any], Any]] = {}


def _aligned(offset: int) -> int:
    return (offset + ALIGNMENT - 1) & -ALIGNMENT


class Serialized:
    """A value ready to be written: its pieces, its total size, and the references inside it."""

    __slots__ = ("pieces", "refs", "size")

    def __init__(self, pieces: list[tuple[int, bytes | memoryview]], size: int, refs: Sequence[ObjectRef[Any]]) -> None:
        self.pieces = pieces
        self.size = size
        self.refs = refs

    def write_into(self, target: memoryview) -> None:
        for offset, piece in self.pieces:
            copy_into(target, offset, piece)

    def to_bytes(self) -> bytes:
        if len(self.pieces) == 1 and isinstance(self.pieces[0][1], bytes):
            return self.pieces[0][1]
        target = bytearray(self.size)
        self.write_into(memoryview(target))
        return bytes(target)


def is_plain(value: Any) -> bool:
    """Whether it is a scalar, or a short tuple of scalars."""
    kind = type(value)
    return kind in _SCALARS or (
        kind is tuple and len(value) <= PLAIN_LENGTH_MAX and _SCALARS.issuperset([type(each) for each in value])
    )


def serialize_plain(value: object) -> bytes:
    return _dumps(value, 5)


def serialize(value: object) -> Serialized:
    """Any value, whatever its size. Raises what the pickler raises; see `diagnose.py` for a better message."""
    kind = type(value)
    if is_plain(value):
        if kind is bytes and len(value) > INLINE_BYTES_MAX:  # type: ignore[arg-type]
            raw = memoryview(value)  # type: ignore[arg-type]
            return Serialized([(0, bytes([_RAW])), (ALIGNMENT, raw)], ALIGNMENT + len(raw), ())
        data = _dumps(value, 5)
        return Serialized([(0, data)], len(data), ())
    if (numbers := _serialize_numbers(value)) is not None:
        return numbers
    # Imported late: a driver loads it while its node daemon boots.
    from skate._serialize.pickler import Pickler

    buffers: list[memoryview] = []
    with collecting_refs() as refs, io.BytesIO() as file:
        Pickler(file, buffers).dump(value)
        data = file.getvalue()
    return assemble(data, buffers, refs)


def _serialize_numbers(value: Any) -> Serialized | None:
    """An array of numbers, a number of numpy, or a short tuple of those and of scalars; None for everything else.

    They hold no user code and no references, and C pickle takes a tenth of the time.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    for each in value if type(value) is tuple and len(value) <= PLAIN_LENGTH_MAX else (value,):
        kind = type(each)
        if kind is numpy.ndarray:
            if each.dtype.hasobject or kind in reducers:
                return None
        elif kind not in _SCALARS and (kind not in _number_types(numpy) or kind in reducers):
            return None
    raw_buffers: list[pickle.PickleBuffer] = []
    data = _dumps(value, 5, buffer_callback=raw_buffers.append)
    return assemble(data, [buffer.raw() for buffer in raw_buffers], ())


@functools.lru_cache(1)
def _number_types(numpy: Any) -> frozenset[type]:
    return frozenset(numpy.dtype(code).type for code in "?bhilqBHILQefdgFDG")


def serialize_inline(args: tuple[Any, ...]) -> bytes | None:
    """Arguments as they travel in a task; None if they are large, or may hold references or what a user defined."""
    if all(map(is_plain, args)):
        data = serialize_plain(args)
        return data if len(data) <= INLINE_BYTES_MAX else None
    numbers = _serialize_numbers(args)
    return numbers.to_bytes() if numbers is not None and numbers.size <= INLINE_BYTES_MAX else None


def assemble(data: bytes, buffers: list[memoryview], refs: Sequence[ObjectRef[Any]]) -> Serialized:
    if not buffers:
        return Serialized([(0, data)], len(data), refs)
    count = len(buffers)
    head = _HEAD.pack(_BUFFERS, count, len(data)) + struct.pack(f"<{count}Q", *(len(buffer) for buffer in buffers))
    pieces: list[tuple[int, bytes | memoryview]] = [(0, head), (len(head), data)]
    at = len(head) + len(data)
    for buffer in buffers:
        at = _aligned(at)
        pieces.append((at, buffer))
        at += len(buffer)
    return Serialized(pieces, at, refs)


def deserialize(data: bytes | memoryview) -> Any:
    """The value. Buffers of arrays and the like are read in place, so `data` lives as long as they do."""
    first = data[0]
    if first == 0x80:
        return _loads(data)
    if first == _BUFFERS:
        view = memoryview(data)
        _, count, pickle_bytes = _HEAD.unpack_from(view)
        sizes = struct.unpack_from(f"<{count}Q", view, _HEAD.size)
        at = _HEAD.size + 8 * count
        body = view[at : at + pickle_bytes]
        at += pickle_bytes
        buffers = []
        for size in sizes:
            at = _aligned(at)
            buffers.append(view[at : at + size])
            at += size
        return _loads(body, buffers=buffers)
    if first == _RAW:
        return bytes(memoryview(data)[ALIGNMENT:])
    raise ValueError(f"not a serialised value: it starts with {first:#04x}")
