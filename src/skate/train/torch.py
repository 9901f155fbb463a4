"""torch inside a worker: the process group, the model, the data.

`train.torch.prepare(model)` joins the process group unless the program has joined it. With several workers it also
wraps the model in DistributedDataParallel.
Programs that join by themselves (Lightning, Accelerate, Hugging Face's Trainer) find torchrun's environment.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed

from skate.train.loader import Loader, loader
from skate.train.session import context

__all__ = ["Loader", "backend_for", "device", "devices", "enable_reproducibility", "join", "loader", "prepare"]


def backend_for(gpus: int, nccl_available: bool) -> str:
    """The backend of a process group whose workers have `gpus` GPUs each."""
    return "nccl" if gpus and nccl_available else "gloo"


def device() -> Any:
    """The device of this worker: its first GPU, or the CPU."""
    return devices()[0]


def devices() -> list[Any]:
    """The GPUs of this worker, of which there may be several; the CPU if it has none.

    Every worker sees the GPUs of all workers of its machine. Its first one has the number LOCAL_RANK, as with torchrun,
    and the next ones follow in steps of LOCAL_WORLD_SIZE.
    """
    here = context()
    numbers = here.devices if torch.cuda.is_available() else ()
    return [torch.device("cuda", number) for number in numbers] or [torch.device("cpu")]


def join(backend: str | None = None, timeout_s: float | None = None) -> None:
    """Join the process group of the workers, unless that was done. timeout_s: how long a collective may take."""
    here = context()
    if not torch.distributed.is_initialized():
        gpus = len(here.devices) if torch.cuda.is_available() else 0
        backend = backend or backend_for(gpus, torch.distributed.is_nccl_available())
        timeout = None if timeout_s is None else timedelta(seconds=timeout_s)
        torch.distributed.init_process_group(backend, timeout=timeout, rank=here.rank, world_size=here.world_size)


def enable_reproducibility(seed: int = 0) -> None:
    """Seed the random generators of torch, numpy and Python, and have torch choose deterministic algorithms."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def prepare(
    model: Any, hook: Callable[[Any], None] | None = None, *, communication: str = "torch", **options: Any
) -> Any:
    """Move a model to this worker's device; in DistributedDataParallel if there are several workers.

    communication: what averages gradients. "torch": the process group (gloo, or nccl with GPUs). "skate":
    `skate.collective`, for workers without GPUs; gradients are views of its buckets (gradient_as_bucket_view) then.
    hook: is called with the wrapped model, to register a communication hook of one's own. options: of
    DistributedDataParallel.
    """
    _check_communication(communication, hook)
    here = context()
    own = device()
    if own.type == "cuda":
        torch.cuda.set_device(own)
        model = model.to(own)
    if here.world_size == 1 or not any(parameter.requires_grad for parameter in model.parameters()):
        return model
    join()
    if communication == "skate":
        # Gradients are averaged where they are, and not copied to fresh memory after every step.
        options.setdefault("gradient_as_bucket_view", True)
    options.setdefault("device_ids", [own] if own.type == "cuda" else None)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, **options)
    if communication == "skate":
        _average_with_skate(wrapped)
    elif hook is not None:
        hook(wrapped)
    return wrapped


def _check_communication(communication: str, hook: Any) -> None:
    if communication not in ("torch", "skate"):
        raise ValueError(f'prepare(communication={communication!r}): it may be "torch" or "skate".')
    if communication == "skate" and hook is not None:
        raise ValueError(
            'prepare(communication="skate", hook=…): a model has one communication hook.\n'
            "  next: leave one of them out."
        )
    if communication == "skate" and device().type == "cuda":
        raise ValueError(
            'prepare(communication="skate"): gradients on GPUs are averaged by nccl.\n'
            '  next: leave communication="torch", which is the default.'
        )


def _average_with_skate(model: Any) -> None:
    """Join a group of this model's own, which ends with the training function."""
    from skate import collective
    from skate.collective.ddp import GradientAverager

    here = context()
    # Workers prepare their models in the same order, so they agree on the number of each. After a restart the ranks of
    # the attempt before may not all be gone, so each attempt has groups of its own.
    group = f"train/{os.environ['TORCHELASTIC_RUN_ID']}/{here.restarts}/{len(here.at_end)}"
    collective.init_collective_group(here.world_size, here.rank, group_name=group)
    averager = GradientAverager(model, group)

    def end() -> None:
        averager.close()
        collective.destroy_collective_group(group)

    here.at_end.append(end)


def __getattr__(name: str) -> Any:
    """Names that programs for Ray Train import from here."""
    from skate.train import ray_torch

    if name not in ray_torch.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return getattr(ray_torch, name)
