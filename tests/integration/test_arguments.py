"""Large arguments passed by value: stored once, and never stale."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from skate._worker.current import get_runtime

MB = 1 << 20


def objects_stored() -> int:
    return int(get_runtime().query("statistics")["store"]["objects"])


def test_one_array_passed_to_a_thousand_tasks_is_stored_once(runtime: ModuleType) -> None:
    @runtime.remote
    def total(array: np.ndarray, number: int) -> float:
        return float(array[0]) + number

    array = np.ones(MB // 8)
    refs = [total.remote(array, number) for number in range(1000)]
    assert objects_stored() == 1
    assert runtime.get(refs) == [1.0 + number for number in range(1000)]


def test_an_array_that_was_changed_in_between_is_stored_anew(runtime: ModuleType) -> None:
    @runtime.remote
    def first(array: np.ndarray) -> float:
        return float(array[0])

    array = np.zeros(MB // 8)
    refs = []
    for number in range(20):
        array[0] = number
        refs.append(first.remote(array))
    assert runtime.get(refs) == list(range(20))


def test_arrays_of_equal_bytes_and_other_shapes_are_told_apart(runtime: ModuleType) -> None:
    @runtime.remote
    def shape(array: np.ndarray) -> tuple[int, ...]:
        return array.shape

    array = np.zeros((1024, 128))
    refs = [shape.remote(array), shape.remote(array.reshape(128, 1024)), shape.remote(array.T)]
    assert runtime.get(refs) == [(1024, 128), (128, 1024), (128, 1024)]
