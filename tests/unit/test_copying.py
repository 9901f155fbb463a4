"""Copying in parts gives the same bytes as copying at once."""

from __future__ import annotations

import numpy as np
import pytest

from skate._serialize import copying
from skate._serialize.copying import copy_into


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000, 4096 * 3 + 7])
@pytest.mark.parametrize("offset", [0, 64, 100])
def test_every_byte_arrives_and_no_other_changes(size: int, offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "PARALLEL_BYTES_MIN", 1)
    source = np.random.default_rng(size).integers(0, 256, size, dtype="u1")
    source.flags.writeable = False
    target = bytearray(b"\xaa" * (size + 300))
    copy_into(memoryview(target), offset, memoryview(source))
    assert target[offset : offset + size] == source.tobytes()
    assert set(target[:offset]) | set(target[offset + size :]) == {0xAA}


def test_bytes_are_copied_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying, "PARALLEL_BYTES_MIN", 1)
    target = bytearray(1000)
    copy_into(memoryview(target), 10, b"x" * 900)
    assert target == bytes(10) + b"x" * 900 + bytes(90)
