"""Rows on torchrun with gloo. The program starts torchrun on itself; its ranks print what rank 0 has measured."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import tools

#: gloo would look for an interface that the name of the machine leads to.
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}


def _torchrun(row: str, ranks: int = 2, **arguments: Any) -> dict[str, Any]:
    words = [f"{name}={json.dumps(value)}" for name, value in arguments.items()]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return tools.launch([*command, __file__, row, *words], **LOOPBACK)


def ddp(loads: dict[str, list[int]]) -> dict[str, Any]:
    return _torchrun("rank_ddp", loads=loads)


def rank_ddp(loads: dict[str, list[int]]) -> dict[str, Any]:
    import models
    import torch.distributed as dist

    dist.init_process_group("gloo")
    found = models.train_all(loads, dist.get_world_size(), _wrap)
    return _of_rank_0({"samples_per_s": found})


def first_step() -> dict[str, Any]:
    """From calling torchrun to the end of the first step."""
    called = time.time()
    return {"seconds": _torchrun("rank_first_step")["at"] - called}


def rank_first_step() -> dict[str, Any]:
    import models
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return _of_rank_0({"at": models.first_step(_wrap)})


def allreduce(names: list[str] | None = None, repeats: int | None = None) -> dict[str, Any]:
    return _torchrun("rank_allreduce", names=names, repeats=repeats)


def nodes(counts: list[int], size: str, repeats: int) -> dict[str, Any]:
    """The same size among more and more ranks."""
    found = {str(n): _torchrun("rank_allreduce", ranks=n, names=[size], repeats=repeats) for n in counts}
    return {"ms": {f"{n} nodes": each["ms"][size] for n, each in found.items()}}


def rank_allreduce(names: list[str] | None, repeats: int | None) -> dict[str, Any]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    found = {}
    for name, (size, count) in tools.sizes(names, repeats).items():
        tensor = torch.zeros(size // 4)
        found[name] = tools.median_ms(count, lambda tensor=tensor: dist.all_reduce(tensor))
    return _of_rank_0({"ms": found})


def _wrap(net: Any) -> Any:
    import torch

    return torch.nn.parallel.DistributedDataParallel(net)


def _of_rank_0(figures: dict[str, Any]) -> dict[str, Any]:
    """What this rank prints; torchrun mixes the lines of all ranks."""
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()
    if os.environ["RANK"] != "0":
        sys.exit()
    return figures


if __name__ == "__main__":
    tools.main(
        {
            "ddp": ddp,
            "rank_ddp": rank_ddp,
            "first_step": first_step,
            "rank_first_step": rank_first_step,
            "allreduce": allreduce,
            "nodes": nodes,
            "rank_allreduce": rank_allreduce,
        }
    )
