"""How many workers a group has: what fits into the cluster, and what to try when that is in use. Pure.

capacity   what the machines that live could run if nothing else ran
estimate   what is free now, if it is not in too many pieces
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def checked_workers(workers: object) -> tuple[int, int]:
    """The least and the most workers. Raises ValueError or TypeError for what cannot be meant.

    >>> checked_workers(2), checked_workers((1, 4))
    ((2, 2), (1, 4))
    """
    pair = workers if isinstance(workers, (tuple, list)) else (workers, workers)
    numbers = [each for each in pair if isinstance(each, int) and not isinstance(each, bool)]
    if len(pair) != 2 or len(numbers) != 2 or not 1 <= numbers[0] <= numbers[1]:
        raise ValueError(
            f"train.run(workers={workers!r}): it may be a whole number from 1 on, "
            "or a pair (least, most) for a training that goes on with fewer."
        )
    return numbers[0], numbers[1]


def capacity(nodes: Iterable[Mapping[str, float]], needs: Mapping[str, float]) -> int:
    """How many workers with these needs the nodes could run, if nothing else ran.

    >>> capacity([{"CPU": 3}, {"CPU": 3}], {"CPU": 2})
    2
    """
    return sum(fitting(node, needs) for node in nodes)


def fitting(free: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """How many workers fit into these resources."""
    # Sums of fractions like 0.1 are a little off.
    return min(int(free.get(kind, 0) / amount + 1e-6) for kind, amount in needs.items())


def sizes_to_try(capacity: int, free: int, least: int, most: int) -> list[int]:
    """The numbers of workers to ask for, one after the other, until one can be had. Empty if there can be none.

    The first one is what the cluster could run; it is free in the usual case, or about to be. Then come those that the
    free resources would allow. Free resources may lie in pieces on several nodes, so one is tried after the other.

    >>> sizes_to_try(capacity=8, free=3, least=1, most=4)
    [4, 3, 2, 1]
    """
    best = min(capacity, most)
    if best < least:
        return []
    return [best, *range(max(least, min(best - 1, free)), least - 1, -1)] if best > least else [best]


def size_to_grow_to(workers: int, capacity: int, free: int, most: int) -> int:
    """How many workers a group could have that has `workers` now; the same number if there is no room for more.

    >>> size_to_grow_to(workers=1, capacity=4, free=2, most=4)
    3
    """
    return max(workers, min(most, capacity, workers + free))
