"""The scheduler as a plain function of events: whole conversations, then random ones."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from skate._core.lease_events import (
    AskReclaim,
    AskRetire,
    BundleCommitted,
    BundleReleased,
    Command,
    DemandChanged,
    EnvironmentFailed,
    Event,
    GrantLease,
    JobStarted,
    KillWorker,
    LeaseReturned,
    ProcessDied,
    ReportInfeasible,
    StartFailed,
    StartWorker,
    TimePassed,
    WorkerBlocked,
    WorkerKilled,
    WorkerReady,
    WorkerRetired,
    WorkerStays,
    WorkerUnblocked,
)
from skate._core.policy_turns import LATE_S, PATIENCE_S, QUANTUM_S
from skate._core.resources import in_bundle, to_units
from skate._core.scheduler import (
    ASK_AGAIN_S,
    ASK_GRACE_S,
    START_FAILURES_MAX,
    START_RETRY_S,
    Scheduler,
    SchedulerConfig,
)

A, B, C = b"driver-a", b"driver-b", b"driver-c"
W1, W2, W3 = b"worker-1", b"worker-2", b"worker-3"
CPU = {"CPU": 1.0}


class Node:
    """A scheduler with a clock that stands still unless told."""

    def __init__(self, resources: dict[str, float] | None = None, workers: int = 0, **config: Any) -> None:
        self.now = 100.0
        self.scheduler = Scheduler(to_units(resources or {"CPU": 2}), SchedulerConfig(**config))
        for number in range(workers):
            self.tell(WorkerReady(b"worker-%d" % (number + 1)))

    def tell(self, event: Event) -> list[Command]:
        commands = self.scheduler.handle(event, self.now)
        self.scheduler.validate()
        return commands

    def demand(
        self,
        process: bytes,
        count: int = 1,
        *,
        key: int = 1,
        resources: dict[str, float] | None = None,
        env: dict[str, str] | None = None,
        depth: int = 0,
        program: bytes = b"",
    ) -> list[Command]:
        asked = CPU if resources is None else resources
        return self.tell(DemandChanged(process, key, asked, env or {}, count, depth, program=program))

    def wait(self, seconds: float) -> list[Command]:
        self.now += seconds
        return self.tell(TimePassed())


def grant(process: bytes, lease: int, worker: bytes, *, key: int = 1, **resources: float) -> GrantLease:
    return GrantLease(process, key, lease, worker, resources or CPU, [])


# -- granting ---------------------------------------------------------------------------------------------------------


def test_a_demand_gets_the_idle_worker() -> None:
    node = Node(workers=1)
    assert node.demand(A) == [grant(A, 1, W1)]


def test_a_worker_is_not_lent_to_itself() -> None:
    """A task left a child behind and ended: its worker is the only idle one, and asks for a worker."""
    node = Node({"CPU": 1}, workers=1)
    (asker,) = node.scheduler.workers
    assert node.demand(asker) == [StartWorker(())]


def test_a_worker_works_for_one_program_only() -> None:
    """It keeps the modules that it has imported."""
    node = Node(workers=1)
    assert node.demand(A, program=A) == [grant(A, 1, W1)]
    node.tell(LeaseReturned(A, 1))
    assert node.demand(B, program=B) == [StartWorker(())]
    assert node.tell(WorkerReady(W2)) == [grant(B, 2, W2)]
    node.tell(LeaseReturned(B, 2))
    node.tell(WorkerReady(W3))
    assert node.demand(A, program=A) == [grant(A, 3, W1)], "not a new one"


def test_workers_of_a_program_that_is_over_leave() -> None:
    node = Node(workers=1, prestart=1, idle_worker_s=5.0)
    assert node.tell(JobStarted(A)) == []
    assert node.demand(A, program=A) == [grant(A, 1, W1)]
    node.tell(LeaseReturned(A, 1))
    assert node.wait(10.0) == [], "it is the one to be kept"
    assert node.tell(ProcessDied(A)) == [AskRetire(W1), StartWorker(())]


def test_idle_workers_of_another_program_make_room() -> None:
    node = Node(workers=1, workers_max=1)
    assert node.demand(A, program=A) == [grant(A, 1, W1)]
    node.tell(LeaseReturned(A, 1))
    assert node.demand(B, program=B) == [AskRetire(W1)]
    node.tell(WorkerRetired(W1))
    assert node.tell(ProcessDied(W1)) == [StartWorker(())]


def test_room_is_made_though_the_other_program_waits_for_something_else() -> None:
    node = Node({"CPU": 2, "GPU": 1}, workers=2, workers_max=2)
    gpu = {"GPU": 1.0}
    node.demand(A, program=A, resources=gpu)
    node.demand(A, program=A, key=2)
    node.demand(A, program=A, resources=gpu)
    (lease,) = [lease for lease in node.scheduler.leases.values() if lease.key == 2]
    node.tell(LeaseReturned(A, lease.number))
    assert node.demand(B, program=B) == [AskRetire(lease.worker)]


def test_who_has_to_stay_is_not_asked_all_the_time() -> None:
    node = Node(workers=1, workers_max=1)
    node.demand(A, program=A)
    node.tell(LeaseReturned(A, 1))
    assert node.demand(B, program=B) == [AskRetire(W1)]
    assert node.tell(WorkerStays(W1)) == []
    assert node.wait(ASK_AGAIN_S / 2) == []
    deadline = node.scheduler.next_deadline()
    assert deadline is not None
    assert node.wait(deadline - node.now) == [AskRetire(W1)]


def test_workers_of_another_program_are_no_hope_when_none_can_be_started() -> None:
    node = Node(workers=1)
    node.demand(A, program=A)
    node.tell(LeaseReturned(A, 1))
    assert node.demand(B, program=B) == [StartWorker(())]
    for _ in range(START_FAILURES_MAX - 1):
        commands = node.tell(StartFailed((), "fork failed"))
        node.wait(0.0)
    commands = node.tell(StartFailed((), "fork failed"))
    assert [type(command) for command in commands] == [ReportInfeasible]
    assert "fork failed" in commands[0].reason  # type: ignore[union-attr]


def test_a_demand_without_a_worker_starts_one_and_gets_it() -> None:
    node = Node()
    assert node.demand(A) == [StartWorker(())]
    assert node.tell(TimePassed()) == []
    assert node.tell(WorkerReady(W1)) == [grant(A, 1, W1)]


def test_no_more_is_granted_than_there_are_cpus() -> None:
    node = Node(workers=3)
    assert node.demand(A, 5) == [grant(A, 1, W3), grant(A, 2, W2)]
    assert node.tell(LeaseReturned(A, 1)) == [grant(A, 3, W3)]


def test_no_more_workers_are_started_than_can_have_a_cpu() -> None:
    node = Node()
    assert node.demand(A, 50) == [StartWorker(())] * 2


def test_a_demand_replaces_the_one_before() -> None:
    node = Node(workers=2)
    node.demand(A, 2)
    node.demand(A, 3)
    assert node.demand(A, 0) == []
    assert node.tell(LeaseReturned(A, 1)) == []


def test_the_worker_used_last_is_used_first() -> None:
    node = Node(workers=2)
    node.demand(A, 2)
    node.tell(LeaseReturned(A, 1))
    node.tell(LeaseReturned(A, 2))
    assert node.demand(A) == [grant(A, 3, W1)]


def test_tasks_without_cpus_get_as_many_workers_as_they_want() -> None:
    node = Node({"CPU": 1}, starting_max=3)
    assert node.demand(A, 5, resources={}) == [StartWorker(())] * 3
    commands = [node.tell(WorkerReady(b"worker-%d" % number)) for number in range(5)]
    assert commands[0] == [GrantLease(A, 1, 1, b"worker-0", {}, []), StartWorker(())]
    assert sum(isinstance(command, GrantLease) for batch in commands for command in batch) == 5


def test_gpus_are_handed_out_by_number() -> None:
    node = Node({"CPU": 4, "GPU": 2}, workers=3)
    granted = node.demand(A, 3, resources={"GPU": 1})
    assert granted == [GrantLease(A, 1, 1, W3, {"GPU": 1.0}, [0]), GrantLease(A, 1, 2, W2, {"GPU": 1.0}, [1])]


def test_a_lease_of_another_cannot_be_returned() -> None:
    node = Node(workers=2)
    node.demand(A, 2)
    assert node.tell(LeaseReturned(B, 1)) == []
    assert node.tell(LeaseReturned(A, 99)) == []
    assert len(node.scheduler.leases) == 2


# -- order ------------------------------------------------------------------------------------------------------------


def test_deeper_demands_go_first() -> None:
    node = Node({"CPU": 1}, workers=1)
    node.demand(C)
    node.demand(A, depth=0)
    node.demand(B, depth=3)
    assert node.tell(LeaseReturned(C, 1)) == [grant(B, 2, W1)]


def test_processes_share_alike() -> None:
    node = Node({"CPU": 4}, workers=4)
    node.demand(C, 4)
    node.demand(A, 10)
    node.demand(B, 10)
    owners = []
    for lease in (1, 2, 3, 4):
        owners += [command.process for command in node.tell(LeaseReturned(C, lease)) if isinstance(command, GrantLease)]
    assert owners == [A, B, A, B]


def test_classes_of_one_process_share_alike() -> None:
    node = Node({"CPU": 4}, workers=4)
    node.demand(C, 4)
    node.demand(A, 10, key=1)
    node.demand(A, 10, key=2)
    keys = []
    for lease in (1, 2, 3, 4):
        keys += [command.key for command in node.tell(LeaseReturned(C, lease)) if isinstance(command, GrantLease)]
    assert keys == [1, 2, 1, 2]


def test_an_overdue_demand_goes_before_deeper_ones() -> None:
    node = Node({"CPU": 1}, workers=1)
    node.demand(B, 9, depth=3)
    node.demand(A, depth=0)
    assert node.tell(LeaseReturned(B, 1)) == [grant(B, 2, W1)]
    node.now += PATIENCE_S
    assert node.tell(LeaseReturned(B, 2)) == [grant(A, 3, W1)]
    assert node.wait(QUANTUM_S) == [AskReclaim(A, [3])]


def test_a_large_demand_is_served_in_the_end() -> None:
    """One that needs both CPUs, while another always has a task for the one that becomes free."""
    node = Node({"CPU": 2}, workers=2)
    node.demand(B, 9)
    node.demand(A, resources={"CPU": 2})
    assert node.tell(LeaseReturned(B, 1)) == [grant(B, 3, W2)]
    assert node.wait(PATIENCE_S) == [AskReclaim(B, [2, 3])]
    assert node.tell(LeaseReturned(B, 2)) == []
    assert node.tell(LeaseReturned(B, 3)) == [grant(A, 4, W2, CPU=2.0)]


def test_what_is_kept_for_a_large_demand_is_not_kept_from_deeper_ones() -> None:
    """The task on the second CPU may be waiting for them without saying so."""
    node = Node({"CPU": 2}, workers=2)
    node.demand(B)
    node.demand(A, resources={"CPU": 2})
    node.wait(PATIENCE_S)
    assert node.demand(C) == []
    assert node.demand(W2, depth=1) == [grant(W2, 2, W1)]


# -- waiting tasks ----------------------------------------------------------------------------------------------------


def test_a_task_that_waits_gives_its_cpu_to_its_child() -> None:
    node = Node({"CPU": 1}, workers=2)
    assert node.demand(A) == [grant(A, 1, W2)]
    assert node.demand(W2, depth=1) == []
    assert node.tell(WorkerBlocked(W2)) == [grant(W2, 2, W1)]


def test_a_task_that_goes_on_takes_its_cpu_even_if_that_is_too_much() -> None:
    node = Node({"CPU": 1}, workers=2)
    node.demand(A)
    node.tell(WorkerBlocked(W2))
    node.demand(B)
    node.tell(WorkerUnblocked(W2))
    assert node.scheduler.pool.available["CPU"] == -to_units(CPU)["CPU"]
    node.demand(C)
    assert node.tell(LeaseReturned(B, 2)) == []
    assert node.tell(LeaseReturned(A, 1)) == [grant(C, 3, W2)]


def test_waiting_frees_cpus_but_not_other_resources() -> None:
    node = Node({"CPU": 1, "wheels": 1}, workers=2)
    node.demand(A, resources={"CPU": 1, "wheels": 1})
    assert node.tell(WorkerBlocked(W2)) == []
    assert node.demand(B, resources={"wheels": 1}) == []
    assert node.demand(B, key=2) == [grant(B, 2, W1, key=2)]


def test_a_lease_returned_or_lost_while_its_task_waits_frees_its_cpu_once() -> None:
    node = Node({"CPU": 2}, workers=2)
    node.demand(A, 2)
    node.tell(WorkerBlocked(W1))
    node.tell(WorkerBlocked(W1))
    node.tell(ProcessDied(W1))
    node.tell(WorkerBlocked(W2))
    node.tell(LeaseReturned(A, 1))
    assert node.scheduler.pool.available == node.scheduler.pool.total


def test_a_driver_cannot_wait_for_cpus_it_does_not_have() -> None:
    node = Node(workers=1)
    assert node.tell(WorkerBlocked(A)) == []
    assert node.tell(WorkerUnblocked(W1)) == []


# -- asking back ------------------------------------------------------------------------------------------------------


def test_a_deeper_demand_asks_back_at_once() -> None:
    node = Node({"CPU": 2}, workers=2)
    node.demand(A, 5)
    assert node.demand(W1, depth=1) == [AskReclaim(A, [1])]
    assert node.tell(LeaseReturned(A, 1)) == [grant(W1, 3, W2)]


def test_the_lease_of_the_task_that_asks_is_not_asked_back() -> None:
    node = Node({"CPU": 1}, workers=1)
    node.demand(A)
    assert node.demand(W1, depth=1) == []


def test_others_wait_for_a_quantum() -> None:
    node = Node({"CPU": 1}, workers=1)
    node.demand(A, 5)
    assert node.demand(B, 5) == []
    assert node.scheduler.next_deadline() == pytest.approx(node.now + QUANTUM_S)
    assert node.wait(QUANTUM_S) == [AskReclaim(A, [1])]
    assert node.tell(LeaseReturned(A, 1)) == [grant(B, 2, W1)]
    assert node.wait(QUANTUM_S) == [AskReclaim(B, [2])]
    assert node.tell(LeaseReturned(B, 2)) == [grant(A, 3, W1)]


def test_a_share_and_no_more_is_asked_back() -> None:
    node = Node({"CPU": 4}, workers=4)
    node.demand(A, 9)
    node.demand(B, 9)
    assert node.wait(QUANTUM_S) == [AskReclaim(A, [1, 2])]
    node.tell(LeaseReturned(A, 1))
    node.tell(LeaseReturned(A, 2))
    assert [lease.owner for lease in node.scheduler.leases.values()] == [A, A, B, B]
    assert node.wait(QUANTUM_S) == []


def test_no_more_is_asked_back_than_is_wanted() -> None:
    node = Node({"CPU": 4}, workers=4)
    node.demand(A, 9)
    node.demand(B, 1)
    assert node.wait(QUANTUM_S) == [AskReclaim(A, [1])]
    assert node.tell(TimePassed()) == []


def test_one_class_asks_another_of_the_same_process() -> None:
    node = Node({"CPU": 2}, workers=2)
    node.demand(A, 9, key=1)
    node.demand(A, 9, key=2)
    assert node.wait(QUANTUM_S) == [AskReclaim(A, [1])]
    assert node.tell(LeaseReturned(A, 1)) == [grant(A, 3, W2, key=2)]


def test_a_lease_that_does_not_come_back_is_replaced_by_another() -> None:
    """The first one asked back runs a long task; the second may be free any moment."""
    node = Node({"CPU": 2}, workers=2)
    node.demand(A, 9)
    node.demand(B)
    assert node.wait(QUANTUM_S) == [AskReclaim(A, [1])]
    assert node.scheduler.next_deadline() == pytest.approx(node.now + LATE_S)
    assert node.wait(LATE_S) == [AskReclaim(A, [2])]


def test_leases_that_would_not_help_are_left_alone() -> None:
    node = Node({"CPU": 2, "wheels": 1}, workers=2)
    node.demand(A, resources={"CPU": 1})
    node.demand(B, resources={"wheels": 1})
    node.demand(C, resources={"wheels": 1})
    assert node.wait(QUANTUM_S) == [AskReclaim(B, [2])]


# -- workers ----------------------------------------------------------------------------------------------------------


def test_workers_are_kept_ready_once_there_is_a_job() -> None:
    node = Node(prestart=2)
    assert node.tell(TimePassed()) == []
    assert node.tell(JobStarted()) == [StartWorker(())] * 2
    node.tell(WorkerReady(W1))
    node.tell(WorkerReady(W2))
    assert node.tell(ProcessDied(W1)) == [StartWorker(())]


def test_the_number_of_workers_that_start_at_once_is_bounded() -> None:
    node = Node({"CPU": 9}, prestart=9, starting_max=4)
    assert node.tell(JobStarted()) == [StartWorker(())] * 4
    assert node.tell(WorkerReady(W1)) == [StartWorker(())]


def test_the_number_of_workers_is_bounded_and_said() -> None:
    node = Node(workers_max=2)
    node.demand(A, 5, resources={})
    node.tell(WorkerReady(W1))
    assert node.tell(WorkerReady(W2)) == [GrantLease(A, 1, 2, W2, {}, [])]
    (described,) = node.scheduler.describe_demands(node.now)["demands"]
    assert "2 workers" in described["waits_for"]


def test_idle_workers_of_other_environments_make_room() -> None:
    node = Node(workers=1, workers_max=1)
    assert node.demand(A, env={"X": "1"}) == [AskRetire(W1)]
    node.tell(WorkerRetired(W1))
    assert node.tell(ProcessDied(W1)) == [StartWorker((("X", "1"),))]


def test_spare_workers_are_asked_to_leave_after_a_while() -> None:
    node = Node({"CPU": 3}, workers=3, prestart=1, idle_worker_s=5.0)
    assert node.scheduler.next_deadline() == node.now + 5.0
    assert node.wait(5.0) == [AskRetire(W1), AskRetire(W2)]
    for worker in (W1, W2):
        node.tell(WorkerRetired(worker))
        node.tell(ProcessDied(worker))
    assert node.scheduler.next_deadline() is None


def test_a_worker_that_was_asked_to_leave_is_lent_to_nobody_until_it_stays() -> None:
    node = Node(workers=1, idle_worker_s=5.0)
    assert node.wait(5.0) == [AskRetire(W1)]
    assert node.demand(A) == [StartWorker(())]
    assert node.tell(WorkerStays(W1)) == [grant(A, 1, W1)]


def test_a_worker_that_retires_is_lent_to_nobody() -> None:
    node = Node(workers=1)
    node.demand(A)
    assert node.tell(WorkerRetired(W1)) == []
    assert node.tell(LeaseReturned(A, 1)) == []
    assert node.demand(A) == [StartWorker(())]


@pytest.mark.parametrize("is_returned_first", [False, True])
def test_a_worker_that_was_killed_is_lent_to_nobody_while_it_ends(is_returned_first: bool) -> None:
    node = Node({"CPU": 1}, workers=1)
    node.demand(A)
    events: list[Event] = [WorkerKilled(W1), LeaseReturned(A, 1)]
    for event in reversed(events) if is_returned_first else events:
        assert node.tell(event) == []
    assert node.demand(B) == [StartWorker(())]


def test_a_worker_that_ends_with_its_placement_group_is_lent_to_nobody_meanwhile() -> None:
    """Its owner is done with it, and returns it at the same moment: as that of `PlacementGroup.ready` is."""
    node = Node({"CPU": 2}, workers=1)
    group = b"g" * 16
    assert node.scheduler.pool.prepare(group, 0, to_units(CPU))
    node.tell(BundleCommitted(group, 0))
    node.demand(A, resources=in_bundle(CPU, group, 0))
    (kill,) = node.tell(BundleReleased(group, 0))
    assert isinstance(kill, KillWorker)
    assert node.tell(LeaseReturned(A, 1)) == []
    assert node.demand(B) == [StartWorker(())]


def test_a_worker_that_does_not_answer_stays() -> None:
    node = Node(workers=1, idle_worker_s=5.0)
    node.wait(5.0)
    assert node.scheduler.next_deadline() == node.now + ASK_GRACE_S
    node.demand(A)
    assert node.wait(ASK_GRACE_S) == [grant(A, 1, W1)]


def test_a_worker_that_retires_may_take_its_time() -> None:
    """Others may hold what it owns."""
    node = Node(workers=1)
    node.tell(WorkerRetired(W1))
    assert node.scheduler.next_deadline() is None
    assert node.wait(1000.0) == []


def test_a_dead_worker_frees_what_it_held() -> None:
    node = Node({"CPU": 1}, workers=2)
    node.demand(A, 2)
    assert node.tell(ProcessDied(W2)) == [grant(A, 2, W1)]


def test_what_works_for_the_dead_is_killed_and_its_cpu_free_when_it_is_gone() -> None:
    node = Node({"CPU": 1}, workers=2)
    node.demand(A, 3)
    node.demand(B)
    (kill,) = node.tell(ProcessDied(A))
    assert isinstance(kill, KillWorker)
    assert kill.worker == W2
    assert node.tell(ProcessDied(W2)) == [grant(B, 2, W1)]


def test_a_nested_owner_takes_its_workers_along() -> None:
    node = Node({"CPU": 1}, workers=2)
    node.demand(A)
    node.tell(WorkerBlocked(W2))
    node.demand(W2, depth=1)
    (kill,) = node.tell(ProcessDied(W2))
    assert isinstance(kill, KillWorker)
    assert kill.worker == W1


# -- environments -----------------------------------------------------------------------------------------------------


def test_an_environment_has_its_own_workers() -> None:
    node = Node(workers=1)
    env = (("X", "1"),)
    assert node.demand(A, env={"X": "1"}) == [StartWorker(env)]
    assert node.tell(WorkerReady(W2, env)) == [grant(A, 1, W2)]


def test_resources_are_kept_for_a_demand_whose_worker_starts() -> None:
    """Otherwise whoever has idle workers would take them each time."""
    node = Node({"CPU": 1}, workers=1)
    node.demand(A, env={"X": "1"})
    assert node.demand(B) == []
    assert node.tell(WorkerReady(W2, (("X", "1"),))) == [grant(A, 1, W2)]


def test_an_environment_that_cannot_be_had_is_an_error() -> None:
    node = Node()
    node.demand(A, env={"X": "1"})
    refused = node.tell(EnvironmentFailed((("X", "1"),), "no such file"))
    assert refused == [ReportInfeasible(A, 1, CPU, {"CPU": 2.0}, "no such file")]
    assert node.scheduler.starting == {}


def test_an_environment_whose_start_was_disturbed_gets_another_chance() -> None:
    node = Node()
    env = (("X", "1"),)
    node.demand(A, env={"X": "1"})
    for _ in range(START_FAILURES_MAX - 1):
        assert node.tell(EnvironmentFailed(env, "killed", final=False)) == [StartWorker(env)]
    (refused,) = node.tell(EnvironmentFailed(env, "killed", final=False))
    assert isinstance(refused, ReportInfeasible)


def test_workers_that_die_before_they_are_ready_are_an_error_in_the_end() -> None:
    node = Node()
    assert node.demand(A, 1) == [StartWorker(())]
    for _ in range(START_FAILURES_MAX - 1):
        assert node.tell(StartFailed((), "segfault")) == [StartWorker(())]
    (refused,) = node.tell(StartFailed((), "segfault"))
    assert isinstance(refused, ReportInfeasible)
    assert "segfault" in refused.reason
    assert node.wait(60.0) == []


def test_failures_of_workers_started_before_a_demand_are_not_held_against_it() -> None:
    """What made them fail may be over, and the demand has a worker started for it first."""
    node = Node({"CPU": 4}, starting_max=4)
    node.demand(A, 4)
    for _ in range(START_FAILURES_MAX):
        commands = node.tell(StartFailed((), "fork failed"))
    assert [type(command) for command in commands if isinstance(command, ReportInfeasible)] == [ReportInfeasible]
    node.wait(0.5)
    assert node.demand(B, 1) == []
    while node.scheduler.starting:
        assert node.tell(StartFailed((), "fork failed")) == []
    assert StartWorker(()) in node.wait(START_RETRY_S)
    (refused,) = [it for it in node.tell(StartFailed((), "fork failed")) if isinstance(it, ReportInfeasible)]
    assert refused.process == B


def test_prestarted_workers_that_die_are_not_started_for_ever() -> None:
    node = Node(prestart=1)
    node.tell(JobStarted())
    assert node.tell(StartFailed((), "segfault")) == []
    assert node.demand(A) == [StartWorker(())]


def test_a_machine_that_cannot_fork_any_more_goes_on_with_the_workers_it_has() -> None:
    node = Node(workers=1)
    node.demand(A, 2)
    for _ in range(START_FAILURES_MAX - 1):
        node.tell(StartFailed((), "fork failed"))
    assert node.tell(StartFailed((), "fork failed")) == []
    assert "fork failed" in node.scheduler.describe_demands(node.now)["demands"][0]["waits_for"]
    assert node.scheduler.next_deadline() is not None
    assert node.tell(LeaseReturned(A, 1)) == [grant(A, 2, W1)]
    node.demand(A, 2)
    assert node.wait(START_RETRY_S) == [StartWorker(())]


# -- what can never run -----------------------------------------------------------------------------------------------


def test_what_the_node_does_not_have_is_refused_after_a_while() -> None:
    node = Node(infeasible_grace_s=10.0)
    assert node.demand(A, resources={"CPU": 3}) == []
    assert node.scheduler.next_deadline() == node.now + 10.0
    assert node.wait(9.9) == []
    assert node.wait(0.1) == [ReportInfeasible(A, 1, {"CPU": 3.0}, {"CPU": 2.0}, "")]
    assert node.scheduler.next_deadline() is None


def test_what_is_no_amount_is_refused_at_once() -> None:
    node = Node()
    (refused,) = node.demand(A, resources={"CPU": -1})
    assert isinstance(refused, ReportInfeasible)
    assert "CPU" in refused.reason


def test_an_infeasible_demand_is_in_nobodys_way() -> None:
    node = Node(workers=1)
    node.demand(A, resources={"CPU": 3}, depth=9)
    assert node.demand(B) == [grant(B, 1, W1)]


def test_nothing_to_do_means_no_timer() -> None:
    node = Node(workers=1, prestart=1)
    node.demand(A)
    assert node.scheduler.next_deadline() is None
    node.tell(LeaseReturned(A, 1))
    assert node.scheduler.next_deadline() is None


# -- random conversations ---------------------------------------------------------------------------------------------

ENVS: list[dict[str, str]] = [{}, {"X": "1"}]
REQUESTS: list[dict[str, float]] = [
    {"CPU": 1},
    {"CPU": 1},
    {"CPU": 0.5},
    {"CPU": 2},
    {},
    {"CPU": 1, "wheels": 1},
    {"GPU": 0.5},
    {"GPU": 1, "CPU": 1},
    {"CPU": 99},
]


class Conversation(RuleBasedStateMachine):
    """Owners, workers and time do whatever they like; the books balance, and nobody is forgotten."""

    @initialize(prestart=st.integers(0, 2), workers_max=st.integers(3, 8), kept=st.integers(0, 2))
    def begin(self, prestart: int, workers_max: int, kept: int) -> None:
        self.now = 0.0
        config = SchedulerConfig(prestart=prestart, workers_max=workers_max, starting_max=3, kept_for_tasks=kept)
        self.scheduler = Scheduler(to_units({"CPU": 3, "GPU": 1, "wheels": 1}), config)
        self.numbers = itertools.count()
        self.owners: set[bytes] = {A, B}
        #: Workers on their way, alive, asked to leave; leases by number.
        self.starting: list[Any] = []
        self.asked: set[bytes] = set()
        self.alive: dict[bytes, Any] = {}
        self.leases: dict[int, GrantLease] = {}
        self.asked_back: set[int] = set()
        self.doomed: set[bytes] = set()
        #: Who wants a worker for good. It is no process: it does not die and returns nothing.
        self.actors: set[bytes] = set()
        #: What workers have worked for so far.
        self.programs: dict[bytes, bytes] = {}
        #: GPUs that workers have had.
        self.gpus: dict[bytes, tuple[int, ...]] = {}
        self.tell(JobStarted(A))

    def tell(self, event: Event) -> list[Command]:
        commands = self.scheduler.handle(event, self.now)
        for command in commands:
            if isinstance(command, StartWorker):
                self.starting.append(command.env)
            elif isinstance(command, GrantLease):
                assert command.worker in self.alive, "lent before it was ready, or after it died"
                assert command.worker not in {lease.worker for lease in self.leases.values()}, "lent twice"
                assert command.worker not in self.asked | self.doomed
                gpus = tuple(command.gpu_ids)
                assert self.gpus.setdefault(command.worker, gpus) == gpus, "lent with other GPUs than it had"
                program = self.program_of(command.process)
                assert self.programs.get(command.worker, program) == program, "lent to another program"
                self.programs[command.worker] = program
                self.leases[command.lease] = command
            elif isinstance(command, AskReclaim):
                for number in command.leases:
                    assert command.process not in self.actors, "what is for good was asked back"
                    assert self.leases[number].process == command.process
                    assert number not in self.asked_back, "asked back twice"
                    self.asked_back.add(number)
            elif isinstance(command, AskRetire):
                assert command.worker in self.alive
                self.asked.add(command.worker)
            elif isinstance(command, KillWorker):
                self.doomed.add(command.worker)
        return commands

    def program_of(self, process: bytes) -> bytes:
        if process in self.alive:
            return self.programs[process]
        return process if process in (A, B) else (A, B)[process[-1] % 2]

    @rule(
        who=st.integers(0, 9),
        key=st.integers(0, 2),
        resources=st.sampled_from(REQUESTS),
        env=st.sampled_from(ENVS),
        count=st.integers(0, 4),
        depth=st.integers(0, 2),
    )
    def demand(
        self, who: int, key: int, resources: dict[str, float], env: dict[str, str], count: int, depth: int
    ) -> None:
        processes = sorted(self.owners) + sorted(worker for worker in self.alive if worker in self.programs)
        process = processes[who % len(processes)]
        self.tell(DemandChanged(process, key, resources, env, count, depth, program=self.program_of(process)))

    @rule(
        resources=st.sampled_from(REQUESTS),
        to_place=st.sampled_from([{}, {}, {"CPU": 1}, {"CPU": 3}]),
        env=st.sampled_from(ENVS),
    )
    def actor_wants_a_worker(
        self, resources: dict[str, float], to_place: dict[str, float], env: dict[str, str]
    ) -> None:
        actor = b"actor-%d" % next(self.numbers)
        self.actors.add(actor)
        # As with real ones, what the node must have is at least what is held.
        to_place = {name: max(amount, resources.get(name, 0)) for name, amount in {**resources, **to_place}.items()}
        program = self.program_of(actor)
        self.tell(DemandChanged(actor, 0, resources, env, 1, to_place=to_place, dedicated=True, program=program))

    @precondition(lambda self: self.actors)
    @rule(which=st.integers(0, 9))
    def actor_wants_no_worker_any_more(self, which: int) -> None:
        actor = sorted(self.actors)[which % len(self.actors)]
        self.tell(DemandChanged(actor, 0, {}, {}, 0))

    @precondition(lambda self: self.lent_for_good())
    @rule(which=st.integers(0, 9), at_once=st.booleans())
    def actor_leaves(self, which: int, at_once: bool) -> None:
        leases = self.lent_for_good()
        lease = leases[which % len(leases)]
        del self.leases[lease.lease]
        self.tell(WorkerRetired(lease.worker))
        self.doomed.add(lease.worker)
        if at_once:
            self.end_worker(lease.worker)

    def lent_for_good(self) -> list[GrantLease]:
        return [lease for _, lease in sorted(self.leases.items()) if lease.process in self.actors]

    def lent(self) -> list[int]:
        return sorted(number for number, lease in self.leases.items() if lease.process not in self.actors)

    @precondition(lambda self: self.starting)
    @rule(which=st.integers(0, 9), succeeds=st.integers(0, 9))
    def worker_starts(self, which: int, succeeds: int) -> None:
        env = self.starting.pop(which % len(self.starting))
        if succeeds:
            worker = b"worker-%d" % next(self.numbers)
            self.alive[worker] = env
            self.tell(WorkerReady(worker, env))
        else:
            self.tell(StartFailed(env, "bad luck"))

    @precondition(lambda self: self.lent())
    @rule(which=st.integers(0, 9))
    def lease_returns(self, which: int) -> None:
        numbers = self.lent()
        number = numbers[which % len(numbers)]
        lease = self.leases.pop(number)
        self.tell(LeaseReturned(lease.process, number))

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 9), blocked=st.booleans())
    def worker_waits_or_goes_on(self, which: int, blocked: bool) -> None:
        worker = sorted(self.alive)[which % len(self.alive)]
        self.tell(WorkerBlocked(worker) if blocked else WorkerUnblocked(worker))

    @precondition(lambda self: self.alive)
    @rule(which=st.integers(0, 9))
    def worker_dies(self, which: int) -> None:
        self.end_worker(sorted(self.alive)[which % len(self.alive)])

    def end_worker(self, worker: bytes) -> None:
        del self.alive[worker]
        self.asked.discard(worker)
        self.doomed.discard(worker)
        self.leases = {number: lease for number, lease in self.leases.items() if lease.worker != worker}
        self.tell(ProcessDied(worker))
        self.leases = {number: lease for number, lease in self.leases.items() if lease.process != worker}

    @precondition(lambda self: self.asked)
    @rule(stays=st.booleans())
    def asked_worker_answers(self, stays: bool) -> None:
        worker = sorted(self.asked)[0]
        self.asked.discard(worker)
        if stays:
            self.tell(WorkerStays(worker))
        else:
            self.tell(WorkerRetired(worker))
            self.end_worker(worker)

    @rule(seconds=st.sampled_from([0.01, QUANTUM_S, LATE_S, PATIENCE_S, 6.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        # Workers that were asked to leave and did not answer are taken to stay.
        self.asked = {worker for worker in self.asked if self.now < self.scheduler.workers[worker].since + ASK_GRACE_S}
        self.tell(TimePassed())

    @rule()
    def everything_comes_to_its_end(self) -> None:
        """Workers start, tasks end, time passes; then no demand is left that the node could ever serve."""
        for _ in range(200):
            if self.doomed:
                self.end_worker(sorted(self.doomed)[0])
            elif self.asked:
                self.asked_worker_answers(False)
            elif self.starting:
                self.worker_starts(0, 1)
            elif self.lent():
                self.lease_returns(0)
            elif self.lent_for_good():
                self.actor_leaves(0, True)
            elif self.scheduler.demands:
                deadline = self.scheduler.next_deadline()
                assert deadline is not None, f"nothing will ever happen to {self.scheduler.demands}"
                assert deadline > self.now
                self.now = deadline
                self.tell(TimePassed())
            else:
                break
        assert not self.scheduler.demands
        assert self.scheduler.pool.available == self.scheduler.pool.total

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.validate()
            assert sum(self.scheduler.starting.values()) == len(self.starting)
            assert len(self.alive) + len(self.starting) <= self.scheduler.config.workers_max
            config = self.scheduler.config
            assert len(self.lent_for_good()) <= config.workers_max - config.kept_for_tasks
            held = {number for number, lease in self.leases.items() if lease.worker not in self.doomed}
            assert held <= set(self.scheduler.leases)

    @invariant()
    def what_fits_is_granted_or_on_its_way(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for demand in self.scheduler.demands.values():
            idle = [worker for worker in self.scheduler.idle.get(demand.env, ()) if worker.id != demand.process]
            idle = [worker for worker in idle if worker.program in (b"", demand.program)]
            if self.scheduler.pool.fits(demand.request):
                gpus = tuple(self.scheduler.pool.gpus_for(demand.request))
                idle = [worker for worker in idle if not worker.program or worker.gpus == gpus]
            if demand.dedicated and self.scheduler.actor_room() <= 0:
                continue
            if idle and self.scheduler.pool.fits(demand.request):
                others = [other for other in self.scheduler.demands.values() if other is not demand]
                assert others, f"{demand} fits, has an idle worker, and is alone"

    @invariant()
    def deadlines_are_ahead(self) -> None:
        if hasattr(self, "scheduler"):
            deadline = self.scheduler.next_deadline()
            assert deadline is None or deadline > self.now


Conversation.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestConversation = Conversation.TestCase


# -- workers for good: actors ------------------------------------------------------------------------------------------

X, Y = b"actor-x", b"actor-y"


def want(
    node: Node,
    actor: bytes,
    *,
    resources: dict[str, float] | None = None,
    to_place: dict[str, float] | None = None,
    count: int = 1,
) -> list[Command]:
    """By default as an actor without options: it holds nothing, and the node must have a CPU, free or not."""
    to_place = to_place if to_place is not None else dict(resources or CPU)
    return node.tell(DemandChanged(actor, 0, resources or {}, {}, count, to_place=to_place, dedicated=True))


def given(actor: bytes, lease: int, worker: bytes, **resources: float) -> GrantLease:
    return GrantLease(actor, 0, lease, worker, resources, [])


def test_what_the_node_must_have_is_not_held() -> None:
    node = Node({"CPU": 1}, workers=3)
    assert want(node, X) == [given(X, 1, W3)]
    assert node.scheduler.pool.available == node.scheduler.pool.total
    assert want(node, Y) == [given(Y, 2, W2)]
    assert node.demand(A) == [grant(A, 3, W1)]


def test_what_it_asks_for_itself_is_held() -> None:
    node = Node({"CPU": 1}, workers=2)
    assert want(node, X, resources={"CPU": 1}) == [given(X, 1, W2, CPU=1.0)]
    assert node.demand(A) == []
    assert want(node, Y, resources={"CPU": 1}) == []


def test_it_starts_at_once_though_tasks_hold_all_cpus() -> None:
    node = Node({"CPU": 1}, workers=2)
    node.demand(A)
    assert want(node, X) == [given(X, 2, W1)]


def test_a_worker_is_started_for_it_though_tasks_hold_all_cpus() -> None:
    node = Node({"CPU": 1}, workers=1)
    node.demand(A)
    assert want(node, X) == [StartWorker(())]
    assert node.tell(WorkerReady(W2)) == [given(X, 2, W2)]


def test_nothing_is_asked_back_or_kept_for_what_it_does_not_hold() -> None:
    node = Node({"CPU": 1}, workers=1, starting_max=0)
    node.demand(A, 5)
    assert want(node, X) == []
    for seconds in (QUANTUM_S, LATE_S, PATIENCE_S):
        assert node.wait(seconds) == []
    assert node.tell(LeaseReturned(A, 1)) == [given(X, 2, W1)]


def test_what_it_holds_must_be_free() -> None:
    node = Node({"CPU": 1, "GPU": 1}, workers=2)
    node.demand(A, resources={"GPU": 1.0})
    assert want(node, X, resources={"GPU": 1.0}, to_place={"GPU": 1.0, "CPU": 1.0}) == []
    assert node.scheduler.describe_demands(node.now)["demands"][0]["waits_for"] == "resources that others hold"
    (granted,) = node.tell(LeaseReturned(A, 1))
    assert isinstance(granted, GrantLease)
    assert (granted.process, granted.resources) == (X, {"GPU": 1.0})


def test_what_can_never_be_placed_is_refused_with_what_it_needs() -> None:
    node = Node({"CPU": 2}, infeasible_grace_s=10.0)
    assert want(node, X, to_place={"CPU": 3}) == []
    assert node.wait(10.0) == [ReportInfeasible(X, 0, {"CPU": 3.0}, {"CPU": 2.0}, "")]


def test_what_is_no_amount_to_place_it_is_refused_at_once() -> None:
    (refused,) = want(Node(), X, to_place={"CPU": -1})
    assert isinstance(refused, ReportInfeasible)
    assert "CPU" in refused.reason


def test_a_worker_for_good_is_never_asked_back() -> None:
    node = Node({"CPU": 2}, workers=2)
    want(node, X, resources={"CPU": 1})
    want(node, Y, resources={"CPU": 1})
    assert node.demand(A, 5) == []
    assert node.demand(W1, depth=3) == []
    for seconds in (QUANTUM_S, LATE_S, PATIENCE_S, 10 * PATIENCE_S):
        assert node.wait(seconds) == []


def test_what_tasks_hold_beside_it_is_asked_back_instead() -> None:
    node = Node({"CPU": 2}, workers=2)
    want(node, X, resources={"CPU": 1})
    node.demand(A, 5)
    node.demand(B)
    assert node.wait(QUANTUM_S) == [AskReclaim(A, [2])]


def test_a_worker_for_good_that_leaves_gives_back_at_once_what_it_held() -> None:
    """Its process may stay for what it owns."""
    node = Node({"CPU": 1}, workers=2)
    want(node, X, resources={"CPU": 1})
    node.demand(A)
    assert node.tell(WorkerRetired(W2)) == [grant(A, 2, W1)]
    assert list(node.scheduler.leases) == [2]
    assert node.tell(ProcessDied(W2)) == []


def test_a_worker_for_good_that_dies_gives_back_what_it_held() -> None:
    node = Node({"CPU": 1}, workers=2)
    want(node, X, resources={"CPU": 1})
    node.demand(A)
    assert node.tell(ProcessDied(W2)) == [grant(A, 2, W1)]


def test_a_worker_for_good_that_waits_lends_its_cpus_until_it_leaves() -> None:
    node = Node({"CPU": 1}, workers=2)
    want(node, X, resources={"CPU": 1})
    assert node.tell(WorkerBlocked(W2)) == []
    assert node.demand(W2, depth=1) == [grant(W2, 2, W1)]
    (kill,) = node.tell(ProcessDied(W2))
    assert isinstance(kill, KillWorker), "what worked for it"
    node.tell(ProcessDied(W1))
    assert node.scheduler.pool.available == node.scheduler.pool.total


def test_a_restart_wants_its_worker_before_the_old_one_is_known_to_be_dead() -> None:
    node = Node({"CPU": 1}, workers=2)
    want(node, X, resources={"CPU": 1})
    assert want(node, X, resources={"CPU": 1}) == []
    assert node.tell(ProcessDied(W2)) == [given(X, 2, W1, CPU=1.0)]


def test_a_worker_is_not_wanted_any_more() -> None:
    node = Node({"CPU": 1}, workers=1)
    node.demand(A)
    want(node, X)
    assert want(node, X, count=0) == []
    assert node.tell(LeaseReturned(A, 1)) == []


def test_workers_for_good_are_not_counted_among_those_that_are_kept_ready() -> None:
    node = Node({"CPU": 2}, prestart=1, starting_max=3)
    assert node.tell(JobStarted()) == [StartWorker(())]
    assert node.tell(WorkerReady(W1)) == []
    assert want(node, X) == [given(X, 1, W1), StartWorker(())]
    assert node.tell(WorkerReady(W2)) == []
    assert node.tell(WorkerRetired(W1)) == []
    assert node.tell(ProcessDied(W1)) == []


def test_an_actor_that_had_to_wait_for_a_worker_gets_the_next_one() -> None:
    node = Node({"CPU": 2})
    assert want(node, X) == [StartWorker(())]
    assert node.demand(A) == [StartWorker(())]
    assert node.tell(WorkerReady(W1)) == [given(X, 1, W1)]
    assert node.tell(WorkerReady(W2)) == [grant(A, 2, W2)]


def test_actors_and_tasks_take_turns() -> None:
    """Each actor counts for itself: it runs nothing yet, and so goes before whoever runs something."""
    node = Node({"CPU": 2}, workers=2)
    node.demand(A, 9)
    want(node, X, resources={"CPU": 1})
    want(node, Y, resources={"CPU": 1})
    assert node.tell(LeaseReturned(A, 1)) == [given(X, 3, W2, CPU=1.0)]
    assert node.tell(LeaseReturned(A, 2)) == [given(Y, 4, W1, CPU=1.0)]
    node.demand(B, 1)
    assert node.tell(ProcessDied(W1)) == [StartWorker(())], "for A or B, who both run nothing"


def test_many_actors_do_not_keep_a_task_waiting_for_ever() -> None:
    """They hold nothing, so that there is always a CPU for the task."""
    node = Node({"CPU": 1}, workers=1)
    actors = [b"actor-%d" % number for number in range(20)]
    for actor in actors:
        want(node, actor)
    assert node.demand(A, 1) == []
    for number in range(2, 30):
        granted = [
            command for command in node.tell(WorkerReady(b"worker-%d" % number)) if isinstance(command, GrantLease)
        ]
        if any(command.process == A for command in granted):
            break
    else:
        pytest.fail("the task got no worker")


def test_tasks_do_not_keep_an_actor_waiting_for_ever() -> None:
    """They are always deeper and take the CPU again at once, until the actor is overdue."""
    node = Node({"CPU": 1}, workers=2)
    node.demand(B, 99, depth=3)
    want(node, X, resources={"CPU": 1})
    lease = 1
    for _ in range(5):
        assert node.tell(LeaseReturned(B, lease)) == [grant(B, lease + 1, W2)]
        lease += 1
    assert [type(command) for command in node.wait(PATIENCE_S)] == [AskReclaim]
    assert node.tell(LeaseReturned(B, lease)) == [given(X, lease + 1, W2, CPU=1.0)]


def test_an_actor_that_holds_all_cpus_gets_its_place() -> None:
    node = Node({"CPU": 2}, workers=3)
    node.demand(B, 99)
    want(node, X, resources={"CPU": 2})
    assert node.tell(LeaseReturned(B, 1)) == [grant(B, 3, W3)]
    assert node.wait(PATIENCE_S) == [AskReclaim(B, [2, 3])]
    assert node.tell(LeaseReturned(B, 2)) == [], "kept for it"
    commands = node.tell(LeaseReturned(B, 3))
    assert [command.process for command in commands if isinstance(command, GrantLease)] == [X]


def test_workers_for_good_count_among_the_bound_of_all() -> None:
    node = Node({"CPU": 4}, workers=2, workers_max=2)
    want(node, X)
    want(node, Y)
    assert node.demand(A) == []
    (described,) = node.scheduler.describe_demands(node.now)["demands"]
    assert "2 workers" in described["waits_for"]
    assert node.tell(ProcessDied(W1)) == [StartWorker(())]


# -- as many workers as there can be -----------------------------------------------------------------------------------


def test_actors_leave_workers_to_tasks() -> None:
    node = Node({"CPU": 4}, workers=3, workers_max=3, kept_for_tasks=1)
    assert want(node, X) == [given(X, 1, W3)]
    assert want(node, Y) == [given(Y, 2, W2)]
    assert want(node, b"actor-z") == [], "the last one is for tasks, though it is idle"
    assert node.demand(A) == [grant(A, 3, W1)]
    assert node.tell(LeaseReturned(A, 3)) == []
    assert node.tell(ProcessDied(W3)) == [given(b"actor-z", 4, W1)]


def test_no_worker_is_started_for_an_actor_that_may_not_have_it() -> None:
    node = Node({"CPU": 4}, workers=1, workers_max=3, kept_for_tasks=2)
    assert want(node, X) == [given(X, 1, W1)]
    assert want(node, Y) == []
    assert node.demand(A, 9) == [StartWorker(())] * 2


def test_an_actor_that_leaves_and_stays_for_what_it_owns_still_has_its_worker() -> None:
    node = Node({"CPU": 4}, workers=2, workers_max=2, kept_for_tasks=1)
    want(node, X)
    want(node, Y)
    assert node.tell(WorkerRetired(W2)) == []
    assert node.tell(ProcessDied(W2)) == [given(Y, 2, W1)]


def test_an_actor_for_which_there_is_no_worker_is_refused_after_the_grace_period() -> None:
    node = Node(
        {"CPU": 4}, workers=2, workers_max=2, kept_for_tasks=1, infeasible_grace_s=10.0, workers_max_why="few files"
    )
    want(node, X)
    node.wait(5.0)
    assert want(node, Y) == []
    (described,) = node.scheduler.describe_demands(node.now)["demands"]
    assert "2 workers (few files), of which tasks keep 1" in described["waits_for"]
    assert node.wait(9.9) == []
    deadline = node.scheduler.next_deadline()
    assert deadline is not None
    (refused,) = node.wait(deadline - node.now)
    assert isinstance(refused, ReportInfeasible)
    assert (refused.process, refused.asked, refused.reason) == (Y, {}, "")
    assert "it got no worker for 10 s: this node can have 2 workers (few files)" in refused.limit


def test_tasks_are_refused_after_the_grace_period_if_actors_have_all_workers() -> None:
    """A node with room for one worker keeps none for tasks."""
    node = Node({"CPU": 4}, workers=1, workers_max=1, infeasible_grace_s=10.0, workers_max_why="few files")
    node.demand(A)
    want(node, X)
    node.wait(5.0)
    assert node.tell(LeaseReturned(A, 1)) == [given(X, 2, W1)]
    node.demand(A)
    (described,) = node.scheduler.describe_demands(node.now)["demands"]
    assert described["waits_for"] == "a worker: this node can have 1 worker (few files), and an actor has it"
    assert node.wait(9.9) == []
    assert node.scheduler.next_deadline() == pytest.approx(node.now + 0.1)
    (refused,) = node.wait(0.11)
    assert isinstance(refused, ReportInfeasible)
    assert (refused.process, refused.asked, refused.reason) == (A, {}, "")
    assert "it got no worker for 10 s: this node can have 1 worker (few files), and an actor has it" in refused.limit


def test_a_task_waits_for_as_long_as_other_tasks_run() -> None:
    node = Node({"CPU": 4}, workers=2, workers_max=2, kept_for_tasks=1, infeasible_grace_s=10.0)
    want(node, X)
    node.demand(A)
    assert node.demand(B) == []
    assert node.wait(1000.0) == []
    assert node.tell(LeaseReturned(A, 2)) == [grant(B, 3, W1)]


def nested(node: Node) -> None:
    """The task of A waits for one of its own, and that one for one that has no worker. B's has not begun."""
    assert node.demand(A) == [grant(A, 1, W2)]
    node.tell(WorkerBlocked(W2))
    assert node.demand(W2, depth=1) == [grant(W2, 2, W1)]
    node.tell(WorkerBlocked(W1))
    node.demand(W1, depth=2)
    node.demand(B)


def test_of_tasks_that_wait_for_tasks_and_have_all_workers_the_innermost_is_refused() -> None:
    node = Node({"CPU": 1}, workers=2, workers_max=2, infeasible_grace_s=10.0)
    nested(node)
    node.wait(9.0)
    assert node.wait(0.9) == []
    (refused,) = node.wait(0.11)
    assert isinstance(refused, ReportInfeasible)
    assert (refused.process, refused.reason) == (W1, "")
    assert "a task that waits for tasks of its own" in refused.limit
    assert node.wait(0.01) == [], "the next one is not refused before it is known what becomes of the first"
    node.tell(WorkerUnblocked(W1))
    node.wait(20.0)
    assert node.tell(LeaseReturned(W2, 2)) == [grant(B, 3, W1)]


def test_a_waiting_task_without_tasks_of_its_own_may_go_on_at_any_time() -> None:
    """It may wait for an actor."""
    node = Node({"CPU": 4}, workers=2, workers_max=2, infeasible_grace_s=10.0)
    node.demand(A, 2)
    node.tell(WorkerBlocked(W1))
    node.tell(WorkerBlocked(W2))
    assert node.demand(W2, depth=1) == []
    assert node.wait(1000.0) == []


def test_a_worker_that_cannot_leave_is_of_no_use_to_another_environment() -> None:
    node = Node({"CPU": 4}, workers=1, workers_max=1, infeasible_grace_s=10.0)
    node.demand(A)
    node.tell(LeaseReturned(A, 1))
    assert node.demand(A, env={"X": "1"}) == [AskRetire(W1)]
    node.tell(WorkerStays(W1))
    found: list[Command] = []
    for _ in range(12):
        found += node.wait(1.0)
        if AskRetire(W1) in found:
            node.tell(WorkerStays(W1))
    (refused,) = [command for command in found if isinstance(command, ReportInfeasible)]
    assert "objects that others hold" in refused.limit


def test_a_waiting_task_is_no_hope_for_its_own_tasks_when_workers_cannot_be_started() -> None:
    node = Node({"CPU": 1}, workers=2, workers_max=9, infeasible_grace_s=10.0)
    nested(node)
    found: list[Command] = []
    for _ in range(15):
        for _ in range(node.scheduler.statistics()["workers_starting"]):
            found += node.tell(StartFailed((), "fork failed"))
        found += node.wait(1.0)
    refused = [command for command in found if isinstance(command, ReportInfeasible)]
    assert refused[0].process == W1
    assert "fork failed" in refused[0].reason


def test_while_others_get_workers_an_actor_may_still_wait() -> None:
    node = Node({"CPU": 4}, workers=2, workers_max=2, kept_for_tasks=1, infeasible_grace_s=10.0, idle_worker_s=99.0)
    want(node, X)
    want(node, Y)
    want(node, b"actor-z")
    node.wait(9.0)
    assert node.tell(ProcessDied(W2)) == [given(Y, 2, W1)]
    assert node.wait(9.0) == []
    (refused,) = node.wait(1.0)
    assert isinstance(refused, ReportInfeasible)


def test_one_that_began_to_wait_before_is_refused_with_the_others() -> None:
    node = Node({"CPU": 4}, workers=1, workers_max=2, kept_for_tasks=1, infeasible_grace_s=10.0)
    want(node, X)
    node.now += 20.0
    commands = node.tell(DemandChanged(Y, 0, {}, {}, 1, to_place=CPU, dedicated=True, since=node.now - 15.0))
    assert [type(command) for command in commands] == [ReportInfeasible]


def test_one_that_waits_for_resources_is_not_refused_for_the_lack_of_workers() -> None:
    node = Node({"CPU": 1}, workers=1, workers_max=2, kept_for_tasks=1, infeasible_grace_s=10.0)
    want(node, X, resources={"CPU": 1})
    want(node, Y, resources={"CPU": 1})
    assert not any(isinstance(it, ReportInfeasible) for it in node.wait(30.0))


def test_actors_are_no_hope_for_tasks_when_no_worker_can_be_started() -> None:
    node = Node(workers=1)
    want(node, X)
    assert node.demand(A) == [StartWorker(())]
    for _ in range(START_FAILURES_MAX):
        commands = node.tell(StartFailed((), "fork failed"))
    assert [type(command) for command in commands] == [ReportInfeasible]


# -- GPUs --------------------------------------------------------------------------------------------------------------

GPU = {"GPU": 1.0}


def test_a_worker_that_had_a_gpu_is_lent_for_the_same_gpu_and_for_nothing_else() -> None:
    """What it has of CUDA was set up for that GPU, and cannot be changed."""
    node = Node({"CPU": 4, "GPU": 2}, workers=1)
    assert node.demand(A, resources=GPU, program=A) == [GrantLease(A, 1, 1, W1, GPU, [0])]
    node.tell(LeaseReturned(A, 1))
    assert node.demand(A, key=2, program=A) == [StartWorker(())], "a task without GPUs gets another"
    assert node.tell(WorkerReady(W2)) == [grant(A, 2, W2, key=2)]
    assert node.demand(A, resources=GPU, key=3, program=A) == [GrantLease(A, 3, 3, W1, GPU, [0])]
    assert node.demand(A, resources=GPU, key=4, program=A) == [StartWorker(())], "the second GPU is for another"
    assert node.tell(WorkerReady(W3)) == [GrantLease(A, 4, 4, W3, GPU, [1])]
    node.tell(LeaseReturned(A, 3))
    node.tell(LeaseReturned(A, 4))
    assert node.demand(A, resources={"GPU": 2.0}, key=5, program=A) == [StartWorker(())], "neither had both"


def test_a_worker_that_ran_tasks_without_gpus_gets_none() -> None:
    """If they looked for GPUs, CUDA has settled on what it saw then."""
    node = Node({"CPU": 4, "GPU": 1}, workers=1)
    assert node.demand(A, program=A) == [grant(A, 1, W1)]
    node.tell(LeaseReturned(A, 1))
    assert node.demand(A, resources=GPU, key=2, program=A) == [StartWorker(())]
    assert node.tell(WorkerReady(W2)) == [GrantLease(A, 2, 2, W2, GPU, [0])]


def test_an_idle_worker_that_had_the_gpu_of_another_leaves() -> None:
    """It may hold memory of it."""
    node = Node({"CPU": 4, "GPU": 1}, workers=2)
    node.demand(A, resources=GPU, program=A)
    node.tell(LeaseReturned(A, 1))
    granted = node.demand(B, resources=GPU, program=B)
    assert granted == [GrantLease(B, 1, 2, W1, GPU, [0]), AskRetire(W2)]


def test_workers_that_had_gpus_are_not_kept_ready_for_others() -> None:
    node = Node({"CPU": 4, "GPU": 1}, workers=1, prestart=1, idle_worker_s=5.0)
    assert node.tell(JobStarted(A)) == []
    granted = node.demand(A, resources=GPU, program=A)
    assert granted == [GrantLease(A, 1, 1, W1, GPU, [0]), StartWorker(())]
    node.tell(WorkerReady(W2))
    assert node.tell(LeaseReturned(A, 1)) == []
    assert node.wait(5.0) == [AskRetire(W1)]


def test_workers_that_had_gpus_are_no_hope_for_tasks_without() -> None:
    node = Node({"CPU": 4, "GPU": 1}, workers=1)
    node.demand(A, resources=GPU, program=A)
    node.demand(A, resources=GPU, key=3, program=A)
    assert node.demand(A, key=2, program=A) == [StartWorker(())]
    commands: list[Command] = []
    for _ in range(START_FAILURES_MAX):
        commands = node.tell(StartFailed((), "fork failed"))
    assert [(type(it), it.key) for it in commands] == [(ReportInfeasible, 2)]  # type: ignore[union-attr]
