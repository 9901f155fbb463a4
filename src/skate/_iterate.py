"""Results as they come: `as_completed` and `map`."""

from __future__ import annotations

import itertools
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from skate._core.task import Failure
from skate._error_text import kind_of
from skate._object_ref import ObjectRef
from skate._serialize.failures import error_of, failure_of
from skate._worker.current import get_runtime
from skate.exceptions import GetTimeoutError

if TYPE_CHECKING:
    from skate._actor import ActorMethod
    from skate._worker.runtime import Runtime

T = TypeVar("T")

#: Work that one chunk of `map` should hold, in seconds: long against the cost of a task, short against patience.
CHUNK_S = 0.01
CHUNK_MAX = 4096
#: Chunks on the way for each CPU.
CHUNKS_PER_CPU = 4
#: Calls of an actor's method on the way, unless max_in_flight says otherwise.
CALLS_MAX = 1000


def as_completed(runtime: Runtime, refs: list[ObjectRef[T]], timeout: float | None) -> Iterator[ObjectRef[T]]:
    """Yields each reference once, when it is ready; registers once with each, so n references cost O(n)."""
    deadline = None if timeout is None else time.monotonic() + timeout
    ready: deque[ObjectRef[T]] = deque()
    for ref in refs:
        if not isinstance(ref, ObjectRef):
            raise TypeError(f"as_completed() takes references, and an element is {kind_of(ref)}.")

    def watch() -> Iterator[ObjectRef[T]]:
        for ref in refs:
            runtime.when_ready(ref, lambda ref=ref: ready.append(ref))  # type: ignore[misc]
        for left in range(len(refs), 0, -1):
            if not ready:
                wait = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not runtime.block_until(lambda: ready, wait):
                    message = f"as_completed() timed out after {timeout:g} s: {left:,} of {len(refs):,} are not ready."
                    raise GetTimeoutError(message, timeout_s=timeout, pending=left, total=len(refs))
            yield ready.popleft()

    return watch()


def _run_chunk(function: Any, chunk: list[tuple[Any, ...]], *, catch: bool) -> tuple[list[Any], float, bytes | None]:
    """Values up to the first error, the time they took, and that error; unless that is for the task to fail with."""
    values = []
    begin = time.perf_counter()
    error = None
    try:
        for items in chunk:
            arguments = [get_runtime().get([item], None)[0] if isinstance(item, ObjectRef) else item for item in items]
            values.append(function(*arguments))
    except Exception as raised:
        if not catch:
            raise
        name = getattr(function, "__qualname__", type(function).__name__)
        error = failure_of(raised, function_name=name, pid=os.getpid()).payload
    return values, time.perf_counter() - begin, error


def parallel_map(
    runtime: Runtime, function: Any, *iterables: Iterable[Any], max_in_flight: int | None, chunk: int | None
) -> Iterator[Any]:
    """See `skate.map`."""
    from skate._actor import ActorMethod
    from skate._options import task_options
    from skate._remote_function import RemoteFunction

    for name, value in (("max_in_flight", max_in_flight), ("chunk", chunk)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"map({name}={value!r}): it may be None or a whole number, 1 or more.")
    if isinstance(function, ActorMethod):
        return _map_calls(runtime, function, zip(*iterables), max_in_flight or CALLS_MAX)
    if isinstance(function, RemoteFunction):
        # An item's value is whatever the function returns.
        plain, options = function._function, msgspec.structs.replace(function._options, num_returns=None)
    elif callable(function):
        plain, options = function, task_options()
    else:
        raise TypeError(f"map() takes a function, not {kind_of(function)}.")
    retries = bool(options.retry_exceptions)
    if retries and chunk is not None and chunk > 1:
        raise ValueError(
            f"map({chunk=}) of a function with retry_exceptions: each item is a task, because one that failed is run "
            "again by itself. Leave chunk out."
        )
    if retries or options.max_calls:  # these count runs of the function
        chunk = chunk or 1

    def run_chunk(items: list[tuple[Any, ...]]) -> tuple[list[Any], float, bytes | None]:
        return _run_chunk(plain, items, catch=not retries)

    run_chunk.__qualname__ = run_chunk.__name__ = getattr(plain, "__qualname__", type(plain).__name__)
    task: RemoteFunction[Any, Any] = RemoteFunction(run_chunk, options)
    iterators = [iter(iterable) for iterable in iterables]
    cpus = max(1, int(runtime.welcome.resources.get("CPU", 1)))

    def results() -> Iterator[Any]:
        items = zip(*iterators)
        size = chunk or 1
        flying: deque[tuple[int, ObjectRef[Any]]] = deque()
        in_flight = 0
        exhausted = False
        while True:
            while not exhausted and len(flying) < CHUNKS_PER_CPU * cpus:
                room = size if max_in_flight is None else min(size, max_in_flight - in_flight)
                if room < 1:
                    break
                batch = list(itertools.islice(items, room))
                if not batch:
                    exhausted = True
                    break
                in_flight += len(batch)
                flying.append((len(batch), task.remote(batch)))
            if not flying:
                return
            count, ref = flying.popleft()
            values, seconds, error = runtime.get([ref], None)[0]
            del ref
            in_flight -= count
            if chunk is None:
                # Towards CHUNK_S of work, but never more than doubling: the first items may not be typical.
                size = max(1, min(CHUNK_MAX, 2 * size, int(CHUNK_S * count / max(seconds, 1e-7))))
            yield from values
            if error is not None:
                raise error_of(Failure(error))

    return results()


def _map_calls(
    runtime: Runtime, method: ActorMethod[Any, Any], items: Iterable[tuple[Any, ...]], most: int
) -> Iterator[Any]:
    """A call for each item: actors take many calls in one message as it is."""
    flying: deque[ObjectRef[Any]] = deque()
    for arguments in items:
        if len(flying) >= most:
            yield runtime.get([flying.popleft()], None)[0]
        flying.append(method.remote(*arguments))
    while flying:
        yield runtime.get([flying.popleft()], None)[0]
