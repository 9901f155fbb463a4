"""What a storage takes: the limits of a batch, and of all that was written and not yet collected.

Owns:      the numbers of batches, and the account of those whose end `completed` has not reported yet.
Knows not: what batches do.
Invariant: the account is that of the batches from `collected + 1` to `written`.

| limit                       | at the limit                                                                   |
|-----------------------------|--------------------------------------------------------------------------------|
| operations and bytes of a   | BatchRefused. They bound the time for which a script holds a Redis server. One |
| batch                       | operation alone may be as large as a row: pickled classes can be               |
| bytes of a row              | BatchRefused, for an AppendAt by the length that it expects                    |
| batches and bytes waiting   | StorageBusy: the caller keeps the batch, or refuses what it was for            |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from skate._control.storage.errors import BatchRefused, StorageBusy
from skate._control.storage.interface import AppendAt, CompareAndSet, Operation, Put
from skate._error_text import size

OPERATIONS_MAX = 256
BATCH_BYTES_MAX = 1 << 20
#: The largest message of a cluster has as many. Redis takes twice that in one string.
ROW_BYTES_MAX = 256 << 20
TABLE_BYTES_MAX = 100
WAITING_BATCHES_MAX = 10_000
#: The batch that reaches it is still taken, so that one that is larger than this can be written.
WAITING_BYTES_MAX = 64 << 20


def size_of(operation: Operation) -> int:
    """Bytes of the operation, or of the row that it leaves if those are more."""
    total = len(operation.table) + len(operation.key)
    match operation:
        case Put():
            total += len(operation.value)
        case CompareAndSet():
            total += len(operation.expected or b"") + len(operation.value or b"")
        case AppendAt():
            total += len(operation.value)
    return total


def _check(operation: Operation, number: int) -> int:
    name = f"{type(operation).__name__} number {number} of the batch"
    if not 0 < len(operation.table.encode()) <= TABLE_BYTES_MAX or "\0" in operation.table:
        raise BatchRefused(
            f"{name} names the table {operation.table[:TABLE_BYTES_MAX]!r}.",
            f"A name has 1 to {TABLE_BYTES_MAX} bytes, none of them zero. The storage itself uses the empty name.",
        )
    total = size_of(operation)
    row = total + (operation.length if isinstance(operation, AppendAt) else 0)
    if row > ROW_BYTES_MAX:
        raise BatchRefused(
            f"{name} makes a row of {size(row)} in the table {operation.table!r}.",
            f"A row may have {size(ROW_BYTES_MAX)}.",
            "keep large values in the object store, and their reference here; split a log over several rows.",
        )
    return total


class Admission:
    __slots__ = ("_batches_max", "_bytes_max", "_sizes", "collected", "waiting_bytes", "written")

    def __init__(self, batches_max: int = WAITING_BATCHES_MAX, bytes_max: int = WAITING_BYTES_MAX) -> None:
        self._batches_max = batches_max
        self._bytes_max = bytes_max
        #: Bytes of each batch that was not collected, oldest first.
        self._sizes: deque[int] = deque()
        #: Number of the last batch that was admitted.
        self.written = 0
        #: Number of the last batch whose end was reported.
        self.collected = 0
        #: Sum of `_sizes`.
        self.waiting_bytes = 0

    def admit(self, batch: Sequence[Operation]) -> int:
        """The number of the batch, if it may be written now."""
        if len(batch) > OPERATIONS_MAX:
            raise BatchRefused(
                f"A batch has {len(batch)} operations.", f"It may have {OPERATIONS_MAX}.", "write several batches."
            )
        total = sum([_check(operation, number) for number, operation in enumerate(batch, start=1)])
        if total > BATCH_BYTES_MAX and len(batch) > 1:
            raise BatchRefused(
                f"A batch of {len(batch)} operations has {size(total)}.",
                f"It may have {size(BATCH_BYTES_MAX)}; one operation alone may have more.",
                "write several batches.",
            )
        if len(self._sizes) >= self._batches_max or self.waiting_bytes >= self._bytes_max:
            raise StorageBusy(
                f"{len(self._sizes)} batches with {size(self.waiting_bytes)} wait to be written.",
                f"At most {self._batches_max} batches and {size(self._bytes_max)} may wait. Either the storage is slow "
                "or in trouble, or their results are not collected.",
                "write the batch again when earlier ones have been reported, or refuse what it was for.",
            )
        self._sizes.append(total)
        self.waiting_bytes += total
        self.written += 1
        return self.written

    def collect(self, number: int) -> None:
        """The end of batch `number` has been reported: it is the oldest."""
        assert number == self.collected + 1, f"batch {number} was reported after batch {self.collected}"
        self.collected = number
        self.waiting_bytes -= self._sizes.popleft()
