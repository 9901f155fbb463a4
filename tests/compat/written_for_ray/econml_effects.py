"""EconML with `use_ray`: the folds of its estimators are fitted in tasks, beside the same in one process."""

import json

import numpy as np
import ray
from econml.dml import LinearDML
from econml.dr import LinearDRLearner
from sklearn.linear_model import LinearRegression, LogisticRegression
from tally import tally


def run(**options) -> list:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(600, 3)), rng.normal(size=(600, 2))
    treated = (rng.random(600) < 1 / (1 + np.exp(-x[:, 0]))).astype(int)
    outcome = (1 + x[:, 1]) * treated + w[:, 0] + 0.1 * rng.normal(size=600)
    common = {"random_state": 1, "cv": 3, **options}
    orthogonal = LinearDML(
        model_y=LinearRegression(), model_t=LogisticRegression(), discrete_treatment=True, **common
    ).fit(outcome, treated, X=x, W=w)
    robust = LinearDRLearner(model_propensity=LogisticRegression(), model_regression=LinearRegression(), **common).fit(
        outcome, treated, X=x, W=w
    )
    return [orthogonal.effect(x[:5]).tolist(), robust.effect(x[:5]).tolist()]


def main() -> None:
    ray.init(num_cpus=2)
    found = run(use_ray=True, ray_remote_func_options={"num_cpus": 1})
    print(json.dumps({"found": found, "ran": tally(), "expected": run()}))


if __name__ == "__main__":
    main()
