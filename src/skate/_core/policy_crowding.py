"""When a demand is refused because the node can have no more workers, and none of those that it has will be free.

Problem:   at the limit of workers (`worker_limit.py`) a demand waits for one of them. Tasks end, and then its turn
           comes. But actors keep theirs, and a task that waits for its own tasks keeps its worker until those have run:
           if all workers are in such hands the demand waits for ever, although its CPUs are free.
Owns:      nothing: it looks at a scheduler, and changes nothing.
Idea:      a worker is *stuck* for a demand if an actor has it, if its owner was asked to give it up and cannot, or if
           its task waits and has tasks of its own that have no worker, or whose workers are stuck. If all workers are
           stuck, and no worker has changed hands for the grace period, the demand is refused. Of tasks that wait for
           tasks only the deepest are refused: what waits for them goes on with their error, and frees its worker.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skate._core.policy_turns import Demand
    from skate._core.scheduler import Scheduler


def crowded_out_at(scheduler: Scheduler, demand: Demand) -> float:
    """When the demand is refused for lack of workers, if nothing happens until then; infinity: not at all."""
    if not demand.feasible or not scheduler.pool.fits(demand.request):
        return math.inf
    grace_s = scheduler.config.infeasible_grace_s
    if demand.dedicated:
        if scheduler.actor_room() > 0:
            return math.inf
        return max(demand.waiting_since, scheduler.actor_granted_at) + grace_s
    if not is_crowded_out(scheduler, demand):
        return math.inf
    return max(demand.waiting_since, scheduler.moved_at) + grace_s


def is_full(scheduler: Scheduler) -> bool:
    """It has as many workers as it can, and none of them is about to come."""
    return len(scheduler.workers) >= scheduler.config.workers_max and not scheduler.starting


def has_no_worker_for_tasks(scheduler: Scheduler) -> bool:
    """Actors have them all."""
    return not scheduler.shared and is_full(scheduler)


def is_crowded_out(scheduler: Scheduler, demand: Demand) -> bool:
    """Every worker is stuck, for the demand of a task; and it is one of the deepest."""
    if not is_full(scheduler):
        return False
    if not scheduler.shared:
        return True
    # Cheap, and true of every node that does something.
    if any(not lease.blocked for lease in scheduler.lent.values()):
        return False
    if demand.depth < max(it.depth for it in scheduler.demands.values() if not it.dedicated):
        return False
    waiting = stuck_tasks(scheduler)
    for worker in scheduler.shared.values():
        if worker.state == "leased":
            if worker.id not in waiting:
                return False
        elif worker.stayed_at == -math.inf or (worker.env == demand.env and worker.program in (b"", demand.program)):
            return False  # it can be used, or has not said that it cannot leave
    return True


def stuck_tasks(scheduler: Scheduler) -> set[bytes]:
    """Workers whose tasks wait, and have tasks of their own that have no worker or are stuck themselves."""
    blocked = {lease.worker: lease.owner for lease in scheduler.lent.values() if lease.blocked}
    stuck: set[bytes] = set()
    more = [demand.process for demand in scheduler.demands.values() if demand.process in blocked]
    while more:
        worker = more.pop()
        if worker in blocked and worker not in stuck:
            stuck.add(worker)
            more.append(blocked[worker])
    return stuck
