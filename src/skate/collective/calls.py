"""The functions of `skate.collective`, by the name of a group.

They are those of `ray.util.collective`, with the same arguments, and alltoall, gather and scatter beside them.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Sequence
from typing import Any

import skate
from skate.collective.errors import compose
from skate.collective.group import Group, declare
from skate.collective.meeting import actor_name
from skate.collective.tensors import Flat, check_list, flat, reduction
from skate.collective.types import Backend, ReduceOp

#: How long the ranks of a group wait for each other when it is made, in milliseconds.
JOIN_TIMEOUT_MS = 300_000

_groups: dict[str, Group] = {}
_declared: dict[str, Any] = {}
#: Groups that threads of this process are joining. The lock is not held meanwhile: two groups may need each other.
_joining: set[str] = set()
_lock = threading.Lock()


def init_collective_group(
    world_size: int,
    rank: int,
    backend: str = Backend.AUTO,
    group_name: str = "default",
    gloo_timeout: int = JOIN_TIMEOUT_MS,
    *,
    timeout_s: float | None = None,
) -> None:
    """Join a group as one of its ranks; every rank calls it, in an actor of its own. It returns when all have.

    >>> collective.init_collective_group(world_size=2, rank=0, group_name="weights")

    `gloo_timeout` is how long ranks wait for each other here, in milliseconds. `timeout_s` is how long an operation
    waits for a rank that is alive and does not come; without it, it waits without limit.
    """
    _check_backend(backend)
    with _lock:
        if group_name in _groups or group_name in _joining:
            there = _groups.get(group_name)
            how = (
                f"is initialized in this process, as rank {there.rank} of {there.world}" if there else "is being joined"
            )
            raise RuntimeError(
                f"group {group_name!r} {how}.\n"
                "  next: take another group_name, or call destroy_collective_group() first."
            )
        _joining.add(group_name)
    try:
        group = Group(group_name, world_size, rank, join_timeout_s=gloo_timeout / 1000, timeout_s=timeout_s)
        _groups[group_name] = group
    finally:
        _joining.discard(group_name)


def create_collective_group(
    actors: Sequence[Any],
    world_size: int,
    ranks: Sequence[int],
    backend: str = Backend.AUTO,
    group_name: str = "default",
    gloo_timeout: int = JOIN_TIMEOUT_MS,
) -> None:
    """Declare from the driver which actors are a group; each joins when it first uses it.

    >>> collective.create_collective_group(actors, world_size=2, ranks=[0, 1], group_name="weights")
    """
    _check_backend(backend)
    if len(actors) != world_size or sorted(ranks) != list(range(world_size)):
        raise ValueError(
            f"world_size={world_size} with {len(actors)} actors and ranks={list(ranks)}.\n"
            f"  next: pass one actor for each rank from 0 to {world_size - 1}."
        )
    by_id = {actor._actor_id.hex(): rank for actor, rank in zip(actors, ranks, strict=True)}
    meeting, refused = declare(group_name, world_size, by_id, gloo_timeout)
    if refused:
        raise RuntimeError(
            compose(
                f"group {group_name!r} cannot be created.",
                why=refused,
                next="take another group_name, or call destroy_collective_group() here and in its ranks first.",
            )
        )
    _declared[group_name] = meeting


def destroy_collective_group(group_name: str = "default") -> None:
    """Leave a group and free its memory. Ranks that still call operations of the group get an error."""
    with _lock:
        group = _groups.pop(group_name, None)
    if group is not None:
        group.close()
    _declared.pop(group_name, None)


def _die() -> None:
    """The program, or the actor, ends without having left its groups."""
    _declared.clear()
    for group in list(_groups.values()):
        group.die()


atexit.register(_die)


def is_group_initialized(group_name: str = "default") -> bool:
    """Whether this process has joined the group."""
    return group_name in _groups


def get_rank(group_name: str = "default") -> int:
    """The rank of this process in the group; -1 if it has not joined it."""
    return _groups[group_name].rank if group_name in _groups else -1


def get_collective_group_size(group_name: str = "default") -> int:
    """The number of ranks of the group; -1 if this process has not joined it."""
    return _groups[group_name].world if group_name in _groups else -1


def allreduce(tensor: Any, group_name: str = "default", op: ReduceOp = ReduceOp.SUM) -> None:
    """Reduce the arrays of all ranks, and leave the result in each of them.

    >>> collective.allreduce(gradients, group_name="weights")
    """
    group, array = get_group_handle(group_name), flat(tensor)
    how = reduction(op, array)
    both = [array.elements]
    group.run("allreduce", f"allreduce({array}, {op.name})", both, both, reduction=how)
    array.finish()


def reduce(tensor: Any, dst_rank: int = 0, group_name: str = "default", op: ReduceOp = ReduceOp.SUM) -> None:
    """Reduce the arrays of all ranks, and leave the result in that of rank `dst_rank`; the others stay as they are.

    >>> collective.reduce(losses, dst_rank=0)
    """
    group = get_group_handle(group_name)
    group.check_rank(dst_rank, "dst_rank")
    receives = group.rank == dst_rank
    array = flat(tensor, written=receives)
    how = reduction(op, array)
    text = f"reduce({array}, {op.name}, to rank {dst_rank})"
    both = [array.elements]
    group.run("reduce", text, both, both if receives else [], root=dst_rank, reduction=how)
    array.finish()


def broadcast(tensor: Any, src_rank: int = 0, group_name: str = "default") -> None:
    """Copy the array of rank `src_rank` into those of all others.

    >>> collective.broadcast(weights, src_rank=0)
    """
    group = get_group_handle(group_name)
    group.check_rank(src_rank, "src_rank")
    sends = group.rank == src_rank
    array = flat(tensor, written=not sends)
    raw = [array.bytes]
    text = f"broadcast({array}, from rank {src_rank})"
    group.run("broadcast", text, raw if sends else [], [] if sends else raw, root=src_rank)
    array.finish()


def allgather(tensor_list: Any, tensor: Any, group_name: str = "default") -> None:
    """Copy the arrays of all ranks into a list with an array for each, in every rank.

    >>> found = [np.empty(3) for _ in range(world_size)]
    >>> collective.allgather(found, np.full(3, rank))
    """
    group, array = get_group_handle(group_name), flat(tensor, written=False)
    found = check_list(tensor_list, group.world, array, "tensor_list", written=True)
    group.run("allgather", f"allgather({array})", [array.bytes], [each.bytes for each in found])
    _finish(found)


def gather(tensor_list: Any, tensor: Any, dst_rank: int = 0, group_name: str = "default") -> None:
    """Copy the arrays of all ranks into a list in rank `dst_rank`; the others may pass None for the list.

    >>> collective.gather(found if rank == 0 else None, array, dst_rank=0)
    """
    group, array = get_group_handle(group_name), flat(tensor, written=False)
    group.check_rank(dst_rank, "dst_rank")
    found = []
    if group.rank == dst_rank:
        found = check_list(tensor_list, group.world, array, "tensor_list", written=True)
    text = f"gather({array}, to rank {dst_rank})"
    group.run("gather", text, [array.bytes], [each.bytes for each in found], root=dst_rank)
    _finish(found)


def scatter(tensor: Any, tensor_list: Any, src_rank: int = 0, group_name: str = "default") -> None:
    """Copy one array of a list in rank `src_rank` into that of each rank; the others may pass None for the list.

    >>> collective.scatter(array, parts if rank == 0 else None, src_rank=0)
    """
    group, array = get_group_handle(group_name), flat(tensor)
    group.check_rank(src_rank, "src_rank")
    parts = []
    if group.rank == src_rank:
        parts = check_list(tensor_list, group.world, array, "tensor_list", written=False)
    text = f"scatter({array}, from rank {src_rank})"
    group.run("scatter", text, [each.bytes for each in parts], [array.bytes], root=src_rank)
    array.finish()


def reducescatter(tensor: Any, tensor_list: Any, group_name: str = "default", op: ReduceOp = ReduceOp.SUM) -> None:
    """Reduce the lists of all ranks, array by array, and leave array number r in rank r.

    >>> collective.reducescatter(mine, parts)
    """
    group, array = get_group_handle(group_name), flat(tensor)
    how = reduction(op, array)
    parts = check_list(tensor_list, group.world, array, "tensor_list", written=False)
    text = f"reducescatter({array}, {op.name})"
    group.run("reducescatter", text, [each.elements for each in parts], [array.elements], reduction=how)
    array.finish()


def alltoall(output_list: Any, input_list: Any, group_name: str = "default") -> None:
    """Send array number r of one list to rank r, and receive that of each rank into the other list.

    >>> collective.alltoall(received, parts)
    """
    group = get_group_handle(group_name)
    first = flat(input_list[0], "input_list[0]", written=False) if len(input_list) else None
    if first is None:
        raise ValueError(f"input_list is empty.\n  next: pass one array for each of {group.world} ranks.")
    parts = check_list(input_list, group.world, first, "input_list", written=False)
    found = check_list(output_list, group.world, first, "output_list", written=True)
    group.run("alltoall", f"alltoall({first})", [each.bytes for each in parts], [each.bytes for each in found])
    _finish(found)


def send(tensor: Any, dst_rank: int, group_name: str = "default") -> None:
    """Send an array to a rank, which calls recv(). It returns when the array may change; not before, if it is large,
    the other rank receives it.

    >>> collective.send(array, dst_rank=1)
    """
    group = get_group_handle(group_name)
    group.check_other(dst_rank, "dst_rank")
    array = flat(tensor, written=False)
    group.send(dst_rank, f"send or recv({array})", array.bytes)


def recv(tensor: Any, src_rank: int, group_name: str = "default") -> None:
    """Receive an array from a rank, which calls send(), into an array of the same shape and dtype.

    >>> collective.recv(array, src_rank=0)
    """
    group = get_group_handle(group_name)
    group.check_other(src_rank, "src_rank")
    array = flat(tensor)
    group.recv(src_rank, f"send or recv({array})", array.bytes)
    array.finish()


def barrier(group_name: str = "default") -> None:
    """Return when all ranks have called it."""
    get_group_handle(group_name).run("barrier", "barrier()", [], [])


def _finish(arrays: Sequence[Flat]) -> None:
    for each in arrays:
        each.finish()


def get_group_handle(group_name: str = "default") -> Group:
    """The group itself; a declared one is joined."""
    group = _groups.get(group_name)
    if group is None:
        group = _join_declared(group_name)
    return group


def _join_declared(group_name: str) -> Group:
    actor_id = skate.get_runtime_context().get_actor_id()
    try:
        meeting = skate.get_actor(actor_name(group_name))
        found = skate.get(meeting.declared.remote(actor_id)) if actor_id else None
    except ValueError:
        found = None
    if found is None:
        raise RuntimeError(
            compose(
                f"this process is in no group {group_name!r}.",
                next="call init_collective_group() here, or create_collective_group() in the driver with this actor.",
            )
        )
    world, rank, timeout_ms = found
    init_collective_group(world, rank, group_name=group_name, gloo_timeout=timeout_ms)
    return _groups[group_name]


def _check_backend(backend: str) -> None:
    if Backend(backend) == Backend.NCCL:
        raise ValueError("backend='nccl': arrays on GPUs are not supported.\n  next: pass backend='gloo'.")
