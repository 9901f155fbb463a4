"""Collective operations on arrays between actors, by the name of a group, with the names of `ray.util.collective`.

>>> from skate import collective
>>> collective.init_collective_group(world_size=2, rank=rank)     # in each actor
>>> collective.allreduce(array)                                   # numpy or torch on the CPU, in place
"""

try:
    import numpy  # noqa: F401, ICN001
except ImportError as error:
    raise ImportError(
        f"skate.collective needs numpy, and it could not be imported.\n  why:  {error}\n"
        "  next: pip install 'skate[collective]'"
    ) from error

from skate.collective.calls import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    create_collective_group,
    destroy_collective_group,
    gather,
    get_collective_group_size,
    get_group_handle,
    get_rank,
    init_collective_group,
    is_group_initialized,
    recv,
    reduce,
    reducescatter,
    scatter,
    send,
)
from skate.collective.errors import (
    CollectiveError,
    CollectiveTimeoutError,
    MismatchError,
    RankDiedError,
    RankLeftError,
)
from skate.collective.types import Backend, ReduceOp

__all__ = [
    "allgather",
    "alltoall",
    "broadcast",
    "gather",
    "recv",
    "reduce",
    "reducescatter",
    "scatter",
    "send",
    "Backend",
    "CollectiveError",
    "CollectiveTimeoutError",
    "MismatchError",
    "RankDiedError",
    "RankLeftError",
    "ReduceOp",
    "allreduce",
    "barrier",
    "create_collective_group",
    "destroy_collective_group",
    "get_collective_group_size",
    "get_group_handle",
    "get_rank",
    "init_collective_group",
    "is_group_initialized",
]
