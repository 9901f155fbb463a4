"""What only the SQLite engine has: a file that can be damaged, full, too new or somebody else's, and a lock."""

from __future__ import annotations

import os
import pickle
import select
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from skate._control.storage import sqlite_file
from skate._control.storage.errors import (
    RowDamaged,
    StorageClosed,
    StorageCorrupt,
    StorageError,
    StorageFull,
    StorageGone,
    StorageLocked,
    StorageMissing,
    StorageNewer,
    StorageOfOtherCluster,
    StorageOfOtherProgram,
    StorageReadOnly,
    StorageUnavailable,
)
from skate._control.storage.interface import AppendAt, CompareAndSet, Delete, Put, Trouble
from skate._control.storage.sqlite import SqliteStorage
from skate._control.storage.sqlite_file import FILE_NAME, StoreFile, checksum
from waiting import wait_for

WITHIN_S = 20.0
#: The engine tries again when it is told to.
NEVER_S = (1e6, 1e6)


@contextmanager
def opened(folder: Path, cluster_id: str = "", **options: Any) -> Iterator[SqliteStorage]:
    storage = SqliteStorage(folder, cluster_id, **options)
    try:
        yield storage
    finally:
        storage.close()


def fill(folder: Path, rows: int = 20, cluster_id: str = "") -> None:
    with opened(folder, cluster_id) as storage:
        for first in range(0, rows, 200):
            numbers = range(first, min(first + 200, rows))
            storage.write([Put("t", b"key-%d" % number, b"value-%d" % number) for number in numbers], lazy=True)
        assert storage.flush(WITHIN_S)


def change(folder: Path, old: bytes, new: bytes) -> None:
    """What a disk does that returns other bytes than were written."""
    file = folder / FILE_NAME
    content = file.read_bytes()
    assert content.count(old) == 1
    file.write_bytes(content.replace(old, new))


def wait_for_trouble(storage: SqliteStorage, attempts: int = 1) -> Trouble:
    while storage.trouble is None or storage.trouble.attempts < attempts:
        assert select.select([storage.fileno()], [], [], WITHIN_S)[0], "trouble makes the descriptor readable"
        assert storage.completed() == [], "nothing is acknowledged"
    return storage.trouble


# -- damage -----------------------------------------------------------------------------------------------------------


def test_a_changed_value_is_found_when_the_store_is_opened(tmp_path: Path) -> None:
    fill(tmp_path)
    change(tmp_path, b"value-7", b"value-8")
    with pytest.raises(RowDamaged, match=r"key b'key-7' of the table 't'") as damaged:
        SqliteStorage(tmp_path)
    assert (damaged.value.table, damaged.value.key) == ("t", b"key-7")
    assert damaged.value.path == str(tmp_path / FILE_NAME)
    SqliteStorage(tmp_path, skip_damaged=True).close()  # an error lets the lock go


@pytest.mark.parametrize(
    ("old", "new"), [(b"tkey-7value-7", b"tkey-Zvalue-7"), (b"tkey-7value-7", b"\xffkey-7value-7")]
)
def test_a_changed_key_or_table_is_found(tmp_path: Path, old: bytes, new: bytes) -> None:
    fill(tmp_path)
    change(tmp_path, old, new)
    with pytest.raises(RowDamaged):
        SqliteStorage(tmp_path)


def test_damaged_rows_can_be_passed_over_and_are_listed(tmp_path: Path) -> None:
    fill(tmp_path)
    change(tmp_path, b"value-7", b"value-8")
    change(tmp_path, b"value-9", b"value-Z")
    with opened(tmp_path, skip_damaged=True) as storage:
        assert [(error.table, error.key) for error in storage.damaged] == [("t", b"key-7"), ("t", b"key-9")]
        assert storage.problems == []
        keys = [key for key, _ in storage.scan("t")]
        assert len(keys) == 18
        assert b"key-7" not in keys


def test_a_damaged_row_stays_damaged_until_it_is_overwritten(tmp_path: Path) -> None:
    fill(tmp_path)
    change(tmp_path, b"value-7", b"value-8")
    with opened(tmp_path, skip_damaged=True) as storage:
        storage.write([AppendAt("t", b"key-7", 7, b"more")])
        assert storage.flush(WITHIN_S)
    with pytest.raises(RowDamaged):
        SqliteStorage(tmp_path)
    with opened(tmp_path, skip_damaged=True) as storage:
        storage.write([Put("t", b"key-7", b"known again")])
        assert storage.flush(WITHIN_S)
    with opened(tmp_path) as storage:
        assert dict(storage.scan("t", b"key-7")) == {b"key-7": b"known again"}


def test_a_row_that_grew_has_the_checksum_of_the_whole(tmp_path: Path) -> None:
    with opened(tmp_path) as storage:
        for length in range(0, 300, 3):
            storage.write([AppendAt("t", b"log", length, b"abc")])
        storage.write([CompareAndSet("t", b"log", b"abc" * 100, b"short")])
        storage.write([AppendAt("t", b"log", 5, b"er")])
    with opened(tmp_path) as storage:
        assert list(storage.scan("t")) == [(b"log", b"shorter")]
    assert checksum(b"a", b"bc", b"") != checksum(b"ab", b"c", b""), "it tells a table from a key"


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_file_that_was_cut_off_is_not_taken_for_a_new_one(tmp_path: Path, size: int) -> None:
    fill(tmp_path, rows=200)
    os.truncate(tmp_path / FILE_NAME, size)
    with pytest.raises((StorageCorrupt, StorageMissing)) as error:
        SqliteStorage(tmp_path, must_exist=True)
    assert str(tmp_path) in str(error.value)
    assert error.value.next, "it says the way out"


def test_a_file_that_is_no_database_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"no database at all" * 1000)
    with pytest.raises(StorageCorrupt) as error:
        SqliteStorage(tmp_path)
    assert error.value.path == str(tmp_path / FILE_NAME)
    assert "copy of the whole directory" in error.value.next


def test_a_damaged_structure_is_found_when_the_store_is_opened(tmp_path: Path) -> None:
    fill(tmp_path, rows=200)
    file = tmp_path / FILE_NAME
    content = bytearray(file.read_bytes())
    content[4096 * 3 :] = b"\x05" * (len(content) - 4096 * 3)
    file.write_bytes(content)
    with pytest.raises(StorageCorrupt):
        SqliteStorage(tmp_path)


# -- whose store it is ------------------------------------------------------------------------------------------------


def test_a_store_has_a_cluster_and_counts_its_services(tmp_path: Path) -> None:
    for incarnation in (1, 2, 3):
        with opened(tmp_path) as storage:
            assert storage.meta.incarnation == incarnation
            cluster_id = storage.meta.cluster_id
    with opened(tmp_path, cluster_id) as storage:
        assert storage.meta.cluster_id == cluster_id


def test_the_store_of_another_cluster_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, cluster_id="ours")
    with pytest.raises(StorageOfOtherCluster) as error:
        SqliteStorage(tmp_path, "theirs")
    assert (error.value.found, error.value.wanted) == ("ours", "theirs")
    with opened(tmp_path, "ours") as storage:
        assert storage.meta.incarnation == 2, "who was refused is not counted"


def test_looking_at_a_store_changes_nothing(tmp_path: Path) -> None:
    fill(tmp_path, cluster_id="ours")
    with opened(tmp_path, inspect=True) as storage:
        assert storage.meta.incarnation == 1
        assert len(list(storage.scan("t"))) == 20
        with pytest.raises(StorageReadOnly):
            storage.write([Delete("t", b"key-1")])
    with opened(tmp_path) as storage:
        assert storage.meta.incarnation == 2


def test_a_store_that_should_exist_is_not_made(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(StorageMissing):
            SqliteStorage(folder, must_exist=True)
    assert not (tmp_path / "none").exists()
    assert not (tmp_path / FILE_NAME).exists()


def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / FILE_NAME)
    other.execute("CREATE TABLE theirs (a)")
    other.close()
    with pytest.raises(StorageOfOtherProgram):
        SqliteStorage(tmp_path)


def test_the_store_of_a_later_version_is_refused(tmp_path: Path) -> None:
    fill(tmp_path)
    later = sqlite3.connect(tmp_path / FILE_NAME)
    later.execute("PRAGMA user_version = 7")
    later.close()
    with pytest.raises(StorageNewer) as error:
        SqliteStorage(tmp_path)
    assert (error.value.found, error.value.known) == (7, sqlite_file.SCHEMA)


def test_the_store_of_an_earlier_version_is_migrated_step_by_step(tmp_path: Path) -> None:
    fill(tmp_path)
    steps: list[int] = []

    def fail(database: sqlite3.Connection) -> None:
        database.execute("DELETE FROM rows")
        raise sqlite3.OperationalError("database or disk is full")

    for last in (fail, lambda database: steps.append(3)):
        migrations = {1: lambda database: steps.append(1), 2: lambda database: steps.append(2), 3: last}
        try:
            file = StoreFile(str(tmp_path), migrations=migrations, schema=4)
        except StorageError:
            assert steps == [1, 2], "the last one failed, and was taken back"
        else:
            assert steps == [1, 2, 3], "it goes on where it ended"
            assert file.meta.schema == 4
            assert len(file.read(b"t", b"", b"")[0]) == 20
            file.close()


def test_only_its_user_can_read_a_store(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "store"
    storage = SqliteStorage(folder)
    storage.write([Put("t", b"k", b"")])
    assert storage.flush(WITHIN_S)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [folder, *folder.iterdir()]}
    assert modes == {"store": 0o700, FILE_NAME: 0o600, f"{FILE_NAME}-wal": 0o600, "lock": 0o600}
    storage.close()


def test_a_copy_is_a_store_of_the_same_cluster(tmp_path: Path) -> None:
    fill(tmp_path / "store", cluster_id="ours")
    with opened(tmp_path / "store") as storage:
        storage.copy_to(tmp_path / "copy")
        with pytest.raises(StorageError, match="There is a store already"):
            storage.copy_to(tmp_path / "copy")
        with pytest.raises(StorageLocked):
            storage.copy_to(tmp_path / "store")
    with opened(tmp_path / "copy", "ours", must_exist=True) as copy:
        assert len(list(copy.scan("t"))) == 20
        assert copy.meta.incarnation == 3
        assert copy._file._pragma("auto_vacuum") == 2, "it can become smaller, too"


def test_a_store_whose_directory_was_deleted_can_be_copied_back(tmp_path: Path) -> None:
    with opened(tmp_path / "store", retry_s=NEVER_S) as storage:
        storage.write([Put("t", b"k", b"acknowledged")])
        assert storage.flush(WITHIN_S)
        storage.completed()
        shutil.rmtree(tmp_path / "store")
        storage.write([Put("t", b"later", b"")])
        assert "No such file or directory" in str(wait_for_trouble(storage).error)
        storage.copy_to(tmp_path / "store")
    with opened(tmp_path / "store") as storage:
        assert list(storage.scan("t")) == [(b"k", b"acknowledged")]


# -- the lock ---------------------------------------------------------------------------------------------------------

HOLDER = """
import sys
from skate._control.storage.sqlite import SqliteStorage
storage = SqliteStorage(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_one_service_at_a_time_and_the_error_names_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(StorageLocked, match=f"process {holder.pid} on ") as locked:
            SqliteStorage(tmp_path)
        assert locked.value.pid == holder.pid
        assert "-c" in locked.value.command
        holder.kill()
    with opened(tmp_path) as storage, pytest.raises(StorageLocked) as locked:
        SqliteStorage(storage._directory.path)
    assert locked.value.pid == os.getpid(), "a process locks itself out, too"


# -- what cannot be written -------------------------------------------------------------------------------------------


def test_a_full_disk_keeps_batches_until_there_is_room(small_disk: Path) -> None:
    with opened(small_disk, retry_s=NEVER_S) as storage:
        storage.write([Put("t", b"first", b"acknowledged")])
        assert storage.flush(WITHIN_S)
        assert [done.error for done in storage.completed()] == [None]
        (small_disk / "ballast").write_bytes(bytes(1700 << 10))
        storage.write([AppendAt("t", b"small", 0, b"1"), Put("t", b"large", bytes(400 << 10))])
        trouble = wait_for_trouble(storage)
        assert isinstance(trouble.error, StorageFull)
        assert str(small_disk) in str(trouble.error)
        assert dict(storage.scan("t")) == {b"first": b"acknowledged"}, "what is not acknowledged cannot be seen"
        assert not storage.flush(0.0)
        again = wait_for_trouble(storage, attempts=2)
        assert again.since == trouble.since
        (small_disk / "ballast").unlink()
        storage.write([AppendAt("t", b"small", 1, b"2")], lazy=True)
        assert storage.flush(WITHIN_S)
        ended = [(done.number, done.results) for done in storage.completed()]
        assert ended == [(2, (True, True)), (3, (True,))], "of the first attempts nothing was left"
        assert storage.trouble is None
    with opened(small_disk) as storage:
        assert dict(storage.scan("t", b"small")) == {b"small": b"12"}
        assert {key for key, _ in storage.scan("t")} == {b"first", b"large", b"small"}


def test_after_trouble_one_batch_goes_first_and_the_others_together(tmp_path: Path) -> None:
    with opened(tmp_path / "store", retry_s=NEVER_S) as storage:
        (tmp_path / "store").rename(tmp_path / "elsewhere")
        for number in range(20):
            storage.write([Put("t", bytes([number]), b"")])
        wait_for_trouble(storage)
        before = storage.statistics()["transactions"]
        (tmp_path / "elsewhere").rename(tmp_path / "store")
        assert storage.flush(WITHIN_S)
        assert storage.statistics()["transactions"] == before + 2
        assert [done.number for done in storage.completed()] == list(range(1, 21))


def test_the_engine_tries_again_by_itself(tmp_path: Path) -> None:
    with opened(tmp_path / "store", retry_s=(0.001, 0.002)) as storage:
        (tmp_path / "store").rename(tmp_path / "elsewhere")
        storage.write([Put("t", b"k", b"")])
        assert isinstance(wait_for_trouble(storage, attempts=4).error, StorageGone)
        (tmp_path / "elsewhere").rename(tmp_path / "store")
        ended = []
        while not ended:
            assert select.select([storage.fileno()], [], [], WITHIN_S)[0]
            ended = storage.completed()
        assert (ended[0].results, storage.trouble) == ((True,), None)


def test_closing_in_trouble_says_what_was_not_written(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "store", retry_s=NEVER_S)
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    storage.write([Put("t", b"k", b"")])
    storage.write([Put("t", b"k", b"")], lazy=True)
    wait_for_trouble(storage)
    storage.close()
    assert [(done.number, type(done.error)) for done in storage.completed()] == [(1, StorageClosed), (2, StorageClosed)]


def test_another_file_in_the_place_of_the_store_is_not_written(tmp_path: Path) -> None:
    with opened(tmp_path / "store", retry_s=NEVER_S) as storage:
        (tmp_path / "store").rename(tmp_path / "elsewhere")
        fill(tmp_path / "store")
        storage.write([Put("t", b"k", b"")])
        assert "Another file has its name now" in str(wait_for_trouble(storage).error)


LIMITED = """
import resource, sys
from skate._control.storage.sqlite import SqliteStorage
from skate._control.storage.interface import AppendAt, Put
storage = SqliteStorage(sys.argv[1], retry_s=(1e6, 1e6))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
storage.write([AppendAt("t", b"small", 0, b"1"), Put("t", b"large", bytes(200_000))])
while storage.trouble is None:
    storage.flush(0.01)
assert storage.completed() == []
print(type(storage.trouble.error).__name__)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert storage.flush(20.0)
assert [done.results for done in storage.completed()] == [(True, True)], "of the first attempts nothing was left"
assert storage.trouble is None
storage.close()
"""


def test_an_error_of_the_disk_keeps_batches_until_it_is_over(tmp_path: Path) -> None:
    """A limit on the size of files makes writes fail in their midst; to SQLite that is an error of the disk."""
    child = [sys.executable, "-c", LIMITED, str(tmp_path)]
    assert subprocess.run(child, check=True, stdout=subprocess.PIPE).stdout == b"StorageUnavailable\n"
    with opened(tmp_path) as storage:
        assert dict(storage.scan("t")) == {b"large": bytes(200_000), b"small": b"1"}


def test_a_directory_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    fill(folder)
    if os.geteuid():
        folder.chmod(0o500)
        (folder / "lock").chmod(0o400)
    else:
        mount = ["mount", "-t", "tmpfs", "-o", "ro", "none", str(folder)]
        if subprocess.run(mount, capture_output=True, check=False).returncode:
            pytest.skip("this user may write everywhere, and may not mount")
    try:
        with pytest.raises(StorageReadOnly, match="cannot be written") as error:
            SqliteStorage(folder)
        assert str(folder) in str(error.value)
    finally:
        if os.geteuid():
            folder.chmod(0o700)
        else:
            subprocess.run(["umount", str(folder)], check=True)


def test_damage_that_is_met_while_writing_ends_the_engine(tmp_path: Path) -> None:
    """The tree is larger than what SQLite keeps in memory, so some of it is read again."""
    file = tmp_path / FILE_NAME
    with opened(tmp_path) as storage:
        for number in range(8):
            storage.write([Put("t", bytes([number]), bytes(1 << 20))], lazy=True)
    storage = SqliteStorage(tmp_path)
    with file.open("r+b") as content:
        content.seek(4096 * 2)
        content.write(b"\x05" * (file.stat().st_size - 4096 * 2))
    storage.write([Delete("t", bytes([number])) for number in range(8)])
    storage.write([Put("t", b"later", b"")])
    assert storage.flush(WITHIN_S)
    ended = [(done.number, done.results, type(done.error)) for done in storage.completed()]
    assert ended == [(1, (), StorageCorrupt), (2, (), StorageCorrupt)]
    with pytest.raises(StorageCorrupt):
        storage.write([])
    storage.close()


# -- commits and size -------------------------------------------------------------------------------------------------


def test_what_waits_is_committed_together(tmp_path: Path) -> None:
    with opened(tmp_path, lazy_s=float("inf")) as storage:
        for number in range(500):
            storage.write([Put("t", number.to_bytes(2, "big"), b"")], lazy=True)
        # Time for the thread to do what it should not. However slow the machine is, nothing comes.
        assert not select.select([storage.fileno()], [], [], 0.05)[0]
        assert storage.statistics()["transactions"] == 0
        assert storage.statistics()["waiting"] == 500
        storage.write([Put("t", b"now", b"")])
        assert storage.flush(WITHIN_S)
        assert storage.statistics()["transactions"] == 1
        assert len(storage.completed()) == 501


@pytest.mark.parametrize(("durability", "level"), [("full", 2), ("normal", 1)])
def test_the_file_is_opened_as_it_was_promised(tmp_path: Path, durability: Any, level: int) -> None:
    with opened(tmp_path, durability=durability) as storage:
        pragma = {
            name: storage._file._database.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("journal_mode", "synchronous", "locking_mode", "auto_vacuum", "journal_size_limit")
        }
    assert pragma == {
        "journal_mode": "wal",
        "synchronous": level,
        "locking_mode": "exclusive",
        "auto_vacuum": 2,
        "journal_size_limit": sqlite_file.LOG_BYTES_MAX,
    }


def test_the_file_becomes_smaller_when_rows_are_deleted(tmp_path: Path) -> None:
    rows, size = 64, 64 << 10
    with opened(tmp_path, durability="normal") as storage:
        for number in range(rows):
            storage.write([Put("t", bytes([number]), bytes(size))])
        assert storage.flush(WITHIN_S)
        storage.write([Delete("t", bytes([number])) for number in range(rows)])
        assert storage.flush(WITHIN_S)
        file = tmp_path / FILE_NAME
        wait_for(lambda: file.stat().st_size < 2 << 20, WITHIN_S, "an idle engine to give pages back to the disk")


def test_a_log_that_was_large_is_cut(tmp_path: Path) -> None:
    with opened(tmp_path, durability="normal") as storage:
        for number in range(40):
            storage.write([Put("t", bytes([number % 4]), bytes(1 << 20))])
            assert storage.flush(WITHIN_S)
            storage.completed()
        # One row more than what starts the copying.
        assert os.path.getsize(tmp_path / f"{FILE_NAME}-wal") < sqlite_file.LOG_BYTES_MAX + (3 << 20)


# -- errors -----------------------------------------------------------------------------------------------------------


def kinds(kind: type[StorageError]) -> Iterator[type[StorageError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from kinds(child)


@pytest.mark.parametrize("kind", list(kinds(StorageError)))
def test_every_error_survives_pickling(kind: type[StorageError]) -> None:
    error = kind("It happened.", "Because.", "do this.")
    error.__dict__["path"] = "/somewhere"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error) == "It happened.\n  why:  Because.\n  next: do this."
    assert copy.__dict__ == error.__dict__


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("database or disk is full", StorageFull),
        ("disk I/O error", StorageUnavailable),
        ("attempt to write a readonly database", StorageReadOnly),
        ("database is locked", StorageUnavailable),
        ("database disk image is malformed", StorageCorrupt),
        ("file is not a database", StorageCorrupt),
        ("no such table: rows", StorageError),
    ],
)
def test_errors_of_sqlite_are_told_apart_by_their_text_too(tmp_path: Path, text: str, kind: type[StorageError]) -> None:
    """Before Python 3.11 they have no code."""
    file = StoreFile(str(tmp_path))
    assert type(file.explain(sqlite3.OperationalError(text))) is kind
    file.close()
