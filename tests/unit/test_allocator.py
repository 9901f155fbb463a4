"""Free space is never handed out twice, never lost, and found lowest address first."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

import skate._core.allocator
from skate._core.allocator import Allocator, RangeSet

UNITS = 200
ALIGNMENT = 64


def test_allocates_lowest_address_first() -> None:
    allocator = Allocator(1000 * 64)
    first = [allocator.allocate(64) for _ in range(10)]
    assert first == [64 * i for i in range(10)]
    allocator.free(3 * 64, 64)
    allocator.free(7 * 64, 64)
    assert allocator.allocate(1) == 3 * 64
    assert allocator.allocate(65) == 10 * 64
    assert allocator.allocate(64) == 7 * 64


def test_first_fit_skips_holes_that_are_too_small() -> None:
    allocator = Allocator(64 * 10)
    for _ in range(10):
        allocator.allocate(64)
    allocator.free(64, 64)
    allocator.free(5 * 64, 128)
    assert allocator.allocate(128) == 5 * 64
    assert allocator.allocate(128) is None
    assert allocator.largest_free == 64


def test_neighbours_are_merged_whichever_comes_first() -> None:
    for order in ([0, 1, 2], [2, 1, 0], [0, 2, 1], [1, 0, 2]):
        allocator = Allocator(3 * 64)
        assert allocator.allocate(3 * 64) == 0
        for index in order:
            allocator.free(index * 64, 64)
        assert list(allocator.free_ranges) == [(0, 192)]


def test_a_lent_chunk_comes_back_in_pieces() -> None:
    allocator = Allocator(1024)
    offset = allocator.allocate(1024)
    assert offset == 0
    allocator.free(512, 512)
    allocator.free(128, 64)
    assert allocator.used == 512 - 64
    allocator.free(0, 128)
    allocator.free(192, 320)
    assert allocator.used == 0
    allocator.validate()


def test_allocate_up_to_lends_less_but_not_below_the_minimum() -> None:
    allocator = Allocator(64 * 10)
    allocator.allocate(64 * 10)
    allocator.free(0, 64)
    allocator.free(2 * 64, 3 * 64)
    assert allocator.allocate_up_to(5 * 64, 4 * 64) is None
    assert allocator.allocate_up_to(5 * 64, 2 * 64) == (2 * 64, 3 * 64)
    assert allocator.allocate_up_to(64, 64) == (0, 64)
    assert allocator.available == 0


def test_claim_takes_exactly_what_was_asked_for() -> None:
    allocator = Allocator(64 * 10)
    allocator.claim(64, 128)
    assert list(allocator.free_ranges) == [(0, 64), (192, 640)]
    with pytest.raises(ValueError):
        allocator.claim(0, 128)


def test_freeing_free_space_is_refused_and_changes_nothing() -> None:
    allocator = Allocator(64 * 10)
    allocator.allocate(64 * 4)
    for offset, size in ((64 * 3, 128), (64 * 4, 64), (64 * 9, 64), (0, 64 * 10)):
        with pytest.raises(ValueError):
            allocator.free(offset, size)
    with pytest.raises(ValueError):
        allocator.free(1, 64)
    allocator.validate()
    assert allocator.used == 64 * 4


def test_space_may_start_anywhere_and_be_huge() -> None:
    allocator = Allocator(2**62, alignment=4096, start=8192)
    assert allocator.allocate(1) == 8192
    assert allocator.allocate(2**40) == 12288
    with pytest.raises(ValueError):
        Allocator(64, alignment=3)
    with pytest.raises(ValueError):
        Allocator(32)
    with pytest.raises(ValueError):
        Allocator(1024, start=1)


def test_many_ranges_in_many_blocks() -> None:
    """Every second extent freed in random order makes thousands of holes; freeing the rest leaves one."""
    count = 5000
    allocator = Allocator(count * 64)
    for _ in range(count):
        allocator.allocate(64)
    shuffled = list(range(count))
    random.Random(7).shuffle(shuffled)
    for index in sorted(shuffled, key=lambda i: i % 2 == 1):
        allocator.free(index * 64, 64)
        if index % 100 == 0:
            allocator.validate()
    assert list(allocator.free_ranges) == [(0, count * 64)]


class AllocatorModel(RuleBasedStateMachine):
    """The allocator against a plain list of flags, one a unit."""

    def __init__(self) -> None:
        super().__init__()
        # Small blocks, so that a short history sees them split, merge across their borders and vanish.
        self.block_ranges_max = skate._core.allocator.BLOCK_RANGES_MAX
        skate._core.allocator.BLOCK_RANGES_MAX = 4
        self.allocator = Allocator(UNITS * ALIGNMENT, ALIGNMENT)
        self.used = [False] * UNITS

    def teardown(self) -> None:
        skate._core.allocator.BLOCK_RANGES_MAX = self.block_ranges_max

    def runs(self) -> list[tuple[int, int]]:
        """Free runs as (first unit, units)."""
        runs = []
        start = None
        for unit, used in enumerate([*self.used, True]):
            if used and start is not None:
                runs.append((start, unit - start))
                start = None
            elif not used and start is None:
                start = unit
        return runs

    def take(self, start: int, units: int) -> None:
        assert not any(self.used[start : start + units])
        self.used[start : start + units] = [True] * units

    @rule(units=st.integers(1, 12), slack=st.integers(0, ALIGNMENT - 1))
    def allocate(self, units: int, slack: int) -> None:
        expected = next((start for start, length in self.runs() if length >= units), None)
        offset = self.allocator.allocate(units * ALIGNMENT - slack)
        assert offset == (None if expected is None else expected * ALIGNMENT)
        if expected is not None:
            self.take(expected, units)

    @rule(units=st.integers(1, 40), minimum=st.integers(1, 10))
    def allocate_up_to(self, units: int, minimum: int) -> None:
        minimum = min(units, minimum)
        got = self.allocator.allocate_up_to(units * ALIGNMENT, minimum * ALIGNMENT)
        whole = next((start for start, length in self.runs() if length >= units), None)
        part = next(((start, length) for start, length in self.runs() if length >= minimum), None)
        if whole is not None:
            assert got == (whole * ALIGNMENT, units * ALIGNMENT)
            self.take(whole, units)
        elif part is not None:
            assert got == (part[0] * ALIGNMENT, part[1] * ALIGNMENT)
            self.take(*part)
        else:
            assert got is None

    @rule(start=st.integers(0, UNITS - 1), units=st.integers(1, 12))
    def free(self, start: int, units: int) -> None:
        units = min(units, UNITS - start)
        if all(self.used[start : start + units]):
            self.allocator.free(start * ALIGNMENT, units * ALIGNMENT)
            self.used[start : start + units] = [False] * units
        else:
            with pytest.raises(ValueError):
                self.allocator.free(start * ALIGNMENT, units * ALIGNMENT)

    @rule(start=st.integers(0, UNITS - 1), units=st.integers(1, 12))
    def claim(self, start: int, units: int) -> None:
        units = min(units, UNITS - start)
        if any(self.used[start : start + units]):
            with pytest.raises(ValueError):
                self.allocator.claim(start * ALIGNMENT, units * ALIGNMENT)
        else:
            self.allocator.claim(start * ALIGNMENT, units * ALIGNMENT)
            self.take(start, units)

    @rule(every=st.integers(2, 5))
    def free_every_nth_used_unit(self, every: int) -> None:
        for unit in [unit for unit, used in enumerate(self.used) if used][::every]:
            self.allocator.free(unit * ALIGNMENT, ALIGNMENT)
            self.used[unit] = False

    @rule(start=st.integers(0, UNITS - 1), units=st.integers(1, UNITS))
    def within(self, start: int, units: int) -> None:
        end = min(start + units, UNITS)
        parts = self.allocator.free_ranges.within(start * ALIGNMENT, end * ALIGNMENT)
        inside = {unit for a, b in parts for unit in range(a // ALIGNMENT, b // ALIGNMENT)}
        assert inside == {unit for unit in range(start, end) if not self.used[unit]}

    @rule(start=st.integers(0, UNITS - 1), units=st.integers(1, 12))
    def touching(self, start: int, units: int) -> None:
        end = min(start + units, UNITS)
        if all(self.used[start:end]):
            left, right = self.allocator.free_ranges.touching(start * ALIGNMENT, end * ALIGNMENT)
            runs = self.runs()
            assert left // ALIGNMENT == next((first for first, length in runs if first + length == start), start)
            assert right // ALIGNMENT == next((first + length for first, length in runs if first == end), end)

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.allocator.validate()
        runs = self.runs()
        assert [(a // ALIGNMENT, (b - a) // ALIGNMENT) for a, b in self.allocator.free_ranges] == runs
        assert self.allocator.used == sum(self.used) * ALIGNMENT
        assert self.allocator.largest_free == max((length for _, length in runs), default=0) * ALIGNMENT
        assert len(self.allocator.free_ranges) == len(runs)

    @invariant()
    def a_copy_is_equal_and_separate(self) -> None:
        twin: RangeSet = self.allocator.free_ranges.copy()
        assert list(twin) == list(self.allocator.free_ranges)
        twin.validate()
        twin.add(UNITS * ALIGNMENT, UNITS * ALIGNMENT + 64)
        assert self.allocator.available == sum(not used for used in self.used) * ALIGNMENT


TestAllocatorModel = AllocatorModel.TestCase
TestAllocatorModel.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
