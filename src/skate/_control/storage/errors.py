"""What can go wrong with a storage, in one tree.

    StorageError
    │
    │   the caller asked for what cannot be
    ├── BatchRefused                an operation or a batch breaks a limit; also a ValueError
    ├── StorageBusy                 too much waits to be written; nothing of the batch was taken
    ├── StorageClosed               the storage was closed before the batch was written
    │
    │   the storage cannot be opened
    ├── StorageAddressError         its address cannot be read; also a ValueError
    ├── StorageLocked               another process has it
    ├── StorageMissing              there should be a store, and there is none
    │   └── AuthorityMissing        … there is one, and the record of who has which part of it is lost
    ├── StorageOfOtherCluster       it holds the data of another cluster
    ├── StorageOfOtherProgram       it is a database, and none of ours
    ├── StorageNewer                a later version of Skate wrote it
    ├── ServerRefused               a Redis server cannot keep a part of it; `server` names it
    │   ├── ServerEvicts            … it may drop rows when its memory is full
    │   ├── ServerRedirects         … it runs in cluster mode, or is a Sentinel
    │   ├── ServerIsReplica         … it copies another server
    │   ├── ServerNamedTwice        … it is there under another name
    │   ├── ServerNotEmpty          … it holds data that are not Skate's
    │   ├── ServerKeepsOut          … it does not take the user and the password
    │   ├── ServerLacksRights       … its user may not run what is needed
    │   └── ServerTooOld            … its version is not known to do what is needed
    │
    │   another service, or nothing, is there now; final
    ├── StorageFenced               another service has taken over
    ├── StorageLost                 every server of a shard has lost its data
    │
    │   what was written cannot be read
    ├── StorageCorrupt              bytes have changed on disk; final
    │   ├── RowDamaged              … those of one row, which is named
    │   └── RowUnreadable           a row is what was written, and means nothing to this version of Skate
    │
    │   it cannot be written at present; the engine keeps the batches and tries again
    └── StorageUnavailable
        ├── StorageFull             no room on the disk
        ├── StorageReadOnly         the directory or the file may not be written
        ├── StorageGone             the file was removed or replaced while it was in use
        └── StorageUnreachable      too few Redis servers answer

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


class RowUnreadable(StorageCorrupt):
    """A row has its checksum, and its bytes are no record of its table."""

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


class StorageUnreachable(StorageUnavailable):
    """Too few Redis servers answer, or they cannot write. `is_refused`: the machine is there, and the server is not."""

    is_refused: bool = False


class StorageAddressError(StorageError, ValueError):
    """The address of a store is not one."""


class AuthorityMissing(StorageMissing):
    """The servers hold a store, and the record that says which of them have all of it is not there."""


class StorageFenced(StorageError):
    """Another control service has taken the store over. This one must not go on."""


class StorageLost(StorageError):
    """Every server of a shard has lost its data. Going on would be to begin a new cluster in the place of this one."""


class ServerRefused(StorageError):
    """A Redis server cannot keep a part of the store as it is set up. `server` names it."""

    server: str = ""


class ServerEvicts(ServerRefused):
    """The server drops keys when its memory is full."""


class ServerRedirects(ServerRefused):
    """The server is part of a Redis Cluster, or a Sentinel."""


class ServerIsReplica(ServerRefused):
    """The server copies another one and takes no writes."""


class ServerNamedTwice(ServerRefused):
    """Two of the names that were given are one server."""


class ServerNotEmpty(ServerRefused):
    """The server holds data that Skate did not write."""


class ServerKeepsOut(ServerRefused):
    """The server does not accept the user and the password."""


class ServerLacksRights(ServerRefused):
    """The user may not run a command that is needed, or the server does not offer it."""


class ServerTooOld(ServerRefused):
    """The version of the server is below the lowest one that is supported."""
