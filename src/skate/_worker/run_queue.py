"""Tasks that wait for the main thread of a worker, and whose they are.

Two threads have to do with it. The main thread takes the next one off the front of `waiting` whenever it is ready for
it, without any lock: that is done for every task. Whoever reads messages adds at the end, and takes tasks away that are
cancelled, recalled, or nobody's any more. So a task may be gone at any moment: it is taken in one step, which succeeds
for one of the two; and the queue is looked through as a copy, which is made in one step too.
"""

from __future__ import annotations

from collections import deque

from skate._core.task import Task
from skate._worker.peers import Peer


class RunQueue:
    """Its methods are called with the runtime's lock held."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Peer, Task]] = deque()

    def add(self, owner: Peer, tasks: list[Task]) -> None:
        self.waiting.extend([(owner, task) for task in tasks])

    def recall(self, owner: Peer, count: int) -> list[bytes]:
        """Take that many of an owner's tasks away, the last ones, or as many as there are. Their ids, in order."""
        taken: list[bytes] = []
        others: list[tuple[Peer, Task]] = []
        try:
            while len(taken) < count:
                item = self.waiting.pop()
                if item[0] is owner:
                    taken.append(item[1].id)
                else:
                    others.append(item)
        except IndexError:  # that was all
            pass
        self.waiting.extend(reversed(others))
        taken.reverse()
        return taken

    def recall_all(self) -> list[bytes]:
        taken: list[bytes] = []
        try:
            while True:
                taken.append(self.waiting.popleft()[1].id)
        except IndexError:
            return taken

    def remove(self, id: bytes) -> bool:
        """Whether it was there, and has not begun."""
        return any(self._take(item) for item in list(self.waiting) if item[1].id == id)

    def forget(self, owner: Peer) -> None:
        """Nobody wants to know what becomes of its tasks."""
        for item in list(self.waiting):
            if item[0] is owner:
                self._take(item)

    def position(self, id: bytes) -> int | None:
        """How many tasks are before that one."""
        return next((index for index, (_, task) in enumerate(list(self.waiting)) if task.id == id), None)

    def _take(self, item: tuple[Peer, Task]) -> bool:
        try:
            self.waiting.remove(item)
        except ValueError:
            return False
        return True
