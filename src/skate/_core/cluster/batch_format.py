"""A batch as bytes, as `apply.lua` reads it.

    OFFSET  SIZE  DESCRIPTION
    0       4     length of the field, big-endian
    4       n     the field
    …             and so on: each operation is kind, table, key, and what the kind needs

    put  value      delete      cas  expected, value      drop  expected      absent  value      missing
    append  length in decimal digits, value

Fields of bytes and nothing else, so that a value of any bytes passes through Lua as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

#: How many fields follow kind, table and key.
FIELDS = {b"put": 1, b"delete": 0, b"cas": 2, b"drop": 1, b"absent": 1, b"missing": 0, b"append": 2}
Operation = tuple[bytes, ...]


def encode(operations: Iterable[Operation]) -> bytes:
    parts = []
    for operation in operations:
        assert len(operation) == 3 + FIELDS[operation[0]], operation
        for field in operation:
            parts += [struct.pack(">I", len(field)), field]
    return b"".join(parts)


def decode(batch: bytes) -> list[Operation]:
    fields = []
    at = 0
    while at < len(batch):
        (length,) = struct.unpack_from(">I", batch, at)
        fields.append(batch[at + 4 : at + 4 + length])
        at += 4 + length
    operations = []
    while fields:
        count = 3 + FIELDS[fields[0]]
        operations.append(tuple(fields[:count]))
        del fields[:count]
    return operations
