"""The authority as a file beside the head: who leads, and which servers have all of each shard.

    authority.json.part ──fsync──▶ rename ──▶ authority.json, fsync of the directory

One service at a time has the directory (`directory.py`: flock), so compare-and-set is a comparison under a lock.

Owns:      the file.
Invariant: what `change` has returned as changed survives power loss. The file is whole, or as it was before.
"""

from __future__ import annotations

import os
import threading

import msgspec

from skate._control.storage.directory import Directory, explain, sync_directory
from skate._control.storage.errors import StorageCorrupt
from skate._core.cluster.configuration import Changed, Configuration, Refused, compare_and_set

FILE_NAME = "authority.json"


class FileAuthority:
    #: The lock keeps others away, so there is nothing to look for.
    look_s = 0.0
    #: There are no voters.
    absent: tuple[str, ...] = ()

    def __init__(self, directory: str) -> None:
        """Take the directory. Raises StorageLocked if another service has it."""
        self._directory = Directory(directory)
        self.path = os.path.join(self._directory.path, FILE_NAME)
        self._lock = threading.Lock()
        try:
            self._present = read_record(self.path)
        except BaseException:
            self._directory.close()
            raise

    @property
    def name(self) -> str:
        return f"the file {self.path}"

    def find(self) -> Configuration | None:
        """None: no store was begun from this directory."""
        return self._present

    def begin(self, first: Configuration, *, adopts: bool = False) -> Configuration:
        """The first record, or the one that takes the place of one that was lost."""
        with self._lock:
            self._save(first)
        return first

    def read(self) -> Configuration:
        assert self._present is not None
        return self._present

    def change(self, expected: Configuration, new: Configuration) -> Changed | Refused:
        with self._lock:
            assert self._present is not None, "a store is begun before it is changed"
            answer = compare_and_set(self._present, expected, new)
            if isinstance(answer, Changed) and answer.configuration != self._present:
                self._save(answer.configuration)
            return answer

    def _save(self, configuration: Configuration) -> None:
        part = f"{self.path}.part"
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                data = msgspec.json.encode(configuration)
                while data:
                    data = data[os.write(fd, data) :]
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(part, self.path)
            sync_directory(self._directory.path)
        except OSError as error:
            raise explain(error, self.path) from error
        self._present = configuration

    def close(self) -> None:
        self._directory.close()


def read_record(path: str) -> Configuration | None:
    """What an authority has noted; None if there is no file."""
    try:
        with open(path, "rb") as file:
            return msgspec.json.decode(file.read(), type=Configuration)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise explain(error, path) from error
    except msgspec.MsgspecError as error:
        raise StorageCorrupt(
            f"The file {path} is damaged.",
            f"It says which servers have all of the store, and cannot be read: {error}.",
            "bring back a copy; or move it away and adopt the store, for which all of its servers have to answer.",
        ) from error
