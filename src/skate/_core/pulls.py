"""Objects on their way to this node: which come next, from whom, and what happens when a source fails.

    want ──▶ WAITING ──within the budget──▶ RESERVING ──the store has room──▶ LOCATING ──a source──▶ PULLING ──▶ arrived
                                       │                                         ▲                     │
                                       └──it has none: refused                   └── the source failed ┘

- Each object is pulled once, however many want it. It is given up when nobody wants it any more.
- What a running task waits for comes before what a queued one will need; within each kind, first come, first served.
- Pulls may hold BUDGET_PART of the store together, so that they cannot fill it; one object may exceed that alone.
- After a failure only the chunks that are missing are asked of the next source.
- While nobody says where copies are, it comes from the node that made it: that has all of it, so nobody can wait for
  himself. An answer that comes late changes nothing; if that node fails, it is the next source.
- A source that cannot be reached at the moment does not count as a failure: the pull waits for it, or for another copy.
- A chunk that has come can be served to others while the rest is still on its way.

Owns:      the pulls of one node and their chunks.
Knows not: sockets, the arena, where copies are (`locations.py`).
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

#: Size of a chunk, and how many are asked for ahead of what has come.
CHUNK_BYTES = 4 << 20
WINDOW = 4
#: The part of the store that pulls may hold together.
BUDGET_PART = 0.5
#: Sources that are tried for an object before those who want it are told that it cannot be had.
SOURCES_MAX = 10

#: A task waits for it; a queued task will need it.
NOW, SOON = 0, 1

WAITING = "waiting"
RESERVING = "reserving"
LOCATING = "locating"
PULLING = "pulling"


class Pull(msgspec.Struct):
    id: bytes
    size_bytes: int
    #: Who wants it, and how urgently.
    wanted_by: dict[bytes, int]
    state: str = WAITING
    #: The number of its room in the store, asked for or had.
    room: int = 0
    source: bytes = b""
    #: Chunks by number: not asked for yet; asked for; here.
    missing: list[int] = msgspec.field(default_factory=list)
    asked: set[int] = msgspec.field(default_factory=set)
    here: set[int] = msgspec.field(default_factory=set)
    failures: int = 0
    #: A source was asked for (Locate), and there is no answer yet. One question at a time: who answers takes the last
    #: answer to be followed.
    unanswered: bool = False
    #: The only source that is known, if that node cannot be reached at the moment.
    beyond: bytes = b""

    @property
    def urgency(self) -> int:
        return min(self.wanted_by.values())


class Refusal(msgspec.Struct, frozen=True):
    """Why the store has no room."""

    report: str
    #: Because its disk does not take what should go there.
    disk: bool = False
    #: What holds the memory: what it is and for whom, and its bytes.
    holders: list[tuple[str, int]] = []


# -- what to do --------------------------------------------------------------------------------------------------------


class Reserve(msgspec.Struct, frozen=True):
    """Ask the store for room, under that number."""

    room: int
    object: bytes
    size_bytes: int


class Locate(msgspec.Struct, frozen=True):
    """Ask for a source."""

    object: bytes


class Ask(msgspec.Struct, frozen=True):
    """Ask the source for a chunk."""

    source: bytes
    object: bytes
    chunk: int


class Arrived(msgspec.Struct, frozen=True):
    """All of it is here: seal it, and tell those who want it."""

    object: bytes
    wanted_by: tuple[bytes, ...]


class Unavailable(msgspec.Struct, frozen=True):
    """Tell those who want it that it cannot be had."""

    object: bytes
    wanted_by: tuple[bytes, ...]


class Refused(msgspec.Struct, frozen=True):
    """Tell those who want it that there is no room for it here. Elsewhere it is as alive as ever."""

    object: bytes
    wanted_by: tuple[bytes, ...]
    why: Refusal


class OutOfReach(msgspec.Struct, frozen=True):
    """Tell those who want it that the node that has it could not be reached for too long."""

    object: bytes
    wanted_by: tuple[bytes, ...]


class FreeRoom(msgspec.Struct, frozen=True):
    """Give that room back to the store."""

    room: int


Command = Reserve | Locate | Ask | Arrived | Unavailable | Refused | OutOfReach | FreeRoom


class Pulls:
    def __init__(self, store_bytes: int) -> None:
        self._budget = int(store_bytes * BUDGET_PART)
        #: In the order in which they were first wanted.
        self.pulls: OrderedDict[bytes, Pull] = OrderedDict()
        self._admitted = 0
        self._admitted_bytes = 0
        self._rooms = 0

    def want(self, object: bytes, size_bytes: int, who: bytes, urgency: int) -> list[Command]:
        pull = self.pulls.get(object)
        if pull is None:
            count = max(1, -(-size_bytes // CHUNK_BYTES))
            # Taken from the end: the first chunk comes first.
            pull = self.pulls[object] = Pull(object, size_bytes, {}, missing=list(range(count - 1, -1, -1)))
        pull.wanted_by[who] = min(urgency, pull.wanted_by.get(who, SOON))
        return self._admit()

    def forget(self, object: bytes, who: bytes) -> list[Command]:
        """That one wants it no more."""
        pull = self.pulls.get(object)
        if pull is None or pull.wanted_by.pop(who, None) is None or pull.wanted_by:
            return []
        return self._give_up(pull)

    def forget_all(self, who: bytes) -> list[Command]:
        """That one is gone."""
        wanted = [id for id, pull in self.pulls.items() if who in pull.wanted_by]
        return [command for id in wanted for command in self.forget(id, who)]

    def reserved(self, room: int, object: bytes) -> list[Command]:
        """The store has room."""
        pull = self.pulls.get(object)
        if pull is None or pull.room != room:
            return [FreeRoom(room)]  # that pull was given up meanwhile
        return self._locate(pull)

    def refused(self, room: int, object: bytes, why: Refusal) -> list[Command]:
        """The store has none."""
        pull = self.pulls.get(object)
        if pull is None or pull.room != room:
            return []
        self._remove(pull)
        return [Refused(object, tuple(pull.wanted_by), why), *self._admit()]

    def located(self, object: bytes, source: bytes | None) -> list[Command]:
        pull = self.pulls.get(object)
        if pull is None:
            return []
        pull.unanswered = False
        if pull.state != LOCATING:
            return []
        if source is None:
            return self._give_up(pull)
        return self._pull_from(pull, source)

    def out_of_reach(self, object: bytes, source: bytes) -> list[Command]:
        """The answer is a node that cannot be reached at the moment, so there is no other: it is asked for again."""
        pull = self.pulls.get(object)
        if pull is None:
            return []
        pull.unanswered = False
        if pull.state != LOCATING:
            return []
        pull.beyond = source
        return self._locate(pull)

    def beyond(self, node: bytes) -> list[bytes]:
        """What only that node has, which could not be reached."""
        return [id for id, pull in self.pulls.items() if pull.state == LOCATING and pull.beyond == node]

    def grace_over(self, node: bytes) -> list[Command]:
        """That node could not be reached for too long: what only it has is not waited for any longer."""
        commands: list[Command] = []
        for id in self.beyond(node):
            pull = self.pulls[id]
            self._remove(pull)
            commands += [FreeRoom(pull.room), OutOfReach(id, tuple(pull.wanted_by))]
        return [*commands, *self._admit()] if commands else []

    def locating(self) -> list[bytes]:
        """What waits for an answer."""
        return [id for id, pull in self.pulls.items() if pull.state == LOCATING]

    def not_answered(self, object: bytes, maker: bytes) -> list[Command]:
        """Nobody says where copies are at the moment; that node made it."""
        pull = self.pulls.get(object)
        return self._pull_from(pull, maker) if pull is not None and pull.state == LOCATING else []

    def received(self, object: bytes, chunk: int, source: bytes) -> list[Command]:
        """A chunk is in its place. One that a former source still sent counts, too."""
        pull = self.pulls.get(object)
        if pull is None or chunk in pull.here:
            return []
        pull.here.add(chunk)
        pull.asked.discard(chunk)
        if chunk in pull.missing:
            pull.missing.remove(chunk)
        if not pull.missing and not pull.asked:
            self._remove(pull)
            return [Arrived(object, tuple(pull.wanted_by)), *self._admit()]
        return self._ask(pull) if pull.state == PULLING else []

    def failed(self, object: bytes, source: bytes, *, counts: bool = True) -> list[Command]:
        """The source has it no more, or is gone. What is here stays; the rest comes from another one.

        It does not count if the source has it and cannot be reached at the moment.
        """
        pull = self.pulls.get(object)
        if pull is None or pull.state != PULLING or pull.source != source:
            return []
        # While the answer is to come there may be copies that nobody here knows of: that is no reason to give up.
        pull.failures += counts and not pull.unanswered
        if pull.failures >= SOURCES_MAX:
            return self._give_up(pull)
        pull.missing = sorted([*pull.missing, *pull.asked], reverse=True)
        pull.asked.clear()
        return self._locate(pull)

    def lost(self, object: bytes) -> list[Command]:
        """It is gone for good, wherever it was."""
        pull = self.pulls.get(object)
        return self._give_up(pull) if pull is not None else []

    def node_died(self, node: bytes) -> list[Command]:
        from_there = [id for id, pull in self.pulls.items() if pull.source == node]
        return [command for id in from_there for command in self.failed(id, node)]

    def can_serve(self, object: bytes, chunk: int) -> bool:
        """Whether another node can have that chunk of an object that is still on its way."""
        pull = self.pulls.get(object)
        return pull is not None and chunk in pull.here

    def describe(self) -> dict[bytes, tuple[str, bytes, int]]:
        """Of each object its state, from whom it comes or would come, and how many bytes of it are here."""
        return {
            id: (pull.state, pull.source or pull.beyond, min(pull.size_bytes, len(pull.here) * CHUNK_BYTES))
            for id, pull in self.pulls.items()
        }

    # -- within --------------------------------------------------------------------------------------------------------

    def _admit(self) -> list[Command]:
        commands: list[Command] = []
        waiting = [pull for pull in self.pulls.values() if pull.state == WAITING]
        for pull in sorted(waiting, key=lambda pull: pull.urgency):  # stable: first come within a kind
            if self._admitted and self._admitted_bytes + pull.size_bytes > self._budget:
                break  # nobody overtakes, or a large one would wait for ever
            self._admitted += 1
            self._admitted_bytes += pull.size_bytes
            self._rooms += 1
            pull.state, pull.room = RESERVING, self._rooms
            commands.append(Reserve(pull.room, pull.id, pull.size_bytes))
        return commands

    def _locate(self, pull: Pull) -> list[Command]:
        was_asked, pull.unanswered = pull.unanswered, True
        pull.state, pull.source = LOCATING, b""
        return [] if was_asked else [Locate(pull.id)]

    def _pull_from(self, pull: Pull, source: bytes) -> list[Command]:
        pull.state, pull.source, pull.beyond = PULLING, source, b""
        return self._ask(pull)

    def _ask(self, pull: Pull) -> list[Command]:
        commands: list[Command] = []
        while pull.missing and len(pull.asked) < WINDOW:
            chunk = pull.missing.pop()
            pull.asked.add(chunk)
            commands.append(Ask(pull.source, pull.id, chunk))
        return commands

    def _give_up(self, pull: Pull) -> list[Command]:
        has_room = pull.state in (LOCATING, PULLING)
        self._remove(pull)
        commands: list[Command] = [FreeRoom(pull.room)] if has_room else []
        if pull.wanted_by:
            commands.append(Unavailable(pull.id, tuple(pull.wanted_by)))
        return [*commands, *self._admit()]

    def _remove(self, pull: Pull) -> None:
        del self.pulls[pull.id]
        if pull.state != WAITING:
            self._admitted -= 1
            self._admitted_bytes -= pull.size_bytes

    def validate(self) -> None:
        admitted = [pull for pull in self.pulls.values() if pull.state != WAITING]
        assert self._admitted == len(admitted)
        assert self._admitted_bytes == sum(pull.size_bytes for pull in admitted)
        assert self._admitted_bytes <= self._budget or len(admitted) == 1
        for pull in self.pulls.values():
            count = max(1, -(-pull.size_bytes // CHUNK_BYTES))
            assert sorted([*pull.missing, *pull.asked, *pull.here]) == list(range(count)), pull
            assert len(pull.asked) <= WINDOW
            assert pull.wanted_by
            assert bool(pull.source) == (pull.state == PULLING)
            assert not pull.beyond or pull.state == LOCATING
            assert pull.unanswered or pull.state != LOCATING, "it waits for an answer to nothing"
        if not admitted:
            assert not self.pulls, "there is room, and nobody is let in"
