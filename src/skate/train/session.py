"""What a training function calls inside a worker: `report`, `restore`, `context`."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skate.train import checkpoint as checkpoints
from skate.train.folder import RESERVED
from skate.train.supervise import Given


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
    #: The last step that was reported, and the last one with a checkpoint in this attempt.
    step: int = -1
    saved_step: int = -1
    #: The GPUs of this worker, as torch numbers them.
    devices: tuple[int, ...] = ()
    #: What ends with the training function.
    at_end: list[Callable[[], None]] = field(default_factory=list)
    #: Whether metrics are kept apart from the rest of a row, so that they may be called "step" and "rank" too.
    metrics_have_any_name: bool = False


_current: Context | None = None


def enter(context: Context | None) -> None:
    """Say in which group this process is; None outside of any."""
    global _current
    _current = context


def is_inside() -> bool:
    """Whether this process is a worker of a training."""
    return _current is not None


def context() -> Context:
    """Where this worker stands: rank, world_size, local_rank, local_world_size, node_rank, path, restarts, devices."""
    if _current is None:
        raise RuntimeError(
            "this process is no worker of a training.\n"
            "  why:  report, restore and context work inside the function that train.run() runs.\n"
            "  next: call them there, in the thread that called the function."
        )
    return _current


def report(
    metrics: Mapping[str, Any],
    checkpoint: Mapping[str, Any] | checkpoints.Checkpoint | None = None,
    *,
    step: int | None = None,
    sharded: bool = False,
) -> None:
    """Tell the driver how the training goes. Waits for no other rank.

    checkpoint: what `restore` gives back later, by name: modules, optimisers, loaders (anything with `state_dict`) and
    plain values. Rank 0 writes it; with `sharded=True` every rank writes its own. Every rank must pass it in the same
    steps: a checkpoint counts when the parts of all ranks are there. Random states of all ranks are part of it.
    It may also be a folder of files, `Checkpoint.from_directory(folder)`, which is copied. Then one rank is enough: it
    counts when all ranks have reported that step, and has the files of every rank that gave a folder.
    step: the number of this step; one more than that of the last report, if it is not given.
    """
    here = context()
    number = here.step + 1 if step is None else _whole(step)
    if not isinstance(metrics, Mapping):
        raise TypeError(f'report({metrics!r}): it takes metrics by name, like {{"loss": 0.5}}.')
    if not (checkpoint is None or isinstance(checkpoint, (Mapping, checkpoints.Checkpoint))):
        raise TypeError(
            f"report(checkpoint={checkpoint!r}): it may be what to save by name, like {{'model': model}}.\n"
            "  next: for a folder of files of your own, give Checkpoint.from_directory(folder)."
        )
    if (taken := RESERVED & metrics.keys()) and not here.metrics_have_any_name:
        raise ValueError(
            f"report(): a metric may not be called {min(taken)!r}, because rows of the history have that already.\n"
            "  next: give it another name; the number of a step is step=."
        )
    if checkpoint is not None and here.checkpoint is not None and number <= here.checkpoint.step:
        raise ValueError(
            f"report(step={number}, checkpoint=…): the run goes on from a checkpoint of step {here.checkpoint.step}.\n"
            "  why:  steps of a run only grow; this one would count as older than that checkpoint.\n"
            "  next: begin with the step that restore() returns, or train from the start in another path=."
        )
    if checkpoint is not None and number <= here.saved_step:
        raise ValueError(
            f"report(step={number}, checkpoint=…): this rank has reported a checkpoint of step {here.saved_step}.\n"
            "  why:  parts of two checkpoints of one step could not be told apart.\n"
            "  next: give each checkpoint a larger step= than the one before; without step= the steps are counted."
        )
    here.step = number
    given = Given.NOTHING
    if isinstance(checkpoint, checkpoints.Checkpoint):
        given = Given.FOLDER
        checkpoints.write_files(here.path, number, here.rank, checkpoint)
    elif checkpoint is not None:
        given = Given.SHARD if sharded else Given.PART
        state: dict[str, Any] = {"random": _random_states(), "sharded": sharded}
        if sharded or here.rank == 0:
            state["state"] = {name: _state_of(value) for name, value in checkpoint.items()}
        checkpoints.write_part(here.path, number, here.rank, state)
    if checkpoint is not None:
        here.saved_step = number
    plain = {name: _plain(value) for name, value in metrics.items()}
    here.send((number, {"reported": plain} if here.metrics_have_any_name else plain, given))


def restore(**things: Any) -> int:
    """Give things the state that they had at the last committed checkpoint; the step to go on with, 0 at the start.

    Names are those of the report: `restore(model=model, optimizer=optimizer)`. Random states are restored too: each
    rank gets its own. If there were fewer workers when the checkpoint was written, the random states of further ranks
    follow from those of rank 0 and from their number.
    """
    here = context()
    if here.checkpoint is None:
        return 0
    saved = here.checkpoint
    same_size = saved.workers == here.world_size
    was_there = here.rank < saved.workers
    own = saved.load(here.rank if was_there else 0)
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
    _set_random_states(own["random"])
    if not was_there:
        _branch_random_states(here.rank)
    here.step = saved.step
    return saved.step + 1


def _whole(step: Any) -> int:
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"report(step={step!r}): steps are whole numbers from 0 on.")
    return number


def _plain(value: Any) -> Any:
    """A number or a list of them for what torch and numpy have."""
    if not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except (ValueError, RuntimeError):  # it has several elements
        return value.tolist()


def _state_of(value: Any) -> Any:
    value = value.module if _is_ddp(value) else value
    return value.state_dict() if hasattr(value, "state_dict") else value


def _is_ddp(value: Any) -> bool:
    """Whether that is a module in the wrapper of DistributedDataParallel, which adds a prefix to every name."""
    parallel = sys.modules.get("torch.nn.parallel")
    return parallel is not None and isinstance(value, parallel.DistributedDataParallel)


def _random_states() -> dict[str, Any]:
    """The states of the generators of Python, and of numpy and torch where the program uses them."""
    import random

    states: dict[str, Any] = {"python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        states["numpy"] = numpy.random.get_state()
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            states["cuda"] = [torch.cuda.get_rng_state(device) for device in context().devices]
    return states


def _set_random_states(states: dict[str, Any]) -> None:
    import random

    random.setstate(states["python"])
    if "numpy" in states:
        import numpy as np

        np.random.set_state(states["numpy"])
    if "torch" in states:
        import torch

        torch.set_rng_state(states["torch"])
        for device, state in zip(context().devices, states.get("cuda", ())):
            torch.cuda.set_rng_state(state, device)


def _branch_random_states(rank: int) -> None:
    """Go on with other numbers than the rank that these random states are of, the same in every run."""
    import random

    random.seed(random.getrandbits(64) + rank)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed((int(numpy.random.randint(2**31)) + rank) % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(int(torch.randint(2**62, ())) + rank)
