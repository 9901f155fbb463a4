"""Opening the store of a control service: of a cluster that goes on, or of a new one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from skate._control.state.tables import CLUSTER, pack, unpacked
from skate._control.storage.errors import StorageError

if TYPE_CHECKING:
    from skate._control.config import StoreConfig
    from skate._control.storage.interface import Storage


#: How long a store that is marked may take to be written.
FLUSH_S = 5.0


class ClusterEnded(StorageError):
    """The cluster that a service was to go on with is over."""


def open_store(config: StoreConfig, port: int) -> Storage:
    """The store that was asked for. One whose cluster has ended is emptied, and a new cluster begins.

    With `must_exist` a new cluster never begins: the service goes on with one, or says why it cannot.

    Raises StorageError.
    """
    path = path_of(config, port)
    if config.fresh:
        remove_store(path)
    storage = _opened(config, path, port)
    try:
        why = ended(storage)
        if why and config.must_exist:
            raise ClusterEnded(f"The cluster of the store {path} is over.", f"Its store says: {why}.")
    except BaseException:
        storage.close()
        raise
    if why:
        storage.close()
        if config.is_redis:
            _wipe(config, path)
        else:
            remove_store(path)
        storage = _opened(config, path, port)
    return storage


def _opened(config: StoreConfig, path: str, port: int) -> Storage:
    if config.is_redis:
        from skate._control.storage.opening import open_storage

        return open_storage(config.address, directory=path, cluster_id=config.cluster_id, must_exist=config.must_exist)
    from skate._control.storage.sqlite import SqliteStorage

    return SqliteStorage(
        path,
        config.cluster_id,
        durability="normal" if config.durability == "normal" else "full",
        must_exist=config.must_exist,
        holder=f"the control service at port {port}",
    )


def _wipe(config: StoreConfig, path: str) -> None:
    """Remove a store from its Redis servers."""
    from skate._control.storage.redis.connection.address import parse
    from skate._control.storage.redis.offline import wipe

    wipe(parse(config.address), path)


def path_of(config: StoreConfig, port: int) -> str:
    """The directory of a store: all of it, or what a store on Redis servers notes on the machine of the head."""
    in_parent = os.path.join(config.parent, str(port))
    return os.path.expanduser(in_parent if config.is_redis else config.address or in_parent)


def ended(storage: Storage) -> str:
    """Why the cluster of that store is over; empty if it is not. Raises RowUnreadable."""
    return next((row.ended for _, row in unpacked(CLUSTER, storage.scan(CLUSTER))), "")


def mark_ended(path: str, reason: str) -> None:
    """The cluster of the store in a directory is over, and its service could not say so. Raises StorageError."""
    from skate._control.storage.interface import Put
    from skate._control.storage.sqlite import SqliteStorage
    from skate._control.storage.sqlite_file import FILE_NAME

    if not os.path.exists(os.path.join(path, FILE_NAME)):
        return
    storage = SqliteStorage(path, must_exist=True, holder="`skate stop`")
    try:
        for key, about in list(unpacked(CLUSTER, storage.scan(CLUSTER))):
            if not about.ended:
                about.ended = reason
                storage.write([Put(CLUSTER, key, pack(about))])
        if not storage.flush(FLUSH_S) and storage.trouble is not None:
            raise storage.trouble.error
    finally:
        storage.close()


def remove_store(path: str) -> None:
    """Remove a store. Raises StorageLocked if a service has it."""
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
