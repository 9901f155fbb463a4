"""pymoo's RayParallelization: NSGA-II with its evaluations in tasks, beside the same run in one process."""

import json

import numpy as np
import ray
from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.core.problem import ElementwiseProblem
from pymoo.optimize import minimize
from pymoo.parallelization.ray import RayParallelization
from tally import tally


class Curve(ElementwiseProblem):
    def __init__(self, **options) -> None:
        super().__init__(n_var=5, n_obj=2, xl=0.0, xu=1.0, **options)

    def _evaluate(self, x, out, *args, **kwargs) -> None:
        g = 1 + 9 * np.mean(x[1:])
        out["F"] = [x[0], g * (1 - np.sqrt(x[0] / g))]


def run(**options) -> list:
    result = minimize(Curve(**options), NSGA2(pop_size=20), ("n_gen", 5), seed=1)
    return np.sort(result.F, axis=0).tolist()


def main() -> None:
    ray.init(num_cpus=2)
    found = run(elementwise_runner=RayParallelization())
    print(json.dumps({"found": found, "ran": tally(), "expected": run()}))


if __name__ == "__main__":
    main()
