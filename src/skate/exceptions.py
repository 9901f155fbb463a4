"""Every error that Skate raises, in one tree.

    SkateError
    │
    │   what you asked for could not be done
    ├── TaskError                            your function raised; also an instance of the class it raised
    ├── TaskCancelledError                   somebody called skate.cancel() on the task
    ├── GetTimeoutError                      get(timeout=) ran out; also a TimeoutError
    ├── TaskUnschedulableError               the task asks for more than there will ever be
    ├── TaskPlacementGroupRemoved            the placement group of the task is gone
    ├── RuntimeEnvSetupError                 the environment that a task asked for could not be made
    ├── SerializationError                   a value cannot be sent to another process; also a TypeError
    ├── MessageTooLargeError                 what should be sent is larger than a message may be; also a ValueError
    ├── NotInitializedError                  skate.init() was not called, or shutdown() was; also a RuntimeError
    ├── ForkedProcessError                   the runtime was used after os.fork(); also a RuntimeError
    ├── NotInSkateError                      Ray has what was called, and Skate has not; also a RuntimeError
    │
    │   something below the task failed
    ├── WorkerCrashedError                   the process of the task ended under it
    ├── OutOfMemoryError                     the memory monitor ended the process before the kernel did
    ├── ControlUnavailableError              the control service does not answer, and too much waits for it
    ├── NodeDiedError                        the node daemon is gone
    │   └── NodeUnreachableError             … or lives, and its path to this node is cut
    ├── ObjectLostError                      the value of a reference is gone
    │   ├── OwnerDiedError                   … with the process that owned it
    │   ├── ObjectFreedError                 … because it was freed by hand
    │   ├── ObjectReconstructionFailedError  … and could not be computed again
    │   └── ObjectFetchTimedOutError         … or exists, but did not arrive in time
    ├── ObjectStoreFullError                 shared memory is full of objects in use
    ├── OutOfDiskError                       no room to spill objects to
    ├── ActorError                           a call to an actor did not complete
    │   ├── ActorDiedError                   … and no later call will
    │   └── ActorUnavailableError            … a later call may
    ├── ActorUnschedulableError              the actor asks for more than there will ever be
    ├── ActorPlacementGroupRemoved           the placement group of the actor is gone
    ├── ActorAlreadyExistsError              another actor has that name; also a ValueError
    ├── DescriptorError                      a file descriptor cannot be sent or received; also an OSError
    ├── PendingCallsLimitExceeded            more calls wait for the actor than max_pending_calls
    ├── AsyncioActorExit                     raised inside an async actor to end it
    │
    │   Skate failed
    └── SkateSystemError                     the runtime cannot go on
        ├── SystemLimitError                 … because of open files, processes or address space
        └── InternalError                    a bug in Skate; please report it

Beside the tree stands TaskInterrupt, a KeyboardInterrupt: what a running task sees raised inside itself when it is
cancelled.

The facts of an error are attributes (`error.pid`, `error.exit_code`) and its text is made of them: what happened, why,
what to do next. Each class can also be given a ready text: `GetTimeoutError("no answer yet")`. Every error survives
pickling and copying with all its facts; tests/unit/test_exceptions.py walks the whole tree.

Ray's names for the same errors are at the end of this file. This module imports only
`_error_base.py` and `_error_text.py` of Skate, so that every part may import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from skate import _error_text as _words
from skate._error_base import Fallback as _Fallback
from skate._error_base import SkateError as SkateError
from skate._error_base import TaskError as TaskError

# --- the tree --------------------------------------------------------------------------------------------------------


class TaskCancelledError(SkateError):
    """The task was cancelled with `skate.cancel(ref)`, or a task above it was cancelled recursively."""

    def __init__(
        self, message: str = "", *, task_name: str = "", was_running: bool = False, forced: bool = False
    ) -> None:
        self.task_name = task_name
        self.was_running = was_running
        self.forced = forced
        if not was_running:
            what = "it had not started and never will."
        elif forced:
            what = "its worker process was ended (force=True)."
        else:
            what = "it was interrupted while it ran."
        super().__init__(message or _words.compose(f"{_words.task(task_name)} was cancelled.", what=what))


class GetTimeoutError(SkateError, TimeoutError):
    """`get(..., timeout=t)` waited for t seconds and not every value was there. The tasks go on; call `get` again."""

    def __init__(
        self,
        message: str = "",
        *,
        timeout_s: float | None = None,
        pending: int = 0,
        total: int = 0,
        reasons: Iterable[str] = (),
    ) -> None:
        self.timeout_s = timeout_s
        self.pending = pending
        self.total = total
        #: What the first few of them wait for, a line each.
        self.reasons = tuple(reasons)
        after = "" if timeout_s is None else f" after {timeout_s:g} s"
        text = _words.compose(
            f"get() timed out{after}.",
            what=f"{pending:,} of {_words.count(total, 'value')} had not arrived." if total else "",
            why="\n".join(self.reasons),
            next="call get() again (the tasks still run), give it more time, or stop them with skate.cancel(ref).",
        )
        super().__init__(message or text)


class _Unschedulable(SkateError):
    """What is common to tasks and actors that can never be placed."""

    _noun = "task"

    def __init__(
        self,
        message: str = "",
        *,
        name: str = "",
        asked: Mapping[str, float] | None = None,
        available: Mapping[str, float] | None = None,
        reason: str = "",
        next: str = "",
    ) -> None:
        self.name = name
        #: What it needs, and the most that any node has of each resource.
        self.asked = dict(asked or {})
        self.available = dict(available or {})
        headline = " was not started." if next else " can never run here."
        next = next or (_words.ASK_ANOTHER_NODE if reason else _words.ASK_FOR_LESS)
        text = _words.compose(
            f"{self._noun} {name}".rstrip() + headline,
            what=f"it asks for {_words.amounts(self.asked)}." if self.asked else "",
            why=reason or (f"the machine has {_words.amounts(self.available, self.asked)}." if self.available else ""),
            next=next,
        )
        super().__init__(message or text)


class TaskUnschedulableError(_Unschedulable):
    """The task asks for resources that no node has, and none came within the grace period; or no worker can be had."""


class ActorUnschedulableError(_Unschedulable):
    """The actor asks for resources that no node has, and none came within the grace period; or no worker can be had."""

    _noun = "actor"


class TaskPlacementGroupRemoved(SkateError):
    """The placement group in which the task was to run was removed."""

    def __init__(self, message: str = "the placement group of the task was removed.") -> None:
        super().__init__(message)


class ActorPlacementGroupRemoved(SkateError):
    """The placement group in which the actor lived was removed."""

    def __init__(self, message: str = "the placement group of the actor was removed.") -> None:
        super().__init__(message)


class RuntimeEnvSetupError(SkateError):
    """The `runtime_env` that a task or actor asked for could not be made."""

    def __init__(self, message: str = "", *, task_name: str = "", reason: str = "") -> None:
        self.task_name = task_name
        self.reason = reason
        text = _words.compose(
            f"{_words.task(task_name)} did not start: its runtime_env could not be set up.",
            why=reason,
            next="correct runtime_env in @remote(...), .options(...) or init(...).",
        )
        super().__init__(message or text)


class SerializationError(SkateError, TypeError):
    """A value cannot be sent to another process: an argument, a result, or a variable that a function captures."""

    def __init__(self, message: str = "", *, what: str = "", variable: str = "", reason: str = "") -> None:
        #: What was being sent, e.g. "argument batch of task resize"; the part of it that failed, e.g. "self.lock".
        self.what = what
        self.variable = variable
        self.reason = reason
        text = _words.compose(
            f"{what or 'a value'} cannot be serialised.",
            what=f"the trouble is in {variable}." if variable else "",
            why=reason,
            next="create it inside the task, pass what it is made from, or give its class a __reduce__ method.",
        )
        super().__init__(message or text)


class MessageTooLargeError(SkateError, ValueError):
    """Something that has to travel in one message is larger than a message may be."""

    def __init__(
        self, message: str = "", *, what: str = "", size_bytes: int = 0, limit_bytes: int = 0, next: str = ""
    ) -> None:
        #: What was being sent, e.g. "the remote function train".
        self.what = what
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        text = _words.compose(
            f"{what or 'a message'} is too large to be sent.",
            what=f"it has {_words.size(size_bytes)}; {_words.size(limit_bytes)} is the most." if size_bytes else "",
            next=next or "put what is large into the object store with skate.put(), and pass the reference.",
        )
        super().__init__(message or text)


class NotInitializedError(SkateError, RuntimeError):
    """A call needs a running Skate and there is none: `init()` was not called, or `shutdown()` was."""

    def __init__(self, message: str = "", *, call: str = "") -> None:
        self.call = call
        text = _words.compose(
            f"{call or 'this call'} needs a running Skate, and none runs in this process.",
            why="skate.init() was not called here, or skate.shutdown() was called since.",
            next="call skate.init() first; references of an earlier session are not valid in a new one.",
        )
        super().__init__(message or text)


class ForkedProcessError(SkateError, RuntimeError):
    """The process is a fork of one in which Skate runs. Sockets and threads of a runtime do not survive os.fork()."""

    def __init__(self, message: str = "", *, pid: int = 0, parent_pid: int = 0) -> None:
        self.pid = pid
        self.parent_pid = parent_pid
        text = _words.compose(
            "Skate cannot be used in a forked copy of a process that uses it.",
            what=f"process {pid} was forked from process {parent_pid}, where Skate was initialised." if pid else "",
            why="a fork copies the connections of its parent but none of the threads that serve them.",
            next='run the work as tasks, or start processes with multiprocessing.get_context("spawn").',
        )
        super().__init__(message or text)


class NotInSkateError(SkateError, RuntimeError):
    """A program called something of Ray that Skate has only so that it can be imported (docs/coming-from-ray.md)."""

    def __init__(self, message: str = "", *, name: str = "", part: str = "", instead: str = "") -> None:
        self.name = name
        self.part = part
        self.instead = instead
        text = _words.compose(
            f"{name or 'what was called'} is not part of Skate.",
            why=f"Skate has the API of Ray Core for Python, without {part or 'this name'}.",
            next=instead,
        )
        super().__init__(message or text)


class WorkerCrashedError(SkateError):
    """The process of the task ended under it (os._exit, a signal, native code) more often than it may be retried."""

    def __init__(
        self,
        message: str = "",
        *,
        task_name: str = "",
        pid: int = 0,
        node: str = "",
        exit_code: int | None = None,
        signal: int | None = None,
        stderr_tail: Iterable[str] = (),
        retries_used: int = 0,
        max_retries: int = 0,
        reason: str = "",
        last_output: str = "",
    ) -> None:
        self.task_name = task_name
        self.pid = pid
        self.node = node
        #: One of the two is known: the exit code, or the signal that ended the process.
        self.exit_code = exit_code
        self.signal = signal
        self.stderr_tail = tuple(stderr_tail)
        #: What the process printed last, to stdout and stderr: up to 20 lines and 4 KiB.
        self.last_output = last_output or "\n".join(self.stderr_tail)
        self.retries_used = retries_used
        self.max_retries = max_retries
        #: Why Skate itself ended the process; empty if it did not.
        self.reason = reason
        text = _words.compose(
            f"{_words.task(task_name)} stopped because its worker died.",
            what=f"{_words.process(pid, node)} {_words.ending(exit_code, signal)}.",
            why=f"{reason}." if reason else _words.likely_cause(exit_code, signal),
            next="" if reason else _words.retries(retries_used, max_retries),
            log=self.last_output,
        )
        super().__init__(message or text)


class OutOfMemoryError(SkateError):
    """The memory monitor ended the worker because the machine was about to run out of memory."""

    def __init__(
        self,
        message: str = "",
        *,
        task_name: str = "",
        pid: int = 0,
        node: str = "",
        used_bytes: int = 0,
        total_bytes: int = 0,
        limit: float = 0.0,
        processes: Iterable[tuple[str, int, int]] = (),
        retries_used: int = 0,
        max_retries: int = 0,
        group: str = "",
    ) -> None:
        self.task_name = task_name
        self.pid = pid
        self.node = node
        self.used_bytes = used_bytes
        self.total_bytes = total_bytes
        #: The fraction of it that may be in use: `init(memory_threshold=...)`.
        self.limit = limit
        #: Who used how much at that moment, largest first: (name, pid, bytes).
        self.processes = tuple(processes)
        self.retries_used = retries_used
        self.max_retries = max_retries
        #: The folder of the control group (the container) that ran short; "" if the machine did.
        self.group = group
        whose = f" of the control group {group}" if group else ""
        stood = f"memory{whose} stood at"
        share = f"{stood} {used_bytes / total_bytes:.0%} of {_words.size(total_bytes)}" if total_bytes else ""
        share += (f"; the limit is {limit:.0%}." if limit else ".") if share else ""
        users = "\n".join(f"{_words.size(size):>10}  {name} (pid {owner})" for name, owner, size in self.processes)
        short = "its container" if group else "the machine"
        text = _words.compose(
            f"{_words.task(task_name)} was stopped because {short} was running out of memory.",
            what=f"the memory monitor ended {_words.process(pid, node)}.",
            why=share + (f"\nIt was used by:\n{users}" if users else ""),
            next="run fewer at a time: @remote(memory=<bytes that one needs>), or a larger num_cpus.\n"
            + _words.retries(retries_used, max_retries),
        )
        super().__init__(message or text)


class ControlUnavailableError(SkateError):
    """The control service has not answered for long, and this process has said more to it than can be kept."""

    def __init__(self, message: str = "", *, reason: str = "") -> None:
        self.reason = reason
        text = _words.compose(
            "the control service of the cluster is not available.",
            why=f"{reason}." if reason else "",
            next="wait for it: tasks and calls go on meanwhile. `skate start --head` on its machine starts it again.",
        )
        super().__init__(message or text)


class NodeDiedError(SkateError):
    """The node daemon is gone, and with it the workers and the shared memory of that node."""

    def __init__(
        self,
        message: str = "",
        *,
        node: str = "",
        pid: int = 0,
        exit_code: int | None = None,
        signal: int | None = None,
        stderr_tail: Iterable[str] = (),
    ) -> None:
        self.node = node
        self.pid = pid
        self.exit_code = exit_code
        self.signal = signal
        self.stderr_tail = tuple(stderr_tail)
        daemon = "the node daemon" + (f" (pid {pid})" if pid else "") + (f" of node {node}" if node else "")
        text = _words.compose(
            f"{daemon} died; its workers and objects are gone.",
            what=f"it {_words.ending(exit_code, signal)}.",
            why=_words.likely_cause(exit_code, signal),
            next="call skate.shutdown() and skate.init() to begin again.",
            log="\n".join(self.stderr_tail),
        )
        super().__init__(message or text)


class NodeUnreachableError(NodeDiedError):
    """Two nodes could not reach each other for longer than `partition_grace_s`, and a task was waiting for that.

    Both nodes live, and may reach each other again at any time. The task is given up, and is not run a second time.
    """

    def __init__(self, message: str = "", *, task_name: str = "", reason: str = "", was_sent: bool = False) -> None:
        self.task_name = task_name
        #: Names the two nodes.
        self.reason = reason
        #: The task was sent to the other node, and may have run there. Otherwise it has not run.
        self.was_sent = was_sent
        what = "it waited for a worker on the only node that may run it, and has not run."
        next = "submit it again when the path has healed, or let it run on other nodes."
        if was_sent:
            what = "it was sent to the other node, may have run there, and has no retry left that could run elsewhere."
            next = "submit it again if it may run twice, or allow that with max_retries=."
        headline = f"task {task_name or '(unknown)'} was given up: its node cannot be reached."
        super().__init__(message or _words.compose(headline, what=what, why=reason, next=next))


class ObjectLostError(SkateError):
    """The value behind a reference is gone: every copy was lost, and it was not, or could not be, computed again."""

    _headline = "is lost"
    _reason = "every copy of it was lost, and it was not computed again."
    _next = "keep what is needed to make the value again, and submit its task again or put it again."

    #: Ray's name for `object_id`.
    object_ref_hex = _Fallback(lambda error: error.object_id)

    def __init__(
        self,
        message: str = "",
        owner_address: Any = None,
        call_site: str | None = None,
        *,
        object_id: str = "",
        task_name: str = "",
        reason: str = "",
    ) -> None:
        if call_site is not None:  # Ray's form: ObjectLostError(object_ref_hex, owner_address, call_site)
            message, object_id = "", message
        self.owner_address = owner_address
        self.call_site = call_site
        self.object_id = object_id
        #: The task that made the object, or would have; empty for a put().
        self.task_name = task_name
        self.reason = reason
        source = f" of task {task_name}" if task_name else ""
        super().__init__(
            message
            or _words.compose(
                f"object {object_id or '(unknown)'}{source} {self._headline}.",
                why=reason or self._reason,
                next=self._next,
            )
        )


class OwnerDiedError(ObjectLostError):
    """The process that created the object died, and the knowledge of where the object is died with it."""

    _next = "let a process that lives longer create it, e.g. the driver."

    def __init__(
        self,
        message: str = "",
        owner_address: Any = None,
        call_site: str | None = None,
        *,
        reason: str = "",
        owner_pid: int = 0,
        **facts: Any,
    ) -> None:
        self.owner_pid = owner_pid
        owner = "the process that owned it" + (f" (pid {owner_pid})" if owner_pid else "")
        super().__init__(message, owner_address, call_site, reason=reason or f"{owner} died.", **facts)


class ObjectFreedError(ObjectLostError):
    """The object was freed by hand while references to it were left."""

    _reason = "it was freed by hand while this reference was left."
    _next = "free an object only after its last use, or let references free it."


class ObjectReconstructionFailedError(ObjectLostError):
    """The object was lost and the task that made it could not be run again."""

    _reason = "the task that made it could not be run again: its retries are used up, or its arguments are gone too."
    _next = "allow more with max_retries=."


class ObjectFetchTimedOutError(ObjectLostError):
    """The object exists, but did not arrive in time from where it is."""

    _headline = "did not arrive in time"
    _reason = "a copy exists, but it did not arrive in time."
    _next = "try again; if it happens often the network or the node that holds it is overloaded."


class ObjectStoreFullError(SkateError):
    """A new object finds no room: what is in shared memory is in use and can neither be freed nor spilled."""

    def __init__(
        self,
        message: str = "",
        *,
        needed_bytes: int = 0,
        capacity_bytes: int = 0,
        holders: Iterable[tuple[str, int]] = (),
        waited_s: float = 0.0,
    ) -> None:
        self.needed_bytes = needed_bytes
        self.capacity_bytes = capacity_bytes
        #: What holds the memory, largest first: (what it is and who uses it, bytes).
        self.holders = tuple(holders)
        self.waited_s = waited_s
        users = "\n".join(f"{_words.size(size):>10}  {who}" for who, size in self.holders)
        if capacity_bytes and needed_bytes > capacity_bytes:
            why = "the object is larger than the whole store."
        else:
            why = "what is there is in use." + (f" Held by:\n{users}" if users else "")
        text = _words.compose(
            f"the object store has no room for {_words.size(needed_bytes)}.",
            what=f"it holds {_words.size(capacity_bytes)}"
            + (f", and nothing left it in {waited_s:g} s." if waited_s else ".")
            if capacity_bytes
            else "",
            why=why,
            next="drop what is not needed, or give init(object_store_memory=...) or `skate start` more for objects.",
        )
        super().__init__(message or text)


class OutOfDiskError(SkateError):
    """Objects had to be spilled to disk, and the disk is full."""

    def __init__(self, message: str = "", *, path: str = "", needed_bytes: int = 0, free_bytes: int = 0) -> None:
        self.path = path
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
        text = _words.compose(
            f"no room to spill objects to disk{f' in {path}' if path else ''}.",
            what=f"{_words.size(needed_bytes)} had to be written, {_words.size(free_bytes)} are free."
            if needed_bytes
            else "",
            next="free disk space, spill to another directory, or drop references that you no longer need.",
        )
        super().__init__(message or text)


class ActorError(SkateError):
    """A call to an actor did not complete because of the actor, not because of the method that was called."""

    _headline = "did not complete a call"
    _next = ""
    #: Whether its __init__ raised, which then is the error's cause; and of Ray: whether a cloud took its node away.
    actor_init_failed = preempted = False
    #: Ray's name for the text.
    error_msg = _Fallback(str)

    def __init__(
        self,
        message: str = "",
        *,
        actor_id: str = "",
        actor_name: str = "",
        reason: str = "",
        stderr_tail: Iterable[str] = (),
        next: str = "",
        last_output: str = "",
    ) -> None:
        self.actor_id = actor_id
        self.actor_name = actor_name
        self.reason = reason
        self.stderr_tail = tuple(stderr_tail)
        #: What its process printed last, to stdout and stderr, if that has died: up to 20 lines and 4 KiB.
        self.last_output = last_output or "\n".join(self.stderr_tail)
        headline = f"{_words.actor(actor_name, actor_id)} {self._headline}."
        super().__init__(message or _words.compose(headline, why=reason, next=next or self._next, log=self.last_output))


class ActorDiedError(ActorError):
    """The actor is dead and will not be restarted; no call to it will ever complete."""

    _headline = "is dead"
    _next = "create it again, or let it restart by itself with max_restarts=."


class ActorUnavailableError(ActorError):
    """The actor cannot be reached at present: it restarts, or the connection broke. The call may have run, or not."""

    _headline = "cannot be reached at present"
    _next = "call again if the method may run twice, or allow that with max_task_retries=."

    def __init__(self, message: str = "", actor_id: str | bytes | None = "", **facts: Any) -> None:
        super().__init__(message, actor_id=actor_id.hex() if isinstance(actor_id, bytes) else actor_id or "", **facts)


class ActorAlreadyExistsError(SkateError, ValueError):
    """Another actor has the name that a new one was to have."""

    def __init__(self, message: str = "", *, actor_name: str = "", namespace: str = "", look_up: str = "") -> None:
        self.actor_name = actor_name
        self.namespace = namespace
        #: What gives a handle to the other one.
        self.look_up = look_up or f"skate.get_actor({actor_name!r})"
        where = f" in namespace {namespace!r}" if namespace else ""
        text = _words.compose(
            f"the name {actor_name!r} is taken{where} by another actor.",
            next=f"{self.look_up} gives a handle to it; get_if_exists=True does that when there is one and makes one "
            "when there is none.",
        )
        super().__init__(message or text)


class DescriptorError(SkateError, OSError):
    """A file descriptor cannot be sent, or cannot be received (`skate.descriptors`)."""

    def __init__(self, message: str = "", *, what: str = "", why: str = "", next: str = "") -> None:
        self.why = why
        super().__init__(message or _words.compose(what or "a Descriptor cannot be received here.", why=why, next=next))


class PendingCallsLimitExceeded(SkateError):
    """As many calls wait for the actor as its `max_pending_calls` allows."""

    def __init__(self, message: str = "", *, actor_name: str = "", limit: int = 0) -> None:
        self.actor_name = actor_name
        self.limit = limit
        text = _words.compose(
            f"{_words.actor(actor_name, '')} takes no more calls at present.",
            why=f"{_words.count(limit, 'call')} wait already, which is its max_pending_calls.",
            next="wait for some of them to complete, or raise max_pending_calls=.",
        )
        super().__init__(message or text)


class AsyncioActorExit(SkateError):
    """Raised inside a method of an async actor to end the actor; it never reaches a caller."""


class SkateSystemError(SkateError):
    """The runtime cannot go on: a process of it could not be started, or a connection broke for no known reason."""


class SystemLimitError(SkateSystemError):
    """A limit of the system keeps the runtime from going on: of open files, of processes, or of address space."""

    def __init__(self, message: str = "", *, what: str = "", limit: str = "", next: str = "") -> None:
        self.what, self.limit, self.next = what, limit, next
        text = _words.compose("a limit of the system is reached.", what=what, why=limit, next=next or _words.USE_LESS)
        super().__init__(message or text)


class InternalError(SkateSystemError):
    """Something happened that cannot happen: a bug in Skate. The text has what is needed to report it."""

    def __init__(self, message: str = "", *, detail: str = "", story: Iterable[str] = ()) -> None:
        self.detail = detail
        #: What happened before, oldest first.
        self.story = tuple(story)
        text = _words.compose(
            "Skate has a bug: something happened that should be impossible.",
            what=detail,
            why="\n".join(("not known. What happened before:", *self.story)) if self.story else "not known.",
            next="please report it with this text and, if you can, the program.",
        )
        super().__init__(message or text)


class TaskInterrupt(KeyboardInterrupt):
    """Raised inside a running task when it is cancelled, wherever the task is at that moment.

    Not an Exception, so that `except Exception` in the task does not swallow it; a KeyboardInterrupt, so that code
    which tidies up after Ctrl-C does the same here. Let it pass: who waits for the task gets a TaskCancelledError.
    """


# --- Ray's names for the same errors ---------------------------------------------------------------------------------

RayError = SkateError
RayTaskError = TaskError
RayActorError = ActorError
RaySystemError = SkateSystemError
LocalRayletDiedError = NodeDiedError
PlasmaObjectNotAvailable = ObjectLostError
#: For the others, which only Ray raises and programs name in `except` clauses.
__getattr__ = _words.error_of_ray

# fmt: off
__all__ = [
    "SkateError", "TaskError", "TaskCancelledError", "GetTimeoutError", "TaskUnschedulableError",
    "TaskPlacementGroupRemoved", "RuntimeEnvSetupError", "SerializationError", "MessageTooLargeError",
    "NotInitializedError", "NotInSkateError", "ForkedProcessError", "WorkerCrashedError", "OutOfMemoryError",
    "NodeDiedError", "NodeUnreachableError", "ObjectLostError", "OwnerDiedError", "ObjectFreedError",
    "ObjectReconstructionFailedError", "ObjectFetchTimedOutError", "ObjectStoreFullError", "OutOfDiskError",
    "ActorError", "ActorDiedError", "ActorUnavailableError", "ActorUnschedulableError", "ActorPlacementGroupRemoved",
    "ActorAlreadyExistsError", "DescriptorError", "PendingCallsLimitExceeded", "AsyncioActorExit", "SkateSystemError",
    "SystemLimitError", "InternalError", "TaskInterrupt", "RayError", "RayTaskError", "RayActorError", "RaySystemError",
    "LocalRayletDiedError", "PlasmaObjectNotAvailable", "ControlUnavailableError",
]
# fmt: on
