"""One actor as one of its callers sees it: calls that wait, calls that were sent, and what becomes of them.

    submit ──▶ queue ──take──▶ inflight ──result──▶ done
                 ▲                 │
                 │                 │ the process is gone
                 └──may run again──┴──▶ lost ──▶ failed

Calls reach an actor in the order in which they were made. Its process may end at any time, and the actor may live on in
another one: its next *life*. What was sent to a life that is over, and not answered, may have run or not. Whether it
is sent again is up to its retries, and can be said only when it is known whether there is another life; nothing newer
is sent before that, so that the order stays. What was not sent waits for the next life.

A caller hears from the actor's node where it lives (`told`), and from the channel to its process that nothing more will
come (`gone`); in either order.

Owns:      the calls of one process to one actor that have no result yet.
Knows not: channels, values, errors.
Invariant: a call is in exactly one of `queue`, `inflight` and `lost` until it was answered or given up (`validate`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from skate._core.actors import ALIVE, DEAD, WAITING
from skate._core.task import Task

#: This process has just asked for the end of the present life: nothing more is sent to it, and the node will say what
#: comes after it.
DYING = "dying"
#: Most calls on the way to an actor that runs them one by one.
DEPTH_MAX = 4000
#: Most calls in one message: the first of them should start while the rest are still being made.
BATCH_MAX = 256


class ActorLink:
    __slots__ = (
        "acknowledged", "eager", "id", "inflight", "life", "lost", "ordered", "process", "push_at", "queue",
        "sent_life", "state", "unready",
    )  # fmt: skip

    def __init__(self, id: bytes, *, eager: bool, ordered: bool | None = None) -> None:
        self.id = id
        #: A call waits for those before it whose arguments are not there yet.
        self.ordered = not eager if ordered is None else ordered
        #: The actor runs several calls at a time: they need not wait for results. They leave one message after another,
        #: each when the actor has read the last.
        self.eager = eager
        #: Not sent yet, in order.
        self.queue: deque[Task] = deque()
        #: Those in the queue whose arguments are not there yet.
        self.unready: set[bytes] = set()
        #: Sent to `sent_life` and not answered, in order.
        self.inflight: dict[bytes, Task] = {}
        #: Sent to a life that is over, in order; waiting to hear whether there is another.
        self.lost: list[Task] = []
        self.sent_life = 0
        #: As last told: the actor's state, the number of its life, and the process of that.
        self.state = WAITING
        self.life = 0
        self.process = b""
        #: The actor has read what was sent last.
        self.acknowledged = True
        #: Length of the queue at which sending is tried again, while calls are on the way.
        self.push_at = 1

    @property
    def pending(self) -> int:
        return len(self.queue) + len(self.inflight) + len(self.lost)

    # -- calls --------------------------------------------------------------------------------------------------------

    def take(self) -> list[Task]:
        """What is to be sent now, in one message, to `process`; it counts as sent."""
        queue = self.queue
        if not queue or self.state is not ALIVE or self.lost:
            return []
        inflight = self.inflight
        if inflight and self.sent_life != self.life:
            return []  # nobody has said yet that the other life is over, but it is
        if self.eager and not self.acknowledged:
            return []
        room = BATCH_MAX if self.eager else min(BATCH_MAX, DEPTH_MAX - len(inflight))
        taken = self._take_in_order(room) if self.ordered or not self.unready else self._take_ready(room)
        if taken:
            self.sent_life = self.life
            for task in taken:
                inflight[task.id] = task
        return taken

    def _take_in_order(self, room: int) -> list[Task]:
        queue, unready = self.queue, self.unready
        if not unready:
            popleft = queue.popleft
            return [popleft() for _ in range(min(room, len(queue)))]
        taken: list[Task] = []
        while queue and len(taken) < room and queue[0].id not in unready:
            taken.append(queue.popleft())
        return taken

    def _take_ready(self, room: int) -> list[Task]:
        queue, unready = self.queue, self.unready
        taken: list[Task] = []
        kept: list[Task] = []
        while queue and len(taken) < room:
            task = queue.popleft()
            (kept if task.id in unready else taken).append(task)
        queue.extendleft(reversed(kept))
        return taken

    def withdraw(self, task: Task) -> bool:
        """Give up a call that was not sent; False if it was."""
        self.unready.discard(task.id)
        for place in (self.queue, self.lost):
            if task in place:
                place.remove(task)
                return True
        return False

    # -- what happened ------------------------------------------------------------------------------------------------

    def told(self, state: str, life: int, process: bytes) -> None:
        """The node says how the actor is. The dead stay dead, whatever was on its way when they were killed here."""
        if self.state is DEAD:
            return
        self.state = ALIVE if state == ALIVE else DEAD if state == DEAD else state
        self.life = life
        self.process = process

    def dying(self) -> None:
        """This process has the present life ended."""
        if self.state is ALIVE:
            self.state = DYING

    def gone(self, life: int) -> None:
        """Nothing more will come from that life."""
        if life != self.sent_life:
            return
        self.lost += self.inflight.values()
        self.inflight.clear()
        self.acknowledged = True

    def cut_off(self, may_wait_on: Callable[[Task], bool]) -> list[tuple[Task, bool]]:
        """The process lives and could not be reached for too long. The calls that are given up, and whether each was
        sent. What may wait on stays where it is: nothing is sent a second time, and the order stays."""
        sent = [task for task in self.inflight.values() if not may_wait_on(task)]
        for task in sent:
            del self.inflight[task.id]
        unsent = [task for task in self.queue if task.id not in self.unready and not may_wait_on(task)]
        for task in unsent:
            self.queue.remove(task)
        return [*((task, True) for task in sent), *((task, False) for task in unsent)]

    def judge(self, may_run_again: Callable[[Task], bool]) -> list[Task]:
        """Decide on what was lost, if that can be done by now; returns the calls that have failed.

        What may run again goes back to the front of the queue, in order. When the actor is dead nothing may.
        """
        if self.state is DEAD:
            failed = [*self.lost, *self.queue]
            self.lost.clear()
            self.queue.clear()
            self.unready.clear()
            return failed
        if not self.lost or self.state is DYING or (self.state is ALIVE and self.life <= self.sent_life):
            return []
        again: list[Task] = []
        failed = []
        for task in self.lost:
            (again if may_run_again(task) else failed).append(task)
        self.lost.clear()
        self.queue.extendleft(reversed(again))
        return failed

    def validate(self) -> None:
        ids = [task.id for task in (*self.queue, *self.inflight.values(), *self.lost)]
        assert len(ids) == len(set(ids)), "a call is in two places"
        assert self.unready <= {task.id for task in self.queue}, "an argument is waited for by no call"
        assert not (self.inflight and self.lost), "sent past calls that are not decided on"
