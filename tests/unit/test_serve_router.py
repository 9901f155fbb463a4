"""Requests and replicas of a simulated process: each request goes to one replica, in order, within every bound."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skate.serve.router import MODELS_MAX, Full, Router, Seat


class Traffic(RuleBasedStateMachine):
    """A process with requests, as its dispatcher uses the router, beside a plain model of what should happen."""

    def __init__(self) -> None:
        super().__init__()
        self.router = Router("here", random.Random(1))
        self.count = 0
        self.number = 0
        self.queue: list[int] = []
        self.sent: dict[int, Seat] = {}
        self.listed: dict[str, str] = {}
        self.dead: set[str] = set()
        self.done: set[int] = set()

    def _goes(self, request: int, seat: Seat) -> None:
        assert request not in self.sent.keys() | self.done
        assert seat.id in self.listed.keys() - self.dead
        assert seat.in_flight <= self.router.max_ongoing
        self.sent[request] = seat

    def _send_waiting(self) -> None:
        while (found := self.router.next()) is not None:
            assert found[0] == self.queue.pop(0), "not the one that waits longest"
            self._goes(*found)

    @rule(model=st.sampled_from(["", "", "a", "b"]))
    def submit(self, model: str) -> None:
        request, self.count = self.count, self.count + 1
        full = 0 <= self.router.max_queued <= len(self.queue)
        try:
            seat = self.router.submit(request, model)
        except Full:
            assert full
            self.done.add(request)
        else:
            if seat is None:
                assert not full
                self.queue.append(request)
            else:
                assert not self.queue
                self._goes(request, seat)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), load=st.integers(0, 9))
    def answer(self, data: Any, load: int) -> None:
        request = data.draw(st.sampled_from(sorted(self.sent)))
        seat = self.sent.pop(request)
        self.done.add(request)
        self.router.heard(seat, load)
        self.router.answered(seat)
        self._send_waiting()

    @precondition(lambda self: set(self.listed) - self.dead)
    @rule(data=st.data())
    def die(self, data: Any) -> None:
        """A replica is gone, and what was in flight there is sent again."""
        id = data.draw(st.sampled_from(sorted(set(self.listed) - self.dead)))
        seat = self.router.seats[id]
        self.dead.add(id)
        self.router.died(seat)
        for request in [each for each, where in self.sent.items() if where is seat]:
            del self.sent[request]
            self.router.answered(seat)
            other = self.router.again(request)
            if other is None:
                self.queue.insert(0, request)
            else:
                self._goes(request, other)

    @rule(data=st.data(), new=st.integers(0, 2), ongoing=st.integers(1, 3), queued=st.integers(-1, 4))
    def update(self, data: Any, new: int, ongoing: int, queued: int) -> None:
        """Replicas come and go; an update that was sent before a death still lists the dead."""
        stay = data.draw(st.sets(st.sampled_from(sorted(self.listed)))) if self.listed else set()
        self.listed = {id: self.listed[id] for id in sorted(stay)}
        for _ in range(new):
            self.number += 1
            self.listed[f"r{self.number}"] = data.draw(st.sampled_from(["here", "there", "elsewhere"]))
        self.router.update(self.listed.items(), ongoing, queued, str.upper)
        self._send_waiting()

    @precondition(lambda self: self.count)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        request = data.draw(st.integers(0, self.count - 1))
        assert self.router.cancel(request) == (request in self.queue)
        if request in self.queue:
            self.queue.remove(request)
            self.done.add(request)

    @invariant()
    def every_request_is_in_one_place(self) -> None:
        assert [request for request, _ in self.router.waiting] == self.queue
        assert len(self.queue) + len(self.sent) + len(self.done) == self.count

    @invariant()
    def places_are_counted_right(self) -> None:
        assert set(self.router.seats) == set(self.listed) - self.dead
        for seat in self.router.seats.values():
            assert seat.in_flight == sum(where is seat for where in self.sent.values())
            assert seat.target == seat.id.upper()

    @invariant()
    def none_waits_while_a_place_is_free(self) -> None:
        free = any(seat.in_flight < self.router.max_ongoing for seat in self.router.seats.values())
        assert not (free and self.queue)


Traffic.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestTraffic = Traffic.TestCase


def router(nodes: list[str], ongoing: int = 100, queued: int = -1, seed: int = 1) -> Router:
    made = Router("here", random.Random(seed))
    made.update([(f"r{n}", node) for n, node in enumerate(nodes)], ongoing, queued, str)
    return made


def sent(to: Router, model: str = "") -> Seat:
    seat = to.submit(object(), model)
    assert seat is not None
    return seat


def test_full_is_said_exactly_at_the_bound() -> None:
    full = router(["here"], ongoing=2, queued=3)
    assert [full.submit(n) is not None for n in range(5)] == [True, True, False, False, False]
    with pytest.raises(Full):
        full.submit(5)
    assert full.cancel(3)
    assert full.submit(6) is None


def test_a_request_that_was_sent_in_vain_goes_in_front_and_is_never_refused() -> None:
    full = router(["here"], ongoing=1, queued=1)
    seat = sent(full)
    assert full.submit("waits") is None
    assert full.again("again") is None
    full.answered(seat)
    assert full.next() == ("again", seat)


def test_replicas_of_the_own_node_are_preferred_when_they_are_as_good() -> None:
    near = router(["there", "here"])
    for _ in range(20):
        seat = sent(near)
        assert seat.node == "here"
        near.answered(seat)
    sent(near)
    assert sent(near).node == "there"


@pytest.mark.parametrize("nodes", [["here"] * 2, ["x", "y"], ["x", "y", "z"], ["x"] * 10])
def test_requests_one_at_a_time_are_shared_by_replicas_that_are_as_good(nodes: list[str]) -> None:
    even = router(nodes)
    counts = dict.fromkeys(even.seats, 0)
    for _ in range(1000):
        seat = sent(even)
        counts[seat.id] += 1
        even.answered(seat)
    assert min(counts.values()) > 0.6 * 1000 / len(nodes)


def test_the_better_of_two_replicas_keeps_queues_far_shorter_than_chance() -> None:
    """2,000 requests into 50 replicas, none answered: chance alone leaves one of them with about 60."""
    balanced = router(["here"] * 50, ongoing=10_000)
    for _ in range(2000):
        sent(balanced)
    loads = [seat.in_flight for seat in balanced.seats.values()]
    assert sum(loads) == 2000
    assert max(loads) <= 44


def test_a_replica_that_others_keep_busy_is_avoided() -> None:
    shared = router(["here", "here"])
    busy, idle = shared.seats.values()
    shared.heard(busy, 20)
    assert [sent(shared) for _ in range(8)] == [idle] * 8


def test_a_replica_that_was_busy_once_is_not_avoided_for_ever() -> None:
    shared = router(["here", "here"])
    busy = shared.seats["r0"]
    shared.heard(busy, 20)
    for _ in range(60):
        seat = sent(shared)
        shared.answered(seat)
        if seat is busy:
            return
    raise AssertionError("the replica was never tried again")


def test_slow_replicas_get_fewer_requests() -> None:
    """One of three replicas needs ten times as long; requests come every tick."""
    mixed = router(["here"] * 3)
    ends: list[tuple[int, Seat]] = []
    counts = dict.fromkeys(mixed.seats, 0)
    for tick in range(3000):
        for at, seat in [each for each in ends if each[0] <= tick]:
            ends.remove((at, seat))
            mixed.answered(seat)
        seat = sent(mixed)
        counts[seat.id] += 1
        ends.append((tick + (20 if seat.id == "r0" else 2), seat))
    assert counts["r0"] < 0.6 * min(counts["r1"], counts["r2"])


def test_requests_for_a_model_go_where_it_was_used_until_no_place_is_left_there() -> None:
    models = router(["here"] * 5, ongoing=4)
    home = sent(models, "m")
    assert [sent(models, "m") for _ in range(3)] == [home] * 3
    other = sent(models, "m")
    assert other is not home
    models.answered(home)
    models.answered(home)
    assert {sent(models, "m"), sent(models, "m")} <= {home, other}


def test_the_models_that_are_remembered_are_bounded() -> None:
    models = router(["here"])
    for n in range(MODELS_MAX + 10):
        models.answered(sent(models, f"m{n}"))
    remembered = list(models.seats["r0"].models)
    assert remembered == [f"m{n}" for n in range(10, MODELS_MAX + 10)]


def test_a_dead_replica_does_not_come_back_with_an_older_update() -> None:
    pair = router(["here", "here"])
    pair.died(pair.seats["r0"])
    pair.update([("r0", "here"), ("r1", "here")], 1, -1, dict[str, str]().__getitem__)
    assert list(pair.seats) == ["r1"]
