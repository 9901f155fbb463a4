"""What a consumer keeps of the items that a producer sends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from skate._core.ids import FIRST_RETURN, place_of, return_id
from skate._core.ownership import ObjectTable
from skate._core.task import Failure
from skate._wire.messages import Yielded
from skate._worker.peers import Peer
from skate._worker.streams import Streams

TASK = bytes(16) + FIRST_RETURN


def test_items_of_a_task_that_was_given_up_are_freed_and_the_stream_stays_at_its_end() -> None:
    freed: list[tuple[bytes, int]] = []
    runtime = SimpleNamespace(
        table=ObjectTable(),
        borrowing=SimpleNamespace(hold_contained=lambda refs: None, decline=lambda refs: None),
        store=SimpleNamespace(free=freed.extend),
    )
    streams = Streams(cast("Any", runtime))
    peer = Peer(b"producer", lambda: None)
    items = [Yielded(return_id(TASK, index), place_of(2, 1_000_000)) for index in (1, 2, 3, 4)]
    stream = streams.open(TASK)
    streams.on_yielded(peer, items[0])
    stream.on_failure(Failure(b"the node of the producer could not be reached for too long"))
    for late in items[2:]:
        streams.on_yielded(peer, late)
    assert freed == [(late.id, late.value) for late in items[2:]]
    assert [stream.take(), stream.take(), stream.take()] == [items[0].id, items[1].id, None]
