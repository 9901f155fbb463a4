"""What a pending reference waits for, in words."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from skate._core import actors as core
from skate._core import pulls
from skate._core.ids import FIRST_RETURN, node_at, node_of, short, size_at
from skate._core.ownership import Entry
from skate._core.placement import Where
from skate._core.policy_memory import format_bytes
from skate._core.resources import GROUP, group_of
from skate._core.task import Failure
from skate._object_ref import NIL, NIL_SAYS
from skate._wire.messages import AskRef, AskTask

if TYPE_CHECKING:
    from skate._object_ref import ObjectRef
    from skate._worker.actors import Link
    from skate._worker.peers import Peer
    from skate._worker.runtime import Runtime
    from skate._worker.waits import Wait

#: A worker whose Python is busy in native code may not answer; nobody should wait long to be told so.
ANSWER_TIMEOUT_S = 2.0
#: A get() that has run out of time has little left for the question why: only its own node is asked, and workers that
#: have to bring arguments from other nodes.
LATE_ANSWER_TIMEOUT_S = 0.5
#: References whose reasons a get() that ran out of time tells.
TOLD_MAX = 3
#: Arguments, and arguments of the tasks that make them, that are looked at.
FOLLOWED_MAX = 100


def explain(runtime: Runtime, ref: ObjectRef[Any]) -> str:
    """One or a few lines on why `ref` is not ready; or that it is."""
    id = ref._id
    with runtime.lock:
        entry = runtime.table.entries.get(id)
        known = _explain_entry(runtime, id, entry)
        nodes = _nodes_waited_for(runtime, id)
    cut = _cuts_of(runtime, nodes)
    if isinstance(known, str):
        if cut and entry is not None and entry.value is not None:
            return f"{known} It lies on another node, and {cut[0]}"
        return "\n  ".join([f"{known.rstrip('.')}.", *cut]) if cut else known
    kind, subject = known
    if cut:  # the process that would have to be asked cannot be
        return f"{_waits_there(runtime, id, kind, subject)}: {cut[0]}"
    if kind == "borrowed":
        with runtime.lock:
            owner = runtime.peers.get(subject)
        answer = runtime.ask(owner.send, lambda request: AskRef(request, id), time.monotonic() + ANSWER_TIMEOUT_S)
        told = answer.body if answer is not None else "its owner does not answer at the moment"
        return f"{short(id)} belongs to another process (pid {owner.pid}): {told}"
    lease, name = subject
    if kind == "actor":
        return _explain_call(runtime, id, name, lease)
    if kind == "sent":
        return _explain_sent(
            name, lease.peer.pid, ask_worker(runtime, lease.peer, id, time.monotonic() + ANSWER_TIMEOUT_S)
        )
    others = list(cuts(runtime).values())[:TOLD_MAX]
    return "\n  ".join([_explain_queued(runtime, name, lease), *others])


def _nodes_waited_for(runtime: Runtime, id: bytes) -> set[int]:
    """The numbers of the other nodes that have to say or do something before the value is here, or before an argument
    of its task is."""
    nodes: set[int] = set()
    seen: set[bytes] = set()
    ids = [id] if runtime.in_cluster else []
    while ids and len(seen) < FOLLOWED_MAX:
        seen.add(id := ids.pop())
        entry = runtime.table.entries.get(id)
        known = _explain_entry(runtime, id, entry)
        if not isinstance(known, str):
            nodes.add(_node_asked(*known))
        elif entry is not None and type(entry.value) is int:
            nodes.add(node_at(entry.value))
        elif entry is not None and entry.value is None:
            ids += [missing for missing in _missing_arguments(runtime, id) if missing not in seen]
    return nodes - {0, node_of(runtime.process_id)}


def _node_asked(kind: str, subject: Any) -> int:
    """The number of the node whose turn it is; 0: it is not known."""
    if kind == "borrowed":
        return node_of(subject)
    if kind == "sent":
        return node_of(subject[0].peer.process_id)
    if kind == "actor":
        link = subject[0]
        process = link.sent_process if link.inflight else link.process
        return node_of(process) if process else 0
    where = subject[0][0].where
    is_bound = where is not None and where.affinity is not None and not where.affinity.soft
    return node_of(where.affinity.node) if is_bound else 0


def _missing_arguments(runtime: Runtime, id: bytes) -> list[bytes]:
    """The arguments without which the task that makes an object is not sent."""
    entries = runtime.table.entries
    made_by = entries.get(id[:16] + FIRST_RETURN)
    if made_by is None or made_by.task is None or made_by.task.extra is None:
        return []
    args = [arg.id for arg in made_by.task.extra.args if arg.value == b""]
    return [arg for arg in args if (entry := entries.get(arg)) is not None and entry.value is None]


def is_behind_cut(runtime: Runtime, id: bytes) -> bool:
    """Whether the value, or an argument of its task, waits for a node that this one cannot reach."""
    with runtime.lock:
        nodes = _nodes_waited_for(runtime, id)
    return bool(_cuts_of(runtime, nodes))


def ask_worker(runtime: Runtime, peer: Peer, id: bytes, until: float) -> dict[str, Any] | None:
    """What a worker says about a task that was sent to it; None: it does not answer in time."""
    answer = runtime.ask(peer.send, lambda request: AskTask(request, id[:16] + FIRST_RETURN), until)
    return answer.body if answer is not None else None


def _cuts_of(runtime: Runtime, nodes: set[int], timeout_s: float = ANSWER_TIMEOUT_S) -> list[str]:
    """A sentence for each of these nodes that this one cannot reach."""
    if not nodes:
        return []
    cut = cuts(runtime, timeout_s)
    return [cut[node] for node in sorted(nodes) if node in cut]


def cuts(runtime: Runtime, timeout_s: float = ANSWER_TIMEOUT_S) -> dict[int, str]:
    """A sentence for each node that this one cannot reach at the moment."""
    if not runtime.in_cluster:
        return {}
    return runtime.query("cuts", time.monotonic() + timeout_s) or {}


def _waits_there(runtime: Runtime, id: bytes, kind: str, subject: Any) -> str:
    if kind == "borrowed":
        return f"{short(id)} belongs to a process on another node"
    where, name = subject
    if kind == "actor":
        return _explain_call_locally(runtime, id, name, where)
    if kind == "sent":
        return f"{name} was sent to worker pid {where.peer.pid}"
    return f"{name} waits for a worker{_wanted(where[0].where)}"


def explain_timeout(runtime: Runtime, refs: Sequence[ObjectRef[Any]], timeout: float) -> list[str]:
    """What the first few of those that are pending wait for. Whoever looks often does so with a timeout of 0, and must
    not wait for an answer each time."""
    entries = runtime.table.entries
    with runtime.lock:
        pending = [ref._id for ref in refs if (entry := entries.get(ref._id)) and entry.value is None][:TOLD_MAX]
        reasons = [explain_locally(runtime, id) for id in pending]
        nodes = {node for id in pending for node in _nodes_waited_for(runtime, id)}
        known = [_explain_entry(runtime, id, entries[id]) for id in pending]
        waits_for_worker = any(_waits_for_worker(it) for it in known)
    if waits_for_worker and timeout > 0:
        limit = runtime.query("room", time.monotonic() + LATE_ANSWER_TIMEOUT_S)
        reasons += [limit] if limit else []
    if timeout > 0:
        cut = _cuts_of(runtime, nodes, LATE_ANSWER_TIMEOUT_S)
        reasons += cut
        ask_until = time.monotonic() + min(LATE_ANSWER_TIMEOUT_S, timeout)
        for index, it in enumerate(known if not cut else ()):
            if not isinstance(it, str) and it[0] == "sent":
                lease, name = it[1]
                reads = _reads_elsewhere(runtime, pending[index], lease.peer)
                state = ask_worker(runtime, lease.peer, pending[index], ask_until) if reads else None
                if state is not None and state.get("waits"):
                    reasons[index] = _explain_sent(name, lease.peer.pid, state)
    if runtime.in_cluster and timeout > 0:
        silent = runtime.query("silence", time.monotonic() + LATE_ANSWER_TIMEOUT_S)
        if silent:
            reasons.append(f"{_silence(silent)}: new actors and placement groups, names and skate.kv wait for it")
    return reasons


def _reads_elsewhere(runtime: Runtime, id: bytes, worker: Peer) -> bool:
    """Whether the worker of a task has to bring an argument from another node."""
    made_by = runtime.table.entries.get(id[:16] + FIRST_RETURN)
    task = made_by.task if made_by is not None else None
    args = task.extra.args if task is not None and task.extra is not None else []
    return any(isinstance(arg.value, int) and node_at(arg.value) != node_of(worker.process_id) for arg in args)


def _waits_for_worker(known: str | tuple[str, Any]) -> bool:
    if isinstance(known, str):
        return False
    kind, subject = known
    return kind == "queued" or (kind == "actor" and subject[0].state != core.ALIVE)


def explain_stored(runtime: Runtime, objects: Sequence[tuple[bytes, int]]) -> list[str]:
    """What values wait for that exist and were not brought into memory here in time: ids and places."""
    reasons, cut = _look_into_stored(runtime, objects)
    return [*reasons, *cut]


def explain_wait(runtime: Runtime, wait: Wait) -> tuple[list[str], list[str]]:
    """What a task that runs here waits for, as far as this process and its node know it; and the cuts behind that."""
    if wait.stored:
        return _look_into_stored(runtime, wait.stored)
    ref = wait.missing()
    with runtime.lock:
        entry = runtime.table.entries.get(ref._id) if ref is not None else None
        if ref is None or entry is None or entry.value is not None:
            return [], []
        reason = explain_locally(runtime, ref._id)
        if entry.owner:
            reason = f"{short(ref._id)} belongs to another process"
        nodes = _nodes_waited_for(runtime, ref._id)
    return [reason], _cuts_of(runtime, nodes, LATE_ANSWER_TIMEOUT_S)


def _look_into_stored(runtime: Runtime, objects: Sequence[tuple[bytes, int]]) -> tuple[list[str], list[str]]:
    """The reasons, and the cuts among them."""
    on_disk = "their values are on disk, and there is no room in memory to bring them back"
    if not runtime.in_cluster:
        return [on_disk], []
    deadline = time.monotonic() + LATE_ANSWER_TIMEOUT_S
    known = runtime.query("pulls", deadline)
    silent = runtime.query("silence", deadline)
    if silent and "trouble" in silent:  # where copies are is told all the same
        silent = None
    if known is None:
        return ["this node, which brings them from disk or from another one, does not answer"], []
    coming = [(id, place) for id, place in objects if id in known]
    reasons = [_explain_pull(id, place, *known[id], silent=silent) for id, place in coming[:TOLD_MAX]] or [on_disk]
    sources = {node_of(known[id][1]) for id, _ in coming if known[id][1]}
    return reasons, _cuts_of(runtime, sources, LATE_ANSWER_TIMEOUT_S)


def _explain_pull(
    id: bytes, place: int, state: str, source: bytes, here_bytes: int, *, silent: dict[str, Any] | None
) -> str:
    name, size = short(id), format_bytes(size_at(place))
    if state == pulls.PULLING:
        return f"{name} is on its way from node {source.hex()}: {format_bytes(here_bytes)} of {size} are here"
    if state == pulls.LOCATING and silent:
        return f"{name} is on another node, and which of them has a copy is not known: {_silence(silent)}"
    if state == pulls.LOCATING and source:
        return f"{name} is on node {source.hex()}, which cannot be reached, and no other node has a copy"
    if state == pulls.LOCATING:
        return f"{name} is on another node: a copy is being looked for"
    if state == pulls.RESERVING:
        return f"{name} is on another node, and there is no room in memory for its {size} here yet"
    return f"{name} is on another node, and its {size} come after other values that are on their way here"


def _silence(silent: dict[str, Any]) -> str:
    where, for_s = f"the control service of the cluster, at {silent['address']},", f"{silent['silent_s']:.1f} s"
    if "trouble" in silent:
        return f"{where} has not been able to write its store for {for_s} ({silent['trouble']})"
    return f"{where} has not answered for {for_s}"


def explain_locally(runtime: Runtime, id: bytes) -> str:
    """The same for another process that asks; without asking further. With the lock held."""
    known = _explain_entry(runtime, id, runtime.table.entries.get(id))
    if isinstance(known, str):
        return known
    kind, subject = known
    if kind == "borrowed":
        return "it belongs to yet another process"
    where, name = subject
    if kind == "actor":
        return _explain_call_locally(runtime, id, name, where)
    if kind == "sent":
        return f"{name} was sent to worker pid {where.peer.pid}"
    cls, _ = where
    needs = _needs(cls.resources)
    if needs and not runtime.in_cluster and not group_of(cls.resources):  # the rest had to be asked for
        total = runtime.welcome.resources
        needs += f"; the machine has {', '.join(_amount(kind, total.get(kind, 0)) for kind in cls.resources)}"
    return f"{name} waits for a worker{_wanted(cls.where)}" + (f": it needs {needs}" if needs else "")


def _explain_entry(runtime: Runtime, id: bytes, entry: Entry | None) -> str | tuple[str, Any]:
    if id == NIL:
        return f"It is {NIL_SAYS}."
    if entry is None:
        return f"{short(id)} is unknown here: it was freed."
    if entry.value is not None:
        return f"{short(id)} is ready" + (": it is an error." if type(entry.value) is Failure else ".")
    if entry.owner:
        return "borrowed", entry.owner
    first = id[:16] + FIRST_RETURN
    task_entry = runtime.table.entries.get(first)
    if task_entry is None or task_entry.call is None:
        return f"{short(id)} is not ready, and no task of this process makes it."
    name = task_entry.call.name
    where, detail = runtime.submitter.whereabouts(first, task_entry)
    if where == "arguments":
        missing = _missing_arguments(runtime, id)
        waits = "\n  ".join(_explain_argument(runtime, id) for id in missing)
        return f"{name} ({short(first)}) waits for {len(missing)} of its arguments:\n  {waits}"
    if where == "resting":
        return f"{name} was ended because memory was short, and is run again in {detail - time.monotonic():.0f} s."
    if where in ("sent", "actor"):
        return where, (detail, name)
    return "queued", ((task_entry.call.cls, detail), name)


def _explain_argument(runtime: Runtime, id: bytes) -> str:
    entry = runtime.table.entries.get(id)
    if entry is not None and entry.owner:
        return f"{short(id)}, which belongs to another process"
    first = runtime.table.entries.get(id[:16] + FIRST_RETURN)
    return f"{short(id)}, made by {first.call.name}" if first is not None and first.call is not None else short(id)


def _explain_sent(name: str, pid: int, state: dict[str, Any] | None) -> str:
    if state is None:
        return f"{name} was sent to worker pid {pid}, which is too busy to say more (native code that holds the GIL?)."
    if waits := state.get("waits"):
        what = "other tasks" if state["blocked"] else "values"
        task = f"{name} is running in worker pid {pid}, where it waits for {what}"
        if state["are_arguments"]:
            task = f"{name} is in worker pid {pid}, which fetches its arguments and has not begun it"
        return "\n  ".join([f"{task}:", *(f"{reason.rstrip('.')}." for reason in waits)])
    if state["state"] == "running":
        blocked = ", where it waits for other tasks" if state["blocked"] else ""
        return f"{name} is running in worker pid {pid}{blocked}."
    if state["state"] == "behind":
        running = f" behind {state['running']}" if state["running"] else ""
        return f"{name} is number {state['position']} in the queue of worker pid {pid}{running}."
    return f"{name} is on its way to or from worker pid {pid}."


def _whole(runtime: Runtime) -> str:
    return "the cluster" if runtime.in_cluster else "this machine"


def _explain_queued(runtime: Runtime, name: str, queued: Any) -> str:
    cls, position = queued
    needs = _needs(cls.resources) or "no resources"
    resources = runtime.query("resources")
    total, free = resources["total"], resources["available"]
    ahead = f", behind {position} other tasks of that shape" if position else ""
    lacking = [kind for kind, amount in cls.resources.items() if amount > total.get(kind, 0)]
    group = group_of(cls.resources)
    if group and lacking:
        return f"{name} needs {needs}, which is not there yet."
    if group:
        return f"{name} waits for a worker: it needs {needs}{ahead}."
    if lacking:
        has = ", ".join(_amount(kind, total.get(kind, 0)) for kind in lacking)
        return f"{name} needs {needs}, and {_whole(runtime)} has {has}: it can never run here."
    has = ", ".join(
        f"{_number(kind, max(free.get(kind, 0), 0))} of {_amount(kind, total.get(kind, 0))}" for kind in cls.resources
    )
    where = _wanted(cls.where)
    text = f"{name} waits for a worker{where}: it needs {needs}{ahead}; free now: {has or 'anything'}"
    if all(amount <= free.get(kind, 0) for kind, amount in cls.resources.items()):
        # Then it lacks something else: a worker, if this node is the one that is asked.
        asked = runtime.query("demands")["demands"]
        mine = [it for it in asked if it["process"] == runtime.process_id and it["key"] == cls.key]
        text += "".join(f"; it waits for {demand['waits_for']}" for demand in mine)
    return f"{text}."


def _amount(kind: str, amount: float) -> str:
    return f"{_number(kind, amount)} {kind}"


def _number(kind: str, amount: float) -> str:
    return format_bytes(int(amount)) if kind.endswith("memory") else f"{amount:g}"


def _needs(resources: Mapping[str, float]) -> str:
    """In the words of who asked for them: resources of placement groups have names of their own."""
    group = group_of(resources)
    amounts = {kind.partition(GROUP)[0]: amount for kind, amount in resources.items()}
    if group:
        del amounts["bundle"]
    text = ", ".join(_amount(kind, amount) for kind, amount in amounts.items())
    return f"{text or 'a place'} in the placement group {group.hex()}" if group else text


def _wanted(where: Where | None) -> str:
    """The only nodes that will do, if not any will."""
    if where is None:
        return ""
    if where.affinity is not None and not where.affinity.soft:
        return f" on node {where.affinity.node.hex()}"
    texts = []
    for condition in where.required:
        values = " or ".join(sorted(condition.values)) or "any value"
        texts.append(f"{condition.key} {'is not' if condition.negated else 'is'} {values}")
    return f" on a node whose label {' and whose label '.join(texts)}" if texts else ""


def _explain_call_locally(runtime: Runtime, id: bytes, name: str, link: Link) -> str:
    if id in link.inflight:
        return f"{name} was sent to the actor {link.name}"
    if link.state == core.ALIVE:
        return f"{name} waits behind {link.pending - 1} other calls to the actor {link.name}"
    creation = runtime.actors.creation(link)
    made_by = runtime.table.entries.get(link.creation_id)
    if made_by is not None and made_by.pending is not None and made_by.pending.missing:
        return f"{name} waits for the actor {link.name}, whose arguments are not there yet"
    needs, place = ("", "") if creation is None else (_needs(creation.to_place), _wanted(creation.where))
    # Which of the two it is only the control service knows, and this must be said without asking.
    start = f"needs {needs}{place} to be started" if needs else f"is to be started{place}"
    return f"{name} waits for the actor {link.name}, which {start}, or is still in its __init__"


def _explain_call(runtime: Runtime, id: bytes, name: str, link: Link) -> str:
    """A call of an actor, or the creation of one."""
    if link.state == core.ALIVE and id in link.inflight:
        with runtime.lock:
            peer = runtime.peers.get(link.process)
        pid = runtime.pid if link.process == runtime.process_id else peer.pid
        return _explain_sent(name, pid, ask_worker(runtime, peer, id, time.monotonic() + ANSWER_TIMEOUT_S))
    if link.state == core.ALIVE:
        return f"{name} waits behind {link.pending - 1} other calls to the actor."
    actors = runtime.query("actors", time.monotonic() + ANSWER_TIMEOUT_S)
    if actors is None:
        return f"{name} waits for the actor {link.name}; the control service of the cluster does not answer."
    known = next((actor for actor in actors if actor["actor_id"] == link.id), None)
    state = known["state"] if known is not None else ""
    if state == core.WAITING:
        return f"{name} waits for the actor {link.name}, whose arguments are not there yet."
    if state == core.STARTING:
        return f"{name} waits for the actor {link.name}, whose __init__ is running."
    if state == core.ALIVE:
        return f"{name} is about to be sent to the actor {link.name}."
    again = "to be started again" if link.life else "to be started"
    waits_for, ended = (known["waits_for"], known["reason"]) if known is not None else ("", "")
    before = f" Before that, {ended.rstrip('.')}." if ended else ""
    demands = runtime.query("demands")
    demand = next((demand for demand in demands["demands"] if demand["process"] == link.id), None)
    if demand is None:
        why = f": {waits_for.rstrip('.')}" if waits_for else ""
        return f"{name} waits for the actor {link.name} {again}{why}.{before}"
    needs = _needs(demand["to_place"]) or "no resources"
    lacking = {
        kind: demands["total"].get(kind, 0.0)
        for kind, amount in demand["to_place"].items()
        if amount > demands["total"].get(kind, 0.0)
    }
    if lacking:
        has = ", ".join(_amount(kind, amount) for kind, amount in lacking.items())
        scope = _whole(runtime)
        return f"{name} waits for the actor {link.name}, which needs {needs}; {scope} has {has}: it can never run."
    if demand["resources"] != demand["to_place"]:  # it holds less than its node must have
        needs = f"a node with {needs}"
    waits = f"it needs {needs}, and waits for {demand['waits_for']}"
    return f"{name} waits for the actor {link.name} {again}: {waits}.{before}"
