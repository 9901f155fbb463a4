"""The engine on this machine's disk: SQLite in a thread of its own.

    loop's thread    write ──▶ queue ──────────────┐                         ┌──▶ completed
    engine's thread                 all of it ──▶ one transaction ──▶ results ┘      and the eventfd

Owns:      the queue, the thread, and the decision when to commit.
Invariant: the queue holds the batches that are not durable, in order; a batch leaves it when it is.
           Results are reported in the order of the batches, and once.
Idea:      a commit costs an fsync, whatever is in it. While one is under way the next batches gather, and become one
           transaction: ten thousand a second are durable on a disk that does 300 fsyncs.

Durability "full" fsyncs every commit: what is acknowledged survives power loss. "normal" leaves that to the
checkpoints: what is acknowledged survives `kill -9`, and power loss may take the last batches; those that are left are
the first ones, and whole.

A commit that fails (the disk is full, cannot be written, has errors) leaves the queue as it is. The thread tries again
after a pause, first with one batch alone, since all of them may need more room than there is. Until it succeeds
`trouble` says why. A damaged file is another matter: that ends the engine.
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal

from skate._control.storage.admission import Admission
from skate._control.storage.directory import Directory
from skate._control.storage.errors import (
    RowDamaged,
    StorageClosed,
    StorageError,
    StorageReadOnly,
    StorageUnavailable,
)
from skate._control.storage.interface import (
    DESCRIBE_S,
    LAZY_S,
    Description,
    Done,
    Member,
    Meta,
    Operation,
    Shard,
    TableSize,
    Trouble,
)
from skate._control.storage.sqlite_file import StoreFile

#: The pause after a commit that failed: the first, and the longest. Each is twice the one before.
RETRY_S = (0.1, 5.0)

Durability = Literal["full", "normal"]


class _Batch:
    """A batch that is not durable yet."""

    __slots__ = ("due_at", "number", "operations")

    def __init__(self, number: int, operations: tuple[Operation, ...], due_at: float) -> None:
        self.number = number
        self.operations = operations
        #: If it is lazy: when to commit it at the latest.
        self.due_at = due_at


class SqliteStorage:
    def __init__(
        self,
        directory: str | os.PathLike[str],
        cluster_id: str = "",
        *,
        durability: Durability = "full",
        must_exist: bool = False,
        inspect: bool = False,
        skip_damaged: bool = False,
        holder: str = "",
        lazy_s: float = LAZY_S,
        retry_s: tuple[float, float] = RETRY_S,
        admission: Admission | None = None,
    ) -> None:
        """Open the store in a directory, or make it.

        cluster_id:   the cluster that it has to belong to. "": the one that is there; a new store makes one up.
        must_exist:   refuse to make a store.
        inspect:      look at it without being a service: nothing is written, and the incarnation stays.
        skip_damaged: pass over damaged rows instead of refusing to open; `damaged` and `problems` list what is wrong.
        holder:       what the process is, for others that want the store; by default its command line.
        """
        self._inspects = inspect
        self._directory = Directory(os.fspath(directory), must_exist=must_exist or inspect, holder=holder)
        self._survives = "power" if durability == "full" else "process"
        try:
            self._file = StoreFile(
                self._directory.path,
                cluster_id=cluster_id,
                synchronous=durability.upper(),
                must_exist=must_exist or inspect,
                inspect=inspect,
                skip_damaged=skip_damaged,
            )
        except BaseException:
            self._directory.close()
            raise
        self._lazy_s = lazy_s
        self._retry_s = retry_s
        self._admission = admission or Admission()
        #: Who has it may use `_file`.
        self._file_lock = threading.Lock()
        #: Guards all below, and is never held while the disk is waited for.
        self._changed = threading.Condition()
        self._queue: deque[_Batch] = deque()
        self._done: list[Done] = []
        self._trouble: Trouble | None = None
        #: What ended the engine. From then on it takes no batch.
        self._error: StorageError | None = None
        #: Batches up to this number do not wait for others.
        self._commit_to = 0
        #: While there is trouble: when to try again.
        self._retry_at = -math.inf
        self._closing = False
        #: The file has more free pages than it may; they are given back while there is nothing to write.
        self._has_excess = False
        self._transactions = 0
        self._failures = 0
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="skate-storage", daemon=True)
        self._thread.start()

    @property
    def meta(self) -> Meta:
        return self._file.meta

    @property
    def trouble(self) -> Trouble | None:
        return self._trouble

    @property
    def damaged(self) -> list[RowDamaged]:
        """The rows that were passed over so far; all that there are when the store has just been opened."""
        return list(self._file.damaged.values())

    @property
    def problems(self) -> list[str]:
        """What SQLite finds wrong with the structure of the file."""
        return self._file.problems

    def statistics(self) -> dict[str, int]:
        with self._changed:
            return {
                "batches": self._admission.written,
                "waiting": len(self._queue),
                "waiting_bytes": self._admission.waiting_bytes,
                "transactions": self._transactions,
                "failures": self._failures,
            }

    def fileno(self) -> int:
        return self._wake_fd

    # -- the loop's thread --------------------------------------------------------------------------------------------

    def write(self, batch: Sequence[Operation], *, lazy: bool = False) -> int:
        if self._inspects:
            raise StorageReadOnly("A batch was written to a store that is only looked at.")
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._closing:
                raise StorageClosed("A batch was written to a storage that is closed.")
            number = self._admission.admit(batch)
            if not lazy:
                self._commit_to = number
            self._queue.append(_Batch(number, tuple(batch), time.monotonic() + self._lazy_s))
            if not lazy or len(self._queue) == 1:
                self._changed.notify_all()
        return number

    def completed(self) -> list[Done]:
        with self._changed:
            if not self._closing:
                try:
                    os.eventfd_read(self._wake_fd)
                except BlockingIOError:
                    pass
            done, self._done = self._done, []
        for end in done:
            self._admission.collect(end.number)
        return done

    def scan(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Some rows at a time; in between batches may be committed."""
        at: bytes | None = prefix
        while at is not None:
            with self._file_lock:
                try:
                    rows, at = self._file.read(table.encode(), prefix, at)
                except sqlite3.Error as error:
                    raise self._file.explain(error) from error
            yield from rows

    def tables(self) -> list[str]:
        with self._file_lock:
            return [name.decode(errors="backslashreplace") for name in self._file.tables()]

    def describe(self) -> Description:
        tables: dict[str, TableSize] | None = None
        if self._file_lock.acquire(timeout=DESCRIBE_S):
            try:
                tables = self._file.sizes()
            except sqlite3.Error:  # the rest can be told all the same
                pass
            finally:
                self._file_lock.release()
        shard = Shard((Member(self._file.path, self._file.size_bytes()),))
        with self._changed:
            return Description(
                "sqlite", (shard,), tables, self._survives, len(self._queue), self._admission.waiting_bytes
            )

    def copy_to(self, directory: str | os.PathLike[str]) -> None:
        """Write what is durable into another directory, as a store of the same cluster that can be opened there.

        While a store is open no other program can read its file, so this is how a backup is made. It also saves a store
        whose directory was removed. Commits wait meanwhile, and so does the caller.
        """
        other = Directory(os.fspath(directory))
        try:
            with self._file_lock:
                self._file.copy_to(other.path)
        finally:
            other.close()

    def flush(self, timeout_s: float) -> bool:
        with self._changed:
            self._commit_to = self._admission.written
            self._retry_at = -math.inf
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._queue, timeout_s)

    def close(self) -> None:
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._commit_to = self._admission.written
            self._retry_at = -math.inf
            self._changed.notify_all()
        self._thread.join()
        self._file.close()
        self._directory.close()
        os.close(self._wake_fd)

    # -- the engine's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (group := self._next_group()) is not None:
                if group:
                    self._commit(group)
                else:
                    self._shrink()
        except BaseException as error:
            self._error = StorageError(
                f"The store {self._file.path} can no longer be written.",
                f"Its thread ended: {error!r}.",
                "this is a bug in Skate; please report it.",
            )
            raise
        finally:
            with self._changed:
                reason = self._error or StorageClosed("The storage was closed before the batch was written.")
                self._report([Done(batch.number, (), reason) for batch in self._queue])

    def _next_group(self) -> list[_Batch] | None:
        """Wait for what can be committed now. Nothing: there is time to make the file smaller. None: the end."""
        with self._changed:
            while self._error is None:
                wait_s: float | None = None
                if self._queue:
                    first = self._queue[0]
                    if self._trouble is not None:
                        due_at = self._retry_at
                    else:
                        due_at = -math.inf if first.number <= self._commit_to else first.due_at
                    wait_s = min(due_at - time.monotonic(), threading.TIMEOUT_MAX)
                    if wait_s <= 0:
                        return [first] if self._trouble is not None else list(self._queue)
                elif self._closing:
                    return None
                elif self._has_excess:
                    return []
                if self._closing and self._trouble is not None:
                    return None  # the last attempt has failed
                self._changed.wait(wait_s)
            return None

    def _commit(self, group: list[_Batch]) -> None:
        try:
            with self._file_lock:
                self._file.check_place()
                results = self._file.commit([batch.operations for batch in group])
        except (sqlite3.Error, StorageUnavailable, MemoryError) as error:
            self._on_failed(error)
            return
        with self._changed:
            self._transactions += 1
            self._trouble = None
            self._report([Done(batch.number, result) for batch, result in zip(group, results)])
        self._has_excess = self._look_at_size()

    def _report(self, ended: list[Done]) -> None:
        """The first batches of the queue have ended."""
        for _ in ended:
            self._queue.popleft()
        self._done.extend(ended)
        os.eventfd_write(self._wake_fd, 1)
        if not self._queue:
            self._changed.notify_all()

    def _on_failed(self, cause: sqlite3.Error | StorageUnavailable | MemoryError) -> None:
        if isinstance(cause, sqlite3.Error):
            error = self._file.explain(cause)
        elif isinstance(cause, MemoryError):
            error = StorageUnavailable(f"The store {self._file.path} cannot be written.", "There is no memory.")
        else:
            error = cause
        with self._changed:
            self._failures += 1
            if not isinstance(error, StorageUnavailable):
                self._error = error
                return
            since, attempts = (self._trouble.since, self._trouble.attempts) if self._trouble else (time.time(), 0)
            self._trouble = Trouble(error, since, attempts + 1)
            first_s, longest_s = self._retry_s
            self._retry_at = time.monotonic() + min(first_s * 2.0 ** min(attempts, 60), longest_s)
            os.eventfd_write(self._wake_fd, 1)

    def _look_at_size(self) -> bool:
        with self._file_lock:
            try:
                return self._file.has_excess()
            except sqlite3.Error:
                return False  # the next commit meets it, too

    def _shrink(self) -> None:
        """Between batches. What goes wrong here has lost nothing, and the next commit meets it, too."""
        with self._file_lock:
            try:
                self._file.shrink()
            except sqlite3.Error:
                self._has_excess = False
                return
        self._has_excess = self._look_at_size()
