"""The life of every object of a node: space that is lent and sealed, pins, owners, and what waits for what.

Owns:      objects by id, what each process holds (lent space, pins, objects that it owns), pins that wait. It is the
           only authority on who may use which bytes of the arena; `object_room` decides for it who gets room.
Knows not: memory, files, sockets, time. Methods take `now` and return commands (`object_records`) for `_node/store.py`
           to carry out, which reports the end of each I/O job with `spill_ended` and `restore_ended`.

A pin waits in two steps: for the seals of objects that are not known yet (up to `unsealed_grace_s`; a seal travels on
another channel than the news of it, and may be late), then for all of its objects to be in memory. It holds nothing
until it is answered, but what has arrived for it leaves only in favour of an older request (see `object_room`).

Free may overtake Seal for the same reason. So an id that is freed before it is known is remembered with the process
that freed it, and a seal for that owner is freed on arrival. An id that was freed after its seal may be sealed again: a
task that runs again makes the same ids.

A copy of an object that lies on another node may be dropped when memory is short, if `is_redundant` says so and no pin
waits for it: a pin that was let in because its objects are here must find them here.

Invariants: see `object_audit.validate`; tests/unit/test_object_table.py checks them, and a model, after every step of
random histories.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Any

from skate._core import object_audit
from skate._core.allocator import RangeSet
from skate._core.ids import TASK_BYTES, short
from skate._core.object_records import (
    DISK,
    MEMORY,
    RESTORING,
    Command,
    PinWait,
    Process,
    ReplyFull,
    ReplyPinned,
    ReportDropped,
    Room,
    StoredObject,
)
from skate._core.object_room import ARENA_ALIGNMENT, RoomMaker

#: So many objects of one waiting pin queue for room at a time: a pin of 10,000 objects must not fill the queue.
RESTORES_AHEAD = 16
#: A process with more requests waiting than this breaks the protocol. Each thread of an honest one waits for one.
WAITING_PER_PROCESS_MAX = 100_000
#: Ids of objects freed last: a late pin of one is answered at once. Older ones are waited for in vain, then answered.
FREED_MAX = 16_384
#: Processes that died last: what is sealed for them later is freed at once. Above this many, it would stay for good.
DEAD_MAX = 16_384


class StoreProtocolError(ValueError):
    """A process asked for what the protocol forbids. It is to be cut off; the table has not changed."""


class ObjectTable:
    """Objects in [start, end) of an arena. `describe` names a process in reports."""

    def __init__(
        self,
        start: int,
        end: int,
        *,
        full_grace_s: float = 10.0,
        unsealed_grace_s: float = 10.0,
        describe: Callable[[bytes], str] = short,
        collects_garbage: bool = False,
    ) -> None:
        self.describe = describe
        #: Who owns copies of objects that were made on other nodes; and whether one can be had again, which is asked
        #: when room is made.
        self.keeper = b""
        self.is_redundant: Callable[[bytes], bool] = lambda object_id: False
        self.unsealed_grace_s = unsealed_grace_s
        self.room = RoomMaker(start, end, full_grace_s, self._may_drop, collects_garbage=collects_garbage)
        self.processes: dict[bytes, Process] = {}
        #: By id. Objects that are freed but pinned, or freed but touched by I/O, are still here; replaced ones are not.
        self.objects: dict[bytes, StoredObject] = {}
        #: Pins that wait for seals, in the order of their deadlines; and the same by the ids that they wait for.
        self.unsealed: dict[PinWait, None] = {}
        self.unsealed_ids: dict[bytes, list[PinWait]] = {}
        #: Pins that waited too long for seals, and still wait for others of their objects. A seal may yet come.
        self.late: dict[PinWait, None] = {}
        #: Recently freed id → b"", or the process that freed it before it was sealed.
        self.freed: OrderedDict[bytes, bytes] = OrderedDict()
        #: Processes that died recently.
        self.dead: OrderedDict[bytes, None] = OrderedDict()
        self.counters = dict.fromkeys(
            ("spilled", "spilled_bytes", "restored", "restored_bytes", "dropped", "refused", "lost", "stray_unpins"), 0
        )

    # -- what processes ask for ---------------------------------------------------------------------------------------

    def allocate(self, process: bytes, request: int, size: int, least: int, now: float) -> Sequence[Command]:
        """Lend space, now or later; or refuse it. At least `least` of the `size` bytes."""
        if not 0 < least <= size:
            raise StoreProtocolError(f"Allocate of {least} to {size} bytes by {self.describe(process)}")
        holder = self._process(process)
        self._check_waiting(process, holder)
        arena = self.room.arena
        size, minimum = arena.round_up(size), arena.round_up(least)
        if minimum > arena.capacity:
            self.counters["refused"] += 1
            report = (
                f"{object_audit.megabytes(minimum)} can never fit: the object store has "
                f"{object_audit.megabytes(arena.capacity)} in all. "
                "Give it more with init(object_store_memory=...) or `skate start --object-store-memory`, or store the "
                "value in smaller parts."
            )
            return [ReplyFull(process, request, report, False)]
        size = min(size, arena.capacity)
        room = Room(self.room.next_sequence(), size, minimum, now)
        room.process = process
        room.request = request
        room.holder = holder
        self.room.ask(room)
        return self._settle(now)

    def seal(
        self, process: bytes, object_id: bytes, owner: bytes, offset: int, size: int, now: float
    ) -> Sequence[Command]:
        """Space lent to the process becomes an object."""
        try:
            if size <= 0 or offset % ARENA_ALIGNMENT:
                raise ValueError("size or alignment does not fit")
            self._process(process).lent.remove(offset, offset + self.room.arena.round_up(size))
        except ValueError as error:
            raise StoreProtocolError(
                f"Seal of {short(object_id)} at [{offset}, {offset + size}) by {self.describe(process)}: not lent to it"
            ) from error
        obj = StoredObject(object_id, owner, offset, size)
        obj.is_copy = owner == self.keeper
        old = self.objects.get(object_id)
        self.objects[object_id] = obj
        if old is not None:
            self._replace(old, obj)
        waited_for_old = tuple(obj.wanted_by)
        freed_early_by = self.freed.pop(object_id, None)
        if owner in self.dead or freed_early_by == owner:
            self._free((obj,))
        else:
            self._process(owner).owned[obj] = None
            if not obj.pins:
                self.room.may_leave(obj)
        for wait in waited_for_old:
            self._go_on(wait)
        if object_id in self.unsealed_ids:
            self._known(object_id, now)
        return self._settle(now)

    def return_space(self, process: bytes, offset: int, size: int, now: float) -> Sequence[Command]:
        """The process does not need that part of what was lent to it."""
        end = offset + self.room.arena.round_up(size)
        try:
            if offset % ARENA_ALIGNMENT:
                raise ValueError("alignment does not fit")
            self._process(process).lent.remove(offset, end)
        except ValueError as error:
            raise StoreProtocolError(
                f"ReturnSpace of [{offset}, {end}) by {self.describe(process)}: not lent to it"
            ) from error
        self.room.give_back(offset, end)
        return self._settle(now)

    def pin(self, process: bytes, request: int, ids: list[bytes], now: float) -> Sequence[Command]:
        """Answer with the places of all these objects when all are in memory; they stay there until unpinned."""
        objects = self.objects
        for object_id in ids:
            obj = objects.get(object_id)
            if obj is None or obj.freed or obj.place is DISK or obj.place is RESTORING:
                break
        else:
            self._pin_all(process, request, ids)
            return self._settle(now)
        holder = self._process(process)
        self._check_waiting(process, holder)
        wait = PinWait(process, request, ids, now + self.unsealed_grace_s)
        holder.waits[wait] = None
        wait.unknown = {object_id for object_id in ids if object_id not in objects and object_id not in self.freed}
        if wait.unknown:
            wait.named = frozenset(ids)
            self.unsealed[wait] = None
            for object_id in wait.unknown:
                self.unsealed_ids.setdefault(object_id, []).append(wait)
        else:
            self._want(wait, now)
        return self._settle(now)

    def unpin(self, process: bytes, ids: Iterable[bytes], now: float) -> Sequence[Command]:
        """One pin less for each. What was not pinned is only counted: it can hurt nobody but the process itself."""
        for object_id in ids:
            obj = self.objects.get(object_id)
            if obj is None or process not in obj.pins:
                self.counters["stray_unpins"] += 1
            elif obj.pins[process] > 1:
                obj.pins[process] -= 1
            else:
                del obj.pins[process]
                del self.processes[process].pinned[obj]
                if not obj.pins:
                    self._unpinned(obj)
        return self._settle(now)

    def free(self, process: bytes, ids: Iterable[bytes], now: float) -> Sequence[Command]:
        """Nobody refers to these any more."""
        known = []
        for object_id in ids:
            obj = self.objects.get(object_id)
            if obj is not None:
                if not obj.freed:
                    known.append(obj)
            elif object_id not in self.freed:
                self._remember_freed(object_id, process)
                if object_id in self.unsealed_ids:
                    self._known(object_id, now)
        self._free(known)
        return self._settle(now)

    def returns_of(self, tasks: Iterable[bytes]) -> list[bytes]:
        """What these tasks have made and nobody has freed."""
        wanted = {task[:TASK_BYTES] for task in tasks}
        return [id for id, obj in self.objects.items() if id[:TASK_BYTES] in wanted and not obj.freed]

    def process_died(self, process: bytes, now: float) -> Sequence[Command]:
        """Take back all that the process held, and free what it owned."""
        self.dead[process] = None
        if len(self.dead) > DEAD_MAX:
            self.dead.popitem(last=False)
        holder = self.processes.pop(process, None)
        if holder is not None:
            for room in tuple(holder.rooms):
                self.room.withdraw(room)
            for wait in tuple(holder.waits):
                self._drop_wait(wait, holder)
            for start, end in holder.lent:
                self.room.give_back(start, end)
            for obj in holder.pinned:
                del obj.pins[process]
                if not obj.pins:
                    self._unpinned(obj)
            self._free(tuple(holder.owned))
        return self._settle(now)

    # -- what the disk did, and what time does ------------------------------------------------------------------------

    def spill_ended(self, job: int, error: str, now: float) -> Sequence[Command]:
        """The copy to disk is complete, or failed: `error` says why."""
        obj, disk = self.room.jobs.pop(job)
        if not error:
            self.counters["spilled"] += 1
            self.counters["spilled_bytes"] += obj.size
        self.room.spill_ended(obj, disk, error, now)
        if obj.freed:
            self._forget_if_unused(obj)
        return self._settle(now)

    def restore_ended(self, job: int, error: str, now: float) -> Sequence[Command]:
        """The object is in memory again; or it cannot be read, and is lost."""
        obj, _ = self.room.jobs.pop(job)
        self.room.restore_ended(obj, error, now)
        if error:
            self.counters["lost"] += 1
        else:
            self.counters["restored"] += 1
            self.counters["restored_bytes"] += obj.size
        if obj.freed:
            self._forget_if_unused(obj)
        elif error:
            self._free((obj,))
        else:
            self.room.may_leave(obj)
            for wait in tuple(obj.wanted_by):
                if obj in wait.absent:
                    del wait.absent[obj]
                    self._go_on(wait)
        return self._settle(now)

    def reserve_ended(self, job: int, error: str, now: float) -> Sequence[Command]:
        """A part of the spill file is set aside, or cannot be."""
        self.room.reserve_ended(error)
        return self._settle(now)

    def limit_memory(self, size: int, now: float) -> Sequence[Command]:
        """Memory of the machine is short, or no longer: this number of bytes of the arena may be in use."""
        self.room.limit_use(size, now)
        return self._settle(now)

    def garbage_collected(self, now: float) -> Sequence[Command]:
        """All processes have answered `AskForGarbage`; what they freed was said before."""
        self.room.garbage_collected(now)
        return self._settle(now)

    def next_deadline(self) -> float | None:
        """When `tick` has something to do, at the latest."""
        seals = next((wait.deadline for wait in self.unsealed), None)
        room = self.room.next_deadline() if self.room.queue else None
        return room if seals is None else seals if room is None else min(seals, room)

    def tick(self, now: float) -> Sequence[Command]:
        """End the waits that took too long, and try again what was put off."""
        self.room.pass_time(now)
        for wait in [wait for wait in self.unsealed if wait.deadline <= now]:
            self._stop_waiting_for_seals(wait)
            self.late[wait] = None
            self._want(wait, now)
        commands = list(self._settle(now))
        # One at a time, oldest first: what a refused pin had in memory may be what the next request waits for.
        report = ""
        while (room := self.room.hopeless(now)) is not None:
            report = report or self.report()
            self._refuse(room, report, now)
            commands.extend(self._settle(now))
        self.room.retry(now)
        commands.extend(self._settle(now))
        return commands

    # -- what people ask for ------------------------------------------------------------------------------------------

    def report(self) -> str:
        """What holds the memory, in lines for people."""
        return object_audit.report(self)

    def statistics(self) -> dict[str, Any]:
        return object_audit.statistics(self)

    def validate(self) -> None:
        """Assert the invariants."""
        object_audit.validate(self)

    @property
    def free_ranges(self) -> RangeSet:
        """Parts of the arena that nobody uses; to look at, not to change."""
        return self.room.arena.free_ranges

    # -- objects come and go ------------------------------------------------------------------------------------------

    def _replace(self, old: StoredObject, new: StoredObject) -> None:
        """`new` takes the place of `old`, which goes as soon as nobody looks at it."""
        self._unlist(old)
        if old.pins:
            # Whose pin is whose cannot be told apart any more, so both versions stay until all pins are gone.
            new.pins = old.pins
            new.stale = (*old.stale, old)
            for process in old.pins:
                pinned = self.processes[process].pinned
                del pinned[old]
                pinned[new] = None
        new.wanted_by, old.wanted_by = old.wanted_by, {}
        for wait in new.wanted_by:
            wait.absent.pop(old, None)
        if not old.freed:
            old.freed = True
            del self.processes[old.owner].owned[old]
        self._forget_if_unused(old)

    def _free(self, objects: Sequence[StoredObject]) -> None:
        """Nobody refers to these any more. To a pin that waits for several of them, all are gone at the same time."""
        waits: dict[PinWait, None] = {}
        for obj in objects:
            obj.freed = True
            self._remember_freed(obj.id, b"")
            self._unlist(obj)
            holder = self.processes.get(obj.owner)
            if holder is not None:
                holder.owned.pop(obj, None)
            for wait in obj.wanted_by:
                if obj in wait.absent:
                    del wait.absent[obj]
                    waits[wait] = None
            obj.wanted_by = {}
            self._forget_if_unused(obj)
        for wait in waits:
            self._go_on(wait)

    def _forget_if_unused(self, obj: StoredObject) -> None:
        """Let go of a freed object's memory and of its copy on disk, if nobody pins it and no I/O touches it."""
        if obj.pins or (obj.place is not MEMORY and obj.place is not DISK):
            return
        if obj.offset >= 0:
            self.room.vacate(obj)
        if obj.disk >= 0:
            self.room.discard(obj.disk, obj.size)
            obj.disk = -1
        if self.objects.get(obj.id) is obj:
            del self.objects[obj.id]

    def _may_drop(self, obj: StoredObject) -> bool:
        """Whether nobody would miss it here."""
        if not obj.is_copy or obj.place is not MEMORY or obj.wanted_by:
            return False
        return self.is_redundant(obj.id) and not any(obj.id in wait.named for wait in chain(self.unsealed, self.late))

    def _forget_dropped(self) -> None:
        dropped, self.room.dropped = self.room.dropped, []
        for obj in dropped:
            del self.objects[obj.id]
            del self.processes[obj.owner].owned[obj]
            # A node that was sent here for it meanwhile is answered at once, and looks elsewhere.
            self._remember_freed(obj.id, b"")
        self.counters["dropped"] += len(dropped)
        # First: whoever wants one of them again must not be led here.
        self.room.commands[:0] = [ReportDropped(obj.id) for obj in dropped]

    def _unlist(self, obj: StoredObject) -> None:
        """It shall neither leave nor come back any more."""
        self.room.keep(obj)
        if obj.room is not None:
            self.room.withdraw(obj.room)
            obj.room = None

    def _remember_freed(self, object_id: bytes, freed_early_by: bytes) -> None:
        self.freed[object_id] = freed_early_by
        if len(self.freed) > FREED_MAX:
            self.freed.popitem(last=False)

    # -- pins ---------------------------------------------------------------------------------------------------------

    def _pin_all(self, process: bytes, request: int, ids: list[bytes]) -> None:
        holder = self._process(process)
        at = []
        for object_id in ids:
            obj = self.objects.get(object_id)
            if obj is None or obj.freed:
                at.append((-1, 0))
                continue
            pins = obj.pins
            if process in pins:
                pins[process] += 1
            else:
                if not pins:
                    self.room.keep(obj)
                    self.room.abandon_hole(obj.hole)
                pins[process] = 1
                holder.pinned[obj] = None
            at.append((obj.offset, obj.size))
        self.room.commands.append(ReplyPinned(process, request, at))

    def _unpinned(self, obj: StoredObject) -> None:
        """The last pin is gone."""
        for old in obj.stale:
            old.pins = {}  # those to come are of the new version, also if this one is still on its way to disk
            self._forget_if_unused(old)
        obj.stale = ()
        if obj.freed:
            self._forget_if_unused(obj)
        elif obj.place is MEMORY:
            self.room.may_leave(obj)

    def _known(self, object_id: bytes, now: float) -> None:
        """What became of the object is known now: nobody waits for its seal any more."""
        for wait in self.unsealed_ids.pop(object_id):
            wait.unknown.discard(object_id)
            if not wait.unknown:
                del self.unsealed[wait]
                self._want(wait, now)

    def _want(self, wait: PinWait, now: float) -> None:
        """Nothing is unknown any more: bring all into memory, unless it has no room for all at a time."""
        arena = self.room.arena
        known = (self.objects.get(object_id) for object_id in set(wait.ids))
        sizes = [arena.round_up(obj.size) for obj in known if obj is not None and not obj.freed]
        if sum(sizes) > arena.capacity:
            self._end_wait(wait)
            self.counters["refused"] += 1
            report = (
                f"{len(sizes)} objects that are wanted at the same time can never fit: they take "
                f"{object_audit.megabytes(sum(sizes))}, and the object store has "
                f"{object_audit.megabytes(arena.capacity)} in all. "
                "Get fewer at a time, pass fewer to one task, or give it more with init(object_store_memory=...) or "
                "`skate start --object-store-memory`."
            )
            self.room.commands.append(ReplyFull(wait.process, wait.request, report, False))
            return
        wait.sequence = self.room.next_sequence()
        wait.since = now
        self._go_on(wait)

    def _look_for_absent(self, wait: PinWait) -> None:
        for object_id in wait.ids:
            obj = self.objects.get(object_id)
            if obj is not None and not obj.freed:
                obj.wanted_by[wait] = None
                if obj.place is DISK or obj.place is RESTORING:
                    wait.absent[obj] = None

    def _go_on(self, wait: PinWait) -> None:
        """Answer the pin if all is there, or ask for room for the next of its objects."""
        if not wait.absent:
            # Also at the end: one may have left for an older request, or was freed, sealed again and spilled meanwhile.
            self._look_for_absent(wait)
        if not wait.absent:
            self._end_wait(wait)
            self._pin_all(wait.process, wait.request, wait.ids)
            return
        for obj in tuple(islice(wait.absent, RESTORES_AHEAD)):
            if obj.place is not DISK:
                continue
            if obj.room is None:
                size = self.room.arena.round_up(obj.size)
                obj.room = Room(wait.sequence, size, size, wait.since)
                obj.room.object = obj
                self.room.ask(obj.room)
            elif obj.room.sequence > wait.sequence:
                self.room.prefer(obj.room, wait.sequence)

    def _end_wait(self, wait: PinWait) -> None:
        del self.processes[wait.process].waits[wait]
        self.late.pop(wait, None)
        for object_id in wait.ids:
            obj = self.objects.get(object_id)
            if obj is not None:
                obj.wanted_by.pop(wait, None)

    def _drop_wait(self, wait: PinWait, holder: Process) -> None:
        """Nobody wants the answer any more."""
        del holder.waits[wait]
        self.late.pop(wait, None)
        self._stop_waiting_for_seals(wait)
        for object_id in wait.ids:
            obj = self.objects.get(object_id)
            if obj is not None and wait in obj.wanted_by:
                del obj.wanted_by[wait]
                if obj.room is not None and not obj.wanted_by:
                    self.room.withdraw(obj.room)
                    obj.room = None

    def _stop_waiting_for_seals(self, wait: PinWait) -> None:
        for object_id in wait.unknown:
            waits = self.unsealed_ids[object_id]
            waits.remove(wait)
            if not waits:
                del self.unsealed_ids[object_id]
        wait.unknown.clear()
        self.unsealed.pop(wait, None)

    # -- small things -------------------------------------------------------------------------------------------------

    def _settle(self, now: float) -> Sequence[Command]:
        """Serve what can be served, and hand over the commands."""
        room = self.room
        if room.changed:
            room.serve_queue(now)
            if room.dropped:
                self._forget_dropped()
        if not room.commands:
            return ()
        commands, room.commands = room.commands, []
        return commands

    def _refuse(self, room: Room, report: str, now: float) -> None:
        """The request waited long enough, in vain."""
        still = f"after {now - room.since:.1f} s there is still no room for {object_audit.megabytes(room.minimum)}"
        obj = room.object
        if obj is None:
            self.room.withdraw(room)
            refused = [(room.process, room.request)]
        else:
            still += f" to bring object {short(obj.id)} back from disk"
            refused = [(wait.process, wait.request) for wait in obj.wanted_by]
            for wait in tuple(obj.wanted_by):
                self._drop_wait(wait, self.processes[wait.process])
        self.counters["refused"] += len(refused)
        for process, request in refused:
            self.room.commands.append(
                ReplyFull(
                    process, request, f"{still}; {report}", bool(self.room.disk_error), object_audit.holders(self)
                )
            )

    def _process(self, process: bytes) -> Process:
        holder = self.processes.get(process)
        if holder is None:
            holder = self.processes[process] = Process()
        return holder

    def _check_waiting(self, process: bytes, holder: Process) -> None:
        if len(holder.rooms) + len(holder.waits) >= WAITING_PER_PROCESS_MAX:
            raise StoreProtocolError(
                f"more than {WAITING_PER_PROCESS_MAX} requests of {self.describe(process)} wait for the store"
            )
