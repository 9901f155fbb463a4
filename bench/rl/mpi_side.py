"""Bulk-synchronous simulation with MPI, as in the paper's table 4: every round ends when its slowest rank has ended.

Started as `mpiexec -n 2 python mpi_side.py simulations equal=true`.
"""

from __future__ import annotations

import time
from typing import Any

import tools


def simulations(equal: bool = True) -> dict[str, Any]:
    """Three rounds of equal lengths, or thirty rounds of two lengths from 10 to 1,000."""
    import gymnasium
    import numpy as np
    from mpi4py import MPI

    import bare

    ranks = MPI.COMM_WORLD
    env = gymnasium.make("Pendulum-v1", disable_env_checker=True)
    actions = [np.zeros(1, np.float32)] * 100_000
    wanted = [30_000] * 6 if equal else [100 * length for length in tools.lengths()]
    env.reset(seed=0)
    bare.simulate(env, 1_000, actions)
    ranks.Barrier()
    began = time.perf_counter()
    for first in range(0, len(wanted), ranks.size):
        env.reset(seed=0)
        bare.simulate(env, wanted[first + ranks.rank], actions)
        ranks.Barrier()
    wall_s = time.perf_counter() - began
    return {"steps_per_s": sum(wanted) / wall_s} if ranks.rank == 0 else {}


if __name__ == "__main__":
    tools.main({"simulations": simulations})
