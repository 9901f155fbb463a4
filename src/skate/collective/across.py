"""Collective operations of a group whose ranks are on several nodes: within each node, among leaders, within again.

Each rank has `Local`, its operations with the ranks of its node, and `Between`, its way to other nodes. A leader is the
lowest rank of a node, and the first one in the node's order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from skate.collective.between import Between, Member
from skate.collective.layout import HEADER_BYTES
from skate.collective.local import Array, Local, mismatch
from skate.collective.tensors import Reduction

__all__ = ["Across"]


class Across:
    """The operations of one rank with all ranks of a group that is on several nodes."""

    def __init__(self, me: Member, members: Sequence[Member], local: Local, between: Between) -> None:
        self._me, self._members, self._local, self._between = me, members, local, between
        by_node: dict[str, list[int]] = {}
        for member in members:
            by_node.setdefault(member.node_id, []).append(member.rank)
        #: The ranks of each node, in the order of their leaders.
        self._nodes = sorted(by_node.values())
        self._at = next(at for at, ranks in enumerate(self._nodes) if me.rank in ranks)
        self._near = self._nodes[self._at]
        self._far = [ranks for ranks in self._nodes if ranks is not self._near]
        self._leads = self._near[0] == me.rank

    def run(
        self,
        kind: str,
        header: bytes,
        sources: Sequence[Array],
        targets: Sequence[Array],
        *,
        root: int = 0,
        reduction: Reduction | None = None,
    ) -> None:
        """Carry out an operation; the arguments are those of `Local.run`, with ranks of the group."""
        if self._leads:
            self._agree(header)
        if kind == "barrier":
            self._local.run("barrier", header, [], [])
            if self._leads:
                self._agree(header)
            self._local.run("barrier", header, [], [])
        elif kind == "allreduce":
            self._allreduce(header, sources[0], targets[0], reduction)
        elif kind == "reduce":
            result = targets[0] if self._me.rank == root else np.empty_like(sources[0])
            self._allreduce(header, sources[0], result, reduction)
        elif kind == "reducescatter":
            every = np.concatenate(sources)
            self._allreduce(header, every, every, reduction)
            size, rank = targets[0].size, self._me.rank
            np.copyto(targets[0], every[rank * size : (rank + 1) * size])
        elif kind == "broadcast":
            self._broadcast(header, (sources or targets)[0], root)
        elif kind == "allgather":
            self._allgather(header, sources[0], targets)
        elif kind == "gather":
            self._gather(header, sources[0], targets, root)
        elif kind == "scatter":
            self._scatter(header, sources, targets[0], root)
        else:
            assert kind == "alltoall", kind
            self._alltoall(header, sources, targets)

    def send(self, to: int, header: bytes, data: Array) -> None:
        if to in self._near:
            self._local.send(self._near.index(to), header, data)
        else:
            self._between.send(to, np.frombuffer(header, np.uint8), pair=True)
            self._between.send(to, data, pair=True)

    def recv(self, source: int, header: bytes, into: Array) -> None:
        if source in self._near:
            self._local.recv(self._near.index(source), header, into)
            return
        theirs = np.empty(HEADER_BYTES, np.uint8)
        self._between.recv(source, theirs, pair=True)
        self._compare(header, source, theirs)
        self._between.recv(source, into, pair=True)

    # --- operations ---------------------------------------------------------------------------------------------------

    def _allreduce(self, header: bytes, source: Array, result: Array, reduction: Reduction | None) -> None:
        assert reduction is not None
        self._local.run("reduce", header, [source], [result] if self._leads else [], combine=reduction.combine)
        if self._leads:
            wide = reduction.widen(result)
            self._between.allreduce(wide, reduction.op)
            reduction.narrow(wide, result)
        self._share(header, _bytes(result))

    def _broadcast(self, header: bytes, data: Array, root: int) -> None:
        home = next(at for at, ranks in enumerate(self._nodes) if root in ranks)
        if self._at == home:
            self._share(header, data, self._near.index(root))
        if self._leads:
            self._down_the_tree(data, home)
        if self._at != home:
            self._share(header, data)

    def _down_the_tree(self, data: Array, home: int) -> None:
        """Leaders: node `home` has the data; each that has it passes it on to one that has not, as often as needed."""
        count = len(self._nodes)
        number = (self._at - home) % count
        step = 1
        while step < count:
            if number < step and number + step < count:
                self._between.send(self._leader(home + number + step), data)
            elif step <= number < 2 * step:
                self._between.recv(self._leader(home + number - step), data)
            step *= 2

    def _allgather(self, header: bytes, source: Array, targets: Sequence[Array]) -> None:
        self._local.run("allgather", header, [source], [targets[rank] for rank in self._near])
        blocks = [np.empty(len(ranks) * source.size, np.uint8) for ranks in self._nodes]
        if self._leads:
            np.concatenate([targets[rank] for rank in self._near], out=blocks[self._at])
            count = len(self._nodes)
            after, before = self._leader(self._at + 1), self._leader(self._at - 1)
            for step in range(count - 1):
                mine, theirs = (self._at - step) % count, (self._at - step - 1) % count
                self._between.exchange(after, blocks[mine], before, blocks[theirs])
        for ranks, block in zip(self._nodes, blocks, strict=True):
            if ranks is not self._near:
                self._share(header, block)
                _split(block, [targets[rank] for rank in ranks])

    def _gather(self, header: bytes, source: Array, targets: Sequence[Array], root: int) -> None:
        if root in self._near:
            near = [targets[rank] for rank in self._near] if targets else []
            self._local.run("gather", header, [source], near, root=self._near.index(root))
            if self._me.rank == root:
                for ranks in self._far:
                    block = np.empty(len(ranks) * source.size, np.uint8)
                    self._between.recv(ranks[0], block)
                    _split(block, [targets[rank] for rank in ranks])
            return
        parts = [np.empty_like(source) for _ in self._near] if self._leads else []
        self._local.run("gather", header, [source], parts)
        if self._leads:
            self._between.send(root, np.concatenate(parts))

    def _scatter(self, header: bytes, sources: Sequence[Array], target: Array, root: int) -> None:
        if root in self._near:
            if self._me.rank == root:
                for ranks in self._far:
                    self._between.send(ranks[0], np.concatenate([sources[rank] for rank in ranks]))
            near = [sources[rank] for rank in self._near] if sources else []
            self._local.run("scatter", header, near, [target], root=self._near.index(root))
            return
        parts: list[Array] = []
        if self._leads:
            block = np.empty(len(self._near) * target.size, np.uint8)
            self._between.recv(root, block)
            parts = _parts(block, len(self._near))
        self._local.run("scatter", header, parts, [target])

    def _alltoall(self, header: bytes, sources: Sequence[Array], targets: Sequence[Array]) -> None:
        """Leaders carry all that goes from one node to another in one exchange."""
        near, size, count = self._near, sources[0].size, len(self._nodes)
        far = [self._nodes[(self._at + step) % count] for step in range(1, count)]
        leaving = [np.concatenate([sources[rank] for rank in to]) for to in far]  # targets may be the same arrays
        self._local.run("alltoall", header, [sources[rank] for rank in near], [targets[rank] for rank in near])
        for step, (to, going) in enumerate(zip(far, leaving, strict=True), 1):
            source = self._nodes[(self._at - step) % count]
            outs = [np.empty_like(going) for _ in near] if self._leads else []
            self._local.run("gather", header, [going], outs)
            coming: list[Array] = []
            if self._leads:
                block = np.empty(len(source) * len(near) * size, np.uint8)
                self._between.exchange(to[0], np.concatenate(outs), source[0], block)
                # From [their rank, our rank] to [our rank, their rank].
                seen = block.reshape(len(source), len(near), size)
                coming = [np.ascontiguousarray(seen[:, at]).reshape(-1) for at in range(len(near))]
            mine = np.empty(len(source) * size, np.uint8)
            self._local.run("scatter", header, coming, [mine])
            _split(mine, [targets[rank] for rank in source])

    # --- pieces of them -----------------------------------------------------------------------------------------------

    def _agree(self, header: bytes) -> None:
        """Leaders: return when all have come to this operation, and it is the same one.

        In round k each hears from the one 2^k before it, so after log2(n) rounds it has heard of all.
        """
        count, step = len(self._nodes), 1
        theirs = np.empty(HEADER_BYTES, np.uint8)
        while step < count:
            before = self._leader(self._at - step)
            self._between.exchange(self._leader(self._at + step), np.frombuffer(header, np.uint8), before, theirs)
            self._compare(header, before, theirs)
            step *= 2

    def _compare(self, header: bytes, rank: int, theirs: Array) -> None:
        if theirs.tobytes() != header:
            raise mismatch(self._me, header, self._members[rank], theirs.tobytes())

    def _share(self, header: bytes, data: Array, root: int = 0) -> None:
        """Broadcast within the node, from its leader or another of its ranks."""
        sends = self._near[root] == self._me.rank
        self._local.run("broadcast", header, [data] if sends else [], [] if sends else [data], root=root)

    def _leader(self, at: int) -> int:
        return self._nodes[at % len(self._nodes)][0]


def _bytes(array: Array) -> Array:
    return array.view(np.uint8) if array.size else np.empty(0, np.uint8)


def _parts(block: Array, count: int) -> list[Array]:
    size = block.size // count
    return [block[at * size : (at + 1) * size] for at in range(count)]


def _split(block: Array, targets: Sequence[Array]) -> None:
    for target, part in zip(targets, _parts(block, len(targets)), strict=True):
        np.copyto(target, part)
