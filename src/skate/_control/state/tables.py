"""Every table and every record that the control state keeps: one row an entity.

| table     | key            | record     | what                                                                       |
|-----------|----------------|------------|----------------------------------------------------------------------------|
| cluster   | b""            | ClusterRow | its id, when it began, the last number that a node got                     |
| nodes     | node id        | NodeRow    | who is part of it, and who was                                             |
| jobs      | job id         | JobRow     | drivers that run, and those of the past                                    |
| actors    | actor id       | ActorRow   | what an actor is, where it lives, what it takes to make it again           |
| groups    | group id       | Group      | placement groups with their bundles                                        |
| functions | function id    | Define     | what actors are made of, and what tasks call                               |
| kv        | namespace, key | ValueRow   | `skate.kv`                                                                 |
| events    | number         | JSON       | what has happened, for people; written lazily                              |

Indexes (names, who runs where) are made from these when the service starts. What nodes and processes say again
(connections, watchers, subscribers, copies of objects) is in no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from skate._core.actors import Actor
from skate._core.groups import Group
from skate._core.task import Job
from skate._wire.cluster import Member
from skate._wire.messages import CreateActor, Define

if TYPE_CHECKING:
    from skate._control.storage.errors import RowUnreadable

CLUSTER, NODES, JOBS, ACTORS = "cluster", "nodes", "jobs", "actors"
GROUPS, FUNCTIONS, KV, EVENTS = "groups", "functions", "kv", "events"
ALL = (CLUSTER, NODES, JOBS, ACTORS, GROUPS, FUNCTIONS, KV, EVENTS)

#: A write by a process: its id, the number of its message, and what it was answered.
Writer = tuple[bytes, int, bool]


class ClusterRow(msgspec.Struct, array_like=True):
    cluster_id: str
    #: Seconds since the epoch.
    began_at: float
    #: Of the node that joined last; no other node ever has it again.
    last_number: int = 0
    #: Why it is over; empty while it is not.
    ended: str = ""


class NodeRow(msgspec.Struct, array_like=True):
    member: Member
    #: Why it is gone; empty while it is part of the cluster.
    gone: str = ""
    #: The order in which nodes have gone.
    order: int = 0


class JobRow(msgspec.Struct, array_like=True):
    #: As people are told (`Jobs.describe`).
    facts: dict[str, Any]
    #: The drivers that are part of it and have not ended.
    drivers: list[bytes] = []
    #: Those that have ended: what their workers still ask for is refused.
    ended: list[bytes] = []


class ActorRow(msgspec.Struct, array_like=True):
    """Without those who watch it: they say so again."""

    actor: Actor
    creation: CreateActor | None = None
    #: That it is part of, which may be over.
    job: Job | None = None
    #: The order in which actors have died.
    order: int = 0


class ValueRow(msgspec.Struct, array_like=True):
    #: None: it was deleted, and the process that did so may ask again whether that worked.
    value: bytes | None
    #: Writes whose answers may be asked for again, the oldest first.
    writers: list[Writer] = []


Record = TypeVar("Record")

_pack = msgspec.msgpack.Encoder().encode


def pack(record: Any) -> bytes:
    return _pack(record)


def unpacked(table: str, rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, Any]]:
    """The records of rows. Raises RowUnreadable, which names the row."""
    unpack = unpacker(RECORDS[table])
    for key, row in rows:
        try:
            record = unpack(row)
        except msgspec.MsgspecError as error:
            raise unreadable(table, key, str(error)) from error
        yield key, record


def unreadable(table: str, key: bytes, why: str) -> RowUnreadable:
    from skate._control.storage.errors import RowUnreadable  # only a service with a storage loads it

    error = RowUnreadable(
        f"A row of the store cannot be read: the key {key!r} of the table {table!r}.",
        f"Its bytes are those that were written, and no record that this version of Skate knows: {why}.",
        "start the version of Skate that wrote it; or let `skate store check` list all such rows, and `skate store "
        "check --remove` take them out, so that the cluster goes on without them.",
    )
    error.table, error.key = table, key
    return error


def unpacker(kind: type[Record]) -> Callable[[bytes], Record]:
    return msgspec.msgpack.Decoder(kind).decode


RECORDS: dict[str, Any] = {
    CLUSTER: ClusterRow,
    NODES: NodeRow,
    JOBS: JobRow,
    ACTORS: ActorRow,
    GROUPS: Group,
    FUNCTIONS: Define,
    KV: ValueRow,
    EVENTS: dict[str, Any],
}
