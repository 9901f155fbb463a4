"""xgboost_ray: training with two actors, beside xgboost in one process."""

import json
import os

import numpy as np
import ray
import xgboost
from sklearn.datasets import load_breast_cancer
from xgboost_ray import RayDMatrix, RayParams, predict, train
from xgboost_ray.session import put_queue

PARAMETERS = {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 3, "eval_metric": "logloss"}
ACTORS = RayParams(num_actors=2, cpus_per_actor=1)


class Told(xgboost.callback.TrainingCallback):
    """Tells the driver after each round where it was computed."""

    def after_iteration(self, model, epoch, evals_log) -> bool:
        put_queue(os.getpid())
        return False


def coarse(data: np.ndarray) -> np.ndarray:
    """Each column in 32 steps.

    Each actor has half of the rows. Only while a column has few values do they agree on the same splits as one process.
    """
    low, high = data.min(axis=0), data.max(axis=0)
    return np.round(31 * (data - low) / (high - low))


def main() -> None:
    ray.init(num_cpus=2)
    data, labels = load_breast_cancer(return_X_y=True)
    data = coarse(data)
    result: dict = {}
    told: dict = {}
    model = train(
        PARAMETERS,
        RayDMatrix(data, labels),
        num_boost_round=10,
        evals=[(RayDMatrix(data, labels), "train")],
        evals_result=result,
        additional_results=told,
        callbacks=[Told()],
        ray_params=ACTORS,
        verbose_eval=False,
    )
    guesses = predict(model, RayDMatrix(data), ray_params=ACTORS)
    alone_result: dict = {}
    matrix = xgboost.DMatrix(data, labels)
    alone = xgboost.train(
        PARAMETERS, matrix, num_boost_round=10, evals=[(matrix, "train")], evals_result=alone_result, verbose_eval=False
    )
    half = xgboost.train(PARAMETERS, xgboost.DMatrix(data[::2], labels[::2]), num_boost_round=10)
    print(
        json.dumps(
            {
                "found": {"guesses": guesses.tolist(), "losses": result["train"]["logloss"]},
                "expected": {"guesses": alone.predict(matrix).tolist(), "losses": alone_result["train"]["logloss"]},
                "half": half.predict(matrix).tolist(),
                "rows": told["total_n"],
                "pids": told["callback_returns"],
                "pid": os.getpid(),
            }
        )
    )


if __name__ == "__main__":
    main()
