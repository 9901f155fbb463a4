"""Which bytes of a large space are free.

Owns:      the free ranges of a space, in address order. It does not remember who holds the rest: any part of used space
           may be given back, so a chunk that was lent whole can come back in pieces, with no call to split it first.
Knows not: memory, files, processes. `object_table` uses one for the arena, one for the spill file, and plain range
           sets for what it lent to each process.
Idea:      address-ordered first fit. Low addresses are used again first, and their pages are warm: copying into a page
           that was never touched costs several times as much as into one that was.
           The sorted ranges are cut into blocks of about a hundred, each with an upper bound of its largest range. A
           search skips the blocks that cannot help and looks through one that can, so with 50,000 holes it looks
           at hundreds of numbers and not at 50,000. A balanced tree would need fewer steps, each of them far slower.
Invariants: ranges are not empty, do not overlap and do not touch (neighbours are merged at once); no block is empty;
           no range is larger than its block's bound. See `validate`, and tests/unit/test_allocator.py for a model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

#: A block with more ranges than this is cut in two.
BLOCK_RANGES_MAX = 128


class RangeSet:
    """A set of integers, kept as sorted half-open ranges [start, end)."""

    __slots__ = ("_bounds", "_ends", "_firsts", "_starts", "total")

    def __init__(self) -> None:
        #: How many integers are in the set.
        self.total = 0
        #: Where the ranges start and end, block by block.
        self._starts: list[list[int]] = []
        self._ends: list[list[int]] = []
        #: The first start of each block: where to look for an address.
        self._firsts: list[int] = []
        #: No range of the block is longer than this. Too high after a removal, until a search finds out.
        self._bounds: list[int] = []

    def add(self, start: int, end: int) -> tuple[int, int]:
        """Put [start, end) in, and return the range that it is now part of. Nothing of it may have been in before."""
        if start >= end:
            raise ValueError(f"[{start}, {end}) is not a range")
        if not self._firsts:
            self._starts, self._ends = [[start]], [[end]]
            self._firsts, self._bounds = [start], [end - start]
            self.total = end - start
            return start, end
        block = max(bisect_right(self._firsts, start) - 1, 0)
        starts, ends = self._starts[block], self._ends[block]
        index = bisect_right(starts, start)
        # The range after this one may be the first of the next block.
        if index < len(starts):
            next_block, next_index = block, index
            next_start = starts[index]
        elif block + 1 < len(self._firsts):
            next_block, next_index = block + 1, 0
            next_start = self._firsts[next_block]
        else:
            next_block = next_index = -1
            next_start = end + 1
        if next_start < end or (index and ends[index - 1] > start):
            raise ValueError(f"[{start}, {end}) overlaps what is in the set already")

        self.total += end - start
        touches_next = next_start == end
        if index and ends[index - 1] == start:
            start = starts[index - 1]
            if touches_next:
                end = self._ends[next_block][next_index]
                ends[index - 1] = end
                self._delete(next_block, next_index)
            else:
                ends[index - 1] = end
        elif touches_next:
            block = next_block
            end = self._ends[block][next_index]
            self._starts[block][next_index] = start
            if next_index == 0:
                self._firsts[block] = start
        else:
            self._insert(block, index, start, end)
            return start, end
        if end - start > self._bounds[block]:
            self._bounds[block] = end - start
        return start, end

    def remove(self, start: int, end: int) -> None:
        """Take [start, end) out. All of it must be in."""
        block = bisect_right(self._firsts, start) - 1
        index = bisect_right(self._starts[block], start) - 1 if block >= 0 else -1
        if index < 0 or self._ends[block][index] < end or start >= end:
            raise ValueError(f"[{start}, {end}) is not, or not wholly, in the set")
        starts, ends = self._starts[block], self._ends[block]
        old_start, old_end = starts[index], ends[index]
        self.total -= end - start
        if old_start == start:
            if old_end == end:
                self._delete(block, index)
                return
            starts[index] = end
            if index == 0:
                self._firsts[block] = end
        else:
            ends[index] = start
            if old_end != end:
                self._insert(block, index + 1, end, old_end)

    def first_fit(self, size: int) -> int | None:
        """The start of the first range of at least `size`, in address order."""
        for block, bound in enumerate(self._bounds):
            if bound < size:
                continue
            starts = self._starts[block]
            longest = 0
            for start, end in zip(starts, self._ends[block]):
                length = end - start
                if length >= size:
                    return start
                if length > longest:
                    longest = length
            self._bounds[block] = longest
        return None

    def end_of(self, start: int) -> int:
        """The end of the range that begins at `start`."""
        block = bisect_right(self._firsts, start) - 1
        index = bisect_right(self._starts[block], start) - 1 if block >= 0 else -1
        if index < 0 or self._starts[block][index] != start:
            raise ValueError(f"no range begins at {start}")
        return self._ends[block][index]

    def touching(self, start: int, end: int) -> tuple[int, int]:
        """[start, end), which is not in the set, together with the ranges that touch it."""
        block = bisect_right(self._firsts, start) - 1
        left, right = start, end
        if block >= 0:
            index = bisect_right(self._starts[block], start) - 1
            if self._ends[block][index] == start:
                left = self._starts[block][index]
        else:
            block, index = 0, -1
        index += 1
        if block < len(self._firsts):
            if index == len(self._starts[block]):
                block, index = block + 1, 0
            if block < len(self._firsts) and self._starts[block][index] == end:
                right = self._ends[block][index]
        return left, right

    def largest(self) -> int:
        """The length of the longest range."""
        longest = 0
        for block, bound in enumerate(self._bounds):
            if bound > longest:
                bound = max(end - start for start, end in zip(self._starts[block], self._ends[block]))
                self._bounds[block] = bound
                longest = max(longest, bound)
        return longest

    def within(self, start: int, end: int) -> list[tuple[int, int]]:
        """The parts of [start, end) that are in the set."""
        parts: list[tuple[int, int]] = []
        for block in range(max(bisect_right(self._firsts, start) - 1, 0), len(self._firsts)):
            if self._firsts[block] >= end:
                break
            for part_start, part_end in zip(self._starts[block], self._ends[block]):
                if part_start < end and part_end > start:
                    parts.append((max(part_start, start), min(part_end, end)))
        return parts

    def copy(self) -> RangeSet:
        twin = RangeSet()
        twin.total = self.total
        twin._starts = [block.copy() for block in self._starts]
        twin._ends = [block.copy() for block in self._ends]
        twin._firsts = self._firsts.copy()
        twin._bounds = self._bounds.copy()
        return twin

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for starts, ends in zip(self._starts, self._ends):
            yield from zip(starts, ends)

    def __len__(self) -> int:
        """The number of ranges."""
        return sum(map(len, self._starts))

    def validate(self) -> None:
        last_end = None
        total = 0
        for starts, ends, first, bound in zip(self._starts, self._ends, self._firsts, self._bounds):
            assert 0 < len(starts) == len(ends) <= BLOCK_RANGES_MAX
            assert starts[0] == first
            for start, end in zip(starts, ends):
                assert last_end is None or last_end < start, "ranges overlap, touch or are out of order"
                assert start < end <= start + bound
                last_end = end
                total += end - start
        assert len(self._starts) == len(self._ends) == len(self._firsts) == len(self._bounds)
        assert total == self.total

    def _insert(self, block: int, index: int, start: int, end: int) -> None:
        starts, ends = self._starts[block], self._ends[block]
        starts.insert(index, start)
        ends.insert(index, end)
        if index == 0:
            self._firsts[block] = start
        if end - start > self._bounds[block]:
            self._bounds[block] = end - start
        if len(starts) > BLOCK_RANGES_MAX:
            half = len(starts) // 2
            self._starts[block : block + 1] = [starts[:half], starts[half:]]
            self._ends[block : block + 1] = [ends[:half], ends[half:]]
            self._firsts.insert(block + 1, starts[half])
            self._bounds.insert(block + 1, self._bounds[block])

    def _delete(self, block: int, index: int) -> None:
        starts = self._starts[block]
        if len(starts) == 1:
            del self._starts[block], self._ends[block], self._firsts[block], self._bounds[block]
            return
        del starts[index], self._ends[block][index]
        if index == 0:
            self._firsts[block] = starts[0]


class Allocator:
    """Hands out ranges of [start, end). Every size is rounded up to a multiple of `alignment`."""

    __slots__ = ("_free", "alignment", "capacity")

    def __init__(self, end: int, alignment: int = 64, start: int = 0) -> None:
        if alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"alignment must be a power of two, not {alignment}")
        if start % alignment:
            raise ValueError(f"start must be a multiple of the alignment, {alignment}, and not {start}")
        end -= end % alignment
        if end <= start:
            raise ValueError(f"there is no space between {start} and {end}")
        self.alignment = alignment
        #: Bytes that can be handed out in all.
        self.capacity = end - start
        self._free = RangeSet()
        self._free.add(start, end)

    def round_up(self, size: int) -> int:
        """The space that `size` bytes take up."""
        return (size + self.alignment - 1) & -self.alignment

    def allocate(self, size: int) -> int | None:
        """The offset of `size` bytes that were free, or None if no free range is that long."""
        size = self.round_up(size)
        offset = self._free.first_fit(size)
        if offset is not None:
            self._free.remove(offset, offset + size)
        return offset

    def allocate_up_to(self, size: int, minimum: int) -> tuple[int, int] | None:
        """(offset, size) of `size` bytes or, if no free range is that long, of the first that has `minimum` bytes."""
        offset = self.allocate(size)
        if offset is not None:
            return offset, self.round_up(size)
        offset = self._free.first_fit(self.round_up(minimum))
        if offset is None:
            return None
        end = self._free.end_of(offset)
        self._free.remove(offset, end)
        return offset, end - offset

    def claim(self, offset: int, size: int) -> None:
        """Take these very bytes, which must be free."""
        self._free.remove(offset, offset + self.round_up(size))

    def free(self, offset: int, size: int) -> None:
        """Give back used space: all that one `allocate` returned, or any aligned part of it."""
        if offset % self.alignment:
            raise ValueError(f"{offset} is not a multiple of {self.alignment}")
        self._free.add(offset, offset + self.round_up(size))

    @property
    def available(self) -> int:
        """Free bytes, in however many pieces."""
        return self._free.total

    @property
    def used(self) -> int:
        return self.capacity - self._free.total

    @property
    def largest_free(self) -> int:
        """The largest size that `allocate` would serve."""
        return self._free.largest()

    @property
    def free_ranges(self) -> RangeSet:
        """The free space; to look at, not to change."""
        return self._free

    def validate(self) -> None:
        self._free.validate()
        assert 0 <= self._free.total <= self.capacity
        for start, end in self._free:
            assert start % self.alignment == end % self.alignment == 0
