"""train.run when ranks die, stall or wait for room: real processes, without torch, which none of this needs."""

from __future__ import annotations

import atexit
import json
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import skate
from skate import train
from skate.train import group
from skate.train.worker import own_gpus
from waiting import wait_for


def test_what_a_rank_raised_is_raised_and_the_same_path_goes_on(runtime: ModuleType, tmp_path: Path) -> None:
    def fit(config: dict[str, int]) -> None:
        for step in range(train.restore(), 4):
            if train.context().rank == 0 and step == config["bad"]:
                raise ValueError("the third step is bad")
            train.report({"step squared": step**2}, checkpoint={"step": step})

    class Log:
        is_closed = False

        def __call__(self, result: train.Result, row: dict[str, Any]) -> None:
            assert not self.is_closed

        def close(self) -> None:
            self.is_closed = True

    log = Log()
    with pytest.raises(ValueError, match="the third step is bad") as raised:
        train.run(fit, {"bad": 2}, path=tmp_path, callbacks=[log])
    assert log.is_closed
    assert "in fit" in str(raised.value)
    assert vars(raised.value)["rank"] == 0
    if sys.version_info >= (3, 11):
        assert "It was rank 0 of 2" in raised.value.__notes__[0]
    steps: list[int] = []
    result = train.run(fit, {"bad": -1}, path=tmp_path, callbacks=[lambda _, row: steps.append(row["step"])])
    assert min(steps) in (1, 2)  # the second checkpoint may have been on its way
    assert result.checkpoint is not None
    assert result.checkpoint.step == 3
    assert sorted((row["step"], row["rank"]) for row in result.history) == [
        (step, rank) for step in range(4) for rank in range(2)
    ]


def test_a_rank_that_is_stopped_is_named_and_the_others_start_again_without_waiting_for_it(
    runtime: ModuleType, tmp_path: Path
) -> None:
    def fit() -> None:
        here = train.context()
        step = train.restore()
        if here.restarts == 0:
            train.report({}, checkpoint={"seen": 7}, step=step)
            if here.rank == 1:
                wait_for((here.path / "checkpoint-0").exists, 20, "the checkpoint")
                os.kill(os.getpid(), signal.SIGSTOP)
            threading.Event().wait()
        assert here.checkpoint is not None
        train.report({"seen": here.checkpoint.load()["state"]["seen"]})

    result = train.run(fit, failures=1, stall_after=2, path=tmp_path)
    assert result.metrics == {"seen": 7}
    assert isinstance(result.error, train.StalledError)
    assert result.error.ranks == (1,)
    assert "stopped by a signal (SIGSTOP)" in str(result.error)
    assert "threading.Event().wait()" in result.error.looks[0].stack
    assert [(attempt.workers, attempt.first_step) for attempt in result.attempts] == [(2, 0), (2, 1)]
    assert result.attempts[0].error is result.error


def test_a_stall_is_raised_with_the_line_where_the_rank_is_when_no_failure_is_left(
    runtime: ModuleType, tmp_path: Path
) -> None:
    def fit() -> None:
        if train.context().rank == 1:
            threading.Event().wait()  # the line where rank 1 is

    with pytest.raises(train.StalledError, match=r"rank 1 .*\n(.*\n)*.*the line where rank 1 is") as raised:
        train.run(fit, stall_after=2, path=tmp_path)
    assert 1 in raised.value.ranks
    assert raised.value.looks[1].stack.lstrip().startswith(f'File "{__file__}"'), "the program's own lines"


def test_a_worker_that_dies_before_it_has_begun_counts_as_a_failure_of_its_own(
    runtime: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit() -> None:
        train.report({"restarts": train.context().restarts})

    set_up = group.Group._set_up
    victims: list[int] = []

    def kill_first(self: group.Group, *arguments: Any) -> None:
        if len(victims) < 2:
            victims.append(self._places[1].pid)
            os.kill(victims[-1], signal.SIGKILL)
        set_up(self, *arguments)

    monkeypatch.setattr(group.Group, "_set_up", kill_first)
    result = train.run(fit, failures=2, path=tmp_path)
    assert result.metrics == {"restarts": 2}
    assert isinstance(result.error, skate.exceptions.ActorDiedError)
    assert str(victims[1]) in str(result.error)


def test_while_others_use_the_resources_a_run_waits_and_says_so(
    runtime: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Holder:
        pass

    holder = skate.remote(num_cpus=1)(Holder).remote()
    skate.get(holder.__ray_ready__.remote())
    said: list[str] = []

    def listen(line: Any, text: str) -> None:
        said.append(text)
        skate.kill(holder)

    monkeypatch.setattr(train.progress.Line, "say", listen)
    monkeypatch.setattr(group, "LINE_EVERY_S", 0.2)
    result = train.run(lambda: train.report({"done": True}), path=tmp_path)
    assert result.metrics == {"done": True}
    assert "waits for 2 times {'CPU': 1}; free is {'CPU': 1" in said[0]


def test_an_elastic_run_begins_with_what_is_free(
    runtime: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "FREED_WITHIN_S", 0.2)  # the holder does not go by itself
    holder = skate.remote(num_cpus=1)(type("Holder", (), {})).remote()
    skate.get(holder.__ray_ready__.remote())
    result = train.run(lambda: train.report({"size": train.context().world_size}), workers=(1, 4), path=tmp_path)
    assert result.history == [{"step": 0, "rank": 0, "workers": 1, "size": 1}]
    assert [attempt.workers for attempt in result.attempts] == [1]
    skate.kill(holder)


def test_a_folder_is_of_one_run_at_a_time(runtime: ModuleType, tmp_path: Path) -> None:
    def fit() -> None:
        train.report({})

    def again(result: train.Result, row: dict[str, Any]) -> None:
        with pytest.raises(RuntimeError, match=r"another run writes to .*\n.*next: "):
            train.run(fit, workers=1, path=result.path)

    assert len(train.run(fit, workers=1, path=tmp_path, callbacks=[again]).history) == 1


def test_metrics_of_all_ranks_become_one_row_per_step(runtime: ModuleType, tmp_path: Path) -> None:
    def fit() -> None:
        rank = train.context().rank
        for step in range(3):
            train.report({"loss": float(rank + step), "samples": 10, "name": f"rank {rank}"})

    seen: list[dict[str, Any]] = []
    result = train.run(
        fit,
        reduce={"loss": "mean", "samples": "sum"},
        path=tmp_path,
        callbacks=[lambda result, row: seen.append(row)],
    )
    rows = [{"step": step, "workers": 2, "loss": step + 0.5, "samples": 20, "name": "rank 0"} for step in range(3)]
    assert result.history == seen == rows
    assert result.metrics == {"loss": 2.5, "samples": 20, "name": "rank 0"}
    assert train.run(fit, reduce="max", path=tmp_path).metrics["loss"] == 3.0


def test_every_rank_has_its_share_of_the_cores_and_the_main_thread_without_an_event_loop(
    runtime: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit() -> None:
        import asyncio

        async def answer() -> int:
            return 42

        assert threading.current_thread() is threading.main_thread()
        train.report({"threads": os.environ["OMP_NUM_THREADS"], "answer": asyncio.run(answer())})
        sys.exit()  # as programs for torchrun end that have done their work

    cores = len(os.sched_getaffinity(0))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    for workers in (1, 2):
        threads = str(max(1, min(2, cores) // workers))
        assert train.run(fit, workers=workers, path=tmp_path / str(workers)).metrics["threads"] == threads
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert train.run(fit, workers=1, path=tmp_path / "set").metrics == {"threads": "1", "answer": 42}


def test_a_step_that_is_older_than_the_checkpoint_is_refused(runtime: ModuleType, tmp_path: Path) -> None:
    def fit() -> None:
        train.report({}, checkpoint={}, step=3)

    assert train.run(fit, workers=1, path=tmp_path).checkpoint is not None
    with pytest.raises(ValueError, match=r"goes on from a checkpoint of step 3"):
        train.run(fit, workers=1, path=tmp_path)
    # Steps go on by themselves, also for a function that does not restore.
    result = train.run(lambda: train.report({}), workers=1, path=tmp_path)
    assert [row["step"] for row in result.history] == [3, 4]


def test_workers_are_gone_when_the_first_cause_is_raised(runtime: ModuleType, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()

    def fit() -> None:
        (pids / str(os.getpid())).touch()
        if train.context().rank == 0:
            wait_for(lambda: len(list(pids.iterdir())) == 2, 20, "the other rank")
            raise LookupError("the first cause")
        threading.Event().wait()

    with pytest.raises(LookupError, match="the first cause"):
        train.run(fit, path=tmp_path)
    for pid in pids.iterdir():
        wait_for(lambda pid=pid: not Path("/proc", pid.name).exists(), 20, "the workers to be gone")


def test_what_cannot_be_reported_is_a_failure_of_its_rank(runtime: ModuleType, tmp_path: Path) -> None:
    """Its later reports and checkpoints would be lost silently."""

    def fit() -> None:
        for step in range(3):
            train.report({"loss": (value for value in [1.0]) if step == 1 else 1.0})
        threading.Event().wait(20)

    with pytest.raises(skate.exceptions.SkateError, match="generator") as raised:
        train.run(fit, workers=1, path=tmp_path)
    assert raised.value.rank == 0


def test_a_failure_is_told_although_the_program_has_folders_with_names_of_checkpoints(
    runtime: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(train.progress.Line, "say", lambda line, text: said.append(text))

    def fit() -> None:
        (train.context().path / "checkpoint-5").mkdir(exist_ok=True)
        if not train.context().restarts:
            raise ValueError("the cause\n  next: what to do about it")

    result = train.run(fit, workers=1, failures=1, path=tmp_path)
    assert isinstance(result.error, ValueError)
    assert result.checkpoint is None
    assert said[0].startswith(
        "rank 0 failed: ValueError: the cause\n  next: what to do about it\nAll workers start again"
    )


def test_exit_handlers_of_the_program_run_when_it_has_finished(runtime: ModuleType, tmp_path: Path) -> None:
    """As under torchrun: libraries flush there what they have, or have a thread write it."""

    def fit() -> None:
        rank = train.context().rank

        def write() -> None:
            threading.Event().wait(0.1)
            (tmp_path / f"written-{rank}").touch()

        if rank == 0:
            threading.Thread(target=write).start()
        else:
            ThreadPoolExecutor(1).submit(write)
        atexit.register((tmp_path / f"flushed-{rank}").touch)

    train.run(fit, path=tmp_path / "run")
    names = sorted(path.name for path in tmp_path.glob("*-?"))
    assert names == ["flushed-0", "flushed-1", "written-0", "written-1"]


def test_the_process_of_a_rank_ends_with_its_function_so_that_those_who_wait_for_it_hear_of_that(
    runtime: ModuleType, tmp_path: Path
) -> None:
    def fit() -> None:
        (tmp_path / f"pid-{train.context().rank}").write_text(str(os.getpid()))
        if train.context().rank == 0:
            wait_for((tmp_path / "pid-1").exists, 20, "the other rank")
            pid = wait_for((tmp_path / "pid-1").read_text, 20, "its number")
            wait_for(lambda: not Path("/proc", pid).exists(), 20, "the end of the other rank")
            raise ConnectionError("the other rank is gone")

    with pytest.raises(ConnectionError, match="the other rank is gone") as raised:
        train.run(fit, path=tmp_path / "run")
    if sys.version_info >= (3, 11):
        assert "It was rank 0 of 2. The function had ended in rank 1 by then." in raised.value.__notes__[0]


def test_metrics_by_class_keep_the_run_going(runtime: ModuleType, tmp_path: Path) -> None:
    def fit() -> None:
        train.report({"accuracy": {np.int64(0): 0.5, (1, 2): [0.25]}})

    train.run(fit, workers=1, path=tmp_path)
    row = json.loads((tmp_path / "history.jsonl").read_text())
    assert row["accuracy"] == {"0": 0.5, "(1, 2)": [0.25]}


def test_gpus_that_a_worker_was_not_given_are_not_its_own(
    runtime: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit() -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"  # as a batch system sets it for all
        train.report({"gpus": list(own_gpus())})

    assert train.run(fit, workers=1, path=tmp_path).metrics["gpus"] == []


def test_a_run_with_sharded_checkpoints_does_not_grow(
    runtime: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More ranks could not restore them."""
    monkeypatch.setattr(group, "FREED_WITHIN_S", 0.2)  # the holder goes later
    holder = skate.remote(num_cpus=1)(type("Holder", (), {})).remote()
    skate.get(holder.__ray_ready__.remote())

    def fit() -> None:
        for _ in range(train.restore(), 6):
            train.report({}, checkpoint={"own": 1}, sharded=True)

    def let_go(result: train.Result, row: dict[str, Any]) -> None:
        if row["step"] == 2:
            skate.kill(holder)
            wait_for(lambda: skate.available_resources().get("CPU", 0) >= 1, 10, "the place to be free")

    result = train.run(fit, workers=(1, 2), path=tmp_path, callbacks=[let_go])
    assert [attempt.workers for attempt in result.attempts] == [1]
