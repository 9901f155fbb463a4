"""Looking at an object table from outside: a report for people, numbers for machines, and a check of its invariants."""

from __future__ import annotations

import heapq
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any

from skate._core.ids import short
from skate._core.object_records import DISK, MEMORY, RESTORING, SPILLING, StoredObject

if TYPE_CHECKING:
    from skate._core.object_table import ObjectTable

#: So many objects, and so many processes, are listed in a report: the largest.
REPORT_LINES = 10
#: So many holders of an object are named.
REPORT_HOLDERS = 4


def megabytes(size: int) -> str:
    """The one spelling of sizes in reports."""
    return f"{size / 2**20:.1f} MiB" if size >= 2**18 else f"{size / 2**10:.1f} KiB"


def report(table: ObjectTable) -> str:
    """What holds the memory, in lines for people."""
    arena = table.room.arena
    lent = {process: holder.lent.total for process, holder in table.processes.items() if holder.lent.total}
    in_memory = [obj for obj in _everything(table) if obj.offset >= 0]
    in_use = [obj for obj in in_memory if obj.pins]
    on_disk = [obj for obj in table.objects.values() if obj.place is DISK]
    lines = [
        (
            f"the object store has {megabytes(arena.capacity)} (object_store_memory): "
            f"{megabytes(arena.available)} free, the largest piece {megabytes(arena.largest_free)}; "
            f"{_total(in_use)} in use in {len(in_use)} objects; "
            f"{megabytes(table.room.evictable_bytes)} in {len(table.room.evictable)} objects that could go to disk; "
            f"{megabytes(sum(lent.values()))} being filled; {_total(on_disk)} on disk in {len(on_disk)} objects."
        )
    ]
    if table.room.disk_error:
        lines.append(f"  The disk does not take what should go there: {table.room.disk_error}")
    lines += [f"  {megabytes(size):>12}  {what}" for what, size in holders(table)]
    return "\n".join(lines)


def holders(table: ObjectTable) -> list[tuple[str, int]]:
    """The largest things in memory: what each is and for whom, and its bytes."""
    found = []
    in_memory = [obj for obj in _everything(table) if obj.offset >= 0]
    for obj in heapq.nlargest(REPORT_LINES, in_memory, key=lambda obj: obj.size):
        state = "in use by " + ", ".join(table.describe(process) for process in islice(obj.pins, REPORT_HOLDERS))
        if not obj.pins:
            state = f"in {obj.place.value}, not in use" if obj.place is MEMORY else obj.place.value
        elif len(obj.pins) > REPORT_HOLDERS:
            state += f" and {len(obj.pins) - REPORT_HOLDERS} more"
        freed = " (freed, kept for them)" if obj.freed else ""
        found.append((f"object {short(obj.id)}, owned by {table.describe(obj.owner)}: {state}{freed}", obj.size))
    lent = {process: holder.lent.total for process, holder in table.processes.items() if holder.lent.total}
    for process, size in heapq.nlargest(REPORT_LINES, lent.items(), key=lambda item: item[1]):
        found.append((f"being filled by {table.describe(process)}", size))
    return found


def statistics(table: ObjectTable) -> dict[str, Any]:
    room = table.room
    return {
        "capacity_bytes": room.arena.capacity,
        "used_bytes": room.arena.used,
        "available_bytes": room.arena.available,
        "largest_free_bytes": room.arena.largest_free,
        "limit_bytes": room.limit_bytes,
        "lent_bytes": sum(holder.lent.total for holder in table.processes.values()),
        "evictable_bytes": room.evictable_bytes,
        "disk_bytes": room.disk.used,
        "objects": len(table.objects),
        "objects_on_disk": sum(obj.place is DISK for obj in table.objects.values()),
        "waiting_for_room": len(room.queue),
        "waiting_for_seal": len(table.unsealed),
        "jobs": len(room.jobs),
        "disk_error": room.disk_error,
        **table.counters,
    }


def validate(table: ObjectTable) -> None:
    """Assert every invariant. Takes time in proportion to everything there is."""
    _validate_space(table)
    _validate_objects(table)
    _validate_processes(table)
    _validate_queue(table)


def _validate_space(table: ObjectTable) -> None:
    """Every byte of the arena has exactly one use; no byte of the spill file is lost."""
    room = table.room
    room.arena.validate()
    room.disk.validate()
    uses = list(room.arena.free_ranges)
    for holder in table.processes.values():
        holder.lent.validate()
        uses.extend(holder.lent)
    for request in room.queue:
        uses.extend(request.claimed)
    on_disk = 0
    for obj in _everything(table):
        if obj.offset >= 0:
            uses.append((obj.offset, obj.offset + room.arena.round_up(obj.size)))
        if obj.disk >= 0 or obj.place is SPILLING:
            on_disk += room.disk.round_up(obj.size)
    on_disk += room.spare_bytes + (room.reserving[2] if room.reserving is not None else 0)
    assert not room.spare_bytes or room.disk.used > room.spare_bytes, "space is set aside for nothing"
    uses.sort()
    assert all(end == start for (_, end), (start, _) in pairwise(uses)), "bytes are used twice, or lost"
    assert sum(end - start for start, end in uses) == room.arena.capacity
    assert on_disk == room.disk.used


def _validate_objects(table: ObjectTable) -> None:
    room = table.room
    busy = {obj for obj, _ in room.jobs.values()}
    assert len(busy) == len(room.jobs), "one object, two I/O jobs"
    assert room.evictable_bytes == sum(obj.size for obj in room.evictable)
    assert set(room.evictable_copies) == {obj for obj in room.evictable if obj.is_copy}
    assert not room.dropped
    assert all(obj.place is SPILLING for obj in room.shedding)
    assert room.evictable_from == {obj.offset: obj for obj in room.evictable}
    assert room.evictable_to == {obj.offset + room.arena.round_up(obj.size): obj for obj in room.evictable}
    for obj in _everything(table):
        in_memory = obj.place is MEMORY or obj.place is SPILLING
        assert (obj.offset < 0) == (obj.place is DISK)
        assert (obj in busy) == (obj.place is SPILLING or obj.place is RESTORING)
        assert obj.disk >= 0 or in_memory
        assert in_memory or not obj.pins
        assert (obj in room.evictable) == (obj.place is MEMORY and not obj.pins and not obj.freed)
        assert all(count > 0 and process in table.processes for process, count in obj.pins.items())
        assert obj.hole is None or (obj in obj.hole.leaving and obj.place is SPILLING and not obj.pins)
        assert obj.room is None or (obj.room in room.queue and obj.wanted_by and obj.place is DISK)
        assert not obj.stale or obj.pins
        if obj.freed:
            assert obj.pins or obj in busy, "freed and unused, but still here"
            assert not obj.wanted_by
        else:
            assert table.objects[obj.id] is obj
            assert obj in table.processes[obj.owner].owned


def _validate_processes(table: ObjectTable) -> None:
    for process, holder in table.processes.items():
        assert process not in table.dead
        assert set(holder.pinned) == {obj for obj in table.objects.values() if process in obj.pins}
        assert all(obj.owner == process and not obj.freed for obj in holder.owned)
        assert all(room in table.room.queue and room.holder is holder for room in holder.rooms)
        for wait in holder.waits:
            assert (wait in table.unsealed) == bool(wait.unknown)
            assert bool(wait.unknown) != bool(wait.absent), "a pin waits for nothing, or for two things"
            assert all(wait in table.unsealed_ids[object_id] for object_id in wait.unknown)
            assert all(obj.place is DISK or obj.place is RESTORING for obj in wait.absent)
            assert all(wait in obj.wanted_by for obj in wait.absent)
            first = next(iter(wait.absent), None)
            assert first is None or first.place is RESTORING or first.room is not None, "a pin waits without asking"
    waits = set(chain.from_iterable(holder.waits for holder in table.processes.values()))
    assert set(table.unsealed) <= waits
    assert set(table.late) <= waits
    assert set(chain.from_iterable(table.unsealed_ids.values())) == set(table.unsealed)
    assert all(set(obj.wanted_by) <= waits for obj in table.objects.values())
    deadlines = [wait.deadline for wait in table.unsealed]
    assert deadlines == sorted(deadlines)


def _validate_queue(table: ObjectTable) -> None:
    queue = table.room.queue
    sequences = [room.sequence for room in queue]
    assert sequences == sorted(sequences)
    for room in queue:
        if room.object is not None:
            assert room.object.room is room
        else:
            assert room.holder is not None
            assert room in room.holder.rooms
        assert (room.start >= 0) == bool(room.leaving)
        assert room.start >= 0 or not room.claimed
        assert all(obj.hole is room for obj in room.leaving)


def _everything(table: ObjectTable) -> list[StoredObject]:
    """All that take up space: known ones, earlier versions that are pinned, and those that only I/O still touches."""
    known = list(table.objects.values())
    touched = (obj for obj, _ in table.room.jobs.values())
    return list(dict.fromkeys(chain(known, *(obj.stale for obj in known), touched)))


def _total(objects: list[StoredObject]) -> str:
    return megabytes(sum(obj.size for obj in objects))
