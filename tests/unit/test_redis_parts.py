"""Parts of the engine on Redis servers that need no server: one descriptor for all that is waited for, and batches."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skate._control.storage.admission import BATCH_BYTES_MAX, OPERATIONS_MAX
from skate._control.storage.errors import StorageError
from skate._control.storage.interface import AppendAt, CompareAndSet, Delete, Operation, Put
from skate._control.storage.redis.batches import Batch, Gathering, encode, ends
from skate._control.storage.redis.connection.poller import Poller
from skate._control.storage.redis.connection.requests import escaped, packed
from skate._core.cluster import batch_format
from waiting import wait_for

WITHIN_S = 20.0


@pytest.fixture
def poller() -> Iterator[Poller]:
    poller = Poller()
    yield poller
    poller.close()


def is_readable(poller: Poller) -> bool:
    return bool(select.select([poller.fileno()], [], [], 0)[0])


# -- the poller -------------------------------------------------------------------------------------------------------


def test_timers_come_in_the_order_of_their_moments(poller: Poller) -> None:
    came: list[str] = []
    begin = time.monotonic()
    for name, delay_s in (("late", 0.02), ("soon", 0.0), ("middle", 0.01), ("never", 3600.0)):
        poller.after(delay_s, lambda name=name: came.append(name))  # type: ignore[misc]
    cancelled = poller.after(0.005, lambda: came.append("cancelled"))
    cancelled.cancel()
    while len(came) < 3:
        poller.run(WITHIN_S)
    assert came == ["soon", "middle", "late"]
    assert time.monotonic() - begin >= 0.02, "none is early"
    assert not is_readable(poller)


def test_a_timer_may_set_another(poller: Poller) -> None:
    came: list[int] = []

    def again() -> None:
        came.append(len(came))
        if len(came) < 5:
            poller.after(0.0, again)

    poller.after(0.0, again)
    while len(came) < 5:
        poller.run(WITHIN_S)
    assert came == list(range(5))


def test_an_errand_brings_its_result_or_its_error_back(poller: Poller) -> None:
    brought: list[object] = []
    here = threading.get_ident()

    def then(found: object) -> None:
        assert threading.get_ident() == here
        brought.append(found)

    error = StorageError("no")

    def fails() -> None:
        raise error

    poller.send_out(lambda: threading.get_ident() != here, then)
    while not brought:
        poller.run(WITHIN_S)
    poller.send_out(fails, then)
    while len(brought) < 2:
        poller.run(WITHIN_S)
    assert brought == [True, error]


@pytest.mark.parametrize("returns", ["before", "meanwhile"])
def test_what_an_errand_brings_too_late_is_closed(returns: str) -> None:
    class Thing:
        closed = False

        def close(self) -> None:
            self.closed = True

    poller, thing, may_return = Poller(), Thing(), threading.Event()

    def work() -> Thing:
        may_return.wait(WITHIN_S)
        return thing

    poller.send_out(work, lambda found: pytest.fail("nothing is handed in by then"))
    if returns == "before":
        may_return.set()
        wait_for(lambda: is_readable(poller), WITHIN_S, "the errand to return")
    else:
        threading.Timer(0.01, may_return.set).start()
    poller.close()
    assert thing.closed


def test_wake_makes_the_descriptor_readable_for_one_round(poller: Poller) -> None:
    assert not is_readable(poller)
    poller.wake()
    assert is_readable(poller)
    poller.run(0.0)
    assert not is_readable(poller)


# -- batches ----------------------------------------------------------------------------------------------------------

SOME = st.binary(max_size=5)
OPERATIONS = st.one_of(
    st.builds(Put, st.text(min_size=1, max_size=3), SOME, SOME),
    st.builds(Delete, st.text(min_size=1, max_size=3), SOME),
    st.builds(CompareAndSet, st.text(min_size=1, max_size=3), SOME, st.none() | SOME, st.none() | SOME),
    st.builds(AppendAt, st.text(min_size=1, max_size=3), SOME, st.integers(0, 10**9), SOME),
)
#: Of a CompareAndSet: whether a row is expected, and whether there is one afterwards.
KINDS = {(False, False): b"missing", (False, True): b"absent", (True, False): b"drop", (True, True): b"cas"}


@given(st.lists(OPERATIONS, max_size=5))
@settings(deadline=None)
def test_an_operation_is_encoded_as_the_script_reads_it(operations: list[Operation]) -> None:
    decoded = batch_format.decode(b"".join(map(encode, operations)))
    assert batch_format.encode(decoded) == b"".join(map(encode, operations))
    for operation, (kind, table, key, *rest) in zip(operations, decoded):
        assert (table, key) == (operation.table.encode(), operation.key)
        match operation:
            case Put(value=value):
                assert (kind, rest) == (b"put", [value])
            case Delete():
                assert (kind, rest) == (b"delete", [])
            case CompareAndSet(expected=expected, value=value):
                assert kind == KINDS[expected is not None, value is not None]
                assert rest == [part for part in (expected, value) if part is not None]
            case AppendAt(length=length, value=value):
                assert (kind, rest) == (b"append", [b"%d" % length, value])


def test_batches_become_one_entry_within_the_limits_of_a_batch() -> None:
    gathering = Gathering()
    small = [Put("t", b"k", b"v")] * (OPERATIONS_MAX // 2)
    large = [Put("t", b"k", bytes(BATCH_BYTES_MAX))]
    for number, operations in enumerate((small, small, small, large, [], small, [Delete("t", b"k")]), start=1):
        gathering.add(Batch(number, operations))
    gathering.hurry_to = 6
    taken = []
    while entry := gathering.take():
        taken.append([batch.number for batch in entry])
    assert taken == [[1, 2], [3], [4], [5, 6]]
    assert [batch.number for batch in gathering.clear()] == [7], "the last one is lazy"


def test_results_of_an_entry_are_told_apart() -> None:
    entry = [
        Batch(7, [Put("t", b"a", b""), Delete("t", b"b"), Put("t", b"c", b"")]),
        Batch(8, []),
        Batch(9, [CompareAndSet("t", b"a", b"", None), AppendAt("t", b"a", 0, b"")]),
    ]
    assert [(done.number, done.results) for done in ends(entry, (0, 1, 0))] == [
        (7, (True, False, True)),
        (8, ()),
        (9, (True, False)),
    ]


def test_requests_are_what_servers_read() -> None:
    assert packed("SET", b"\r\n", 1) == b"*3\r\n$3\r\nSET\r\n$2\r\n\r\n\r\n$1\r\n1\r\n"
    assert escaped(b"a*[\\]?\xff") == b"a\\*\\[\\\\\\]\\?\xff*"
