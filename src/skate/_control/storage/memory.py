"""The engine that forgets with its process: for a node that is alone, and as the model of all other engines.

Owns:      the rows, in a dict a table.
Invariant: no table is empty.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Sequence

from skate._control.storage.admission import Admission
from skate._control.storage.errors import StorageClosed
from skate._control.storage.interface import (
    AppendAt,
    CompareAndSet,
    Delete,
    Description,
    Done,
    Member,
    Meta,
    Operation,
    Put,
    Shard,
    TableSize,
)

SCHEMA = 1

Row = tuple[str, bytes]


def after(operation: Operation, value: bytes | None) -> tuple[bool, bytes | None]:
    """What an operation does to a row: its result, and the row's value afterwards. None is a row that does not exist.

    The meaning of the operations in one place: every other engine has to agree with it.
    """
    match operation:
        case Put():
            return True, operation.value
        case Delete():
            return value is not None, None
        case CompareAndSet():
            return (True, operation.value) if value == operation.expected else (False, value)
        case AppendAt():
            if len(value or b"") != operation.length:
                return False, value
            return True, (value or b"") + operation.value


class MemoryStorage:
    def __init__(self, cluster_id: str = "", *, admission: Admission | None = None) -> None:
        self.meta = Meta(cluster_id or secrets.token_hex(8), 1, SCHEMA, time.time())
        self._tables: dict[str, dict[bytes, bytes]] = {}
        self._admission = admission or Admission()
        self._done: list[Done] = []
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False

    @property
    def trouble(self) -> None:
        """Memory can always be written."""
        return None

    def fileno(self) -> int:
        return self._wake_fd

    def write(self, batch: Sequence[Operation], *, lazy: bool = False) -> int:
        if self._closed:
            raise StorageClosed("A batch was written to a storage that is closed.")
        number = self._admission.admit(batch)
        self._done.append(Done(number, tuple([self._apply(operation) for operation in batch])))
        os.eventfd_write(self._wake_fd, 1)
        return number

    def _apply(self, operation: Operation) -> bool:
        rows = self._tables.setdefault(operation.table, {})
        result, value = after(operation, rows.get(operation.key))
        if value is None:
            rows.pop(operation.key, None)
        else:
            rows[operation.key] = value
        if not rows:
            del self._tables[operation.table]
        return result

    def completed(self) -> list[Done]:
        done, self._done = self._done, []
        if done and not self._closed:
            os.eventfd_read(self._wake_fd)
        for end in done:
            self._admission.collect(end.number)
        return done

    def scan(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        rows = self._tables.get(table, {})
        return iter(sorted(pair for pair in rows.items() if pair[0].startswith(prefix)))

    def tables(self) -> list[str]:
        return sorted(self._tables)

    def describe(self) -> Description:
        tables = {
            name: TableSize(len(rows), sum(len(key) + len(value) for key, value in rows.items()))
            for name, rows in sorted(self._tables.items())
        }
        size_bytes = sum(table.size_bytes for table in tables.values())
        return Description("memory", (Shard((Member(f"process {os.getpid()}", size_bytes),)),), tables)

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._wake_fd)
