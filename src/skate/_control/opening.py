"""Opening the store of a control service: of a cluster that goes on, or of a new one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from skate._control.state.tables import CLUSTER, ClusterRow, pack, unpacker

if TYPE_CHECKING:
    from skate._control.config import StoreConfig
    from skate._control.storage.interface import Storage


#: How long a store that is marked may take to be written.
FLUSH_S = 5.0


def open_store(config: StoreConfig, port: int) -> Storage:
    """The store that was asked for. One whose cluster has ended is emptied: a new cluster begins.

    Raises StorageError.
    """
    from skate._control.storage.sqlite import SqliteStorage

    path = os.path.expanduser(config.address or os.path.join(config.parent, str(port)))
    durability = "normal" if config.durability == "normal" else "full"
    if config.fresh:
        _empty(path)
    storage = SqliteStorage(path, durability=durability)  # type: ignore[arg-type]
    if ended(storage):
        storage.close()
        _empty(path)
        storage = SqliteStorage(path, durability=durability)  # type: ignore[arg-type]
    return storage


def ended(storage: Storage) -> str:
    """Why the cluster of that store is over; empty if it is not."""
    unpack = unpacker(ClusterRow)
    return next((unpack(row).ended for _, row in storage.scan(CLUSTER)), "")


def mark_ended(path: str, reason: str) -> None:
    """The cluster of the store in a directory is over, and its service could not say so. Raises StorageError."""
    from skate._control.storage.interface import Put
    from skate._control.storage.sqlite import SqliteStorage

    if not os.path.isdir(path):
        return
    storage = SqliteStorage(path, must_exist=True)
    try:
        for key, row in list(storage.scan(CLUSTER)):
            about = unpacker(ClusterRow)(row)
            if not about.ended:
                about.ended = reason
                storage.write([Put(CLUSTER, key, pack(about))])
        storage.flush(FLUSH_S)
    finally:
        storage.close()


def _empty(path: str) -> None:
    """Remove a store that no service has."""
    from skate._control.storage.directory import Directory
    from skate._control.storage.sqlite_file import FILE_NAME

    if not os.path.isdir(path):
        return
    directory = Directory(path)  # locked: no service has it, and none takes it meanwhile
    try:
        for name in os.listdir(path):
            if name.startswith(FILE_NAME):
                os.unlink(os.path.join(path, name))
    finally:
        directory.close()
