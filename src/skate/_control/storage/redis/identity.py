"""What a shard knows about the store: one row in a table of the storage's own, written when the store is opened."""

from __future__ import annotations

import time

import msgspec

from skate._control.storage.errors import StorageCorrupt, StorageNewer
from skate._control.storage.interface import Meta

SCHEMA = 1
#: The empty name, which no user of a storage can use (`admission.py`).
META_TABLE = ""
META_KEY = b"meta"


class Identity(msgspec.Struct, frozen=True):
    incarnation: int = 0
    schema: int = SCHEMA
    created_at: float = 0.0

    @classmethod
    def decode(cls, row: bytes | None) -> Identity:
        if row is None:
            return cls(created_at=time.time())
        try:
            found = msgspec.json.decode(row, type=cls)
        except msgspec.MsgspecError as error:
            raise StorageCorrupt(
                "The store does not say what it is.", f"Its own row cannot be read: {error}."
            ) from error
        if found.schema > SCHEMA:
            newer = StorageNewer(
                "The store was written by a later version of Skate.",
                f"Its schema is number {found.schema}, and this version knows those up to {SCHEMA}.",
                "start that version of Skate or a later one.",
            )
            newer.found, newer.known = found.schema, SCHEMA
            raise newer
        return found

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    def opened_again(self) -> Identity:
        return Identity(self.incarnation + 1, SCHEMA, self.created_at)

    def meta(self, cluster_id: str) -> Meta:
        return Meta(cluster_id, self.incarnation, self.schema, self.created_at)
