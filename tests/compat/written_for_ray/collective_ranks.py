"""`ray.util.collective`: actors that join a group by themselves, and actors that the driver declares as one."""

import json

import ray
import torch
from ray.util import collective
from ray.util.collective.types import Backend, ReduceOp


@ray.remote(num_cpus=0)
class Rank:
    def setup(self, world_size: int, rank: int, name: str) -> bool:
        collective.init_collective_group(world_size, rank, Backend.GLOO, name)
        return collective.is_group_initialized(name)

    def about(self, name: str) -> list:
        return [collective.get_rank(name), collective.get_collective_group_size(name)]

    def reductions(self, name: str) -> dict:
        collective.barrier(name)  # a group that the driver has declared is joined here
        rank = collective.get_rank(name)
        total, most = torch.full((4,), rank + 1.0), torch.full((2, 2), rank + 1.0)
        collective.allreduce(total, name)
        collective.allreduce(most, name, ReduceOp.MAX)
        at_one = torch.full((3,), rank + 2.0)
        collective.reduce(at_one, dst_rank=1, group_name=name, op=ReduceOp.PRODUCT)
        part = torch.zeros(2)
        collective.reducescatter(part, [torch.full((2,), float(10 * to + rank)) for to in range(2)], name)
        return {
            "total": total.tolist(),
            "most": most.tolist(),
            "product": at_one.tolist() if rank == 1 else None,
            "part": part.tolist(),
        }

    def movements(self, name: str) -> dict:
        rank = collective.get_rank(name)
        same = torch.full((2,), float(rank))
        collective.broadcast(same, src_rank=1, group_name=name)
        found = [torch.zeros(2) for _ in range(2)]
        collective.allgather(found, torch.full((2,), float(rank)), name)
        passed = torch.full((3,), 7.0 + rank)
        if rank == 0:
            collective.send(passed, 1, name)
        else:
            collective.recv(passed, 0, name)
        collective.barrier(name)
        return {"same": same.tolist(), "found": [each.tolist() for each in found], "passed": passed.tolist()}

    def leave(self, name: str) -> list:
        collective.destroy_collective_group(name)
        return [collective.is_group_initialized(name), collective.get_rank(name)]


def main() -> None:
    ray.init(num_cpus=2)
    ranks = [Rank.remote() for _ in range(2)]
    printed = {
        "joined": ray.get([each.setup.remote(2, number, "by themselves") for number, each in enumerate(ranks)]),
        "about": ray.get([each.about.remote("by themselves") for each in ranks]),
        "reductions": ray.get([each.reductions.remote("by themselves") for each in ranks]),
        "movements": ray.get([each.movements.remote("by themselves") for each in ranks]),
        "left": ray.get([each.leave.remote("by themselves") for each in ranks]),
    }
    declared = [Rank.remote() for _ in range(2)]
    collective.create_collective_group(declared, 2, [0, 1], Backend.GLOO, "declared")
    printed["declared"] = ray.get([each.reductions.remote("declared") for each in declared])
    print(json.dumps(printed))


if __name__ == "__main__":
    main()
