"""What goes wrong in a group.

    CollectiveError            the group is broken: destroy it, and make another
    ├── RankDiedError          the process of a rank ended
    ├── RankLeftError          a rank destroyed the group while others called it
    ├── MismatchError          ranks called different operations, or with different arrays
    └── CollectiveTimeoutError a rank did not come in the time that was asked for

A mistake in the arguments of one call is a TypeError or ValueError, is raised before anything is sent, and leaves the
group as it was.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from skate.exceptions import SkateError

if TYPE_CHECKING:
    from skate.collective.between import Member

__all__ = [
    "CollectiveError",
    "CollectiveTimeoutError",
    "MismatchError",
    "RankDiedError",
    "RankLeftError",
    "compose",
    "unpack",
]

AGAIN = "destroy the group in the ranks that are left, and make it again with init_collective_group()."


class CollectiveError(SkateError, RuntimeError):
    """A collective operation failed, and its group is broken. The text names the ranks that were involved."""

    __module__ = "skate.collective"

    def pack(self) -> bytes:
        """Write it as bytes that `unpack` makes the same error of in another process."""
        # Facts come first and stay short: what is cut off is the end of the text.
        return json.dumps([type(self).__name__, self.__dict__]).encode() + b"\0" + str(self).encode()


class RankDiedError(CollectiveError):
    """The process of a rank ended. `rank`, `pid`, `node_id` and `actor_id` say which."""

    __module__ = "skate.collective"

    def __init__(
        self, message: str = "", *, rank: int = -1, pid: int = 0, node_id: str = "", actor_id: str = ""
    ) -> None:
        self.rank, self.pid, self.node_id, self.actor_id = rank, pid, node_id, actor_id
        super().__init__(message)

    @classmethod
    def of(cls, member: Member, why: str, during: str = "") -> RankDiedError:
        """Make the error of a member of a group."""
        text = compose(f"{member} died{during}.", why=why)
        return cls(text, rank=member.rank, pid=member.pid, node_id=member.node_id, actor_id=member.actor_id)


class RankLeftError(CollectiveError):
    """A rank called destroy_collective_group() and others went on."""

    __module__ = "skate.collective"


class MismatchError(CollectiveError):
    """Two ranks called different operations, or the same one with different shapes, dtypes, roots or reduce ops."""

    __module__ = "skate.collective"


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """A rank did not come within the time limit of the group."""

    __module__ = "skate.collective"

    def __new__(cls, *args: object) -> CollectiveTimeoutError:
        # Of the two bases that CPython makes in their own ways, this one has the larger memory.
        return TimeoutError.__new__(cls, *args)


def compose(what: str, *, why: str = "", next: str = AGAIN) -> str:
    """Put the text of an error together: what happened, why, and what to do."""
    lines = [what]
    lines += [f"  why:  {why}"] if why else []
    lines += [f"  next: {next}"] if next else []
    return "\n".join(lines)


def unpack(raw: bytes) -> CollectiveError:
    """The error that another rank wrote with `pack`."""
    facts, _, text = raw.partition(b"\0")
    name, attributes = json.loads(facts)
    kinds = (CollectiveError, CollectiveTimeoutError, MismatchError, RankDiedError, RankLeftError)
    kind = next(each for each in kinds if each.__name__ == name)
    error = kind(text.decode(errors="replace"))
    error.__dict__.update(attributes)
    return error
