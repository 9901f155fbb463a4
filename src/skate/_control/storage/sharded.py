"""Several storages as one: each row lies in the shard that a layout says.

    write(batch 7) ──▶ part of it, batch 3 of shard 0
                   ──▶ part of it, batch 5 of shard 1     completed() reports 7 when both and batch 6 have ended

Owns:      the numbers of batches, and which parts of which are under way.
Invariant: a batch is reported when all its parts and all earlier batches have ended.
           Each shard has at most one part of a batch, and gets its parts in the order of the batches.
           No shard is at its limits before this storage is: what waits in a shard waits here, too.
Promises:  a batch is a whole in each shard, and not over all of them: after a crash some of its parts may be stored and
           others not. Only a batch that was not reported can be left so.
"""

from __future__ import annotations

import heapq
import os
import select
import time
from collections import deque
from collections.abc import Iterator, Sequence

from skate._control.storage.admission import Admission
from skate._control.storage.errors import StorageClosed, StorageError, StorageOfOtherCluster
from skate._control.storage.interface import Description, Done, Meta, Operation, Storage, TableSize, Trouble
from skate._control.storage.slots import Layout


class _Batch:
    """A batch that was not reported yet."""

    __slots__ = ("error", "number", "parts_left", "results")

    def __init__(self, number: int, operations: int, parts: int) -> None:
        self.number = number
        self.parts_left = parts
        self.results = [False] * operations
        self.error: StorageError | None = None

    def part_ended(self, places: Sequence[int], results: Sequence[bool], error: StorageError | None) -> None:
        self.parts_left -= 1
        self.error = self.error or error
        for place, result in zip(places, results):
            self.results[place] = result


class ShardedStorage:
    def __init__(self, shards: Sequence[Storage], layout: Layout | None = None, *, admission: Admission | None = None):
        self._shards = shards
        self._layout = layout or Layout.of(len(shards))
        if self._layout.count != len(shards):
            raise ValueError(f"the layout is one of {self._layout.count} shards, and there are {len(shards)}")
        self.meta = _common(shards)
        self._admission = admission or Admission()
        self._batches: deque[_Batch] = deque()
        #: Of each shard, the parts that have not ended: the batch, and the places of the part's operations in it.
        self._parts: list[deque[tuple[_Batch, list[int]]]] = [deque() for _ in shards]
        #: Readable when a batch ended while it was written: it was empty, or its shard had ended before.
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        for fd in (self._wake_fd, *(shard.fileno() for shard in shards)):
            self._epoll.register(fd, select.EPOLLIN)
        #: Shards with lazy parts that nothing hurries yet.
        self._lazy: set[int] = set()
        self._closed = False

    @property
    def trouble(self) -> Trouble | None:
        """The longest of the troubles of the shards."""
        troubles = [shard.trouble for shard in self._shards]
        return min((trouble for trouble in troubles if trouble), key=lambda trouble: trouble.since, default=None)

    def fileno(self) -> int:
        return self._epoll.fileno()

    # -- writing ------------------------------------------------------------------------------------------------------

    def write(self, batch: Sequence[Operation], *, lazy: bool = False) -> int:
        if self._closed:
            raise StorageClosed("A batch was written to a storage that is closed.")
        number = self._admission.admit(batch)
        places: dict[int, list[int]] = {}
        for place, operation in enumerate(batch):
            places.setdefault(self._layout.shard_of(operation.table, operation.key), []).append(place)
        pending = _Batch(number, len(batch), len(places))
        self._batches.append(pending)
        if not places:
            os.eventfd_write(self._wake_fd, 1)
        for shard, part in places.items():
            try:
                self._shards[shard].write([batch[place] for place in part], lazy=lazy)
            except StorageError as error:  # the shard has ended
                pending.part_ended(part, (), error)
                os.eventfd_write(self._wake_fd, 1)
            else:
                self._parts[shard].append((pending, part))
        if lazy:
            self._lazy |= places.keys()
        elif self._lazy:
            # What is reported after them must not wait for their moment.
            for shard in self._lazy - places.keys():
                self._shards[shard].flush(0.0)
            self._lazy.clear()
        return number

    def completed(self) -> list[Done]:
        if not self._closed:
            try:
                os.eventfd_read(self._wake_fd)
            except BlockingIOError:
                pass
        for shard, parts in zip(self._shards, self._parts):
            for done in shard.completed():
                batch, places = parts.popleft()
                batch.part_ended(places, done.results, done.error)
        ended: list[Done] = []
        while self._batches and not self._batches[0].parts_left:
            batch = self._batches.popleft()
            self._admission.collect(batch.number)
            ended.append(Done(batch.number, () if batch.error else tuple(batch.results), batch.error))
        return ended

    # -- reading ------------------------------------------------------------------------------------------------------

    def scan(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """What lies in a shard that it does not belong to was left there when its slot moved, and is passed over."""
        return heapq.merge(*[self._rows(number, table, prefix) for number in range(len(self._shards))])

    def _rows(self, number: int, table: str, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._shards[number].scan(table, prefix):
            if self._layout.shard_of(table, key) == number:
                yield key, value

    def misplaced(self) -> Iterator[tuple[int, str, bytes]]:
        """The rows that lie in a shard which they do not belong to: its number, the table and the key."""
        for number, shard in enumerate(self._shards):
            for table in shard.tables():
                for key, _ in shard.scan(table):
                    if self._layout.shard_of(table, key) != number:
                        yield number, table, key

    def tables(self) -> list[str]:
        return sorted({table for shard in self._shards for table in shard.tables()})

    def describe(self) -> Description:
        """Rows that were left behind when their slot moved are counted, too."""
        all = [shard.describe() for shard in self._shards]
        tables: dict[str, TableSize] | None = {}
        for each in all:
            if tables is None or each.tables is None:
                tables = None
                continue
            for name, table in each.tables.items():
                other = tables.get(name, TableSize(0, 0))
                tables[name] = TableSize(table.rows + other.rows, table.size_bytes + other.size_bytes)
        return Description(
            all[0].engine,
            tuple(part for each in all for part in each.shards),
            dict(sorted(tables.items())) if tables is not None else None,
            all[0].survives,
            len(self._batches),
            self._admission.waiting_bytes,
        )

    # -- the end ------------------------------------------------------------------------------------------------------

    def flush(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        ended = [shard.flush(max(0.0, deadline - time.monotonic())) for shard in self._shards]
        return all(ended)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for shard in self._shards:
                shard.close()
            self._epoll.close()
            os.close(self._wake_fd)


def _common(shards: Sequence[Storage]) -> Meta:
    """What the shards say of themselves, as one; they have to belong together."""
    metas = [shard.meta for shard in shards]
    for number, meta in enumerate(metas):
        if meta.cluster_id != metas[0].cluster_id:
            error = StorageOfOtherCluster(
                f"Shard {number} of the store belongs to cluster {meta.cluster_id}.",
                f"Shard 0 belongs to cluster {metas[0].cluster_id}, and the shards of a store belong to one.",
                "name the shards that belong together.",
            )
            error.found, error.wanted = meta.cluster_id, metas[0].cluster_id
            raise error
    # An attempt to open all of them may have ended half way: then their incarnations differ.
    incarnation = max(meta.incarnation for meta in metas)
    return Meta(metas[0].cluster_id, incarnation, metas[0].schema, min(meta.created_at for meta in metas))
