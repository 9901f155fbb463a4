"""Where the control service keeps what must outlive it: tables of keys and values, one key at a time.

Every operation concerns one key, so that keys can lie on different shards (`Sharded`) and no two of these ever have to
agree. No operation blocks: its result is handed to `then`, at once or later, in the order in which operations on the
same key were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

try:
    from _blake2 import blake2b  # as in ids.py: `hashlib` would load OpenSSL
except ImportError:
    from hashlib import blake2b

Pairs = list[tuple[bytes, bytes]]


class Backend(Protocol):
    def get(self, table: str, key: bytes, then: Callable[[bytes | None], None]) -> None: ...

    def put(self, table: str, key: bytes, value: bytes, then: Callable[[], None]) -> None: ...

    def delete(self, table: str, key: bytes, then: Callable[[bool], None]) -> None:
        """`then` is told whether it was there."""

    def scan(self, table: str, prefix: bytes, then: Callable[[Pairs], None]) -> None:
        """All keys that begin so, with their values, in order."""


class Memory:
    """A shard that forgets everything with its process."""

    def __init__(self) -> None:
        self._tables: dict[str, dict[bytes, bytes]] = {}

    def get(self, table: str, key: bytes, then: Callable[[bytes | None], None]) -> None:
        then(self._tables.get(table, {}).get(key))

    def put(self, table: str, key: bytes, value: bytes, then: Callable[[], None]) -> None:
        self._tables.setdefault(table, {})[key] = value
        then()

    def delete(self, table: str, key: bytes, then: Callable[[bool], None]) -> None:
        then(self._tables.get(table, {}).pop(key, None) is not None)

    def scan(self, table: str, prefix: bytes, then: Callable[[Pairs], None]) -> None:
        then(sorted(pair for pair in self._tables.get(table, {}).items() if pair[0].startswith(prefix)))


class Sharded:
    """Several shards as one: a key is always on the same."""

    def __init__(self, shards: Sequence[Backend]) -> None:
        self._shards = shards

    def shard_of(self, table: str, key: bytes) -> int:
        digest = blake2b(table.encode() + b"\0" + key, digest_size=8).digest()
        return int.from_bytes(digest, "big") % len(self._shards)

    def _shard(self, table: str, key: bytes) -> Backend:
        return self._shards[self.shard_of(table, key)]

    def get(self, table: str, key: bytes, then: Callable[[bytes | None], None]) -> None:
        self._shard(table, key).get(table, key, then)

    def put(self, table: str, key: bytes, value: bytes, then: Callable[[], None]) -> None:
        self._shard(table, key).put(table, key, value, then)

    def delete(self, table: str, key: bytes, then: Callable[[bool], None]) -> None:
        self._shard(table, key).delete(table, key, then)

    def scan(self, table: str, prefix: bytes, then: Callable[[Pairs], None]) -> None:
        parts: list[Pairs] = []

        def on_part(part: Pairs) -> None:
            parts.append(part)
            if len(parts) == len(self._shards):
                then(sorted(pair for part in parts for pair in part))

        for shard in self._shards:
            shard.scan(table, prefix, on_part)
