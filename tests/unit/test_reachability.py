"""A cut between two nodes is noticed in time, healed in time, and decided on once; a task without retries runs once."""

from __future__ import annotations

import itertools
import random
from collections import deque
from typing import Any

import msgspec
import pytest

from skate._config import PARTITION_GRACE_S, partition_grace_s
from skate._core.reachability import (
    AGAIN,
    CHARGED,
    CUT,
    CUT_S,
    FAILED,
    HEAL_S,
    LOOK_PERIOD_S,
    PING_S,
    REACHABLE,
    STILL_OVER_S,
    SUSPECT_S,
    SUSPECTED,
    CutPairs,
    DeclareCut,
    DeclareHealed,
    GraceOver,
    Reachability,
    Reconnect,
    StillOver,
    after_grace,
)

GRACE_S = 30.0


def looked(nodes: Reachability, start: float, end: float) -> list[Any]:
    """The commands of looks at the usual times, with when each came."""
    found = []
    steps = round((end - start) / 0.1)
    for step in range(1, steps + 1):
        now = start + 0.1 * step
        found += [(round(now, 1), command) for command in nodes.look(now)]
        nodes.validate()
    return found


def test_a_silent_node_is_called_over_another_connection_then_cut_off_then_given_up() -> None:
    nodes = Reachability(0.0, GRACE_S)
    nodes.watch(7, 0.0)
    assert nodes.state(7, 1.0) == REACHABLE
    commands = looked(nodes, 0.0, 34.0)
    assert commands[0] == (2.0, Reconnect(7))
    assert commands[2][1] == DeclareCut(7)
    assert commands[2][0] == CUT_S
    assert [when for when, it in commands if isinstance(it, Reconnect)] == [2.0 * n for n in range(1, 18)]
    ((when, over),) = [it for it in commands if isinstance(it[1], GraceOver)]
    assert when == GRACE_S + HEAL_S
    assert over.cut_s == pytest.approx(GRACE_S + HEAL_S)
    assert nodes.state(7, 34.0) == CUT
    assert nodes.cuts(34.0) == {7: 34.0}


def test_the_grace_is_over_again_for_as_long_as_the_cut_lasts() -> None:
    nodes = Reachability(0.0, GRACE_S)
    nodes.watch(7, 0.0)
    overs = [when for when, it in looked(nodes, 0.0, 100.0) if isinstance(it, GraceOver)]
    assert overs == [33.0, 63.0, 93.0]
    assert nodes.heard(7, 100.0) == [DeclareHealed(7, 100.0)]
    assert not nodes.is_cut(7)
    overs = [when for when, it in looked(nodes, 100.0, 135.0) if isinstance(it, GraceOver)]
    assert overs == [133.0], "another cut has a grace of its own"


def test_what_begins_to_wait_after_the_grace_is_decided_on_soon_until_the_path_has_healed() -> None:
    nodes = Reachability(0.0, GRACE_S)
    nodes.watch(7, 0.0)
    decided = [when for when, it in looked(nodes, 0.0, 70.0) if isinstance(it, (GraceOver, StillOver))]
    assert decided[0] == GRACE_S + HEAL_S, "not within the first grace"
    gaps = [later - earlier for earlier, later in itertools.pairwise(decided)]
    assert max(gaps) < STILL_OVER_S + 0.15
    assert nodes.is_over(7)
    nodes.heard(7, 70.0)
    assert not nodes.is_over(7)
    assert not [it for _, it in looked(nodes, 70.0, 102.0) if isinstance(it, (GraceOver, StillOver))]


def test_a_node_that_is_heard_of_in_time_is_not_cut_off() -> None:
    nodes = Reachability(0.0, GRACE_S)
    nodes.watch(7, 0.0)
    assert [type(it) for _, it in looked(nodes, 0.0, 3.9)] == [Reconnect]
    assert nodes.state(7, 3.9) == SUSPECTED
    assert nodes.heard(7, 3.95) == []
    assert nodes.state(7, 4.0) == REACHABLE
    assert looked(nodes, 3.9, 5.8) == []


def test_the_grace_may_be_shorter_than_it_takes_to_notice_a_cut() -> None:
    nodes = Reachability(0.0, 0.5)
    nodes.watch(7, 0.0)
    commands = looked(nodes, 0.0, 4.4)
    assert [type(it) for when, it in commands if when >= CUT_S] == [Reconnect, DeclareCut, GraceOver]


def test_a_node_that_stood_still_itself_blames_no_other() -> None:
    nodes = Reachability(0.0, GRACE_S)
    nodes.watch(7, 0.0)
    assert nodes.look(0.5) == []
    assert nodes.look(100.0) == [], "what came meanwhile has not been read yet"
    assert nodes.state(7, 100.0) == REACHABLE


def test_what_was_forgotten_is_not_waited_for() -> None:
    nodes = Reachability(0.0, GRACE_S)
    nodes.watch(7, 0.0)
    nodes.forget(7)
    assert looked(nodes, 0.0, 40.0) == []
    assert nodes.heard(7, 40.0) == []
    assert nodes.heard(8, 40.0) == [], "it was never watched"


def test_a_pair_is_cut_while_either_end_says_so() -> None:
    cuts = CutPairs()
    assert cuts.said(b"a", b"b", is_cut=True)
    assert not cuts.said(b"b", b"a", is_cut=True), "that is known"
    assert cuts.between(b"a", b"b")
    assert cuts.between(b"b", b"a")
    assert cuts.of(b"a") == {b"b"}
    assert not cuts.said(b"a", b"b", is_cut=False), "the other end has not heard of it"
    assert cuts.said(b"b", b"a", is_cut=False)
    assert cuts.of(b"a") == set()
    cuts.said(b"a", b"c", is_cut=True)
    cuts.node_died(b"c")
    assert cuts.of(b"a") == set()


def test_only_what_has_retries_left_runs_again_and_only_the_first_is_charged() -> None:
    assert after_grace(is_first=True, retries_left=True) == CHARGED
    assert after_grace(is_first=False, retries_left=True) == AGAIN
    assert after_grace(is_first=True, retries_left=False) == FAILED
    assert after_grace(is_first=False, retries_left=False) == FAILED


def test_the_setting_comes_from_the_node_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKATE_PARTITION_GRACE_S", raising=False)
    assert partition_grace_s() == PARTITION_GRACE_S == 30.0
    monkeypatch.setenv("SKATE_PARTITION_GRACE_S", "2.5")
    assert partition_grace_s() == 2.5
    assert partition_grace_s(7.0) == 7.0
    for nonsense in ("", "soon", "-1", "nan", "inf"):
        monkeypatch.setenv("SKATE_PARTITION_GRACE_S", nonsense)
        assert partition_grace_s() == 30.0


# --- At random: two nodes, a path that is cut now and then, and tasks -------------------------------------------------


class SimTask(msgspec.Struct):
    retries: int
    #: How long it runs.
    seconds: float
    used: int = 0
    #: How often it began, anywhere.
    runs: int = 0
    outcomes: list[str] = msgspec.field(default_factory=list)


class End(msgspec.Struct):
    """One of the two nodes, with its half of a link that outlasts connections."""

    reach: Reachability
    #: What it has said; the other end has got the first `got` of it.
    said: list[tuple[str, int]] = msgspec.field(default_factory=list)
    got: int = 0
    frozen_until: float = 0.0
    ping_at: float = 0.0
    cut_at: float | None = None


class World:
    """The owner of tasks on one node, a worker on the other. A connection that has lost a packet never recovers: the
    path's healing shows only over another connection, as after a long cut."""

    STEP_S = 0.1

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.grace_s = self.random.choice([3.0, 6.0, 10.0])
        self.owner, self.other = (End(Reachability(0.0, self.grace_s)) for _ in range(2))
        for end in (self.owner, self.other):
            end.reach.watch(1, 0.0)
        self.tasks: list[SimTask] = []
        self.inflight: dict[int, SimTask] = {}
        #: Tasks that the worker has, the first of which it runs; when that ends.
        self.worker: deque[int] = deque()
        self.ends_at: float | None = None
        self.path = True
        self.connected = True
        self.down_since: float | None = None
        self.longest_cut_s = 0.0
        self.overs: list[float] = []

    # -- the network

    def set_path(self, up: bool) -> None:
        if self.path and not up:
            self.down_since = self.now
        self.path = up
        if not up:
            self.connected = False

    def carry(self) -> None:
        if self.down_since is None and (self.is_frozen(self.owner) or self.is_frozen(self.other)):
            self.down_since = self.now
        if self.down_since is not None:
            self.longest_cut_s = max(self.longest_cut_s, self.now - self.down_since)
        if not (self.path and self.connected) or self.is_frozen(self.owner) or self.is_frozen(self.other):
            return
        self.down_since = None
        for end, hear in ((self.owner, self.worker_hears), (self.other, self.owner_hears)):
            while end.got < len(end.said):
                end.got += 1
                hear(*end.said[end.got - 1])

    def is_frozen(self, end: End) -> bool:
        return self.now < end.frozen_until

    # -- the two ends

    def look(self, end: End) -> None:
        if self.is_frozen(end):
            return
        for command in end.reach.look(self.now):
            if isinstance(command, Reconnect):
                self.connected = self.path
            elif isinstance(command, DeclareCut):
                end.cut_at = self.now
            elif isinstance(command, GraceOver):
                assert command.cut_s >= self.grace_s
                if end is self.owner:
                    self.give_up(command)
        if self.now >= end.ping_at:
            end.ping_at = self.now + PING_S
            if self.path and self.connected and not self.is_frozen(self.other) and not self.is_frozen(self.owner):
                for both in (self.owner, self.other):
                    for command in both.reach.heard(1, self.now):
                        assert isinstance(command, DeclareHealed)
                        assert both.cut_at is not None
                        both.cut_at = None
        end.reach.validate()

    def submit(self, retries: int, seconds: float) -> None:
        number = len(self.tasks)
        self.tasks.append(SimTask(retries, seconds))
        self.inflight[number] = self.tasks[number]
        self.owner.said.append(("task", number))

    def give_up(self, over: GraceOver) -> None:
        """As `_worker/unreachable.py` does."""
        self.overs.append(self.now)
        self.owner.said.append(("kill", 0))
        for position, (number, task) in enumerate(list(self.inflight.items())):
            del self.inflight[number]
            left = task.retries < 0 or task.used < task.retries
            fate = after_grace(is_first=position == 0, retries_left=left)
            if fate is FAILED:
                task.outcomes.append("failed")
                continue
            task.used += fate is CHARGED
            task.runs += 1  # on a third node, which both reach
            task.outcomes.append("value")

    def owner_hears(self, what: str, number: int) -> None:
        assert what == "result"
        task = self.inflight.pop(number, None)
        if task is not None:  # otherwise it was given up: its late result is ignored
            task.outcomes.append("value")

    def worker_hears(self, what: str, number: int) -> None:
        if what == "kill":
            self.worker.clear()
            self.ends_at = None
        else:
            self.worker.append(number)

    def work(self) -> None:
        if self.is_frozen(self.other):
            return
        if self.ends_at is not None and self.now >= self.ends_at:
            self.other.said.append(("result", self.worker.popleft()))
            self.ends_at = None
        if self.ends_at is None and self.worker:
            task = self.tasks[self.worker[0]]
            task.runs += 1
            self.ends_at = self.now + task.seconds

    def step(self) -> None:
        self.now += self.STEP_S
        self.carry()
        self.work()
        self.look(self.owner)
        self.look(self.other)


@pytest.mark.parametrize("seed", range(150))
def test_random_histories_of_cuts_run_a_task_without_retries_at_most_once(seed: int) -> None:
    world = World(seed)
    chance = world.random
    for _ in range(chance.randint(2, 5)):
        for _ in range(chance.randint(0, 4)):
            world.submit(chance.choice([0, 0, 1, 3, -1]), chance.choice([0.1, 1.0, 5.0, 15.0]))
        quiet = chance.uniform(0.0, 6.0)
        cut = chance.choice([0.3, 1.5, 3.0, 5.0, 8.0, 12.0, 25.0])
        for up, seconds in ((True, quiet), (False, cut), (True, chance.uniform(0.0, 6.0))):
            world.set_path(up)
            until = world.now + seconds
            while world.now < until:
                if chance.random() < 0.005:
                    frozen = chance.choice([world.owner, world.other])
                    frozen.frozen_until = world.now + chance.uniform(0.2, 3.0)
                elif chance.random() < 0.02:
                    world.submit(chance.choice([0, 1]), 0.5)
                world.step()
    world.set_path(True)
    until = world.now + 5.0
    while world.now < until:
        world.step()
    for end in (world.owner, world.other):
        assert not end.reach.is_cut(1), "healing is noticed within seconds"
    until = world.now + 20.0 * len(world.tasks)
    while world.inflight and world.now < until:
        world.step()
    for task in world.tasks:
        assert len(task.outcomes) == 1, "each has one outcome"
        if task.retries == 0:
            assert task.runs <= 1, "a task without retries never runs twice"
        if task.outcomes == ["value"]:
            assert task.runs >= 1
    if world.longest_cut_s < world.grace_s:
        assert not world.overs
    if not world.overs:
        assert all((task.runs, task.outcomes) == (1, ["value"]) for task in world.tasks), "nothing lost, nothing twice"


@pytest.mark.parametrize("seed", range(20))
def test_a_cut_is_noticed_by_both_ends_within_five_seconds_and_its_healing_too(seed: int) -> None:
    world = World(seed)
    for _ in range(world.random.randint(1, 30)):
        world.step()
    world.set_path(False)
    cut_at = world.now
    while world.owner.cut_at is None or world.other.cut_at is None:
        world.step()
        assert world.now - cut_at < CUT_S + LOOK_PERIOD_S, "both have noticed"
    for _ in range(world.random.randint(0, 200)):
        world.step()
    world.set_path(True)
    healed_at = world.now
    while world.owner.reach.is_cut(1) or world.other.reach.is_cut(1):
        world.step()
        assert world.now - healed_at < SUSPECT_S + 2 * PING_S, "and both know that it is over"
