"""Slots and layouts: a key has one slot for ever, and a shard more moves its own share and no more."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate._control.storage.slots import SLOTS, Layout, slot_of


def test_the_slot_of_a_key_is_the_same_for_ever() -> None:
    assert [slot_of("kv", b""), slot_of("kv", b"a"), slot_of("k", b"va"), slot_of("actors", b"\xff")] == SOME_SLOTS


#: A store on disk has its rows where these numbers said.
SOME_SLOTS = [76, 137, 54, 49]


def test_keys_spread_over_the_shards() -> None:
    layout = Layout.of(4)
    seen = [layout.shard_of("table", str(number).encode()) for number in range(1000)]
    assert all(200 < seen.count(shard) < 300 for shard in range(4))


def test_a_shard_more_moves_its_own_share_and_nothing_else() -> None:
    """From one shard to as many as there can be."""
    before = Layout()
    for count in range(1, SLOTS):
        later = before.add_shard()
        sizes = [len(later.slots_of(shard)) for shard in range(later.count)]
        assert later.count == count + 1
        assert sum(sizes) == SLOTS
        assert max(sizes) - min(sizes) <= 1
        assert before.moved_to(later) == later.slots_of(count), "only to the new shard"
        assert len(later.slots_of(count)) == SLOTS // (count + 1), "as few as a fair share has"
        before = later


@given(st.integers(1, 20), st.text(max_size=3), st.binary(max_size=3))
def test_every_key_has_a_shard(count: int, table: str, key: bytes) -> None:
    layout = Layout.of(count)
    assert layout.shard_of(table, key) in range(count)
    assert slot_of(table, key) in layout.slots_of(layout.shard_of(table, key))


def test_there_are_as_many_shards_as_slots_at_most() -> None:
    with pytest.raises(ValueError, match="at most 256 shards"):
        Layout.of(SLOTS + 1)
