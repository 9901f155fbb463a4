"""user_config as bytes: every value comes back, and arrays are mapped where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skate.serve import configs


@pytest.mark.parametrize("value", [None, 5, "text", {"a": [1, (2, 3)]}, b"", b"x" * 100])
def test_every_value_comes_back(value: Any) -> None:
    assert configs.load(configs.dump(value)) == value


@given(st.lists(st.integers(0, 200), max_size=6))
def test_arrays_come_back_aligned_and_lie_in_the_bytes(sizes: list[int]) -> None:
    arrays = [np.arange(size, dtype=np.float32) for size in sizes]
    data = np.frombuffer(configs.dump({"weights": arrays}), np.uint8)
    room = np.zeros(len(data) + configs.ALIGN, np.uint8)
    at = -room.ctypes.data % configs.ALIGN
    room[at : at + len(data)] = data
    found = configs.load(room[at : at + len(data)])["weights"]
    assert len(found) == len(arrays)
    for one, other in zip(found, arrays):
        np.testing.assert_array_equal(one, other)
        if one.size:
            assert np.shares_memory(one, room)
            assert one.ctypes.data % configs.ALIGN == 0
            assert not one.flags.writeable


@pytest.mark.parametrize("array", [np.eye(4)[:, ::2], np.asfortranarray(np.eye(3)), np.array(5.0), np.zeros((0, 3))])
def test_arrays_of_every_layout_come_back(array: np.ndarray[Any, Any]) -> None:
    np.testing.assert_array_equal(configs.load(configs.dump(array)), array)
