"""Optuna's trials on Skate: study and objective as they are, trials on all CPUs, no database.

    >>> from skate.util.optuna import optimize
    >>> study = optuna.create_study()
    >>> optimize(study, lambda trial: trial.suggest_float("x", -1, 1) ** 2, trials=100, in_flight=2)
    >>> study.best_params

Idea:      the study and its trials never leave the driver. An objective runs in a task, and every method that it calls
           on its trial is a question to the driver, where the real `optuna.Trial` answers. So each sampler and pruner,
           a user's own among them, sees the same calls in one thread, and with one trial in flight they come in the
           order of `study.optimize`: a seeded sampler gives the same trials. A trial begins when its task runs, and not
           when that is submitted: the sampler knows all that has ended by then.
Rejected:  sampling in the worker from a copy of the study is right for samplers without a memory only. A study that
           lives in an actor needs its trials, callbacks and storage carried back. Trials in actors would save a hop of
           a question, but an objective that waits for tasks of its own would keep its CPUs from them.
Knows not: Optuna's inside, but for three private names: two are the only way to support `study.stop` (see `_Loop.run`),
           and the id of a trial, which integrations read from it.
Invariant: no trial is RUNNING when `optimize` has returned or raised; see tests/integration/test_util_optuna.py.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

import skate
from skate import cloudpickle
from skate.exceptions import NodeDiedError, OutOfMemoryError, SkateError, TaskError, WorkerCrashedError
from skate.util._exchange import Exchange

try:
    import optuna
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise ImportError(
        f"skate.util.optuna needs Optuna, and it could not be imported.\n  why:  {error}\n"
        "  next: pip install 'skate[optuna]'"
    ) from error

__all__ = ["optimize"]

Objective = Callable[[optuna.Trial], float | Sequence[float]]
Callback = Callable[[optuna.Study, FrozenTrial], None]

#: How long objectives have for their `finally` blocks when a search ends early. Then their workers are ended.
GRACE_S = 1.0
#: After so many deaths of workers in a row, all before a trial has begun, the search gives up.
DEATHS_MAX = 5

#: What `study.optimize` calls some arguments, and what they are called here.
OPTUNAS_NAMES = {"n_trials": "trials", "n_jobs": "in_flight", "show_progress_bar": "progress"}

#: Below Optuna's own logger, so that `optuna.logging.set_verbosity` counts here too.
_logger = optuna.logging.get_logger("optuna.skate")


def optimize(
    study: optuna.Study,
    objective: Objective,
    trials: int | None = None,
    in_flight: int | None = None,
    *,
    timeout: float | None = None,
    catch: type[Exception] | Iterable[type[Exception]] = (),
    callbacks: Iterable[Callback] | None = None,
    progress: bool = True,
    max_retries: int = 0,
    **options: Any,
) -> None:
    """Run trials of a study in tasks; `study.optimize` on all CPUs of a machine or cluster.

        >>> optimize(study, objective, trials=200, in_flight=8, num_cpus=1)

    At most `trials` trials are run (None: until `timeout` or `study.stop()`), `in_flight` of them at a time (None: as
    many as the cluster has room for). `options` are those of tasks: `num_cpus`, `num_gpus`, `resources`, `runtime_env`.
    `timeout`, `catch` and `callbacks` mean what they mean in Optuna. After `timeout` seconds no trial begins. An
    exception of the objective fails its trial; if it is not in `catch`, trials that still run are ended and recorded
    as failed, and it is raised here. Callbacks run in this process when a trial has ended. A trial whose worker dies is
    run again with the same parameters up to `max_retries` times, and then has failed; the search goes on. `progress`
    shows a bar if stderr is a terminal and rich is installed.
    """
    if not isinstance(study, optuna.Study):
        raise TypeError(f"optimize() takes a study of Optuna, not {study!r}: make one with optuna.create_study().")
    if not callable(objective):
        raise TypeError(f"the objective is {objective!r}, which cannot be called; it may be a function of a trial.")
    for name, number, least in (("trials", trials, 0), ("in_flight", in_flight, 1)):
        if number is not None and (not isinstance(number, int) or isinstance(number, bool)):
            raise TypeError(f"{name}={number!r} is not a whole number; it may be {least} or more, or None.")
        if number is not None and number < least:
            raise ValueError(f"{name}={number} is too small; it may be {least} or more, or None.")
    if timeout is not None and not timeout >= 0:
        raise ValueError(f"timeout={timeout!r} is not a time; it may be a number of seconds, 0 or more, or None.")
    for name in OPTUNAS_NAMES.keys() & options.keys():
        raise TypeError(f"optimize({name}=…) is {OPTUNAS_NAMES[name]}= here; {name} is a word of study.optimize.")
    for name in {"num_returns", "retry_exceptions"} & options.keys():
        raise ValueError(f"{name} has no meaning for trials: a failed objective is a failed trial (see catch=).")
    caught = (catch,) if isinstance(catch, type) else tuple(catch)
    if study._thread_local.in_optimize_loop:
        raise RuntimeError("this study is being optimized: optimize() cannot be called in its objective or callbacks.")
    run = skate.remote(**{"name": "trial", "num_cpus": 1, **options, "max_retries": max_retries})(_runner(objective))
    if not skate.is_initialized():
        skate.init()
    with _bar(trials, progress) as show:
        loop = _Loop(study, run, trials, in_flight or _room(options), timeout, caught, tuple(callbacks or ()), show)
        loop.run()


# --- in the driver ----------------------------------------------------------------------------------------------------


class _Loop:
    """One call of `optimize`: which tasks there are, which trial each has, and what to do when one asks or ends."""

    def __init__(
        self,
        study: optuna.Study,
        run: Any,
        trials: int | None,
        in_flight: int,
        timeout: float | None,
        catch: tuple[type[Exception], ...],
        callbacks: tuple[Callback, ...],
        show: Callable[[str], None] | None,
    ) -> None:
        self._study = study
        self._run = run
        self._left = sys.maxsize if trials is None else trials
        self._in_flight = in_flight
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._catch = catch
        self._callbacks = callbacks
        self._show = show
        self._tasks: dict[Any, int] = {}  # from the reference of a task to its number
        self._trials: dict[int, optuna.Trial] = {}  # by the number of the task; of those that have begun
        self._asked_at: datetime | None = None
        #: Workers that died before their trial had begun, in a row.
        self._deaths = 0

    def run(self) -> None:
        # `study.stop()` works where this flag is set, and sets the other. Optuna has no public way to it.
        self._study._thread_local.in_optimize_loop = True
        self._study._stop_flag = False
        exchange = skate.remote(Exchange).options(num_cpus=0).remote()
        try:
            turn = exchange.turn.remote([])
            numbers = iter(range(sys.maxsize))
            while True:
                while self._may_begin() and len(self._tasks) < min(self._in_flight, len(self._trials) + self._left):
                    number = next(numbers)
                    self._tasks[self._run.remote(number, exchange)] = number
                if not self._trials and not self._may_begin():
                    return
                ready, _ = skate.wait([turn, *self._tasks], num_returns=1, timeout=self._patience())
                for ref in ready:
                    if ref == turn:
                        turn = exchange.turn.remote([self._answer(*question) for question in skate.get(turn)])
                    else:
                        self._ended(ref)
        finally:
            self._study._thread_local.in_optimize_loop = False
            self._end_all()
            skate.kill(exchange)

    def _may_begin(self) -> bool:
        in_time = self._deadline is None or time.monotonic() < self._deadline
        return self._left > 0 and in_time and not self._study._stop_flag

    def _patience(self) -> float | None:
        """How long to wait for the next event. Tasks that wait for resources must not hold up the end of the search."""
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        return left if left > 0 else None if self._trials else 0

    def _answer(self, asked: int, number: int, question: bytes) -> tuple[int, bytes]:
        """Do what the objective of a task asks for. What that raises is raised in the objective."""
        kind, name, arguments, keywords = cloudpickle.loads(question)
        try:
            if kind == "begin":
                answer = self._begin(number)
            else:
                trial = self._trials[number]
                answer = getattr(trial if kind == "trial" else trial.study, name)
                if arguments is not None:
                    answer = answer(*arguments, **keywords)
            return asked, cloudpickle.dumps((True, answer))
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the objective
            return asked, cloudpickle.dumps((False, error))

    def _begin(self, number: int) -> tuple[int, int] | None:
        """The number and id of a trial for a task that runs now; None if the search has ended."""
        if number not in self._trials:  # else the task is run again, and keeps its trial
            if not self._may_begin():
                return None
            self._asked_at = datetime.now()
            self._trials[number] = self._study.ask()
            self._asked_at = None
            self._left -= 1
        return self._trials[number].number, self._trials[number]._trial_id

    def _ended(self, ref: Any) -> None:
        trial = self._trials.get(self._tasks[ref])
        error: Exception | None = None
        values = state = None
        try:
            values = skate.get(ref)
        except optuna.TrialPruned as pruned:
            state, error = TrialState.PRUNED, pruned
        except Exception as failed:  # noqa: BLE001 - raised below
            state, error = TrialState.FAIL, failed
        if trial is None:
            del self._tasks[ref]
            self._deaths += 1
            died = isinstance(error, (WorkerCrashedError, OutOfMemoryError, NodeDiedError))
            if error is not None and not (died and self._deaths < DEATHS_MAX):
                raise error  # its task never ran, and no other will: what it asks for is not there, for instance
            return
        self._deaths = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about values that are no numbers: said below
            ended = self._study.tell(trial, values, state)
        del self._trials[self._tasks.pop(ref)]
        self._say(ended, values, error)
        # A worker that died is the bad luck of one trial. What the objective raised would be raised again.
        raised = isinstance(error, TaskError) or not isinstance(error, SkateError)
        if ended.state == TrialState.FAIL and error is not None and raised and not isinstance(error, self._catch):
            raise error
        for callback in self._callbacks:
            callback(self._study, ended)

    def _say(self, ended: FrozenTrial, values: Any, error: Exception | None) -> None:
        if ended.state == TrialState.FAIL:
            why = repr(error) if error is not None else f"the objective returned {values!r}"
            _logger.warning(f"Trial {ended.number} failed with parameters: {ended.params}, because: {why}")
        elif self._show is None:
            what = "pruned" if ended.state == TrialState.PRUNED else f"finished with values: {ended.values}"
            _logger.info(f"Trial {ended.number} {what} and parameters: {ended.params}.")
        if self._show is not None:
            best = ""
            if len(self._study.directions) == 1:
                with contextlib.suppress(ValueError):  # no trial has a value yet
                    best = f"best {self._study.best_value:.6g}"
            self._show(best)

    def _end_all(self) -> None:
        """End the tasks that are left; their trials, and one that was being made, have failed."""
        for ref in self._tasks:
            skate.cancel(ref)
        running = [ref for ref, number in self._tasks.items() if number in self._trials]
        if running:
            for ref in skate.wait(running, num_returns=len(running), timeout=GRACE_S)[1]:
                skate.cancel(ref, force=True)
        left = [trial.number for trial in self._trials.values()]
        if self._asked_at is not None:  # Ctrl-C came inside of `ask`, which may have made a trial by then
            of_ours = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
            left += [t.number for t in of_ours if t.datetime_start and t.datetime_start >= self._asked_at]
        for trial_number in set(left):
            self._study.tell(trial_number, state=TrialState.FAIL, skip_if_finished=True)


def _room(options: dict[str, Any]) -> int:
    """How many tasks with these options the cluster can run at a time."""
    asked = {"CPU": 1, **(options.get("resources") or {})}
    asked.update({"CPU": options["num_cpus"]} if options.get("num_cpus") is not None else {})
    asked.update({"GPU": options["num_gpus"]} if options.get("num_gpus") is not None else {})
    has = skate.cluster_resources()
    if not any(asked.values()):
        return max(1, int(has.get("CPU", 1)))
    return max(1, int(min(has.get(name, 0) / amount for name, amount in asked.items() if amount)))


@contextlib.contextmanager
def _bar(trials: int | None, wanted: bool) -> Iterator[Callable[[str], None] | None]:
    """What to call with a text after each trial; None if no bar is shown."""
    if not wanted or not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[text]}", markup=False)
    with Progress(TextColumn("trials"), *columns, console=Console(stderr=True)) as display:
        bar = display.add_task("trials", total=trials, text="")
        yield lambda text: display.update(bar, advance=1, text=text)


# --- in workers -------------------------------------------------------------------------------------------------------


def _runner(objective: Objective) -> Callable[[int, Any], Any]:
    # The objective is part of the function, so it is sent to a worker once, and what it keeps in globals stays there.
    def run(number: int, exchange: Any) -> Any:
        ask = functools.partial(_ask, exchange, number)
        begun = ask("begin", "", None, None)
        return None if begun is None else objective(_WorkerTrial(ask, *begun))

    return run


def _ask(exchange: Any, number: int, *question: Any) -> Any:
    done, answer = cloudpickle.loads(skate.get(exchange.ask.remote(number, cloudpickle.dumps(question))))
    if not done:
        raise answer
    return answer


def _forward(kind: str, original: type, *, but: tuple[str, ...] = ()) -> Callable[[type], type]:
    """A class decorator: each public method and property of `original` asks the driver for what it does there."""

    def method(name: str) -> Any:
        def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
            return self._ask(kind, name, arguments, keywords)

        return functools.wraps(getattr(original, name))(call)

    def value_of(name: str) -> Any:
        return property(lambda self: self._ask(kind, name, None, None))

    def refused(name: str) -> Any:
        def call(self: Any, *_: Any, **__: Any) -> Any:
            raise RuntimeError(f"{original.__name__}.{name}() cannot be called in a worker: call it in the driver.")

        return call

    def decorate(cls: type) -> type:
        for name in dir(original):
            if name in but:
                setattr(cls, name, refused(name))
            elif isinstance(getattr(original, name), property) and name not in vars(cls):
                setattr(cls, name, value_of(name))
            elif not name.startswith("_") and name not in vars(cls):
                setattr(cls, name, method(name))
        return cls

    return decorate


@_forward("study", optuna.Study, but=("ask", "tell", "optimize"))
class _WorkerStudy(optuna.Study):
    """What `trial.study` is in a worker: `study.stop()`, `study.direction`, `study.best_value` …"""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask


@_forward("trial", optuna.Trial)
class _WorkerTrial(optuna.Trial):
    """A trial as an objective sees it. The trial itself is in the driver."""

    def __init__(self, ask: Callable[..., Any], number: int, trial_id: int) -> None:
        self._ask = ask
        self._number = number
        self._trial_id = trial_id
        self.study = _WorkerStudy(ask)

    @property
    def number(self) -> int:
        return self._number
