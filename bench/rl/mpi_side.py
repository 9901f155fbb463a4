"""Bulk-synchronous simulation with MPI, as in the paper's table 4: every round ends when its slowest rank has ended.

Started as `mpiexec -n 2 python mpi_side.py simulations equal=true`.
"""

from __future__ import annotations

import time
from typing import Any

import tools


def simulations(equal: bool = True, scale: int = 100) -> dict[str, Any]:
    """Three rounds of equal lengths, or thirty rounds of two simulations of 10 to 1,000 times `scale` steps."""
    import gymnasium
    import numpy as np
    from mpi4py import MPI

    import bare

    ranks = MPI.COMM_WORLD
    env = gymnasium.make("Pendulum-v1", disable_env_checker=True)
    actions = [np.zeros(1, np.float32)] * 100_000
    wanted = [300 * scale] * 6 if equal else [scale * length for length in tools.lengths()]
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


def ppo(steps: int, envs: int, horizon: int, **settings: Any) -> dict[str, Any]:
    """PPO on LunarLander, bulk-synchronous: all ranks simulate, the first one learns while the others wait.

    Simulation and learning are Skate's own code, without its engine: a lane in every rank, a `Learner` in the first.
    """
    from mpi4py import MPI

    from skate.rl.block import Batch
    from skate.rl.lane import Lane
    from skate.rl.policy import Policy
    from skate.rl.ppo import Learner, PPOOptions

    ranks = MPI.COMM_WORLD
    lane = Lane("LunarLander-v3", ranks.rank, envs // ranks.size, 1, 0, 1)
    policy = Policy.create(*lane.describe(), seed=1)
    learner = Learner(policy, PPOOptions(envs=envs, horizon=horizon, **settings), 1) if ranks.rank == 0 else None
    ranks.Barrier()
    began, done = time.perf_counter(), 0
    while done < steps:
        policy = ranks.bcast(policy)
        blocks = ranks.gather(lane.run(policy, horizon))
        if learner is not None:
            learner.learn(Batch.join(blocks), 1 - done / steps)
            policy = learner.policy
        done += horizon * envs
    wall_s = time.perf_counter() - began
    return {"steps_per_s": done / wall_s} if learner is not None else {}


if __name__ == "__main__":
    tools.main({"simulations": simulations, "ppo": ppo})
