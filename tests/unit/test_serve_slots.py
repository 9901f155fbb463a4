"""Places of a replica under random arrivals, ends, crashes, cancels and resizes, at every moment of the event loop."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skate.serve.slots import NoRoom, Slots


class Crowd:
    """Requests that want places; each holds its place until it is told how to end."""

    def __init__(self, limit: int) -> None:
        self.slots = Slots(limit)
        self.ends: list[asyncio.Future[None]] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.working: set[int] = set()
        self.entered: list[int] = []
        self.limit_most = limit

    async def _work(self, number: int) -> None:
        async with self.slots:
            self.entered.append(number)
            self.working.add(number)
            assert len(self.working) <= self.slots.taken <= self.limit_most
            try:
                await self.ends[number]
            finally:
                self.working.remove(number)

    def do(self, what: str, number: int) -> None:
        if what == "arrive":
            self.ends.append(asyncio.get_running_loop().create_future())
            self.tasks.append(asyncio.ensure_future(self._work(len(self.tasks))))
        elif what == "resize":
            self.limit_most = max(self.limit_most, 1 + number % 4)
            self.slots.resize(1 + number % 4, -1)
        elif self.tasks:
            number %= len(self.tasks)
            if what == "cancel":
                self.tasks[number].cancel()
            elif number in self.working and not self.ends[number].done():
                if what == "end":
                    self.ends[number].set_result(None)
                else:
                    self.ends[number].set_exception(ZeroDivisionError())

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def end_all(self) -> None:
        while any(not task.done() for task in self.tasks):
            for number in list(self.working):
                self.do("end", number)
            await self.settle()
        for end in self.ends:
            if end.done() and not end.cancelled():
                end.exception()
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        wrong = [each for each in results if each is not None and not isinstance(each, ZeroDivisionError)]
        assert all(isinstance(each, asyncio.CancelledError) for each in wrong), wrong


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "arrive", "end", "end", "crash", "cancel", "resize", "tick"]),
        st.integers(0, 30),
    ),
    max_size=60,
)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 3), OPERATIONS)
def test_a_place_is_never_lost_nor_given_twice(limit: int, operations: list[tuple[str, int]]) -> None:
    """Operations follow each other without a tick of the loop between them, unless one is drawn."""

    async def run() -> None:
        crowd = Crowd(limit)
        for what, number in operations:
            if what == "tick":
                await asyncio.sleep(0)
            else:
                crowd.do(what, number)
        await crowd.settle()
        slots = crowd.slots
        assert slots.taken == len(crowd.working)
        assert not slots.waiting or slots.taken >= slots.limit
        await crowd.end_all()
        assert (slots.taken, slots.load, slots.waiting) == (0, 0, 0)

    asyncio.run(run())


@settings(deadline=None, max_examples=100)
@given(st.integers(1, 3), OPERATIONS)
def test_places_go_to_requests_in_the_order_of_their_arrival(limit: int, operations: list[tuple[str, int]]) -> None:
    async def run() -> None:
        crowd = Crowd(limit)
        for what, number in operations:
            crowd.do(what, number) if what != "tick" else None
            await crowd.settle()
        await crowd.end_all()
        assert crowd.entered == sorted(crowd.entered)

    asyncio.run(run())


def test_a_request_that_is_cancelled_when_its_turn_has_come_passes_its_place_on() -> None:
    async def run() -> None:
        slots = Slots(1)
        await slots.take()
        first, second = (asyncio.ensure_future(slots.take()) for _ in range(2))
        await asyncio.sleep(0)
        slots.give_back()
        first.cancel()
        await second
        assert first.cancelled()
        assert (slots.taken, slots.waiting) == (1, 0)

    asyncio.run(run())


def test_a_place_passes_by_a_request_that_was_cancelled_in_the_same_moment() -> None:
    async def run() -> None:
        slots = Slots(1)
        await slots.take()
        first, second = (asyncio.ensure_future(slots.take()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        slots.give_back()
        await second
        assert first.cancelled()
        assert (slots.taken, slots.waiting) == (1, 0)

    asyncio.run(run())


def test_a_request_that_is_closed_while_it_waits_leaves_the_queue() -> None:
    async def run() -> None:
        slots = Slots(1)
        await slots.take()
        waits, has_place = slots.take(), slots.take()
        waits.send(None)
        has_place.send(None)
        waits.close()
        assert slots.waiting == 1
        slots.give_back()
        has_place.close()
        assert (slots.taken, slots.waiting) == (0, 0)

    asyncio.run(run())


def test_no_room_is_said_exactly_at_the_bound() -> None:
    async def run() -> None:
        slots = Slots(1, most_waiting=2)
        assert slots.take_at_once()
        assert not slots.take_at_once()
        waiting = [asyncio.ensure_future(slots.take()) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(NoRoom):
            await slots.take()
        assert slots.load == 3
        slots.resize(3, 0)
        await asyncio.gather(*waiting)
        with pytest.raises(NoRoom):
            await slots.take()
        assert slots.taken == 3

    asyncio.run(run())
