"""How many tasks are on the way to one worker.

Too few, and the worker idles while a message travels; too many, and a long task holds up short ones behind it while
other workers are free. The answer depends on how long tasks take, so it is measured: about `TARGET_S` of estimated work
on each worker, one task when tasks are long or unknown, hundreds when they are tiny.

Owns:      estimates of run times by function.
Knows not: clocks. Workers report how long their tasks took.
"""

from __future__ import annotations

from collections import deque

from skate._core.task import Task, Timing

#: Work that should be on the way to a worker. Every message costs about 100 µs of CPU on both sides together, so one in
#: 10 ms takes a hundredth of a core; and nobody sees whether 40 ms of work wait here or there.
TARGET_S = 0.040
#: More is sent when less than this is left: several tasks in one message, not one for each that ends.
REFILL_S = 0.7 * TARGET_S
#: Most tasks on one worker, however tiny: about what it runs while its owner is too busy to read results.
DEPTH_MAX = 4000
#: Most tasks in one message: the first of them should start while the rest are still being made.
BATCH_MAX = 256
#: What a function that never ran is taken to need: one at a time.
UNKNOWN_S = 1.0
#: Weight of the newest measurement.
NEWEST = 0.25
#: A worker that gave no result for this long while it has more than one task is taken to be in a long one; and at most,
#: however late workers answer.
PATIENCE_S = 0.004
PATIENCE_S_MAX = 0.1
#: A function that takes so many times longer than it did has turned slow, and is believed at once. More than single
#: tasks of one kind differ by: the longest in a hundred of a simulation may well take five times the mean.
TURNED_SLOW = 10


class Patience:
    """How long a worker may be silent before tasks behind the one that it is in are taken back.

    Workers answer that request at once, in the middle of a task too. If they do not, they are many and the cores few:
    then silence says nothing of the task, and to take tasks back from all of them again and again is all that happens.
    """

    def __init__(self) -> None:
        self.seconds = PATIENCE_S

    def answered(self, after_s: float) -> None:
        """A worker was asked for its tasks, and took so long to answer."""
        wanted = min(max(PATIENCE_S, 4 * after_s), PATIENCE_S_MAX)
        self.seconds += NEWEST * (wanted - self.seconds)


class Estimates:
    """Run times by function: exponential averages that believe bad news faster than good news."""

    def __init__(self) -> None:
        self.seconds: dict[bytes, float] = {}

    def learn(self, timing: Timing) -> None:
        seen = timing.seconds / timing.count
        before = self.seconds.get(timing.fn)
        if before is None or seen > TURNED_SLOW * before:
            self.seconds[timing.fn] = seen
        else:
            self.seconds[timing.fn] = before + NEWEST * (seen - before)

    def forget(self, fn: bytes) -> None:
        self.seconds.pop(fn, None)

    def take(self, queue: deque[Task], *, load_s: float, inflight: int, workers: int = 1) -> tuple[list[Task], float]:
        """Take from the queue what a worker should get now, given its estimated load; and the load that this adds.

        A worker with nothing to do always gets one; none gets more than its share among `workers`.
        """
        room = min(DEPTH_MAX - inflight, BATCH_MAX, -(-len(queue) // workers))
        if room <= 0:
            return [], 0.0
        if inflight and load_s > REFILL_S:
            return [], 0.0
        seconds = self.seconds
        taken: list[Task] = []
        added = 0.0
        budget = TARGET_S - load_s
        popleft, append = queue.popleft, taken.append
        first = not inflight
        fn, cost = b"", 0.0
        while room and queue:  # a finalizer may run in between, and what it submits may take tasks along
            task = popleft()
            if task.fn is not fn:
                fn = task.fn
                cost = seconds.get(fn, UNKNOWN_S)
            if added + cost > budget and not first:
                queue.appendleft(task)
                break
            append(task)
            added += cost
            first = False
            room -= 1
        return taken, added
