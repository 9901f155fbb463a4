"""Modin on its engine "ray" gives what pandas gives."""

from __future__ import annotations

import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_frames_give_what_pandas_gives() -> None:
    printed = printed_by("modin_frames.py")
    assert printed["found"] == printed["expected"]
    # Modin has a way of its own to read files, to change single partitions and to combine several.
    for name in ("_deploy_ray_func", "_remote_exec_single_chain", "_remote_exec_multi_chain", "remote_exec_func"):
        assert printed["ran"]["calls"].get(name), name
