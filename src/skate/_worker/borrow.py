"""References that travel: who has to tell whom before somebody lets go.

The owner of an object must know every process that holds a reference to it, or it would free the object too early. The
rule that makes this work without a distributed collector: whoever hands a reference on keeps the object alive
until the owner knows the receiver.

- In the arguments of a task: the submitter holds the object until the task has ended. With the result the executor
  says which references it still has (`kept`); the order on their channel does the rest. If somebody else owns the
  object, the executor first registers with that owner, and waits for its answer before it sends the result.
- Inside a returned value: the executor makes the receiver a borrower before it sends the result: directly if it is
  itself the owner, otherwise by asking the owner and waiting.
- Inside a fetched value: the owner of the container, if it owns the inner object too, notes the fetching process at
  once. Otherwise the fetching process registers with the inner object's owner, and holds the container until that
  has answered.
- A process that dies holds nothing: the end of its channel is enough. (If it dies between registering a receiver with a
  third party and sending the result, that object stays until the receiver dies too.)

Both sides count registrations. The owner counts when it sends a value with the reference to a process, or is told of
it; the receiver counts when such a value arrives, or when it says `kept` or sends Borrow for itself. A Release names
the count.

Methods are called with the runtime's lock held unless they say otherwise.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from skate._core.ids import node_of
from skate._core.ownership import Entry
from skate._core.task import RefInfo
from skate._object_ref import NO_PROCESS
from skate._serialize.failures import failure_of
from skate._wire.messages import Borrow, Borrowed, Fetch, Fetched, Release
from skate._worker.peers import Peer
from skate._worker.values import unknown
from skate.exceptions import ObjectFetchTimedOutError, ObjectLostError, OwnerDiedError

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime

#: Refusals that are remembered; who asks for one does so at once.
REFUSED_MAX = 100
#: What an owner had goes with it, and whoever asks for that may hear so a moment before they hear of its death.
DEATH_HEARD_S = 1.0


class Registration(NamedTuple):
    """A borrower that its object's owner was told of, and has not answered for."""

    id: bytes
    owner: bytes
    #: The borrower is this process.
    own: bool
    #: Holds the object until then.
    container: bytes | None


class Borrowing:
    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._table = runtime.table
        #: Borrowed objects whose value was asked for.
        self._fetching: set[bytes] = set()
        #: Those whose owner could not be reached for too long: errors, until its answer comes after all.
        self._timed_out: set[bytes] = set()
        self._requests = 0
        #: Registrations that are not waited for any longer, for the same reason.
        self._late: set[int] = set()
        self._unanswered: dict[int, Registration] = {}
        #: The last of them for objects that their owner did not know any more.
        self._refused: deque[int] = deque(maxlen=REFUSED_MAX)

    # -- values of borrowed objects ----------------------------------------------------------------------

    def fetch(self, id: bytes, entry: Entry) -> None:
        """Ask the owner for the value, once. It arrives in the entry."""
        if id not in self._fetching:
            self._fetching.add(id)
            self._runtime.peers.get(entry.owner).send(Fetch([id]))

    def on_fetch(self, peer: Peer, message: Fetch) -> None:
        for id in message.ids:
            entry = self._table.entries.get(id)
            if entry is None:
                peer.send(Fetched(id, None))
            elif entry.value is not None:
                self._send_value(peer, id, entry)
            else:

                def reply(id: bytes, entry: Entry, peer: Peer = peer) -> None:
                    if peer.gone is None:
                        self._send_value(peer, id, entry)

                self._table.when_resolved(entry, reply)

    def _send_value(self, peer: Peer, id: bytes, entry: Entry) -> None:
        contained = self.describe(entry.contained or ())
        for ref in contained:
            if ref.owner == self._runtime.process_id:
                self._table.add_borrower(ref.id, peer.process_id)
        peer.send(Fetched(id, entry.value, contained))

    def describe(self, ids: Sequence[bytes]) -> list[RefInfo]:
        entries = self._table.entries
        return [RefInfo(id, entries[id].owner or self._runtime.process_id) for id in ids]

    def on_fetched(self, peer: Peer, message: Fetched) -> None:
        id = message.id
        self._fetching.discard(id)
        entry = self._table.entries.get(id)
        self._forget_time_out(id, entry)
        if entry is None or entry.value is not None:
            self.decline([ref for ref in message.contained if ref.owner == peer.process_id])
            return
        if message.value is None:
            self._table.resolve(id, entry, failure_of(ObjectLostError(object_id=id.hex())))
            return
        me = self._runtime.process_id
        held = self.hold_contained(message.contained, registered_by=peer.process_id)
        for ref in message.contained:
            if ref.owner not in (peer.process_id, me):
                self._table.hold(id)
                self.register(ref.id, ref.owner, container=id)
        self._table.resolve(id, entry, message.value, held)

    def loss_of(self, id: bytes, owner: bytes) -> ObjectLostError:
        """Why the value of a stored object is gone, as far as that is known. Waits: not with the lock held."""
        runtime = self._runtime
        if owner == runtime.process_id:
            return ObjectLostError(object_id=id.hex())
        with runtime.lock:
            peer = runtime.peers.get(owner)
        runtime.loop.wait(lambda: peer.gone is not None, time.monotonic() + DEATH_HEARD_S)
        if peer.gone is None:
            return ObjectLostError(object_id=id.hex())
        return OwnerDiedError(object_id=id.hex(), owner_pid=peer.gone.pid)

    # -- registering --------------------------------------------------------------------------------------------

    def hold_contained(self, refs: Sequence[RefInfo], registered_by: bytes | None = None) -> list[bytes] | None:
        """Hold everything inside a value that has arrived; the value's entry lets go when it is freed.

        The sender registered us with the owner of each reference; with `registered_by`, only of those that it owns.
        """
        if not refs:
            return None
        for ref in refs:
            if ref.owner == self._runtime.process_id:
                self._table.hold(ref.id)
            else:
                entry = self._table.hold(ref.id, ref.owner)
                if registered_by is None or ref.owner == registered_by:
                    entry.registered += 1
        return [ref.id for ref in refs]

    def decline(self, refs: Sequence[RefInfo]) -> None:
        """A value came that nobody wants any more, and we were registered for the references inside it."""
        for ref in refs:
            if ref.owner == self._runtime.process_id:
                continue
            entry = self._table.entries.get(ref.id)
            if entry is not None:
                entry.registered += 1
            else:
                self._runtime.peers.get(ref.owner).send(Release([(ref.id, 1)]))

    def register(self, id: bytes, owner: bytes, *, borrower: bytes = b"", container: bytes | None = None) -> int:
        """Tell an owner that `borrower` (this process by default) holds a reference; the number of the request."""
        if not borrower:
            entry = self._table.entries.get(id)
            if entry is not None:
                entry.registered += 1
        self._requests += 1
        self._unanswered[self._requests] = Registration(id, owner, own=not borrower, container=container)
        self._runtime.peers.get(owner).send(Borrow(self._requests, id, borrower or self._runtime.process_id))
        return self._requests

    def answered(self, request: int) -> bool:
        return request not in self._unanswered or request in self._late

    def on_borrow(self, peer: Peer, message: Borrow) -> None:
        known = self._table.add_borrower(message.id, message.borrower)
        # The borrower's death must be noticed even if it never speaks to us.
        self._runtime.peers.get(message.borrower)
        peer.send(Borrowed(message.request, not known))

    def on_borrowed(self, message: Borrowed) -> None:
        if message.refused:
            self._refused.append(message.request)
            registration = self._unanswered[message.request]
            entry = self._table.entries.get(registration.id)
            if registration.own and entry is not None:
                # The owner did not count it. It may know the object by the time that we let go: an actor has its name a
                # moment before its owner has an entry for it.
                entry.registered -= 1
        self._answer(message.request)

    def was_refused(self, request: int) -> bool:
        """Whether the owner did not know an object any more; of the last registrations only."""
        return request in self._refused

    def _answer(self, request: int) -> None:
        self._late.discard(request)
        container = self._unanswered.pop(request).container
        if container is not None:
            self._table.unhold((container,))

    def on_release(self, peer: Peer, message: Release) -> None:
        for id, times in message.registrations:
            self._table.remove_borrower(id, peer.process_id, times)

    def release(self, freed: list[tuple[bytes, Entry]]) -> None:
        """Nothing here refers to these borrowed objects any more."""
        by_owner: defaultdict[bytes, list[tuple[bytes, int]]] = defaultdict(list)
        for id, entry in freed:
            self._fetching.discard(id)
            self._timed_out.discard(id)
            if entry.registered:
                by_owner[entry.owner].append((id, entry.registered))
        for owner, registrations in by_owner.items():
            self._runtime.peers.get(owner).send(Release(registrations))

    # -- the executor's duties before a result leaves ---------------------------------------------------------------

    def settle_result(
        self, receiver: bytes, arguments: Sequence[RefInfo], returned: Sequence[RefInfo]
    ) -> tuple[list[bytes], list[int]]:
        """What the result must say is `kept`, and the registrations to wait for before it is sent."""
        me = self._runtime.process_id
        entries = self._table.entries
        kept: list[bytes] = []
        requests: list[int] = []
        for ref in arguments:
            if ref.id in entries and ref.owner != me:
                if ref.owner == receiver:
                    entries[ref.id].registered += 1
                    kept.append(ref.id)
                else:
                    requests.append(self.register(ref.id, ref.owner))
        for ref in returned:
            if ref.owner == me:
                self._table.add_borrower(ref.id, receiver)
            elif ref.owner != receiver:
                requests.append(self.register(ref.id, ref.owner, borrower=receiver))
        return kept, requests

    # -- death --------------------------------------------------------------------------------------------------------

    def on_peer_dead(self, peer: Peer) -> None:
        for id in self._table.forget_process(peer.process_id):
            self._fetching.discard(id)
            entry = self._table.entries[id]
            self._forget_time_out(id, entry)
            if entry.value is None:
                lost: Exception = OwnerDiedError(object_id=id.hex(), owner_pid=peer.pid)
                if peer.process_id == NO_PROCESS:
                    lost = unknown(id)
                self._table.resolve(id, entry, failure_of(lost))
        # Nobody will answer; what waited for the answers goes on.
        for request in [number for number, asked in self._unanswered.items() if asked.owner == peer.process_id]:
            self._answer(request)

    def on_unreachable(self, node: int, reason: str) -> None:
        """Owners on that node could not be reached for too long: waits for their values end with an error.

        Their answers may still come, and then count.
        """
        for id in list(self._fetching):
            entry = self._table.entries.get(id)
            if entry is not None and entry.value is None and node_of(entry.owner) == node:
                self._timed_out.add(id)
                error = ObjectFetchTimedOutError(object_id=id.hex(), reason=reason)
                self._table.resolve(id, entry, failure_of(error))
        self._late.update(number for number, asked in self._unanswered.items() if node_of(asked.owner) == node)

    def _forget_time_out(self, id: bytes, entry: Entry | None) -> None:
        """The owner, or its death, was heard of after all: the error of the time in between is outdated."""
        if id in self._timed_out:
            self._timed_out.discard(id)
            if entry is not None:
                entry.value = None

    def statistics(self) -> dict[str, Any]:
        return {"fetching": len(self._fetching), "registrations": len(self._unanswered)}
