"""A store that no service has: what is wrong with it, and its rows for people.

    rows ──checksum──▶ ──record of its table──▶ ──fits the other records──▶ fine
            damaged        unreadable              dangling: the service copes with it, and says how

Knows not: files. A store is opened by who asks, in the way in which no damaged row keeps it from being read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from skate._control.state import tables
from skate._control.state.tables import ActorRow, ClusterRow, NodeRow
from skate._control.storage.errors import RowUnreadable
from skate._control.storage.interface import Storage
from skate._core import actors
from skate._core.groups import Group
from skate._core.ids import node_of

Records = dict[str, dict[bytes, Any]]

#: Fields that are shown by their size alone: pickled code and values, which only their program can read.
BY_SIZE = {"definition", "args", "about", "payload"}
#: Fields whose values are not shown: people put passwords into variables of the environment.
SECRET = {"env"}
HIDDEN = "(hidden)"


class BadRow(msgspec.Struct, frozen=True):
    """A row that cannot be read."""

    table: str
    key: bytes
    why: str


def read(storage: Storage) -> tuple[Records, list[BadRow]]:
    """The records of all rows, and the rows that are none."""
    records: Records = {}
    unreadable: list[BadRow] = []
    for table in storage.tables():
        if not table:  # the store's own
            continue
        found = records.setdefault(table, {})
        if table not in tables.RECORDS:
            unreadable += [
                BadRow(table, key, "this version of Skate has no such table") for key, _ in storage.scan(table)
            ]
            continue
        for row in storage.scan(table):
            try:
                found.update(tables.unpacked(table, [row]))
            except RowUnreadable as error:
                unreadable.append(BadRow(table, row[0], error.why))
    return records, unreadable


# -- facts that do not fit together ------------------------------------------------------------------------------------


def dangling(records: Records) -> Iterator[str]:
    """Facts that name what is not there, each as a sentence."""
    nodes: dict[bytes, NodeRow] = records.get(tables.NODES, {})
    living = {node_of(id) for id, row in nodes.items() if not row.gone}
    cluster: ClusterRow | None = records.get(tables.CLUSTER, {}).get(b"")
    if cluster is None and any(records.values()):
        yield "There is no row that says what the cluster is."
    for id in nodes:
        if cluster is not None and node_of(id) > cluster.last_number:
            yield f"Node {id.hex()} has the number {node_of(id)}, and the last one given is {cluster.last_number}."
    yield from _of_actors(records, living)
    group: Group
    for group in records.get(tables.GROUPS, {}).values():
        for index, bundle in enumerate(group.bundles):
            if bundle.node and node_of(bundle.node) not in living:
                what = f"Bundle {index} of placement group {group.id.hex()}"
                yield f"{what} is on node {bundle.node.hex()}, which is gone."
    for id, job in records.get(tables.JOBS, {}).items():
        for driver in job.drivers:
            if node_of(driver) not in living:
                yield f"Job {id.hex()} has a driver on node {node_of(driver)}, which is gone."


def _of_actors(records: Records, living: set[int]) -> Iterator[str]:
    names: dict[tuple[str, str], bytes] = {}
    functions = records.get(tables.FUNCTIONS, {})
    row: ActorRow
    for id, row in records.get(tables.ACTORS, {}).items():
        actor = row.actor
        if actor.state == actors.DEAD:
            continue
        what = f"Actor {id.hex()} ({actor.info.class_name}), {actor.state},"
        if row.creation is None and actor.state != actors.WAITING:
            yield f"{what} has nothing to be made of."
        elif row.creation is not None and row.creation.creation.fn not in functions:
            yield f"{what} is made of the class {row.creation.creation.fn.hex()}, which is not there."
        if actor.worker and node_of(actor.worker) not in living:
            yield f"{what} is on node {node_of(actor.worker)}, which is gone."
        other = names.setdefault(actor.full_name, id) if actor.info.name else id
        if other != id:
            yield f"{what} has the name {actor.info.name!r}, and so has actor {other.hex()}."


# -- for people --------------------------------------------------------------------------------------------------------


def readable(table: str, key: bytes, record: Any) -> dict[str, Any]:
    """A row as JSON has it: without code, pickled values and variables of the environment."""
    shown: Any = text_of(key)
    if table == tables.EVENTS:
        shown = int.from_bytes(key, "big")
    elif table == tables.KV:
        namespace, _, name = key.partition(b"\0")
        shown = {"namespace": text_of(namespace), "key": text_of(name)}
    elif table != tables.CLUSTER:
        shown = key.hex()
    return {"table": table, "key": shown, "value": _plain(record, is_id=table != tables.KV)}


def text_of(value: bytes) -> str:
    """As text if all of it can be printed; else as hexadecimal digits behind 0x."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return f"0x{value.hex()}"
    return text if all(each.isprintable() or each in "\n\t" for each in text) else f"0x{value.hex()}"


def _plain(value: Any, *, is_id: bool) -> Any:
    """is_id: bytes in this record are ids, whatever they look like."""
    if isinstance(value, bytes):
        return value.hex() if is_id else text_of(value)
    if isinstance(value, msgspec.Struct):
        return {name: _field(name, getattr(value, name), is_id) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {str(_plain(name, is_id=is_id)): _plain(item, is_id=is_id) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item, is_id=is_id) for item in value]
    return value


def _field(name: str, value: Any, is_id: bool) -> Any:
    if name in SECRET and isinstance(value, dict):
        return dict.fromkeys(value, HIDDEN)
    if name in BY_SIZE and isinstance(value, bytes):
        return {"bytes": len(value)}
    return _plain(value, is_id=is_id)
