"""Which of several shards has a key.

    (table, key) ──blake2b──▶ slot 0 … 255 ──Layout──▶ shard

The slot of a key never changes. A layout says which shard has each slot, and is part of a cluster's configuration.
With `hash % shards` instead, each added shard would move nearly all keys; here it moves its own share.

Pure.
Invariant: the numbers of slots of any two shards differ by one at most.
"""

from __future__ import annotations

import msgspec

try:
    from _blake2 import blake2b  # as in ids.py: `hashlib` would load OpenSSL
except ImportError:
    from hashlib import blake2b

SLOTS = 256


def slot_of(table: str, key: bytes) -> int:
    return blake2b(table.encode() + b"\0" + key, digest_size=8).digest()[-1]


class Layout(msgspec.Struct, frozen=True):
    """The shard of each slot."""

    #: One byte a slot: the number of its shard.
    shards: bytes = bytes(SLOTS)

    @classmethod
    def of(cls, count: int) -> Layout:
        """The layout of `count` shards that were there from the beginning."""
        layout = cls()
        for _ in range(1, count):
            layout = layout.add_shard()
        return layout

    @property
    def count(self) -> int:
        """How many shards there are."""
        return max(self.shards) + 1

    def shard_of(self, table: str, key: bytes) -> int:
        return self.shards[slot_of(table, key)]

    def slots_of(self, shard: int) -> list[int]:
        return [slot for slot in range(SLOTS) if self.shards[slot] == shard]

    def add_shard(self) -> Layout:
        """One shard more. It takes slots from those that have most, and nothing else moves."""
        new = self.count
        if new == SLOTS:
            raise ValueError(f"a store has at most {SLOTS} shards: one for each slot")
        slots: list[list[int]] = [[] for _ in range(new)]
        for slot, shard in enumerate(self.shards):
            slots[shard].append(slot)
        shards = bytearray(self.shards)
        for _ in range(SLOTS // (new + 1)):
            fullest = max(range(new), key=lambda shard: len(slots[shard]))
            shards[slots[fullest].pop()] = new
        return Layout(bytes(shards))

    def moved_to(self, later: Layout) -> list[int]:
        """The slots that have another shard in a later layout."""
        return [slot for slot in range(SLOTS) if self.shards[slot] != later.shards[slot]]
