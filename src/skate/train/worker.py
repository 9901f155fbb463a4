"""The actor of one rank.

    main thread     fit(...)            the training function; `report` puts into a queue
    group "reports" reports()           a stream of what was reported, straight to the driver
    group "watch"   stacks(), pid()     answers whatever the main thread does

Idea: an async actor runs calls that name no group in its main thread, and each group in a thread of its own. So the
      training function has the main thread, which libraries need for signals, and reports have a way out meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import skate
from skate.train import checkpoint as checkpoints
from skate.train import session

#: Frames of a rank that waits for others.
COLLECTIVES = ("torch/distributed/", "torch/nn/parallel/distributed", "torch/autograd/graph", "skate/collective/")


class Worker:
    """One rank of a training."""

    def __init__(self) -> None:
        self._reports: asyncio.Queue[Any] = asyncio.Queue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._early: list[Any] = []
        self._lock = threading.Lock()

    @skate.method(concurrency_group="watch")
    async def describe(self) -> dict[str, Any]:
        """Say where this worker runs, and a port that is free there."""
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        return {
            "node": skate.get_runtime_context().get_node_id(),
            "address": skate.util.get_node_ip_address(),
            "port": port,
            "cores": len(os.sched_getaffinity(0)),
            "pid": os.getpid(),
            "gpus": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        }

    @skate.method(concurrency_group="watch")
    async def setup(self, environment: dict[str, str], defaults: dict[str, str], about: dict[str, Any]) -> None:
        """Set the environment, before torch is imported: OpenMP reads its variable at that moment only."""
        os.environ.update(environment)
        for name, value in defaults.items():
            os.environ.setdefault(name, value)
        saved = about.pop("checkpoint")
        session.enter(
            session.Context(
                **{**about, "path": Path(about["path"])},
                checkpoint=checkpoints.Checkpoint(saved) if saved else None,
                send=self._send,
            )
        )

    def fit(self, function: Callable[..., Any], config: Any, takes_config: bool) -> Any:
        """Run the training function, in the main thread."""
        # The event loop waits for this call; a function that calls asyncio.run() must not find it.
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        try:
            function(config) if takes_config else function()
            distributed = sys.modules.get("torch.distributed")
            if distributed is not None and distributed.is_available() and distributed.is_initialized():
                distributed.destroy_process_group()
        finally:
            asyncio._set_running_loop(loop)
            self._send(None)

    @skate.method(concurrency_group="reports")
    async def reports(self) -> AsyncIterator[Any]:
        """Give what was reported, as it comes; ends with the training function."""
        with self._lock:
            self._loop = asyncio.get_running_loop()
            for each in self._early:
                self._reports.put_nowait(each)
        while (item := await self._reports.get()) is not None:
            yield item

    @skate.method(concurrency_group="watch")
    async def stacks(self) -> tuple[bool, str]:
        """Say whether the main thread waits for other ranks, and where it is."""
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        stack = traceback.extract_stack(frame)
        waits = any(part in each.filename for each in stack for part in COLLECTIVES)
        return waits, "".join(traceback.format_list(stack[-8:]))

    def _send(self, item: Any) -> None:
        with self._lock:
            if self._loop is None:
                self._early.append(item)
                return
        self._loop.call_soon_threadsafe(self._reports.put_nowait, item)
