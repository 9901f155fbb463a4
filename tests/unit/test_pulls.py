"""Objects come to a node once, in order of need, within a budget, and go on from another copy when one breaks."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skate._core.pulls import (
    CHUNK_BYTES,
    LOCATING,
    NOW,
    PULLING,
    RESERVING,
    SOON,
    SOURCES_MAX,
    WAITING,
    WINDOW,
    Arrived,
    Ask,
    FreeRoom,
    Locate,
    OutOfReach,
    Pulls,
    Refusal,
    Refused,
    Reserve,
    Unavailable,
)

X, Y, Z = b"object-x", b"object-y", b"object-z"
STORE_BYTES = 40 * CHUNK_BYTES
P, Q = b"process-p", b"process-q"
FULL = Refusal("there is no room")


def pulling(chunks: int = 6) -> Pulls:
    pulls = Pulls(STORE_BYTES)
    assert pulls.want(X, chunks * CHUNK_BYTES, P, NOW) == [Reserve(1, X, chunks * CHUNK_BYTES)]
    assert pulls.reserved(1, X) == [Locate(X)]
    asks = pulls.located(X, b"a")
    assert asks == [Ask(b"a", X, chunk) for chunk in range(min(chunks, WINDOW))]
    return pulls


def test_chunks_are_asked_for_ahead_and_the_last_one_completes_it() -> None:
    pulls = pulling(6)
    assert pulls.received(X, 0, b"a") == [Ask(b"a", X, 4)]
    assert pulls.received(X, 1, b"a") == [Ask(b"a", X, 5)]
    assert pulls.can_serve(X, 1)
    assert not pulls.can_serve(X, 2)
    for chunk in (2, 3, 4):
        assert pulls.received(X, chunk, b"a") == []
    assert pulls.received(X, 5, b"a") == [Arrived(X, (P,))]
    assert not pulls.pulls


def test_an_empty_object_is_one_chunk() -> None:
    pulls = Pulls(STORE_BYTES)
    pulls.want(X, 0, P, NOW)
    pulls.reserved(1, X)
    assert pulls.located(X, b"a") == [Ask(b"a", X, 0)]


def test_it_is_pulled_once_however_many_want_it() -> None:
    pulls = pulling(1)
    assert pulls.want(X, CHUNK_BYTES, Q, SOON) == []
    assert pulls.forget(X, P) == []
    assert pulls.received(X, 0, b"a") == [Arrived(X, (Q,))]


def test_it_is_given_up_when_nobody_wants_it() -> None:
    pulls = pulling(3)
    assert pulls.forget(X, P) == [FreeRoom(1)]
    assert pulls.received(X, 0, b"a") == []


def test_room_that_comes_too_late_goes_back() -> None:
    pulls = Pulls(STORE_BYTES)
    pulls.want(X, CHUNK_BYTES, P, NOW)
    assert pulls.forget(X, P) == []
    assert pulls.want(X, CHUNK_BYTES, P, NOW) == [Reserve(2, X, CHUNK_BYTES)]
    assert pulls.reserved(1, X) == [FreeRoom(1)]
    assert pulls.reserved(2, X) == [Locate(X)]


def test_another_source_is_asked_for_what_is_missing_only() -> None:
    pulls = pulling(6)
    pulls.received(X, 2, b"a")
    assert pulls.failed(X, b"a") == [Locate(X)]
    assert pulls.located(X, b"b") == [Ask(b"b", X, chunk) for chunk in (0, 1, 3, 4)]
    assert pulls.failed(X, b"a") == [], "that was said before"


def test_a_chunk_of_the_former_source_counts() -> None:
    pulls = pulling(2)
    pulls.failed(X, b"a")
    assert pulls.received(X, 0, b"a") == []
    assert pulls.located(X, b"b") == [Ask(b"b", X, 1)]
    assert pulls.received(X, 1, b"b") == [Arrived(X, (P,))]


def test_what_nobody_has_cannot_be_had() -> None:
    pulls = pulling(2)
    pulls.node_died(b"a")
    assert pulls.located(X, None) == [FreeRoom(1), Unavailable(X, (P,))]


def test_there_is_an_end_to_trying() -> None:
    pulls = pulling(2)
    for number in range(SOURCES_MAX - 1):
        source = pulls.pulls[X].source
        assert pulls.failed(X, source) == [Locate(X)]
        pulls.located(X, b"source-%d" % number)
    assert pulls.failed(X, pulls.pulls[X].source) == [FreeRoom(1), Unavailable(X, (P,))]


def test_without_an_answer_it_comes_from_the_node_that_made_it() -> None:
    pulls = Pulls(STORE_BYTES)
    pulls.want(X, 2 * CHUNK_BYTES, P, NOW)
    assert pulls.not_answered(X, b"maker") == [], "there is no room for it yet"
    pulls.reserved(1, X)
    assert pulls.locating() == [X]
    assert pulls.not_answered(X, b"maker") == [Ask(b"maker", X, 0), Ask(b"maker", X, 1)]
    assert pulls.locating() == []
    assert pulls.not_answered(X, b"maker") == [], "it is on its way"
    pulls.received(X, 0, b"maker")
    assert pulls.located(X, b"other") == [], "a late answer does not begin it anew"
    assert pulls.received(X, 1, b"maker") == [Arrived(X, (P,))]


def test_a_maker_that_fails_is_no_reason_to_give_up_while_there_is_no_answer() -> None:
    pulls = Pulls(STORE_BYTES)
    pulls.want(X, 2 * CHUNK_BYTES, P, NOW)
    assert pulls.reserved(1, X) == [Locate(X)]
    for _ in range(2 * SOURCES_MAX):
        pulls.not_answered(X, b"maker")
        assert pulls.failed(X, b"maker") == [], "the question stands"
    pulls.validate()
    assert pulls.located(X, b"other") == [Ask(b"other", X, 0), Ask(b"other", X, 1)]
    assert pulls.failed(X, b"other") == [Locate(X)], "there may be others yet"


def test_a_maker_that_fails_after_a_late_answer_is_a_source_that_failed() -> None:
    pulls = Pulls(STORE_BYTES)
    pulls.want(X, 2 * CHUNK_BYTES, P, NOW)
    pulls.reserved(1, X)
    pulls.not_answered(X, b"maker")
    pulls.received(X, 0, b"maker")
    pulls.located(X, b"other")
    assert pulls.failed(X, b"maker") == [Locate(X)]
    assert pulls.located(X, b"other") == [Ask(b"other", X, 1)]


def test_it_can_be_told_how_far_an_object_is() -> None:
    pulls = Pulls(STORE_BYTES)
    pulls.want(X, CHUNK_BYTES + 1, P, NOW)
    pulls.want(Y, STORE_BYTES, P, NOW)
    assert pulls.describe() == {X: (RESERVING, b"", 0), Y: (WAITING, b"", 0)}
    pulls.reserved(1, X)
    assert pulls.describe()[X] == (LOCATING, b"", 0)
    pulls.located(X, b"a")
    pulls.received(X, 0, b"a")
    assert pulls.describe()[X] == (PULLING, b"a", CHUNK_BYTES)


def test_what_is_gone_for_good_is_not_looked_for() -> None:
    pulls = pulling(6)
    assert pulls.lost(X) == [FreeRoom(1), Unavailable(X, (P,))]
    assert not pulls.pulls
    assert pulls.lost(X) == []


def test_pulls_leave_room_for_others_and_the_urgent_come_first() -> None:
    half = STORE_BYTES // 2
    pulls = Pulls(STORE_BYTES)
    assert pulls.want(X, half, P, SOON) == [Reserve(1, X, half)]
    assert pulls.want(Y, half, P, SOON) == []
    assert pulls.want(Z, half, Q, NOW) == []
    assert pulls.refused(1, X, FULL) == [Refused(X, (P,), FULL), Reserve(2, Z, half)]


def test_who_wants_what_has_no_room_here_is_told_so_and_not_that_it_is_lost() -> None:
    pulls = Pulls(STORE_BYTES)
    pulls.want(X, 2 * STORE_BYTES, P, NOW)
    pulls.want(X, 2 * STORE_BYTES, Q, SOON)
    assert pulls.refused(1, X, FULL) == [Refused(X, (P, Q), FULL)]
    assert not pulls.pulls
    assert pulls.want(X, 2 * STORE_BYTES, P, NOW) == [Reserve(2, X, 2 * STORE_BYTES)], "it may be asked for again"
    assert pulls.refused(1, X, FULL) == [], "that was said before"


def test_what_is_larger_than_the_budget_comes_alone() -> None:
    pulls = Pulls(STORE_BYTES)
    assert pulls.want(X, STORE_BYTES, P, NOW) == [Reserve(1, X, STORE_BYTES)]
    assert pulls.want(Y, 1, Q, NOW) == []
    assert pulls.forget_all(P) == [Reserve(2, Y, 1)]


def test_a_source_that_cannot_be_reached_is_waited_for_and_does_not_count_as_a_failure() -> None:
    pulls = pulling(2)
    pulls.received(X, 0, b"a")
    assert pulls.failed(X, b"a", counts=False) == [Locate(X)]
    for _ in range(2 * SOURCES_MAX):
        assert pulls.out_of_reach(X, b"a") == [Locate(X)]
    assert pulls.beyond(b"a") == [X]
    assert pulls.describe()[X] == (LOCATING, b"a", CHUNK_BYTES)
    assert pulls.grace_over(b"b") == []
    assert pulls.located(X, b"a") == [Ask(b"a", X, 1)], "it healed: what is here stays"
    assert pulls.beyond(b"a") == []
    assert pulls.out_of_reach(X, b"a") == [], "a late answer"


def test_after_the_grace_what_only_an_unreachable_node_has_is_not_waited_for() -> None:
    pulls = pulling(2)
    pulls.want(Y, STORE_BYTES, Q, NOW)
    pulls.failed(X, b"a", counts=False)
    pulls.out_of_reach(X, b"a")
    assert pulls.grace_over(b"a") == [FreeRoom(1), OutOfReach(X, (P,)), Reserve(2, Y, STORE_BYTES)]
    assert pulls.want(X, CHUNK_BYTES, P, NOW) == [], "it may be asked for again, and comes after the other"
    pulls.validate()


class Histories(RuleBasedStateMachine):
    """Whatever happens, everybody who wants an object is answered once, and every room is used or given back."""

    objects = st.sampled_from([X, Y, Z])
    processes = st.sampled_from([P, Q])

    def __init__(self) -> None:
        super().__init__()
        self.pulls = Pulls(STORE_BYTES)
        self.wants: set[tuple[bytes, bytes]] = set()
        self.asked_room: list[tuple[int, bytes]] = []
        self.rooms: set[int] = set()

    def do(self, commands: list[Any]) -> None:
        for command in commands:
            if isinstance(command, Reserve):
                self.asked_room.append((command.room, command.object))
            elif isinstance(command, FreeRoom):
                self.rooms.remove(command.room)
            elif isinstance(command, (Arrived, Unavailable, Refused, OutOfReach)):
                for who in command.wanted_by:
                    self.wants.remove((command.object, who))

    @rule(object=objects, who=processes, urgency=st.sampled_from([NOW, SOON]), chunks=st.integers(0, 30))
    def want(self, object: bytes, who: bytes, urgency: int, chunks: int) -> None:
        size = self.pulls.pulls[object].size_bytes if object in self.pulls.pulls else chunks * CHUNK_BYTES
        self.wants.add((object, who))
        self.do(self.pulls.want(object, size, who, urgency))

    @rule(object=objects, who=processes)
    def forget(self, object: bytes, who: bytes) -> None:
        self.wants.discard((object, who))
        self.do(self.pulls.forget(object, who))

    @precondition(lambda self: self.asked_room)
    @rule(ok=st.booleans())
    def room(self, ok: bool) -> None:
        number, object = self.asked_room.pop(0)
        if ok:
            self.rooms.add(number)
        self.do(self.pulls.reserved(number, object) if ok else self.pulls.refused(number, object, FULL))

    def some(self, data: st.DataObject, state: str) -> bytes:
        return data.draw(st.sampled_from([id for id, pull in self.pulls.pulls.items() if pull.state == state]))

    @precondition(lambda self: any(pull.state == LOCATING for pull in self.pulls.pulls.values()))
    @rule(data=st.data(), source=st.sampled_from([b"a", b"b", None]))
    def located(self, data: st.DataObject, source: bytes | None) -> None:
        self.do(self.pulls.located(self.some(data, LOCATING), source))

    @rule(object=objects, source=st.sampled_from([b"a", b"b"]))
    def located_beyond_a_cut(self, object: bytes, source: bytes) -> None:
        self.do(self.pulls.out_of_reach(object, source))

    @rule(source=st.sampled_from([b"a", b"b"]))
    def cut(self, source: bytes) -> None:
        for id in [id for id, pull in self.pulls.pulls.items() if pull.source == source]:
            self.do(self.pulls.failed(id, source, counts=False))

    @rule(node=st.sampled_from([b"a", b"b"]))
    def grace_over(self, node: bytes) -> None:
        self.do(self.pulls.grace_over(node))

    @rule(object=objects, source=st.sampled_from([b"a", b"b", None]))
    def located_late(self, object: bytes, source: bytes | None) -> None:
        self.do(self.pulls.located(object, source))

    @rule(object=objects)
    def not_answered(self, object: bytes) -> None:
        self.do(self.pulls.not_answered(object, b"a"))

    @precondition(lambda self: any(pull.state == PULLING for pull in self.pulls.pulls.values()))
    @rule(data=st.data())
    def chunk(self, data: st.DataObject) -> None:
        pull = self.pulls.pulls[self.some(data, PULLING)]
        commands = self.pulls.received(pull.id, data.draw(st.sampled_from(sorted(pull.asked))), pull.source)
        if pull.id not in self.pulls.pulls:
            self.rooms.remove(pull.room)  # it is the object now
        self.do(commands)

    @rule(node=st.sampled_from([b"a", b"b"]))
    def dies(self, node: bytes) -> None:
        self.do(self.pulls.node_died(node))

    @invariant()
    def whole(self) -> None:
        self.pulls.validate()
        assert {(id, who) for id, pull in self.pulls.pulls.items() for who in pull.wanted_by} == self.wants
        with_room = {pull.room for pull in self.pulls.pulls.values() if pull.state in (LOCATING, PULLING)}
        assert self.rooms == with_room, "a room is used, or free"
        reserving = {(pull.room, id) for id, pull in self.pulls.pulls.items() if pull.state == RESERVING}
        assert reserving <= set(self.asked_room)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
