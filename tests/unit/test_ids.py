"""Ids have the layout of the docstring, and the same work gives the same ids."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skate._core import ids

COUNTERS = st.integers(0, ids.COUNTER_MAX)
INDICES = st.integers(0, ids.COUNTER_MAX)
PARENTS = st.binary(min_size=1, max_size=32)
ATTEMPTS = st.integers(0, 1000)


def object_id(prefix: bytes, counter: int, index: bytes = ids.FIRST_RETURN) -> bytes:
    """What the runtime writes in its hot path, spelt out."""
    return prefix + counter.to_bytes(4, "big") + index


@given(PARENTS, ATTEMPTS, COUNTERS, INDICES)
@settings(deadline=None)
def test_an_object_id_is_laid_out_as_its_table_says(parent: bytes, attempt: int, counter: int, index: int) -> None:
    first = object_id(ids.child_prefix(parent, attempt), counter)
    id = ids.return_id(first, index)
    assert len(id) == ids.OBJECT_BYTES == 20
    assert id[:12] == ids.child_prefix(parent, attempt)
    assert int.from_bytes(id[12:16], "big") == counter
    assert int.from_bytes(id[16:20], "big") == index == ids.index_of(id)
    assert (ids.PREFIX_BYTES, ids.TASK_BYTES) == (12, 16)


@given(PARENTS, COUNTERS, INDICES, INDICES)
@settings(deadline=None)
def test_all_returns_of_a_task_share_its_id(parent: bytes, counter: int, one: int, other: int) -> None:
    first = object_id(ids.child_prefix(parent), counter)
    task = ids.task_of(first)
    assert len(task) == ids.TASK_BYTES
    assert ids.task_of(ids.return_id(first, one)) == task
    # Any return can name its siblings, not only the first.
    assert ids.return_id(ids.return_id(first, one), other) == ids.return_id(first, other)
    assert ids.return_id(first, 0) == first


@given(PARENTS, ATTEMPTS)
@settings(deadline=None)
def test_running_again_gives_children_the_same_ids(parent: bytes, attempt: int) -> None:
    assert ids.child_prefix(parent, attempt) == ids.child_prefix(bytes(parent), attempt)
    assert ids.child_prefix(parent) == ids.child_prefix(parent, 0)


@given(st.sets(st.tuples(st.binary(min_size=20, max_size=20), ATTEMPTS), min_size=2, max_size=20))
@settings(deadline=None)
def test_other_parents_and_other_attempts_have_other_children(parents: set[tuple[bytes, int]]) -> None:
    assert len({ids.child_prefix(parent, attempt) for parent, attempt in parents}) == len(parents)


def test_a_put_is_never_taken_for_a_return() -> None:
    prefix = ids.child_prefix(b"parent")
    put = object_id(prefix, 7, ids.PUT_INDEX)
    assert ids.index_of(put) == ids.COUNTER_MAX
    assert put not in {ids.return_id(put, index) for index in range(1000)}


@given(st.binary(max_size=200), st.binary(max_size=200))
@settings(deadline=None)
def test_functions_are_the_same_exactly_if_their_definitions_are(one: bytes, other: bytes) -> None:
    assert len(ids.function_id(one)) == 16
    assert (ids.function_id(one) == ids.function_id(other)) == (one == other)
    assert ids.function_id(one) == ids.function_id(one, [])
    paths = [["/a"], ["/b"], ["/a", "/b"], ["/a/b"], [""]]
    assert len({ids.function_id(one), *(ids.function_id(one, path) for path in paths)}) == 6


def test_new_ids_are_new() -> None:
    for make, size in ((ids.new_node_id, 16), (ids.new_process_id, 12), (ids.new_job_id, 4)):
        made = {bytes(make()) for _ in range(20)}
        assert {len(id) for id in made} == {size}
    assert len({ids.new_process_id() for _ in range(1000)}) == 1000


@given(st.integers(0, ids.NUMBER_MAX), st.integers(0, ids.SIZE_MAX))
def test_ids_and_places_name_their_node(node: int, size: int) -> None:
    assert ids.node_of(ids.new_process_id(node)) == ids.node_of(ids.new_node_id(node)) == node
    place = ids.place_of(node, size)
    assert (ids.node_at(place), ids.size_at(place)) == (node, size)
    assert place < 2**64, "a message cannot carry it"
    assert ids.place_of(0, size) == size


@pytest.mark.parametrize("index", [-1, ids.COUNTER_MAX + 1])
def test_an_index_that_does_not_fit_is_refused(index: int) -> None:
    with pytest.raises(OverflowError):
        ids.return_id(bytes(20), index)


def test_ids_have_one_short_spelling() -> None:
    prefix = bytes.fromhex("a1b2c3d4e5f60718293a4b5c")
    assert ids.short(object_id(prefix, 42)) == "a1b2c3:42.0"
    assert ids.short(ids.return_id(object_id(prefix, 42), 3)) == "a1b2c3:42.3"
    assert ids.short(object_id(prefix, 5, ids.PUT_INDEX)) == "a1b2c3:5.put"
    assert ids.short(bytes.fromhex("0123456789abcdef")) == "01234567"


@given(st.sets(st.tuples(COUNTERS, INDICES), min_size=2, max_size=10))
@settings(deadline=None)
def test_siblings_are_told_apart_by_their_short_spelling(children: set[tuple[int, int]]) -> None:
    prefix = ids.child_prefix(b"parent")
    spelt = {ids.short(object_id(prefix, counter, index.to_bytes(4, "big"))) for counter, index in children}
    assert len(spelt) == len(children)
