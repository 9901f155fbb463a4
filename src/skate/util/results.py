"""Values as they come: `as_completed` and `map_unordered`, with Ray's names and arguments."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import skate

#: Tasks of `map_unordered` that are started and whose results are not yet taken.
IN_FLIGHT_MAX = 100


def as_completed(
    refs: Iterable[skate.ObjectRef[Any]], *, chunk_size: int = 10, yield_obj_refs: bool = False, **wait_options: Any
) -> Iterator[Any]:
    """The values of references as they become ready, in chunks; the references with `yield_obj_refs`.

        >>> for value in skate.util.as_completed([f.remote(i) for i in range(10)], chunk_size=1):
        ...     print(value)

    As soon as `chunk_size` of them are ready, these are yielded, in the order of `refs`; then the next chunk is due.
    A task that failed raises its error when its turn comes. Further options are those of `skate.wait`. With
    `skate.as_completed` each reference comes at once.
    """
    _check("as_completed", chunk_size, wait_options)
    return _completed(list(refs), chunk_size, yield_obj_refs, wait_options)


def _completed(
    refs: list[skate.ObjectRef[Any]], chunk_size: int, yield_obj_refs: bool, wait_options: dict[str, Any]
) -> Iterator[Any]:
    if wait_options:
        while refs:
            ready, refs = skate.wait(refs, num_returns=min(chunk_size, len(refs)), **wait_options)
            yield from ready if yield_obj_refs else map(skate.get, ready)
        return
    # The same without a look at every reference for each chunk.
    place = {ref: index for index, ref in enumerate(refs)}
    if len(place) < len(refs):
        raise ValueError("as_completed() was given the same reference twice.")
    arriving = skate.as_completed(refs)
    refs.clear()
    while ready := sorted(itertools.islice(arriving, chunk_size), key=place.__getitem__):
        for ref in ready:
            del place[ref]
        yield from ready if yield_obj_refs else map(skate.get, ready)


def map_unordered(
    fn: Any,
    items: Iterable[Any],
    *,
    backpressure_size: int | None = IN_FLIGHT_MAX,
    chunk_size: int = 10,
    yield_obj_refs: bool = False,
    **wait_options: Any,
) -> Iterator[Any]:
    """Call a remote function, or a method of an actor, with each item; values in chunks, as they come.

        >>> for value in skate.util.map_unordered(square, range(1_000_000)):
        ...     print(value)

    At most `backpressure_size` calls are in flight, so the items may be endless; None means no limit. At that number
    the results of `chunk_size` calls are waited for and yielded, as in `as_completed`, before the next item is read.
    """
    if not hasattr(fn, "remote"):
        raise TypeError(
            f"map_unordered() takes a remote function or a method of an actor, and {fn!r} has no .remote().\n"
            "  next: pass skate.remote(function)."
        )
    _check("map_unordered", chunk_size, wait_options)
    if backpressure_size is not None:
        _check_positive("map_unordered", "backpressure_size", backpressure_size)

    def results() -> Iterator[Any]:
        flying: list[skate.ObjectRef[Any]] = []
        for item in items:
            flying.append(fn.remote(item))
            if backpressure_size is not None and len(flying) >= backpressure_size:
                ready, flying = skate.wait(flying, num_returns=min(chunk_size, len(flying)), **wait_options)
                yield from ready if yield_obj_refs else map(skate.get, ready)
        yield from _completed(flying, chunk_size, yield_obj_refs, wait_options)

    return results()


def _check(function: str, chunk_size: Any, wait_options: dict[str, Any]) -> None:
    _check_positive(function, "chunk_size", chunk_size)
    if "num_returns" in wait_options:
        raise ValueError(f"{function}(num_returns=…): how many are waited for at a time is chunk_size.")


def _check_positive(function: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{function}({name}={value!r}): it may be a whole number, 1 or more.")
