"""What a scheduler says of itself to people: who waits for what, and who has it. It changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skate._core.policy_crowding import is_crowded_out
from skate._core.resources import to_floats

if TYPE_CHECKING:
    from skate._core.policy_turns import Demand
    from skate._core.scheduler import Scheduler, SchedulerConfig


def describe_limit(scheduler: Scheduler, demand: Demand) -> str:
    """Why it gets no worker although it has all else that it needs."""
    config = scheduler.config
    most = f"this node can have {workers(config)}"
    if not demand.dedicated and scheduler.shared:
        return (
            f"{most}, and none of them will be free: each has an actor, a task that waits for tasks of its own, or "
            "objects that others hold."
        )
    if config.workers_max == 1:
        return f"{most}, and an actor has it."
    if demand.dedicated and config.kept_for_tasks:
        return f"{most}, of which tasks keep {config.kept_for_tasks:,}, and actors have all the others."
    return f"{most}, and actors have all of them."


def workers(config: SchedulerConfig) -> str:
    """How many a node can have, and why not more."""
    why = f" ({config.workers_max_why})" if config.workers_max_why else ""
    return f"{config.workers_max:,} worker{'' if config.workers_max == 1 else 's'}{why}"


def describe_room(scheduler: Scheduler) -> str:
    """That the node can have no more workers, or none for actors; empty if it can."""
    config = scheduler.config
    if len(scheduler.workers) >= config.workers_max:
        return f"this node can have {workers(config)}, and all are in use"
    if scheduler.actor_room() <= 0:
        kept = f"tasks keep {config.kept_for_tasks:,}"
        return f"this node can have {workers(config)}, of which {kept}, and actors have all the others"
    return ""


def waits_for(scheduler: Scheduler, demand: Demand) -> str:
    """What a demand lacks, in words."""
    if not demand.feasible:
        return "resources that this node does not have"
    if not scheduler.pool.fits(demand.request):
        return "resources that others hold"
    if demand.dedicated and scheduler.actor_room() <= 0:
        return f"a worker: {describe_limit(scheduler, demand).rstrip('.')}"
    if not demand.dedicated and is_crowded_out(scheduler, demand):
        return f"a worker: {describe_limit(scheduler, demand).rstrip('.')}"
    if len(scheduler.workers) >= scheduler.config.workers_max:
        return f"a worker: {describe_room(scheduler)}"
    trouble = scheduler.troubles.get(demand.env)
    if trouble is not None:
        return f"a worker; the last one could not be started: {trouble.reason}"
    return "a worker that starts"


def describe_demands(scheduler: Scheduler, now: float) -> dict[str, Any]:
    """Why leases are not granted: what is asked, what there is, who holds it."""
    demands = [
        {
            "process": demand.process,
            "key": demand.key,
            "resources": to_floats(demand.request),
            "to_place": to_floats(demand.needs),
            "env": dict(demand.env),
            "count": demand.count,
            "depth": demand.depth,
            "waiting_s": max(0.0, now - demand.waiting_since),
            "held": scheduler.shares.held.get(demand.cls, 0),
            "waits_for": waits_for(scheduler, demand),
        }
        for demand in scheduler.demands.values()
    ]
    leases = [
        {
            "lease": lease.number,
            "owner": lease.owner,
            "key": lease.key,
            "worker": lease.worker,
            "resources": to_floats(lease.allocation.amounts),
            "depth": lease.depth,
            "held_s": max(0.0, now - lease.granted_at),
            "blocked": lease.blocked,
            "asked_back": lease.asked_back_at is not None,
        }
        for lease in scheduler.leases.values()
    ]
    return {
        "total": to_floats(scheduler.pool.total),
        "available": to_floats(scheduler.pool.available),
        "workers": len(scheduler.workers),
        "workers_max": scheduler.config.workers_max,
        "workers_starting": sum(scheduler.starting.values()),
        "demands": demands,
        "leases": leases,
    }


def statistics(scheduler: Scheduler) -> dict[str, int]:
    return {
        "workers": len(scheduler.workers),
        "workers_idle": sum(len(idle) for idle in scheduler.idle.values()),
        "workers_starting": sum(scheduler.starting.values()),
        "demands": len(scheduler.demands),
        "leases": len(scheduler.leases),
        "leases_blocked": sum(lease.blocked for lease in scheduler.leases.values()),
        "leases_granted": scheduler.granted,
        "leases_asked_back": scheduler.reclaimed,
    }
