"""The object store of a node: carries messages into the object table, and its commands out to processes and disk.

processes ──Allocate Seal Pin Unpin Free ReturnSpace──▶ Store.handle ──▶ ObjectTable (decides; pure)
processes ◀──Allocated Pinned StoreFull── reply() ◀──────────────┘ │ StartSpill, StartRestore, Discard
                                                                   ▼
event loop ── on_wake() ◀── wake() ◀── finished I/O ◀── spill thread ◀── jobs
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from skate._core.object_records import Command, ReplyAllocated, ReplyFull, ReplyPinned, StartSpill
from skate._core.object_table import ObjectTable, StoreProtocolError
from skate._node.spill import Spill
from skate._store.layout import HEAD_BYTES, SLOT_TASK_BYTES, arena_file_bytes, slot_offset
from skate._wire.messages import Allocate, Allocated, Free, Message, Pin, Pinned, ReturnSpace, Seal, StoreFull, Unpin

__all__ = ["Store", "StoreProtocolError"]

StoreMessage = Allocate | Seal | ReturnSpace | Pin | Unpin | Free


class Store:
    """All methods are called from the event loop's thread. `wake` alone is called from the spill thread.

    reply(process_id, message)  sends Allocated, Pinned or StoreFull; called from within the methods below
    wake()                      must make the loop call `on_wake(now)` soon; thread-safe
    describe(process_id)        how a process is called in reports, e.g. "worker pid 4123"
    """

    def __init__(
        self,
        arena_bytes: int,
        spill_directory: str | Path,
        reply: Callable[[bytes, Message], None],
        wake: Callable[[], None],
        describe: Callable[[bytes], str],
        *,
        full_grace_s: float = 10.0,
        unsealed_grace_s: float = 10.0,
    ) -> None:
        #: The arena's file descriptor: inherited by workers, passed to the driver. Map `arena_file_bytes` of it.
        self.fd = os.memfd_create("skate-arena", os.MFD_CLOEXEC)
        self.arena_bytes = arena_bytes
        os.ftruncate(self.fd, arena_file_bytes(arena_bytes))
        self._arena = mmap.mmap(self.fd, arena_bytes)
        self._view = memoryview(self._arena)
        self._reply = reply
        self._table = ObjectTable(
            HEAD_BYTES,
            arena_bytes,
            full_grace_s=full_grace_s,
            unsealed_grace_s=unsealed_grace_s,
            describe=describe,
        )
        self._spill = Spill(self._view, spill_directory, wake)

    def handle(self, process_id: bytes, message: StoreMessage, now: float) -> None:
        """A message from a process. Raises StoreProtocolError if it breaks the rules: cut the peer off."""
        table = self._table
        match message:
            case Seal():
                commands = table.seal(process_id, message.id, message.owner, message.offset, message.size, now)
            case Free():
                commands = table.free(process_id, message.ids, now)
            case Pin():
                commands = table.pin(process_id, message.request, message.ids, now)
            case Unpin():
                commands = table.unpin(process_id, message.ids, now)
            case Allocate():
                commands = table.allocate(process_id, message.request, message.size, message.chunk, now)
            case ReturnSpace():
                commands = table.return_space(process_id, message.offset, message.size, now)
        self._carry_out(commands)

    def process_died(self, process_id: bytes, now: float) -> None:
        """Take back everything of a process. Call it once the process is really gone: until then it could still write
        into memory that would be lent to others."""
        self._carry_out(self._table.process_died(process_id, now))

    def next_deadline(self) -> float | None:
        """When `tick` must be called at the latest (time.monotonic()), or None. Changes with every call above."""
        return self._table.next_deadline()

    def tick(self, now: float) -> None:
        """Time has passed."""
        self._carry_out(self._table.tick(now))

    def on_wake(self, now: float) -> None:
        """The spill thread called `wake`: take up what it finished."""
        finished = self._spill.finished
        while finished:
            job, error = finished.popleft()
            ended = self._table.spill_ended if isinstance(job, StartSpill) else self._table.restore_ended
            self._carry_out(ended(job.job, error, now))

    def _carry_out(self, commands: Iterable[Command]) -> None:
        for command in commands:
            match command:
                case ReplyAllocated():
                    self._reply(command.process, Allocated(command.request, command.offset, command.size))
                case ReplyPinned():
                    self._reply(command.process, Pinned(command.request, command.at))
                case ReplyFull():
                    self._reply(command.process, StoreFull(command.request, command.report, command.disk))
                case _:
                    self._spill.start(command)

    def running_task(self, slot: int) -> bytes:
        """The object id in a process slot, b"" if none: what the dead process ran."""
        offset = slot_offset(slot)
        id = bytes(self._view[offset : offset + SLOT_TASK_BYTES])
        return id if any(id) else b""

    def clear_slot(self, slot: int) -> None:
        """Make a slot ready for its next process."""
        offset = slot_offset(slot)
        self._view[offset : offset + SLOT_TASK_BYTES] = bytes(SLOT_TASK_BYTES)

    def statistics(self) -> dict[str, Any]:
        return self._table.statistics()

    def report(self) -> str:
        """What holds the memory, for people."""
        return self._table.report()

    def close(self) -> None:
        """End the spill thread, close the arena and the spill file."""
        self._spill.close()
        self._view.release()
        self._arena.close()
        os.close(self.fd)
