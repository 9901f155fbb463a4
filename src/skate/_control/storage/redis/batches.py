"""Batches on their way to the servers: encoded, gathered, and their results told apart again.

    batch 7 ┐
    batch 8 ├─▶ one entry of the chain ─▶ results 1 0 1 ─▶ those of 7, 8 and 9
    batch 9 ┘

Owns:      the batches that no chain has yet, in order.
Invariant: an entry is within the limits of one batch (`admission.py`): it runs as one script.
Idea:      a script on each server costs some 20 µs, whatever is in it. While entries are under way, batches gather and
           become one, as the commits of a disk do.
"""

from __future__ import annotations

import functools
import struct
from collections import deque
from collections.abc import Sequence

from skate._control.storage.admission import BATCH_BYTES_MAX, OPERATIONS_MAX
from skate._control.storage.interface import AppendAt, CompareAndSet, Delete, Done, Operation, Put
from skate._core.cluster import batch_format
from skate._core.cluster.chain_messages import Results

_length = struct.Struct(">I").pack


@functools.lru_cache(maxsize=256)
def _head(kind: bytes, table: str) -> bytes:
    name = table.encode()
    return _length(len(kind)) + kind + _length(len(name)) + name


def encode(operation: Operation) -> bytes:
    """As `batch_format.encode`, with what repeats kept."""
    key = operation.key
    kind: bytes
    fields: tuple[bytes, ...]
    match operation:
        case Put():
            kind, fields = b"put", (key, operation.value)
        case Delete():
            kind, fields = b"delete", (key,)
        case CompareAndSet(expected=None, value=None):
            kind, fields = b"missing", (key,)
        case CompareAndSet(expected=None, value=bytes() as value):
            kind, fields = b"absent", (key, value)
        case CompareAndSet(expected=bytes() as expected, value=None):
            kind, fields = b"drop", (key, expected)
        case CompareAndSet(expected=bytes() as expected, value=bytes() as value):
            kind, fields = b"cas", (key, expected, value)
        case AppendAt():
            kind, fields = b"append", (key, b"%d" % operation.length, operation.value)
        case _:
            raise TypeError(f"{operation!r} is no operation")
    assert len(fields) == 1 + batch_format.FIELDS[kind]
    parts = [_head(kind, operation.table)]
    for field in fields:
        parts += (_length(len(field)), field)
    return b"".join(parts)


class Batch:
    """A batch that no chain has yet, or that is under way."""

    __slots__ = ("data", "has_result", "number")

    def __init__(self, number: int, operations: Sequence[Operation]) -> None:
        self.number = number
        self.data = b"".join([encode(operation) for operation in operations])
        #: Of each operation, whether the script answers it. A put always succeeds.
        self.has_result = tuple([type(operation) is not Put for operation in operations])


class Gathering:
    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        #: Batches up to this number do not wait for others.
        self.hurry_to = 0

    def __len__(self) -> int:
        return len(self._batches)

    def add(self, batch: Batch) -> None:
        self._batches.append(batch)

    def take(self) -> list[Batch]:
        """What may be the next entry; nothing if all that is there is lazy."""
        batches = self._batches
        taken: list[Batch] = []
        operations = size = 0
        while batches and batches[0].number <= self.hurry_to:
            first = batches[0]
            operations += len(first.has_result)
            size += len(first.data)
            if taken and (operations > OPERATIONS_MAX or size > BATCH_BYTES_MAX):
                break
            taken.append(batches.popleft())
        return taken

    def clear(self) -> list[Batch]:
        left = list(self._batches)
        self._batches.clear()
        return left


def ends(entry: Sequence[Batch], results: Results) -> list[Done]:
    """The batches of an entry, with their results."""
    answers = iter(results)
    return [
        Done(batch.number, tuple([bool(next(answers)) if has_result else True for has_result in batch.has_result]))
        for batch in entry
    ]
