"""Collective operations between actors of one node."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from collective_ranks import check_every_operation, in_all, join, make_group, make_ranks

from skate import collective
from skate.collective import ReduceOp, group
from waiting import value_of, wait_for


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_operation_gives_what_numpy_gives(runtime: ModuleType, world: int) -> None:
    def check() -> None:
        for shape, dtype in (((), "float64"), ((0,), "float32"), ((3, 5), "int8"), ((70_001,), "float32")):
            check_every_operation(shape, dtype)
        # More than the slots of a rank hold, so that every slot is used again.
        check_every_operation((330_000,), "float64")
        for op in ReduceOp:
            check_every_operation((9,), "int64", op)
        check_every_operation((4,), "bool", ReduceOp.MAX)
        check_every_operation((4,), "complex64")
        check_every_operation((4,), ">f4")
        collective.broadcast(np.zeros(1), np.int64(0), "g")  # a rank may be a number of numpy

    in_all(make_group(world), check)


def test_arrays_that_are_not_contiguous_tensors_of_torch_and_gradients_are_reduced_in_place(
    runtime: ModuleType, tmp_path: Path
) -> None:
    """In one group, which the driver has declared: its ranks import torch once."""
    name = "declared for tensors"

    def check() -> None:
        rank = collective.get_rank(name)
        whole = np.arange(12.0).reshape(3, 4)
        column = whole[:, 1]
        collective.allreduce(column, name)
        assert whole[:, 1].tolist() == [2, 10, 18]
        assert whole[:, 0].tolist() == [0, 4, 8]

        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64):
            tensor = torch.full((5, 3), 1.5 + rank).to(dtype)
            collective.allreduce(tensor, name)
            assert torch.equal(tensor, torch.full((5, 3), 1.5).to(dtype) + torch.full((5, 3), 2.5).to(dtype)), dtype
            collective.allreduce(tensor.t(), name, ReduceOp.MAX)
        weight = torch.nn.Parameter(torch.full((4,), float(rank)))
        collective.broadcast(weight, 1, name)
        assert weight.tolist() == [1] * 4

        found = [torch.zeros(2), torch.zeros(2)]
        collective.allgather(found, np.full(2, rank, np.float32), name)
        assert [each.tolist() for each in found] == [[0, 0], [1, 1]]

    def gradient(path: str) -> float:
        import torch.distributed as dist

        from skate.collective.ddp import GradientAverager

        dist.init_process_group("gloo", init_method=f"file://{path}/{os.getpid()}", rank=0, world_size=1)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1, bias=False))
        averager = GradientAverager(model, name)  # joins the group, if that is its first use
        model(torch.full((1, 1), 1.0 + collective.get_rank(name))).sum().backward()
        averager.close()
        dist.destroy_process_group()
        return float(model.module.weight.grad.item())

    ranks = make_ranks(2)
    collective.create_collective_group(ranks, 2, [0, 1], group_name=name)
    in_all(ranks, lambda: torch.get_num_threads())  # the import of torch may take as long as everything else
    assert in_all(ranks, gradient, str(tmp_path)) == [1.5, 1.5]
    in_all(ranks, check)
    collective.destroy_collective_group(name)


def test_all_ranks_end_with_the_same_bits_whatever_the_size(runtime: ModuleType) -> None:
    """The order in which ranks are added is always the same, so one element gives the same sum in any array."""

    def sums() -> list[bytes]:
        mine = np.random.default_rng(collective.get_rank("g")).normal(size=100_000).astype(np.float32)
        found = []
        for size in (100, 100_000):
            array = mine[:size].copy()
            collective.allreduce(array, "g")
            found.append(array[:100].tobytes())
        return found

    found = in_all(make_group(3), sums)
    assert len({bits for each in found for bits in each}) == 1


def test_a_driver_declares_a_group_and_actors_join_at_first_use(
    runtime: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "NAME_IS_FREE_S", 0.5)
    ranks = make_ranks(2)
    collective.create_collective_group(ranks, 2, [1, 0], backend="gloo", group_name="declared")

    def use() -> Any:
        assert not collective.is_group_initialized("declared")
        array = np.ones(3)
        collective.allreduce(array, group_name="declared")
        assert collective.is_group_initialized("declared")
        return collective.get_rank("declared"), collective.get_collective_group_size("declared"), array.tolist()

    assert in_all(ranks, use) == [(1, 2, [2, 2, 2]), (0, 2, [2, 2, 2])]
    assert collective.get_rank("declared") == collective.get_collective_group_size("declared") == -1
    with pytest.raises(RuntimeError, match="was declared before"):
        collective.create_collective_group(ranks, 2, [0, 1], group_name="declared")
    value_of([each.leave.remote("declared") for each in ranks])
    collective.destroy_collective_group("declared")


def test_two_groups_of_the_same_actors_do_not_disturb_each_other(runtime: ModuleType) -> None:
    ranks = make_group(2, "one")
    join(ranks[::-1], "two")

    def use() -> list[int]:
        one, two = np.full(5, collective.get_rank("one")), np.full(5, 10 * collective.get_rank("two"))
        for name, array in (("one", one), ("two", two)):
            collective.broadcast(array, 0, name)
        return [int(one[0]), int(two[0])]

    assert in_all(ranks, use) == [[0, 0], [0, 0]]
    value_of([each.leave.remote("one") for each in ranks])

    def use_two() -> float:
        array = np.ones(2)
        collective.allreduce(array, "two")
        return float(array[0])

    assert in_all(ranks, use_two) == [2, 2]


def test_ranks_that_run_ahead_and_fall_behind_are_never_taken_for_stuck(runtime: ModuleType) -> None:
    """Many short operations of all kinds, so that ranks fall asleep and are woken at all possible moments."""

    def many() -> None:
        rank, random = collective.get_rank("g"), np.random.default_rng(1)
        for _ in range(400):
            array = np.full(int(random.integers(1, 40_000)), float(rank))
            collective.allreduce(array, "g")
            assert array[-1] == 3
            collective.barrier("g")
            root = int(random.integers(3))
            collective.broadcast(array, root, "g")
            if rank == root:
                collective.send(array, (root + 1) % 3, "g")
            elif rank == (root + 1) % 3:
                collective.recv(array, root, "g")

    in_all(make_group(3), many)


def test_small_messages_wait_for_their_receiver_and_the_sender_goes_on(runtime: ModuleType) -> None:
    """Two ranks that both send first do not block each other while the messages are small."""

    def cross() -> float:
        rank = collective.get_rank("g")
        array = np.full(1000, float(rank))
        for _ in range(3):
            collective.send(array, 1 - rank, "g")
        collective.barrier("g")
        for _ in range(3):
            collective.recv(array, 1 - rank, "g")
        return float(array[0])

    assert in_all(make_group(2), cross) == [1, 0]


def test_a_group_that_is_destroyed_leaves_nothing_open(runtime: ModuleType) -> None:
    ranks = make_group(2)
    value_of([each.leave.remote() for each in ranks])
    before = value_of([each.open_files.remote() for each in ranks])
    for _ in range(3):
        join(ranks)
        in_all(ranks, lambda: collective.allreduce(np.ones(100_000), "g"))
        value_of([each.leave.remote() for each in ranks])

    def mapped() -> list[str]:
        with open("/proc/self/maps") as maps:
            return [line for line in maps if "/memfd:skate" in line]

    wait_for(lambda: value_of([each.open_files.remote() for each in ranks]) <= before, 10, "descriptors to be closed")
    arena = [len(each) for each in in_all(ranks[:1], mapped)]
    join(ranks)
    assert len(in_all(ranks, mapped)[0]) == arena[0] + 2
    value_of([each.leave.remote() for each in ranks])
    assert len(in_all(ranks, mapped)[0]) == arena[0]


def test_a_group_whose_ranks_were_dropped_leaves_its_name_to_the_next_one(runtime: ModuleType) -> None:
    """Its meeting lives as long as any process has a handle, and the next ranks, which ask it, are three."""
    for world in (2, 3):
        assert in_all(make_group(world), collective.get_rank, "g") == list(range(world))


def test_the_name_of_a_declared_group_is_free_again_when_it_was_destroyed(runtime: ModuleType) -> None:
    for _ in range(5):
        ranks = make_ranks(2)
        collective.create_collective_group(ranks, 2, [0, 1], group_name="again")
        in_all(ranks, lambda: collective.barrier("again"))
        in_all(ranks, lambda: collective.destroy_collective_group("again"))
        collective.destroy_collective_group("again")
