"""scikit-learn on joblib's backend "ray": a search over parameters, beside the same search in one process."""

import json

import joblib
import ray
from ray.util.joblib import register_ray
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.svm import SVC


def main() -> None:
    ray.init(num_cpus=2)
    register_ray()
    images, digits = load_digits(return_X_y=True)
    images, digits = images[:300], digits[:300]

    def searched() -> dict:
        search = GridSearchCV(SVC(), {"C": [0.1, 1, 10], "gamma": [0.001, 0.01]}, cv=3)
        search.fit(images, digits)
        forest = RandomForestClassifier(n_estimators=10, random_state=1)
        return {
            "best": search.best_params_,
            "scores": search.cv_results_["mean_test_score"].tolist(),
            "forest": cross_val_score(forest, images, digits, cv=3).tolist(),
        }

    with joblib.parallel_backend("ray", n_jobs=2):
        found = searched()
    print(json.dumps({"found": found, "expected": searched()}))


if __name__ == "__main__":
    main()
