"""`train.run`: a function on several workers that train together.

    Group (group.py) ──► the workers' fit(...)
                              │ reports
    Recorder ◄────────────────┤           history.jsonl, callbacks, the line on the terminal (record.py)
    checkpoint-N ◄── Commit ── Supervisor (supervise.py) ◄── events

Invariant: when `run` returns or raises, whatever the reason, its workers are ended and their resources are free.
Idea:      what this module decides it asks the Supervisor; here is only what is done.
"""

from __future__ import annotations

import os
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import skate
from skate import exceptions
from skate.train import checkpoint as checkpoints
from skate.train import supervise
from skate.train.arguments import Options, checked_options, takes_config
from skate.train.folder import locked_folder, read_history
from skate.train.group import Group, NoRoomError, StartFailedError
from skate.train.progress import Line
from skate.train.record import Attempt, Recorder, Result, Row

__all__ = ["Result", "Row", "run"]

#: How long reports may be on their way when a rank has failed.
REPORTS_WITHIN_S = 1.0


def run(
    fit: Callable[..., Any],
    config: Any = None,
    *,
    workers: int | tuple[int, int] = 2,
    failures: int | None = 0,
    path: str | os.PathLike[str] | None = None,
    resources_per_worker: Mapping[str, float] | None = None,
    keep: int | None = 2,
    best: tuple[str, str] | None = None,
    stall_after: float | None = None,
    reduce: str | Mapping[str, str] | None = None,
    callbacks: Sequence[Callable[[Result, Row], Any]] = (),
    progress: bool | None = None,
) -> Result:
    """Run a training function on several workers, which find torchrun's environment.

    >>> result = train.run(fit, {"lr": 1e-3}, workers=2, failures=3, path="runs/mnist")
    >>> result.metrics["loss"], result.checkpoint.load()["state"]["model"]

    fit: is called in every worker, with `config` if it takes an argument.
    workers: how many; or a pair (least, most): as many as there is room for, fewer when a machine is lost, and more
    again, after a checkpoint, when there is room.
    failures: how often the workers are started again, from the last committed checkpoint, after one of them raised,
    died or stalled. When no failure is left, the first cause is raised. None: without end.
    path: the folder of the run; one that has a checkpoint goes on from it. Workers on several machines need a folder
    that all of them see. Without it, a new folder below `runs`.
    resources_per_worker: {"CPU": 1} if it is not given.
    keep: how many checkpoints stay; None: all. best: which ones, ("accuracy", "max") or ("loss", "min"), by what rank 0
    reports beside each; the last one stays too. None: the last ones.
    stall_after: after so many seconds without a report the ranks that hold up the others are found, and it counts as
    their failure. It has to be longer than the longest time between two reports of a rank. None: never.
    reduce: how the metrics of all ranks become one row per step: "mean", "sum", "min", "max", or a dict of these by
    name; a metric that is not in it is that of rank 0. None: every rank has its own rows.
    callbacks: functions of the Result and the newest row of its history, called here; one that has `close` is closed
    at the end. progress: whether to show numbers on stderr; None: on a terminal.
    """
    options = checked_options(
        fit,
        workers=workers,
        failures=failures,
        resources=resources_per_worker,
        keep=keep,
        best=best,
        stall_after=stall_after,
        reduce=reduce,
        callbacks=callbacks,
    )
    with_config = takes_config(fit, config)
    starts_skate = not skate.is_initialized()
    if starts_skate:
        skate.init()
    try:
        Group(options.resources, print).check_room(options.least)
        with locked_folder(fit, path) as folder, closing(Line(folder.name, progress)) as line:
            result = Result(folder, history=read_history(folder), about={"config": config, "workers": workers})
            training = _Training((skate.put(fit), config, with_config), options, result, line)
            try:
                return training.run()
            finally:
                for callback in callbacks:
                    if hasattr(callback, "close"):
                        callback.close()
    finally:
        if starts_skate:
            skate.shutdown()


class _Training:
    """One call of `run`."""

    def __init__(self, fit: tuple[Any, Any, bool], options: Options, result: Result, line: Line) -> None:
        self._fit, self._options, self._result, self._line = fit, options, result, line
        self._supervisor = supervise.Supervisor(options.failures, options.stall_after)
        self._group = Group(options.resources, line.say)
        self._run_id = uuid.uuid4().hex
        self._failed = 0
        #: What the attempt has come to, once it is over.
        self._end: supervise.Command | None = None
        self._recorder: Recorder

    def run(self) -> Result:
        result = self._result
        while True:
            try:
                self._attempt()
            finally:
                self._group.end()
            end, attempt = self._end, result.attempts[-1]
            if isinstance(end, supervise.Restart):
                self._failed += 1
                result.error = attempt.error = end.error
                self._line.say(_told(end, result.path))
            elif isinstance(end, supervise.GiveUp):
                attempt.error = end.error
                _note_where(end, attempt.workers, self._group.dismissed, result.path)
                raise end.error
            elif isinstance(end, supervise.Grow):
                self._line.say(
                    f"There is room for {end.workers} workers: all start again, after {_place(result.path)}."
                )
            else:
                assert isinstance(end, supervise.Finish)
                checkpoints.discard_parts(result.path)
                _warn_of_incomplete(end.incomplete)
                return result

    def _attempt(self) -> None:
        result, options = self._result, self._options
        self._end = None
        result.checkpoint = checkpoints.latest(result.path)
        last = -1 if result.checkpoint is None else result.checkpoint.step
        attempt = Attempt(workers=0, first_step=last + 1)
        result.attempts.append(attempt)
        try:
            attempt.workers = workers = self._group.reserve(options.least, options.most)
        except NoRoomError as error:
            if result.error is None:
                raise
            raise result.error from error
        with closing(Recorder(result, workers, last, options, self._line)) as self._recorder:
            self._supervisor.begin(workers, time.monotonic())
            try:
                self._start(workers)
            except StartFailedError as failed:
                self._handle(supervise.Failed(failed.rank, failed.error))
            else:
                self._supervisor.begin(workers, time.monotonic())
            while self._end is None:
                self._step()

    def _start(self, workers: int) -> None:
        result = self._result
        about = {
            "path": str(result.path),
            "restarts": len(result.attempts) - 1,
            "checkpoint": None if result.checkpoint is None else str(result.checkpoint.path),
            "threads_are_set": _is_driver() and "OMP_NUM_THREADS" in os.environ,
        }
        self._group.start(
            workers,
            about,
            run_id=self._run_id,
            failed=self._failed,
            failures=self._options.failures,
            stall_after=self._options.stall_after,
            fit=self._fit,
        )

    def _step(self) -> None:
        """Wait for what comes next from any rank, and do what follows from it."""
        group = self._group
        wake_at = self._supervisor.wake_at()
        left = None if wake_at is None else max(0.0, wake_at - time.monotonic())
        ready = skate.wait([*group.fits, *group.streams], num_returns=1, timeout=left)[0]
        if not ready:
            self._handle(supervise.Tick())
        for item in ready:
            if self._end is not None:
                return
            if item in group.streams:
                self._read(item)
            elif item in group.fits:
                self._ended(item)

    def _read(self, stream: Any) -> None:
        """Take the next report of a rank. A stream that breaks with its rank says nothing: the rank's `fit` does."""
        rank = self._group.streams.pop(stream)
        try:
            step, metrics, given = skate.get(next(stream))
        except (StopIteration, exceptions.ActorError):
            return
        except exceptions.SkateError as error:  # what was reported cannot be sent
            self._handle(supervise.Failed(rank, error))
            return
        self._group.streams[stream] = rank  # behind the others, so that one that reports all the time holds up none
        rows = self._recorder.reported(rank, step, metrics)
        self._handle(supervise.Reported(rank, step, given))
        self._recorder.tell(rows)

    def _ended(self, fit: Any) -> None:
        rank = self._group.fits.pop(fit)
        try:
            skate.get(fit)
        except exceptions.SkateError as error:
            self._read_what_is_on_its_way(REPORTS_WITHIN_S)
            if self._end is None:
                self._handle(supervise.Failed(rank, error, supervise.is_communication(error)))
            return
        own = next((stream for stream, of in self._group.streams.items() if of == rank), None)
        while own in self._group.streams:  # it ends, because the function has
            self._read(own)
        self._recorder.tell(self._recorder.finished(rank))
        if self._end is None:
            self._handle(supervise.Finished(rank))
        if self._end is None:
            self._group.dismiss(rank)

    def _read_what_is_on_its_way(self, within_s: float) -> None:
        """What ranks have reported before a failure counts: a checkpoint may be complete with it."""
        end = time.monotonic() + max(within_s, REPORTS_WITHIN_S)
        while self._group.streams and self._end is None:
            ready = skate.wait(list(self._group.streams), num_returns=1, timeout=within_s / 4)[0]
            for stream in ready:
                self._read(stream)
            if not ready or time.monotonic() > end:
                return

    def _handle(self, event: supervise.Event) -> None:
        options, result = self._options, self._result
        if self._end is not None:
            return
        for command in self._supervisor.handle(event, time.monotonic()):
            if isinstance(command, supervise.Commit):
                workers = result.attempts[-1].workers
                result.checkpoint = checkpoints.commit(result.path, command.step, workers, command.files_of)
                if options.keep is not None:
                    checkpoints.remove_all_but(result.path, options.keep, self._score)
                if workers < options.most and not command.is_sharded:
                    self._handle(supervise.HasRoom(self._group.could_grow_to(options.most)))
            elif isinstance(command, supervise.Look):
                looks = self._group.look()
                self._read_what_is_on_its_way(0.0)  # what has come meanwhile is no silence
                self._handle(supervise.Looked(looks))
            else:
                self._end = command

    def _score(self, checkpoint: checkpoints.Checkpoint) -> float:
        best = self._options.best
        return checkpoint.step if best is None else self._result.score(checkpoint, best)


def _is_driver() -> bool:
    """Whether this process is no worker of Skate, where Skate itself has set OMP_NUM_THREADS."""
    here = skate.get_runtime_context()
    return here.get_task_id() is None and here.get_actor_id() is None


def _told(end: supervise.Restart, folder: Path) -> str:
    """What a person is told of a failure that the run survives."""
    error = end.error
    reason = str(error).strip().splitlines()[-1] if isinstance(error, exceptions.TaskError) else str(error)
    while isinstance(error, exceptions.TaskError) and error.cause is not None:
        error = error.cause
        reason = f"{type(error).__name__}: {error}"
    who = "a worker that was starting" if end.rank is None else f"rank {end.rank}"
    place = _place(folder)
    left = "" if end.failures_left is None else f"; failures left: {end.failures_left}"
    return f"{who} failed: {reason}\nAll workers start again, after {place}{left}."


def _note_where(end: supervise.GiveUp, workers: int, finished: Sequence[int], folder: Path) -> None:
    """Say with the error which rank it was (`error.rank`), and how to go on. Python has notes from 3.11 on."""
    end.error.__dict__["rank"] = end.rank
    if hasattr(end.error, "add_note"):
        who = "a worker that was starting" if end.rank is None else f"rank {end.rank} of {workers}"
        before = f" The function had ended in rank {', '.join(map(str, finished))} by then." if finished else ""
        end.error.add_note(f"It was {who}.{before} train.run(…, path={str(folder)!r}) goes on after {_place(folder)}.")


def _place(folder: Path) -> str:
    saved = checkpoints.latest(folder)
    return "no step, because there is no checkpoint" if saved is None else f"step {saved.step}"


def _warn_of_incomplete(incomplete: Mapping[int, tuple[int, ...]]) -> None:
    if not incomplete:
        return
    step, ranks = next(iter(incomplete.items()))
    warnings.warn(
        f"{len(incomplete)} checkpoints were not written by all ranks, and are dropped.\n"
        f"  why:  that of step {step} was reported by ranks {', '.join(map(str, ranks))} only.\n"
        "  next: call report(checkpoint=…) on every rank, in the same steps.",
        stacklevel=4,
    )
