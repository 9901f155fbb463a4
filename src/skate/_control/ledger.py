"""Durable before visible: nothing is said before what it rests on is written.

    a handler runs ──▶ put, forget: rows of this turn      say: a message that may leave now, or waits
    the turn ends  ──▶ commit: its rows go to the storage, as one batch if they fit into one
    the storage has made them durable ──▶ what waited for them leaves, in the order in which it was said

Who hears of a change, the one who asked for it or another, hears of it when a crash can no longer take it back.

Owns:      the rows that this turn has changed, and the messages that wait.
Invariant: a message leaves when every row that was changed before it was said is durable. Messages keep their order.
Without a storage everything leaves at once: the state ends with its process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from skate._control.crash_points import reached

if TYPE_CHECKING:
    from skate._control.storage.errors import StorageError
    from skate._control.storage.interface import Delete, Put, Storage

Action = Callable[[], None]


class Ledger:
    def __init__(
        self,
        storage: Storage | None = None,
        soon: Callable[[Action], object] = lambda action: action(),
        on_lost: Callable[[StorageError], None] = lambda error: None,
    ) -> None:
        """soon: calls back when the turn is over. on_lost: the storage has ended, and what waits will never leave."""
        self._storage = storage
        self._soon = soon
        self._on_lost = on_lost
        #: Rows that were changed since the last commit; None: it was removed.
        self._changed: dict[tuple[str, bytes], bytes | None] = {}
        #: The same of rows for which no message waits.
        self._lazy: dict[tuple[str, bytes], bytes | None] = {}
        #: Commits so far, and those whose rows are durable.
        self._commits = 0
        self._durable = 0
        #: The last batch of each commit that is not durable yet.
        self._under_way: deque[tuple[int, int]] = deque()
        #: What waits, and for which commit.
        self._waiting: deque[tuple[int, Action]] = deque()

    @property
    def storage(self) -> Storage | None:
        return self._storage

    # -- changes ------------------------------------------------------------------------------------------------------

    def put(self, table: str, key: bytes, value: bytes, *, lazy: bool = False) -> None:
        """lazy: it may be written with a later batch."""
        self._change(table, key, value, lazy)

    def forget(self, table: str, key: bytes, *, lazy: bool = False) -> None:
        self._change(table, key, None, lazy)

    def _change(self, table: str, key: bytes, value: bytes | None, lazy: bool) -> None:
        if self._storage is None:
            return
        if not self._changed and not self._lazy:
            self._soon(self.commit)
        (self._lazy if lazy else self._changed)[table, key] = value

    def rows(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """What was kept, for a service that starts: before its first change."""
        return self._storage.scan(table) if self._storage is not None else iter(())

    # -- what is said -------------------------------------------------------------------------------------------------

    def say(self, action: Action) -> None:
        """Act once all that was changed up to now is durable; at once if it is."""
        if self.is_clear:
            action()
        else:
            self._waiting.append((self._commits + bool(self._changed), action))

    @property
    def is_clear(self) -> bool:
        """Whether nothing has to wait."""
        return not self._changed and self._durable == self._commits

    @property
    def waiting(self) -> int:
        """How many messages wait for the storage."""
        return len(self._waiting)

    def commit(self) -> None:
        """The turn is over."""
        if not (self._changed or self._lazy) or self._storage is None:
            return
        from skate._control.storage.errors import StorageBusy  # only a service with a storage loads it

        if self._changed:
            self._changed, self._lazy = {**self._lazy, **self._changed}, {}
            waiting, is_lazy = self._changed, False
        else:
            waiting, is_lazy = self._lazy, True
        batches = list(_batches(waiting))
        number = 0
        reached("ledger.before_write")
        try:
            while batches:
                number = self._storage.write(batches[0], lazy=is_lazy)
                for operation in batches.pop(0):
                    del waiting[operation.table, operation.key]
        except StorageBusy:  # it says when it has made room: the rest goes with the next commit
            return
        if not is_lazy:
            self._commits += 1
            self._under_way.append((self._commits, number))
            self.collect()

    def fileno(self) -> int:
        """A descriptor that can be read when `collect` has something to do; -1 without a storage."""
        return -1 if self._storage is None else self._storage.fileno()

    def collect(self) -> None:
        """Let leave what the storage has made durable."""
        if self._storage is None:
            return
        for done in self._storage.completed():
            if done.error is not None:
                self._on_lost(done.error)
                return
            while self._under_way and self._under_way[0][1] <= done.number:
                self._durable = self._under_way.popleft()[0]
        waiting = self._waiting
        if waiting and waiting[0][0] <= self._durable:
            reached("ledger.before_saying")
        while waiting and waiting[0][0] <= self._durable:
            waiting.popleft()[1]()
        if self._changed or self._lazy:
            self.commit()


def _batches(changed: dict[tuple[str, bytes], bytes | None]) -> Iterator[list[Put | Delete]]:
    """The rows in as few batches as a storage takes. It takes a row of any size by itself."""
    from skate._control.storage.admission import BATCH_BYTES_MAX, OPERATIONS_MAX, size_of
    from skate._control.storage.interface import Delete, Put

    batch: list[Put | Delete] = []
    batch_bytes = 0
    for (table, key), value in changed.items():
        operation = Delete(table, key) if value is None else Put(table, key, value)
        size = size_of(operation)
        if batch and (len(batch) == OPERATIONS_MAX or batch_bytes + size > BATCH_BYTES_MAX):
            yield batch
            batch, batch_bytes = [], 0
        batch.append(operation)
        batch_bytes += size
    yield batch
