"""What a remote generator returns: references, one by one, while it runs."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from skate._core.ids import short
from skate._object_ref import ObjectRef, current_runtime, dropped_streams
from skate.exceptions import ObjectLostError

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime
    from skate._worker.streams import Stream

T = TypeVar("T", covariant=True)


class ObjectRefGenerator(Generic[T]):
    """References to the items that a remote generator yields, as they are made.

        @skate.remote
        def count(n):
            for i in range(n):
                yield i

        for ref in count.remote(3):
            print(skate.get(ref))

    Also `async for`. The producer waits when it is too far ahead; dropping the generator stops it.
    """

    def __init__(self, id: bytes) -> None:
        self._id = id

    def __iter__(self) -> Iterator[ObjectRef[T]]:
        return self

    def __next__(self) -> ObjectRef[T]:
        ref = self._next(None)
        if ref is None:
            raise StopIteration
        return ref

    def _next(self, timeout: float | None) -> ObjectRef[T] | None:
        """The next reference; None at the end. Raises TimeoutError when none came in time."""
        runtime = current_runtime()
        stream = self._stream_in(runtime)
        if not stream.has_news and not runtime.block_until(lambda: stream.has_news, timeout):
            raise TimeoutError(f"the generator made no item within {timeout} s.")
        with runtime.lock:
            id = stream.take()
        return None if id is None else ObjectRef(id, runtime.process_id)

    def next_ready(self, timeout: float | None = None) -> bool:
        """Whether `next` would return at once (or end); waits up to `timeout` seconds."""
        runtime = current_runtime()
        stream = self._stream_in(runtime)
        return stream.has_news or runtime.block_until(lambda: stream.has_news, timeout)

    def __aiter__(self) -> AsyncIterator[ObjectRef[T]]:
        return self

    async def __anext__(self) -> ObjectRef[T]:
        import asyncio

        runtime = current_runtime()
        stream = self._stream_in(runtime)
        loop = asyncio.get_running_loop()
        id: bytes | None
        while True:
            arrived = asyncio.Event()

            def tell(arrived: asyncio.Event = arrived) -> None:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(arrived.set)

            with runtime.lock:
                if stream.has_news:
                    id = stream.take()
                    break
                stream.waiters.append(tell)
            runtime.loop.linger_no_more()
            with runtime.blocking():
                await arrived.wait()
        if id is None:
            raise StopAsyncIteration
        return ObjectRef(id, runtime.process_id)

    def completed(self) -> ObjectRef[None]:
        """A reference that is ready when the generator has ended, and raises if it raised."""
        runtime = current_runtime()
        self._stream_in(runtime)
        return runtime.adopt(self._id, runtime.process_id)

    def is_finished(self) -> bool:
        """Whether every item was taken and no more will come."""
        stream = self._stream_in(current_runtime())
        return stream.total is not None and stream.taken >= stream.received

    def _stream_in(self, runtime: Runtime) -> Stream:
        stream = runtime.streams.get(self._id)
        if stream is None:  # of an earlier runtime: an end here would look as if all items had been seen
            raise ObjectLostError(object_id=self._id.hex())
        return stream

    def __del__(self) -> None:
        dropped_streams.append(self._id)

    def __repr__(self) -> str:
        return f"ObjectRefGenerator({short(self._id)})"

    def __reduce__(self) -> Any:
        raise TypeError(
            "an ObjectRefGenerator belongs to the process that called .remote(), and cannot be sent to another: "
            "pass on the references that it yields."
        )


class DynamicObjectRefGenerator(Generic[T]):
    """The value of a task with num_returns="dynamic": references to all that it yielded."""

    def __init__(self, refs: list[ObjectRef[T]]) -> None:
        self._refs = refs

    def __iter__(self) -> Iterator[ObjectRef[T]]:
        return iter(self._refs)

    def __len__(self) -> int:
        return len(self._refs)

    def __repr__(self) -> str:
        return f"DynamicObjectRefGenerator({len(self._refs)} references)"

    @staticmethod
    def serialized(ids: Sequence[bytes], owner: bytes) -> bytes:
        """The value as the executor sends it: the references belong to the caller and never existed in the executor."""
        return pickle.dumps(_Dynamic(list(ids), owner), 5)


class _Dynamic:
    def __init__(self, ids: list[bytes], owner: bytes) -> None:
        self.ids = ids
        self.owner = owner

    def __reduce__(self) -> Any:
        return _load_dynamic, (self.ids, self.owner)


def _load_dynamic(ids: list[bytes], owner: bytes) -> DynamicObjectRefGenerator[Any]:
    runtime = current_runtime()
    return DynamicObjectRefGenerator([runtime.adopt(id, owner) for id in ids])
