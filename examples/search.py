"""Search for the settings of a small network with Optuna, on all CPUs: a study and an objective as Optuna has them.

    pip install 'skate[optuna]' numpy
    python examples/search.py --trials 40

Each trial trains a network of one hidden layer on points of two spirals, and reports its error after every tenth of the
training. Optuna's pruner ends a trial that is worse than the median of those before it at the same step.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import optuna

import skate
from skate.util.optuna import optimize

STAGES = 10


def spirals(points: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of two spirals, and to which of them each belongs (-1 or 1)."""
    rng = np.random.default_rng(seed)
    label = rng.choice([-1.0, 1.0], points)
    turn = rng.uniform(0.5, 2.5, points)
    angle = turn * np.pi + (label > 0) * np.pi
    place = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1)
    return place + 0.05 * rng.standard_normal(place.shape), label


def objective(trial: optuna.Trial) -> float:
    """Train with the settings of the trial; the share of points that are put on the wrong spiral."""
    width = trial.suggest_int("width", 4, 64, log=True)
    rate = trial.suggest_float("rate", 0.003, 1.0, log=True)
    momentum = trial.suggest_float("momentum", 0.0, 0.95)
    x, label = spirals(400, seed=1)
    unseen, truth = spirals(400, seed=2)
    rng = np.random.default_rng(3)
    weights = [rng.standard_normal((2, width)), rng.standard_normal(width), rng.standard_normal(width) / width**0.5]
    speeds = [np.zeros_like(each) for each in weights]
    wrong = 1.0
    for stage in range(STAGES):
        for _ in range(200):
            hidden = np.tanh(x @ weights[0] + weights[1])
            slope = (np.tanh(hidden @ weights[2]) - label) / len(x)
            back = np.outer(slope, weights[2]) * (1 - hidden**2)
            for weight, speed, gradient in zip(weights, speeds, (x.T @ back, back.sum(0), hidden.T @ slope)):
                speed *= momentum
                speed -= rate * gradient
                weight += speed
        wrong = float((np.sign(np.tanh(unseen @ weights[0] + weights[1]) @ weights[2]) != truth).mean())
        trial.report(wrong, stage)
        if trial.should_prune():
            raise optuna.TrialPruned
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--cpus", type=int, default=None)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    skate.init(num_cpus=options.cpus)
    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=2))
    began = time.perf_counter()
    optimize(study, objective, trials=options.trials)
    pruned = sum(trial.state == optuna.trial.TrialState.PRUNED for trial in study.trials)
    print(f"{len(study.trials)} trials, {pruned} of them pruned, in {time.perf_counter() - began:.1f} s")
    print(f"best: {study.best_value:.1%} wrong with {study.best_params}")


if __name__ == "__main__":
    main()
