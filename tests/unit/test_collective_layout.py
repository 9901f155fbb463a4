"""The memory of a rank, and the rounds in which groups are made."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skate.collective import CollectiveError, CollectiveTimeoutError, MismatchError, RankDiedError, RankLeftError
from skate.collective.between import Member, leaders
from skate.collective.errors import unpack
from skate.collective.layout import (
    ASLEEP,
    CALLS,
    CHUNK_BYTES,
    DONE,
    HEADER_BYTES,
    LINE_WORDS,
    PAGE_BYTES,
    RANKS_MAX,
    READY,
    STATE,
    TEXT_BYTES,
    WORD_BYTES,
    WRITTEN,
    Awaited,
    Layout,
    sent,
    taken,
)
from skate.collective.local import make_header
from skate.collective.meeting import Round
from skate.collective.plan import SLOTS
from skate.collective.tensors import flat, reduction
from skate.collective.types import ReduceOp


@pytest.mark.parametrize("ranks", [1, 2, 7])
def test_nothing_in_the_memory_of_a_rank_overlaps(ranks: int) -> None:
    layout = Layout(ranks)
    words = [WRITTEN, DONE, CALLS, ASLEEP, STATE, READY]
    words += [word for rank in range(ranks) for word in (sent(rank), taken(rank))]
    places = [(word * WORD_BYTES, LINE_WORDS * WORD_BYTES) for word in words]
    places += [(layout.texts, TEXT_BYTES), (layout.doing, HEADER_BYTES)]
    for slot, to in itertools.product(range(SLOTS), [None, *range(ranks)]):
        places += [(layout.header(slot, to), HEADER_BYTES), (layout.slot(slot, to), CHUNK_BYTES)]
        assert layout.slot(slot, to) % PAGE_BYTES == 0
    places.sort()
    assert all(start + size <= after for (start, size), (after, _) in itertools.pairwise(places))
    assert sum(places[-1]) <= layout.size


@given(st.integers(0, RANKS_MAX - 1), st.integers(0, taken(RANKS_MAX)), st.integers(0, 1 << 37))
def test_what_a_rank_waits_for_fits_one_word(rank: int, word: int, value: int) -> None:
    awaited = Awaited(rank, word, value)
    assert 0 < awaited.pack() < 1 << 64
    assert Awaited.unpack(awaited.pack()) == awaited


def test_headers_are_equal_if_and_only_if_the_calls_are() -> None:
    long = "allreduce(float64" + str(list(range(100))) + ", SUM)"
    texts = ["barrier()", "barrier( )", long, long.replace("99", "98")]
    headers = [make_header(text) for text in texts]
    assert len(set(headers)) == len(texts)
    assert {len(each) for each in headers} == {HEADER_BYTES}
    assert make_header(long) == headers[2]


def member(rank: int, pid: int = 1, actor_id: str = "a", node_id: str = "n") -> Member:
    return Member(rank, node_id, pid, "host", f"{actor_id}{rank}")


def test_a_round_admits_each_rank_once_and_says_whom_it_has() -> None:
    made = Round()
    assert made.admit(member(0), 2) == ""
    assert "world_size=3" in made.admit(member(1), 3)
    assert "has the rank already" in made.admit(member(0, pid=5, actor_id="other"), 2)
    assert made.admit(member(0, pid=5), 2) == "", "an actor that was restarted takes its own place"
    assert made.missing() == [1]
    assert not made.complete
    assert made.admit(member(1), 2) == ""
    assert made.complete
    assert "the group exists" in made.admit(member(1, actor_id="other"), 2)
    assert made.ended_by(member(1, pid=9))
    assert not made.ended_by(member(1))
    assert not made.ended_by(member(1, pid=9, actor_id="other"))


def test_the_leader_of_a_node_is_its_lowest_rank() -> None:
    members = [member(rank, node_id=node) for rank, node in enumerate("baabca")]
    assert leaders(members) == [0, 1, 4]


@pytest.mark.parametrize(
    "error",
    [
        CollectiveError("text"),
        CollectiveTimeoutError("text"),
        MismatchError("text"),
        RankDiedError("text", rank=3, pid=4, node_id="n", actor_id="a"),
        RankLeftError("text"),
    ],
)
def test_errors_keep_their_facts_on_the_way_to_other_ranks_and_to_the_driver(error: CollectiveError) -> None:
    for again in (unpack(error.pack()), pickle.loads(pickle.dumps(error))):
        assert type(again) is type(error)
        assert (str(again), again.__dict__) == ("text", error.__dict__)


def test_bfloat16_is_reduced_as_torch_does_it_and_as_float32_between_nodes() -> None:
    tensor = torch.tensor([1.5, -2.25, 3e5], dtype=torch.bfloat16)
    array = flat(tensor)
    how = reduction(ReduceOp.MAX, array)
    into = np.zeros_like(array.elements)
    how.combine(array.elements, flat(-tensor).elements, into)
    assert torch.equal(torch.from_numpy(into).view(torch.bfloat16), tensor.abs())
    wide = how.widen(array.elements)
    assert wide.dtype == np.float32
    np.add(wide, 1, out=wide)
    how.narrow(wide, array.elements)
    assert torch.equal(tensor, torch.tensor([2.5, -1.25, 3e5], dtype=torch.bfloat16))
