"""What the object table keeps about objects, processes and requests, and the commands that it gives.

An object's life:

    lent space ──seal──▶ MEMORY ──chosen to leave──▶ SPILLING ──written──▶ DISK
                          ▲  ▲                         │                    │  wanted, and room was found
                          │  └──pinned, or disk full───┘                    ▼
                          └───────────────────read────────────────────── RESTORING

A redundant copy (its original lies on a living node) is not written to disk: chosen to leave, it is dropped.

Memory of an object is reused when it is freed (or on disk), nobody pins it and no I/O touches it. A restored object
keeps its copy on disk: should it leave again, it leaves at once, and nothing is written.

Sets of records are dictionaries without values: their order is that of events, so that a history can be replayed.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from skate._core.allocator import RangeSet

# -- commands ---------------------------------------------------------------------------------------------------------


class ReplyAllocated(NamedTuple):
    """Tell the process that it may fill [offset, offset + size)."""

    process: bytes
    request: int
    offset: int
    size: int


class ReplyPinned(NamedTuple):
    """Tell the process where its objects are: (offset, size), or (-1, 0) for one that is freed or unknown."""

    process: bytes
    request: int
    at: list[tuple[int, int]]


class ReplyFull(NamedTuple):
    """Tell the process that its Allocate or Pin found no room."""

    process: bytes
    request: int
    report: str
    disk: bool
    #: What holds the memory, largest first: (what and for whom, bytes).
    holders: list[tuple[str, int]] = []  # noqa: RUF012 - a tuple's default, never changed


class StartSpill(NamedTuple):
    """Copy `size` bytes at `offset` of the arena to `disk` of the spill file; then call `spill_ended`."""

    job: int
    offset: int
    size: int
    disk: int
    #: Memory of the machine is short: the system is to keep none of it in its cache of files either.
    uncached: bool = False


class StartRestore(NamedTuple):
    """Copy `size` bytes at `disk` of the spill file to `offset` of the arena; then call `restore_ended`."""

    job: int
    disk: int
    size: int
    offset: int


class StartReserve(NamedTuple):
    """Make sure that `size` bytes at `disk` of the spill file can be written later; then call `reserve_ended`."""

    job: int
    disk: int
    size: int


class Discard(NamedTuple):
    """That part of the spill file is not needed any more. To be done before any later command touches it."""

    disk: int
    size: int


class ReportDropped(NamedTuple):
    """Tell others that this copy of an object is not here any more. To be done before any later command."""

    id: bytes


class AskForGarbage(NamedTuple):
    """Ask all processes to collect garbage; when they have, call `garbage_collected`."""


Command = (
    ReplyAllocated
    | ReplyPinned
    | ReplyFull
    | StartSpill
    | StartRestore
    | StartReserve
    | Discard
    | ReportDropped
    | AskForGarbage
)


# -- records ----------------------------------------------------------------------------------------------------------


class Place(enum.Enum):
    MEMORY = "memory"
    SPILLING = "spilling"  # in memory, and being copied to disk
    DISK = "disk"
    RESTORING = "restoring"  # on disk, and being copied to memory


#: The same, one lookup cheaper.
MEMORY, SPILLING, DISK, RESTORING = Place.MEMORY, Place.SPILLING, Place.DISK, Place.RESTORING


class StoredObject:
    """A sealed object."""

    __slots__ = (
        "disk",
        "freed",
        "hole",
        "id",
        "is_copy",
        "offset",
        "owner",
        "pins",
        "place",
        "room",
        "size",
        "stale",
        "wanted_by",
    )

    def __init__(self, object_id: bytes, owner: bytes, offset: int, size: int) -> None:
        self.id = object_id
        self.owner = owner
        #: Its original was made on another node.
        self.is_copy = False
        self.size = size
        self.place = MEMORY
        #: Where in the arena; -1 if it has no memory (exactly while its place is DISK).
        self.offset = offset
        #: Where in the spill file its copy is; -1 if there is none. Kept when the object is restored.
        self.disk = -1
        #: To be forgotten as soon as nobody pins it and no I/O touches it.
        self.freed = False
        #: Process → number of pins. An object is in memory while this is not empty.
        self.pins: dict[bytes, int] = {}
        #: Earlier versions of the object that share `pins`, because some of the pins are theirs: they go when all go.
        self.stale: tuple[StoredObject, ...] = ()
        #: The pins that wait until this and other objects are in memory. Empty if freed.
        self.wanted_by: dict[PinWait, None] = {}
        #: Its place in the queue for memory to be restored into; only while on disk and wanted.
        self.room: Room | None = None
        #: The request for which it leaves memory; only while spilling and not pinned.
        self.hole: Room | None = None


class Room:
    """A request for room: from a process (to lend it space), or for an object (to restore it)."""

    __slots__ = (
        "claimed", "end", "holder", "leaving", "minimum", "object", "overtaken", "process", "request",
        "search_after", "sequence", "since", "size", "start",
    )  # fmt: skip

    def __init__(self, sequence: int, size: int, minimum: int, since: float) -> None:
        self.sequence = sequence
        self.size = size
        #: Less than `size` if a smaller piece will do.
        self.minimum = minimum
        self.since = since
        #: Who asked: a process with the number of its request…
        self.process = b""
        self.request = 0
        self.holder: Process | None = None
        #: … or an object.
        self.object: StoredObject | None = None
        #: The hole that is being made for it, [start, end); start is -1 if there is none.
        self.start = -1
        self.end = -1
        #: The parts of the hole that are free already, and belong to it.
        self.claimed: list[tuple[int, int]] = []
        #: The objects on the rest of the hole.
        self.leaving: dict[StoredObject, None] = {}
        #: How many younger requests were served while this one could not be.
        self.overtaken = 0
        #: No search for a hole before this time; 0 if it may be any time.
        self.search_after = 0.0


class PinWait:
    """A Pin that cannot be answered yet."""

    __slots__ = ("absent", "deadline", "ids", "named", "process", "request", "sequence", "since", "unknown")

    def __init__(self, process: bytes, request: int, ids: list[bytes], deadline: float) -> None:
        self.process = process
        self.request = request
        self.ids = ids
        #: Ids that are not sealed yet. While there are any, it wants no room.
        self.unknown: set[bytes] = set()
        #: All its ids, while some are unknown: none of the others may be dropped meanwhile.
        self.named: frozenset[bytes] = frozenset()
        #: When it stops to wait for seals.
        self.deadline = deadline
        #: Its objects that are not in memory, once nothing is unknown; and since when, and with what right, it asks.
        #: One that left again for an older request is not among them until all others are there.
        self.absent: dict[StoredObject, None] = {}
        self.since = 0.0
        self.sequence = 0


class Process:
    """What a process holds: all that comes back when it dies."""

    __slots__ = ("lent", "owned", "pinned", "rooms", "waits")

    def __init__(self) -> None:
        #: Space that it may fill and seal.
        self.lent = RangeSet()
        #: Objects that are freed with it. Those that were freed before are not among them.
        self.owned: dict[StoredObject, None] = {}
        #: Objects in whose `pins` it is.
        self.pinned: dict[StoredObject, None] = {}
        #: Its requests that are in the queue.
        self.rooms: dict[Room, None] = {}
        self.waits: dict[PinWait, None] = {}
