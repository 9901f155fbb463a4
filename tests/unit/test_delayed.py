"""A queue with a delay gives everything out once, in order, no sooner than its time and no later than the next look."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from skate._core.delayed import DelayedQueue

DELAY_S = 1.0


def test_items_that_came_together_are_due_together() -> None:
    queue: DelayedQueue[int] = DelayedQueue(DELAY_S)
    for item in range(1000):
        queue.add(item, now=5.0)
    assert queue.next_due == 6.0
    assert queue.take_due(5.999) == []
    assert queue.take_due(6.0) == list(range(1000))
    assert queue.next_due is None


@given(st.lists(st.tuples(st.sampled_from(["add", "look"]), st.floats(0, 3))))
def test_each_item_comes_once_in_order_and_at_the_first_look_after_its_delay(steps: list[tuple[str, float]]) -> None:
    queue: DelayedQueue[int] = DelayedQueue(DELAY_S)
    now, added, taken = 0.0, list[float](), list[int]()
    for what, passed_s in steps:
        now += passed_s
        if what == "add":
            queue.add(len(added), now)
            added.append(now)
            continue
        taken += queue.take_due(now)
        assert taken == [item for item, at in enumerate(added) if at + DELAY_S <= now]
        assert len(queue) == len(added) - len(taken)
        assert queue.next_due == (added[len(taken)] + DELAY_S if len(queue) else None)
