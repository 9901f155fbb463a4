"""What the control service asks of the place where it keeps its rows.

    service ──write(batch n)──▶ engine ──▶ disk, other machines
            ◀──completed()── results of batch n, when it is durable

The service has its state in memory. A storage is written while the service runs, and read once, when it starts.

Rows:       a row is (table, key) → value. A table exists while it has rows.
Batches:    numbered 1, 2, 3 … by `write` since the storage was opened. Applied in that order, each as a whole or not at
            all; the operations of a batch see the effects of those before them. A `Sharded` storage keeps this promise
            shard by shard, so what must agree belongs into one row.
Durable:    what `completed` reports without an error outlives the process, as far as the engine promises that. Batch n
            is never durable without batch n-1, nor reported before it.
Lazy:       a lazy batch may wait for the next one that is not, or for a moment (LAZY_S). It costs no commit of its own.
Waiting:    no method but `flush`, `close`, `describe` and the readers waits for a disk or a network. What cannot be
            written yet is kept (its bounds are in `admission.py`), and tried again; `trouble` says why.
Failing:    an error that `completed` reports is final: the storage has ended, this batch and all later ones carry the
            error, and each of them may be stored or not. If nothing was under way, `completed` says so once, with the
            number 0.
Threads:    one thread calls a storage. An engine has threads of its own, or it does its work in `completed`: then its
            descriptor is readable whenever there is some.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeAlias

import msgspec

from skate._control.storage.errors import StorageError

#: How long a lazy batch waits for another one to ride along with.
LAZY_S = 0.05
#: How long a description may wait for what is under way.
DESCRIBE_S = 0.5


class Put(msgspec.Struct, frozen=True, array_like=True, tag="put"):
    """Write the row, whether it exists or not. Result: True."""

    table: str
    key: bytes
    value: bytes


class Delete(msgspec.Struct, frozen=True, array_like=True, tag="delete"):
    """Remove the row. Result: whether it existed."""

    table: str
    key: bytes


class CompareAndSet(msgspec.Struct, frozen=True, array_like=True, tag="cas"):
    """Write `value` if the row is `expected`; None stands for a row that does not exist. Result: whether it was."""

    table: str
    key: bytes
    expected: bytes | None
    value: bytes | None


class AppendAt(msgspec.Struct, frozen=True, array_like=True, tag="append"):
    """Append `value` if the row has `length` bytes; a row that does not exist has none. Result: whether it had.

    Appending nothing at 0 makes an empty row.
    """

    table: str
    key: bytes
    length: int
    value: bytes


# Everything an operation does follows from the row it names, so that every member of a chain comes to the same result.
Operation: TypeAlias = Put | Delete | CompareAndSet | AppendAt


class Done(msgspec.Struct, frozen=True):
    """The end of one batch."""

    number: int
    #: One result for each operation, in their order; none if there is an error.
    results: tuple[bool, ...]
    error: StorageError | None = None


class Trouble(msgspec.Struct, frozen=True):
    """Why nothing can be written at present."""

    #: What the last attempt met.
    error: StorageError
    #: Seconds since the epoch, when the first attempt failed.
    since: float
    #: How many attempts have failed since then.
    attempts: int


class Meta(msgspec.Struct, frozen=True):
    """What a store knows about itself."""

    cluster_id: str
    #: How many services have opened the store, this one included. No two services of a cluster have the same.
    incarnation: int
    #: The version of the schema that the rows are stored in.
    schema: int
    #: Seconds since the epoch.
    created_at: float


class TableSize(msgspec.Struct, frozen=True):
    """How much a table holds."""

    rows: int
    #: Of keys and values.
    size_bytes: int


class Member(msgspec.Struct, frozen=True):
    """One of the places in which all rows of a shard lie."""

    #: A path, or the address of a server without its password.
    address: str
    #: What it takes up there.
    size_bytes: int = 0
    #: One word. An engine whose members can be missing has others than this one.
    state: str = "serving"
    #: How many batches it is behind the first member.
    lag: int = 0


class Shard(msgspec.Struct, frozen=True):
    """The part of a store that one file or one chain of servers holds."""

    #: In the order in which they are written.
    members: tuple[Member, ...]
    #: Counts the changes of its members.
    epoch: int = 0


class Description(msgspec.Struct, frozen=True):
    """A storage as it is now, for people."""

    #: "memory", "sqlite", …
    engine: str
    shards: tuple[Shard, ...]
    #: By table, sorted; None: it cannot be counted at present.
    tables: dict[str, TableSize] | None
    #: What is acknowledged survives: "process", its own death; "power", power loss; "" neither.
    survives: str = ""
    #: Batches that are not durable yet.
    waiting: int = 0
    waiting_bytes: int = 0


class Storage(Protocol):
    @property
    def meta(self) -> Meta: ...

    @property
    def trouble(self) -> Trouble | None:
        """Why nothing can be written at present; None while writing works. A change makes `fileno` readable."""

    def fileno(self) -> int:
        """A descriptor that can be read when `completed` has something to report or to do, or `trouble` has changed."""

    def write(self, batch: Sequence[Operation], *, lazy: bool = False) -> int:
        """Take a batch and return its number.

        Raises BatchRefused, StorageBusy or StorageClosed, or the error that ended the storage: nothing was taken then.
        """

    def completed(self) -> list[Done]:
        """The batches that have ended since the last call, in the order of their numbers."""

    def scan(self, table: str, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin with `prefix`, sorted, with their values.

        Complete and exact while no batch is under way: before the first one is written, or after `flush`.
        """

    def tables(self) -> list[str]:
        """The names of the tables that have rows, sorted."""

    def describe(self) -> Description:
        """The storage as it is now. Waits for a moment at most (DESCRIBE_S); what cannot be had by then is left out."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was written has ended, lazy batches too. False if it has not within `timeout_s`.

        Results are still reported by `completed`. An engine in trouble tries again at once. With 0 it only hurries the
        engine, and does not wait.
        """

    def close(self) -> None:
        """Write what is there, in one last attempt, and let everything go. `completed` still reports what has ended."""
