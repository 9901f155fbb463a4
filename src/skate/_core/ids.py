"""Typed ids: how they are built, printed and parsed.

Ids are plain `bytes` in the hot path, told apart by `NewType`: a class would cost more than the task it names.

    OFFSET SIZE  ObjectID (20 bytes)
    0      12    prefix: hash of the parent task's id and attempt, made once when the parent creates its first child
    12      4    counter: the parent's children and puts, in the order they were made
    16      4    index: 0 is the task's first (often only) return, n its n-th; puts have PUT_INDEX

A TaskID is the first 16 bytes of the ids of its returns. Running a task again (another attempt after an exception
excepted) gives its children the same ids, so re-execution is harmless.

Every node of a cluster has a number that is never given to another one; a node that is alone is number 0. The ids of
nodes and processes begin with it, and it stands in the upper bits of places and of the numbers of leases: so whoever
has any of these knows whom to turn to, and nobody has to look it up.

    OFFSET SIZE  ProcessID (12 bytes), NodeID (16 bytes)
    0      4     number of the node
    4      8/12  random

    BITS         place: where an object lies
    40..63       number of the node
    0..39        size in bytes
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import NewType

try:
    from _blake2 import blake2b  # `hashlib` has it too, and loads OpenSSL first: 3 ms of every start
except ImportError:
    from hashlib import blake2b

ObjectID = NewType("ObjectID", bytes)
TaskID = NewType("TaskID", bytes)
FunctionID = NewType("FunctionID", bytes)
NodeID = NewType("NodeID", bytes)
ProcessID = NewType("ProcessID", bytes)
JobID = NewType("JobID", bytes)
JOB_BYTES = 4
LeaseID = NewType("LeaseID", int)

PREFIX_BYTES = 12
TASK_BYTES = 16
OBJECT_BYTES = 20
FIRST_RETURN = b"\0\0\0\0"
PUT_INDEX = b"\xff\xff\xff\xff"
COUNTER_MAX = 2**32 - 1

#: The id of what a task creates, from prefix, counter and index.
pack_id = struct.Struct(">12sI4s").pack


NODE_BYTES = 4
PROCESS_BYTES = 12
SIZE_BITS = 40
SIZE_MAX = (1 << SIZE_BITS) - 1
#: Of nodes: a place has 24 bits for it.
NUMBER_MAX = 2**24 - 1


def new_node_id(number: int = 0) -> NodeID:
    return NodeID(number.to_bytes(NODE_BYTES, "big") + os.urandom(12))


def new_process_id(node: int = 0) -> ProcessID:
    return ProcessID(node.to_bytes(NODE_BYTES, "big") + os.urandom(PROCESS_BYTES - NODE_BYTES))


def node_of(id: bytes) -> int:
    """The number of a node, or of the node of a process."""
    return int.from_bytes(id[:NODE_BYTES], "big")


def place_of(node: int, size: int) -> int:
    """Where an object of that size lies."""
    return (node << SIZE_BITS) + size


def size_at(place: int) -> int:
    return place & SIZE_MAX


def node_at(place: int) -> int:
    """The number of the node, also of the node of a lease."""
    return place >> SIZE_BITS


def new_job_id() -> JobID:
    return JobID(os.urandom(JOB_BYTES))


def function_id(definition: bytes, path: Sequence[str] = ()) -> FunctionID:
    """Of a pickled function, and where else than usual its modules are looked for: the same everywhere."""
    return FunctionID(blake2b("\0".join([*path, ""]).encode() + definition, digest_size=16).digest())


def child_prefix(parent: bytes, attempt: int = 0) -> bytes:
    """The prefix of everything that `parent` creates in one of its attempts."""
    return blake2b(parent + attempt.to_bytes(4, "big"), digest_size=PREFIX_BYTES).digest()


def task_of(object_id: bytes) -> TaskID:
    return TaskID(object_id[:TASK_BYTES])


def return_id(first: bytes, index: int) -> ObjectID:
    """The id of return number `index` of the task whose first return is `first`."""
    return ObjectID(first[:TASK_BYTES] + index.to_bytes(4, "big"))


def index_of(object_id: bytes) -> int:
    return int.from_bytes(object_id[TASK_BYTES:], "big")


def short(id: bytes) -> str:
    """The one spelling of an id in logs, errors and reprs: its most telling digits."""
    if len(id) == OBJECT_BYTES:
        index = id[TASK_BYTES:]
        suffix = "put" if index == PUT_INDEX else str(int.from_bytes(index, "big"))
        return f"{short_task(id)}.{suffix}"
    return id[:4].hex()


def short_task(id: bytes) -> str:
    """The same of a task or an actor: all that one parent has created begin alike, and the counter tells them apart."""
    return f"{id[:3].hex()}:{int.from_bytes(id[PREFIX_BYTES:TASK_BYTES], 'big')}"
