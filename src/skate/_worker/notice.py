"""The line that a `get` prints when it has waited long, and its task is not what takes the time.

Imported when a wait has lasted until its first look (`_core/patience.py`, which decides whether to tell): what is here
costs a `get` that comes sooner nothing.

Called by the thread that waits, without the lock. A look asks the daemon of this node and, for a borrowed object, its
owner; each answers within ANSWER_TIMEOUT_S, or is left out.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from skate._core import actors as core
from skate._core import pulls
from skate._core.environment import NOTICE_VARIABLE
from skate._core.ids import FIRST_RETURN, node_of
from skate._core.patience import CONTROL, NODE, NOTHING, RESOURCES, Notices, Patience, Sight
from skate._wire.messages import AskRef
from skate._worker.why import (
    ANSWER_TIMEOUT_S,
    LATE_ANSWER_TIMEOUT_S,
    ask_worker,
    cuts,
    explain,
    explain_stored,
    is_behind_cut,
)

if TYPE_CHECKING:
    from skate._object_ref import ObjectRef
    from skate._worker.actors import Link
    from skate._worker.peers import Peer
    from skate._worker.runtime import Runtime

#: Arguments of arguments are followed this far.
DEPTH_MAX = 100

#: The lines of this process; guarded by the runtime's lock.
_notices = Notices()


class Reference:
    """A reference by its id alone: `explain` wants no more of it, and an ObjectRef would be counted."""

    __slots__ = ("_id",)

    def __init__(self, id: bytes) -> None:
        self._id = id


def wait_visibly(
    runtime: Runtime,
    wait: Callable[[float | None], bool],
    begin: float,
    deadline: float | None,
    look: Callable[[], Sight],
    tell: Callable[[Sight], str],
) -> bool:
    """Go on with a wait that began at `begin`, and say in one line what it is for if it is stuck.

    wait: waits until that time; whether what was waited for is there. look, tell: what the wait is for, and in words.
    """
    patience = Patience(begin, runtime.notice_s)
    while not (runtime.closed or runtime.broken):
        sight = look()
        if patience.looked(sight) and _may_tell(runtime):
            _print(time.monotonic() - begin, tell(sight))
            break
        if deadline is not None and deadline <= patience.next_look:
            break
        if wait(patience.next_look):
            return True
    return wait(deadline)


def _may_tell(runtime: Runtime) -> bool:
    with runtime.lock:
        return _notices.may_tell(time.monotonic())


def _print(waited_s: float, text: str) -> None:
    said = _sentence(" ".join(text.split()))
    line = f"skate: get() has waited for {waited_s:.0f} s: {said} ({NOTICE_VARIABLE}=0 switches such lines off.)\n"
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        pass  # it is closed, or there is none


def _sentence(text: str) -> str:
    """Reasons are sentences or parts of one; with one full stop at the end."""
    return f"{text.rstrip('.')}."


# -- values that no task has made yet ----------------------------------------------------------------------------------


def look_at(runtime: Runtime, id: bytes) -> Sight:
    """What the wait for a value is for."""
    with runtime.lock:
        cause, id, subject = _find(runtime, id)
    if cause == "borrowed":
        owner = subject
        if _is_cut(runtime, owner.process_id):
            return Sight(NODE, id)
        answer = runtime.ask(
            owner.send, lambda request: AskRef(request, id, looks=True), time.monotonic() + ANSWER_TIMEOUT_S
        )
        return Sight(*answer.body) if answer is not None else Sight(NOTHING, id)
    if cause == "sent":
        return Sight(NODE if _is_held_up(runtime, subject.peer, id) else NOTHING, id)
    if cause == "actor":
        return _look_at_actor(runtime, id, subject)
    return Sight(cause, id, subject)


def look_locally(runtime: Runtime, id: bytes) -> Sight:
    """The same for another process that asks, without asking further. With the lock held."""
    cause, id, subject = _find(runtime, id)
    return Sight(cause, id, subject) if cause == RESOURCES else Sight(NOTHING, id)


def tell_of(runtime: Runtime, asked: bytes, sight: Sight) -> str:
    """What the wait for the object `asked` is for, in words."""
    text = explain(runtime, cast("ObjectRef[Any]", Reference(asked)))
    is_told = sight.cause == NODE and is_behind_cut(runtime, asked)
    if sight.object != asked and sight.object in runtime.table.entries and not is_told:
        text = f"{_sentence(text)} {explain(runtime, cast('ObjectRef[Any]', Reference(sight.object)))}"
    if sight.cause == CONTROL and (silent := runtime.query("silence", time.monotonic() + ANSWER_TIMEOUT_S)):
        where, for_s = f"The control service, at {silent['address']},", f"{silent['silent_s']:.0f} s"
        silence = f"{where} has not answered for {for_s}."
        if "trouble" in silent:
            silence = f"{where} has not been able to write its store for {for_s}. {silent['trouble']}"
        text = f"{_sentence(text)} {silence}"
    return text


def _find(runtime: Runtime, id: bytes) -> tuple[str, bytes, Any]:
    """The object that everything waits for (an argument, if a task waits for it), and where that is. With the lock."""
    entries = runtime.table.entries
    for _ in range(DEPTH_MAX):
        entry = entries.get(id)
        if entry is None or entry.value is not None:
            break
        if entry.owner:
            return "borrowed", id, runtime.peers.get(entry.owner)
        first = id[:16] + FIRST_RETURN
        made_by = entries.get(first)
        if made_by is None or made_by.call is None:
            break
        where, detail = runtime.submitter.whereabouts(first, made_by)
        if where == "queued":
            return RESOURCES, id, detail
        if where == "actor" and detail.state != core.ALIVE:
            creation = entries.get(detail.creation_id)
            if creation is not None and creation.pending is not None and creation.pending.missing:
                where, made_by = "arguments", creation
        if where in ("sent", "actor"):
            return where, id, detail
        task = made_by.task
        if where != "arguments" or task is None or task.extra is None:
            break  # it rests, say, and will be run again by itself
        missing = (arg.id for arg in task.extra.args if arg.value == b"" and _is_missing(runtime, arg.id))
        following = next(missing, None)
        if following is None:
            break
        id = following
    return NOTHING, id, 0


def _is_missing(runtime: Runtime, id: bytes) -> bool:
    entry = runtime.table.entries.get(id)
    return entry is not None and entry.value is None


def _look_at_actor(runtime: Runtime, id: bytes, link: Link) -> Sight:
    if link.state == core.ALIVE:
        with runtime.lock:
            peer = runtime.peers.get(link.process)
        return Sight(NODE if _is_held_up(runtime, peer, id) else NOTHING, id)
    if _control_is_silent(runtime):
        return Sight(CONTROL, id)
    actors = runtime.query("actors", time.monotonic() + ANSWER_TIMEOUT_S)
    if actors is None:
        return Sight(CONTROL, id)
    state = next((actor["state"] for actor in actors if actor["actor_id"] == link.id), "")
    return Sight(RESOURCES if state == core.PENDING else NOTHING, id)


def _is_held_up(runtime: Runtime, peer: Peer, id: bytes) -> bool:
    """Whether the process that a task was sent to, or what that task waits for, is behind a cut."""
    if not runtime.in_cluster:
        return False
    if _is_cut(runtime, peer.process_id):
        return True
    # Not for long: if the value comes meanwhile, its `get` waits for the end of this look.
    state = ask_worker(runtime, peer, id, time.monotonic() + LATE_ANSWER_TIMEOUT_S)
    return state is not None and bool(state.get("is_cut"))


def _is_cut(runtime: Runtime, process_id: bytes) -> bool:
    """Whether that process is on a node that this one cannot reach."""
    return bool(process_id) and node_of(process_id) in cuts(runtime)


def _control_is_silent(runtime: Runtime) -> bool:
    return runtime.in_cluster and bool(runtime.query("silence", time.monotonic() + ANSWER_TIMEOUT_S))


# -- values that are there, and not in the memory of this node ---------------------------------------------------------


def look_at_stored(runtime: Runtime, objects: Sequence[tuple[bytes, int]]) -> Sight:
    """What the wait for values in the store is for: ids and places."""
    coming = runtime.query("pulls", time.monotonic() + ANSWER_TIMEOUT_S)
    for id, _place in objects:
        state, source, _here_bytes = (coming or {}).get(id, ("", b"", 0))
        if state == pulls.RESERVING:
            return Sight(RESOURCES, id)
        if state == pulls.LOCATING and _control_is_silent(runtime):
            return Sight(CONTROL, id)
        if source and node_of(source) in cuts(runtime):
            return Sight(NODE, id)
    return Sight(NOTHING)


def tell_of_stored(runtime: Runtime, objects: Sequence[tuple[bytes, int]], sight: Sight) -> str:
    reasons = explain_stored(runtime, [it for it in objects if it[0] == sight.object])
    return "; ".join(reason.rstrip(".") for reason in reasons)
