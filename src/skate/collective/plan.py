"""Which rank moves which elements when, within one node. Pure: no memory, no clock.

Each rank has a *board*: a ring of slots in shared memory that it writes and all ranks of the node read. An operation is
a sequence of steps, equally many on every rank. In step i a rank first writes its slot (`puts`), and later, when the
others have written theirs, reads the slots of step i (`takes`, `fold`). Arrays are split over steps in chunks that fit
a slot, so a large array passes through caches.

    allreduce, few ranks or small    put the chunk; fold the slots of all ranks into the target
    allreduce, more ranks            put the chunk; rank r folds slice r of all slots into its slot of a later step;
                                     take all slices from there: each rank folds only 1/n of the array

Ranks are folded in ascending order in both, so that the result of an element depends neither on the size of the
array nor on the algorithm, and is the same bits on every rank.

Invariant: a rank executes `write 0, write 1, read 0, write 2, read 1, …` (`LAG` = 1). What step i writes may depend on
           reads up to step i - 2. A slot is written again `SLOTS` steps later, when all ranks have read it.
           tests/unit/test_collective_plan.py runs random plans in random order against these rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

#: How many slots a board has. Two would do; more let ranks run at slightly different speeds.
SLOTS = 4

#: A rank writes this many steps ahead of what it reads.
LAG = 1

#: From three ranks on, chunks of more elements than this are folded by slices: smaller ones are folded by every rank.
#: A second step costs more than folding 32 KiB from a few slots.
WHOLE_MAX = 8192

KINDS = (
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "gather",
    "reduce",
    "reducescatter",
    "scatter",
)


class Piece(NamedTuple):
    """Elements `start` to `stop` of one of a rank's arrays, and where they lie in a slot."""

    part: int
    start: int
    stop: int
    at: int


class Take(NamedTuple):
    """Copy from the slot of a rank into the target."""

    rank: int
    piece: Piece


class Fold(NamedTuple):
    """Reduce `size` elements at `at` in the slots of all ranks, in ascending order of ranks.

    The result goes to `start` in the target, or, if `ahead` is not 0, to the same place `at` in this rank's slot of the
    step that comes `ahead` steps later.
    """

    at: int
    size: int
    start: int
    ahead: int = 0


class Step(NamedTuple):
    """What one rank does in one step."""

    puts: tuple[Piece, ...] = ()
    takes: tuple[Take, ...] = ()
    fold: Fold | None = None


def steps(kind: str, rank: int, world: int, root: int, count: int, room: int) -> Iterator[Step]:
    """Plan an operation for one rank.

    `count` is the number of elements of one array, and `room` that of a slot. Sources of scatter, alltoall and
    reducescatter have `world` arrays, and so have targets of gather, allgather and alltoall; all others have one.

    >>> list(steps("broadcast", rank=1, world=2, root=0, count=5, room=4))
    [Step(puts=(), takes=(Take(rank=0, piece=Piece(part=0, start=0, stop=4, at=0)),), fold=None), ...]
    """
    if kind == "barrier" or count == 0:
        yield Step()
    elif kind in ("allreduce", "reduce"):
        receives = kind == "allreduce" or rank == root
        if world <= 2 or count <= WHOLE_MAX:
            yield from _fold_whole(receives, count, room)
        else:
            yield from _fold_slices(receives, rank, world, count, room)
    elif kind in ("broadcast", "gather", "allgather"):
        sends = kind != "broadcast" or rank == root
        if kind == "broadcast":
            sources = [] if rank == root else [(root, 0)]
        else:
            sources = [(other, other) for other in range(world)] if kind == "allgather" or rank == root else []
        for start in range(0, count, room):
            stop = min(start + room, count)
            yield Step(
                puts=(Piece(0, start, stop, 0),) if sends else (),
                takes=tuple(Take(other, Piece(part, start, stop, 0)) for other, part in sources),
            )
    else:
        yield from _by_parts(kind, rank, world, root, count, room)


def _fold_whole(receives: bool, count: int, room: int) -> Iterator[Step]:
    for start in range(0, count, room):
        stop = min(start + room, count)
        fold = Fold(0, stop - start, start) if receives else None
        yield Step(puts=(Piece(0, start, stop, 0),), fold=fold)


def _fold_slices(receives: bool, rank: int, world: int, count: int, room: int) -> Iterator[Step]:
    """Steps `put 0, put 1, share 0, put 2, share 1, …`: the slots of `share k` hold the folded slices of chunk k."""
    chunks = -(-count // room)

    def put(k: int) -> Step:
        start, stop = k * room, min((k + 1) * room, count)
        cuts = _cuts(stop - start, world)
        put_at = 2 * k - 1 if k else 0
        share_at = 2 * k + 2 if k < chunks - 1 or chunks == 1 else 2 * k + 1
        return Step(
            puts=(Piece(0, start, stop, 0),),
            fold=Fold(cuts[rank], cuts[rank + 1] - cuts[rank], 0, share_at - put_at),
        )

    def share(k: int) -> Step:
        start, stop = k * room, min((k + 1) * room, count)
        cuts = _cuts(stop - start, world)
        takes = (Take(r, Piece(0, start + cuts[r], start + cuts[r + 1], cuts[r])) for r in range(world))
        return Step(takes=tuple(takes) if receives else ())

    yield put(0)
    for k in range(chunks):
        if k + 1 < chunks:
            yield put(k + 1)
        elif chunks == 1:
            yield Step()  # `share 0` may depend only on what is read two steps before
        yield share(k)


def _by_parts(kind: str, rank: int, world: int, root: int, count: int, room: int) -> Iterator[Step]:
    """Sources with an array for each rank: a slot holds a chunk of each."""
    width = room // world
    assert width, f"a slot of {room} elements for {world} ranks"
    for start in range(0, count, width):
        stop = min(start + width, count)
        sends = kind != "scatter" or rank == root
        puts = tuple(Piece(part, start, stop, part * width) for part in range(world)) if sends else ()
        mine = rank * width
        if kind == "reducescatter":
            yield Step(puts, fold=Fold(mine, stop - start, start))
        elif kind == "alltoall":
            yield Step(puts, tuple(Take(other, Piece(other, start, stop, mine)) for other in range(world)))
        else:
            yield Step(puts, (Take(root, Piece(0, start, stop, mine)),))


def _cuts(size: int, parts: int) -> list[int]:
    return [size * part // parts for part in range(parts + 1)]
