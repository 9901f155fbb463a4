"""Who refers to an object, and when it may go.

Every process has one table of the objects that it knows: those it owns (it submitted the task that makes them, or put
them) and those it borrows (another process owns them, and it came by a reference).

An object is freed when nothing refers to it:

- `refs`: references in this process that user code can reach;
- `holds`: everything else: the task that will produce it while that is pending, submitted tasks that take it as an
  argument, stored values that contain it, and one for every borrower.

A borrowed object that nothing here refers to is released: the owner is told, and forgets this process as a borrower.
Registrations are counted on both sides, because a release may cross with the same reference coming again: the borrower
takes back as many as it knows of, and the owner keeps it while there are more.

Owns:      the counts, the values of small objects, the borrowers of each.
Knows not: sockets and threads. The caller holds a lock, and carries out what `take_freed` hands it.
Invariant: an entry exists exactly as long as refs + holds > 0; see tests/unit/test_ownership.py.
Idea:      one flat table and counts, no graph. A cycle of references through stored values is impossible, because a
           value can only contain references that existed before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from skate._core.task import Failure, Task

#: Objects that became errors and are remembered, for those who wait for them among many others.
FAILED_MAX = 256

#: An inline value, the place of a value in an arena, or an error.
Stored = bytes | int | Failure


class Pending(msgspec.Struct):
    """What an owner knows of an unusual task until it ends; a plain first attempt without references has none."""

    #: Retries already used, after crashes and after exceptions.
    retries: int = 0
    #: Attempts that were ended because memory was short.
    memory_kills: int = 0
    #: Arguments that are not there yet; the task is queued when this reaches zero.
    missing: int = 0
    #: Objects kept alive for the task: its arguments and the references inside them.
    holds: list[bytes] = []
    cancelled: bool = False
    #: The consumer's side of a streaming generator.
    stream: Any = None
    #: Values of the arguments that are references, filled in as they arrive.
    unresolved: list[Any] = []
    #: Where attempts that came to nothing may have stored returns: so many of the first ones; None: who knows.
    left: dict[int, int | None] = {}


class Entry(msgspec.Struct, gc=False):
    """One object. Made a million times, so it has few fields and the collector does not visit it."""

    refs: int
    holds: int
    #: None while pending.
    value: bytes | int | Failure | None = None
    #: The process that owns it; b"" when this one does.
    owner: bytes = b""
    #: The task that makes it, until it has; only at the task's first return.
    task: Task | None = None
    #: Options of that task: shared by all tasks of one remote function.
    call: Any = None
    pending: Pending | None = None
    #: Ids of the references inside the value: held as long as the entry.
    contained: list[bytes] | None = None
    #: Owner's side: process → how often it was registered as a borrower.
    borrowers: dict[bytes, int] | None = None
    #: Borrower's side: how often this process was registered with the owner.
    registered: int = 0
    #: Called with (id, entry) once, when the value is there.
    waiters: list[Callable[[bytes, Any], None]] | None = None


class ObjectTable:
    """The objects that one process knows."""

    def __init__(self) -> None:
        self.entries: dict[bytes, Entry] = {}
        #: Freed since the last `take_freed`, with their last state.
        self._freed: list[tuple[bytes, Entry]] = []
        #: Owner's side: what each other process borrows from us, so that its death can be settled.
        self._borrowed_by: dict[bytes, set[bytes]] = {}
        #: Waiters to be called, and whether somebody is calling them.
        self._told: deque[tuple[Callable[[bytes, Any], None], bytes, Entry]] = deque()
        self._telling = False
        #: Borrower's side: what we borrow from each other process.
        self._borrowed_from: dict[bytes, set[bytes]] = {}
        #: How many objects have become errors, and the last of them.
        self.failures = 0
        self.failed: deque[bytes] = deque(maxlen=FAILED_MAX)

    # -- references ---------------------------------------------------------------------------------

    def adopt(self, id: bytes, owner: bytes) -> Entry:
        """One more reference in this process; the entry is made if the object was unknown."""
        entry = self.entries.get(id)
        if entry is None:
            entry = self._add(id, Entry(1, 0, None, owner))
        else:
            entry.refs += 1
        return entry

    def _add(self, id: bytes, entry: Entry) -> Entry:
        self.entries[id] = entry
        if entry.owner:
            self._borrowed_from.setdefault(entry.owner, set()).add(id)
        return entry

    def drop(self, ids: Iterable[bytes]) -> None:
        """One reference less for each."""
        entries = self.entries
        get = entries.get
        for id in ids:
            entry = get(id)
            if entry is None:
                continue
            refs = entry.refs = entry.refs - 1
            if refs or entry.holds:
                continue
            if type(entry.value) is bytes and not entry.owner and entry.contained is None and entry.borrowers is None:
                del entries[id]  # nobody else has to hear of it
            else:
                self._free(id, entry)

    def hold(self, id: bytes, owner: bytes = b"") -> Entry:
        """Keep an object for a reason other than a reference in user code."""
        entry = self.entries.get(id)
        if entry is None:
            entry = self._add(id, Entry(0, 1, None, owner))
        else:
            entry.holds += 1
        return entry

    def unhold(self, ids: Iterable[bytes]) -> None:
        entries = self.entries
        for id in ids:
            entry = entries.get(id)
            if entry is not None:
                entry.holds -= 1
                if not entry.refs and not entry.holds:
                    self._free(id, entry)

    # -- values ---------------------------------------------------------------------------------------

    def resolve(self, id: bytes, entry: Entry, value: Stored, contained: list[bytes] | None = None) -> None:
        """The value is there. The caller has already taken a hold on everything in `contained`."""
        entry.value = value
        if type(value) is Failure:
            self.failed.append(id)
            self.failures += 1  # after it is in the list: other threads look at both
        if contained:
            entry.contained = contained
        waiters = entry.waiters
        if waiters is None:
            return
        entry.waiters = None
        # A waiter may resolve other objects (a chain of tasks that fail): those come after it, not inside it.
        told = self._told
        told.extend((waiter, id, entry) for waiter in waiters)
        if self._telling:
            return
        self._telling = True
        try:
            while told:
                waiter, id, entry = told.popleft()
                waiter(id, entry)
        finally:
            self._telling = False

    def when_resolved(self, entry: Entry, waiter: Callable[[bytes, Any], None]) -> None:
        if entry.waiters is None:
            entry.waiters = [waiter]
        else:
            entry.waiters.append(waiter)

    # -- borrowers --------------------------------------------------------------------------------------

    def add_borrower(self, id: bytes, borrower: bytes) -> bool:
        """Register a borrower once more; False if the object is unknown (freed already)."""
        entry = self.entries.get(id)
        if entry is None:
            return False
        if self._count_borrower(id, entry, borrower, 1) == 1:
            entry.holds += 1
        return True

    def remove_borrower(self, id: bytes, borrower: bytes, times: int = 1) -> None:
        """Take back that many registrations. A release may overtake the registration: then the count is below zero."""
        entry = self.entries.get(id)
        if entry is None:
            return
        left = self._count_borrower(id, entry, borrower, -times)
        if left <= 0 < left + times:
            self.unhold((id,))

    def _count_borrower(self, id: bytes, entry: Entry, borrower: bytes, change: int) -> int:
        if entry.borrowers is None:
            entry.borrowers = {}
        count = entry.borrowers.get(borrower, 0) + change
        if count:
            entry.borrowers[borrower] = count
            self._borrowed_by.setdefault(borrower, set()).add(id)
        else:
            del entry.borrowers[borrower]
            self._forget_borrower(id, borrower)
        return count

    def _forget_borrower(self, id: bytes, borrower: bytes) -> None:
        ids = self._borrowed_by[borrower]
        ids.discard(id)
        if not ids:
            del self._borrowed_by[borrower]

    def forget_process(self, process: bytes) -> list[bytes]:
        """A process is dead: it borrows nothing any more. Returns the objects that it owned and we still refer to."""
        for id in list(self._borrowed_by.get(process, ())):
            borrowers = self.entries[id].borrowers
            assert borrowers is not None
            self.remove_borrower(id, process, borrowers[process])
        return list(self._borrowed_from.get(process, ()))

    # -- freeing ----------------------------------------------------------------------------------------

    def _free(self, id: bytes, entry: Entry) -> None:
        del self.entries[id]
        if type(entry.value) is bytes and not entry.owner and entry.contained is None and entry.borrowers is None:
            return  # nobody else has to hear of it
        self._freed.append((id, entry))
        for borrower in entry.borrowers or ():  # releases that came before their registrations
            self._forget_borrower(id, borrower)
        if entry.owner:
            ids = self._borrowed_from[entry.owner]
            ids.discard(id)
            if not ids:
                del self._borrowed_from[entry.owner]

    def take_freed(self) -> list[tuple[bytes, Entry]]:
        """What was freed since the last call, including what was only kept by freed containers.

        Left out are inline values of our own that nobody borrowed: no other process has to hear of those.
        """
        freed = self._freed
        if not freed:
            return freed
        at = 0
        while at < len(freed):  # grows while we go: containers free what they contain
            contained = freed[at][1].contained
            if contained:
                self.unhold(contained)
            at += 1
        self._freed = []
        return freed

    @property
    def borrows(self) -> bool:
        """Whether this process refers to objects of others."""
        return bool(self._borrowed_from)

    # -- introspection ------------------------------------------------------------------------------------

    def validate(self) -> None:
        for id, entry in self.entries.items():
            assert entry.refs >= 0, (id, entry)
            assert entry.holds >= 0, (id, entry)
            assert entry.refs + entry.holds > 0, (id, entry)
            borrowers = entry.borrowers or {}
            assert entry.holds >= sum(times > 0 for times in borrowers.values()), (id, entry)
            assert not borrowers or not entry.owner, "only an owner knows borrowers"
            assert all(borrowers.values()), (id, entry)
            assert entry.owner or not entry.registered, "an owner is not registered with itself"
            for borrower in borrowers:
                assert id in self._borrowed_by[borrower]
        for borrower, ids in self._borrowed_by.items():
            assert ids, borrower
            for id in ids:
                assert borrower in (self.entries[id].borrowers or ())

    def statistics(self) -> dict[str, int]:
        owned = sum(1 for entry in self.entries.values() if not entry.owner)
        return {
            "objects_owned": owned,
            "objects_borrowed": len(self.entries) - owned,
            "objects_pending": sum(1 for entry in self.entries.values() if entry.value is None),
            "borrowers": len(self._borrowed_by),
        }


class FailureWatch:
    """Finds an error among many objects. All of them are looked at once; then only what became an error since."""

    def __init__(self, table: ObjectTable, ids: Callable[[], list[bytes]]) -> None:
        self._table = table
        #: Asked for when there is an error at all.
        self._ids = ids
        self._wanted: frozenset[bytes] = frozenset()
        self._seen = 0

    def found(self) -> Failure | None:
        """One of the objects is an error: that one, the first in order if they are looked at for the first time."""
        table = self._table
        new = table.failures - self._seen
        if not new:
            return None
        self._seen += new
        if not self._wanted or new > FAILED_MAX // 2:
            ids = self._ids()
            self._wanted = frozenset(ids)
        else:
            ids = [id for id in list(table.failed) if id in self._wanted]
        for id in ids:
            entry = table.entries.get(id)
            if entry is not None and type(entry.value) is Failure:
                return entry.value
        return None
