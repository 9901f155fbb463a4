"""Messages between processes that are too large: the process that waits for what was in one is told, and nothing hangs.

The sender notices first (TooLarge) and says something smaller instead: an error in the place of a value. A receiver
that is sent a frame beyond its limit all the same skips it (Refusal), and acts as if the error had come.

Every function is called with the runtime's lock held, or from the thread that sends a result.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from skate._core.task import Failure, Result, ResultExtra
from skate._serialize.failures import failure_of
from skate._wire import messages as m
from skate._wire.channel import TooLarge
from skate._worker.peers import Peer
from skate.exceptions import MessageTooLargeError

if TYPE_CHECKING:
    from skate._worker.runtime import Runtime

#: References that a result says are kept, when the rest of it is too large to be sent.
KEPT_MAX = 1000
REFERENCES = "it holds too many references: pass or return fewer, or put them into a value of their own."

KINDS = {kind.__struct_config__.tag: kind for kind in (m.Tasks, m.Define, m.Results, m.Fetched, m.Yielded)}


def _failure(what: str, size: int, limit: int) -> Failure:
    return failure_of(MessageTooLargeError(what=what, size_bytes=size, limit_bytes=limit, next=REFERENCES))


def handle(runtime: Runtime, peer: Peer, what: TooLarge | m.Refusal | m.Refused) -> None:
    if isinstance(what, TooLarge):
        on_unsent(runtime, peer, what)
    elif isinstance(what, m.Refusal):
        on_refusal(runtime, peer, what)
    else:
        on_refused(runtime, peer, what)


# -- what this process could not send ----------------------------------------------------------------------------------


def on_unsent(runtime: Runtime, peer: Peer, error: TooLarge) -> None:
    for message, size in error.unsent:
        if isinstance(message, m.Results):
            for result in message.results:
                peer.send(m.Results([_failed(result, _failure("the result of the task", size, error.limit))]))
        elif isinstance(message, m.Fetched):
            for ref in message.contained:  # the peer was counted as a borrower of those of ours, and will not be one
                if ref.owner == runtime.process_id:
                    runtime.table.remove_borrower(ref.id, peer.process_id)
            peer.send(m.Fetched(message.id, _failure("the value", size, error.limit)))
        elif isinstance(message, m.Yielded):
            peer.send(m.Yielded(message.id, _failure("the item", size, error.limit)))
        elif isinstance(message, m.Answer):
            peer.send(m.Answer(message.request, None, str(error)))
        elif isinstance(message, m.Tasks):
            _fail_later(runtime, peer, [task.id for task in message.tasks], size, error.limit)
        else:
            raise error  # nothing else is without a bound


def _failed(result: Result, failure: Failure) -> Result:
    """The receiver stays registered for the references inside the result until it ends: too many to be named again."""
    extra = result.extra or ResultExtra()
    kept = extra.kept if len(extra.kept) <= KEPT_MAX else []
    return Result(result.id, failure, ResultExtra(kept=kept, cancelled=extra.cancelled, left=1 + len(extra.more)))


def _fail_later(runtime: Runtime, peer: Peer, ids: list[bytes], size: int, limit: int) -> None:
    """As if the executor had answered. Not at once: the sender is in the middle of its queues."""

    def fail() -> None:
        _fail_calls(runtime, peer, ids, size, limit)
        runtime._housekeeping()
        runtime.loop.notify()

    runtime.loop.call_at(time.monotonic(), fail)


def _fail_calls(runtime: Runtime, peer: Peer, ids: list[bytes], size: int, limit: int) -> None:
    _settle(runtime, peer, ids, _failure("the call", size, limit))
    runtime.actors.on_taken(peer)  # an actor that runs several calls at a time may be sent the next


def _settle(runtime: Runtime, peer: Peer, ids: list[bytes], failure: Failure) -> None:
    runtime._on_results(peer, m.Results([Result(id, failure) for id in ids]))


# -- what this process did not take ------------------------------------------------------------------------------------


def on_refusal(runtime: Runtime, peer: Peer, refusal: m.Refusal) -> None:
    """A frame of the peer was too large, and is skipped. No process waits for a message that is not named here."""
    kind = KINDS.get(refusal.tag)
    id, size, limit = refusal.id, refusal.size, refusal.limit
    if kind is m.Tasks:
        peer.send(m.Refused(id, refusal.count, size, limit))
    elif kind is m.Define and runtime.executor is not None:
        runtime.executor.functions.refuse(id, refusal.reason)
    elif kind is m.Results:
        _settle(runtime, peer, _batch(peer, id, refusal.count), _failure("the result of the task", size, limit))
    elif kind is m.Fetched:
        runtime.borrowing.on_fetched(peer, m.Fetched(id, _failure("the value", size, limit)))
    elif kind is m.Yielded:
        runtime.streams.on_yielded(peer, m.Yielded(id, _failure("the item", size, limit)))


def on_refused(runtime: Runtime, peer: Peer, message: m.Refused) -> None:
    """The peer did not take tasks or calls of ours."""
    _fail_calls(runtime, peer, _batch(peer, message.id, message.count), message.size, message.limit)


def _batch(peer: Peer, first: bytes, count: int) -> list[bytes]:
    """That task, and those that were sent right behind it."""
    sent: dict[bytes, Any] = (peer.link or peer.lease).inflight if peer.link or peer.lease else {}
    ids = list(sent)
    return ids[ids.index(first) :][:count] if first in sent else []
