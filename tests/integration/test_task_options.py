"""The options of `@skate.remote(...)` and `.options(...)`, seen from what tasks experience."""

from __future__ import annotations

import os
import signal
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

import skate
from skate._wire.messages import LeaseReturn
from skate._worker.current import get_runtime
from waiting import WITHIN_S, meet, wait_for

# --- how many run at once ---------------------------------------------------------------------------------------------


def enter_and_leave(log: Path) -> None:
    """Write down that a task came and went. Appends of one byte are atomic."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, b"+")
    sum(range(20_000))
    os.write(file, b"-")
    os.close(file)


def most_at_once(log: Path) -> int:
    return max(accumulate(1 if mark == "+" else -1 for mark in log.read_text()))


@pytest.mark.parametrize(
    ("options", "fit"),
    [
        ({"num_cpus": 1}, 2),
        ({"num_cpus": 2}, 1),
        ({"num_cpus": 0.5}, 4),
        ({"num_cpus": 0.25, "resources": {"licence": 1}}, 3),
        ({"num_cpus": 0, "resources": {"licence": 0.5}}, 6),
        ({"num_cpus": 0, "num_gpus": 1}, 2),
        ({"num_cpus": 0, "num_gpus": 0.25}, 8),
    ],
    ids=str,
)
def test_as_many_run_at_once_as_resources_allow(options: dict[str, Any], fit: int, tmp_path: Path) -> None:
    """Exactly that many: they can meet, and the log of comings and goings never shows more."""
    skate.init(num_cpus=2, num_gpus=2, resources={"licence": 3})
    together = skate.remote(meet).options(**options)
    assert skate.get([together.remote(tmp_path, i, fit) for i in range(fit)]) == list(range(fit))
    log = tmp_path / "log"
    skate.get([skate.remote(enter_and_leave).options(**options).remote(log) for _ in range(5 * fit)])
    assert 1 <= most_at_once(log) <= fit


def test_tasks_without_cpus_are_not_limited_by_cpus(tmp_path: Path) -> None:
    skate.init(num_cpus=1)
    together = skate.remote(num_cpus=0)(meet)
    assert skate.get([together.remote(tmp_path, i, 5) for i in range(5)]) == list(range(5))


def test_memory_is_reserved(tmp_path: Path) -> None:
    skate.init(num_cpus=4)
    most = skate.cluster_resources()["memory"]
    log = tmp_path / "log"
    heavy = skate.remote(enter_and_leave).options(memory=0.6 * most)
    skate.get([heavy.remote(log) for _ in range(6)])
    assert most_at_once(log) == 1


def test_small_tasks_pass_a_large_one_that_waits(tmp_path: Path) -> None:
    """A task of one shape that cannot run yet does not hold up tasks of another shape."""
    skate.init(num_cpus=2, resources={"licence": 1})
    gate = tmp_path / "gate"

    @skate.remote(num_cpus=1, resources={"licence": 1})
    def holder() -> None:
        wait_for(gate.exists, 30, "the small task to have run")

    first, second = holder.remote(), holder.remote()
    skate.get(skate.remote(gate.touch).remote())
    skate.get([first, second])


# --- GPUs -------------------------------------------------------------------------------------------------------------


@skate.remote
def see_gpus() -> tuple[list[int], str | None]:
    return skate.get_gpu_ids(), os.environ.get("CUDA_VISIBLE_DEVICES")


def test_a_task_sees_the_gpus_that_it_was_given() -> None:
    skate.init(num_cpus=2, num_gpus=2)
    for _ in range(3):
        ids, visible = skate.get(see_gpus.options(num_gpus=1).remote())
        assert len(ids) == 1
        assert ids[0] in (0, 1)
        assert visible == str(ids[0])
    ids, visible = skate.get(see_gpus.options(num_gpus=2).remote())
    assert sorted(ids) == [0, 1]
    assert visible == ",".join(map(str, ids))


@skate.remote
def initialise() -> tuple[int, list[int], str]:
    """As CUDA does: what a process may see is settled when it first looks."""
    seen = os.environ.setdefault("SEEN_FIRST", os.environ.get("CUDA_VISIBLE_DEVICES", ""))
    return os.getpid(), skate.get_gpu_ids(), seen


def test_a_worker_that_had_a_gpu_is_used_for_the_same_gpu_and_for_nothing_else() -> None:
    skate.init(num_cpus=2, num_gpus=2)
    tasks = [initialise.options(num_gpus=1), initialise, initialise.options(num_gpus=2)] * 5
    runs = [skate.get(task.remote(), timeout=20) for task in tasks]
    for _, ids, seen in runs:
        assert seen == ",".join(map(str, ids)), "it came into a process that had settled on others"
    had_gpu = {pid for pid, ids, _ in runs if ids}
    assert had_gpu.isdisjoint({pid for pid, ids, _ in runs if not ids})


def test_tasks_with_the_same_gpu_in_a_row_run_in_the_same_worker() -> None:
    skate.init(num_cpus=2, num_gpus=1)
    runs = [skate.get(initialise.options(num_gpus=1).remote(), timeout=20) for _ in range(5)]
    assert len({pid for pid, _, _ in runs}) == 1
    runs = [skate.get(initialise.options(num_gpus=1, max_calls=1).remote(), timeout=20) for _ in range(3)]
    assert len({pid for pid, _, _ in runs}) == 3, "unless the worker is to be replaced, as it is with Ray"


def test_a_worker_that_had_a_gpu_leaves_when_another_has_it(tmp_path: Path) -> None:
    skate.init(num_cpus=2, num_gpus=1)
    first = skate.get(initialise.options(num_gpus=1).remote(), timeout=20)[0]
    other = {"env_vars": {"OTHER": "1"}}
    assert skate.get(initialise.options(num_gpus=1, runtime_env=other).remote(), timeout=20)[0] != first
    wait_for(lambda: not Path(f"/proc/{first}").exists(), 20, "what it holds of the GPU to be free")


def test_a_task_without_gpus_sees_none_after_one_that_had_some() -> None:
    skate.init(num_cpus=1, num_gpus=1)
    assert skate.get(see_gpus.options(num_gpus=1).remote()) == ([0], "0")
    ids, visible = skate.get(see_gpus.remote())
    assert ids == []
    assert not visible


def test_two_tasks_at_once_have_different_gpus(tmp_path: Path) -> None:
    skate.init(num_cpus=2, num_gpus=2)

    @skate.remote(num_gpus=1)
    def use(me: int) -> list[int]:
        meet(tmp_path, me, 2)
        return skate.get_gpu_ids()

    first, second = skate.get([use.remote(0), use.remote(1)])
    assert sorted(first + second) == [0, 1]


def test_halves_of_a_gpu_are_halves_of_one(tmp_path: Path) -> None:
    skate.init(num_cpus=2, num_gpus=1)

    @skate.remote(num_gpus=0.5)
    def use(me: int) -> list[int]:
        meet(tmp_path, me, 2)
        return skate.get_gpu_ids()

    assert skate.get([use.remote(0), use.remote(1)]) == [[0], [0]]


def test_gpus_are_those_that_the_driver_may_see(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    skate.init(num_cpus=1, num_gpus=2)
    assert sorted(skate.get_gpu_ids()) == [5, 7]
    ids, visible = skate.get(see_gpus.options(num_gpus=1).remote())
    assert ids[0] in (5, 7)
    assert visible == str(ids[0])


# --- num_returns ------------------------------------------------------------------------------------------------------


def test_several_results() -> None:
    skate.init(num_cpus=1)
    three = skate.remote(num_returns=3)(lambda: ("a", [1], None))
    refs = three.remote()
    assert len(refs) == 3
    assert skate.get(list(refs)) == ["a", [1], None]
    assert skate.get(refs[1]) == [1]


def test_several_results_may_be_a_tuple_a_list_or_yielded() -> None:
    skate.init(num_cpus=1)
    for make in (lambda: [1, 2], lambda: (1, 2), lambda: (yield from [1, 2])):
        first, second = skate.remote(num_returns=2)(make).remote()
        assert skate.get([first, second]) == [1, 2]


def test_one_result_may_be_a_tuple() -> None:
    skate.init(num_cpus=1)
    assert skate.get(skate.remote(num_returns=1)(lambda: (1, 2)).remote()) == (1, 2)


def test_no_result(tmp_path: Path) -> None:
    skate.init(num_cpus=1)
    mark = tmp_path / "ran"
    assert skate.remote(num_returns=0)(mark.touch).remote() is None
    wait_for(mark.exists, 30, "the task without result to run")


@pytest.mark.parametrize("result", [(1,), (1, 2, 3), (), 5, None], ids=repr)
def test_another_number_of_results_is_an_error_for_every_reference(result: Any) -> None:
    skate.init(num_cpus=1)
    refs = skate.remote(num_returns=2)(lambda: result).remote()
    for ref in refs:
        with pytest.raises(skate.exceptions.TaskError, match=r"num_returns|2") as caught:
            skate.get(ref)
        assert type(caught.value.cause) is ValueError
        assert "execute.py" not in str(caught.value), "frames of Skate"


def test_a_failed_task_fails_each_of_its_results() -> None:
    skate.init(num_cpus=1)
    refs = skate.remote(num_returns=2)(lambda: 1 / 0).remote()
    for ref in refs:
        with pytest.raises(ZeroDivisionError):
            skate.get(ref)


def test_dynamic_gives_one_reference_to_references() -> None:
    skate.init(num_cpus=1)

    @skate.remote(num_returns="dynamic")
    def split(n: int) -> Any:
        for i in range(n):
            yield "x" * i * 100_000

    refs = list(skate.get(split.remote(4)))
    assert [len(skate.get(ref)) for ref in refs] == [0, 100_000, 200_000, 300_000]


# --- retries ----------------------------------------------------------------------------------------------------------


def attempts(log: Path) -> int:
    """Write down an attempt, and say how many there were."""
    with log.open("a") as file:
        file.write("x")
    return len(log.read_text())


@pytest.mark.parametrize(("max_retries", "runs"), [(0, 1), (1, 2), (2, 3)])
def test_a_worker_that_dies_is_replaced_and_the_task_retried(max_retries: int, runs: int, tmp_path: Path) -> None:
    skate.init(num_cpus=1)
    log = tmp_path / "attempts"

    @skate.remote(max_retries=max_retries)
    def crash() -> None:
        attempts(log)
        os._exit(3)

    with pytest.raises(skate.exceptions.WorkerCrashedError, match="3"):
        skate.get(crash.remote())
    assert len(log.read_text()) == runs


def test_a_crash_is_retried_until_it_works(tmp_path: Path) -> None:
    skate.init(num_cpus=1)
    log = tmp_path / "attempts"

    @skate.remote(max_retries=-1)
    def crash_five_times() -> int:
        run = attempts(log)
        if run <= 5:
            os._exit(1)
        return run

    assert skate.get(crash_five_times.remote()) == 6


def test_three_retries_by_default(tmp_path: Path) -> None:
    skate.init(num_cpus=1)
    log = tmp_path / "attempts"

    @skate.remote
    def crash() -> None:
        attempts(log)
        os._exit(1)

    with pytest.raises(skate.exceptions.WorkerCrashedError):
        skate.get(crash.remote())
    assert len(log.read_text()) == 4


@pytest.mark.parametrize(
    ("retry_exceptions", "raised", "runs"),
    [
        (False, KeyError, 1),
        (True, KeyError, 3),
        ([KeyError], KeyError, 3),
        ([LookupError], KeyError, 3),
        ([OSError, KeyError], KeyError, 3),
        ([OSError], KeyError, 1),
        ([], KeyError, 1),
        ([skate.exceptions.TaskError], KeyError, 3),
        ([Exception], SystemExit, 1),
        ([SystemExit], SystemExit, 3),
        (True, SystemExit, 3),
    ],
    ids=str,
)
def test_exceptions_are_retried_when_asked(
    retry_exceptions: Any, raised: type[BaseException], runs: int, tmp_path: Path
) -> None:
    skate.init(num_cpus=1)
    log = tmp_path / "attempts"

    @skate.remote(max_retries=2, retry_exceptions=retry_exceptions)
    def fail() -> None:
        raise raised(attempts(log))

    with pytest.raises(raised if issubclass(raised, Exception) else skate.exceptions.TaskError):
        skate.get(fail.remote())
    assert len(log.read_text()) == runs


def test_a_retried_exception_gives_the_value_in_the_end(tmp_path: Path) -> None:
    skate.init(num_cpus=1)
    log = tmp_path / "attempts"

    @skate.remote(retry_exceptions=[OSError])
    def flaky(data: bytes) -> tuple[int, int, int]:
        run = attempts(log)
        if run < 3:
            raise OSError("try again")
        return run, len(data), skate.get_runtime_context().get_attempt_number()

    assert skate.get(flaky.remote(b"x" * 500_000)) == (3, 500_000, 2)


def test_without_retries_an_exception_is_not_retried_either(tmp_path: Path) -> None:
    skate.init(num_cpus=1)
    log = tmp_path / "attempts"

    @skate.remote(max_retries=0, retry_exceptions=True)
    def fail() -> None:
        attempts(log)
        raise OSError

    with pytest.raises(OSError):
        skate.get(fail.remote())
    assert len(log.read_text()) == 1


def test_an_exception_class_of_the_script_can_be_listed(tmp_path: Path) -> None:
    skate.init(num_cpus=1)
    log = tmp_path / "attempts"

    class Flaky(Exception):
        pass

    @skate.remote(retry_exceptions=[Flaky], max_retries=1)
    def fail_once() -> str:
        if attempts(log) == 1:
            raise Flaky
        return "fine"

    assert skate.get(fail_once.remote()) == "fine"


# --- max_calls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_calls", [1, 3])
def test_a_worker_is_replaced_after_max_calls(max_calls: int) -> None:
    skate.init(num_cpus=1)
    pid = skate.remote(max_calls=max_calls)(os.getpid)
    pids = skate.get([pid.remote() for _ in range(2 * max_calls)])
    assert all(pids.count(each) <= max_calls for each in pids)
    assert len(set(pids)) >= 2


def test_max_calls_loses_no_result_even_when_it_is_large() -> None:
    skate.init(num_cpus=2)
    make = skate.remote(max_calls=1)(lambda i: bytes([i]) * 300_000)
    refs = [make.remote(i) for i in range(8)]
    assert [skate.get(ref)[:1] for ref in refs] == [bytes([i]) for i in range(8)]


def test_an_actor_is_not_made_in_a_worker_that_is_about_to_be_replaced(tmp_path: Path) -> None:
    """The daemon reads the driver's messages first: that the worker came back, and that an actor wants one."""
    skate.init(num_cpus=1)
    runtime = get_runtime()
    running, gate = tmp_path / "running", tmp_path / "gate"

    @skate.remote(max_calls=1)
    def last() -> bool:
        running.touch()
        return wait_for(gate.exists, WITHIN_S, "the gate")

    @skate.remote
    class Actor:
        def pid(self) -> int:
            return os.getpid()

    ref = last.remote()
    wait_for(running.exists, WITHIN_S, "the task to run")
    os.kill(runtime.welcome.daemon_pid, signal.SIGSTOP)
    try:
        runtime.send(LeaseReturn(0))  # of no lease at all: so the driver's socket is the first that has something
        gate.touch()
        assert skate.get(ref)
        wait_for(lambda: not runtime.submitter._leases, WITHIN_S, "the lease to be given back")
        actor = Actor.remote()
    finally:
        os.kill(runtime.welcome.daemon_pid, signal.SIGCONT)
    assert skate.get(actor.pid.remote(), timeout=WITHIN_S)


# --- name and environment ---------------------------------------------------------------------------------------------


def test_a_task_has_the_name_that_it_was_given() -> None:
    skate.init(num_cpus=1)
    name = skate.remote(lambda: skate.get_runtime_context().get_task_name())
    assert skate.get(name.options(name="resize-images").remote()) == "resize-images"
    assert "resize-images" in str(skate.timeline())


def test_environment_variables_are_for_the_tasks_that_asked() -> None:
    skate.init(num_cpus=1)
    look = skate.remote(lambda name: os.environ.get(name))
    red = look.options(runtime_env={"env_vars": {"COLOUR": "red"}})
    blue = look.options(runtime_env={"env_vars": {"COLOUR": "blue"}})
    for _ in range(2):
        assert skate.get([red.remote("COLOUR"), blue.remote("COLOUR"), look.remote("COLOUR")]) == ["red", "blue", None]
    assert "COLOUR" not in os.environ


def test_environment_variables_are_there_before_modules_are_imported() -> None:
    """Libraries read them at import: OMP_NUM_THREADS is the usual one."""
    skate.init(num_cpus=1)

    @skate.remote(runtime_env={"env_vars": {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "0"}})
    def look() -> tuple[str, str]:
        import time

        return time.tzname[0], os.environ["PYTHONHASHSEED"]

    assert skate.get(look.remote()) == ("JST", "0")


def test_modules_are_found_where_the_environment_says(tmp_path: Path) -> None:
    (tmp_path / "of_the_environment.py").write_text("COLOUR = 'green'")
    skate.init(num_cpus=1)

    @skate.remote
    def look() -> str:
        import of_the_environment  # type: ignore[import-not-found]

        return str(of_the_environment.COLOUR)

    parent = skate.remote(lambda: skate.get(look.remote()))
    environment = {"env_vars": {"PYTHONPATH": str(tmp_path)}}
    assert skate.get([each.options(runtime_env=environment).remote() for each in (look, parent)]) == ["green", "green"]
    with pytest.raises(ModuleNotFoundError):
        skate.get(look.remote())


def test_variables_within_a_variable_are_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASE", "/data")
    skate.init(num_cpus=1)
    look = skate.remote(runtime_env={"env_vars": {"PLACE": "${BASE}/set"}})(lambda: os.environ["PLACE"])
    assert skate.get(look.remote()) == "/data/set"


def test_children_inherit_the_environment_of_their_parent() -> None:
    skate.init(num_cpus=1)
    child = skate.remote(lambda: os.environ.get("COLOUR"))
    parent = skate.remote(runtime_env={"env_vars": {"COLOUR": "red"}})(lambda: skate.get(child.remote()))
    assert skate.get(parent.remote()) == "red"


# --- declaring --------------------------------------------------------------------------------------------------------


def test_options_make_a_copy() -> None:
    skate.init(num_cpus=1)
    name = skate.remote(name="one")(lambda: skate.get_runtime_context().get_task_name())
    other = name.options(name="two")
    third = other.options(num_cpus=0.5)
    assert skate.get([name.remote(), other.remote(), third.remote()]) == ["one", "two", "two"]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("num_cpus", -1),
        ("num_cpus", "1"),
        ("num_cpus", True),
        ("num_cpus", float("nan")),
        ("num_gpus", -1),
        ("num_gpus", 1.5),
        ("resources", ["licence"]),
        ("resources", {"licence": -1}),
        ("resources", {"CPU": 1}),
        ("memory", -1),
        ("memory", "1GB"),
        ("num_returns", -1),
        ("num_returns", 1.5),
        ("num_returns", "stream"),
        ("max_retries", -2),
        ("max_retries", 0.5),
        ("retry_exceptions", "OSError"),
        ("retry_exceptions", [OSError, "x"]),
        ("retry_exceptions", OSError),
        ("max_calls", -1),
        ("name", 3),
        ("runtime_env", {"env_vars": {"A": 1}}),
        ("runtime_env", {"env_vars": ["A"]}),
        ("runtime_env", "A=1"),
    ],
)
def test_a_bad_value_is_an_error_at_decoration_that_says_what_it_may_be(option: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"{option}[\s\S]*it may be"):
        skate.remote(**{option: value})(os.getpid)
    with pytest.raises((TypeError, ValueError), match=rf"{option}[\s\S]*it may be"):
        see_gpus.options(**{option: value})


def test_an_unknown_option_is_an_error_at_decoration_that_names_the_known() -> None:
    with pytest.raises(ValueError, match=r"num_cpu'[\s\S]*num_cpus"):
        skate.remote(num_cpu=1)(os.getpid)
    with pytest.raises(ValueError, match=r"retries[\s\S]*max_retries"):
        see_gpus.options(retries=1)
