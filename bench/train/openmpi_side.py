"""Rows on OpenMPI. The program starts mpiexec on itself, with the transports that the row names."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import tools

#: One machine, one network: that of the machine itself. Ranks may use any core, as those of the other peers do.
SETTINGS = ["--allow-run-as-root", "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "--mca", "pml", "ob1"]
LOOPBACK = ["--mca", "btl_tcp_if_include", "lo"]


def _mpiexec(ranks: int, transports: str, names: list[str] | None, repeats: int | None) -> dict[str, Any]:
    words = [f"names={json.dumps(names)}", f"repeats={json.dumps(repeats)}"]
    yields = ["--mca", "mpi_yield_when_idle", "1"] if ranks > len(os.sched_getaffinity(0)) else []
    chosen = ["--mca", "btl", transports, *(LOOPBACK if "tcp" in transports else []), *yields]
    command = ["mpiexec", "-n", str(ranks), *SETTINGS, *chosen, sys.executable, __file__, "rank_allreduce", *words]
    return tools.launch(command)


def allreduce(transports: str, names: list[str] | None = None, repeats: int | None = None) -> dict[str, Any]:
    return _mpiexec(2, transports, names, repeats)


def nodes(transports: str, counts: list[int], size: str, repeats: int) -> dict[str, Any]:
    """The same size among more and more ranks."""
    found = {f"{n} nodes": _mpiexec(n, transports, [size], repeats)["ms"][size] for n in counts}
    return {"ms": found}


def rank_allreduce(names: list[str] | None, repeats: int | None) -> dict[str, Any]:
    import numpy as np
    from mpi4py import MPI

    ranks = MPI.COMM_WORLD
    found = {}
    for name, (size, count) in tools.sizes(names, repeats).items():
        array = np.zeros(size // 4, np.float32)
        ranks.Barrier()
        found[name] = tools.median_ms(count, lambda array=array: ranks.Allreduce(MPI.IN_PLACE, array))
    if ranks.rank:
        sys.exit()
    return {"ms": found}


if __name__ == "__main__":
    tools.main({"allreduce": allreduce, "nodes": nodes, "rank_allreduce": rank_allreduce})
