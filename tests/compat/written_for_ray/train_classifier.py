"""Ray Train: a classifier on two workers, with prepared model and loaders, and a checkpoint of rank 0 each epoch."""

import json
import os
import tempfile

import ray.train
import torch
from ray.train import Checkpoint, CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def get_dataloaders(batch_size: int) -> tuple:
    """Points in two classes: those to train on, and those to test with."""
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(1024, 8, generator=generator)
    labels = (points[:, :4].sum(1) > points[:, 4:].sum(1)).long()
    train_data, test_data = TensorDataset(points[:768], labels[:768]), TensorDataset(points[768:], labels[768:])
    return DataLoader(train_data, batch_size=batch_size, shuffle=True), DataLoader(test_data, batch_size=batch_size)


def train_func_per_worker(config: dict) -> None:
    torch.manual_seed(1)
    context = ray.train.get_context()
    train_dataloader, test_dataloader = get_dataloaders(config["batch_size_per_worker"])
    train_dataloader = ray.train.torch.prepare_data_loader(train_dataloader)
    test_dataloader = ray.train.torch.prepare_data_loader(test_dataloader)
    model = ray.train.torch.prepare_model(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2)))
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=0.9)

    for epoch in range(config["epochs"]):
        if context.get_world_size() > 1:
            train_dataloader.sampler.set_epoch(epoch)
        model.train()
        for x, y in train_dataloader:
            loss = loss_fn(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        model.eval()
        test_loss, correct, seen = 0.0, 0, 0
        with torch.no_grad():
            for x, y in test_dataloader:
                scores = model(x)
                test_loss += loss_fn(scores, y).item()
                correct += (scores.argmax(1) == y).sum().item()
                seen += len(y)
        metrics = {
            "loss": test_loss / len(test_dataloader),
            "accuracy": correct / seen,
            "seen": seen,
            "step": epoch,
            "rank": context.get_world_rank(),
        }
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if context.get_world_rank() == 0:
                torch.save(model.module.state_dict(), os.path.join(folder, "model.pt"))
                checkpoint = Checkpoint.from_directory(folder)
            ray.train.report(metrics, checkpoint=checkpoint)


def main() -> None:
    with tempfile.TemporaryDirectory() as storage:
        trainer = TorchTrainer(
            train_loop_per_worker=train_func_per_worker,
            train_loop_config={"lr": 0.1, "epochs": 4, "batch_size_per_worker": 32},
            scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
            run_config=RunConfig(
                name="classifier",
                storage_path=storage,
                checkpoint_config=CheckpointConfig(
                    num_to_keep=2, checkpoint_score_attribute="accuracy", checkpoint_score_order="max"
                ),
            ),
        )
        result = trainer.fit()
        with result.checkpoint.as_directory() as folder:
            weights = torch.load(os.path.join(folder, "model.pt"), weights_only=True)
        print(
            json.dumps(
                {
                    "metrics": result.metrics,
                    "weights": {name: list(value.shape) for name, value in weights.items()},
                    "sum": round(sum(value.double().sum().item() for value in weights.values()), 3),
                    "kept": len(result.best_checkpoints),
                    "path": os.path.relpath(result.path, storage),
                    "error": result.error,
                    "frame": list(result.metrics_dataframe.columns),
                    "best": result.get_best_checkpoint("accuracy", "max") is not None,
                }
            )
        )


if __name__ == "__main__":
    main()
