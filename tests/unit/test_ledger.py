"""Nothing is said before what it rests on is durable, whatever the order of things."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate._control.ledger import Ledger
from skate._control.storage.admission import OPERATIONS_MAX, Admission
from skate._control.storage.errors import StorageError
from skate._control.storage.interface import Done
from skate._control.storage.memory import MemoryStorage

TABLE = "t"


class Held(MemoryStorage):
    """A storage that says what is durable when the test lets it."""

    def __init__(self, batches_max: int = 10_000) -> None:
        super().__init__(admission=Admission(batches_max))
        #: How many batches may be reported, in all.
        self.let = 0
        self.reported = 0

    def completed(self) -> list[Done]:
        ready, self._done = self._done[: self.let - self.reported], self._done[self.let - self.reported :]
        self.reported += len(ready)
        for end in ready:
            self._admission.collect(end.number)
        return ready


@pytest.fixture
def storage() -> Iterator[Held]:
    made = Held()
    yield made
    made.close()


def test_without_a_storage_everything_leaves_at_once() -> None:
    ledger, said = Ledger(), []
    ledger.put(TABLE, b"a", b"1")
    ledger.say(lambda: said.append(1))
    assert said == [1]
    assert list(ledger.rows(TABLE)) == []
    assert ledger.fileno() == -1


def test_what_is_said_behind_a_change_waits_until_that_is_durable(storage: Held) -> None:
    ledger, said = Ledger(storage, soon=lambda action: None), []
    ledger.say(lambda: said.append("before"))
    ledger.put(TABLE, b"a", b"1")
    ledger.say(lambda: said.append("behind"))
    ledger.commit()
    ledger.say(lambda: said.append("of others"))
    assert said == ["before"]
    assert ledger.waiting == 2
    storage.let = 1
    ledger.collect()
    assert said == ["before", "behind", "of others"]
    assert list(storage.scan(TABLE)) == [(b"a", b"1")]
    ledger.say(lambda: said.append("later"))
    assert said[-1] == "later"


def test_of_several_changes_of_a_row_the_last_is_written(storage: Held) -> None:
    ledger = Ledger(storage, soon=lambda action: None)
    ledger.put(TABLE, b"a", b"1")
    ledger.put(TABLE, b"a", b"2")
    ledger.put(TABLE, b"b", b"3")
    ledger.forget(TABLE, b"b")
    ledger.commit()
    assert list(storage.scan(TABLE)) == [(b"a", b"2")]


def test_a_change_outside_of_a_turn_is_committed_soon(storage: Held) -> None:
    later: list[object] = []
    ledger = Ledger(storage, soon=later.append)
    ledger.put(TABLE, b"a", b"1")
    ledger.put(TABLE, b"b", b"1")
    assert later == [ledger.commit]


def test_many_rows_go_in_several_batches_and_the_message_waits_for_the_last(storage: Held) -> None:
    ledger, said = Ledger(storage, soon=lambda action: None), []
    for number in range(2 * OPERATIONS_MAX + 1):
        ledger.put(TABLE, number.to_bytes(4, "big"), b"1")
    ledger.say(lambda: said.append(1))
    ledger.commit()
    for storage.let in (1, 2):
        ledger.collect()
        assert said == []
    storage.let = 3
    ledger.collect()
    assert said == [1]


def test_a_storage_that_is_full_of_work_gets_the_rest_when_it_has_room() -> None:
    storage = Held(batches_max=2)
    ledger, said = Ledger(storage, soon=lambda action: None), []
    for number in range(3):
        ledger.put(TABLE, bytes([number]), b"1")
        ledger.say(functools.partial(said.append, number))
        ledger.commit()
    assert [key for key, _ in storage.scan(TABLE)] == [b"\0", b"\1"]
    for storage.let in (1, 2, 3):
        ledger.collect()
    assert said == [0, 1, 2]
    assert [key for key, _ in storage.scan(TABLE)] == [b"\0", b"\1", b"\2"]
    storage.close()


def test_a_storage_that_has_ended_lets_nothing_leave(storage: Held) -> None:
    errors: list[StorageError] = []
    ledger, said = Ledger(storage, soon=lambda action: None, on_lost=errors.append), []
    ledger.put(TABLE, b"a", b"1")
    ledger.say(lambda: said.append(1))
    ledger.commit()
    storage._done = [Done(1, (), StorageError("it is fenced"))]
    storage.let = 1
    ledger.collect()
    assert [str(error) for error in errors] == ["it is fenced"]
    assert said == []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 3)),
        st.tuples(st.just("forget"), st.integers(0, 3)),
        st.tuples(st.sampled_from(["say", "commit"]), st.just(0)),
        st.tuples(st.just("let"), st.integers(1, 3)),
    ),
    max_size=40,
)


@given(STEPS)
def test_in_any_history_what_leaves_rests_on_durable_rows_and_keeps_its_order(steps: list[tuple[str, int]]) -> None:
    storage = Held(batches_max=2)
    ledger = Ledger(storage, soon=lambda action: None)
    said: list[int] = []
    model: dict[bytes, bytes] = {}
    changes = 0
    #: For each message, how many changes it rests on; for each batch written, how many changes were made by then.
    rests_on: list[int] = []
    made_by: list[int] = []

    def note(number: int) -> None:
        durable = made_by[storage.reported - 1] if storage.reported else 0
        assert rests_on[number] <= durable or rests_on[number] == 0
        said.append(number)

    for what, number in [*steps, ("commit", 0), *[("let", 1)] * 100]:
        written = storage._admission.written
        if what == "put":
            model[bytes([number])] = bytes([changes % 256])
            ledger.put(TABLE, bytes([number]), bytes([changes % 256]))
            changes += 1
        elif what == "forget":
            model.pop(bytes([number]), None)
            ledger.forget(TABLE, bytes([number]))
            changes += 1
        elif what == "say":
            rests_on.append(changes)
            ledger.say(functools.partial(note, len(rests_on) - 1))
        elif what == "commit":
            made_by += [changes]  # if a batch is written now, it has all of them
            ledger.commit()
            if storage._admission.written == written:
                made_by.pop()
        else:
            storage.let = storage.reported + number
            made_by += [changes]
            ledger.collect()
            if storage._admission.written == written:
                made_by.pop()
    assert said == list(range(len(rests_on)))
    assert dict(storage.scan(TABLE)) == model
    assert ledger.is_clear
    storage.close()
