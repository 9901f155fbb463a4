"""The queue: order, limits, waiting in plain and in async code, several processes, and no item lost."""

from __future__ import annotations

import asyncio
import os
import pickle
import queue as standard
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

import skate
from actor_ends import wait_only_a_moment
from skate.exceptions import ActorDiedError, TaskCancelledError
from skate.util.queue import Empty, Full, Queue
from waiting import wait_for

pytestmark = pytest.mark.usefixtures("runtime")

WITHIN_S = 20.0
SOON_S = 0.01


@skate.remote
def produce(queue: Queue[Any], items: list[Any]) -> None:
    for item in items:
        queue.put(item)


@skate.remote
def consume(queue: Queue[Any], count: int) -> list[Any]:
    return [queue.get(timeout=WITHIN_S) for _ in range(count)]


def in_thread(function: Callable[[], Any]) -> Callable[[], Any]:
    """Start it in a thread; what is returned waits for its value."""
    values: list[Any] = []
    thread = threading.Thread(target=lambda: values.append(function()))
    thread.start()

    def value() -> Any:
        thread.join(WITHIN_S)
        return values[0]

    return value


# --- one process ------------------------------------------------------------------------------------------------------


def test_items_come_in_the_order_in_which_they_were_put() -> None:
    queue: Queue[int] = Queue()
    for i in range(10):
        queue.put(i)
    assert [queue.get() for _ in range(10)] == list(range(10))


def test_any_value_may_be_an_item() -> None:
    queue: Queue[Any] = Queue()
    items = [None, False, {"a": [1]}, lambda: 5]
    for item in items:
        queue.put(item)
    taken = [queue.get() for _ in items]
    assert taken[:3] == items[:3]
    assert taken[3]() == 5


def test_a_queue_tells_what_is_in_it() -> None:
    queue: Queue[int] = Queue(maxsize=2)
    assert (queue.size(), queue.qsize(), len(queue), queue.empty(), queue.full()) == (0, 0, 0, True, False)
    queue.put(1)
    queue.put(2)
    assert (queue.size(), queue.qsize(), len(queue), queue.empty(), queue.full()) == (2, 2, 2, False, True)
    assert repr(queue) == "Queue(maxsize=2)"


def test_a_queue_without_limit_is_never_full() -> None:
    queue: Queue[int] = Queue()
    queue.put_nowait_batch(range(1000))
    assert queue.size() == 1000
    assert not queue.full()


@pytest.mark.parametrize("how", [{"block": False}, {"timeout": 0}, {"timeout": SOON_S}])
def test_an_empty_queue_is_an_error_when_the_time_is_over(how: dict[str, Any]) -> None:
    queue: Queue[int] = Queue()
    with pytest.raises(Empty, match="the queue is empty"):
        queue.get(**how)
    with pytest.raises(standard.Empty):
        queue.get_nowait()


@pytest.mark.parametrize("how", [{"block": False}, {"timeout": 0}, {"timeout": SOON_S}])
def test_a_full_queue_is_an_error_when_the_time_is_over(how: dict[str, Any]) -> None:
    queue: Queue[int] = Queue(maxsize=1)
    queue.put(1)
    with pytest.raises(Full, match="which is its maxsize"):
        queue.put(2, **how)
    with pytest.raises(standard.Full):
        queue.put_nowait(2)
    assert queue.get() == 1
    assert queue.empty()


def test_wrong_arguments_are_errors_that_say_what_may_be() -> None:
    queue: Queue[int] = Queue()
    for call in (queue.get, lambda timeout: queue.put(1, timeout=timeout)):
        with pytest.raises(ValueError, match="0 or more"):
            call(timeout=-1)
        with pytest.raises(TypeError, match="number of seconds"):
            call(timeout="1")
    with pytest.raises(ValueError, match="0 or more"):
        queue.get_nowait_batch(-1)
    with pytest.raises(TypeError, match="whole number"):
        queue.get_nowait_batch("2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="whole number"):
        Queue(maxsize=1.5)  # type: ignore[arg-type]


def test_a_batch_is_put_whole_or_not_at_all() -> None:
    queue: Queue[int] = Queue(maxsize=3)
    queue.put_nowait_batch([1, 2])
    with pytest.raises(Full, match="none was added"):
        queue.put_nowait_batch([3, 4])
    assert queue.size() == 2


def test_a_batch_is_taken_whole_or_not_at_all() -> None:
    queue: Queue[int] = Queue()
    queue.put_nowait_batch([1, 2, 3])
    assert queue.get_nowait_batch(2) == [1, 2]
    with pytest.raises(Empty, match="none was taken"):
        queue.get_nowait_batch(2)
    assert queue.get_nowait_batch(1) == [3]
    assert queue.get_nowait_batch(0) == []


def test_a_reference_arrives_as_its_value_and_inside_a_list_as_itself() -> None:
    queue: Queue[Any] = Queue()
    ref = skate.put("value")
    queue.put(ref)
    queue.put([ref])
    assert queue.get() == "value"
    assert skate.get(queue.get()) == ["value"]


def test_the_actor_behind_it_takes_options() -> None:
    queue: Queue[int] = Queue(actor_options={"name": "jobs", "num_cpus": 1})
    queue.put(7)
    assert skate.get_actor("jobs") == queue.actor
    assert skate.available_resources()["CPU"] == 1


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_get_waits_for_an_item() -> None:
    queue: Queue[int] = Queue()
    value = in_thread(queue.get)
    queue.put(5)
    assert value() == 5


def test_a_put_waits_for_room() -> None:
    queue: Queue[int] = Queue(maxsize=1)
    queue.put(1)
    done = in_thread(lambda: queue.put(2))
    assert queue.get(timeout=WITHIN_S) == 1
    done()
    assert queue.get(timeout=WITHIN_S) == 2


def test_many_waiting_gets_do_not_hold_up_a_put() -> None:
    queue: Queue[int] = Queue()

    async def main() -> list[int]:
        gets = [asyncio.ensure_future(queue.get_async()) for _ in range(2000)]
        await asyncio.sleep(0)
        for i in range(0, 2000, 500):
            queue.put_nowait_batch(range(i, i + 500))
        return await asyncio.gather(*gets)

    assert asyncio.run(main()) == list(range(2000))  # those who came first are served first


def test_puts_that_wait_are_taken_in_their_order() -> None:
    queue: Queue[int] = Queue(maxsize=1)

    async def main() -> list[int]:
        puts = [asyncio.ensure_future(queue.put_async(i)) for i in range(20)]
        taken = [await queue.get_async() for _ in range(20)]
        await asyncio.gather(*puts)
        return taken

    assert asyncio.run(main()) == list(range(20))


def test_async_calls_know_the_same_limits() -> None:
    queue: Queue[int] = Queue(maxsize=1)

    async def main() -> None:
        await queue.put_async(1)
        with pytest.raises(Full):
            await queue.put_async(2, timeout=SOON_S)
        with pytest.raises(Full):
            await queue.put_async(2, block=False)
        assert await queue.get_async() == 1
        with pytest.raises(Empty):
            await queue.get_async(timeout=SOON_S)
        with pytest.raises(Empty):
            await queue.get_async(block=False)

    asyncio.run(main())


# --- several processes ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh_runtime")
def test_the_same_queue_is_there_in_tasks_and_after_pickling() -> None:
    queue: Queue[Any] = Queue(maxsize=5)
    copy = pickle.loads(pickle.dumps(queue))
    copy.put(0)
    assert copy.maxsize == 5
    skate.get(produce.remote(queue, [1, 2]))
    assert [queue.get() for _ in range(3)] == [0, 1, 2]


def test_every_item_of_several_producers_reaches_one_of_several_consumers() -> None:
    queue: Queue[Any] = Queue(maxsize=3)
    producers = [produce.remote(queue, [(who, i) for i in range(30)]) for who in range(2)]
    consumers = [consume.options(num_cpus=0).remote(queue, 30) for _ in range(2)]
    taken = skate.get(consumers, timeout=2 * WITHIN_S)
    skate.get(producers, timeout=WITHIN_S)
    assert sorted(taken[0] + taken[1]) == [(who, i) for who in range(2) for i in range(30)]
    for items in taken:  # the items of one producer keep their order
        for who in range(2):
            assert [item for item in items if item[0] == who] == sorted(item for item in items if item[0] == who)


def test_a_queue_inside_an_actor() -> None:
    queue: Queue[Any] = Queue()

    class Reader:
        def __init__(self, queue: Queue[Any]) -> None:
            self.queue = queue

        async def read(self) -> Any:
            return await self.queue.get_async()

    reader = skate.remote(Reader).remote(queue)
    refs = [reader.read.remote() for _ in range(3)]
    queue.put_nowait_batch([1, 2, 3])
    assert skate.get(refs, timeout=WITHIN_S) == [1, 2, 3]


# --- no item is lost --------------------------------------------------------------------------------------------------


def test_a_get_that_timed_out_takes_no_item() -> None:
    queue: Queue[int] = Queue()
    with pytest.raises(Empty):
        queue.get(timeout=SOON_S)
    queue.put(1)
    assert queue.get_nowait() == 1


def test_a_get_that_was_cancelled_takes_no_item() -> None:
    queue: Queue[int] = Queue()

    async def main() -> int:
        get = asyncio.ensure_future(queue.get_async())
        await asyncio.sleep(0)
        get.cancel()
        with pytest.raises(asyncio.CancelledError):
            await get
        await queue.put_async(1)
        return await queue.get_async(timeout=WITHIN_S)

    assert asyncio.run(main()) == 1


def test_gets_cancelled_at_the_moment_of_delivery_lose_nothing() -> None:
    """Some are cancelled before their item has left the actor, some while it is on its way."""
    queue: Queue[int] = Queue()
    count = 200

    async def main() -> list[int]:
        gets = [asyncio.ensure_future(queue.get_async()) for _ in range(count)]
        await asyncio.sleep(0)
        put = asyncio.ensure_future(asyncio.gather(*[queue.put_async(i) for i in range(count)]))
        for get in gets[::2]:
            await asyncio.sleep(0)
            get.cancel()
        await put
        taken = list(await asyncio.gather(*gets[1::2]))
        taken += [get.result() for get in gets[::2] if not get.cancelled()]
        while len(taken) < count:
            taken.append(await queue.get_async(timeout=WITHIN_S))
        return taken

    assert sorted(asyncio.run(main())) == list(range(count))
    assert queue.empty()


def test_a_put_that_timed_out_puts_nothing() -> None:
    queue: Queue[int] = Queue(maxsize=1)
    queue.put(1)
    with pytest.raises(Full):
        queue.put(2, timeout=SOON_S)
    assert queue.get() == 1
    with pytest.raises(Empty):
        queue.get_nowait()


def test_a_put_that_was_cancelled_while_it_waited_puts_nothing() -> None:
    queue: Queue[int] = Queue(maxsize=1)

    async def main() -> None:
        await queue.put_async(1)
        put = asyncio.ensure_future(queue.put_async(2))
        await asyncio.sleep(0)
        put.cancel()
        with pytest.raises(asyncio.CancelledError):
            await put

    asyncio.run(main())
    assert queue.get() == 1
    with pytest.raises(Empty):
        queue.get(timeout=SOON_S)


def test_a_task_that_is_cancelled_in_a_get_takes_no_item(tmp_path: Any) -> None:
    queue: Queue[int] = Queue()
    begun = tmp_path / "begun"

    @skate.remote
    def wait_for_item() -> int:
        begun.touch()
        return queue.get()

    ref = wait_for_item.remote()
    wait_for(begun.exists, WITHIN_S, "the task to begin")
    skate.cancel(ref)
    with pytest.raises(TaskCancelledError):
        skate.get(ref, timeout=WITHIN_S)
    queue.put(1)
    assert queue.get(timeout=WITHIN_S) == 1


def test_ctrl_c_in_a_get_takes_no_item() -> None:
    queue: Queue[int] = Queue()
    queue.put(0)
    assert queue.get() == 0  # the actor runs
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        queue.get(timeout=WITHIN_S)
    timer.join()
    queue.put(1)
    assert queue.get(timeout=WITHIN_S) == 1


# --- the actor itself -------------------------------------------------------------------------------------------------


def test_the_actor_behind_the_queue_has_the_methods_that_it_has_in_ray() -> None:
    queue: Queue[int] = Queue(maxsize=3)
    actor = queue.actor
    waiting = actor.get.remote()  # a reference, which can be waited for with others
    assert skate.wait([waiting], timeout=0)[0] == []
    skate.get(actor.put.remote(1))
    assert skate.get(waiting, timeout=WITHIN_S) == 1
    skate.get(actor.put_nowait_batch.remote([1, 2]))
    skate.get(actor.put_nowait.remote(3))
    assert skate.get([actor.qsize.remote(), actor.full.remote(), actor.empty.remote()]) == [3, True, False]
    for call in (actor.put_nowait.remote(4), actor.put.remote(4, 0.01), actor.put_nowait_batch.remote([4])):
        with pytest.raises(Full):
            skate.get(call)
    assert skate.get([actor.get_nowait.remote(), actor.get_nowait_batch.remote(2)]) == [1, [2, 3]]
    for call in (actor.get_nowait.remote(), actor.get.remote(0.01), actor.get_nowait_batch.remote(1)):
        with pytest.raises(Empty):
            skate.get(call)


# --- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fresh_runtime")
@pytest.mark.parametrize("force", [False, True])
def test_a_queue_that_was_shut_down_says_so_everywhere(force: bool) -> None:
    queue: Queue[int] = Queue()
    queue.put(1)
    copy = pickle.loads(pickle.dumps(queue))
    queue.shutdown(force=force)
    with pytest.raises(ActorDiedError, match="was shut down"):
        queue.put(2)
    with pytest.raises(ActorDiedError):
        copy.get()
    assert queue.actor is None  # as in Ray, where programs look at it
    queue.shutdown()  # twice is fine
    assert repr(queue) == "Queue(shut down)"


def test_gets_that_wait_fail_when_the_queue_is_shut_down() -> None:
    queue: Queue[int] = Queue()
    wait_only_a_moment(queue._actor)

    async def main() -> None:
        get = asyncio.ensure_future(queue.get_async())
        await asyncio.sleep(0)
        queue.shutdown(grace_period_s=WITHIN_S)
        with pytest.raises(ActorDiedError):
            await get

    asyncio.run(main())
