"""The executor's side of a task: from a received batch to results on the way back.

    owner ──Tasks──▶ run queue ──▶ main thread: load arguments, call, store the value ──▶ outbox ──Results──▶ owner

The main thread runs tasks, and reads the sockets itself while it has none. While a task runs, the I/O thread reads: it
adds to the run queue, and sees to recalls, cancellations and closed streams.

Results collect in the outbox while more tasks wait, and leave when the queue is empty, when FLUSH_S has passed, before
the task blocks, and before a task that may run only once. So that none waits for a long task behind it, the I/O thread
looks every FLUSH_S and sends what the main thread left (unless that task holds the interpreter lock all the while).

The id of the running task stands in this process's slot of the arena, where the daemon finds it after a crash.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from skate._core.ids import child_prefix, node_at, node_of, return_id
from skate._core.task import Extra, Failure, RefInfo, Result, ResultExtra, Task, Timing
from skate._message_limits import limits
from skate._object_ref import collecting_refs
from skate._serialize.diagnose import explain_unpicklable
from skate._serialize.failures import failure_of
from skate._serialize.values import (
    INLINE_BYTES_MAX,
    NONE,
    Serialized,
    deserialize,
    is_plain,
    serialize,
    serialize_plain,
)
from skate._store.layout import NAME_BYTES, SLOT_TASK_BYTES, name_offset, slot_fields
from skate._wire import messages as m
from skate._worker.actor_process import EXITS, ActorProcess
from skate._worker.cancellation import Cancellation
from skate._worker.context import CURRENT_CALL
from skate._worker.cores import Cores
from skate._worker.functions import LoadedFunctions
from skate._worker.garbage import collect
from skate._worker.leaving import exit_cleanly
from skate._worker.loading import OutOfReach, load_arguments
from skate._worker.output import end_as_a_program, flush_output, show_name
from skate._worker.peers import Peer
from skate._worker.produce import Producer, WrongReturn
from skate._worker.run_queue import RunQueue
from skate._worker.task_events import TaskEvents
from skate._worker.waits import answer
from skate.exceptions import TaskInterrupt

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime

#: Time after which results leave the outbox while more tasks wait. Each message costs about 100 µs of CPU, most of it
#: at the owner, so one in 20 ms takes half a hundredth of a core.
FLUSH_S = 0.020
#: The same for calls of an actor: what they changed is lost with its process, so the less of them is unsaid the better.
ACTOR_FLUSH_S = 0.002
#: The same before the last task that is here: the owner can send more while that runs.
FLUSH_BEFORE_LAST_S = 0.0003


class Executor:
    """Runs the tasks that owners send to this worker."""

    def __init__(self, runtime: Runtime, slot: int) -> None:
        self._runtime = runtime
        self._queue = RunQueue()
        self.functions = LoadedFunctions()
        self._loaded = self.functions.loaded
        #: What this process has become, if it has.
        self.actor: ActorProcess | None = None
        self._actor_start: m.StartActor | None = None
        arena = memoryview(runtime.arena)
        self._slot, self._slot_last = slot_fields(arena, slot)
        #: What native code prints carries the name that stands here.
        at = name_offset(runtime.welcome.arena_bytes, slot)
        self.name_field = arena[at : at + NAME_BYTES]
        #: The task that the main thread is in, and its owner.
        self._current: Task | None = None
        self._owner: Peer | None = None
        #: Results that have not been sent. The main thread appends, whoever holds `_outbox_lock` takes and sends.
        self._outbox: deque[Result] = deque()
        #: Whose they are; changes only while there are none.
        self._outbox_owner: Peer | None = None
        self._outbox_lock = threading.RLock()
        self._outbox_since = 0.0
        #: References inside the result that is being made, and inside those in the outbox: a release must not overtake
        #: the result that hands the reference on.
        self._result_refs: dict[bytes, list[Any]] = {}
        #: Tasks whose values are being stored: how many of the returns may be there already.
        self.storing: dict[bytes, int] = {}
        self._outbox_refs: list[Any] = []
        #: By function: how many of its results are in the outbox, and the seconds that they took.
        self._timings: dict[bytes, list[Any]] = {}
        self._cores = Cores()
        self._watching = False
        self._blocked = 0
        self._cancellation = Cancellation(runtime, lambda: self._current, self._retire_after_task)
        #: Cancelled while it was neither in the queue nor the running one: about to start, or ended already.
        self._cancelled_early: set[bytes] = set()
        self.producer = Producer(runtime, self)
        self._calls: dict[bytes, int] = {}
        self._retiring = False
        self._events = TaskEvents(runtime.send)
        self.resources: dict[str, float] = {}
        self.gpu_ids: list[int] = []
        self._visible_gpus = visible_gpus()
        #: A task ran since the last tick; a function was forgotten, which leaves cycles behind (its globals, a class).
        self._ran = False
        self._forgot = False
        #: No collection before that time.
        self._rest_until = 0.0
        self.handlers: dict[type, Callable[[Peer, Any], None]] = {
            m.Tasks: self._on_tasks,
            m.Define: self._on_define,
            m.Undefine: self._on_undefine,
            m.Recall: self._on_recall,
            m.Cancel: self._on_cancel,
            m.Consumed: self.producer.on_consumed,
            m.CloseStream: self._on_close_stream,
            m.AskTask: self._on_ask,
        }

    # -- messages: called by whoever reads, with the runtime's lock held ---------------------------------------

    def _on_tasks(self, peer: Peer, message: m.Tasks) -> None:
        if self.actor is not None:
            if self._retiring:
                peer.send(m.Returned([], leaving=True))
                return
            if self.actor.concurrency is not None:
                self.actor.concurrency.add(peer, message.tasks)
                return
        elif self._blocked:  # they crossed with the message that says so
            peer.send(m.Returned([task.id for task in message.tasks], True))
            return
        self._queue.add(peer, message.tasks)
        if self._runtime.in_cluster:
            self._prefetch(message.tasks)

    def _prefetch(self, tasks: list[Task]) -> None:
        """What they read that lies on other nodes is brought while they wait for their turn."""
        here = node_of(self._runtime.process_id)
        places = {
            arg.id: arg.value
            for task in tasks
            if task.extra is not None
            for arg in task.extra.args
            if isinstance(arg.value, int) and node_at(arg.value) != here
        }
        if places:
            self._runtime.send(m.Prefetch(list(places), list(places.values())))

    def _on_define(self, peer: Peer, message: m.Define) -> None:
        self.define(message, peer.process_id)

    def define(self, message: m.Define, owner: bytes) -> None:
        if not self.functions.add(message, owner):
            return
        runtime = self._runtime
        for ref in message.refs:
            # Held until the function is forgotten: it may be loaded at any time before.
            if ref.owner == runtime.process_id:
                runtime.table.hold(ref.id)
            else:
                runtime.table.hold(ref.id, ref.owner)
                runtime.borrowing.register(ref.id, ref.owner)

    def _on_undefine(self, peer: Peer, message: m.Undefine) -> None:
        self._forget_functions([ref for fn in message.fns for ref in self.functions.remove(fn, peer.process_id)])

    def _forget_functions(self, captured: list[RefInfo]) -> None:
        self._runtime.table.unhold([ref.id for ref in captured])
        self._forgot = True
        if self._runtime.loop.dormant:  # and this is the main thread, which does not tick
            self._runtime.loop.stir()

    def _on_recall(self, peer: Peer, message: m.Recall) -> None:
        peer.send(m.Returned(self._queue.recall(peer, message.count)))

    def _on_cancel(self, peer: Peer, message: m.Cancel) -> None:
        if self._queue.remove(message.id):
            peer.send(m.Results([self.cancelled_result(message.id, began=False)]))
            return
        if self.actor is not None and self.actor.concurrency is not None:
            self.actor.concurrency.cancel(peer, message)
            return
        if self._current is None or self._current.id != message.id:
            if message.queued_only:
                return
            # The main thread may be between taking it from the queue and starting it: it looks here when it does.
            self._cancelled_early.add(message.id)
        current = self._current
        if current is not None and current.id == message.id:
            self._runtime.context.cancelled = message.id
            if self.actor is not None:
                # Its state would not survive an interrupt in the middle of a method; what runs can ask whether to stop.
                if self.producer.close(message.id):  # a generator can be stopped where it yields
                    self._cancellation.id = message.id
                return
            children = child_prefix(current.id, self._runtime.context.attempt)
            if message.queued_only:
                if message.recursive:
                    self._runtime.submitter.cancel_children(children)
                return
            self._cancellation.demand(message.id)
            if message.recursive:
                self._cancellation.children_follow(message.id, children)

    def cancelled_result(self, id: bytes, *, began: bool = True) -> Result:
        return Result(id, Failure(b""), ResultExtra(cancelled=True, began=began))

    def _on_close_stream(self, peer: Peer, message: m.CloseStream) -> None:
        if not self.producer.close(message.id):
            self._on_cancel(peer, m.Cancel(message.id, True))

    def _on_ask(self, peer: Peer, message: m.AskTask) -> None:
        answer(self._runtime, peer, message.request, self._state_of(message.id), message.id)

    def _state_of(self, id: bytes) -> dict[str, Any]:
        current = self._current
        if current is not None and current.id == id:
            return {"state": "running", "pid": os.getpid(), "blocked": self._blocked > 0}
        if self.actor is not None and self.actor.concurrency is not None:
            state = self.actor.concurrency.state_of(id)
            if state is not None:
                return {**state, "pid": os.getpid()}
        position = self._queue.position(id)
        if position is not None:
            running = self._task_name(current) if current is not None else ""
            return {"state": "behind", "pid": os.getpid(), "position": position + 1, "running": running}
        return {"state": "unknown", "pid": os.getpid()}

    def on_control(self, message: m.AnyMessage) -> None:
        if isinstance(message, m.LeaseStarted):
            self.resources = message.resources
            if message.job is not None:
                self._runtime.begin_job(message.job)
            if message.captures != self._runtime.captures:
                self._runtime.capture(message.captures)
            if self.gpu_ids or message.gpu_ids:
                # The node counts its GPUs from 0; the driver may have been given some of the machine's by number.
                self.gpu_ids = [self._visible_gpus[i] if i < len(self._visible_gpus) else i for i in message.gpu_ids]
                os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(id) for id in self.gpu_ids)
        elif isinstance(message, m.StartActor):
            self._actor_start = message
        elif isinstance(message, m.LeaveActor):
            self.retire()
        elif isinstance(message, m.CollectEvents):
            self._events.send(message.request)
        elif isinstance(message, m.Retire):
            if message.at_once:
                self.retire()
                return
            self._runtime._housekeeping()
            if self._current is None and not self._queue.waiting and not self._runtime.table.entries:
                self._retiring = True
            else:
                self._runtime.send(m.Ready())

    def on_owner_dead(self, peer: Peer) -> None:
        """Nobody waits for its tasks any more; the daemon ends this process if it is in one of them."""
        self._queue.forget(peer)
        self._forget_functions(self.functions.remove_all_of(peer.process_id))
        if self.actor is not None and self.actor.concurrency is not None:
            self.actor.concurrency.forget(peer)

    # -- the main thread ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run tasks for ever; the process ends by exit or by signal."""
        self._cancellation.install()
        wait = self._runtime.loop.wait
        while True:
            wait(self._has_work)
            if self._actor_start is not None:
                self._become_actor(self._actor_start)
            self._run_queue()
            if self._retiring:
                self._leave()

    def _has_work(self) -> bool:
        return bool(self._queue.waiting) or self._retiring or self._actor_start is not None

    def _become_actor(self, start: m.StartActor) -> None:
        self._actor_start = None
        self.actor = ActorProcess(self._runtime, self, start)
        if self.actor.create() and self.actor.concurrency is not None:
            self.actor.concurrency.run()

    def retire(self) -> None:
        """Take no more tasks, and leave. From any thread."""
        self._retiring = True
        if self.actor is not None and self.actor.concurrency is not None:
            self.actor.concurrency.stop()
        self._runtime.loop.notify()

    def _run_queue(self) -> None:
        if self._runtime.loop.dormant:
            self._runtime.loop.stir()
        runtime = self._runtime
        perf_counter = time.perf_counter
        outbox, slot = self._outbox, self._slot
        note = self._events.note
        execute, cancellation = self._execute, self._cancellation
        flush_s = FLUSH_S if self.actor is None else ACTOR_FLUSH_S
        fn, name = b"", ""
        timings: dict[bytes, list[Any]] = {}
        timing: list[Any] | None = None
        end = perf_counter()
        queue = self._queue.waiting
        while queue and not self._retiring:
            try:
                peer, task = queue.popleft()
            except IndexError:
                break  # recalled by the I/O thread meanwhile
            if outbox:
                limit = flush_s if queue else FLUSH_BEFORE_LAST_S
                if self._outbox_owner is not peer or end - self._outbox_since > limit:
                    self.flush()
                    end = perf_counter()
                elif not self._watching:
                    self._watch()
            begin = end  # of the one before: what lies between the two is part of what a task takes
            id = task.id
            self._owner = peer
            self._current = task
            slot[_ALL] = id
            is_other = task.fn != fn
            if is_other and self.actor is None:
                show_name(self.name_field, self._task_name(task))
            if self._cancelled_early and id in self._cancelled_early:
                result: Result | None = self.cancelled_result(id, began=False)
            else:
                result = execute(peer, task)
            if runtime.closed:
                end_as_a_program(None)
            if cancellation.id:
                # It came while the task ran, even if that ended before the interrupt could be raised in it.
                if cancellation.id == id:
                    result = self.cancelled_result(id) if result is None else result.as_cancelled()
                cancellation.id = b""
            end = perf_counter()
            self._current = None
            if is_other:
                fn = task.fn
                name = self.functions.name(fn)
                timings = {}
            extra = task.extra
            if extra is None:
                note((name, id, begin, end))
            else:
                if extra.max_calls:
                    self._count_call(task.fn, extra.max_calls)
                note((extra.name or name, id, begin, end))
            if result is not None:
                if not outbox:
                    # Not its end: after a long task the next one is likely to be long too.
                    self._outbox_since = begin
                    self._outbox_owner = peer
                if self._result_refs:
                    self._hand_over(result)
                else:
                    outbox.append(result)
            if timings is not self._timings:  # it is another function, or those so far were sent
                timings = self._timings
                timing = timings.get(fn)
            if timing is None:  # in one go: another thread may send it at any moment
                timing = timings[fn] = [1, end - begin]
            else:
                timing[0] += 1
                timing[1] += end - begin
            if extra is not None:
                if extra.name:
                    fn = b""  # the next task of this function has another name
                if extra.once:
                    self.flush()
                    end = perf_counter()
        self._slot_last[:] = self._slot  # until its result has left, it may be what this process dies of
        self._slot[:] = _NO_TASK
        self._cancelled_early.clear()  # those had ended
        self._ran = True
        flush_output()  # before the results: whoever gets them may end the program at once
        self.flush()
        if self._events.are_many:
            self._events.send()

    def _hand_over(self, result: Result) -> None:
        """To the outbox, with the references inside it."""
        with self._outbox_lock:
            self._outbox.append(result)
            self._outbox_refs += self._result_refs.pop(result.id, ())

    def _count_call(self, fn: bytes, max_calls: int) -> None:
        """Before the result leaves: who gets that may give this worker back, and the daemon must not lend it again."""
        self._calls[fn] = self._calls.get(fn, 0) + 1
        if self._calls[fn] >= max_calls:
            self._retire_after_task()

    def _retire_after_task(self) -> None:
        self._retiring = True
        self._runtime.send(m.Retire())

    def _leave(self) -> None:
        """Give back what did not start, stay as long as others hold references to what this process owns, exit."""
        runtime = self._runtime
        with runtime.lock:
            runtime.send(m.Retire())
            if self.actor is None:
                self._give_back(leaving=True)
            else:
                for peer in runtime.peers.all():
                    peer.send(m.Returned([], leaving=True))
        self._events.send()
        if self.actor is not None:
            self.actor.say_farewell()
        runtime.loop.wait(lambda: not any(entry.borrowers for entry in list(runtime.table.entries.values())))
        exit_cleanly(self._runtime)

    def _execute(self, peer: Peer, task: Task) -> Result | None:
        """Run one task to its result."""
        function: Any
        args: Any
        kwargs: Any
        try:
            extra = task.extra
            self._runtime.context.enter(task, extra.attempt if extra is not None else 0)
            function = self._loaded(task.fn) or self.functions.load(task.fn)
            if extra is None:
                value = function(*deserialize(task.args)) if task.args else function()
                if value is None:
                    return Result(task.id, NONE)
                if is_plain(value):
                    data = serialize_plain(value)
                    if len(data) <= INLINE_BYTES_MAX:
                        return Result(task.id, data)
                return self.store_results(peer, task, None, [value])
            args, kwargs = load_arguments(self._runtime, task, extra)
            if extra.generator:
                produce = self.producer.stream if extra.generator == "streaming" else self.producer.dynamic
                return produce(peer, task, extra, function(*args, **kwargs))
            value = function(*args, **kwargs)
            args = kwargs = None  # so that what the task does not keep is gone before `kept` is decided
            return self.store_returns(peer, task, extra, value)
        except TaskInterrupt:
            return self.interrupted(peer, task)
        except BaseException as error:  # noqa: BLE001 - whatever user code raises becomes the task's result
            if self._runtime.closed:
                end_as_a_program(error)  # user code forked, and the child came back to us
            if self.actor is not None and isinstance(error, EXITS):
                self.flush()
                self.actor.exit(error)
                return None
            return self.failed(peer, task, error)
        finally:
            # A module that keeps an error of its own import keeps this frame, which called it, for ever.
            args = kwargs = value = function = None

    def failed(self, peer: Peer, task: Task, error: BaseException) -> Result:
        began = type(error) is not OutOfReach
        failure, inside = self.failure_of(task, error)
        arguments = task.extra.refs if task.extra is not None else []
        kept = self.settle(peer, arguments, inside) if arguments or inside else []
        left = self.storing.pop(task.id, 0)
        if not kept and not inside and not left and began:
            return Result(task.id, failure)
        contained = [inside] if inside else []
        return Result(task.id, failure, ResultExtra(kept=kept, contained=contained, left=left, began=began))

    def failure_of(self, task: Task, error: BaseException) -> tuple[Failure, list[RefInfo]]:
        """What a task raised, as a value; and the references inside it, which are held for the result."""
        if type(error) is WrongReturn:
            error = ValueError(str(error))  # without a traceback: only our own frames would be in it
        if type(error) is OutOfReach and error.__cause__ is not None:
            error = error.__cause__
        with collecting_refs() as refs:
            failure = failure_of(error, function_name=self._task_name(task), pid=os.getpid())
        if refs:
            self.hold_for_result(task.id, refs)
        # Frames hold what the task had; they are described in the failure. Not by assignment: a class may forbid that.
        BaseException.with_traceback(error, None)
        return failure, [RefInfo(ref._id, ref._owner) for ref in refs]

    def interrupted(self, peer: Peer, task: Task) -> Result:
        """It was cancelled while it ran; references that it was given may be where it has put them."""
        arguments = task.extra.refs if task.extra is not None else []
        kept = self.settle(peer, arguments, []) if arguments else []
        return Result(task.id, Failure(b""), ResultExtra(kept=kept, cancelled=True, left=self.storing.pop(task.id, 0)))

    def _task_name(self, task: Task) -> str:
        return (task.extra.name if task.extra is not None else "") or self.functions.name(task.fn)

    def current_task(self) -> Task | None:
        call = CURRENT_CALL.get()
        return self._current if call is None else call.task

    def task_name(self) -> str:
        """The name of the running task, for the prefix of what it prints."""
        current = self.current_task()
        if current is None:
            return self.actor.name_at_birth if self.actor is not None else ""
        return self._task_name(current)

    # -- for actors that run several calls at a time ------------------------------------------------------------------

    def note(self, task: Task, begin: float) -> None:
        """For the timeline."""
        self._events.note((self._task_name(task), task.id, begin, time.perf_counter()))
        self._ran = True

    def hold_for_result(self, id: bytes, refs: Iterable[Any]) -> None:
        """References inside a value: until the result that hands them on has been sent."""
        self._result_refs.setdefault(id, []).extend(refs)

    def release_result_refs(self, id: bytes) -> None:
        """The result has been sent."""
        self._result_refs.pop(id, None)

    # -- results ------------------------------------------------------------------------------------------------------

    def store_returns(self, peer: Peer, task: Task, extra: Extra | None, value: Any) -> Result:
        """What a function returned, as the result of its task."""
        if extra is not None and extra.num_returns > 1 and inspect.isgenerator(value):
            return self.producer.several(peer, task, extra, value)
        return self.store_results(peer, task, extra, self._split(value, 1 if extra is None else extra.num_returns))

    def _split(self, value: Any, num_returns: int) -> list[Any]:
        if num_returns == 1:
            return [value]
        if num_returns == 0:
            return [None]
        values = list(value) if isinstance(value, (tuple, list)) else None
        if values is None or len(values) != num_returns:
            got = f"{len(values)} values" if values is not None else f"a {type(value).__name__}"
            raise WrongReturn(
                f"{self.task_name()} has num_returns={num_returns}, so it must return a tuple or list of that many "
                f"values; it returned {got}."
            )
        return values

    def store_results(self, peer: Peer, task: Task, extra: Extra | None, values: list[Any]) -> Result:
        """Serialise the values; large ones go to the arena under the ids of the returns."""
        stored: list[Any] = []
        contained: list[list[RefInfo]] = []
        inline = 0
        for index, value in enumerate(values):
            self.storing[task.id] = index + 1
            data, refs = self.store_value(peer, task.id if index == 0 else return_id(task.id, index), value, inline)
            inline += len(data) if type(data) is bytes else 0
            stored.append(data)
            contained.append([RefInfo(ref._id, ref._owner) for ref in refs])
            if refs:
                self.hold_for_result(task.id, refs)
        values.clear()
        del value  # the task is over: only references that it stored somewhere are kept
        arguments = extra.refs if extra is not None else []
        returned = [ref for refs in contained for ref in refs]
        kept = self.settle(peer, arguments, returned) if arguments or returned else []
        del self.storing[task.id]
        if len(stored) == 1 and not kept and not returned:
            return Result(task.id, stored[0])
        return Result(
            task.id, stored[0], ResultExtra(more=stored[1:], contained=contained if returned else [], kept=kept)
        )

    def store_value(self, peer: Peer, id: bytes, value: Any, inline: int = 0) -> tuple[bytes | int, Any]:
        """To travel in the message itself, which has `inline` bytes of other values already, or in shared memory."""
        try:
            serialized: Serialized = serialize(value)
        except Exception as error:
            raise explain_unpicklable(value, error, what=f"the value returned by {self.task_name()}") from error
        if serialized.size > INLINE_BYTES_MAX or inline + serialized.size > limits.inline:
            return self._runtime.store.write(id, peer.process_id, serialized), serialized.refs
        return serialized.to_bytes(), serialized.refs

    def settle(self, peer: Peer, arguments: list[RefInfo], returned: list[RefInfo]) -> list[bytes]:
        """See borrow.py: nobody lets go of a reference before its owner knows who else has it."""
        runtime = self._runtime
        with runtime.lock:
            runtime._housekeeping()  # what the task dropped is dropped
            kept, requests = runtime.borrowing.settle_result(peer.process_id, arguments, returned)
        while requests:
            try:
                runtime.loop.wait(lambda: all(runtime.borrowing.answered(request) for request in requests))
                break
            except TaskInterrupt:  # too late: what was begun here has to be told of
                continue
        return kept

    def flush(self) -> None:
        """Send the results that have collected. From any thread."""
        outbox = self._outbox
        with self._outbox_lock:
            count = len(outbox)
            if not count:
                return
            owner = self._outbox_owner  # asked for after the count: see its definition
            assert owner is not None
            results = [outbox.popleft() for _ in range(count)]
            timings, self._timings = self._timings, {}
            owner.send(m.Results(results, self._cores.correct([Timing(fn, *it) for fn, it in list(timings.items())])))
            refs, self._outbox_refs = self._outbox_refs, []
        del refs

    def _watch(self) -> None:
        """While a task runs with results in the outbox, the I/O thread makes sure that they do not wait for long."""
        self._watching = True
        self._runtime.loop.call_at(time.monotonic() + FLUSH_S, self._look_after_outbox)

    def _look_after_outbox(self) -> None:
        if self._outbox and time.perf_counter() - self._outbox_since > FLUSH_S:
            self.flush()
        if self._outbox:
            self._runtime.loop.call_at(time.monotonic() + FLUSH_S, self._look_after_outbox)
        else:
            self._watching = False

    # -- blocking ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def blocking(self) -> Iterator[None]:
        """The running task waits for others: its CPU and the tasks behind it go elsewhere meanwhile.

        That any of its threads waits is enough: the others may be waiting for that one, and to overbook the CPU for a
        while is better than to wait for ever.
        """
        if self.current_task() is None or (self.actor is not None and not self.resources.get("CPU")):
            self.flush()
            yield
            return
        runtime = self._runtime
        self.flush()
        with runtime.lock:
            self._blocked += 1
            if self._blocked == 1:
                if self.actor is None:
                    self._give_back(blocked=True)
                runtime.send(m.Blocked())
        try:
            yield
        finally:
            with runtime.lock:
                self._blocked -= 1
                if self._blocked == 0:
                    runtime.send(m.Unblocked())
                    if self._owner is not None and self.actor is None:
                        self._owner.send(m.Ready())

    def _give_back(self, *, blocked: bool = False, leaving: bool = False) -> None:
        """Tasks that have not started go back to their owner, who is told that no more are welcome."""
        ids = self._queue.recall_all()
        if self._owner is not None:
            self._owner.send(m.Returned(ids, blocked, leaving))

    def tick(self) -> bool:
        """Housekeeping; whether there is reason to come again."""
        flush_output()
        if self._current is None:
            self._events.send_old()
            if self._forgot or (self._ran and (self._runtime.table.borrows or self._runtime.store.pinned)):
                # A task may have left references in cycles; nobody should have to wait for the collector's own pace.
                if time.monotonic() >= self._rest_until:
                    self._rest_until = collect()
                    self._ran = self._forgot = False
                return True  # what was dropped is to be seen to
            self._ran = False
        return self._current is not None or bool(self._queue.waiting) or bool(self._events.unsent)


def visible_gpus() -> list[int]:
    """The GPUs that CUDA_VISIBLE_DEVICES names by number."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return [int(number) for number in named.split(",") if number.strip().isdigit()]


_NO_TASK = bytes(SLOT_TASK_BYTES)
_ALL = slice(None)  # made once: it is needed for every task
