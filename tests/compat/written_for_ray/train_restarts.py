"""Ray Train: a worker dies on the way, and the others go on with it from the last checkpoint; then one fails too often.

Each worker writes its own file into the checkpoint.
"""

import json
import os
import tempfile
from pathlib import Path

import ray
import torch
import torch.distributed as dist
from ray import train
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, get_device


def train_func(config: dict) -> None:
    rank = train.get_context().get_world_rank()
    weight = torch.zeros(1, device=get_device())
    start = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            state = json.loads((Path(folder) / f"state-{rank}.json").read_text())
        start = state["epoch"] + 1
        weight += state["weight"]
    for epoch in range(start, config["epochs"]):
        if epoch == config["dies_at"] and rank == 1 and start == 0:
            os._exit(1)
        gradient = torch.full((1,), float(rank + 1))
        dist.all_reduce(gradient)
        weight += gradient
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"state-{rank}.json").write_text(json.dumps({"epoch": epoch, "weight": weight.item()}))
            train.report({"epoch": epoch, "weight": weight.item()}, Checkpoint.from_directory(folder))


def fails() -> None:
    assert train.get_checkpoint() is None
    if train.get_context().get_world_rank() == 1:
        raise ValueError("the third line is bad")
    dist.barrier()


def main() -> None:
    ray.init(num_cpus=4)
    with tempfile.TemporaryDirectory() as storage:
        result = TorchTrainer(
            train_func,
            train_loop_config={"epochs": 5, "dies_at": 3},
            scaling_config=ScalingConfig(num_workers=2),
            run_config=RunConfig(name="restarts", storage_path=storage, failure_config=FailureConfig(max_failures=-1)),
        ).fit()
        files = sorted(name for name in os.listdir(result.checkpoint.to_directory()) if name.startswith("state"))
        try:
            TorchTrainer(
                fails, scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=storage)
            ).fit()
        except train.TrainingFailedError as error:
            told = "the third line is bad" in str(error)
            ranks = [rank for rank, cause in error.worker_failures.items() if "third line" in str(cause)]
        print(json.dumps({"metrics": result.metrics, "files": files, "told": told, "ranks": ranks}))


if __name__ == "__main__":
    main()
