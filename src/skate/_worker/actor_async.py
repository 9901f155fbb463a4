"""Actors with coroutines: calls run as tasks of event loops, one loop for each concurrency group.

    group ""        the main thread     __init__, __ray_shutdown__, and all calls that name no group
    each other one  a thread of its own, started with its first call

So a coroutine that blocks its loop holds up the calls of its own group only. Within one group everything runs in one
thread, and the running loop is always the same; asyncio's locks, events and queues belong to one group. An actor
without declared groups has the first loop only. The I/O thread reads the sockets all the while.

A class chooses its loops with `__new_event_loop__`, a function without arguments that returns a new one.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from skate._core.task import Extra, Result, Task
from skate._error_text import kind_of
from skate._wire import messages as m
from skate._worker.actor_concurrency import Call, Concurrency
from skate._worker.actor_process import EXITS, ActorExit
from skate._worker.context import CURRENT_CALL, CurrentCall
from skate._worker.peers import Peer

if TYPE_CHECKING:
    from skate._worker.actor_process import ActorProcess
    from skate._worker.execute import Executor
    from skate._worker.runtime import Runtime

#: How long calls that wait may take to tidy up when the actor ends.
LEAVE_S = 5.0


class AsyncCalls(Concurrency):
    """Calls as tasks of event loops. Methods that are no coroutines run in the loop of their group, and hold it up."""

    def __init__(self, runtime: Runtime, executor: Executor, actor: ActorProcess, cls: Any) -> None:
        super().__init__(runtime, executor, actor)
        loops = _new_event_loops(cls, len(self._limits))
        self._groups = {
            group: GroupLoop(self, group, limit, loop)
            for (group, limit), loop in zip(self._limits.items(), loops, strict=True)
        }
        self._main = self._groups[""]
        self._loop = self._main.loop
        #: The actor ends: what comes of its calls is of no interest.
        self._leaving = False
        #: Set when the consumer of a generator took something; and the loop that the generator runs on.
        self._news: dict[bytes, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}
        executor.producer.on_news = self._on_news

    def waiting(self) -> list[deque[Call]]:
        return [group.calls for group in self._groups.values()]

    def construct(self, cls: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The instance; its __init__ runs on the loop, and may be a coroutine."""
        asyncio.set_event_loop(self._loop)

        async def make() -> Any:
            if not inspect.iscoroutinefunction(cls.__init__):
                return cls(*args, **kwargs)
            instance = cls.__new__(cls)
            await cls.__init__(instance, *args, **kwargs)
            return instance

        return self._loop.run_until_complete(make())

    def run(self) -> None:
        self._main.run()
        self.outbox.flush()
        self._leaving = True
        others = [group for group in self._groups.values() if group.thread is not None]
        for group in others:
            group.stop()
        deadline = time.monotonic() + LEAVE_S
        self._main.tidy_up()
        for group in others:
            assert group.thread is not None
            group.thread.join(max(0.0, deadline - time.monotonic()))  # one that is blocked ends with the process

    def complete(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run a last coroutine to its end, after `run`. In the main thread."""
        self._loop.run_until_complete(coroutine)

    def stop(self) -> None:
        self._main.stop()

    def add(self, peer: Peer, tasks: list[Task]) -> None:
        if len(self._groups) == 1:
            self._main.add([(peer, task) for task in tasks])
        else:
            by_group: dict[str, list[Call]] = {}
            for task in tasks:
                by_group.setdefault(self._group_of(task), []).append((peer, task))
            for group, calls in by_group.items():
                self._groups[group].add(calls)
        peer.send(m.Taken())

    def start_some(self, group: GroupLoop) -> None:
        """Start calls of a group while it has places. In its thread."""
        waiting = group.calls
        while group.free and waiting and self._then is None:
            try:
                peer, task = waiting.popleft()
            except IndexError:  # cancelled by the I/O thread meanwhile
                break
            group.free -= 1
            current = self._running[task.id] = CurrentCall(task, peer)
            group.tasks[task.id] = group.loop.create_task(self._run(group, peer, task, current))

    async def _run(self, group: GroupLoop, peer: Peer, task: Task, current: CurrentCall) -> None:
        CURRENT_CALL.set(current)  # every task has a context of its own
        executor = self._executor
        result: Result | None = None
        begin = time.perf_counter()
        try:
            extra = task.extra
            function = self._function(task.fn)
            args, kwargs = self._arguments(task)
            value = function(*args, **kwargs)
            del args, kwargs
            if extra is not None and extra.generator == "streaming":
                result = await self._stream(peer, task, extra, value)
            else:
                if inspect.isawaitable(value):
                    value = await value
                if hasattr(value, "__aiter__"):
                    value = await _as_plain(value, extra)
                if extra is not None and extra.generator == "dynamic":
                    result = executor.producer.dynamic(peer, task, extra, value)
                else:
                    result = self._result(peer, task, value)
            del value
        except asyncio.CancelledError:
            result = executor.interrupted(peer, task)
        except EXITS as error:
            self._actor.exit(error)
        except BaseException as error:  # noqa: BLE001 - whatever a method raises becomes the result of the call
            result = executor.failed(peer, task, error)
        group.free += 1
        del self._running[task.id]
        del group.tasks[task.id]
        executor.note(task, begin)
        if result is not None and not self._leaving:
            self.outbox.add(peer, result)
            group.flush_soon()
        self.start_some(group)
        self._finish_if_done()

    async def _stream(self, peer: Peer, task: Task, extra: Extra, generator: Any) -> Result:
        producer, id = self._executor.producer, task.id
        producer.begin(id, extra)
        news = asyncio.Event()
        self._news[id] = (asyncio.get_running_loop(), news)
        index = 0
        try:
            if inspect.isawaitable(generator):
                generator = await generator
            if not hasattr(generator, "__aiter__"):
                producer.check_items(generator, extra)
                generator = _as_async(generator)
            async for value in generator:
                index += 1
                producer.send_item(peer, task, extra, index, value)
                del value
                while not producer.may_yield(id, index, extra.ahead):
                    news.clear()
                    if not producer.may_yield(id, index, extra.ahead):
                        await news.wait()
                if producer.is_closed(id):
                    await generator.aclose()
                    break
        finally:
            del self._news[id]
            producer.end(id)
        return producer.result(peer, task, extra, index)

    def _on_news(self, id: bytes) -> None:
        found = self._news.get(id)
        if found is not None:
            loop, news = found
            loop.call_soon_threadsafe(news.set)

    def cancel(self, peer: Peer, message: m.Cancel) -> bool:
        if super().cancel(peer, message):
            return True
        # It has ended, or the thread of its group is about to start it; that will be over when the loop comes to this.
        # The group is not known here. One of them may find the call, and it must be cancelled once.
        again = [message]
        for group in self._groups.values():
            if group.is_started:
                group.loop.call_soon_threadsafe(self._cancel_again, peer, again)
        return False

    def _cancel_again(self, peer: Peer, again: list[m.Cancel]) -> None:
        with self._runtime.lock:
            if again and super().cancel(peer, again[0]):
                again.clear()

    def _interrupt(self, id: bytes) -> None:
        current = self._running.get(id)
        if current is None:  # it has just ended, in the thread of its group
            return
        group = self._groups[self._group_of(current.task)]

        def cancel() -> None:
            task = group.tasks.get(id)
            if task is not None:
                # Behind its first step: a task that is cancelled before that never enters `_run`, nor leaves it.
                group.loop.call_soon(task.cancel)

        group.loop.call_soon_threadsafe(cancel)


class GroupLoop:
    """The event loop of one concurrency group, and the group's calls."""

    def __init__(self, owner: AsyncCalls, name: str, limit: int, loop: asyncio.AbstractEventLoop) -> None:
        self._owner = owner
        self._name = name
        self.loop = loop
        self.loop.set_exception_handler(_on_error_in_background)
        #: None: it runs in the main thread, or has not been started.
        self.thread: threading.Thread | None = None
        #: Those that wait, in order; the I/O thread appends, and removes what is cancelled.
        self.calls: deque[Call] = deque()
        #: Places that no call has, and the calls that run. In the loop's thread only.
        self.free = limit
        self.tasks: dict[bytes, asyncio.Task[None]] = {}
        self._woken = False
        self._flushing = False
        self._stopping = False

    @property
    def is_started(self) -> bool:
        return not self._name or self.thread is not None

    def add(self, calls: list[Call]) -> None:
        """Calls have come. With the runtime's lock held."""
        self.calls.extend(calls)
        if not self._woken:
            self._woken = True
            self.loop.call_soon_threadsafe(self._start_arrived)
        if not self.is_started:
            self.thread = threading.Thread(target=self._run_in_thread, name=f"skate-{self._name}", daemon=True)
            self.thread.start()

    def _start_arrived(self) -> None:
        self._woken = False
        self._owner.start_some(self)

    def flush_soon(self) -> None:
        """A result waits to be sent: after what the loop has to do now, so that several leave together."""
        if not self._flushing:
            self._flushing = True
            self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        self._owner.outbox.flush()

    def _run_in_thread(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.run()
        self.tidy_up()

    def run(self) -> None:
        """Until `stop`."""
        self.loop.run_forever()
        while not self._stopping:  # a method has stopped the loop, and no call would be answered
            self.loop.run_forever()

    def stop(self) -> None:
        """From any thread."""
        self._stopping = True
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.loop.stop)

    def tidy_up(self) -> None:
        """Calls that wait get the chance to tidy up; what comes of them is of no interest any more."""
        others = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        for task in others:
            task.cancel()
        if others:
            # Not `run_until_complete`: it raises when the loop is stopped, which the last of those calls does when it
            # ends, or whatever asks the actor to end once more.
            tidied = self.loop.create_task(asyncio.wait(others, timeout=LEAVE_S))
            tidied.add_done_callback(lambda _: self.loop.stop())
            while not tidied.done():
                self.loop.run_forever()


def _new_event_loops(cls: Any, count: int) -> list[asyncio.AbstractEventLoop]:
    """So many event loops of the kind that the class asks for; of asyncio's own kind if it does not ask."""
    make = getattr(cls, "__new_event_loop__", asyncio.new_event_loop)
    name = f"{cls.__qualname__.rpartition('<locals>.')[2]}.__new_event_loop__"
    advice = "  next: give it a function without arguments that returns a new one, as asyncio.new_event_loop does."
    if not callable(make):
        raise TypeError(f"{name} has to make event loops, and is {kind_of(make)}.\n{advice}")
    loops = [make() for _ in range(count)]
    for loop in loops:
        if not isinstance(loop, asyncio.AbstractEventLoop):
            raise TypeError(f"{name} has to return an event loop, and returned {kind_of(loop)}.\n{advice}")
        if loop.is_closed() or loop.is_running() or loops.count(loop) > 1:
            raise ValueError(f"{name} has to return a new event loop each time, and returned {loop!r}.\n{advice}")
    return loops


async def _as_async(generator: Any) -> Any:
    """A plain generator inside an event loop: others get their turn between its items."""
    try:
        for value in generator:
            yield value
            await asyncio.sleep(0)
    finally:
        if hasattr(generator, "close"):  # a list has none
            generator.close()


async def _as_plain(items: Any, extra: Extra | None) -> Any:
    """What an async generator yields, for num_returns="dynamic" and numbers: a list; with a number of returns a
    generator, which at its end raises what the async one raised."""
    if extra is None or extra.generator or extra.num_returns < 2:
        return [item async for item in items]
    values: list[Any] = []
    error: BaseException | None = None
    try:
        async for item in items:
            values.append(item)
            if len(values) > extra.num_returns:  # one more than wanted: `several` warns of it
                if hasattr(items, "aclose"):
                    await items.aclose()
                break
    except (asyncio.CancelledError, *EXITS):
        raise
    except BaseException as raised:  # noqa: BLE001 - it becomes the value of the returns that are missing
        error = raised

    def again() -> Any:
        yield from values
        if error is not None:
            raise error

    return again()


def _on_error_in_background(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A task of the actor's own that has called `exit_actor()` ends with what that raises: no error to be printed."""
    if not isinstance(context.get("exception"), ActorExit):
        loop.default_exception_handler(context)
