"""The file of the SQLite engine: its schema, its checksums, and how large it becomes.

    rows("table", key, value, crc)     WITHOUT ROWID, so that a row is one entry of one tree
    table ""                           what the store knows about itself; see META

Owns:      the connection.
Knows not: threads, batches that wait, second attempts.
Invariant: `crc` is that of the table, the key and the value; every row is checked when the file is opened and whenever
           it is scanned. SQLite has no checksums of its own, so it would return changed bytes as they are.
           A changed row keeps a wrong checksum until it is overwritten or deleted: AppendAt carries it on.

All of SQLite is here, in the form in which `import skate` does not load it: only who opens a store imports this module.
"""

from __future__ import annotations

import os
import secrets
import shlex
import sqlite3
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from zlib import crc32

from skate._control import crash_points
from skate._control.storage.directory import explain, missing, sync_directory
from skate._control.storage.errors import (
    RowDamaged,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageGone,
    StorageNewer,
    StorageOfOtherCluster,
    StorageOfOtherProgram,
    StorageReadOnly,
    StorageUnavailable,
)
from skate._control.storage.interface import AppendAt, CompareAndSet, Delete, Meta, Operation, Put, TableSize

FILE_NAME = "control.sqlite3"
#: "SKTE", in the header of the file.
APPLICATION_ID = 0x534B5445
SCHEMA = 1
#: From each schema to the next one: what makes a file of version n one of version n+1.
MIGRATIONS: dict[int, Callable[[sqlite3.Connection], None]] = {}

#: The write-ahead log is cut to this after it has been copied into the file.
LOG_BYTES_MAX = 4 << 20
#: Free pages are given back to the disk when there are more than these, and more than this share of all.
FREE_PAGES_MIN = 256
FREE_SHARE_MAX = 0.25
#: Pages that are given back at a time, so that no batch waits long for it.
VACUUM_PAGES = 256
#: A scan reads this much at a time; between two reads batches can be written.
SCAN_ROWS = 1000
SCAN_BYTES = 4 << 20
#: Problems of the file's structure that are listed.
PROBLEMS_MAX = 100

META = ("cluster_id", "incarnation", "created_at")

_CREATE = """CREATE TABLE rows ("table" BLOB NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, crc INTEGER NOT NULL,
PRIMARY KEY ("table", key)) WITHOUT ROWID"""
_PUT = 'INSERT OR REPLACE INTO rows ("table", key, value, crc) VALUES (?, ?, ?, ?)'
_DELETE = 'DELETE FROM rows WHERE "table" = ? AND key = ?'
_GET = 'SELECT value, crc FROM rows WHERE "table" = ? AND key = ?'
_SCAN = 'SELECT key, value, crc FROM rows WHERE "table" = ? AND key >= ? ORDER BY key'
_ALL = 'SELECT "table", key, value, crc FROM rows ORDER BY "table", key'
_SIZES = 'SELECT "table", count(*), sum(length(key) + length(value)) FROM rows GROUP BY "table" ORDER BY "table"'
_NEXT_TABLE = 'SELECT "table" FROM rows WHERE "table" > ? ORDER BY "table" LIMIT 1'

_pack_lengths = struct.Struct("<II").pack


def checksum(table: bytes, key: bytes, value: bytes) -> int:
    """The value comes last, so that the checksum of a row that grows follows from the one before."""
    return crc32(value, crc32(_pack_lengths(len(table), len(key)) + table + key))


class StoreFile:
    """One at a time of a path: `Directory` sees to that. Used by one thread at a time."""

    def __init__(
        self,
        directory: str,
        *,
        cluster_id: str = "",
        synchronous: str = "FULL",
        must_exist: bool = False,
        inspect: bool = False,
        skip_damaged: bool = False,
        migrations: Mapping[int, Callable[[sqlite3.Connection], None]] = MIGRATIONS,
        schema: int = SCHEMA,
    ) -> None:
        self.path = os.path.join(directory, FILE_NAME)
        self._check_command = f"skate store check --store {shlex.quote(directory)}"
        self._skips = skip_damaged
        self._schema = schema
        #: The rows whose checksum is wrong, by table and key, if damaged rows are passed over.
        self.damaged: dict[tuple[bytes, bytes], RowDamaged] = {}
        #: What is wrong with the structure of the file, if damaged rows are passed over.
        self.problems: list[str] = []
        try:
            _make(self.path, must_exist=must_exist)
            self._identity = _identity(self.path)
            self._database = sqlite3.connect(self.path, timeout=0, isolation_level=None, check_same_thread=False)
        except OSError as error:
            raise explain(error, self.path) from error
        except sqlite3.Error as error:
            raise self.explain(error) from error
        try:
            self._open(synchronous, cluster_id, must_exist, inspect, migrations)
        except sqlite3.Error as error:
            self._database.close()
            raise self.explain(error) from error
        except BaseException:
            self._database.close()
            raise

    # -- opening ------------------------------------------------------------------------------------------------------

    def _open(
        self,
        synchronous: str,
        cluster_id: str,
        must_exist: bool,
        inspect: bool,
        migrations: Mapping[int, Callable[[sqlite3.Connection], None]],
    ) -> None:
        execute = self._database.execute
        # Before the file is looked at for the first time: then there is no shared memory beside it, and no other
        # program can read or write while it is open.
        execute("PRAGMA locking_mode = EXCLUSIVE")
        application, schema = self._pragma("application_id"), self._pragma("user_version")
        is_new = not application and not schema and not self._value("SELECT count(*) FROM sqlite_master")
        if is_new and must_exist:
            raise missing(self.path)
        if not is_new and application != APPLICATION_ID:
            raise StorageOfOtherProgram(
                f"The file {self.path} is not a store of Skate.",
                "It is an SQLite database that another program made.",
                "name another directory.",
            )
        if schema > self._schema:
            error = StorageNewer(
                f"The store {self.path} was written by a later version of Skate.",
                f"Its schema is number {schema}, and this version knows those up to {self._schema}.",
                "start that version of Skate or a later one.",
            )
            error.found, error.known = schema, self._schema
            raise error
        if is_new:
            execute("PRAGMA auto_vacuum = INCREMENTAL")
        execute("PRAGMA journal_mode = WAL")
        execute(f"PRAGMA synchronous = {synchronous}")
        execute(f"PRAGMA journal_size_limit = {LOG_BYTES_MAX}")
        if is_new:
            self._create(cluster_id)
            schema = self._schema
        self._check_structure()
        self._migrate(schema, migrations)
        self._check_rows()
        self.meta = self._read_meta() if inspect else self._count_opening(cluster_id)

    def _create(self, cluster_id: str) -> None:
        crash_points.reached("storage.before_create")
        with _Transaction(self._database) as database:
            database.execute(_CREATE)
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {self._schema}")
            self._write_meta(cluster_id or secrets.token_hex(8), 0, time.time())
        crash_points.reached("storage.after_create")

    def _check_structure(self) -> None:
        problems = [row[0] for row in self._database.execute(f"PRAGMA quick_check({PROBLEMS_MAX})")]
        if problems != ["ok"]:
            if not self._skips:
                raise self._corrupt(f"SQLite says: {problems[0]}.")
            self.problems = problems

    def _check_rows(self) -> None:
        """All of them: a damaged name of a table hides a row from those who know the right one."""
        for table, key, value, crc in self._database.execute(_ALL):
            self._is_whole(table, key, value, crc)

    def _is_whole(self, table: bytes, key: bytes, value: bytes, crc: int) -> bool:
        if checksum(table, key, value) == crc:
            return True
        name = table.decode(errors="backslashreplace")
        error = RowDamaged(
            f"A row of the store {self.path} is damaged: the key {key!r} of the table {name!r}.",
            "Its checksum does not fit its bytes, so they are not those that were written.",
            f"bring back a copy of the store; or let `{self._check_command}` list all damaged rows, and take them out "
            "with --remove, so that the cluster goes on without them.",
        )
        error.path, error.table, error.key = self.path, name, key
        if not self._skips:
            raise error
        self.damaged[table, key] = error
        return False

    def _migrate(self, schema: int, migrations: Mapping[int, Callable[[sqlite3.Connection], None]]) -> None:
        for version in range(schema, self._schema):
            with _Transaction(self._database) as database:
                migrations[version](database)
                database.execute(f"PRAGMA user_version = {version + 1}")

    def _count_opening(self, wanted: str) -> Meta:
        meta = self._read_meta()
        if wanted and meta.cluster_id != wanted:
            error = StorageOfOtherCluster(
                f"The store {self.path} belongs to another cluster.",
                f"It is that of cluster {meta.cluster_id}, and this is cluster {wanted}.",
                "name the directory of this cluster, or an empty one for a new cluster.",
            )
            error.found, error.wanted = meta.cluster_id, wanted
            raise error
        with _Transaction(self._database):
            self._write_meta(meta.cluster_id, meta.incarnation + 1, meta.created_at)
        return self._read_meta()

    def _read_meta(self) -> Meta:
        found = {key: value.decode() for key, value in self.read(b"", b"", b"")[0]}
        try:
            cluster_id, incarnation, created_at = (found[name.encode()] for name in META)
        except KeyError as error:
            raise self._corrupt(f"It does not say what its {error.args[0].decode()} is.") from error
        return Meta(cluster_id, int(incarnation), self._pragma("user_version"), float(created_at))

    def _write_meta(self, cluster_id: str, incarnation: int, created_at: float) -> None:
        for name, value in zip(META, (cluster_id, incarnation, created_at)):
            self._put(b"", name.encode(), str(value).encode())

    # -- writing ------------------------------------------------------------------------------------------------------

    def commit(self, batches: Sequence[Sequence[Operation]]) -> list[tuple[bool, ...]]:
        """Write batches in one transaction, and return their results when they are durable.

        Any sqlite3.Error leaves the file as it was.
        """
        with _Transaction(self._database):
            results = [tuple([self._apply(operation) for operation in batch]) for batch in batches]
            crash_points.reached("storage.before_commit")
        crash_points.reached("storage.after_commit")
        return results

    def _apply(self, operation: Operation) -> bool:
        table, key = operation.table.encode(), operation.key
        match operation:
            case Put():
                self._put(table, key, operation.value)
                return True
            case Delete():
                return self._database.execute(_DELETE, (table, key)).rowcount > 0
            case CompareAndSet():
                row = self._database.execute(_GET, (table, key)).fetchone()
                if (row[0] if row else None) != operation.expected:
                    return False
                if operation.value is None:
                    self._database.execute(_DELETE, (table, key))
                else:
                    self._put(table, key, operation.value)
                return True
            case AppendAt():
                value, crc = self._database.execute(_GET, (table, key)).fetchone() or (b"", checksum(table, key, b""))
                if len(value) != operation.length:
                    return False
                grown = (table, key, value + operation.value, crc32(operation.value, crc))
                self._database.execute(_PUT, grown)
                return True

    def _put(self, table: bytes, key: bytes, value: bytes) -> None:
        self._database.execute(_PUT, (table, key, value, checksum(table, key, value)))

    # -- reading ------------------------------------------------------------------------------------------------------

    def read(self, table: bytes, prefix: bytes, at: bytes) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Some rows from the key `at` on that begin with `prefix`, and the key to go on at; None if these are all."""
        rows: list[tuple[bytes, bytes]] = []
        seen = size = 0
        cursor = self._database.execute(_SCAN, (table, at))
        for key, value, crc in cursor:
            if not key.startswith(prefix):
                break
            if self._is_whole(table, key, value, crc):
                rows.append((key, value))
            seen, size = seen + 1, size + len(value)
            if seen == SCAN_ROWS or size > SCAN_BYTES:
                cursor.close()
                return rows, key + b"\0"
        cursor.close()
        return rows, None

    def tables(self) -> list[bytes]:
        """Their names, one step in the tree for each."""
        names: list[bytes] = []
        while row := self._database.execute(_NEXT_TABLE, (names[-1] if names else b"",)).fetchone():
            names.append(row[0])
        return names

    def sizes(self) -> dict[str, TableSize]:
        """How much each table holds, but for the one that is the store's own."""
        return {
            name.decode(errors="backslashreplace"): TableSize(rows, size_bytes)
            for name, rows, size_bytes in self._database.execute(_SIZES)
            if name
        }

    def size_bytes(self) -> int:
        """Of the file and its log, on disk."""
        total = 0
        for path in (self.path, f"{self.path}-wal"):
            try:
                total += os.stat(path).st_size
            except OSError:  # gone; the next commit says so
                pass
        return total

    def copy_to(self, directory: str) -> None:
        """Write all that was committed into a new file. It has its name when it is whole."""
        path = os.path.join(directory, FILE_NAME)
        part = f"{path}.part"
        if os.path.exists(path):
            raise StorageError(
                f"The store {self.path} cannot be copied to {directory}.",
                "There is a store already.",
                "name another directory.",
            )
        try:
            fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                self._database.execute("VACUUM INTO ?", (part,))
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(part, path)
            sync_directory(directory)
        except OSError as error:
            raise explain(error, path) from error
        except sqlite3.Error as error:
            raise self.explain(error) from error

    # -- size ---------------------------------------------------------------------------------------------------------

    def has_excess(self) -> bool:
        """Whether more of the file is free than may be."""
        free = self._pragma("freelist_count")
        return free > FREE_PAGES_MIN and free > FREE_SHARE_MAX * self._pragma("page_count")

    def shrink(self) -> None:
        """Give some free pages back to the disk."""
        self._database.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})").fetchall()
        if not self.has_excess():
            self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    # -- errors -------------------------------------------------------------------------------------------------------

    def check_place(self) -> None:
        """Raise StorageGone unless the path still names the file that is open: what is written elsewhere is lost."""
        try:
            if _identity(self.path) == self._identity:
                return
            why = "Another file has its name now."
        except OSError as error:
            why = f"The system says: {error.strerror}."
        raise StorageGone(
            f"The store {self.path} was removed while it was in use.",
            why,
            "move the directory back, with all that is in it. Until then the service runs with what it has in memory.",
        )

    def explain(self, error: sqlite3.Error) -> StorageError:
        code = _code_of(error)
        what, why = f"The store {self.path} cannot be written.", f"SQLite says: {error}."
        if code in (CORRUPT, NOT_A_DATABASE):
            return self._corrupt(why)
        if code == FULL:
            return StorageFull(what, why, "make room on that disk.")
        if code == READ_ONLY:
            return StorageReadOnly(what, why, "let the user that runs the service write the file and its directory.")
        if code in (BUSY, LOCKED):
            return StorageUnavailable(what, why, "end the program that has the file open, such as a database browser.")
        if code in (IO_ERROR, CANNOT_OPEN):
            return StorageUnavailable(what, why, "look at the disk and at the messages of the kernel.")
        return StorageError(what, why, "this is a bug in Skate; please report it.")

    def _corrupt(self, why: str) -> StorageCorrupt:
        error = StorageCorrupt(
            f"The store {self.path} is damaged.",
            why,
            f"bring back a copy of the whole directory; or let `{self._check_command}` list what can still be read, "
            "and `skate store dump` save it. To begin a new cluster, move the directory away.",
        )
        error.path = self.path
        return error

    def close(self) -> None:
        self._database.close()

    def _pragma(self, name: str) -> int:
        return self._value(f"PRAGMA {name}")

    def _value(self, query: str) -> int:
        value = self._database.execute(query).fetchone()[0]
        assert isinstance(value, int)
        return value


class _Transaction:
    """Commits at its end, or takes everything back. A commit that fails is taken back, too."""

    __slots__ = ("_database",)

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database

    def __enter__(self) -> sqlite3.Connection:
        self._database.execute("BEGIN IMMEDIATE")
        return self._database

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._database.execute("COMMIT")
        finally:
            if self._database.in_transaction:  # some errors end it by themselves
                self._database.execute("ROLLBACK")


def _make(path: str, *, must_exist: bool) -> None:
    """Make the file, readable by its user alone, unless it exists."""
    if must_exist and not os.path.exists(path):
        raise missing(path)
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return
    sync_directory(os.path.dirname(path))


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


# Primary result codes, https://www.sqlite.org/rescode.html. Python has names for them from 3.11 on.
BUSY, LOCKED, READ_ONLY, IO_ERROR, CORRUPT, FULL, CANNOT_OPEN, NOT_A_DATABASE = 5, 6, 8, 10, 11, 13, 14, 26

#: What SQLite calls them, for Python 3.10, whose errors have no code.
_TEXTS = {
    "database is locked": BUSY,
    "database table is locked": LOCKED,
    "attempt to write a readonly database": READ_ONLY,
    "disk I/O error": IO_ERROR,
    "database disk image is malformed": CORRUPT,
    "database or disk is full": FULL,
    "unable to open database file": CANNOT_OPEN,
    "file is not a database": NOT_A_DATABASE,
}


def _code_of(error: sqlite3.Error) -> int:
    """The primary result code of an error; 0 if it has none."""
    code = getattr(error, "sqlite_errorcode", None)
    return int(code) & 0xFF if code is not None else _TEXTS.get(str(error), 0)
