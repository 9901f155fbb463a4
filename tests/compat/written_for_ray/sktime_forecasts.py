"""sktime's backend "ray": forecasters are evaluated and chosen in tasks, beside the same in one process."""

import json
import warnings

import ray
from sktime.datasets import load_airline
from sktime.forecasting.model_evaluation import evaluate
from sktime.forecasting.model_selection import ForecastingGridSearchCV
from sktime.forecasting.naive import NaiveForecaster
from sktime.forecasting.trend import PolynomialTrendForecaster
from sktime.split import ExpandingWindowSplitter
from tally import tally

warnings.simplefilter("ignore", FutureWarning)


def run(**options) -> dict:
    passengers = load_airline()
    windows = ExpandingWindowSplitter(initial_window=48, step_length=12, fh=[1, 2, 3])
    evaluated = evaluate(PolynomialTrendForecaster(degree=2), windows, passengers, **options)
    choices = {"strategy": ["last", "mean"], "sp": [1, 12]}
    search = ForecastingGridSearchCV(NaiveForecaster(), cv=windows, param_grid=choices, **options)
    search.fit(passengers)
    return {
        "errors": evaluated["test_MeanAbsolutePercentageError"].tolist(),
        "best": search.best_params_,
        "scores": search.cv_results_["mean_test_MeanAbsolutePercentageError"].tolist(),
    }


def main() -> None:
    ray.init(num_cpus=2)
    found = run(backend="ray", backend_params={"shutdown_ray": False})
    ran = tally()
    ray.shutdown()
    own = run(backend="ray", backend_params={"ray_remote_args": {"num_cpus": 2}})  # starts and ends Ray itself
    print(json.dumps({"found": found, "own": own, "expected": run(), "ran": ran, "runs": ray.is_initialized()}))


if __name__ == "__main__":
    main()
