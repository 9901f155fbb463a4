"""Plans of collective operations, carried out by ranks that run in random order, against what the operation means."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skate.collective import plan
from skate.collective.plan import KINDS, LAG, SLOTS, Step, steps

Arrays = list[list[np.ndarray[Any, Any]]]

BY_RANK = {"alltoall", "scatter", "reducescatter"}
LISTS_OUT = {"allgather", "gather", "alltoall"}


class Rank:
    """One rank that carries out its plan, a step at a time. `progress` yields while it waits for others."""

    def __init__(self, me: int, ranks: list[Rank], room: int, sources: list[Any], targets: list[Any]) -> None:
        self.me, self.ranks = me, ranks
        self.sources, self.targets = sources, targets
        self.slots = np.full((SLOTS, room), -1, np.int64)
        self.written = self.done = 0

    def progress(self, planned: list[Step]) -> Iterator[bool]:
        for number in range(len(planned) + LAG):
            if number < len(planned):
                while any(other.done < number - SLOTS + 1 for other in self.ranks):
                    yield False
                for part, start, stop, at in planned[number].puts:
                    self.slots[number % SLOTS, at : at + stop - start] = self.sources[part][start:stop]
                self.written = number + 1
                yield True
            back = number - LAG
            if back >= 0:
                while any(other.written < back + 1 for other in self.ranks):
                    yield False
                step = planned[back]
                while step.fold is not None and any(
                    other.done < back + step.fold.ahead - SLOTS + 1 for other in self.ranks if step.fold.ahead
                ):
                    yield False
                self.read(step, back)
                self.done = back + 1
                yield True

    def read(self, step: Step, number: int) -> None:
        for rank, (part, start, stop, at) in step.takes:
            found = self.ranks[rank].slots[number % SLOTS, at : at + stop - start]
            self.targets[part][start:stop] = found
        if step.fold is not None:
            at, size, start, ahead = step.fold
            # Not a sum: the result says in which order ranks were folded.
            folded = np.zeros(size, np.int64)
            for other in self.ranks:
                folded = folded * 31 + other.slots[number % SLOTS, at : at + size]
            if ahead:
                self.slots[(number + ahead) % SLOTS, at : at + size] = folded
            else:
                self.targets[0][start : start + size] = folded


def meant(kind: str, rank: int, root: int, sources: Arrays, before: list[Any]) -> list[Any]:
    """What a rank's targets hold after an operation."""

    def fold(part: int) -> Any:
        folded = np.zeros_like(sources[0][part])
        for each in sources:
            folded = folded * 31 + each[part]
        return folded

    if kind == "allreduce" or (kind == "reduce" and rank == root):
        return [fold(0)]
    if kind == "reducescatter":
        return [fold(rank)]
    if kind == "broadcast" and rank != root:
        return [sources[root][0]]
    if kind == "scatter":
        return [sources[root][rank]]
    if kind == "allgather" or (kind == "gather" and rank == root):
        return [each[0] for each in sources]
    if kind == "alltoall":
        return [each[rank] for each in sources]
    return before


@settings(max_examples=150, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    world=st.integers(1, 6),
    count=st.integers(0, 60),
    room=st.integers(6, 25),
    whole=st.sampled_from([0, 8]),
    data=st.data(),
)
def test_every_plan_does_what_its_operation_means_in_any_order_of_ranks(
    kind: str, world: int, count: int, room: int, whole: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, world - 1))
    random = data.draw(st.randoms(use_true_random=False))
    numbers = np.random.default_rng(random.randrange(1 << 30))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "WHOLE_MAX", whole)
        planned = [list(steps(kind, rank, world, root, count, room)) for rank in range(world)]
    assert len({len(each) for each in planned}) == 1, "ranks count the same steps"

    sources = [[numbers.integers(0, 100, count) for _ in range(world if kind in BY_RANK else 1)] for _ in range(world)]
    targets = [[np.full(count, -2) for _ in range(world if kind in LISTS_OUT else 1)] for _ in range(world)]
    wanted = [meant(kind, rank, root, sources, [each.copy() for each in targets[rank]]) for rank in range(world)]
    ranks: list[Rank] = []
    for rank in range(world):
        ranks.append(Rank(rank, ranks, room, sources[rank], targets[rank]))

    running = {rank: ranks[rank].progress(planned[rank]) for rank in range(world)}
    while running:
        moved = False
        for rank in random.sample(sorted(running), len(running)):
            # A rank may go on for some time while the others stand still.
            for _ in range(random.randrange(1, 5)):
                went_on = next(running[rank], None)
                if went_on is None:
                    del running[rank]
                    moved = True
                    break
                moved = moved or went_on
        assert moved, "all ranks wait for each other"

    for rank in range(world):
        for got, want in zip(targets[rank], wanted[rank], strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("kind", ["allreduce", "reduce"])
def test_the_same_array_may_be_source_and_target(kind: str) -> None:
    """A chunk is read from the source before the step that writes it to the target."""
    for whole in (0, 100):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plan, "WHOLE_MAX", whole)
            for planned in (list(steps(kind, 1, 3, 1, 50, 7)), list(steps(kind, 1, 3, 1, 5, 7))):
                read = 0
                for step in planned:
                    for _, start, stop, _ in step.puts:
                        assert start == read
                        read = stop
                    assert step.fold is None or step.fold.ahead or step.fold.start + step.fold.size <= read
                    assert all(piece.stop <= read for _, piece in step.takes)
