"""Actors that run several calls at a time: in threads, or on event loops if a method is a coroutine (`actor_async.py`).

Every concurrency group has places, as many as its limit; calls that name no group share those of the group "". A call
takes a place when it starts and gives it back when it ends; the others wait, in order, each group by itself.

With threads the main thread reads the sockets. It also runs the calls that name no group if one of them runs at a time:
libraries that need the main thread (for signals, say) then find it there. Results collect while there is more to do at
once, and leave together.
"""

from __future__ import annotations

import abc
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from skate._core.task import Result, Task
from skate._serialize.values import INLINE_BYTES_MAX, deserialize, is_plain, serialize_plain
from skate._wire import messages as m
from skate._worker.actor_process import EXITS
from skate._worker.context import CURRENT_CALL, CurrentCall
from skate._worker.loading import load_arguments
from skate._worker.peers import Peer

if TYPE_CHECKING:
    from skate._worker.actor_process import ActorProcess
    from skate._worker.execute import Executor
    from skate._worker.runtime import Runtime

Call = tuple[Peer, Task]
#: Results collect in a threaded actor while calls wait, so long; and no longer than this when all threads are in calls.
COLLECT_S = 0.001
WATCH_S = 0.005
#: How long calls may run on when the actor ends itself: some of them may wait for what will never come.
FINISH_S = 5.0


class Outbox:
    """Results on their way to several callers. From any thread."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._results: dict[Peer, list[Result]] = {}
        self._lock = threading.RLock()
        self.since = 0.0

    def add(self, peer: Peer, result: Result) -> None:
        with self._lock:
            if not self._results:
                self.since = time.monotonic()
            self._results.setdefault(peer, []).append(result)

    def flush(self) -> None:
        with self._lock:
            results, self._results = self._results, {}
            for peer, batch in results.items():
                peer.send(m.Results(batch))
        for batch in results.values():
            for result in batch:
                self._executor.release_result_refs(result.id)

    def forget(self, peer: Peer) -> None:
        with self._lock:
            self._results.pop(peer, None)


class Concurrency(abc.ABC):
    """What both kinds have in common."""

    def __init__(self, runtime: Runtime, executor: Executor, actor: ActorProcess) -> None:
        self._runtime = runtime
        self._executor = executor
        self._actor = actor
        settings = actor.start.create.settings
        self._limits = {"": settings.max_concurrency, **settings.groups}
        self.outbox = Outbox(executor)
        #: Calls that run.
        self._running: dict[bytes, CurrentCall] = {}
        #: The actor leaves by itself: no call is started any more, and this is done when those that run have ended.
        self._then: Callable[[], None] | None = None

    def _function(self, fn: bytes) -> Callable[..., Any]:
        functions = self._executor.functions
        return functions.loaded(fn) or functions.load(fn)

    def _arguments(self, task: Task) -> tuple[Sequence[Any], dict[str, Any]]:
        if task.extra is not None:
            return load_arguments(self._runtime, task, task.extra)
        return (deserialize(task.args) if task.args else ()), {}

    def _result(self, peer: Peer, task: Task, value: Any) -> Result:
        """What a method returned, as the result of the call."""
        extra, executor = task.extra, self._executor
        if extra is None and is_plain(value):
            data = serialize_plain(value)
            if len(data) <= INLINE_BYTES_MAX:
                return Result(task.id, data)
        return executor.store_returns(peer, task, extra, value)

    def _group_of(self, task: Task) -> str:
        extra = task.extra
        return extra.group if extra is not None else ""

    @abc.abstractmethod
    def add(self, peer: Peer, tasks: list[Task]) -> None:
        """Calls have come. With the runtime's lock held."""

    @abc.abstractmethod
    def run(self) -> None:
        """In the main thread, until `stop`."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Take nothing more. From any thread."""

    @abc.abstractmethod
    def waiting(self) -> list[deque[Call]]:
        """Calls that wait, by whatever they wait for."""

    def finish(self, then: Callable[[], None]) -> None:
        """Start nothing more, let what runs come to its end, and do that. From any thread, a running call's too."""
        self._then = then
        self._runtime.loop.call_at(time.monotonic() + FINISH_S, then)
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if self._then is not None and not self._running:
            self.outbox.flush()
            self._then()

    def state_of(self, id: bytes) -> dict[str, Any] | None:
        if id in self._running:
            return {"state": "running", "blocked": False}
        for calls in self.waiting():
            for position, (_, task) in enumerate(list(calls)):  # in one step: another thread may take some meanwhile
                if task.id == id:
                    return {"state": "behind", "position": position + 1, "running": f"{len(self._running)} others"}
        return None

    def forget(self, peer: Peer) -> None:
        """A caller is dead: nobody wants the results of its calls. With the runtime's lock held."""
        for calls in self.waiting():
            for call in [call for call in list(calls) if call[0] is peer]:
                _remove(calls, call)
        for id, current in list(self._running.items()):
            if current.caller is peer:
                current.cancelled = id
                self._interrupt(id)
        self.outbox.forget(peer)

    def cancel(self, peer: Peer, message: m.Cancel) -> bool:
        """Whether there is such a call. With the runtime's lock held."""
        id = message.id
        for calls in self.waiting():
            for call in list(calls):
                if call[1].id == id and _remove(calls, call):
                    peer.send(m.Results([self._executor.cancelled_result(id, began=False)]))
                    return True
        current = self._running.get(id)
        if current is None:
            return False
        current.cancelled = id
        self._interrupt(id)
        if message.recursive and current.prefix:
            self._runtime.submitter.cancel_children(current.prefix)
        return True

    @abc.abstractmethod
    def _interrupt(self, id: bytes) -> None:
        """A call that runs was cancelled."""


class ThreadedCalls(Concurrency):
    """Calls in threads, started as they are needed; one by one in the main thread if they name no group."""

    def __init__(self, runtime: Runtime, executor: Executor, actor: ActorProcess) -> None:
        super().__init__(runtime, executor, actor)
        self._main = MainThread(self, runtime.loop.notify) if self._limits[""] == 1 else None
        self._groups: dict[str, Threads | MainThread] = {
            group: self._main if self._main is not None and not group else Threads(self, group, limit)
            for group, limit in self._limits.items()
        }
        self._stopping = False
        self._watching = False

    def waiting(self) -> list[deque[Call]]:
        return [group.calls for group in self._groups.values()]

    def run(self) -> None:
        main = self._main
        while not self._stopping:
            self._runtime.loop.wait(lambda: self._stopping or (main is not None and main.calls))
            if main is not None and not self._stopping:
                main.run_one()
        self.outbox.flush()

    def stop(self) -> None:
        self._stopping = True
        self._runtime.loop.notify()

    def add(self, peer: Peer, tasks: list[Task]) -> None:
        for task in tasks:
            self._groups[self._group_of(task)].add((peer, task))
        peer.send(m.Taken())

    def begin_call(self, peer: Peer, task: Task) -> CurrentCall:
        """It has been taken from those that wait; with the lock of its group held."""
        current = self._running[task.id] = CurrentCall(task, peer)
        return current

    def cancel(self, peer: Peer, message: m.Cancel) -> bool:
        if super().cancel(peer, message):
            return True
        # It has ended, or a thread is about to begin it: that is over when we have had the locks.
        for group in self._groups.values():
            with group.lock:
                pass
        return super().cancel(peer, message)

    def run_call(self, peer: Peer, task: Task, current: CurrentCall) -> None:
        executor = self._executor
        if self._then is not None:
            del self._running[task.id]
            self._finish_if_done()
            return
        CURRENT_CALL.set(current)
        begin = time.perf_counter()
        result: Result | None = None
        try:
            result = self._call(peer, task)
            if current.cancelled and task.extra is not None and task.extra.generator:
                result = result.as_cancelled()  # it was closed before its end
        except EXITS as error:
            self._actor.exit(error)
        except BaseException as error:  # noqa: BLE001 - whatever a method raises becomes the result of the call
            result = executor.failed(peer, task, error)
        executor.note(task, begin)
        if result is not None:
            self.outbox.add(peer, result)
        del self._running[task.id]
        self._finish_if_done()

    def _call(self, peer: Peer, task: Task) -> Result:
        """Run a method to its result; raises what it raises."""
        function = self._function(task.fn)
        args, kwargs = self._arguments(task)
        value = function(*args, **kwargs)
        del args, kwargs
        extra = task.extra
        if extra is not None and extra.generator:
            producer = self._executor.producer
            produce = producer.stream if extra.generator == "streaming" else producer.dynamic
            return produce(peer, task, extra, value)
        return self._result(peer, task, value)

    def send_results(self, *, more: bool) -> None:
        """A call has ended; with `more`, this thread starts another at once."""
        if not more or time.monotonic() - self.outbox.since > COLLECT_S:
            self.outbox.flush()
        elif not self._watching:
            self._watching = True
            self._runtime.loop.call_at(time.monotonic() + WATCH_S, self._look_after_outbox)

    def _interrupt(self, id: bytes) -> None:
        # A thread cannot be interrupted. It can ask; and a generator can be stopped where it yields.
        self._executor.producer.close(id)

    def _look_after_outbox(self) -> None:
        self._watching = False
        self.outbox.flush()


class MainThread:
    """Calls that the main thread runs, one by one."""

    def __init__(self, owner: ThreadedCalls, wake: Callable[[], None]) -> None:
        self._owner = owner
        self._wake = wake
        self.calls: deque[Call] = deque()
        self.lock = threading.Lock()

    def add(self, call: Call) -> None:
        self.calls.append(call)
        self._wake()

    def run_one(self) -> None:
        """Run the call that came first, if there is one."""
        with self.lock:
            try:
                peer, task = self.calls.popleft()
            except IndexError:  # cancelled by the I/O thread meanwhile
                return
            current = self._owner.begin_call(peer, task)
        self._owner.run_call(peer, task, current)
        self._owner.send_results(more=bool(self.calls))


class Threads:
    """The threads of one group."""

    def __init__(self, owner: ThreadedCalls, group: str, limit: int) -> None:
        self._owner = owner
        self._group = group
        self._limit = limit
        self.calls: deque[Call] = deque()
        #: One for each call that was added; a thread that takes one looks for a call, which may have been cancelled.
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._started = 0
        self._idle = 0
        self.lock = threading.Lock()

    def add(self, call: Call) -> None:
        self.calls.append(call)
        with self.lock:
            start = self._started < self._limit and len(self.calls) > self._idle
            self._started += start
        if start:
            name = f"skate-{self._group or 'calls'}-{self._started}"
            threading.Thread(target=self._run, name=name, daemon=True).start()
        self._tokens.put(None)

    def _run(self) -> None:
        calls, tokens = self.calls, self._tokens
        while True:
            with self.lock:
                self._idle += 1
            tokens.get()
            with self.lock:
                self._idle -= 1
                try:
                    peer, task = calls.popleft()
                except IndexError:
                    continue
                current = self._owner.begin_call(peer, task)
            self._owner.run_call(peer, task, current)
            self._owner.send_results(more=bool(calls))
            del peer, task, current


def _remove(calls: deque[Call], call: Call) -> bool:
    """False if it has just been started by another thread."""
    try:
        calls.remove(call)
    except ValueError:
        return False
    return True
