"""The owner's side of a task: from a queue to a leased worker, and back with the result.

    f.remote(x) ── queue of its scheduling class ── push ──▶ leased worker
                                                              │
       get(ref) ◀── object table ◀── results / crash / recall ┘

Tasks of one shape (resources, environment) wait in one queue. The owner asks the node daemon for workers of that shape
(leases), and keeps about two milliseconds of work on the way to each. A task leaves at once when a leased worker is
idle; while all are busy, tasks collect, and the next reply takes them along in one message.

Every method is called with the runtime's lock held, and none blocks.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from skate._core.ids import node_of
from skate._core.ownership import Entry, Pending
from skate._core.pipelining import Estimates, Patience
from skate._core.placement import Where
from skate._core.policy_memory import MemoryKill, next_attempt
from skate._core.resources import group_of
from skate._core.task import Failure, Task
from skate._error_text import MORE_WORKERS
from skate._serialize.failures import failure_of
from skate._wire.messages import (
    Cancel,
    KillWorker,
    LeaseDemand,
    LeaseGranted,
    LeaseInfeasible,
    LeaseReclaim,
    LeaseReturn,
    LeasesShort,
    PeerGone,
    Recall,
    Results,
    Returned,
    Tasks,
)
from skate._worker.calls import Lease, SchedulingClass
from skate._worker.peers import Peer
from skate.exceptions import (
    NodeDiedError,
    NodeUnreachableError,
    OutOfMemoryError,
    RuntimeEnvSetupError,
    TaskCancelledError,
    TaskPlacementGroupRemoved,
    TaskUnschedulableError,
    WorkerCrashedError,
)

if TYPE_CHECKING:
    from skate._worker.delayed import HeldTasks
    from skate._worker.runtime import Runtime

#: Tasks that collect before another attempt to push, while every worker is busy.
COLLECT_MAX = 256
#: An idle lease goes back to the daemon after this; the daemon can ask for it sooner. A driver may be a person who
#: thinks; a task that is done with its children needs their workers no more, and others wait for them.
IDLE_LEASE_S = 0.1
IDLE_LEASE_OF_TASK_S = 0.002
#: Tasks that are to be spread wait so long for further leases, each one that is there having had its share: it takes
#: others a moment to give theirs back. And so long for those that are free: hundreds of workers may have to start.
SPREAD_WAIT_S = 0.3
SPREAD_WAIT_FREE_S = 5.0
#: Leases of zero-CPU tasks asked for at a time: there is no natural bound on them.
ZERO_CPU_LEASES = 4

#: What helps when no worker can be started.
START_AGAIN = "see to that (a limit can be raised, or less be used by this program and others), and submit it again."

log = logging.getLogger("skate")


class Submitter:
    """The tasks that this process owns."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._table = runtime.table
        self._outcomes = runtime.outcomes
        self._classes: dict[Any, SchedulingClass] = {}
        self._by_key: dict[int, SchedulingClass] = {}
        self._leases: dict[int, Lease] = {}
        self.estimates = Estimates()
        self._patience = Patience()
        self._idle_timer = False
        self._idle_lease_s = IDLE_LEASE_S if runtime.is_driver else IDLE_LEASE_OF_TASK_S
        self._recall_timer = False
        #: Tasks that were ended because memory was short, and when they are sent again.
        self._resting: dict[bytes, float] = {}
        self.submitted = 0
        self.held: HeldTasks | None = None  # by a test setting
        #: The last name of a task that was cancelled before it began, and the error of all of that name.
        self._cancelled = "", Failure(b"")

    # -- classes and calls ------------------------------------------------------------------------------

    def scheduling_class(
        self, resources: dict[str, float], env: dict[str, str], where: Where | None, *, retriable: bool
    ) -> SchedulingClass:
        name = (tuple(sorted(resources.items())), tuple(sorted(env.items())), where, retriable)
        cls = self._classes.get(name)
        if cls is None:
            cls = SchedulingClass(len(self._classes) + 1, resources, env, self._cap(resources), retriable=retriable)
            cls.where = where
            self._classes[name] = cls
            self._by_key[cls.key] = cls
        return cls

    def near(self, cls: SchedulingClass, node: int) -> SchedulingClass:
        """The same class, for tasks that read much on that node."""
        name = (cls.key, node)
        known = self._classes.get(name)
        if known is None:
            known = SchedulingClass(len(self._classes) + 1, cls.resources, cls.env, cls.cap, retriable=cls.retriable)
            known.where = cls.where
            self._classes[name] = known
            self._by_key[known.key] = known
        return known

    def _cap(self, resources: dict[str, float]) -> int:
        """Most leases that all nodes can give at a time; 0: there is no such bound, or nobody here knows it."""
        if group_of(resources):
            return 0
        total = self._runtime.welcome.resources
        needed = [total.get(kind, 0.0) / amount for kind, amount in resources.items() if amount > 0]
        return max(1, int(min(needed))) if needed else 0

    def on_capacity(self) -> None:
        """Nodes came or went."""
        for cls in self._classes.values():
            cls.cap = self._cap(cls.resources)
            self.push(cls)

    # -- out ------------------------------------------------------------------------------------------------

    def enqueue(self, cls: SchedulingClass, task: Task) -> None:
        queue = cls.queue
        queue.append(task)
        if cls.idle or len(queue) >= cls.push_at:
            self.push(cls)

    def push(self, cls: SchedulingClass) -> None:
        """Send what the leased workers of a class should have now; ask for more workers if that is not all."""
        queue = cls.queue
        if queue:
            open_leases = [lease for lease in cls.leases if not lease.blocked and not lease.closing]
            if len(open_leases) > 1:
                open_leases.sort(key=_turn if cls.where is not None and cls.where.spread else _inflight)
            take = self.estimates.take
            to_come = self._to_come(cls) if cls.where is not None else 0
            if to_come:
                self._look_again(cls)
                open_leases = [lease for lease in open_leases if not lease.served]
            while queue:
                sent = False
                workers = len(open_leases) + to_come
                for lease in open_leases:
                    taken, added = take(queue, load_s=lease.load_s, inflight=len(lease.inflight), workers=workers)
                    if taken:
                        self._send(lease, taken, added)
                        sent = not to_come
                        lease.served = True
                        if not queue:
                            break
                    workers -= 1
                if not sent:
                    break
        self._update_demand(cls)
        # While more workers could be had, every task is a reason to ask; otherwise tasks collect.
        asked_all = cls.demand + _active(cls) >= cls.cap if cls.cap else cls.demand >= ZERO_CPU_LEASES
        cls.push_at = len(queue) + (COLLECT_MAX if asked_all else 1)

    @staticmethod
    def _to_come(cls: SchedulingClass) -> int:
        """Leases that tasks which are to be spread wait for, for a while."""
        assert cls.where is not None
        if not cls.where.spread:
            return 0
        waited_s = time.monotonic() - cls.asked_at
        if waited_s < SPREAD_WAIT_S:
            return cls.demand
        return max(0, cls.demand - cls.short) if waited_s < SPREAD_WAIT_FREE_S else 0

    def _look_again(self, cls: SchedulingClass) -> None:
        """Whether they have waited long enough; with one timer for many that come one by one."""
        if not cls.spread_timer:
            cls.spread_timer = True

            def look() -> None:
                cls.spread_timer = False
                self.push(cls)

            self._runtime.loop.call_at(time.monotonic() + SPREAD_WAIT_S, look)

    def on_short(self, message: LeasesShort) -> None:
        cls = self._by_key[message.key]
        cls.short = message.count
        self.push(cls)

    def _send(self, lease: Lease, tasks: list[Task], added_s: float) -> None:
        peer = lease.peer
        inflight = lease.inflight
        if not inflight:
            lease.last_result = time.monotonic()
            if lease in lease.cls.idle:
                lease.cls.idle.remove(lease)
        if lease.cls.where is not None:
            lease.cls.turns[node_of(peer.process_id)] = time.monotonic()
        known = peer.functions
        fn = b""
        for task in tasks:
            inflight[task.id] = task
            if task.fn is not fn:
                fn = task.fn
                if fn not in known:
                    known.add(fn)
                    peer.send(self._table.entries[task.id].call.function.define)
        lease.load_s += added_s
        peer.send(Tasks(lease.id, tasks))

    def _update_demand(self, cls: SchedulingClass) -> None:
        # Tasks behind another one on its worker wait, too: that one may be long, however short the last one was.
        behind = 0
        for lease in cls.leases:
            if len(lease.inflight) > 1:
                behind += len(lease.inflight) - 1
        waiting = len(cls.queue) + behind
        if not waiting:
            if cls.demand:
                cls.demand = 0
                self._runtime.send(LeaseDemand(cls.key, cls.resources, cls.env, 0, cls.depth, cls.retriable))
            return
        if cls.cap:
            want = min(waiting, max(cls.cap - _active(cls), 0))
        else:
            want = min(waiting, ZERO_CPU_LEASES)
        depth = cls.queue[0].depth if cls.queue else cls.depth
        if want > cls.demand or (cls.demand and depth > cls.depth):
            if not cls.demand and cls.where is not None and cls.where.spread:
                cls.asked_at = time.monotonic()
                cls.short = 0  # as far as is known here
                for lease in cls.leases:
                    lease.served = False
            cls.demand = want
            cls.depth = depth
            self._ask(cls, want, depth)

    def _ask(self, cls: SchedulingClass, want: int, depth: int) -> None:
        if cls.inputs or (cls.where is not None and cls.where.spread):
            self._make_way(cls)
        task_s = self.estimates.seconds.get(cls.queue[0].fn, 0.0) if cls.queue else 0.0
        self._runtime.send(
            LeaseDemand(cls.key, cls.resources, cls.env, want, depth, cls.retriable, cls.where, cls.inputs, task_s)
        )

    def _make_way(self, cls: SchedulingClass) -> None:
        """Give idle leases of other classes back where it wants to be: from afar they look like work that goes on."""
        everywhere = cls.where is not None and cls.where.spread
        at_data = {node for _, nodes in cls.inputs for node in nodes}
        for other in self._classes.values():
            if other is not cls:
                for lease in list(other.idle):
                    if everywhere or node_of(lease.peer.process_id) in at_data:
                        self._return(lease)

    # -- leases -----------------------------------------------------------------------------------------------

    def on_granted(self, message: LeaseGranted, peer: Peer) -> None:
        cls = self._by_key[message.key]
        cls.demand = max(0, cls.demand - 1)
        lease = Lease(message.lease, cls, peer)
        peer.lease = lease
        peer.pid = message.pid
        self._leases[message.lease] = lease
        cls.leases.append(lease)
        self._settle(lease)
        self.push(cls)
        if not lease.inflight:
            self._consider_recall(cls)

    def _settle(self, lease: Lease) -> None:
        """A lease has nothing in flight: give it back if it was asked for, otherwise it waits for work."""
        lease.load_s = 0.0
        if lease.blocked:
            return
        if lease.closing:
            self._return(lease)
            self._update_demand(lease.cls)  # its tasks may wait behind long ones on the other leases
            return
        if self._is_far(lease) or (lease.cls.where is not None and self._has_had_turn(lease.cls)):
            self._return(lease)
            return
        lease.idle_since = time.monotonic()
        if lease not in lease.cls.idle:
            lease.cls.idle.append(lease)
        if not self._idle_timer:
            self._idle_timer = True
            self._runtime.loop.call_at(lease.idle_since + self._idle_lease_s, self._return_idle)

    @staticmethod
    def _is_far(lease: Lease) -> bool:
        """Its tasks read much on another node: where the next one runs is to be decided anew."""
        inputs = lease.cls.inputs
        if not inputs or lease.cls.queue:
            return False
        here = node_of(lease.peer.process_id)
        return not any(here in nodes for _, nodes in inputs)

    def _has_had_turn(self, cls: SchedulingClass) -> bool:
        """Its only lease ran what there was to be spread, so the next task goes to another node. A burst has several
        leases, and keeps them for the next one."""
        assert cls.where is not None
        return cls.where.spread and not cls.queue and len(cls.leases) == 1 and cls.cap != 1 and self._runtime.in_cluster

    def _return(self, lease: Lease) -> None:
        self._forget(lease)
        lease.peer.lease = None
        self._runtime.send(LeaseReturn(lease.id))

    def _forget(self, lease: Lease) -> None:
        self._leases.pop(lease.id, None)
        lease.cls.leases.remove(lease)
        lease.cls.push_at = 1
        if lease in lease.cls.idle:
            lease.cls.idle.remove(lease)

    def _return_idle(self) -> None:
        self._idle_timer = False
        now = time.monotonic()
        oldest = None
        for cls in self._classes.values():
            if cls.idle and cls.where is not None and self._to_come(cls):  # they have had their share, and may get more
                oldest = now
                continue
            for lease in list(cls.idle):
                if now - lease.idle_since >= self._idle_lease_s:
                    self._return(lease)
                elif oldest is None or lease.idle_since < oldest:
                    oldest = lease.idle_since
        if oldest is not None:
            self._idle_timer = True
            self._runtime.loop.call_at(oldest + self._idle_lease_s, self._return_idle)

    def on_reclaim(self, message: LeaseReclaim) -> None:
        for number in message.leases:
            lease = self._leases.get(number)
            if lease is None or lease.closing:
                continue
            lease.closing = True
            if not lease.inflight:
                if not lease.blocked:
                    self._return(lease)
                    self._update_demand(lease.cls)
            else:
                if lease in lease.cls.idle:
                    lease.cls.idle.remove(lease)
                lease.peer.send(Recall(len(lease.inflight)))

    def on_infeasible(self, message: LeaseInfeasible) -> None:
        cls = self._by_key[message.key]
        if not message.again:
            cls.demand = 0
        queue, cls.queue = cls.queue, deque()
        cls.push_at = 1
        for task in queue:
            entry = self._table.entries[task.id]
            error: Exception
            if message.again and entry.pending is not None and entry.pending.retries:
                cls.queue.append(task)
                continue
            if message.removed:
                error = TaskPlacementGroupRemoved()
            elif message.unreachable:
                before = entry.pending is not None and entry.pending.retries > 0
                error = NodeUnreachableError(task_name=entry.call.name, reason=message.unreachable, was_sent=before)
            elif message.limit:
                error = TaskUnschedulableError(name=entry.call.name, reason=message.limit, next=MORE_WORKERS)
            elif message.reason and not cls.env:
                reason = f"no worker could be started for it: {message.reason}"
                error = TaskUnschedulableError(name=entry.call.name, reason=reason, next=START_AGAIN)
            elif message.reason:
                error = RuntimeEnvSetupError(task_name=entry.call.name, reason=message.reason)
            else:
                error = TaskUnschedulableError(
                    name=entry.call.name, asked=message.asked, available=message.total, reason=message.nowhere
                )
            self._outcomes.fail(task.id, entry, error)
        if message.again:
            self._update_demand(cls)

    # -- back ---------------------------------------------------------------------------------------------------

    def on_results(self, peer: Peer, message: Results) -> None:
        lease = peer.lease
        inflight = lease.inflight
        before = len(inflight)
        self._outcomes.take_results(peer, inflight, message.results)
        for timing in message.timings:
            self.estimates.learn(timing)
        left = len(inflight)
        if left:
            lease.load_s *= left / before if before else 0.0
            lease.last_result = time.monotonic()
        else:
            self._settle(lease)
        cls = lease.cls
        if cls.queue:
            self.push(cls)
            return
        if cls.demand:
            self._update_demand(cls)
        if not left and len(cls.leases) > 1:
            self._consider_recall(cls)

    # -- again ------------------------------------------------------------------------------------------------------

    def on_returned(self, peer: Peer, message: Returned) -> None:
        lease = peer.lease
        if lease is None:
            return
        if lease.recalled_at:
            self._patience.answered(time.monotonic() - lease.recalled_at)
            lease.recalled_at = 0.0
        if message.blocked:
            lease.blocked = True
            if lease in lease.cls.idle:
                lease.cls.idle.remove(lease)
        before = len(lease.inflight)
        # A worker that leaves runs nothing more, not even what was sent while it said so.
        ids = list(lease.inflight) if message.leaving else message.ids
        tasks = [task for id in ids if (task := lease.inflight.pop(id, None)) is not None]
        self._requeue(lease.cls, tasks)
        if message.leaving:
            self._return(lease)
        elif lease.inflight:
            # A finalizer may have run in between, and what it submitted may be all that the worker has.
            lease.load_s *= len(lease.inflight) / before if before else 0.0
        else:
            self._settle(lease)
        self.push(lease.cls)

    def on_ready(self, peer: Peer) -> None:
        lease = peer.lease
        if lease is None:
            return
        lease.blocked = False
        if not lease.inflight:
            self._settle(lease)
        if not lease.closing:
            self.push(lease.cls)

    def _consider_recall(self, cls: SchedulingClass) -> None:
        """A worker is idle and nothing waits: take unstarted tasks back from one that is in a long one."""
        if not cls.idle or cls.queue:
            return
        now = time.monotonic()
        later = False
        for lease in cls.leases:
            waiting = len(lease.inflight) - 1
            if waiting < 1 or lease.blocked or lease.recalled_at:
                continue
            if now - lease.last_result >= self._patience.seconds:
                lease.recalled_at = now
                lease.peer.send(Recall(-(-waiting // 2) if len(cls.idle) == 1 else waiting))
            later = True
        if later and not self._recall_timer:
            self._recall_timer = True

            def look_again() -> None:
                self._recall_timer = False
                self._consider_recall(cls)

            self._runtime.loop.call_at(now + self._patience.seconds, look_again)

    def on_worker_dead(self, lease: Lease, gone: PeerGone) -> None:
        """Its tasks start again elsewhere; the one that it was in, or whose result it did not send, is charged."""
        self._forget(lease)
        again: list[Task] = []
        # If its whole node is gone, nobody knows what it was in: the first, or one behind it if that had just ended.
        running = next(iter(lease.inflight), b"") if gone.node_lost else gone.running
        for id, task in lease.inflight.items():
            entry = self._table.entries[id]
            if not gone.node_lost:  # also of one that had ended, but had not said so
                self._outcomes.note_left(entry, node_of(lease.peer.process_id))
            if id != running and not (gone.node_lost and not self._outcomes.retries_left(entry)):
                again.append(task)
                continue
            pending = entry.pending = entry.pending or Pending()
            counts, pause_s = True, 0.0
            if gone.memory is not None:
                counts, pause_s = next_attempt(gone.memory, pending.memory_kills)
                pending.memory_kills += 1
            if pending.cancelled:
                error = TaskCancelledError(task_name=entry.call.name, was_running=True, forced=True)
                self._outcomes.fail(id, entry, error)
            elif entry.call.max_retries != 0 and (not counts or self._outcomes.retries_left(entry)):
                pending.retries += counts
                if pending.stream is not None:
                    task.extra = task.extra or entry.call.new_extra()
                    task.extra.skip = pending.stream.received
                if gone.memory is not None:
                    self._let_rest(task, entry, gone.memory, pause_s)
                else:
                    again.append(task)
            else:
                self._outcomes.fail(id, entry, self._crash_error(entry, gone))
        for task in again:
            # Its result is sent at once: otherwise one that had ended would be lost again with every neighbour's crash.
            task.extra = task.extra or self._table.entries[task.id].call.new_extra()
            task.extra.once = True
        self._requeue(lease.cls, again)
        self.push(lease.cls)

    def give_up(self, node: int) -> list[Lease]:
        """That node could not be reached for too long: its leases, which are forgotten here."""
        leases = [lease for lease in self._leases.values() if node_of(lease.peer.process_id) == node]
        for lease in leases:
            self._forget(lease)
            lease.peer.lease = None
        return leases

    def run_again(self, cls: SchedulingClass, tasks: list[Task]) -> None:
        self._requeue(cls, tasks)
        self.push(cls)

    def _let_rest(self, task: Task, entry: Entry, kill: MemoryKill, pause_s: float) -> None:
        """Send it again after a while, unless it is cancelled by then."""
        used = f"{kill.use.fraction:.0%} in use, the limit is {kill.limit:.0%}"
        text = f"{entry.call.name} was ended because memory was short ({used}), and is run again in {pause_s:.0f} s."
        # Not here: the user's handlers may wait for who waits for the runtime's lock, or raise.
        threading.Thread(target=log.warning, args=(text,), daemon=True).start()
        when = self._resting[task.id] = time.monotonic() + pause_s

        def go_on() -> None:
            del self._resting[task.id]
            if entry.task is task:
                entry.call.again(task)

        self._runtime.loop.call_at(when, go_on)

    def _requeue(self, cls: SchedulingClass, tasks: list[Task]) -> None:
        """They come first. One that was cancelled on its way to a worker that did not begin it ends here."""
        for task in reversed(tasks):
            entry = self._table.entries[task.id]
            if entry.pending is not None and entry.pending.cancelled:
                self._outcomes.fail(task.id, entry, TaskCancelledError(task_name=entry.call.name))
            else:
                cls.queue.appendleft(task)

    def _crash_error(self, entry: Entry, gone: PeerGone) -> Exception:
        used = entry.pending.retries if entry.pending is not None else 0
        if gone.memory is not None:
            working = self._who_does_what(node_of(gone.process_id)) | {gone.pid: f"task {entry.call.name}"}
            return OutOfMemoryError(
                task_name=entry.call.name,
                pid=gone.pid,
                used_bytes=gone.memory.use.used_bytes,
                total_bytes=gone.memory.use.total_bytes,
                limit=gone.memory.limit,
                group=gone.memory.use.group,
                processes=[(working.get(pid, name), pid, size) for name, pid, size in gone.memory.users],
                retries_used=used,
                max_retries=entry.call.max_retries,
            )
        if gone.node_lost:
            return NodeDiedError(f"{entry.call.name}() was lost, and has no retries left: {gone.reason}")
        code = gone.exit_code
        return WorkerCrashedError(
            task_name=entry.call.name,
            pid=gone.pid,
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stderr_tail=gone.stderr,
            last_output=gone.output,
            retries_used=used,
            max_retries=entry.call.max_retries,
            reason=gone.reason if code == -signal.SIGKILL else "",  # otherwise it ended before it was killed
        )

    def _who_does_what(self, node: int) -> dict[int, str]:
        """What workers of a node do for this process, by their pids."""
        names = {}
        for lease in self._leases.values():
            if lease.inflight and node_of(lease.peer.process_id) == node:
                names[lease.peer.pid] = f"task {self._table.entries[next(iter(lease.inflight))].call.name}"
        return names

    # -- cancelling ---------------------------------------------------------------------------------------------------

    def cancel(self, id: bytes, *, force: bool, recursive: bool) -> None:
        """Stop the task whose first return is `id`, wherever it is."""
        entry = self._table.entries.get(id)
        if entry is None or entry.task is None:
            return
        if entry.pending is None:
            entry.pending = Pending()
        entry.pending.cancelled = True
        if entry.call.link is not None:
            self._runtime.actors.cancel(id, entry, recursive=recursive)
            return
        cls = entry.call.cls
        lease = next((lease for lease in cls.leases if id in lease.inflight), None)
        if lease is not None:
            lease.peer.send(Cancel(id, recursive, queued_only=force))
            if force:
                self._runtime.send(KillWorker(lease.peer.process_id, "cancelled", id))
            return
        try:
            if cls.queue and cls.queue[-1] is entry.task:  # many are cancelled, the newest first
                cls.queue.pop()
            else:
                cls.queue.remove(entry.task)
        except ValueError:
            pass  # it still waits for its arguments, or for memory
        self._fail_unbegun(id, entry)
        self.push(cls)

    def _fail_unbegun(self, id: bytes, entry: Entry) -> None:
        """It was cancelled. Often many of a kind are, and to make and pickle an error takes a while."""
        name = entry.call.name
        if name != self._cancelled[0]:
            self._cancelled = name, failure_of(TaskCancelledError(task_name=name), function_name=name)
        self._outcomes.fail_with(id, entry, self._cancelled[1])

    def is_actor_call(self, id: bytes) -> bool:
        """Whether that task is a pending call of an actor's method."""
        entry = self._table.entries.get(id)
        return entry is not None and entry.task is not None and entry.call.link is not None

    def cancel_children(self, prefix: bytes) -> None:
        """Cancel everything that the task with this prefix has submitted and that has not ended."""
        entries = self._table.entries
        children = {id: entry for id, entry in entries.items() if entry.task is not None and id.startswith(prefix)}
        for cls in list(self._classes.values()):
            queued = [task for task in cls.queue if task.id in children]
            if queued:  # in one go: there may be tens of thousands
                others = [task for task in cls.queue if task.id not in children]
                cls.queue.clear()
                cls.queue.extend(others)
                for task in queued:
                    self._fail_unbegun(task.id, children.pop(task.id))
                self.push(cls)
        for id in children:
            self.cancel(id, force=False, recursive=True)

    def forget_functions(self, fns: Iterable[bytes]) -> None:
        for fn in fns:
            self.estimates.forget(fn)

    # -- seeing inside -------------------------------------------------------------------------------------------------

    def whereabouts(self, id: bytes, entry: Entry) -> tuple[str, Any]:
        """Where a pending task is: ("arguments", n), ("resting", until), ("queued", position) or ("sent", lease)."""
        if entry.pending is not None and entry.pending.missing:
            return "arguments", entry.pending
        if entry.call.link is not None:
            return "actor", entry.call.link
        if id in self._resting:
            return "resting", self._resting[id]
        for lease in entry.call.cls.leases:
            if id in lease.inflight:
                return "sent", lease
        for position, task in enumerate(entry.call.cls.queue):
            if task.id == id:
                return "queued", position
        return "queued", 0

    def statistics(self) -> dict[str, Any]:
        return {
            "tasks_submitted": self.submitted,
            "tasks_finished": self._outcomes.finished,
            "tasks_queued": sum(len(cls.queue) for cls in self._classes.values()) + len(self.held or ()),
            "tasks_in_flight": sum(len(lease.inflight) for lease in self._leases.values()),
            "leases": len(self._leases),
        }


def _active(cls: SchedulingClass) -> int:
    """Leases of a class that hold resources."""
    return sum(1 for lease in cls.leases if not lease.blocked)


def _inflight(lease: Lease) -> int:
    return len(lease.inflight)


def _turn(lease: Lease) -> tuple[int, float]:
    """Of those that have as much to do, the one whose node has waited longest comes first."""
    return len(lease.inflight), lease.cls.turns.get(node_of(lease.peer.process_id), 0.0)
