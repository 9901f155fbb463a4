"""Where each worker stands in its group, and torchrun's environment variables for it.

    [Place, …] ──► seats() ──► [Seat, …]        in the order of the ranks

Owns:      the order of the ranks, the variables, the numbers of the GPUs, how many threads each worker has.
Knows not: processes. `group.py` asks the workers for their places and tells them their seats.
Invariant: the ranks of a machine follow each other, as torchrun has them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """What a worker says of itself before it has a rank."""

    #: The id of its node.
    node: str
    address: str
    #: A port that this worker keeps free on its node.
    port: int
    #: How many cores the workers of this node share.
    cores: int
    #: The GPUs that this worker was given, by the numbers that the machine has for them.
    gpus: tuple[str, ...] = ()
    pid: int = 0


@dataclass(frozen=True)
class Seat:
    """Where a worker stands, and its environment."""

    #: Its place in the list that `seats` was given.
    index: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    #: Its GPUs, as torch numbers those in CUDA_VISIBLE_DEVICES.
    devices: tuple[int, ...]
    #: Variables of torchrun; they are set.
    environment: dict[str, str]
    #: Variables that are set unless the user has set them.
    defaults: dict[str, str]


def seats(places: Sequence[Place], *, run_id: str, failed: int = 0, failures: int | None = 0) -> list[Seat]:
    """Give every worker a rank. `failed` of the `failures` that the run may survive have happened."""
    nodes = list(dict.fromkeys(place.node for place in places))
    order = sorted(range(len(places)), key=lambda index: nodes.index(places[index].node))
    first = places[order[0]]
    found: list[Seat] = []
    for rank, index in enumerate(order):
        place = places[index]
        together = [places[other] for other in order if places[other].node == place.node]
        local_rank = sum(seat.node_rank == nodes.index(place.node) for seat in found)
        visible = gpus_in_order([other.gpus for other in together])
        variables = {
            "RANK": rank,
            "WORLD_SIZE": len(places),
            "LOCAL_RANK": local_rank,
            "LOCAL_WORLD_SIZE": len(together),
            "GROUP_RANK": nodes.index(place.node),
            "GROUP_WORLD_SIZE": len(nodes),
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": len(places),
            "ROLE_NAME": "default",
            "MASTER_ADDR": first.address,
            "MASTER_PORT": first.port,
            "TORCHELASTIC_RUN_ID": run_id,
            "TORCHELASTIC_RESTART_COUNT": failed,
            "TORCHELASTIC_MAX_RESTARTS": sys.maxsize if failures is None else failures,
            # Rank 0 serves torch's store; with torchrun its agent may.
            "TORCHELASTIC_USE_AGENT_STORE": False,
        }
        if visible:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(visible)
        found.append(
            Seat(
                index=index,
                rank=rank,
                world_size=len(places),
                local_rank=local_rank,
                local_world_size=len(together),
                node_rank=nodes.index(place.node),
                devices=tuple(visible.index(gpu) for gpu in place.gpus),
                environment={name: str(value) for name, value in variables.items()},
                defaults={
                    "OMP_NUM_THREADS": str(max(1, place.cores // len(together))),
                    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
                },
            )
        )
    return found


def gpus_in_order(of_workers: Sequence[Sequence[str]]) -> list[str]:
    """The GPUs of all workers of a machine, so that the first one of each has the number of its local rank.

    Programs for torchrun use the GPU with the number LOCAL_RANK, so a worker has to see those of the others. A worker
    with several GPUs has the numbers LOCAL_RANK, LOCAL_RANK + LOCAL_WORLD_SIZE, …

    >>> gpus_in_order([["4", "5"], ["6", "7"]])
    ['4', '6', '5', '7']
    """
    most = max((len(gpus) for gpus in of_workers), default=0)
    return list(dict.fromkeys(gpus[turn] for turn in range(most) for gpus in of_workers if turn < len(gpus)))
