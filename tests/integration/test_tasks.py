"""Calling functions as tasks: arguments, results, where they run, and who may call."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import skate
from waiting import wait_for

pytestmark = pytest.mark.usefixtures("runtime")


@skate.remote
def echo(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Give back what came."""
    return args, kwargs


@skate.remote
def pid() -> int:
    return os.getpid()


@skate.remote
def add(a: int, b: int = 10, *, c: int = 100) -> int:
    return a + b + c


# --- arguments and results --------------------------------------------------------------------------------------------


def test_arguments_of_every_kind() -> None:
    assert skate.get(add.remote(1)) == 111
    assert skate.get(add.remote(1, 2)) == 103
    assert skate.get(add.remote(1, b=2, c=3)) == 6
    assert skate.get(add.remote(b=2, a=1)) == 103
    assert skate.get(echo.remote()) == ((), {})
    assert skate.get(echo.remote(1, "two", [3], key={"four": 5.0})) == ((1, "two", [3]), {"key": {"four": 5.0}})


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**200),
        1.5,
        float("inf"),
        2 + 3j,
        "",
        "grüße",
        "\ud800",
        b"",
        b"bytes",
        bytearray(b"mutable"),
        (),
        [],
        {},
        {1, 2},
        frozenset({1}),
        range(5),
        {"nested": [({"deep": None},)]},
        Ellipsis,
        int,
        len,
        Path("/a/b"),
        "x" * 1_000_000,
        b"y" * 3_000_000,
        list(range(100_000)),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_a_value_travels_there_and_back(value: Any) -> None:
    assert skate.get(echo.remote(value)) == ((value,), {})
    assert skate.get(echo.remote(key=value)) == ((), {"key": value})
    assert skate.get(skate.put(value)) == value
    assert type(skate.get(skate.put(value))) is type(value)


def test_a_task_without_return_gives_none() -> None:
    assert skate.get(skate.remote(lambda: None).remote()) is None


def test_arguments_are_copies() -> None:
    """As with any call into another process: what the task does to them is not seen here."""
    mine = [1, 2]
    change = skate.remote(lambda items: items.append(3) or items)
    assert skate.get(change.remote(mine)) == [1, 2, 3]
    assert mine == [1, 2]


def test_an_argument_is_taken_at_the_call() -> None:
    items = [1]
    ref = echo.remote(items)
    items.append(2)
    assert skate.get(ref) == (([1],), {})


def test_values_got_twice_do_not_share_changes() -> None:
    ref = skate.put([1, 2])
    skate.get(ref).append(3)
    assert skate.get(ref) == [1, 2]


def test_a_shared_argument_does_not_carry_changes_from_task_to_task() -> None:
    ref = skate.put([1])
    change = skate.remote(lambda items: items.append(2) or items)
    assert skate.get([change.remote(ref) for _ in range(10)]) == [[1, 2]] * 10


def test_results_come_in_the_order_of_the_list_and_not_of_completion(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @skate.remote
    def first() -> str:
        wait_for(gate.exists, 30, "the second task to finish")
        return "first"

    @skate.remote
    def second() -> str:
        gate.touch()
        return "second"

    assert skate.get([first.remote(), second.remote()]) == ["first", "second"]


def test_thousands_of_tasks() -> None:
    square = skate.remote(lambda x: x * x)
    assert skate.get([square.remote(i) for i in range(3000)]) == [i * i for i in range(3000)]


def test_one_object_is_stored_however_it_is_passed() -> None:
    """An argument of a megabyte goes through shared memory, a small one with the call: nobody sees a difference."""
    length = skate.remote(lambda *args, **kwargs: [len(each) for each in (*args, *kwargs.values())])
    large, small = b"x" * 2_000_000, b"y"
    assert skate.get(length.remote(large, small, large=large, small=small)) == [2_000_000, 1, 2_000_000, 1]


# --- where tasks run --------------------------------------------------------------------------------------------------


def test_tasks_run_in_other_processes_that_are_used_again() -> None:
    pids = set(skate.get([pid.remote() for _ in range(200)]))
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2, "there are two CPUs"


def test_two_cpus_run_two_tasks_at_once(tmp_path: Path) -> None:
    @skate.remote
    def meet(me: str, other: str) -> int:
        (tmp_path / me).touch()
        wait_for((tmp_path / other).exists, 30, f"{other} to run")
        return os.getpid()

    a, b = skate.get([meet.remote("a", "b"), meet.remote("b", "a")])
    assert a != b


def test_tasks_have_the_working_directory_of_the_driver() -> None:
    assert skate.get(skate.remote(os.getcwd).remote()) == os.getcwd()


def test_tasks_see_the_environment_of_the_driver() -> None:
    look = skate.remote(lambda: os.environ.get("PATH"))
    assert skate.get(look.remote()) == os.environ["PATH"]


def test_a_task_may_use_subprocesses_and_threads() -> None:
    @skate.remote
    def work() -> tuple[int, list[int]]:
        import multiprocessing
        import subprocess
        from concurrent.futures import ThreadPoolExecutor

        code = subprocess.run(["true"], check=False).returncode
        with ThreadPoolExecutor(2) as threads:
            squares = list(threads.map(abs, [-1, -2]))
        with multiprocessing.get_context("fork").Pool(1) as processes:
            squares += processes.map(abs, [-3])
        return code, squares

    assert skate.get(work.remote()) == (0, [1, 2, 3])


def test_stdin_of_a_task_is_empty() -> None:
    import sys

    assert skate.get(skate.remote(lambda: sys.stdin.read() if sys.stdin else "").remote()) == ""


# --- declaring --------------------------------------------------------------------------------------------------------


def test_a_remote_function_keeps_its_name_and_documentation() -> None:
    assert echo.__name__ == "echo"
    assert echo.__doc__ == "Give back what came."
    assert "echo" in repr(echo)


def test_calling_a_remote_function_directly_is_a_clear_error() -> None:
    with pytest.raises(TypeError, match=r"add\.remote\("):
        add(1)


def test_decorated_with_and_without_options_is_the_same_function() -> None:
    bare = skate.remote(lambda x: x + 1)
    optioned = skate.remote(num_cpus=1)(lambda x: x + 1)
    empty = skate.remote()(lambda x: x + 1)
    assert skate.get([bare.remote(1), optioned.remote(1), empty.remote(1)]) == [2, 2, 2]


def test_wrong_arguments_fail_at_the_call() -> None:
    with pytest.raises(TypeError, match="add"):
        add.remote()
    with pytest.raises(TypeError, match="add"):
        add.remote(1, 2, 3)
    with pytest.raises(TypeError, match="unknown"):
        add.remote(1, unknown=2)


@pytest.mark.parametrize("thing", [1, "text", None, [len]])
def test_only_functions_can_be_made_remote(thing: Any) -> None:
    with pytest.raises(TypeError):
        skate.remote(thing)


def test_an_async_function_is_refused_with_advice() -> None:
    async def coroutine() -> None: ...

    async def generator() -> AsyncIterator[int]:
        yield 1

    for function in (coroutine, generator):
        with pytest.raises(TypeError, match="async"):
            skate.remote(function)


def test_a_remote_function_is_not_made_remote_twice() -> None:
    with pytest.raises(TypeError, match="remote already"):
        skate.remote(add)


def test_a_remote_function_can_be_an_argument() -> None:
    apply = skate.remote(lambda function, *args: skate.get(function.remote(*args)))
    assert skate.get(apply.remote(add, 1)) == 111


# --- who may call -----------------------------------------------------------------------------------------------------


def test_many_threads_call_at_once() -> None:
    """Each thread submits, gets, puts, waits and drops; every value comes to the thread that asked for it."""
    square = skate.remote(lambda x: x * x)
    problems: list[BaseException] = []
    barrier = threading.Barrier(8)

    def user(number: int) -> None:
        try:
            barrier.wait()
            for step in range(20):
                base = 1000 * number + step
                refs = [square.remote(base + i) for i in range(5)]
                stored = skate.put([base])
                ready, rest = skate.wait(refs, num_returns=5)
                assert (ready, rest) == (refs, [])
                assert skate.get(refs) == [(base + i) ** 2 for i in range(5)]
                assert skate.get(stored) == [base]
                assert len(list(skate.as_completed(refs))) == 5
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=user, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_threads_of_a_task_may_call_too() -> None:
    @skate.remote
    def parent() -> list[int]:
        from concurrent.futures import ThreadPoolExecutor

        child = skate.remote(lambda x: x + 1)
        with ThreadPoolExecutor(4) as threads:
            return list(threads.map(lambda x: skate.get(child.remote(x)), range(20)))

    assert skate.get(parent.remote()) == list(range(1, 21))


def test_one_thread_waits_while_another_submits_what_it_waits_for(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @skate.remote
    def wait() -> str:
        wait_for(gate.exists, 30, "the other thread's task")
        return "opened"

    values: list[str] = []
    ref = wait.remote()
    getter = threading.Thread(target=lambda: values.append(skate.get(ref)))
    getter.start()
    skate.get(skate.remote(gate.touch).remote())
    getter.join()
    assert values == ["opened"]


def test_a_task_can_be_cancelled(tmp_path: Path) -> None:
    started = tmp_path / "started"

    @skate.remote
    def endless() -> None:
        started.touch()
        while True:
            threading.Event().wait(0.05)

    ref = endless.remote()
    wait_for(started.exists, 30, "the task to run")
    skate.cancel(ref)
    with pytest.raises(skate.exceptions.TaskCancelledError):
        skate.get(ref)


def test_workers_collect_garbage() -> None:
    # The processes that they are forked from do not while they start.
    @skate.remote
    def is_collecting() -> bool:
        return gc.isenabled()

    in_an_environment = is_collecting.options(runtime_env={"env_vars": {"SKATE_TEST_GARBAGE": "1"}})
    assert skate.get([is_collecting.remote(), in_an_environment.remote()]) == [True, True]


def test_a_task_does_not_wait_behind_a_long_one_while_a_cpu_is_free(tmp_path: Path) -> None:
    go = tmp_path / "go"

    @skate.remote
    def work(long: bool) -> None:
        while long and not go.exists():
            os.sched_yield()

    skate.get(work.remote(False))  # so that it is taken to be short, and both tasks below go to this worker
    refs = [work.remote(True), work.remote(False)]
    skate.get(refs[1], timeout=30)
    assert not go.exists()
    go.touch()
    skate.get(refs[0], timeout=30)
