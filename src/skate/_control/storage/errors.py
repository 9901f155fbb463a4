"""What can go wrong with a storage, in one tree.

    StorageError
    │
    │   the caller asked for what cannot be
    ├── BatchRefused                an operation or a batch breaks a limit; also a ValueError
    ├── StorageBusy                 too much waits to be written; nothing of the batch was taken
    ├── StorageClosed               the storage was closed before the batch was written
    │
    │   the storage cannot be opened
    ├── StorageLocked               another process has it
    ├── StorageMissing              there should be a store, and there is none
    ├── StorageOfOtherCluster       it holds the data of another cluster
    ├── StorageOfOtherProgram       it is a database, and none of ours
    ├── StorageNewer                a later version of Skate wrote it
    │
    │   what was written cannot be read
    ├── StorageCorrupt              bytes have changed on disk; final
    │   └── RowDamaged              … those of one row, which is named
    │
    │   it cannot be written at present; the engine keeps the batches and tries again
    └── StorageUnavailable
        ├── StorageFull             no room on the disk
        ├── StorageReadOnly         the directory or the file may not be written
        └── StorageGone             the file was removed or replaced while it was in use

The text of an error says what happened, why, and what to do next; these are its three arguments, so that every error
survives pickling. Facts beside them are attributes.
"""

from __future__ import annotations

from skate._error_text import compose


class StorageError(Exception):
    """The base of all errors of a storage."""

    def __init__(self, what: str, why: str = "", next: str = "") -> None:
        super().__init__(what, why, next)
        self.what = what
        self.why = why
        self.next = next

    def __str__(self) -> str:
        return compose(self.what, why=self.why, next=self.next)


class BatchRefused(StorageError, ValueError):
    """An operation or a batch breaks a limit of `admission.py`. Nothing of it was taken."""


class StorageBusy(StorageError):
    """As many batches or bytes wait to be written as may. Nothing of this batch was taken; it may be written later."""


class StorageClosed(StorageError):
    """The storage was closed. Of a batch that was not done by then, nothing or all of it may be stored."""


class StorageLocked(StorageError):
    """Another process has the store. `pid`, `host` and `command` are what it wrote into the lock file."""

    pid: int = 0
    host: str = ""
    command: str = ""


class StorageMissing(StorageError):
    """A store that should exist does not."""


class StorageOfOtherCluster(StorageError):
    """The store belongs to the cluster `found`, and `wanted` was asked for."""

    found: str = ""
    wanted: str = ""


class StorageOfOtherProgram(StorageError):
    """The file is a database that Skate did not make."""


class StorageNewer(StorageError):
    """A later version of Skate wrote the store, in a schema that this one does not know."""

    found: int = 0
    known: int = 0


class StorageCorrupt(StorageError):
    """The file at `path` is not what was written. Final: a storage that reports this writes no more."""

    path: str = ""


class RowDamaged(StorageCorrupt):
    """The checksum of one row does not fit its bytes."""

    table: str = ""
    key: bytes = b""


class StorageUnavailable(StorageError):
    """The storage cannot be written at present. The batch is kept and tried again."""


class StorageFull(StorageUnavailable):
    """There is no room on the disk."""


class StorageReadOnly(StorageUnavailable):
    """The directory or the file may not be written."""


class StorageGone(StorageUnavailable):
    """The file was removed or replaced while it was in use."""
