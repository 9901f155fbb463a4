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


class Client(NumPyClient):
    def __init__(self, number: int) -> None:
        self.number = number

    def fit(self, parameters, config):
        return [step(parameters[0], self.number)], 10 * (self.number + 1), {}

    def evaluate(self, parameters, config):
        return float(np.abs(parameters[0]).sum()), 10, {}


def client_fn(context: Context):
    return Client(int(context.node_config["partition-id"])).to_client()


class Recorded(FedAvg):
    last: ClassVar[list] = []

    def aggregate_fit(self, *args, **kwargs):
        parameters, metrics = super().aggregate_fit(*args, **kwargs)
        Recorded.last = parameters_to_ndarrays(parameters)[0].tolist()
        return parameters, metrics


def server_fn(context: Context):
    strategy = Recorded(
        fraction_fit=1.0,
        fraction_evaluate=1.0,
        min_fit_clients=CLIENTS,
        min_available_clients=CLIENTS,
        initial_parameters=ndarrays_to_parameters([np.zeros(3)]),
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=ROUNDS))


def by_hand() -> list:
    weights = np.zeros(3)
    sizes = np.array([10 * (client + 1) for client in range(CLIENTS)], dtype=float)
    for _ in range(ROUNDS):
        weights = np.average([step(weights, client) for client in range(CLIENTS)], axis=0, weights=sizes)
    return weights.tolist()


def main() -> None:
    run_simulation(
        server_app=ServerApp(server_fn=server_fn),
        client_app=ClientApp(client_fn=client_fn),
        num_supernodes=CLIENTS,
        backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}},
    )
    print(json.dumps({"found": Recorded.last, "expected": by_hand(), "ray": ray.__version__}))


if __name__ == "__main__":
    main()
