"""What a training function calls inside a worker: `report`, `restore`, `context`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skate.train import checkpoint as checkpoints


@dataclass
class Context:
    """Where this worker stands in its group."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    #: The folder of the run.
    path: Path
    #: How often the group was made again.
    restarts: int
    #: The checkpoint that this attempt goes on from.
    checkpoint: checkpoints.Checkpoint | None
    #: Takes a report to the driver, without waiting for it.
    send: Callable[[Any], None]
    step: int = -1


_current: Context | None = None


def enter(context: Context | None) -> None:
    """Say in which group this process is; None outside of any."""
    global _current
    _current = context


def context() -> Context:
    """Where this worker stands: rank, world_size, local_rank, local_world_size, node_rank, path, restarts."""
    if _current is None:
        raise RuntimeError(
            "this process is no worker of a training.\n"
            "  why:  report, restore and context work inside the function that train.run() runs.\n"
            "  next: call them there, in the thread that called the function."
        )
    return _current


def report(
    metrics: Mapping[str, Any],
    *,
    checkpoint: Mapping[str, Any] | None = None,
    step: int | None = None,
    sharded: bool = False,
) -> None:
    """Tell the driver how the training goes. Waits for no other rank.

    checkpoint: what `restore` gives back later, by name: modules, optimisers, loaders (anything with `state_dict`) and
    plain values. Rank 0 writes it; with `sharded=True` every rank writes its own. Every rank must pass it in the same
    steps: a checkpoint counts when the parts of all ranks are there. Random states of all ranks are part of it.
    step: the number of this step; one more than that of the last report, if it is not given.
    """
    here = context()
    number = here.step + 1 if step is None else int(step)
    if number < 0:
        raise ValueError(f"report(step={step}): steps are counted from 0.")
    if taken := {"rank", "step"} & metrics.keys():
        raise ValueError(
            f"report(): a metric may not be called {min(taken)!r}, because rows of the history have that already.\n"
            "  next: give it another name; the number of a step is step=."
        )
    here.step = number
    if checkpoint is not None:
        state: dict[str, Any] = {"random": _random_states(), "sharded": sharded}
        if sharded or here.rank == 0:
            state["state"] = {name: _state_of(value) for name, value in checkpoint.items()}
        checkpoints.write_part(here.path, number, here.rank, state)
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
    here.send((number, plain, checkpoint is not None))


def restore(**things: Any) -> int:
    """Give things the state that they had at the last committed checkpoint; the step to go on with, 0 at the start.

    Names are those of the report: `restore(model=model, optimizer=optimizer)`. Random states are restored too.
    """
    here = context()
    if here.checkpoint is None:
        return 0
    saved = here.checkpoint
    same_size = saved.workers == here.world_size
    own = saved.load(here.rank) if same_size else saved.load(0)
    state = own.get("state")
    if state is None:
        state = saved.load(0)["state"]
    elif own["sharded"] and not same_size:
        raise RuntimeError(
            f"{saved.path} was written by {saved.workers} workers, each with a part of its own, and there are "
            f"{here.world_size} now.\n"
            f"  next: run with workers={saved.workers}, or write checkpoints that are not sharded."
        )
    for name, thing in things.items():
        if name not in state:
            raise KeyError(f"the checkpoint {saved.path} has no {name!r}; it has {', '.join(map(repr, state))}.")
        if not hasattr(thing, "load_state_dict"):
            raise TypeError(f"restore({name}=…) takes something with load_state_dict, not {type(thing).__name__}.")
        (thing.module if _is_ddp(thing) else thing).load_state_dict(state[name])
    if same_size:
        _set_random_states(own["random"])
    here.step = saved.step
    return saved.step + 1


def _state_of(value: Any) -> Any:
    value = value.module if _is_ddp(value) else value
    return value.state_dict() if hasattr(value, "state_dict") else value


def _is_ddp(value: Any) -> bool:
    """Whether that is a module in the wrapper of DistributedDataParallel, which adds a prefix to every name."""
    parallel = sys.modules.get("torch.nn.parallel")
    return parallel is not None and isinstance(value, parallel.DistributedDataParallel)


def _random_states() -> dict[str, Any]:
    import random

    import torch

    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = numpy.random.get_state()
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_random_states(states: dict[str, Any]) -> None:
    import random

    import torch

    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "numpy" in states:
        import numpy as np

        np.random.set_state(states["numpy"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])
