"""What the tasks that run in this process wait for, and the answer to an owner that asks (AskTask).

A task notes its wait and forgets it (`Runtime.waits`, by the id of the task). Of several threads of one task the last
one counts. Only the daemon of this node knows what is on its way and which nodes it cannot reach, so an answer takes a
question to the daemon: a thread of its own asks it, because the thread that reads messages must not wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from skate._wire.messages import Answer
from skate._worker.peers import Peer

if TYPE_CHECKING:
    from skate._object_ref import ObjectRef
    from skate._worker.runtime import Runtime


class Wait(NamedTuple):
    """Either for values that exist and are not in the memory of this node, or for one that is not made yet."""

    #: Ids and places.
    stored: Sequence[tuple[bytes, int]] = ()
    missing: Callable[[], ObjectRef[Any] | None] = lambda: None
    #: The values are arguments of the task, which has not begun.
    are_arguments: bool = False


def answer(runtime: Runtime, peer: Peer, request: int, state: dict[str, Any], task: bytes) -> None:
    """Tell the owner of a task in which state the task is. With the lock held."""
    wait = runtime.waits.get(task)
    if wait is None or not runtime.in_cluster:
        peer.send(Answer(request, state))
        return

    def tell() -> None:
        from skate._worker.why import explain_wait

        waits, cut = explain_wait(runtime, wait)
        state.update(waits=[*waits, *cut], is_cut=bool(cut), are_arguments=wait.are_arguments)
        with runtime.lock:
            peer.send(Answer(request, state))

    threading.Thread(target=tell, name="skate-why", daemon=True).start()
