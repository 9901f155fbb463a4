"""What `skate store check` finds, and what `skate store dump` shows of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skate._control.config import StoreConfig, Supervised
from skate._control.inspection import dangling, read, readable, text_of
from skate._control.opening import ClusterEnded, mark_ended, open_store
from skate._control.state import tables
from skate._control.state.control import Control, Settings
from skate._control.state.tables import ActorRow, ClusterRow, JobRow, NodeRow, ValueRow, pack
from skate._control.storage.errors import RowUnreadable, StorageMissing, StorageOfOtherCluster
from skate._control.storage.interface import Put
from skate._control.storage.memory import MemoryStorage
from skate._control.storage.sharded import ShardedStorage
from skate._control.storage.sqlite import SqliteStorage
from skate._core import actors
from skate._core.actors import Actor
from skate._core.groups import Bundle, Group
from skate._core.ids import new_node_id
from skate._core.placement import NodeView
from skate._core.task import ActorInfo, ActorSettings, Task
from skate._node.supervisor import settings
from skate._wire.cluster import Member
from skate._wire.messages import CreateActor, Define

HERE, GONE = new_node_id(1), new_node_id(2)
CLUSTER = ClusterRow("c0ffee", 0.0, last_number=2)


def node(id: bytes, gone: str = "") -> NodeRow:
    return NodeRow(Member(NodeView(id=id, total={}, available={}), "127.0.0.1", 1, "n"), gone)


def actor(id: bytes, name: str, *, on: bytes = b"", state: str = actors.ALIVE, fn: bytes = b"") -> ActorRow:
    info = ActorInfo("Counter", name, env={"PASSWORD": "hunter2"})
    creation = CreateActor(id, Task(id, fn, b"pickled"), ActorSettings()) if fn else None
    return ActorRow(Actor(id, b"owner", info, state, worker=on and on[:4] + b"worker"), creation)


RECORDS: dict[str, dict[bytes, Any]] = {
    tables.CLUSTER: {b"": CLUSTER},
    tables.NODES: {HERE: node(HERE), GONE: node(GONE, "it was ended")},
    tables.JOBS: {b"job": JobRow({"started_at": 0.0}, [HERE[:4] + b"driver"])},
    tables.ACTORS: {b"a": actor(b"a", "first", on=HERE, fn=b"fn"), b"w": actor(b"w", "", state=actors.WAITING)},
    tables.GROUPS: {b"g": Group(b"g", "PACK", [Bundle({}, HERE), Bundle({})])},
    tables.FUNCTIONS: {b"fn": Define(b"fn", "Counter", b"code")},
}


def test_what_a_cluster_keeps_fits_together() -> None:
    assert list(dangling(RECORDS)) == []
    assert list(dangling({})) == []


@pytest.mark.parametrize(
    ("table", "row", "says"),
    [
        (tables.ACTORS, actor(b"x", "", on=GONE, fn=b"fn"), "is on node 2, which is gone"),
        (tables.ACTORS, actor(b"x", "first", on=HERE, fn=b"fn"), "has the name 'first', and so has actor"),
        (tables.ACTORS, actor(b"x", "", state=actors.PENDING), "has nothing to be made of"),
        (tables.ACTORS, actor(b"x", "", on=HERE, fn=b"other"), f"made of the class {b'other'.hex()}"),
        (tables.GROUPS, Group(b"x", "PACK", [Bundle({}, GONE)]), "Bundle 0 of placement group"),
        (tables.JOBS, JobRow({}, [GONE[:4] + b"driver"]), "has a driver on node 2"),
        (tables.CLUSTER, ClusterRow("c0ffee", 0.0, last_number=1), "the last one given is 1"),
    ],
)
def test_what_names_something_that_is_not_there_is_found(table: str, row: Any, says: str) -> None:
    key = b"" if table == tables.CLUSTER else b"x"
    (fact,) = dangling({**RECORDS, table: {**RECORDS[table], key: row}})
    assert says in fact


def test_rows_without_a_cluster_are_found() -> None:
    assert any("what the cluster is" in fact for fact in dangling({**RECORDS, tables.CLUSTER: {}}))


def test_a_dump_has_neither_code_nor_values_of_variables() -> None:
    shown = str(readable(tables.ACTORS, b"a", RECORDS[tables.ACTORS][b"a"]))
    assert "hunter2" not in shown
    assert "pickled" not in shown
    assert "PASSWORD" in shown
    assert "code" not in str(readable(tables.FUNCTIONS, b"fn", RECORDS[tables.FUNCTIONS][b"fn"])["value"])
    value = readable(tables.KV, b"here\0key", ValueRow(b"\0\xff"))
    assert value == {
        "table": "kv", "key": {"namespace": "here", "key": "key"}, "value": {"value": "0x00ff", "writers": []}
    }  # fmt: skip
    assert [text_of(each) for each in ("é\n".encode(), b"\x1b[0m", b"")] == ["é\n", "0x1b5b306d", ""]


def test_rows_that_are_no_records_are_listed_and_keep_a_service_from_starting() -> None:
    storage = MemoryStorage()
    storage.write([Put(tables.CLUSTER, b"", pack(CLUSTER)), Put(tables.KV, b"k", b"\xc1"), Put("other", b"k", b"")])
    records, bad = read(storage)
    assert records[tables.CLUSTER] == {b"": CLUSTER}
    assert [(row.table, row.key) for row in bad] == [(tables.KV, b"k"), ("other", b"k")]
    with pytest.raises(RowUnreadable, match=r"the key b'k' of the table 'kv'") as error:
        Control(Settings(cluster_id="c0ffee"), 0.0).begin(storage.scan)
    assert (error.value.table, error.value.key) == (tables.KV, b"k")


# -- opening -----------------------------------------------------------------------------------------------------------


def test_a_service_that_goes_on_never_begins_a_cluster(tmp_path: Path) -> None:
    path = tmp_path / "store"
    first = open_store(StoreConfig(address=str(path), fresh=True), 0)
    first.write([Put(tables.CLUSTER, b"", pack(ClusterRow(first.meta.cluster_id, 0.0)))])
    first.close()
    supervised = Supervised(pid=1, config=_config(path), cluster_id=first.meta.cluster_id)
    config = settings(supervised).store
    assert config is not None
    second = open_store(config, 0)
    assert (second.meta.cluster_id, second.meta.incarnation) == (first.meta.cluster_id, 2)
    second.close()
    supervised.cluster_id = "another"
    other = settings(supervised).store
    assert other is not None
    with pytest.raises(StorageOfOtherCluster):
        open_store(other, 0)
    mark_ended(str(path), "it was stopped")
    with pytest.raises(ClusterEnded, match="it was stopped"):
        open_store(config, 0)
    with pytest.raises(StorageMissing):
        open_store(StoreConfig(address=str(tmp_path / "none"), must_exist=True), 0)
    new = open_store(StoreConfig(address=str(path)), 0)
    assert new.meta.cluster_id != first.meta.cluster_id, "`skate start` begins a new cluster where one has ended"
    new.close()


def _config(path: Path) -> Any:
    from skate._control.config import ControlConfig

    return ControlConfig(host="127.0.0.1", token="", store=StoreConfig(address=str(path), fresh=True))


# -- describing --------------------------------------------------------------------------------------------------------


def test_every_engine_describes_itself_in_one_form(tmp_path: Path) -> None:
    batch = [Put("t", b"k", b"12"), Put("t", b"l", b"1"), Put("u", b"k", b"")]
    sqlite = [SqliteStorage(tmp_path / str(number), "c") for number in range(2)]
    engines = {
        "memory": (MemoryStorage("c"), 1),
        "sqlite": (SqliteStorage(tmp_path / "one", "c", durability="normal"), 1),
        "sharded": (ShardedStorage(sqlite), 2),
    }
    for name, (storage, shards) in engines.items():
        storage.write(batch)
        assert storage.flush(10.0)
        storage.completed()
        about = storage.describe()
        assert about.tables is not None
        found = {table: (size.rows, size.size_bytes) for table, size in about.tables.items()}
        assert found == {"t": (2, 5), "u": (1, 1)}, name
        assert len(about.shards) == shards
        members = [member for shard in about.shards for member in shard.members]
        assert {member.state for member in members} == {"serving"}
        assert all(member.size_bytes for member in members)
        assert (about.waiting, about.waiting_bytes) == (0, 0)
        storage.close()
    assert (engines["memory"][0].describe().survives, about.survives) == ("", "power")
