"""torch inside a worker: the process group, the model, the data.

`train.torch.prepare(model)` joins the process group unless the program has joined it. With several workers it also
wraps the model in DistributedDataParallel.
Programs that join by themselves (Lightning, Accelerate, Hugging Face's Trainer) find torchrun's environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from skate.train.session import context


def backend_for(gpus: int, nccl_available: bool) -> str:
    """The backend of a process group whose workers have `gpus` GPUs each."""
    return "nccl" if gpus and nccl_available else "gloo"


def device() -> Any:
    """The device of this worker: its GPU, or the CPU."""
    return torch.device("cuda", int(os.environ["LOCAL_RANK"])) if torch.cuda.is_available() else torch.device("cpu")


def join() -> None:
    """Join the process group of the workers, unless that was done."""
    here = context()
    if not torch.distributed.is_initialized():
        backend = backend_for(torch.cuda.device_count(), torch.distributed.is_nccl_available())
        torch.distributed.init_process_group(backend, rank=here.rank, world_size=here.world_size)


def prepare(model: Any, hook: Callable[[Any], None] | None = None, **options: Any) -> Any:
    """Move a model to this worker's device; in DistributedDataParallel if there are several workers.

    hook: is called with the wrapped model, to register a communication hook. options: of DistributedDataParallel.
    """
    here = context()
    if torch.cuda.is_available():
        torch.cuda.set_device(device())
        model = model.to(device())
    if here.world_size == 1 or not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    join()
    wrapped = torch.nn.parallel.DistributedDataParallel(
        model, device_ids=[device()] if torch.cuda.is_available() else None, **options
    )
    if hook is not None:
        hook(wrapped)
    return wrapped


class Loader:
    """This worker's part of a dataset, in a new order each epoch: `for batch in loader(epoch)`.

    Which samples a worker gets follows from (seed, epoch, rank, number of workers) alone. In a checkpoint it keeps its
    place within an epoch.
    """

    def __init__(self, dataset: Any, batch_size: int, seed: int, shuffle: bool, options: dict[str, Any]) -> None:
        here = context()
        self._seed, self._epoch, self._batch = seed, 0, 0
        self._generator = torch.Generator()
        self._sampler: Any = None
        if not isinstance(dataset, IterableDataset):
            self._sampler = DistributedSampler(
                dataset,
                here.world_size,
                here.rank,
                shuffle=shuffle,
                seed=seed,
                drop_last=options.get("drop_last", False),
            )
        self._loader = DataLoader(dataset, batch_size, sampler=self._sampler, generator=self._generator, **options)

    def __call__(self, epoch: int) -> Iterator[Any]:
        skip = self._batch if epoch == self._epoch else 0
        self._epoch = epoch
        if self._sampler is not None:
            self._sampler.set_epoch(epoch)
        # The seeds of loading processes come from here, and not from the generator that the model draws from.
        self._generator.manual_seed(self._seed * 1_000_003 + epoch)
        for number, batch in enumerate(self._loader):
            if number < skip:
                continue
            self._batch = number + 1
            yield batch
        self._epoch, self._batch = epoch + 1, 0

    def __len__(self) -> int:
        return len(self._loader)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "batch": self._batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._epoch, self._batch = state["epoch"], state["batch"]


def loader(dataset: Any, batch_size: int = 1, *, seed: int = 0, shuffle: bool = True, **options: Any) -> Loader:
    """Share a dataset out over the workers. `options` are those of torch's DataLoader."""
    return Loader(dataset, batch_size, seed, shuffle, options)
