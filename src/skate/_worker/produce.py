"""The producer's side of generators: a task or a method that yields. The consumer's side is `streams.py`."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skate._core.ids import return_id
from skate._core.task import Extra, RefInfo, Result, ResultExtra, Task
from skate._serialize.values import NONE
from skate._wire import messages as m
from skate._worker.actor_process import EXITS
from skate._worker.peers import Peer
from skate.exceptions import TaskInterrupt

if TYPE_CHECKING:
    from skate._worker.execute import Executor
    from skate._worker.runtime import Runtime


log = logging.getLogger("skate")


class WrongReturn(ValueError):
    """What a task has returned is not what its num_returns promises."""


class Producer:
    def __init__(self, runtime: Runtime, executor: Executor) -> None:
        self._runtime = runtime
        self._executor = executor
        #: Of each generator that runs: how many items its consumer has taken.
        self._consumed: dict[bytes, int] = {}
        self._closed: set[bytes] = set()
        #: Functions whose generators made more than num_returns says, and were reported.
        self._reported: set[tuple[bytes, bool]] = set()
        #: Called, by whoever reads, when the consumer of a generator took something or is gone.
        self.on_news: Callable[[bytes], None] = lambda id: None

    # -- messages: with the runtime's lock held ------------------------------------------------------------------------

    def on_consumed(self, peer: Peer, message: m.Consumed) -> None:
        if message.id in self._consumed:
            self._consumed[message.id] = message.count
            self.on_news(message.id)

    def close(self, id: bytes) -> bool:
        """Nobody listens; whether that generator runs."""
        if id not in self._consumed:
            return False
        self._closed.add(id)
        self.on_news(id)
        return True

    def check_items(self, value: Any, extra: Extra) -> None:
        if not hasattr(type(value), "__iter__") and not hasattr(type(value), "__getitem__"):
            raise WrongReturn(
                f'{self._executor.task_name()} has num_returns="{extra.generator}", so it must yield its values, or '
                f"return a generator or a list of them; it returned an object of type {type(value).__name__}. For one "
                "value leave num_returns out."
            )

    # -- streaming -----------------------------------------------------------------------------------------------------

    def begin(self, id: bytes, extra: Extra) -> None:
        self._consumed[id] = extra.skip

    def end(self, id: bytes) -> None:
        del self._consumed[id]
        self._closed.discard(id)

    def is_closed(self, id: bytes) -> bool:
        return id in self._closed

    def send_item(self, peer: Peer, task: Task, extra: Extra, index: int, value: Any) -> None:
        if index <= extra.skip:
            return  # an earlier attempt delivered it
        item = return_id(task.id, index)
        data, refs = self._executor.store_value(peer, item, value)
        inside = [RefInfo(ref._id, ref._owner) for ref in refs]
        if inside:
            self._executor.settle(peer, [], inside)
        peer.send(m.Yielded(item, data, inside))

    def may_yield(self, id: bytes, made: int, ahead: int) -> bool:
        """The consumer has taken enough for another item, or does not want any."""
        return made - self._consumed[id] < ahead or id in self._closed

    def result(self, peer: Peer, task: Task, extra: Extra, items: int) -> Result:
        kept = self._executor.settle(peer, extra.refs, []) if extra.refs else []
        return Result(task.id, NONE, ResultExtra(kept=kept, items=items))

    def stream(self, peer: Peer, task: Task, extra: Extra, generator: Any) -> Result:
        """Send items as they are made, not further ahead of the consumer than allowed."""
        self.check_items(generator, extra)
        id = task.id
        self.begin(id, extra)
        index = 0
        try:
            for value in generator:
                index += 1
                self.send_item(peer, task, extra, index, value)
                del value
                if not self.may_yield(id, index, extra.ahead):
                    self._runtime.block_until(functools.partial(self.may_yield, id, index, extra.ahead), None)
                if id in self._closed:
                    if hasattr(generator, "close"):  # a list has none
                        generator.close()
                    break
        finally:
            self.end(id)
        return self.result(peer, task, extra, index)

    # -- num_returns=n -------------------------------------------------------------------------------------------------

    def several(self, peer: Peer, task: Task, extra: Extra, generator: Any) -> Result:
        """Each value that the generator yields is one of the n returns. If the generator raises, or ends too early, the
        values so far are kept, and the error is what the other returns are. What it does beyond n values is reported,
        and changes nothing."""
        executor, wanted = self._executor, extra.num_returns
        exits = EXITS if executor.actor is not None else ()
        stored: list[Any] = []
        contained: list[list[RefInfo]] = []
        try:
            for value in generator:
                index = len(stored)
                if index == wanted:
                    self._report(task, f"yielded more than {wanted} values; the first {wanted} are its returns")
                    generator.close()
                    break
                executor.storing[task.id] = index + 1
                data, refs = executor.store_value(peer, return_id(task.id, index) if index else task.id, value)
                del value
                stored.append(data)
                contained.append([RefInfo(ref._id, ref._owner) for ref in refs])
                if refs:
                    executor.hold_for_result(task.id, refs)
            if len(stored) < wanted:
                raise WrongReturn(
                    f"{executor.task_name()} has num_returns={wanted}, so it must yield that many values; it yielded "
                    f"{len(stored)}."
                )
        except (TaskInterrupt, *exits):
            raise
        except BaseException as error:
            if not stored:
                raise
            if len(stored) < wanted:
                failure, inside = executor.failure_of(task, error)
                stored.append(failure)
                contained.append(inside)
            else:
                self._report(task, f"raised after its {wanted} values, which are its returns", error)
        returned = [ref for refs in contained for ref in refs]
        kept = executor.settle(peer, extra.refs, returned) if extra.refs or returned else []
        executor.storing.pop(task.id, None)
        return Result(
            task.id, stored[0], ResultExtra(more=stored[1:], contained=contained if returned else [], kept=kept)
        )

    def _report(self, task: Task, what: str, error: BaseException | None = None) -> None:
        """Once for each function and each of the two reasons: a loop over it would fill the driver's terminal."""
        if (report := (task.fn, error is not None)) not in self._reported:
            self._reported.add(report)
            wanted = task.extra.num_returns if task.extra is not None else 1
            log.warning(
                "%s, a generator with num_returns=%d, %s.", self._executor.task_name(), wanted, what, exc_info=error
            )

    # -- num_returns="dynamic" -----------------------------------------------------------------------------------------

    def dynamic(self, peer: Peer, task: Task, extra: Extra, generator: Any) -> Result:
        """All items become returns of the task; its value is a generator of references to them."""
        from skate._streaming import DynamicObjectRefGenerator

        self.check_items(generator, extra)
        executor = self._executor
        stored: list[Any] = []
        contained: list[list[RefInfo]] = []
        inline = 0
        for index, value in enumerate(generator, start=1):
            executor.storing[task.id] = index + 1
            data, refs = executor.store_value(peer, return_id(task.id, index), value, inline)
            inline += len(data) if type(data) is bytes else 0
            stored.append(data)
            contained.append([RefInfo(ref._id, ref._owner) for ref in refs])
            if refs:
                executor.hold_for_result(task.id, refs)
        ids = [return_id(task.id, index + 1) for index in range(len(stored))]
        first = DynamicObjectRefGenerator.serialized(ids, peer.process_id)
        contained.insert(0, [RefInfo(id, peer.process_id) for id in ids])
        returned = [ref for refs in contained[1:] for ref in refs]
        kept = executor.settle(peer, extra.refs, returned) if extra.refs or returned else []
        executor.storing.pop(task.id, None)
        return Result(task.id, first, ResultExtra(more=stored, contained=contained, kept=kept))
