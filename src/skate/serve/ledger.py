"""What a controller has to know that is started again: applications, replicas, and where HTTP is answered."""

from __future__ import annotations

from typing import Any

import msgspec

import skate
from skate.serve.config import HTTPOptions
from skate.serve.records import NAMESPACE, AppSpec, ReplicaRecord

__all__ = [
    "Kept",
    "forget_all",
    "forget_app",
    "forget_replica",
    "keep_app",
    "keep_http",
    "keep_replica",
    "read_apps",
    "read_http",
    "read_replicas",
]

APP = "app/"
REPLICA = "replica/"
HTTP = "http"

Http = tuple[HTTPOptions, tuple[str, int]]

_decode = msgspec.msgpack.decode


class Kept(msgspec.Struct):
    """An application: what it is to be, and what it was when it last worked."""

    target: AppSpec
    good: AppSpec | None
    deployed_at: float
    deleting: bool = False


def keep_app(kept: Kept) -> None:
    """Write an application. Raises TypeError, ValueError or ValidationError for one that could not be read again."""
    skate.kv.put(APP + kept.target.name, _encode(kept, Kept), namespace=NAMESPACE)


def forget_app(name: str) -> None:
    """Remove an application."""
    skate.kv.delete(APP + name, namespace=NAMESPACE)


def read_apps() -> list[Kept]:
    """All applications."""
    return [_decode(data, type=Kept) for data in _values(APP)]


def keep_replica(record: ReplicaRecord) -> None:
    """Write a replica."""
    skate.kv.put(REPLICA + record.name, _encode(record, ReplicaRecord), namespace=NAMESPACE)


def forget_replica(record: ReplicaRecord) -> None:
    """Remove a replica."""
    skate.kv.delete(REPLICA + record.name, namespace=NAMESPACE)


def read_replicas() -> list[ReplicaRecord]:
    """All replicas."""
    return [_decode(data, type=ReplicaRecord) for data in _values(REPLICA)]


def keep_http(http: HTTPOptions, address: tuple[str, int]) -> None:
    """Write where and how HTTP is answered."""
    skate.kv.put(HTTP, _encode((http, address), Http), namespace=NAMESPACE)


def read_http() -> Http | None:
    """Where and how HTTP is answered; None if it is not."""
    data = skate.kv.get(HTTP, namespace=NAMESPACE)
    return None if data is None else _decode(data, type=Http)


def forget_all() -> None:
    """Remove everything that serving has kept, blobs and tables included."""
    for key in skate.kv.keys(namespace=NAMESPACE):
        skate.kv.delete(key, namespace=NAMESPACE)


def _encode(value: Any, kind: Any) -> bytes:
    """The bytes of a value. They are read once: what cannot be read would stop every controller that is started."""
    data = msgspec.msgpack.encode(value)
    _decode(data, type=kind)
    return data


def _values(prefix: str) -> list[bytes]:
    found = [skate.kv.get(key, namespace=NAMESPACE) for key in skate.kv.keys(prefix, namespace=NAMESPACE)]
    return [data for data in found if data is not None]
