"""A ring allreduce over the leaders of nodes: which elements each of them sends and receives, in which order. Pure.

The array is cut into one *slice* for each leader, and slices into chunks. Leader p sends everything to its right
neighbour p + 1 and receives everything from its left neighbour p - 1, as two streams without gaps:

    turn       0            1            …   n-2            n-1           …   2n-3
    sends      slice p      slice p-1        slice p+2      slice p+1         slice p+3
    receives   slice p-1    slice p-2        slice p+1      slice p           slice p+2
               and combines it with its own ────────────▶   and keeps it ────────────▶

After turn n-2, leader p has slice p+1 combined from all, and the second half passes combined slices on. What a leader
sends in a turn it has received in the turn before, chunk by chunk in the same order. So the whole dependency is one
number: chunk i of what is sent may leave when chunk i - `ahead` of what is received was dealt with. No leader waits for
the end of a turn, and each sends and receives 2(n-1)/n of the array, however many there are.

A slice is combined in the order of the ring, so all leaders end with the same bits, and so does the next run.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Chunk", "Plan", "make_plan"]


class Chunk(NamedTuple):
    """Elements `start` to `stop` of the array."""

    start: int
    stop: int


class Plan(NamedTuple):
    """What one leader sends and receives. The first `combined` chunks that it receives are combined with its own."""

    sends: list[Chunk]
    receives: list[Chunk]
    combined: int
    #: Chunk i of `sends` may leave when the first i - ahead + 1 chunks of `receives` were dealt with.
    ahead: int

    def may_send(self, received: int) -> int:
        """How many chunks may have left after `received` chunks were dealt with."""
        return min(len(self.sends), self.ahead + received)


def make_plan(position: int, leaders: int, size: int, chunk: int) -> Plan:
    """Plan for the leader at `position` in a ring: an array of `size` elements, in chunks of at most `chunk`.

    >>> plan = make_plan(position=0, leaders=2, size=4, chunk=2)
    >>> plan.sends
    [Chunk(start=0, stop=2), Chunk(start=2, stop=4)]
    >>> plan.receives, plan.combined
    ([Chunk(start=2, stop=4), Chunk(start=0, stop=2)], 1)
    """
    slices = [
        [
            Chunk(start, min(start + chunk, size * (number + 1) // leaders))
            for start in range(size * number // leaders, size * (number + 1) // leaders, chunk)
        ]
        for number in range(leaders)
    ]
    turns = range(2 * leaders - 2)
    return Plan(
        sends=[each for turn in turns for each in slices[(position - turn) % leaders]],
        receives=[each for turn in turns for each in slices[(position - turn - 1) % leaders]],
        combined=sum(len(slices[(position - turn - 1) % leaders]) for turn in range(leaders - 1)),
        ahead=len(slices[position]) if leaders > 1 else 0,
    )
