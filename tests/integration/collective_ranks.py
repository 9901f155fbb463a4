"""Actors that are ranks of a group, and a check of every operation, for tests on one node and on several."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

import skate
from skate import collective
from skate.collective import ReduceOp
from waiting import value_of


@skate.remote(num_cpus=0, max_restarts=0)
class Rank:
    """An actor that is a rank of a group, and does there what a test says."""

    def join(self, world: int, rank: int, name: str = "g", **options: Any) -> int:
        collective.init_collective_group(world, rank, group_name=name, **options)
        return os.getpid()

    def do(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    def leave(self, name: str = "g") -> None:
        collective.destroy_collective_group(name)

    def pid(self) -> int:
        return os.getpid()

    def open_files(self) -> int:
        return len(os.listdir("/proc/self/fd"))


def make_ranks(world: int, **options: Any) -> list[Any]:
    return [Rank.options(**options).remote() for _ in range(world)]


def make_group(world: int, name: str = "g", **options: Any) -> list[Any]:
    ranks = make_ranks(world)
    join(ranks, name, **options)
    return ranks


def join(ranks: list[Any], name: str = "g", **options: Any) -> list[int]:
    """Have all join, in this order of ranks; their pids."""
    return list(value_of([each.join.remote(len(ranks), rank, name, **options) for rank, each in enumerate(ranks)]))


def in_all(ranks: list[Any], function: Callable[..., Any], *args: Any) -> list[Any]:
    """Run a function in all ranks at once; what each returned."""
    return list(value_of([each.do.remote(function, *args) for each in ranks]))


def in_each(ranks: list[Any], *functions: Callable[..., Any]) -> list[Any]:
    """Run in each rank a function of its own; the references."""
    return [each.do.remote(function) for each, function in zip(ranks, functions, strict=True)]


FOLDS = {
    ReduceOp.SUM: np.sum,
    ReduceOp.PRODUCT: np.prod,
    ReduceOp.MIN: np.min,
    ReduceOp.MAX: np.max,
}


def numbers(rank: int, part: int, shape: tuple[int, ...], dtype: str) -> Any:
    """What a rank has in one of its arrays: every rank can compute that of all."""
    return np.random.default_rng([rank, part, len(shape)]).integers(0, 5, shape).astype(dtype)


def check_every_operation(shape: tuple[int, ...], dtype: str, op: ReduceOp = ReduceOp.SUM, name: str = "g") -> None:
    """In a rank: call every operation, and compare with what numpy makes of the arrays of all ranks."""
    rank, world = collective.get_rank(name), collective.get_collective_group_size(name)
    last = world - 1
    every = [[numbers(r, part, shape, dtype) for part in range(world)] for r in range(world)]
    mine = every[rank]

    def folded(part: int) -> Any:
        return FOLDS[op](np.stack([each[part] for each in every]), axis=0).astype(dtype)

    def empty() -> list[Any]:
        return [np.full(shape, 99).astype(dtype) for _ in range(world)]

    def same(got: Any, wanted: Any, what: str) -> None:
        np.testing.assert_array_equal(got, wanted, err_msg=f"{what} of rank {rank} of {world}, {dtype}{shape}")

    array = mine[0].copy()
    collective.allreduce(array, name, op)
    same(array, folded(0), "allreduce")

    array = mine[0].copy()
    collective.reduce(array, last, name, op)
    same(array, folded(0) if rank == last else mine[0], "reduce")

    array = mine[0].copy()
    collective.broadcast(array, last, name)
    same(array, every[last][0], "broadcast")

    found = empty()
    collective.allgather(found, mine[0], name)
    same(found, [each[0] for each in every], "allgather")

    found = empty()
    collective.gather(found if rank == last else None, mine[0], last, name)
    same(found, [each[0] for each in every] if rank == last else empty(), "gather")

    array = empty()[0]
    collective.scatter(array, mine if rank == 0 else None, 0, name)
    same(array, every[0][rank], "scatter")

    array = empty()[0]
    collective.reducescatter(array, mine, name, op)
    same(array, folded(rank), "reducescatter")

    found = empty()
    collective.alltoall(found, mine, name)
    same(found, [each[rank] for each in every], "alltoall")

    if world > 1:
        array = empty()[0]
        after, before = (rank + 1) % world, (rank - 1) % world
        if rank % 2 == 0:
            collective.send(mine[0], after, name)
            collective.recv(array, before, name)
        else:
            collective.recv(array, before, name)
            collective.send(mine[0], after, name)
        same(array, every[before][0], "send and recv")
    collective.barrier(name)
