"""TorchRL's RayCollector steps environments in actors."""

from __future__ import annotations

import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_collectors_in_actors_collect_what_they_collect_in_one_process() -> None:
    printed = printed_by("torchrl_collection.py")
    assert printed["found"] == printed["expected"]
    assert printed["ran"]["calls"]["Collector.register_scheme_receiver"] == 2
    assert printed["ran"]["processes"] == 2
