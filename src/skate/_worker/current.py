"""Which runtime this process has: the only global of Skate.

Everything below the public API gets the runtime handed down; only what user code calls from nowhere (`get`, unpickling
a reference) asks here.

After os.fork() the child has a copy of the parent's runtime, but not its I/O thread, and shares its sockets: using it
would garble the parent's messages. So the child lets go of the descriptors and remembers why it has none.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from skate import _object_ref
from skate.exceptions import ForkedProcessError, NotInitializedError

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime

_runtime: Runtime | None = None
_forked_from = 0
_exiting = False
_initializer: Callable[[], None] | None = None
_lock = threading.RLock()


class _Here(threading.local):
    """What is known of the current thread."""

    #: A runtime waits for its end before it has ended itself.
    is_joined = False
    #: It belongs to a library, and uses Skate only while that runs.
    never_starts = False


_here = _Here()


def get_runtime() -> Runtime:
    """The runtime of this process; starts one with the defaults if there is none."""
    runtime = _runtime
    if runtime is not None:
        return runtime
    if _exiting:
        raise NotInitializedError(
            "Skate was shut down because the interpreter exits, and is not started again: finish what uses it before "
            "the program ends, or call skate.shutdown() yourself."
        )
    if _forked_from:
        raise ForkedProcessError(pid=os.getpid(), parent_pid=_forked_from)
    if _here.is_joined:  # its runtime ends, and would wait for this thread for ever
        raise NotInitializedError(call="a callback of a reference")
    if _here.never_starts:
        raise NotInitializedError(call="a thread of a library")
    assert _initializer is not None
    with _lock:
        if _runtime is None:
            _initializer()
    assert _runtime is not None
    return _runtime


def runtime_or_none() -> Runtime | None:
    return _runtime


def set_runtime(runtime: Runtime | None) -> None:
    global _runtime, _forked_from
    _runtime = runtime
    _forked_from = 0


def mark_joined_thread() -> None:
    """In a thread that ends with the runtime: its callbacks must not start another one while that ends."""
    _here.is_joined = True


def mark_thread() -> None:
    """In a thread of a library: it must not start a runtime that its program knows nothing of."""
    _here.never_starts = True


def set_exiting() -> None:
    """The interpreter ends: what still runs (finalizers, other exit handlers) must not start a new runtime."""
    global _exiting
    _exiting = True


def set_initializer(initializer: Callable[[], None]) -> None:
    """What to call when the API is used before init."""
    global _initializer
    _initializer = initializer


def _after_fork_in_child() -> None:
    global _runtime, _forked_from
    if _runtime is not None:
        _forked_from = _runtime.pid
        _runtime.abandon()
        _runtime = None
    _object_ref.dropped.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
_object_ref.set_runtime_accessor(get_runtime, runtime_or_none)
