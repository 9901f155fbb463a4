"""What Ray has in `ray.train.torch`: the same as `skate.train.torch`, under Ray's names.

model = prepare_model(Net())
loader = prepare_data_loader(DataLoader(dataset, batch_size=64, shuffle=True))
for epoch in range(10):
    if world_size > 1:
        loader.sampler.set_epoch(epoch)
    for x, y in loader: ...
"""

from __future__ import annotations

from typing import Any

from skate.train import torch as workers
from skate.train.given_loader import OnDevice, part_of
from skate.train.trainer import TorchConfig, TorchTrainer

__all__ = ["TorchConfig", "TorchTrainer", "get_device", "get_devices", "prepare_data_loader", "prepare_model"]

get_device, get_devices = workers.device, workers.devices


def prepare_model(
    model: Any, move_to_device: bool = True, parallel_strategy: str | None = "ddp", parallel_strategy_kwargs: Any = None
) -> Any:
    """Move a model to this worker's device; in DistributedDataParallel if there are several workers.

    parallel_strategy: "ddp", or None to wrap nothing. parallel_strategy_kwargs: options of DistributedDataParallel.
    """
    if move_to_device is not True or parallel_strategy not in ("ddp", None):
        raise ValueError(
            f"prepare_model(move_to_device={move_to_device!r}, parallel_strategy={parallel_strategy!r}): the first may "
            "be True, the second 'ddp' or None.\n  next: place or wrap the model with torch, without prepare_model()."
        )
    if parallel_strategy is None:
        return model.to(get_device())
    return workers.prepare(model, **(parallel_strategy_kwargs or {}))


def prepare_data_loader(
    data_loader: Any, add_dist_sampler: bool = True, move_to_device: bool = True, auto_transfer: bool = True
) -> Any:
    """A loader of this worker's part of the data, with the settings of the given one; its batches are on the device.

    auto_transfer: whether batches may be copied to a GPU while it computes, if they are in pinned memory.
    """
    device = get_device()
    loader = part_of(data_loader) if add_dist_sampler else data_loader
    return OnDevice(loader, device, auto_transfer) if move_to_device and device.type != "cpu" else loader
