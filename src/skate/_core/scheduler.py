"""Who gets which worker: demands for leases in, grants out.

Problem:   owners ask for workers of some shape (resources, environment) in some number; the node has few. Granting must
           be quick, must not deadlock when tasks wait for tasks, and must not let one owner starve another.
Owns:      the resources of the node, the demands, the leases, and what each worker is lent for.
Knows not: processes, sockets, time. `_node/daemon.py` carries events in and commands out.

The order in which demands are served, and which leases are asked back for them, is in `policy_turns.py`. On top of it:

- A demand whose resources are free but which has no worker of its environment keeps them while a worker starts.
- An overdue demand that needs more than is free (four CPUs, when others always take the one that becomes free) has what
  it needs kept for it, except from deeper demands.
- A lease is asked back once, and never more of them than the waiting demands can use.

Invariants (see `validate`, run after every event of tests/unit/test_scheduler.py): what is free and what is leased is
what there is; a worker has at most one lease; every demand that fits is granted or has a worker starting for it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from skate._core.lease_events import (
    AskReclaim,
    AskRetire,
    BundleCommitted,
    BundleReleased,
    Command,
    DemandChanged,
    Env,
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
from skate._core.lease_report import describe_demands, describe_limit, statistics
from skate._core.policy_crowding import crowded_out_at, is_full, stuck_tasks
from skate._core.policy_turns import LATE_S, PATIENCE_S, QUANTUM_S, Class, Demand, Lease, Shares, Turns
from skate._core.resources import GROUP, Allocation, Amounts, ResourcePool, group_of, is_gpu, to_floats, to_units

#: When so many workers of an environment died in a row before they were ready, its demands are refused; or, if others
#: of its workers are alive, have to do with those, and starting is tried again after START_RETRY_S.
START_FAILURES_MAX = 3
START_RETRY_S = 1.0
#: A worker that was asked to leave and has not answered after this time is taken to stay.
ASK_GRACE_S = 1.0
#: One that had to stay is not asked again, to make room for others, before this time.
ASK_AGAIN_S = 1.0


# -- state ------------------------------------------------------------------------------------------------------------


class SchedulerConfig(msgspec.Struct, frozen=True):
    #: Workers of the plain environment that are kept, idle or not.
    prestart: int = 0
    #: An idle worker above `prestart` is asked to leave after this time.
    idle_worker_s: float = 5.0
    #: A demand that the node can never serve is refused after this time.
    infeasible_grace_s: float = 10.0
    #: Workers that start at the same time; more would only slow each other down.
    starting_max: int = 8
    #: Workers at the same time. When reached, demands wait for workers, and `describe_demands` says so.
    workers_max: int = 1000
    #: Of them, those that actors leave to tasks: an actor lives as long as it likes, and tasks must go on.
    kept_for_tasks: int = 0
    #: What sets `workers_max`, for people.
    workers_max_why: str = ""


class Trouble(msgspec.Struct):
    """Workers of an environment die before they are ready."""

    failures: int
    reason: str
    #: No worker of it is started before this time.
    retry_at: float


class Worker(msgspec.Struct):
    id: bytes
    env: Env
    #: "idle", "leased", "asked" (to leave; no lease), "retiring" (was killed, or leaves by itself, however long that
    #: takes: others may hold what it owns).
    state: str
    #: When it came into this state, if that is "idle" or "asked".
    since: float
    lease: Lease | None = None
    #: The driver that it has worked for: it works for no other. Empty: for whoever comes first.
    program: bytes = b""
    #: GPUs that it has had, or none: once it has worked it gets no others. What it has loaded of CUDA knows only these,
    #: and may hold memory of them.
    gpus: tuple[int, ...] = ()
    #: When it was last asked to leave and could not.
    stayed_at: float = -math.inf

    @property
    def is_shared(self) -> bool:
        """It is there for whoever comes."""
        return self.state != "retiring" and not (self.lease is not None and self.lease.dedicated)


class Scheduler:
    def __init__(self, total: Amounts, config: SchedulerConfig, *, first_lease: int = 1) -> None:
        self.config = config
        self.pool = ResourcePool(total)
        self.demands: dict[Class, Demand] = {}
        self.leases: dict[int, Lease] = {}
        #: Those of them that tasks have, and that may be asked back; the others are actors, and may be many.
        self.lent: dict[int, Lease] = {}
        self.workers: dict[bytes, Worker] = {}
        #: Those of them that are there for any task: the others are actors, or leave.
        self.shared: dict[bytes, Worker] = {}
        #: Idle workers of each environment; the one used last is at the end, and is used again first.
        self.idle: dict[Env, list[Worker]] = {}
        #: Workers of each environment that were told to start and are not ready.
        self.starting: dict[Env, int] = {}
        #: When each of these was started, oldest first.
        self._start_times: dict[Env, deque[float]] = {}
        #: Environments whose last attempt to start a worker failed.
        self.troubles: dict[Env, Trouble] = {}
        self.shares = Shares()
        self._job_started = False
        #: Drivers on this node.
        self._drivers: set[bytes] = set()
        self._last_lease = first_lease - 1
        self._last_turn = 0
        self._deadline: float | None = None
        #: When an actor last got a worker.
        self.actor_granted_at = -math.inf
        #: When a worker last changed hands, or its task began or ceased to wait.
        self.moved_at = -math.inf
        self.granted = 0
        self.reclaimed = 0

    # -- events ---------------------------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Command]:
        commands: list[Command] = []
        HANDLERS[type(event)](self, event, now, commands)
        self._schedule(now, commands)
        return commands

    def next_deadline(self) -> float | None:
        """When TimePassed is due, or None if time alone changes nothing."""
        return self._deadline

    def _on_job_started(self, event: JobStarted, now: float, commands: list[Command]) -> None:
        self._job_started = True
        if event.driver:
            self._drivers.add(event.driver)

    def _on_worker_ready(self, event: WorkerReady, now: float, commands: list[Command]) -> None:
        self._started(event.env)
        self.troubles.pop(event.env, None)
        worker = Worker(event.worker, event.env, "idle", now)
        self.workers[event.worker] = self.shared[event.worker] = worker
        self.idle.setdefault(event.env, []).append(worker)

    def _on_start_failed(self, event: StartFailed, now: float, commands: list[Command]) -> None:
        started_at = self._started(event.env)
        if self._note_trouble(event.env, event.reason) >= START_FAILURES_MAX:
            reason = f"{START_FAILURES_MAX} workers died before they were ready; the last: {event.reason}"
            self._give_up(event.env, reason, now, commands, started_at)

    def _on_environment_failed(self, event: EnvironmentFailed, now: float, commands: list[Command]) -> None:
        self.starting.pop(event.env, None)
        self._start_times.pop(event.env, None)
        if self._note_trouble(event.env, event.reason) >= START_FAILURES_MAX or event.final:
            self._give_up(event.env, event.reason, now, commands, now)

    def _note_trouble(self, env: Env, reason: str) -> int:
        """How often it failed in a row."""
        trouble = self.troubles.setdefault(env, Trouble(0, "", 0.0))
        trouble.failures += 1
        trouble.reason = reason
        return trouble.failures

    def _give_up(self, env: Env, reason: str, now: float, commands: list[Command], started_at: float) -> None:
        """No more workers of that environment, for a while. What has no hope of any is refused.

        Demands that came after the last of these workers was started have had no attempt yet: what made the others
        fail may be over.
        """
        self.troubles[env].retry_at = now + START_RETRY_S
        total = to_floats(self.pool.total)
        stuck = stuck_tasks(self) if now >= self.moved_at + self.config.infeasible_grace_s else set()
        workers = [worker for worker in self.shared.values() if worker.env == env and worker.id not in stuck]
        plain = {worker.program for worker in workers if not worker.gpus}
        hopes = {False: plain, True: (plain & {b""}) | {worker.program for worker in workers if worker.gpus}}
        refused = [d for d in self.demands.values() if d.env == env and d.waiting_since <= started_at]
        if stuck:  # what waits for the deepest goes on with their error
            refused = [d for d in refused if d.depth == max(d.depth for d in refused)]
        for demand in refused:
            if not hopes[any(map(is_gpu, demand.request))].isdisjoint({b"", demand.program}):
                continue
            del self.demands[demand.cls]
            commands.append(ReportInfeasible(demand.process, demand.key, to_floats(demand.request), total, reason))

    def _started(self, env: Env) -> float:
        """One of the workers that were started is ready, or has failed; when it was started."""
        left = self.starting.get(env, 0) - 1
        if left > 0:
            self.starting[env] = left
        else:
            self.starting.pop(env, None)
        times = self._start_times.get(env)
        return times.popleft() if times else float("inf")

    def _on_process_died(self, event: ProcessDied, now: float, commands: list[Command]) -> None:
        process = event.process
        for cls in [cls for cls in self.demands if cls[0] == process]:
            del self.demands[cls]
        self._drivers.discard(process)
        for useless in [it for idle in self.idle.values() for it in idle if it.program == process]:
            self._ask_to_leave(useless, now, commands)
        worker = self.workers.pop(process, None)
        self.shared.pop(process, None)
        if worker is not None:
            if worker.lease is not None:
                self._end_lease(worker.lease, now)
            elif worker.state == "idle":
                self._not_idle(worker)
        for lease in self.lent.values():
            if lease.owner == process:
                # What the worker does is of no use to anybody. Its resources are free when it is dead.
                self._kill(lease, "the process that it worked for died", now, commands)

    def _on_demand_changed(self, event: DemandChanged, now: float, commands: list[Command]) -> None:
        cls = (event.process, event.key)
        if event.count <= 0:
            self.demands.pop(cls, None)
            return
        try:
            request, to_place = to_units(event.resources), to_units(event.to_place)
        except ValueError as error:
            self.demands.pop(cls, None)
            total = to_floats(self.pool.total)
            commands.append(ReportInfeasible(event.process, event.key, event.resources, total, str(error)))
            return
        env = tuple(sorted(event.env.items()))
        known = self.demands.get(cls)
        if known is not None and known.request == request and known.env == env:
            known.count = event.count
            known.depth = event.depth
            known.retriable = event.retriable
            return
        feasible = self.pool.can_ever_fit(to_place or request)
        self.demands[cls] = Demand(
            event.process,
            event.key,
            request,
            env,
            event.count,
            event.depth,
            self._next_turn(),
            now if event.since is None else event.since,
            feasible,
            event.retriable,
            event.dedicated,
            to_place,
            event.program,
        )

    def _next_turn(self) -> int:
        self._last_turn += 1
        return self._last_turn

    def _on_lease_returned(self, event: LeaseReturned, now: float, commands: list[Command]) -> None:
        lease = self.leases.get(event.lease)
        # Its worker may have died while the return was on its way; and nobody returns what is another's.
        if lease is None or lease.owner != event.process:
            return
        worker = self.workers[lease.worker]
        self._end_lease(lease, now)
        if worker.state == "leased":
            self._make_idle(worker, now)
        # Who has just had a worker goes to the end of the queue.
        demand = self.demands.get(lease.cls)
        if demand is not None:
            demand.turn = self._next_turn()
            demand.waiting_since = now

    def _end_lease(self, lease: Lease, now: float) -> None:
        self.moved_at = now
        del self.leases[lease.number]
        self.lent.pop(lease.number, None)
        worker = self.workers.get(lease.worker)
        if worker is not None:
            worker.lease = None
        self.pool.give_back(lease.allocation, but_cpus=lease.blocked)
        self.shares.count_held(lease, -1)
        if not lease.blocked:
            self.shares.count_running(lease, -1)

    def _make_idle(self, worker: Worker, now: float) -> None:
        worker.state = "idle"
        worker.since = now
        self.idle.setdefault(worker.env, []).append(worker)

    def _not_idle(self, worker: Worker) -> None:
        idle = self.idle[worker.env]
        idle.remove(worker)
        if not idle:
            del self.idle[worker.env]

    def _on_worker_blocked(self, event: WorkerBlocked, now: float, commands: list[Command]) -> None:
        lease = self._lease_of(event.worker)
        if lease is not None and not lease.blocked:
            lease.blocked = True
            self.moved_at = now
            self.pool.give_back_cpus(lease.allocation)
            self.shares.count_running(lease, -1)

    def _on_worker_unblocked(self, event: WorkerUnblocked, now: float, commands: list[Command]) -> None:
        lease = self._lease_of(event.worker)
        if lease is not None and lease.blocked:
            lease.blocked = False
            self.moved_at = now
            self.pool.take_cpus_again(lease.allocation)
            self.shares.count_running(lease, 1)

    def _lease_of(self, worker_id: bytes) -> Lease | None:
        worker = self.workers.get(worker_id)
        return worker.lease if worker is not None else None

    def _on_worker_retired(self, event: WorkerRetired, now: float, commands: list[Command]) -> None:
        worker = self.workers.get(event.worker)
        if worker is None or worker.state == "retiring":
            return
        if worker.state == "idle":
            self._not_idle(worker)
        elif worker.lease is not None and worker.lease.dedicated:
            self._end_lease(worker.lease, now)  # what it was wanted for is over; only what it owns is still of use
        self._lend_no_more(worker)
        self.moved_at = now

    def _on_worker_killed(self, event: WorkerKilled, now: float, commands: list[Command]) -> None:
        worker = self.workers.get(event.worker)
        if worker is not None:
            if worker.state == "idle":
                self._not_idle(worker)
            self._lend_no_more(worker)

    def _lend_no_more(self, worker: Worker) -> None:
        """Its owner may still return it, but it is about to end."""
        worker.state = "retiring"
        self.shared.pop(worker.id, None)

    def _on_worker_stays(self, event: WorkerStays, now: float, commands: list[Command]) -> None:
        worker = self.workers.get(event.worker)
        if worker is not None and worker.state == "asked":
            worker.stayed_at = now
            self._make_idle(worker, now)

    def _on_bundle_committed(self, event: BundleCommitted, now: float, commands: list[Command]) -> None:
        self.pool.commit(event.group, event.index)
        self._look_at_feasibility()

    def _on_bundle_released(self, event: BundleReleased, now: float, commands: list[Command]) -> None:
        self.pool.release(event.group, event.index)
        is_last = not any(group == event.group for group, _ in self.pool.bundles)
        indexed = f"{GROUP}{event.index}_{event.group.hex()}"
        for lease in self.leases.values():
            if any(name.endswith(indexed) for name in lease.allocation.amounts) or (
                is_last and group_of(lease.allocation.amounts) == event.group
            ):
                self._kill(lease, "the placement group that it was in was removed", now, commands)
        self._look_at_feasibility()

    def _kill(self, lease: Lease, reason: str, now: float, commands: list[Command]) -> None:
        lease.asked_back_at = now
        self._lend_no_more(self.workers[lease.worker])
        commands.append(KillWorker(lease.worker, reason))

    def _look_at_feasibility(self) -> None:
        """What the node has in all has changed."""
        for demand in self.demands.values():
            demand.feasible = self.pool.can_ever_fit(demand.needs)

    def _on_time_passed(self, event: TimePassed, now: float, commands: list[Command]) -> None:
        for worker in self.shared.values():
            if worker.state == "asked" and now >= worker.since + ASK_GRACE_S:
                worker.stayed_at = now
                self._make_idle(worker, now)

    # -- decisions ------------------------------------------------------------------------------------------------

    def _schedule(self, now: float, commands: list[Command]) -> None:
        self._refuse_infeasible(now, commands)
        free = self.pool.copy()
        wanted: dict[Env, int] = {}
        if self.demands:
            short = self._grant(now, free, wanted, commands)
            if short and self.lent:
                self._reclaim(now, free, short, commands)
        self._start_workers(now, wanted, commands)
        self._end_idle_workers(now, commands)
        self._deadline = self._find_deadline(now)

    def _refuse_infeasible(self, now: float, commands: list[Command]) -> None:
        grace_s = self.config.infeasible_grace_s
        for demand in list(self.demands.values()):
            if now >= crowded_out_at(self, demand):
                del self.demands[demand.cls]
                limit = f"it got no worker for {grace_s:g} s: {describe_limit(self, demand)}"
                commands.append(ReportInfeasible(demand.process, demand.key, {}, {}, "", limit))
            elif group_of(demand.needs):
                continue  # the group may be reserved at any time, or be removed
            elif not demand.feasible and now >= demand.waiting_since + grace_s:
                del self.demands[demand.cls]
                asked, total = to_floats(demand.needs), to_floats(self.pool.total)
                commands.append(ReportInfeasible(demand.process, demand.key, asked, total, ""))

    def actor_room(self) -> int:
        """How many more workers actors can have."""
        return self.config.workers_max - self.config.kept_for_tasks - (len(self.workers) - len(self.shared))

    def _grant(self, now: float, free: ResourcePool, wanted: dict[Env, int], commands: list[Command]) -> list[Demand]:
        """Grant all that fits; return what did not. `free` is what is left then, `wanted` the missing workers."""
        short: list[Demand] = []
        # The first overdue demand that does not fit: others leave its resources alone until it does. Deeper ones are
        # exempt, for the task that holds what it lacks may be waiting for them.
        reserved: Demand | None = None
        actor_room = self.actor_room()
        turns = Turns(self.shares, [d for d in self.demands.values() if d.feasible], now)
        for demand in turns:
            leaving = reserved.request if reserved is not None and demand.depth <= reserved.depth else None
            if not free.fits(demand.request, leaving):
                if reserved is None and self.shares.is_overdue(demand, now):
                    reserved = demand
                short.append(demand)
                continue
            if demand.dedicated:
                if actor_room <= 0:
                    continue
                actor_room -= 1
            worker = self._idle_for(demand, tuple(free.gpus_for(demand.request)))
            if worker is not None:
                allocation = free.take(demand.request)
                commands.append(self._grant_one(demand, worker, allocation, now))
                turns.served(demand)
                if allocation.gpu_ids:
                    self._clear_gpus(worker, now, commands)
                continue
            missing = wanted.get(demand.env, 0)
            if missing >= self.starting.get(demand.env, 0) + self._starts_left(demand.env, now):
                wanted.setdefault(demand.env, 0)
                actor_room += demand.dedicated
                continue
            free.take(demand.request)
            wanted[demand.env] = missing + 1
            turns.promised(demand)
        return short

    def _idle_for(self, demand: Demand, gpus: tuple[int, ...]) -> Worker | None:
        """The one that worked for its program last, or one that is new; but not the one that asks: a process has no
        channel to itself; and not one that had other GPUs, or none where it needs some."""
        new = None
        for worker in reversed(self.idle.get(demand.env, ())):
            if worker.id != demand.process:
                if worker.program == demand.program and worker.gpus == gpus:
                    return worker
                if not worker.program and new is None:
                    new = worker
        return new

    def _clear_gpus(self, user: Worker, now: float, commands: list[Command]) -> None:
        """Idle workers that had the GPUs of this one may hold memory of them: they leave, if they can."""
        for worker in [it for idle in self.idle.values() for it in idle]:
            if not set(worker.gpus).isdisjoint(user.gpus) and now >= worker.stayed_at + ASK_AGAIN_S:
                self._ask_to_leave(worker, now, commands)

    def _grant_one(self, demand: Demand, worker: Worker, allocation: Allocation, now: float) -> GrantLease:
        self.moved_at = now
        self._not_idle(worker)
        worker.state = "leased"
        worker.program = demand.program
        worker.gpus = tuple(allocation.gpu_ids) or worker.gpus
        self.pool.take_exactly(allocation)
        self._last_lease += 1
        lease = Lease(
            self._last_lease,
            demand.process,
            demand.key,
            worker.id,
            allocation,
            demand.depth,
            now,
            retriable=demand.retriable,
            dedicated=demand.dedicated,
            was_overdue=self.shares.is_overdue(demand, now),
        )
        worker.lease = self.leases[lease.number] = lease
        if demand.dedicated:
            del self.shared[worker.id]
            self.actor_granted_at = now
        else:
            self.lent[lease.number] = lease
        self.shares.count_held(lease, 1)
        self.shares.count_running(lease, 1)
        demand.count -= 1
        if demand.count == 0:
            del self.demands[demand.cls]
        demand.turn = self._next_turn()
        demand.waiting_since = now
        self.granted += 1
        resources = to_floats(allocation.amounts)
        return GrantLease(demand.process, demand.key, lease.number, worker.id, resources, allocation.gpu_ids)

    def _reclaim(self, now: float, free: ResourcePool, short: list[Demand], commands: list[Command]) -> None:
        """Ask for leases back, for the demands that did not fit."""
        asks: dict[bytes, list[int]] = {}
        turns = Turns(self.shares, short, now)
        for lease in self.lent.values():
            if lease.is_expected(now):
                free.give_back(lease.allocation, but_cpus=lease.blocked)
                turns.expected(lease)
        for demand in turns:
            if not free.fits(demand.request):
                victims = turns.choose_victims(demand, self.lent.values(), free)
                if not victims:
                    continue
                for lease in victims:
                    lease.asked_back_at = now
                    free.give_back(lease.allocation, but_cpus=lease.blocked)
                    turns.expected(lease)
                    asks.setdefault(lease.owner, []).append(lease.number)
            free.take(demand.request)
            turns.promised(demand)
        for process, leases in asks.items():
            self.reclaimed += len(leases)
            commands.append(AskReclaim(process, leases))

    def _starts_left(self, env: Env, now: float) -> int:
        trouble = self.troubles.get(env)
        if trouble is not None and now < trouble.retry_at:
            return 0
        config = self.config
        starting = sum(self.starting.values())
        return max(0, min(config.starting_max - starting, config.workers_max - len(self.workers) - starting))

    def _start_workers(self, now: float, wanted: dict[Env, int], commands: list[Command]) -> None:
        lacking = list(wanted)
        # Workers that nobody waits for are not worth a second try: a demand will come.
        if self._job_started and () not in self.troubles:
            plain = sum(1 for it in self.shared.values() if not it.env and not it.gpus and self._may_be_used(it))
            missing = self.config.prestart - plain
            if missing > wanted.get((), 0):
                wanted[()] = missing
        for env, count in wanted.items():
            starts = min(count - self.starting.get(env, 0), self._starts_left(env, now))
            if starts > 0:
                self.starting[env] = self.starting.get(env, 0) + starts
                self._start_times.setdefault(env, deque()).extend([now] * starts)
                commands += [StartWorker(env)] * starts
        if any(not self.starting.get(env) for env in lacking) and (
            len(self.workers) >= self.config.workers_max or not self.troubles.keys().isdisjoint(lacking)
        ):
            self._make_room(now, commands)

    def _make_room(self, now: float, commands: list[Command]) -> None:
        """No worker can be started for somebody who waits. The idle ones are of no use to him, or he would have one;
        those that nobody waits for first."""
        waiting = {(demand.env, demand.program) for demand in self.demands.values()}
        idle = [worker for workers in self.idle.values() for worker in workers]
        spare = [worker for worker in idle if now >= worker.stayed_at + ASK_AGAIN_S]
        if spare:
            first = min(spare, key=lambda worker: ((worker.env, worker.program) in waiting, worker.since))
            self._ask_to_leave(first, now, commands)

    def _end_idle_workers(self, now: float, commands: list[Command]) -> None:
        for worker in self._not_kept():
            if now >= worker.since + self.config.idle_worker_s:
                self._ask_to_leave(worker, now, commands)

    def _not_kept(self) -> list[Worker]:
        """Idle workers that may leave after a while."""
        found: list[Worker] = []
        for env, idle in self.idle.items():
            keep = self.config.prestart if not env else 0
            for worker in reversed(idle):
                if keep and not worker.gpus and self._may_be_used(worker):
                    keep -= 1
                else:
                    found.append(worker)
        return found[::-1]

    def _may_be_used(self, worker: Worker) -> bool:
        """By a driver of this node, or one to come."""
        return not worker.program or worker.program in self._drivers

    def _ask_to_leave(self, worker: Worker, now: float, commands: list[Command]) -> None:
        self._not_idle(worker)
        worker.state = "asked"
        worker.since = now
        commands.append(AskRetire(worker.id))

    def _find_deadline(self, now: float) -> float | None:
        """The next moment at which some rule above says something else than now."""
        config = self.config
        times = [
            demand.waiting_since + (PATIENCE_S if demand.feasible else config.infeasible_grace_s)
            for demand in self.demands.values()
        ]
        if any(demand.feasible for demand in self.demands.values()):
            for lease in self.lent.values():
                asked_at = lease.asked_back_at
                times.append(lease.granted_at + QUANTUM_S if asked_at is None else asked_at + LATE_S)
            times += [trouble.retry_at for trouble in self.troubles.values()]
            times += [worker.stayed_at + ASK_AGAIN_S for idle in self.idle.values() for worker in idle]
        times += [worker.since + config.idle_worker_s for worker in self._not_kept()]
        times += [worker.since + ASK_GRACE_S for worker in self.shared.values() if worker.state == "asked"]
        if self.actor_room() <= 0 or is_full(self):
            times += [crowded_out_at(self, demand) for demand in self.demands.values()]
        return min((time for time in times if now < time), default=None)

    # -- looking inside -------------------------------------------------------------------------------------------

    def describe_demands(self, now: float) -> dict[str, Any]:
        """Why leases are not granted: what is asked, what there is, who holds it."""
        return describe_demands(self, now)

    def statistics(self) -> dict[str, int]:
        return statistics(self)

    def validate(self) -> None:
        self.pool.validate()
        left = ResourcePool(self.pool.total)
        for allocation, _names in self.pool.bundles.values():
            left.take_exactly(allocation)
        shares = Shares()
        for lease in self.leases.values():
            worker = self.workers[lease.worker]
            assert worker.lease is lease, f"{worker} does not know {lease}"
            assert worker.state in ("leased", "retiring"), worker
            left.take_exactly(lease.allocation)
            shares.count_held(lease, 1)
            if lease.blocked:
                left.give_back_cpus(lease.allocation)
            else:
                shares.count_running(lease, 1)
        assert {**left.available} == {**left.total, **self.pool.available}, (left.available, self.pool.available)
        assert left.gpus == self.pool.gpus, (left.gpus, self.pool.gpus)
        assert shares.held == self.shares.held, (shares.held, self.shares.held)
        assert shares.running == self.shares.running, (shares.running, self.shares.running)
        idle = [worker for workers in self.idle.values() for worker in workers]
        assert {w.id for w in idle} == {w.id for w in self.workers.values() if w.state == "idle"}
        for worker in self.workers.values():
            assert worker.state != "leased" or worker.lease is not None, worker
            assert worker.state not in ("idle", "asked") or worker.lease is None, worker
        assert self.lent == {number: lease for number, lease in self.leases.items() if not lease.dedicated}
        assert self.shared == {worker.id: worker for worker in self.workers.values() if worker.is_shared}
        for env, workers in self.idle.items():
            assert workers, f"an empty list of idle workers for {env}"
        assert all(count > 0 for count in self.starting.values()), self.starting
        assert sum(self.starting.values()) <= self.config.starting_max, self.starting
        assert all(demand.count > 0 for demand in self.demands.values()), self.demands


HANDLERS: dict[type[Event], Callable[[Scheduler, Any, float, list[Command]], None]] = {
    JobStarted: Scheduler._on_job_started,
    WorkerReady: Scheduler._on_worker_ready,
    StartFailed: Scheduler._on_start_failed,
    EnvironmentFailed: Scheduler._on_environment_failed,
    ProcessDied: Scheduler._on_process_died,
    DemandChanged: Scheduler._on_demand_changed,
    LeaseReturned: Scheduler._on_lease_returned,
    WorkerBlocked: Scheduler._on_worker_blocked,
    WorkerUnblocked: Scheduler._on_worker_unblocked,
    WorkerRetired: Scheduler._on_worker_retired,
    WorkerKilled: Scheduler._on_worker_killed,
    WorkerStays: Scheduler._on_worker_stays,
    BundleCommitted: Scheduler._on_bundle_committed,
    BundleReleased: Scheduler._on_bundle_released,
    TimePassed: Scheduler._on_time_passed,
}
