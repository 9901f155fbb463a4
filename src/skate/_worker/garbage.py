"""Collects garbage when the node daemon asks for it, because cycles of objects may hold references to large values.

In a thread of its own that lives for one collection. Finalizers of the user run in it, and those may take any lock or
use Skate: in a message handler they would do so with the runtime's lock held, and in the main thread a task may be
running for hours. (Python's own collections happen in whichever thread allocates, so nothing may rely on the thread.)

A process that holds no references has nothing to collect, and one whose last collection let go of nothing skips the
next ones for REST_FACTOR times as long as that took. Both answer at once.
"""

from __future__ import annotations

import gc
import threading
import time
from typing import TYPE_CHECKING

from skate._object_ref import dropped
from skate._wire.messages import GarbageCollected

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime

#: After a collection that let go of nothing, or that an idle process makes by itself, the pause is this number of times
#: as long: a collection takes a tenth of a second in a process that has loaded torch, and nothing else runs meanwhile.
REST_FACTOR = 20.0


def collect() -> float:
    """Collect everything; the time until which the process should rest."""
    begin = time.monotonic()
    gc.collect()
    end = time.monotonic()
    return end + REST_FACTOR * (end - begin)


class Garbage:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._rest_until = 0.0
        #: Held during a collection: one that is asked for meanwhile comes after it.
        self._collecting = threading.Lock()

    def on_asked(self, round: int) -> None:
        """With the lock held, by whichever thread reads."""
        # The thread is started by the I/O thread: a signal may interrupt the start of one in the main thread.
        self._runtime.loop.call_at(time.monotonic(), lambda: self._begin(round))

    def _begin(self, round: int) -> None:
        if not self._runtime.closed:
            threading.Thread(target=self._collect, args=(round,), name="skate-gc", daemon=True).start()

    def _collect(self, round: int) -> None:
        runtime = self._runtime
        with self._collecting:
            if time.monotonic() >= self._rest_until and (runtime.table.entries or runtime.store.pinned):
                rest_until = collect()
                if not dropped and not runtime.store.released:
                    self._rest_until = rest_until
        with runtime.lock:
            if not runtime.closed:
                runtime._housekeeping()  # what was dropped is freed, before the daemon hears that this is all
                runtime.send(GarbageCollected(round))
