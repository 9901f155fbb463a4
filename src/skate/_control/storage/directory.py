"""The directory of a store on this machine: made so that a power loss does not unmake it, and used by one service.

Owns:      the lock file, which names the process that has the store.
Invariant: while a Directory is open no other one of the same path is, in this process or another.

The lock is a `flock` and not the file: the kernel lets it go when the process ends, however it ends. A child that is
forked without exec keeps it, so the service starts its children with exec.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import sys

import msgspec

from skate._control.storage.errors import (
    StorageFull,
    StorageLocked,
    StorageMissing,
    StorageReadOnly,
    StorageUnavailable,
)

LOCK_NAME = "lock"
#: Bytes of the lock file that are read, and of the command line in it.
LOCK_BYTES_MAX = 4096
COMMAND_MAX = 200


class _Holder(msgspec.Struct):
    """What the lock file says of the process that has it."""

    pid: int = 0
    host: str = ""
    command: str = ""


def sync_directory(path: str) -> None:
    """Make the names in a directory survive power loss."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def explain(error: OSError, path: str) -> StorageUnavailable:
    """An error of the file system as one of a storage."""
    what = f"The store {path} cannot be written."
    why = f"The system says: {error.strerror or error}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageFull(what, why, "make room on that disk, or name a directory on another one.")
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return StorageUnavailable(
            what, "There is a file where a directory should be.", "name a directory, or remove that file."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StorageReadOnly(
            what, why, "let the user that runs the service write the directory, or name another directory."
        )
    return StorageUnavailable(
        what, why, "look at the disk and at the messages of the kernel, or name another directory."
    )


class Directory:
    def __init__(self, path: str, *, must_exist: bool = False, holder: str = "") -> None:
        """Make the directory if need be, and take its lock. holder: what the process is, for others that want it."""
        self.path = os.path.abspath(path)
        self._holder = holder or " ".join(sys.orig_argv)
        if must_exist and not os.path.isdir(self.path):
            raise missing(self.path)
        try:
            _make(self.path)
            self._lock_fd = os.open(
                os.path.join(self.path, LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError as error:
            raise explain(error, self.path) from error
        try:
            self._lock()
        except BaseException:
            os.close(self._lock_fd)
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise self._locked() from error
        except OSError as error:
            raise explain(error, self.path) from error
        command = self._holder[:COMMAND_MAX]
        try:
            os.ftruncate(self._lock_fd, 0)
            os.pwrite(self._lock_fd, msgspec.json.encode(_Holder(os.getpid(), socket.gethostname(), command)), 0)
        except OSError:
            pass  # A full disk: the lock holds, and only its text is missing.

    def _locked(self) -> StorageLocked:
        try:
            holder = msgspec.json.decode(os.pread(self._lock_fd, LOCK_BYTES_MAX, 0), type=_Holder)
        except msgspec.MsgspecError:
            holder = _Holder()
        who = f"process {holder.pid} on {holder.host} ({holder.command})" if holder.pid else "another process"
        error = StorageLocked(
            f"The store {self.path} is in use.",
            f"It belongs to {who}, and one service at a time may have it.",
            "end that process, or name another directory.",
        )
        error.pid, error.host, error.command = holder.pid, holder.host, holder.command
        return error

    def close(self) -> None:
        """Let the lock go. The file stays: who removes it may remove the lock of the next one."""
        if self._lock_fd >= 0:
            try:
                os.ftruncate(self._lock_fd, 0)
            except OSError:
                pass
            os.close(self._lock_fd)
            self._lock_fd = -1


def missing(path: str) -> StorageMissing:
    return StorageMissing(
        f"There is no store in {path}.",
        "This service goes on with a cluster that exists, and everything it knows should be there.",
        "bring the directory back (a disk that is not mounted, a copy), or begin a new cluster with an empty store.",
    )


def _make(path: str) -> None:
    """Make a directory and those above it, each of them durable."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    _make(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    sync_directory(parent)
