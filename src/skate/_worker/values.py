"""Waiting for values: `get`, `wait`, and a word when one is there.

Called without the lock. Whoever waits reads the sockets itself (`loop.py`), and looks at the object table in between;
what lies in shared memory is mapped, and what is pickled is loaded, in the thread that asked.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from skate._core.ids import node_of
from skate._core.ownership import FailureWatch, Stored
from skate._core.task import Failure
from skate._object_ref import NIL, NIL_SAYS, ObjectRef, call_back
from skate._serialize.failures import error_of
from skate._serialize.values import NONE, deserialize
from skate._worker.waits import Wait
from skate.exceptions import GetTimeoutError, ObjectLostError

if TYPE_CHECKING:
    from skate._core.patience import Sight
    from skate._worker.runtime import Runtime

#: A value that another process has is here after some 0.2 ms, or 5 ms if Python is busy there. A task that waits longer
#: gives its CPU to others.
FETCH_S = 0.005

_NOT_NOTED: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def unknown(id: bytes) -> ObjectLostError | ValueError:
    """The error of a reference to an object that this process knows nothing of."""
    if id == NIL:
        return ValueError(f"get() was given {NIL_SAYS}. `ref.is_nil()` tells.")
    reason = "it is of an earlier session of this program, which skate.shutdown() ended, or was made by hand."
    return ObjectLostError(object_id=id.hex(), reason=reason)


class Values:
    """The values of references, as this process comes by them."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def get(self, refs: Sequence[ObjectRef[Any]], timeout: float | None) -> list[Any]:
        """The values, in order; raises an error among them as soon as there is one."""
        runtime = self._runtime
        deadline = None if timeout is None else time.monotonic() + timeout
        out: list[Any] = []
        append = out.append
        stored: list[tuple[int, bytes, int]] = []
        for value in self._wait_for_all(refs, timeout):
            if type(value) is bytes:
                append(None if value == NONE else deserialize(value))
            elif type(value) is int:
                stored.append((len(out), refs[len(out)]._id, value))
                append(None)
            else:
                assert isinstance(value, Failure)
                raise error_of(value)
        if stored:
            objects = [(id, place) for _, id, place in stored]
            try:
                with self._noted(Wait(objects)):
                    views = self._views(objects, deadline if timeout else None)
            except TimeoutError:
                from skate._worker.why import explain_stored

                reasons = explain_stored(runtime, objects)
                raise GetTimeoutError(
                    timeout_s=timeout, pending=len(stored), total=len(refs), reasons=reasons
                ) from None
            if runtime.in_cluster:
                with runtime.lock:
                    runtime.copies.learn(objects, node_of(runtime.process_id))
            for (position, id, _), view in zip(stored, views, strict=True):
                if view is None:
                    raise runtime.borrowing.loss_of(id, refs[position]._owner)
                out[position] = deserialize(view)
        return out

    def _wait_for_all(self, refs: Sequence[ObjectRef[Any]], timeout: float | None) -> list[Stored]:
        """What is known of each once it is there; up to an error only, as soon as there is one."""
        runtime = self._runtime
        entries = runtime.table.entries
        values: list[Stored] = []
        append = values.append
        left = iter(refs)
        #: The one that was not there when it was last looked at.
        missing: ObjectRef[Any] | None = None
        errors = FailureWatch(runtime.table, lambda: [ref._id for ref in refs]) if len(refs) > 1 else None

        def ready() -> bool:
            nonlocal missing
            try:
                if missing is not None:
                    value = entries[missing._id].value
                    if value is None:
                        return failed()
                    append(value)
                    missing = None
                for ref in left:
                    value = entries[ref._id].value
                    if value is None:
                        missing = ref
                        return failed()
                    append(value)
            except KeyError as error:
                raise unknown(error.args[0]) from None
            return True

        def failed() -> bool:
            error = errors.found() if errors is not None else None
            if error is None:
                return False
            values[:] = [error]
            return True

        if not ready():
            of_others = self._fetch_missing(refs)
            if of_others and self._arrives_soon(ready, timeout):
                return values
            # On a node that is alone no owner asks, and noting would cost 1.5 of the 21 µs of a short task.
            with self._noted(Wait(missing=lambda: missing)) if runtime.in_cluster else _NOT_NOTED:
                is_there = runtime.block_until(ready, timeout, lambda: missing)
            if not is_there:
                from skate._worker.why import explain_timeout

                pending = sum(1 for ref in refs if entries[ref._id].value is None)
                reasons = explain_timeout(runtime, refs, timeout or 0.0)
                raise GetTimeoutError(timeout_s=timeout, pending=pending, total=len(refs), reasons=reasons)
        return values

    def wait_visibly(
        self, ready: Callable[[], object], deadline: float | None, missing: Callable[[], ObjectRef[Any] | None]
    ) -> bool:
        """Wait until `ready()`, and say so if that takes long for want of something; False if the deadline passed."""
        runtime = self._runtime
        begin = time.monotonic()
        first_look = begin + runtime.first_look_s
        if not runtime.notice_s or (deadline is not None and deadline <= first_look):
            return runtime.loop.wait(ready, deadline)
        if runtime.loop.wait(ready, first_look):
            return True
        from skate._worker import notice

        def look() -> Sight:
            ref = missing()
            return notice.look_at(runtime, ref._id if ref is not None else b"")

        def tell(sight: Sight) -> str:
            ref = missing()
            return notice.tell_of(runtime, ref._id if ref is not None else sight.object, sight)

        return notice.wait_visibly(runtime, functools.partial(runtime.loop.wait, ready), begin, deadline, look, tell)

    def _views(self, objects: Sequence[tuple[bytes, int]], deadline: float | None) -> list[memoryview | None]:
        """Views of stored values; says so if that takes long for want of something. Raises TimeoutError."""
        runtime = self._runtime
        begin = time.monotonic()
        first_look = begin + runtime.first_look_s
        if not runtime.notice_s or (deadline is not None and deadline <= first_look):
            return runtime.store.views(objects, deadline)
        with contextlib.suppress(TimeoutError):
            return runtime.store.views(objects, first_look)
        from skate._worker import notice

        found: list[memoryview | None] = []

        def wait(until: float | None) -> bool:
            try:
                found[:] = runtime.store.views(objects, until)
            except TimeoutError:
                return False
            return True

        look = functools.partial(notice.look_at_stored, runtime, objects)
        tell = functools.partial(notice.tell_of_stored, runtime, objects)
        if not notice.wait_visibly(runtime, wait, begin, deadline, look, tell):
            raise TimeoutError
        return found

    def _fetch_missing(self, refs: Sequence[ObjectRef[Any]]) -> bool:
        """Ask the owners of borrowed objects for their values; whether all that are missing belong to others."""
        runtime = self._runtime
        if not runtime.table.borrows:
            return False
        of_others = True
        with runtime.lock:
            for ref in refs:
                entry = runtime.table.entries.get(ref._id)
                if entry is not None and entry.value is None:
                    if entry.owner:
                        runtime.borrowing.fetch(ref._id, entry)
                    else:
                        of_others = False
        return of_others

    def _arrives_soon(self, ready: Callable[[], object], timeout: float | None) -> bool:
        """Whether that becomes true in the time that owners take to send what they have.

        A task holds its CPU meanwhile: if it gave it back for each value that another process has, workers would be
        started for others, and there would be more of them at work than CPUs.
        """
        runtime = self._runtime
        if runtime.executor is None:
            return False
        wait_s = FETCH_S if timeout is None else min(FETCH_S, timeout)
        return runtime.loop.wait(ready, time.monotonic() + wait_s)

    def wait(
        self, refs: Sequence[ObjectRef[Any]], num_returns: int, timeout: float | None
    ) -> tuple[list[ObjectRef[Any]], list[ObjectRef[Any]]]:
        """Those that are ready, as many as asked for at most, and the others. Raises if the node is gone."""
        runtime = self._runtime
        self._check_node()
        entries = runtime.table.entries
        # A generator is ready when its next item is, or its end.
        streams = {ref._id: runtime.streams.get(ref._id) for ref in refs if type(ref) is not ObjectRef}
        of_others = self._fetch_missing([ref for ref in refs if ref._id not in streams] if streams else refs)
        unready = list(refs)
        found: list[bytes] = []

        def ready() -> bool:
            nonlocal unready
            still = []
            for ref in unready:
                entry = entries.get(ref._id)
                if (
                    entry is None
                    or entry.value is not None
                    or (streams and (stream := streams.get(ref._id)) is not None and stream.has_news)
                ):
                    found.append(ref._id)
                else:
                    still.append(ref)
            unready = still
            return len(found) >= num_returns

        if not ready() and not (of_others and not streams and self._arrives_soon(ready, timeout)):
            with self._noted(Wait(missing=lambda: unready[0] if unready else None)):
                runtime.block_until(ready, timeout)
        self._check_node()  # then all that was pending counts as ready
        chosen = set(found[:num_returns]) if len(found) > num_returns else set(found)
        return [ref for ref in refs if ref._id in chosen], [ref for ref in refs if ref._id not in chosen]

    @contextlib.contextmanager
    def _noted(self, wait: Wait) -> Iterator[None]:
        """Around a wait of the current task, so that its owner can be told what it waits for (`waits.py`)."""
        waits, task = self._runtime.waits, self._runtime.context.id
        waits[task] = wait
        try:
            yield
        finally:
            waits.pop(task, None)

    def _check_node(self) -> None:
        if self._runtime.broken is not None and not self._runtime.closed:
            raise self._runtime.broken

    def when_ready(self, ref: ObjectRef[Any], callback: Callable[[], None]) -> None:
        """Call back once the value (or error) is there; from any thread, so it must be quick and must not raise."""
        runtime = self._runtime
        with runtime.lock:
            entry = runtime.table.entries.get(ref._id)
            if entry is None or entry.value is not None:
                callback()
                return
            runtime.table.when_resolved(entry, lambda id, entry: callback())
            if entry.owner:
                runtime.borrowing.fetch(ref._id, entry)
        runtime.loop.linger_no_more()

    def call_when_ready(self, ref: ObjectRef[Any], callback: Callable[[], object]) -> None:
        """The same for functions of users: without the lock, so that they may submit tasks and take locks of their own.

        They are called by the thread that settles futures. The I/O thread could not go on while one of them waits.
        """
        runtime = self._runtime
        entry = runtime.table.entries.get(ref._id)
        if entry is None or entry.value is not None or runtime.broken or runtime.closed:
            call_back(callback)
            return

        def tell(kept: ObjectRef[Any] = ref) -> None:
            # The reference is kept until then: a process does not hear of a borrowed object that it has let go of.
            call = functools.partial(call_back, callback)
            try:
                runtime.futures._threads().submit(call)
            except RuntimeError:  # the interpreter exits, and starts no more threads
                call()

        self.when_ready(ref, tell)

    def has_failed(self, ref: ObjectRef[Any]) -> bool:
        """Whether the object is there and is an error."""
        entry = self._runtime.table.entries.get(ref._id)
        return entry is not None and isinstance(entry.value, Failure)
