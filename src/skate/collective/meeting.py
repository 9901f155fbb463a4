"""Where the ranks of a group find each other: a named actor for each group.

The first rank that comes makes the actor, or the driver does with create_collective_group(). Each rank joins with what
it offers to the others, and hears who they are when all are there. The actor lives as long as its creator and a handle
in some rank, so a name is free again when the ranks have destroyed the group or have ended.

A *round* is one making of the group. It is over when a rank leaves, or when an actor that was a member comes again
because it was restarted; who joins after that joins the next round.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from skate.collective.between import Member

__all__ = ["Meeting", "Round", "actor_name"]


def actor_name(group: str) -> str:
    """The name of the actor of a group, in the namespace of the program."""
    return f"skate.collective/{group}"


@dataclass
class Round:
    """Who has joined one making of a group. Pure."""

    world: int = 0
    members: dict[int, Member] = field(default_factory=dict)
    over: bool = False

    @property
    def complete(self) -> bool:
        return bool(self.world) and len(self.members) == self.world

    def ended_by(self, member: Member) -> bool:
        """Whether this member's coming shows that the round is over: its earlier process, which was in it, ended."""
        before = next((each for each in self.members.values() if _same_actor(each, member)), None)
        return self.complete and before is not None and before.pid != member.pid

    def admit(self, member: Member, world: int) -> str:
        """Let a rank in, or say why not."""
        if self.complete:
            there = "\n        ".join(str(self.members[rank]) for rank in sorted(self.members))
            return f"the group exists, with\n        {there}"
        if self.members and world != self.world:
            other = self.members[min(self.members)]
            return f"{member} says world_size={world}, and {other} says world_size={self.world}"
        other_there = self.members.get(member.rank)
        if other_there is not None and not _same_actor(other_there, member):
            return f"{other_there} has the rank already, and {member} wants it too"
        self.world = world
        self.members[member.rank] = member
        return ""

    def missing(self) -> list[int]:
        return [rank for rank in range(self.world) if rank not in self.members]


def _same_actor(one: Member, other: Member) -> bool:
    return bool(one.actor_id) and one.actor_id == other.actor_id


Joined = tuple[str, int, list[tuple[Member, Any]]]


class Meeting:
    """The actor of a group. Its methods are called by ranks; those that wait for other ranks are coroutines."""

    def __init__(self) -> None:
        self._declared: dict[str, int] = {}
        self._world = self._timeout_ms = 0
        self._number = 1
        self._round = Round()
        self._offers: dict[int, Any] = {}
        self._waiting: dict[int, asyncio.Future[Joined]] = {}

    async def declare(self, world: int, ranks: dict[str, int], timeout_ms: int) -> tuple[str, bool]:
        """Driver: these actors, by id, are the group. Returns why not, and whether that may change soon."""
        if self._round.over:
            self._begin()
        elif self._declared or self._round.complete:
            return "a group of this name was declared before, or exists", self._round.complete
        self._declared, self._world, self._timeout_ms = ranks, world, timeout_ms
        return "", False

    async def declared(self, actor_id: str) -> tuple[int, int, int] | None:
        """Return the world size, the rank and the time limit that the driver declared for an actor."""
        rank = self._declared.get(actor_id)
        return None if rank is None else (self._world, rank, self._timeout_ms)

    async def join(self, member: Member, world: int, offer: Any) -> Joined:
        """Wait until all ranks are here. Returns why not, the number of the round, members and their offers.

        When it is refused, the number is -1 if that may change, because the group that is there may be about to end.
        """
        if self._round.over or self._round.ended_by(member):
            self._begin()
        taken = self._round.complete
        refused = self._round.admit(member, world)
        if refused:
            return refused, -1 if taken else 0, []
        self._withdrawn(member.rank)
        self._offers[member.rank] = offer
        answer: asyncio.Future[Joined] = asyncio.get_running_loop().create_future()
        self._waiting[member.rank] = answer
        if self._round.complete:
            found = [(self._round.members[rank], self._offers[rank]) for rank in range(world)]
            for each in self._waiting.values():
                each.set_result(("", self._number, found))
            # Nothing of the ranks is kept: an actor does not end while another one refers to what it owns.
            self._waiting.clear()
            self._offers.clear()
        return await answer

    async def missing(self) -> list[int]:
        """The ranks that have not joined."""
        return self._round.missing()

    async def withdraw(self, rank: int) -> None:
        """Take back a join that waited too long, or was interrupted."""
        if not self._round.complete:
            self._round.members.pop(rank, None)
            self._withdrawn(rank)

    async def leave(self, number: int) -> None:
        """Note that a rank has left: the round is over, and the name can be used again."""
        if number == self._number:
            self._round.over = True

    def _withdrawn(self, rank: int) -> None:
        """End a call of join whose caller has stopped waiting."""
        self._offers.pop(rank, None)
        before = self._waiting.pop(rank, None)
        if before is not None:
            before.set_result(("the rank joined a second time, or gave up", 0, []))

    def _begin(self) -> None:
        self._number += 1
        self._round = Round()
