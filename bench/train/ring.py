"""A ring allreduce written as tasks: the row of figure 12b.

Of N nodes each has an array of N parts. In 2 (N - 1) rounds each node takes a part of the node before it: in the first
half it adds that to its own, in the second half it keeps it. A part of a round is a task that depends on two of the
round before, so every round costs the time that the scheduler takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import skate


@skate.remote
def array(parts: int, size: int) -> Any:
    made = list(np.array_split(np.ones(size // 4, np.float32), parts))
    return made if parts > 1 else made[0]


@skate.remote
def add(mine: Any, others: Any) -> Any:
    return mine + others


@skate.remote
def keep(others: Any) -> Any:
    return others.copy()


def place(node: int) -> dict[str, Any]:
    """The option of a task that runs on that node."""
    return {"resources": {f"node{node}": 0.001}}


def arrays(nodes: int, size: int) -> list[list[Any]]:
    """The parts of an array on each node."""
    return [array.options(num_returns=nodes, **place(node)).remote(nodes, size) for node in range(nodes)]


def allreduce(parts: list[list[Any]]) -> list[list[Any]]:
    """References to the parts of the sum, by node."""
    nodes = len(parts)
    parts = [list(own) for own in parts]
    for step in range(nodes - 1):
        for node in range(nodes):
            after, part = (node + 1) % nodes, (node - step) % nodes
            parts[after][part] = add.options(**place(after)).remote(parts[after][part], parts[node][part])
    for step in range(nodes - 1):
        for node in range(nodes):
            after, part = (node + 1) % nodes, (node + 1 - step) % nodes
            parts[after][part] = keep.options(**place(after)).remote(parts[node][part])
    return parts
