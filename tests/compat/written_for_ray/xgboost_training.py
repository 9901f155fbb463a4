"""xgboost_ray: training with two actors, beside xgboost in one process."""

import json

import numpy as np
import ray
import xgboost
from sklearn.datasets import load_breast_cancer
from xgboost_ray import RayDMatrix, RayParams, predict, train

PARAMETERS = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 3, "eval_metric": "error", "seed": 1}


def main() -> None:
    ray.init(num_cpus=2)
    data, labels = load_breast_cancer(return_X_y=True)
    result: dict = {}
    model = train(
        PARAMETERS,
        RayDMatrix(data, labels),
        num_boost_round=10,
        evals=[(RayDMatrix(data, labels), "train")],
        evals_result=result,
        ray_params=RayParams(num_actors=2, cpus_per_actor=1),
        verbose_eval=False,
    )
    guesses = predict(model, RayDMatrix(data), ray_params=RayParams(num_actors=2, cpus_per_actor=1))
    alone = xgboost.train(PARAMETERS, xgboost.DMatrix(data, labels), num_boost_round=10)
    expected = alone.predict(xgboost.DMatrix(data))
    print(
        json.dumps(
            {
                "error": result["train"]["error"][-1],
                "agreement": float(np.mean((guesses > 0.5) == (expected > 0.5))),
                "accuracy": [float(np.mean((g > 0.5) == labels)) for g in (guesses, expected)],
            }
        )
    )


if __name__ == "__main__":
    main()
