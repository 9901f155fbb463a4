"""EvoTorch with actors: the same search with its evaluations split over two actors and in one process."""

import json

import ray
import torch
from evotorch import Problem
from evotorch.algorithms import PGPE
from evotorch.logging import PandasLogger


def rastrigin(x: torch.Tensor) -> torch.Tensor:
    return 10 * x.shape[-1] + torch.sum(x**2 - 10 * torch.cos(2 * torch.pi * x), dim=-1)


def run(actors: int) -> list:
    problem = Problem("min", rastrigin, vectorized=True, solution_length=10, initial_bounds=(-5, 5), num_actors=actors)
    problem.evaluate(problem.generate_batch(4))  # makes the actors, which takes random numbers for their seeds
    torch.manual_seed(3)
    searcher = PGPE(
        problem, popsize=40, center_learning_rate=0.1, stdev_learning_rate=0.1, stdev_init=1.0, distributed=False
    )
    logger = PandasLogger(searcher)
    searcher.run(5)
    values = [round(float(value), 4) for value in logger.to_dataframe()["mean_eval"]]
    if actors:
        problem.kill_actors()
    return values


def main() -> None:
    ray.init(num_cpus=2)
    print(json.dumps({"found": run(2), "expected": run(0)}))


if __name__ == "__main__":
    main()
