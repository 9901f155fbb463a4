"""Keys and values that the whole cluster shares: small settings, addresses, results of a vote.

    skate.kv.put("lr", b"0.1")
    skate.kv.get("lr")                      # b"0.1", on every node
    skate.kv.put("leader", me, overwrite=False)   # True for the one who is first

Each namespace has keys of its own. Values are bytes of at most a megabyte: what is larger belongs into an object.
Keys have at most 64 KiB.
"""

from __future__ import annotations

from typing import Any

from skate._wire.messages import KeyValue
from skate._worker.current import get_runtime

__all__ = ["delete", "get", "keys", "put"]

VALUE_BYTES_MAX = 1 << 20
#: With the namespace.
KEY_BYTES_MAX = 64 << 10


def put(key: str | bytes, value: bytes, *, overwrite: bool = True, namespace: str | None = None) -> bool:
    """Keep a value under a key; whether that was done. Without `overwrite`, only if there is none."""
    if not isinstance(value, bytes):
        raise TypeError(f"kv.put({key!r}, …): the value is of type {type(value).__name__}; it may be bytes.")
    if len(value) > VALUE_BYTES_MAX:
        raise ValueError(
            f"kv.put({key!r}, …): the value has {len(value)} bytes, and {VALUE_BYTES_MAX} is the most. Put it into the "
            "object store with skate.put() and keep a reference in a named actor."
        )
    done: bool = _ask("put", key, namespace, value, overwrite=overwrite)
    return done


def get(key: str | bytes, *, namespace: str | None = None) -> bytes | None:
    """The value of a key; None if there is none."""
    value: bytes | None = _ask("get", key, namespace)
    return value


def delete(key: str | bytes, *, namespace: str | None = None) -> bool:
    """Forget a key; whether it was there."""
    there: bool = _ask("delete", key, namespace)
    return there


def keys(prefix: str | bytes = b"", *, namespace: str | None = None) -> list[bytes]:
    """The keys that begin so, in order."""
    found: list[bytes] = _ask("keys", prefix, namespace)
    return found


def _ask(what: str, key: str | bytes, namespace: str | None, value: bytes = b"", *, overwrite: bool = True) -> Any:
    if not isinstance(key, (str, bytes)):
        raise TypeError(f"kv.{what}({key!r}): a key may be a string or bytes.")
    if namespace is not None and (not isinstance(namespace, str) or "\0" in namespace):
        raise TypeError(f"kv.{what}(namespace={namespace!r}): it may be a string without zero bytes.")
    runtime = get_runtime()
    raw = key.encode() if isinstance(key, str) else key
    space = runtime.welcome.namespace if namespace is None else namespace
    if (size := len(raw) + len(space.encode())) > KEY_BYTES_MAX:
        raise ValueError(
            f"kv.{what}({raw[:20]!r}…): the key and its namespace have {size} bytes, and {KEY_BYTES_MAX} is the most. "
            "Use a hash of it as the key."
        )
    answer = runtime.request(lambda number: KeyValue(number, what, space, raw, value, overwrite))
    return answer.body
