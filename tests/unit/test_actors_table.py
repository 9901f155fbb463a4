"""The table of actors: names, restarts, deaths, and who is told; one promise at a time, then random histories."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from skate._control.state.actors import ActorService
from skate._control.state.functions import Functions
from skate._core import actors as core
from skate._core.actors import (
    ALIVE,
    DEAD,
    FAILED_STARTS_MAX,
    PENDING,
    RESTART_PAUSE_S,
    STARTING,
    WAITING,
    Actor,
    ActorTable,
    Command,
    FindWorker,
    Kill,
    Leave,
    NameTaken,
    Start,
    StopLooking,
    Tell,
)
from skate._core.task import ActorInfo, ActorSettings, Death, Job, Task
from skate._wire import messages as wire

X, Y, Z = b"actor-x", b"actor-y", b"actor-z"
P, Q, R = b"process-p", b"process-q", b"process-r"
W1, W2, W3 = b"worker-1", b"worker-2", b"worker-3"
STATES = (WAITING, PENDING, STARTING, ALIVE)


def crash() -> Death:
    return Death("crash", "its process was ended by signal 9.")


def killed() -> Death:
    return Death("kill", "skate.kill() was called.")


class Node:
    """A table that is validated after every event."""

    def __init__(self) -> None:
        self.table = ActorTable()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.table, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            finally:
                self.table.validate()

        return call

    def __getitem__(self, id: bytes) -> Actor:
        return self.table.actors[id]

    def add(self, id: bytes = X, state: str = ALIVE, *, owner: bytes = P, worker: bytes = W1, **info: Any) -> None:
        """An actor in that state, watched by nobody."""
        self.register(id, owner, ActorInfo("Class", **info))
        if state != WAITING:
            assert self.created(id) == [FindWorker(id)]
        if state in (STARTING, ALIVE):
            assert self.granted(id, worker, 1) == [Start(id, worker)]
        if state == ALIVE:
            self.started(worker)
        assert self[id].state == state

    def restart(self, id: bytes, worker: bytes) -> None:
        self.granted(id, worker, 2)
        self.started(worker)


# --- Coming to life ---------------------------------------------------------------------------------------------------


def test_an_actor_looks_for_a_worker_when_its_arguments_are_there() -> None:
    node = Node()
    assert node.register(X, P, ActorInfo("Class")) == []
    assert node[X].state == WAITING
    assert node.created(X) == [FindWorker(X)]
    assert node.granted(X, W1, 77) == [Start(X, W1)]
    assert (node[X].state, node[X].worker, node[X].pid, node[X].lives) == (STARTING, W1, 77, 1)
    assert node.started(W1) == []
    assert node[X].state == ALIVE
    assert node.of_worker(W1) is node[X]


def test_a_registration_that_is_repeated_changes_nothing() -> None:
    """The process repeats it if the control service died before it had answered."""
    node = Node()
    for state in STATES:
        node = Node()
        node.add(X, state, name="x")
        before = (node[X].state, node[X].owner, node[X].lives, node[X].info)
        assert node.register(X, P, ActorInfo("Class", name="x")) == [], state
        assert (node[X].state, node[X].owner, node[X].lives, node[X].info) == before
    node.kill(X, killed())
    assert node.register(X, P, ActorInfo("Class", name="x")) == []
    assert node[X].state == DEAD


def test_it_is_created_once() -> None:
    node = Node()
    node.add(X, PENDING)
    assert node.created(X) == []
    assert node.created(Y) == [], "nobody has heard of it"


def test_what_a_worker_says_that_is_no_actor_changes_nothing() -> None:
    node = Node()
    node.add(X, ALIVE)
    assert node.started(W2) == []
    assert node.ended(W2, killed()) == []
    assert node.process_died(W2, crash()) == []
    assert node.started(W1) == [], "it had started before"
    assert node[X].state == ALIVE


def test_a_start_that_is_heard_after_the_death_changes_nothing() -> None:
    node = Node()
    node.add(X, STARTING)
    node.kill(X, killed())
    assert node.started(W1) == []
    assert node[X].state == DEAD


# --- Names ------------------------------------------------------------------------------------------------------------


def test_a_name_is_taken_as_soon_as_an_actor_is_registered() -> None:
    node = Node()
    node.add(X, WAITING, name="n", namespace="s")
    with pytest.raises(NameTaken) as caught:
        node.register(Y, Q, ActorInfo("Class", name="n", namespace="s"))
    assert caught.value.holder is node[X]
    assert Y not in node.table.actors
    assert node.named("s", "n") is node[X]


def test_the_same_name_in_another_namespace_is_another_name() -> None:
    node = Node()
    node.add(X, WAITING, name="n", namespace="s")
    node.add(Y, WAITING, name="n", namespace="t")
    assert node.named("s", "n") is node[X]
    assert node.named("t", "n") is node[Y]
    assert node.named("u", "n") is None


def test_actors_without_a_name_are_found_under_none() -> None:
    node = Node()
    node.add(X, WAITING)
    node.add(Y, WAITING)
    assert node.named("", "") is None


@pytest.mark.parametrize("state", STATES)
def test_the_name_of_a_dead_actor_is_free_before_its_process_is_gone(state: str) -> None:
    node = Node()
    node.add(X, state, name="n")
    node.kill(X, killed())
    assert node.named("", "n") is None
    node.add(Y, WAITING, name="n")
    node.process_died(W1, crash())
    assert node.named("", "n") is node[Y]


def test_a_restart_keeps_the_name() -> None:
    node = Node()
    node.add(X, ALIVE, name="n", max_restarts=1)
    node.process_died(W1, crash())
    assert node.named("", "n") is node[X]


# --- Restarts ---------------------------------------------------------------------------------------------------------


def test_without_restarts_the_end_of_the_process_is_the_death() -> None:
    node = Node()
    node.add(X, ALIVE)
    death = crash()
    assert node.process_died(W1, death) == []
    assert node[X].state == DEAD
    assert node[X].death is death
    assert "restarted" not in death.reason


def test_restarts_are_counted_and_then_it_is_dead() -> None:
    node = Node()
    node.add(X, ALIVE, max_restarts=2)
    assert node.process_died(W1, crash()) == [FindWorker(X)]
    assert node[X].state == PENDING
    node.restart(X, W2)
    assert node.process_died(W2, crash()) == [FindWorker(X)]
    node.restart(X, W3)
    assert (node[X].restarts, node[X].lives) == (2, 3)
    death = crash()
    assert node.process_died(W3, death) == []
    assert node[X].state == DEAD
    assert "signal 9" in death.reason
    assert "2 times" in death.reason
    assert "max_restarts" in death.reason


def test_restarts_without_end() -> None:
    node = Node()
    node.add(X, ALIVE, max_restarts=-1)
    for number in range(50):
        worker = node[X].worker
        assert node.process_died(worker, crash()) == [FindWorker(X)]
        node.restart(X, b"next-%d" % number)
    assert node[X].restarts == 50


def test_a_start_that_fails_is_tried_again_after_pauses_and_then_no_more() -> None:
    node = Node()
    node.add(X, PENDING, max_restarts=-1)
    pauses = []
    for _ in range(FAILED_STARTS_MAX - 1):
        node.granted(X, W1, 1)
        (again,) = node.process_died(W1, crash())
        assert isinstance(again, FindWorker)
        pauses.append(again.pause_s)
    assert pauses == [RESTART_PAUSE_S * 2**n for n in range(FAILED_STARTS_MAX - 1)]
    node.granted(X, W1, 1)
    death = crash()
    assert node.process_died(W1, death) == []
    assert node[X].state == DEAD
    assert f"{FAILED_STARTS_MAX} times in a row" in death.reason
    assert "signal 9" in death.reason


@pytest.mark.parametrize("max_restarts", [0, 1])
def test_an_actor_whose_process_ends_before_init_has_returned_is_said_to_have_been_being_created(
    max_restarts: int,
) -> None:
    node = Node()
    node.add(X, STARTING, max_restarts=max_restarts)
    death = crash()
    node.process_died(W1, death)
    assert "signal 9" in death.reason
    assert "It was being created: its __init__ had not returned." in death.reason
    node = Node()
    node.add(X, ALIVE, max_restarts=max_restarts)
    death = crash()
    node.process_died(W1, death)
    assert "being created" not in death.reason


def test_a_start_that_succeeds_ends_the_row_of_failures() -> None:
    node = Node()
    node.add(X, PENDING, max_restarts=-1)
    for _ in range(3 * FAILED_STARTS_MAX):
        for _ in range(FAILED_STARTS_MAX - 1):
            node.granted(X, W1, 1)
            node.process_died(W1, crash())
        node.restart(X, W1)
        assert node.process_died(W1, crash()) == [FindWorker(X)], "no pause after a life that had begun"


def test_a_failed_start_counts_as_a_restart() -> None:
    node = Node()
    node.add(X, STARTING, max_restarts=1)
    assert node.process_died(W1, crash()) == [FindWorker(X, RESTART_PAUSE_S)]
    node.granted(X, W2, 1)
    assert node.process_died(W2, crash()) == []
    assert node[X].state == DEAD


def test_the_old_process_of_a_restarted_actor_dies_once() -> None:
    node = Node()
    node.add(X, ALIVE, max_restarts=-1)
    node.process_died(W1, crash())
    node.restart(X, W2)
    assert node.process_died(W1, crash()) == []
    assert node[X].state == ALIVE
    assert node[X].worker == W2


def test_who_waits_for_the_next_life_can_ask_why_the_last_ended() -> None:
    node = Node()
    node.add(X, ALIVE, max_restarts=1)
    death = crash()
    node.process_died(W1, death)
    assert node[X].death is death


# --- Ends -------------------------------------------------------------------------------------------------------------


def test_killed_at_every_state() -> None:
    expected = {
        WAITING: [],
        PENDING: [StopLooking(X)],
        STARTING: [Kill(W1, killed().reason)],
        ALIVE: [Kill(W1, killed().reason)],
    }
    for state in STATES:
        node = Node()
        node.add(X, state, max_restarts=-1)
        assert node.kill(X, killed()) == expected[state]
        assert node[X].state == DEAD
        assert node[X].death == killed()
        assert node.kill(X, killed()) == [], "the dead are not killed"
        assert node.process_died(W1, crash()) == [], "nor restarted"
        assert node[X].death == killed(), "what it died of stays"


def test_killed_at_every_state_though_it_may_restart() -> None:
    expected: dict[str, list[Command]] = {
        WAITING: [],
        PENDING: [],
        STARTING: [Kill(W1, killed().reason)],
        ALIVE: [Kill(W1, killed().reason)],
    }
    for state in STATES:
        node = Node()
        node.add(X, state, max_restarts=1)
        assert node.kill(X, killed(), no_restart=False) == expected[state]
        assert node[X].state == state, "its process decides, when that has died"
        if expected[state]:
            assert isinstance(node.process_died(W1, crash())[-1], FindWorker)
            assert node[X].restarts == 1


def test_a_kill_that_allows_restarts_is_the_end_of_an_actor_that_has_none() -> None:
    node = Node()
    node.add(X, ALIVE)
    assert node.kill(X, killed(), no_restart=False) == [Kill(W1, killed().reason)]
    node.process_died(W1, crash())
    assert node[X].state == DEAD


def test_nobody_is_killed_who_is_not_known() -> None:
    assert Node().kill(X, killed()) == []


def test_an_actor_that_ended_by_its_own_doing_is_not_restarted() -> None:
    for state in (STARTING, ALIVE):
        node = Node()
        node.add(X, state, max_restarts=-1)
        death = Death("exit", "it called skate.exit_actor().")
        assert node.ended(W1, death) == [], "its process leaves by itself"
        assert node[X].state == DEAD
        assert node.process_died(W1, crash()) == []
        assert node[X].death is death


def test_a_detached_one_that_still_waits_for_arguments_dies_with_its_creator() -> None:
    node = Node()
    node.add(X, WAITING, detached=True)
    assert node.process_died(P, crash()) == []
    assert node[X].state == DEAD
    assert "before the arguments" in node[X].death.reason


def test_dropped_at_every_state() -> None:
    expected: dict[str, list[Command]] = {
        WAITING: [],
        PENDING: [StopLooking(X)],
        STARTING: [Kill(W1, "no handle to it was left.")],
        ALIVE: [Leave(W1)],
    }
    for state in STATES:
        node = Node()
        node.add(X, state, max_restarts=-1)
        assert node.drop(X, P) == expected[state]
        assert node[X].state == DEAD
        assert node.drop(X, P) == []
        assert node.created(X) == [], "its arguments come too late"
        assert node.process_died(W1, crash()) == []


def test_only_the_owner_drops_and_nobody_what_is_detached() -> None:
    node = Node()
    node.add(X, ALIVE)
    node.add(Y, ALIVE, worker=W2, detached=True)
    assert node.drop(X, Q) == []
    assert node.drop(Y, P) == []
    assert (node[X].state, node[Y].state) == (ALIVE, ALIVE)


def test_what_can_never_be_placed_is_dead() -> None:
    node = Node()
    node.add(X, PENDING)
    death = Death("infeasible", "too much", asked={"CPU": 99.0})
    assert node.infeasible(X, death) == [StopLooking(X)]
    assert node[X].death is death
    assert node.infeasible(X, killed()) == []


def test_an_actor_that_has_its_worker_is_not_infeasible() -> None:
    node = Node()
    node.add(X, STARTING)
    assert node.infeasible(X, killed()) == []
    assert node[X].state == STARTING


def test_actors_die_with_their_owner_unless_they_are_detached() -> None:
    node = Node()
    node.add(X, ALIVE, worker=W1, max_restarts=-1)
    node.add(Y, ALIVE, worker=W2, detached=True)
    node.add(Z, ALIVE, worker=W3, owner=Q)
    (kill,) = node.process_died(P, crash())
    assert isinstance(kill, Kill)
    assert kill.worker == W1
    assert [node[id].state for id in (X, Y, Z)] == [DEAD, ALIVE, ALIVE]
    assert node[X].death is not None
    assert node[X].death.kind == "owner"


def test_an_actor_that_owns_actors_takes_them_along_even_if_it_restarts() -> None:
    node = Node()
    node.add(X, ALIVE, worker=W1, max_restarts=1)
    node.add(Y, ALIVE, worker=W2, owner=W1, max_restarts=-1)
    commands = node.process_died(W1, crash())
    assert FindWorker(X) in commands
    assert [command.worker for command in commands if isinstance(command, Kill)] == [W2]
    assert (node[X].state, node[Y].state) == (PENDING, DEAD)


def test_a_detached_actor_is_restarted_without_its_owner() -> None:
    node = Node()
    node.add(X, ALIVE, detached=True, max_restarts=1)
    node.process_died(P, crash())
    assert node.process_died(W1, crash()) == [FindWorker(X)]


def test_the_oldest_dead_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "DEAD_MAX", 2)
    node = Node()
    for id, worker in ((X, W1), (Y, W2), (Z, W3)):
        node.add(id, ALIVE, worker=worker)
        node.kill(id, killed())
    assert list(node.table.actors) == [Y, Z]
    assert node.process_died(W1, crash()) == []


def test_who_watches_an_actor_that_was_forgotten_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner lives, but has registered it long ago and will not do so again."""
    monkeypatch.setattr(core, "DEAD_MAX", 1)
    node = Node()
    for id in (X, Y):
        node.add(id, WAITING)
        node.kill(id, killed())
    assert node.watch(X, Q, P, owner_lives=True) == [Tell(Q, X)]


def test_more_actors_than_are_remembered_may_die_with_their_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "DEAD_MAX", 2)
    node = Node()
    for number in range(5):
        node.add(b"actor-%d" % number, WAITING, name=str(number))
    node.process_died(P, crash())
    assert len(node.table.actors) == 2
    assert node.table.names == {}


class Silence:
    """As much of a control state as the actors need when nothing listens to it."""

    def __init__(self) -> None:
        self.functions = Functions(self.mark)

    def mark(self, table: str, key: bytes) -> None: ...

    def send(self, process_id: bytes, message: Any) -> None: ...

    def place(self, actor: bytes, info: ActorInfo, job: Job) -> None: ...

    def job_of(self, process_id: bytes) -> Job:
        return Job()

    def unplace(self, actor: bytes) -> None: ...

    def actor_died(self, actor: bytes) -> None: ...


def test_the_service_outlives_the_owner_of_more_actors_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "DEAD_MAX", 2)
    silence: Any = Silence()
    service = ActorService(silence)
    for number in range(5):
        id = b"actor-%d" % number
        service.handle(P, wire.RegisterActor(0, id, ActorInfo("Class")))
        service.handle(P, wire.CreateActor(id, Task(id, b"", b""), ActorSettings()))
    service.process_died(wire.PeerGone(P, 1, 0, b"", [], ""))
    service.table.validate()
    assert len(service.table.actors) == 2


def test_a_death_may_be_the_death_of_others() -> None:
    """A detached actor's placement group goes with it, and who waits for a place in that never gets one."""

    class Chain(Silence):
        def actor_died(self, actor: bytes) -> None:
            died.append(actor)
            service.infeasible(X, killed())

    died: list[bytes] = []
    outside: Any = Chain()
    service = ActorService(outside)
    for owner, id in ((P, b"one"), (P, b"two"), (Q, X)):
        service.handle(owner, wire.RegisterActor(0, id, ActorInfo("Class")))
        service.handle(owner, wire.CreateActor(id, Task(id, b"", b""), ActorSettings()))
    service.process_died(wire.PeerGone(P, 1, 0, b"", [], ""))
    assert sorted(died) == sorted([b"one", b"two", X])


# --- Who is told ------------------------------------------------------------------------------------------------------


def test_watchers_are_told_at_once_and_of_every_change() -> None:
    node = Node()
    node.add(X, WAITING, max_restarts=1)
    assert node.watch(X, Q, P, owner_lives=True) == [Tell(Q, X)]
    assert node.watch(X, P, P, owner_lives=True) == [Tell(P, X)]
    told: list[Command] = [Tell(P, X), Tell(Q, X)]
    assert node.created(X) == [FindWorker(X)], "still no place where it could be called"
    assert node.granted(X, W1, 1) == [Start(X, W1)]
    assert node.started(W1) == told
    assert node.process_died(W1, crash()) == [*told, FindWorker(X)]
    node.granted(X, W2, 1)
    assert node.started(W2) == told
    assert node.kill(X, killed()) == [*told, Kill(W2, killed().reason)]
    assert node.process_died(W2, crash()) == []


def test_the_dead_are_told_of_to_those_who_ask_late() -> None:
    node = Node()
    node.add(X, ALIVE)
    node.kill(X, killed())
    assert node.watch(X, Q, P, owner_lives=False) == [Tell(Q, X)]


def test_who_watches_twice_is_told_once() -> None:
    node = Node()
    node.add(X, STARTING)
    for _ in range(2):
        node.watch(X, Q, P, owner_lives=True)
    assert node.started(W1) == [Tell(Q, X)]


def test_who_watches_no_more_is_told_no_more() -> None:
    node = Node()
    node.add(X, STARTING)
    node.watch(X, Q, P, owner_lives=True)
    node.unwatch(X, Q)
    node.unwatch(Y, Q)
    assert node.started(W1) == []


def test_dead_processes_are_told_nothing() -> None:
    node = Node()
    node.add(X, STARTING)
    node.watch(X, Q, P, owner_lives=True)
    node.process_died(Q, crash())
    assert node.started(W1) == []


def test_an_early_watcher_is_told_when_the_actor_is_registered() -> None:
    """Its handle came to another process sooner than the news of it to the node."""
    node = Node()
    assert node.watch(X, Q, P, owner_lives=True) == []
    assert node.watch(X, R, P, owner_lives=True) == []
    assert node.register(X, P, ActorInfo("Class")) == [Tell(Q, X), Tell(R, X)]
    node.created(X)
    node.granted(X, W1, 1)
    assert node.started(W1) == [Tell(Q, X), Tell(R, X)]


def test_an_early_watcher_is_told_when_the_owner_dies_before_it_could_register() -> None:
    node = Node()
    node.watch(X, Q, P, owner_lives=True)
    assert node.process_died(P, crash()) == [Tell(Q, X)]
    assert node.process_died(P, crash()) == [], "once"


def test_who_watches_an_unknown_actor_of_a_dead_owner_is_told_at_once() -> None:
    node = Node()
    assert node.watch(X, Q, P, owner_lives=False) == [Tell(Q, X)]


def test_an_early_watcher_that_died_is_not_told() -> None:
    node = Node()
    node.watch(X, Q, P, owner_lives=True)
    node.process_died(Q, crash())
    assert node.register(X, P, ActorInfo("Class")) == []


def test_an_early_watcher_that_has_lost_interest_is_not_told() -> None:
    node = Node()
    node.watch(X, Q, P, owner_lives=True)
    node.unwatch(X, Q)
    assert node.register(X, P, ActorInfo("Class")) == []


def test_statistics_count_the_actors_by_state() -> None:
    node = Node()
    node.add(X, ALIVE)
    node.add(Y, PENDING)
    node.add(Z, WAITING)
    node.kill(Z, killed())
    assert node.statistics() == {
        "actors_waiting": 0, "actors_pending": 1, "actors_starting": 0, "actors_alive": 1, "actors_dead": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "broken",
    [
        Actor(X, P, ActorInfo("Class"), ALIVE),
        Actor(X, P, ActorInfo("Class"), PENDING, worker=W1),
        Actor(X, P, ActorInfo("Class"), DEAD),
        Actor(X, P, ActorInfo("Class"), PENDING, restarts=1),
        Actor(X, P, ActorInfo("Class"), PENDING, failed_starts=FAILED_STARTS_MAX + 1),
    ],
)
def test_validate_finds_what_does_not_fit_together(broken: Actor) -> None:
    table = ActorTable()
    table.actors[X] = broken
    with pytest.raises((AssertionError, KeyError)):
        table.validate()


# --- All of it at random, against a model -----------------------------------------------------------------------------


class Model(msgspec.Struct):
    """What is known of an actor without looking into the table."""

    owner: bytes
    info: ActorInfo
    state: str = WAITING
    worker: bytes = b""
    #: Processes that it ended in; in all, and of those in a row before it had started.
    ends: int = 0
    failures: int = 0
    watchers: set[bytes] = msgspec.field(default_factory=set)


class Histories(RuleBasedStateMachine):
    """Whatever drivers, workers and kills do: the table agrees with a model, and its commands fit the world outside."""

    def __init__(self) -> None:
        super().__init__()
        # So few that random histories get there.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(core, "FAILED_STARTS_MAX", 2)
        self.table = ActorTable()
        self.numbers = itertools.count()
        #: Processes that could own and watch actors; those of them that are workers, and those that are being killed.
        self.processes: set[bytes] = {P, Q}
        self.workers: set[bytes] = set()
        self.doomed: set[bytes] = set()
        self.models: dict[bytes, Model] = {}
        #: Actors that a worker is looked for.
        self.wanted: set[bytes] = set()
        #: Actors whose handles came around before they were registered: their owners and their watchers.
        self.announced: dict[bytes, tuple[bytes, set[bytes]]] = {}

    # -- carrying commands out

    def do(self, commands: list[Command], told: Counter[Tell] | None = None) -> None:
        """Carry them out; exactly those in `told` are told, each as often."""
        tells: Counter[Tell] = Counter()
        for command in commands:
            if isinstance(command, FindWorker):
                assert self.models[command.actor].state == PENDING
                assert command.actor not in self.wanted, "looked for twice"
                assert bool(command.pause_s) == bool(self.models[command.actor].failures)
                self.wanted.add(command.actor)
            elif isinstance(command, StopLooking):
                assert command.actor in self.wanted
                self.wanted.remove(command.actor)
            elif isinstance(command, Start):
                assert command.worker in self.workers - self.doomed
                assert self.models[command.actor].worker == command.worker
            elif isinstance(command, (Kill, Leave)):
                assert command.worker in self.workers, "only what lives can be ended"
                self.doomed.add(command.worker)
            else:
                tells[command] += 1
        assert tells == (told or Counter()), f"told {tells}, to be told {told}"

    def news(self, *ids: bytes) -> Counter[Tell]:
        return Counter(Tell(watcher, id) for id in ids for watcher in self.models[id].watchers)

    def some(self, data: st.DataObject, *states: str) -> bytes:
        return data.draw(st.sampled_from(sorted(id for id, model in self.models.items() if model.state in states)))

    def any_in(self, *states: str) -> bool:
        return any(model.state in states for model in self.models.values())

    # -- coming to life

    @rule(
        data=st.data(),
        name=st.sampled_from(["", "", "n", "m"]),
        namespace=st.sampled_from(["s", "t"]),
        detached=st.booleans(),
        max_restarts=st.sampled_from([0, 0, 1, 2, -1]),
    )
    def register(self, data: st.DataObject, name: str, namespace: str, detached: bool, max_restarts: int) -> None:
        owner = data.draw(st.sampled_from(sorted(self.processes)))
        early = [id for id, (of, _) in self.announced.items() if of == owner]
        id = early[0] if early and data.draw(st.booleans()) else b"actor-%d" % next(self.numbers)
        info = ActorInfo("Class", name, namespace, detached, max_restarts)
        holders = [
            other
            for other, model in self.models.items()
            if name and model.state != DEAD and (model.info.name, model.info.namespace) == (name, namespace)
        ]
        if holders:
            with pytest.raises(NameTaken) as caught:
                self.table.register(id, owner, info)
            assert [caught.value.holder.id] == holders
            return
        model = self.models[id] = Model(owner, info)
        model.watchers |= self.announced.pop(id, (b"", set()))[1]
        self.do(self.table.register(id, owner, info), self.news(id))

    @precondition(lambda self: self.any_in(WAITING))
    @rule(data=st.data())
    def create(self, data: st.DataObject) -> None:
        id = self.some(data, WAITING)
        self.models[id].state = PENDING
        self.do(self.table.created(id))

    @precondition(lambda self: self.wanted)
    @rule(data=st.data())
    def grant(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.wanted)))
        self.wanted.remove(id)
        worker = b"worker-%d" % next(self.numbers)
        self.workers.add(worker)
        self.processes.add(worker)
        model = self.models[id]
        model.state, model.worker = STARTING, worker
        commands = self.table.granted(id, worker, 1)
        assert commands == [Start(id, worker)]
        self.do(commands)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def a_worker_says_that_it_started(self, data: st.DataObject) -> None:
        """Possibly one that is being killed, or has said so before."""
        worker = data.draw(st.sampled_from(sorted(self.workers)))
        started = [id for id, model in self.models.items() if model.worker == worker and model.state == STARTING]
        for id in started:
            self.models[id].state = ALIVE
            self.models[id].failures = 0
        self.do(self.table.started(worker), self.news(*started))

    # -- ends

    def bury(self, id: bytes) -> Counter[Tell]:
        model = self.models[id]
        model.state, model.worker = DEAD, b""
        return self.news(id)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), no_restart=st.booleans())
    def kill(self, data: st.DataObject, no_restart: bool) -> None:
        id = self.some(data, *STATES, DEAD)
        model = self.models[id]
        worker = model.worker
        told = self.bury(id) if no_restart and model.state != DEAD else Counter()
        commands = self.table.kill(id, killed(), no_restart=no_restart)
        assert [command.worker for command in commands if isinstance(command, Kill)] == ([worker] if worker else [])
        self.do(commands, told)

    @precondition(lambda self: self.models)
    @rule(data=st.data(), by_owner=st.booleans())
    def drop(self, data: st.DataObject, by_owner: bool) -> None:
        id = self.some(data, *STATES, DEAD)
        model = self.models[id]
        worker = model.worker
        owner = model.owner if by_owner else R
        ends = by_owner and not model.info.detached and model.state != DEAD
        how = Kill if model.state == STARTING else Leave
        told = self.bury(id) if ends else Counter()
        commands = self.table.drop(id, owner)
        leaving = [(type(command), command.worker) for command in commands if isinstance(command, (Leave, Kill))]
        assert leaving == ([(how, worker)] if ends and worker else [])
        self.do(commands, told)

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def infeasible(self, data: st.DataObject) -> None:
        id = self.some(data, *STATES, DEAD)
        told = self.bury(id) if self.models[id].state == PENDING else Counter()
        self.do(self.table.infeasible(id, Death("infeasible", "too much")), told)

    @precondition(lambda self: self.workers)
    @rule(data=st.data())
    def a_worker_says_that_it_ended(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.workers)))
        told: Counter[Tell] = Counter()
        for id in [id for id, model in self.models.items() if model.worker == worker]:
            told += self.bury(id)
        self.do(self.table.ended(worker, Death("exit", "it left.")), told)
        self.doomed.add(worker)

    @precondition(lambda self: self.doomed)
    @rule(data=st.data())
    def what_was_to_end_ends(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.doomed))))

    @precondition(lambda self: len(self.processes) > 1)
    @rule(data=st.data())
    def a_process_dies(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(sorted(self.processes))))

    def end(self, process: bytes) -> None:
        told: Counter[Tell] = Counter()
        death = crash()
        for model in self.models.values():
            model.watchers.discard(process)
        for id, model in self.models.items():
            if model.worker == process:
                model.ends += 1
                model.failures = model.failures + 1 if model.state == STARTING else 0
                most = model.info.max_restarts
                if 0 <= most < model.ends or model.failures >= core.FAILED_STARTS_MAX:
                    told += self.bury(id)
                else:
                    model.state, model.worker = PENDING, b""
                    told += self.news(id)
        for id, model in self.models.items():
            lives_on = model.info.detached and model.state != WAITING
            if model.owner == process and not lives_on and model.state != DEAD:
                told += self.bury(id)
        for id, (owner, watchers) in list(self.announced.items()):
            watchers.discard(process)
            if owner == process:
                told += Counter(Tell(watcher, id) for watcher in watchers)
                del self.announced[id]
        commands = self.table.process_died(process, death)
        self.processes.discard(process)
        self.workers.discard(process)
        self.doomed.discard(process)
        # Nobody misses what is told to the one that has died.
        self.do([c for c in commands if not (isinstance(c, Tell) and c.process == process)], told)
        if not self.processes:
            self.processes.add(b"driver-%d" % next(self.numbers))

    # -- who is told

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def watch(self, data: st.DataObject) -> None:
        id = self.some(data, *STATES, DEAD)
        process = data.draw(st.sampled_from(sorted(self.processes)))
        model = self.models[id]
        model.watchers.add(process)
        commands = self.table.watch(id, process, model.owner, owner_lives=model.owner in self.processes)
        self.do(commands, Counter([Tell(process, id)]))

    @rule(data=st.data(), new=st.booleans())
    def watch_early(self, data: st.DataObject, new: bool) -> None:
        process = data.draw(st.sampled_from(sorted(self.processes)))
        if new or not self.announced:
            id = b"actor-%d" % next(self.numbers)
            self.announced[id] = (data.draw(st.sampled_from(sorted(self.processes))), set())
        else:
            id = data.draw(st.sampled_from(sorted(self.announced)))
        owner, watchers = self.announced[id]
        watchers.add(process)
        self.do(self.table.watch(id, process, owner, owner_lives=True))

    @rule(data=st.data())
    def watch_what_a_dead_owner_never_registered(self, data: st.DataObject) -> None:
        process = data.draw(st.sampled_from(sorted(self.processes)))
        id = b"actor-%d" % next(self.numbers)
        self.do(self.table.watch(id, process, b"dead", owner_lives=False), Counter([Tell(process, id)]))

    @precondition(lambda self: self.models)
    @rule(data=st.data())
    def unwatch(self, data: st.DataObject) -> None:
        id = self.some(data, *STATES, DEAD)
        process = data.draw(st.sampled_from(sorted(self.processes)))
        self.models[id].watchers.discard(process)
        self.table.unwatch(id, process)

    # -- what holds at any time

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.table.validate()
        assert set(self.table.actors) == set(self.models)
        for id, model in self.models.items():
            actor = self.table.actors[id]
            assert (actor.state, actor.worker) == (model.state, model.worker), actor
            assert actor.watchers == model.watchers
            assert (self.table.of_worker(model.worker) is actor) == bool(model.worker)
            assert (id in self.wanted) == (model.state == PENDING)
            assert model.info.max_restarts < 0 or actor.restarts <= model.info.max_restarts
        living = {model.worker for model in self.models.values() if model.worker}
        assert len(living) == sum(bool(model.worker) for model in self.models.values()), "two actors in one process"
        assert living <= self.workers

    @invariant()
    def names_lead_to_the_living(self) -> None:
        for namespace in ("s", "t"):
            for name in ("n", "m"):
                holders = [
                    id
                    for id, model in self.models.items()
                    if model.state != DEAD and (model.info.namespace, model.info.name) == (namespace, name)
                ]
                holder = self.table.named(namespace, name)
                assert [holder.id if holder else None] == (holders or [None])

    def teardown(self) -> None:
        try:
            self.end_everything()
        finally:
            self.patch.undo()

    def end_everything(self) -> None:
        """When all processes are gone, everything is dead but what is detached, and no worker is left."""
        while self.processes & ({P, Q} | self.workers):
            self.end(sorted(self.processes & ({P, Q} | self.workers))[0])
        for model in self.models.values():
            assert model.state == DEAD or model.info.detached or model.owner in self.processes
        assert not self.workers


Histories.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestHistories = Histories.TestCase


@pytest.mark.parametrize(
    ("labels", "listed"),
    [
        (["A"], "actor A ends with"),
        (["'a' (A)", "B"], "actors 'a' (A) and B end with"),
        ([str(number) for number in range(8)], "actors 0, 1, 2, 3, 4 and 3 more end with"),
    ],
)
def test_the_line_at_the_end_of_a_node_names_a_few_detached_actors(labels: list[str], listed: str) -> None:
    said = core.ended_with_node(labels)
    assert listed in said
    assert said.count("\n") == 1
    assert said.endswith("\n")


@pytest.mark.parametrize(
    ("info", "state", "expected"),
    [
        (ActorInfo("A", detached=True), ALIVE, True),
        (ActorInfo("A", "name", "space", detached=True), PENDING, True),
        (ActorInfo("A"), ALIVE, False),
        (ActorInfo("A", detached=True), DEAD, False),
        (ActorInfo("A", detached=True), WAITING, False),  # dies with its creator, wherever it is
        (ActorInfo("A", "_skate-store", detached=True), ALIVE, False),
        (ActorInfo("A", "name", "_skate", detached=True), ALIVE, False),
    ],
)
def test_only_detached_actors_of_users_are_named(info: ActorInfo, state: str, expected: bool) -> None:
    assert core.is_kept_by_user(core.Actor(b"a", b"p", info, state)) is expected
