"""A test setting: each task waits for a while between being ready and being scheduled.

The setting, SKATE_TEST_SCHEDULING_DELAY_MS, shows what a slow scheduler costs a program (docs/init.md). A node reads it
when it starts, and tells its drivers and workers in their welcome.

    f.remote(x) ── arguments are there ── DelayedCall.ready ── held for the delay ──▶ queue of its scheduling class

Idea:      a remote function becomes a Call or a DelayedCall when it is prepared, once for all its tasks.
           A task of a node without the setting takes no other path, and looks at nothing more.
Invariant: tasks of a process enter their queues in the order in which they became ready.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from skate._core.delayed import DelayedQueue
from skate._core.task import Task
from skate._worker.calls import Call
from skate._worker.functions import Function

if TYPE_CHECKING:
    from skate._options import TaskOptions
    from skate._worker.calls import SchedulingClass
    from skate._worker.runtime import Runtime


def new_call(runtime: Runtime, function: Function, cls: SchedulingClass, options: TaskOptions, generator: str) -> Call:
    """Prepare a remote function, for the scheduler of this node."""
    delay_ms = runtime.welcome.test_scheduling_delay_ms
    kind = DelayedCall if delay_ms else Call
    if delay_ms and runtime.submitter.held is None:
        runtime.submitter.held = HeldTasks(runtime, delay_ms / 1000)
    return kind(runtime, function, cls, options, generator=generator)


class DelayedCall(Call):
    """A remote function whose tasks are held for a while before they enter the queue of their scheduling class."""

    def __init__(
        self, runtime: Runtime, function: Function, cls: SchedulingClass, options: TaskOptions, *, generator: str
    ) -> None:
        super().__init__(runtime, function, cls, options, generator=generator)
        self.plain = False  # the short way of submitting a plain task goes straight to the queue

    def ready(self, task: Task) -> None:
        held = self.runtime.submitter.held
        assert held is not None
        held.add(self, task)

    def schedule(self, task: Task) -> None:
        """The delay of a task is over."""
        super().ready(task)


class HeldTasks:
    """Tasks of this process that are ready, and whose delay is not over. Used with the runtime's lock held."""

    def __init__(self, runtime: Runtime, delay_s: float) -> None:
        self._runtime = runtime
        self._queue: DelayedQueue[tuple[DelayedCall, Task]] = DelayedQueue(delay_s)

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, call: DelayedCall, task: Task) -> None:
        now = time.monotonic()
        self._queue.add((call, task), now)
        if len(self._queue) == 1:
            self._release_later()

    def _release_later(self) -> None:
        if (due := self._queue.next_due) is not None:
            self._runtime.loop.call_at(due, self._release)

    def _release(self) -> None:
        entries = self._runtime.table.entries
        for call, task in self._queue.take_due(time.monotonic()):
            entry = entries.get(task.id)
            if entry is not None and entry.task is task:  # otherwise it was cancelled meanwhile
                call.schedule(task)
        self._release_later()
