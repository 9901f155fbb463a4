"""The future that a user holds: a reference to an object that exists now or will exist later.

A reference is a frozen msgspec struct rather than a plain class: making and dropping one costs half as much, and the
cyclic collector does not have to visit a million of them.

Its finalizer only appends to a deque that the runtime's loop drains: a finalizer may run in any thread, in the middle
of anything, with any lock held.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import msgspec

from skate._core.ids import OBJECT_BYTES, PROCESS_BYTES, short, task_of
from skate._error_text import kind_of

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

    from skate._worker.runtime import Runtime
    from skate.ids import JobID, TaskID

T = TypeVar("T", covariant=True)
NIL = b"\xff" * OBJECT_BYTES
NIL_SAYS = "ObjectRef.nil(), which stands for no object"
#: The owner of what does not exist: no process has this id, and a node says of such a process that it has ended.
NO_PROCESS = b"\xff" * PROCESS_BYTES

#: Ids of references that were dropped, once for each reference. Drained by the runtime.
dropped: deque[bytes] = deque()
_drop = dropped.append
#: The same of generators: ids of their first returns.
dropped_streams: deque[bytes] = deque()


def _no_owner() -> NoReturn:
    """Says what to do instead of `ObjectRef(id)`, which Ray has.

    msgspec calls this if the owner is missing, so it costs nothing otherwise. To return what `from_binary` returns, the
    class would need a metaclass with `__call__`: even around that, making a reference takes 82 ns instead of 71 ns, and
    `f.remote()` 0.67 µs instead of 0.64 µs (20,000 calls, time of the thread).
    """
    raise TypeError(
        "ObjectRef(id) makes no reference.\n  next: ObjectRef.from_binary(id) gives one by the id of an object."
    )


class ObjectRef(msgspec.Struct, Generic[T], frozen=True, gc=False, eq=False):
    """A reference to a value of type `T` in the object store.

        >>> ref = f.remote(1)        # at once
        >>> skate.get(ref)           # waits for the value
        >>> await ref                # the same in async code

    References can be compared, hashed, put in containers, passed to tasks and returned from them. The object lives
    as long as any reference to it, anywhere.
    """

    _id: bytes
    _owner: bytes = msgspec.field(default_factory=_no_owner)

    def __del__(self) -> None:
        try:
            _drop(self._id)
        except AttributeError:  # made by hand, without an id
            pass

    def hex(self) -> str:
        return self._id.hex()

    def binary(self) -> bytes:
        return self._id

    @classmethod
    def size(cls) -> int:
        """The number of bytes of the id of an object."""
        return OBJECT_BYTES

    @classmethod
    def nil(cls) -> ObjectRef[Any]:
        """A reference to no object, for programs that want one where a reference is expected.

        It can be compared, printed, and sent inside other values. To ask for its value, or to pass it as the argument
        of a task, which would ask for its value, is a ValueError.
        """
        return NilRef(NIL, NO_PROCESS)

    def is_nil(self) -> bool:
        return self._id == NIL

    @classmethod
    def from_random(cls) -> ObjectRef[Any]:
        """A reference to an object that does not exist."""
        return ObjectRef(os.urandom(OBJECT_BYTES), NO_PROCESS)

    @classmethod
    def from_binary(cls, id_bytes: bytes) -> ObjectRef[Any]:
        """A reference by the id of an object that this process knows.

        An id alone does not keep an object, so a reference to an unknown object can be compared and printed, and
        `get` of it raises ObjectLostError. To send references, send the references themselves.
        """
        if not isinstance(id_bytes, bytes) or len(id_bytes) != OBJECT_BYTES:
            raise ValueError(f"ObjectRef: {id_bytes!r} is no id of an object, which is made of {OBJECT_BYTES} bytes.")
        if id_bytes == NIL:
            return cls.nil()
        known = _find(id_bytes)
        return _Uncounted(id_bytes, NO_PROCESS) if known is None else known

    @classmethod
    def from_hex(cls, hex_id: str) -> ObjectRef[Any]:
        """The same by hexadecimal digits, as `ref.hex()` writes them."""
        try:
            id = bytes.fromhex(hex_id)
        except ValueError:
            raise ValueError(f"ObjectRef.from_hex({hex_id!r}): these are no hexadecimal digits.") from None
        return cls.from_binary(id)

    def task_id(self) -> TaskID:
        """The id of the task that makes the object."""
        from skate.ids import TaskID

        return TaskID(task_of(self._id))

    def job_id(self) -> JobID:
        """The id of the job that this process works for; nil for the nil reference, and where no Skate runs.

        The id of an object does not tell which job made it.
        """
        from skate.ids import JobID

        return JobID.nil() if self.is_nil() else JobID.of_process()

    def owner_address(self) -> bytes:
        """The id of the process that owns the object."""
        return self._owner

    def call_site(self) -> str:
        """Where the reference was made: always empty, because Skate does not note it."""
        return ""

    def future(self) -> Future[T]:
        """A `concurrent.futures.Future` that gets the value or the error."""
        return current_runtime().futures.future(self)

    def as_future(self) -> asyncio.Future[T]:
        """The same for `asyncio`: a future of the event loop that runs in this thread."""
        import asyncio

        return asyncio.wrap_future(self.future())

    def when_ready(self, callback: Callable[[], object]) -> None:
        """Call the function, without arguments, once the value or the error is there; at once if it is there already.

        For programs that count what is ready, as schedulers do: unlike `future()`, this neither reads nor unpickles the
        value. The function is called in this thread or in one of Skate's. It may start tasks and calls. It must be
        quick and must not wait, as `skate.get` does, because other references wait for their turn. What it raises is
        logged.
        """
        if not callable(callback):
            raise TypeError(f"ObjectRef.when_ready() takes a function without arguments, not {kind_of(callback)}.")
        runtime = runtime_or_none()
        if runtime is None:  # Skate was shut down, and with it the reference has become an error
            call_back(callback)
        else:
            runtime.values.call_when_ready(self, callback)

    def has_failed(self) -> bool:
        """Whether the object is there and is an error. Like `when_ready`, this does not read it."""
        runtime = runtime_or_none()
        return runtime is not None and runtime.values.has_failed(self)

    def _on_completed(self, callback: Callable[[Any], Any]) -> ObjectRef[T]:
        """Call the function with the value, or with the error, once it is there, in a thread of Skate."""
        self.future().add_done_callback(lambda future: callback(future.exception() or future.result()))
        return self

    def __await__(self) -> Generator[Any, None, T]:
        return current_runtime().futures.awaitable(self).__await__()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and other._id == self._id

    def __hash__(self) -> int:
        return hash(self._id)

    def __repr__(self) -> str:
        return f"ObjectRef({'nil' if self._id == NIL else short(self._id)})"

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


class _Uncounted(ObjectRef[Any], frozen=True, gc=False, eq=False):
    """A reference that was made of an unknown id. It was never counted, so its end is of no interest either."""

    def __del__(self) -> None:
        pass


class NilRef(_Uncounted, frozen=True, gc=False, eq=False):
    """What `ObjectRef.nil()` returns. It is the same in every process, and no table has an entry for it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectRef.nil, ()


def _find(id: bytes) -> ObjectRef[Any] | None:
    """One more reference to an object that this process knows; None if there is no such object, or no runtime."""
    runtime = runtime_or_none()
    return runtime.find(id) if runtime is not None else None


def call_back(callback: Callable[[], object]) -> None:
    """Call what was given to `when_ready`: Skate's own threads have to go on, whatever that raises."""
    try:
        callback()
    except BaseException:  # also SystemExit, and the CancelledError of asyncio
        import logging  # not worth its time in every process

        logging.getLogger("skate").exception(
            "ObjectRef.when_ready(): the function %r raised.\n  next: catch in it what it may raise.", callback
        )


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
_runtime_or_none: Callable[[], Runtime | None]


def current_runtime() -> Runtime:
    return _accessor()


def runtime_or_none() -> Runtime | None:
    return _runtime_or_none()


def set_runtime_accessor(accessor: Callable[[], Runtime], or_none: Callable[[], Runtime | None]) -> None:
    global _accessor, _runtime_or_none
    _accessor = accessor
    _runtime_or_none = or_none
