"""What a group needs of the path between machines: the interface that `remote.py` has.

A group whose ranks are all on one node does without it. Otherwise each rank makes one `Between` while the group is
made, when the ranks have told each other how they are reached:

    between = Remote(me, members, listener, contacts, guard)     # contacts[rank] is the address of a rank's listener
    between.connect()                                            # from then on the ends of the others are heard of

A *leader* is the lowest rank of a node. A collective operation runs within each node first, then among leaders, then
within each node again. Only leaders call `allreduce` and `exchange`. `send` and `recv` may be called by any two ranks
on different nodes, and are paired by (from, to) in the order of the calls.

Arrays are one-dimensional, contiguous, and writable where they are received into. Those of `send`, `recv` and
`exchange` are of uint8. That of `allreduce` has the dtype that is reduced. The memory is the user's own: what an
operation was given may change as soon as it returns.

Sizes agree on both sides: the group compares what ranks called before it moves their data, with an `exchange` of
headers of a fixed size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from skate.collective.errors import CollectiveError
from skate.collective.types import ReduceOp

__all__ = ["Between", "Guard", "Member", "leaders"]

#: Raises the group's error if a rank of this node has died, left, or broken the group. It does not wait, and costs
#: some microseconds. A `Between` that waits for another machine calls it at least once a second.
Guard = Callable[[], None]


@dataclass(frozen=True)
class Member:
    """One rank of a group: where it is, and how errors name it."""

    rank: int
    node_id: str  # hexadecimal; ranks with the same one share memory
    pid: int
    host: str
    actor_id: str = ""  # hexadecimal; empty for a rank that is not an actor
    name: str = ""  # of the actor's class

    def __str__(self) -> str:
        what = f"actor {self.name}, " if self.actor_id else ""
        return f"rank {self.rank} ({what}pid {self.pid} on {self.host})"


def leaders(members: Sequence[Member]) -> list[int]:
    """The lowest rank of each node, in ascending order."""
    first: dict[str, int] = {}
    for member in sorted(members, key=lambda each: each.rank):
        first.setdefault(member.node_id, member.rank)
    return sorted(first.values())


class Between(Protocol):
    """The connections of one rank to ranks on other nodes.

    An operation that cannot be completed because another rank or node died raises `RankDiedError` within 5 s, and names
    it. Slow ranks are waited for without limit. A KeyboardInterrupt may be raised out of any wait. After an error no
    method is called but `abort` and `close`.
    """

    def connect(self) -> None:
        """Begin to hear of the ends of the other ranks. Raises RankDiedError if one has ended already."""

    def send(self, to_rank: int, data: NDArray[Any], *, pair: bool = False) -> None:
        """Send bytes to a rank. It may return before they were received.

        pair: over a stream that is for two ranks alone. Collective operations may be called between its `send` and its
        `recv`.
        """

    def recv(self, from_rank: int, into: NDArray[Any], *, pair: bool = False) -> None:
        """Receive as many bytes as `into` has, of those that were sent with the same `pair`."""

    def exchange(self, to_rank: int, data: NDArray[Any], from_rank: int, into: NDArray[Any]) -> None:
        """Send and receive at the same time: a ring in which every leader calls it does not deadlock."""

    def allreduce(self, data: NDArray[Any], op: ReduceOp) -> None:
        """Reduce among leaders, in place. All leaders end with the same bits."""

    def check(self) -> None:
        """Raise if a rank on another node has died or aborted. It does not wait; waits within a node call it."""

    def abort(self, error: CollectiveError) -> None:
        """Tell all other nodes that the group is broken: operations and `check` raise this error there."""

    def close(self, *, as_dead: bool = False) -> None:
        """Free everything. Other ranks that still call operations with this one get RankLeftError, or, if it closes as
        if its process had died, RankDiedError."""
