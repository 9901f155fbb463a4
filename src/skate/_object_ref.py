"""The future that a user holds: a reference to an object that exists now or will exist later.

A reference is a frozen msgspec struct rather than a plain class: making and dropping one costs half as much, and the
cyclic collector does not have to visit a million of them.

Its finalizer only appends to a deque that the runtime's loop drains: a finalizer may run in any thread, in the middle
of anything, with any lock held.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from skate._core.ids import short, task_of

if TYPE_CHECKING:
    from concurrent.futures import Future

    from skate._worker.runtime import Runtime

T = TypeVar("T", covariant=True)

#: Ids of references that were dropped, once for each reference. Drained by the runtime.
dropped: deque[bytes] = deque()
_drop = dropped.append
#: The same of generators: ids of their first returns.
dropped_streams: deque[bytes] = deque()


class ObjectRef(msgspec.Struct, Generic[T], frozen=True, gc=False, eq=False):
    """A reference to a value of type `T` in the object store.

        >>> ref = f.remote(1)        # at once
        >>> skate.get(ref)           # waits for the value
        >>> await ref                # the same in async code

    References can be compared, hashed, put in containers, passed to tasks and returned from them. The object lives
    as long as any reference to it, anywhere.
    """

    _id: bytes
    _owner: bytes

    def __del__(self) -> None:
        try:
            _drop(self._id)
        except AttributeError:  # made by hand, without an id
            pass

    def hex(self) -> str:
        return self._id.hex()

    def binary(self) -> bytes:
        return self._id

    def task_id(self) -> bytes:
        """The id of the task that makes the object."""
        return task_of(self._id)

    def future(self) -> Future[T]:
        """A `concurrent.futures.Future` that gets the value or the error."""
        return current_runtime().futures.future(self)

    def as_future(self) -> Future[T]:
        return self.future()

    def __await__(self) -> Generator[Any, None, T]:
        return current_runtime().futures.awaitable(self).__await__()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and other._id == self._id

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"ObjectRef({short(self._id)})"

    def __reduce__(self) -> tuple[Any, ...]:
        sink = _sinks.refs
        if sink is None:
            current_runtime().keep_for_good(self)
        else:
            sink.append(self)
        return _load_ref, (self._id, self._owner)

    def __copy__(self) -> ObjectRef[T]:
        return self

    def __deepcopy__(self, memo: object) -> ObjectRef[T]:
        return self


class _Sinks(threading.local):
    """Where references met while pickling are noted, by thread; None outside our own pickling."""

    refs: list[ObjectRef[Any]] | None = None


_sinks = _Sinks()


class collecting_refs:  # noqa: N801 - reads as a verb: `with collecting_refs() as refs`
    """Notes every reference that is pickled in this thread inside the block."""

    __slots__ = ("_outer", "refs")

    def __enter__(self) -> list[ObjectRef[Any]]:
        self._outer = _sinks.refs
        self.refs: list[ObjectRef[Any]] = []
        _sinks.refs = self.refs
        return self.refs

    def __exit__(self, *_: object) -> None:
        _sinks.refs = self._outer


def _load_ref(id: bytes, owner: bytes) -> ObjectRef[Any]:
    return current_runtime().adopt(id, owner)


#: Set by the module that knows which runtime this process has; kept here so that imports point inwards.
_accessor: Callable[[], Runtime]


def current_runtime() -> Runtime:
    return _accessor()


def set_runtime_accessor(accessor: Callable[[], Runtime]) -> None:
    global _accessor
    _accessor = accessor
