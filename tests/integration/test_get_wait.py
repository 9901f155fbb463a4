"""Getting values: `get`, `put`, `wait`, `as_completed` and `.future()`."""

from __future__ import annotations

import concurrent.futures
import threading
from pathlib import Path
from typing import Any

import pytest

import skate
from skate.exceptions import GetTimeoutError
from waiting import wait_for

pytestmark = pytest.mark.usefixtures("runtime")


@skate.remote(num_cpus=0)
def when(gate: Path, value: Any = None) -> Any:
    """The value, as soon as the gate is there."""
    wait_for(gate.exists, 40, f"{gate.name} to open")
    return value


@skate.remote
def fail() -> None:
    raise ValueError("failed")


@pytest.fixture
def gates(tmp_path: Path) -> list[Path]:
    return [tmp_path / f"gate-{i}" for i in range(6)]


# --- get --------------------------------------------------------------------------------------------------------------


def test_get_of_lists() -> None:
    refs = [skate.put(i) for i in range(5)]
    assert skate.get(refs) == [0, 1, 2, 3, 4]
    assert list(skate.get(tuple(refs))) == [0, 1, 2, 3, 4]
    assert skate.get([]) == []
    assert skate.get([refs[3], refs[1], refs[3]]) == [3, 1, 3]


def test_get_of_one_value_many_times() -> None:
    ref = skate.put({"a": 1})
    assert [skate.get(ref) for _ in range(5)] == [{"a": 1}] * 5


def test_a_list_with_a_failed_task_raises_its_error() -> None:
    with pytest.raises(ValueError, match="failed"):
        skate.get([skate.put(1), fail.remote(), skate.put(2)])


def test_an_error_is_raised_while_those_before_it_still_run(gates: list[Path]) -> None:
    """They may wait for the one that failed, and never end."""
    running = when.remote(gates[0])
    failed = fail.remote()
    with pytest.raises(ValueError, match="failed"):
        skate.get([running, when.remote(gates[0]), failed], timeout=30)
    with pytest.raises(ValueError, match="failed"):
        skate.get([running, failed], timeout=30)
    with pytest.raises(ValueError, match="failed"):
        skate.get([running, fail.remote()], timeout=30)
    with pytest.raises(GetTimeoutError):
        skate.get([running, skate.put(1)], timeout=0)
    gates[0].touch()


def test_an_error_in_another_process_is_raised_while_those_before_it_still_run(gates: list[Path]) -> None:
    @skate.remote
    def first_error(refs: list[Any]) -> str:
        try:
            skate.get(refs, timeout=30)
        except ValueError as error:
            return str(error.__cause__ or error)
        return ""

    running = when.remote(gates[0])
    assert "failed" in skate.get(first_error.remote([running, fail.remote()]))
    gates[0].touch()


@pytest.mark.parametrize(
    "value",
    [1, "ref", None, [1], [[1]], {"a": 1}, object()],
    ids=lambda value: type(value).__name__ if type(value) is object else repr(value),
)
def test_what_is_not_a_reference_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match=r"get\(\)"):
        skate.get(value)


def test_get_of_a_remote_function_says_what_was_forgotten() -> None:
    with pytest.raises(TypeError, match=r"\.remote\("):
        skate.get(fail)


def test_get_of_a_list_within_a_list_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="list"):
        skate.get([[skate.put(1)]])


def test_get_with_enough_time() -> None:
    assert skate.get(skate.put(1), timeout=30) == 1
    assert skate.get([when.remote(Path("/"), 1), when.remote(Path("/"), 2)], timeout=30) == [1, 2]


@pytest.mark.parametrize("timeout", [3e6, 1e12, float("inf")])
def test_a_timeout_may_be_as_long_as_one_likes(timeout: float) -> None:
    def wait_long() -> list[Any]:
        first, second, third = (when.remote(Path("/"), i) for i in range(3))
        waited = skate.get(first, timeout=timeout), skate.wait([second], timeout=timeout)
        return [waited[0], waited[1] == ([second], []), len(list(skate.as_completed([third], timeout=timeout)))]

    assert wait_long() == [0, True, 1]
    assert skate.get(skate.remote(wait_long).remote()) == [0, True, 1]


def test_get_that_times_out_says_so_and_leaves_the_task_alone(gates: list[Path]) -> None:
    ref = when.remote(gates[0], "late")
    with pytest.raises(GetTimeoutError, match=r"0\.01"):
        skate.get(ref, timeout=0.01)
    with pytest.raises(TimeoutError):
        skate.get([skate.put(1), ref], timeout=0.01)
    gates[0].touch()
    assert skate.get(ref, timeout=30) == "late"


def test_timeout_of_zero_looks_without_waiting(gates: list[Path]) -> None:
    assert skate.get(skate.put(1), timeout=0) == 1
    done = when.remote(Path("/"), 2)
    skate.wait([done])
    assert skate.get(done, timeout=0) == 2
    pending = when.remote(gates[0])
    with pytest.raises(GetTimeoutError):
        skate.get(pending, timeout=0)
    gates[0].touch()
    skate.get(pending)


def test_an_error_that_is_there_wins_over_the_timeout(gates: list[Path]) -> None:
    failed = fail.remote()
    skate.wait([failed])
    with pytest.raises(ValueError, match="failed"):
        skate.get(failed, timeout=0)
    gates[0].touch()


@pytest.mark.parametrize("timeout", [-1, "1"], ids=repr)
def test_a_bad_timeout_of_get_is_an_error(timeout: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="timeout"):
        skate.get(skate.put(1), timeout=timeout)


def test_get_takes_a_generator_of_references() -> None:
    assert skate.get(skate.remote(lambda: (yield from [1, 2, 3])).remote()) == [1, 2, 3]


def test_a_large_value_and_a_small_one_in_one_get() -> None:
    values = skate.get([skate.put(b"x" * 5_000_000), skate.put(1), skate.put("y" * 200_000)])
    assert [type(value) for value in values] == [bytes, int, str]
    assert len(values[0]) == 5_000_000
    assert len(values[2]) == 200_000


# --- wait -------------------------------------------------------------------------------------------------------------


def test_wait_returns_the_first_that_is_ready(gates: list[Path]) -> None:
    refs = [when.remote(gate, i) for i, gate in enumerate(gates[:4])]
    gates[2].touch()
    assert skate.wait(refs) == ([refs[2]], [refs[0], refs[1], refs[3]])
    for gate in gates:
        gate.touch()
    assert skate.wait(refs, num_returns=4) == (refs, [])


def test_wait_keeps_the_order_of_its_input(gates: list[Path]) -> None:
    refs = [when.remote(gate, i) for i, gate in enumerate(gates)]
    for i in (4, 1, 3):
        gates[i].touch()
        skate.get(refs[i])
    ready, rest = skate.wait(refs, num_returns=3)
    assert ready == [refs[1], refs[3], refs[4]]
    assert rest == [refs[0], refs[2], refs[5]]
    for gate in gates:
        gate.touch()
    skate.get(refs)


def test_wait_gives_no_more_than_asked_for() -> None:
    refs = [skate.put(i) for i in range(5)]
    ready, rest = skate.wait(refs)
    assert (ready, rest) == (refs[:1], refs[1:])
    ready, rest = skate.wait(refs, num_returns=3)
    assert (ready, rest) == (refs[:3], refs[3:])


def test_wait_with_a_timeout_gives_what_is_there(gates: list[Path]) -> None:
    refs = [skate.put(0), when.remote(gates[0]), skate.put(2)]
    assert skate.wait(refs, num_returns=3, timeout=0.01) == ([refs[0], refs[2]], [refs[1]])
    assert skate.wait([refs[1]], timeout=0) == ([], [refs[1]])
    assert skate.wait(refs, num_returns=2, timeout=0) == ([refs[0], refs[2]], [refs[1]])
    gates[0].touch()
    assert skate.wait(refs, num_returns=3, timeout=30) == (refs, [])


def test_a_failed_task_is_ready() -> None:
    ref = fail.remote()
    assert skate.wait([ref], timeout=30) == ([ref], [])


def test_wait_for_tasks_one_at_a_time() -> None:
    waiting = [skate.remote(lambda i=i: i).remote() for i in range(100)]
    values = []
    while waiting:
        ready, waiting = skate.wait(waiting)
        assert len(ready) == 1
        values.append(skate.get(ready[0]))
    assert sorted(values) == list(range(100))


def test_wait_without_fetching() -> None:
    ref = skate.put(b"x" * 1_000_000)
    assert skate.wait([ref], fetch_local=False) == ([ref], [])


@pytest.mark.parametrize("num_returns", [0, -1, 3, 1.5, "1"], ids=repr)
def test_wait_for_a_bad_number_is_an_error(num_returns: Any) -> None:
    refs = [skate.put(1), skate.put(2)]
    with pytest.raises((TypeError, ValueError), match="num_returns"):
        skate.wait(refs, num_returns=num_returns)


def test_wait_for_what_is_not_a_list_of_references_is_an_error() -> None:
    ref = skate.put(1)
    with pytest.raises(TypeError, match="list"):
        skate.wait(ref)
    with pytest.raises(TypeError):
        skate.wait([ref, 1])
    with pytest.raises(ValueError, match=r"twice|same"):
        skate.wait([ref, ref])
    with pytest.raises(ValueError, match="timeout"):
        skate.wait([ref], timeout=-1)


def test_wait_for_nothing() -> None:
    assert skate.wait([]) == ([], [])


# --- as_completed -----------------------------------------------------------------------------------------------------


def test_as_completed_follows_completion(gates: list[Path]) -> None:
    refs = [when.remote(gate, i) for i, gate in enumerate(gates[:4])]
    completed = skate.as_completed(refs)
    seen = []
    for i in (2, 0, 3, 1):
        gates[i].touch()
        seen.append(skate.get(next(completed)))
    assert seen == [2, 0, 3, 1]
    with pytest.raises(StopIteration):
        next(completed)


def test_as_completed_yields_failed_tasks_too() -> None:
    refs = {fail.remote(), skate.put(1)}
    assert set(skate.as_completed(refs)) == refs


def test_as_completed_of_nothing() -> None:
    assert list(skate.as_completed([])) == []


def test_as_completed_takes_any_iterable() -> None:
    assert sorted(map(skate.get, skate.as_completed(skate.put(i) for i in range(3)))) == [0, 1, 2]


def test_as_completed_with_a_timeout(gates: list[Path]) -> None:
    refs = [skate.put(0), when.remote(gates[0], 1)]
    completed = skate.as_completed(refs, timeout=0.05)
    assert next(completed) == refs[0]
    with pytest.raises(skate.exceptions.GetTimeoutError, match=r"as_completed\(\) timed out .* 1 of 2"):
        next(completed)
    gates[0].touch()
    assert skate.get(refs[1]) == 1


@pytest.mark.parametrize("timeout", ["1", -1, float("nan")])
def test_as_completed_with_a_bad_timeout(timeout: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="as_completed"):
        skate.as_completed([skate.put(0)], timeout=timeout)


def test_as_completed_that_is_left_early_holds_nothing(gates: list[Path]) -> None:
    refs = [skate.put(0), when.remote(gates[0], 1)]
    for ref in skate.as_completed(refs):
        assert skate.get(ref) == 0
        break
    gates[0].touch()
    assert skate.get(refs[1]) == 1


def test_as_completed_of_other_things_is_an_error() -> None:
    with pytest.raises(TypeError):
        list(skate.as_completed([1]))


# --- futures ----------------------------------------------------------------------------------------------------------


def test_a_future_has_the_value() -> None:
    future = skate.put("value").future()
    assert isinstance(future, concurrent.futures.Future)
    assert future.result(timeout=30) == "value"
    assert future.done()


def test_a_future_has_the_error() -> None:
    future = fail.remote().future()
    assert isinstance(future.exception(timeout=30), ValueError)
    with pytest.raises(ValueError, match="failed"):
        future.result()


def test_a_future_keeps_the_object_alive(gates: list[Path]) -> None:
    future = when.remote(gates[0], "kept").future()
    assert not future.done()
    gates[0].touch()
    assert future.result(timeout=30) == "kept"


def test_futures_work_with_the_standard_library(gates: list[Path]) -> None:
    futures = [when.remote(gate, i).future() for i, gate in enumerate(gates[:3])]
    gates[1].touch()
    done, _ = concurrent.futures.wait(futures, timeout=30, return_when=concurrent.futures.FIRST_COMPLETED)
    assert [future.result() for future in done] == [1]
    gates[0].touch()
    gates[2].touch()
    assert sorted(future.result() for future in concurrent.futures.as_completed(futures, timeout=30)) == [0, 1, 2]


def test_a_callback_of_a_future_may_use_skate(gates: list[Path]) -> None:
    called = threading.Event()
    values = []

    def then(future: concurrent.futures.Future[int]) -> None:
        values.append(skate.get(skate.remote(lambda x: x + 1).remote(future.result())))
        called.set()

    when.remote(gates[0], 1).future().add_done_callback(then)
    gates[0].touch()
    assert called.wait(30)
    assert values == [2]


@pytest.mark.parametrize(("wrong", "called"), [(3, "an int"), ("ref", "a str"), (object(), "an object")])
def test_what_is_no_reference_is_named(wrong: Any, called: str) -> None:
    for call in (skate.get, skate.why, skate.cancel):
        with pytest.raises(TypeError, match=rf"takes a reference.*, not {called}\."):
            call(wrong)
    for over in (skate.as_completed, skate.progress):
        with pytest.raises(TypeError, match=f"takes references, and an element is {called}"):
            list(over([wrong]))
