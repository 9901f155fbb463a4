"""What Ray has in `ray.train.torch`: the same as `skate.train.torch`, under Ray's names.

model = prepare_model(Net())
loader = prepare_data_loader(DataLoader(dataset, batch_size=64, shuffle=True))
for epoch in range(10):
    if world_size > 1:
        loader.sampler.set_epoch(epoch)
    for x, y in loader: ...
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SequentialSampler

from skate.train import torch as workers
from skate.train.session import context
from skate.train.trainer import TorchConfig, TorchTrainer

__all__ = [
    "TorchConfig",
    "TorchTrainer",
    "enable_reproducibility",
    "get_device",
    "get_devices",
    "prepare_data_loader",
    "prepare_model",
]

#: What a loader of a part takes over from the loader of the whole.
_SETTINGS = (
    *("batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn", "generator"),
    *("prefetch_factor", "persistent_workers", "multiprocessing_context"),
)


def get_device() -> Any:
    """The device of this worker: its GPU, or the CPU."""
    context()
    return workers.device()


def get_devices() -> list[Any]:
    """The devices of this worker: its GPUs, or the CPU."""
    context()
    return workers.devices()


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
    """A loader of this worker's part of the data, with the settings of the given one.

    The samples are shuffled if those of the given loader are. auto_transfer: whether batches may be copied to a GPU
    while it computes, if they are in pinned memory.
    """
    here, given = context(), data_loader
    is_ours = isinstance(given.sampler, DistributedSampler) or isinstance(given.dataset, IterableDataset)
    if add_dist_sampler and here.world_size > 1 and not is_ours:
        settings = {name: getattr(given, name) for name in _SETTINGS}
        shuffle = not isinstance(given.sampler, SequentialSampler)
        sampler = DistributedSampler(given.dataset, here.world_size, here.rank, shuffle=shuffle)
        given = DataLoader(given.dataset, sampler=sampler, **settings)
    device = get_device()
    return _OnDevice(given, device, auto_transfer) if move_to_device and device.type != "cpu" else given


class _OnDevice:
    """A loader whose batches are on a device; otherwise that loader."""

    def __init__(self, loader: Any, device: Any, may_overlap: bool) -> None:
        self._loader, self._device, self._may_overlap = loader, device, may_overlap

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return (self._moved(batch) for batch in self._loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def _moved(self, batch: Any) -> Any:
        if isinstance(batch, Mapping):
            return {name: self._moved(value) for name, value in batch.items()}
        if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple takes one argument for each field
            return type(batch)(*map(self._moved, batch))
        if isinstance(batch, (list, tuple)):
            return type(batch)(map(self._moved, batch))
        return batch.to(self._device, non_blocking=self._may_overlap) if hasattr(batch, "to") else batch


def enable_reproducibility(seed: int = 0) -> None:
    """Seed the random generators of torch, numpy and Python, and have torch choose deterministic algorithms."""
    import random

    import numpy as np

    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
