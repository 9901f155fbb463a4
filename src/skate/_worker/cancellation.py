"""The task that the main thread of a worker is in is to stop: an exception is raised in it, by a signal.

Whoever reads messages asks for it (`demand`); the signal is seen to by the main thread, between two bytecodes of
whatever it does. Where that is inside the runtime, or inside Python's own locks, it is put off (`interrupt.py`).
"""

from __future__ import annotations

import functools
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from skate._core.task import Task
from skate._worker import interrupt
from skate._worker.interrupt import RETRY_S, again_later, is_importing, may_interrupt
from skate.exceptions import TaskInterrupt

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime

CANCEL_SIGNAL = signal.SIGUSR2
#: The signal is sent again after this time, and then ever more rarely, if it came to nothing.
INSIST_S, INSIST_S_MAX = 0.05, 1.0
#: Longest time that the children of a cancelled task wait for the interrupt to reach it: it may be in C code.
CHILDREN_WAIT_S = 1.0
#: Functions of ours that call user code: an exception there is an exception of the task.
_RUNS_USER_CODE = frozenset({"_execute", "stream", "dynamic", "several"})


class Cancellation:
    def __init__(self, runtime: Runtime, current: Callable[[], Task | None], on_spoiled: Callable[[], None]) -> None:
        self._runtime = runtime
        self._current = current
        #: Called when the interrupt has hit an import: later tasks would find modules that are not whole.
        self._on_spoiled = on_spoiled
        self._thread = 0
        #: The task that is to stop; whoever runs it empties this when it has ended.
        self.id = b""
        self._raised = False

    def install(self) -> None:
        """In the main thread."""
        self._thread = threading.get_ident()
        signal.signal(CANCEL_SIGNAL, self._on_signal)
        interrupt.on_pending = self._interrupt

    def demand(self, id: bytes) -> None:
        """With the runtime's lock held."""
        self.id = id
        self._raised = False
        interrupt.pending = False  # what was put off for a task before this one came to nothing
        signal.pthread_kill(self._thread, CANCEL_SIGNAL)
        self._insist(id, INSIST_S)

    def _insist(self, id: bytes, wait_s: float) -> None:
        """A signal that comes just before the main thread blocks in the kernel is seen to when that is over."""

        def again() -> None:
            if self._is_due(id):
                if not interrupt.pending:  # otherwise it was heard, and is repeated
                    signal.pthread_kill(self._thread, CANCEL_SIGNAL)
                self._insist(id, min(2 * wait_s, INSIST_S_MAX))

        self._runtime.loop.call_at(time.monotonic() + wait_s, again)

    def _is_due(self, id: bytes) -> bool:
        return self.id == id and not self._raised

    def children_follow(self, id: bytes, children: bytes, at_the_latest: float = 0.0) -> None:
        """Once the task itself was interrupted: otherwise it could learn of its cancellation from a child that it
        waits for, and the interrupt would hit it while it tidies up."""
        now = time.monotonic()
        at_the_latest = at_the_latest or now + CHILDREN_WAIT_S
        if self._is_due(id) and now < at_the_latest:
            again = functools.partial(self.children_follow, id, children, at_the_latest)
            self._runtime.loop.call_at(now + RETRY_S, again)
        else:
            self._runtime.submitter.cancel_children(children)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        current = self._current()
        if not self.id or current is None or current.id != self.id:
            self.id = b""
            return
        if may_interrupt(frame, also=_RUNS_USER_CODE):
            self._interrupt(frame)
        if not self._raised:
            interrupt.pending = True
            again_later(signum, lambda: bool(self.id) and not self._raised)

    def _interrupt(self, frame: FrameType | None = None) -> None:
        """Once: the task may tidy up after it."""
        current = self._current()
        if self.id and not self._raised and current is not None and current.id == self.id:
            self._raised = True
            if is_importing(frame or sys._getframe()):
                self._on_spoiled()
            raise TaskInterrupt
