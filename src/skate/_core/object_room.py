"""Who gets room in the arena, and which objects leave for the disk to make it.

Owns:      the free space of the arena and of the spill file, the order in which objects would leave, the queue of
           requests for room, and the I/O under way.
Knows not: ids, owners, and how pins are answered: those are `object_table`'s.

Every request for room (space to lend, or to restore an object into) has a sequence number, and the queue is in that
order. A request is served from free space if it fits. If not, objects that could leave are added to an imagined free
space, least recently used first, until there is a hole large enough; the objects in that hole (only these) are sent to
disk. If the SEARCH_MAX objects that were used longest ago are scattered so that they make no such hole, one is made
from one of them and its neighbours, whenever those were used: among 100,000 scattered objects, going on in order took
seconds. The hole belongs to the request from then on: its free parts are claimed at once, the rest as the objects
leave. So several holes can be under way side by side, and nobody takes space from a hole bit by bit. If an object in
the hole is pinned in the meantime, or the disk fails, the hole is given up and the search begins anew.

Copies of objects that lie on other nodes come first: if some of them make a hole, no other object leaves. They are not
written to disk but dropped, and whoever wants one again pulls it again. Whether a copy may be dropped the table says.

The arena may be larger than what memory is left on the machine: pages are taken only as objects are written. When that
memory is short, fewer bytes of the arena may be in use (`limit_bytes`). Objects are then sent to disk until use is
within the limit, and a request that would exceed it waits for them, though the arena has room for it. Once nothing
more can leave, it is served all the same: the limit delays requests, and refuses none.

Before anything leaves, processes may be asked to collect garbage (`garbage`), and what they free is waited for.

Four rules keep everybody going:

- A request that cannot be helped now (too much is pinned) lets others pass, because they may be what it waits for: but
  only OVERTAKES_MAX times, then everybody waits behind it.
- An object that has arrived for a waiting pin may be sent away again only in favour of an older request. So two pins
  that do not fit at the same time never hold one half each for ever: the older one gets all it wants.
- A request is refused after `full_grace_s` without any I/O going on: nothing that is under way can help it then.
- When memory and disk are both full, objects on disk could not come back, because nothing could leave for them. So a
  part of the spill file as large as the largest object in it is set aside: the spare. Only for an object that is to be
  restored are others written there; then the place that the restored one had on disk is the new spare.
"""

from __future__ import annotations

from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import chain, islice
from operator import attrgetter

from skate._core.allocator import Allocator, RangeSet
from skate._core.object_records import (
    DISK,
    MEMORY,
    RESTORING,
    SPILLING,
    AskForGarbage,
    Command,
    Discard,
    ReplyAllocated,
    Room,
    StartReserve,
    StartRestore,
    StartSpill,
    StoredObject,
)
from skate._core.policy_garbage import GarbageRounds, Verdict

#: Every object, in memory and on disk, starts on a multiple of these.
ARENA_ALIGNMENT = 64
DISK_ALIGNMENT = 4096
#: The spill file grows as needed; the disk sets the real limit.
DISK_BYTES_MAX = 2**62
#: So many requests may be served before an older one that cannot be, until all wait for that one.
OVERTAKES_MAX = 64
#: After the disk refused a write, nothing is sent there for so long, unless some of our own space on it comes free.
DISK_RETRY_S = 1.0
#: So many objects are looked at strictly in the order of their last use.
SEARCH_MAX = 1000
#: After a vain search among more than SEARCH_MAX objects the request has a pause of so long for each of them: about
#: ten times what the search took. So a store of 100,000 objects that is full for a while does not only search.
SEARCH_PAUSE_S = 10e-6

#: Objects that have to leave, and the range that they and the free space between them fill.
Hole = tuple[list[StoredObject], int, int]

_by_sequence = attrgetter("sequence")


class RoomMaker:
    """Room in [start, end) of the arena."""

    def __init__(
        self,
        start: int,
        end: int,
        full_grace_s: float,
        may_drop: Callable[[StoredObject], bool] = lambda obj: False,
        *,
        collects_garbage: bool = False,
    ) -> None:
        self.arena = Allocator(end, ARENA_ALIGNMENT, start)
        #: None: processes are not asked.
        self.garbage = GarbageRounds(self.arena.capacity) if collects_garbage else None
        #: Bytes of the arena that came free since the start.
        self.freed_bytes = 0
        self.disk = Allocator(DISK_BYTES_MAX, DISK_ALIGNMENT)
        #: What may leave: in memory, not pinned, not freed, untouched by I/O. Least recently touched first.
        self.evictable: OrderedDict[StoredObject, None] = OrderedDict()
        self.evictable_bytes = 0
        #: Those of them that are copies.
        self.evictable_copies: dict[StoredObject, None] = {}
        #: The same objects by where they begin and by where they end.
        self.evictable_from: dict[int, StoredObject] = {}
        self.evictable_to: dict[int, StoredObject] = {}
        #: Requests by sequence number. Bounded by the table: each is one of its processes' waiting requests, or one
        #: of a few objects of a waiting pin.
        self.queue: list[Room] = []
        #: Bytes of the arena that may be in use: fewer than there are while memory of the machine is short.
        self.limit_bytes = self.arena.capacity
        #: Objects that are being written to disk for that reason, and not for a request.
        self.shedding: dict[StoredObject, None] = {}
        #: Something happened that may let a request in the queue be served.
        self.changed = False
        #: I/O under way: job → object, and where its copy on disk is or will be. Bounded by the queue and by the
        #: memory that is short: objects leave and return for no other reason.
        self.jobs: dict[int, tuple[StoredObject, int]] = {}
        #: When the last I/O ended well.
        self.last_progress = 0.0
        #: What the disk said last, "" if it took what we gave it; and when to try it again, 0 if any time.
        self.disk_error = ""
        self.disk_retry_at = 0.0
        #: The part of the spill file that is set aside; no bytes if there is none. Only while something else is in the
        #: file. A larger one is on its way if `reserving` is not None: (job, where, bytes).
        self.spare_at = 0
        self.spare_bytes = 0
        self.reserving: tuple[int, int, int] | None = None
        #: What the caller has to do. Taken away after each event.
        self.commands: list[Command] = []
        #: What was dropped. Taken away by the table, which knows more about it.
        self.dropped: list[StoredObject] = []
        self._may_drop = may_drop
        self._full_grace_s = full_grace_s
        self._last_job = 0
        self._last_sequence = 0

    # -- requests -----------------------------------------------------------------------------------------------------

    def next_sequence(self) -> int:
        self._last_sequence += 1
        return self._last_sequence

    def ask(self, room: Room) -> None:
        """Serve the request at once if nobody waits and there is room, else later, when `serve_queue` can."""
        if not self.queue and not self._exceeds_limit(room) and self._serve(room):
            return
        insort(self.queue, room, key=_by_sequence)
        if room.holder is not None:
            room.holder.rooms[room] = None
        self.changed = True

    def withdraw(self, room: Room) -> None:
        """Whoever asked does not need it any more, or must not have it."""
        self.abandon_hole(room)
        self._leave_queue(room)
        self.changed = True

    def prefer(self, room: Room, sequence: int) -> None:
        """An older waiting pin wants the same object."""
        self.queue.remove(room)
        room.sequence = sequence
        insort(self.queue, room, key=_by_sequence)
        self.changed = True

    def serve_queue(self, now: float) -> None:
        """Serve every request that can be served; start to make room for every one for which it can be made."""
        while self.changed:
            self.changed = False
            if self.queue:
                self._serve_queue_once(now)
        if self.garbage is not None and self.garbage.waits_until and not self._is_short:
            self.garbage.satisfied()

    def next_deadline(self) -> float | None:
        """When `retry` or `hopeless` have something to say, at the latest."""
        times = [self.disk_retry_at] if self.queue and self.disk_retry_at else []
        if self.garbage is not None:
            times += filter(None, (self.garbage.waits_until, self.garbage.next_at))
        for room in self.queue:
            if room.start < 0:
                if not self._is_making_room:
                    times.append(self._gives_up_at(room))
                if room.search_after:
                    times.append(room.search_after)
        return min(times, default=None)

    def hopeless(self, now: float) -> Room | None:
        """The oldest request that has waited long enough, in vain."""
        if self._is_making_room:
            return None
        return next((room for room in self.queue if self._gives_up_at(room) <= now), None)

    def retry(self, now: float) -> None:
        """Let what was put off until now be tried again."""
        if self.disk_retry_at and self.disk_retry_at <= now:
            self.disk_retry_at = 0.0
            self.changed = True
        for room in self.queue:
            if room.search_after and room.search_after <= now:
                room.search_after = 0.0
                self.changed = True

    @property
    def _is_making_room(self) -> bool:
        """Whether something is under way that may help a request which waits."""
        return bool(self.jobs) or (self.garbage is not None and self.garbage.waits_until > 0)

    @property
    def _is_short(self) -> bool:
        """Whether a request waits for which no hole is being made, or memory of the machine is short."""
        return self.arena.used > self.limit_bytes or any(room.start < 0 for room in self.queue)

    def pass_time(self, now: float) -> None:
        """If a round of collections is over, objects may leave."""
        if self.garbage is not None and self.garbage.pass_time(now, self.freed_bytes):
            self.changed = True

    def garbage_collected(self, now: float) -> None:
        """All processes that were asked have answered."""
        if self.garbage is not None:
            self.garbage.answered(now)

    def _may_spill(self, now: float) -> bool:
        """Whether objects may leave: not before processes have collected their garbage."""
        if self.garbage is None:
            return True
        verdict = self.garbage.before_spill(now, self.freed_bytes)
        if verdict is Verdict.ASK:
            self.commands.append(AskForGarbage())
        return verdict is Verdict.GO

    def _gives_up_at(self, room: Room) -> float:
        return max(room.since, self.last_progress) + self._full_grace_s

    def _serve_queue_once(self, now: float) -> None:
        blocked: Room | None = None
        too_large = self.arena.capacity + 1
        for room in tuple(self.queue):
            if room.start >= 0:
                continue
            if blocked is not None and blocked.overtaken >= OVERTAKES_MAX:
                return
            held = self._exceeds_limit(room) and self.shed(room.minimum, now)
            if not held and self._serve(room):
                self._leave_queue(room)
            # If no hole was found for an older request, none will be for a younger one of at least the same size,
            # unless that one may do what the other may not: use the spare part of the spill file.
            elif held or (room.size >= too_large and not self._may_use_spare(room)) or not self._make_hole(room, now):
                too_large = too_large if held else min(too_large, room.size)
                blocked = blocked or room
                continue
            if blocked is not None:
                blocked.overtaken += 1

    def _serve(self, room: Room) -> bool:
        """Serve the request from free space."""
        if room.minimum < room.size:
            wanted = min(room.size, max(room.minimum, self.limit_bytes - self.arena.used))
            lent = self.arena.allocate_up_to(wanted, room.minimum)
            if lent is None:
                return False
            self._grant(room, *lent)
            return True
        offset = self.arena.allocate(room.size)
        if offset is None:
            return False
        self._grant(room, offset, room.size)
        return True

    def _exceeds_limit(self, room: Room) -> bool:
        return self.limit_bytes < self.arena.capacity and self.arena.used + room.minimum > self.limit_bytes

    def _leave_queue(self, room: Room) -> None:
        self.queue.remove(room)
        if room.holder is not None:
            room.holder.rooms.pop(room, None)

    def _grant(self, room: Room, offset: int, size: int) -> None:
        obj = room.object
        if obj is not None:
            obj.room = None
            obj.offset = offset
            obj.place = RESTORING
            self.commands.append(StartRestore(self._start_job(obj, obj.disk), obj.disk, obj.size, offset))
        elif room.holder is not None:
            room.holder.lent.add(offset, offset + size)
            self.commands.append(ReplyAllocated(room.process, room.request, offset, size))

    # -- memory of the machine ----------------------------------------------------------------------------------------

    def limit_use(self, size: int, now: float) -> None:
        """So many bytes of the arena may be in use from now on; more than it has: all of them."""
        self.limit_bytes = max(0, min(size, self.arena.capacity)) & -ARENA_ALIGNMENT
        self.changed = True
        self.shed(0, now, urgent=True)

    def shed(self, size: int, now: float, *, urgent: bool = False) -> bool:
        """Send objects away until `size` more bytes are within the limit; whether it is worth to wait for some.

        Urgent: memory is short already, so garbage is collected at the same time, and not before.
        """
        excess = self.arena.used + size - self.limit_bytes - self._shedding_bytes()
        if excess > 0 and not self._may_spill(now) and not urgent:
            return True
        victims: dict[StoredObject, int] = {}
        copies = filter(self._may_drop, islice(self.evictable_copies, SEARCH_MAX))
        for obj in chain(copies, islice(self.evictable, SEARCH_MAX)):
            if excess <= 0:
                break
            to_write = self._bytes_to_write(obj)
            # What has arrived for a waiting pin stays: it would be brought back at once.
            if obj in victims or obj.wanted_by or (to_write and self.disk_retry_at > now):
                continue
            victims[obj] = to_write
            excess -= self.arena.round_up(obj.size)
        self._set_spare_aside(max(victims.values(), default=0))
        for obj in victims:
            self._send_to_disk(obj, uncached=True)
            if obj.place is SPILLING:
                self.shedding[obj] = None
        return self.arena.used + size > self.limit_bytes and self._shedding_bytes() > 0

    def _shedding_bytes(self) -> int:
        return sum(self.arena.round_up(obj.size) for obj in self.shedding if not obj.pins and obj.hole is None)

    # -- holes --------------------------------------------------------------------------------------------------------

    def _make_hole(self, room: Room, now: float) -> bool:
        """Find the objects that must leave for this request, and send them away."""
        if room.search_after > now or not self._may_spill(now):
            return False
        leaving_for_nobody = [
            obj for obj, _ in self.jobs.values() if obj.place is SPILLING and obj.hole is None and not obj.pins
        ]
        count = len(leaving_for_nobody) + len(self.evictable)
        could_leave_bytes = self.evictable_bytes + sum(obj.size for obj in leaving_for_nobody)
        if self.arena.available + could_leave_bytes + ARENA_ALIGNMENT * count < room.size:
            return False
        # What can be written now: anything, nothing or, in favour of an object that is to be restored, what fits into
        # the spare part of the spill file.
        limits = [DISK_BYTES_MAX]
        if self.disk_retry_at > now:
            limits = [0, self.spare_bytes] if self._may_use_spare(room) else [0]
        hole = self._hole_of(filter(self._may_drop, islice(self.evictable_copies, SEARCH_MAX)), room.size)
        if hole is not None and self._send_away(room, *hole, 0):
            return True
        for limit in limits:

            def may_leave(obj: StoredObject, limit: int = limit) -> bool:
                if self._bytes_to_write(obj) > limit:
                    return False
                return not any(wait.sequence <= room.sequence for wait in obj.wanted_by)

            oldest = islice(chain(leaving_for_nobody, self.evictable), SEARCH_MAX)
            hole = self._hole_of(filter(may_leave, oldest), room.size)
            if hole is None and count > SEARCH_MAX:
                hole = self._hole_of_neighbours(may_leave, room.size)
            if hole is not None and self._send_away(room, *hole, limit):
                return True
        if count > SEARCH_MAX:
            room.search_after = now + SEARCH_PAUSE_S * count
        return False

    def _may_use_spare(self, room: Room) -> bool:
        return room.object is not None and self.spare_bytes > 0

    def _bytes_to_write(self, obj: StoredObject) -> int:
        """How much must be written to disk before it can leave: nothing if it is there, or on its way there, or need
        not be there."""
        if obj.place is not MEMORY or obj.disk >= 0 or self._may_drop(obj):
            return 0
        return self.disk.round_up(obj.size)

    def _hole_of(self, objects: Iterable[StoredObject], size: int) -> Hole | None:
        """Take objects in this order until some of them, with the free space between them, make up `size`."""
        imagined = RangeSet()
        taken: list[StoredObject] = []
        free_taken: set[int] = set()
        for obj in objects:
            taken.append(obj)
            start, end = obj.offset, obj.offset + self.arena.round_up(obj.size)
            left, right = self.arena.free_ranges.touching(start, end)
            # Free space between two objects is met twice.
            if left < start and left not in free_taken:
                free_taken.add(left)
                imagined.add(left, start)
            if right > end and end not in free_taken:
                free_taken.add(end)
                imagined.add(end, right)
            start, end = imagined.add(start, end)
            if end - start >= size:
                return [obj for obj in taken if start <= obj.offset < end], start, end
        return None

    def _hole_of_neighbours(self, may_leave: Callable[[StoredObject], bool], size: int) -> Hole | None:
        """The object used longest ago that makes up `size` with its neighbours, whenever those were used."""
        free = self.arena.free_ranges
        seen: set[StoredObject] = set()
        for obj in self.evictable:
            if obj in seen or not may_leave(obj):
                continue
            found = [obj]
            start, end = free.touching(obj.offset, obj.offset + self.arena.round_up(obj.size))
            while end - start < size:
                right, left = self.evictable_from.get(end), self.evictable_to.get(start)
                if right is not None and may_leave(right):
                    found.append(right)
                    _, end = free.touching(end, end + self.arena.round_up(right.size))
                elif left is not None and may_leave(left):
                    found.append(left)
                    start, _ = free.touching(left.offset, start)
                else:
                    break
            else:
                return found, start, end
            seen.update(found)
        return None

    def _send_away(self, room: Room, candidates: list[StoredObject], start: int, end: int, limit: int) -> bool:
        """Make a hole of the right size at one end of [start, end), at the end where fewer bytes have to leave; unless
        more than `limit` bytes would have to be written."""
        at_start = [obj for obj in candidates if obj.offset < start + room.size]
        at_end = [obj for obj in candidates if obj.offset + self.arena.round_up(obj.size) > end - room.size]
        end_is_better = sum(obj.size for obj in at_end) < sum(obj.size for obj in at_start)
        victims = at_end if end_is_better else at_start
        to_write = [self._bytes_to_write(obj) for obj in victims]
        if sum(to_write) > limit:
            return False
        if limit < DISK_BYTES_MAX:
            if any(to_write):
                self._use_spare()
        else:
            self._set_spare_aside(max(to_write, default=0))
        room.start = end - room.size if end_is_better else start
        room.end = room.start + room.size
        for free_start, free_end in self.arena.free_ranges.within(room.start, room.end):
            self.arena.claim(free_start, free_end - free_start)
            room.claimed.append((free_start, free_end))
        for obj in victims:
            obj.hole = room
            room.leaving[obj] = None
        # When the last of them has left, the hole is ready and the request is served: perhaps in this very loop.
        for obj in victims:
            if obj.place is not SPILLING:
                self._send_to_disk(obj)
        return True

    def _send_to_disk(self, obj: StoredObject, *, uncached: bool = False) -> None:
        """An object that may leave does so: at once, unless it has to be written to disk before."""
        self.keep(obj)
        if self._may_drop(obj):
            self._drop(obj)
        elif obj.disk >= 0:
            self._leave(obj)
        else:
            disk = self.disk.allocate(obj.size)
            assert disk is not None, f"the spill file cannot grow beyond {DISK_BYTES_MAX} bytes"
            obj.place = SPILLING
            self.commands.append(StartSpill(self._start_job(obj, disk), obj.offset, obj.size, disk, uncached))

    def abandon_hole(self, room: Room | None) -> None:
        """The hole will not come about: what was claimed is free again, and what is leaving leaves for nobody."""
        if room is None or room.start < 0:
            return
        for start, end in room.claimed:
            self.give_back(start, end)
        for obj in room.leaving:
            obj.hole = None
        room.claimed = []
        room.leaving = {}
        room.start = room.end = -1
        self.changed = True

    def _leave(self, obj: StoredObject) -> None:
        """It is on disk: its memory may be used for something else."""
        obj.place = DISK
        self.vacate(obj)

    def _drop(self, obj: StoredObject) -> None:
        """It is not needed here: nothing of it stays, on disk neither."""
        obj.freed = True
        self.dropped.append(obj)
        if obj.disk >= 0:
            self.discard(obj.disk, obj.size)
            obj.disk = -1
        self.vacate(obj)

    def vacate(self, obj: StoredObject) -> None:
        """Its memory goes to the hole that it is part of, if any; what lies outside of the hole is free."""
        start, end = obj.offset, obj.offset + self.arena.round_up(obj.size)
        obj.offset = -1
        room, obj.hole = obj.hole, None
        if room is None:
            self.give_back(start, end)
            return
        if start < room.start:
            self.give_back(start, room.start)
            start = room.start
        if end > room.end:
            self.give_back(room.end, end)
            end = room.end
        room.claimed.append((start, end))
        del room.leaving[obj]
        if not room.leaving:
            offset, size = room.start, room.end - room.start
            assert sum(end - start for start, end in room.claimed) == size
            room.start = room.end = -1
            room.claimed = []
            self._leave_queue(room)
            self._grant(room, offset, size)

    # -- space and I/O ------------------------------------------------------------------------------------------------

    def give_back(self, start: int, end: int) -> None:
        """Nobody uses [start, end) of the arena any more."""
        self.arena.free(start, end - start)
        self.freed_bytes += end - start
        self.changed = True

    def discard(self, disk: int, size: int) -> None:
        """Nobody needs that copy on disk any more."""
        self._release(disk, size)
        self._forget_lonely_spare()
        self.disk_retry_at = 0.0
        self.changed = True

    def _release(self, disk: int, size: int) -> None:
        self.disk.free(disk, size)
        self.commands.append(Discard(disk, size))

    def _set_spare_aside(self, size: int) -> None:
        if size > self.spare_bytes and self.reserving is None:
            disk = self.disk.allocate(size)
            assert disk is not None, f"the spill file cannot grow beyond {DISK_BYTES_MAX} bytes"
            self._last_job += 1
            self.reserving = self._last_job, disk, size
            self.commands.append(StartReserve(self._last_job, disk, size))

    def reserve_ended(self, error: str) -> None:
        """The larger spare is set aside, or cannot be: then the one that there is will have to do."""
        assert self.reserving is not None
        _, disk, size = self.reserving
        self.reserving = None
        if error:
            self._release(disk, size)
        else:
            if self.spare_bytes:
                self._release(self.spare_at, self.spare_bytes)
            self.spare_at, self.spare_bytes = disk, size
        self._forget_lonely_spare()

    def _use_spare(self) -> None:
        """Let the next objects be written there. It is not discarded: the point is that the disk has set it aside."""
        self.disk.free(self.spare_at, self.spare_bytes)
        self.spare_bytes = 0

    def _forget_lonely_spare(self) -> None:
        if self.spare_bytes and self.disk.used == self.spare_bytes:
            self._release(self.spare_at, self.spare_bytes)
            self.spare_bytes = 0

    def may_leave(self, obj: StoredObject) -> None:
        """It is in memory and nobody looks at it: it leaves when its turn comes."""
        self.evictable[obj] = None
        if obj.is_copy:
            self.evictable_copies[obj] = None
        self.evictable_bytes += obj.size
        self.evictable_from[obj.offset] = obj
        self.evictable_to[obj.offset + self.arena.round_up(obj.size)] = obj
        self.changed = True

    def keep(self, obj: StoredObject) -> None:
        """It does not wait for its turn to leave any more, if it did."""
        if obj in self.evictable:
            del self.evictable[obj]
            self.evictable_copies.pop(obj, None)
            self.evictable_bytes -= obj.size
            del self.evictable_from[obj.offset]
            del self.evictable_to[obj.offset + self.arena.round_up(obj.size)]

    def spill_ended(self, obj: StoredObject, disk: int, error: str, now: float) -> None:
        """The copy is complete, or failed. The object leaves if it may and its room is still needed."""
        obj.place = MEMORY
        is_shed = obj in self.shedding
        self.shedding.pop(obj, None)
        if error:
            self.discard(disk, obj.size)
            self.disk_error = error
            self.disk_retry_at = now + DISK_RETRY_S
        else:
            obj.disk = disk
            self.disk_error = ""
            self.last_progress = now
        self.changed = True
        if obj.freed:
            return
        if obj.pins:
            self.abandon_hole(obj.hole)
        elif error:
            self.abandon_hole(obj.hole)
            self.may_leave(obj)
        elif obj.hole is not None or is_shed:
            self._leave(obj)
        else:
            # It stays as long as there is room. It was the least recently used one, and can leave at no cost.
            self.may_leave(obj)
            self.evictable.move_to_end(obj, last=False)

    def restore_ended(self, obj: StoredObject, error: str, now: float) -> None:
        """The object is in memory again, or cannot be read."""
        obj.place = MEMORY
        self.changed = True
        if error:
            self.disk_error = error
            return
        self.last_progress = now
        if not self.spare_bytes and self.reserving is None:
            self.spare_at, self.spare_bytes = obj.disk, self.disk.round_up(obj.size)
            obj.disk = -1
            self._forget_lonely_spare()

    def _start_job(self, obj: StoredObject, disk: int) -> int:
        self._last_job += 1
        self.jobs[self._last_job] = obj, disk
        return self._last_job
