"""Streaming generators: the consumer's side of a task that yields.

Items arrive while the task runs, each an object of its own (return number 1, 2, …); return 0 is the end of the stream.
The producer may be a bounded number of items ahead of what the consumer has taken, so a fast producer cannot
fill the memory. A consumer that drops its generator stops the producer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skate._core.ids import return_id
from skate._core.ownership import Entry
from skate._core.task import Failure
from skate._object_ref import dropped_streams
from skate._wire.messages import CloseStream, Consumed, Yielded
from skate._worker.peers import Peer

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime


class Stream:
    """What the owner knows of one running generator. Methods are called with the runtime's lock held."""

    __slots__ = ("_runtime", "closed", "failure", "id", "received", "taken", "total", "waiters")

    def __init__(self, runtime: Runtime, id: bytes) -> None:
        self._runtime = runtime
        self.id = id
        #: Items that have arrived, and items that the consumer took.
        self.received = 0
        self.taken = 0
        #: Items in all, once the generator has ended.
        self.total: int | None = None
        self.failure: Failure | None = None
        #: The consumer is gone: there is nobody who would take a failure that still comes.
        self.closed = False
        #: Called once when an item or the end arrives: for consumers in event loops.
        self.waiters: list[Callable[[], None]] = []

    def on_item(self, peer: Peer, message: Yielded) -> None:
        index = int.from_bytes(message.id[16:], "big")
        if index != self.received + 1:  # an earlier attempt of the task delivered it
            self._runtime.borrowing.decline(message.contained)
            return
        self.received = index
        table = self._runtime.table
        entry = table.entries[message.id] = Entry(0, 1)  # held by the stream until the consumer takes it
        table.resolve(message.id, entry, message.value, self._runtime.borrowing.hold_contained(message.contained))
        self._wake()

    def on_end(self, items: int) -> None:
        self.total = items
        self._wake()

    def on_failure(self, failure: Failure) -> None:
        """The consumer gets the items that came before, then a reference that raises, then the end."""
        if self.failure is not None or self.closed:
            return
        self.failure = failure
        self.received += 1
        self.total = self.received
        id = return_id(self.id, self.received)
        table = self._runtime.table
        entry = table.entries[id] = Entry(0, 1)
        table.resolve(id, entry, failure)
        self._wake()

    def _wake(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter()

    @property
    def has_news(self) -> bool:
        """An item can be taken, or there is none to come."""
        return self.taken < self.received or self.total is not None

    def take(self) -> bytes | None:
        """The id of the next item, with one reference more; None at the end. Only when `has_news`."""
        if self.taken >= self.received:
            return None
        self.taken += 1
        id = return_id(self.id, self.taken)
        entry = self._runtime.table.entries[id]
        entry.refs += 1
        entry.holds -= 1
        if self.total is None:
            peer = self._producer()
            if peer is not None:
                peer.send(Consumed(self.id, self.taken))
        return id

    def _producer(self) -> Peer | None:
        entry = self._runtime.table.entries.get(self.id)
        if entry is None or entry.task is None:
            return None
        where, lease = self._runtime.submitter.whereabouts(self.id, entry)
        if where == "actor":
            return self._runtime.actors.peer_of(lease) if self.id in lease.inflight else None
        peer: Peer | None = lease.peer if where == "sent" else None
        return peer

    def close(self) -> None:
        """Nobody will take more: free what was not taken, and stop the producer."""
        self.closed = True
        if self.total is None:
            peer = self._producer()
            if peer is not None:
                peer.send(CloseStream(self.id))
            else:
                self._runtime.submitter.cancel(self.id, force=False, recursive=False)
        waiting = [return_id(self.id, index) for index in range(self.taken + 1, self.received + 1)]
        self.taken = self.received
        self._runtime.table.unhold(waiting)


class Streams:
    """All streams that this process consumes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._streams: dict[bytes, Stream] = {}

    def open(self, id: bytes) -> Stream:
        stream = self._streams[id] = Stream(self._runtime, id)
        return stream

    def get(self, id: bytes) -> Stream | None:
        return self._streams.get(id)

    def on_yielded(self, peer: Peer, message: Yielded) -> None:
        stream = self._streams.get(message.id[:16] + b"\0\0\0\0")
        if stream is not None and (stream.total is None or message.id in self._runtime.table.entries):
            stream.on_item(peer, message)
        else:
            # The consumer is gone, or the task was given up, which ended the stream. What the producer stored meanwhile
            # has no owner but us.
            self._runtime.borrowing.decline(message.contained)
            if isinstance(message.value, int):
                self._runtime.store.free([(message.id, message.value)])

    def drain(self) -> None:
        """Close the streams whose generators were dropped."""
        while dropped_streams:
            stream = self._streams.pop(dropped_streams.popleft(), None)
            if stream is not None:
                stream.close()
                self._runtime.table.drop((stream.id,))

    def statistics(self) -> dict[str, Any]:
        return {"streams": len(self._streams)}
