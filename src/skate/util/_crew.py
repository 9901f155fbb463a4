"""Workers that take one call at a time: what is behind `multiprocessing.Pool`, `Executor` and the joblib backend.

    submit(job) ──▶ waiting ──▶ an idle worker (an actor) ──▶ inbox ──▶ the crew's thread: job.succeed or job.fail
                                     ▲                                       │
                                     └──────────── the next job ◀────────────┘

A worker gets its next job when it has answered the one before, as in `multiprocessing`: a job never waits behind a slow
one while another worker is idle. The crew's thread starts with a job and ends soon after the last one, so a crew that
is idle has no thread, and a crew that is dropped leaves none behind.

A worker that dies fails its job and is replaced. A worker that cannot start, because the initializer raised or Skate is
gone, breaks the crew: all that waits fails with that error, since the next worker would fare no better.
"""

from __future__ import annotations

import abc
import logging
import multiprocessing
import os
import queue
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing.pool import RemoteTraceback  # type: ignore[attr-defined]  # typeshed leaves it out
from types import FunctionType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import skate
from skate.exceptions import (
    ActorError,
    NodeDiedError,
    NotInitializedError,
    TaskCancelledError,
    TaskError,
    TaskInterrupt,
)
from skate.util._initialized import Sent, namespace_of, settle

#: How long the crew's thread stays when there is nothing to wait for: the next call of a loop finds it there.
LINGER_S = 0.05
#: Workers hold no CPUs: a pool inside a task, or beside other work, must not wait for them.
WORKER_OPTIONS = {"num_cpus": 0, "scheduling_strategy": "SPREAD"}

_GONE = (
    "the workers are gone.\n  why:  skate.shutdown() was called since the pool or executor was made.\n"
    "  next: make another one."
)

log = logging.getLogger("skate")


def cluster_cpus() -> int:
    """How many workers a crew has if nobody says."""
    return max(1, int(skate.cluster_resources().get("CPU", 1)))


class Answer(NamedTuple):
    """What a worker did: the values of the calls up to the first error, and that error."""

    values: list[Any]
    error: BaseException | None


class Worker:
    """Runs whatever it is given. An actor."""

    def __init__(self, authkey: bytes, *, survives_exit: bool) -> None:
        # What a `multiprocessing.Manager()` shares can be used by processes that have the key.
        multiprocessing.current_process().authkey = authkey
        self._caught = (Exception, SystemExit, KeyboardInterrupt) if survives_exit else (Exception,)
        self._pid = os.getpid()
        #: The function of the last job. Jobs that have the same one do not send it again.
        self._function: Any = None

    def start(self, initializer: Callable[..., object] | None, initargs: tuple[Any, ...]) -> None:
        if initializer is not None:
            initializer(*initargs)
            settle()

    def run(
        self, function: Callable[..., Any], calls: Sequence[tuple[Any, ...]], kwargs: dict[str, Any]
    ) -> tuple[list[Any], BaseException | None, str]:
        self._function = function
        return self.run_again(calls, kwargs)

    def run_again(
        self, calls: Sequence[tuple[Any, ...]], kwargs: dict[str, Any]
    ) -> tuple[list[Any], BaseException | None, str]:
        """What makes an Answer, as a plain tuple: that is pickled faster."""
        function = self._function
        values: list[Any] = []
        try:
            for args in calls:
                values.append(function(*args, **kwargs))  # noqa: PERF401 - values so far are needed if one raises
        except self._caught as error:
            if isinstance(error, TaskInterrupt) or os.getpid() != self._pid or not _survives_pickling(error):
                raise  # it is to stop; or it is a child that the call has forked; or the core knows how to send it
            inside = error.__traceback__.tb_next if error.__traceback__ is not None else None  # without this frame
            text = "".join(traceback.format_exception(type(error), error, inside))
            error.__traceback__ = None
            return values, error, text
        return values, None, ""


RemoteWorker = skate.remote(Worker)


def _survives_pickling(error: BaseException) -> bool:
    import cloudpickle

    try:
        return type(cloudpickle.loads(cloudpickle.dumps(error))) is type(error)
    except Exception:  # noqa: BLE001 - whatever its __reduce__ does, the answer is no
        return False


# --- jobs -------------------------------------------------------------------------------------------------------------


def is_plain(function: object) -> bool:
    """Whether it has no state of its own, which a call may change, here or there."""
    return isinstance(function, FunctionType) and function.__closure__ is None


class Job(abc.ABC):
    """Calls of one function that a worker makes one after another, and what becomes of them."""

    def __init__(
        self,
        function: Callable[..., Any],
        calls: Sequence[tuple[Any, ...]],
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.function = function
        self.calls = calls
        self.kwargs = kwargs or {}
        #: Tells whether a worker has it from the job before. What has a state is sent anew each time.
        self.token: object = function if is_plain(function) else object()

    def begin(self) -> bool:
        """A worker is about to get it; False if it was cancelled."""
        return True

    @abc.abstractmethod
    def succeed(self, answer: Answer) -> None:
        """Called in the crew's thread, once, unless `fail` is."""

    @abc.abstractmethod
    def fail(self, error: BaseException) -> None:
        """No worker answered: it died, or the job could not be sent."""


class _Member:
    """A worker, as the crew sees it."""

    __slots__ = ("actor", "jobs_done", "token")

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.jobs_done = 0
        #: That of the job whose function the worker holds.
        self.token: object = None


class _News(NamedTuple):
    """Something that the crew's thread has to see to. Without a member, `error` is for the job."""

    member: _Member | None
    job: Job | None
    answer: Future[Any] | None
    error: BaseException | None


class Crew:
    """A number of workers, and the jobs that wait for them. From any thread."""

    def __init__(
        self,
        size: int,
        *,
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
        jobs_per_worker: int | None = None,
        options: dict[str, Any] | None = None,
        when_broken: Callable[[BaseException], BaseException] = lambda error: error,
        starts_all: bool = False,
        survives_exit: bool = False,
    ) -> None:
        self.size = size
        #: Its workers belong to the runtime of this moment, and not to one that is started after a shutdown.
        self._session = skate.get_runtime_context().get_job_id()
        self._initializer = initializer
        self._initargs = initargs
        self._namespace = None if initializer is None else namespace_of(initializer)
        self._jobs_per_worker = jobs_per_worker
        self._remote_class = RemoteWorker.options(**{**WORKER_OPTIONS, **(options or {})})
        self._when_broken = when_broken
        self._starts_all = starts_all
        #: Whether a call that raises SystemExit or the like fails with that, or ends its worker.
        self._survives_exit = survives_exit
        #: Plain functions as they were when they were first sent, with the globals of the script that they use: in all
        #: workers the same, whatever the script does with its globals later.
        self._frozen: WeakKeyDictionary[Any, skate.ObjectRef[Any]] = WeakKeyDictionary()
        self._lock = threading.RLock()
        self._waiting: deque[Job] = deque()
        self._idle: list[_Member] = []
        #: All that may get jobs, now or when they have started.
        self._members: set[_Member] = set()
        self._starting = 0
        self._running: dict[_Member, Job] = {}
        #: Calls to workers that have not been answered, and news that nobody has seen to.
        self._expected = 0
        self._inbox: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: Those who will submit more, although the crew is closed to others.
        self._holds = 0
        self._is_closed = False
        self._terminated = False
        self.broken: BaseException | None = None
        self._ended = threading.Event()
        if starts_all:
            with self._lock:
                self._hire(making=True)

    # -- for its users -------------------------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        with self._lock:
            if self.broken is None and not self.is_current:
                self._break(NotInitializedError(_GONE))
            if (error := self.final_error) is not None:
                self._tell(_News(None, job, None, error))
            else:
                # Not here: Ctrl-C between a call that was sent and its note would lose the worker.
                self._tell(_News(None, None, None, None))
                self._waiting.append(job)

    def hold(self) -> None:
        """More jobs will come from this one, even if the crew is closed; until `release`."""
        with self._lock:
            self._holds += 1

    def release(self) -> None:
        with self._lock:
            self._holds -= 1
            self._end_if_done()

    def close(self) -> None:
        """What was submitted is done; then the workers end."""
        with self._lock:
            self._is_closed = True
            self._end_if_done()

    def cancel_waiting(self, cancel: Callable[[Job], None]) -> None:
        """Give up the jobs that no worker has; `cancel` tells who waits for them."""
        with self._lock:
            jobs, self._waiting = self._waiting, deque()
        for job in jobs:
            cancel(job)
        with self._lock:
            self._end_if_done()

    def terminate(self) -> None:
        """End the workers now, whatever they do. Jobs that are not done fail."""
        with self._lock:
            self._is_closed = self._terminated = True
            while self._waiting:
                self._tell(_News(None, self._waiting.popleft(), None, _terminated()))
            members, self._members = self._members, set()
            self._idle.clear()
            for member in members:
                self._kill(member)
            self._end_if_done()

    def wait_ended(self, timeout: float | None = None) -> bool:
        return self._ended.wait(timeout)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_busy(self) -> bool:
        """Whether there are jobs that are not done."""
        return bool(self._waiting or self._running or self._holds)

    @property
    def final_error(self) -> BaseException | None:
        """What every further job fails with; None while the crew takes jobs."""
        return self.broken or (_terminated() if self._terminated else None)

    @property
    def is_current(self) -> bool:
        """Whether the runtime that it was made in still runs."""
        try:
            return skate.is_initialized() and skate.get_runtime_context().get_job_id() == self._session
        except NotInitializedError:  # since the first half of that line
            return False

    # -- giving out jobs: with the lock held ---------------------------------------------------------------------------

    def _assign(self) -> None:
        if not self.is_current:  # a call would start another runtime
            if self._waiting:
                self._break(NotInitializedError(_GONE))
            return
        while self._waiting and self._idle:
            job = self._waiting.popleft()
            if job.begin():
                self._send(self._idle.pop(), job)
        self._hire()

    def _send(self, member: _Member, job: Job) -> None:
        try:
            if member.token is job.token:
                answer = member.actor.run_again.remote(job.calls, job.kwargs).future()
            else:
                answer = member.actor.run.remote(self._sent(job.function), job.calls, job.kwargs).future()
        except Exception as error:  # noqa: BLE001 - the job's own: it cannot be pickled, or Skate is gone
            self._idle.append(member)
            self._tell(_News(None, job, None, error))
            if isinstance(error, (NotInitializedError, NodeDiedError)):
                self._break(error)
            return
        member.token = job.token
        self._running[member] = job
        self._expect(member, job, answer)

    def _hire(self, *, making: bool = False) -> None:
        """Start workers: all there may be, or as many as there are jobs for."""
        if self._is_closed and not self._waiting and not self._holds:
            return
        wanted = self.size if self._starts_all else len(self._members) + len(self._waiting) - self._starting
        while len(self._members) < min(self.size, wanted) and self.broken is None and not self._terminated:
            try:
                authkey = bytes(multiprocessing.current_process().authkey)
                member = _Member(self._remote_class.remote(authkey, survives_exit=self._survives_exit))
                answer = member.actor.start.remote(self._sent(self._initializer), self._initargs).future()
            except Exception as error:
                if making:
                    raise  # an initializer that cannot be pickled
                self._break(error)
                return
            self._members.add(member)
            self._starting += 1
            self._expect(member, None, answer)

    def _sent(self, function: Callable[..., Any] | None) -> Any:
        """What is given to a worker for this function."""
        sent = function if function is None or self._namespace is None else Sent(function, self._namespace)
        if not is_plain(function):
            return sent
        if function not in self._frozen:
            self._frozen[function] = skate.put(sent)
        return self._frozen[function]

    def _expect(self, member: _Member, job: Job | None, answer: Future[Any]) -> None:
        self._expected += 1
        self._start_thread()
        inbox = self._inbox
        answer.add_done_callback(lambda answer: inbox.put(_News(member, job, answer, None)))

    def _tell(self, news: _News) -> None:
        self._expected += 1
        self._start_thread()
        self._inbox.put(news)

    def _start_thread(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="skate-crew", daemon=True)
            self._thread.start()

    def _break(self, error: BaseException) -> None:
        if self.broken is None and not self._terminated:
            self.broken = self._when_broken(error)
            # Whoever has called skate.shutdown(), or ended the program, knows that.
            if not self._waiting and self.is_current:
                log.error("the workers of a pool or executor cannot go on: %s", error)
            while self._waiting:
                self._tell(_News(None, self._waiting.popleft(), None, self.broken))

    def _end_if_done(self) -> None:
        if not self._is_closed or self._waiting or self._running or (self._holds and not self._terminated):
            return
        members, self._members = self._members, set()
        self._idle.clear()
        self._frozen.clear()
        for member in members:
            self._dismiss(member)
        if not self._expected:
            self._ended.set()

    def _dismiss(self, member: _Member) -> None:
        """Let a worker end by itself; `wait_ended` waits for that."""
        self._members.discard(member)
        if not self.is_current:
            return
        gone = member.actor.__ray_terminate__.remote().future()
        self._expected += 1
        self._start_thread()
        inbox = self._inbox
        gone.add_done_callback(lambda _: inbox.put(_News(None, None, None, None)))

    def _kill(self, member: _Member) -> None:
        if self.is_current:
            skate.kill(member.actor)

    # -- answers: in the crew's thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                patience_s = None if self._expected else LINGER_S
            try:
                news = self._inbox.get(timeout=patience_s)
            except queue.Empty:
                with self._lock:
                    if not self._expected:
                        self._thread = None
                        return
                continue
            try:
                self._on_news(*news)
            except Exception:
                log.exception("a callback of a pool or executor raised")
            # While it waits, the thread keeps nothing alive.
            del news

    def _on_news(
        self, member: _Member | None, job: Job | None, answer: Future[Any] | None, error: BaseException | None
    ) -> None:
        value: Any = None
        if answer is not None:
            error = answer.exception()
            value = answer.result() if error is None else None
        with self._lock:
            if member is not None and job is None:
                self._on_started(member, error)
            elif member is not None:
                error = self._on_answered(member, error)
            self._assign()
        try:
            if job is not None and error is not None:
                job.fail(error)
            elif job is not None:
                job.succeed(_answer(*value))
        finally:
            with self._lock:
                self._expected -= 1
                self._end_if_done()

    def _on_started(self, member: _Member, error: BaseException | None) -> None:
        self._starting -= 1
        if error is None:
            if member in self._members:
                self._idle.append(member)
            return
        self._members.discard(member)
        self._break(error)

    def _on_answered(self, member: _Member, error: BaseException | None) -> BaseException | None:
        del self._running[member]
        if member not in self._members:
            return error if error is None else _terminated()
        if error is not None:
            member.token = None  # it may not have the function
        if isinstance(error, (NodeDiedError, NotInitializedError)):
            self._members.discard(member)
            self._break(error)
        elif isinstance(error, ActorError) and not isinstance(error, TaskError):
            self._members.discard(member)
            self._kill(member)  # it may have restarted, without its initializer
        else:
            member.jobs_done += 1
            if member.jobs_done == self._jobs_per_worker:
                self._dismiss(member)
            else:
                self._idle.append(member)
        return error


def _answer(values: list[Any], error: BaseException | None, text: str) -> Answer:
    """The error as it was, with the traceback of where it was raised as its cause."""
    if error is not None:
        error.__cause__ = RemoteTraceback(f'\n"""\n{text}"""')
    return Answer(values, error)


def _terminated() -> TaskCancelledError:
    return TaskCancelledError("the call did not complete: its pool was terminated.")
