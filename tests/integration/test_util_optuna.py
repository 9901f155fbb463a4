"""`skate.util.optuna.optimize`: Optuna's trials in tasks."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

import skate
from programs import append, lines, run_program
from skate.exceptions import WorkerCrashedError
from skate.util._exchange import Exchange
from skate.util.optuna import optimize
from waiting import wait_for

optuna.logging.set_verbosity(optuna.logging.ERROR)


def define_by_run(trial: Any) -> float:
    """What is asked for depends on what was answered."""
    kind = trial.suggest_categorical("kind", ["line", "curve"])
    x = trial.suggest_float("x", -1, 1)
    if kind == "line":
        return abs(x)
    return x**2 + sum(trial.suggest_int(f"layer {i}", 1, 9) for i in range(trial.suggest_int("layers", 1, 3)))


def states(study: Any) -> list[str]:
    return [trial.state.name for trial in study.get_trials(deepcopy=False)]


SAMPLERS = {
    "random": lambda: optuna.samplers.RandomSampler(seed=1),
    "tpe": lambda: optuna.samplers.TPESampler(seed=1, n_startup_trials=5),
}


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_one_at_a_time_gives_the_trials_of_optuna_alone(sampler: str) -> None:
    studies = [optuna.create_study(sampler=SAMPLERS[sampler]()) for _ in range(2)]
    studies[0].optimize(define_by_run, 20)
    optimize(studies[1], define_by_run, 20, in_flight=1)
    alone, here = ([(t.number, t.params, t.values, t.state) for t in study.trials] for study in studies)
    assert here == alone
    assert all(t.datetime_start < t.datetime_complete for t in studies[1].trials)
    assert studies[1].trials[0].distributions == studies[0].trials[0].distributions


@pytest.mark.usefixtures("runtime")
def test_a_trial_in_a_worker_is_like_one_of_optuna() -> None:
    driver = os.getpid()

    def objective(trial: Any) -> float:
        assert isinstance(trial, optuna.Trial)
        assert os.getpid() != driver
        x = trial.suggest_float("x", 0, 1)
        assert trial.suggest_float("x", 0, 1) == x
        assert (trial.params, list(trial.distributions)) == ({"x": x}, ["x"])
        trial.set_user_attr("twice", 2 * x)
        assert trial.user_attrs == {"twice": 2 * x}
        assert trial.datetime_start is not None
        assert trial.study.direction == optuna.study.StudyDirection.MAXIMIZE
        with pytest.raises(ValueError, match="low"):
            trial.suggest_float("y", 1, 0)
        with pytest.raises(RuntimeError, match="in the driver"):
            trial.study.optimize(objective, 1)
        trial.report(x, step=3)
        return float(trial.number)

    study = optuna.create_study(direction="maximize")
    optimize(study, objective, 6)
    assert sorted(t.value for t in study.trials) == [0, 1, 2, 3, 4, 5]
    for trial in study.trials:
        assert trial.user_attrs == {"twice": 2 * trial.params["x"]}
        assert trial.intermediate_values == {3: trial.params["x"]}


@pytest.mark.usefixtures("runtime")
def test_pruning_ends_a_trial_that_runs() -> None:
    def objective(trial: Any) -> float:
        for step in range(10):
            trial.report(trial.number, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return float(trial.number)

    study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=1, n_warmup_steps=2))
    optimize(study, objective, 4, in_flight=1)
    assert states(study) == ["COMPLETE", "PRUNED", "PRUNED", "PRUNED"]
    assert study.trials[1].intermediate_values == {0: 1, 1: 1, 2: 1}  # two steps to warm up, and the one that ends it
    assert study.trials[1].value == 1


def fail_at_two(trial: Any) -> Any:
    trial.suggest_float("x", 0, 1)
    if trial.number == 2:
        raise KeyError("two is bad")
    return trial.number


@pytest.mark.usefixtures("runtime")
def test_an_error_is_recorded_and_then_raised_with_the_traceback_of_the_worker() -> None:
    study = optuna.create_study()
    with pytest.raises(KeyError, match="two is bad") as raised:
        optimize(study, fail_at_two, 50, in_flight=2)
    assert "in fail_at_two" in "".join(traceback.format_exception(raised.value))
    assert study.trials[2].state == TrialState.FAIL
    assert len(study.trials) < 50
    assert "RUNNING" not in states(study)


@pytest.mark.usefixtures("runtime")
def test_an_error_that_is_caught_fails_its_trial_alone() -> None:
    study = optuna.create_study()
    optimize(study, fail_at_two, 5, catch=(KeyError,))
    assert [state == "FAIL" for state in states(study)] == [False, False, True, False, False]


@pytest.mark.usefixtures("runtime")
def test_a_value_that_is_no_number_fails_the_trial() -> None:
    study = optuna.create_study()
    optimize(study, lambda trial: "much" if trial.number else None, 2)
    assert states(study) == ["FAIL", "FAIL"]


def kill_at_one(path: Path, trial: Any) -> float:
    x = trial.suggest_float("x", 0, 1)
    append(path, f"{trial.number} {x}")
    if trial.number == 1 and sum(line.startswith("1 ") for line in lines(path)) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return float(x)


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("max_retries", [0, 1])
def test_a_killed_worker_fails_its_trial_or_runs_it_again(tmp_path: Path, max_retries: int) -> None:
    study = optuna.create_study()
    optimize(study, lambda trial: kill_at_one(tmp_path / "log", trial), 4, max_retries=max_retries)
    assert len(study.trials) == 4
    assert states(study)[1] == ("COMPLETE" if max_retries else "FAIL")
    assert states(study).count("COMPLETE") == 3 + max_retries
    tried = {line for line in lines(tmp_path / "log") if line.startswith("1 ")}
    assert len(tried) == 1  # the second attempt had the parameters of the first


class KillsWhereItArrives:
    """An objective whose process dies before it has a trial, as often as it is told."""

    def __init__(self, path: Path, times: int) -> None:
        self.path, self.times = path, times

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ = state
        append(self.path, "arrived")
        if len(lines(self.path)) <= self.times:
            os.kill(os.getpid(), signal.SIGKILL)

    def __call__(self, trial: Any) -> float:
        return float(trial.suggest_float("x", 0, 1))


@pytest.mark.usefixtures("runtime")
def test_workers_that_die_before_their_trial_has_begun_do_not_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skate.util.optuna.DEATHS_MAX", 3)
    study = optuna.create_study()
    optimize(study, KillsWhereItArrives(tmp_path / "log", 2), 4)
    assert states(study) == ["COMPLETE"] * 4
    with pytest.raises(WorkerCrashedError):
        optimize(study, KillsWhereItArrives(tmp_path / "other", 10**6), 4)


def test_the_answer_to_a_question_of_a_dead_attempt_is_not_given_to_the_next_one() -> None:
    async def talk() -> bytes:
        exchange = Exchange()
        first = asyncio.create_task(exchange.ask(0, b"of the first attempt"))
        ((number, _, _),) = await exchange.turn([])
        second = asyncio.create_task(exchange.ask(0, b"of the second"))
        await asyncio.sleep(0)
        ((later, _, _),) = await exchange.turn([(number, b"stale")])
        turn = asyncio.create_task(exchange.turn([(later, b"right")]))
        answer = await second
        turn.cancel()
        first.cancel()
        return answer

    assert asyncio.run(talk()) == b"right"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("progress", [True, False])
def test_a_bar_on_a_terminal_counts_the_trials_and_shows_the_best_value(
    monkeypatch: pytest.MonkeyPatch, progress: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    optimize(optuna.create_study(), lambda trial: 2.5 + trial.number, 3, in_flight=1, progress=progress)
    drawn = terminal.getvalue()
    assert [words in drawn for words in ("trials", "3/3", "best 2.5")] == [progress] * 3, drawn


@pytest.mark.usefixtures("runtime")
def test_several_objectives() -> None:
    def objective(trial: Any) -> tuple[float, float]:
        x = trial.suggest_float("x", 0, 1)
        return x, 1 - x

    sampler = optuna.samplers.NSGAIISampler(seed=1, population_size=4)
    study = optuna.create_study(directions=["minimize", "maximize"], sampler=sampler)
    optimize(study, objective, 12)
    assert states(study) == ["COMPLETE"] * 12
    assert all(t.values == [t.params["x"], 1 - t.params["x"]] for t in study.trials)
    assert study.best_trials


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("where", ["callback", "objective"])
def test_stop_ends_the_search_after_the_trials_that_run(where: str) -> None:
    seen = []

    def callback(study: Any, trial: Any) -> None:
        seen.append((trial.number, trial.state))
        if where == "callback" and len(seen) == 3:
            study.stop()

    def objective(trial: Any) -> float:
        if where == "objective" and trial.number == 3:
            trial.study.stop()
        return 1.0

    study = optuna.create_study()
    optimize(study, objective, in_flight=2, callbacks=[callback])
    assert 3 <= len(study.trials) <= 6
    assert sorted(seen) == [(t.number, TrialState.COMPLETE) for t in study.trials]
    with pytest.raises(RuntimeError, match="stop"):
        study.stop()  # the search is over


@pytest.mark.usefixtures("runtime")
def test_no_trial_begins_after_the_timeout() -> None:
    study = optuna.create_study()
    optimize(study, lambda _: time.sleep(0.05) or 1.0, timeout=0.3)
    assert study.trials
    assert set(states(study)) == {"COMPLETE"}
    optimize(optuna.create_study(), fail_at_two, timeout=0)


@pytest.mark.usefixtures("runtime")
def test_trials_may_wait_for_tasks_of_their_own() -> None:
    """They hold all CPUs of the machine, and give them up while they wait."""
    add = skate.remote(lambda a, b: a + b)
    study = optuna.create_study()
    optimize(study, lambda trial: skate.get(add.remote(trial.number, 1)), 6, in_flight=2)
    assert sorted(t.value for t in study.trials) == [1, 2, 3, 4, 5, 6]


@pytest.mark.usefixtures("runtime")
def test_any_storage_will_do_and_a_queue_of_trials_comes_first(tmp_path: Path) -> None:
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "journal"))
    study = optuna.create_study(storage=optuna.storages.JournalStorage(backend))
    study.enqueue_trial({"kind": "line", "x": 0.25})
    optimize(study, define_by_run, 4)
    assert study.trials[0].params == {"kind": "line", "x": 0.25}
    assert states(study) == ["COMPLETE"] * 4


def test_a_trial_holds_the_resources_that_were_asked_for() -> None:
    skate.init(num_cpus=2, num_gpus=1)
    study = optuna.create_study()
    optimize(study, lambda trial: float(skate.get_gpu_ids()[0]), 4, num_gpus=0.5, num_cpus=0)
    skate.shutdown()
    assert [t.value for t in study.trials] == [0.0] * 4


INTERRUPTED = """
import sys, time, optuna, skate
from skate.util.optuna import optimize
folder = sys.argv[1]
def objective(trial):
    trial.suggest_float("x", 0, 1)
    open(f"{folder}/{trial.number}", "w").close()
    time.sleep(1000)
skate.init(num_cpus=2)
study = optuna.create_study()
try:
    optimize(study, objective, 10, in_flight=2)
except KeyboardInterrupt:
    print([trial.state.name for trial in study.trials], flush=True)
study.optimize(lambda trial: 1.0, 1)
print(study.best_value, flush=True)
"""


def test_ctrl_c_ends_all_trials_and_none_is_left_running(tmp_path: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_for(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists(), 30, "two trials to run")
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=30)
    assert printed == "['FAIL', 'FAIL']\n1.0\n", errors


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"study": None}, TypeError, "create_study"),
        ({"objective": 3}, TypeError, "cannot be called"),
        ({"trials": -1}, ValueError, "trials=-1"),
        ({"trials": 1.5}, TypeError, "trials=1.5"),
        ({"in_flight": 0}, ValueError, "in_flight=0"),
        ({"timeout": -1}, ValueError, "timeout=-1"),
        ({"num_returns": 2}, ValueError, "num_returns"),
        ({"num_cpu": 1}, ValueError, "num_cpu"),
        ({"n_trials": 3}, TypeError, "n_trials=….* is trials= here"),
        ({"n_jobs": 2}, TypeError, "in_flight="),
    ],
)
def test_wrong_arguments_say_so(arguments: dict[str, Any], error: type[Exception], said: str) -> None:
    good = {"study": optuna.create_study(), "objective": define_by_run, "trials": 1}
    with pytest.raises(error, match=said):
        optimize(**{**good, **arguments})
    assert good["study"].trials == []


def test_without_optuna_the_error_says_what_to_install() -> None:
    program = (
        "import sys; sys.modules['optuna'] = None\n"
        "try:\n    import skate.util.optuna\nexcept ImportError as error: print(error)"
    )
    assert "pip install 'skate[optuna]'" in run_program(program)[0]


def test_the_example_finds_settings_and_prunes() -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "search.py"
    arguments = [example.name, "--cpus", "2", "--trials", "6"]
    printed, _ = run_program(
        f"import runpy, sys; sys.argv = {arguments}; runpy.run_path({str(example)!r}, run_name='__main__')"
    )
    assert printed.startswith("6 trials, ")
    assert "wrong with {'width': " in printed
