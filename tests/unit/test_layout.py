"""The arena's layout is a contract between processes: its numbers are pinned here."""

from __future__ import annotations

import pytest

from skate._core.ids import OBJECT_BYTES
from skate._core.object_room import ARENA_ALIGNMENT
from skate._store import layout


def test_offsets_are_those_of_the_table() -> None:
    assert layout.HEAD_BYTES == 1 << 20
    assert layout.SLOT_BYTES == 64
    assert layout.SLOT_COUNT == 16_384
    assert layout.SLOT_TASK_BYTES == OBJECT_BYTES == 20
    assert layout.ALIGNMENT == ARENA_ALIGNMENT == 64
    assert layout.HEAD_BYTES % layout.ALIGNMENT == 0


def test_slots_fill_the_head_and_do_not_overlap() -> None:
    assert [layout.slot_offset(i) for i in (0, 1, 16_383)] == [0, 64, 1_048_512]
    assert layout.slot_offset(layout.SLOT_COUNT - 1) + layout.SLOT_BYTES == layout.HEAD_BYTES
    for slot in (-1, layout.SLOT_COUNT):
        with pytest.raises(ValueError, match="no process slot"):
            layout.slot_offset(slot)


def test_sizes_are_rounded_up() -> None:
    assert [layout.align(size) for size in (0, 1, 64, 65)] == [0, 64, 64, 128]
    assert [layout.view_bytes(size) for size in (0, 1, 2, 3, 4, 5, 1 << 20, (1 << 20) + 1)] == [
        1, 1, 2, 4, 4, 8, 1 << 20, 1 << 21,
    ]  # fmt: skip


@pytest.mark.parametrize("arena_bytes", [100_000, 1 << 20, (1 << 20) + 1, 3 << 30])
def test_the_largest_view_at_the_last_place_fits_into_the_file(arena_bytes: int) -> None:
    """An object of `size` bytes may begin at arena_bytes - size at most."""
    for size in (1, 64, 1000, arena_bytes // 2, arena_bytes // 2 + 1, arena_bytes):
        assert arena_bytes - size + layout.view_bytes(size) <= layout.names_offset(arena_bytes)
    assert layout.name_offset(arena_bytes, 0) == layout.names_offset(arena_bytes)
    last = layout.name_offset(arena_bytes, layout.SLOT_COUNT - 1)
    assert last + layout.NAME_BYTES == layout.arena_file_bytes(arena_bytes)


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("", ""),
        ("f", "f"),
        ("näh", "näh"),
        ("a" * 97, "a" * 96),
        ("ä" * 60, "ä" * 48),
        ("a" + "ä" * 60, "a" + "ä" * 47),
    ],
)
def test_a_name_that_is_too_long_is_cut_between_characters(name: str, kept: str) -> None:
    field = layout.format_name(name)
    assert len(field) == layout.NAME_BYTES == 96
    assert layout.parse_name(field) == kept
