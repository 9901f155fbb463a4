"""The ids of jobs, nodes, workers, tasks, actors, … as objects, for programs that keep, compare or print them.

    >>> node = skate.NodeID.from_hex(skate.get_runtime_context().get_node_id())
    >>> node == skate.NodeID.from_hex(node.hex())
    True

An id is a `bytes` of a fixed length that knows what it is an id of: two ids are equal if they are of the same kind and
have the same bytes. Inside, Skate uses plain `bytes` (`_core/ids.py` says how they are made); what the public API hands
out as an id is one of these classes, or its hexadecimal digits.
"""

from __future__ import annotations

import builtins
import os
from typing import Any, ClassVar, TypeVar

from skate._core.ids import JOB_BYTES, PROCESS_BYTES, TASK_BYTES
from skate._object_ref import ObjectRef, runtime_or_none

__all__ = [
    "ActorClassID",
    "ActorID",
    "BaseID",
    "ClusterID",
    "FunctionID",
    "JobID",
    "NodeID",
    "ObjectID",
    "ObjectRef",
    "PlacementGroupID",
    "TaskID",
    "UniqueID",
    "WorkerID",
]

AnyID = TypeVar("AnyID", bound="BaseID")

#: An object is named by a reference to it.
ObjectID = ObjectRef


class BaseID(bytes):
    """What all ids have in common."""

    _size: ClassVar[int] = 0

    def __new__(cls: type[AnyID], id: bytes) -> AnyID:
        if not isinstance(id, (bytes, bytearray, memoryview)):
            raise TypeError(f"{cls.__name__}({id!r}): an id is made of bytes; from_hex takes hexadecimal digits.")
        if len(id) != cls._size:
            raise ValueError(f"{cls.__name__}({bytes(id)!r}): it must have {cls._size} bytes, and has {len(id)}.")
        return super().__new__(cls, id)

    @classmethod
    def from_binary(cls: type[AnyID], id_bytes: bytes) -> AnyID:
        return cls(id_bytes)

    @classmethod
    def from_hex(cls: type[AnyID], hex_id: str) -> AnyID:
        """The id that is written so: `NodeID.from_hex(node["NodeID"])`."""
        if not isinstance(hex_id, str):
            raise TypeError(f"{cls.__name__}.from_hex({hex_id!r}): it takes a string of hexadecimal digits.")
        try:
            return cls(bytes.fromhex(hex_id))
        except ValueError:
            raise ValueError(
                f"{cls.__name__}.from_hex({hex_id!r}): it takes a string of {2 * cls._size} hexadecimal digits."
            ) from None

    @classmethod
    def from_random(cls: type[AnyID]) -> AnyID:
        """An id that names nothing that exists."""
        return cls(os.urandom(cls._size))

    @classmethod
    def nil(cls: type[AnyID]) -> AnyID:
        """The id that stands for "none"."""
        return cls(b"\xff" * cls._size)

    @classmethod
    def size(cls) -> int:
        """The number of bytes of such an id."""
        return cls._size

    def is_nil(self) -> bool:
        return bytes(self) == b"\xff" * self._size

    def binary(self) -> bytes:
        return bytes(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, BaseID) and type(other) is not type(self):
            return False
        return bytes.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = bytes.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.hex()})"

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (bytes(self),)


class UniqueID(BaseID):
    """An id that is random, or made by hashing, and holds no other id."""

    _size = 16


class NodeID(UniqueID):
    """The id of a node: `skate.nodes()` lists their hexadecimal digits."""


class WorkerID(UniqueID):
    """The id of a process that runs user code: a worker or a driver."""

    _size = PROCESS_BYTES


class FunctionID(UniqueID):
    """The id of a remote function."""


class ActorClassID(UniqueID):
    """The id of a remote class."""


class ClusterID(UniqueID):
    """The id of a cluster."""

    _size = 8


class JobID(BaseID):
    """The id of a job: of one program that uses Skate, from its `init` to its end."""

    _size = JOB_BYTES

    @classmethod
    def from_int(cls, value: builtins.int) -> JobID:
        return cls(value.to_bytes(cls._size, "little"))

    @classmethod
    def of_process(cls) -> JobID:
        """The job that this process works for; nil if no Skate runs here."""
        runtime = runtime_or_none()
        return cls.nil() if runtime is None else cls(runtime.welcome.job_id)

    def int(self) -> builtins.int:
        return builtins.int.from_bytes(self, "little")


class TaskID(BaseID):
    """The id of a task or of a call of an actor's method: the beginning of the ids of what it returns."""

    _size = TASK_BYTES


class ActorID(BaseID):
    """The id of an actor: `handle._actor_id`."""

    _size = TASK_BYTES

    @property
    def job_id(self) -> JobID:
        """The id of the job that this process works for; nil for the nil id. The id itself does not tell the job."""
        return JobID.nil() if self.is_nil() else JobID.of_process()


class PlacementGroupID(BaseID):
    """The id of a placement group: `group.id`."""

    _size = 12
