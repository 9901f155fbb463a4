"""What becomes of a task: its values, another attempt, or an error.

    Results, crashes, cancellations ──▶ Outcomes ──▶ the object table: value or failure of each return
                                            └──▶ the call it belongs to: sent again

Owns:      how often a task was tried, and what attempts that came to nothing may have left in shared memory.
Knows not: leases, queues, actors. Every method is called with the runtime's lock held, and none blocks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skate._core.ids import node_of, place_of, return_id
from skate._core.ownership import Entry, Pending
from skate._core.task import Failure, RefInfo, Result, Task
from skate._serialize.failures import error_of, failure_of
from skate._worker.peers import Peer
from skate.exceptions import TaskCancelledError, TaskError

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime


class Outcomes:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._table = runtime.table
        #: Tasks that have ended.
        self.finished = 0

    def take_results(self, peer: Peer, inflight: dict[bytes, Task], results: list[Result]) -> None:
        """Results of tasks, or of calls to an actor."""
        entries = self._table.entries
        resolve = self._table.resolve
        before = len(inflight)
        for result in results:
            id = result.id
            if inflight.pop(id, None) is None:
                self._decline(result)
                continue
            entry = entries[id]
            value = result.value
            if result.extra is None and entry.pending is None and type(value) is not Failure:
                entry.task = entry.call = None
                if entry.waiters is None:
                    entry.value = value
                else:
                    resolve(id, entry, value)
                entry.holds -= 1
                if not entry.refs and not entry.holds:
                    self._table._free(id, entry)
            else:
                self._finish(peer, result, entry)
        self.finished += before - len(inflight)

    def _decline(self, result: Result) -> None:
        """A result of a task that was given up meanwhile."""
        values = [result.value]
        if result.extra is not None:
            values += result.extra.more
            for refs in result.extra.contained:
                self._runtime.borrowing.decline(refs)
        stored = [(bytes(return_id(result.id, i)), value) for i, value in enumerate(values) if isinstance(value, int)]
        if stored:
            self._runtime.store.free(stored)

    def decline_given_up(self, peer: Peer, results: list[Result]) -> None:
        """Results of a worker that could not be reached for too long.

        What these attempts stored is freed by `note_left`. Another attempt may have stored its values in the same place
        since, so they are not freed here.
        """
        for result in results:
            if result.extra is not None:
                for kept in result.extra.kept:
                    self._table.add_borrower(kept, peer.process_id)
                for refs in result.extra.contained:
                    self._runtime.borrowing.decline(refs)

    def _finish(self, peer: Peer, result: Result, entry: Entry) -> None:
        """A result that is more than one plain value."""
        extra = result.extra
        pending = entry.pending
        id = result.id
        if extra is not None:
            for kept in extra.kept:
                self._table.add_borrower(kept, peer.process_id)
        if extra is not None and extra.left:
            self.note_left(entry, node_of(peer.process_id), extra.left)
        if extra is not None and extra.cancelled:
            self._decline(result)
            self.fail(id, entry, TaskCancelledError(task_name=entry.call.name, was_running=extra.began))
            return
        if type(result.value) is Failure:
            if self._may_retry(entry, result.value, began=extra is None or extra.began):
                self._retry(id, entry)
                return
            count = max(1, entry.call.num_returns)
            inside = extra.contained[0] if extra is not None and extra.contained else []
            self._settle_values(id, entry, [result.value] * count, [inside])
            return
        if self._runtime.in_cluster and entry.task is not None and entry.task.extra is not None:
            self._runtime.copies.learn(entry.task.extra.reads, node_of(peer.process_id))
        contained = extra.contained if extra is not None else []
        values = [result.value, *(extra.more if extra is not None else ())]
        if type(values[-1]) is Failure:
            self._finish_in_part(peer, id, entry, values, contained)
            return
        if pending is not None and pending.stream is not None:
            pending.stream.on_end(extra.items if extra is not None else 0)
        self._settle_values(id, entry, values, contained, node_of(peer.process_id))

    def _finish_in_part(
        self, peer: Peer, id: bytes, entry: Entry, values: list[Any], contained: list[list[RefInfo]]
    ) -> None:
        """A generator with num_returns=n raised: the last of the values is the error, and the returns from there on."""
        node, made, wanted = node_of(peer.process_id), len(values) - 1, entry.call.num_returns
        if self._may_retry(entry, values[-1], began=True):
            self.note_left(entry, node, made)
            for refs in contained:
                self._runtime.borrowing.decline(refs)
            self._retry(id, entry)
            return
        if entry.pending is not None and node in entry.pending.left:
            # An earlier attempt may have come further, on the same node.
            self._runtime.store.free([(return_id(id, index), place_of(node, 0)) for index in range(made, wanted)])
        self._settle_values(id, entry, values + values[-1:] * (wanted - len(values)), contained, node)

    def _settle_values(
        self, id: bytes, entry: Entry, values: list[Any], contained: list[list[RefInfo]], made_on: int | None = None
    ) -> None:
        """All returns of a task are there, made on that node; or are one failure each."""
        table = self._table
        pending, call = entry.pending, entry.call
        entry.task = entry.call = entry.pending = None
        failed = type(values[0]) is Failure
        if pending is not None and pending.stream is not None and failed:
            pending.stream.on_failure(values[0])
        if call.generator == "dynamic" and not failed:
            for index in range(1, len(values)):
                table.entries[return_id(id, index)] = Entry(0, 1)
        for index, value in enumerate(values):
            item = id if index == 0 else return_id(id, index)
            target = entry if index == 0 else table.entries.get(item)
            if target is None:
                continue
            inside = self._runtime.borrowing.hold_contained(contained[index]) if index < len(contained) else None
            table.resolve(item, target, value, inside)
            if call.holds_entry:
                table.unhold((item,))
        if pending is not None and pending.holds:
            table.unhold(pending.holds)
        if pending is not None and pending.left:
            self._drop_left(id, pending, made_on)

    def note_left(self, entry: Entry, node: int, count: int | None = None) -> None:
        """An attempt has come to nothing: so many returns may have been stored by then, or nobody knows how many.

        Not so with streams: each item is told of as soon as it is stored.
        """
        if entry.call.generator == "streaming":
            return
        if entry.pending is None:
            entry.pending = Pending()
        before = entry.pending.left.get(node, 0)
        entry.pending.left[node] = None if count is None or before is None else max(count, before)

    def _drop_left(self, id: bytes, pending: Pending, made_on: int | None) -> None:
        """What the last attempt has stored, if it was successful, took the place of what earlier ones had there."""
        for node, count in pending.left.items():
            if node != made_on:
                self._runtime.store.free_returns(id, count, node)

    def fail(self, id: bytes, entry: Entry, error: BaseException) -> None:
        """The task will not produce a value."""
        self.fail_with(id, entry, failure_of(error, function_name=entry.call.name))

    def fail_with(self, id: bytes, entry: Entry, failure: Failure) -> None:
        self._settle_values(id, entry, [failure] * max(1, entry.call.num_returns), [])

    # -- again ------------------------------------------------------------------------------------------------------

    def _may_retry(self, entry: Entry, failure: Failure, *, began: bool) -> bool:
        """What has not begun, because its arguments could not be brought to its worker, did not raise anything."""
        wanted = entry.call.retry_exceptions
        if (began and not wanted) or (entry.pending is not None and entry.pending.cancelled):
            return False
        if not self.retries_left(entry):
            return False
        if wanted is True or not began:
            return True
        error = error_of(failure)
        # It arrives as a TaskError, which is an Exception whatever the task has raised: that is its cause.
        raised = getattr(error, "cause", None) or error
        return any(isinstance(error if issubclass(cls, TaskError) else raised, cls) for cls in wanted)

    def retries_left(self, entry: Entry) -> bool:
        used = entry.pending.retries if entry.pending is not None else 0
        most: int = entry.call.max_retries
        return most < 0 or used < most

    def _retry(self, id: bytes, entry: Entry) -> None:
        if entry.pending is None:
            entry.pending = Pending()
        entry.pending.retries += 1
        task = entry.task
        assert task is not None
        extra = task.extra or entry.call.new_extra()
        extra.attempt += 1
        stream = entry.pending.stream
        if stream is not None:
            extra.skip = stream.received
        task.extra = extra
        entry.call.again(task)
