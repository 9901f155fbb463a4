"""Data that tasks make while workers train on it: `train.stream`; and a share of anything: `train.shard`.

    produce(part) in tasks ──► Source, an actor ──► the worker of each rank
                     ▲ one waits when it is MADE_AHEAD blocks ahead of the Source, and the Source
                     │ when it holds `ahead` blocks for each worker
    only references go through the Source; a block itself goes to its worker through shared memory

Idea: the order of the blocks follows from the seed and the epoch alone, and so does who gets which (shares.py). So a
      training that goes on from a checkpoint sees the same blocks as one that was not interrupted.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import skate
from skate.train import session
from skate.train.session import context
from skate.train.shares import Shares

T = TypeVar("T")

#: How many blocks a producing task may be ahead of the Source: one that is on its way, and one that is being made.
MADE_AHEAD = 2


def shard(items: Iterable[T]) -> Iterator[T]:
    """This worker's share of any iterable that every worker goes through: one of each `world_size` items.

    All workers get the same number of items. A remainder that is not enough for all is left out.

    >>> for name in train.shard(sorted(folder.glob("*.npz"))): ...
    """
    here = context()
    group: list[T] = []
    for item in items:
        group.append(item)
        if len(group) == here.world_size:
            yield group[here.rank]
            group.clear()


def stream(
    produce: Callable[[Any], Iterable[Any]],
    parts: Sequence[Any],
    *,
    tasks: int = 2,
    ahead: int = 2,
    seed: int = 0,
    shuffle: bool = True,
    **options: Any,
) -> Stream:
    """A source of data for `train.run`: tasks make blocks, and every worker takes its share of them.

    >>> def produce(file):                       # runs in a task, somewhere in the cluster
    ...     for table in read(file):
    ...         yield table["x"], table["y"]
    >>> data = train.stream(produce, files, tasks=4)
    >>> def fit(config):
    ...     for epoch in range(10):
    ...         for x, y in config["data"](epoch): ...
    >>> train.run(fit, {"data": data}, workers=2)

    produce: is called with a part and yields blocks. It must yield the same ones each time. parts: names of files,
    numbers, anything. tasks: how many parts are read at a time; their blocks take turns. ahead: how many blocks may
    wait for each worker. The tasks wait while the slowest worker has that many. seed, shuffle: the order of the parts
    of an epoch.
    options: of the tasks, as for `@skate.remote`. A task holds no CPU unless `num_cpus=` is given, because the workers
    may hold all of them.
    """
    for name, value in (("tasks", tasks), ("ahead", ahead)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"train.stream({name}={value!r}): it may be a whole number from 1 on.")
    if not callable(produce):
        raise TypeError(f"train.stream(produce={produce!r}): it takes a function, which is called with each part.")
    for name in ("num_returns", "_generator_backpressure_num_objects"):
        if name in options:
            raise ValueError(f"train.stream({name}=…): a stream sets this itself; ahead= says how far tasks may go.")
    if session.is_inside():
        raise RuntimeError(
            "train.stream() was called inside a training function.\n"
            "  why:  all workers share one stream, and this one would belong to one worker alone.\n"
            "  next: make it before train.run(), and pass it on: train.run(fit, {'data': stream})."
        )
    settings = {"num_cpus": 0, **options, "num_returns": "streaming", "_generator_backpressure_num_objects": MADE_AHEAD}
    skate.remote(**settings)(produce)  # raises what cannot be meant, here and not in the actor
    made = skate.remote(num_cpus=0, max_restarts=-1)(Source)
    return Stream(made.remote(produce, list(parts), tasks, ahead, seed if shuffle else None, settings))


class Stream:
    """This worker's share of the blocks: `for block in stream(epoch)`. Made by `train.stream`.

    All workers go through the same epochs, one after the other. In a checkpoint it keeps its place within an epoch:
    after `restore(data=stream)` the blocks that came before are made again and left out.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._passes = 0
        self._epoch = 0
        #: How many blocks of this epoch all workers together have had.
        self._taken = 0
        self._was_restored = False

    def __call__(self, epoch: int) -> Iterator[Any]:
        here = context()
        if not (self._was_restored and epoch == self._epoch):
            self._epoch, self._taken = epoch, 0
        self._was_restored = False
        self._passes += 1
        attempt, each = (os.environ["TORCHELASTIC_RUN_ID"], here.restarts), self._passes

        def ask() -> Any:
            return self._source.take.remote(attempt, each, here.rank, here.world_size, epoch, skipped)

        skipped = self._taken
        asked = ask()
        while (answer := skate.get(asked)) is not None:
            asked = ask()  # the next block comes while this one is used
            self._taken += here.world_size
            yield skate.get(answer[0])
        self._epoch, self._taken = epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self._epoch, "taken": self._taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._epoch, self._taken = state["epoch"], state["taken"]
        self._was_restored = True


class Source:
    """The actor that starts the tasks and gives each worker the references to its blocks."""

    def __init__(
        self,
        produce: Callable[[Any], Iterable[Any]],
        parts: list[Any],
        tasks: int,
        ahead: int,
        seed: int | None,
        options: dict[str, Any],
    ) -> None:
        self._produce = skate.remote(**options)(produce)
        self._parts, self._tasks, self._ahead, self._seed = parts, tasks, ahead, seed
        #: Attempts of trainings, the last one being that of now. A call of an earlier one has come late.
        self._attempts: list[Any] = []
        #: The pass over the data that each rank has come to.
        self._passes: dict[int, int] = {}
        self._pass = 0
        self._shares: Shares[Any] | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._changed = asyncio.Condition()

    async def take(self, attempt: Any, each: int, rank: int, workers: int, epoch: int, skipped: int) -> Any:
        """The reference to the next block of a worker, in a tuple; None at the end of the pass.

        A pass begins when every worker has come to it, and ends then for those before it.
        """
        async with self._changed:
            if attempt not in self._attempts:
                self._attempts.append(attempt)
                self._passes, self._pass = {}, 0
                self._stop()
            elif attempt != self._attempts[-1]:
                return None
            self._passes[rank] = max(each, self._passes.get(rank, 0))
            self._changed.notify_all()

            def is_over() -> bool:
                return attempt != self._attempts[-1] or self._pass > each or self._passes[rank] > each

            def all_are_here() -> bool:
                return len(self._passes) == workers and min(self._passes.values()) >= each

            await self._changed.wait_for(lambda: is_over() or all_are_here())
            if not is_over() and self._pass < each:
                self._pass = each
                self._stop()
                self._shares = Shares(workers, self._ahead)
                self._feeding = asyncio.create_task(self._feed(self._shares, epoch, skipped))
            if is_over() or self._shares is None or self._feeding is None:
                return None
            shares, feeding = self._shares, self._feeding
            await self._changed.wait_for(lambda: is_over() or shares.is_ready(rank) or feeding.done())
            if is_over():
                return None
            if not shares.is_ready(rank):
                feeding.result()  # raises what has ended it
            self._changed.notify_all()
            return shares.take(rank)

    def _stop(self) -> None:
        """End the pass: its producers stop when their generators are dropped."""
        if self._feeding is not None:
            self._feeding.cancel()
        self._feeding = self._shares = None

    async def _feed(self, shares: Shares[Any], epoch: int, skipped: int) -> None:
        """Take the blocks of a pass; those who wait for one hear of it when there are no more, for whatever reason."""
        try:
            await self._take_in_turn(shares, epoch, skipped)
            shares.ended()
        finally:
            async with self._changed:
                self._changed.notify_all()

    async def _take_in_turn(self, shares: Shares[Any], epoch: int, skipped: int) -> None:
        """Take a block from each task in turn. Where one has ended, the next part begins."""
        parts = deque(self._parts)
        if self._seed is not None:
            random.Random(f"{self._seed} {epoch}").shuffle(parts)
        running: deque[Any] = deque()
        while True:
            while parts and len(running) < self._tasks:
                running.append(self._produce.remote(parts.popleft()))
            if not running:
                return
            async with self._changed:
                await self._changed.wait_for(shares.wants_block)
            producer = running.popleft()
            try:
                block = await anext(producer)
            except StopAsyncIteration:
                continue
            running.append(producer)
            if skipped:
                skipped -= 1
                continue
            async with self._changed:
                shares.made(block)
                self._changed.notify_all()
