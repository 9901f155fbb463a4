"""datatrove's pipelines run in actors, one for a group of ranks, in placement groups."""

from __future__ import annotations

import pytest

from compat.running import printed_by


@pytest.mark.timeout(180)
def test_a_pipeline_writes_the_documents_that_the_local_executor_writes() -> None:
    printed = printed_by("datatrove_pipeline.py")
    assert printed["found"] == printed["expected"]
    assert sum(map(len, printed["found"].values())) == 52
    # Actors fork a process for each rank.
    assert printed["pid"] not in printed["pids"]
    assert not set(printed["pids"]) & set(printed["own"])
