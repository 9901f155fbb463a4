"""The object store of a node: carries messages into the object table, and its commands out to processes and disk.

    processes ──Allocate Seal Pin Unpin Free ReturnSpace──▶ Store.handle ──▶ ObjectTable (decides; pure)
    processes ◀──Allocated Pinned StoreFull── reply() ◀──────────────┘ │ StartSpill, StartRestore, Discard
                                                                       ▼
    event loop ── on_wake() ◀── wake() ◀── finished I/O ◀── spill thread ◀── jobs

Memory of the arena is taken page by page as objects are written, never up front, and kept when they are freed: copying
into pages that were used before is several times faster. Only when the store has been left alone for a while
(TRIM_AFTER_S) is unused memory given back to the system, a little at a time; or when memory of the machine is short
(`limit_memory`), at once.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable
from typing import Any

from skate._core.object_records import (
    AskForGarbage,
    Command,
    ReplyAllocated,
    ReplyFull,
    ReplyPinned,
    ReportDropped,
    StartRestore,
    StartSpill,
)
from skate._core.object_table import ObjectTable, StoreProtocolError
from skate._node.spill import Spill, punch_hole
from skate._store.layout import HEAD_BYTES, NAME_BYTES, arena_file_bytes, name_offset, parse_name, slot_fields
from skate._wire.messages import Allocate, Allocated, Free, Message, Pin, Pinned, ReturnSpace, Seal, StoreFull, Unpin

__all__ = ["Store", "StoreProtocolError"]

StoreMessage = Allocate | Seal | ReturnSpace | Pin | Unpin | Free

#: What `st_blocks` counts.
BLOCK_BYTES = 512
#: After so long without a message, memory that nobody uses is given back.
TRIM_AFTER_S = 30.0
#: So much at a time (a few milliseconds), with that pause in between, so that the loop stays responsive.
TRIM_BYTES = 16 << 20
TRIM_PAUSE_S = 0.02
#: Smaller pieces are not worth a system call; nor are these when memory is short.
TRIM_BYTES_MIN = 1 << 20
SHORT_BYTES_MIN = 64 << 10
#: Given back at a time when memory is short: some 15 ms.
SHORT_BYTES = 64 << 20


class Store:
    """All methods are called from the event loop's thread. `wake` alone is called from the spill thread.

    reply(process_id, message)  sends Allocated, Pinned or StoreFull; called from within the methods below
    wake()                      must make the loop call `on_wake(now)` soon; thread-safe
    describe(process_id)        how a process is called in reports, e.g. "worker pid 4123"
    collect()                   asks all processes to collect garbage; when they have, call `garbage_collected`
    """

    def __init__(
        self,
        arena_bytes: int,
        spill_directory: str | os.PathLike[str],
        reply: Callable[[bytes, Message], None],
        wake: Callable[[], None],
        describe: Callable[[bytes], str],
        *,
        full_grace_s: float = 10.0,
        unsealed_grace_s: float = 10.0,
        collect: Callable[[], None] | None = None,
    ) -> None:
        self._table = ObjectTable(
            HEAD_BYTES,
            arena_bytes,
            full_grace_s=full_grace_s,
            unsealed_grace_s=unsealed_grace_s,
            describe=describe,
            collects_garbage=collect is not None,
        )
        #: The arena's file descriptor: inherited by workers, passed to the driver. Map `arena_file_bytes` of it.
        self.fd = os.memfd_create("skate-arena", os.MFD_CLOEXEC)
        self.arena_bytes = arena_bytes
        os.ftruncate(self.fd, arena_file_bytes(arena_bytes))
        self._arena = mmap.mmap(self.fd, arena_bytes)
        self._view = memoryview(self._arena)
        self._spill = Spill(self._view, spill_directory, wake)
        self._reply = reply
        self._collect = collect
        self._on_dropped: Callable[[bytes], None] = lambda id: None
        self._last_message = 0.0
        #: Memory may have been written to up to here since it was last given back; 0 if there is none to give back.
        self._warm_end = 0
        #: What lies before this has been given back, as far as it is free.
        self._trimmed_to = HEAD_BYTES
        #: Bytes of memory that the arena may take up; None: as many as it has.
        self._limit_bytes: int | None = None

    def let_drop(
        self, keeper: bytes, is_redundant: Callable[[bytes], bool], on_dropped: Callable[[bytes], None]
    ) -> None:
        """What `keeper` owns are copies of objects of other nodes. When memory is short, those go first for which
        is_redundant(id) is true; on_dropped(id) hears of each."""
        self._table.keeper = keeper
        self._table.is_redundant = is_redundant
        self._on_dropped = on_dropped

    def handle(self, process_id: bytes, message: StoreMessage, now: float) -> None:
        """A message from a process. Raises StoreProtocolError (a ValueError) if it breaks the rules: the peer is to be
        cut off; the store itself is unharmed. `now` is time.monotonic() everywhere here."""
        self._last_message = now
        table = self._table
        match message:
            case Seal():
                for id, owner, offset, size in message.objects:
                    self._carry_out(table.seal(process_id, id, owner, offset, size, now))
                return
            case Free():
                commands = table.free(process_id, message.ids, now)
            case Pin():
                commands = table.pin(process_id, message.request, message.ids, now)
            case Unpin():
                commands = table.unpin(process_id, message.ids, now)
            case Allocate():
                commands = table.allocate(process_id, message.request, message.size, message.least or message.size, now)
            case _:
                commands = table.return_space(process_id, message.offset, message.size, now)
        self._carry_out(commands)

    def process_died(self, process_id: bytes, now: float) -> None:
        """Take back everything of a process. Call it once the process is really gone: until then it could still write
        into memory that would be lent to others."""
        self._last_message = now
        self._carry_out(self._table.process_died(process_id, now))

    def next_deadline(self) -> float | None:
        """When `tick` must be called at the latest (time.monotonic()), or None. Changes with every call above."""
        deadline = self._table.next_deadline()
        if self._warm_end:
            trim_at = self._last_message + TRIM_AFTER_S
            return trim_at if deadline is None else min(deadline, trim_at)
        return deadline

    def tick(self, now: float) -> None:
        """Time has passed."""
        self._carry_out(self._table.tick(now))
        if self._warm_end and now >= self._last_message + TRIM_AFTER_S:
            self._trim()
            self._last_message = now + TRIM_PAUSE_S - TRIM_AFTER_S

    def on_wake(self, now: float) -> None:
        """The spill thread called `wake`: take up what it finished."""
        finished = self._spill.finished
        while finished:
            job, error = finished.popleft()
            match job:
                case StartSpill():
                    commands = self._table.spill_ended(job.job, error, now)
                case StartRestore():
                    commands = self._table.restore_ended(job.job, error, now)
                case _:
                    commands = self._table.reserve_ended(job.job, error, now)
            self._carry_out(commands)
        self._give_back_excess()

    def garbage_collected(self, now: float) -> None:
        """All processes that were asked have collected their garbage."""
        self._carry_out(self._table.garbage_collected(now))

    # -- short memory -------------------------------------------------------------------------------------------------

    @property
    def resident_bytes(self) -> int:
        """Memory that the arena takes up now."""
        return os.fstat(self.fd).st_blocks * BLOCK_BYTES

    def limit_memory(self, size: int | None, now: float, *, spill: bool = True) -> bool:
        """The arena may take up this number of bytes of memory; None: all that it has. Pages not in use are given back,
        and objects are written to disk if `spill` says that this helps. Whether memory is being given back."""
        self._limit_bytes = size
        self._carry_out(self._table.limit_memory(self.arena_bytes if size is None or not spill else size, now))
        room = self._table.room
        is_collecting = room.garbage is not None and room.garbage.waits_until > 0
        return self._give_back_excess() > 0 or bool(room.shedding) or is_collecting

    def would_exceed(self, size: int) -> bool:
        """Whether this number of further bytes is beyond the limit."""
        return self._limit_bytes is not None and self._table.room.arena.used + size > self._limit_bytes

    def _give_back_excess(self) -> int:
        """Give pages back that are free while the arena takes up too much; how many bytes."""
        if self._limit_bytes is None:
            return 0
        before = self.resident_bytes
        excess = min(before - self._limit_bytes, SHORT_BYTES)
        if excess <= 0:
            return 0
        for start, end in self._table.free_ranges.within(HEAD_BYTES, self._warm_end):
            at = start
            while end - at >= SHORT_BYTES_MIN:
                # Which of these pages are there at all is not known: those that are not cost next to nothing.
                piece = min(end - at, TRIM_BYTES)
                punch_hole(self.fd, at, piece)
                at += piece
                if before - self.resident_bytes >= excess:
                    return excess
        return before - self.resident_bytes

    # -- what others ask ----------------------------------------------------------------------------------------------

    def running_task(self, slot: int) -> bytes:
        """The object id in a process slot, b"" if none: what the process runs."""
        running, _ = slot_fields(self._view, slot)
        return bytes(running) if any(running) else b""

    def last_task(self, slot: int) -> bytes:
        """What a dead process ran, or the last that it had run; b"" if none."""
        _, last = slot_fields(self._view, slot)
        return self.running_task(slot) or (bytes(last) if any(last) else b"")

    def printing_name(self, slot: int) -> str:
        """The task that a process runs or has run last, or the class of its actor, by name; "" if that is not known."""
        # Not through a mapping: one more would take one more descriptor.
        return parse_name(os.pread(self.fd, NAME_BYTES, name_offset(self.arena_bytes, slot)))

    def clear_slot(self, slot: int) -> None:
        """Make a slot ready for its next process."""
        for field in slot_fields(self._view, slot):
            field[:] = bytes(len(field))
        os.pwrite(self.fd, bytes(NAME_BYTES), name_offset(self.arena_bytes, slot))

    def has(self, id: bytes) -> bool:
        """Whether the object is here, in memory or on disk."""
        obj = self._table.objects.get(id)
        return obj is not None and not obj.freed

    def owner_of(self, id: bytes) -> bytes:
        """The process that owns an object that is here."""
        return self._table.objects[id].owner

    def returns_of(self, tasks: list[bytes]) -> list[bytes]:
        """What these tasks have stored here."""
        return self._table.returns_of(tasks)

    def was_freed(self, id: bytes) -> bool:
        """Whether it is gone for good; of those that were freed lately."""
        return not self.has(id) and id in self._table.freed

    @property
    def used_bytes(self) -> int:
        return int(self._table.statistics()["used_bytes"])

    @property
    def view(self) -> memoryview:
        """The arena's bytes."""
        return self._view

    def statistics(self) -> dict[str, Any]:
        return self._table.statistics()

    def report(self) -> str:
        """What holds the memory, for people."""
        return self._table.report()

    def validate(self) -> None:
        """Assert the object table's invariants."""
        self._table.validate()

    def close(self) -> None:
        """End the spill thread, close the arena and the spill file."""
        self._spill.close()
        self._view.release()
        self._arena.close()
        os.close(self.fd)

    def _carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case ReplyAllocated(process, request, offset, size):
                    self._will_be_written(offset + size)
                    self._reply(process, Allocated(request, offset, size))
                case ReplyPinned(process, request, at):
                    self._reply(process, Pinned(request, at))
                case ReplyFull(process, request, report, disk, holders):
                    self._reply(process, StoreFull(request, report, disk, holders))
                case ReportDropped(id):
                    self._on_dropped(id)
                case AskForGarbage():
                    assert self._collect is not None
                    self._collect()
                case _:
                    if isinstance(command, StartRestore):
                        self._will_be_written(command.offset + command.size)
                    self._spill.start(command)

    def _will_be_written(self, end: int) -> None:
        self._warm_end = max(self._warm_end, end)
        self._trimmed_to = HEAD_BYTES

    def _trim(self) -> None:
        """Give back the next piece of memory that nobody uses."""
        for start, end in self._table.free_ranges.within(self._trimmed_to, self._warm_end):
            if end - start >= TRIM_BYTES_MIN:
                # Whole pages are given back; the free part of a page that is partly used is set to zero.
                self._trimmed_to = min(end, start + TRIM_BYTES)
                punch_hole(self.fd, start, self._trimmed_to - start)
                return
        self._warm_end = 0
        self._trimmed_to = HEAD_BYTES
