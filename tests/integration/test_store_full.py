"""Nothing can be spilled because all of it is being looked at: wait, then an error that lists what holds the memory."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import skate
from skate.exceptions import ObjectStoreFullError
from waiting import wait_for

MB = 1_000_000
STORE_BYTES = 64 * MB


@pytest.fixture(autouse=True)
def store() -> Iterator[None]:
    skate.init(num_cpus=2, object_store_memory=STORE_BYTES, store_full_grace_s=1.0)
    yield
    skate.shutdown()


def array(seed: int = 0, size: int = 10 * MB) -> np.ndarray[Any, Any]:
    return np.full(size // 8, seed, dtype=np.int64)


def fill_with_views() -> list[Any]:
    """Arrays in the store that this process looks at; their references are gone."""
    return [skate.get(skate.put(array(seed))) for seed in range(5)]


def assert_usable_again() -> None:
    """Dropped views are let go within a second; a put waits for that."""
    gc.collect()
    assert (skate.get(skate.put(array(42, 30 * MB))) == 42).all()


def test_put_fails_with_a_list_of_what_holds_the_memory() -> None:
    views = fill_with_views()
    with pytest.raises(ObjectStoreFullError) as caught:
        skate.put(array(9, 30 * MB))
    text = str(caught.value)
    assert str(os.getpid()) in text, "it names the process that looks at the objects"
    assert len(re.findall(r"(?:9\.5|10(?:\.0)?) M", text)) >= 5, f"it lists the objects with their sizes: {text}"
    assert [view[0] for view in views] == [0, 1, 2, 3, 4]
    del views, caught
    assert_usable_again()


def test_more_than_the_store_at_the_same_time_is_an_error_that_says_so() -> None:
    refs = [skate.put(array(seed)) for seed in range(8)]
    with pytest.raises(ObjectStoreFullError, match=r"8 objects that are wanted at the same time can never fit"):
        skate.get(refs)

    @skate.remote
    def first(*arrays: Any) -> list[int]:
        return [int(each[0]) for each in arrays]

    with pytest.raises(ObjectStoreFullError, match="can never fit"):
        skate.get(first.remote(*refs))
    assert [int(skate.get(ref)[0]) for ref in refs] == list(range(8))
    assert skate.get(first.remote(*refs[2:6])) == [2, 3, 4, 5]


def test_what_holds_the_memory_is_named_even_in_a_worker() -> None:
    @skate.remote
    def hold(*arrays: Any) -> int:
        import builtins

        builtins.kept = arrays  # type: ignore[attr-defined]
        return os.getpid()

    pid = skate.get(hold.remote(*[skate.put(array(seed)) for seed in range(5)]))
    with pytest.raises(ObjectStoreFullError, match=str(pid)):
        skate.put(array(9, 30 * MB))
    os.kill(pid, 9)
    assert_usable_again()


def test_the_error_has_the_facts_as_attributes() -> None:
    views = fill_with_views()
    with pytest.raises(ObjectStoreFullError) as caught:
        skate.put(array(9, 30 * MB))
    error = caught.value
    assert 30 * MB <= error.needed_bytes <= 31 * MB
    assert STORE_BYTES * 0.9 <= error.capacity_bytes <= STORE_BYTES * 1.1
    assert sum(size for _, size in error.holders) >= 50 * MB
    del views, caught, error


def test_put_waits_for_room_before_it_fails() -> None:
    """A view is let go while a put waits; whichever of the two comes first, the put succeeds."""
    views = fill_with_views()
    result: list[Any] = []
    thread = threading.Thread(target=lambda: result.append(skate.put(array(7, 30 * MB))))
    thread.start()
    views.clear()
    gc.collect()
    thread.join(timeout=50)
    assert not thread.is_alive()
    assert (skate.get(result[0]) == 7).all()


def test_other_calls_work_while_a_put_waits() -> None:
    @skate.remote
    def add_one(x: int) -> int:
        return x + 1

    views = fill_with_views()
    failed: list[BaseException] = []

    def put_too_much() -> None:
        try:
            skate.put(array(7, 30 * MB))
        except ObjectStoreFullError as error:
            failed.append(error.with_traceback(None))

    thread = threading.Thread(target=put_too_much)
    thread.start()
    assert skate.get([add_one.remote(number) for number in range(100)]) == list(range(1, 101))
    assert skate.get(skate.put(5)) == 5
    thread.join()
    assert len(failed) == 1
    assert [view[0] for view in views] == [0, 1, 2, 3, 4]


def test_an_object_larger_than_the_store_fails_at_once() -> None:
    with pytest.raises(ObjectStoreFullError, match=r"never fit|larger than"):
        skate.put(array(1, 2 * STORE_BYTES))
    assert_usable_again()


def test_a_result_that_finds_no_room_is_an_error_of_its_task() -> None:
    @skate.remote
    def make(size: int) -> Any:
        return np.full(size // 8, 3)

    views = fill_with_views()
    with pytest.raises(ObjectStoreFullError):
        skate.get(make.remote(30 * MB))
    with pytest.raises(ObjectStoreFullError, match=r"never fit|larger than"):
        skate.get(make.remote(2 * STORE_BYTES))
    views.clear()
    gc.collect()
    assert skate.get(make.remote(30 * MB))[0] == 3


def test_an_argument_that_finds_no_room_is_an_error_at_the_call() -> None:
    @skate.remote
    def total(values: Any) -> int:
        return int(values.sum())

    with pytest.raises(ObjectStoreFullError):
        skate.get(total.remote(array(1, 2 * STORE_BYTES)))
    assert skate.get(total.remote(array(1, 8 * MB))) == MB


def test_get_of_more_than_fits_at_once_is_an_error_and_no_hang() -> None:
    refs = [skate.put(array(seed)) for seed in range(12)]
    with pytest.raises(ObjectStoreFullError) as caught:
        skate.get(refs)
    del caught
    gc.collect()
    for seed, ref in enumerate(refs):
        assert skate.get(ref)[0] == seed


def test_get_with_a_timeout_ends_at_the_timeout_when_there_is_no_room() -> None:
    refs = [skate.put(array(seed)) for seed in range(12)]
    views = skate.get(refs[:5])
    with pytest.raises(skate.exceptions.GetTimeoutError, match="are on disk, and there is no room in memory"):
        skate.get(refs[5:9], timeout=0.5)
    assert [view[0] for view in views] == [0, 1, 2, 3, 4]


def test_memory_is_whole_again_after_many_failures() -> None:
    for _ in range(3):
        views = fill_with_views()
        with pytest.raises(ObjectStoreFullError):
            skate.put(array(9, 30 * MB))
        views.clear()
    wait_for(
        lambda: skate.available_resources().get("object_store_memory", 0) > STORE_BYTES * 0.9, 10, "an empty store"
    )


def test_a_small_object_takes_a_small_hole() -> None:
    held = []
    with pytest.raises(ObjectStoreFullError):
        while True:
            held.append(skate.get(skate.put(np.ones(20_000))))
    del held[::2]
    for number in range(20):
        held.append(skate.get(skate.put(np.full(19_000, number))))
        assert (held[-1] == number).all()
