"""Gradients of DistributedDataParallel, averaged by a group of `skate.collective` while backward goes on.

    backward ──bucket is full──▶ hook ──▶ queue ──▶ thread "skate-gradients": divide, allreduce ──▶ future ──▶ backward
                                                                                                    waits at its end

DistributedDataParallel fills its buckets in the same order on every rank, so the allreduces of the thread are in the
same order everywhere. The order in which ranks are summed is fixed, so every run with the same gradients has the same
bits.
"""

from __future__ import annotations

import queue
import threading
from typing import Any

import torch
import torch.distributed

from skate.collective.calls import allreduce, get_group_handle

__all__ = ["GradientAverager"]


class GradientAverager:
    """Averages the gradients of a model over a group that has the ranks of the model's process group.

    >>> model = torch.nn.parallel.DistributedDataParallel(model)
    >>> averager = GradientAverager(model, group_name="gradients")
    >>> loss.backward()      # gradients are the means over all ranks, as without it
    >>> averager.close()

    No other thread may use the group until `close()`. When a rank dies, `backward` raises a RuntimeError in the others,
    whose text is that of the RankDiedError.
    """

    def __init__(self, model: Any, group_name: str = "default") -> None:
        self._group = group_name
        self._ranks = get_group_handle(group_name).world
        self._buckets: queue.SimpleQueue[tuple[torch.Tensor, torch.futures.Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="skate-gradients", daemon=True)
        self._thread.start()

        def average(state: Any, bucket: Any) -> Any:
            future: Any = torch.futures.Future()
            self._buckets.put((bucket.buffer(), future))
            return future.then(_value)

        average.__annotations__ = {}  # torch compares them with its own types, and these are strings
        model.register_comm_hook(None, average)

    def close(self) -> None:
        """End the thread, when the buckets that it has are averaged. The model cannot be trained on."""
        self._buckets.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (item := self._buckets.get()) is not None:
            gradients, future = item
            try:
                gradients.div_(self._ranks)
                allreduce(gradients, self._group)
            except BaseException as error:  # noqa: BLE001 - whatever it is, backward waits for it
                future.set_result(error)
            else:
                future.set_result(gradients)
            del item, gradients, future


def _value(future: Any) -> Any:
    """Return the gradients, or raise: `backward` raises a RuntimeError with the same text then."""
    result = future.value()
    if isinstance(result, BaseException):
        raise result
    return result
