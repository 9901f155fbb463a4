"""`train.run`: a function on several workers that train together.

    placement group ──► a Worker per bundle ──► describe ──► setup (torchrun's environment) ──► fit
                                                                                                 │ reports
    history.jsonl, checkpoint-N ◄── commands ── Supervisor ◄── events ◄──────────────────────────┘

The folder of a run has

    history.jsonl      a line per report, by rank
    checkpoint-N/      the last committed checkpoints (checkpoint.py)

Invariant: when `run` returns or raises, whatever the reason, its workers are ended and their resources are free.
Idea:      what this module decides it asks the Supervisor (supervise.py); here is only what is done.
"""

from __future__ import annotations

import contextlib
import fcntl
import inspect
import json
import os
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import skate
from skate import exceptions
from skate.train import checkpoint as checkpoints
from skate.train import supervise
from skate.train.checkpoint import Checkpoint
from skate.train.worker import Worker
from skate.util.placement_group import placement_group, remove_placement_group
from skate.util.scheduling_strategies import PlacementGroupSchedulingStrategy

#: How often a run that waits for resources says so, and how often it shows numbers where there is no terminal.
LINE_EVERY_S = 10.0
#: How long reports may be on their way when a rank has failed.
REPORTS_WITHIN_S = 1.0
#: How long the processes of ended workers may take to be gone.
GONE_WITHIN_S = 10.0
HISTORY = "history.jsonl"

Row = dict[str, Any]


@dataclass
class Result:
    """What a training has come to; callbacks see it while it trains."""

    #: The folder of the run.
    path: Path
    #: What rank 0 has reported last.
    metrics: dict[str, Any] = field(default_factory=dict)
    #: Every report, as {"step": 3, "rank": 0, "loss": 0.5}; those after the checkpoint of a restart are dropped.
    history: list[Row] = field(default_factory=list)
    #: The last committed checkpoint.
    checkpoint: Checkpoint | None = None
    #: The last failure that the run survived.
    error: BaseException | None = None


def run(
    fit: Callable[..., Any],
    config: Any = None,
    *,
    workers: int = 2,
    failures: int = 0,
    path: str | os.PathLike[str] | None = None,
    resources_per_worker: Mapping[str, float] | None = None,
    keep: int | None = 2,
    callbacks: Sequence[Callable[[Result, Row], Any]] = (),
    progress: bool | None = None,
) -> Result:
    """Run a training function on several workers, which find torchrun's environment.

    >>> result = train.run(fit, {"lr": 1e-3}, workers=2, failures=3, path="runs/mnist")
    >>> result.metrics["loss"], result.checkpoint.load()["state"]["model"]

    fit: is called in every worker, with `config` if it takes an argument. workers: how many.
    failures: how often the workers are started again, from the last committed checkpoint, after one of them raised or
    died. When no failure is left, the first cause is raised.
    path: the folder of the run; one that has a checkpoint goes on from it. Workers on several machines need a folder
    that all of them see. Without it, a new folder below `runs`.
    resources_per_worker: {"CPU": 1} if it is not given. keep: how many checkpoints stay; None: all.
    callbacks: functions of the Result and a row of its history, called here for each report; one that has `close` is
    closed at the end. progress: whether to show numbers on stderr; None: on a terminal.
    """
    resources = _checked(fit, workers, failures, resources_per_worker, keep, callbacks)
    takes_config = _takes_config(fit, config)
    starts_session = not skate.is_initialized()
    if starts_session:
        skate.init()
    try:
        _check_resources(workers, resources)
        with _folder(fit, path) as folder:
            training = _Training(fit, config, takes_config, workers, failures, resources, keep, folder)
            training.shows = sys.stderr.isatty() if progress is None else progress
            training.callbacks = tuple(callbacks)
            try:
                return training.run()
            finally:
                for callback in callbacks:
                    if hasattr(callback, "close"):
                        callback.close()
    finally:
        if starts_session:
            skate.shutdown()


class _Group:
    """The workers of one attempt, in the order of their ranks."""

    def __init__(self) -> None:
        self.reserved: Any = None
        self.actors: list[Any] = []
        self.streams: dict[Any, int] = {}
        self.fits: dict[Any, int] = {}

    def start(self, workers: int, resources: Mapping[str, float], about: dict[str, Any], fit: tuple[Any, ...]) -> None:
        self.reserved = placement_group([dict(resources)] * workers)
        _wait_until_reserved(self.reserved, workers, resources)
        made = skate.remote(concurrency_groups={"reports": 1, "watch": 1})(Worker)
        other = {kind: amount for kind, amount in resources.items() if kind not in ("CPU", "GPU", "memory")}
        self.actors = [
            made.options(
                num_cpus=resources.get("CPU", 0),
                num_gpus=resources.get("GPU", 0),
                memory=resources.get("memory"),
                resources=other,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self.reserved, bundle),
            ).remote()
            for bundle in range(workers)
        ]
        places = skate.get([actor.describe.remote() for actor in self.actors])
        # Ranks of a machine follow each other, as torchrun has them.
        nodes = list(dict.fromkeys(place["node"] for place in places))
        order = sorted(range(workers), key=lambda index: nodes.index(places[index]["node"]))
        self.actors = [self.actors[index] for index in order]
        # Their resources are free for these, so the workers before them are gone and write no more.
        checkpoints.discard_parts(Path(about["path"]))
        ranks = _ranks([places[index] for index in order], about["restarts"])
        skate.get(
            [
                actor.setup.remote(environment, {}, {**about, **rank})
                for actor, (environment, rank) in zip(self.actors, ranks)
            ]
        )
        self.streams = {actor.reports.remote(): rank for rank, actor in enumerate(self.actors)}
        function = skate.put(fit[0])
        self.fits = {actor.fit.remote(function, *fit[1:]): rank for rank, actor in enumerate(self.actors)}

    def end(self) -> None:
        try:
            for actor in self.actors:
                skate.kill(actor)
            if self.fits:
                skate.wait(list(self.fits), num_returns=len(self.fits), timeout=GONE_WITHIN_S)
        finally:
            if self.reserved is not None:
                remove_placement_group(self.reserved)
            self.actors, self.streams, self.fits, self.reserved = [], {}, {}, None


class _Training:
    """One call of `run`."""

    shows = False
    callbacks: tuple[Callable[[Result, Row], Any], ...] = ()

    def __init__(
        self,
        fit: Callable[..., Any],
        config: Any,
        takes_config: bool,
        workers: int,
        failures: int,
        resources: Mapping[str, float],
        keep: int | None,
        folder: Path,
    ) -> None:
        self._fit = (fit, config, takes_config)
        self._workers, self._resources, self._keep = workers, resources, keep
        self._supervisor = supervise.Supervisor(workers, failures)
        self._result = Result(folder, history=_read_history(folder))
        self._restarts = 0
        self._group = _Group()
        #: What the attempt has come to, once it is over.
        self._end: supervise.Command | None = None
        self._wait_until: float | None = None
        self._next_line = 0.0

    def run(self) -> Result:
        result = self._result
        while True:
            try:
                self._attempt()
            finally:
                self._group.end()
            end = self._end
            if isinstance(end, supervise.Restart):
                result.error = end.error
                self._restarts += 1
                self._say_restart(end)
                continue
            if isinstance(end, supervise.GiveUp):
                raise end.error
            checkpoints.discard_parts(result.path)
            if isinstance(end, supervise.Finish) and end.incomplete:
                step, ranks = next(iter(end.incomplete.items()))
                warnings.warn(
                    f"{len(end.incomplete)} checkpoints were not written by all ranks, and are dropped.\n"
                    f"  why:  that of step {step} was reported by ranks {', '.join(map(str, ranks))} only.\n"
                    "  next: call report(checkpoint=…) on every rank, in the same steps.",
                    stacklevel=3,
                )
            return result

    def _attempt(self) -> None:
        result = self._result
        self._end = self._wait_until = None
        result.checkpoint = checkpoints.latest(result.path)
        last = -1 if result.checkpoint is None else result.checkpoint.step
        result.history = [row for row in result.history if row["step"] <= last]
        result.metrics = next((_metrics(row) for row in reversed(result.history) if row["rank"] == 0), {})
        saved = None if result.checkpoint is None else str(result.checkpoint.path)
        about = {"path": str(result.path), "restarts": self._restarts, "checkpoint": saved}
        with _history_file(result.path, result.history) as file:
            try:
                self._group.start(self._workers, self._resources, about, self._fit)
            except (exceptions.ActorError, exceptions.NodeDiedError) as error:
                self._handle(supervise.Failed(0, error))
            while self._end is None:
                self._step(file)

    def _step(self, file: Any) -> None:
        """Wait for what comes next from any rank, and do what follows from it."""
        group = self._group
        left = None if self._wait_until is None else max(0.0, self._wait_until - time.monotonic())
        pending = [*group.streams, *group.fits]
        ready = skate.wait(pending, num_returns=1, timeout=left)[0] if pending else []
        if not ready:
            self._wait_until = None
            self._handle(supervise.Waited())
            return
        for item in ready:
            if self._end is not None:
                return
            if item in group.streams:
                self._read(item, file)
            elif item in group.fits:
                self._ended(item, file)

    def _read(self, stream: Any, file: Any) -> None:
        """Take the next report of a rank. A stream that breaks says nothing: its rank's `fit` does."""
        rank = self._group.streams[stream]
        try:
            step, metrics, has_checkpoint = skate.get(next(stream))
        except (StopIteration, exceptions.SkateError):
            del self._group.streams[stream]
            return
        row = {"step": step, "rank": rank, **metrics}
        file.write(json.dumps(row, default=str) + "\n")
        file.flush()
        self._result.history.append(row)
        if rank == 0:
            self._result.metrics = dict(metrics)
        self._handle(supervise.Reported(rank, step, has_checkpoint))
        for callback in self.callbacks:
            callback(self._result, row)
        self._show(row)

    def _ended(self, fit: Any, file: Any) -> None:
        rank = self._group.fits.pop(fit)
        error: BaseException | None = None
        try:
            skate.get(fit)
        except exceptions.SkateError as raised:
            error = raised
        if error is None:
            own = next((stream for stream, of in self._group.streams.items() if of == rank), None)
            while own in self._group.streams:  # it ends, because the function has
                self._read(own, file)
        else:
            self._read_what_is_on_its_way(file)
        if error is None:
            self._handle(supervise.Finished(rank))
        else:
            self._handle(supervise.Failed(rank, error, supervise.is_communication(error)))

    def _read_what_is_on_its_way(self, file: Any) -> None:
        """What ranks reported before a failure counts: a checkpoint may be complete with it."""
        end = time.monotonic() + REPORTS_WITHIN_S
        while self._group.streams and time.monotonic() < end:
            ready = skate.wait(list(self._group.streams), num_returns=1, timeout=REPORTS_WITHIN_S / 4)[0]
            if not ready:
                return
            for stream in ready:
                self._read(stream, file)

    def _handle(self, event: supervise.Event) -> None:
        for command in self._supervisor.handle(event):
            if isinstance(command, supervise.Commit):
                self._result.checkpoint = checkpoints.commit(self._result.path, command.step, self._workers, self._keep)
            elif isinstance(command, supervise.Wait):
                self._wait_until = time.monotonic() + command.seconds
            else:
                self._end = command

    def _show(self, row: Row) -> None:
        if not self.shows or row["rank"] != 0 or time.monotonic() < self._next_line:
            return
        is_terminal = sys.stderr.isatty()
        self._next_line = time.monotonic() + (0.25 if is_terminal else LINE_EVERY_S)
        numbers = (f"{name} {value:.4g}" for name, value in _metrics(row).items() if isinstance(value, (int, float)))
        text = f"step {row['step']}: {', '.join(numbers)}"
        sys.stderr.write(f"\r\033[K{text}" if is_terminal else f"{text}\n")
        sys.stderr.flush()

    def _say_restart(self, end: supervise.Restart) -> None:
        saved = checkpoints.latest(self._result.path)
        where = "from the start" if saved is None else f"after step {saved.step}"
        reason = str(end.error).strip().splitlines()[-1] if isinstance(end.error, exceptions.TaskError) else end.error
        sys.stderr.write(
            f"\nrank {end.rank} failed: {reason}\n"
            f"All workers start again, {where}; failures left: {end.failures_left}.\n"
        )


def _ranks(places: list[dict[str, Any]], restarts: int) -> Iterator[tuple[dict[str, str], dict[str, int]]]:
    """The environment of each rank as torchrun sets it, and where it stands in the group."""
    nodes = list(dict.fromkeys(place["node"] for place in places))
    run_id = uuid.uuid4().hex
    seen = dict.fromkeys(nodes, 0)
    for rank, place in enumerate(places):
        together = [other for other in places if other["node"] == place["node"]]
        local_rank = seen[place["node"]]
        seen[place["node"]] += 1
        node_rank = nodes.index(place["node"])
        environment = {
            "RANK": rank,
            "WORLD_SIZE": len(places),
            "LOCAL_RANK": local_rank,
            "LOCAL_WORLD_SIZE": len(together),
            "GROUP_RANK": node_rank,
            "GROUP_WORLD_SIZE": len(nodes),
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": len(places),
            "ROLE_NAME": "default",
            "MASTER_ADDR": places[0]["address"],
            "MASTER_PORT": places[0]["port"],
            "TORCHELASTIC_RUN_ID": run_id,
            "TORCHELASTIC_RESTART_COUNT": restarts,
            "TORCHELASTIC_MAX_RESTARTS": restarts,
            # Rank 0 serves the store; torchrun's agent would.
            "TORCHELASTIC_USE_AGENT_STORE": False,
        }
        if "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = max(1, place["cores"] // len(together))
        if gpus := ",".join(other["gpus"] for other in together if other["gpus"]):
            # A rank's GPU is the one with the number of its local rank, so it has to see those of the others.
            environment["CUDA_VISIBLE_DEVICES"] = gpus
        yield (
            {name: str(value) for name, value in environment.items()},
            {
                "rank": rank,
                "world_size": len(places),
                "local_rank": local_rank,
                "local_world_size": len(together),
                "node_rank": node_rank,
            },
        )


# -- arguments and resources -------------------------------------------------------------------------------------------


def _checked(fit: Any, workers: Any, failures: Any, resources: Any, keep: Any, callbacks: Any) -> dict[str, float]:
    """The resources of a worker. Raises for arguments that cannot be meant."""
    if not callable(fit):
        raise TypeError(f"train.run(fit={fit!r}): it takes a function, which every worker calls.")
    for name, value, least in (("workers", workers, 1), ("failures", failures, 0), ("keep", keep, 1)):
        if name == "keep" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"train.run({name}={value!r}): it may be a whole number from {least} on.")
    if not all(callable(callback) for callback in callbacks):
        raise TypeError("train.run(callbacks=…): each is a function of the result and a row.")
    if resources is None:
        return {"CPU": 1}
    if not isinstance(resources, Mapping) or not any(resources.values()):
        raise ValueError(f"train.run(resources_per_worker={resources!r}): it may be a dict like {{'CPU': 1}}.")
    return {kind: amount for kind, amount in resources.items() if amount}


def _takes_config(fit: Callable[..., Any], config: Any) -> bool:
    try:
        inspect.signature(fit).bind()
    except TypeError:
        return True
    except ValueError:  # a builtin without a signature
        return config is not None
    if config is None:
        return False
    try:
        inspect.signature(fit).bind(config)
    except TypeError:
        raise TypeError(
            f"train.run({fit!r}, config): the function takes no argument, so it would not see the config."
        ) from None
    return True


def _check_resources(workers: int, resources: Mapping[str, float]) -> None:
    """Raise if no node that is there now could ever run these workers."""
    nodes = [node["Resources"] for node in skate.nodes() if node["Alive"]]
    fitting = sum(min(int(node.get(kind, 0) / amount) for kind, amount in resources.items()) for node in nodes)
    if fitting < workers:
        kinds = {kind: sum(node.get(kind, 0) for node in nodes) for kind in resources}
        raise ValueError(
            f"train.run(workers={workers}): the cluster has room for {fitting} of these workers.\n"
            f"  why:  each needs {dict(resources)}, and the {len(nodes)} nodes have {kinds} together.\n"
            "  next: fewer workers, a smaller resources_per_worker=, or more nodes."
        )


def _wait_until_reserved(group: Any, workers: int, resources: Mapping[str, float]) -> None:
    reserved = group.ready()
    while not skate.wait([reserved], timeout=LINE_EVERY_S)[0]:
        _check_resources(workers, resources)
        free = {kind: skate.available_resources().get(kind, 0) for kind in resources}
        sys.stderr.write(f"train.run waits for {workers} times {dict(resources)}; free is {free}.\n")
    skate.get(reserved)


# -- the folder --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _folder(fit: Callable[..., Any], path: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The folder of the run, which no other run has at the same time."""
    folder = _new_folder(fit) if path is None else Path(path).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"another run writes to {folder} now.\n  next: wait for it, end it, or give another path=."
            ) from None
        yield folder


def _new_folder(fit: Callable[..., Any]) -> Path:
    name = getattr(fit, "__name__", "fit").strip("<>")
    number = 1
    while True:
        folder = Path("runs", f"{name}-{number}").absolute()
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            number += 1
        else:
            return folder


def _read_history(folder: Path) -> list[Row]:
    rows: list[Row] = []
    if (file := folder / HISTORY).exists():
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValueError):  # the last line, torn when the driver was killed
                rows.append(json.loads(line))
    return rows


@contextlib.contextmanager
def _history_file(folder: Path, rows: list[Row]) -> Iterator[Any]:
    """The file of the history, cut back to these rows and open for more."""
    new = folder / f".{HISTORY}.new"
    new.write_text("".join(json.dumps(row, default=str) + "\n" for row in rows))
    os.replace(new, folder / HISTORY)
    with (folder / HISTORY).open("a") as file:
        yield file


def _metrics(row: Row) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("step", "rank")}
