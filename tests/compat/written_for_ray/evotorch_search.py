"""EvoTorch with actors: searches with their evaluations split over two actors and in one process."""

import json

import ray
import torch
from evotorch import Problem
from evotorch.algorithms import PGPE
from evotorch.logging import PandasLogger
from tally import tally


def rastrigin(x: torch.Tensor) -> torch.Tensor:
    return 10 * x.shape[-1] + torch.sum(x**2 - 10 * torch.cos(2 * torch.pi * x), dim=-1)


def sphere(x: torch.Tensor) -> torch.Tensor:
    return torch.sum(x**2, dim=-1)


def run(actors: int) -> list:
    """The mean of each generation. Samples are drawn in the driver, so that it does not depend on the actors."""
    problem = Problem("min", rastrigin, vectorized=True, solution_length=10, initial_bounds=(-5, 5), num_actors=actors)
    problem.evaluate(problem.generate_batch(4))  # makes the actors, which takes random numbers for their seeds
    torch.manual_seed(3)
    searcher = PGPE(
        problem, popsize=40, center_learning_rate=0.1, stdev_learning_rate=0.1, stdev_init=1.0, distributed=False
    )
    logger = PandasLogger(searcher)
    searcher.run(5)
    return [round(float(value), 4) for value in logger.to_dataframe()["mean_eval"]]


def run_distributed() -> list:
    """The mean of the first and of the last generation, where the actors draw their samples themselves."""
    torch.manual_seed(1)
    problem = Problem("min", sphere, vectorized=True, solution_length=5, initial_bounds=(-5, 5), num_actors=2)
    searcher = PGPE(
        problem, popsize=50, center_learning_rate=0.5, stdev_learning_rate=0.1, stdev_init=1.0, distributed=True
    )
    logger = PandasLogger(searcher)
    searcher.run(20)
    means = logger.to_dataframe()["mean_eval"]
    problem.kill_actors()
    return [float(means.iloc[0]), float(means.iloc[-1])]


def main() -> None:
    ray.init(num_cpus=2)
    found = run(2)
    ran = tally()
    print(json.dumps({"found": found, "expected": run(0), "distributed": run_distributed(), "ran": ran}))


if __name__ == "__main__":
    main()
