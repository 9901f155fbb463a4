"""A loader that a program has made itself: this worker's part of it, and its batches on this worker's device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, SequentialSampler

from skate.train.session import context

#: What a loader of a part takes over from the loader of the whole.
_SETTINGS = (
    *("batch_size", "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn", "generator"),
    *("prefetch_factor", "persistent_workers", "multiprocessing_context"),
)


def part_of(given: Any) -> Any:
    """A DataLoader of this worker's part of the data, with the settings of the given one.

    The samples are shuffled if those of the given loader are. A loader with a DistributedSampler, or of an
    IterableDataset, has a part already, and is returned as it is.
    """
    here = context()
    is_part = isinstance(given.sampler, DistributedSampler) or isinstance(given.dataset, IterableDataset)
    if here.world_size == 1 or is_part:
        return given
    settings = {name: getattr(given, name) for name in _SETTINGS}
    shuffle = not isinstance(given.sampler, SequentialSampler)
    sampler = DistributedSampler(given.dataset, here.world_size, here.rank, shuffle=shuffle)
    return DataLoader(given.dataset, sampler=sampler, **settings)


class OnDevice:
    """A loader whose batches are on a device; otherwise that loader.

    may_overlap: whether batches in pinned memory may be copied to a GPU while it computes.
    """

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
