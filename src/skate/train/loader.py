"""A dataset shared out over the workers: every sample is with one of them, in a new order each epoch.

Invariant: what a worker gets follows from (seed, epoch, rank, number of workers) and from how many samples all workers
           together have had in this epoch. So a loader that was restored within an epoch goes on with the samples
           that are left, also if there are more or fewer workers now.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from skate.train.session import context


class Loader:
    """This worker's part of a dataset: `for batch in loader(epoch)`.

    `epoch` and `batch` are where it stands: the number of the epoch, and how many of its batches were given. In a
    checkpoint it keeps that place:

        loader = train.torch.loader(dataset, batch_size=64)
        train.restore(model=model, loader=loader)
        for epoch in range(loader.epoch, 10):
            for batch in loader(epoch):
                ...
                if loader.batch % 100 == 0:
                    train.report({"loss": loss}, checkpoint={"model": model, "loader": loader})
    """

    def __init__(self, dataset: Any, batch_size: int, seed: int, shuffle: bool, options: dict[str, Any]) -> None:
        self._seed = seed
        self.epoch, self.batch = 0, 0
        #: How many samples of this epoch all workers together have had.
        self._taken = 0
        self._was_restored = False
        #: The seeds of loading processes come from here, and not from the generator that the model draws from.
        self._generator = torch.Generator()
        self._batches: _Batches | None = None
        if isinstance(dataset, IterableDataset):
            self._loader = DataLoader(dataset, batch_size, generator=self._generator, **options)
            return
        here = context()
        drop_last = options.pop("drop_last", False)
        self._batches = _Batches(len(dataset), batch_size, here.rank, here.world_size, seed, shuffle, drop_last)
        if options.get("num_workers", 0) > 0:
            dataset = _SeededByBatch(dataset)
        self._loader = DataLoader(dataset, batch_sampler=self._batches, generator=self._generator, **options)

    def __call__(self, epoch: int) -> Iterator[Any]:
        """This worker's batches of an epoch; the ones that are left, in the epoch in which it was restored."""
        if not (self._was_restored and epoch == self.epoch):
            self.epoch, self.batch, self._taken = epoch, 0, 0
        self._was_restored = False
        skip = 0
        if self._batches is None:
            skip = self.batch  # only the dataset itself knows what follows a batch
        else:
            self._batches.begin(epoch, self._taken)
        self._generator.manual_seed(self._seed * 1_000_003 + epoch)
        for number, batch in enumerate(self._loader):
            if number < skip:
                continue
            self.batch += 1
            if self._batches is not None:
                self._taken += self._batches.of_all_workers
            yield batch
        self.epoch, self.batch, self._taken = epoch + 1, 0, 0

    def __len__(self) -> int:
        """How many batches this worker has in an epoch."""
        return len(self._loader)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "batch": self.batch, "taken": self._taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.batch, self._taken = state["epoch"], state["batch"], state["taken"]
        self._was_restored = True


def loader(dataset: Any, batch_size: int = 1, *, seed: int = 0, shuffle: bool = True, **options: Any) -> Loader:
    """Share a dataset out over the workers. `options` are those of torch's DataLoader.

    An IterableDataset is read as it is, by every worker: give it `train.shard(…)` of what it reads.

    >>> loader = train.torch.loader(dataset, batch_size=64, seed=1, num_workers=2)
    """
    return Loader(dataset, batch_size, seed, shuffle, options)


class _Batches:
    """The indices of one worker's samples, batch by batch: the batch sampler of a DataLoader."""

    def __init__(
        self, length: int, batch_size: int, rank: int, workers: int, seed: int, shuffle: bool, drop_last: bool
    ) -> None:
        self._length, self._size, self._rank, self._workers = length, batch_size, rank, workers
        self._seed, self._shuffle, self._drop_last = seed, shuffle, drop_last
        #: How many samples all workers together get in a step.
        self.of_all_workers = batch_size * workers
        self.begin(0, 0)

    def begin(self, epoch: int, taken: int) -> None:
        """The next batches are those of this epoch, without the samples that were taken."""
        self._epoch, self._taken = epoch, taken

    def __iter__(self) -> Iterator[list[int]]:
        indices = list(range(self._length))
        if self._shuffle:
            generator = torch.Generator().manual_seed(self._seed + self._epoch)
            indices = torch.randperm(self._length, generator=generator).tolist()
        left = indices[self._taken :]
        over = len(left) % self._workers
        if over and self._drop_last:
            del left[-over:]
        elif over:
            # Each worker needs as many steps as the others, so some samples come twice, as in torch's sampler.
            missing = self._workers - over
            left += (indices * -(-missing // len(indices)))[:missing]
        mine = left[self._rank :: self._workers]
        for begin in range(0, len(mine), self._size):
            batch = mine[begin : begin + self._size]
            if len(batch) == self._size or not self._drop_last:
                place = self._taken + begin * self._workers
                yield _Batch(batch, f"{self._seed} {self._epoch} {place} {self._rank}")

    def __len__(self) -> int:
        mine = self._length // self._workers if self._drop_last else -(-self._length // self._workers)
        return mine // self._size if self._drop_last else -(-mine // self._size)


class _Batch(list[int]):
    """The indices of a batch, and what the random numbers of its loading follow from."""

    def __init__(self, indices: list[int], seed: str) -> None:
        super().__init__(indices)
        self.seed = seed


class _SeededByBatch:
    """A dataset in loading processes: their random numbers follow from the batch that is loaded.

    torch seeds these processes when an epoch begins. A run that goes on within an epoch would draw other numbers.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index]

    def __getitems__(self, batch: _Batch) -> Any:
        number = random.Random(batch.seed).getrandbits(62)
        random.seed(number)
        torch.manual_seed(number)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(number % 2**32)
        if hasattr(self._dataset, "__getitems__"):
            return self._dataset.__getitems__(batch)
        return [self._dataset[index] for index in batch]
