"""Which nodes have a copy of an object, besides the one that made it: as far as a process knows by itself.

Where a task has read an object there is a copy of it, and it stays until the object is freed, or memory is short there.
So whoever submits tasks knows where the next ones find their data, and asks nobody. A copy that was dropped meanwhile
is pulled again: that is all a wrong guess costs.
"""

from __future__ import annotations

from skate._core.ids import node_at, size_at

#: An object that a task reads: its id, and its place where it was made.
Read = tuple[bytes, int]


class Copies:
    def __init__(self) -> None:
        #: Nodes other than that of its maker, by object.
        self._nodes: dict[bytes, set[int]] = {}

    def learn(self, reads: list[Read], node: int) -> None:
        """They were read on that node."""
        for id, place in reads:
            if node_at(place) != node:
                self._nodes.setdefault(id, set()).add(node)

    def forget(self, id: bytes) -> None:
        """The object is freed, here at least."""
        self._nodes.pop(id, None)

    def inputs(self, reads: list[Read]) -> list[tuple[int, list[int]]]:
        """The size of each, and the nodes that have it, that of its maker first."""
        return [(size_at(place), [node_at(place), *sorted(self._nodes.get(id, ()))]) for id, place in reads]


def nearest(inputs: list[tuple[int, list[int]]], here: int) -> int:
    """The node that has most of the bytes; this one if no other has more."""
    there: dict[int, int] = {here: 0}
    for size, nodes in inputs:
        for node in nodes:
            there[node] = there.get(node, 0) + size
    return max(there, key=there.__getitem__)  # of equals the first
