"""Flower's simulation: federated averaging over four clients, beside the same rounds computed by hand."""

import json
import os
from typing import ClassVar

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"

import numpy as np
import ray
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

CLIENTS, ROUNDS = 4, 3


def step(weights: np.ndarray, client: int) -> np.ndarray:
    """One local step of a client towards its own target."""
    return weights + 0.5 * (np.full(3, float(client)) - weights)


def loss(weights: np.ndarray, client: int) -> float:
    return float(np.abs(weights - client).sum())


class Client(NumPyClient):
    def __init__(self, number: int) -> None:
        self.number = number

    def fit(self, parameters, config):
        where = {"client": self.number, "pid": os.getpid(), "actor": ray.get_runtime_context().get_actor_id() or ""}
        return [step(parameters[0], self.number)], 10 * (self.number + 1), where

    def evaluate(self, parameters, config):
        return loss(parameters[0], self.number), 10 * (self.number + 1), {}


def client_fn(context: Context):
    return Client(int(context.node_config["partition-id"])).to_client()


class Recorded(FedAvg):
    """Keeps what every round has come to, and where its clients ran."""

    weights: ClassVar[list] = []
    losses: ClassVar[list] = []
    fits: ClassVar[list] = []

    def aggregate_fit(self, server_round, results, failures):
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        Recorded.weights.append(parameters_to_ndarrays(parameters)[0].tolist())
        Recorded.fits.extend(dict(fit.metrics) for _, fit in results)
        return parameters, metrics

    def aggregate_evaluate(self, server_round, results, failures):
        loss, metrics = super().aggregate_evaluate(server_round, results, failures)
        Recorded.losses.append(loss)
        return loss, metrics


def server_fn(context: Context):
    strategy = Recorded(
        fraction_fit=1.0,
        fraction_evaluate=1.0,
        min_fit_clients=CLIENTS,
        min_available_clients=CLIENTS,
        initial_parameters=ndarrays_to_parameters([np.zeros(3)]),
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))


def by_hand() -> dict:
    weights, seen, losses = np.zeros(3), [], []
    sizes = np.array([10 * (client + 1) for client in range(CLIENTS)], dtype=float)
    for _ in range(ROUNDS):
        weights = np.average([step(weights, client) for client in range(CLIENTS)], axis=0, weights=sizes)
        seen.append(weights.tolist())
        losses.append(float(np.average([loss(weights, client) for client in range(CLIENTS)], weights=sizes)))
    return {"weights": seen, "losses": losses}


def main() -> None:
    run_simulation(
        server_app=ServerApp(server_fn=server_fn),
        client_app=ClientApp(client_fn=client_fn),
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}},
    )
    found = {"weights": Recorded.weights, "losses": Recorded.losses}
    print(json.dumps({"found": found, "expected": by_hand(), "fits": Recorded.fits, "pid": os.getpid()}))


if __name__ == "__main__":
    main()
