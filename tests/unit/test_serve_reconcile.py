"""The replicas of a deployment under simulated events: starts, failures, deaths, new targets, a new controller."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random

import msgspec
import pytest

from skate.serve.application import open_gates
from skate.serve.reconcile import (
    PAUSE_S_MAX,
    PROBATION_S,
    SLOW_S,
    STARTING_MAX,
    STEADY_S,
    TRIES,
    Command,
    Configure,
    Deployment,
    Drain,
    Kill,
    Publish,
    Replica,
    Start,
    State,
)
from skate.serve.records import DeploymentSpec


def spec(version: str = "1", config: str = "", replicas: int = 3) -> DeploymentSpec:
    return DeploymentSpec(
        app="app",
        name="Brain",
        code="code",
        config=config,
        version=version,
        replicas=replicas,
        max_ongoing=10,
        max_queued=-1,
        drain_s=5.0,
        health_period_s=1.0,
        health_timeout_s=1.0,
        actor_options=b"",
    )


class World:
    """Carries out commands after random delays, as the crew and the replicas do, and checks each step.

    A version or configuration whose name begins with "bad" never starts, and is refused by replicas that run.
    """

    def __init__(self, seed: int, first: DeploymentSpec, *, luck: float = 1.0) -> None:
        self.chance = random.Random(seed)
        self.luck = luck
        self.now = 0.0
        self.ids = (f"id{n}" for n in itertools.count())
        self.events: list[tuple[float, int, str, str, str]] = []
        self.numbers = itertools.count()
        self.started: set[str] = set()
        self.drained: set[str] = set()
        self.alive: dict[str, Replica] = {}
        self.shown: set[str] = set()
        self.good: DeploymentSpec | None = None
        self.given_up: list[str] = []
        self.serving_least = 0
        self.deployment = self._deployment(first)
        self.step()

    def _deployment(self, target: DeploymentSpec) -> Deployment:
        return Deployment(target, target.replicas, new_id=lambda: next(self.ids))

    # -- what the replicas and the controller do --------------------------------------------------------------------

    def later(self, kind: str, id: str, what: str = "") -> None:
        heapq.heappush(self.events, (self.now + self.chance.uniform(0.01, 2.0), next(self.numbers), kind, id, what))

    def step(self) -> list[Command]:
        deployment = self.deployment
        before = len(deployment.members)
        commands = deployment.step(self.now)
        if not deployment.deleted:
            assert len(deployment.members) >= min(before, deployment.wanted), "fewer serve than should"
        for each in commands:
            self._carry_out(each)
        assert deployment.step(self.now) == [], "a second step at the same moment finds something to do"
        assert self.shown == {each.id for each in deployment.members}
        old = [each for each in deployment.members if each.version != deployment.spec.version]
        starting = [each for each in deployment.replicas.values() if each.state is State.STARTING]
        begun = any(isinstance(each, Start) for each in commands)
        assert not begun or len(starting) <= (1 if old else STARTING_MAX), "not one by one"
        self.serving_least = min(self.serving_least, len(deployment.members))
        if deployment.is_settled and deployment.members:
            self.good = deployment.spec
        if deployment.broken and not deployment.deleted:  # as the controller does
            self.given_up.append(deployment.message)
            if self.good is not None and self.good != deployment.spec:
                deployment.become(self.good, self.good.replicas, proven=True)
            else:
                deployment.delete()
            self.step()
        return commands

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Publish):
            self.shown = {each.id for each in self.deployment.members}
        elif isinstance(command, Start):
            assert command.id not in self.started
            assert command.spec == self.deployment.spec
            self.started.add(command.id)
            target = command.spec
            self.alive[command.id] = dataclasses.replace(self.deployment.replicas[command.id])
            works = not target.version.startswith("bad") and not target.config.startswith("bad")
            self.later("started" if works and self.chance.random() < self.luck else "failed", command.id, "no luck")
        elif isinstance(command, Configure):
            bad = command.spec.config.startswith("bad")
            self.later("refused" if bad else "configured", command.id, command.spec.settings)
        elif isinstance(command, Drain):
            assert command.id not in self.drained
            assert command.id in self.alive
            self.drained.add(command.id)
            self.later("left", command.id)
        elif isinstance(command, Kill):
            self.alive.pop(command.id, None)

    def happen(self) -> None:
        """The next event, or the next moment that the deployment asked for."""
        wake = self.deployment.wake_at(self.now)
        if wake is not None and (not self.events or wake < self.events[0][0]):
            self.now = wake
        elif self.events:
            self.now, _, kind, id, what = heapq.heappop(self.events)
            deployment, replica = self.deployment, self.alive.get(id)
            if kind == "started":
                deployment.started(id, "node", b"", self.now)
                if replica is not None:
                    replica.state = State.RUNNING
            elif kind == "failed":
                self.alive.pop(id, None)
                deployment.failed(id, what, self.now)
            elif kind in ("configured", "refused"):
                if replica is not None:
                    if kind == "configured":
                        replica.settings = what
                    deployment.configured(id, what, "refused" if kind == "refused" else "")
            elif self.alive.pop(id, None) is not None:
                deployment.died(id, "" if kind == "left" else what, self.now)
        self.step()

    def quiet(self, events: int = 3000) -> None:
        """Let everything happen until nothing is left to happen."""
        for _ in range(events):
            if not self.events and self.deployment.wake_at(self.now) is None:
                return
            self.happen()
        raise AssertionError(f"it never comes to rest: {self.deployment}")

    # -- what users and fate do -------------------------------------------------------------------------------------

    def become(self, target: DeploymentSpec) -> None:
        self.deployment.become(target, target.replicas)
        self.serving_least = len(self.deployment.members)
        self.step()

    def gates(self, may_begin: bool, may_replace: bool) -> None:
        """Other deployments of the application do not run yet, or do."""
        self.deployment.may_begin, self.deployment.may_replace = may_begin, may_replace
        self.step()

    def kill(self) -> None:
        running = [id for id, each in self.alive.items() if each.state is State.RUNNING]
        if running:
            id = self.chance.choice(running)
            del self.alive[id]
            self.deployment.died(id, "killed", self.now)
            self.step()

    def new_controller(self) -> None:
        """The one before is gone with what it knew; replicas that had not started are lost, draining ones go on."""
        target, deleted = self.deployment.spec, self.deployment.deleted
        wanted = self.deployment.wanted
        self.deployment = self._deployment(target)
        self.deployment.wanted = wanted
        self.deployment.become(target, wanted, proven=self.good == target)
        if deleted:
            self.deployment.delete()
        self.events = [each for each in self.events if each[2] == "left"]
        heapq.heapify(self.events)
        for id, each in list(self.alive.items()):
            if each.state is not State.RUNNING:
                del self.alive[id]
            elif id not in self.drained:
                self.deployment.adopt(id, dataclasses.replace(each))
        self.step()


def running(deployment: Deployment) -> list[tuple[str, str]]:
    return sorted((each.version, each.settings) for each in deployment.members)


@pytest.mark.parametrize("seed", range(150))
def test_whatever_happens_it_comes_to_rest_as_it_should_be(seed: int) -> None:
    chance = random.Random(seed)
    world = World(seed, spec(), luck=0.9)
    world.quiet()
    for number in range(30):
        what = chance.choice(
            ["become", "configure", "bad", "bad config", "kill", "scale", "adopt", "delete", "wait", "gate"]
        )
        target = world.deployment.spec
        if what == "become":
            world.become(spec(f"v{chance.randrange(4)}", replicas=chance.randrange(5)))
        elif what == "configure":
            world.become(msgspec.structs.replace(target, config=f"c{number}"))
        elif what == "bad":
            world.become(spec(f"bad{number}"))
        elif what == "bad config":
            world.become(msgspec.structs.replace(target, config=f"bad{number}"))
        elif what == "kill":
            world.kill()
        elif what == "scale" and not world.deployment.deleted:
            world.deployment.wanted = chance.randrange(6)
            world.step()
        elif what == "adopt":
            world.new_controller()
        elif what == "delete" and chance.random() < 0.3:
            world.deployment.delete()
            world.good = None
            world.step()
        elif what == "gate":
            world.gates(*chance.choice([(False, False), (True, False), (True, True)]))
        for _ in range(chance.choice([0, 1, 3, 10])):
            world.happen()
        if chance.random() < 0.2:
            world.gates(True, True)
            world.quiet()
            deployment = world.deployment
            assert deployment.is_gone if deployment.deleted else deployment.is_settled
    world.gates(True, True)
    world.quiet()
    deployment = world.deployment
    assert deployment.is_gone if deployment.deleted else deployment.is_settled
    assert set(world.alive) == set(deployment.replicas)


@pytest.mark.parametrize("seed", range(20))
def test_a_rolling_update_never_has_fewer_replicas_than_wanted(seed: int) -> None:
    world = World(seed, spec(replicas=4))
    world.quiet()
    for version in ("2", "3"):
        world.become(spec(version, replicas=4))
        while not world.deployment.is_settled:
            world.happen()
            there = [each for each in world.deployment.replicas.values() if each.state is not State.DRAINING]
            assert len(there) <= 5, "not one by one"
        assert world.serving_least == 4
        assert {each.version for each in world.deployment.members} == {version}


@pytest.mark.parametrize("seed", range(20))
def test_a_version_that_does_not_start_is_given_up_and_the_old_replicas_serve_on(seed: int) -> None:
    world = World(seed, spec())
    world.quiet()
    before = set(world.deployment.replicas)
    tried = len(world.started)
    world.become(spec("bad"))
    world.quiet()
    assert world.given_up == ["no luck"]
    assert len(world.started) == tried + TRIES
    assert world.serving_least == 3
    assert set(world.deployment.replicas) == before


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("replicas", [1, 2, 5])
def test_settings_that_replicas_refuse_are_given_up_and_requests_are_served_meanwhile(seed: int, replicas: int) -> None:
    world = World(seed, spec(config="good", replicas=replicas))
    world.quiet()
    world.become(spec(config="bad", replicas=replicas))
    world.quiet()
    assert len(world.given_up) == 1
    assert world.serving_least == replicas
    assert world.deployment.is_settled
    assert running(world.deployment) == [("1", spec(config="good").settings)] * replicas


def test_settings_are_given_up_when_as_many_replicas_have_refused_them_as_may() -> None:
    deployment = Deployment(spec(), TRIES)
    for id in [each.id for each in deployment.step(0.0) if isinstance(each, Start)]:
        deployment.started(id, "node", b"", 0.1)
    other = spec(config="other")
    deployment.become(other, TRIES)
    for each in deployment.step(0.2):
        if isinstance(each, Configure):
            assert not deployment.broken
            deployment.configured(each.id, other.settings, "refused")
    assert (deployment.broken, deployment.message) == (True, "refused")
    assert len(deployment.members) == TRIES


def test_a_first_version_that_does_not_start_is_given_up_with_the_reason() -> None:
    world = World(1, spec("bad"))
    world.quiet()
    assert world.given_up == ["no luck"]
    assert world.deployment.is_gone


def test_a_version_that_has_run_is_tried_for_ever_ever_more_slowly() -> None:
    deployment = Deployment(spec(replicas=1), 1)
    deployment.become(spec(replicas=1), 1, proven=True)
    now, pauses = 0.0, []
    for _ in range(2000):
        (start,) = [each for each in deployment.step(now) if isinstance(each, Start)]
        deployment.failed(start.id, "no room", now)
        wake = deployment.wake_at(now)
        assert wake is not None
        pauses.append(wake - now)
        assert not [each for each in deployment.step(now) if isinstance(each, Start)]
        now = wake
    assert not deployment.broken
    assert pauses[:3] == pytest.approx([0.1, 0.2, 0.4])
    assert pauses[-1] == pytest.approx(PAUSE_S_MAX)


def test_settings_reach_replicas_that_run_without_replacing_them() -> None:
    world = World(1, spec())
    world.quiet()
    before = set(world.deployment.replicas)
    for config in ("a", "b"):  # the second one while the first is on its way
        world.become(spec(config=config))
    assert not world.deployment.is_settled
    world.quiet()
    assert world.deployment.is_settled
    assert set(world.deployment.replicas) == before
    assert running(world.deployment) == [("1", spec(config="b").settings)] * 3


def test_handles_are_told_of_a_replica_that_leaves_before_it_drains() -> None:
    world = World(1, spec())
    world.quiet()
    world.deployment.wanted = 1
    commands = world.deployment.step(world.now)
    assert [type(each) for each in commands] == [Publish, Drain, Drain]


def test_of_replicas_that_start_the_latest_are_ended_first() -> None:
    deployment = Deployment(spec(), 3)
    ids = [each.id for each in deployment.step(0.0) if isinstance(each, Start)]
    deployment.wanted = 1
    assert [each.id for each in deployment.step(0.1) if isinstance(each, Kill)] == ids[1:]


def test_a_success_after_the_version_was_given_up_does_not_hide_the_reason() -> None:
    deployment = Deployment(spec(), 4)
    *failing, last = [each.id for each in deployment.step(0.0) if isinstance(each, Start)]
    for id in failing:
        deployment.failed(id, "why", 0.1)
    deployment.started(last, "node", b"", 0.1)
    assert (deployment.broken, deployment.message) == (True, "why")


def test_a_new_controller_keeps_the_replicas_that_it_finds() -> None:
    world = World(1, spec())
    world.quiet()
    before = set(world.alive)
    world.new_controller()
    assert world.deployment.is_settled
    assert set(world.deployment.replicas) == before


def test_a_deployment_that_is_deleted_while_replicas_start_and_drain_comes_to_an_end() -> None:
    world = World(1, spec())
    for _ in range(2):
        world.happen()
    world.become(spec("2"))
    world.deployment.delete()
    world.step()
    assert not world.deployment.members
    world.quiet()
    assert world.deployment.is_gone
    assert not world.alive


def started(deployment: Deployment, now: float) -> list[str]:
    """The replicas that a step has begun; all of them run at once."""
    ids = [each.id for each in deployment.step(now) if isinstance(each, Start)]
    for id in ids:
        deployment.started(id, "node", b"", now)
    return ids


def old_one(replicas: int = 2) -> Deployment:
    """A deployment of which the first version has run for long."""
    deployment = Deployment(spec(replicas=replicas), replicas)
    started(deployment, 0.0)
    deployment.step(1.0)
    return deployment


#: When the first version has run for long.
LATER = 100.0


def test_a_later_replica_of_an_unproven_version_that_does_not_start_is_a_failure_of_the_version() -> None:
    deployment = Deployment(spec(replicas=2), 2)
    first, second = [each.id for each in deployment.step(0.0) if isinstance(each, Start)]
    deployment.started(first, "node", b"", 0.1)
    deployment.failed(second, "no luck", 0.1)
    now = 0.1
    for _ in range(TRIES - 1):
        assert not deployment.broken
        now += PAUSE_S_MAX  # the first replica has run for long meanwhile, which says nothing of the others
        (id,) = [each.id for each in deployment.step(now) if isinstance(each, Start)]
        deployment.failed(id, "no luck", now)
    assert deployment.broken
    assert "has 1 of 2 replicas" in deployment.why_broken
    assert [each.id for each in deployment.members] == [first]


def test_more_replicas_of_a_proven_version_than_start_are_given_up_and_those_that_run_stay() -> None:
    deployment = old_one(1)
    before = set(deployment.replicas)
    deployment.become(spec(replicas=1), 1, proven=True)
    deployment.become(spec(replicas=2), 2)
    now = LATER
    for _ in range(TRIES):
        (id,) = [each.id for each in deployment.step(now) if isinstance(each, Start)]
        deployment.failed(id, "no luck", now)
        now += 1.0
    assert deployment.broken
    assert set(deployment.replicas) == before
    deployment.become(spec(replicas=1), 1, proven=True)
    assert not deployment.step(now)
    assert deployment.is_settled


def test_a_replica_that_dies_soon_after_its_start_is_followed_ever_more_slowly() -> None:
    deployment = Deployment(spec(replicas=1), 1)
    deployment.proven = True
    now, pauses = 0.0, []
    for _ in range(10):
        (id,) = started(deployment, now)
        now += 0.05
        deployment.died(id, "killed", now)
        wake = deployment.wake_at(now)
        assert wake is not None
        assert not started(deployment, wake - 0.001)
        pauses.append(wake - now)
        now = wake
    assert pauses[:3] == pytest.approx([0.1, 0.2, 0.4])
    assert pauses[-1] == pytest.approx(PAUSE_S_MAX)
    (id,) = started(deployment, now)
    now += STEADY_S
    deployment.step(now)
    deployment.died(id, "killed", now)
    assert started(deployment, now), "one that has run for long is followed at once"


def test_the_moments_that_an_update_waits_for_are_known() -> None:
    deployment = Deployment(spec("one", replicas=1), 1)
    (old,) = started(deployment, 0.0)
    assert deployment.wake_at(0.0) == PROBATION_S
    assert deployment.is_ready(PROBATION_S)
    deployment.become(spec("two", replicas=1), 1)
    deployment.may_replace = False
    started(deployment, 10.0)
    assert deployment.wake_at(10.0) == 10.0 + PROBATION_S
    deployment.may_replace = True
    deployment.step(11.0)
    assert deployment.replicas[old].state is State.DRAINING
    assert deployment.wake_at(11.0, linger_s=0.2) == 11.2
    assert not deployment.has_spread(11.1, 0.2)
    assert deployment.has_spread(11.2 + 1e-9, 0.2)
    assert deployment.wake_at(11.2, linger_s=0.2) is None


def test_replicas_that_die_together_have_failed_once() -> None:
    deployment = Deployment(spec(replicas=TRIES), TRIES)
    for id in started(deployment, 0.0):
        deployment.died(id, "its node is dead", 0.1)
    assert (deployment.failures, deployment.broken) == (1, False)


def test_a_new_version_that_dies_at_once_replaces_nothing() -> None:
    deployment = old_one()
    before = set(deployment.replicas)
    deployment.become(spec("2", replicas=2), 2)
    now = LATER
    for _ in range(TRIES):
        open_gates([deployment], now)
        (id,) = started(deployment, now)
        now += PROBATION_S / 2
        open_gates([deployment], now)
        assert not deployment.step(now) or deployment.members == list(deployment.replicas.values())
        deployment.died(id, "killed", now)
        now += 1.0
    assert deployment.broken
    assert {each.id for each in deployment.members} == before


def test_a_deployment_begins_when_those_that_it_calls_run_and_leaves_its_old_replicas_when_all_run() -> None:
    above, below = old_one(), old_one()
    for each in (above, below):
        each.become(spec("2", replicas=2), 2)

    def look(now: float) -> None:
        open_gates([above, below], now)

    look(LATER)
    assert not above.step(LATER), "what it calls does not run yet"
    assert len(started(below, LATER)) == 1
    look(LATER + 1.0)
    assert not [each for each in below.step(LATER + 1.0) if not isinstance(each, Publish)], (
        "the one above is not proven"
    )
    assert len(started(above, LATER + 1.0)) == 1
    now = LATER + 2.0
    look(now)
    for each in (above, below):
        drains = [command for command in each.step(now) if isinstance(command, Drain)]
        assert len(drains) == 1
        assert {member.version for member in each.members} == {"1", "2"}


def test_settings_wait_until_every_deployment_of_the_target_runs() -> None:
    above, below = old_one(), Deployment(spec(replicas=1), 1)
    above.become(spec(config="other", replicas=2), 2)
    open_gates([above, below], LATER)
    assert not above.step(LATER)
    started(below, LATER)
    open_gates([above, below], LATER + 1.0)
    assert [type(each) for each in above.step(LATER + 1.0)] == [Configure, Configure]


def test_a_deployment_that_is_to_have_no_replicas_keeps_none_waiting() -> None:
    above, below = old_one(), Deployment(spec(replicas=0), 0)
    above.become(spec("2", replicas=2), 2)
    open_gates([above, below], LATER)
    assert started(above, LATER)


def test_replicas_that_start_for_long_are_spoken_of() -> None:
    deployment = Deployment(spec(replicas=2), 2)
    first, _ = [each.id for each in deployment.step(0.0) if isinstance(each, Start)]
    deployment.started(first, "node", b"", 0.1)
    assert not deployment.why_waiting(SLOW_S / 2)
    assert deployment.why_waiting(SLOW_S).startswith("1 of 2 replicas have been starting for 5 s")
