"""`skate.util.Executor`: what programs expect of the executors of `concurrent.futures`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future
from pathlib import Path
from typing import Any

import pytest

import skate
from programs import append, lines, run_program
from skate.exceptions import ActorDiedError, NotInitializedError, SerializationError, TaskCancelledError
from skate.util import Executor
from waiting import wait_for

pytestmark = pytest.mark.usefixtures("runtime")

WITHIN_S = 20.0
SOON_S = 0.01

initialized: list[Any] = []


@pytest.fixture
def executor() -> Iterator[Executor]:
    executor = Executor(2)
    yield executor
    executor.terminate_workers()
    executor.shutdown()


def square(x: int) -> int:
    return x * x


def fail(x: Any = "no") -> None:
    raise ValueError(x)


def raise_it(error: BaseException) -> None:
    raise error


def wait_for_file(path: Path) -> str:
    wait_for(path.exists, WITHIN_S, "somebody to make the file")
    return "seen"


def remember(value: Any) -> None:
    initialized.append(value)


def remembered() -> list[Any]:
    return initialized


# --- submit -----------------------------------------------------------------------------------------------------------


def test_submit_returns_a_future_of_the_standard_library(executor: Executor) -> None:
    future = executor.submit(pow, 2, 10)
    assert isinstance(future, Future)
    assert future.result(WITHIN_S) == 1024
    assert executor.submit(int, "ff", base=16).result(WITHIN_S) == 255
    assert executor.submit(os.getpid).result(WITHIN_S) != os.getpid()
    assert isinstance(executor, concurrent.futures.Executor)


def test_an_error_keeps_its_class_and_brings_its_traceback(executor: Executor) -> None:
    error = executor.submit(fail, "not today").exception(WITHIN_S)
    assert type(error) is ValueError
    assert error.args == ("not today",)
    assert "raise ValueError(x)" in str(error.__cause__)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("no")], ids=repr)
def test_a_call_that_exits_fails_with_that_and_its_worker_goes_on(error: BaseException) -> None:
    with Executor(1) as executor:
        before = executor.submit(os.getpid).result(WITHIN_S)
        exits = executor.submit(raise_it, error)
        with pytest.raises(type(error)) as caught:
            exits.result(WITHIN_S)
        assert caught.value.args == error.args
        assert executor.submit(os.getpid).result(WITHIN_S) == before


def fork_and_exit(code: int) -> int:
    child = os.fork()
    if not child:
        sys.exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_that_a_call_has_forked_exits_with_its_own_code() -> None:
    with Executor(1) as executor:
        assert executor.submit(fork_and_exit, 7).result(WITHIN_S) == 7


def test_exit_actor_ends_the_worker() -> None:
    with Executor(1) as executor:
        before = executor.submit(os.getpid).result(WITHIN_S)
        with pytest.raises(ActorDiedError, match="exit_actor"):
            executor.submit(skate.exit_actor).result(WITHIN_S)
        assert executor.submit(os.getpid).result(WITHIN_S) != before


def test_callbacks_of_a_future_are_called(executor: Executor) -> None:
    called: list[Any] = []
    future = executor.submit(square, 3)
    future.add_done_callback(lambda done: called.append(done.result()))
    wait_for(lambda: called == [9], WITHIN_S, "the callback")


def test_wait_and_as_completed_of_the_standard_library_work(executor: Executor, tmp_path: Path) -> None:
    slow = executor.submit(wait_for_file, tmp_path / "go")
    quick = [executor.submit(square, i) for i in range(5)]
    done, waiting = concurrent.futures.wait([slow, *quick], timeout=WITHIN_S, return_when="FIRST_COMPLETED")
    assert done
    assert slow in waiting
    (tmp_path / "go").touch()
    results = [future.result() for future in concurrent.futures.as_completed([slow, *quick], timeout=WITHIN_S)]
    assert sorted(results, key=str) == [0, 1, 16, 4, 9, "seen"]


def test_no_more_calls_run_at_a_time_than_there_are_workers(executor: Executor, tmp_path: Path) -> None:
    futures = [executor.submit(wait_for_file, tmp_path / "go") for _ in range(4)]
    wait_for(lambda: sum(future.running() for future in futures) == 2, WITHIN_S, "two calls to run")
    assert executor.max_workers == 2
    (tmp_path / "go").touch()
    assert [future.result(WITHIN_S) for future in futures] == ["seen"] * 4


def test_arguments_that_cannot_be_pickled_fail_their_future_only(executor: Executor) -> None:
    with pytest.raises(SerializationError):
        executor.submit(square, threading.Lock()).result(WITHIN_S)  # type: ignore[arg-type]
    assert executor.submit(square, 2).result(WITHIN_S) == 4


def test_references_among_the_arguments_stay_references(executor: Executor) -> None:
    assert executor.submit(skate.get, skate.put(5)).result(WITHIN_S) == 5


def test_the_number_of_workers_is_that_of_the_cpus_if_nobody_says() -> None:
    with Executor() as executor:
        assert executor.max_workers == 2


def test_wrong_arguments_are_refused() -> None:
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="1 or more"):
            Executor(wrong)
    with pytest.raises(TypeError, match="whole number"):
        Executor("2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="initializer"):
        Executor(1, initializer=5)  # type: ignore[arg-type]


# --- cancel -----------------------------------------------------------------------------------------------------------


def test_a_future_can_be_cancelled_before_its_call_runs(tmp_path: Path) -> None:
    with Executor(1) as executor:
        first = executor.submit(wait_for_file, tmp_path / "go")
        second = executor.submit(append, tmp_path / "log", "second")
        third = executor.submit(append, tmp_path / "log", "third")
        assert second.cancel()
        (tmp_path / "go").touch()
        assert first.result(WITHIN_S) == "seen"
        third.result(WITHIN_S)
        with pytest.raises(CancelledError):
            second.result(WITHIN_S)
        assert not first.cancel()
    assert lines(tmp_path / "log") == ["third"]


def test_a_running_call_cannot_be_cancelled(executor: Executor, tmp_path: Path) -> None:
    future = executor.submit(wait_for_file, tmp_path / "go")
    wait_for(future.running, WITHIN_S, "it to run")
    assert not future.cancel()
    (tmp_path / "go").touch()
    assert future.result(WITHIN_S) == "seen"


# --- map --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunksize", [1, 3, 100])
def test_map_is_the_built_in_map(executor: Executor, chunksize: int) -> None:
    assert list(executor.map(pow, range(10), range(10), chunksize=chunksize)) == list(map(pow, range(10), range(10)))
    assert list(executor.map(square, [], chunksize=chunksize)) == []


def test_map_starts_before_its_results_are_asked_for(executor: Executor, tmp_path: Path) -> None:
    results = executor.map(append, [tmp_path / "log"] * 3, range(3))
    wait_for(lambda: len(lines(tmp_path / "log")) == 3, WITHIN_S, "the calls to run")
    assert list(results) == [None] * 3


def test_an_error_ends_a_map_in_its_place(executor: Executor) -> None:
    results = executor.map(lambda x: 6 // x, [1, 2, 0, 3])
    assert [next(results), next(results)] == [6, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_a_timeout_may_be_as_long_as_one_likes(executor: Executor) -> None:
    assert list(executor.map(abs, [-1, -2], timeout=float("inf"))) == [1, 2]


def test_map_takes_a_timeout(executor: Executor, tmp_path: Path) -> None:
    results = executor.map(wait_for_file, [tmp_path / "go"], timeout=SOON_S)
    with pytest.raises(concurrent.futures.TimeoutError):
        next(results)
    (tmp_path / "go").touch()


def test_map_reads_no_further_than_its_buffer(executor: Executor) -> None:
    read: list[int] = []

    def numbers() -> Iterator[int]:
        for i in range(50):
            read.append(i)
            yield i

    results = executor.map(square, numbers(), buffersize=4)
    assert [next(results) for _ in range(3)] == [0, 1, 4]
    assert len(read) <= 8
    assert list(results) == [i * i for i in range(3, 50)]


def test_arguments_of_map_that_make_no_sense_are_refused(executor: Executor) -> None:
    for wrong in ({"chunksize": 0}, {"chunksize": -1}, {"buffersize": 0}):
        with pytest.raises(ValueError, match="1 or more"):
            executor.map(square, [1], **wrong)


# --- asyncio ----------------------------------------------------------------------------------------------------------


def test_run_in_executor_works(executor: Executor) -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        with pytest.raises(ValueError, match="no"):
            await loop.run_in_executor(executor, fail)
        return await asyncio.gather(*[loop.run_in_executor(executor, square, i) for i in range(5)])

    assert asyncio.run(main()) == [0, 1, 4, 9, 16]


# --- making and ending ------------------------------------------------------------------------------------------------


def test_each_worker_calls_the_initializer_once() -> None:
    with Executor(2, initializer=remember, initargs=("a",)) as executor:
        futures = [executor.submit(remembered) for _ in range(6)]
        assert [future.result(WITHIN_S) for future in futures] == [["a"]] * 6


def test_the_end_of_a_with_block_waits_for_every_call(tmp_path: Path) -> None:
    with Executor(2) as executor:
        futures = [executor.submit(append, tmp_path / "log", i) for i in range(10)]
    assert all(future.done() for future in futures)
    assert sorted(map(int, lines(tmp_path / "log"))) == list(range(10))


def test_nothing_can_be_submitted_after_shutdown(executor: Executor) -> None:
    executor.submit(square, 1)
    executor.shutdown()
    executor.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(square, 2)


def test_shutdown_without_waiting_lets_calls_complete(executor: Executor, tmp_path: Path) -> None:
    futures = [executor.submit(wait_for_file, tmp_path / "go") for _ in range(3)]
    executor.shutdown(wait=False)
    (tmp_path / "go").touch()
    assert [future.result(WITHIN_S) for future in futures] == ["seen"] * 3


def test_shutdown_can_cancel_what_has_not_started(executor: Executor, tmp_path: Path) -> None:
    futures = [executor.submit(wait_for_file, tmp_path / "go") for _ in range(6)]
    wait_for(lambda: sum(future.running() for future in futures) == 2, WITHIN_S, "two calls to run")
    executor.shutdown(wait=False, cancel_futures=True)
    assert sum(future.cancelled() for future in futures) == 4
    (tmp_path / "go").touch()
    executor.shutdown()
    assert [future.result() for future in futures if not future.cancelled()] == ["seen"] * 2


def test_terminating_the_workers_fails_what_they_do(executor: Executor, tmp_path: Path) -> None:
    futures = [executor.submit(wait_for_file, tmp_path / "never") for _ in range(4)]
    executor.terminate_workers()
    for future in futures:
        with pytest.raises(TaskCancelledError):
            future.result(WITHIN_S)


def test_a_program_ends_when_its_calls_are_done(tmp_path: Path) -> None:
    """Without shutdown(), as with the executors of the standard library."""
    program = tmp_path / "leaves_work.py"
    program.write_text(
        "import sys, time\nfrom skate.util import Executor\n"
        "def work(i):\n    time.sleep(0.1)\n    print('done', i, flush=True)\n"
        "executor = Executor(2)\nfor i in range(4):\n    executor.submit(work, i)\n"
    )
    assert sorted(line[-6:] for line in run_program(program)[0].splitlines()) == [f"done {i}" for i in range(4)]


# --- when things go wrong ---------------------------------------------------------------------------------------------


def test_a_worker_that_dies_fails_its_call_and_is_replaced(executor: Executor) -> None:
    with pytest.raises(ActorDiedError, match="exited with code 3"):
        executor.submit(os._exit, 3).result(WITHIN_S)
    assert [executor.submit(square, i).result(WITHIN_S) for i in range(4)] == [0, 1, 4, 9]


def test_an_initializer_that_raises_breaks_the_executor() -> None:
    executor = Executor(2, initializer=fail, initargs=("cannot start",))
    futures = [executor.submit(square, i) for i in range(3)]
    for future in futures:
        with pytest.raises(BrokenExecutor, match="cannot start"):
            future.result(WITHIN_S)
    with pytest.raises(BrokenExecutor):
        executor.submit(square, 1)
    executor.shutdown()


def test_an_executor_of_an_earlier_session_says_so(executor: Executor) -> None:
    assert executor.submit(square, 2).result(WITHIN_S) == 4
    skate.shutdown()
    with pytest.raises(BrokenExecutor, match="make another") as caught:
        executor.submit(square, 2).result(WITHIN_S)
    assert isinstance(caught.value.__cause__, NotInitializedError)
    assert not skate.is_initialized()
