"""What `transfers.py` knows of a chunk that is coming, of the room for an object, and of an object that it serves."""

from __future__ import annotations

import time


class Chunk:
    """A chunk that is on its way here."""

    __slots__ = ("index", "object", "room", "source", "wanted")

    def __init__(self, object: bytes, index: int, source: bytes, room: int) -> None:
        self.object = object
        self.index = index
        self.source = source
        self.room = room
        #: Its pull still wants it.
        self.wanted = True


class Room:
    """Space in the arena for an object that is coming."""

    __slots__ = ("busy", "given_up", "object", "offset", "since", "size")

    def __init__(self, object: bytes, size: int) -> None:
        self.object = object
        self.size = size
        self.offset = -1
        self.since = time.monotonic()
        #: Chunks that may still be written into it.
        self.busy = 0
        self.given_up = False


class Serving:
    """An object of this node that others pull."""

    def __init__(self) -> None:
        self.nodes: set[int] = set()
        #: -1 until it is pinned.
        self.offset = -1
        self.size = 0
        #: What was asked for before it was: (node, start, size, tag).
        self.waiting: list[tuple[int, int, int, int]] = []
