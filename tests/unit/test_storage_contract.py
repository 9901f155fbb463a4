"""The contract of a storage: the same for every engine.

An engine is one fixture, `Engine`: how it is opened, and whether it remembers. Another one needs a line in ENGINES.
"""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import redis_servers
from skate._control.storage.admission import (
    BATCH_BYTES_MAX,
    OPERATIONS_MAX,
    ROW_BYTES_MAX,
    TABLE_BYTES_MAX,
    Admission,
)
from skate._control.storage.errors import BatchRefused, StorageBusy, StorageClosed, StorageError
from skate._control.storage.interface import AppendAt, CompareAndSet, Delete, Done, Operation, Put, Storage
from skate._control.storage.memory import MemoryStorage, after
from skate._control.storage.redis.connection.address import parse
from skate._control.storage.redis.store import RedisStorage
from skate._control.storage.sharded import ShardedStorage
from skate._control.storage.slots import Layout
from skate._control.storage.sqlite import SqliteStorage

CLUSTER = "c0ffee"
#: Far more than anything takes that is asked for.
WITHIN_S = 20.0

Open = Callable[..., Storage]


@dataclass(frozen=True)
class Engine:
    """How to open a store in a folder, which may have been open before."""

    open: Open
    is_durable: bool


def memory(folder: Path, **options: Any) -> Storage:
    options.pop("lazy_s", None)
    return MemoryStorage(CLUSTER, **options)


def sqlite(folder: Path, **options: Any) -> Storage:
    return SqliteStorage(folder, CLUSTER, **options)


def sharded(engine: Open, count: int) -> Open:
    def open_all(folder: Path, admission: Admission | None = None, **options: Any) -> Storage:
        shards = [engine(folder / f"shard-{number}", **options) for number in range(count)]
        return ShardedStorage(shards, admission=admission)

    return open_all


POOL = redis_servers.Pool()


@pytest.fixture(scope="module", autouse=True)
def _servers_end() -> Iterator[None]:
    yield
    POOL.end()


def redis(kind: str, shards: int, members: int) -> Engine:
    """Servers that all tests share. A folder that is new gets them empty."""
    addresses: dict[Path, str] = {}

    def open_there(folder: Path, **options: Any) -> Storage:
        if folder not in addresses:
            servers = POOL.take(kind, shards * members)
            chains = [servers[at : at + members] for at in range(0, len(servers), members)]
            addresses.clear()
            addresses[folder] = redis_servers.address(*chains)
        return RedisStorage(parse(addresses[folder]), folder, CLUSTER, **options)

    return Engine(open_there, is_durable=True)


ENGINES = {
    "memory": Engine(memory, is_durable=False),
    "memory, 1 shard": Engine(sharded(memory, 1), is_durable=False),
    "memory, 4 shards": Engine(sharded(memory, 4), is_durable=False),
    "sqlite": Engine(sqlite, is_durable=True),
    "sqlite, 4 shards": Engine(sharded(sqlite, 4), is_durable=True),
}
#: Both kinds of server, if both are here. A chain of one, of three; four of one, of two.
SERVERS = [(1, 1), (1, 3), (4, 1), (4, 2)]
for _number, (_shards, _members) in enumerate(SERVERS):
    for _kind in redis_servers.KINDS[_number % 2 :: 2] or redis_servers.KINDS:
        ENGINES[f"{_kind}, {_shards} x {_members}"] = redis(_kind, _shards, _members)


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    return ENGINES[request.param]


@contextmanager
def opened(engine: Engine, folder: Path, **options: Any) -> Iterator[Storage]:
    storage = engine.open(folder, **options)
    try:
        yield storage
    finally:
        storage.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


@pytest.fixture
def storage(engine: Engine, folder: Path) -> Iterator[Storage]:
    with opened(engine, folder) as storage:
        yield storage


def write(storage: Storage, *batch: Operation) -> tuple[bool, ...]:
    """The results of a batch."""
    number = storage.write(batch)
    assert storage.flush(WITHIN_S)
    (done,) = storage.completed()
    assert (done.number, done.error) == (number, None)
    return done.results


def contents(storage: Storage) -> dict[tuple[str, bytes], bytes]:
    return {(table, key): value for table in storage.tables() for key, value in storage.scan(table)}


def is_readable(storage: Storage) -> bool:
    return bool(select.select([storage.fileno()], [], [], 0)[0])


# -- operations -------------------------------------------------------------------------------------------------------


def test_put_writes_and_overwrites(storage: Storage) -> None:
    assert write(storage, Put("t", b"k", b"1"), Put("t", b"k", b"2")) == (True, True)
    assert list(storage.scan("t")) == [(b"k", b"2")]


def test_delete_tells_whether_the_row_existed(storage: Storage) -> None:
    assert write(storage, Delete("t", b"k"), Put("t", b"k", b""), Delete("t", b"k"), Delete("t", b"k")) == (
        False,
        True,
        True,
        False,
    )
    assert storage.tables() == []


@pytest.mark.parametrize(
    ("row", "expected", "value", "result", "left"),
    [
        (None, None, b"new", True, b"new"),
        (b"old", None, b"new", False, b"old"),
        (b"old", b"old", b"new", True, b"new"),
        (b"old", b"older", b"new", False, b"old"),
        (b"old", b"old", None, True, None),
        (b"old", b"", None, False, b"old"),
        (b"", None, b"new", False, b""),
        (None, b"", b"new", False, None),
        (None, None, None, True, None),
    ],
)
def test_compare_and_set_tells_an_empty_row_from_none(
    storage: Storage, row: bytes | None, expected: bytes | None, value: bytes | None, result: bool, left: bytes | None
) -> None:
    if row is not None:
        write(storage, Put("t", b"k", row))
    assert write(storage, CompareAndSet("t", b"k", expected, value)) == (result,)
    assert list(storage.scan("t")) == ([] if left is None else [(b"k", left)])


def test_append_at_appends_once_at_each_length(storage: Storage) -> None:
    assert write(storage, AppendAt("t", b"k", 0, b"ab"), AppendAt("t", b"k", 0, b"ab")) == (True, False)
    assert write(storage, AppendAt("t", b"k", 2, b"c"), AppendAt("t", b"k", 2, b"c")) == (True, False)
    assert write(storage, AppendAt("t", b"k", 4, b"d"), AppendAt("t", b"none", 1, b"d")) == (False, False)
    assert list(storage.scan("t")) == [(b"k", b"abc")]


def test_appending_nothing_makes_an_empty_row(storage: Storage) -> None:
    assert write(storage, AppendAt("t", b"k", 0, b"")) == (True,)
    assert list(storage.scan("t")) == [(b"k", b"")]


def test_operations_of_a_batch_see_those_before_them(storage: Storage) -> None:
    assert write(
        storage,
        CompareAndSet("t", b"k", None, b"1"),
        CompareAndSet("t", b"k", None, b"2"),
        AppendAt("t", b"k", 1, b"2"),
        CompareAndSet("t", b"k", b"12", None),
        Delete("t", b"k"),
    ) == (True, False, True, True, False)


def test_tables_and_keys_do_not_mix(storage: Storage) -> None:
    write(storage, Put("a", b"bc", b"1"), Put("ab", b"c", b"2"), Put("a", b"b", b"3"), Put("ä", b"", b"4"))
    assert contents(storage) == {("a", b"b"): b"3", ("a", b"bc"): b"1", ("ab", b"c"): b"2", ("ä", b""): b"4"}
    assert storage.tables() == sorted(["a", "ab", "ä"])


# -- reading ----------------------------------------------------------------------------------------------------------

KEYS = [b"", b"\0", b"\0\xff", b"a", b"a\0", b"a\xff", b"a\xff\xff", b"b", b"\xff", b"\xff\xff", b"\xff\xff\0"]


@pytest.mark.parametrize("prefix", [*KEYS, b"a\xff\xff\xff", b"c"])
def test_a_scan_finds_what_begins_with_any_bytes(storage: Storage, prefix: bytes) -> None:
    write(storage, *[Put("t", key, key * 2) for key in KEYS], *[Put("s", key, b"other") for key in KEYS])
    assert list(storage.scan("t", prefix)) == [(key, key * 2) for key in sorted(KEYS) if key.startswith(prefix)]


def test_a_long_scan_is_whole_and_sorted(storage: Storage) -> None:
    keys = [number.to_bytes(2, "little") for number in range(3000)]
    for at in range(0, len(keys), 250):
        storage.write([Put("t", key, b"") for key in keys[at : at + 250]])
    assert storage.flush(WITHIN_S)
    assert [key for key, _ in storage.scan("t")] == sorted(keys)


def test_a_scan_of_large_rows_is_whole(storage: Storage) -> None:
    for number in range(6):
        storage.write([Put("t", bytes([number]), bytes([number]) * (BATCH_BYTES_MAX - 100))])
    assert storage.flush(WITHIN_S)
    assert [(key, value[:1]) for key, value in storage.scan("t")] == [(bytes([n]), bytes([n])) for n in range(6)]


# -- batches ----------------------------------------------------------------------------------------------------------


def test_batches_are_numbered_and_reported_in_order(storage: Storage) -> None:
    numbers = [storage.write([Put("t", bytes([n]), b"")], lazy=n % 3 == 0) for n in range(100)]
    assert numbers == list(range(1, 101))
    assert storage.flush(WITHIN_S)
    assert [done.number for done in storage.completed()] == numbers
    assert storage.completed() == []


def test_an_empty_batch_ends_after_those_before_it(storage: Storage) -> None:
    storage.write([Put("t", b"k", b"")])
    storage.write([])
    assert storage.flush(WITHIN_S)
    assert [(done.number, done.results) for done in storage.completed()] == [(1, (True,)), (2, ())]


def test_the_descriptor_is_readable_while_there_is_something_to_collect(storage: Storage) -> None:
    assert not is_readable(storage)
    for number in range(1, 4):
        storage.write([Put("t", b"k", b"")])
        assert select.select([storage.fileno()], [], [], WITHIN_S)[0]
        assert storage.flush(WITHIN_S)
        assert [done.number for done in storage.completed()] == [number]
        assert not is_readable(storage)


def test_an_empty_batch_wakes_its_reader(storage: Storage) -> None:
    storage.write([])
    assert select.select([storage.fileno()], [], [], WITHIN_S)[0]
    assert storage.flush(WITHIN_S)
    assert [done.number for done in storage.completed()] == [1]
    assert not is_readable(storage)


def test_a_lazy_batch_ends_by_itself(storage: Storage) -> None:
    storage.write([Put("t", b"k", b"")], lazy=True)
    ended: list[Done] = []
    while not ended:
        assert select.select([storage.fileno()], [], [], WITHIN_S)[0]
        ended = storage.completed()
    assert [done.number for done in ended] == [1]


def test_a_batch_that_is_not_lazy_takes_the_lazy_ones_along(engine: Engine, folder: Path) -> None:
    with opened(engine, folder, lazy_s=float("inf")) as storage:
        for number in range(50):
            storage.write([AppendAt("t", bytes([number % 7]), number // 7, b".")], lazy=True)
        storage.write([Put("t", b"k", b"")])
        ended: list[int] = []
        while len(ended) < 51:
            assert select.select([storage.fileno()], [], [], WITHIN_S)[0], "the lazy ones wait for nothing else"
            ended += [done.number for done in storage.completed()]
        assert ended == list(range(1, 52))


def test_closing_writes_what_is_lazy(engine: Engine, folder: Path) -> None:
    storage = engine.open(folder, lazy_s=float("inf"))
    storage.write([Put("t", b"k", b"v")], lazy=True)
    storage.close()
    assert [(done.number, done.error) for done in storage.completed()] == [(1, None)]
    storage.close()
    with pytest.raises(StorageClosed):
        storage.write([Put("t", b"k", b"")])
    if engine.is_durable:
        with opened(engine, folder) as storage:
            assert contents(storage) == {("t", b"k"): b"v"}


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch",
    [
        [Put("t", b"", b"")] * (OPERATIONS_MAX + 1),
        [Put("t", b"1", bytes(BATCH_BYTES_MAX // 2)), Put("t", b"2", bytes(BATCH_BYTES_MAX // 2))],
        [CompareAndSet("t", b"1", bytes(BATCH_BYTES_MAX // 2), bytes(BATCH_BYTES_MAX // 2)), Delete("t", b"2")],
        [AppendAt("t", b"k", ROW_BYTES_MAX, b"")],
        [Put("", b"k", b"")],
        [Put("zero\0", b"k", b"")],
        [Put("t" * (TABLE_BYTES_MAX + 1), b"k", b"")],
    ],
    ids=["operations", "bytes", "bytes compared", "row", "no table", "zero byte", "long table"],
)
def test_a_batch_beyond_a_limit_is_refused_whole(storage: Storage, batch: Sequence[Operation]) -> None:
    with pytest.raises(BatchRefused) as refused:
        storage.write([*batch])
    assert refused.value.why, "it says what the limit is"
    assert storage.write([Put("t", b"after", b"")]) == 1, "nothing was taken, not even a number"
    assert storage.flush(WITHIN_S)
    assert contents(storage) == {("t", b"after"): b""}


def test_one_operation_may_be_larger_than_a_batch(storage: Storage) -> None:
    value = bytes(BATCH_BYTES_MAX + 1)
    assert write(storage, Put("t", b"k", value)) == (True,)
    assert list(storage.scan("t")) == [(b"k", value)]


@pytest.mark.parametrize("bounds", [(3, 1 << 20), (100, 24)], ids=["batches", "bytes"])
def test_batches_that_are_not_collected_are_bounded(engine: Engine, folder: Path, bounds: tuple[int, int]) -> None:
    with opened(engine, folder, admission=Admission(*bounds)) as storage:
        for number in range(3):
            storage.write([Put("t", bytes([number]), b"123456")])
        with pytest.raises(StorageBusy):
            storage.write([Put("t", b"\xff", b"123456")])
        assert storage.flush(WITHIN_S)
        assert [done.number for done in storage.completed()] == [1, 2, 3]
        assert storage.write([Put("t", b"\xff", b"123456")]) == 4, "there is room again"


# -- histories --------------------------------------------------------------------------------------------------------

TABLES = ["a", "b", "ab"]
SOME_KEYS = [b"", b"a", b"a\0", b"a\xff", b"b", b"\xff"]
VALUES = [b"", b"1", b"2", b"\0" * 100]
LENGTHS = [0, 1, 2, 100]

Model = dict[tuple[str, bytes], bytes]


@dataclass(frozen=True)
class Step:
    batch: list[Operation]
    lazy: bool
    #: The service ends after this batch, and another one goes on.
    ends_life: bool


def history(data: bytes) -> list[Step]:
    """Any bytes say what a service writes: five for an operation. (Made this way a history takes microseconds.)"""
    steps: list[Step] = []
    batch: list[Operation] = []
    for kind, where, value, other, then in zip(*[iter(data)] * 5):
        table, key = TABLES[where % 3], SOME_KEYS[where // 3 % 6]
        new, old = VALUES[value % 4], VALUES[other % 4]
        match kind % 4:
            case 0:
                batch.append(Put(table, key, new))
            case 1:
                batch.append(Delete(table, key))
            case 2:
                batch.append(CompareAndSet(table, key, old if other & 4 else None, new if other & 8 else None))
            case 3:
                batch.append(AppendAt(table, key, LENGTHS[other % 4], new))
        if then % 3 == 0:
            steps.append(Step(batch, bool(then & 128), then % 16 == 15))
            batch = []
    return [*steps, Step(batch, lazy=False, ends_life=False)]


def apply(model: Model, operation: Operation) -> bool:
    row = (operation.table, operation.key)
    result, value = after(operation, model.get(row))
    model.pop(row, None)
    if value is not None:
        model[row] = value
    return result


@pytest.mark.parametrize(
    ("name", "histories"),
    [
        ("memory", 1000),
        ("memory, 4 shards", 1000),
        ("sqlite", 500),
        ("sqlite, 4 shards", 100),
        *[(name, 40) for name in ENGINES if " x " in name],
    ],
)
def test_every_history_is_that_of_a_dict(name: str, histories: int, folder: Path) -> None:
    """One store for all histories, since making one takes longer than most of them. Each begins by emptying it."""
    engine = ENGINES[name]
    store = [engine.open(folder)]

    def check_contents(model: Model) -> None:
        assert contents(store[0]) == model
        assert store[0].tables() == sorted({table for table, _ in model})

    def collect(expected: list[tuple[int, tuple[bool, ...], None]]) -> None:
        assert store[0].flush(WITHIN_S)
        assert [(done.number, done.results, done.error) for done in store[0].completed()] == expected
        expected.clear()

    @given(st.binary(min_size=20, max_size=300))
    @settings(deadline=None, max_examples=histories, database=None)
    def check(data: bytes) -> None:
        store[0].write([Delete(table, key) for table, key in contents(store[0])])
        assert store[0].flush(WITHIN_S)
        store[0].completed()
        model: Model = {}
        expected: list[tuple[int, tuple[bool, ...], None]] = []
        for step in history(data):
            number = store[0].write(step.batch, lazy=step.lazy)
            expected.append((number, tuple([apply(model, operation) for operation in step.batch]), None))
            if step.ends_life and engine.is_durable:
                collect(expected)
                incarnation = store[0].meta.incarnation
                store[0].close()
                store[0] = engine.open(folder)
                assert store[0].meta.incarnation == incarnation + 1
                check_contents(model)
        collect(expected)
        check_contents(model)

    try:
        check()
    finally:
        store[0].close()


@pytest.mark.parametrize("name", [name for name, each in sorted(ENGINES.items()) if each.is_durable])
def test_a_store_that_is_opened_again_has_what_was_acknowledged(name: str, folder: Path) -> None:
    engine = ENGINES[name]
    with opened(engine, folder) as first:
        assert write(first, *[Put("t", bytes([number]), b"v") for number in range(20)])
        created_at = first.meta.created_at
    with opened(engine, folder) as second:
        assert contents(second) == {("t", bytes([number])): b"v" for number in range(20)}
        assert second.meta.incarnation == 2
        assert second.meta.created_at == created_at
        assert second.write([Delete("t", b"\0")]) == 1, "numbers begin again"


# -- several shards ---------------------------------------------------------------------------------------------------


class Held(MemoryStorage):
    """A shard that reports when the test says so."""

    held = True
    error: StorageError | None = None

    def completed(self) -> list[Any]:
        return [] if self.held else super().completed()

    def write(self, batch: Sequence[Operation], *, lazy: bool = False) -> int:
        if self.error is not None:
            raise self.error
        return super().write(batch, lazy=lazy)


def on_shard(number: int, layout: Layout) -> bytes:
    """A key of the table "t" that lies on that shard."""
    return next(key for key in map(str.encode, map(str, range(1000))) if layout.shard_of("t", key) == number)


def test_a_batch_is_done_when_all_its_parts_and_all_earlier_batches_are() -> None:
    layout = Layout.of(2)
    one, two = on_shard(0, layout), on_shard(1, layout)
    shards = [Held(CLUSTER), Held(CLUSTER)]
    storage = ShardedStorage(shards, layout)
    storage.write([Put("t", two, b"1"), Delete("t", b"none" + one), Put("t", one, b"2")])
    storage.write([Put("t", two, b"3")])
    shards[1].held = False
    assert storage.completed() == [], "batch 2 is done, and a part of batch 1 is not"
    shards[0].held = False
    assert [(done.number, done.results) for done in storage.completed()] == [(1, (True, False, True)), (2, (True,))]
    storage.close()


def test_the_error_of_one_shard_is_that_of_the_batch() -> None:
    layout = Layout.of(2)
    one, two = on_shard(0, layout), on_shard(1, layout)
    shards = [Held(CLUSTER), Held(CLUSTER)]
    shards[0].held = shards[1].held = False
    storage = ShardedStorage(shards, layout)
    shards[1].error = StorageError("gone")
    storage.write([Put("t", one, b""), Put("t", two, b"")])
    storage.write([Put("t", one, b"")])
    ended = [(done.number, done.results, done.error) for done in storage.completed()]
    assert ended == [(1, (), shards[1].error), (2, (True,), None)]
    storage.close()


def test_shards_of_two_clusters_are_refused() -> None:
    with pytest.raises(StorageError, match="Shard 1 of the store belongs to cluster b"):
        ShardedStorage([MemoryStorage("a"), MemoryStorage("b")])


def test_rows_that_a_moved_slot_left_behind_are_passed_over() -> None:
    shards = [MemoryStorage(CLUSTER), MemoryStorage(CLUSTER)]
    before, later = Layout.of(1), Layout.of(2)
    moved = on_shard(1, later)
    shards[0].write([Put("t", moved, b"old")])
    shards[1].write([Put("t", moved, b"new")])
    assert list(ShardedStorage(shards[:1], before).scan("t")) == [(moved, b"old")]
    storage = ShardedStorage(shards, later)
    assert list(storage.scan("t")) == [(moved, b"new")]
    assert list(storage.misplaced()) == [(0, "t", moved)]
