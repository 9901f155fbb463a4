"""A parameter server: several processes train one network, in step and out of step.

One actor, the server, holds the weights; others, the workers, each hold a part of the data and compute gradients (Li et
al., 2014, "Scaling Distributed Machine Learning with the Parameter Server"). The same classes also do the same work as
plain objects in one process, on one core, for comparison.

- In step, all workers use the same weights, and the server applies their gradients together: the result is that of one
  process. The driver makes all calls ahead of time and passes on references; weights and gradients themselves go from
  actor to actor through shared memory.
- Out of step, the workers call the server: each trades its gradient for newer weights and waits for no other worker.
"""

import argparse
import time
from typing import Any

import numpy as np

import skate

INPUTS, HIDDEN, CLASSES, POINTS, BATCH, LEARNING_RATE, SEED = 256, 256, 10, 16_384, 2_048, 2.0, 1
Weights = list[np.ndarray]  # of the two layers


def make_points(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random points and their classes. A class is 32 clouds of points, so the network needs its hidden layer."""
    centres = np.random.default_rng(SEED).standard_normal((32 * CLASSES, INPUTS), dtype=np.float32)
    cloud = rng.integers(len(centres), size=count)
    return centres[cloud] + rng.standard_normal((count, INPUTS), dtype=np.float32), cloud % CLASSES


def predict(weights: Weights, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The hidden layer for each point, and the probability of each class."""
    hidden = np.tanh(x @ weights[0])
    scores = hidden @ weights[1]
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return hidden, odds / odds.sum(axis=1, keepdims=True)


class Server:
    def __init__(self, workers: int) -> None:
        rng, self.step = np.random.default_rng(SEED), LEARNING_RATE / workers
        self.weights = [rng.standard_normal(s, np.float32) / s[0] ** 0.5 for s in ((INPUTS, HIDDEN), (HIDDEN, CLASSES))]

    def update(self, *gradients: Weights) -> Weights:
        for gradient in gradients:
            self.weights = [w - self.step * g for w, g in zip(self.weights, gradient, strict=True)]
        return self.weights


class Worker:
    def __init__(self, number: int) -> None:
        self.rng, self.weights = np.random.default_rng([SEED, number]), Weights()
        self.x, self.y = make_points(self.rng, POINTS)

    def gradient(self, weights: Weights) -> Weights:
        """The slope of the loss on a random batch of this worker's data."""
        chosen = self.rng.integers(POINTS, size=BATCH)
        x, wanted = self.x[chosen], np.eye(CLASSES, dtype=np.float32)[self.y[chosen]]
        hidden, odds = predict(weights, x)
        error = (odds - wanted) / BATCH
        return [x.T @ (error @ weights[1].T * (1 - hidden**2)), hidden.T @ error]

    def trade(self, server: skate.Actor[Server]) -> None:
        """Trade a gradient, at the newest weights that this worker has seen, for newer weights."""
        weights = self.weights or skate.get(server.update.remote())
        self.weights = skate.get(server.update.remote(self.gradient(weights)))


@skate.remote
def alone(count: int, rounds: int) -> tuple[Weights, int, float]:
    """Train without actors: the weights in the end, the number of updates, and the seconds it took."""
    server, workers = Server(count), [Worker(number) for number in range(count)]
    started = time.perf_counter()
    for _ in range(rounds):
        server.update(*[worker.gradient(server.weights) for worker in workers])
    return server.weights, rounds, time.perf_counter() - started


def in_step(server: skate.Actor[Server], workers: list[skate.Actor[Worker]], rounds: int) -> list[Any]:
    weights = [server.update.remote()]
    for _ in range(rounds):
        weights.append(server.update.remote(*[worker.gradient.remote(weights[-1]) for worker in workers]))
    return weights[1:]


def out_of_step(server: skate.Actor[Server], workers: list[skate.Actor[Worker]], rounds: int) -> list[Any]:
    return [worker.trade.remote(server) for _ in range(rounds) for worker in workers]


def with_actors(label: str, train: Any, count: int, rounds: int) -> tuple[Weights, int, float]:
    """Train one way or the other: the weights in the end, the number of updates, and the seconds it took."""
    server, workers = skate.remote(Server).remote(count), [skate.remote(Worker).remote(i) for i in range(count)]
    skate.get([actor.__ray_ready__.remote() for actor in (server, *workers)])
    started = time.perf_counter()
    updates = skate.get(skate.progress(train(server, workers, rounds), description=f"{label:<11}"))
    return skate.get(server.update.remote()), len(updates), time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small network with a parameter server.")
    parser.add_argument("--cpus", type=int, help="how many CPUs to use, with a worker on each (default: all)")
    parser.add_argument("--rounds", type=int, default=150, help="gradients from each worker (default: %(default)s)")
    options = parser.parse_args()
    with skate.init(num_cpus=options.cpus):
        setting = int(skate.cluster_resources()["CPU"]), options.rounds
        runs = {"one process": skate.get(alone.remote(*setting))}
        runs["in step"] = with_actors("in step", in_step, *setting)
        runs["out of step"] = with_actors("out of step", out_of_step, *setting)
        x, y = make_points(np.random.default_rng(SEED), 4_096)  # which no worker was trained on
        for label, (weights, updates, wall_s) in runs.items():
            odds, speed_up = predict(weights, x)[1], runs["one process"][2] / wall_s
            loss, accuracy = -np.log(odds[np.arange(len(y)), y]).mean(), (odds.argmax(axis=1) == y).mean()
            print(f"{label:<11}  loss {loss:.3f}, accuracy {accuracy:.1%}, {updates / wall_s:.0f} updates/s", end=", ")
            print(f"{wall_s:.2f} s, {speed_up:.2f} × as fast as one process")


if __name__ == "__main__":
    main()
