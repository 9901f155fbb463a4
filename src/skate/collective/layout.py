"""What lies where in the memory of a rank. Pure.

    OFFSET          SIZE
    0               64 each            words that the rank alone writes, one to a cache line:
                                       WRITTEN  steps whose slot is written
                                       DONE     steps whose slots, of all ranks, have been read
                                       CALLS    collective operations that are complete
                                       ASLEEP   what the rank waits for in the kernel; 0: it does not (`Awaited`)
                                       STATE    one of `State`
                                       SENT(d)  chunks sent to rank d;   TAKEN(s)  chunks received from rank s
    texts           4096               why the group is broken, filled up with zeros (`CollectiveError.pack`)
    doing           256                what the rank has called, in words; written when it waits in the kernel
    headers         256 each           what the operation is that begins in a slot: SLOTS, then SLOTS for each rank
    slots           CHUNK_BYTES each   SLOTS for all ranks to read (`plan.py`), then SLOTS for each rank (send)

Pages that are never written take no memory: send to few ranks, and only those slots exist.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from skate.collective.plan import SLOTS

#: What ranks do between two looks at each other. Two slots and the part of the array that they came from should stay in
#: a core's second-level cache, where chunks of 128 KiB to 512 KiB cost the same (100 MB, 2 ranks). The largest of them
#: needs the fewest looks: on a busy machine 256 KiB took up to twice as long.
CHUNK_BYTES = 512 * 1024

HEADER_BYTES = 256
TEXT_BYTES = 4096
PAGE_BYTES = 4096
WORD_BYTES = 8
LINE_WORDS = 64 // WORD_BYTES

#: Words, by their index in an array of 8-byte words.
WRITTEN, DONE, CALLS, ASLEEP, STATE, READY = (line * LINE_WORDS for line in range(6))
_FIRST_PAIR = 8 * LINE_WORDS

#: More ranks on one node than this have no place in a word of ASLEEP.
RANKS_MAX = 1000


class State:
    """What a rank says about itself in its word STATE."""

    ALIVE, BROKEN, LEFT = 0, 1, 2


def sent(to: int) -> int:
    """The index of the word that counts chunks sent to a rank."""
    return _FIRST_PAIR + 2 * to * LINE_WORDS


def taken(source: int) -> int:
    """The index of the word that counts chunks received from a rank."""
    return sent(source) + LINE_WORDS


class Awaited(NamedTuple):
    """A word of another rank that this one waits for, until it is at least `value`. It is one word itself.

    One word, because a reader that saw half of it would wake the rank too early, or not at all.
    """

    rank: int
    word: int
    value: int

    def pack(self) -> int:
        return self.value << 26 | self.word << 10 | self.rank + 1

    @classmethod
    def unpack(cls, packed: int) -> Awaited:
        return cls((packed & 0x3FF) - 1, packed >> 10 & 0xFFFF, packed >> 26)


@dataclass(frozen=True)
class Layout:
    """Offsets in bytes, for a number of ranks on a node."""

    ranks: int

    @property
    def texts(self) -> int:
        return _up(sent(self.ranks) * WORD_BYTES)

    @property
    def doing(self) -> int:
        return self.texts + TEXT_BYTES

    def header(self, slot: int, to: int | None = None) -> int:
        """Where the header of a slot is: of one that all read, or of one for the rank `to`."""
        number = slot if to is None else SLOTS * (1 + to) + slot
        return self.doing + HEADER_BYTES + number * HEADER_BYTES

    def slot(self, slot: int, to: int | None = None) -> int:
        number = slot if to is None else SLOTS * (1 + to) + slot
        return _up(self.header(0, self.ranks)) + number * CHUNK_BYTES

    @property
    def size(self) -> int:
        return self.slot(0, self.ranks)


def _up(offset: int) -> int:
    return -(-offset // PAGE_BYTES) * PAGE_BYTES
