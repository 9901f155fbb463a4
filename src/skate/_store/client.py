"""The arena as a process sees it: write an object once, read it in place, let go when the last view is gone.

Writing: small objects (below an eighth of a chunk) are carved out of a chunk that the daemon lent us, so that most
puts need no round trip; larger ones are allocated by the daemon. Either way the daemon hears of the object with a
one-way Seal (seals.py).

Reading: the object is pinned by the daemon, and a ctypes buffer is laid over its bytes. Every array that is read in
place holds that buffer, views of views included; when the last of them is gone, the buffer's weak reference appends
the id to a deque, and the loop sends Unpin.

Invariant: no byte of a pinned object changes place or content while any view of it is alive, whatever else happens.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from skate._core.ids import node_at, node_of, place_of, return_id, size_at
from skate._serialize.values import Serialized
from skate._store.layout import align, view_bytes
from skate._store.seals import Seals
from skate._wire.messages import Allocate, Allocated, FetchFailed, Free, Pin, Pinned, ReturnSpace, StoreFull, Unpin
from skate.exceptions import ObjectFetchTimedOutError, ObjectStoreFullError, OutOfDiskError

#: Largest chunk that a process carves small objects from; a 64th of a small arena if that is less.
CHUNK_BYTES_MAX = 16 << 20
#: An object above this part of a chunk is allocated by itself.
CHUNK_PART = 8

Request = Callable[..., Any]


class StoreClient:
    """One process's access to the object store of its node."""

    def __init__(self, arena: mmap.mmap, arena_bytes: int, seals: Seals, request: Request, process_id: bytes) -> None:
        self._node = node_of(process_id)
        self._arena: mmap.mmap | None = arena
        self._arena_bytes = arena_bytes
        self._view = memoryview(arena)
        self._seals = seals
        self._send = seals.send
        self._request = request
        self._process_id = process_id
        self._chunk_bytes = min(CHUNK_BYTES_MAX, arena_bytes // 64)
        self._chunk_at = 0
        self._chunk_end = 0
        self._lock = threading.RLock()
        #: Buffers that user code may still look at, by object.
        self._buffers: dict[bytes, weakref.ref[ctypes.Array[ctypes.c_char]]] = {}
        #: Sizes of those objects: a buffer is longer than its object.
        self._size_of: dict[bytes, int] = {}
        #: The weak references of all buffers: one that is dropped does not call back.
        self._alive: dict[int, weakref.ref[ctypes.Array[ctypes.c_char]]] = {}
        #: Buffers that are gone, once for each pin.
        self._released: deque[tuple[bytes, weakref.ref[ctypes.Array[ctypes.c_char]]]] = deque()

    # -- writing ------------------------------------------------------------------------------------

    def write(self, id: bytes, owner: bytes, value: Serialized) -> int:
        """Store the value under this id; its place. Raises ObjectStoreFullError when there is no room."""
        size = value.size
        small = size * CHUNK_PART <= self._chunk_bytes
        offset = self._carve(size) if small else self._allocate(size)[0]
        try:
            value.write_into(self._view[offset : offset + size])
        except BaseException:
            self._send(ReturnSpace(offset, align(size)))
            raise
        self._seals.add(id, owner, offset, size)
        if not small:
            self._seals.say()  # it may have to make room for others
        return place_of(self._node, size)

    def _carve(self, size: int) -> int:
        size = align(size)
        with self._lock:
            if self._chunk_end - self._chunk_at < size:
                if self._chunk_end > self._chunk_at:
                    self._send(ReturnSpace(self._chunk_at, self._chunk_end - self._chunk_at))
                    self._chunk_at = self._chunk_end = 0
                offset, length = self._allocate(max(size, self._chunk_bytes), least=size)
                self._chunk_at, self._chunk_end = offset, offset + length
            offset = self._chunk_at
            self._chunk_at += size
            return offset

    def free(self, objects: Sequence[tuple[bytes, int]]) -> None:
        """Nobody refers to these any more: ids and places."""
        here = []
        elsewhere: dict[int, list[bytes]] = {}
        for id, place in objects:
            if node_at(place) == self._node:
                here.append(id)
            else:
                elsewhere.setdefault(node_at(place), []).append(id)
        known, spaces = self._seals.withdraw(here)
        if spaces:
            self._take_back(spaces)
        if known:
            self._send(Free(known))
        for node, ids in elsewhere.items():
            self._send(Free(ids, node))

    def free_returns(self, task: bytes, count: int | None, node: int) -> None:
        """Nobody was ever told of the first so many returns that a task may have stored there; None: of any."""
        ids: list[bytes] = [return_id(task, index) for index in range(count or 0)]
        self._send(Free(ids, 0 if node == self._node else node, [] if count is not None else [task]))

    def _take_back(self, spaces: list[tuple[int, int]]) -> None:
        """Space of objects that the daemon never heard of: what lies before the rest of the chunk belongs to that."""
        ranges: list[tuple[int, int]] = []
        for offset, size in sorted(spaces):
            adjoins = ranges and ranges[-1][1] == offset
            ranges.append((ranges.pop()[0] if adjoins else offset, offset + align(size)))
        # Never wait for the lock here; see `return_chunk`.
        if self._lock.acquire(blocking=False):
            try:
                if ranges[-1][1] == self._chunk_at:
                    self._chunk_at = ranges.pop()[0]
            finally:
                self._lock.release()
        for start, end in ranges:
            self._send(ReturnSpace(start, end - start))

    def _allocate(self, size: int, *, least: int = 0) -> tuple[int, int]:
        reply = self._request(lambda request: Allocate(request, size, least), None, self._undo_allocate)
        if isinstance(reply, StoreFull):
            raise self._full(reply, least or size)
        assert isinstance(reply, Allocated)
        return reply.offset, reply.size

    def _undo_allocate(self, late: Any) -> None:
        """Whoever asked was interrupted and is gone."""
        if isinstance(late, Allocated):
            self._send(ReturnSpace(late.offset, late.size))

    def _undo_pin(self, ids: list[bytes], late: Any) -> None:
        if isinstance(late, Pinned):
            self._send(Unpin([id for id, (offset, _) in zip(ids, late.at, strict=True) if offset >= 0]))

    def _full(self, reply: StoreFull, size: int) -> Exception:
        if reply.disk:
            return OutOfDiskError(reply.report)
        return ObjectStoreFullError(
            reply.report, needed_bytes=size, capacity_bytes=self._arena_bytes, holders=reply.holders
        )

    def return_chunk(self) -> None:
        """Give back what is left of the chunk, so that an idle process holds no memory."""
        # Called with the runtime's lock held, which a thread that waits for a chunk needs: never wait for it here.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._chunk_end > self._chunk_at:
                self._send(ReturnSpace(self._chunk_at, self._chunk_end - self._chunk_at))
                self._chunk_at = self._chunk_end = 0
        finally:
            self._lock.release()

    # -- reading ------------------------------------------------------------------------------------

    def views(
        self, objects: Sequence[tuple[bytes, int]], deadline: float | None = None, *, is_patient: bool = False
    ) -> list[memoryview | None]:
        """Read-only views of objects (ids and places), in place; None for one that is gone. Waits for those that are on
        disk, or on another node.

        Raises TimeoutError when the deadline passed.
        """
        found: dict[bytes, memoryview | None] = {}
        missing: dict[bytes, int] = {}
        for id, place in objects:
            if id in found or id in missing:
                continue
            known = self._buffers.get(id)
            buffer = known() if known is not None else None
            if buffer is None:
                missing[id] = place
            else:
                found[id] = _readonly(buffer, self._size_of[id])
        if missing:
            ids = list(missing)
            places = list(missing.values())
            if all(node_at(place) == self._node for place in places):
                places = []
            reply = self._request(
                lambda request: Pin(request, ids, places, is_patient), deadline, lambda late: self._undo_pin(ids, late)
            )
            if reply is None:
                raise TimeoutError
            if isinstance(reply, StoreFull):
                raise self._full(reply, sum(map(size_at, missing.values())))
            if isinstance(reply, FetchFailed):
                raise ObjectFetchTimedOutError(object_id=reply.id.hex(), reason=reply.reason)
            assert isinstance(reply, Pinned)
            for id, (offset, size) in zip(missing, reply.at, strict=True):
                found[id] = None if offset < 0 else self._lay_over(id, offset, size)
        return [found[id] for id, _ in objects]

    def _lay_over(self, id: bytes, offset: int, size: int) -> memoryview:
        # A ctypes array type is made for each length: lengths are powers of two, so that there are few of them. The
        # mapping is longer than the arena, so that the end of the last object is no exception.
        assert self._arena is not None
        buffer = (ctypes.c_char * view_bytes(size)).from_buffer(self._arena, offset)
        released = self._released

        def on_gone(gone: weakref.ref[ctypes.Array[ctypes.c_char]]) -> None:
            released.append((id, gone))

        # Kept by itself, too: two threads may lay a buffer over the same object, each with a pin of its own.
        weak = weakref.ref(buffer, on_gone)
        self._alive[_key(weak)] = weak
        self._buffers[id] = weak
        self._size_of[id] = size
        return _readonly(buffer, size)

    def drain(self) -> None:
        """Unpin what nobody looks at any more. Called by the loop."""
        released = self._released
        if not released:
            return
        ids = []
        while released:
            id, weak = released.popleft()
            ids.append(id)
            del self._alive[_key(weak)]
            known = self._buffers.get(id)
            if known is not None and known() is None:
                del self._buffers[id]
                del self._size_of[id]
        self._send(Unpin(ids))

    def close(self) -> None:
        """Let go of the arena. Arrays that user code still holds keep its mapping alive, and nothing else does."""
        self._view.release()
        self._arena = None

    @property
    def released(self) -> int:
        """Pins that are not needed any more, and that the daemon has not heard of."""
        return len(self._released)

    @property
    def pinned(self) -> int:
        return len(self._alive)


_key = id  # of a weak reference itself; inside the class the name means an object's id


def _readonly(buffer: ctypes.Array[ctypes.c_char], size: int) -> memoryview:
    return memoryview(buffer).cast("B")[:size].toreadonly()
