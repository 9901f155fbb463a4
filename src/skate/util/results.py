"""Values as they come: `as_completed` and `map_unordered`, with Ray's names and arguments."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import skate

#: Tasks of `map_unordered` that are started and whose results are not yet taken.
IN_FLIGHT_MAX = 100


def as_completed(
    refs: Iterable[skate.ObjectRef[Any]], *, chunk_size: int = 10, yield_obj_refs: bool = False
) -> Iterator[Any]:
    """The values of references in the order in which they become ready; the references with `yield_obj_refs`.

        >>> for value in skate.util.as_completed([f.remote(i) for i in range(10)]):
        ...     print(value)

    A task that failed raises its error when its turn comes. `chunk_size` is accepted, as in Ray; references are
    watched one by one here, which costs no more. `skate.as_completed` yields references.
    """
    _check_positive("as_completed", "chunk_size", chunk_size)
    ready = skate.as_completed(refs)
    return ready if yield_obj_refs else (skate.get(ref) for ref in ready)


def map_unordered(
    function: Any,
    items: Iterable[Any],
    *,
    backpressure_size: int | None = IN_FLIGHT_MAX,
    chunk_size: int = 10,
    yield_obj_refs: bool = False,
) -> Iterator[Any]:
    """Call a remote function, or a method of an actor, with each item; values in the order in which they come.

        >>> for value in skate.util.map_unordered(square, range(1_000_000)):
        ...     print(value)

    At most `backpressure_size` calls are started and not yet taken, so the items may be endless; None means no limit.
    """
    if not hasattr(function, "remote"):
        raise TypeError(
            f"map_unordered() takes a remote function or a method of an actor, and {function!r} has no .remote().\n"
            "  next: pass skate.remote(function)."
        )
    _check_positive("map_unordered", "chunk_size", chunk_size)
    if backpressure_size is not None:
        _check_positive("map_unordered", "backpressure_size", backpressure_size)

    def results() -> Iterator[Any]:
        waiting = iter(items)
        if backpressure_size is None:
            yield from as_completed([function.remote(item) for item in waiting], yield_obj_refs=yield_obj_refs)
            return
        flying: list[skate.ObjectRef[Any]] = []
        done: deque[skate.ObjectRef[Any]] = deque()
        while True:
            for item in waiting:
                flying.append(function.remote(item))
                if len(flying) + len(done) >= backpressure_size:
                    break
            if not flying and not done:
                return
            if not done:
                # All that is ready by now, and at least one: a wait for each would look at every reference each time.
                ready, flying = skate.wait(flying)
                more, flying = skate.wait(flying, num_returns=len(flying), timeout=0) if flying else ([], [])
                done.extend(ready + more)
            ref = done.popleft()
            yield ref if yield_obj_refs else skate.get(ref)

    return results()


def _check_positive(function: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{function}({name}={value!r}): it may be a whole number, 1 or more.")
