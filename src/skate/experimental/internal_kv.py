"""Keys and values of the cluster, under the names that Ray's libraries use for them. `skate.kv` is the public form.

Namespaces here have nothing to do with those of jobs: with None, all programs of the cluster share the keys.
"""

from __future__ import annotations

from typing import Any

from skate import kv
from skate._api import is_initialized

__all__: list[str] = []


def _space(namespace: str | bytes | None) -> str:
    """A namespace of `skate.kv` that no job has."""
    text = namespace.decode() if isinstance(namespace, bytes) else namespace or ""
    return f"_internal_kv:{text}"


def _internal_kv_initialized() -> bool:
    """Whether keys can be read and written: after `init`."""
    return is_initialized()


def _internal_kv_get(key: str | bytes, *, namespace: str | bytes | None = None) -> bytes | None:
    """The value of a key; None if there is none."""
    return kv.get(key, namespace=_space(namespace))


def _internal_kv_exists(key: str | bytes, *, namespace: str | bytes | None = None) -> bool:
    return kv.get(key, namespace=_space(namespace)) is not None


def _internal_kv_put(
    key: str | bytes, value: str | bytes, overwrite: bool = True, *, namespace: str | bytes | None = None
) -> bool:
    """Keep a value under a key. Whether there was one before; without `overwrite` that one stays."""
    space = _space(namespace)
    data = value.encode() if isinstance(value, str) else value
    if kv.put(key, data, overwrite=False, namespace=space):
        return False
    if overwrite:
        kv.put(key, data, namespace=space)
    return True


def _internal_kv_del(key: str | bytes, *, del_by_prefix: bool = False, namespace: str | bytes | None = None) -> int:
    """Forget a key, or all that begin so; how many there were."""
    space = _space(namespace)
    keys = kv.keys(key, namespace=space) if del_by_prefix else [key]
    return sum(kv.delete(each, namespace=space) for each in keys)


def _internal_kv_list(prefix: str | bytes, *, namespace: str | bytes | None = None) -> list[bytes]:
    """The keys that begin so."""
    return kv.keys(prefix, namespace=_space(namespace))


def _initialize_internal_kv(gcs_client: Any = None) -> None:
    """Nothing has to be done: `init` connects."""


def _internal_kv_reset() -> None:
    """Nothing has to be done: `shutdown` disconnects."""
