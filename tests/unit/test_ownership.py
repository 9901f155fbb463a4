"""An entry lives exactly as long as something refers to it, whatever the order of events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skate._core.ownership import FAILED_MAX, Entry, FailureWatch, ObjectTable
from skate._core.task import Failure

P, Q = b"process-p", b"process-q"
X, Y, Z = b"x", b"y", b"z"


def freed_ids(table: ObjectTable) -> list[bytes]:
    table.validate()
    ids = [id for id, _ in table.take_freed()]
    table.validate()
    return ids


# --- One promise at a time --------------------------------------------------------------------------------------------


def test_the_last_reference_frees() -> None:
    table = ObjectTable()
    table.adopt(X, b"")
    table.adopt(X, b"")
    table.drop([X])
    assert freed_ids(table) == []
    table.drop([X])
    assert table.entries == {}
    assert freed_ids(table) == [X]
    assert freed_ids(table) == [], "handed out once"


def test_what_is_held_stays_without_references() -> None:
    table = ObjectTable()
    table.adopt(X, b"")
    table.hold(X)
    table.drop([X])
    assert freed_ids(table) == []
    table.unhold([X])
    assert freed_ids(table) == [X]


def test_the_same_id_several_times_in_one_call_counts_each_time() -> None:
    table = ObjectTable()
    for _ in range(3):
        table.adopt(X, b"")
        table.hold(X)
    table.drop([X, X, X])
    table.unhold([X, X])
    assert freed_ids(table) == []
    table.unhold([X])
    assert freed_ids(table) == [X]


def test_letting_go_of_the_unknown_does_nothing() -> None:
    table = ObjectTable()
    table.drop([X])
    table.unhold([X])
    table.remove_borrower(X, P)
    assert table.forget_process(P) == []
    assert freed_ids(table) == []


def test_a_container_keeps_what_it_contains_to_any_depth() -> None:
    table = ObjectTable()
    ids = [str(number).encode() for number in range(5000)]
    for number, id in enumerate(ids):
        entry = table.adopt(id, b"")
        inside = [ids[number - 1]] if number else None
        if inside:
            table.hold(inside[0])
        table.resolve(id, entry, b"value", inside)
    table.drop(ids[:-1])
    assert freed_ids(table) == []
    table.drop([ids[-1]])
    freed = freed_ids(table)
    assert freed == ids[:0:-1], "all but the innermost, which lay in this process and contained nothing"
    assert table.entries == {}


def test_freed_entries_come_with_their_last_state() -> None:
    """The caller frees arena memory by the value, and tells the owner by the owner."""
    table = ObjectTable()
    table.resolve(X, table.adopt(X, b""), 4096)
    table.adopt(Y, P)
    table.drop([X, Y])
    freed = dict(table.take_freed())
    assert freed[X].value == 4096
    assert freed[X].owner == b""
    assert freed[Y].owner == P


def test_a_borrower_stays_until_all_its_registrations_are_taken_back() -> None:
    table = ObjectTable()
    table.adopt(X, b"")
    for borrower in (P, P, P, Q):
        assert table.add_borrower(X, borrower)
    table.drop([X])
    table.remove_borrower(X, Q)
    table.remove_borrower(X, P, 2)
    assert freed_ids(table) == []
    table.remove_borrower(X, P)
    assert freed_ids(table) == [X]
    table.remove_borrower(X, P)
    assert table.statistics()["borrowers"] == 0


def test_a_release_may_overtake_its_registration() -> None:
    table = ObjectTable()
    table.adopt(X, b"")
    table.remove_borrower(X, P, 2)
    assert freed_ids(table) == []
    table.add_borrower(X, P)
    table.add_borrower(X, P)
    assert table.statistics()["borrowers"] == 0
    table.drop([X])
    assert freed_ids(table) == [X]


def test_a_release_that_overtook_is_forgotten_with_its_object_or_its_process() -> None:
    table = ObjectTable()
    for id in (X, Y):
        table.adopt(id, b"")
    table.remove_borrower(X, P)
    table.remove_borrower(Y, Q)
    table.drop([X])
    assert freed_ids(table) == [X]
    table.forget_process(Q)
    assert table.statistics()["borrowers"] == 0
    assert table.add_borrower(Y, Q)
    table.drop([Y])
    assert freed_ids(table) == []


def test_nobody_borrows_what_is_gone() -> None:
    table = ObjectTable()
    table.adopt(X, b"")
    table.drop([X])
    assert not table.add_borrower(X, P)
    assert table.statistics()["borrowers"] == 0


def test_a_dead_process_borrows_nothing() -> None:
    table = ObjectTable()
    for id in (X, Y, Z):
        table.adopt(id, b"")
        table.add_borrower(id, P)
    table.add_borrower(Z, Q)
    table.drop([X, Y, Z])
    assert table.forget_process(P) == []
    assert sorted(freed_ids(table)) == [X, Y]
    assert table.statistics()["borrowers"] == 1


def test_a_dead_owner_leaves_what_we_still_refer_to() -> None:
    table = ObjectTable()
    table.adopt(X, P)
    table.hold(Y, P)
    table.adopt(Z, Q)
    table.adopt(b"gone", P)
    table.drop([b"gone"])
    assert sorted(table.forget_process(P)) == [X, Y]


@pytest.mark.parametrize("value", [b"inline", 123456, Failure(b"error")])
def test_waiters_are_called_once_with_the_value(value: bytes | int | Failure) -> None:
    table = ObjectTable()
    entry = table.adopt(X, b"")
    seen: list[tuple[bytes, object]] = []
    for _ in range(2):
        table.when_resolved(entry, lambda id, entry: seen.append((id, entry.value)))
    table.resolve(X, entry, value)
    assert seen == [(X, value)] * 2
    assert entry.waiters is None


def test_a_waiter_may_ask_to_wait_for_something_else() -> None:
    table = ObjectTable()
    one, other = table.adopt(X, b""), table.adopt(Y, b"")
    seen: list[bytes] = []
    table.when_resolved(one, lambda id, entry: table.when_resolved(other, lambda id, entry: seen.append(id)))
    table.resolve(X, one, b"1")
    assert seen == []
    table.resolve(Y, other, b"2")
    assert seen == [Y]


def test_statistics_count_what_is_there() -> None:
    table = ObjectTable()
    table.resolve(X, table.adopt(X, b""), b"1")
    table.adopt(Y, b"")
    table.adopt(Z, P)
    table.add_borrower(X, Q)
    assert table.statistics() == {"objects_owned": 2, "objects_borrowed": 1, "objects_pending": 2, "borrowers": 1}


@pytest.mark.parametrize("broken", [Entry(0, 0), Entry(-1, 2), Entry(2, -1), Entry(1, 0, borrowers={P: 1})])
def test_validate_finds_counts_that_do_not_add_up(broken: Entry) -> None:
    table = ObjectTable()
    table.entries[X] = broken
    with pytest.raises(AssertionError):
        table.validate()


def test_an_error_among_many_objects_is_found_whenever_it_comes() -> None:
    table = ObjectTable()
    for id in (X, Y, Z):
        table.adopt(id, b"")
    asked = []
    watch = FailureWatch(table, lambda: asked.append(1) or [X, Y])  # type: ignore[func-returns-value]
    assert watch.found() is None
    assert not asked, "nothing is looked at while nothing failed"
    table.resolve(Z, table.entries[Z], Failure(b"z"))
    assert watch.found() is None
    table.resolve(X, table.entries[X], b"value")
    assert watch.found() is None
    table.resolve(Y, table.entries[Y], Failure(b"y"))
    assert watch.found() == Failure(b"y")
    assert len(asked) == 1
    late = FailureWatch(table, lambda: [X, Y, Z])
    assert late.found() == Failure(b"y"), "the first of those that are there"


def test_an_error_is_found_behind_more_others_than_are_remembered() -> None:
    table = ObjectTable()
    table.adopt(X, b"")
    watch = FailureWatch(table, lambda: [X])
    others = [b"%d" % i for i in range(2 * FAILED_MAX)]
    for id in others:
        table.adopt(id, b"")
    table.resolve(others[0], table.entries[others[0]], Failure(b""))
    assert watch.found() is None
    table.resolve(X, table.entries[X], Failure(b"x"))
    for id in others[1:]:
        table.resolve(id, table.entries[id], Failure(b""))
    assert watch.found() == Failure(b"x")


# --- All of them at random, against a model ---------------------------------------------------------------------------

PROCESSES = (P, Q)


class Referrers:
    """The naive model: for every object, everything that refers to it, by name. It is alive while that is not empty."""

    def __init__(self) -> None:
        self.refs: Counter[bytes] = Counter()
        self.holds: Counter[bytes] = Counter()
        #: (object, process) → registrations; below zero if they were taken back before they came.
        self.borrowers: Counter[tuple[bytes, bytes]] = Counter()
        self.contained: dict[bytes, list[bytes]] = {}

    def alive(self) -> set[bytes]:
        reached: set[bytes] = set()
        todo = [*+self.refs, *+self.holds, *(id for id, _ in +self.borrowers)]
        while todo:
            id = todo.pop()
            if id not in reached:
                reached.add(id)
                todo += self.contained.get(id, ())
        return reached


class Ownership(RuleBasedStateMachine):
    """A random history. Objects are numbered as they are made, and a value contains only older ones."""

    def __init__(self) -> None:
        super().__init__()
        self.table = ObjectTable()
        self.model = Referrers()
        self.made: list[bytes] = []
        self.owner: dict[bytes, bytes] = {}
        self.values: dict[bytes, bytes] = {}
        #: Alive when the freed were last taken, and made since: what may be freed next.
        self.present: set[bytes] = set()
        #: Waiters registered and waiters called, by object.
        self.waiting: Counter[bytes] = Counter()
        self.called: Counter[bytes] = Counter()

    def some(self, data: st.DataObject, ids: object) -> bytes:
        return data.draw(st.sampled_from(sorted(ids)))  # type: ignore[call-overload]

    def new(self, owner: bytes) -> bytes:
        id = len(self.made).to_bytes(2, "big")
        self.made.append(id)
        self.owner[id] = owner
        self.present.add(id)
        return id

    # -- references and holds

    @rule(owner=st.sampled_from([b"", b"", P, Q]), by_hold=st.booleans())
    def meet_a_new_object(self, owner: bytes, by_hold: bool) -> None:
        id = self.new(owner)
        if by_hold:
            self.table.hold(id, owner)
            self.model.holds[id] += 1
        else:
            self.table.adopt(id, owner)
            self.model.refs[id] += 1

    @precondition(lambda self: self.model.alive())
    @rule(data=st.data())
    def adopt(self, data: st.DataObject) -> None:
        id = self.some(data, self.model.alive())
        self.table.adopt(id, self.owner[id])
        self.model.refs[id] += 1

    @precondition(lambda self: any(owner and id not in self.table.entries for id, owner in self.owner.items()))
    @rule(data=st.data())
    def borrow_again(self, data: st.DataObject) -> None:
        """An object of another process comes back after we had let go of it."""
        gone = [id for id, owner in self.owner.items() if owner and id not in self.table.entries]
        id = self.some(data, gone)
        self.take_freed()
        self.table.adopt(id, self.owner[id])
        self.model.refs[id] += 1
        self.model.contained.pop(id, None)
        self.values.pop(id, None)
        self.waiting[id] = self.called[id] = 0  # whoever waited let go of it too
        self.present.add(id)

    @precondition(lambda self: +self.model.refs)
    @rule(data=st.data(), times=st.integers(1, 3))
    def drop(self, data: st.DataObject, times: int) -> None:
        ids = [*(+self.model.refs).elements()]
        chosen = data.draw(st.permutations(ids))[:times]
        self.table.drop(chosen)
        self.model.refs.subtract(chosen)

    @precondition(lambda self: self.model.alive())
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        id = self.some(data, self.model.alive())
        self.table.hold(id)
        self.model.holds[id] += 1

    @precondition(lambda self: +self.model.holds)
    @rule(data=st.data())
    def unhold(self, data: st.DataObject) -> None:
        id = self.some(data, +self.model.holds)
        self.table.unhold([id])
        self.model.holds[id] -= 1

    # -- values

    def pending(self) -> list[bytes]:
        return [id for id in self.model.alive() if id not in self.values]

    @precondition(lambda self: self.pending())
    @rule(data=st.data())
    def wait_for_the_value(self, data: st.DataObject) -> None:
        id = self.some(data, self.pending())
        self.table.when_resolved(self.table.entries[id], self.on_value)
        self.waiting[id] += 1

    def on_value(self, id: bytes, entry: Entry) -> None:
        assert entry.value == self.values[id]
        self.called[id] += 1

    @precondition(lambda self: self.pending())
    @rule(data=st.data())
    def resolve(self, data: st.DataObject) -> None:
        id = self.some(data, self.pending())
        older = [other for other in self.model.alive() if other < id]
        inside = data.draw(st.lists(st.sampled_from(sorted(older)), max_size=3)) if older else []
        for other in inside:
            self.table.hold(other)
        self.values[id] = b"value of " + id
        self.model.contained[id] = inside
        self.table.resolve(id, self.table.entries[id], self.values[id], inside or None)
        assert self.called[id] == self.waiting[id]

    # -- borrowers

    @precondition(lambda self: self.made)
    @rule(data=st.data(), borrower=st.sampled_from(PROCESSES))
    def add_borrower(self, data: st.DataObject, borrower: bytes) -> None:
        id = self.some(data, self.made)
        if self.owner[id]:
            return
        known = self.table.add_borrower(id, borrower)
        assert known == (id in self.table.entries)
        if known:
            self.model.borrowers[id, borrower] += 1

    @precondition(lambda self: self.made)
    @rule(data=st.data(), borrower=st.sampled_from(PROCESSES), times=st.integers(1, 3))
    def remove_borrower(self, data: st.DataObject, borrower: bytes, times: int) -> None:
        id = self.some(data, self.made)
        if self.owner[id]:
            return
        if id in self.table.entries:
            self.model.borrowers[id, borrower] -= times
        self.table.remove_borrower(id, borrower, times)

    @rule(process=st.sampled_from(PROCESSES))
    def forget_process(self, process: bytes) -> None:
        self.take_freed()
        left = self.table.forget_process(process)
        assert set(left) == {id for id in self.table.entries if self.owner[id] == process}
        assert len(left) == len(set(left))
        self.keep_borrowers(lambda id, borrower: borrower != process)

    def keep_borrowers(self, wanted: Callable[[bytes, bytes], bool]) -> None:
        counts = self.model.borrowers
        self.model.borrowers = Counter({key: count for key, count in counts.items() if count and wanted(*key)})

    # -- freeing

    @rule()
    def take_freed(self) -> None:
        freed = self.table.take_freed()
        alive = self.model.alive()
        gone = self.present - alive
        told = [id for id, _ in freed]
        assert len(told) == len(set(told))
        assert set(told) <= gone
        for id in gone.difference(told):
            assert isinstance(self.values.get(id), bytes), "the arena, or whoever waits, must hear of it"
            assert not self.owner[id], "its owner must hear of it"
        for id, entry in freed:
            assert entry.value == self.values.get(id)
            assert entry.owner == self.owner[id]
            assert entry.refs == entry.holds == 0
        assert set(self.table.entries) == alive
        self.present = alive
        self.keep_borrowers(lambda id, _: id in alive)

    @invariant()
    def counts_add_up(self) -> None:
        self.table.validate()
        alive = self.model.alive()
        assert alive <= set(self.table.entries), "freed although something refers to it"
        for id in alive:
            assert self.table.entries[id].refs == self.model.refs[id]
        self.keep_borrowers(lambda id, _: id in self.table.entries)
        assert self.table.statistics()["borrowers"] == len({borrower for _, borrower in self.model.borrowers})

    def teardown(self) -> None:
        """When everybody lets go, nothing is left."""
        for process in PROCESSES:
            self.table.forget_process(process)
        self.model.borrowers.clear()
        self.table.drop(list((+self.model.refs).elements()))
        self.model.refs.clear()
        self.table.unhold(list((+self.model.holds).elements()))
        self.model.holds.clear()
        self.take_freed()
        assert self.table.entries == {}
        assert set(self.table.statistics().values()) == {0}


Ownership.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
test_random_histories = Ownership.TestCase
