"""Evolution strategies on EvoTorch, which evaluates its populations on Ray."""

from __future__ import annotations

import time
from typing import Any

import tools


def es(env: str, episodes: int, generations: int, actors: int = 2) -> dict[str, Any]:
    """Steps a second of PGPE with a network of 64 x 64, after a first generation."""
    from evotorch.algorithms import PGPE
    from evotorch.neuroevolution import GymNE

    network = "Linear(obs_length, 64) >> Tanh() >> Linear(64, 64) >> Tanh() >> Linear(64, act_length)"
    made = tools.own(env) if env in tools.OWN else env
    problem = GymNE(made, network, num_actors=actors, observation_normalization=False)
    search = PGPE(problem, popsize=episodes, center_learning_rate=0.05, stdev_learning_rate=0.1, stdev_init=0.1)
    search.step()
    first, began = int(problem.status["total_interaction_count"]), time.perf_counter()
    for _ in range(generations):
        search.step()
    steps = int(problem.status["total_interaction_count"]) - first
    return {"steps_per_s": steps / (time.perf_counter() - began)}


if __name__ == "__main__":
    tools.main({"es": es})
