"""scikit-learn on joblib's backend "ray": a search over parameters, beside the same search in one process."""

import json
import os

import joblib
import ray
from ray.util.joblib import register_ray
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.svm import SVC
from tally import tally


def process(estimator, images, digits) -> int:
    """A "score" that tells where it was computed."""
    return os.getpid()


def main() -> None:
    ray.init(num_cpus=2)
    register_ray()
    images, digits = load_digits(return_X_y=True)
    images, digits = images[:300], digits[:300]

    def searched() -> tuple:
        search = GridSearchCV(
            SVC(),
            {"C": [0.1, 1, 10], "gamma": [0.001, 0.01]},
            cv=3,
            scoring={"accuracy": "accuracy", "process": process},
            refit="accuracy",
        )
        search.fit(images, digits)
        forest = RandomForestClassifier(n_estimators=10, random_state=1)
        results = search.cv_results_
        pids = [int(pid) for split in range(3) for pid in results[f"split{split}_test_process"]]
        return {
            "best": search.best_params_,
            "scores": results["mean_test_accuracy"].tolist(),
            "forest": cross_val_score(forest, images, digits, cv=3).tolist(),
        }, pids

    with joblib.parallel_backend("ray", n_jobs=2):
        found, pids = searched()
    ran = tally()
    expected, own = searched()
    print(json.dumps({"found": found, "expected": expected, "pids": pids, "own": own, "ran": ran}))


if __name__ == "__main__":
    main()
