"""The actor of one rank.

    main thread     fit(...)            the training function; `report` puts into a queue
    group "reports" reports()           a stream of what was reported, straight to the driver
    group "watch"   look(), setup()     answers whatever the main thread does

Idea: an actor with concurrency groups runs calls that name no group in its main thread, one by one, and each group in
      threads of its own. So the training function has the main thread, which libraries need for signals and for
      asyncio.run, and reports have a way out meanwhile.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import psutil

import skate
from skate.train import checkpoint as checkpoints
from skate.train import session
from skate.train.environment import Place, Seat
from skate.train.memory import collect_old_objects_seldom, keep_memory
from skate.train.stalls import Look

#: Where the innermost frame of a rank is that waits for others.
COLLECTIVES = ("/torch/distributed/", "/torch/nn/parallel/distributed", "/torch/autograd/graph", "/skate/collective/")
#: Frames that waiting goes through, whatever it waits for.
PASSED_THROUGH = (os.path.dirname(os.__file__) + "/threading.py", "/skate/_")
#: How many frames of a stack are shown.
FRAMES_MAX = 12
#: A rank that is so many reports ahead of the driver waits for it.
REPORTS_AHEAD_MAX = 10_000
#: Each worker has a core, so Skate's workers have one thread of OpenMP, unless the user says otherwise.
SKATES_OWN_THREADS = "1"


class Worker:
    """One rank of a training."""

    def __init__(self) -> None:
        self._reports: queue.Queue[Any] = queue.Queue(REPORTS_AHEAD_MAX)
        self._port = _kept_port()

    @skate.method(concurrency_group="watch")
    def describe(self) -> Place:
        """Say where this worker runs, and a port that it keeps free there."""
        return Place(
            node=skate.get_runtime_context().get_node_id(),
            address=skate.util.get_node_ip_address(),
            port=self._port.getsockname()[1],
            cores=len(os.sched_getaffinity(0)),
            gpus=own_gpus(),
            pid=os.getpid(),
        )

    @skate.method(concurrency_group="watch")
    def setup(self, seat: Seat, about: dict[str, Any]) -> None:
        """Set the environment, before torch is imported: OpenMP reads its variable at that moment only."""
        collect_old_objects_seldom()
        defaults = dict(seat.defaults)
        threads = defaults.pop("OMP_NUM_THREADS")
        if not about["threads_are_set"] and not _threads_are_set():
            os.environ["OMP_NUM_THREADS"] = threads
            if (torch := sys.modules.get("torch")) is not None:
                torch.set_num_threads(int(threads))
        if int(seat.environment["GROUP_WORLD_SIZE"]) > 1 and (interface := _interface_of_node()):
            # Otherwise gloo takes the address that the name of the machine stands for, which often is 127.0.1.1.
            defaults["GLOO_SOCKET_IFNAME"] = interface
        os.environ.update(seat.environment)
        for name, value in defaults.items():
            os.environ.setdefault(name, value)
        saved = checkpoints.Checkpoint(about["checkpoint"]) if about["checkpoint"] else None
        session.enter(
            session.Context(
                rank=seat.rank,
                world_size=seat.world_size,
                local_rank=seat.local_rank,
                local_world_size=seat.local_world_size,
                node_rank=seat.node_rank,
                path=Path(about["path"]),
                restarts=about["restarts"],
                checkpoint=saved,
                send=self._reports.put,
                step=-1 if saved is None else saved.step,
                devices=seat.devices,
            )
        )

    def fit(self, function: Callable[..., Any], config: Any, takes_config: bool) -> None:
        """Run the training function, in the main thread."""
        keep_memory()
        try:
            try:
                function(config) if takes_config else function()
            except SystemExit as end:
                if end.code:
                    raise
                # A program that says sys.exit() at its end has ended well, under torchrun too.
            _wait_for_threads()
            for close in session.context().at_end:
                close()
            distributed = sys.modules.get("torch.distributed")
            if distributed is not None and distributed.is_available() and distributed.is_initialized():
                distributed.destroy_process_group()
            # The process is killed when its function has ended. What libraries flush when a program ends is not lost.
            with contextlib.suppress(Exception):  # Python prints what handlers raise
                atexit._run_exitfuncs()
        finally:
            self._reports.put(None)

    @skate.method(concurrency_group="reports")
    def reports(self) -> Iterator[Any]:
        """Give what was reported, as it comes; ends with the training function."""
        while (item := self._reports.get()) is not None:
            yield item

    @skate.method(concurrency_group="watch")
    def look(self) -> Look:
        """Say where the main thread is, and whether it waits for other ranks."""
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        stack = traceback.extract_stack(frame)
        begun = [at for at, each in enumerate(stack, 1) if each.name == "fit" and each.filename == __file__]
        own = stack[begun[0] if begun else 0 :]  # what is further out says nothing of the training function
        return Look(True, _waits(frame), "".join(traceback.format_list(own[-FRAMES_MAX:])))


def _wait_for_threads() -> None:
    """Wait for threads that are no daemons, as the interpreter does at its end: they may write a checkpoint."""
    for end_pool in reversed(getattr(threading, "_threading_atexits", ())):  # of concurrent.futures, mostly
        end_pool()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()


def own_gpus() -> tuple[str, ...]:
    """The GPUs that this worker was given. The variable is the user's own where it was given none."""
    if not skate.get_gpu_ids():
        return ()
    return tuple(gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu)


def _kept_port() -> socket.socket:
    """A port of this machine that no other program is given while the socket is open.

    It is bound and does not listen. The kernel gives its port to nobody who asks for any free one, and refuses it to
    others who ask for it by number, except with SO_REUSEADDR. Servers set that, torch's store among them, so rank 0 can
    listen there: no other program can have come in between.
    """
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        with contextlib.suppress(OSError):
            kept = socket.socket(family)
            try:
                kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    kept.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                kept.bind((address, 0))
            except OSError:
                kept.close()
                raise
            return kept
    raise OSError("no TCP port of this machine is free.")


def _threads_are_set() -> bool:
    """Whether the user has set OMP_NUM_THREADS, for this machine or for the program."""
    if os.environ.get("OMP_NUM_THREADS", SKATES_OWN_THREADS) != SKATES_OWN_THREADS:
        return True
    given = json.loads(skate.get_runtime_context().get_runtime_env_string())
    return "OMP_NUM_THREADS" in given.get("env_vars", {})


def _interface_of_node() -> str | None:
    """The network interface that has the address of this node."""
    address = skate.util.get_node_ip_address()
    found = psutil.net_if_addrs().items()
    return next((name for name, addresses in found if any(each.address == address for each in addresses)), None)


def _waits(frame: FrameType | None) -> bool:
    """Whether a stack ends in a collective. Further out that says nothing: the model runs in a frame of DDP too."""
    while frame is not None and any(part in frame.f_code.co_filename for part in PASSED_THROUGH):
        frame = frame.f_back
    innermost = frame
    while frame is not None and any(part in frame.f_code.co_filename for part in COLLECTIVES):
        if frame.f_code.co_name == "<module>":
            return False  # a module is being imported there: it waits for no other rank
        frame = frame.f_back
    return frame is not innermost
