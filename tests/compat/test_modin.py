"""Modin on its engine "ray" gives what pandas gives."""

from __future__ import annotations

import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_frames_give_what_pandas_gives() -> None:
    printed = printed_by("modin_frames.py")
    assert printed["found"] == printed["expected"]
