"""The queue between a worker's main thread, which takes tasks, and whoever reads messages, which takes them away."""

from __future__ import annotations

import threading

from skate._core.task import Task
from skate._worker.peers import Peer
from skate._worker.run_queue import RunQueue

MINE, OTHERS = Peer(b"mine", lambda: None), Peer(b"others", lambda: None)


def task(number: int) -> Task:
    return Task(number.to_bytes(20, "big"), b"fn", b"")


def queue_of(*owners: Peer) -> RunQueue:
    queue = RunQueue()
    for number, owner in enumerate(owners):
        queue.add(owner, [task(number)])
    return queue


def numbers(queue: RunQueue) -> list[int]:
    return [int.from_bytes(task.id, "big") for _, task in queue.waiting]


def test_the_last_tasks_of_an_owner_are_recalled_and_those_of_others_stay_in_order() -> None:
    queue = queue_of(MINE, OTHERS, MINE, MINE, OTHERS)
    assert queue.recall(MINE, 2) == [task(2).id, task(3).id]
    assert numbers(queue) == [0, 1, 4]
    assert queue.recall(MINE, 9) == [task(0).id]
    assert numbers(queue) == [1, 4]
    assert queue.recall_all() == [task(1).id, task(4).id]
    assert numbers(queue) == []


def test_one_task_is_removed_once() -> None:
    queue = queue_of(MINE, OTHERS, MINE)
    assert queue.position(task(2).id) == 2
    assert queue.remove(task(1).id)
    assert not queue.remove(task(1).id)
    assert queue.position(task(1).id) is None
    assert numbers(queue) == [0, 2]


def test_the_tasks_of_a_dead_owner_are_forgotten() -> None:
    queue = queue_of(OTHERS, MINE, OTHERS)
    queue.forget(OTHERS)
    assert numbers(queue) == [1]


def test_each_task_is_taken_by_one_of_two_threads() -> None:
    """While the main thread takes one after the other, they are cancelled, recalled and forgotten."""
    queue = RunQueue()
    count = 20_000
    ran: list[int] = []
    added = threading.Event()

    def main_thread() -> None:
        while True:
            over = added.is_set()  # asked before the queue: one that is empty after that stays empty
            try:
                ran.append(int.from_bytes(queue.waiting.popleft()[1].id, "big"))
            except IndexError:
                if over:
                    return

    thread = threading.Thread(target=main_thread)
    thread.start()
    taken: list[int] = []
    for number in range(0, count, 4):
        queue.add(MINE, [task(number), task(number + 1)])
        queue.add(OTHERS, [task(number + 2), task(number + 3)])
        queue.position(task(number).id)
        if queue.remove(task(number + 1).id):
            taken.append(number + 1)
        taken += [int.from_bytes(id, "big") for id in queue.recall(MINE, 1)]
    added.set()
    thread.join()
    assert sorted(ran + taken) == list(range(count))
