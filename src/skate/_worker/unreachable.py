"""A node could not be reached for longer than `partition_grace_s`: decides on what this process waits for from there.

Tasks that may be retried run elsewhere; the others fail, and so do calls of actors without retries. Nothing is agreed
on with the other node: what is given up here is never accepted from there, and the order to end the worker if it is
still in one of these tasks waits in the link between the two nodes until the path heals. Channels stay, with all that
was said over them, so who refers to which object stays right on both sides.

Imported when it first happens. Every function is called with the runtime's lock held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from skate._core import reachability as core
from skate._core.ownership import Pending
from skate._core.task import Task
from skate._wire.messages import GiveUpLease, LeaseReturn, Recall, Unreachable
from skate.exceptions import NodeUnreachableError, TaskCancelledError

if TYPE_CHECKING:
    from skate._worker.calls import Lease
    from skate._worker.runtime import Runtime


def on_unreachable(runtime: Runtime, message: Unreachable) -> None:
    for lease in runtime.submitter.give_up(message.node):
        if lease.inflight:
            tasks = list(lease.inflight)
            # What was not begun by now is not begun after healing.
            lease.peer.withdraw(lease.inflight)
            lease.peer.send(Recall(len(tasks)))
            runtime.send(GiveUpLease(lease.id, lease.peer.process_id, message.reason, tasks))
            _settle_tasks(runtime, lease, message)
        else:
            runtime.send(LeaseReturn(lease.id))
    runtime.actors.on_unreachable(message.node, message.reason, again=message.again)
    runtime.borrowing.on_unreachable(message.node, message.reason)
    runtime._housekeeping()


def _settle_tasks(runtime: Runtime, lease: Lease, message: Unreachable) -> None:
    """Of a worker that may have run them, may be at it, or may never have heard of them."""
    again: list[Task] = []
    for position, (id, task) in enumerate(lease.inflight.items()):
        entry = runtime.table.entries[id]
        # What an attempt has stored over there goes when the path has healed.
        runtime.outcomes.note_left(entry, message.node)
        pending = entry.pending = entry.pending or Pending()
        if pending.cancelled:
            error: Exception = TaskCancelledError(task_name=entry.call.name, was_running=True)
            runtime.outcomes.fail(id, entry, error)
            continue
        fate = core.after_grace(is_first=position == 0, retries_left=runtime.outcomes.retries_left(entry))
        if fate is core.FAILED:
            error = NodeUnreachableError(task_name=entry.call.name, reason=message.reason, was_sent=True)
            runtime.outcomes.fail(id, entry, error)
            continue
        pending.retries += fate is core.CHARGED
        task.extra = task.extra or entry.call.new_extra()
        task.extra.once = True
        if pending.stream is not None:
            task.extra.skip = pending.stream.received
        again.append(task)
    runtime.submitter.run_again(lease.cls, again)
